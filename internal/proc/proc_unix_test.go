//go:build unix

package proc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// roleVariable makes the test binary play a part in place of running tests.
const roleVariable = "PROC_TEST_ROLE"

var roles = map[string]func(){
	"owner":       ownerRole,
	"interrupted": interruptedRole,
}

func TestMain(m *testing.M) {
	if role := roles[os.Getenv(roleVariable)]; role != nil {
		role()
		return
	}
	goleak.VerifyTestMain(m)
}

// patience bounds what must happen soon, on a machine under load too.
const patience = 20 * time.Second

func shell(script string, args ...string) Command {
	return Command{
		Path: "/bin/sh", Args: append([]string{"-c", script, "sh"}, args...),
		Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/",
	}
}

// start starts a tree that ends with the test.
func start(t *testing.T, c Command) (*Tree, *bufio.Reader) {
	t.Helper()
	tree, err := Start(c)
	if err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, tree.Stderr)
	t.Cleanup(func() {
		tree.Kill()
		wait(t, tree.Done(), "the tree's end")
		_, _ = tree.Stdout.Close(), tree.Stderr.Close()
	})
	if err := tree.Stdout.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return tree, bufio.NewReader(tree.Stdout)
}

func wait(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("waited %v for %s", patience, what)
	}
}

func line(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	s, err := r.ReadString('\n')
	if err != nil {
		t.Fatalf("read a line: %v after %q", err, s)
	}
	return strings.TrimSuffix(s, "\n")
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func say(t *testing.T, tree *Tree, s string) {
	t.Helper()
	if _, err := io.WriteString(tree.Stdin, s+"\n"); err != nil {
		t.Fatal(err)
	}
}

func TestExitIsThatOfTheProgram(t *testing.T) {
	for script, want := range map[string]Exit{
		"exit 0":         {},
		"exit 7":         {Code: 7},
		"exit 255":       {Code: 255},
		"kill -KILL $$":  {Code: -1, Signal: "killed"},
		"kill -TERM $$":  {Code: -1, Signal: "terminated"},
		"kill -INT $$":   {Code: -1, Signal: "interrupt"},
		"exec /bin/true": {},
	} {
		tree, _ := start(t, shell(script))
		wait(t, tree.Exited(), "the program's end")
		if got := tree.Exit(); got != want {
			t.Errorf("%s: %v, want %v", script, got, want)
		}
		wait(t, tree.Done(), "the tree's end")
		if err := tree.Interrupt(); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("Interrupt after the end = %v", err)
		}
		if err := tree.Terminate(); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("Terminate after the end = %v", err)
		}
		tree.Kill() // does nothing
	}
}

func TestStreamsAreTheProgramsOwn(t *testing.T) {
	tree, out := start(t, Command{
		Path: "/bin/sh", Args: []string{"-c", `echo "$1|$A|$(pwd)"; cat; echo done; echo fault >&2`, "sh", "a b\xff"},
		Env: []string{"PATH=/usr/bin:/bin", "A=*"}, Dir: "/usr",
	})
	if got, want := line(t, out), "a b\xff|*|/usr"; got != want {
		t.Errorf("arguments, environment, directory: %q, want %q", got, want)
	}
	say(t, tree, "one")
	if got := line(t, out); got != "one" {
		t.Errorf("got %q", got)
	}
	if err := tree.Stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if got := line(t, out); got != "done" {
		t.Errorf("after the end of its input the program said %q", got)
	}
	if rest, err := io.ReadAll(out); err != nil || len(rest) > 0 {
		t.Errorf("output does not end with the program: %q, %v", rest, err)
	}
}

func TestAStreamThatTheProgramClosesEnds(t *testing.T) {
	tree, out := start(t, shell("exec <&- >&-; exec sleep 1000"))
	if b, err := io.ReadAll(out); err != nil || len(b) > 0 {
		t.Errorf("output: %q, %v", b, err)
	}
	if _, err := io.WriteString(tree.Stdin, "x"); !errors.Is(err, unix.EPIPE) {
		t.Errorf("write to the input that nobody holds: %v", err)
	}
	select {
	case <-tree.Exited():
		t.Errorf("the program ended: %v", tree.Exit())
	default:
	}
}

func TestEnvironmentIsTheGivenOneAndTheMark(t *testing.T) {
	c := Command{Path: "/usr/bin/env", Env: []string{"A=1", TreeVariable + "=of-an-outer-tree", "B=2"}}
	tree, out := start(t, c)
	b, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(b), fmt.Sprintf("A=1\nB=2\n%s=%s\n", TreeVariable, tree.mark); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if len(c.Env) != 3 || c.Env[2] != "B=2" {
		t.Errorf("the caller's environment was changed: %q", c.Env)
	}
}

