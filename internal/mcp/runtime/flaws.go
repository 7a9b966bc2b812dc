package runtime

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"nightporter/internal/mcp/wire"
)

// A client that reads lists into types loses the whole list by one entry that does not fit: all tools of all servers, behind one
// gateway. So an entry that some client cannot read is not offered, and is told of (issue 4, "Damage control"). It is not mended: what it was meant to
// be is not ours to say.
//
// The rules are what Claude Code 2.1.332, Codex 0.144.1 and 0.171.0 lost a list by, measured with one malformed entry at a time between
// two good ones (docs/decisions/0007-flaws.md), and what the specification says where that is the same.

// misfit is what is wrong with an entry: at path, empty for the entry itself.
type misfit struct{ path, what string }

// String continues "tool x: ".
func (m *misfit) String() string {
	if m.path == "" {
		return "it " + m.what
	}
	return "its " + m.path + " " + m.what
}

// under says where inside a value the misfit is.
func (m *misfit) under(key string) *misfit {
	switch {
	case m.path == "":
		m.path = key
	case m.path[0] == '[':
		m.path = key + m.path
	default:
		m.path = key + "." + m.path
	}
	return m
}

// shape is what a value must be; nil when it is.
type shape func(v json.RawMessage) *misfit

// member is a member of an object that clients read into a type.
type member struct {
	key      string
	is       shape
	required bool
}

// record is an object with members of known shapes, none of them twice. Others may be there.
func record(members ...member) shape {
	return func(v json.RawMessage) *misfit {
		found, err := wire.Members(v)
		if err != nil {
			return &misfit{what: "is not an object"}
		}
		for _, m := range members {
			times := 0
			for _, f := range found {
				if f.Key != m.key {
					continue
				}
				if times++; times > 1 {
					return &misfit{what: fmt.Sprintf("has %q twice", m.key)}
				}
				if flaw := m.is(f.Value); flaw != nil {
					return flaw.under(m.key)
				}
			}
			if times == 0 && m.required {
				return &misfit{what: "has no " + m.key}
			}
		}
		return nil
	}
}

func listOf(each shape) shape {
	return func(v json.RawMessage) *misfit {
		elements, err := wire.Elements(v)
		if err != nil {
			return &misfit{what: "is not a list"}
		}
		for i, e := range elements {
			if flaw := each(e); flaw != nil {
				return flaw.under("[" + strconv.Itoa(i) + "]")
			}
		}
		return nil
	}
}

func text(v json.RawMessage) *misfit {
	if _, ok := wire.Text(v); !ok {
		return &misfit{what: "is not a text"}
	}
	return nil
}

func name(v json.RawMessage) *misfit {
	if s, ok := wire.Text(v); ok && s == "" {
		return &misfit{what: "is empty"}
	}
	return text(v)
}

func truth(v json.RawMessage) *misfit {
	if s := string(v); s != "true" && s != "false" {
		return &misfit{what: "is not true or false"}
	}
	return nil
}

func number(v json.RawMessage) *misfit {
	if c := v[0]; c != '-' && (c < '0' || c > '9') {
		return &misfit{what: "is not a number"}
	}
	return nil
}

func oneOf(words ...string) shape {
	return func(v json.RawMessage) *misfit {
		if s, ok := wire.Text(v); !ok || !slices.Contains(words, s) {
			return &misfit{what: fmt.Sprintf("is none of %q", words)}
		}
		return nil
	}
}

