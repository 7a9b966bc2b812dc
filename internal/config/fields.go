package config

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// field describes one key of a table and reads it. The tables of fields drive decoding, the
// hints for unknown keys, and [Fields].
type field[T any] struct {
	key     string    // in TOML; accepted in JSON too
	json    string    // Claude Code's name, in JSON only
	on      Transport // the only transport that has the field; empty: all (of servers)
	typ     string    // for people: string, bool, seconds, string[], …; the schema's types have the same names
	enum    []string  // the values that it takes, when they are few
	def     any       // default: a value, or prose; nil: none
	doc     string
	example any   // a value that it takes; nil for a field that is refused
	schema  rules // what the schema says beside typ, enum, def, doc and example
	set     func(r *reader, into *T, n *node)
}

// called reports whether key is the field's name.
func (f field[T]) called(key string, json bool) bool {
	return key != "" && (key == f.key || json && key == f.json)
}

// name is the field's name in TOML, or its only one.
func (f field[T]) name() string {
	if f.key == "" {
		return f.json
	}
	return f.key
}

// prose is a default that is told, and is no value.
type prose string

// FieldDoc describes one key of a configuration file.
type FieldDoc struct {
	Table     string    // such as mcp_servers.NAME; empty: at the top of the file, before any table
	Key       string    // such as startup_timeout_sec
	JSON      string    // Claude Code's name for it in mcpServers JSON, where that is another
	Transport Transport // the only transport that has it; empty: any
	Type      string    // such as string, bool, number, string[], table of strings
	Enum      []string  // the values that it takes, when they are few
	Default   string    // empty: none
	Example   any       // a value that it takes, as encoding/json has it; nil: none
	Doc       string    // one line
}

// Fields describes every key that is read, table by table, in the order in which the reference has them.
func Fields() []FieldDoc {
	return slices.Concat(
		docs("", topFields),
		docs("mcp_servers.NAME", serverFields),
		docs("mcp_servers.NAME.oauth", oauthFields),
		docs("mcp_servers.NAME.tools.TOOL", toolFields),
		docs("mcp_servers.NAME.sandbox", sandboxFields),
		docs("agents.NAME", agentFields),
		docs("grants.NAME", grantFields),
		docs("gateway", gatewayFields),
		docs("gateway.oauth", gatewayOAuthFields),
	)
}

func docs[T any](table string, fields []field[T]) []FieldDoc {
	var all []FieldDoc
	for _, f := range fields {
		doc := FieldDoc{Table: table, Key: f.key, JSON: f.json, Transport: f.on, Type: f.typ, Enum: f.enum, Example: f.example, Doc: f.doc}
		if f.def != nil {
			doc.Default = fmt.Sprint(f.def)
		}
		all = append(all, doc)
	}
	return all
}

// decoder decodes one file.
type decoder struct {
	cfg  *Config
	dir  string // of the file, absolute
	json bool
}

// maxWarnings bounds the warnings of one file; nobody reads as many, and each unknown key costs a search.
const maxWarnings = 1000

func (d *decoder) warn(pos Position, path, message, mend string) {
	if len(d.cfg.Warnings) >= maxWarnings {
		return
	}
	d.cfg.Warnings = append(d.cfg.Warnings, Problem{Pos: pos, Field: path, Message: message, Mend: mend})
}

// reader reads the fields of one entry and collects what is wrong with it.
type reader struct {
	*decoder
	path     string // of the entry
	at       entry  // the key that is being read
	problems []Problem
}

// Field returns the path of a key as [Problem.Field] has it, each part quoted where TOML would quote it.
func Field(keys ...string) string { return join("", keys...) }

// join appends keys to a path, quoted where TOML would quote them.
func join(path string, keys ...string) string {
	for _, k := range keys {
		if !bareKey(k) {
			k = quote(k)
		}
		if path != "" {
			path += "."
		}
		path += k
	}
	return path
}

func bareKey(k string) bool {
	return k != "" && !strings.ContainsFunc(k, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
	})
}

// fail records a problem of the key that is being read.
func (r *reader) fail(message, mend string) { r.failAt(r.at.pos, nil, message, mend) }

// failAt records a problem at a place below the key that is being read.
func (r *reader) failAt(pos Position, below []string, message, mend string) {
	path := r.path
	if r.at.value != nil {
		path = join(path, r.at.key)
	}
	path = join(path, below...)
	r.problems = append(r.problems, Problem{Pos: pos, Field: path, Message: message, Mend: mend})
}

// finish hands the problems over, in the order of the file, and returns the first.
func (r *reader) finish() *Problem {
	slices.SortStableFunc(r.problems, byPosition)
	r.cfg.Problems = append(r.cfg.Problems, r.problems...)
	if len(r.problems) == 0 {
		return nil
	}
	return &r.problems[0]
}

func byPosition(a, b Problem) int {
	if a.Pos.Line != b.Pos.Line {
		return a.Pos.Line - b.Pos.Line
	}
	return a.Pos.Column - b.Pos.Column
}

