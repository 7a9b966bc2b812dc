package codex

import (
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
)

func FuzzQuotedTextIsReadBackAsItWas(f *testing.F) {
	for _, seed := range []string{"", "plain", "fly.io", "a b", `qu"ote`, `back\slash`, "new\nline", "tab\t", "\x00", "\x7f", "ünï", "\u202e", "\u2028", "😀", "\ufffd", "\ufeff", "a=b", "'", "\r\n", "\xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		line := "servers=" + table(pair{text, quote(text)})
		if strings.ContainsAny(line, "\n\r\x00") {
			t.Fatalf("%q is written with a character that no command line should hold: %q", text, line)
		}
		var got struct{ Servers map[string]string }
		if err := toml.Unmarshal([]byte(line), &got); err != nil {
			t.Fatalf("%q: %v in %s", text, err, line)
		}
		want := strings.ToValidUTF8(text, "\ufffd")
		if !strings.Contains(text, "\ufffd") && text != want {
			// Each byte that is no UTF-8 becomes a character of its own.
			want = string([]rune(text))
		}
		if len(got.Servers) != 1 || got.Servers[want] != want {
			t.Fatalf("%q came back as %q", text, got.Servers)
		}
	})
}
