//go:build linux && (amd64 || arm64)

package sandbox

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A command is started in stages, each this same executable started again:
//
//	executor   the process that was asked to; waits, passes signals on, cleans up
//	outer      becomes bubblewrap, deaf to the signals that would end it before the command
//	warden     inside the namespaces, where there are any: starts the command, tells of its stops, reaps, ends with the executor
//	command    confines itself and becomes the command
//
// stageVariable, in an environment that holds nothing else, says which of them a process is to be.
const stageVariable = "NIGHTPORTER_SANDBOX_STAGE"

type stage string

const (
	stageOuter   stage = "outer"
	stageWarden  stage = "warden"
	stageCommand stage = "command"
	stageProbe   stage = "probe"  // ends at once: it could be started
	stageMounts  stage = "mounts" // ends when it has built a file system
)

// The descriptors that stages have beside the streams.
const (
	controlFD = 3 + iota // a socket: warden and executor
	specFD               // a sealed file with the spec
	programFD            // this executable, which the sandbox may not show
)

// spec is what the stages are told.
type spec struct {
	Argv    [][]byte // bytes: neither arguments nor the environment need be UTF-8
	Env     [][]byte
	Cwd     string
	Bwrap   []string // outer: the arguments, the program first
	Mounts  []step   // warden: the file system to build; nil: none
	UID     int      // warden: whom the command runs as, when Mounts is not nil; likewise GID
	GID     int
	Files   []opening // command: what Landlock opens; nil: Landlock is not about files
	Scope   bool      // command: keep signals and abstract sockets in by Landlock
	Offline bool
	Alone   bool  // whether there are namespaces
	TTY     int   // the descriptor of the terminal whose foreground the command takes; -1: none
	Ignored []int // signals that were ignored from the beginning
}

type step struct {
	Do   mountKind
	Path string
	To   string
}

// The hook is an init function for the reasons that package proc's has: each binary that imports this package is
// its own stages, and packages that depend on this one are not initialised in them.
func init() {
	role := stage(os.Getenv(stageVariable))
	if role == "" || len(os.Args) != 1 {
		return
	}
	var s *spec
	var err error
	switch role {
	case stageProbe:
		unix.Exit(0)
	case stageMounts:
		if err = build([]step{{Do: bindRead, Path: "/"}, {Do: devices, Path: "/dev"}, {Do: processes, Path: "/proc"}}); err == nil {
			unix.Exit(0)
		}
	default:
		s, err = readSpec()
	}
	if err == nil {
		switch role {
		case stageOuter:
			err = s.outer()
		case stageWarden:
			var code int
			if code, err = s.warden(); err == nil {
				unix.Exit(code)
			}
		case stageCommand:
			err = s.command()
		default:
			err = fmt.Errorf("unknown stage %q", role)
		}
	}
	fmt.Fprintf(os.Stderr, "nightporter: sandbox: %v\n", err)
	unix.Exit(exitOf(err))
}

func stageEnv(s stage) []string { return []string{stageVariable + "=" + string(s)} }

func (s *spec) file() (*os.File, error) {
	fd, err := unix.MemfdCreate("nightporter-sandbox", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make a memory file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "spec")
	if err := json.NewEncoder(f).Encode(s); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal a memory file: %w", err)
	}
	return f, nil
}

func readSpec() (*spec, error) {
	var st unix.Stat_t
	if err := unix.Fstat(specFD, &st); err != nil {
		return nil, fmt.Errorf("%s is for Nightporter itself", stageVariable)
	}
	s := new(spec)
	f := os.NewFile(specFD, "spec")
	if err := json.NewDecoder(io.NewSectionReader(f, 0, st.Size)).Decode(s); err != nil {
		return nil, fmt.Errorf("read what is to be done: %w", err)
	}
	return s, nil
}

// outer becomes bubblewrap.
func (s *spec) outer() error {
	// A signal to the whole process group is passed to the command; bubblewrap ends when the command does.
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM)
	err := syscall.Exec(s.Bwrap[0], s.Bwrap, stageEnv(stageWarden))
	return fmt.Errorf("start bubblewrap, %s: %w", s.Bwrap[0], err)
}

// What a warden tells the executor.
const (
	toldRuns    = 'r'
	toldStopped = 's'
)

// resume, beside SIGCONT, tells a warden that the command is to have the terminal's foreground.
const resume = 0x80