// read reads every key of n with its field. It returns the keys that were there, by the
// field's TOML name. aliases are names that other programs use for a field of ours.
func read[T any](r *reader, fields []field[T], aliases map[string]string, into *T, n *node) map[string]entry {
	seen := make(map[string]entry, len(n.entries))
	for _, e := range n.entries {
		if e.value.kind == kindNull {
			continue // JSON's way to leave a key out
		}
		i := slices.IndexFunc(fields, func(f field[T]) bool { return f.called(e.key, r.json) })
		if i < 0 {
			r.unknown(e, join(r.path, e.key), known(fields, r.json), nil, aliases)
			continue
		}
		f := fields[i]
		r.at = e
		if first, twice := seen[f.name()]; twice {
			r.fail(fmt.Sprintf("this is %s again, which line %d gives already", f.name(), first.pos.Line), "remove one of them")
			continue
		}
		seen[f.name()] = e
		f.set(r, into, e.value)
	}
	r.at = entry{}
	return seen
}

// known returns the names that a hint may offer: in JSON Claude's, where it has one.
func known[T any](fields []field[T], json bool) []string {
	var names []string
	for _, f := range fields {
		switch {
		case json && f.json != "":
			names = append(names, f.json)
		case f.key != "":
			names = append(names, f.key)
		}
	}
	return names
}

// unknown warns of a key that nobody reads. more are known names that the list of all leaves out.
func (d *decoder) unknown(e entry, path string, names, more []string, aliases map[string]string) {
	if len(d.cfg.Warnings) >= maxWarnings {
		return
	}
	name := nearest(e.key, slices.Concat(names, more, sortedKeys(aliases)))
	if ours, found := aliases[name]; found && !slices.Contains(names, name) {
		name = ours
	}
	if name == "" {
		d.warn(e.pos, path, "unknown key, not used", "known are "+strings.Join(names, ", "))
		return
	}
	d.warn(e.pos, path, "unknown key, not used", "did you mean "+name+"?")
}

// wrongKind records that n is not what the field takes. It never quotes the value.
func (r *reader) wrongKind(n *node, below []string, takes, example string) {
	pos := r.at.pos
	if len(below) > 0 {
		pos = n.pos
	}
	mend := ""
	if example != "" {
		key := r.at.key
		if !bareKey(key) {
			key = quote(key)
		}
		if r.json {
			mend = fmt.Sprintf("write %q: %s", r.at.key, example)
		} else {
			mend = fmt.Sprintf("write %s = %s", key, example)
		}
	}
	r.failAt(pos, below, fmt.Sprintf("it is %s and takes %s", n.kind, takes), mend)
}

// The setters: each makes the set function of a field from the place it fills.

func setString[T any](at func(*T) *string) func(*reader, *T, *node) {
	return func(r *reader, into *T, n *node) {
		switch {
		case n.kind != kindString:
			r.wrongKind(n, nil, "a string", `"…"`)
		case n.text == "":
			r.fail("it is empty", "give it a value, or remove the key")
		default:
			*at(into) = n.text
		}
	}
}

func setBool[T any](at func(*T) *bool) func(*reader, *T, *node) {
	return func(r *reader, into *T, n *node) {
		if n.kind != kindBool {
			r.wrongKind(n, nil, "true or false", "true")
			return
		}
		*at(into) = n.truth
	}
}

func setOptionalBool[T any](at func(*T) **bool) func(*reader, *T, *node) {
	return func(r *reader, into *T, n *node) {
		if n.kind != kindBool {
			r.wrongKind(n, nil, "true or false", "true")
			return
		}
		*at(into) = &n.truth
	}
}

// setEnum is for fields that take one of a few words.
func setEnum[T any, E ~string](at func(*T) *E, words []E) func(*reader, *T, *node) {
	return func(r *reader, into *T, n *node) { readEnum(r, at(into), words, nil, n) }
}

// maxWord is the length up to which a wrong word is quoted. What is longer may be a
// key that was put into the wrong field, such as auth.
const maxWord = 16

func readEnum[E ~string](r *reader, into *E, words []E, below []string, n *node) {
	names := strs(words)
	switch {
	case n.kind != kindString:
		r.wrongKind(n, below, "one of "+oneOf(names), "")
	case !slices.Contains(names, n.text):
		pos := r.at.pos
		if len(below) > 0 {
			pos = n.pos
		}
		message := "it takes " + oneOf(names)
		if len(n.text) <= maxWord {
			message = "it is " + quote(n.text) + " and takes " + oneOf(names)
		}
		r.failAt(pos, below, message, hint(n.text, names))
	default:
		*into = E(n.text)
	}
}

func strs[E ~string](words []E) []string {
	names := make([]string, len(words))
	for i, w := range words {
		names[i] = string(w)
	}
	return names
}

func setStrings[T any](at func(*T) *[]string) func(*reader, *T, *node) {
	return func(r *reader, into *T, n *node) { *at(into) = r.strings(n, nil) }
}

