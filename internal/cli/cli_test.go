package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"nightporter/internal/run"
)

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	parser, err := kong.New(new(commands))
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range parser.Model.Leaves(false) {
		path := strings.Fields(command.Path())
		var stdout, stderr bytes.Buffer
		code := Main(append(withoutArguments(path), "--help"), nil, strings.NewReader(""), &stdout, &stderr)
		const example = "\n    nightporter "
		if code != run.ExitOK || stderr.Len() > 0 || !strings.Contains(stdout.String(), example) {
			t.Errorf("%v: exit %d, no example, or errors: %s", path, code, stderr.String())
		}
	}
}

func withoutArguments(path []string) (words []string) {
	for _, word := range path {
		if !strings.HasPrefix(word, "<") && !strings.HasPrefix(word, "[") {
			words = append(words, word)
		}
	}
	return words
}

func TestAnAddressOfAllInterfacesIsToldAsOneThatCanBeReached(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:8722": "127.0.0.1:8722", "[::]:80": "localhost:80", "0.0.0.0:80": "localhost:80", "[::1]:80": "[::1]:80", "10.0.0.1:80": "10.0.0.1:80",
	} {
		if got := reachable(address); got != want {
			t.Errorf("%s becomes %s, want %s", address, got, want)
		}
	}
}
