//go:build unix && (!linux || procgroup)

// The tree of systems without subreapers is the program's process group: best effort. On
// Linux the tag procgroup builds this in place of members_linux.go, to test it there.

package proc

import (
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const waitAll = 0

var executable = sync.OnceValue(func() string {
	path, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return path
})

func self() string { return executable() }

func prepareOwner() error { return nil }

func prepareGuard() error { return nil }

func programAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func socketPair() (ours, its *os.File, err error) {
	syscall.ForkLock.RLock() // nobody forks before both are close-on-exec
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		_, _ = unix.Close(fds[0]), unix.Close(fds[1])
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "guard's control"), nil
}

// members is the program's process group.
type members struct {
	group int
	told  bool // was sent TERM
}

func newMembers(program int) *members { return &members{group: program} }

func (m *members) terminate() {
	m.told = true
	_ = unix.Kill(-m.group, unix.SIGTERM)
	_ = unix.Kill(-m.group, unix.SIGCONT)
}

// terminateNew sends TERM once: who was born since cannot be told from who was there.
func (m *members) terminateNew() {
	if !m.told {
		m.terminate()
	}
}

func (m *members) kill() bool {
	_ = unix.Kill(-m.group, unix.SIGKILL)
	return false
}

// left reports whether the group has a process. The guard has no child when it is asked: they are orphans, which init reaps.
func (m *members) left() bool { return unix.Kill(-m.group, 0) != unix.ESRCH }

// sweep ends the group of a guard that was killed, if the program is known (0: no). How the program ended stays
// unknown: it is not a child of this process. The wait is bounded, because a group's number may be given again.
func sweep(_ string, _, program int) (unix.WaitStatus, bool) {
	if program <= 0 {
		return 0, false
	}
	group := newMembers(program)
	group.kill()
	tick := time.NewTicker(pollGap)
	defer tick.Stop()
	for end := time.Now().Add(killWait); group.left() && time.Now().Before(end); {
		<-tick.C
	}
	return 0, false
}

func reapAdopted() {}
