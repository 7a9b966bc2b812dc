package config

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// The functions of this file change one server's entry in the text of a config.toml and keep every other byte:
// comments, order, white space. They work on the places that the parser gives and encode nothing but what they add.
// The result is parsed again, and it is returned only when it says the same as before of everything but the entry.
// What they cannot edit they refuse with a [Problem] that names the line. JSON is refused.

// NewServer is an entry to write. Values are written as they are given, so that references stay references.
type NewServer struct {
	Name string

	Command string // stdio
	Args    []string
	Env     [][2]string // name and value, in this order
	EnvVars []string
	Cwd     string

	URL               string // streamable HTTP
	Headers           [][2]string
	BearerTokenEnvVar string

	Required bool

	// Settings are further keys, written in this order after those above.
	Settings []Setting
}

// Setting is one key of an entry.
type Setting struct {
	Key   []string // below the entry, such as {"type"} or {"oauth", "client_id"}
	Value any      // a string, bool, int64, float64 or []string
}

// AddServer returns data with the entry added at its end. An entry of that name is an error, unless replace is
// true: then the new one takes its place and nothing of the old one stays, its comments neither.
// data may be empty.
func AddServer(file string, data []byte, s NewServer, replace bool) ([]byte, error) {
	if err := CheckName(s.Name); err != nil {
		return nil, &Problem{Message: err.Error(), Mend: "give it another name"}
	}
	e, err := newEditor(file, data, s.Name)
	if err != nil {
		return nil, err
	}
	if e.exists && !replace {
		return nil, &Problem{Pos: e.pos, Field: e.field(), Message: "it exists already", Mend: "give --replace to write it anew, or take another name"}
	}
	if all := e.find(e.target[:1]); len(all) > 0 && all[0].value == unstable.InlineTable {
		return nil, e.refuse(all[0], "mcp_servers is an inline table, which nothing can be added to from outside", "write its entries as [mcp_servers.NAME] tables")
	}
	section := e.render(s)
	switch entry := e.find(e.target); {
	case len(entry) > 0 && entry[0].header:
		if err := e.cut(entry, section); err != nil {
			return nil, err
		}
	default:
		if err := e.cut(entry, ""); err != nil {
			return nil, err
		}
		e.append(section)
	}
	return e.result(func(_, now *node) error {
		if now == nil {
			return errors.New("the entry is not there")
		}
		return nil
	}, true)
}

// RemoveServer returns data without the entry: its tables and keys, and the comments between them. Comments before and
// after it stay.
func RemoveServer(file string, data []byte, name string) ([]byte, error) {
	e, err := editExisting(file, data, name)
	if err != nil {
		return nil, err
	}
	if err := e.cut(e.find(e.target), ""); err != nil {
		return nil, err
	}
	return e.result(func(_, now *node) error {
		if now != nil {
			return errors.New("the entry is still there")
		}
		return nil
	}, false)
}

// EnableServer returns data with the entry's enabled set to on: the value is replaced, or the key is added after the
// last one of the entry's own table. Where the entry says so already, data is returned as it is.
func EnableServer(file string, data []byte, name string, on bool) ([]byte, error) {
	e, err := editExisting(file, data, name)
	if err != nil {
		return nil, err
	}
	if e.entry.kind != kindTable {
		return nil, &Problem{Pos: e.pos, Field: e.field(), Message: fmt.Sprintf("it is %s and no table", e.entry.kind), Mend: fmt.Sprintf("write [%s]", e.field())}
	}
	said := e.entry.get("enabled")
	if said == nil && on || said != nil && said.value.kind == kindBool && said.value.truth == on {
		return data, nil
	}
	value := fmt.Sprint(on)
	switch at := e.find(append(slices.Clone(e.target), "enabled")); {
	case said == nil:
		if err := e.insert("enabled = " + value); err != nil {
			return nil, err
		}
	case len(at) != 1 || at[0].header || len(at[0].path) != len(e.target)+1:
		return nil, &Problem{Pos: said.pos, Field: join(e.field(), "enabled"), Message: "it is a table and takes true or false", Mend: "write enabled = " + value}
	default:
		e.edit(at[0].valueAt, at[0].end, value)
	}
	return e.result(func(before, now *node) error {
		got := now.get("enabled")
		if got == nil || got.value.kind != kindBool || got.value.truth != on || !sameTable(before, now, "enabled") {
			return errors.New("the entry is not as it was")
		}
		return nil
	}, false)
}

