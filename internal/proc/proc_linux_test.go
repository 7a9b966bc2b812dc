//go:build linux && !procgroup

package proc

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// A family is a script that starts children in every way that real agents do, each of which
// writes its pid, and then runs what follows.
const (
	// child is in the program's group, as an agent's server is.
	child = `sh -c 'echo $$; exec sleep 1000' & `
	// session is in a session of its own, as an agent's shell tool is.
	session = `setsid sh -c 'echo $$; exec sleep 1000' & `
	// orphan's parent has ended, and it is in a session of its own.
	orphan = `(setsid sh -c 'echo $$; exec sleep 1000' & ) ; `
	// bare has no mark, but is in the tree's session.
	bare = `(env -i /bin/sh -c 'echo $$; exec sleep 1000' & ) ; `
	// stranger has no mark, no parent and a session of its own.
	stranger = `(env -i setsid /bin/sh -c 'echo $$; exec sleep 1000' & ) ; `
	// deaf ignores TERM.
	deaf = `(setsid sh -c 'trap "" TERM; echo $$; exec sleep 1000' & ) ; `

	family      = child + session + orphan + bare + stranger
	familySize  = 5
	untilEOF    = `while read x; do :; done; exit 5`
	restOfTheir = `wait; sleep 1000`
)

// kin reads the pids that a family of n wrote, and checks that they live.
func kin(t *testing.T, out *bufio.Reader, n int) []process {
	t.Helper()
	var all []process
	for range n {
		p, ok := lookup(number(t, line(t, out)))
		if !ok {
			t.Fatal("a process of the family has ended by itself")
		}
		all = append(all, p)
	}
	return all
}

// left returns those that are still in the process table, zombies included.
func left(all []process) (still []process) {
	for _, p := range all {
		if now, ok := lookup(p.pid); ok && now.start == p.start {
			still = append(still, now)
		}
	}
	return still
}

func assertGone(t *testing.T, mark string, all []process) {
	t.Helper()
	if still := left(all); len(still) > 0 {
		t.Errorf("left: %+v", still)
	}
	assertNoMark(t, mark)
}

func assertNoMark(t *testing.T, mark string) {
	t.Helper()
	for _, p := range withMark(mark) {
		t.Errorf("process %+v carries the tree's mark", p)
	}
}

func withMark(mark string) (found []process) {
	for _, pid := range numbers("/proc") {
		for _, kv := range environment(pid) {
			if string(kv) == TreeVariable+"="+mark {
				p, _ := lookup(pid)
				found = append(found, p)
			}
		}
	}
	return found
}

func TestKillEndsTheWholeTree(t *testing.T) {
	tree, out := start(t, shell(family+deaf+restOfTheir))
	all := kin(t, out, familySize+1)
	tree.Kill()
	wait(t, tree.Done(), "the tree's end")
	assertGone(t, tree.mark, all)
	if got := tree.Exit().Signal; got != "killed" {
		t.Errorf("the program ended by %q", got)
	}
	if rest, err := io.ReadAll(out); err != nil || len(rest) > 0 {
		t.Errorf("output after Done: %q, %v", rest, err)
	}
}

