package codex

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// lists are the recorded answers of `codex mcp list --json`, and of questions near it that Nightporter must not take for one: what each is to be
// read as (facts of the real programs, 2026-11). The servers stand in the order of the answer, a minus before one that is off; "exit" is how a question
// failed, with the end of what it said, which is never an empty list.
var lists = []struct{ name, v171, v144 string }{ // v144 empty: as v171
	{"02-mcp-get-full", "not a list", ""},
	{"02-mcp-list-bad-c", "exit 1: in `mcp_servers`", "exit 1: in `mcp_servers.a`"},
	{"02-mcp-list-bad-toml", "exit 1: unclosed array, expected `]`", ""},
	{"02-mcp-list-bad-transport", "exit 1: in `mcp_servers.x`", ""},
	{"02-mcp-list-base", `"full" -"off" "plain" "web" "webauth"`, ""},
	{"02-mcp-list-both-transports", "exit 1: in `mcp_servers.x`", ""},
	{"02-mcp-list-c-change-transport", "exit 1: in `mcp_servers.plain`", ""},
	{"02-mcp-list-c-disable-unknown", "exit 1: in `mcp_servers.ghost`", ""},
	{"02-mcp-list-c-disable-unknown-with-command", `"full" -"ghost" -"off" "plain" "web" "webauth"`, ""},
	{"02-mcp-list-c-dotted-field", `"full" -"off" -"plain" "web" "webauth"`, ""},
	{"02-mcp-list-c-dotted-unknown", "exit 1: in `mcp_servers.ghost`", ""},
	{"02-mcp-list-c-empty-inline", `"full" -"off" "plain" "web" "webauth"`, ""},
	{"02-mcp-list-c-flyio-dotted", "exit 1: in `mcp_servers.fly`", ""},
	{"02-mcp-list-c-flyio-dotted-quoted", "exit 1: in `mcp_servers.\"fly`", ""},
	{"02-mcp-list-c-flyio-inline-quoted", `-"fly.io" "full" -"off" "plain" "web" "webauth"`, ""},
	{"02-mcp-list-c-inline-add", `"full" "new" -"off" "plain" "web" "webauth"`, ""},
	{"02-mcp-list-c-inline-add-and-disable-all", `-"full" "new" -"off" -"plain" -"web" -"webauth"`, ""},
	{"02-mcp-list-c-inline-disable-existing", `"full" -"off" -"plain" "web" "webauth"`, ""},
	{"02-mcp-list-c-inline-then-dotted", `"full" "n1" "n2" -"off" "plain" "web" "webauth"`, ""},
	{"02-mcp-list-c-mcp-position", `"full" -"off" -"plain" "web" "webauth"`, ""},
	{"02-mcp-list-c-noeq", "exit 1: Error: Invalid override (missing '='): mcp_servers", ""},
	{"02-mcp-list-c-override-url", `"full" -"off" "plain" "web" "webauth"`, ""},
	{"02-mcp-list-c-override-webauth-url", `"full" -"off" "plain" "web" "webauth"`, ""},
	{"02-mcp-list-c-root-and-after", `"full" "n2" -"off" "plain" "web" "webauth"`, ""},
	{"02-mcp-list-c-root-position", `"full" -"off" -"plain" "web" "webauth"`, ""},
	{"02-mcp-list-c-two-dotted", `"full" "n1" "n2" -"off" "plain" "web" "webauth"`, ""},
	{"02-mcp-list-c-two-dotted-then-inline", `"full" "n2" -"off" "plain" "web" "webauth"`, ""},
	{"02-mcp-list-c-two-inline", `"full" "n2" -"off" "plain" "web" "webauth"`, ""},
	{"02-mcp-list-empty", ``, ``},
	{"02-mcp-list-human", "not a list", ""},
	{"02-mcp-list-ignore-user-config-after", "exit 2: For more information, try '--help'.", ""},
	{"02-mcp-list-ignore-user-config-root", "exit 2: For more information, try '--help'.", ""},
	{"02-mcp-list-net-401", `"w1" "w2" -"w3"`, ""},
	{"02-mcp-list-net-404", `"w1" "w2" -"w3"`, ""},
	{"02-mcp-list-net-hang", `"w1" "w2" -"w3"`, ""},
	{"02-mcp-list-noconfig", ``, ``},
	{"02-mcp-list-oauth", `"helper" "log" "oauth" "tok"`, `"log" "oauth" "tok"`},
	{"02-mcp-list-odd-names-config", `"" "$(id)" "-dash" ".." "a b" "a/b" "a=b" "apos'd" "a\u202eb" "back\\slash" "emoji\U0001f600" "fly.io" "new\nline" "null\x00" "prohost" "quote\"d" "tab\tx" "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" "\u00fcn\u00efc\u00f8d\u00e9" "\u65e5\u672c"`, ""},
	{"02-mcp-list-odd-one-0", `"a b"`, ""},
	{"02-mcp-list-odd-one-1", `"fly.io"`, ""},
	{"02-mcp-list-odd-one-10", `"a=b"`, ""},
	{"02-mcp-list-odd-one-11", `"a/b"`, ""},
	{"02-mcp-list-odd-one-12", `"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"`, ""},
	{"02-mcp-list-odd-one-13", `"prohost"`, ""},
	{"02-mcp-list-odd-one-14", `"-dash"`, ""},
	{"02-mcp-list-odd-one-15", `"emoji\U0001f600"`, ""},
	{"02-mcp-list-odd-one-16", `"null\x00"`, ""},
	{"02-mcp-list-odd-one-17", `".."`, ""},
	{"02-mcp-list-odd-one-18", `"$(id)"`, ""},
	{"02-mcp-list-odd-one-19", `"a\u202eb"`, ""},
	{"02-mcp-list-odd-one-2", `"\u00fcn\u00efc\u00f8d\u00e9"`, ""},
	{"02-mcp-list-odd-one-3", `"\u65e5\u672c"`, ""},
	{"02-mcp-list-odd-one-4", `"quote\"d"`, ""},
	{"02-mcp-list-odd-one-5", `"apos'd"`, ""},
	{"02-mcp-list-odd-one-6", `"new\nline"`, ""},
	{"02-mcp-list-odd-one-7", `"tab\tx"`, ""},
	{"02-mcp-list-odd-one-8", `""`, ""},
	{"02-mcp-list-odd-one-9", `"back\\slash"`, ""},
	{"02-mcp-list-odd-one-disable-0", `-"a b"`, ""},
	{"02-mcp-list-odd-one-disable-1", `-"fly.io"`, ""},
	{"02-mcp-list-odd-one-disable-10", `-"a=b"`, ""},
	{"02-mcp-list-odd-one-disable-11", `-"a/b"`, ""},
	{"02-mcp-list-odd-one-disable-12", `-"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"`, ""},
	{"02-mcp-list-odd-one-disable-13", `-"prohost"`, ""},
	{"02-mcp-list-odd-one-disable-14", `-"-dash"`, ""},
	{"02-mcp-list-odd-one-disable-15", `-"emoji\U0001f600"`, ""},
	{"02-mcp-list-odd-one-disable-16", `-"null\x00"`, ""},
	{"02-mcp-list-odd-one-disable-17", `-".."`, ""},
	{"02-mcp-list-odd-one-disable-18", `-"$(id)"`, ""},
	{"02-mcp-list-odd-one-disable-19", `-"a\u202eb"`, ""},
	{"02-mcp-list-odd-one-disable-2", `-"\u00fcn\u00efc\u00f8d\u00e9"`, ""},
	{"02-mcp-list-odd-one-disable-3", `-"\u65e5\u672c"`, ""},
	{"02-mcp-list-odd-one-disable-4", `-"quote\"d"`, ""},
	{"02-mcp-list-odd-one-disable-5", `-"apos'd"`, ""},
	{"02-mcp-list-odd-one-disable-6", `-"new\nline"`, ""},
	{"02-mcp-list-odd-one-disable-7", `-"tab\tx"`, ""},
	{"02-mcp-list-odd-one-disable-8", `-""`, ""},
	{"02-mcp-list-odd-one-disable-9", `-"back\\slash"`, ""},
	{"02-mcp-list-plugin-base", `"github" "plain" "webby"`, ""},
	{"02-mcp-list-plugin-disable", "exit 1: in `mcp_servers.github`", ""},
	{"02-mcp-list-plugin-disable-dotted", "exit 1: in `mcp_servers.github`", ""},
	{"02-mcp-list-plugin-disable-web-with-url", `"github" "plain" -"webby"`, ""},
	{"02-mcp-list-plugin-disable-with-cmd", `-"github" "plain" "webby"`, ""},
	{"02-mcp-list-plugin-feature-off", `"plain"`, ""},
	{"02-mcp-list-plugin-feature-off-c", `"plain"`, ""},
	{"02-mcp-list-plugin-override-cmd", `"github" "plain" "webby"`, ""},
	{"02-mcp-list-plugin-plugin-enabled-false", `"plain"`, `"github" "plain" "webby"`},
	{"02-mcp-list-plugin-plugin-enabled-false-dotted", `"github" "plain" "webby"`, ""},
	{"02-mcp-list-plugin-plugin-mcp-policy", `-"github" "plain" "webby"`, `"github" "plain" "webby"`},
	{"02-mcp-list-plugin-plugin-mcp-policy2", `-"github" "plain" -"webby"`, `"github" "plain" "webby"`},
	{"02-mcp-list-profile-c", "exit 1: legacy `profile = \"work\"` config is no longer supported; use `--profile work` with `work.config.toml` instead", ""},
	{"02-mcp-list-profile-eq-root", `"base" "prof"`, `"base"`},
	{"02-mcp-list-profile-legacy-in-config", "exit 1: legacy `profile = \"work\"` config is no longer supported; use `--profile work` with `work.config.toml` instead", ""},
	{"02-mcp-list-profile-legacy-table", "exit 1: legacy `profile = \"work\"` config is no longer supported; use `--profile work` with `work.config.toml` instead", ""},
	{"02-mcp-list-profile-long-after", "exit 2: For more information, try '--help'.", ""},
	{"02-mcp-list-profile-long-root", `"base" "prof"`, `"base"`},
	{"02-mcp-list-profile-missing-root", `"base"`, ""},
	{"02-mcp-list-profile-none", `"base"`, ""},
	{"02-mcp-list-profile-p-after", "exit 2: For more information, try '--help'.", ""},
	{"02-mcp-list-profile-p-root", `"base" "prof"`, `"base"`},
	{"02-mcp-list-project-disable", `-"base" -"proj"`, ""},
	{"02-mcp-list-project-disable-elsewhere", "exit 1: in `mcp_servers.proj`", ""},
	{"02-mcp-list-project-nogit-trusted-subdir", `"base"`, ""},
	{"02-mcp-list-project-trust-by-c", `-"base" "proj"`, ""},
	{"02-mcp-list-project-trusted", `-"base" "proj"`, ""},
	{"02-mcp-list-project-trusted-C-after", "exit 2: For more information, try '--help'.", ""},
	{"02-mcp-list-project-trusted-C-root", `"base"`, ""},
	{"02-mcp-list-project-trusted-cd-root", `"base"`, ""},
	{"02-mcp-list-project-trusted-elsewhere", `"base"`, ""},
	{"02-mcp-list-project-trusted-subdir", `"base"`, `-"base" "proj"`},
	{"02-mcp-list-project-untrusted", `"base"`, ""},
	{"02-mcp-list-project-untrusted-unset", `"base"`, ""},
	{"02-mcp-list-strict-after", "exit 2: For more information, try '--help'.", ""},
	{"02-mcp-list-strict-root", "exit 1: Error: `--strict-config` is not supported for `codex mcp`", ""},
	{"02-mcp-list-unknown-keys", `"plain"`, ""},
	{"10-recipe-list-after", `-"base" "gw"`, ""},
	{"10-recipe-list-before", `"base" "github" "proj"`, ""},
}