// The entries of lists.
var (
	object = record()

	icons = listOf(record(
		member{"src", text, true}, member{"mimeType", text, false}, member{"sizes", listOf(text), false}, member{"theme", oneOf("light", "dark"), false},
	))
	about = []member{{"title", text, false}, {"description", text, false}, {"icons", icons, false}, {"_meta", object, false}}

	inputSchema = record(
		member{"type", func(v json.RawMessage) *misfit {
			if s, _ := wire.Text(v); s != "object" {
				return &misfit{what: `is not "object"`}
			}
			return nil
		}, true},
		member{"properties", object, false}, member{"required", listOf(text), false},
	)
	toolShape = record(append([]member{
		{"name", name, true},
		{"inputSchema", inputSchema, true},
		{"outputSchema", object, false},
		{"annotations", record(
			member{"title", text, false}, member{"readOnlyHint", truth, false}, member{"destructiveHint", truth, false},
			member{"idempotentHint", truth, false}, member{"openWorldHint", truth, false},
		), false},
		{"execution", record(member{"taskSupport", oneOf("forbidden", "optional", "required"), false}), false},
	}, about...)...)

	promptShape = record(append([]member{
		{"name", name, true},
		{"arguments", listOf(record(
			member{"name", text, true}, member{"title", text, false}, member{"description", text, false}, member{"required", truth, false},
		)), false},
	}, about...)...)

	// annotated is what resources and templates have in common.
	annotated = append([]member{
		{"name", text, true},
		{"mimeType", text, false},
		{"annotations", record(
			member{"audience", listOf(oneOf("user", "assistant")), false}, member{"priority", number, false}, member{"lastModified", text, false},
		), false},
	}, about...)
	resourceShape = record(append([]member{{"uri", name, true}, {"size", number, false}}, annotated...)...)
	templateShape = record(append([]member{{"uriTemplate", name, true}}, annotated...)...)
)

// maxDepth is how deeply an entry may nest. Codex reads frames of 127 levels, three of which are the answer's, its list's and the list itself.
const maxDepth = 120

// sound reports what no client could read, whatever it makes of it.
func sound(raw json.RawMessage) *misfit {
	switch {
	case !utf8.Valid(raw):
		return &misfit{what: "is not valid UTF-8"}
	case depth(raw) > maxDepth:
		return &misfit{what: fmt.Sprintf("is nested more than %d deep", maxDepth)}
	case halfCharacter(raw):
		return &misfit{what: `has half a character, a surrogate such as \ud800 alone`}
	case !countable(raw):
		return &misfit{what: "has a number that cannot be represented"} // 1e400 is valid JSON, and no client's number
	}
	return nil
}

// countable reports whether every number of valid JSON has a float64. Only an exponent, or hundreds of digits, can be too large for one.
func countable(raw json.RawMessage) bool {
	const safe = 300 // digits, of the 309 that the largest float64 has
	quoted := false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '-' || '0' <= c && c <= '9':
			from := i
			exponent := false
			for i+1 < len(raw) && bytes.IndexByte([]byte("+-.eE0123456789"), raw[i+1]) >= 0 {
				i++
				exponent = exponent || raw[i] == 'e' || raw[i] == 'E'
			}
			if !exponent && i-from < safe {
				continue
			}
			if _, err := strconv.ParseFloat(string(raw[from:i+1]), 64); err != nil {
				return false
			}
		}
	}
	return true
}

// depth is how deeply objects and lists of valid JSON nest.
func depth(raw json.RawMessage) (deepest int) {
	now, quoted := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			now++
			deepest = max(deepest, now)
		case c == '}' || c == ']':
			now--
		}
	}
	return deepest
}

// halfCharacter reports whether a string of valid JSON spells one half of a surrogate pair without the other.
func halfCharacter(raw json.RawMessage) bool {
	unit := func(i int) (u uint64) { // the escape at i, if there is one
		if i+6 <= len(raw) && raw[i] == '\\' && raw[i+1] == 'u' {
			u, _ = strconv.ParseUint(string(raw[i+2:i+6]), 16, 16)
		}
		return u
	}
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		switch u := unit(i); {
		case u>>10 == 0xd800>>10:
			if unit(i+6)>>10 != 0xdc00>>10 {
				return true
			}
			i += 11
		case u>>10 == 0xdc00>>10:
			return true
		default:
			i++ // what is escaped may be a backslash
		}
	}
	return false
}

// flawOf is why an entry of a list is not offered; empty when it may be.
func flawOf(raw json.RawMessage, is shape) string {
	flaw := is(raw)
	if flaw == nil {
		flaw = sound(raw)
	}
	if flaw == nil {
		return ""
	}
	return flaw.String()
}