// item is what one header or one key = value writes.
type item struct {
	path       []string // from the root
	keys       []span   // of the parts that are written here: the last of path
	start, end int      // of a header from its first key to its last; of a pair to the end of its value
	header     bool     // [path] or [[path]]
	value      unstable.Kind
	valueAt    int     // offset of the value
	inside     *item   // the pair whose inline table holds this one; nil: it has a line of its own
	children   []*item // of an inline table
}

type span struct{ start, end int }

type change struct {
	span
	text string
}

// editor holds one file while one of its entries is changed.
type editor struct {
	file    string
	bom     []byte
	data    []byte // without bom
	source  *source
	root    *node
	items   []*item // those with lines of their own, in the order of the file
	newline string
	changes []change

	target []string // path of the entry
	exists bool
	entry  *node // nil when there is none
	pos    Position
}

func newEditor(file string, data []byte, name string) (*editor, error) {
	root, isJSON, _, err := parse(file, data)
	if isJSON {
		return nil, &Problem{Pos: Position{File: file}, Message: "it is JSON, which is not edited", Mend: "edit it by hand, or keep the server in config.toml"}
	}
	if err != nil {
		return nil, err
	}
	rest := bytes.TrimPrefix(data, byteOrderMark)
	e := &editor{
		file: file, bom: data[:len(data)-len(rest)], data: rest, source: newSource(file, rest), root: root,
		newline: "\n", target: []string{"mcp_servers", name},
	}
	if i := bytes.IndexByte(rest, '\n'); i > 0 && rest[i-1] == '\r' {
		e.newline = "\r\n"
	}
	if servers := root.get("mcp_servers"); servers != nil {
		if servers.value.kind != kindTable {
			return nil, &Problem{
				Pos: servers.pos, Field: "mcp_servers", Message: fmt.Sprintf("it is %s and takes a table of named entries", servers.value.kind), Mend: "write [mcp_servers.NAME]",
			}
		}
		if entry := servers.value.get(name); entry != nil {
			e.exists, e.entry, e.pos = true, entry.value, entry.pos
		}
	}
	e.scan()
	return e, nil
}

// editExisting is newEditor for an entry that must be there.
func editExisting(file string, data []byte, name string) (*editor, error) {
	e, err := newEditor(file, data, name)
	if err != nil || e.exists {
		return e, err
	}
	var names []string
	if servers := e.root.get("mcp_servers"); servers != nil {
		for _, entry := range servers.value.entries {
			names = append(names, entry.key)
		}
	}
	mend := "it defines no servers"
	if len(names) > 0 {
		slices.Sort(names)
		mend = "the servers are " + strings.Join(names, ", ")
		if near := hint(name, names); near != "" {
			mend = near + " " + mend
		}
	}
	return nil, &Problem{Pos: Position{File: file}, Message: fmt.Sprintf("there is no server %s", quote(name)), Mend: mend}
}

func (e *editor) field() string { return join("", e.target...) }

// refuse is the error of what stands at an item and cannot be edited.
func (e *editor) refuse(at *item, message, mend string) error {
	return &Problem{Pos: e.source.at(at.start), Field: e.field(), Message: message, Mend: mend}
}

// scan finds the items. The text is valid TOML.
func (e *editor) scan() {
	var p unstable.Parser
	p.Reset(e.data)
	var table []string
	for p.NextExpression() {
		switch n := p.Expression(); n.Kind {
		case unstable.Table, unstable.ArrayTable:
			it := &item{header: true}
			it.name(nil, n.Key())
			it.start, it.end = it.keys[0].start, it.keys[len(it.keys)-1].end
			table = it.path
			e.items = append(e.items, it)
		case unstable.KeyValue:
			e.items = append(e.items, e.pair(table, n, nil))
		}
	}
}