func TestCloseAndDeadlineEndAWaitingRead(t *testing.T) {
	tree, _ := start(t, shell("read x"))
	if err := tree.Stdout.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := tree.Stdout.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read = %v", err)
	}
	if err := tree.Stdout.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := tree.Stdout.Read(make([]byte, 1))
		result <- err
	}()
	_ = tree.Stdout.Close()
	select {
	case err := <-result:
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("read = %v", err)
		}
	case <-time.After(patience):
		t.Error("the read still waits")
	}
}

func TestStartErrorsSayWhatAndWhy(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode fs.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain := write("plain", "#!/bin/sh\n", 0o600)
	lost := write("lost", "#!/nonexistent/interpreter\n", 0o700)
	for name, test := range map[string]struct {
		c    Command
		is   error
		says string
	}{
		"missing program":     {Command{Path: dir + "/none"}, fs.ErrNotExist, "program: no such file"},
		"folder":              {Command{Path: dir}, fs.ErrPermission, "a directory"},
		"not executable":      {Command{Path: plain}, fs.ErrPermission, "permission denied"},
		"missing interpreter": {Command{Path: lost}, fs.ErrNotExist, "interpreter"},
		"relative":            {Command{Path: "sh"}, nil, "not absolute"},
		"missing dir":         {Command{Path: "/bin/sh", Dir: dir + "/none"}, fs.ErrNotExist, "working directory: no such file"},
		"dir is a file":       {Command{Path: "/bin/sh", Dir: plain}, nil, "not a directory"},
		"relative dir":        {Command{Path: "/bin/sh", Dir: "."}, nil, "not absolute"},
		"NUL in an argument":  {Command{Path: "/bin/sh", Dir: dir, Args: []string{"\x00"}}, unix.EINVAL, "invalid argument"},
		"too much":            {Command{Path: "/bin/sh", Env: []string{"A=" + strings.Repeat("x", 8<<20)}}, unix.E2BIG, "too long"},
		"far too much":        {Command{Path: "/bin/sh", Env: []string{"A=" + strings.Repeat("x", 17<<20)}}, nil, "at most"},
	} {
		c := test.c
		c.Args, c.Env = append(c.Args, "--key=hush"), append(c.Env, "KEY=hush")
		tree, err := Start(c)
		if err == nil {
			tree.Kill()
			t.Errorf("%s: started", name)
			continue
		}
		if test.is != nil && !errors.Is(err, test.is) {
			t.Errorf("%s: %v is no %v", name, err, test.is)
		}
		for _, want := range []string{c.Path, c.Dir, test.says} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", name, err, want)
			}
		}
		if strings.Contains(err.Error(), "hush") || len(err.Error()) > 400 {
			t.Errorf("%s: the error tells arguments or environment: %.400q", name, err)
		}
	}
}

// interruptedRole says "int" when it is interrupted. It has a child in its group that would end.
func interruptedRole() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGINT)
	child := exec.Command("/bin/cat")
	in, _ := child.StdinPipe()
	if err := child.Start(); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(child.Process.Pid)
	<-c
	fmt.Println("int")
	io.Copy(io.Discard, os.Stdin)
	in.Close()
	if err := child.Wait(); err != nil {
		fmt.Println(err)
	}
}

func TestInterruptReachesTheProgramOnly(t *testing.T) {
	tree, out := start(t, Command{Path: testBinary(t), Env: []string{roleVariable + "=interrupted"}})
	line(t, out) // the child is there
	if err := tree.Interrupt(); err != nil {
		t.Fatal(err)
	}
	if got := line(t, out); got != "int" {
		t.Fatalf("the program said %q", got)
	}
	_ = tree.Stdin.Close()
	if rest, err := io.ReadAll(out); err != nil || len(rest) > 0 {
		t.Errorf("its child ended otherwise than at the end of its input: %s, %v", rest, err)
	}
	wait(t, tree.Exited(), "the program's end")
}

