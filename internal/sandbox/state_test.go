package sandbox

import (
	"encoding/json"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

// What Codex 0.171.0 sent to a server, read-only and workspace-write (transcripts/codex/05-sandbox).
const (
	sentReadOnly = `{"permissionProfile":{"type":"managed","file_system":{"type":"restricted","entries":[{"path":{"type":"special","value":{"kind":"root"}},"access":"read"}]},"network":"restricted"},"codexLinuxSandboxExe":null,"sandboxCwd":"file:///home/op/work","useLegacyLandlock":false,"useMxc":false}`
	sentWrite    = `{"permissionProfile":{"type":"managed","file_system":{"type":"restricted","entries":[{"path":{"type":"special","value":{"kind":"root"}},"access":"read"},{"path":{"type":"path","path":"/home/op/work"},"access":"write"},{"path":{"type":"special","value":{"kind":"slash_tmp"}},"access":"write"},{"path":{"type":"special","value":{"kind":"tmpdir"}},"access":"write"},{"path":{"type":"path","path":"/home/op/work/.git"},"access":"read","missing_path_behavior":"skip"},{"path":{"type":"path","path":"/home/op/work/.agents"},"access":"read","missing_path_behavior":"skip"},{"path":{"type":"path","path":"/home/op/work/.codex"},"access":"read","missing_path_behavior":"skip"},{"path":{"type":"path","path":"/home/op/work/.aws"},"access":"read","missing_path_behavior":"skip"}]},"network":"restricted"},"codexLinuxSandboxExe":null,"sandboxCwd":"file:///home/op/work","useLegacyLandlock":false,"useMxc":false}`
	sentFull     = `{"permissionProfile":{"type":"disabled"},"codexLinuxSandboxExe":null,"sandboxCwd":"file:///home/op/work","useLegacyLandlock":false,"useMxc":false}`
)

func unixOnly(t testing.TB) {
	if runtime.GOOS == "windows" {
		t.Skip("the states of these tests are of a Unix host")
	}
}

func TestStatesOfOurOwnAreTheBytesThatCodexSends(t *testing.T) {
	unixOnly(t)
	for _, c := range []struct {
		name string
		got  State
		want string
	}{
		{"read-only", ReadOnly("/home/op/work", Restricted), sentReadOnly},
		{"workspace-write", WorkspaceWrite("/home/op/work/", Restricted), sentWrite},
		{"full access", State{Cwd: "/home/op/work", Profile: Profile{Type: Disabled}}, sentFull},
		{"network", ReadOnly("/a b/é%", Enabled), `{"permissionProfile":{"type":"managed","file_system":{"type":"restricted","entries":[{"path":{"type":"special","value":{"kind":"root"}},"access":"read"}]},"network":"enabled"},"codexLinuxSandboxExe":null,"sandboxCwd":"file:///a%20b/%C3%A9%25","useLegacyLandlock":false,"useMxc":false}`},
	} {
		if got := string(c.got.JSON()); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, got, c.want)
		}
	}
}

func TestAStateIsReadAsItWasMade(t *testing.T) {
	unixOnly(t)
	everything := State{Cwd: "/w", Profile: Profile{Type: Managed, Network: Enabled, Files: FileSystem{GlobDepth: 3, Entries: []Entry{
		{Place{Kind: Root}, Read, false},
		{Place{Kind: Minimal}, Read, false},
		{Place{Kind: TmpDir}, Write, false},
		{Place{Kind: SlashTmp}, None, false},
		{Place{Kind: ProjectRoots}, Write, false},
		{Place{ProjectRoots, "../x"}, Read, true},
		{Place{AtPath, "/p"}, Write, true},
		{Place{Glob, "/p/**/*.env"}, None, false},
		{Place{UnknownPlace, ":later"}, Read, false},
	}}}}
	for _, s := range []State{
		everything, ReadOnly("/w", Enabled), WorkspaceWrite("/w é#?", Restricted, "/x", "/y/"),
		{Cwd: "/", Profile: Profile{Type: External, Network: Restricted}},
		{Cwd: "/w", Profile: Profile{Type: Disabled}},
		{Cwd: "/w", Profile: Profile{Type: Managed, Network: Enabled, Files: FileSystem{Unrestricted: true}}},
	} {
		got, err := Parse(s.JSON())
		if err != nil {
			t.Errorf("%s: %v", s.JSON(), err)
		} else if !reflect.DeepEqual(got, s) {
			t.Errorf("%s\nread as %+v\nmade from %+v", s.JSON(), got, s)
		}
	}
}

