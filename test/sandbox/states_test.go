//go:build linux

package sandbox

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// state is one row of the table: what a sandbox is told, in which world.
// {W} stands for the world's folder, {T} for the folder with the programs.
type state struct {
	name   string
	json   string
	flags  []string
	tmpdir string                       // TMPDIR; unset when empty
	setup  func(t *testing.T, w *world) // changes the world before the run
	says   string                       // what our refusal must name, where Codex refuses
	// bound is what Codex is asked instead where it fails by accident: a state that allows at least
	// as much. Ours may allow less without a reason on record then.
	bound *state
	main  bool // is tried as an unprivileged user as well
}

// The parts of states.
const (
	cwdURI = `file://{W}/cwd`
	root   = `{"path":{"type":"special","value":{"kind":"root"}},"access":"read"}`
)

func special(kind, access string) string {
	return `{"path":{"type":"special","value":{"kind":"` + kind + `"}},"access":"` + access + `"}`
}

// entry is an entry for a path below the world's folder, unless it starts with a slash.
// more is what follows in the object.
func entry(path, access string, more ...string) string {
	if !strings.HasPrefix(path, "/") {
		path = "{W}/" + path
	}
	return `{"path":{"type":"path","path":"` + path + `"},"access":"` + access + `"` + strings.Join(more, "") + `}`
}

const skip = `,"missing_path_behavior":"skip"`

func profile(network string, entries ...string) string {
	return `{"type":"managed","file_system":{"type":"restricted","entries":[` + strings.Join(entries, ",") + `]},"network":"` + network + `"}`
}

func under(cwd, profile string) string {
	return `{"permissionProfile":` + profile + `,"codexLinuxSandboxExe":null,"sandboxCwd":"` + cwd + `","useLegacyLandlock":false,"useMxc":false}`
}

// managed is a state of entries, without network.
func managed(entries ...string) string { return under(cwdURI, profile("restricted", entries...)) }

// workspaceWrite is what Codex sends for its workspace-write mode (facts/codex-runtime.md section 6).
func workspaceWrite(network string) string {
	return under(cwdURI, profile(network, root, entry("cwd", "write"), special("slash_tmp", "write"), special("tmpdir", "write"),
		entry("cwd/.git", "read", skip), entry("cwd/.agents", "read", skip), entry("cwd/.codex", "read", skip), entry("cwd/.aws", "read", skip)))
}

func remove(paths ...string) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		t.Helper()
		for _, path := range paths {
			if err := os.RemoveAll(w.path(path)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func symlink(target, link string) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		t.Helper()
		if err := os.RemoveAll(w.path(link)); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(w.fillIn(target), w.path(link)); err != nil {
			t.Fatal(err)
		}
	}
}

