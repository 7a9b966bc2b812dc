package sandbox

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"pgregory.net/rapid"
)

// host is a small file system: names that end in / are folders, "link -> to" are links, others are files.
func host(names ...string) Host {
	files := fstest.MapFS{}
	for _, name := range names {
		name, to, link := strings.Cut(name, " -> ")
		switch {
		case link:
			files[name[1:]] = &fstest.MapFile{Mode: fs.ModeSymlink | 0o777, Data: []byte(to)}
		case strings.HasSuffix(name, "/"):
			files[strings.Trim(name, "/")] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
		default:
			name, data, _ := strings.Cut(name, "=")
			files[name[1:]] = &fstest.MapFile{Data: []byte(data)}
		}
	}
	return Host{Files: files, Getenv: func(string) string { return "" }}
}

// entries reads "read /a", "write root", "none glob /a/*".
func entries(lines ...string) []Entry {
	var list []Entry
	for _, line := range lines {
		f := strings.Fields(line)
		e := Entry{Access: Access(f[0])}
		switch {
		case f[1] == "glob":
			e.Place = Place{Glob, f[2]}
		case f[1] == "roots":
			e.Place = Place{ProjectRoots, strings.Join(f[2:], "")}
		case strings.HasPrefix(f[1], "/"):
			e.Place = Place{AtPath, f[1]}
		default:
			e.Place = Place{Kind: PlaceKind(f[1])}
		}
		list = append(list, e)
	}
	return list
}

func managed(lines ...string) State {
	return State{Cwd: "/w", Profile: Profile{Type: Managed, Network: Restricted, Files: FileSystem{Entries: entries(lines...)}}}
}

func (r Rule) String() string {
	if r.Missing {
		return "missing " + r.Path
	}
	return string(r.Access) + " " + r.Path
}

func ruleText(rules []Rule) string {
	var lines []string
	for _, r := range rules {
		lines = append(lines, r.String())
	}
	return strings.Join(lines, ", ")
}

