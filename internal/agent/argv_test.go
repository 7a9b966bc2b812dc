package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode"
)

func TestSplitArgvTakesPlainWords(t *testing.T) {
	for command, want := range map[string][]string{
		"claude -p":                            {"claude", "-p"},
		" codex\texec  -m gpt-5.2 ":            {"codex", "exec", "-m", "gpt-5.2"},
		"/opt/a+b/codex exec --sandbox=x":      {"/opt/a+b/codex", "exec", "--sandbox=x"},
		"übersetzer --tools Read,Grep u@h:1/2": {"übersetzer", "--tools", "Read,Grep", "u@h:1/2"},
	} {
		if got, err := SplitArgv(command); err != nil || !slices.Equal(got, want) {
			t.Errorf("SplitArgv(%q) = %q, %v; want %q", command, got, err, want)
		}
	}
}

func TestSplitArgvRefusesWhatAShellWouldReadAndNamesIt(t *testing.T) {
	for _, char := range "'\"\\`$%!^~*?[]{}#;&|<>()\n\r\x00\x1b\u202e\u200b\u00a0" {
		_, err := SplitArgv("codex e" + string(char) + "x")
		var refusal *Refusal
		if !errors.As(err, &refusal) {
			t.Errorf("%q was taken (%v)", char, err)
			continue
		}
		if want := fmt.Sprintf("%q at position 8", char); !strings.Contains(err.Error(), want) {
			t.Errorf("the refusal of %q does not say %s: %v", char, want, err)
		}
		if strings.ContainsFunc(err.Error(), unicode.IsControl) {
			t.Errorf("the refusal of %q carries the character itself: %q", char, err)
		}
	}
	for command, want := range map[string]string{
		"":                  "empty",
		" \t ":              "empty",
		"A=1 claude -p":     `"A=1"`,
		"claude =ls":        `"=ls"`,
		"claude \xff":       "byte 0xff at position 8",
		"é claude | tee":    "position 10",
		"claude -p # quick": "comment",
	} {
		if _, err := SplitArgv(command); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("SplitArgv(%q) gives %v; want an error that says %s", command, err, want)
		}
	}
}

func FuzzSplitArgv(f *testing.F) {
	for _, seed := range []string{"claude -p", "codex exec -c a=b", "a\tb", "x;y", "a\x00b", "\xff", "=", "a =b", "ä ö"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, command string) {
		words, err := SplitArgv(command)
		if err != nil {
			if words != nil || err.Error() == "" {
				t.Fatalf("refused with words %q, error %q", words, err)
			}
			return
		}
		// What was taken reads the same to every shell: it survives being joined, and nothing in it is special.
		again, err := SplitArgv(strings.Join(words, " "))
		if err != nil || !slices.Equal(again, words) {
			t.Fatalf("%q splits into %q, which splits into %q, %v", command, words, again, err)
		}
		if strings.ContainsAny(command, "'\"\\`$%!^~*?[]{}#;&|<>()\r\n\x00") {
			t.Fatalf("%q was taken", command)
		}
		for _, word := range words {
			if word == "" || strings.ContainsAny(word, " \t") {
				t.Fatalf("%q has the word %q", command, word)
			}
		}
	})
}
