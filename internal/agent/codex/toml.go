package codex

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// quote writes s as a TOML basic string (TOML 1.0, "String"): on one line, with every character escaped that may
// not stand there. Bytes that are no UTF-8, which TOML cannot carry, become U+FFFD.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		case r == utf8.RuneError:
			b.WriteString(`\uFFFD`)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// pair is a key and its value, which is TOML already.
type pair struct{ Key, Value string }

// table writes pairs as a TOML inline table with quoted keys. Names must be quoted inside a value: in
// the dotted path of `-c` Codex splits at each dot and keeps the quotes (facts/codex.md section 2).
func table(pairs ...pair) string {
	parts := make([]string, len(pairs))
	for i, p := range pairs {
		parts[i] = quote(p.Key) + "=" + p.Value
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// array writes values, which are TOML already, as an array.
func array(values []string) string { return "[" + strings.Join(values, ",") + "]" }