// unread are recordings that no reader of Nightporter's agents reads.
var unread = []struct{ name, why string }{
	{"05-sandbox", "the metadata of calls, which package sandbox reads"},
	{"05-sandbox-run-danger-full-access", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-danger-full-access-after-exit", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-env", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-pids", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-rc-passthrough", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-read-only", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-read-only-after-exit", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-sig-passthrough", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-stdin", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-workspace-write", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-workspace-write-after-exit", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-wsw-144", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-wsw-badjson", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-wsw-badtype", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-wsw-cwd-else", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-wsw-cwd-missing", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-wsw-disable-net", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-wsw-empty", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-wsw-exe-absent", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-wsw-exe-missing", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-wsw-exe-null", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-wsw-meta144-state", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-wsw-other-cwd", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-wsw-readable-root", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-wsw-unknown-field", "`codex sandbox`, whose output and exit are those of the command in it"},
	{"05-sandbox-run-wsw-unknown-nested", "`codex sandbox`, whose output and exit are those of the command in it"},
}

// archived returns the files of an archive by name.
func archived(t testing.TB, name string) map[string]string {
	t.Helper()
	archive, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	heads := fileHead.FindAllSubmatchIndex(archive, -1)
	for i, head := range heads {
		end := len(archive)
		if i+1 < len(heads) {
			end = heads[i+1][0]
		}
		files[string(archive[head[2]:head[3]])+"/"+string(archive[head[4]:head[5]])] = string(archive[head[1]:end])
	}
	return files
}