// warden starts the command and stays until it has ended. It returns the command's exit code.
func (s *spec) warden() (int, error) {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	// Whatever is sent to this process, only the executor ends it.
	signal.Notify(make(chan os.Signal, 1), unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGTSTP)
	for _, fd := range []int{controlFD, specFD, programFD} {
		unix.CloseOnExec(fd)
	}
	if s.Mounts != nil {
		if err := build(s.Mounts); err != nil {
			return 0, err
		}
	}
	if !s.Alone {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return 0, fmt.Errorf("become the reaper of the command's processes: %w", err)
		}
	}
	if err := unix.SetNonblock(controlFD, true); err != nil {
		return 0, err
	}
	control := os.NewFile(controlFD, "control")
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	if s.Mounts != nil {
		attr.Cloneflags = unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: s.UID, HostID: 0, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: s.GID, HostID: 0, Size: 1}}
	}
	if s.TTY >= 0 {
		attr.Foreground, attr.Ctty = true, s.TTY
	}
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"nightporter-sandbox"}, &syscall.ProcAttr{
		Env: stageEnv(stageCommand), Files: []uintptr{0, 1, 2, none, specFD}, Sys: attr,
	})
	if err != nil {
		return 0, fmt.Errorf("start the command's process: %w", err)
	}
	if err := letGo(); err != nil {
		return 0, err
	}
	_, _ = control.Write([]byte{toldRuns})
	orders := listen(control)
	for {
		select {
		case b, ok := <-orders:
			switch {
			case !ok: // the executor is gone
				s.end()
				return codeKilled, nil
			case b == resume|byte(unix.SIGCONT):
				if s.TTY >= 0 {
					takeTerminal(pid)
				}
				_ = unix.Kill(-pid, unix.SIGCONT)
			case b == byte(unix.SIGCONT):
				_ = unix.Kill(-pid, unix.SIGCONT)
			default:
				_ = unix.Kill(pid, unix.Signal(b))
			}
		case <-children:
		}
		for {
			var status unix.WaitStatus
			got, err := unix.Wait4(-1, &status, unix.WNOHANG|unix.WUNTRACED|unix.WALL, nil)
			if err == unix.EINTR {
				continue
			}
			if err != nil || got == 0 {
				break
			}
			switch {
			case got != pid:
			case status.Stopped():
				_, _ = control.Write([]byte{toldStopped})
			case status.Exited():
				s.end()
				return status.ExitStatus(), nil
			case status.Signaled():
				s.end()
				return 128 + int(status.Signal()), nil
			}
		}
	}
}

const none = ^uintptr(0)

// codeKilled is what a command that was ended by SIGKILL ends with.
const codeKilled = 128 + int(unix.SIGKILL)

// listen reads what the executor wants. The channel is closed when the executor is gone.
func listen(control *os.File) <-chan byte {
	c := make(chan byte)
	go func() {
		defer close(c)
		b := make([]byte, 16)
		for {
			n, err := control.Read(b)
			for _, order := range b[:n] {
				c <- order
			}
			if err != nil {
				return
			}
		}
	}()
	return c
}

// letGo gives up the streams but standard error, and the terminal stays: who waits for the end of a stream
// must not wait for the warden.
func letGo() error {
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	defer unix.Close(null)
	for fd := range 3 {
		if err := unix.Dup2(null, fd); err != nil {
			return fmt.Errorf("let go of a stream: %w", err)
		}
	}
	return nil
}

// takeTerminal gives the terminal's foreground to a process group.
func takeTerminal(group int) {
	if tty, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
		_ = unix.IoctlSetPointerInt(tty, unix.TIOCSPGRP, group)
		unix.Close(tty)
	}
}

// end ends what the command left. In a namespace of its own that happens by itself.
func (s *spec) end() {
	if s.Alone {
		return
	}
	for {
		for _, pid := range childrenOf(os.Getpid()) {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		// An ended process's children become this one's, so that rounds go on until nobody is left.
		var status unix.WaitStatus
		if _, err := unix.Wait4(-1, &status, unix.WALL, nil); err == unix.ECHILD {
			return
		}
	}
}

// childrenOf lists the children of a process.
func childrenOf(pid int) []int {
	var children []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		var child, parent int
		if _, err := fmt.Sscan(e.Name(), &child); err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		// The name, in brackets, can hold anything.
		var state string
		if _, err := fmt.Sscan(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), &state, &parent); err == nil && parent == pid {
			children = append(children, child)
		}
	}
	return children
}

// command confines this process, for good, and becomes the command.
func (s *spec) command() error {
	if err := unix.Chdir(s.Cwd); err != nil {
		return fmt.Errorf("the state's working directory %s: %w", s.Cwd, err)
	}
	argv, env := texts(s.Argv), texts(s.Env)
	path, err := lookUp(argv[0], env)
	if err != nil {
		return err
	}
	if err := dropCapabilities(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("rule new privileges out: %w", err)
	}
	if s.Scope || s.Files != nil {
		if err := landlock(s.Files); err != nil {
			return err
		}
	}
	// Signals that were ignored stay ignored over exec, and those that were caught do not.
	var ignored []os.Signal
	for _, sig := range s.Ignored {
		ignored = append(ignored, unix.Signal(sig))
	}
	signal.Notify(make(chan os.Signal, 1), handled...)
	if len(ignored) > 0 {
		signal.Ignore(ignored...)
	}
	// This executable and the spec are not for the command, nor what a careless parent left open.
	if err := unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close what the command must not have: %w", err)
	}
	f := confinement()
	if s.Offline {
		f = append(f, offline()...)
	}
	if !s.Alone {
		f = append(f, unshared()...)
	}
	if s.Files != nil {
		f = append(f, unruled()...)
	}
	if err := f.install(); err != nil {
		return err
	}
	err = syscall.Exec(path, argv, env)
	return notRun(argv[0], err)
}

// dropCapabilities gives up what root has beyond others, and the way back to it.
func dropCapabilities() error {
	for c := range uintptr(64) {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if err != nil {
			break // there are no more
		}
		if has == 0 {
			continue
		}
		// Without the right to drop them a process that is not root has none to drop either.
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && os.Geteuid() == 0 {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("drop ambient capabilities: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if _, _, errno := unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0); errno != 0 {
		return fmt.Errorf("drop capabilities: %w", errno)
	}
	return nil
}

func texts(list [][]byte) []string {
	out := make([]string, len(list))
	for i, b := range list {
		out[i] = string(b)
	}
	return out
}
