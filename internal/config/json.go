package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// parseJSON reads the document. Of a key that is given twice the last counts, with a warning.
func parseJSON(s *source) (*node, []Problem, error) {
	var whole any
	if err := json.Unmarshal(s.data, &whole); err != nil {
		return nil, nil, s.jsonError(err)
	}
	d := json.NewDecoder(bytes.NewReader(s.data))
	d.UseNumber()
	b := &jsonBuilder{s: s, d: d}
	root, err := b.value()
	if err != nil {
		return nil, nil, s.jsonError(err)
	}
	if root.kind != kindTable {
		return nil, nil, s.syntaxError(0, fmt.Sprintf(`this JSON is %s; it takes an object: {"mcpServers": {…}}`, root.kind))
	}
	return root, b.warnings, nil
}

func (s *source) jsonError(err error) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		// Offset is the number of bytes read: the offending one is the last of them.
		return s.syntaxError(int(syntax.Offset)-1, "cannot be parsed as JSON: "+syntax.Error())
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return s.syntaxError(len(s.data), "cannot be parsed as JSON: it ends too early")
	}
	return s.syntaxError(0, "cannot be parsed as JSON: "+err.Error())
}

type jsonBuilder struct {
	s        *source
	d        *json.Decoder
	warnings []Problem
}

// next returns the place of the next token. The decoder stands before the separators and
// spaces that come first.
func (b *jsonBuilder) next() Position {
	offset := int(b.d.InputOffset())
	for offset < len(b.s.data) && bytes.IndexByte([]byte(" \t\r\n,:"), b.s.data[offset]) >= 0 {
		offset++
	}
	return b.s.at(offset)
}

func (b *jsonBuilder) value() (*node, error) {
	n := &node{pos: b.next()}
	token, err := b.d.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Delim:
		if t == '{' {
			n.kind = kindTable
			err = b.object(n)
		} else {
			n.kind = kindArray
			err = b.array(n)
		}
	case string:
		n.kind, n.text = kindString, t
	case bool:
		n.kind, n.truth = kindBool, t
	case json.Number:
		n.text = t.String()
		// 30.0 and 3e1 are integers to people who write JSON by hand.
		if i, err := strconv.ParseInt(n.text, 10, 64); err == nil {
			n.kind, n.integer, n.float = kindInteger, i, float64(i)
		} else {
			n.kind = kindFloat
			n.float, _ = strconv.ParseFloat(n.text, 64) // out of range: ±Inf, which no field takes
		}
	}
	return n, err
}

func (b *jsonBuilder) object(n *node) error {
	for b.d.More() {
		pos := b.next()
		token, err := b.d.Token()
		if err != nil {
			return err
		}
		key, _ := token.(string) // the whole document is valid: it is one
		value, err := b.value()
		if err != nil {
			return err
		}
		if first := n.get(key); first != nil {
			b.warnings = append(b.warnings, Problem{
				Pos: pos, Field: key, Message: fmt.Sprintf("this key is given twice; the first, on line %d, is not used", first.pos.Line),
				Mend: "remove one of them",
			})
			*first = entry{key: key, pos: pos, value: value}
			continue
		}
		n.add(key, pos, value)
	}
	_, err := b.d.Token()
	return err
}

func (b *jsonBuilder) array(n *node) error {
	for b.d.More() {
		item, err := b.value()
		if err != nil {
			return err
		}
		n.items = append(n.items, item)
	}
	_, err := b.d.Token()
	return err
}
