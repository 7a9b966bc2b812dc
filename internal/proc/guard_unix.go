//go:build unix

package proc

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// guardName is the guard's argv[0]. Its comm is guardComm, so that neither
	// `pkill nightporter` by exact name nor `killall nightporter` ends guards with their owner.
	guardName = "nightporter-guard"
	guardComm = "np-guard"
	// guardVariable says, together with argv[0], that this process is to be a guard.
	guardVariable = "NIGHTPORTER_GUARD"
	// controlFD is the guard's end of the socket pair.
	controlFD = 3
)

// The hook is an init function and not a call in main for two reasons: every binary that
// imports this package can be its own guard, test binaries included, and the packages that
// depend on this one are not initialised in guards.
func init() {
	if len(os.Args) == 1 && os.Args[0] == guardName && os.Getenv(guardVariable) != "" {
		// Not os.Exit: hooks at exit, such as those of coverage, have no business in the guard.
		unix.Exit(runGuard())
	}
}

// guard is the state of the process between owner and program. One goroutine, the one that
// initialises the packages, does everything but reading commands, so that no
// child can be reaped, and its pid be given to a stranger, between a look at it and a signal to it.
type guard struct {
	control *os.File
	program int  // pid; also its process group
	ended   bool // the program was reaped
	members *members
	killAt  time.Time
	killGap time.Duration // between two KILLs; 0 before the first
	tick    *time.Ticker
}

const (
	// pollGap is how often an ending tree is looked at: nothing tells that a process
	// that TERM missed was born, or, but on Linux, that a descendant has ended.
	pollGap = 20 * time.Millisecond
	// maxKillGap bounds how often a guard tries again to kill what cannot be killed at once.
	maxKillGap = time.Second
)

// runGuard is the guard's main function. It returns its exit status: 0 says that nothing is left of the tree.
func runGuard() int {
	unix.CloseOnExec(controlFD)
	if err := prepareGuard(); err != nil {
		return 1
	}
	// The guard stays whatever is sent to it, short of KILL. Signals are caught and not
	// ignored, because ignored signals stay ignored in the program.
	unheard := make(chan os.Signal, 1)
	signal.Notify(unheard, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM)
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)

	if err := unix.SetNonblock(controlFD, true); err != nil {
		return 1
	}
	g := &guard{control: os.NewFile(controlFD, "control")}
	s, err := readSpec(g.control)
	if err != nil {
		return 0 // the owner ended before the program was started
	}
	// Package initialisation runs on the main thread and is locked to it. That matters on Linux: the
	// program's Pdeathsig is sent when the thread that started it ends, and the main thread ends with the process.
	g.program, err = syscall.ForkExec(s.Path, append([]string{s.Path}, s.Args...), &syscall.ProcAttr{
		Dir: s.Dir, Env: s.Env, Files: []uintptr{0, 1, 2}, Sys: programAttr(),
	})
	if err != nil {
		errno, ok := err.(syscall.Errno)
		if !ok {
			errno = unix.EINVAL
		}
		g.report(startFailed, uint32(errno))
		return 0
	}
	if err := letGo(); err != nil {
		return 1 // an owner that waits for the end of a stream must not wait for the guard
	}
	g.report(programStarted, uint32(g.program))

	g.members = newMembers(g.program)
	g.tick = time.NewTicker(time.Hour)
	g.tick.Stop()
	commands := g.commands()
	for {
		select {
		case c, ok := <-commands:
			switch {
			case !ok:
				commands = nil
				g.end()
			case c == interruptProgram:
				if !g.ended {
					_ = unix.Kill(g.program, unix.SIGINT)
				}
			case c == terminateTree:
				g.members.terminate()
			case c == killTree:
				g.kill()
			}
		case <-children:
		case <-g.tick.C:
			switch {
			case time.Now().After(g.killAt):
				g.kill()
			case g.killGap == 0: // TERM's time: somebody was born while it was sent
				g.members.terminateNew()
			}
		}
		if left := g.reap(); !left {
			return 0
		}
	}
}

// letGo gives up the program's streams, which otherwise would not end with it, and the working directory.
func letGo() error {
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(null)
	for fd := range 3 {
		if err := unix.Dup2(null, fd); err != nil {
			return err
		}
	}
	return unix.Chdir("/")
}

// commands reads what the owner wants. The channel is closed when the owner is gone.
func (g *guard) commands() chan byte {
	c := make(chan byte)
	go func() {
		defer close(c)
		b := make([]byte, 16)
		for {
			n, err := g.control.Read(b)
			for _, command := range b[:n] {
				c <- command
			}
			if err != nil {
				return
			}
		}
	}()
	return c
}

// report tells the owner. That it cannot be told means that it is gone, which commands notices.
func (g *guard) report(kind byte, value uint32) {
	_, _ = g.control.Write(report{kind, value}.encode())
}

// end begins the end of the tree: TERM now, KILL after leftoverGrace.
func (g *guard) end() {
	if g.killAt.IsZero() {
		g.members.terminateNew()
		g.killAt = time.Now().Add(leftoverGrace)
		g.tick.Reset(pollGap)
	}
}

// kill ends the tree now. It is called again while something is left, ever less often once nobody new is found.
func (g *guard) kill() {
	g.killGap = min(max(2*g.killGap, pollGap), maxKillGap)
	if g.members.kill() {
		g.killGap = pollGap
	}
	g.killAt = time.Now().Add(g.killGap)
	g.tick.Reset(pollGap)
}

// reap takes the exit status of every child that has ended, and reports whether something of the tree is left.
func (g *guard) reap() bool {
	ended := false
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG|waitAll, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil: // ECHILD: no child is left
			return g.members.left()
		case pid == 0:
			if ended {
				g.end()
			}
			return true
		case pid == g.program:
			g.ended, ended = true, true
			g.report(programEnded, uint32(status))
		}
	}
}