func testBinary(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestStopClimbsNoHigherThanItMust(t *testing.T) {
	const long, short = time.Hour, 50 * time.Millisecond
	for name, test := range map[string]struct {
		script string
		grace  Grace
		want   Exit
	}{
		"ends with its input": {"echo; read x; exit 3", Grace{long, long}, Exit{Code: 3}},
		"ends at TERM":        {"echo; exec sleep 1000", Grace{short, long}, Exit{Code: -1, Signal: "terminated"}},
		"catches TERM":        {"trap 'exit 4' TERM; echo; while :; do sleep 0.01; done", Grace{short, long}, Exit{Code: 4}},
		"ignores TERM":        {"trap '' TERM; echo; exec sleep 1000", Grace{short, short}, Exit{Code: -1, Signal: "killed"}},
		"is stopped":          {"echo; kill -STOP $$; exec sleep 1000", Grace{short, long}, Exit{Code: -1, Signal: "terminated"}},
	} {
		t.Run(name, func(t *testing.T) {
			tree, out := start(t, shell(test.script))
			line(t, out)
			if err := tree.Stop(t.Context(), test.grace); err != nil {
				t.Fatal(err)
			}
			if got := tree.Exit(); got != test.want {
				t.Errorf("%v, want %v", got, test.want)
			}
			if err := tree.Stop(t.Context(), test.grace); err != nil {
				t.Errorf("a second Stop: %v", err)
			}
		})
	}
}

func TestStopWhoseContextEndedStillEndsTheTree(t *testing.T) {
	tree, out := start(t, shell("trap '' TERM; echo; exec sleep 1000"))
	line(t, out)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tree.Stop(ctx, Grace{time.Hour, time.Hour}); err != nil {
		t.Fatal(err)
	}
	if got := tree.Exit().Signal; got != "killed" {
		t.Errorf("ended by %q", got)
	}
}

// ownerRole starts the script in its environment, passes its output on and never ends by itself.
func ownerRole() {
	tree, err := Start(shell(os.Getenv("PROC_TEST_SCRIPT")))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d\n%d\n%s\n", tree.guard.Pid, tree.PID(), tree.mark)
	io.Copy(os.Stdout, tree.Stdout)
	select {}
}

// owner is another process that owns a tree.
type owner struct {
	process        *os.Process
	guard, program int
	mark           string
	out            *bufio.Reader
}

func startOwner(t *testing.T, script string) *owner {
	t.Helper()
	cmd := exec.Command(testBinary(t))
	cmd.Env = []string{"PATH=/usr/bin:/bin", roleVariable + "=owner", "PROC_TEST_SCRIPT=" + script}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = r.Close()
	})
	if err := r.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	o := &owner{process: cmd.Process, out: bufio.NewReader(r)}
	o.guard, o.program, o.mark = number(t, line(t, o.out)), number(t, line(t, o.out)), line(t, o.out)
	return o
}

// The program's output is its owner's output, so its end is seen without a look at the process table.
func TestProgramAndGroupEndWhenTheOwnerIsKilled(t *testing.T) {
	o := startOwner(t, "echo; exec 3>/dev/null; sleep 1000 & exec sleep 1000")
	line(t, o.out)
	if err := o.process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the program's end", func() bool { return unix.Kill(-o.program, 0) == unix.ESRCH })
}

func TestProgramAndGroupEndWhenTheGuardIsKilled(t *testing.T) {
	tree, out := start(t, shell("echo; sleep 1000 & exec sleep 1000"))
	line(t, out)
	if err := tree.guard.Kill(); err != nil {
		t.Fatal(err)
	}
	wait(t, tree.Done(), "the tree's end")
	if got := tree.Exit(); got != (Exit{Code: -1, Signal: "killed"}) {
		t.Errorf("the program: %v", got)
	}
	eventually(t, "the group's end", func() bool { return unix.Kill(-tree.PID(), 0) == unix.ESRCH })
}

// A guard that is killed makes this process look at all its children, while others start and await theirs.
func TestTreesAndOthersChildrenInParallelDoNotDisturbEachOther(t *testing.T) {
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for range 4 {
				if worker%2 == 0 {
					cmd := exec.Command("/bin/sh", "-c", "exit 3")
					if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 3 {
						t.Errorf("another's child: %v", err)
					}
					continue
				}
				tree, err := Start(shell("exec cat"))
				if err != nil {
					t.Error(err)
					return
				}
				want := Exit{Code: -1, Signal: "killed"}
				switch worker {
				case 1, 3:
					_ = tree.guard.Kill()
				case 5:
					tree.Kill()
				default:
					_ = tree.Stdin.Close()
					want = Exit{}
				}
				<-tree.Done()
				if got := tree.Exit(); got != want {
					t.Errorf("worker %d: %v, want %v", worker, got, want)
				}
				_, _ = tree.Stdout.Close(), tree.Stderr.Close()
			}
		})
	}
	all.Wait()
}

// eventually polls, for what no descriptor tells.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for !f() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

func TestGuardOutlastsSignalsThatAskItToEnd(t *testing.T) {
	tree, out := start(t, shell("while read x; do echo $x; done"))
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1} {
		if err := unix.Kill(tree.guard.Pid, sig); err != nil {
			t.Fatal(err)
		}
		say(t, tree, sig.String())
		if got := line(t, out); got != sig.String() {
			t.Errorf("after %v: %q", sig, got)
		}
	}
	if err := tree.Stop(t.Context(), Grace{patience, patience}); err != nil || tree.Exit() != (Exit{}) {
		t.Errorf("then stopped: %v, %v", tree.Exit(), err)
	}
}

func TestKillReachesThroughAStoppedGuard(t *testing.T) {
	tree, _ := start(t, shell("exec sleep 1000"))
	if err := unix.Kill(tree.guard.Pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	tree.Kill()
	wait(t, tree.Done(), "the tree's end")
}
