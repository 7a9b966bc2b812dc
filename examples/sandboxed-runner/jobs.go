package main

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

// maxJobs and maxOutput bound what a client can make this process hold.
const (
	maxJobs   = 16
	maxOutput = 64 << 10
)

// runner holds the jobs.
type runner struct {
	prefer string // the launcher to use; empty: any

	mu    sync.Mutex
	jobs  map[string]*job
	count int
}

// job is a command that runs, or has.
type job struct {
	authority authority // that of the call that started it: it keeps it to its end
	cmd       *exec.Cmd
	stdin     io.WriteCloser
	ended     chan struct{} // closed when it has

	mu     sync.Mutex
	output []byte // the last of it
	cut    bool
}

// start starts a command under an authority.
func start(a authority, command []string) (*job, error) {
	if len(command) == 0 {
		return nil, errors.New("command is empty")
	}
	args := append([]string{"sandbox", "--sandbox-state-json", a.state, "--"}, command...)
	j := &job{authority: a, cmd: exec.Command(a.launcher, args...), ended: make(chan struct{})}
	j.cmd.Stdout, j.cmd.Stderr = j, j
	j.cmd.WaitDelay = time.Second // for what holds its output open
	ownGroup(j.cmd)
	var err error
	if j.stdin, err = j.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := j.cmd.Start(); err != nil {
		return nil, fmt.Errorf("the launcher could not be started, and nothing was run: %w", err)
	}
	go func() {
		defer close(j.ended)
		_ = j.cmd.Wait() // its state is looked at
	}()
	return j, nil
}

// start starts a job and gives it a name.
func (r *runner) start(a authority, command []string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.jobs) >= maxJobs {
		return "", fmt.Errorf("there are %d jobs; stop one", maxJobs)
	}
	j, err := start(a, command)
	if err != nil {
		return "", err
	}
	r.count++
	name := "job-" + strconv.Itoa(r.count)
	r.jobs[name] = j
	return name, nil
}

// job finds a job for a call, which must come under the job's own authority.
func (r *runner) job(meta map[string]any, name string) (*job, error) {
	a, err := r.authorityOf(meta)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch j := r.jobs[name]; {
	case j == nil:
		return nil, fmt.Errorf("there is no job %q", name)
	case j.authority.state != a.state:
		return nil, fmt.Errorf("%s was started under another sandbox state than this call has; stop it, and start one under this", name)
	case j.authority.launcher != a.launcher:
		return nil, fmt.Errorf("%s was started by another launcher than this call has; stop it, and start one by this", name)
	default:
		return j, nil
	}
}

// take takes a job out.
func (r *runner) take(name string) (*job, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	j := r.jobs[name]
	if j == nil {
		return nil, fmt.Errorf("there is no job %q", name)
	}
	delete(r.jobs, name)
	return j, nil
}

// end ends all jobs.
func (r *runner) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, j := range r.jobs {
		j.stop()
	}
	clear(r.jobs)
}

func (j *job) send(line string) error {
	if _, err := io.WriteString(j.stdin, line+"\n"); err != nil {
		return fmt.Errorf("the job takes no more input: %w", err)
	}
	return nil
}

// stop ends the job and waits for it.
func (j *job) stop() {
	_ = j.stdin.Close()
	killGroup(j.cmd)
	<-j.ended
}

// Write implements io.Writer for what the command prints.
func (j *job) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.output = append(j.output, p...)
	if over := len(j.output) - maxOutput; over > 0 {
		j.output, j.cut = j.output[over:], true
	}
	return len(p), nil
}

// String is what the job printed and how it ended.
func (j *job) String() string {
	state := "it runs"
	select {
	case <-j.ended:
		state = j.cmd.ProcessState.String()
	default:
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.cut {
		return fmt.Sprintf("[%s; the last %d bytes]\n%s", state, maxOutput, j.output)
	}
	return fmt.Sprintf("[%s]\n%s", state, j.output)
}
