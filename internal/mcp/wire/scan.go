package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxDepth is how deeply arrays and objects may nest: what encoding/json, at the other end
// of many connections, accepts.
const maxDepth = 10000

var errTooDeep = fmt.Errorf("nested more than %d deep", maxDepth)

// A syntaxError says where a JSON text is wrong.
type syntaxError struct {
	offset int
	what   string
}

func (e *syntaxError) Error() string {
	return fmt.Sprintf("invalid JSON at byte %d: %s", e.offset, e.what)
}

func wrong(offset int, what string) error { return &syntaxError{offset, what} }

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// scanValue returns the end of the JSON value that begins at b[i]. It checks the
// grammar (RFC 8259) and nothing else: invalid UTF-8 inside strings, numbers of any size and
// repeated keys are its callers' affair.
func scanValue(b []byte, i int) (int, error) {
	// The nesting is a stack of closing brackets, not recursion, so that depth costs one byte.
	var stack []byte
	var err error
	for {
		i = skipSpace(b, i)
		if i >= len(b) {
			return i, wrong(i, "it ends early")
		}
		switch c := b[i]; {
		case c == '{' || c == '[':
			if len(stack) == maxDepth {
				return i, errTooDeep
			}
			closing := c + 2 // '[' + 2 == ']' and '{' + 2 == '}'
			i = skipSpace(b, i+1)
			if i < len(b) && b[i] == closing {
				i++
				break // an empty one is a value that has ended
			}
			stack = append(stack, closing)
			if c == '{' {
				if i, err = scanKey(b, i); err != nil {
					return i, err
				}
			}
			continue
		case c == '"':
			if i, err = scanString(b, i); err != nil {
				return i, err
			}
		case c == '-' || c >= '0' && c <= '9':
			if i, err = scanNumber(b, i); err != nil {
				return i, err
			}
		default:
			rest := b[i:]
			switch {
			case bytes.HasPrefix(rest, []byte("true")), bytes.HasPrefix(rest, []byte("null")):
				i += 4
			case bytes.HasPrefix(rest, []byte("false")):
				i += 5
			default:
				return i, wrong(i, fmt.Sprintf("unexpected %q", c))
			}
		}
		// A value has ended: close what ends with it, or go on to the next one.
		for {
			if len(stack) == 0 {
				return i, nil
			}
			i = skipSpace(b, i)
			if i >= len(b) {
				return i, wrong(i, "it ends early")
			}
			closing := stack[len(stack)-1]
			if b[i] == closing {
				stack = stack[:len(stack)-1]
				i++
				continue
			}
			if b[i] != ',' {
				return i, wrong(i, fmt.Sprintf("expected , or %c", closing))
			}
			i = skipSpace(b, i+1)
			if closing == '}' {
				if i, err = scanKey(b, i); err != nil {
					return i, err
				}
			}
			break
		}
	}
}

// scanKey returns the end of the key at b[i] and of the colon behind it.
func scanKey(b []byte, i int) (int, error) {
	if i >= len(b) || b[i] != '"' {
		return i, wrong(i, "expected a key")
	}
	i, err := scanString(b, i)
	if err != nil {
		return i, err
	}
	i = skipSpace(b, i)
	if i >= len(b) || b[i] != ':' {
		return i, wrong(i, "expected :")
	}
	return i + 1, nil
}

func scanString(b []byte, i int) (int, error) {
	start := i
	for i++; i < len(b); i++ {
		for i < len(b) && plain[b[i]] { // nearly all of nearly every text
			i++
		}
		if i == len(b) {
			break
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1, nil
		case c < 0x20:
			return i, wrong(i, "control character in a string")
		case c == '\\':
			i++
			if i >= len(b) {
				return i, wrong(start, "a string without end")
			}
			switch b[i] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				for range 4 {
					if i++; i >= len(b) || !isHex(b[i]) {
						return i, wrong(i, `\u needs four hexadecimal digits`)
					}
				}
			default:
				return i, wrong(i, "unknown escape in a string")
			}
		}
	}
	return i, wrong(start, "a string without end")
}