func TestRecordedListsAreReadAsWhatTheyWere(t *testing.T) {
	files := archived(t, "lists.txtar")
	for _, test := range lists {
		for version, want := range map[string]string{"0.171.0": test.v171, "0.144.1": test.v144} {
			if version == "0.144.1" && want == "" && test.v171 != "" {
				want = test.v171
			}
			at := test.name + "/" + version + "/"
			exit, ok := files[at+"exit"]
			if !ok {
				t.Fatalf("there is no recording of %s", at)
			}
			delete(files, at+"exit")
			stdout, stderr := files[at+"stdout"], files[at+"stderr"]
			delete(files, at+"stdout")
			delete(files, at+"stderr")
			list, err := parseList([]byte(stdout))
			var got []string
			for _, e := range list {
				sign := ""
				if !*e.Enabled {
					sign = "-"
				}
				got = append(got, sign+strconv.QuoteToASCII(e.Name))
			}
			read := strings.Join(got, " ")
			switch exit = strings.TrimSpace(exit); {
			case exit != "0":
				_, end, _ := strings.Cut(want, ": ")
				if said := complaint([]byte(stderr)); !strings.HasPrefix(want, "exit "+exit+": ") || !strings.HasSuffix(said, strings.Join(strings.Fields(end), " ")) {
					t.Errorf("%sexit %s%s, want %s", at, exit, said, want)
				}
				if err == nil {
					t.Errorf("%s: a question that failed was read as the list %s", at, read)
				}
			case want == "not a list":
				if err == nil {
					t.Errorf("%s was read as the list %s", at, read)
				}
			case err != nil || read != want:
				t.Errorf("%s was read as %s, %v, want %s", at, read, err, want)
			}
		}
	}
	for name := range files {
		t.Errorf("%s is in no line of the table", name)
	}
}

