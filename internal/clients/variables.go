package clients

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// dialect rewrites a text of a client's file, in which it replaces some ${…}, as a value of config.toml. Nil: the client
// replaces nothing.
type dialect func(c *carry, text string) string

var (
	braced        = regexp.MustCompile(`\$\{([^{}]*)\}`)
	bracedOrBare  = regexp.MustCompile(`\$\{([^{}]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)`)
	variableName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	capitals      = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`)
	ourReferences = regexp.MustCompile(`\$\{(env|file|keyring|cmd):`)
	notInNames    = regexp.MustCompile(`[^A-Za-z0-9_]+`)
)

// literal is a text that refers to nothing, as config.toml has it.
func literal(text string) string { return ourReferences.ReplaceAllString(text, "$$$${$1:") }

// text is a text of the client's as config.toml has it.
func (c *carry) text(text string) string {
	if c.client.variables == nil {
		return literal(text)
	}
	return c.client.variables(c, text)
}

// replace rewrites what pattern matches by with, which is given what stands in the braces, or behind a bare $. Where it
// returns false the match is plain text.
func (c *carry) replace(pattern *regexp.Regexp, text string, with func(inner string, bare bool) (string, bool)) string {
	var out strings.Builder
	last := 0
	for _, m := range pattern.FindAllStringSubmatchIndex(text, -1) {
		bare := len(m) > 4 && m[4] >= 0
		inner := ""
		if bare {
			inner = text[m[4]:m[5]]
		} else {
			inner = text[m[2]:m[3]]
		}
		replacement, ok := with(inner, bare)
		if !ok {
			continue
		}
		before := literal(text[last:m[0]])
		if strings.HasSuffix(before, "$") && strings.HasPrefix(replacement, "${") {
			c.leave(Unsupported, "a $ before a reference cannot be written in config.toml")
		}
		out.WriteString(before)
		out.WriteString(replacement)
		last = m[1]
	}
	out.WriteString(literal(text[last:]))
	return out.String()
}

// variable refers to a variable of Nightporter's environment. otherwise, which may be empty, is what follows its name.
func (c *carry) variable(name, otherwise string) string {
	if _, set := c.lookup(name); !set && otherwise == "" && !slices.Contains(c.entry.Needs, name) {
		c.entry.Needs = append(c.entry.Needs, name)
	}
	return "${env:" + name + otherwise + "}"
}

// shellVariables is Claude Code's: ${NAME} and ${NAME:-default}.
func shellVariables(c *carry, text string) string {
	return c.replace(braced, text, func(inner string, _ bool) (string, bool) {
		name, otherwise, _ := strings.Cut(inner, ":")
		if !variableName.MatchString(name) || otherwise != "" && otherwise[0] != '-' {
			return "", false
		}
		return c.variable(name, inner[len(name):]), true
	})
}

// geminiVariables is Gemini CLI's: $NAME and ${NAME}, where a variable of that name is set.
func geminiVariables(c *carry, text string) string {
	return c.replace(bracedOrBare, text, func(inner string, bare bool) (string, bool) {
		name, otherwise, _ := strings.Cut(inner, ":")
		if !variableName.MatchString(name) || otherwise != "" && otherwise[0] != '-' {
			return "", false
		}
		if _, set := c.lookup(name); bare && !set && !capitals.MatchString(name) {
			return "", false
		}
		return c.variable(name, inner[len(name):]), true
	})
}

// windsurfVariables is Windsurf's: ${env:NAME} and ${file:PATH}, which are ours too.
func windsurfVariables(c *carry, text string) string {
	return c.replace(braced, text, func(inner string, _ bool) (string, bool) {
		kind, what, _ := strings.Cut(inner, ":")
		switch {
		case kind == "env" && variableName.MatchString(what):
			return c.variable(what, ""), true
		case kind == "file" && what != "":
			return "${" + inner + "}", true
		}
		return "", false
	})
}

// editorVariables is Cursor's and VS Code's.
func editorVariables(c *carry, text string) string {
	return c.replace(braced, text, func(inner string, _ bool) (string, bool) {
		kind, what, _ := strings.Cut(inner, ":")
		switch kind {
		case "env":
			if variableName.MatchString(what) {
				return c.variable(what, ""), true
			}
		case "input":
			return c.input(what), true
		case "userHome":
			return literal(c.place.Home), true
		case "pathSeparator", "/":
			return string(filepath.Separator), true
		case "workspaceFolder", "workspaceFolderBasename":
			if c.project == "" {
				c.leave(Unsupported, "${%s} is the folder that is open in %s, and in Nightporter there is none; write the path", inner, c.client.Name)
				return "", true
			}
			if kind == "workspaceFolderBasename" {
				return literal(filepath.Base(c.project)), true
			}
			return literal(c.project), true
		case "command", "config", "file", "fileBasename", "fileDirname", "relativeFile", "cwd", "execPath", "selectedText", "lineNumber":
			c.leave(Unsupported, "${%s} has a meaning in %s alone; write what it stands for", inner, c.client.Name)
			return "", true
		}
		return "", false
	})
}

// input is something that the client asks its user for, and keeps where nobody else can read it.
type input struct {
	description string
	otherwise   string // its default
}

// input refers to a variable in place of an input.
func (c *carry) input(id string) string {
	name := strings.ToUpper(notInNames.ReplaceAllString(id, "_"))
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		name = "INPUT_" + name
	}
	asked, known := c.inputs[id]
	what := ""
	if known && asked.description != "" {
		what = fmt.Sprintf(" (%s)", oneLine(asked.description))
	}
	c.note("%s asks for the input %s%s and keeps it to itself; Nightporter reads the variable %s", c.client.Name, oneLine(id), what, name)
	if asked.otherwise != "" && !strings.Contains(asked.otherwise, "}") {
		return c.variable(name, ":-"+asked.otherwise)
	}
	return c.variable(name, "")
}

// oneLine is a client's text that cannot break a line or act on a terminal.
func oneLine(text string) string {
	const most = 80
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f }), " ")
	if r := []rune(text); len(r) > most {
		text = string(r[:most]) + "…"
	}
	return text
}
