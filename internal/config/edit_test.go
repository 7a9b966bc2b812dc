package config

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// edits has what is made of a text by one edit. Where want begins with "error: " the edit is refused.
var edits = []struct {
	name string
	do   func([]byte) ([]byte, error)
	text string
	want string
}{
	{
		"enabled is replaced where it stands", disable("a"),
		"# first\n[mcp_servers.a] # the a\ncommand = \"x\"\nenabled  =  true   # on\nargs = [\n  1, # one\n]\n",
		"# first\n[mcp_servers.a] # the a\ncommand = \"x\"\nenabled  =  false   # on\nargs = [\n  1, # one\n]\n",
	},
	{
		"enabled is added after the last key of the table, indented as it is", disable("a"),
		"[mcp_servers.a]\n  command = \"x\"\n  args = [\n    \"[b]\",\n  ] # end\n\n  # about env\n  [mcp_servers.a.env]\n  K = \"v\"\n",
		"[mcp_servers.a]\n  command = \"x\"\n  args = [\n    \"[b]\",\n  ] # end\n  enabled = false\n\n  # about env\n  [mcp_servers.a.env]\n  K = \"v\"\n",
	},
	{"Windows lines stay", disable("a"), "[mcp_servers.a]\r\ncommand = \"x\"\r\n", "[mcp_servers.a]\r\ncommand = \"x\"\r\nenabled = false\r\n"},
	{"a byte order mark stays", disable("a"), "\xef\xbb\xbf[mcp_servers.a]\nurl = \"https://h\"", "\xef\xbb\xbf[mcp_servers.a]\nurl = \"https://h\"\nenabled = false"},
	{"a missing last newline stays missing", disable("a"), "[mcp_servers.a]\ncommand = \"\"\"\nx\"\"\" # c", "[mcp_servers.a]\ncommand = \"\"\"\nx\"\"\" # c\nenabled = false"},
	{"a table without keys", disable("a"), "[mcp_servers.a]", "[mcp_servers.a]\nenabled = false"},
	{"a quoted name", disable("a.b"), "[ mcp_servers . \"a.b\" ]\ncommand = 'x'\n[mcp_servers.a]\n", "[ mcp_servers . \"a.b\" ]\ncommand = 'x'\nenabled = false\n[mcp_servers.a]\n"},
	{"a name with an escape", disable("aé"), "[mcp_servers.\"a\\u00e9\"]\ncommand = 'x'\n", "[mcp_servers.\"a\\u00e9\"]\ncommand = 'x'\nenabled = false\n"},
	{"an inline table", disable("a"), "[mcp_servers]\na = { command = \"x\" } # c\nb = {}\n", "[mcp_servers]\na = { command = \"x\", enabled = false } # c\nb = {}\n"},
	{"an empty inline table", disable("b"), "mcp_servers.b = {}\n", "mcp_servers.b = { enabled = false }\n"},
	{"an inline table of several lines", disable("a"), "mcp_servers.a = {\n  command = \"x\", # }\n}\n", "mcp_servers.a = {\n  command = \"x\", enabled = false, # }\n}\n"},
	{"a table in an inline table", disable("a"), "mcp_servers = { a = { command = \"}\" }, b = {} }\n", "mcp_servers = { a = { command = \"}\", enabled = false }, b = {} }\n"},
	{"dotted keys in an inline table", disable("a"), "mcp_servers = { a.command = \"x\", b.command = \"y\" }\n", "mcp_servers = { a.command = \"x\", a.enabled = false, b.command = \"y\" }\n"},
	{"a value in an inline table", disable("a"), "mcp_servers.a = {enabled=true,command=\"x\"}\n", "mcp_servers.a = {enabled=false,command=\"x\"}\n"},
	{"dotted keys", disable("a"), "  mcp_servers . 'a'.command = \"x\"\nz = 1\n", "  mcp_servers . 'a'.command = \"x\"\n  mcp_servers . 'a'.enabled = false\nz = 1\n"},
	{"dotted keys below a table", disable("a"), "[mcp_servers]\na.command = \"x\"\na.env.K = \"v\"\nb.command = \"y\"\n", "[mcp_servers]\na.command = \"x\"\na.env.K = \"v\"\na.enabled = false\nb.command = \"y\"\n"},
	{"a value of the wrong kind is replaced", enable("a"), "[mcp_servers.a]\nenabled = [\n 1]\n", "[mcp_servers.a]\nenabled = true\n"},
	{"what is so already stays", disable("a"), "[mcp_servers.a]\nenabled=false", "[mcp_servers.a]\nenabled=false"},
	{"what is not said is enabled already", enable("a"), "[mcp_servers.a]\ncommand = \"x\"", "[mcp_servers.a]\ncommand = \"x\""},
	{"enabling", enable("a"), "[mcp_servers.a]\nenabled = false # for now\n", "[mcp_servers.a]\nenabled = true # for now\n"},
	{"no table to write into", disable("a"), "\n[mcp_servers.a.env]\nK = \"v\"\n", `error: c.toml:2:14: mcp_servers.a: there is no table [mcp_servers.a] to write into; write it by hand: enabled = false`},
	{"an entry that is no table", disable("a"), "mcp_servers.a = 3\n", `error: c.toml:1:13: mcp_servers.a: it is a number and no table; write [mcp_servers.a]`},
	{"enabled as a table", disable("a"), "[mcp_servers.a.enabled]\nx = 1\n", `error: c.toml:1:16: mcp_servers.a.enabled: it is a table and takes true or false; write enabled = false`},
	{"an array of tables", disable("a"), "[[mcp_servers.a]]\n", `error: c.toml:1:15: mcp_servers.a: it is an array and no table; write [mcp_servers.a]`},
	{"a missing name", disable("crn"), "[mcp_servers.crm]\n[mcp_servers.b]\n", `error: c.toml: there is no server "crn"; did you mean crm? the servers are b, crm`},
	{"a missing name where there are none", remove("a"), "x = 1\n", `error: c.toml: there is no server "a"; it defines no servers`},
	{"a file that cannot be parsed", remove("a"), "x = \n", "error: c.toml:1:5: cannot be parsed as TOML: unexpected character U+000A at start of value\n\tx ="},
	{"JSON", remove("a"), `{"mcpServers": {"a": {}}}`, "error: c.toml: it is JSON, which is not edited; edit it by hand, or keep the server in config.toml"},

	{
		"a section goes with its subtables, comments around it stay", remove("a"),
		"# head\n[mcp_servers.a]\n# inside\ncommand = \"x\" # why\n\n[mcp_servers.a.env]\nK = '''\n[mcp_servers.b]\n'''\n# after\n\n[mcp_servers.b]\ncommand = \"y\"\n",
		"# head\n# after\n\n[mcp_servers.b]\ncommand = \"y\"\n",
	},
	{"of two blank lines one goes", remove("a"), "[x]\na = 1\n\n[mcp_servers.a]\nurl = \"u\"\n\n[y]\n", "[x]\na = 1\n\n[y]\n"},
	{"the last section goes with the blank line before it", remove("a"), "[x]\r\n\r\n[mcp_servers.a]\r\nurl = \"u\"", "[x]\r\n"},
	{"the first section goes with the blank line after it", remove("a"), "[mcp_servers.a]\n\n[y]\n", "[y]\n"},
	{"parts that stand apart", remove("a"), "mcp_servers.a.command = \"x\"\nz = 1\n[mcp_servers.b]\n[mcp_servers.a.env]\nK = \"v\"\n[q]\n", "z = 1\n[mcp_servers.b]\n[q]\n"},
	{"an entry of an inline table", remove("b"), "mcp_servers = { a = {}, b = {}, c = {} }\n", "mcp_servers = { a = {}, c = {} }\n"},
	{"the last entry of an inline table", remove("c"), "mcp_servers = { a = {}, c.x = 1, c.y = 2 }\n", "mcp_servers = { a = {} }\n"},
	{"the only entry of an inline table", remove("c"), "mcp_servers = { c.x = 1, c.y = 2 }\n", "mcp_servers = {  }\n"},
	{"an inline table of several lines is left alone", remove("a"), "mcp_servers = {\n a = {}, # x\n}\n", `error: c.toml:2:2: mcp_servers.a: it stands in an inline table of several lines, from which nothing is removed; remove it by hand`},
	{"an entry of any kind", remove("a"), "[mcp_servers]\na = 3\nb = 4\n", "[mcp_servers]\nb = 4\n"},
	{"all tables of an array", remove("a"), "[[mcp_servers.a]]\nx = 1\n[q]\n[[mcp_servers.a]]\nx = 2\n", "[q]\n"},

	{"a first server", add(NewServer{Name: "a", Command: "x"}, false), "", "[mcp_servers.a]\ncommand = \"x\"\n"},
	{
		"everything that a stdio server has",
		add(NewServer{
			Name: "a b", Command: `C:\x.exe`, Args: []string{"-y", "\"\u202e\x01\n"}, Env: [][2]string{{"B", "${env:B}"}, {"A.C", ""}},
			EnvVars: []string{"P", "Q"}, Cwd: "/srv", Required: true,
		}, false),
		"# c",
		"# c\n\n[mcp_servers.\"a b\"]\ncommand = \"C:\\\\x.exe\"\nargs = [\"-y\", \"\\\"\u202e\\u0001\\n\"]\ncwd = \"/srv\"\nenv_vars = [\"P\", \"Q\"]\nrequired = true\n\n[mcp_servers.\"a b\".env]\nB = \"${env:B}\"\n\"A.C\" = \"\"\n",
	},
	{
		"everything that an HTTP server has",
		add(NewServer{Name: "a", URL: "https://h/?x", Headers: [][2]string{{"X-A", "b"}}, BearerTokenEnvVar: "T"}, false),
		"x = 1\r\n\r\n",
		"x = 1\r\n\r\n[mcp_servers.a]\r\nurl = \"https://h/?x\"\r\nbearer_token_env_var = \"T\"\r\n\r\n[mcp_servers.a.http_headers]\r\nX-A = \"b\"\r\n",
	},
	{"beside dotted keys", add(NewServer{Name: "b", Command: "x"}, false), "mcp_servers.a.command = \"x\"\n", "mcp_servers.a.command = \"x\"\n\n[mcp_servers.b]\ncommand = \"x\"\n"},
	{"a name that is there", add(NewServer{Name: "a", Command: "y"}, false), "[mcp_servers.a]\n", `error: c.toml:1:14: mcp_servers.a: it exists already; give --replace to write it anew, or take another name`},
	{
		"replaced where it stands", add(NewServer{Name: "a", Command: "y"}, true),
		"[mcp_servers.a]\n# old\ncommand = \"x\"\n\n# z\n[z]\n\n[mcp_servers.a.env]\nK = \"v\"\n",
		"[mcp_servers.a]\ncommand = \"y\"\n\n# z\n[z]\n",
	},
	{"replaced at the end", add(NewServer{Name: "a", Command: "y"}, true), "mcp_servers.a.command = \"x\"\nz = 1\n", "z = 1\n\n[mcp_servers.a]\ncommand = \"y\"\n"},
	{"replaced where it was the end", add(NewServer{Name: "a", Command: "y"}, true), "z = 1\n[mcp_servers]\na = 1", "z = 1\n[mcp_servers]\n\n[mcp_servers.a]\ncommand = \"y\"\n"},
	{"replace where there is none", add(NewServer{Name: "a", Command: "y"}, true), "", "[mcp_servers.a]\ncommand = \"y\"\n"},
	{"the reserved name", add(NewServer{Name: "nightporter", Command: "y"}, false), "", `error: the name nightporter is reserved: it is the name under which agents see the gateway; give it another name`},
	{"a bad name", add(NewServer{Name: "a\n", Command: "y"}, false), "", `error: the name begins or ends with a space; give it another name`},
	{"what would not be used", add(NewServer{Name: "a", URL: "h/p"}, false), "", `error: mcp_servers.a.url: it does not begin with http:// or https://`},
	{"servers in an inline table", add(NewServer{Name: "b", Command: "x"}, false), "\nmcp_servers = { a = {} }\n", `error: c.toml:2:1: mcp_servers.b: mcp_servers is an inline table, which nothing can be added to from outside; write its entries as [mcp_servers.NAME] tables`},
	{"servers that are no table", add(NewServer{Name: "b", Command: "x"}, false), "mcp_servers = 1\n", `error: c.toml:1:1: mcp_servers: it is a number and takes a table of named entries; write [mcp_servers.NAME]`},
}

