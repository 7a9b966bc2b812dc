//go:build linux && (amd64 || arm64)

package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"nightporter/test/programs"
)

// executorVariable makes this test binary an executor: its value is Options as JSON.
const executorVariable = "NIGHTPORTER_TEST_EXECUTOR"

func TestMain(m *testing.M) {
	if raw := os.Getenv(executorVariable); raw != "" {
		var o Options
		if err := json.Unmarshal([]byte(raw), &o); err != nil {
			panic(err)
		}
		code, err := Run(o)
		if err != nil {
			fmt.Fprintln(os.Stderr, "executor:", err)
		}
		os.Exit(code)
	}
	if os.Getenv(jobVariable) != "" {
		os.Exit(job())
	}
	code := withExecutor(m.Run)
	for _, name := range protected {
		// Executors that tests kill leave these. An empty /tmp/.git makes a project of every folder in /tmp for agents.
		_ = os.Remove(filepath.Join("/tmp", name))
	}
	os.Exit(code)
}

// executorProgram is a copy of this test binary that every user can execute. It is made before anything is started:
// a file that is still being written cannot be executed, and a child born meanwhile would keep it open.
var executorProgram string

func withExecutor(run func() int) int {
	dir, err := os.MkdirTemp("/tmp", "np-sandbox-test-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	executorProgram = filepath.Join(dir, "executor")
	program, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = errors.Join(os.Chmod(dir, 0o755), os.WriteFile(executorProgram, program, 0o755))
	}
	if err != nil {
		panic(err)
	}
	return run()
}

const nobody = 65534

// users are whom commands run as: root can more than others, and most users are not root.
func users() []int {
	if os.Geteuid() != 0 {
		return []int{os.Geteuid()}
	}
	return []int{0, nobody}
}

// world is a folder that every user can read, and one user.
type world struct {
	testing.TB
	dir  string
	user int
}

func newWorld(t testing.TB, user int) *world {
	dir, err := os.MkdirTemp("/tmp", "np sandbox é-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := &world{TB: t, dir: dir, user: user}
	w.must(os.Chmod(dir, 0o755))
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// folder makes a folder that belongs to the user.
func (w *world) folder(name string) string {
	at := filepath.Join(w.dir, name)
	w.must(os.MkdirAll(at, 0o755))
	if os.Geteuid() == 0 {
		for dir := at; dir != w.dir; dir = filepath.Dir(dir) {
			w.must(os.Chown(dir, w.user, w.user))
		}
	}
	return at
}

func (w *world) file(name, text string) string {
	at := filepath.Join(w.dir, name)
	w.must(os.WriteFile(at, []byte(text), 0o600))
	if os.Geteuid() == 0 {
		w.must(os.Chown(at, w.user, w.user))
	}
	return at
}

// cmd is an executor that runs a shell script under a state.
func (w *world) cmd(m Mechanism, s State, script string) *exec.Cmd {
	o := Options{
		State: s, Argv: []string{"/bin/sh", "-c", script}, Mechanism: m,
		Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "D=" + w.dir, "LC_ALL=C"},
	}
	return w.executor(o)
}

func (w *world) executor(o Options) *exec.Cmd {
	raw, err := json.Marshal(o)
	w.must(err)
	cmd := exec.Command(executorProgram)
	cmd.Env = []string{executorVariable + "=" + string(raw)}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(w.user), Gid: uint32(w.user)}}
	}
	return cmd
}

// run runs a script to its end.
func (w *world) run(m Mechanism, s State, script string) (out string, code int) {
	w.Helper()
	return w.result(w.cmd(m, s, script))
}

func (w *world) result(cmd *exec.Cmd) (out string, code int) {
	w.Helper()
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.Fatal(err)
	}
	return b.String(), cmd.ProcessState.ExitCode()
}