func (it *item) name(table []string, key unstable.Iterator) {
	it.path = slices.Clone(table)
	for key.Next() {
		n := key.Node()
		it.path = append(it.path, string(n.Data))
		it.keys = append(it.keys, span{int(n.Raw.Offset), int(n.Raw.Offset + n.Raw.Length)})
	}
}

func (e *editor) pair(table []string, n *unstable.Node, inside *item) *item {
	it := &item{start: int(n.Raw.Offset), end: int(n.Raw.Offset + n.Raw.Length), value: n.Value().Kind, inside: inside}
	it.name(table, n.Key())
	it.valueAt = it.keys[len(it.keys)-1].end
	for bytes.IndexByte([]byte(" \t="), e.data[it.valueAt]) >= 0 {
		it.valueAt++
	}
	if it.value == unstable.InlineTable {
		for children := n.Value().Children(); children.Next(); {
			it.children = append(it.children, e.pair(it.path, children.Node(), it))
		}
	}
	return it
}

func hasPrefix(path, prefix []string) bool {
	return len(path) >= len(prefix) && slices.Equal(path[:len(prefix)], prefix)
}

// find returns the items that write what is at path or below it, in the order of the file, without those within another of them.
func (e *editor) find(path []string) []*item {
	var found []*item
	var look func([]*item)
	look = func(items []*item) {
		for _, it := range items {
			switch {
			case hasPrefix(it.path, path):
				found = append(found, it)
			case hasPrefix(path, it.path):
				look(it.children)
			}
		}
	}
	look(e.items)
	return found
}

func (e *editor) edit(start, end int, text string) {
	e.changes = append(e.changes, change{span{start, end}, text})
}

// lineStart and lineEnd are the bounds of the lines that hold a place, the newline included.
func (e *editor) lineStart(at int) int { return bytes.LastIndexByte(e.data[:at], '\n') + 1 }

func (e *editor) lineEnd(at int) int {
	if i := bytes.IndexByte(e.data[at:], '\n'); i >= 0 {
		return at + i + 1
	}
	return len(e.data)
}

func blank(line []byte) bool { return len(bytes.Trim(line, " \t\r\n")) == 0 }

// cut removes the items, and what stands between two of them that follow each other. text, when there is some,
// takes the place of the first.
func (e *editor) cut(items []*item, text string) error {
	for i := 0; i < len(items); {
		first := items[i]
		if first.inside != nil {
			n, err := e.cutInline(first.inside, items[i:])
			if err != nil {
				return err
			}
			i += n
			continue
		}
		last := first
		at := slices.Index(e.items, first)
		for i++; i < len(items) && at+1 < len(e.items) && items[i] == e.items[at+1]; i++ {
			at++
			last = items[i]
		}
		start, end := e.lineStart(first.start), e.lineEnd(last.end)
		if text == "" {
			start, end = e.withBlank(start, end)
		}
		e.edit(start, end, text)
		text = ""
	}
	return nil
}

// withBlank widens a span of lines to the blank line that set it off from the lines around it, where two would be
// left together otherwise.
func (e *editor) withBlank(start, end int) (int, int) {
	next := e.data[end:e.lineEnd(end)]
	if !blank(next) {
		return start, end
	}
	if start == 0 {
		return start, end + len(next)
	}
	if before := e.lineStart(start - 1); blank(e.data[before:start]) {
		return before, end
	}
	return start, end
}

// cutInline removes from an inline table those of its children that items begins with, and returns how many they are.
func (e *editor) cutInline(table *item, items []*item) (int, error) {
	if bytes.IndexByte(e.data[table.valueAt:table.end], '\n') >= 0 {
		return 0, e.refuse(items[0], "it stands in an inline table of several lines, from which nothing is removed", "remove it by hand")
	}
	n := 0
	kept := -1 // the last child that stays
	for i, child := range table.children {
		if n == len(items) || child != items[n] {
			kept = i
			continue
		}
		n++
		switch {
		case i+1 < len(table.children):
			e.edit(child.start, table.children[i+1].start, "")
		case kept >= 0:
			// Those between were removed up to this one's start.
			e.edit(table.children[kept].end, table.children[kept+1].start, "")
			e.edit(child.start, child.end, "")
		default:
			e.edit(child.start, child.end, "")
		}
	}
	return n, nil
}

