package authority

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"nightporter/internal/config"
	"nightporter/internal/sandbox"
)

// codexState is a state of Codex 0.171.0 with this permission profile (facts/codex-runtime.md, section 6).
func codexState(profile string) string {
	return `{"permissionProfile":` + profile + `,"codexLinuxSandboxExe":"/opt/codex","sandboxCwd":"file:///w","useLegacyLandlock":false,"useMxc":false}`
}

const (
	codexReadOnly = `{"type":"managed","file_system":{"type":"restricted","entries":[{"path":{"type":"special","value":{"kind":"root"}},"access":"read"}]},"network":"restricted"}`
	codexWrite    = `{"type":"managed","file_system":{"type":"restricted","entries":[{"path":{"type":"special","value":{"kind":"root"}},"access":"read"},` +
		`{"path":{"type":"path","path":"/w"},"access":"write"},{"path":{"type":"special","value":{"kind":"slash_tmp"}},"access":"write"},{"path":{"type":"special","value":{"kind":"tmpdir"}},"access":"write"},` +
		`{"path":{"type":"path","path":"/w/.git"},"access":"read","missing_path_behavior":"skip"},{"path":{"type":"path","path":"/w/.agents"},"access":"read","missing_path_behavior":"skip"},` +
		`{"path":{"type":"path","path":"/w/.codex"},"access":"read","missing_path_behavior":"skip"},{"path":{"type":"path","path":"/w/.aws"},"access":"read","missing_path_behavior":"skip"}]},"network":"restricted"}`
)

func TestClientsStateIsHeldAgainstTheOperatorsPolicy(t *testing.T) {
	readOnly, write := &config.Sandbox{Mode: "read-only"}, &config.Sandbox{Mode: "workspace-write"}
	networked := strings.Replace(codexWrite, `"network":"restricted"`, `"network":"enabled"`, 1)
	for _, c := range []struct {
		name    string
		profile string
		policy  *config.Sandbox
		refused string // a part of the reason
	}{
		{"read-only under the same", codexReadOnly, readOnly, ""},
		{"read-only under workspace-write", codexReadOnly, write, ""},
		{"workspace-write under the same", codexWrite, write, ""},
		{"workspace-write under read-only", codexWrite, readOnly, "opens"},
		{"full access under read-only", `{"type":"disabled"}`, readOnly, `"disabled"`},
		{"full access under workspace-write", `{"type":"disabled"}`, write, `"disabled"`},
		{"external under read-only", `{"type":"external","network":"restricted"}`, readOnly, `"external"`},
		{"the network under workspace-write", networked, write, "network"},
		{"the whole file system", `{"type":"managed","file_system":{"type":"unrestricted"},"network":"restricted"}`, write, "whole file system"},
		{"another folder", strings.ReplaceAll(codexWrite, `"/w`, `"/v`), write, "/v"},
		{"a folder inside, which may be a link", strings.Replace(codexWrite, `"path":"/w"}`, `"path":"/w/sub"}`, 1), write, "/w/sub"},
		{"without what protects .git", strings.Replace(codexWrite, "/w/.git", "/w/other", 1), write, "/w/.git"},
		{"a pattern", strings.Replace(codexReadOnly, `"entries":[`, `"entries":[{"path":{"type":"glob_pattern","pattern":"/**"},"access":"none"},`, 1), write, "glob"},
		{"a profile of the future", `{"type":"quantum"}`, write, "quantum"},
		{"full access under a policy of full access", `{"type":"disabled"}`, &config.Sandbox{Profile: json.RawMessage(`{"type":"disabled"}`)}, ""},
		{"no profile under a policy of full access", `7`, &config.Sandbox{Profile: json.RawMessage(`{"type":"disabled"}`)}, ""},
	} {
		policy, err := Policy(c.policy, "/w")
		if err != nil {
			t.Fatal(err)
		}
		err = Within(codexState(c.profile), policy)
		if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s: %v, want %q", c.name, err, c.refused)
		}
	}
	if err := Within(codexState(codexReadOnly), strings.Replace(codexState(codexReadOnly), `"useLegacyLandlock":false`, `"useLegacyLandlock":true`, 1)); err != nil {
		t.Errorf("the newer mechanism: %v", err)
	}
	if err := Within(strings.Replace(codexState(codexReadOnly), `"useLegacyLandlock":false`, `"useLegacyLandlock":true`, 1), codexState(codexReadOnly)); err == nil {
		t.Error("the older mechanism passes")
	}
}

func TestPolicyThatIsNoneRefuses(t *testing.T) {
	for _, p := range []*config.Sandbox{{}, {Profile: json.RawMessage(`{"type":"manged"}`)}, {Profile: json.RawMessage(`{}`)}} {
		if state, err := Policy(p, "/w"); err == nil {
			t.Errorf("%+v makes %s", p, state)
		}
	}
}

func TestOfTwoPoliciesTheNarrowerHolds(t *testing.T) {
	readOnly, write := &config.Sandbox{Mode: "read-only"}, &config.Sandbox{Mode: "workspace-write"}
	full := &config.Sandbox{Profile: json.RawMessage(`{"type":"disabled"}`)}
	outside, broken := &config.Sandbox{Profile: json.RawMessage(`{"type":"external","network":"enabled"}`)}, &config.Sandbox{Mode: "x"}
	for _, c := range []struct{ a, b, want *config.Sandbox }{
		{nil, nil, nil},
		{nil, write, write},
		{readOnly, write, readOnly},
		{full, write, write},
		{full, readOnly, readOnly},
		{broken, readOnly, broken},
	} {
		for _, got := range []*config.Sandbox{Narrower(c.a, c.b), Narrower(c.b, c.a)} {
			if got != c.want {
				t.Errorf("of %+v and %+v it is %+v", c.a, c.b, got)
			}
		}
	}
	if _, err := Policy(Narrower(outside, readOnly), "/w"); err == nil {
		t.Error("of two that cannot be compared one holds")
	}
}

