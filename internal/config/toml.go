package config

import (
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// parseTOML reads the document twice: the library's decoder decides whether it is valid TOML
// (keys given twice, tables opened twice), its parser gives the places of the keys.
func parseTOML(s *source) (*node, error) {
	var valid map[string]any
	if err := toml.Unmarshal(s.data, &valid); err != nil {
		return nil, s.tomlError(err)
	}
	root := &node{kind: kindTable, pos: s.at(0)}
	var p unstable.Parser
	p.Reset(s.data)
	b := tomlBuilder{s: s}
	table := root
	for p.NextExpression() {
		switch e := p.Expression(); e.Kind {
		case unstable.Table:
			table = b.open(root, e.Key())
		case unstable.ArrayTable:
			table = b.openArray(root, e.Key())
		case unstable.KeyValue:
			b.set(table, e)
		}
	}
	if err := p.Error(); err != nil {
		return nil, s.tomlError(err)
	}
	return root, nil
}

func (s *source) tomlError(err error) error {
	var decode *toml.DecodeError
	if !errors.As(err, &decode) {
		return &SyntaxError{Pos: s.at(0), Message: "cannot be parsed as TOML: " + strings.TrimPrefix(err.Error(), "toml: ")}
	}
	line, column := decode.Position()
	line = min(max(line, 1), len(s.lines))
	offset := min(s.lines[line-1]+max(column, 1)-1, len(s.data))
	return s.syntaxError(offset, "cannot be parsed as TOML: "+strings.TrimPrefix(decode.Error(), "toml: "))
}

type tomlBuilder struct{ s *source }

func (b tomlBuilder) at(r unstable.Range) Position { return b.s.at(int(r.Offset)) }

// step returns the table below parent at the key, making it where there is none. An
// array of tables stands for its last one.
func (b tomlBuilder) step(parent *node, key *unstable.Node) *node {
	if e := parent.get(string(key.Data)); e != nil {
		if n := e.value; n.kind == kindArray && len(n.items) > 0 {
			return n.items[len(n.items)-1]
		}
		return e.value
	}
	n := &node{kind: kindTable, pos: b.at(key.Raw)}
	parent.add(string(key.Data), n.pos, n)
	return n
}

func (b tomlBuilder) open(root *node, key unstable.Iterator) *node {
	for key.Next() {
		root = b.step(root, key.Node())
	}
	return root
}

func (b tomlBuilder) openArray(root *node, key unstable.Iterator) *node {
	for key.Next() {
		part := key.Node()
		if !key.IsLast() {
			root = b.step(root, part)
			continue
		}
		item := &node{kind: kindTable, pos: b.at(part.Raw)}
		if e := root.get(string(part.Data)); e != nil {
			e.value.items = append(e.value.items, item)
		} else {
			list := &node{kind: kindArray, pos: item.pos, items: []*node{item}}
			root.add(string(part.Data), item.pos, list)
		}
		root = item
	}
	return root
}

func (b tomlBuilder) set(table *node, e *unstable.Node) {
	for key := e.Key(); key.Next(); {
		part := key.Node()
		if !key.IsLast() {
			table = b.step(table, part)
			continue
		}
		pos := b.at(part.Raw)
		table.add(string(part.Data), pos, b.value(e.Value(), pos))
	}
}

// value converts n. at is the place for those nodes that the parser gives none: arrays.
func (b tomlBuilder) value(n *unstable.Node, at Position) *node {
	v := &node{pos: at, text: string(n.Data)}
	if n.Raw.Length > 0 {
		v.pos = b.at(n.Raw)
	}
	switch n.Kind {
	case unstable.Array:
		v.kind = kindArray
		for items := n.Children(); items.Next(); {
			v.items = append(v.items, b.value(items.Node(), at))
		}
	case unstable.InlineTable:
		v.kind = kindTable
		for items := n.Children(); items.Next(); {
			b.set(v, items.Node())
		}
	case unstable.String:
		v.kind = kindString
	case unstable.Bool:
		v.kind, v.truth = kindBool, v.text == "true"
	case unstable.Integer:
		v.kind = kindInteger
		v.integer, _ = strconv.ParseInt(strings.ReplaceAll(v.text, "_", ""), 0, 64) // the decoder accepted it
		v.float = float64(v.integer)
	case unstable.Float:
		v.kind = kindFloat
		if text := strings.ReplaceAll(v.text, "_", ""); strings.HasSuffix(text, "nan") {
			v.float = math.NaN()
		} else {
			v.float, _ = strconv.ParseFloat(text, 64) // the decoder accepted it
		}
	default:
		v.kind = kindTime
	}
	return v
}
