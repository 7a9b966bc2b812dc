package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"nightporter/internal/secret"
)

// Value is a text of the configuration that may refer to values elsewhere:
//
//	${env:NAME}             the variable NAME of Nightporter's own environment; unset is an error
//	${env:NAME:-default}    or the default when it is unset
//	${file:PATH}            the file's content without its last newline; relative to the folder of
//	                        the configuration file, ~/ is the home folder
//	${keyring:SERVICE/USER} the secret of the system's keyring; USER is what follows the last slash
//	${cmd:PROGRAM ARGS}     what the program prints, without its last newline; split on spaces, no shell,
//	                        run in the folder of the configuration file
//	${NAME}, ${NAME:-default}   in JSON only, as Claude Code has it: the same as with env:
//
// In TOML $${env:…} is the text ${env:…} itself, and ${NAME} is plain text, as for Codex.
//
// References are resolved by [Value.Resolve] and never before; the result is not kept.
// A Value prints with its literal parts masked. The zero value is the empty text.
type Value struct {
	parts []part
	dir   string // that relative files are relative to
}

type scheme string

const (
	literal    scheme = ""
	envRef     scheme = "env"
	fileRef    scheme = "file"
	keyringRef scheme = "keyring"
	cmdRef     scheme = "cmd"
)

var schemes = []string{string(envRef), string(fileRef), string(keyringRef), string(cmdRef)}

type part struct {
	scheme      scheme
	text        string // the literal, or what the reference names
	fallback    string // after :-
	hasFallback bool
	claude      bool // written ${NAME}
}

// Literal returns the value that is text itself, whatever is in it.
func Literal(text string) Value {
	if text == "" {
		return Value{}
	}
	return Value{parts: []part{{text: text}}}
}

// ParseValue reads a value as it stands in TOML. Relative files are relative to the process's folder.
func ParseValue(text string) (Value, error) {
	v, _, err := parseValue(text, false, "")
	return v, err
}

// IsZero reports whether the value is the empty text.
func (v Value) IsZero() bool { return len(v.parts) == 0 }

// IsLiteral reports whether the value refers to nothing.
func (v Value) IsLiteral() bool {
	return !slices.ContainsFunc(v.parts, func(p part) bool { return p.scheme != literal })
}

// authSchemes are beginnings of header values that are not secret and say much.
var authSchemes = []string{"Bearer ", "Basic ", "Token "}

// String returns the value for a listing: references as they are written, all other text, defaults
// too, masked.
func (v Value) String() string {
	var b strings.Builder
	for i, p := range v.parts {
		switch {
		case p.scheme != literal && p.hasFallback:
			p.fallback = secret.Mask
			b.WriteString(p.written())
		case p.scheme != literal:
			b.WriteString(p.written())
		case i == 0 && len(v.parts) > 1 && slices.Contains(authSchemes, p.text):
			b.WriteString(p.text)
		default:
			b.WriteString(secret.Mask)
		}
	}
	return b.String()
}

// Text returns the value as it was written, nothing resolved and nothing masked. It is
// for fields that hold no secrets (command, args, cwd, url) and for handing an entry on unchanged.
func (v Value) Text() string {
	var b strings.Builder
	for _, p := range v.parts {
		b.WriteString(p.written())
	}
	return b.String()
}

func (p part) written() string {
	if p.scheme == literal {
		return p.text
	}
	text := p.text
	if p.hasFallback {
		text += ":-" + p.fallback
	}
	if p.claude {
		return "${" + text + "}"
	}
	return "${" + string(p.scheme) + ":" + text + "}"
}

// Format implements [fmt.Formatter] so that no verb, %#v included, prints a literal.
func (v Value) Format(f fmt.State, _ rune) { fmt.Fprint(f, v.String()) }

// MarshalText implements [encoding.TextMarshaler]; encodings see what String returns.
func (v Value) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// Equal reports whether both values are written the same.
func (v Value) Equal(o Value) bool { return v.dir == o.dir && slices.Equal(v.parts, o.parts) }

// shellCharacters mean something to a shell. In a command that no shell sees, somebody who
// wrote them expects what will not happen. The backslash is not among them: it is in Windows paths.
// A ~ in the middle of a word is in Windows paths too, so it counts at the beginning of one alone.
const shellCharacters = "\"'`$|&;<>()*?[]{}#!\n\r"