func TestAProfileKeepsItsBytesInAState(t *testing.T) {
	const profile = "{ \"type\" : \"disabled\" ,\n \"later\": 1e999, \"later\": 2 }"
	if got := string(Encode("/w", json.RawMessage(profile))); !strings.Contains(got, profile) {
		t.Errorf("%s", got)
	}
}

// entry is a state with one entry beside the root.
func entry(e string) string {
	return profile(`{"type":"managed","file_system":{"type":"restricted","entries":[{"path":{"type":"special","value":{"kind":"root"}},"access":"read"},` + e + `]},"network":"restricted"}`)
}

func profile(p string) string { return `{"permissionProfile":` + p + `,"sandboxCwd":"file:///w"}` }

func cwd(uri string) string {
	return `{"permissionProfile":{"type":"disabled"},"sandboxCwd":` + string(must(json.Marshal(uri))) + `}`
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Each was put to codex sandbox 0.171.0. Where it takes what is refused here the name says so.
var refusedStates = []struct{ name, state, want string }{
	{"nothing", ``, "invalid JSON"},
	{"no object", `[1]`, "expected an object"},
	{"text behind", profile(`{"type":"disabled"}`) + "x", "text after"},
	{"no profile", `{}`, "missing field `permissionProfile`"},
	{"case of a field", `{"PermissionProfile":{"type":"disabled"},"sandboxCwd":"file:///w"}`, "missing field `permissionProfile`"},
	{"no cwd", `{"permissionProfile":{"type":"disabled"}}`, "missing field `sandboxCwd`"},
	{"two profiles", `{"permissionProfile":{"type":"managed"},"permissionProfile":{"type":"disabled"},"sandboxCwd":"file:///w"}`, "duplicate field `permissionProfile`"},
	{"two types", profile(`{"type":"managed","type":"disabled"}`), "permissionProfile: duplicate field `type`"},
	{"profile null", profile(`null`), "permissionProfile: expected an object"},
	{"profile a string", profile(`"disabled"`), "permissionProfile: expected an object"},
	{"type unknown", profile(`{"type":"bogus"}`), "permissionProfile.type: unknown variant `bogus`"},
	{"Codex takes it: no type", profile(`{"file_system":{"read":["/"]}}`), "permissionProfile: missing field `type`"},
	{"managed without files", profile(`{"type":"managed","network":"restricted"}`), "permissionProfile: missing field `file_system`"},
	{"managed without network", profile(`{"type":"managed","file_system":{"type":"unrestricted"}}`), "permissionProfile: missing field `network`"},
	{"external without network", profile(`{"type":"external"}`), "permissionProfile: missing field `network`"},
	{"network unknown", profile(`{"type":"external","network":"proxy"}`), "permissionProfile.network: unknown variant `proxy`"},
	{"files of an unknown type", profile(`{"type":"managed","file_system":{"type":"x"},"network":"restricted"}`), "permissionProfile.file_system.type: unknown variant `x`"},
	{"no entries", profile(`{"type":"managed","file_system":{"type":"restricted"},"network":"restricted"}`), "permissionProfile.file_system: missing field `entries`"},
	{"entries null", profile(`{"type":"managed","file_system":{"type":"restricted","entries":null},"network":"restricted"}`), "permissionProfile.file_system.entries: expected an array"},
	{"depth 0", profile(`{"type":"managed","file_system":{"type":"restricted","entries":[],"glob_scan_max_depth":0},"network":"restricted"}`), "glob_scan_max_depth: expected a whole number"},
	{"depth 3.0", profile(`{"type":"managed","file_system":{"type":"restricted","entries":[],"glob_scan_max_depth":3.0},"network":"restricted"}`), "glob_scan_max_depth: expected a whole number"},
	{"access missing", entry(`{"path":{"type":"path","path":"/x"}}`), "entries[1]: missing field `access`"},
	{"access unknown", entry(`{"path":{"type":"path","path":"/x"},"access":"READ"}`), "entries[1].access: unknown variant `READ`"},
	{"path missing", entry(`{"access":"read"}`), "entries[1]: missing field `path`"},
	{"path a string", entry(`{"path":"/x","access":"read"}`), "entries[1].path: expected an object"},
	{"path relative", entry(`{"path":{"type":"path","path":"x/y"},"access":"read"}`), `entries[1].path.path: "x/y" is not an absolute path`},
	{"path empty", entry(`{"path":{"type":"path","path":""},"access":"read"}`), `entries[1].path.path: "" is not an absolute path`},
	{"path with a zero", entry(`{"path":{"type":"path","path":"/x\u0000"},"access":"read"}`), `is not an absolute path`},
	{"path without path", entry(`{"path":{"type":"path"},"access":"read"}`), "entries[1].path: missing field `path`"},
	{"path of an unknown type", entry(`{"path":{"type":"url"},"access":"read"}`), "entries[1].path.type: unknown variant `url`"},
	{"special a string", entry(`{"path":{"type":"special","value":"root"},"access":"read"}`), "entries[1].path.value: expected an object"},
	{"special unknown", entry(`{"path":{"type":"special","value":{"kind":"home"}},"access":"read"}`), "entries[1].path.value.kind: unknown variant `home`"},
	{"unknown without a name", entry(`{"path":{"type":"special","value":{"kind":"unknown"}},"access":"read"}`), "entries[1].path.value: missing field `path`"},
	{"subpath a number", entry(`{"path":{"type":"special","value":{"kind":"project_roots","subpath":5}},"access":"read"}`), "entries[1].path.value.subpath: expected a string"},
	{"missing unknown", entry(`{"path":{"type":"path","path":"/x"},"access":"read","missing_path_behavior":"create"}`), "entries[1].missing_path_behavior: unknown variant `create`, expected one of `skip`"},
	{"helper a number", `{"permissionProfile":{"type":"disabled"},"sandboxCwd":"file:///w","codexLinuxSandboxExe":5}`, "codexLinuxSandboxExe: expected a string"},
	{"Landlock a string", `{"permissionProfile":{"type":"disabled"},"sandboxCwd":"file:///w","useLegacyLandlock":"x"}`, "useLegacyLandlock: expected true or false"},
	{"cwd null", `{"permissionProfile":{"type":"disabled"},"sandboxCwd":null}`, "sandboxCwd: expected a string"},
	{"cwd a path", cwd("/w x"), `sandboxCwd: "/w x" is not a file URI: it has no scheme; write file:///w%20x`},
	{"cwd empty", cwd(""), "is not a file URI"},
	{"cwd of another scheme", cwd("http://x/w"), "its scheme is http"},
	{"cwd on another host", cwd("file://host/w"), "is not native to this host: it names the host host"},
	{"cwd of Windows", cwd("file:///C:/w"), "is not native to this host"},
	{"cwd with a query", cwd("file:///w?x"), "a query"},
	{"cwd with an empty query", cwd("file:///w?"), "a query"},
	{"cwd with a fragment", cwd("file:///w#x"), "a fragment"},
	{"cwd with a zero", cwd("file:///w%00"), "is not a file URI of an absolute path"},
	{"Codex takes it: cwd relative", cwd("file:w"), "is not a file URI of an absolute path"},
	{"Codex takes it: cwd with a stray percent sign", cwd("file:///w%zz"), "is not a file URI"},
}

func TestAStateThatIsNotUnderstoodIsRefusedWithItsField(t *testing.T) {
	unixOnly(t)
	for _, c := range refusedStates {
		if s, err := Parse(json.RawMessage(c.state)); err == nil {
			t.Errorf("%s: taken as %+v", c.name, s)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q lacks %q", c.name, err, c.want)
		}
	}
}

var takenStates = []struct {
	name, state string
	want        State
}{
	{"unknown fields", `{"a":[{}],"permissionProfile":{"type":"disabled","file_system":7,"x":1},"sandboxCwd":"file:///w","a":2}`, State{Cwd: "/w", Profile: Profile{Type: Disabled}}},
	{"order of fields", `{"sandboxCwd":"file:///w","permissionProfile":{"network":"enabled","type":"external"}}`, State{Cwd: "/w", Profile: Profile{Type: External, Network: Enabled}}},
	{"escapes in a field's name", `{"sandboxCwd":"file:///w","permission\u0050rofile":{"type":"disabled"}}`, State{Cwd: "/w", Profile: Profile{Type: Disabled}}},
	{"a helper", `{"permissionProfile":{"type":"disabled"},"sandboxCwd":"file:///w","codexLinuxSandboxExe":"/bin/evil","useMxc":true}`, State{Cwd: "/w", Profile: Profile{Type: Disabled}}},
	{"cwd localhost", cwd("file://localhost/w"), State{Cwd: "/w", Profile: Profile{Type: Disabled}}},
	{"cwd upper case", cwd("FILE:///w"), State{Cwd: "/w", Profile: Profile{Type: Disabled}}},
	{"cwd one slash", cwd("file:/w"), State{Cwd: "/w", Profile: Profile{Type: Disabled}}},
	{"cwd without a path", cwd("file://"), State{Cwd: "/", Profile: Profile{Type: Disabled}}},
	{"cwd with dots", cwd("file:///a/b/../w/."), State{Cwd: "/a/w", Profile: Profile{Type: Disabled}}},
	{"cwd with escapes", cwd("file:///a%2Fb%20c"), State{Cwd: "/a/b c", Profile: Profile{Type: Disabled}}},
	{"cwd as it is spelled", cwd("file:///a b/é"), State{Cwd: "/a b/é", Profile: Profile{Type: Disabled}}},
	{"deny is none", entry(`{"path":{"type":"path","path":"/a/../b/./c/"},"access":"deny","missing_path_behavior":null}`), State{Cwd: "/w", Profile: Profile{
		Type: Managed, Network: Restricted,
		Files: FileSystem{Entries: []Entry{{Place: Place{Kind: Root}, Access: Read}, {Place: Place{AtPath, "/b/c"}, Access: None}}},
	}}},
	{"an older name", entry(`{"path":{"type":"special","value":{"kind":"current_working_directory"}},"access":"write","missing_path_behavior":"skip"}`), State{Cwd: "/w", Profile: Profile{
		Type: Managed, Network: Restricted,
		Files: FileSystem{Entries: []Entry{{Place: Place{Kind: Root}, Access: Read}, {Place: Place{Kind: ProjectRoots}, Access: Write, SkipMissing: true}}},
	}}},
}

func TestAStateIsReadAsCodexReadsIt(t *testing.T) {
	unixOnly(t)
	for _, c := range takenStates {
		if s, err := Parse(json.RawMessage(c.state)); err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if !reflect.DeepEqual(s, c.want) {
			t.Errorf("%s: read as %+v, want %+v", c.name, s, c.want)
		}
	}
}

// FuzzParse holds that Parse never panics, and that what it takes is told apart by nothing but what it read:
// written again it is the same state, with an absolute working directory and known values.
func FuzzParse(f *testing.F) {
	for _, s := range []string{sentReadOnly, sentWrite, sentFull} {
		f.Add([]byte(s))
	}
	for _, c := range refusedStates {
		f.Add([]byte(c.state))
	}
	for _, c := range takenStates {
		f.Add([]byte(c.state))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := Parse(raw)
		if err != nil {
			return
		}
		again, err := Parse(s.JSON())
		if err != nil {
			t.Fatalf("%q was read as %+v, written as %s: %v", raw, s, s.JSON(), err)
		}
		if !reflect.DeepEqual(s, again) {
			t.Fatalf("%q was read as %+v and then as %+v", raw, s, again)
		}
	})
}