func disable(name string) func([]byte) ([]byte, error) {
	return func(data []byte) ([]byte, error) { return EnableServer("c.toml", data, name, false) }
}

func enable(name string) func([]byte) ([]byte, error) {
	return func(data []byte) ([]byte, error) { return EnableServer("c.toml", data, name, true) }
}

func remove(name string) func([]byte) ([]byte, error) {
	return func(data []byte) ([]byte, error) { return RemoveServer("c.toml", data, name) }
}

func add(s NewServer, replace bool) func([]byte) ([]byte, error) {
	return func(data []byte) ([]byte, error) { return AddServer("c.toml", data, s, replace) }
}

func TestAnEditChangesOneEntryAndKeepsEveryOtherByte(t *testing.T) {
	for _, c := range edits {
		t.Run(c.name, func(t *testing.T) {
			before := strings.Clone(c.text)
			got, err := c.do([]byte(c.text))
			if c.text != before {
				t.Error("the text that was given has changed")
			}
			if err != nil {
				got = []byte("error: " + err.Error())
			}
			if string(got) != c.want {
				t.Errorf("got\n%q\nwant\n%q", got, c.want)
			}
		})
	}
}

func TestWhatIsAddedIsReadAsItWasGiven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(0, 12, -1)
		name := text.Filter(func(s string) bool { return CheckName(s) == nil }).Draw(t, "name")
		command := rapid.StringMatching(`[^$\x00]{1,12}`).Draw(t, "command")
		args := rapid.SliceOf(rapid.StringMatching(`[^$\x00]{0,12}`)).Draw(t, "args")
		value := rapid.StringMatching(`[^$\x00]{0,12}`).Draw(t, "value")
		out, err := AddServer("c.toml", []byte("# mine\n"), NewServer{Name: name, Command: command, Args: args, Env: [][2]string{{"K é", value}}}, false)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Parse("c.toml", out)
		if err != nil {
			t.Fatal(err)
		}
		s, ok := c.Server(name)
		if !ok || !s.Usable() || s.Command.Text() != command || s.Env["K é"].Text() != value ||
			!slices.EqualFunc(s.Args, args, func(v Value, text string) bool { return v.Text() == text }) {
			t.Errorf("%q is read as %+v", out, textual(*s))
		}
		// And what was added can be removed again.
		back, err := RemoveServer("c.toml", out, name)
		if err != nil || string(back) != "# mine\n" {
			t.Errorf("removed: %q, %v", back, err)
		}
	})
}

