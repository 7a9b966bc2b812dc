package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"nightporter/internal/cli"
)

var (
	// block is a line of an indented or fenced block that begins with a command, span the same in running text.
	block = regexp.MustCompile(`(?m)^(?:    )?(?:\$ )?nightporter( .*)$`)
	span  = regexp.MustCompile("`nightporter( [^`]+)`")
)

// TestCommandsInThePagesExist parses every command line that begins with nightporter, with its flags. Such that show
// a form ([…], A|B, …) are left out.
func TestCommandsInThePagesExist(t *testing.T) {
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	tested := 0
	for _, page := range append(pages, "../README.md") {
		text := read(t, page)
		for _, m := range append(block.FindAllStringSubmatch(text, -1), span.FindAllStringSubmatch(text, -1)...) {
			words, ok := shellWords(m[1])
			if !ok || len(words) > 1 && words[len(words)-1] == "\\" {
				continue
			}
			tested++
			err := cli.Check(words)
			// In running text a command may stand without its arguments.
			if err != nil && !strings.HasPrefix(err.Error(), "expected ") && !strings.HasPrefix(err.Error(), "missing flags: ") {
				t.Errorf("%s: nightporter%s: %v", page, m[1], err)
			}
		}
	}
	if tested < 50 {
		t.Errorf("only %d commands were found", tested)
	}
}

// shellWords are the words of the first command of a line, and whether it is one: what shows a form is not.
func shellWords(line string) (words []string, ok bool) {
	var word strings.Builder
	var quote rune
	in := false
	end := func() {
		if in {
			words = append(words, word.String())
		}
		word.Reset()
		in = false
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, in = r, true
		case r == '[' || r == '(' || r == '{':
			return nil, false
		case r == '|' && in:
			return nil, false
		case r == '|' || r == '>' || r == '<' || r == '#' || r == ';' || r == '&':
			end()
			return words, len(words) > 0
		case r == ' ':
			end()
		case r == '…':
			return nil, false
		default:
			word.WriteRune(r)
			in = true
		}
	}
	end()
	return words, quote == 0 && len(words) > 0
}
