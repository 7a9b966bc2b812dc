package config

import (
	"slices"
	"strings"
	"testing"
)

// check holds what is true of every file that is read.
func check(t *testing.T, c *Config) {
	t.Helper()
	if !slices.IsSortedFunc(c.Servers, func(a, b Server) int { return strings.Compare(a.Name, b.Name) }) {
		t.Errorf("servers are not sorted: %q", c.ServerNames())
	}
	for i := range c.Servers {
		s := &c.Servers[i]
		if found, ok := c.Server(s.Name); !ok || found != s {
			t.Errorf("server %q is not found", s.Name)
		}
		if s.Problem == nil && (s.Transport == "" || CheckName(s.Name) != nil || s.StartTimeout <= 0 || s.ToolTimeout <= 0 ||
			s.Transport == Stdio && s.Command.IsZero() || s.Transport != Stdio && s.URL.IsZero()) {
			t.Errorf("server %q has no problem: %+v", s.Name, s)
		}
	}
	for _, p := range slices.Concat(c.Problems, c.Warnings) {
		if p.Pos.Line < 1 || p.Pos.Column < 1 || p.Message == "" {
			t.Errorf("a problem without a place or message: %+v", p)
		}
		if strings.ContainsAny(p.Error(), "\n\r\x1b") {
			t.Errorf("a problem that breaks a line: %q", p.Error())
		}
	}
}

func FuzzLoadTOML(f *testing.F) {
	f.Add([]byte(codexConfig))
	for text := range badEntries {
		f.Add([]byte("[mcp_servers.bad]\n" + text))
	}
	for _, field := range goodFields {
		f.Add([]byte("[mcp_servers.s]\ncommand = \"x\"\n" + field.toml))
	}
	f.Add([]byte("[[a.b]]\nc = 1\n[[a.b]]\n[a.b.d]\n[gateway]\nlisten = \"x:1\"\n[grants.g]\ntools.a = [\"*\"]\n[agents.a]\nexec = [\"x\"]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("c.toml", data)
		if err == nil {
			check(t, c)
		}
	})
}

func FuzzLoadJSON(f *testing.F) {
	f.Add([]byte(`{"mcpServers": {"a": {"command": "x", "args": ["${A:-b}"], "args": null}}, "x": [1.5e3, true]}`))
	for _, field := range goodFields {
		f.Add([]byte(`{"mcpServers": {"s": {"command": "x", ` + field.json + "}}}"))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("c.json", data)
		if err == nil {
			check(t, c)
		}
	})
}

// FuzzABadEntryTakesNoOtherWithIt puts an arbitrary value and key into one entry, between two good ones.
func FuzzABadEntryTakesNoOtherWithIt(f *testing.F) {
	for text := range badEntries {
		if key, value, ok := strings.Cut(text, " = "); ok && !strings.Contains(text, "\n") {
			f.Add("bad", key, value)
		}
	}
	f.Fuzz(func(t *testing.T, name, key, value string) {
		if name == "a" || name == "z" {
			return
		}
		for file, text := range map[string]string{
			"c.toml": "mcp_servers.a.command = \"first\"\nmcp_servers." + quote(name) + " = { " + quote(key) + " = " + value + " }\nmcp_servers.z.command = \"last\"\n",
			"c.json": `{"mcpServers": {"a": {"command": "first"}, ` + quote(name) + ": {" + quote(key) + ": " + value + `}, "z": {"command": "last"}}}`,
		} {
			c, err := Parse(file, []byte(text))
			if err != nil || len(c.Servers) != 3 {
				continue // the value broke out of its place, or is none
			}
			check(t, c)
			for name, command := range map[string]string{"a": "first", "z": "last"} {
				if s, ok := c.Server(name); !ok || s.Problem != nil || s.Command.Text() != command {
					t.Errorf("%s in %s is %+v", name, text, s)
				}
			}
		}
	})
}

func FuzzValue(f *testing.F) {
	for _, seed := range []string{"${env:A}", "a${B:-c}d", "$${env:X}", "${cmd:x y}", "${keyring:a/b}", "${file:", "${${}}"} {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	f.Fuzz(func(t *testing.T, text string, json bool) {
		v, _, err := parseValue(text, json, "")
		if err != nil {
			return
		}
		if !strings.Contains(text, "$${") && v.Text() != text {
			t.Errorf("%q reads as %q", text, v.Text())
		}
		if v.IsLiteral() && !v.IsZero() && v.String() != "***" {
			t.Errorf("%q shows as %q", text, v.String())
		}
	})
}

func FuzzMaskLineKeepsNoQuotedText(f *testing.F) {
	f.Add(`a = "`, "x")
	f.Fuzz(func(t *testing.T, before, after string) {
		const value = "sk-0123456789abcdef"
		if strings.ContainsAny(before, "\"'[\n") || strings.ContainsAny(after, "\"'\n=:") {
			return
		}
		for _, line := range []string{before + ` = "` + value + `" ` + after, before + " = " + value + " " + after, before + " = '" + value + after} {
			if got := maskLine(line, true); strings.Contains(got, value) {
				t.Errorf("%q shows %q", line, got)
			}
		}
	})
}
