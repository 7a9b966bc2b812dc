package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Headers that repeat parts of a stateless request's body (specification 2026-07-28, "Streamable HTTP", "Request Metadata").

// ParamPrefix begins the names of the headers that repeat arguments of a tool's call.
const ParamPrefix = "Mcp-Param-"

// The marks of a header value in base64.
const (
	base64Prefix = "=?base64?"
	base64Suffix = "?="
)

// HeaderValue carries text in a header: as it is when it is plain ASCII, else in base64 with the marks that say so. Empty text is
// carried in base64 too, as there are servers that take an empty header for none (go-sdk 1.8.0).
func HeaderValue(text string) string {
	plain := text != "" && text == strings.TrimSpace(text) && !strings.HasPrefix(text, base64Prefix)
	for i := 0; i < len(text) && plain; i++ {
		plain = text[i] >= 0x20 && text[i] < 0x7f
	}
	if plain {
		return text
	}
	return base64Prefix + base64.StdEncoding.EncodeToString([]byte(text)) + base64Suffix
}

// FromHeader reads what [HeaderValue] makes. ok is false when the value has characters that no header value may have, or
// marks of base64 around what is none.
func FromHeader(value string) (text string, ok bool) {
	for i := range len(value) {
		if c := value[i]; c != '\t' && (c < 0x20 || c > 0x7e) {
			return "", false
		}
	}
	if inner, marked := strings.CutPrefix(value, base64Prefix); marked {
		if inner, marked = strings.CutSuffix(inner, base64Suffix); marked {
			b, err := base64.StdEncoding.Strict().DecodeString(inner)
			return string(b), err == nil
		}
	}
	return value, true
}

// ParamHeader says that an argument of a tool is repeated in a header (SEP-2243, "x-mcp-header").
type ParamHeader struct {
	Name string   // of the header, with [ParamPrefix]
	Path []string // of the argument, through objects
}

const headerKey = "x-mcp-header"

// ParamHeaders reads from a tool's inputSchema which arguments are repeated in headers. The error says which declaration breaks
// the specification's rules: then the tool must not be used over HTTP.
func ParamHeaders(schema json.RawMessage) ([]ParamHeader, error) {
	if !bytes.Contains(schema, []byte(headerKey)) && !bytes.Contains(schema, []byte(`\u`)) {
		return nil, nil // as nearly all have none
	}
	var s headerScan
	if err := s.schema(schema, nil, true); err != nil {
		return nil, err
	}
	return s.found, nil
}

type headerScan struct {
	found []ParamHeader
	names []string // in lower case
}

// schema looks through one schema. path is where its instances stand in the arguments, when direct says that nothing but
// properties leads there.
func (s *headerScan) schema(schema json.RawMessage, path []string, direct bool) error {
	members, err := Members(schema)
	if err != nil {
		return nil // true, false, or nothing that we know
	}
	for _, m := range members {
		switch m.Key {
		case headerKey:
			if !direct || len(path) == 0 {
				return fmt.Errorf("%s stands where no argument can be read by properties alone", headerKey)
			}
			if err := s.declare(schema, m.Value, path); err != nil {
				return fmt.Errorf("%s of %q: %w", headerKey, strings.Join(path, "."), err)
			}
		case "properties":
			err = s.each(m.Value, func(key string, property json.RawMessage) error {
				return s.schema(property, append(slices.Clip(path), key), direct)
			})
		case "patternProperties", "$defs", "definitions", "dependentSchemas":
			err = s.each(m.Value, func(_ string, inner json.RawMessage) error { return s.schema(inner, nil, false) })
		case "default", "const", "enum", "examples": // data
		default:
			if err = s.schema(m.Value, nil, false); err != nil {
				break
			}
			elements, _ := Elements(m.Value)
			for _, inner := range elements {
				if err == nil {
					err = s.schema(inner, nil, false)
				}
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// each calls do for the members of a map of schemas.
func (s *headerScan) each(schemas json.RawMessage, do func(key string, schema json.RawMessage) error) error {
	members, _ := Members(schemas)
	for _, m := range members {
		if err := do(m.Key, m.Value); err != nil {
			return err
		}
	}
	return nil
}

func (s *headerScan) declare(schema, value json.RawMessage, path []string) error {
	name, ok := Text(value)
	if !ok || name == "" {
		return fmt.Errorf("%.40s is no name", value)
	}
	for i := range len(name) {
		if !tokenChar(name[i]) {
			return fmt.Errorf("%q has a character that no header's name may have", name)
		}
	}
	if lower := strings.ToLower(name); slices.Contains(s.names, lower) {
		return fmt.Errorf("%q is declared twice", name)
	} else {
		s.names = append(s.names, lower)
	}
	if kind := Get(schema, "type"); !primitive(kind) {
		return fmt.Errorf("its type is not integer, string or boolean: %.40s", kind)
	}
	s.found = append(s.found, ParamHeader{ParamPrefix + name, path})
	return nil
}

// primitive reports whether a schema's type is one that headers can carry, or that and null: null is left out.
func primitive(kind json.RawMessage) bool {
	kinds, err := Elements(kind)
	if err != nil {
		kinds = []json.RawMessage{kind}
	}
	some := false
	for _, k := range kinds {
		switch string(k) {
		case `"integer"`, `"string"`, `"boolean"`:
			some = true
		case `"null"`:
		default:
			return false
		}
	}
	return some
}

func tokenChar(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// Of returns the argument's value as text for a header. ok is false when there is none to repeat: it is absent, null, or nothing
// that headers can carry.
func (h ParamHeader) Of(arguments json.RawMessage) (text string, ok bool) {
	value := Get(arguments, h.Path...)
	if len(value) == 0 {
		return "", false
	}
	switch value[0] {
	case '"':
		return Text(value)
	case 't', 'f':
		return string(value), true
	case 'n', '{', '[':
		return "", false
	}
	f, err := strconv.ParseFloat(string(value), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > maxSafe {
		return "", false
	}
	return strconv.FormatFloat(f, 'f', -1, 64), true
}

// maxSafe is the largest integer that the specification lets headers carry: what JavaScript's numbers hold.
const maxSafe = 1<<53 - 1

// Check compares the header with the argument. header is its values as they came.
func (h ParamHeader) Check(header []string, arguments json.RawMessage) error {
	want, ok := h.Of(arguments)
	switch {
	case len(header) > 1:
		return fmt.Errorf("the header %s is there %d times", h.Name, len(header))
	case !ok && len(header) > 0:
		return fmt.Errorf("the header %s is there, and params.arguments has no such value at %s", h.Name, strings.Join(h.Path, "."))
	case !ok:
		return nil
	case len(header) == 0:
		return fmt.Errorf("the header %s is missing, which must repeat the argument %s", h.Name, strings.Join(h.Path, "."))
	}
	got, readable := FromHeader(header[0])
	switch {
	case !readable:
		return fmt.Errorf("the header %s cannot be read", h.Name)
	case got == want:
		return nil
	}
	if value := Get(arguments, h.Path...); value[0] != '"' && value[0] != 't' && value[0] != 'f' {
		// Numbers are compared as numbers (specification, "Server Validation").
		a, errA := strconv.ParseFloat(got, 64)
		b, errB := strconv.ParseFloat(want, 64)
		if errA == nil && errB == nil && a == b {
			return nil
		}
	}
	return fmt.Errorf("the header %s does not say what the argument %s says", h.Name, strings.Join(h.Path, "."))
}