// line is one line, or several that belong together, of a generated file, and whose they are.
type line struct {
	text  string
	owner string // a server's name; empty: nobody's
}

// drawFile makes a file of servers in every form, with comments and other tables between them.
func drawFile(t *rapid.T) []line {
	names := []string{"a", "b", "c.d", "e f", "é"}
	unique := 0
	comment := func(indent string) string {
		unique++
		return fmt.Sprintf("%s# comment %d [mcp_servers.a] \"", indent, unique)
	}
	value := rapid.SampledFrom([]string{`"x"`, `'x # y'`, "[\n  \"a]\", # c\n\n  'b',\n]", "\"\"\"\n[mcp_servers.a]\nenabled = true\n\"\"\"", "1_000", "{ x = { y = [1, 2] }, \"z\" = '}' }", "1979-05-27 07:32:00"})
	key := rapid.SampledFrom([]string{"command", "args", "cwd", `"quo.ted"`, "env", "startup_timeout_sec"})
	space := rapid.SampledFrom([]string{"", " ", "\t"})
	var lines []line
	noise := func(owner string) {
		switch rapid.IntRange(0, 5).Draw(t, "noise") {
		case 0:
			lines = append(lines, line{comment(space.Draw(t, "indent")), owner})
		case 1:
			lines = append(lines, line{"", owner})
		}
	}
	pairs := func(prefix, owner string) {
		keys := rapid.SliceOfNDistinct(key, 0, 3, rapid.ID).Draw(t, "keys")
		if rapid.Bool().Draw(t, "says enabled") {
			keys = append(keys, "enabled")
		}
		for i, k := range keys {
			v := value.Draw(t, "value")
			if k == "enabled" {
				v = rapid.SampledFrom([]string{"true", "false"}).Draw(t, "enabled")
			}
			end := ""
			if rapid.Bool().Draw(t, "trailing") {
				end = space.Draw(t, "gap") + comment(" ")
			}
			lines = append(lines, line{space.Draw(t, "indent") + prefix + k + space.Draw(t, "gap") + "=" + space.Draw(t, "gap") + v + end, owner})
			if i+1 < len(keys) {
				noise(owner) // between two lines of an entry
			}
		}
	}
	// Root keys come first.
	noise("")
	if rapid.Bool().Draw(t, "root") {
		lines = append(lines, line{"model = \"mcp_servers\"", ""})
	}
	forms := map[string]int{}
	for _, name := range names {
		forms[name] = rapid.IntRange(0, 5).Draw(t, "form of "+name)
	}
	for _, name := range names {
		if forms[name] == 1 {
			lines = append(lines, line{"mcp_servers." + tomlKey(name) + ".command = \"root\"", name})
			pairs("mcp_servers."+tomlKey(name)+".sub.", name)
			noise("")
		}
	}
	inTable := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return forms[n] != 2 && forms[n] != 3 })
	hasDotted := slices.ContainsFunc(names, func(n string) bool { return forms[n] == 1 })
	if len(inTable) > 0 && !hasDotted {
		lines = append(lines, line{"[mcp_servers]" + space.Draw(t, "end"), ""})
		for _, name := range inTable {
			if forms[name] == 2 {
				inner := rapid.SampledFrom([]string{"", "command = \"}\"", "enabled = true, command = 'x'", "command = \"x\", enabled = false"}).Draw(t, "inline")
				lines = append(lines, line{tomlKey(name) + " = {" + inner + "} " + comment(""), name})
			} else {
				lines = append(lines, line{tomlKey(name) + " . command = 'y'", name})
				pairs(tomlKey(name)+".sub.", name)
			}
			noise("")
		}
	}
	for _, name := range rapid.Permutation(names).Draw(t, "order") {
		noise("")
		switch forms[name] {
		case 4, 5:
			lines = append(lines, line{space.Draw(t, "indent") + "[mcp_servers." + space.Draw(t, "gap") + tomlKey(name) + "]" + comment(" "), name})
			pairs("", name)
			if forms[name] == 5 {
				lines = append(lines, line{"[mcp_servers." + tomlKey(name) + ".env]", name})
				pairs("", name)
			}
		}
		noise("")
		if rapid.Bool().Draw(t, "other table") {
			unique++
			lines = append(lines, line{fmt.Sprintf("[other.t%d]", unique), ""}, line{"mcp_servers = { a = 1 }", ""})
			noise("")
		}
	}
	return lines
}