// usable are the mechanisms that this machine has. In CI all of them must be there.
func usable(t testing.TB) []Mechanism {
	var list []Mechanism
	for _, m := range []Mechanism{Bubblewrap, Namespaces, Landlock} {
		p, err := NewPlan(ReadOnly("/", Restricted), Host{Files: os.DirFS("/"), Getenv: os.Getenv})
		if err != nil {
			t.Fatal(err)
		}
		program, err := os.Open("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		r := &runner{plan: p, options: Options{Mechanism: m, Env: os.Environ()}, program: program}
		_, err = r.choose()
		switch {
		case err == nil:
			list = append(list, m)
		case programs.Strict():
			t.Errorf("a mechanism that must be tested does not work here: %v", err)
		}
		program.Close()
	}
	return list
}

// each runs a test with every mechanism and user.
func each(t *testing.T, only []Mechanism, test func(t *testing.T, m Mechanism, w *world)) {
	t.Helper()
	for _, m := range usable(t) {
		if only != nil && !slices.Contains(only, m) {
			continue
		}
		for _, user := range users() {
			t.Run(fmt.Sprintf("%s/uid %d", m, user), func(t *testing.T) {
				t.Parallel()
				test(t, m, newWorld(t, user))
			})
		}
	}
}

// mounting are the mechanisms that can close a part of what is open.
var mounting = []Mechanism{Bubblewrap, Namespaces}

// try is a script that says of each probe whether it was possible.
const try = `try() { name=$1; shift; if "$@" >/dev/null 2>&1; then echo "$name yes"; else echo "$name no"; fi; }
`

func TestReadOnlyReadsEverythingAndWritesNothing(t *testing.T) {
	each(t, nil, func(t *testing.T, m Mechanism, w *world) {
		dir := w.folder("work")
		w.file("work/file", "text\n")
		out, code := w.run(m, ReadOnly(dir, Restricted), try+`
			try read cat file
			try create touch new
			try append sh -c 'echo x >> file'
			try truncate sh -c ': > file'
			try delete rm file
			try rename mv file other
			try link ln file hard
			try symlink ln -s file soft
			try mkdir mkdir folder
			try chmod chmod 777 file
			try times touch -d 2001-01-01 file
			try fifo mkfifo pipe
			try null sh -c 'echo x > /dev/null'
			try random head -c1 /dev/urandom
			pwd; exit 7`)
		want := "read yes\ncreate no\nappend no\ntruncate no\ndelete no\nrename no\nlink no\nsymlink no\nmkdir no\nchmod no\ntimes no\nfifo no\nnull yes\nrandom yes\n" + dir + "\n"
		if out != want || code != 7 {
			t.Errorf("exit %d\n%s\nwant\n%s", code, out, want)
		}
		if text, err := os.ReadFile(filepath.Join(dir, "file")); string(text) != "text\n" || err != nil {
			t.Errorf("the file holds %q, %v", text, err)
		}
	})
}

func TestWorkspaceWriteKeepsWhatClientsAndGitKeepThere(t *testing.T) {
	each(t, mounting, func(t *testing.T, m Mechanism, w *world) {
		dir := w.folder("work")
		w.folder("work/.codex")
		w.file("work/.codex/config.toml", "a = 1\n")
		w.folder("beside")
		s := WorkspaceWrite(dir, Restricted)
		s.Profile.Files.Entries = slices.DeleteFunc(s.Profile.Files.Entries, func(e Entry) bool { return e.Place.Kind == SlashTmp })
		out, code := w.run(m, s, try+`
			try create touch new
			try chmod chmod 700 new
			try rename mv new newer
			try beside touch "$D/beside/x"
			try git mkdir .git/x
			try replace sh -c 'rmdir .git || mv .git other'
			try hook sh -c 'echo x > .git/config'
			try config sh -c 'echo x > .codex/config.toml'
			try away mv .codex other
			try read cat .codex/config.toml
			ls -A`)
		want := "create yes\nchmod yes\nrename yes\nbeside no\ngit no\nreplace no\nhook no\nconfig no\naway no\nread yes\n.agents\n.aws\n.codex\n.git\nnewer\n"
		if out != want || code != 0 {
			t.Errorf("exit %d\n%s\nwant\n%s", code, out, want)
		}
		left, err := filepath.Glob(filepath.Join(dir, ".*"))
		if err != nil || len(left) != 1 {
			t.Errorf("left behind: %q", left)
		}
	})
}

func TestNestedRulesHold(t *testing.T) {
	each(t, mounting, func(t *testing.T, m Mechanism, w *world) {
		dir := w.folder("work")
		w.folder("work/a/b/c")
		w.file("work/a/file", "f")
		w.file("work/a/b/c/secret", "s")
		w.file("work/secret", "s")
		at := func(name string) Place { return Place{AtPath, filepath.Join(dir, name)} }
		s := ReadOnly(dir, Restricted)
		s.Profile.Files.Entries = append(s.Profile.Files.Entries,
			Entry{Place: at("."), Access: Write}, Entry{Place: at("a/b"), Access: Read}, Entry{Place: at("a/b/c"), Access: None},
			Entry{Place: at("secret"), Access: None}, Entry{Place: at("later/x"), Access: None})
		out, _ := w.run(m, s, try+`
			try write touch a/new
			try narrow touch a/b/new
			try list ls a/b/c
			try secret cat a/b/c/secret
			try file cat secret
			try open chmod 777 a/b/c
			try over sh -c 'rm -f secret; echo x > secret'
			try later mkdir -p later/x
			try away mv a a2`)
		want := "write yes\nnarrow no\nlist no\nsecret no\nfile no\nopen no\nover no\nlater no\naway no\n"
		if out != want {
			t.Errorf("%s\nwant\n%s", out, want)
		}
	})
}

func TestOnlyWhatIsOpenedIsThere(t *testing.T) {
	each(t, mounting, func(t *testing.T, m Mechanism, w *world) {
		dir := w.folder("work")
		w.file("secret", "s")
		s := State{Cwd: dir, Profile: Profile{Type: Managed, Network: Restricted, Files: FileSystem{Entries: []Entry{
			{Place: Place{Kind: Minimal}, Access: Read}, {Place: Place{Kind: ProjectRoots}, Access: Read},
		}}}}
		out, code := w.run(m, s, try+`
			try secret cat "$D/secret"
			try home ls /root
			try programs ls /usr/bin
			try make touch "$D/x"
			try root touch /x`)
		if want := "secret no\nhome no\nprograms yes\nmake no\nroot no\n"; out != want || code != 0 {
			t.Errorf("exit %d\n%s\nwant\n%s", code, out, want)
		}
	})
}

func TestASymbolicLinkDoesNotLeadOut(t *testing.T) {
	each(t, mounting, func(t *testing.T, m Mechanism, w *world) {
		dir := w.folder("work")
		w.folder("outside")
		w.must(os.Symlink("../outside", filepath.Join(dir, "out")))
		s := ReadOnly(dir, Restricted)
		s.Profile.Files.Entries = append(s.Profile.Files.Entries, Entry{Place: Place{AtPath, dir}, Access: Write})
		out, _ := w.run(m, s, try+`
			try through touch out/x
			ln -s "$D/outside" own
			try own touch own/x
			try dots touch ../outside/x`)
		if want := "through no\nown no\ndots no\n"; out != want {
			t.Errorf("%s\nwant\n%s", out, want)
		}
	})
}

func TestExitCodesAreThoseOfTheCommand(t *testing.T) {
	each(t, nil, func(t *testing.T, m Mechanism, w *world) {
		s := ReadOnly("/", Restricted)
		for script, want := range map[string]int{"exit 0": 0, "exit 255": 255, "kill -TERM $$": 143, "kill -KILL $$": 137, "kill -SEGV $$": 139} {
			if out, code := w.run(m, s, script); code != want {
				t.Errorf("%s: exit %d, want %d: %s", script, code, want, out)
			}
		}
		for _, c := range []struct {
			argv []string
			want int
			text string
		}{
			{[]string{"no such program"}, 127, `program "no such program" was not found inside the sandbox, on PATH: /usr/bin`},
			{[]string{"/no/such"}, 127, `program "/no/such" was not found`},
			{[]string{"/etc/passwd"}, 126, `program "/etc/passwd" cannot be executed: permission denied`},
		} {
			out, code := w.result(w.executor(Options{State: s, Argv: c.argv, Env: []string{"PATH=/usr/bin"}, Mechanism: m}))
			if code != c.want || !strings.Contains(out, c.text) {
				t.Errorf("%q: exit %d, want %d: %s", c.argv, code, c.want, out)
			}
		}
	})
}

func TestStreamsArgumentsAndEnvironmentPassThrough(t *testing.T) {
	each(t, nil, func(t *testing.T, m Mechanism, w *world) {
		odd := "\xff\n x=$y"
		cmd := w.executor(Options{
			State: ReadOnly("/", Restricted), Mechanism: m,
			Argv: []string{"/bin/sh", "-c", `cat; printf '%s|%s|%s|%s' "$0" "$1" "$V" "$` + NetworkVariable + `"; env | grep -c NIGHTPORTER; echo err >&2; exec ls /proc/self/fd`, odd, ""},
			Env:  []string{"PATH=/usr/bin:/bin", "V=" + odd},
		})
		cmd.Stdin = strings.NewReader("in\x00put\n")
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		w.must(cmd.Run())
		// JSON of the test's own options changes what is no UTF-8; package-level bytes do not.
		said := strings.ToValidUTF8(out.String(), "\uFFFD")
		want := "in\x00put\n" + "\uFFFD\n x=$y||\uFFFD\n x=$y|1" + "0\n0\n1\n2\n3\n"
		if said != want || errs.String() != "err\n" {
			t.Errorf("%q %q, want %q", said, errs.String(), want)
		}
	})
}

func TestNoCapabilitiesAndNoNewPrivileges(t *testing.T) {
	each(t, nil, func(t *testing.T, m Mechanism, w *world) {
		// exec: under Landlock a command reads its own /proc, and its children do not read theirs.
		out, _ := w.run(m, ReadOnly("/", Enabled), `exec grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status`)
		out = strings.ReplaceAll(out, "\t", "")
		want := "CapInh:0000000000000000\nCapPrm:0000000000000000\nCapEff:0000000000000000\n"
		for _, line := range []string{want, "NoNewPrivs:1\n", "Seccomp:2\n"} {
			if !strings.Contains(out, line) {
				t.Errorf("%s lacks %q", out, line)
			}
		}
		// Root could get back what its bounding set holds.
		if w.user == 0 && !strings.Contains(out, "CapBnd:0000000000000000\n") {
			t.Error(out)
		}
	})
}

func TestWhatBelongsToTheMachineIsNotWritten(t *testing.T) {
	each(t, nil, func(t *testing.T, m Mechanism, w *world) {
		// Opened for writing and nothing written: the machine is this one.
		out, _ := w.run(m, ReadOnly("/", Restricted), `for f in /proc/sys/kernel/core_pattern /proc/sys/kernel/ns_last_pid /proc/irq/default_smp_affinity /sys/kernel/uevent_helper /sys/power/state; do
			[ -e $f ] && ( : >> $f ) 2>/dev/null && echo "$f can be written"; done; true`)
		if out != "" {
			t.Error(out)
		}
	})
}

func TestDisabledRunsAsItIsAndItsNetworkCannotBeClosed(t *testing.T) {
	w := newWorld(t, os.Geteuid())
	s := State{Cwd: w.folder("work"), Profile: Profile{Type: Disabled}}
	o := Options{State: s, Argv: []string{"sh", "-c", "touch made; pwd; exit 3"}, Env: []string{"PATH=/usr/bin:/bin"}}
	if out, code := w.result(w.executor(o)); code != 3 || out != s.Cwd+"\n" {
		t.Errorf("exit %d %s", code, out)
	}
	o.NoNetwork = true
	if out, code := w.result(w.executor(o)); code != codeRefused || !strings.Contains(out, "the network cannot be closed") {
		t.Errorf("exit %d %s", code, out)
	}
	o = Options{State: State{Cwd: "/no/such", Profile: Profile{Type: Disabled}}, Argv: []string{"true"}}
	if out, code := w.result(w.executor(o)); code != codeRefused || !strings.Contains(out, "the state's working directory /no/such") {
		t.Errorf("exit %d %s", code, out)
	}
}

func TestTheTreeEndsWithItsExecutor(t *testing.T) {
	each(t, nil, func(t *testing.T, m Mechanism, w *world) {
		// The write end stays open as long as a process of the tree lives; a session of its own and an ignored HUP
		// are what processes do that want to stay.
		for _, how := range []string{"killed", "command ends"} {
			cmd := w.cmd(m, ReadOnly("/", Restricted), `setsid sh -c 'trap "" HUP TERM INT; echo deep; sleep 1000' & wait`)
			if how == "command ends" {
				cmd = w.cmd(m, ReadOnly("/", Restricted), `setsid sh -c 'trap "" HUP TERM INT; echo deep; sleep 1000' & head -c1 >/dev/null`)
			}
			r, wr, err := os.Pipe()
			w.must(err)
			cmd.Stdout = wr
			stdin, err := cmd.StdinPipe()
			w.must(err)
			w.must(cmd.Start())
			wr.Close()
			b := make([]byte, 5)
			if _, err := io.ReadFull(r, b); err != nil || string(b) != "deep\n" {
				t.Fatalf("%q %v", b, err)
			}
			if how == "killed" {
				w.must(cmd.Process.Kill())
			} else if _, err := stdin.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 { // ends with the last process
				t.Errorf("%s: %q %v", how, rest, err)
			}
			_ = cmd.Wait()
			r.Close()
		}
	})
}

func TestSignalsReachTheCommand(t *testing.T) {
	each(t, nil, func(t *testing.T, m Mechanism, w *world) {
		for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGWINCH} {
			name := strings.TrimPrefix(unix.SignalName(sig), "SIG")
			cmd := w.cmd(m, ReadOnly("/", Restricted), fmt.Sprintf(`trap 'echo got; exit 5' %s; echo ready; while :; do sleep 1000 & wait; done`, name))
			out, err := cmd.StdoutPipe()
			w.must(err)
			w.must(cmd.Start())
			b := make([]byte, 6)
			if _, err := io.ReadFull(out, b); err != nil {
				t.Fatal(err)
			}
			w.must(cmd.Process.Signal(sig))
			rest, _ := io.ReadAll(out)
			_ = cmd.Wait()
			if string(rest) != "got\n" || cmd.ProcessState.ExitCode() != 5 {
				t.Errorf("%s: %q, exit %d", name, rest, cmd.ProcessState.ExitCode())
			}
		}
	})
}

