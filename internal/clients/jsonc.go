package clients

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tailscale/hujson"

	"nightporter/internal/config"
)

// maxDepth bounds how deep values stand in each other: the parser calls itself for each, and a file that is deeper was not
// written by a client.
const maxDepth = 500

var byteOrderMark = []byte("\xef\xbb\xbf")

// document is a file of JSON with comments and trailing commas.
type document struct {
	file string
	bom  []byte
	text []byte       // without bom
	root hujson.Value // of text, an object
	none bool         // there is no value
}

func (d *document) top() *hujson.Object { return d.root.Value.(*hujson.Object) }

// parse reads a file's text. Its errors are [config.SyntaxError], and quote nothing of the text. Text without a value
// stands for an object without members.
func parse(file string, data []byte) (*document, error) {
	rest := bytes.TrimPrefix(data, byteOrderMark)
	d := &document{file: file, bom: data[:len(data)-len(rest)], text: rest}
	fail := func(at int, format string, args ...any) (*document, error) {
		return nil, &config.SyntaxError{Pos: d.position(at), Message: fmt.Sprintf(format, args...)}
	}
	if bytes.HasPrefix(rest, []byte("\xff\xfe")) || bytes.HasPrefix(rest, []byte("\xfe\xff")) {
		return fail(0, "this is UTF-16 text; save the file as UTF-8")
	}
	if at := config.InvalidUTF8(rest); at >= 0 {
		return fail(at, "this is not UTF-8 text; save the file as UTF-8")
	}
	if at := tooDeep(rest); at >= 0 {
		return fail(at, "values stand more than %d deep in each other", maxDepth)
	}
	if len(bytes.TrimSpace(rest)) == 0 {
		d.root, d.none = hujson.Value{Value: &hujson.Object{}}, true
		return d, nil
	}
	// The parser asks for a newline after a comment, which the last line need not have.
	var err error
	if d.root, err = hujson.Parse(append(slices.Clone(rest), '\n')); err != nil {
		return fail(d.place(err), "cannot be parsed as JSON: %s", complaint(err))
	}
	if _, ok := d.root.Value.(*hujson.Object); !ok {
		return fail(d.root.StartOffset, "this JSON is no object")
	}
	return d, nil
}

// complaint is what the parser says, without the place, and without what it quotes: that may be a secret.
func complaint(err error) string {
	switch _, message, _ := strings.Cut(strings.TrimPrefix(err.Error(), "hujson: "), ": "); {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "it ends too early"
	case strings.HasPrefix(message, "invalid character") || strings.HasPrefix(message, "invalid UTF-8"):
		return message
	default:
		return `this is no value of JSON: a text stands in double quotes, and a backslash in it is written \\`
	}
}

// place is the offset that an error of the parser names.
func (d *document) place(err error) int {
	var line, column int
	if n, _ := fmt.Sscanf(err.Error(), "hujson: line %d, column %d:", &line, &column); n != 2 {
		return 0
	}
	at := 0
	for ; line > 1; line-- {
		next := bytes.IndexByte(d.text[at:], '\n')
		if next < 0 {
			return len(d.text) // behind the newline that was added
		}
		at += next + 1
	}
	return min(at+column-1, len(d.text))
}

// position is where an offset is, for a person.
func (d *document) position(at int) config.Position {
	before := d.text[:min(max(at, 0), len(d.text))]
	start := bytes.LastIndexByte(before, '\n') + 1
	return config.Position{File: d.file, Line: bytes.Count(before, []byte("\n")) + 1, Column: utf8.RuneCount(before[start:]) + 1}
}

// tooDeep returns the offset of the first bracket that is deeper than maxDepth, or -1.
func tooDeep(data []byte) int {
	depth := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		case '/':
			end := ""
			switch {
			case bytes.HasPrefix(data[i:], []byte("//")):
				end = "\n"
			case bytes.HasPrefix(data[i:], []byte("/*")):
				end = "*/"
			default:
				continue
			}
			next := bytes.Index(data[i+2:], []byte(end))
			if next < 0 {
				return -1
			}
			i += 2 + next + len(end) - 1
		case '{', '[':
			if depth++; depth > maxDepth {
				return i
			}
		case '}', ']':
			depth--
		}
	}
	return -1
}

// member returns the index of the last member of that name, which is the one that counts, or -1.
func member(o *hujson.Object, name string) int {
	for i := len(o.Members) - 1; i >= 0; i-- {
		if key(o.Members[i]) == name {
			return i
		}
	}
	return -1
}

func key(m hujson.ObjectMember) string {
	literal, _ := m.Name.Value.(hujson.Literal)
	return literal.String()
}