// The right side is what codex sandbox 0.171.0 mounted for the same state, but for the folders that are pinned.
func TestAStateComesToTheRulesThatCodexEnforces(t *testing.T) {
	unixOnly(t)
	names := []string{
		"/w/a/b/c/", "/w/real/", "/w/file", "/out/", "/tmp/", "/usr/bin/", "/etc/", "/l -> w/real", "/lout -> /out", "/dangling -> /nowhere",
	}
	const own = "missing %[1]s/.agents, missing %[1]s/.aws, missing %[1]s/.codex, missing %[1]s/.git"
	keep := func(root string) string { return fmt.Sprintf(own, root) }
	for _, c := range []struct {
		entries []string
		want    string
	}{
		{[]string{"read root"}, "read /"},
		{nil, "none /"},
		{[]string{"none root", "read /usr"}, "none /, read /usr"},
		{[]string{"read minimal"}, "none /, read /etc, read /usr"},
		{[]string{"write root", "none /w/a", "read /w/real"}, "write /, write /w, none /w/a, read /w/real"},
		{[]string{"read root", "write /w"}, "read /, write /w, " + keep("/w")},
		{[]string{"read root", "write roots"}, "read /, write /w, " + keep("/w")},
		{[]string{"read root", "write roots a"}, "read /, write /w/a, " + keep("/w/a")},
		{[]string{"read root", "write roots ../out"}, "read /, write /out, " + keep("/out")},
		{[]string{"read root", "write slash_tmp"}, "read /, write /tmp, " + keep("/tmp")},
		{[]string{"read root", "write tmpdir"}, "read /"}, // it is not set
		{[]string{"read root", "write /w/file"}, "read /, write /w/file"},
		{
			[]string{"read root", "write /w", "read /w/a", "write /w/a/b", "none /w/a/b/c"},
			"read /, write /w, " + keep("/w") + ", read /w/a, write /w/a/b, " + keep("/w/a/b") + ", none /w/a/b/c",
		},
		{[]string{"read root", "write /w/missing"}, "read /"},
		{[]string{"read root", "read /w/missing/x", "none /w/missing/y"}, "read /"},
		{[]string{"read root", "write /w", "read /w/missing/x"}, "read /, write /w, " + keep("/w") + ", missing /w/missing"},
		{[]string{"read root", "write /w", "none /w/missing/x"}, "read /, write /w, " + keep("/w") + ", missing /w/missing"},
		{[]string{"read root", "none /w/a", "read /w/a/b"}, "read /, none /w/a"}, // stays closed
		{[]string{"read root", "none /w/a", "write /w/a/b"}, "read /, none /w/a, write /w/a/b, " + keep("/w/a/b")},
		{[]string{"read root", "write /w/a", "read /w/a"}, "read /, write /w/a, " + keep("/w/a")},
		{[]string{"read root", "write /w/a", "none /w/a", "read /w/a"}, "read /, none /w/a"},
		{[]string{"read root", "write /l"}, "read /, write /w/real, " + keep("/w/real")},
		{[]string{"read root", "none /lout"}, "read /, none /out"},
		{[]string{"read root", "write /dangling"}, "read /"},
		{[]string{"read root", "write /w", "none glob /w/*/b"}, "read /, write /w, " + keep("/w") + ", write /w/a, none /w/a/b"},
		{[]string{"read root", "none glob /w/**/c"}, "read /, none /w/a/b/c"},
		{[]string{"read root", "none glob f*"}, "read /, none /w/file"},
		{[]string{"read root", "write glob /w/*", "read glob /w/*"}, "read /"},
		{[]string{"read root", "write unknown"}, "read /"},
		// A folder between what may be written and what may not cannot be moved away.
		{[]string{"read root", "write /w", "read /w/a/b/c"}, "read /, write /w, " + keep("/w") + ", write /w/a, write /w/a/b, read /w/a/b/c"},
	} {
		p, err := NewPlan(managed(c.entries...), host(names...))
		if err != nil {
			t.Errorf("%q: %v", c.entries, err)
			continue
		}
		want := strings.Split(c.want, ", ")
		slices.SortStableFunc(want, func(a, b string) int {
			pa, pb := strings.Fields(a)[1], strings.Fields(b)[1]
			if d := depth(pa) - depth(pb); d != 0 {
				return d
			}
			return strings.Compare(pa, pb)
		})
		if got := ruleText(p.Rules); got != strings.Join(want, ", ") {
			t.Errorf("%q comes to\n%s, want\n%s", c.entries, got, strings.Join(want, ", "))
		}
	}
}

func TestAStateWithoutADefiniteMeaningIsRefused(t *testing.T) {
	unixOnly(t)
	names := []string{"/w/a/", "/w/link -> a", "/w/file", "/w/gone -> nowhere", "/w2/.codex -> a", "/w2/a/", "/loop -> /loop", "/x/"}
	for _, c := range []struct {
		entries []string
		tmpdir  string
		want    string
	}{
		{[]string{"read root", "write /w", "read /w/link"}, "", "/w/link goes through the symbolic link /w/link, which the command could change"},
		{[]string{"read root", "write /w", "none /w/link"}, "", "goes through the symbolic link"},
		{[]string{"read root", "write /w", "write /w/link"}, "", "goes through the symbolic link"},
		{[]string{"read root", "write /w", "read /w/gone"}, "", "goes through the symbolic link"},
		{[]string{"read root", "write /w2"}, "", "/w2/.codex goes through the symbolic link"},
		{[]string{"read root", "write /w", "read /w/file/x"}, "", "/w/file is no folder, which the command could change"},
		{[]string{"read root", "read /loop"}, "", "more than 40 symbolic links"},
		{[]string{"read root", "none minimal"}, "", "minimal cannot be closed"},
		{[]string{"read root", "none unknown"}, "", "not known here"},
		{[]string{"read root", "write tmpdir"}, "x/y", `TMPDIR is "x/y", which is not an absolute path`},
		{[]string{"read root", "none glob /**/x"}, "", "is about the whole file system"},
		{[]string{"read root", "none glob /w/{a,b}"}, "", "braces or backslashes"},
		{[]string{"read root", "none glob /w/[a"}, "", "malformed"},
	} {
		h := host(names...)
		h.Getenv = func(string) string { return c.tmpdir }
		if p, err := NewPlan(managed(c.entries...), h); err == nil {
			t.Errorf("%q comes to %s", c.entries, ruleText(p.Rules))
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %q lacks %q", c.entries, err, c.want)
		}
	}
}