// insert puts a key of its own into the entry.
func (e *editor) insert(pair string) error {
	entry := e.find(e.target)
	var dotted *item // the last item whose own key names the entry: a.b.NAME.x = …
	for i, it := range entry {
		switch {
		case it.header && len(it.path) == len(e.target):
			last := it
			for _, next := range e.items[slices.Index(e.items, it)+1:] {
				if next.header {
					break
				}
				last = next
			}
			e.insertLine(last, pair)
			return nil
		case !it.header && len(it.path) == len(e.target):
			e.insertInline(it, pair)
			return nil
		case !it.header && e.nameIn(it) >= 0:
			dotted = entry[i]
		}
	}
	if dotted == nil {
		return &Problem{Pos: e.pos, Field: e.field(), Message: fmt.Sprintf("there is no table [%s] to write into", e.field()), Mend: "write it by hand: " + pair}
	}
	pair = string(e.data[dotted.keys[0].start:dotted.keys[e.nameIn(dotted)].end]) + "." + pair
	if dotted.inside != nil {
		e.edit(dotted.end, dotted.end, ", "+pair)
	} else {
		e.insertLine(dotted, pair)
	}
	return nil
}

// nameIn returns which of the item's own keys is the entry's name; less than 0: none.
func (e *editor) nameIn(it *item) int { return len(it.keys) - 1 - (len(it.path) - len(e.target)) }

// insertLine writes a line after the item's, indented as it is.
func (e *editor) insertLine(after *item, text string) {
	start, end := e.lineStart(after.start), e.lineEnd(after.end)
	line := e.data[start:after.start]
	indent := string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
	if e.data[end-1] != '\n' {
		e.edit(end, end, e.newline+indent+text)
		return
	}
	e.edit(end, end, indent+text+e.newline)
}

// insertInline writes a pair at the end of an inline table.
func (e *editor) insertInline(table *item, pair string) {
	if n := len(table.children); n > 0 {
		e.edit(table.children[n-1].end, table.children[n-1].end, ", "+pair)
		return
	}
	text := " " + pair
	if e.data[table.valueAt+1] == '}' {
		text += " "
	}
	e.edit(table.valueAt+1, table.valueAt+1, text)
}

// append writes a section at the end, set off by a blank line.
func (e *editor) append(section string) {
	end := len(e.data)
	if n := len(e.changes); n > 0 && e.changes[n-1].end == end {
		// What ended the file is being removed: what is before it ends with a newline.
		e.edit(end, end, e.newline+section)
		return
	}
	last := e.lineStart(max(end-1, 0))
	switch {
	case blank(e.data):
	case e.data[end-1] != '\n':
		section = e.newline + e.newline + section
	case !blank(e.data[last:end]):
		section = e.newline + section
	}
	e.edit(end, end, section)
}

// render writes the entry as a section of its own.
func (e *editor) render(s NewServer) string {
	var lines []string
	add := func(key, value string) { lines = append(lines, tomlKey(key)+" = "+value) }
	text := func(key, value string) {
		if value != "" {
			add(key, tomlString(value))
		}
	}
	list := func(key string, values []string) {
		if len(values) > 0 {
			add(key, settingText(values))
		}
	}
	table := func(key string, values [][2]string) {
		if len(values) == 0 {
			return
		}
		lines = append(lines, "", "["+tomlPath(append(slices.Clone(e.target), key)...)+"]")
		for _, v := range values {
			add(v[0], tomlString(v[1]))
		}
	}
	lines = append(lines, "["+tomlPath(e.target...)+"]")
	text("command", s.Command)
	list("args", s.Args)
	text("cwd", s.Cwd)
	list("env_vars", s.EnvVars)
	text("url", s.URL)
	text("bearer_token_env_var", s.BearerTokenEnvVar)
	if s.Required {
		add("required", "true")
	}
	var below [][]string // tables, in the order of their first key
	for _, set := range s.Settings {
		switch dir := set.Key[:len(set.Key)-1]; {
		case len(dir) == 0:
			add(set.Key[0], settingText(set.Value))
		case !slices.ContainsFunc(below, func(other []string) bool { return slices.Equal(other, dir) }):
			below = append(below, dir)
		}
	}
	table("env", s.Env)
	table("http_headers", s.Headers)
	for _, dir := range below {
		lines = append(lines, "", "["+tomlPath(slices.Concat(e.target, dir)...)+"]")
		for _, set := range s.Settings {
			if last := len(set.Key) - 1; slices.Equal(set.Key[:last], dir) {
				add(set.Key[last], settingText(set.Value))
			}
		}
	}
	return strings.Join(lines, e.newline) + e.newline
}

