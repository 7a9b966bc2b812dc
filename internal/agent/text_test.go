package agent

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestActivityIsOneShortLine(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"using Bash", "using Bash"},
		{"  two\nlines\tand\x00more\u202e ", "two lines and more"},
		{"", ""},
		{strings.Repeat("é", 120), strings.Repeat("é", 120)},
		{strings.Repeat("é", 121), strings.Repeat("é", 119) + "…"},
	} {
		if got := Activity(c.in); got != c.want {
			t.Errorf("Activity(%q) = %q, want %q", c.in, got, c.want)
		}
	}
}

func FuzzActivityAndTail(f *testing.F) {
	f.Add("plain")
	f.Add(strings.Repeat("日本", 300) + "\xff\xfe")
	f.Fuzz(func(t *testing.T, s string) {
		a := Activity(s)
		if n := utf8.RuneCountInString(a); n > activityChars || strings.ContainsAny(a, "\r\n") {
			t.Errorf("Activity(%q) = %q, %d characters", s, a, n)
		}
		tail := Tail(s)
		if n := utf8.RuneCountInString(tail); n > tailChars || !utf8.ValidString(tail) {
			t.Errorf("Tail: %d characters, valid %v", n, utf8.ValidString(tail))
		}
		if !strings.HasSuffix(strings.TrimSpace(strings.ToValidUTF8(s, "\uFFFD")), tail) {
			t.Errorf("Tail(%q) = %q is not its end", s, tail)
		}
	})
}