var states = []state{
	// What Codex sends in its three modes.
	{name: "read-only", json: managed(root), main: true},
	{name: "workspace-write", json: workspaceWrite("restricted"), tmpdir: "{W}/tmp", main: true},
	{name: "workspace-write with network", json: workspaceWrite("enabled"), tmpdir: "{W}/tmp", main: true},
	{name: "full access", json: under(cwdURI, `{"type":"disabled"}`), main: true},
	{name: "workspace-write, nothing protected exists", json: workspaceWrite("restricted"), tmpdir: "{W}/tmp", setup: remove("cwd/.git", "cwd/.agents", "cwd/.codex", "cwd/.aws"), main: true},
	{name: "workspace-write, .git is a file", json: workspaceWrite("restricted"), tmpdir: "{W}/tmp", setup: func(t *testing.T, w *world) {
		remove("cwd/.git")(t, w)
		w.write(t, w.path("cwd/.git"))
	}},
	{name: "workspace-write, .git is a link out", json: workspaceWrite("restricted"), tmpdir: "{W}/tmp", setup: symlink("../outside", "cwd/.git")},
	{name: "workspace-write, .git is a link to a writable folder", json: workspaceWrite("restricted"), tmpdir: "{W}/tmp", setup: symlink("sub", "cwd/.git")},
	{name: "workspace-write, .git is a dangling link", json: workspaceWrite("restricted"), tmpdir: "{W}/tmp", setup: symlink("nowhere", "cwd/.git")},

	// Other profiles.
	{name: "external, network restricted", json: under(cwdURI, `{"type":"external","network":"restricted"}`), main: true},
	{name: "external, network enabled", json: under(cwdURI, `{"type":"external","network":"enabled"}`)},
	{name: "unrestricted files, network restricted", json: under(cwdURI, `{"type":"managed","file_system":{"type":"unrestricted"},"network":"restricted"}`), main: true},
	{name: "unrestricted files, network enabled", json: under(cwdURI, `{"type":"managed","file_system":{"type":"unrestricted"},"network":"enabled"}`)},
	{name: "read-only with network", json: under(cwdURI, profile("enabled", root))},
	{name: "the root is writable", json: managed(special("root", "write"))},
	{name: "the root is writable, with network", json: under(cwdURI, profile("enabled", special("root", "write")))},
	{name: "the root is writable, a folder is not", json: managed(special("root", "write"), entry("ro", "read"), entry("secret", "none"))},
	{name: "the root is writable, with protected names", json: managed(special("root", "write"), entry("cwd/.git", "read", skip))},

	// Paths, one inside another.
	{name: "write", json: managed(root, entry("cwd", "write")), main: true},
	{name: "write two", json: managed(root, entry("cwd", "write"), entry("outside", "write"))},
	{name: "write inside read", json: managed(root, entry("cwd", "read"), entry("cwd/sub", "write"))},
	{name: "read inside write", json: managed(root, entry("cwd", "write"), entry("cwd/sub", "read")), main: true},
	{name: "write inside read inside write", json: managed(root, entry("cwd", "write"), entry("cwd/sub", "read"), entry("cwd/sub/deep", "write"))},
	{name: "read inside write inside read", json: managed(root, entry(".", "read"), entry("cwd", "write"), entry("cwd/sub/deep", "read"))},
	{name: "none", json: managed(root, entry("secret", "none")), main: true},
	{name: "none, as it is written now", json: managed(root, entry("secret", "deny"))},
	{name: "none inside write", json: managed(root, entry("cwd", "write"), entry("cwd/private", "none")), main: true},
	{name: "none inside read inside write", json: managed(root, entry("cwd", "write"), entry("cwd/sub", "read"), entry("cwd/sub/deep", "none"))},
	{name: "write inside none", json: managed(root, entry("cwd", "none"), entry("cwd/sub", "write"))},
	{name: "read inside none", json: managed(root, entry("outside", "none"), entry("outside/in", "read"))},
	{name: "write inside none, elsewhere", json: managed(root, entry("outside", "none"), entry("outside/in", "write"))},
	{name: "none inside none", json: managed(root, entry("outside", "none"), entry("outside/in", "none")), bound: &state{json: managed(root, entry("outside", "none"))}},
	{name: "none for the working directory", json: managed(root, entry("cwd", "none"))},
	{name: "the order of entries does not count", json: managed(entry("cwd/sub/deep", "write"), entry("cwd/private", "none"), entry("cwd/sub", "read"), entry("cwd", "write"), root)},

	// One path twice.
	{name: "read, then write", json: managed(root, entry("cwd", "read"), entry("cwd", "write"))},
	{name: "write, then read", json: managed(root, entry("cwd", "write"), entry("cwd", "read"))},
	{name: "write, then none", json: managed(root, entry("secret", "write"), entry("secret", "none"))},
	{name: "none, then write", json: managed(root, entry("secret", "none"), entry("secret", "write"))},
	{name: "none, then read", json: managed(root, entry("secret", "none"), entry("secret", "read"))},
	{name: "write twice", json: managed(root, entry("cwd", "write"), entry("cwd", "write"))},
	{name: "the root read and written", json: managed(root, special("root", "write"))},

	// Files.
	{name: "a file is writable", json: managed(root, entry("outside/append", "write")), bound: &state{json: managed(root, entry("outside", "write"))}},
	{name: "a file is read-only inside write", json: managed(root, entry("cwd", "write"), entry("cwd/append", "read"))},
	{name: "a file is hidden", json: managed(root, entry("secret/file", "none"))},
	{name: "a file is hidden inside write", json: managed(root, entry("cwd", "write"), entry("cwd/file", "none"))},

	// The root as a path.
	{name: "a slash, read", json: managed(entry("/", "read"))},
	{name: "a slash, read, and write inside", json: managed(entry("/", "read"), entry("cwd", "write"))},
	{name: "a slash, write", json: managed(entry("/", "write"))},
	{name: "a slash, none", json: managed(root, entry("/", "none"))},

	// Links.
	{name: "an entry is a link, write", json: managed(root, entry("cwdlink", "write"))},
	{name: "an entry is a link, none", json: managed(root, entry("secretlink", "none"))},
	{name: "an entry goes through a link", json: managed(root, entry("cwdlink/sub", "write"))},
	{name: "a link inside write, read-only", json: managed(root, entry("cwd", "write"), entry("cwd/sublink", "read"))},
	{name: "a link inside write, out, read-only", json: managed(root, entry("cwd", "write"), entry("outside", "write"), entry("cwd/out", "read"))},
	{name: "a link out of the writable folder, writable", json: managed(root, entry("cwd", "write"), entry("cwd/out", "write"))},
	{name: "a link that names itself", json: managed(root, entry("cwd", "write"), entry("loop", "write"))},
	{name: "a dangling link", json: managed(root, entry("cwd", "write"), entry("dangling", "write"))},
	{name: "the working directory is a link", json: under(`file://{W}/cwdlink`, profile("restricted", root, entry("cwdlink", "write")))},
	{name: "the working directory is a link, the entry is not", json: under(`file://{W}/cwdlink`, profile("restricted", root, entry("cwd", "write"), entry("cwd/.git", "read", skip)))},

	// Spelling.
	{name: "two dots", json: managed(root, entry("outside/../cwd", "write"))},
	{name: "two dots behind a link", json: managed(root, entry("cwd/out/../ro", "write"))},
	{name: "two dots, none", json: managed(root, entry("cwd/../secret", "none"))},
	{name: "one dot and two slashes", json: managed(root, entry("/{W}/.//cwd/./", "write"))},
	{name: "a trailing slash", json: managed(root, entry("cwd/", "write"), entry("cwd/sub/", "read"))},
	{name: "spaces and non-ASCII", json: under(`file://{W}/odd%20%C3%A9%20%2520%20dir`, profile("restricted", root, entry("odd é %20 dir", "write")))},
	{name: "non-ASCII that is not escaped", json: under(`file://{W}/odd é %2520 dir`, profile("restricted", root, entry("odd é %20 dir", "write")))},
	{name: "a path as a URI", json: managed(root, `{"path":{"type":"path","path":"file://{W}/cwd"},"access":"write"}`)},
	{name: "a path as a URI with escapes", json: managed(root, `{"path":{"type":"path","path":"file://{W}/odd%20%C3%A9%20%2520%20dir"},"access":"write"}`)},
	{name: "a URI with two dots", json: under(`file://{W}/outside/../cwd`, profile("restricted", root, entry("cwd", "write")))},
	{name: "a URI with localhost", json: under(`file://localhost{W}/cwd`, profile("restricted", root))},

	// What is missing.
	{name: "a missing path, write", json: managed(root, entry("cwd/missing", "write"))},
	{name: "a missing path, write, skipped", json: managed(root, entry("cwd/missing", "write", skip))},
	{name: "a missing path, read inside write", json: managed(root, entry("cwd", "write"), entry("cwd/missing", "read"))},
	{name: "a missing path, read inside write, skipped", json: managed(root, entry("cwd", "write"), entry("cwd/missing", "read", skip))},
	{name: "a missing path, none", json: managed(root, entry("cwd", "write"), entry("cwd/missing", "none"))},
	{name: "a missing path, none, skipped", json: managed(root, entry("cwd", "write"), entry("cwd/missing", "none", skip))},
	{name: "a missing path deep inside write", json: managed(root, entry("cwd", "write"), entry("cwd/sub/missing/below", "read"))},
	{name: "a missing path outside what is writable", json: managed(root, entry("cwd", "write"), entry("outside/missing", "read"))},
	{name: "a null behaviour", json: managed(root, entry("cwd", "write", `,"missing_path_behavior":null`))},

	// Special paths.
	{name: "slash_tmp", json: managed(root, special("slash_tmp", "write")), main: true},
	{name: "slash_tmp, read", json: managed(root, special("slash_tmp", "read"))},
	{name: "slash_tmp, none", json: managed(root, special("slash_tmp", "none"))},
	{name: "tmpdir", json: managed(root, special("tmpdir", "write")), tmpdir: "{W}/tmp"},
	{name: "tmpdir without TMPDIR", json: managed(root, special("tmpdir", "write"))},
	{name: "tmpdir in the working directory", json: managed(root, special("tmpdir", "write")), tmpdir: "{W}/cwd/sub"},
	{name: "tmpdir through a link", json: managed(root, special("tmpdir", "write")), tmpdir: "{W}/into/sub"},
	{name: "tmpdir is relative", json: managed(root, special("tmpdir", "write")), tmpdir: "tmp"},
	{name: "tmpdir is missing", json: managed(root, special("tmpdir", "write")), tmpdir: "{W}/cwd/missing", bound: &state{json: managed(root)}},
	{name: "tmpdir is a file", json: managed(root, special("tmpdir", "write")), tmpdir: "{W}/outside/append", bound: &state{json: managed(root, entry("outside", "write"))}},
	{name: "tmpdir is the root", json: managed(root, special("tmpdir", "write")), tmpdir: "/"},
	{name: "tmpdir, none", json: managed(root, special("tmpdir", "none")), tmpdir: "{W}/tmp"},
	{name: "project_roots", json: managed(root, special("project_roots", "write")), main: true},
	{name: "project_roots with a subpath", json: managed(root, special("project_roots", "write"), `{"path":{"type":"special","value":{"kind":"project_roots","subpath":"sub"}},"access":"read"}`)},
	{name: "project_roots with a subpath out", json: managed(root, `{"path":{"type":"special","value":{"kind":"project_roots","subpath":"../outside"}},"access":"write"}`)},
	{name: "current_working_directory", json: managed(root, special("current_working_directory", "write"))},
	{name: "an unknown special path", json: managed(root, `{"path":{"type":"special","value":{"kind":"unknown","path":":new"}},"access":"write"}`)},

	// Without the root.
	{name: "minimal", json: managed(special("minimal", "read"), entry("cwd", "write")), flags: []string{"--sandbox-state-readable-root", "{T}"}},
	{name: "no root", json: managed(entry("cwd", "write"), entry("ro", "read")), flags: []string{"--sandbox-state-readable-root", "{T}"}},
	{name: "no root, a readable root", json: managed(entry("cwd", "write")), flags: []string{"--sandbox-state-readable-root", "{T}", "--sandbox-state-readable-root", "{W}/ro"}, main: true},
	{name: "no root, the entries name the programs", json: managed(entry("{T}", "read"), entry("cwd", "read"))},
	{name: "no entries, a readable root", json: managed(), flags: []string{"--sandbox-state-readable-root", "{T}"}},
	{name: "no entries", json: managed(), says: ""},

	// Flags.
	{name: "a readable root that is hidden", json: managed(root, entry("secret", "none")), flags: []string{"--sandbox-state-readable-root", "{W}/secret"}},
	{name: "a readable root that is writable", json: managed(root, entry("cwd", "write")), flags: []string{"--sandbox-state-readable-root", "{W}/cwd"}},
	{name: "a readable root inside what is hidden", json: managed(root, entry("outside", "none")), flags: []string{"--sandbox-state-readable-root", "{W}/outside/in"}},
	{name: "a readable root that is missing", json: managed(root), flags: []string{"--sandbox-state-readable-root", "{W}/missing"}},
	{name: "a readable root that is relative", json: managed(root), flags: []string{"--sandbox-state-readable-root", "ro"}},
	{name: "the network disabled by the flag", json: under(cwdURI, profile("enabled", root, entry("cwd", "write"))), flags: []string{"--sandbox-state-disable-network"}},
	{name: "the network disabled by the flag, external", json: under(cwdURI, `{"type":"external","network":"enabled"}`), flags: []string{"--sandbox-state-disable-network"}},
	{name: "the network disabled by the flag, unrestricted files", json: under(cwdURI, `{"type":"managed","file_system":{"type":"unrestricted"},"network":"enabled"}`), flags: []string{"--sandbox-state-disable-network"}},
	{name: "the network disabled by the flag, full access", json: under(cwdURI, `{"type":"disabled"}`), flags: []string{"--sandbox-state-disable-network"}, says: "disable"},
	{name: "a readable root, full access", json: under(cwdURI, `{"type":"disabled"}`), flags: []string{"--sandbox-state-readable-root", "{W}/ro"}, says: "readable-root"},

	// Patterns.
	{name: "a pattern hides files", json: managed(root, entry("cwd", "write"), `{"path":{"type":"glob_pattern","pattern":"{W}/secret/*"},"access":"none"}`)},
	{name: "a pattern hides files at any depth", json: managed(root, `{"path":{"type":"glob_pattern","pattern":"{W}/**/file"},"access":"none"}`)},

	// Fields that are unknown, missing or wrong.
	{name: "unknown fields", json: `{"permissionProfile":{"type":"managed","file_system":{"type":"restricted","entries":[{"path":{"type":"special","value":{"kind":"root","x":1}},"access":"read","x":{}}],"x":1},"network":"restricted","x":null},"sandboxCwd":"file://{W}/cwd","x":[1]}`},
	{name: "only what is required", json: `{"permissionProfile":` + profile("restricted", root) + `,"sandboxCwd":"file://{W}/cwd"}`},
	{name: "legacy landlock asked for", json: strings.Replace(managed(root), `"useLegacyLandlock":false`, `"useLegacyLandlock":true`, 1), bound: &state{json: managed(root)}},
	{name: "mxc asked for", json: strings.Replace(managed(root), `"useMxc":false`, `"useMxc":true`, 1)},
	{name: "no profile", json: `{"sandboxCwd":"file://{W}/cwd"}`, says: "permissionProfile"},
	{name: "no working directory", json: `{"permissionProfile":` + profile("restricted", root) + `}`, says: "sandboxCwd"},
	{name: "an empty object", json: `{}`, says: "permissionProfile"},
	{name: "not JSON", json: `read-only`, says: "--sandbox-state-json"},
	{name: "an array", json: `[]`, says: "--sandbox-state-json"},
	{name: "null", json: `null`, says: "--sandbox-state-json"},
	{name: "text behind the object", json: managed(root) + `{}`, says: "--sandbox-state-json"},
	{name: "a null profile", json: under(cwdURI, `null`), says: "permissionProfile"},
	{name: "an unknown profile", json: under(cwdURI, `{"type":"strict"}`), says: "permissionProfile"},
	{name: "a profile without a type", json: under(cwdURI, `{"network":"restricted"}`), says: "permissionProfile"},
	{name: "the type in another case", json: under(cwdURI, `{"type":"Disabled"}`), says: "permissionProfile"},
	{name: "the key in another case", json: `{"PermissionProfile":{"type":"disabled"},"sandboxCwd":"file://{W}/cwd"}`, says: "permissionProfile"},
	{name: "a profile twice", json: `{"permissionProfile":` + profile("restricted", root) + `,"permissionProfile":{"type":"disabled"},"sandboxCwd":"file://{W}/cwd"}`, says: "permissionProfile"},
	{name: "a working directory twice", json: `{"permissionProfile":` + profile("restricted", root) + `,"sandboxCwd":"file://{W}/ro","sandboxCwd":"file://{W}/cwd"}`, says: "sandboxCwd"},
	{name: "entries twice", json: under(cwdURI, `{"type":"managed","file_system":{"type":"restricted","entries":[`+root+`],"entries":[`+special("root", "write")+`]},"network":"restricted"}`), says: "entries"},
	{name: "network twice", json: under(cwdURI, `{"type":"managed","file_system":{"type":"restricted","entries":[`+root+`]},"network":"restricted","network":"enabled"}`), says: "network"},
	{name: "access twice", json: managed(root, `{"path":{"type":"path","path":"{W}/secret"},"access":"none","access":"write"}`), says: "access"},
	{name: "an unknown file system", json: under(cwdURI, `{"type":"managed","file_system":{"type":"open"},"network":"restricted"}`), says: "file_system"},
	{name: "no file system", json: under(cwdURI, `{"type":"managed","network":"restricted"}`), says: "file_system"},
	{name: "no entries field", json: under(cwdURI, `{"type":"managed","file_system":{"type":"restricted"},"network":"restricted"}`), says: "entries"},
	{name: "no network field", json: under(cwdURI, `{"type":"managed","file_system":{"type":"unrestricted"}}`), says: "network"},
	{name: "an unknown network", json: under(cwdURI, profile("open", root)), says: "network"},
	{name: "external without network", json: under(cwdURI, `{"type":"external"}`), says: "network"},
	{name: "an unknown access", json: managed(root, entry("secret", "hidden")), says: "access"},
	{name: "no access", json: managed(root, `{"path":{"type":"path","path":"{W}/cwd"}}`), says: "access"},
	{name: "an unknown kind of path", json: managed(root, `{"path":{"type":"regexp","path":"{W}/cwd"},"access":"write"}`), says: "path"},
	{name: "an unknown kind of special path", json: managed(root, special("home", "write")), says: "kind"},
	{name: "a special path without a kind", json: managed(root, `{"path":{"type":"special","value":{}},"access":"write"}`), says: "kind"},
	{name: "a path without a path", json: managed(root, `{"path":{"type":"path"},"access":"write"}`), says: "path"},
	{name: "a relative path", json: managed(root, `{"path":{"type":"path","path":"cwd"},"access":"write"}`), says: "path"},
	{name: "an empty path", json: managed(root, `{"path":{"type":"path","path":""},"access":"write"}`), says: "path"},
	{name: "a path with a zero byte", json: managed(root, `{"path":{"type":"path","path":"{W}/cwd\u0000x"},"access":"write"}`), says: "path"},
	{name: "an unknown behaviour", json: managed(root, entry("secret", "none", `,"missing_path_behavior":"ignore"`)), says: "missing_path_behavior"},
	{name: "the behaviour create", json: managed(root, entry("cwd/missing", "write", `,"missing_path_behavior":"create"`)), says: "missing_path_behavior"},
	{name: "the behaviour error", json: managed(root, entry("cwd/missing", "write", `,"missing_path_behavior":"error"`)), says: "missing_path_behavior"},
	{name: "a pattern that allows", json: managed(root, `{"path":{"type":"glob_pattern","pattern":"{W}/cwd/*"},"access":"write"}`), says: "glob"},

	// Working directories.
	{name: "a working directory that is a path", json: under(`{W}/cwd`, profile("restricted", root)), says: "sandboxCwd"},
	{name: "a working directory that is relative", json: under(`cwd`, profile("restricted", root)), says: "sandboxCwd"},
	{name: "an empty working directory", json: under(``, profile("restricted", root)), says: "sandboxCwd"},
	{name: "a working directory over HTTP", json: under(`http://localhost{W}/cwd`, profile("restricted", root)), says: "sandboxCwd"},
	{name: "a working directory on a host", json: under(`file://host{W}/cwd`, profile("restricted", root)), says: "sandboxCwd"},
	{name: "a working directory on a drive", json: under(`file:///C:/cwd`, profile("restricted", root)), says: "sandboxCwd"},
	{name: "a working directory that is a number", json: strings.Replace(managed(root), `"`+cwdURI+`"`, `5`, 1), says: "sandboxCwd"},
	{name: "a working directory that is missing", json: under(`file://{W}/missing`, profile("restricted", root)), says: "missing"},
	{name: "a working directory that is a file", json: under(`file://{W}/cwd/file`, profile("restricted", root)), says: "file"},
	{name: "a working directory with an escaped zero byte", json: under(`file://{W}/cwd%00x`, profile("restricted", root)), says: "sandboxCwd"},
	{name: "a working directory with an escaped slash", json: under(`file://{W}%2Fcwd`, profile("restricted", root)), says: "sandboxCwd"},
	{name: "a working directory with a query", json: under(`file://{W}/cwd?x`, profile("restricted", root)), says: "sandboxCwd"},
	{name: "a working directory with a fragment", json: under(`file://{W}/cwd#x`, profile("restricted", root)), says: "sandboxCwd"},
}

var _ = filepath.Join