func textOf(lines []line, newline string, last bool) string {
	var b strings.Builder
	for i, l := range lines {
		b.WriteString(strings.ReplaceAll(l.text, "\n", newline))
		if i+1 < len(lines) || last {
			b.WriteString(newline)
		}
	}
	return b.String()
}

func withoutBlanks(text string) []string {
	return slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool { return strings.TrimSpace(l) == "" })
}

func TestAnyEditOfAnyFileKeepsWhatIsNotTheEntrys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lines := drawFile(t)
		newline := rapid.SampledFrom([]string{"\n", "\r\n"}).Draw(t, "newline")
		text := textOf(lines, newline, rapid.Bool().Draw(t, "last newline"))
		before, err := Parse("c.toml", []byte(text))
		if err != nil {
			t.Skip("the generator made no valid TOML")
		}
		names := before.ServerNames()
		if len(names) == 0 {
			t.Skip("no servers")
		}
		name := rapid.SampledFrom(names).Draw(t, "name")

		out, err := RemoveServer("c.toml", []byte(text), name)
		if err != nil {
			t.Fatalf("remove %s of\n%s\n%v", name, text, err)
		}
		others := slices.DeleteFunc(slices.Clone(lines), func(l line) bool { return l.owner == name })
		want := withoutBlanks(textOf(others, newline, true))
		if got := withoutBlanks(string(out)); !slices.Equal(trimmed(got), trimmed(want)) {
			t.Errorf("remove %s of\n%s\ngot\n%q\nwant\n%q", name, text, got, want)
		}

		on := rapid.Bool().Draw(t, "on")
		out, err = EnableServer("c.toml", []byte(text), name, on)
		if err != nil {
			t.Fatalf("enable %s of\n%s\n%v", name, text, err)
		}
		oneChange(t, text, string(out), name, on)
		after, err := Parse("c.toml", out)
		if err != nil {
			t.Fatal(err)
		}
		sameOthers(t, before, after, name)
		entry, _ := after.Server(name)
		if entry == nil || entry.Enabled != on {
			t.Errorf("%s is not enabled = %v in\n%s", name, on, out)
		}

		out, err = AddServer("c.toml", []byte(text), NewServer{Name: "new", Command: "n"}, false)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(out, []byte(text)) {
			t.Errorf("adding changed what was there:\n%s\n%s", text, out)
		}
		out, err = AddServer("c.toml", []byte(text), NewServer{Name: name, Command: "n"}, true)
		if err != nil {
			t.Fatal(err)
		}
		got := trimmed(withoutBlanks(string(out)))
		section := slices.Index(got, `command = "n"`) // no generated line is that
		if section < 1 || got[section-1] != "[mcp_servers."+tomlKey(name)+"]" || !slices.Equal(slices.Delete(got, section-1, section+1), trimmed(want)) {
			t.Errorf("replace %s of\n%s\ngot\n%s", name, text, out)
		}
	})
}

