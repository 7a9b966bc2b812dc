//go:build linux && !procgroup

package proc

import (
	"bytes"
	"errors"
	"math"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const waitAll = unix.WALL

// self is this process's executable, also when the file was replaced or removed since.
func self() string { return "/proc/self/exe" }

// prepareOwner makes this process the one that inherits the orphans of a guard that was killed.
var prepareOwner = sync.OnceValue(func() error {
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
})

// prepareGuard makes the guard the parent of every orphan of its tree, gives it its name, and
// keeps every descriptor but the streams from the program.
func prepareGuard() error {
	// Also what the owner itself inherited by accident. Before Linux 5.11 the control
	// socket alone is kept, which the caller has seen to.
	_ = unix.CloseRange(controlFD, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	// As PR_SET_NAME of the main thread. It is for the eye and for pkill; the guard works without.
	_ = os.WriteFile("/proc/self/comm", []byte(guardComm), 0)
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

func programAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

func socketPair() (ours, its *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, errors.Join(err, unix.Close(fds[0]), unix.Close(fds[1]))
	}
	return os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "guard's control"), nil
}

// identity is a process for good, where a pid alone is given again.
type identity struct {
	pid   int
	start uint64 // in clock ticks since boot
}

// process is one line of the process table.
type process struct {
	identity
	parent, session int
	state           byte
}

func (p process) zombie() bool { return p.state == 'Z' || p.state == 'X' }

// children returns the pids of a process's children. It is no snapshot: it may skip some while others come and
// go (proc_pid_task(5)). Who must miss nothing looks until nothing new is found.
func children(pid int) []int {
	tasks := "/proc/" + strconv.Itoa(pid) + "/task/"
	var all []int
	for _, task := range numbers(tasks) {
		b, err := os.ReadFile(tasks + strconv.Itoa(task) + "/children")
		if err != nil {
			continue // the thread has ended; its children are another's now
		}
		for f := range bytes.FieldsSeq(b) {
			if child, err := strconv.Atoi(string(f)); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}

// childrenFiles reports whether the kernel was built with task/*/children. They take
// microseconds, and so catch a process that lives only for milliseconds. Reading the whole table may not: without them a
// tree that forks all the time can outrun a sweep, though not a guard (measured).
var childrenFiles = sync.OnceValue(func() bool {
	_, err := os.Stat("/proc/thread-self/children")
	return err == nil
})

// familyTable reads all processes for what children reads from files.
func familyTable() func(pid int) []int {
	below := make(map[int][]int)
	for _, pid := range numbers("/proc") {
		if p, ok := lookup(pid); ok {
			below[p.parent] = append(below[p.parent], pid)
		}
	}
	return func(pid int) []int { return below[pid] }
}

// kinship returns the better of the two.
func kinship() func(pid int) []int {
	if childrenFiles() {
		return children
	}
	return familyTable()
}

// numbers returns the entries of a directory that are numbers.
func numbers(path string) (all []int) {
	dir, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			all = append(all, n)
		}
	}
	return all
}

// lookup reads one line of the process table.
func lookup(pid int) (process, bool) {
	return parseStat(readSome("/proc/"+strconv.Itoa(pid)+"/stat", make([]byte, 1024)))
}

// readSome reads a file of /proc into buf by plain system calls; os.ReadFile takes twice as many.
func readSome(path string, buf []byte) []byte {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return nil
	}
	return buf[:n]
}

// parseStat parses /proc/PID/stat (proc_pid_stat(5)). The second field is the program's name in parentheses, in which it may
// hold spaces, parentheses and newlines of its own; no later field does.
func parseStat(b []byte) (process, bool) {
	open, shut := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || shut < open {
		return process{}, false
	}
	f := bytes.Fields(b[shut+1:]) // f[0] is field 3
	if len(f) < 20 || len(f[0]) != 1 {
		return process{}, false
	}
	p := process{state: f[0][0]}
	var err [4]error
	p.pid, err[0] = strconv.Atoi(string(bytes.TrimSpace(b[:open])))
	p.parent, err[1] = strconv.Atoi(string(f[1]))
	p.session, err[2] = strconv.Atoi(string(f[3]))
	p.start, err[3] = strconv.ParseUint(string(f[19]), 10, 64)
	return p, errors.Join(err[:]...) == nil && p.pid > 0
}