// object is the value at the keys, nil when there is none. A value that is no object is an error.
func (d *document) object(keys []string) (*hujson.Object, error) {
	o := d.top()
	for i, name := range keys {
		at := member(o, name)
		if at < 0 {
			return nil, nil
		}
		value := o.Members[at].Value
		next, ok := value.Value.(*hujson.Object)
		if !ok {
			return nil, &config.SyntaxError{Pos: d.position(value.StartOffset), Message: strings.Join(keys[:i+1], ".") + " is no object"}
		}
		o = next
	}
	return o, nil
}

// plain returns the value as encoding/json would have it, numbers as they are written.
func plain(v hujson.Value) any {
	switch v := v.Value.(type) {
	case *hujson.Object:
		m := make(map[string]any, len(v.Members))
		for _, each := range v.Members {
			m[key(each)] = plain(each.Value)
		}
		return m
	case *hujson.Array:
		a := make([]any, len(v.Elements))
		for i, each := range v.Elements {
			a[i] = plain(each)
		}
		return a
	case hujson.Literal:
		switch v.Kind() {
		case '"':
			return v.String()
		case '0':
			return json.Number(v)
		case 't', 'f':
			return v.Bool()
		}
	}
	return nil
}

// field is a member of an object that is written.
type field struct {
	name  string
	value any // string, []string or []field
}

// set returns the file's text with a member at keys: it takes the place of one of that name, or is added behind the others.
// Objects on the way that are missing are made. Every other byte stays.
func (d *document) set(keys []string, name string, value []field) ([]byte, error) {
	if container, err := d.object(keys); err != nil {
		return nil, err
	} else if container != nil && member(container, name) >= 0 {
		without, err := d.remove(keys, name)
		if err != nil {
			return nil, err
		}
		again, err := parse(d.file, without)
		if err != nil {
			return nil, err
		}
		return again.set(keys, name, value)
	}
	s := d.style()
	if d.none {
		text := s.object(nest(keys, field{name, value}), "")
		return append(slices.Clone(d.bom), text+s.newline...), nil
	}
	o, whole := d.top(), d.root
	left := keys // those that are missing
	for len(left) > 0 {
		at := member(o, left[0])
		if at < 0 {
			break
		}
		whole, left = o.Members[at].Value, left[1:]
		o = whole.Value.(*hujson.Object) // object has looked
	}
	open, closing := whole.StartOffset, whole.EndOffset-1
	added := nest(left, field{name, value})[0]
	e := edit{text: d.text}
	tail := open + 1 + len(bytes.TrimRight(d.text[open+1:closing], " \t\r\n")) // before the white space at the end
	outer := indentOf(d.text, open)
	switch n := len(o.Members); {
	case n == 0:
		inner := outer + s.unit
		text := s.newline + inner + s.member(added, inner)
		if bytes.IndexByte(d.text[tail:closing], '\n') < 0 {
			text += s.newline + outer
		}
		e.insert(tail, text)
	default:
		last := o.Members[n-1]
		comma := last.Value.AfterExtra != nil // of the last value only before a trailing comma
		text := ", " + s.member(added, outer+s.unit)
		if bytes.IndexByte(d.text[open:closing], '\n') >= 0 {
			inner := outer + s.unit
			if first := o.Members[0].Name.StartOffset; bytes.IndexByte(d.text[open:first], '\n') >= 0 {
				inner = indentOf(d.text, first)
			}
			text = s.newline + inner + s.member(added, inner)
			if !comma {
				e.insert(last.Value.EndOffset, ",")
			}
		} else if comma {
			text = text[1:]
		} else if tail != last.Value.EndOffset {
			e.insert(last.Value.EndOffset, ",")
			text = text[1:]
		}
		if comma {
			text += ","
		}
		e.insert(tail, text)
	}
	return d.result(e, keys, name, value)
}

// remove returns the file's text without the member at keys, and without the white space and the comma that set it off.
func (d *document) remove(keys []string, name string) ([]byte, error) {
	o, err := d.object(keys)
	if err != nil {
		return nil, err
	}
	at := -1
	if o != nil {
		at = member(o, name)
	}
	if at < 0 {
		return nil, fmt.Errorf("%s has no %s", d.file, strings.Join(append(slices.Clone(keys), name), "."))
	}
	m := o.Members[at]
	start := m.Name.StartOffset
	start -= len(d.text[:start]) - len(bytes.TrimRight(d.text[:start], " \t\r\n"))
	end := m.Value.EndOffset
	e := edit{text: d.text}
	switch {
	case at < len(o.Members)-1 || m.Value.AfterExtra != nil:
		end += len(m.Value.AfterExtra) + 1 // the comma
	case at > 0: // the comma is before it
		before := o.Members[at-1].Value
		comma := before.EndOffset + len(before.AfterExtra)
		if comma+1 == start {
			start = comma
		} else {
			e.cut(comma, comma+1)
		}
	}
	switch rest := bytes.TrimLeft(d.text[end:], " \t"); {
	case len(o.Members) == 1 && d.text[start-1] == '{' && len(bytes.TrimSpace(o.AfterExtra)) == 0:
		end += len(o.AfterExtra)
	case bytes.Contains(m.Name.BeforeExtra, []byte("//")) && !bytes.HasPrefix(rest, []byte("\n")) && !bytes.HasPrefix(rest, []byte("\r")):
		start = max(start, m.Name.StartOffset) // what follows must not become a part of the comment
	}
	e.cut(start, end)
	return d.result(e, keys, name, nil)
}