// parseValue reads text. The notes are about text that looks like a reference and is none.
func parseValue(text string, json bool, dir string) (v Value, notes []string, err error) {
	v.dir = dir
	var plain strings.Builder
	flush := func() {
		if plain.Len() > 0 {
			v.parts = append(v.parts, part{text: plain.String()})
			plain.Reset()
		}
	}
	for text != "" {
		i := strings.Index(text, "${")
		if i < 0 {
			break
		}
		inner, rest, closed := strings.Cut(text[i+2:], "}")
		name, _, colon := strings.Cut(inner, ":")
		known := colon && slices.Contains(schemes, name)
		switch {
		case known && !json && i > 0 && text[i-1] == '$':
			plain.WriteString(text[:i-1] + "${")
			text = text[i+2:]
			continue
		case known && !closed:
			return Value{}, nil, fmt.Errorf("the reference ${%s: is not closed; end it with }", name)
		case !closed:
			plain.WriteString(text)
			text = ""
			continue
		case known:
			plain.WriteString(text[:i])
			flush()
			p, err := parseReference(scheme(name), inner[len(name)+1:])
			if err != nil {
				return Value{}, nil, err
			}
			v.parts = append(v.parts, p)
			text = rest
			continue
		}
		defaulted := colon && strings.HasPrefix(inner[len(name):], ":-")
		switch {
		case colon && !defaulted && lowerWord(name):
			return Value{}, nil, fmt.Errorf("${%s:…} is not a kind of reference; %s", name, schemeHint(name))
		case json && validEnvName(name) && (!colon || defaulted):
			plain.WriteString(text[:i])
			flush()
			p := part{scheme: envRef, text: name, claude: true, hasFallback: defaulted}
			if defaulted {
				p.fallback = inner[len(name)+2:]
			}
			v.parts = append(v.parts, p)
			text = rest
		case json:
			return Value{}, nil, errors.New("there is a ${…} that names no variable; write ${NAME} or ${NAME:-default}")
		default:
			if variable.MatchString(name) && (!colon || defaulted) {
				notes = append(notes, fmt.Sprintf("${%s} is plain text in TOML, as it is for Codex; for the variable write ${env:%s}", name, name))
			}
			plain.WriteString(text[:i+2])
			text = text[i+2:]
		}
	}
	plain.WriteString(text)
	flush()
	return v, notes, nil
}

func schemeHint(name string) string {
	if near := nearest(name, schemes); near != "" {
		return "did you mean ${" + near + ":…}?"
	}
	return "there are ${env:…}, ${file:…}, ${keyring:…} and ${cmd:…}"
}

func lowerWord(s string) bool {
	return s != "" && len(s) <= maxQuoted && !strings.ContainsFunc(s, func(r rune) bool { return r < 'a' || r > 'z' })
}

// variable is what a variable's name looks like; others, which may be secrets, are not quoted.
var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)

// validEnvName reports whether an environment can hold a variable of that name.
func validEnvName(name string) bool { return name != "" && !strings.ContainsAny(name, "=\x00") }

func parseReference(s scheme, target string) (part, error) {
	p := part{scheme: s, text: target}
	switch s {
	case envRef:
		p.text, p.fallback, p.hasFallback = strings.Cut(target, ":-")
		if !validEnvName(p.text) {
			return part{}, errors.New("${env:…} names no variable; write ${env:NAME}")
		}
	case fileRef:
		if target == "" || strings.ContainsRune(target, 0) {
			return part{}, errors.New("${file:…} names no file; write ${file:PATH}")
		}
	case keyringRef:
		if service, user := splitKeyring(target); service == "" || user == "" {
			return part{}, errors.New("${keyring:…} takes a service and a user; write ${keyring:SERVICE/USER}")
		}
	case cmdRef:
		if i := strings.IndexAny(target, shellCharacters); i >= 0 {
			return part{}, fmt.Errorf("the command of ${cmd:…} has the character %q, and no shell runs it; "+
				"put the command into a script and name that", target[i])
		}
		if strings.HasPrefix(target, "~") || strings.Contains(target, " ~") {
			return part{}, errors.New("the command of ${cmd:…} has a word that begins with ~, and no shell expands it; write the whole path")
		}
		if len(strings.Fields(target)) == 0 {
			return part{}, errors.New("${cmd:…} names no program; write ${cmd:PROGRAM ARGUMENTS}")
		}
	}
	return p, nil
}

// splitKeyring splits at the last slash: services are often addresses, users seldom have slashes.
func splitKeyring(target string) (service, user string) {
	i := strings.LastIndexByte(target, '/')
	if i < 0 {
		return "", ""
	}
	return target[:i], target[i+1:]
}

// onCommandLine says why the value may not stand where other users of the machine can read it.
func (v Value) onCommandLine() error {
	for _, p := range v.parts {
		switch p.scheme {
		case fileRef, keyringRef, cmdRef:
			return fmt.Errorf("it has a secret (${%s:…}), and every user of the machine can read command lines; "+
				"give it to the server in env", p.scheme)
		}
	}
	return nil
}

// path makes a file reference's target absolute.
func (v Value) path(target, home string) string {
	if rest, ok := strings.CutPrefix(target, "~/"); ok && home != "" {
		return filepath.Join(home, rest)
	}
	if filepath.IsAbs(target) || v.dir == "" {
		return target
	}
	return filepath.Join(v.dir, target)
}