// descend calls visit for those children of a process for which take is true and for all that is below those, a parent
// before its children: what visit does to a process is done before its children are looked for.
func descend(pid int, take func(process) bool, visit func(process)) {
	children := kinship()
	var below func(pid int, take func(process) bool)
	below = func(pid int, take func(process) bool) {
		for _, child := range children(pid) {
			if p, ok := lookup(child); ok && p.parent == pid && take(p) {
				visit(p)
				below(child, everyone)
			}
		}
	}
	below(pid, take)
}

func everyone(process) bool { return true }

// signal sends sig to exactly this process, not to one that got its pid since.
func (p process) signal(sig unix.Signal) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	switch {
	case err == nil:
		defer unix.Close(fd)
		if now, ok := lookup(p.pid); ok && now.start == p.start {
			_ = unix.PidfdSendSignal(fd, sig, nil, 0)
		}
	case err != unix.ESRCH: // no pidfd: a kernel before 5.3, or no descriptor is left
		if now, ok := lookup(p.pid); ok && now.start == p.start {
			_ = unix.Kill(p.pid, sig)
		}
	}
}

// members is the guard's tree: its descendants.
type members struct {
	told, killed map[identity]bool // who was sent TERM, and KILL
}

func newMembers(int) *members {
	return &members{told: make(map[identity]bool), killed: make(map[identity]bool)}
}

// terminate sends TERM to the tree. Stopped processes are woken, so that they can act on it.
func (m *members) terminate() {
	clear(m.told)
	m.terminateNew()
}

// terminateNew sends TERM to who was not sent it before: a second one makes some programs drop what they are saving.
func (m *members) terminateNew() {
	descend(os.Getpid(), everyone, func(p process) {
		if !m.told[p.identity] && !p.zombie() {
			m.told[p.identity] = true
			p.signal(unix.SIGTERM)
			p.signal(unix.SIGCONT)
		}
	})
}

// kill sends KILL to the tree and reports whether it found somebody to send it to for the first time.
func (m *members) kill() (found bool) {
	for _, p := range killBelow(everyone) {
		if !m.killed[p.identity] && !p.zombie() {
			m.killed[p.identity] = true
			found = true
		}
	}
	return found
}

// left is asked when the guard has no child. Orphans of the tree become children of the guard before
// their parent can be reaped, so there is no process left then.
func (m *members) left() bool { return false }

const (
	// freezePasses bounds how often killBelow looks for processes that were born while it stopped their
	// parents. A stopped process cannot fork, so that each pass leaves fewer that can. The caller has to reap in
	// between: thousands of zombies make a pass slower than what it chases (measured).
	freezePasses = 16
	// quietPasses is how many passes must find nobody new: one may just have missed a birth.
	quietPasses = 3
)

// killBelow ends the children of this process for which take is true and all that is below those. They
// are stopped first: a tree that forks faster than it is killed cannot outrun a process that stops it,
// because what is stopped takes its place and no more. It returns whom it found, zombies included.
func killBelow(take func(process) bool) []process {
	known := make(map[identity]bool)
	var found []process
	for pass, quiet := 0, 0; pass < freezePasses && quiet < quietPasses; pass++ {
		quiet++
		descend(os.Getpid(), take, func(p process) {
			if known[p.identity] {
				return
			}
			if !p.zombie() {
				p.signal(unix.SIGSTOP)
				quiet = 0
			}
			known[p.identity] = true
			found = append(found, p)
		})
	}
	for _, p := range found {
		if !p.zombie() {
			p.signal(unix.SIGKILL)
		}
	}
	return found
}

// unreadable is how many passes of a sweep a process may be without environment, which it is
// for an instant while it executes another program, before it counts as a stranger that has none.
const unreadable = 20

