//go:build linux

package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// passThrough are commands whose end and output must pass through as with Codex.
var passThrough = []struct {
	name string
	argv []string
	code int // what ours must end with where Codex panics
}{
	{"success", []string{"/bin/true"}, 0},
	{"an exit code", []string{"/bin/sh", "-c", "exit 7"}, 7},
	{"the highest exit code", []string{"/bin/sh", "-c", "exit 255"}, 255},
	{"TERM", []string{"/bin/sh", "-c", "kill -TERM $$"}, 143},
	{"KILL", []string{"/bin/sh", "-c", "kill -KILL $$"}, 137},
	{"both streams", []string{"/bin/sh", "-c", "echo out; echo err >&2"}, 0},
	{"arguments as they are", []string{"/bin/sh", "-c", `printf '%s\n' "$@"`, "x", "", "a b", "--", "--sandbox-state-json", "é\n", "$HOME", "-C"}, 0},
	{"the working directory", []string{"/bin/sh", "-c", "pwd; pwd -P"}, 0},
	{"a program that is missing", []string{"/no/such/program"}, 127},
	{"a program that is not on PATH", []string{"no-such-program"}, 127},
	{"a program that is no program", []string{"{W}/cwd/file"}, 126},
	{"a folder as a program", []string{"{W}/cwd"}, 126},
}

// TestACommandPassesThroughAsWithCodex compares exit codes and output.
func TestACommandPassesThroughAsWithCodex(t *testing.T) {
	for _, s := range []state{
		{name: "confined", json: open.json, tmpdir: open.tmpdir},
		{name: "full access", json: under(cwdURI, `{"type":"disabled"}`)},
		{name: "no network", json: under(cwdURI, `{"type":"managed","file_system":{"type":"unrestricted"},"network":"restricted"}`)},
	} {
		for _, c := range passThrough {
			t.Run(s.name+", "+c.name, func(t *testing.T) {
				t.Parallel()
				run := func(how implementation) (ended, string) {
					w := newWorld(t, os.Getuid())
					defer w.harm(t, map[string]bool{})
					var argv []string
					for _, arg := range c.argv {
						argv = append(argv, w.fillIn(arg))
					}
					end, out := w.exec(t, how, s, argv...)
					return end, strings.ReplaceAll(out, w.dir, "{W}")
				}
				theirs, theirOut := run(reference)
				for _, how := range mechanisms {
					own, out := run(how)
					if own.code != c.code || theirs.code != 101 && !missing(c.code) && own.code != theirs.code {
						t.Errorf("%s ended with %d, Codex with %d: %s", how.name, own.code, theirs.code, own.stderr)
					}
					if out != theirOut {
						t.Errorf("%s printed %q, Codex %q", how.name, out, theirOut)
					}
					if missing(c.code) && !strings.Contains(own.stderr, filepath.Base(c.argv[0])) {
						t.Errorf("%s does not name what it could not start: %s", how.name, own.stderr)
					}
				}
			})
		}
	}
}

// missing reports whether a code says that the command could not be started. Codex's own for that differ with the profile.
func missing(code int) bool { return code == 126 || code == 127 }

// TestTheEnvironmentOfACommandIsThatOfItsCaller compares the variables with Codex's.
func TestTheEnvironmentOfACommandIsThatOfItsCaller(t *testing.T) {
	// Codex puts folders of its own on PATH; CODEX_HOME is given to Codex alone; PWD is the shell's matter.
	own := []string{"PATH", "CODEX_HOME", "PWD", "NIGHTPORTER_HOME"}
	for name, json := range map[string]string{
		"confined": open.json, "network": under(cwdURI, profile("enabled", root)), "full access": under(cwdURI, `{"type":"disabled"}`),
		"external": under(cwdURI, `{"type":"external","network":"enabled"}`),
	} {
		t.Run(name, func(t *testing.T) {
			run := func(how implementation) []string {
				w := newWorld(t, os.Getuid())
				defer w.harm(t, map[string]bool{})
				end, out := w.exec(t, how, state{json: json, tmpdir: "{W}/tmp"}, "/usr/bin/env", "-0", "MADE_UP=a b")
				if end.code != 0 {
					t.Fatalf("%s ended with %d: %s", how.name, end.code, end.stderr)
				}
				var vars []string
				for _, v := range strings.Split(strings.TrimRight(strings.ReplaceAll(out, w.dir, "{W}"), "\x00"), "\x00") {
					if key, _, _ := strings.Cut(v, "="); !slices.Contains(own, key) {
						vars = append(vars, v)
					}
				}
				slices.Sort(vars)
				return vars
			}
			theirs := run(reference)
			for _, how := range mechanisms {
				if vars := run(how); !slices.Equal(vars, theirs) {
					t.Errorf("%s: %q, Codex: %q", how.name, vars, theirs)
				}
			}
		})
	}
}

// TestNothingIsLeftInTheFolders looks for what enforcing a state leaves on disk: folders to mount on, for example.
func TestNothingIsLeftInTheFolders(t *testing.T) {
	for _, s := range []state{
		{name: "nothing protected exists", json: workspaceWrite("restricted"), tmpdir: "{W}/tmp", setup: remove("cwd/.git", "cwd/.agents", "cwd/.codex", "cwd/.aws")},
		{name: "a missing path deep inside write", json: managed(root, entry("cwd", "write"), entry("cwd/sub/missing/below", "read"))},
	} {
		for _, how := range mechanisms {
			t.Run(s.name+", "+how.name, func(t *testing.T) {
				w := newWorld(t, os.Getuid())
				defer w.harm(t, map[string]bool{})
				if s.setup != nil {
					s.setup(t, w)
				}
				before := tree(t, w.dir)
				end, _ := w.exec(t, how, s, w.tools.probe, "true")
				t.Logf("exit code %d %s", end.code, end.stderr)
				if after := tree(t, w.dir); !slices.Equal(before, after) {
					for _, path := range after {
						if !slices.Contains(before, path) {
							t.Errorf("left behind: %s", path)
						}
					}
					for _, path := range before {
						if !slices.Contains(after, path) {
							t.Errorf("gone: %s", path)
						}
					}
				}
			})
		}
	}
}

func tree(t *testing.T, dir string) []string {
	t.Helper()
	var paths []string
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}
