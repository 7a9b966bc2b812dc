package pin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"nightporter/internal/mcp/wire"
)

// classes are the kinds of characters that a person does not see, or sees in another place than where they are. The first that
// holds counts.
var classes = []struct {
	name  string
	holds func(before, r, after rune) bool
}{
	{"tag character", func(_, r, _ rune) bool { return r >= 0xE0000 && r <= 0xE007F }},
	{"bidirectional control", func(_, r, _ rune) bool { return unicode.Is(unicode.Bidi_Control, r) }},
	{"variation selector", func(before, r, after rune) bool {
		// Behind a symbol, or in a keycap, one of these makes an emoji of it: so many descriptions have them that
		// a warning of each would teach people to read past warnings.
		emoji := (r == 0xFE0E || r == 0xFE0F) && (symbol(before) || after == 0x20E3)
		return unicode.Is(unicode.Variation_Selector, r) && !emoji
	}},
	{"control character", func(_, r, after rune) bool {
		return unicode.IsControl(r) && r != '\n' && r != '\t' && (r != '\r' || after != '\n')
	}},
	{"line or paragraph separator", func(_, r, _ rune) bool { return unicode.In(r, unicode.Zl, unicode.Zp) }},
	{"invisible character", func(before, r, after rune) bool {
		emoji := r == 0x200D && (symbol(before) || before == 0xFE0F) && symbol(after)
		return unicode.In(r, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point) && !emoji
	}},
}

// symbol reports whether r is a symbol beyond ASCII, as emoji are.
func symbol(r rune) bool { return r > unicode.MaxASCII && unicode.IsSymbol(r) }

// class returns the kind of hidden character that r is between two others (0 at the ends), empty for one that is seen.
func class(before, r, after rune) string {
	if r > ' ' && r < 0x7F {
		return ""
	}
	for _, c := range classes {
		if c.holds(before, r, after) {
			return c.name
		}
	}
	return ""
}

// rewrite returns text with each character replaced by what write makes of it. Bytes that are no UTF-8 come as
// utf8.RuneError with their value in bad, which is -1 otherwise. What is spelled out is no neighbour: the joiner behind
// a hidden selector joins nothing, and is hidden itself.
func rewrite(text string, write func(b *strings.Builder, r rune, bad int, class string)) string {
	var b strings.Builder
	before := rune(0)
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		bad := -1
		if r == utf8.RuneError && size == 1 {
			bad = int(text[i])
		}
		i += size
		after, n := utf8.DecodeRuneInString(text[i:])
		if after == utf8.RuneError && n <= 1 {
			after = 0
		}
		class := class(before, r, after)
		write(&b, r, bad, class)
		if before = r; bad >= 0 || class != "" {
			before = 0
		}
	}
	return b.String()
}

// Escape returns text with every character that is not seen, or moves others about, spelled out: \u{202E}. Newlines and tabs
// stay, as do the joiners and selectors inside emoji. Bytes that are no UTF-8 become \x{9B}. The result does not act on a terminal.
func Escape(text string) string {
	return rewrite(text, func(b *strings.Builder, r rune, bad int, class string) {
		switch {
		case bad >= 0:
			fmt.Fprintf(b, `\x{%02X}`, bad)
		case class != "" || r == '\r':
			fmt.Fprintf(b, `\u{%04X}`, r)
		default:
			b.WriteRune(r)
		}
	})
}

// EscapeJSON returns a JSON text that says the same, with the same characters spelled as JSON's escapes.
func EscapeJSON(text []byte) []byte {
	return []byte(rewrite(string(text), func(b *strings.Builder, r rune, bad int, class string) {
		switch {
		case bad < 0 && (class == "" || r < ' '): // controls below it stand between values only
			b.WriteRune(r)
		case r < 0x10000:
			fmt.Fprintf(b, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(b, `\u%04x\u%04x`, high, low)
		}
	}))
}

// Suspicious returns where a definition has characters that a person does not see, or that move others about, one text for each
// place and kind of character; nil when it has none. The texts are escaped:
//
//	description: 2 × bidirectional control (U+202E, U+202C)
//
// How a string is spelled in JSON makes no difference: \u202e counts, because a model is given what it stands for.
func Suspicious(raw json.RawMessage) []string {
	if !bytes.ContainsFunc(raw, func(r rune) bool { return r >= 0x7F || r == '\\' }) {
		return nil
	}
	s := suspicions{found: map[place]int{}}
	s.value("", raw, maxDepth)
	return s.texts()
}

// suspicions are the hidden characters of a definition, in the order of the definition.
type suspicions struct {
	list  []suspicion
	found map[place]int // index in list
	more  int           // characters in places beyond maxPlaces
}

// place is one kind of character in one part of the definition.
type place struct{ path, class string }

type suspicion struct {
	place
	count int
	runes []rune // different ones, the first maxNamed and one
}

const (
	// maxPlaces is how many places are told apart, and maxNamed how many different characters of one are named:
	// hidden messages have one for each letter.
	maxPlaces = 20
	maxNamed  = 4
)

func (s *suspicions) value(path string, raw json.RawMessage, depth int) {
	members, err := wire.Members(raw)
	if err != nil || depth == 0 {
		for text := range stringsIn(raw) {
			s.text(path, text)
		}
		return
	}
	for _, m := range members {
		at := join(path, m.Key)
		s.text(at, m.Key)
		s.value(at, m.Value, depth-1)
	}
}

func (s *suspicions) text(path, text string) {
	rewrite(text, func(_ *strings.Builder, r rune, _ int, class string) {
		if class == "" {
			return
		}
		at := place{path, class}
		i, ok := s.found[at]
		switch {
		case ok:
		case len(s.list) == maxPlaces:
			s.more++
			return
		default:
			i = len(s.list)
			s.found[at] = i
			s.list = append(s.list, suspicion{place: at})
		}
		x := &s.list[i]
		x.count++
		if len(x.runes) <= maxNamed && !slices.Contains(x.runes, r) {
			x.runes = append(x.runes, r)
		}
	})
}

func (s *suspicions) texts() (texts []string) {
	for _, x := range s.list {
		var named []string
		for _, r := range x.runes[:min(len(x.runes), maxNamed)] {
			named = append(named, fmt.Sprintf("U+%04X", r))
		}
		if len(x.runes) > maxNamed {
			named = append(named, "…")
		}
		texts = append(texts, fmt.Sprintf("%s: %d × %s (%s)", Escape(x.path), x.count, x.class, strings.Join(named, ", ")))
	}
	if s.more > 0 {
		texts = append(texts, fmt.Sprintf("elsewhere: %d more such characters", s.more))
	}
	return texts
}

// stringsIn yields the strings in a JSON value, keys too, decoded.
func stringsIn(raw json.RawMessage) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i := 0; i < len(raw); i++ {
			if raw[i] != '"' {
				continue
			}
			start := i
			for i++; i < len(raw) && raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++
				}
			}
			if text, ok := wire.Text(raw[start:min(i+1, len(raw))]); !ok || !yield(text) {
				return
			}
		}
	}
}
