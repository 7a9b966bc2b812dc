package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"unicode/utf8"

	"nightporter/internal/secret"
)

// kind is the type of a node.
type kind int

const (
	kindNull kind = iota // JSON only
	kindTable
	kindArray
	kindString
	kindInteger
	kindFloat
	kindBool
	kindTime // TOML only
)

// String names the kind as a message does: "it is …".
func (k kind) String() string {
	return [...]string{"null", "a table", "an array", "a string", "a number", "a number", "true or false", "a date or time"}[k]
}

// node is a value with its place in the file.
type node struct {
	kind    kind
	pos     Position
	entries []entry // of a table, keys unique, in the order of the file
	index   map[string]int
	items   []*node // of an array
	text    string  // of a string; of a number or time as written
	integer int64   // of an integer
	float   float64 // of an integer or float
	truth   bool
}

type entry struct {
	key   string
	pos   Position // of the key
	value *node
}

func (n *node) get(key string) *entry {
	i, found := n.index[key]
	if !found {
		return nil
	}
	return &n.entries[i]
}

func (n *node) add(key string, pos Position, value *node) {
	if n.index == nil {
		n.index = map[string]int{}
	}
	n.index[key] = len(n.entries)
	n.entries = append(n.entries, entry{key: key, pos: pos, value: value})
}

// plain returns the node as encoding/json would have it. It fails for what JSON cannot say.
func (n *node) plain() (any, error) {
	switch n.kind {
	case kindTable:
		m := make(map[string]any, len(n.entries))
		for _, e := range n.entries {
			v, err := e.value.plain()
			if err != nil {
				return nil, err
			}
			m[e.key] = v
		}
		return m, nil
	case kindArray:
		a := make([]any, len(n.items))
		for i, item := range n.items {
			v, err := item.plain()
			if err != nil {
				return nil, err
			}
			a[i] = v
		}
		return a, nil
	case kindString:
		return n.text, nil
	case kindInteger:
		return n.integer, nil
	case kindFloat:
		if math.IsNaN(n.float) || math.IsInf(n.float, 0) {
			return nil, fmt.Errorf("%s cannot be written as JSON", n.text)
		}
		return n.float, nil
	case kindBool:
		return n.truth, nil
	case kindTime:
		return nil, errors.New("a date or time has no place here")
	default:
		return nil, nil
	}
}

// raw returns the node as JSON.
func (n *node) raw() (json.RawMessage, error) {
	v, err := n.plain()
	if err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// source finds positions in a text.
type source struct {
	file  string
	data  []byte
	lines []int // offset at which each line begins
	json  bool
}

func newSource(file string, data []byte) *source {
	s := &source{file: file, data: data, lines: []int{0}}
	for i, c := range data {
		if c == '\n' {
			s.lines = append(s.lines, i+1)
		}
	}
	return s
}

// at returns the position of the byte at offset.
func (s *source) at(offset int) Position {
	offset = min(max(offset, 0), len(s.data))
	line := sort.SearchInts(s.lines, offset+1) - 1
	return Position{File: s.file, Line: line + 1, Column: utf8.RuneCount(s.data[s.lines[line]:offset]) + 1}
}

// line returns the text of a line, counted from 1, without its end.
func (s *source) line(n int) string {
	rest := s.data[s.lines[n-1]:]
	if i := bytes.IndexByte(rest, '\n'); i >= 0 {
		rest = rest[:i]
	}
	return strings.TrimSuffix(string(rest), "\r")
}

// SyntaxError says where a file could not be parsed.
type SyntaxError struct {
	Pos     Position
	Message string
	Line    string // the line at Pos, every value in it masked
}

// Error implements error.
func (e *SyntaxError) Error() string {
	if e.Line == "" {
		return fmt.Sprintf("%s: %s", e.Pos, e.Message)
	}
	return fmt.Sprintf("%s: %s\n\t%s", e.Pos, e.Message, e.Line)
}

func (s *source) syntaxError(offset int, message string) *SyntaxError {
	pos := s.at(offset)
	return &SyntaxError{Pos: pos, Message: message, Line: maskLine(s.line(pos.Line), !s.json)}
}

// quotedLine bounds the line that a syntax error quotes.
const quotedLine = 200

var (
	quotedText = regexp.MustCompile(`"(?:[^"\\]|\\.)*("|$)|'[^']*('|$)`)
	bareWord   = regexp.MustCompile(`[^\s"'=:,{}\[\]#]{6,}(?:=+$)?`)
)

// MaskLine returns a line of a TOML or JSON file for a listing: keys and punctuation are kept, every value is masked.
func MaskLine(line string) string { return maskLine(line, true) }

// maskLine hides every value of a line that could not be parsed: the line may be the
// one that holds a key, and leaving its quotes away is the usual mistake.
// Names before = or : are kept, TOML's table headers and short words too.
func maskLine(line string, headers bool) string {
	keepKey := func(end int) bool {
		rest := strings.TrimLeft(line[end:], " \t.")
		return len(rest) > 1 && (rest[0] == '=' || rest[0] == ':') && rest[1] != '='
	}
	var out strings.Builder
	header := 0 // where it ends
	if headers && strings.HasPrefix(strings.TrimSpace(line), "[") && !strings.ContainsAny(line, "\"'=,") {
		if header = strings.LastIndexByte(line, ']') + 1; header == 0 {
			header = len(line)
		}
	}
	replace := func(text string, re *regexp.Regexp, base int, mask string) string {
		var b strings.Builder
		last := 0
		for _, m := range re.FindAllStringIndex(text, -1) {
			b.WriteString(text[last:m[0]])
			if word := text[m[0]:m[1]]; keepKey(base+m[1]) || len(word) <= 2 {
				b.WriteString(word)
			} else {
				b.WriteString(mask)
			}
			last = m[1]
		}
		b.WriteString(text[last:])
		return b.String()
	}
	out.WriteString(line[:header])
	last := header
	for _, m := range quotedText.FindAllStringIndex(line, -1) { // a line with a header has none
		out.WriteString(replace(line[last:m[0]], bareWord, last, secret.Mask))
		out.WriteString(replace(line[m[0]:m[1]], quotedText, m[0], `"`+secret.Mask+`"`))
		last = m[1]
	}
	out.WriteString(replace(line[last:], bareWord, last, secret.Mask))
	text := []rune(strings.ToValidUTF8(strings.TrimSpace(out.String()), "�"))
	if len(text) > quotedLine {
		text = append(text[:quotedLine], '…')
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, string(text))
}

var byteOrderMark = []byte("\xef\xbb\xbf")

// parse reads TOML or JSON. Warnings are about keys that are given twice.
func parse(file string, data []byte) (root *node, isJSON bool, warnings []Problem, err error) {
	data = bytes.TrimPrefix(data, byteOrderMark)
	s := newSource(file, data)
	// No TOML document begins with a brace.
	s.json = bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) || strings.EqualFold(filepath.Ext(file), ".json")
	if i := InvalidUTF8(data); i >= 0 {
		return nil, s.json, nil, s.syntaxError(i, "this is not UTF-8 text; save the file as UTF-8")
	}
	if s.json {
		root, warnings, err = parseJSON(s)
	} else {
		root, err = parseTOML(s)
	}
	return root, s.json, warnings, err
}

// InvalidUTF8 is the offset of the first byte that is no UTF-8, or -1.
func InvalidUTF8(data []byte) int {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size <= 1 {
			return i
		}
		i += size
	}
	return -1
}
