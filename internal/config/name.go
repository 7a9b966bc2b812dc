package config

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ReservedName is the name under which agents see Nightporter itself.
const ReservedName = "nightporter"

// maxName bounds a server's name. Longer ones fit in no tool name of any client.
const maxName = 128

// plainName is Codex's pattern for names of servers that it starts (facts: codex-runtime, section 1).
var plainName = regexp.MustCompile(`^[a-zA-Z0-9_:@/.-]+$`)

// PlainName reports whether name has only the characters that every client carries:
// letters, digits and _ - . : @ /. Other names work behind the gateway; an agent to which such a server
// is wired directly may refuse it.
func PlainName(name string) bool { return plainName.MatchString(name) }

// notInTools are the characters that some agent replaces by an underscore in the names of tools: Codex all of these, Claude
// Code all but the dash (facts: codex, section 6; claude, section 3.1).
var notInTools = regexp.MustCompile(`[^a-zA-Z0-9_]`)

// reserved reports whether an agent could take a tool of a server of that name for one of Nightporter's own, mcp__nightporter__….
func reserved(name string) bool {
	spelled := strings.ToLower(notInTools.ReplaceAllString(name, "_"))
	return strings.EqualFold(name, ReservedName) || spelled == ReservedName || strings.HasPrefix(spelled, ReservedName+"__")
}

// ReservedFor reports whether a name is refused because it, or one that an agent makes of it, is Nightporter's own.
func ReservedFor(name string) bool { return reserved(name) }

// CheckName says why a server cannot have that name: it is empty, too long, reserved, or has characters
// that cannot be shown or carried.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("the name is empty")
	case len(name) > maxName:
		return fmt.Errorf("the name is longer than %d bytes", maxName)
	case reserved(name):
		return fmt.Errorf("the name %s is reserved: it is the name under which agents see the gateway", ReservedName)
	case !utf8.ValidString(name):
		return errors.New("the name is not UTF-8 text")
	case strings.TrimSpace(name) != name:
		return errors.New("the name begins or ends with a space")
	case strings.ContainsFunc(name, func(r rune) bool { return r != ' ' && !unicode.IsPrint(r) }):
		return fmt.Errorf("the name %s has an invisible or control character", quote(name))
	}
	return nil
}