func trimmed(lines []string) []string {
	all := slices.Clone(lines)
	for i := range all {
		all[i] = strings.TrimRight(all[i], "\r")
	}
	return all
}

type tester interface {
	Helper()
	Errorf(format string, args ...any)
}

// oneChange checks that out is text with one thing put in or replaced, and that it is about enabled alone.
func oneChange(t tester, text, out, name string, on bool) {
	t.Helper()
	if text == out {
		return
	}
	start := 0
	for start < min(len(text), len(out)) && text[start] == out[start] {
		start++
	}
	tail := 0
	for tail < min(len(text), len(out))-start && text[len(text)-1-tail] == out[len(out)-1-tail] {
		tail++
	}
	was, is := text[start:len(text)-tail], out[start:len(out)-tail]
	switch {
	case was == "tru" && is == "fals" && !on, was == "fals" && is == "tru" && on: // a value is replaced
	case was == "" && strings.Contains(is, "abled") && !on: // a key is put in, and may begin and end as what is beside it
	default:
		t.Errorf("enabled = %v of %s changed %q to %q in\n%s", on, name, was, is, text)
	}
}

func sameOthers(t tester, before, after *Config, name string) {
	t.Helper()
	view := func(c *Config) map[string]string {
		all := map[string]string{}
		for _, s := range c.Servers {
			if s.Name != name {
				s.Pos = Position{}
				problem := s.Problem != nil
				s.Problem = nil
				all[s.Name] = fmt.Sprint(textual(s), problem)
			}
		}
		return all
	}
	if a, b := fmt.Sprint(view(before)), fmt.Sprint(view(after)); a != b {
		t.Errorf("other servers changed\n%s\n%s", a, b)
	}
}