func TestTerminateReachesTheWholeTree(t *testing.T) {
	tree, out := start(t, shell(`trap : TERM; `+family+`wait; wait; read x; exit 5`))
	all := kin(t, out, familySize)
	if err := tree.Terminate(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of all but the program", func() bool { return len(left(all)) == 0 })
	_ = tree.Stdin.Close()
	wait(t, tree.Done(), "the tree's end")
	if got := tree.Exit().Code; got != 5 {
		t.Errorf("the program, which caught TERM, ended with %v", tree.Exit())
	}
}

func TestTheProgramsOwnEndEndsTheRest(t *testing.T) {
	for name, extra := range map[string]string{"which ends at TERM": session, "which ignores TERM": deaf} {
		t.Run(name, func(t *testing.T) {
			tree, out := start(t, shell(family+extra+untilEOF))
			all := kin(t, out, familySize+1)
			_ = tree.Stdin.Close()
			wait(t, tree.Done(), "the tree's end")
			assertGone(t, tree.mark, all)
			if got := tree.Exit().Code; got != 5 {
				t.Errorf("the program ended with %v", tree.Exit())
			}
		})
	}
}

func TestNothingIsLeftWhenTheOwnerIsKilled(t *testing.T) {
	o := startOwner(t, family+deaf+restOfTheir)
	all := append(kin(t, o.out, familySize+1), process{identity: identity{pid: o.program}})
	if p, ok := lookup(o.guard); ok {
		all = append(all, p)
	}
	if err := o.process.Kill(); err != nil {
		t.Fatal(err)
	}
	// The guard becomes a zombie of this process, a subreaper, until a tree ends here; it is
	// the only one that may.
	eventually(t, "the end of the tree", func() bool {
		for _, p := range left(all) {
			if p.pid != o.guard || !p.zombie() {
				return false
			}
		}
		return len(withMark(o.mark)) == 0
	})
}

func TestNothingThatCanBeKnownIsLeftWhenTheGuardIsKilled(t *testing.T) {
	tree, out := start(t, shell(child+session+orphan+bare+deaf+restOfTheir))
	all := kin(t, out, 5)
	if err := tree.guard.Kill(); err != nil {
		t.Fatal(err)
	}
	wait(t, tree.Exited(), "the program's end")
	wait(t, tree.Done(), "the tree's end")
	assertGone(t, tree.mark, all)
	if got := tree.Exit().Signal; got != "killed" {
		t.Errorf("the program ended by %q", got)
	}
	assertNoZombies(t)
}

// When owner and guard are killed in the same instant, the kernel ends the program (Pdeathsig), and
// nobody is left who could end the rest: orphans go to init, and only see their pipes close. What
// would be needed is a cgroup or a PID namespace, which need rights that Nightporter does not ask for.
func TestTheProgramEndsWhenOwnerAndGuardAreKilled(t *testing.T) {
	o := startOwner(t, session+restOfTheir)
	rest := kin(t, o.out, 1)
	program, ok := lookup(o.program)
	if !ok {
		t.Fatal("the program has ended by itself")
	}
	// Neither can act before both are killed.
	for _, sig := range []unix.Signal{unix.SIGSTOP, unix.SIGKILL} {
		for _, pid := range []int{o.guard, o.process.Pid} {
			if err := unix.Kill(pid, sig); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "the program's end", func() bool {
		now := left([]process{program})
		return len(now) == 0 || now[0].zombie()
	})
	for _, p := range rest {
		p.signal(unix.SIGKILL) // this test's own
	}
	eventually(t, "the end of the rest", func() bool { return len(withMark(o.mark)) == 0 })
}

// hop is a process that starts its successor, in a session of its own, and ends: what is
// killed by a list of pids was somebody else a moment ago.
func hop(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hop")
	script := "[ $1 -gt 0 ] || exit\n" + "setsid /bin/sh " + path + " $(($1-1)) &\n"
	if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The loop is bounded, at some minutes, for the case that the test fails.
const runners = `for i in 1 2 3 4; do sh "$1" 50000 & done; sleep 0.1; echo; sleep 1000`

func TestATreeThatForksAllTheTimeCannotOutrunKill(t *testing.T) {
	tree, out := start(t, shell(runners, hop(t)))
	line(t, out)
	tree.Kill()
	wait(t, tree.Done(), "the tree's end")
	assertNoMark(t, tree.mark)
}

func TestATreeThatForksAllTheTimeCannotOutrunTheSweep(t *testing.T) {
	if !childrenFiles() {
		t.Skip("this kernel has no task/*/children")
	}
	tree, out := start(t, shell(runners, hop(t)))
	line(t, out)
	if err := tree.guard.Kill(); err != nil {
		t.Fatal(err)
	}
	wait(t, tree.Done(), "the tree's end")
	assertNoMark(t, tree.mark)
	assertNoZombies(t)
}

func assertNoZombies(t *testing.T) {
	t.Helper()
	var zombies []process
	for _, pid := range familyTable()(os.Getpid()) {
		if p, ok := lookup(pid); ok && p.zombie() {
			zombies = append(zombies, p)
		}
	}
	if n := len(zombies); n > 0 {
		t.Errorf("%d zombies, such as %+v", n, zombies[0])
	}
}

func TestTreesLeaveNoZombieDescriptorOrGoroutine(t *testing.T) {
	var before string
	trees := 100
	if testing.Short() {
		trees = 10
	}
	for i := range trees {
		if i == 1 { // after what is opened once, such as the poller
			before = descriptors(t)
		}
		script := "read x"
		if i%10 == 0 {
			script = session + orphan + "read x"
		}
		tree, err := Start(shell(script))
		if err != nil {
			t.Fatal(err)
		}
		switch i % 3 {
		case 0:
			tree.Kill()
		case 1:
			_ = tree.Stdin.Close()
		case 2:
			_ = tree.guard.Kill()
		}
		wait(t, tree.Done(), "the tree's end")
		assertNoMark(t, tree.mark)
		_, _ = tree.Stdout.Close(), tree.Stderr.Close()
		if i%10 == 5 {
			if _, err := Start(shell("", string(rune(0)))); err == nil {
				t.Fatal("started with a NUL in an argument")
			}
		}
	}
	if after := descriptors(t); after != before {
		t.Errorf("descriptors before:\n%s\nafter:\n%s", before, after)
	}
	assertNoZombies(t)
	goleak.VerifyNone(t, goleak.IgnoreCurrent())
}

// descriptors lists this process's open files but the one that lists them.
func descriptors(t *testing.T) string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			fmt.Fprintf(&b, "%s %s\n", e.Name(), to)
		}
	}
	return b.String()
}