func TestWhatGitPointsToIsProtectedToo(t *testing.T) {
	unixOnly(t)
	for _, pointer := range []string{"gitdir: ../repo/worktrees/w\n", "gitdir: /repo/worktrees/w"} {
		p, err := NewPlan(managed("read root", "write /w", "write /repo"), host("/w/.git="+pointer, "/repo/worktrees/w/"))
		if err != nil {
			t.Fatal(err)
		}
		got := ruleText(p.Rules)
		for _, want := range []string{"read /w/.git", "read /repo/worktrees/w", "write /repo/worktrees, "} {
			if !strings.Contains(got+", ", want) {
				t.Errorf("%q: %s lacks %s", pointer, got, want)
			}
		}
	}
}

func TestExternalIsReadOnlyAndNothingAskedIsNothingEnforced(t *testing.T) {
	unixOnly(t)
	for _, c := range []struct {
		profile Profile
		want    string
	}{
		{Profile{Type: External, Network: Enabled}, "read / network=false"},
		{Profile{Type: External, Network: Restricted}, "read / network=false"},
		{Profile{Type: Disabled}, "unconfined"},
		{Profile{Type: Managed, Network: Enabled, Files: FileSystem{Unrestricted: true}}, "unconfined"},
		{Profile{Type: Managed, Network: Restricted, Files: FileSystem{Unrestricted: true}}, "write / network=false"},
	} {
		p, err := NewPlan(State{Cwd: "/w", Profile: c.profile}, host("/w/"))
		got := fmt.Sprintf("%s network=%v", ruleText(p.Rules), p.Network)
		if p.Unconfined {
			got = "unconfined"
		}
		if err != nil || got != c.want {
			t.Errorf("%+v: %s %v, want %s", c.profile, got, err, c.want)
		}
	}
}

func TestReadableRootsOpenAndNeverNarrow(t *testing.T) {
	unixOnly(t)
	h := host("/w/a/", "/usr/", "/data/x/", "/shut/in/")
	h.Readable = []string{"/data", "a", "/w/a", "/shut/in"}
	p, err := NewPlan(managed("none root", "read /usr", "write /w/a", "none /shut"), h)
	if err != nil {
		t.Fatal(err)
	}
	got := ruleText(p.Rules)
	if !strings.Contains(got, "read /data") || !strings.Contains(got, "write /w/a") || strings.Contains(got, "/shut/in") {
		t.Error(got)
	}
	h.Readable = []string{"/nowhere"}
	if _, err := NewPlan(managed("none root"), h); err == nil || !strings.Contains(err.Error(), "/nowhere does not exist") {
		t.Errorf("a readable root that is not there: %v", err)
	}
}

func TestClosedPathsAreClosedWhateverTheStateSays(t *testing.T) {
	unixOnly(t)
	h := host("/run/np/", "/w/", "/link -> run/np")
	h.Closed = []string{"/run/np", "/link", "/not/there"}
	for _, lines := range [][]string{{"read root"}, {"read root", "write /run/np"}, {"write root"}} {
		p, err := NewPlan(managed(lines...), h)
		if err != nil || !strings.Contains(ruleText(p.Rules), "none /run/np") {
			t.Errorf("%q: %s %v", lines, ruleText(p.Rules), err)
		}
	}
}