// A list that was cut anywhere is none.
func TestARecordedListThatWasCutIsNone(t *testing.T) {
	files := archived(t, "lists.txtar")
	for _, name := range []string{"02-mcp-list-base/0.171.0/stdout", "02-mcp-list-odd-names-config/0.144.1/stdout", "02-mcp-list-empty/0.171.0/stdout", "10-recipe-list-before/0.171.0/stdout"} {
		whole := []byte(files[name])
		for n := range bytes.TrimRight(whole, "\n") {
			if list, err := parseList(whole[:n]); err == nil {
				t.Fatalf("%s cut after %d bytes was read as %q", name, n, names(list))
			}
		}
	}
}

// Of the 212 recordings of Codex each has its line.
func TestEveryRecordingHasItsLine(t *testing.T) {
	seen := map[string]bool{}
	add := func(name string) {
		if seen[name] {
			t.Errorf("%s has two lines", name)
		}
		seen[name] = true
	}
	for _, r := range recordings {
		add(r.name)
	}
	for _, l := range lists {
		add(l.name)
	}
	for _, u := range unread {
		add(u.name)
		if u.why == "" {
			t.Errorf("%s is left out without a reason", u.name)
		}
	}
	if len(seen) != 212 {
		t.Errorf("%d recordings have a line, want 212", len(seen))
	}
}