func TestProgramInheritsItsStreamsAndNothingElse(t *testing.T) {
	stray, err := unix.FcntlInt(0, unix.F_DUPFD, 20) // not close-on-exec
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(stray)
	_, out := start(t, shell(`for fd in /proc/self/fd/*; do [ -e /proc/$$/fd/${fd##*/} ] && echo ${fd##*/}; done
for i in 3 4 5 6 7 8 9 `+strconv.Itoa(stray)+`; do [ -e /proc/$$/fd/$i ] && echo $i; done
cat /proc/self/fdinfo/0 /proc/self/fdinfo/1 /proc/self/fdinfo/2 | grep flags
grep -E 'SigBlk|SigIgn' /proc/self/status`))
	b, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	// The flags are O_RDONLY, O_WRONLY and O_LARGEFILE of 64-bit systems: none is non-blocking.
	got := strings.Fields(string(b))
	var numbers, flags, masks []string
	for i, f := range got {
		switch {
		case i > 0 && strings.HasPrefix(got[i-1], "flags:"):
			flags = append(flags, f)
		case i > 0 && strings.HasPrefix(got[i-1], "Sig"):
			masks = append(masks, f)
		case !strings.HasSuffix(f, ":"):
			numbers = append(numbers, f)
		}
	}
	if s := strings.Join(numbers, " "); s != "0 1 2" {
		t.Errorf("descriptors %s", s)
	}
	for _, f := range flags {
		if n, err := strconv.ParseInt(f, 8, 64); err != nil || n&unix.O_NONBLOCK != 0 {
			t.Errorf("flags %s: not blocking, %v", f, err)
		}
	}
	for _, m := range masks {
		if strings.Trim(m, "0") != "" {
			t.Errorf("signals ignored or blocked: %s", masks)
		}
	}
	if len(flags) != 3 || len(masks) != 2 {
		t.Errorf("flags %q, masks %q of %s", flags, masks, b)
	}
}

