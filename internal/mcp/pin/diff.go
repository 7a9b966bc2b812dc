package pin

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"nightporter/internal/mcp/wire"
)

// Kind says how a tool differs.
type Kind string

// The kinds of difference.
const (
	Added   Kind = "added"
	Removed Kind = "removed"
	Changed Kind = "changed"
)

// Diff is every tool that differs between two listings of a server, by name.
type Diff []Tool

// Tool is a tool that differs.
type Tool struct {
	Name       string   `json:"tool"` // raw, as the server calls it
	Kind       Kind     `json:"change"`
	Members    []Member `json:"members"`              // of the definition, that differ; of one that was added or removed, all but the name
	Suspicious []string `json:"suspicious,omitempty"` // see [Suspicious]; of the new definition
}

// Member is one part of a definition that differs.
type Member struct {
	// Path is where it is: keys with dots between them, such as inputSchema.properties.path.description. It is empty for the
	// definition as a whole: when only the spelling of a key differs, and when several have that name, Old and New
	// being arrays of them then.
	Path string          `json:"member"`
	Old  json.RawMessage `json:"old,omitempty"` // as it was spelled; nil when there was none
	New  json.RawMessage `json:"new,omitempty"`
}

// Compare returns how listing new differs from old. The order of tools, the order of members and white space do not count.
// Definitions without a name are left out.
func Compare(old, new []json.RawMessage) Diff {
	was, is := byName(old), byName(new)
	names := maps.Clone(was)
	maps.Copy(names, is)
	diff := Diff{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		t := Tool{Name: name}
		switch {
		case slices.EqualFunc(was[name], is[name], same):
			continue
		case was[name] == nil:
			t.Kind = Added
		case is[name] == nil:
			t.Kind = Removed
		default:
			t.Kind = Changed
		}
		t.Members = definitions(was[name], is[name])
		for _, raw := range is[name] {
			t.Suspicious = append(t.Suspicious, Suspicious(raw)...)
		}
		diff = append(diff, t)
	}
	return diff
}

// definitions compares the definitions of one name, one on each side as a rule.
func definitions(old, new []json.RawMessage) []Member {
	if len(old) > 1 || len(new) > 1 {
		return []Member{{"", array(old), array(new)}}
	}
	members := []Member{}
	if len(old) == 1 && len(new) == 1 {
		return differences("", old[0], new[0], maxDepth)
	}
	for _, raw := range slices.Concat(old, new) {
		fields, _ := wire.Members(raw) // it has a name, so it is an object
		for _, m := range fields {
			switch {
			case m.Key == "name":
			case old != nil:
				members = append(members, Member{Path: join("", m.Key), Old: m.Value})
			default:
				members = append(members, Member{Path: join("", m.Key), New: m.Value})
			}
		}
	}
	return members
}

// maxDepth is how far definitions are looked into: schemas of people's making end before. What is deeper is
// compared as a whole, so that the work stays linear.
const maxDepth = 16

// differences returns what differs between two values at path: members of objects one by one, everything else whole.
// One of them may be nil.
func differences(path string, old, new json.RawMessage, depth int) (list []Member) {
	if old != nil && new != nil && same(old, new) {
		return nil
	}
	was, is := object(old), object(new)
	if was != nil && is != nil && depth > 0 {
		keys := maps.Clone(was)
		maps.Copy(keys, is)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			list = append(list, differences(join(path, key), was[key], is[key], depth-1)...)
		}
	}
	if list == nil {
		list = []Member{{path, old, new}}
	}
	return list
}

// object returns the members of an object; nil when raw is none, or has a key more than once.
func object(raw json.RawMessage) map[string]json.RawMessage {
	members, err := wire.Members(raw)
	if err != nil {
		return nil
	}
	object := make(map[string]json.RawMessage, len(members))
	for _, m := range members {
		object[m.Key] = m.Value
	}
	if len(object) < len(members) {
		return nil
	}
	return object
}

// join adds a key to a path. Keys of other characters than names are made of are quoted, so that a path can be read in one way only.
func join(path, key string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-$"
	if key == "" || strings.Trim(key, plain) != "" {
		key = string(wire.Quote(key))
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// array is a JSON array of definitions, each as it was spelled; nil of none.
func array(definitions []json.RawMessage) json.RawMessage {
	if len(definitions) == 0 {
		return nil
	}
	var b []byte
	for _, raw := range definitions {
		b = append(append(b, ",\n"...), raw...)
	}
	return append(append([]byte("["), b[1:]...), "\n]"...)
}