func FuzzEdit(f *testing.F) {
	for _, c := range edits {
		f.Add([]byte(c.text), "a")
	}
	f.Add([]byte(codexConfig), "playwright")
	f.Fuzz(func(t *testing.T, data []byte, name string) {
		before, err := Parse("c.toml", data)
		if err != nil {
			return
		}
		for _, on := range []bool{true, false} {
			out, err := EnableServer("c.toml", data, name, on)
			if err != nil {
				onlyRefused(t, err)
				continue
			}
			after, err := Parse("c.toml", out)
			if err != nil {
				t.Fatalf("%q became %q: %v", data, out, err)
			}
			sameOthers(t, before, after, name)
			if s, ok := after.Server(name); !ok || s.Enabled != on {
				t.Errorf("%q became %q", data, out)
			}
		}
		if out, err := RemoveServer("c.toml", data, name); err != nil {
			onlyRefused(t, err)
		} else if after, err := Parse("c.toml", out); err != nil {
			t.Fatalf("%q became %q: %v", data, out, err)
		} else if _, ok := after.Server(name); ok {
			t.Errorf("%q became %q", data, out)
		} else {
			sameOthers(t, before, after, name)
		}
		for _, replace := range []bool{false, true} {
			out, err := AddServer("c.toml", data, NewServer{Name: name, Command: "x", Env: [][2]string{{"K", name}}}, replace)
			if err != nil {
				onlyRefused(t, err)
				continue
			}
			after, err := Parse("c.toml", out)
			if err != nil {
				t.Fatalf("%q became %q: %v", data, out, err)
			}
			sameOthers(t, before, after, name)
			if s, ok := after.Server(name); !ok || !s.Usable() {
				t.Errorf("%q became %q", data, out)
			}
			if !replace && !bytes.HasPrefix(out, data) {
				t.Errorf("%q became %q", data, out)
			}
		}
	})
}

