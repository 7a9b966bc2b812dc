//go:build linux && (amd64 || arm64)

package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// handled are the signals that end or stop processes, and those that terminals send: what is passed on to a command.
var handled = []os.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM,
	unix.SIGTSTP, unix.SIGCONT, unix.SIGWINCH, unix.SIGTTIN, unix.SIGTTOU,
}

// Run runs a command under a state and returns its exit code: the command's own, 128+n when signal n ended it, 127 when it
// was not found inside the sandbox and 126 when it cannot be executed. The command has this process's streams and, where this
// process has it, the terminal's foreground; signals to this process are passed on to it. An error means that
// nothing was started; it is an [*Unenforceable] where this host is the reason.
//
// This process should have no other work: Run takes its signals, and its streams are the command's.
func Run(o Options) (int, error) {
	plan, err := o.plan()
	if err != nil {
		return codeRefused, err
	}
	if err := unix.Access(plan.Cwd, unix.X_OK); err != nil {
		return codeRefused, fmt.Errorf("the state's working directory %s: %w", plan.Cwd, err)
	}
	if !plan.Network {
		o.Env = append(slices.Clone(o.Env), NetworkVariable+"=1")
	}
	if plan.Unconfined {
		return plain(plan, o)
	}
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		return codeRefused, &Unenforceable{fmt.Errorf("this program cannot be started again: %w", err)}
	}
	defer program.Close()
	r := &runner{plan: plan, options: o, program: program}
	if r.mechanism, err = r.choose(); err != nil {
		return codeRefused, &Unenforceable{err}
	}
	return r.run()
}

// Available reports by which mechanism a plan would be enforced here, and why none can. env is the environment
// that the command would have. It starts programs that end at once.
func Available(p Plan, env []string) (Mechanism, error) {
	if p.Unconfined {
		return Unconfined, nil
	}
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", &Unenforceable{fmt.Errorf("this program cannot be started again: %w", err)}
	}
	defer program.Close()
	m, err := (&runner{plan: p, options: Options{Env: env}, program: program}).choose()
	if err != nil {
		return "", &Unenforceable{err}
	}
	return m, nil
}

// plain becomes the command: there is nothing to enforce, and nobody is needed to wait.
func plain(p Plan, o Options) (int, error) {
	if err := os.Chdir(p.Cwd); err != nil {
		return codeRefused, fmt.Errorf("the state's working directory: %w", err)
	}
	path, err := lookUp(o.Argv[0], o.Env)
	if err == nil {
		err = notRun(o.Argv[0], syscall.Exec(path, o.Argv, o.Env))
	}
	return exitOf(err), err
}

// runner runs one command.
type runner struct {
	plan      Plan
	options   Options
	program   *os.File
	mechanism Mechanism
	bwrap     string
	openings  []opening
}

// choose finds the mechanism: the first of these that works here and can enforce the plan.
func (r *runner) choose() (Mechanism, error) {
	var why []error
	for _, m := range []struct {
		mechanism Mechanism
		usable    func() error
	}{
		{Bubblewrap, func() (err error) {
			if r.bwrap, err = findBwrap(lookup(r.options.Env, "PATH")); err != nil {
				return err
			}
			return probeBwrap(r.bwrap, r.program)
		}},
		{Namespaces, func() error { return probeNamespaces(r.program) }},
		{Landlock, func() (err error) {
			if v := landlockVersion(); v < landlockScopes {
				return fmt.Errorf("landlock version %d is needed (Linux 6.12), and the kernel has %d", landlockScopes, v)
			}
			r.openings, err = r.plan.openings()
			return err
		}},
	} {
		if r.options.Mechanism != "" && r.options.Mechanism != m.mechanism {
			continue
		}
		err := m.usable()
		if err == nil {
			return m.mechanism, nil
		}
		why = append(why, fmt.Errorf("%s: %w", m.mechanism, err))
	}
	return "", errors.Join(why...)
}

