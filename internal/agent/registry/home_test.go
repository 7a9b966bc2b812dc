package registry

import (
	"os/user"
	"path/filepath"
	"runtime"
	"testing"
)

func TestAnAgentsHomeIsAbsoluteOrRefused(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("paths of Unix")
	}
	me, err := user.Current()
	if err != nil {
		t.Skip(err)
	}
	for _, c := range []struct {
		name string
		env  []string
		want string // empty: refused
	}{
		{"claude", []string{"HOME=/home/ann"}, "/home/ann/.claude"},
		{"codex", []string{"HOME=/home/ann", "CODEX_HOME=/srv/codex"}, "/srv/codex"},
		{"demo", []string{"HOME=/home/ann"}, "/home/ann"},
		{"claude", nil, filepath.Join(me.HomeDir, ".claude")},
		{"claude", []string{"HOME="}, filepath.Join(me.HomeDir, ".claude")},
		{"codex", []string{"HOME=ann"}, ""},
		{"codex", []string{"HOME=/home/ann", "CODEX_HOME=codex"}, ""},
	} {
		got, err := Home(c.name, c.env)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s with %q: %q, %v, want %q", c.name, c.env, got, err, c.want)
		}
	}
}