func TestCommandLinesTellNothing(t *testing.T) {
	c := shell("read x", "odd\xff\n", "")
	c.Env = append(c.Env, "KEY=hush")
	tree, _ := start(t, c)
	read := func(pid int, name string) string {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if got, want := read(tree.PID(), "cmdline"), strings.Join(append([]string{c.Path}, c.Args...), "\x00")+"\x00"; got != want {
		t.Errorf("the program's command line is %q, want %q", got, want)
	}
	if got := read(tree.guard.Pid, "cmdline"); got != guardName+"\x00" {
		t.Errorf("the guard's command line is %q", got)
	}
	if got := read(tree.guard.Pid, "comm"); got != guardComm+"\n" {
		t.Errorf("the guard's comm is %q", got)
	}
	if env := read(tree.guard.Pid, "environ"); strings.Contains(env, "hush") {
		t.Error("the guard's environment holds the program's")
	}
	p, _ := lookup(tree.PID())
	if p.parent != tree.guard.Pid || p.session != tree.guard.Pid {
		t.Errorf("the program is %+v, its guard %d", p, tree.guard.Pid)
	}
}

func TestChildrenOfOthersAreLeftAlone(t *testing.T) {
	ended := exec.Command("/bin/sh", "-c", "exit 3")
	alive := exec.Command("/usr/bin/setsid", "/bin/cat")
	input, err := alive.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	// An orphan that another's child leaves: this process must reap it, being a subreaper.
	hold, release, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	tree, _ := start(t, shell("exec sleep 1000"))
	parent := exec.Command("/bin/sh", "-c", "(exec 3<&0; cat <&3 >/dev/null 2>&1 & echo $!)")
	parent.Stdin = hold
	pid, err := parent.Output()
	if err != nil {
		t.Fatal(err)
	}
	_ = hold.Close()
	left, ok := lookup(number(t, string(bytes.TrimSpace(pid))))
	if !ok || left.parent != os.Getpid() {
		t.Fatalf("the orphan %+v was not adopted by %d", left, os.Getpid())
	}
	for _, cmd := range []*exec.Cmd{ended, alive} {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	zombie := func(pid int) func() bool {
		return func() bool { p, ok := lookup(pid); return ok && p.zombie() }
	}
	_ = release.Close()
	eventually(t, "the orphan's end", zombie(left.pid))
	eventually(t, "the child's end", zombie(ended.Process.Pid))

	_ = tree.guard.Kill()
	wait(t, tree.Done(), "the tree's end")

	if err := ended.Wait(); err == nil || ended.ProcessState.ExitCode() != 3 {
		t.Errorf("the child that ended: %v", err)
	}
	if p, ok := lookup(alive.Process.Pid); !ok || p.zombie() {
		t.Error("the child that lived was ended")
	}
	_ = input.Close()
	if err := alive.Wait(); err != nil {
		t.Errorf("the child that lived: %v", err)
	}
	if p, ok := lookup(left.pid); ok && p.start == left.start {
		t.Errorf("the orphan was not reaped: %+v", p)
	}
}

func TestChildrenAreTheSameByFilesAndByTable(t *testing.T) {
	if !childrenFiles() {
		t.Skip("this kernel has no task/*/children")
	}
	tree, out := start(t, shell(child+session+`read x`))
	kin(t, out, 2)
	files, table := children(tree.PID()), familyTable()(tree.PID())
	slices.Sort(files)
	slices.Sort(table)
	if len(files) != 2 || !slices.Equal(files, table) {
		t.Errorf("by files %v, by table %v", files, table)
	}
}

func FuzzParseStat(f *testing.F) {
	self, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(self)
	f.Add([]byte("12 (a) b (c) S 1 12 12 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 777 0 0"))
	f.Add([]byte("1 (x) Z 0"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := parseStat(b)
		if ok && p.pid <= 0 {
			t.Errorf("%q: %+v", b, p)
		}
	})
}

func TestParseStatIsNotMisledByTheProgramsName(t *testing.T) {
	got, ok := parseStat([]byte("12 (a) S 9 9 (\nc) R 34 56 78 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 777 0 0\n"))
	if want := (process{identity: identity{12, 777}, parent: 34, session: 78, state: 'R'}); !ok || got != want {
		t.Errorf("%+v, %v, want %+v", got, ok, want)
	}
}
