package catalog

import (
	"encoding/json"
	"slices"
	"strings"
)

// hints are the members of a tool's annotations from which clients decide whether to ask a person.
var hints = []string{"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"}

// StripHints returns the tool definition without the safety hints of its annotations, every other byte as it was:
// hints from a catalog may be out of date and are never used to skip an approval (A14). Without them the
// protocol's defaults hold, which are the cautious ones. It returns tool itself where there is nothing to strip, also
// when it is no JSON object. Names are compared without case, as some JSON decoders do.
func StripHints(tool json.RawMessage) json.RawMessage {
	start := space(tool, 0)
	if !json.Valid(tool) || tool[start] != '{' {
		return tool
	}
	out, last := []byte(nil), 0
	object(tool, start, func(key []byte, i int) int {
		end := value(tool, i)
		if tool[i] == '{' && named(key, "annotations") {
			out = append(append(out, tool[last:i]...), without(tool[i:end], hints)...)
			last = end
		}
		return end
	})
	if len(out)+len(tool)-last == len(tool) {
		return tool
	}
	return append(out, tool[last:]...)
}

// without returns the object obj less its members of these names.
func without(obj []byte, names []string) []byte {
	out, last := []byte{'{'}, 1
	first := true
	object(obj, 0, func(key []byte, i int) int {
		end := value(obj, i)
		// A member's text begins with the comma after the one before.
		text := obj[last:end]
		last = end
		if slices.ContainsFunc(names, func(name string) bool { return named(key, name) }) {
			return end
		}
		if comma := space(text, 0); first && text[comma] == ',' {
			text = text[comma+1:]
		}
		first = false
		out = append(out, text...)
		return end
	})
	return append(out, obj[last:]...)
}

// named reports whether key, as it is spelled in JSON, is name.
func named(key []byte, name string) bool {
	var text string
	return json.Unmarshal(key, &text) == nil && strings.EqualFold(text, name)
}