func (r *runner) run() (int, error) {
	targets, err := makeTargets(r.plan.made())
	if err != nil {
		return codeRefused, &Unenforceable{err}
	}
	defer removeTargets(targets)

	s := &spec{
		Argv: bytesOf(r.options.Argv), Env: bytesOf(r.options.Env), Cwd: r.plan.Cwd, Offline: !r.plan.Network,
		Scope: landlockVersion() >= landlockScopes, Alone: r.mechanism != Landlock, Files: r.openings, TTY: foreground(),
	}
	for _, sig := range handled {
		if signal.Ignored(sig) {
			s.Ignored = append(s.Ignored, int(sig.(unix.Signal)))
		}
	}
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{"nightporter-sandbox"}, Env: stageEnv(stageWarden),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	}
	switch r.mechanism {
	case Bubblewrap:
		// The kernel ends it with this process, and it ends the namespace. Without one the warden notices by itself, and
		// must live to end the others.
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
		cmd.Env = stageEnv(stageOuter)
		s.Bwrap = slices.Concat([]string{r.bwrap}, bwrapArgs(r.plan), []string{"--", fmt.Sprintf("/proc/self/fd/%d", programFD)})
	case Namespaces:
		cmd.SysProcAttr = namespaces(!r.plan.Network)
		s.UID, s.GID = os.Geteuid(), os.Getegid()
		for _, m := range r.plan.mounts() {
			s.Mounts = append(s.Mounts, step{m.do, m.path, m.to})
		}
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return codeRefused, &Unenforceable{fmt.Errorf("make a socket pair: %w", err)}
	}
	theirs := os.NewFile(uintptr(pair[1]), "control")
	defer theirs.Close()
	if err := unix.SetNonblock(pair[0], true); err != nil {
		return codeRefused, err
	}
	control := os.NewFile(uintptr(pair[0]), "control")
	defer control.Close()
	file, err := s.file()
	if err != nil {
		return codeRefused, &Unenforceable{err}
	}
	defer file.Close()
	cmd.ExtraFiles = []*os.File{theirs, file, r.program}

	signals := make(chan os.Signal, 16)
	signal.Notify(signals, handled...)
	defer signal.Stop(signals)
	for _, sig := range s.Ignored {
		signal.Ignore(unix.Signal(sig))
	}
	signal.Ignore(unix.SIGTTOU) // this process takes the terminal back from the background
	// The kernel ends a child with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return codeRefused, &Unenforceable{fmt.Errorf("start this program again: %w", err)}
	}
	theirs.Close()
	f := &front{control: control, tty: s.TTY}
	return f.wait(cmd, signals), nil
}

// front is the executor while the command runs.
type front struct {
	control *os.File
	tty     int // the descriptor of the terminal whose foreground the command has; -1: none
	runs    bool
}

// wait passes signals on until the command has ended, and returns its exit code.
func (f *front) wait(cmd *exec.Cmd, signals <-chan os.Signal) int {
	told := make(chan byte)
	go func() {
		defer close(told)
		b := make([]byte, 16)
		for {
			n, err := f.control.Read(b)
			for _, what := range b[:n] {
				told <- what
			}
			if err != nil {
				return
			}
		}
	}()
	for open := true; open; {
		select {
		case sig := <-signals:
			if sig, ok := sig.(unix.Signal); ok {
				_, _ = f.control.Write([]byte{byte(sig)})
			}
		case what, ok := <-told:
			switch {
			case !ok:
				open = false // the warden has ended
			case what == toldRuns:
				f.runs = true
			case what == toldStopped:
				f.stop()
			}
		}
	}
	err := cmd.Wait()
	f.takeBack()
	code := cmd.ProcessState.ExitCode()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		code = 128 + int(status.Signal())
	}
	if !f.runs && err != nil {
		return codeRefused // who failed has said why
	}
	return code
}

// stop stops this process as its command was, for the shell to see, and goes on with it.
func (f *front) stop() {
	f.takeBack()
	stopGroup()
	order := byte(unix.SIGCONT)
	if f.tty >= 0 && hasForeground(f.tty) {
		order |= resume
	}
	_, _ = f.control.Write([]byte{order})
}

// stopGroup stops this process, and those that it shares a job with, by the default action of SIGTSTP, which unlike that of SIGSTOP is
// not taken where no shell is left to continue anybody. It returns when they are continued, or at once. The
// thread is locked.
//
// The action is set past package os/signal, which gives none back that it has taken (measured, Go 1.26).
func stopGroup() {
	type action [4]uint64 // struct sigaction, whose first word is the handler
	set := func(to action) (old action) {
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGTSTP), uintptr(unsafe.Pointer(&to)), uintptr(unsafe.Pointer(&old)), 8, 0, 0)
		return old
	}
	ours := set(action{1}) // ignored: the others first
	_ = unix.Kill(0, unix.SIGTSTP)
	set(action{}) // the default
	// To this thread, which takes it before the call returns: one to the process might be taken by another thread at any later time.
	_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGTSTP)
	set(ours)
}

// takeBack takes the terminal's foreground back.
func (f *front) takeBack() {
	if f.tty >= 0 {
		_ = unix.IoctlSetPointerInt(f.tty, unix.TIOCSPGRP, unix.Getpgrp())
	}
}

// foreground is the descriptor of a terminal whose foreground this process has, or -1.
func foreground() int {
	for fd := range 3 {
		if hasForeground(fd) {
			return fd
		}
	}
	return -1
}

func hasForeground(fd int) bool {
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

func bytesOf(list []string) [][]byte {
	out := make([][]byte, len(list))
	for i, s := range list {
		out[i] = []byte(s)
	}
	return out
}
