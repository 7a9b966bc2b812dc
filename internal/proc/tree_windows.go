package proc

import (
	"errors"
	"fmt"
	"os"
	"sync"
)

// Tree is a running program with what it starts: both are in a job object, which the system ends with this
// process. This was built and not run; see the package's documentation.
type Tree struct {
	// Stdin, Stdout and Stderr are the owner's ends of the program's streams. Stdout and Stderr must be
	// read, and are closed by who reads them; Stdin may be closed at any time.
	Stdin, Stdout, Stderr *os.File

	process *os.Process
	mu      sync.Mutex // of job, whose handle is not to be used once it is closed
	job     job
	done    chan struct{}
	exit    Exit
}

// Start starts the program.
func Start(c Command) (*Tree, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	t := &Tree{done: make(chan struct{})}
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			_ = f.Close()
		}
	}()
	for _, stream := range []struct {
		ours  **os.File
		input bool
	}{{&t.Stdin, true}, {&t.Stdout, false}, {&t.Stderr, false}} {
		r, w, err := os.Pipe()
		if err != nil {
			t.closeStreams()
			return nil, c.failed(err)
		}
		if stream.input {
			r, w = w, r
		}
		*stream.ours, theirs = r, append(theirs, w)
	}
	argv := append([]string{c.Path}, c.Args...)
	process, err := os.StartProcess(c.Path, argv, &os.ProcAttr{Dir: c.Dir, Env: c.Env, Files: theirs})
	if err != nil {
		t.closeStreams()
		return nil, c.failed(cause(err))
	}
	t.process = process
	if t.job, err = newJob(process); err != nil {
		// Without it what the program starts could outlive us: better none.
		_ = process.Kill()
		_, _ = process.Wait()
		t.closeStreams()
		return nil, c.failed(err)
	}
	go t.watch()
	return t, nil
}

func (t *Tree) watch() {
	state, err := t.process.Wait()
	t.exit = Exit{Code: -1}
	if err == nil {
		t.exit.Code = state.ExitCode()
	}
	t.mu.Lock()
	t.job.close() // with the program ends what it started
	t.job = 0
	t.mu.Unlock()
	_ = t.Stdin.Close()
	close(t.done)
}

func (t *Tree) closeStreams() {
	for _, f := range []*os.File{t.Stdin, t.Stdout, t.Stderr} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// PID returns the process id of the program.
func (t *Tree) PID() int { return t.process.Pid }

// Interrupt does not exist on this system; it returns an error that wraps [errors.ErrUnsupported].
func (t *Tree) Interrupt() error {
	return fmt.Errorf("interrupt process %d: %w", t.PID(), errors.ErrUnsupported)
}

// Terminate does not exist on this system; it returns an error that wraps [errors.ErrUnsupported].
func (t *Tree) Terminate() error {
	return fmt.Errorf("terminate process %d: %w", t.PID(), errors.ErrUnsupported)
}

// Kill ends the program and what it started. It does not wait: see [Tree.Done].
func (t *Tree) Kill() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.job != 0 {
		t.job.end()
	}
}

// Exited is closed when the program has ended.
func (t *Tree) Exited() <-chan struct{} { return t.done }

// Done is closed when the program has ended.
func (t *Tree) Done() <-chan struct{} { return t.done }

// Exit returns how the program ended. It is valid once [Tree.Exited] is closed, and zero before.
func (t *Tree) Exit() Exit {
	select {
	case <-t.done:
		return t.exit
	default:
		return Exit{}
	}
}