// files are paths that a state is asked about; tmpdirs what TMPDIR may be.
var (
	files   = []string{"/", "/x", "/tmp", "/tmp/a", "/w", "/w/.git", "/w/.git/c", "/w/s", "/w/s/t", "/w/s/t/u"}
	tmpdirs = []string{"", "/tmp", "/tmp/a", "/w", "/w/s", "/x"}
)

// at is what a state gives at a file: of the entries that cover it the longest decides, of equally long ones none, write, read.
func at(s sandbox.State, file, tmpdir string, missing map[string]bool) int {
	best, length := sandbox.Access(""), -1
	order := []sandbox.Access{sandbox.None, sandbox.Write, sandbox.Read}
	for _, e := range s.Profile.Files.Entries {
		path := e.Place.Path
		switch e.Place.Kind {
		case sandbox.Root:
			path = "/"
		case sandbox.SlashTmp:
			path = "/tmp"
		case sandbox.TmpDir:
			path = tmpdir
		case sandbox.Minimal: // wherever that is
			path = "/x"
		case sandbox.ProjectRoots:
			path = strings.TrimSuffix(s.Cwd+"/"+path, "/")
		}
		covers := path != "" && (path == "/" || file == path || strings.HasPrefix(file, path+"/"))
		if !covers || e.SkipMissing && missing[path] {
			continue
		}
		if n := len(strings.TrimSuffix(path, "/")); n > length || n == length && slices.Index(order, e.Access) < slices.Index(order, best) {
			best, length = e.Access, n
		}
	}
	return rank[best]
}

func TestWhatIsWithinAllowsNothingMore(t *testing.T) {
	place := rapid.SampledFrom([]sandbox.Place{
		{Kind: sandbox.Root},
		{Kind: sandbox.TmpDir},
		{Kind: sandbox.SlashTmp},
		{Kind: sandbox.ProjectRoots},
		{Kind: sandbox.ProjectRoots, Path: "s"},
		{Kind: sandbox.AtPath, Path: "/w"},
		{Kind: sandbox.AtPath, Path: "/w/.git"},
		{Kind: sandbox.AtPath, Path: "/w/s/t"},
		{Kind: sandbox.AtPath, Path: "/tmp/a"},
		{Kind: sandbox.AtPath, Path: "/x"},
	})
	entry := rapid.Custom(func(t *rapid.T) sandbox.Entry {
		return sandbox.Entry{
			Place:       place.Draw(t, "place"),
			Access:      rapid.SampledFrom([]sandbox.Access{sandbox.Read, sandbox.Write, sandbox.None}).Draw(t, "access"),
			SkipMissing: rapid.Bool().Draw(t, "skip"),
		}
	})
	entries := rapid.SliceOfNDistinct(entry, 0, 5, func(e sandbox.Entry) sandbox.Place { return e.Place })
	compared := 0
	property := func(t *rapid.T) {
		out := sandbox.State{Cwd: "/w", Profile: sandbox.Profile{Type: sandbox.Managed, Network: sandbox.Restricted, Files: sandbox.FileSystem{Entries: entries.Draw(t, "outer")}}}
		in := out
		// Near one another, or nothing would ever be within.
		in.Profile.Files.Entries = slices.Clone(out.Profile.Files.Entries)
		for range rapid.IntRange(0, 3).Draw(t, "changes") {
			e := entry.Draw(t, "entry")
			i := slices.IndexFunc(in.Profile.Files.Entries, func(o sandbox.Entry) bool { return o.Place == e.Place })
			switch {
			case i < 0:
				in.Profile.Files.Entries = append(in.Profile.Files.Entries, e)
			case rapid.Bool().Draw(t, "remove"):
				in.Profile.Files.Entries = slices.Delete(in.Profile.Files.Entries, i, i+1)
			default:
				in.Profile.Files.Entries[i] = e
			}
		}
		if Within(string(in.JSON()), string(out.JSON())) != nil {
			return
		}
		compared++
		for _, file := range files {
			for _, tmpdir := range tmpdirs {
				missing := map[string]bool{"/w/.git": rapid.Bool().Draw(t, "no .git"), "/w/s/t": rapid.Bool().Draw(t, "no t"), "/tmp/a": rapid.Bool().Draw(t, "no a"), "/w": rapid.Bool().Draw(t, "no w")}
				if at(in, file, tmpdir, missing) > at(out, file, tmpdir, missing) {
					t.Fatalf("with TMPDIR=%s and missing %v, more is allowed at %s by\n%s\nthan by\n%s", tmpdir, missing, file, in.JSON(), out.JSON())
				}
			}
		}
	}
	for range 20 { // few states are near enough to one another
		rapid.Check(t, property)
	}
	if compared == 0 {
		t.Error("nothing was within anything")
	}
}

func FuzzWithinTakesAnyText(f *testing.F) {
	for _, p := range []string{codexReadOnly, codexWrite, `{"type":"disabled"}`, `{"type":"external"}`} {
		f.Add([]byte(codexState(p)), []byte(codexState(codexWrite)))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if Within(string(a), string(a)) != nil {
			t.Error("a state is not within itself")
		}
		err := Within(string(a), string(b))
		if state, parseErr := sandbox.Parse(b); parseErr != nil && err == nil && string(a) != string(b) {
			t.Errorf("within what nobody understands: %s", fmt.Sprint(state))
		}
	})
}
