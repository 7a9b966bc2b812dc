//go:build linux && (amd64 || arm64)

package sandbox

import (
	"slices"
	"strings"
	"testing"
)

func TestLandlockRefusesWhatItCannotEnforce(t *testing.T) {
	names := []string{"/w/a/b/", "/usr/", "/w/.git/"}
	for _, c := range []struct {
		entries []string
		want    string
	}{
		{[]string{"read root"}, ""},
		{[]string{"none root", "read /usr"}, "cannot hide names"},
		{[]string{"write root"}, ""},
		{[]string{"read root", "write /w"}, "cannot keep /w/.agents from being made, because /w may be written"},
		{[]string{"read root", "none /w"}, "cannot close /w, because / may be read"},
		{[]string{"write root", "read /w"}, "cannot keep /w read-only, because / may be written"},
	} {
		p, err := NewPlan(managed(c.entries...), host(names...))
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.openings()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q: %v, want %q", c.entries, err, c.want)
		}
	}
}

func TestAPlanAsBubblewrapArguments(t *testing.T) {
	p, err := NewPlan(managed("read root", "write /w", "none /w/a", "write /w/a/b", "none /w/file", "read /w/.git"),
		host("/w/a/b/", "/w/file", "/w/.git/x", "/w/.aws/x", "/w/.codex/x", "/w/.agents/x", "/w/a/b/.git/x", "/w/a/b/.aws/x", "/w/a/b/.codex/x"))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Fields(`--as-pid-1 --die-with-parent --unshare-user --unshare-pid --unshare-ipc --cap-drop ALL --unshare-net
		--ro-bind / / --dev /dev --proc /proc --remount-ro /proc
		--bind /w /w
		--ro-bind /w/.agents /w/.agents --ro-bind /w/.aws /w/.aws --ro-bind /w/.codex /w/.codex --ro-bind /w/.git /w/.git
		--perms 0111 --tmpfs /w/a
		--ro-bind /dev/null /w/file
		--bind /w/a/b /w/a/b
		--perms 0555 --tmpfs /w/a/b/.agents
		--ro-bind /w/a/b/.aws /w/a/b/.aws --ro-bind /w/a/b/.codex /w/a/b/.codex --ro-bind /w/a/b/.git /w/a/b/.git
		--remount-ro /w/a/b/.agents --remount-ro /w/a`)
	if got := bwrapArgs(p); !slices.Equal(got, want) {
		t.Errorf("%q\nwant\n%q", got, want)
	}
}