// onlyRefused checks that an edit was refused for a reason that a person can mend, and not because its result was wrong.
func onlyRefused(t *testing.T, err error) {
	t.Helper()
	var p *Problem
	if !errors.As(err, &p) || strings.Contains(p.Message, "safely") {
		t.Errorf("%v", err)
	}
}

func TestTheFileThatALinkNamesIsEditedAndStaysAsPrivateAsItWas(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes and links are Unix's")
	}
	dir := t.TempDir()
	lock := filepath.Join(dir, "state", "lock")
	real, link := filepath.Join(dir, "dotfiles.toml"), filepath.Join(dir, "config.toml")
	for before, want := range map[os.FileMode]os.FileMode{0o644: 0o600, 0o600: 0o600, 0o400: 0o400} {
		os.Remove(real)
		os.Remove(link)
		if err := os.WriteFile(real, []byte("[mcp_servers.a]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Chmod(real, before), os.Symlink("dotfiles.toml", link)); err != nil {
			t.Fatal(err)
		}
		changed, err := EditFile(t.Context(), link, lock, disable("a"))
		if err != nil || !changed {
			t.Fatal(changed, err)
		}
		data, err := os.ReadFile(real)
		info, statErr := os.Stat(real)
		linked, linkErr := os.Lstat(link)
		if err := errors.Join(err, statErr, linkErr); err != nil {
			t.Fatal(err)
		}
		if string(data) != "[mcp_servers.a]\nenabled = false\n" || info.Mode().Perm() != want || linked.Mode()&os.ModeSymlink == 0 {
			t.Errorf("%v: %q, %v, %v", before, data, info.Mode(), linked.Mode())
		}
	}
	os.Remove(real)
	if _, err := EditFile(t.Context(), link, lock, add(NewServer{Name: "a", Command: "x"}, false)); err == nil || !strings.Contains(err.Error(), "a link to a file that does not exist") {
		t.Errorf("a link to nothing: %v", err)
	}
}

func TestAFileThatIsNotChangedIsNotWritten(t *testing.T) {
	dir := t.TempDir()
	path, lock := filepath.Join(dir, "none", "config.toml"), filepath.Join(dir, "lock")
	for _, edit := range []func([]byte) ([]byte, error){
		func(data []byte) ([]byte, error) { return data, nil },
		func([]byte) ([]byte, error) { return []byte("x"), errors.New("no") },
	} {
		if changed, _ := EditFile(t.Context(), path, lock, edit); changed {
			t.Error("changed")
		}
		if _, err := os.Stat(filepath.Dir(path)); err == nil {
			t.Error("something was written")
		}
	}
}

func TestWhatAnotherProgramWritesMeanwhileIsNotWrittenOver(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.toml")
	_, err := EditFile(t.Context(), path, filepath.Join(dir, "lock"), func([]byte) ([]byte, error) {
		return []byte("ours"), os.WriteFile(path, []byte("theirs"), 0o600)
	})
	if err == nil || !strings.Contains(err.Error(), "written it meanwhile") {
		t.Errorf("got %v", err)
	}
	if data, _ := os.ReadFile(path); string(data) != "theirs" {
		t.Errorf("the file is %q", data)
	}
}

func TestEditsAtTheSameTimeLoseNothing(t *testing.T) {
	dir := t.TempDir()
	path, lock := filepath.Join(dir, "config.toml"), filepath.Join(dir, "lock")
	const n = 20
	failed := make(chan error, n)
	for i := range n {
		go func() {
			_, err := EditFile(t.Context(), path, lock, add(NewServer{Name: fmt.Sprint("s", i), Command: "x"}, false))
			failed <- err
		}()
	}
	for range n {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	if c, err := Load(path); err != nil || len(c.Servers) != n {
		t.Errorf("%v, %v", c, err)
	}
}