func tomlPath(keys ...string) string {
	quoted := make([]string, len(keys))
	for i, k := range keys {
		quoted[i] = tomlKey(k)
	}
	return strings.Join(quoted, ".")
}

func tomlKey(key string) string {
	if bareKey(key) {
		return key
	}
	return tomlString(key)
}

// settingText returns the value of a Setting as TOML.
func settingText(v any) string {
	switch v := v.(type) {
	case string:
		return tomlString(v)
	case []string:
		quoted := make([]string, len(v))
		for i, text := range v {
			quoted[i] = tomlString(text)
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	case float64:
		text := strconv.FormatFloat(v, 'f', -1, 64)
		if !strings.Contains(text, ".") {
			text += ".0"
		}
		return text
	}
	return fmt.Sprint(v)
}

// tomlString returns text as a basic string of TOML 1.0.
func tomlString(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// result applies the changes and checks what came of them: that the text says the same as before of everything but the
// entry, what holds says of the entry before and now (nil where it is not there), and, when usable is true, that the
// entry can be used.
func (e *editor) result(holds func(before, now *node) error, usable bool) ([]byte, error) {
	slices.SortStableFunc(e.changes, func(a, b change) int { return a.start - b.start })
	out := slices.Clone(e.bom)
	at := 0
	for _, c := range e.changes {
		if c.start < at {
			return nil, e.wrong(errors.New("two changes overlap"))
		}
		out = append(append(out, e.data[at:c.start]...), c.text...)
		at = c.end
	}
	out = append(out, e.data[at:]...)

	root, _, _, err := parse(e.file, out)
	if err != nil {
		return nil, e.wrong(err)
	}
	var was, is node
	if servers := e.root.get("mcp_servers"); servers != nil {
		was = *servers.value
	}
	var now *node
	if servers := root.get("mcp_servers"); servers != nil {
		is = *servers.value
		if entry := is.get(e.target[1]); entry != nil {
			now = entry.value
		}
	}
	if !sameTable(e.root, root, "mcp_servers") || !sameTable(&was, &is, e.target[1]) {
		return nil, e.wrong(errors.New("more than the entry would change"))
	}
	if err := holds(e.entry, now); err != nil {
		return nil, e.wrong(err)
	}
	if usable {
		c, err := Parse(e.file, out)
		if err != nil {
			return nil, e.wrong(err)
		}
		if s, ok := c.Server(e.target[1]); ok && s.Problem != nil {
			p := *s.Problem
			p.Pos = Position{} // in a text that is not written
			return nil, &p
		}
	}
	return out, nil
}

// wrong is the error of an edit whose result is not what it must be.
func (e *editor) wrong(err error) error {
	return &Problem{Pos: e.pos, Field: e.field(), Message: fmt.Sprintf("the text cannot be edited safely (%v), so nothing is written", err), Mend: "edit it by hand"}
}

// sameTable reports whether two tables say the same, but for one key. The order of keys says nothing.
func sameTable(a, b *node, but string) bool {
	count := func(n *node) int {
		if n.get(but) != nil {
			return len(n.entries) - 1
		}
		return len(n.entries)
	}
	if count(a) != count(b) {
		return false
	}
	for _, x := range a.entries {
		if x.key == but {
			continue
		}
		y := b.get(x.key)
		if y == nil || !same(x.value, y.value) {
			return false
		}
	}
	return true
}

// same reports whether two values say the same.
func same(a, b *node) bool {
	if a.kind != b.kind || a.text != b.text || len(a.entries) != len(b.entries) {
		return false
	}
	for _, x := range a.entries {
		y := b.get(x.key)
		if y == nil || !same(x.value, y.value) {
			return false
		}
	}
	return slices.EqualFunc(a.items, b.items, same)
}
