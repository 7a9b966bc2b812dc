package agent

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// plainMarks are the characters beside letters, digits and white space between words that mean nothing
// to any shell: what is left of a command line when quoting, expansion and operators are taken away.
const plainMarks = "-_./:=,@+"

// SplitArgv splits a command that was given as one string into its words.
//
// No shell is involved and none is imitated: the string must be one that a POSIX shell and cmd.exe
// would split just so, without doing anything else to it. Words are made of letters, digits and
// - _ . / : = , @ + and are parted by spaces or tabs. Everything else (quotes, backslashes,
// expansions, globs, comments, operators, redirections, invisible characters) is
// answered with a *[Refusal] that names the character and its position, counted in
// characters from 1.
func SplitArgv(command string) ([]string, error) {
	position := 0
	for i, r := range command {
		position++
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(command[i:], "\uFFFD"):
			return nil, refuseChar(fmt.Sprintf("byte 0x%02x", command[i]), position, "is not valid UTF-8")
		case r == ' ', r == '\t', strings.ContainsRune(plainMarks, r), unicode.In(r, unicode.L, unicode.M, unicode.N):
			continue
		}
		why, known := shellMeaning[r]
		if !known {
			why = "is not part of a plain command"
		}
		return nil, refuseChar(fmt.Sprintf("%q", r), position, why)
	}
	words := strings.FieldsFunc(command, func(r rune) bool { return r == ' ' || r == '\t' })
	switch {
	case len(words) == 0:
		return nil, &Refusal{What: "the command", Why: "it is empty", Mend: "give the program and its arguments"}
	case strings.Contains(words[0], "="):
		return nil, &Refusal{
			What: fmt.Sprintf("the word %q", words[0]), Why: "a shell would set a variable by it",
			Mend: "set variables in the environment of nightporter",
		}
	}
	for _, word := range words {
		if strings.HasPrefix(word, "=") {
			return nil, &Refusal{What: fmt.Sprintf("the word %q", word), Why: "zsh would replace it by a program's path", Mend: mendArgv}
		}
	}
	return words, nil
}

const mendArgv = `write the command as a list of words in config.toml: [agents.NAME] exec = ["…", "…"]`

func refuseChar(char string, position int, why string) *Refusal {
	return &Refusal{What: fmt.Sprintf("the character %s at position %d of the command", char, position), Why: "it " + why, Mend: mendArgv}
}

// shellMeaning says what the characters that people do write in commands would do in a shell.
var shellMeaning = map[rune]string{
	'\'': "quotes, and no shell reads this command",
	'"':  "quotes, and no shell reads this command",
	'\\': "escapes, and no shell reads this command",
	'`':  "runs a command inside the command",
	'$':  "expands a variable or runs a command",
	'%':  "expands a variable in cmd.exe",
	'!':  "expands history or a variable",
	'^':  "escapes in cmd.exe",
	'~':  "expands to a home folder",
	'*':  "expands to file names",
	'?':  "expands to file names",
	'[':  "expands to file names",
	']':  "expands to file names",
	'{':  "expands to several words or groups commands",
	'}':  "expands to several words or groups commands",
	'#':  "starts a comment",
	';':  "parts two commands",
	'&':  "parts two commands",
	'|':  "joins two commands",
	'<':  "redirects input",
	'>':  "redirects output",
	'(':  "starts a group of commands",
	')':  "ends a group of commands",
	'\n': "ends the command",
	'\r': "ends the command",
}
