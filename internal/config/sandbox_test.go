package config

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"
)

func TestWhatAServersSandboxComesTo(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the paths of this test are of a Unix host")
	}
	const root = `{"path":{"type":"special","value":{"kind":"root"}},"access":"read"}`
	for _, c := range []struct {
		sandbox Sandbox
		want    []string // parts of the state; one with ! in front must not be there
		text    string
	}{
		{Sandbox{Mode: "read-only"}, []string{root, `"network":"restricted"`, `!write`}, "read-only, no network"},
		{Sandbox{Mode: "workspace-write"}, []string{root, `{"path":{"type":"path","path":"/w"},"access":"write"}`, `slash_tmp`, `/w/.git`}, "workspace-write, no network"},
		{Sandbox{Mode: "table"}, []string{root, `restricted`, `!write`}, "reads everything, no network"},
		{
			Sandbox{Mode: "table", Writable: []string{"data", "/var/x/"}, Network: true},
			[]string{root, `"path":"/w/data"},"access":"write"`, `"path":"/var/x"},"access":"write"`, `"network":"enabled"`, `!slash_tmp`},
			"reads everything, writes data /var/x/, network",
		},
		{
			Sandbox{Mode: "table", Readable: []string{"."}},
			[]string{`!"root"`, `"minimal"`, `"path":"/w"},"access":"read"`},
			"reads system folders ., no network",
		},
		{Sandbox{Mode: "table", Readable: []string{}}, []string{`!"root"`, `"minimal"`}, "reads system folders, no network"},
		{Sandbox{Profile: json.RawMessage(`{"type":"disabled"}`)}, []string{`"permissionProfile":{"type":"disabled"}`}, "permission profile"},
	} {
		state, err := c.sandbox.State("/w")
		if err != nil {
			t.Errorf("%+v: %v", c.sandbox, err)
			continue
		}
		for _, want := range c.want {
			part, absent := strings.CutPrefix(want, "!")
			if strings.Contains(string(state.JSON()), part) == absent {
				t.Errorf("%+v: %s, and %s", c.sandbox, state.JSON(), want)
			}
		}
		if got := c.sandbox.String(); got != c.text {
			t.Errorf("%+v is told as %q, want %q", c.sandbox, got, c.text)
		}
	}
	for _, bad := range []Sandbox{{}, {Mode: "x"}, {Profile: json.RawMessage(`{"type":"x"}`)}} {
		if state, err := bad.State("/w"); err == nil {
			t.Errorf("%+v comes to %s", bad, state.JSON())
		}
	}
}