func TestTheSeatbeltProfileOfAPlan(t *testing.T) {
	unixOnly(t)
	s := managed("read root", "write /w", "none /w/a/b", "read /w/.git")
	p, err := NewPlan(s, host("/w/a/b/", `/w/q"/`, "/w/.git/", "/w/.aws/", "/w/.codex/"))
	if err != nil {
		t.Fatal(err)
	}
	want := seatbeltBase + `(allow file-read* (subpath "/"))
(deny file-write* (subpath "/"))
(allow file-read* file-write* (subpath "/w"))
(allow file-read-metadata (literal "/"))
(allow file-read* (subpath "/w/.agents"))
(deny file-write* (subpath "/w/.agents"))
(allow file-read-metadata (literal "/w"))
(allow file-read* (subpath "/w/.aws"))
(deny file-write* (subpath "/w/.aws"))
(allow file-read* (subpath "/w/.codex"))
(deny file-write* (subpath "/w/.codex"))
(allow file-read* (subpath "/w/.git"))
(deny file-write* (subpath "/w/.git"))
(allow file-read* file-write* (subpath "/w/a"))
(deny file-read* file-write* (subpath "/w/a/b"))
(deny file-write-unlink (literal "/w"))
(deny file-write-unlink (literal "/w"))
(deny file-write-unlink (literal "/w"))
(deny file-write-unlink (literal "/w"))
(deny file-write-unlink (literal "/w/a"))
(deny file-write-unlink (literal "/w"))
` + seatbeltDevices
	if got := seatbelt(p); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	p.Network = true
	if got := seatbelt(p); got != want+seatbeltNetwork {
		t.Errorf("with network:\n%s", got)
	}
	if got := sbplString("a\"b\\c"); got != `"a\"b\\c"` {
		t.Errorf("a path with a quote is written %s, and would end the string", got)
	}
}

// TestTheLongestPathDecides holds any plan against the rule that a person would go by: of the entries that a path lies
// in the longest decides, of equally long ones none, then write, then read.
func TestTheLongestPathDecides(t *testing.T) {
	unixOnly(t)
	var all []string
	for _, a := range []string{"a", "b"} {
		for _, b := range []string{"a", "b"} {
			for _, c := range []string{"a", "b"} {
				all = append(all, path.Join("/", a, b, c)+"/")
			}
		}
	}
	h := host(all...)
	paths := []string{"/"}
	_ = fs.WalkDir(h.Files, ".", func(p string, _ fs.DirEntry, _ error) error {
		if p != "." {
			paths = append(paths, "/"+p)
		}
		return nil
	})
	rapid.Check(t, func(t *rapid.T) {
		s := State{Cwd: "/", Profile: Profile{Type: Managed, Network: Restricted}}
		for range rapid.IntRange(0, 6).Draw(t, "entries") {
			s.Profile.Files.Entries = append(s.Profile.Files.Entries, Entry{
				Place:  Place{AtPath, rapid.SampledFrom(paths).Draw(t, "path")},
				Access: rapid.SampledFrom([]Access{Read, Write, None}).Draw(t, "access"),
			})
		}
		p, err := NewPlan(s, h)
		if err != nil {
			t.Fatal(err)
		}
		if p.Unconfined {
			return
		}
		for _, at := range paths {
			if got, want := decided(p.Rules, at), expected(s.Profile.Files.Entries, at); got != want {
				t.Fatalf("%s is %s by the plan %s, and %s by the entries %v", at, got, ruleText(p.Rules), want, s.Profile.Files.Entries)
			}
		}
	})
}

// decided is what rules say of a path, as mounts do: the last that it lies in.
func decided(rules []Rule, at string) Access {
	var a Access
	for _, r := range rules {
		if at == r.Path || r.Path == "/" || strings.HasPrefix(at, r.Path+"/") {
			a = r.Access
		}
	}
	return a
}

// expected is what entries say of a path.
func expected(entries []Entry, at string) Access {
	chain := []string{at}
	for at != "/" {
		at = path.Dir(at)
		chain = append(chain, at)
	}
	slices.Reverse(chain)
	access, below := None, true // nothing is closed explicitly yet
	for _, dir := range chain {
		var here Access
		for _, a := range []Access{Read, Write, None} {
			if slices.Contains(entries, Entry{Place: Place{AtPath, dir}, Access: a}) {
				here = a
			}
		}
		switch {
		case here == "":
		case here == Read && access == None && !below: // a closed folder stays closed for reading
		default:
			access = here
			below = dir == "/"
		}
	}
	return access
}