// plain are the bytes that stand for themselves in a string.
var plain = func() (is [256]bool) {
	for c := 0x20; c < 256; c++ {
		is[c] = c != '"' && c != '\\'
	}
	return is
}()

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func scanNumber(b []byte, i int) (int, error) {
	digits := func() bool {
		from := i
		for i < len(b) && b[i] >= '0' && b[i] <= '9' {
			i++
		}
		return i > from
	}
	if b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if !digits() {
		return i, wrong(i, "a number without digits")
	}
	if i < len(b) && b[i] == '.' {
		if i++; !digits() {
			return i, wrong(i, "a number without digits behind its point")
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if !digits() {
			return i, wrong(i, "a number without an exponent")
		}
	}
	return i, nil
}

// Check reports whether b is one JSON value and nothing else.
func Check(b []byte) error {
	end, err := scanValue(b, 0)
	if err != nil {
		return err
	}
	if end = skipSpace(b, end); end != len(b) {
		return wrong(end, "text after the value")
	}
	return nil
}

// Member is one member of a JSON object. Its value stays as it was written.
type Member struct {
	Key   string
	Value json.RawMessage // shares memory with the object
	start int             // of the key
	from  int             // of the value
	to    int
}

var errNotObject = errors.New("not a JSON object")

// Members returns the members of the JSON object b, in order, repeated keys included.
// The error is not nil when b is not a valid JSON object.
func Members(b []byte) ([]Member, error) {
	members := make([]Member, 0, 8) // most have no more
	err := scanMembers(b, func(key []byte, start, from, to int) {
		members = append(members, Member{unquote(key), b[from:to:to], start, from, to})
	})
	if err != nil {
		return nil, err
	}
	return members, nil
}

// scanMembers tells of each member of the JSON object b its key, quoted, where that begins, and where its value stands.
func scanMembers(b []byte, found func(key []byte, start, from, to int)) error {
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '{' {
		return errNotObject
	}
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == '}' {
		i++
	} else {
		for {
			start := i
			afterColon, err := scanKey(b, i)
			if err != nil {
				return err
			}
			keyEnd, _ := scanString(b, start)
			from := skipSpace(b, afterColon)
			to, err := scanValue(b, from)
			if err != nil {
				return err
			}
			found(b[start:keyEnd], start, from, to)
			i = skipSpace(b, to)
			if i < len(b) && b[i] == ',' {
				i = skipSpace(b, i+1)
				continue
			}
			if i >= len(b) || b[i] != '}' {
				return wrong(i, "expected , or }")
			}
			i++
			break
		}
	}
	if i = skipSpace(b, i); i != len(b) {
		return wrong(i, "text after the object")
	}
	return nil
}

// says reports whether a scanned JSON string says text, as unquote reads it.
func says(quoted []byte, text string) bool {
	inner := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(inner, '\\') < 0 && utf8.Valid(inner) {
		return string(inner) == text
	}
	return unquote(quoted) == text
}

// unquote decodes a scanned JSON string.
func unquote(quoted []byte) string {
	inner := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(inner, '\\') < 0 && utf8.Valid(inner) {
		return string(inner)
	}
	var s string
	// The scanner accepted it, so encoding/json does.
	_ = json.Unmarshal(quoted, &s)
	return s
}

// Elements returns the elements of the JSON array b as they are written. The error is not nil when b is
// not a valid JSON array.
func Elements(b []byte) ([]json.RawMessage, error) {
	var elements []json.RawMessage
	err := scanElements(b, func(from, to int) { elements = append(elements, b[from:to:to]) })
	if err != nil {
		return nil, err
	}
	return elements, nil
}

// MapElements returns the JSON array b with each element replaced by what replace makes of it; every other byte stays. What is
// no valid array is returned as it is. b is not changed.
func MapElements(b json.RawMessage, replace func(element json.RawMessage) json.RawMessage) json.RawMessage {
	var out []byte
	last := 0 // what of b stands in out already
	err := scanElements(b, func(from, to int) {
		element := b[from:to:to]
		if replacement := replace(element); !bytes.Equal(replacement, element) {
			out = append(append(out, b[last:from]...), replacement...)
			last = to
		}
	})
	if err != nil || last == 0 {
		return b
	}
	return append(out, b[last:]...)
}

// scanElements tells where each element of the JSON array b stands.
func scanElements(b []byte, found func(from, to int)) error {
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '[' {
		return errors.New("not a JSON array")
	}
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == ']' {
		i++
	} else {
		for {
			to, err := scanValue(b, i)
			if err != nil {
				return err
			}
			found(i, to)
			i = skipSpace(b, to)
			if i < len(b) && b[i] == ',' {
				i = skipSpace(b, i+1)
				continue
			}
			if i >= len(b) || b[i] != ']' {
				return wrong(i, "expected , or ]")
			}
			i++
			break
		}
	}
	if i = skipSpace(b, i); i != len(b) {
		return wrong(i, "text after the array")
	}
	return nil
}

// Get returns the value at path inside the JSON object b, as it is written, or nil. Of
// repeated keys the last counts, as in encoding/json and JavaScript.
func Get(b []byte, path ...string) json.RawMessage {
	for _, key := range path {
		var value json.RawMessage
		err := scanMembers(b, func(quoted []byte, _, from, to int) {
			if says(quoted, key) {
				value = b[from:to:to]
			}
		})
		if err != nil || value == nil {
			return nil
		}
		b = value
	}
	return b
}

// GetString is [Get] for a string; ok is false when there is none.
func GetString(b []byte, path ...string) (value string, ok bool) { return Text(Get(b, path...)) }

// Text decodes a JSON string that a function of this package returned; ok is false when raw is none.
func Text(raw json.RawMessage) (value string, ok bool) {
	if len(raw) < 2 || raw[0] != '"' {
		return "", false
	}
	return unquote(raw), true
}

// Set returns the object b with the member at path replaced, or added at the end, by value; every
// other byte stays. A nil value removes the member. Objects missing on the way are made; where
// b itself is empty or not an object, a new one is made. All of repeated keys are replaced. b is not changed.
func Set(b []byte, value json.RawMessage, path ...string) json.RawMessage {
	members, err := Members(b)
	if err != nil {
		b, members = []byte("{}"), nil
	}
	key, rest := path[0], path[1:]
	nested := func(old []byte) json.RawMessage {
		if len(rest) == 0 {
			return value
		}
		return Set(old, value, rest...)
	}
	found := false
	var out []byte
	last := 0 // what of b stands in out already
	for i, m := range members {
		if m.Key != key {
			continue
		}
		found = true
		if replacement := nested(m.Value); replacement != nil {
			out = append(append(out, b[last:m.from]...), replacement...)
			last = m.to
			continue
		}
		// Remove the member with one comma: the one behind it, or of the last member the one before it.
		from, to := m.start, m.to
		if i+1 < len(members) {
			to = members[i+1].start
		} else if i > 0 {
			from = max(members[i-1].to, last)
		}
		out = append(out, b[last:from]...)
		last = to
	}
	if found {
		out = append(out, b[last:]...)
		if value == nil && len(rest) == 0 && Check(out) != nil {
			// Removing several of the same key can leave a comma at the end; rebuild without them.
			return without(members, key)
		}
		return out
	}
	if value == nil {
		return b
	}
	end := bytes.LastIndexByte(b, '}')
	out = append(out, bytes.TrimRight(b[:end], " \t\r\n")...)
	if len(members) > 0 {
		out = append(out, ',')
	}
	out = append(append(append(out, Quote(key)...), ':'), nested(nil)...)
	return append(out, b[end:]...)
}

func without(members []Member, key string) json.RawMessage {
	out := []byte{'{'}
	for _, m := range members {
		if m.Key == key {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, Quote(m.Key)...), ':'), m.Value...)
	}
	return append(out, '}')
}

// Quote encodes s as a JSON string, without the escapes for HTML that encoding/json adds.
func Quote(s string) json.RawMessage { return Encode(s) }

// Encode is json.Marshal without escapes for HTML, for values of our own that cannot fail to encode.
func Encode(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		// Only our own types come here, and none of them can fail: say so where it would be read.
		return json.RawMessage(`null`)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// Unambiguous reports an error when the object b has one of keys twice, or in another case. Readers differ in
// which of them they take (encoding/json the last and in any case, others the first), so that what we check
// and what the server reads could be two things.
func Unambiguous(b []byte, keys ...string) error {
	members, err := Members(b)
	if err != nil {
		return err
	}
	return unambiguous(members, keys...)
}

func unambiguous(members []Member, keys ...string) error {
	for _, key := range keys {
		seen := ""
		for _, m := range members {
			if !strings.EqualFold(m.Key, key) {
				continue
			}
			if m.Key != key {
				return fmt.Errorf("it has the key %q, which some readers take for %q", m.Key, key)
			}
			if seen != "" {
				return fmt.Errorf("it has the key %q twice", key)
			}
			seen = m.Key
		}
	}
	return nil
}
