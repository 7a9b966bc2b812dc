//go:build unix

package proc

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// startWait bounds the start of a guard and its program. It is milliseconds; a machine
// that takes longer than this will not run the program either.
const startWait = 30 * time.Second

// Tree is a running program with everything that it starts.
type Tree struct {
	// Stdin, Stdout and Stderr are the owner's ends of the program's streams. They are pipes that
	// take deadlines, and Close ends a read or write that waits. The streams end when the last
	// process that holds them does, after Done at the latest. Stdout and Stderr must be read, and are closed by
	// who reads them; Stdin may be closed at any time and is closed when the tree is done.
	Stdin, Stdout, Stderr *os.File

	pid     int
	mark    string
	guard   *os.Process
	control *os.File
	send    sync.Mutex
	exited  chan struct{}
	done    chan struct{}
	exit    Exit
}

// Start starts the program under a guard. The program runs when Start returns nil; otherwise nothing is left
// behind, and the error says which program in which directory and why. It wraps
// [fs.ErrNotExist] or [fs.ErrPermission] where that is the reason.
func Start(c Command) (*Tree, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := prepareOwner(); err != nil {
		return nil, c.failed(fmt.Errorf("prepare for orphans: %w", err))
	}
	t := &Tree{mark: rand.Text(), exited: make(chan struct{}), done: make(chan struct{})}
	request, err := spec{Path: c.Path, Dir: c.Dir, Args: c.Args, Env: marked(c.Env, t.mark)}.encode()
	if err != nil {
		return nil, c.failed(err)
	}
	if err := t.startGuard(); err != nil {
		return nil, c.failed(fmt.Errorf("start its guard: %w", err))
	}
	if err := t.handshake(request); err != nil {
		_ = t.control.Close() // the guard ends what there may be
		if state, err := t.guard.Wait(); err != nil || !state.Success() {
			sweep(t.mark, t.guard.Pid, t.pid)
		}
		reapAdopted()
		t.closeStreams()
		return nil, c.failed(err)
	}
	go t.watch()
	return t, nil
}

// startGuard makes the pipes and the socket pair and starts the guard with its ends of them.
func (t *Tree) startGuard() (err error) {
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			_ = f.Close()
		}
		if err != nil {
			t.closeStreams()
		}
	}()
	for _, stream := range []struct {
		ours  **os.File
		input bool
	}{{&t.Stdin, true}, {&t.Stdout, false}, {&t.Stderr, false}} {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		if stream.input {
			r, w = w, r
		}
		*stream.ours, theirs = r, append(theirs, w)
	}
	ours, its, err := socketPair()
	if err != nil {
		return err
	}
	t.control, theirs = ours, append(theirs, its)
	t.guard, err = os.StartProcess(self(), []string{guardName}, &os.ProcAttr{
		// One processor is enough for a guard, and saves it threads.
		Env:   []string{guardVariable + "=1", TreeVariable + "=" + t.mark, "GOMAXPROCS=1"},
		Files: theirs,
		// In a session of its own no terminal's signals reach it or the program.
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	return err
}

func (t *Tree) closeStreams() {
	for _, f := range []*os.File{t.Stdin, t.Stdout, t.Stderr, t.control} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// handshake has the guard start the program.
func (t *Tree) handshake(request []byte) error {
	if err := t.control.SetDeadline(time.Now().Add(startWait)); err != nil {
		return err
	}
	if _, err := t.control.Write(request); err != nil {
		return fmt.Errorf("its guard did not take the command: %w", err)
	}
	r, err := readReport(t.control)
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			_ = t.guard.Kill()
		}
		return fmt.Errorf("its guard gave no answer: %w", err)
	}
	switch r.kind {
	case programStarted:
		t.pid = int(r.value)
		return t.control.SetDeadline(time.Time{})
	case startFailed:
		errno := syscall.Errno(r.value)
		if errno == unix.ENOENT { // the file is there: check has seen it
			return fmt.Errorf("its interpreter: %w", errno)
		}
		return errno
	}
	return fmt.Errorf("its guard answered %q", r.kind)
}

// watch follows the guard to its end, and puts right what a guard that was killed left behind.
func (t *Tree) watch() {
	known := false
	for {
		r, err := readReport(t.control)
		if err != nil {
			break // the guard has ended
		}
		if r.kind == programEnded && !known {
			known = true
			t.exit = exitOf(unix.WaitStatus(r.value))
			close(t.exited)
		}
	}
	state, err := t.guard.Wait()
	if err != nil || !state.Success() {
		status, ok := sweep(t.mark, t.guard.Pid, t.pid)
		if !known {
			known = true
			t.exit = Exit{Code: -1, Signal: unix.SIGKILL.String()}
			if ok {
				t.exit = exitOf(status)
			}
			close(t.exited)
		}
	}
	reapAdopted()
	_ = t.Stdin.Close()
	_ = t.control.Close()
	close(t.done)
}

// PID returns the process id of the program itself.
func (t *Tree) PID() int { return t.pid }

// Interrupt sends SIGINT to the program's process, and to no other of the tree. It does not
// wait. The error is [os.ErrProcessDone] when the program has ended.
func (t *Tree) Interrupt() error { return t.command(interruptProgram) }

// Terminate sends SIGTERM to every process of the tree. It does not wait. The error is
// [os.ErrProcessDone] when the program has ended; the rest of the tree is then being ended by itself.
func (t *Tree) Terminate() error { return t.command(terminateTree) }

// Kill ends every process of the tree by SIGKILL. It does not wait: see [Tree.Done].
func (t *Tree) Kill() {
	// A guard that somebody stopped would not hear. An error means that nothing is left.
	_ = t.guard.Signal(unix.SIGCONT)
	_ = t.write(killTree)
}

// Exited is closed when the program itself has ended. What it left of its tree is then being ended.
func (t *Tree) Exited() <-chan struct{} { return t.exited }

// Done is closed when the program has ended and nothing of its tree is left.
func (t *Tree) Done() <-chan struct{} { return t.done }

// Exit returns how the program ended. It is valid once [Tree.Exited] is closed, and zero before.
func (t *Tree) Exit() Exit {
	select {
	case <-t.exited:
		return t.exit
	default:
		return Exit{}
	}
}

func (t *Tree) command(c byte) error {
	select {
	case <-t.exited:
		return os.ErrProcessDone
	default:
		return t.write(c)
	}
}

func (t *Tree) write(c byte) error {
	t.send.Lock()
	defer t.send.Unlock()
	if _, err := t.control.Write([]byte{c}); err != nil {
		if errors.Is(err, os.ErrClosed) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
			return os.ErrProcessDone
		}
		return fmt.Errorf("signal process %d: %w", t.pid, err)
	}
	return nil
}

func exitOf(s unix.WaitStatus) Exit {
	if s.Signaled() {
		return Exit{Code: -1, Signal: s.Signal().String()}
	}
	return Exit{Code: s.ExitStatus()}
}
