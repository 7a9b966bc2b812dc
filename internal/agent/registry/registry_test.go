package registry

import (
	"path/filepath"
	"testing"
)

func TestACommandFindsItsAdapter(t *testing.T) {
	for _, test := range []struct {
		argv []string
		want string
	}{
		{[]string{"claude", "-p"}, "claude"},
		{[]string{"/opt/bin/claude", "--print", "--model", "x"}, "claude"},
		{[]string{"codex", "exec"}, "codex"},
		{[]string{"codex", "-m", "x", "e"}, "codex"},
		{[]string{"codex", "mcp"}, "command"},
		{[]string{"claude"}, "command"},
		{[]string{"cat"}, "command"},
		{nil, "command"},
	} {
		if got := For(test.argv).Name(); got != test.want {
			t.Errorf("%q is for %s, want %s", test.argv, got, test.want)
		}
	}
	for _, name := range Names() {
		a, ok := Named(name)
		if !ok || a.Name() != name {
			t.Errorf("%s is listed and not found", name)
		}
		if argv := a.DefaultArgv(); argv != nil && For(argv).Name() != name {
			t.Errorf("the default command %q of %s is not recognised as its own", argv, name)
		}
	}
}

func TestSessionsLiveInTheAgentsHome(t *testing.T) {
	env := []string{"HOME=/home/ann"}
	for _, test := range []struct {
		name string
		env  []string
		want string
	}{
		{"claude", env, filepath.Join("/home/ann", ".claude")},
		{"claude", append(env, "CLAUDE_CONFIG_DIR=/c"), "/c"},
		{"codex", append(env, "CODEX_HOME=/x"), "/x"},
		{"codex", append(env, "CODEX_HOME="), filepath.Join("/home/ann", ".codex")},
		{"command", env, "/home/ann"},
	} {
		if got, err := Home(test.name, test.env); err != nil || got != test.want {
			t.Errorf("home of %s with %q is %s, want %s", test.name, test.env, got, test.want)
		}
	}
}