func TestAFolderMadeToMountOverGoesWithItsLastCommand(t *testing.T) {
	w := newWorld(t, os.Geteuid())
	at := filepath.Join(w.folder("work"), ".git")
	first, err := makeTargets([]string{at})
	w.must(err)
	second, err := makeTargets([]string{at})
	w.must(err)
	removeTargets(first)
	if _, err := os.Stat(at); err != nil {
		t.Errorf("gone while another command needs it: %v", err)
	}
	removeTargets(second)
	if _, err := os.Stat(at); err == nil {
		t.Error("left behind")
	}
	// One that was left by a SIGKILL goes with the next command; somebody's own empty folder stays.
	left, err := makeTargets([]string{at})
	w.must(err)
	unix.Close(left[0].fd)
	next, err := makeTargets([]string{at})
	w.must(err)
	removeTargets(next)
	if _, err := os.Stat(at); err == nil {
		t.Error("what a SIGKILL left behind stays")
	}
	w.must(os.Mkdir(at, 0o755))
	own, err := makeTargets([]string{at})
	w.must(err)
	removeTargets(own)
	if _, err := os.Stat(at); err != nil {
		t.Errorf("somebody's own folder was taken away: %v", err)
	}
}

// Commands that come and go in one folder make and take away what is mounted over, each under the others' eyes: a folder of another's
// that is there when a command is planned may be gone when it is started.
func TestCommandsOfOneFolderDoNotDisturbEachOther(t *testing.T) {
	const each, atOnce = 12, 6
	w := newWorld(t, os.Geteuid())
	at := filepath.Join(w.dir, "shared")
	w.must(os.Mkdir(at, 0o777))
	w.must(os.Chmod(at, 0o1777))
	s := WorkspaceWrite(at, Restricted)
	places := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for _, m := range usable(t) {
		if !slices.Contains(mounting, m) {
			continue
		}
		for _, user := range users() {
			for range each {
				other := &world{TB: t, dir: w.dir, user: user}
				cmd := other.cmd(m, s, "echo ran; touch .git/x 2>/dev/null && echo wrote")
				all.Go(func() {
					places <- struct{}{}
					defer func() { <-places }()
					if out, err := cmd.CombinedOutput(); string(out) != "ran\n" {
						t.Errorf("%s as %d: %v, %s", m, user, err, out)
					}
				})
			}
		}
	}
	all.Wait()
	left, err := os.ReadDir(at)
	w.must(err)
	if os.Geteuid() != 0 && len(left) > 0 || len(left) > len(protected) {
		t.Errorf("left behind is %v", left)
	}
}