// strings reads an array of strings. It returns an empty slice, not nil, for an empty array.
func (r *reader) strings(n *node, below []string) []string {
	if n.kind != kindArray {
		r.wrongKind(n, below, "an array of strings", `["…"]`)
		return nil
	}
	texts := make([]string, 0, len(n.items))
	for i, item := range n.items {
		if item.kind != kindString {
			r.wrongKind(item, append(slices.Clone(below), strconv.Itoa(i)), "a string", "")
			continue
		}
		texts = append(texts, item.text)
	}
	return texts
}

// stringTable reads a table of strings and hands each over with its key.
func (r *reader) stringTable(n *node, example string, each func(e entry)) {
	if n.kind != kindTable {
		r.wrongKind(n, nil, "a table of strings", example)
		return
	}
	for _, e := range n.entries {
		switch e.value.kind {
		case kindString:
			each(e)
		case kindNull:
		case kindInteger, kindFloat, kindBool:
			r.failAt(e.pos, []string{e.key}, fmt.Sprintf("it is %s and takes a string", e.value.kind), "write it in quotes")
		default:
			r.failAt(e.pos, []string{e.key}, fmt.Sprintf("it is %s and takes a string", e.value.kind), "")
		}
	}
}

// value reads a text that may have references.
func (r *reader) value(e entry, pos Position, below []string) (Value, bool) {
	v, notes, err := parseValue(e.value.text, r.json, r.dir)
	if err != nil {
		r.failAt(pos, below, err.Error(), "")
		return Value{}, false
	}
	for _, note := range notes {
		r.warn(pos, join(join(r.path, r.at.key), below...), note, "")
	}
	return v, true
}

func setValue[T any](at func(*T) *Value, check func(Value) error) func(*reader, *T, *node) {
	return func(r *reader, into *T, n *node) {
		if n.kind != kindString {
			r.wrongKind(n, nil, "a string", `"…"`)
			return
		}
		if n.text == "" {
			r.fail("it is empty", "give it a value, or remove the key")
			return
		}
		v, ok := r.value(r.at, r.at.pos, nil)
		if !ok {
			return
		}
		if err := check(v); err != nil {
			r.fail(err.Error(), "")
			return
		}
		*at(into) = v
	}
}

// maxDuration bounds every duration of a file: a longer one is a slip, and larger numbers
// do not fit a duration.
const maxDuration = 365 * 24 * time.Hour

// seconds reads a number of units. zero says whether 0 is a value of its own.
func (r *reader) seconds(n *node, unit time.Duration, zero bool) (time.Duration, bool) {
	word := "seconds"
	if unit == time.Millisecond {
		word = "milliseconds"
	}
	if n.kind != kindInteger && n.kind != kindFloat {
		r.wrongKind(n, nil, "a number of "+word, "30")
		return 0, false
	}
	switch x := n.float; {
	case math.IsNaN(x):
		r.fail("it is not a number", "write a number of "+word)
	case x < 0:
		r.fail("it is negative", "write a number of "+word)
	case x == 0 && !zero:
		r.fail("it is 0, which would leave no time at all", "write a number of "+word+", or remove the key for the default")
	case x > float64(maxDuration)/float64(unit):
		r.fail(fmt.Sprintf("it is more than a year (%.0f %s)", float64(maxDuration)/float64(unit), word), "write a smaller number of "+word)
	default:
		// At least a nanosecond, so that a tiny number does not become 0.
		d := time.Duration(x * float64(unit))
		if x > 0 {
			d = max(d, 1)
		}
		return d, true
	}
	return 0, false
}

func setSeconds[T any](unit time.Duration, zero bool, at func(*T) *time.Duration) func(*reader, *T, *node) {
	return func(r *reader, into *T, n *node) {
		if d, ok := r.seconds(n, unit, zero); ok {
			*at(into) = d
		}
	}
}

// setDuration takes "1h30m" or a number of seconds.
func setDuration[T any](at func(*T) *time.Duration) func(*reader, *T, *node) {
	return func(r *reader, into *T, n *node) {
		if n.kind != kindString {
			setSeconds(time.Second, false, at)(r, into, n)
			return
		}
		d, err := time.ParseDuration(n.text)
		switch {
		case err != nil:
			r.fail("it is "+quote(n.text)+", which is no duration", `write it like "90s", "30m" or "1h30m", or as a number of seconds`)
		case d <= 0 || d > maxDuration:
			r.fail("it is "+quote(n.text)+" and must be more than 0 and at most a year", "")
		default:
			*at(into) = d
		}
	}
}

// setCount takes an integer from least to most.
func setCount[T any, N int | int64](least, most int64, at func(*T) *N) func(*reader, *T, *node) {
	return func(r *reader, into *T, n *node) {
		switch {
		case n.kind != kindInteger:
			r.wrongKind(n, nil, "a whole number", strconv.FormatInt(max(least, 1), 10))
		case n.integer < least || n.integer > most:
			r.fail(fmt.Sprintf("it is %d and takes %d to %d", n.integer, least, most), "")
		default:
			*at(into) = N(n.integer)
		}
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