// sweep ends what a guard that was killed left of its tree: what carries its mark, what is in its session, and
// what is below those. All of it is below this process, which adopted the orphans, and reaps them here. program
// is 0 when its pid is not known. The result is its wait status, ok when it was reaped here.
func sweep(mark string, guard, program int) (status unix.WaitStatus, ok bool) {
	self := os.Getpid()
	want := []byte(TreeVariable + "=" + mark)
	blank := make(map[identity]int) // how often a process had no environment
	unsure := false
	ours := func(p process) bool {
		if p.session == guard || p.pid == program {
			return true
		}
		env := environment(p.pid)
		if len(env) == 0 && !p.zombie() {
			blank[p.identity]++
			unsure = unsure || blank[p.identity] < unreadable
		}
		return slices.ContainsFunc(env, func(kv []byte) bool { return bytes.Equal(kv, want) })
	}
	pending := make(map[identity]bool) // found, and not yet gone
	gap := time.NewTimer(0)
	defer gap.Stop()
	for pass, empty := 0, 0; empty < quietPasses; pass++ {
		<-gap.C
		unsure = false
		for _, p := range killBelow(ours) {
			pending[p.identity] = true
		}
		for id := range pending {
			now, there := lookup(id.pid)
			switch {
			case !there || now.identity != id:
				delete(pending, id)
			case !now.zombie():
			case now.parent != self: // that one's to reap
				delete(pending, id)
			default:
				var s unix.WaitStatus
				if got, err := unix.Wait4(id.pid, &s, unix.WNOHANG|unix.WALL, nil); err == nil && got == program {
					status, ok = s, true
				}
				delete(pending, id)
			}
		}
		reapAdopted()
		if empty++; len(pending) > 0 || unsure {
			empty = 0
		}
		if pass < 5*unreadable {
			gap.Reset(pollGap / 2)
		} else { // what is left cannot be killed, only awaited
			gap.Reset(maxKillGap)
		}
	}
	return status, ok
}

// environment returns the entries of a process's environment, as it was when it was started. It is empty for a
// process that has ended, that is of another user, or that is executing another program.
func environment(pid int) [][]byte {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil || len(b) == 0 {
		return nil
	}
	return bytes.Split(b, []byte{0})
}

// reapAdopted reaps children that ended and that this process did not start: orphans that it
// adopted as a subreaper, from trees and from children that others started with os/exec.
// What was started with os/exec is left to who started it. It is told apart by
// its pidfd: package os holds one for each process until it was waited for, from clone(2) on.
func reapAdopted() {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	if err != nil || info.Signo == 0 || !osHoldsPidfds() {
		return // nothing to reap, as nearly always
	}
	var ended []int
	for _, pid := range kinship()(os.Getpid()) {
		if p, ok := lookup(pid); ok && p.state == 'Z' {
			ended = append(ended, pid)
		}
	}
	held := pidfds() // after the children: what was started in between has one
	for _, pid := range ended {
		if !held[pid] {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}

// osHoldsPidfds reports whether package os holds pidfds: from Linux 5.4 on, unless a sandbox forbids them.
var osHoldsPidfds = sync.OnceValue(func() bool {
	p, err := os.FindProcess(os.Getpid())
	if err != nil {
		return false
	}
	defer func() { _ = p.Release() }()
	return p.WithHandle(func(uintptr) {}) == nil
})

// pidfds returns the pids for which this process holds a pidfd (pidfd_open(2)).
func pidfds() map[int]bool {
	held := make(map[int]bool)
	dir, err := os.Open("/proc/self/fdinfo")
	if err != nil {
		return held
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	buf := make([]byte, 4096)
	for _, name := range names {
		for line := range bytes.Lines(readSome("/proc/self/fdinfo/"+name, buf)) {
			if v, ok := bytes.CutPrefix(line, []byte("Pid:")); ok {
				if pid, err := strconv.Atoi(string(bytes.TrimSpace(v))); err == nil {
					held[pid] = true
				}
			}
		}
	}
	return held
}