// result makes the edit, and checks that the text says the same as before of everything but the member.
func (d *document) result(e edit, keys []string, name string, want []field) ([]byte, error) {
	text := e.done()
	now, err := parse(d.file, text)
	if err == nil {
		var is, left any
		before, after := plain(d.root), plain(now.root)
		take(before, keys, name)
		is = take(after, keys, name)
		if want != nil {
			left = asPlain(want)
		}
		if !reflect.DeepEqual(prune(before, keys), prune(after, keys)) || !reflect.DeepEqual(is, left) {
			err = errors.New("more than the entry would change")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s cannot be edited safely (%w), so nothing is written; edit it by hand", d.file, err)
	}
	return append(slices.Clone(d.bom), text...), nil
}

// take removes a member from a plain value, and returns it.
func take(v any, keys []string, name string) any {
	for _, k := range keys {
		m, _ := v.(map[string]any)
		v = m[k]
	}
	m, _ := v.(map[string]any)
	was := m[name]
	delete(m, name)
	return was
}

// prune removes objects at keys that are empty: those on the way to an entry come and go with it.
func prune(v any, keys []string) any {
	m, _ := v.(map[string]any)
	if len(keys) > 0 && m[keys[0]] != nil {
		if below, ok := prune(m[keys[0]], keys[1:]).(map[string]any); ok && len(below) == 0 {
			delete(m, keys[0])
		}
	}
	return v
}

// asPlain is a value that is written as plain reads it.
func asPlain(v any) any {
	switch v := v.(type) {
	case []field:
		m := map[string]any{}
		for _, f := range v {
			m[f.name] = asPlain(f.value)
		}
		return m
	case []string:
		a := make([]any, len(v))
		for i, each := range v {
			a[i] = each
		}
		return a
	}
	return v
}

// nest is the field in objects at keys.
func nest(keys []string, f field) []field {
	for _, k := range slices.Backward(keys) {
		f = field{k, []field{f}}
	}
	return []field{f}
}

// style is how a file is laid out.
type style struct{ newline, unit string }

func (d *document) style() style {
	s := style{"\n", "  "}
	if i := bytes.IndexByte(d.text, '\n'); i > 0 && d.text[i-1] == '\r' {
		s.newline = "\r\n"
	}
	if members := d.top().Members; len(members) > 0 {
		first := members[0].Name
		if i := bytes.LastIndexByte(first.BeforeExtra, '\n'); i >= 0 && len(first.BeforeExtra[i+1:]) > 0 {
			s.unit = indentOf(d.text, first.StartOffset)
		}
	}
	return s
}

// indentOf is the white space that the line of an offset begins with.
func indentOf(text []byte, at int) string {
	line := text[bytes.LastIndexByte(text[:at], '\n')+1 : at]
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}

func (s style) object(fields []field, indent string) string {
	if len(fields) == 0 {
		return "{}"
	}
	inner := indent + s.unit
	lines := make([]string, len(fields))
	for i, f := range fields {
		lines[i] = s.newline + inner + s.member(f, inner)
	}
	return "{" + strings.Join(lines, ",") + s.newline + indent + "}"
}

func (s style) member(f field, indent string) string {
	text := quoted(f.name) + ": "
	switch v := f.value.(type) {
	case string:
		text += quoted(v)
	case []string:
		items := make([]string, len(v))
		for i, item := range v {
			items[i] = quoted(item)
		}
		text += "[" + strings.Join(items, ", ") + "]"
	case []field:
		text += s.object(v, indent)
	}
	return text
}

func quoted(text string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // a text can be
	return strings.TrimSuffix(b.String(), "\n")
}

// edit changes a text at places that do not overlap, in ascending order.
type edit struct {
	text []byte
	out  []byte
	at   int
}

func (e *edit) insert(at int, text string) {
	e.out = append(append(e.out, e.text[e.at:at]...), text...)
	e.at = at
}

func (e *edit) cut(start, end int) {
	e.out = append(e.out, e.text[e.at:start]...)
	e.at = end
}

func (e *edit) done() []byte { return append(e.out, e.text[e.at:]...) }
