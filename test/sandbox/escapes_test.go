//go:build linux

package sandbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// appended tells whether a file outside was written to.
func appended(path string) func(*testing.T, *world) bool {
	return func(t *testing.T, w *world) bool {
		t.Helper()
		text, err := os.ReadFile(w.fillIn(path))
		if err != nil {
			t.Error(err)
		}
		return string(text) != original
	}
}

func asNobody(t *testing.T) *int {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can start a command as another user")
	}
	uid := nobody
	return &uid
}

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root could do this without a sandbox")
	}
}

func TestAWriteOutsideIsDenied(t *testing.T) {
	attempt{args: []string{"append", "{W}/outside/append"}, done: appended("{W}/outside/append")}.try(t)
}

func TestAHiddenFileCannotBeRead(t *testing.T) {
	attempt{closes: true, args: []string{"read", "{W}/secret/file"}}.try(t)
}

func TestInheritedDescriptorsAreClosed(t *testing.T) {
	var ours [2]int
	attempt{args: []string{"descriptors", "file"}, start: func(t *testing.T, w *world, cmd *exec.Cmd) {
		dir, err := os.Open(w.path("secret"))
		if err != nil {
			t.Fatal(err)
		}
		file, err := os.OpenFile(w.path("outside/append"), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if ours, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
		socket := os.NewFile(uintptr(ours[1]), "socket")
		t.Cleanup(func() { _ = errors.Join(dir.Close(), file.Close(), socket.Close(), unix.Close(ours[0])) })
		// At 3 and behind it, and one far away, where a loop that ends early does not come.
		cmd.ExtraFiles = []*os.File{dir, file, socket}
		for len(cmd.ExtraFiles) < 300 {
			cmd.ExtraFiles = append(cmd.ExtraFiles, nil)
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, dir)
	}, done: appended("{W}/outside/append")}.try(t)
}

func TestADescriptorThatComesThroughASocketIsNotReceived(t *testing.T) {
	attempt{args: []string{"received", "file"}, start: func(t *testing.T, w *world, cmd *exec.Cmd) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		dir, err := os.Open(w.path("secret"))
		if err != nil {
			t.Fatal(err)
		}
		theirs := os.NewFile(uintptr(pair[1]), "socket")
		t.Cleanup(func() { _ = errors.Join(dir.Close(), theirs.Close(), unix.Close(pair[0])) })
		if err := unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(int(dir.Fd())), nil, 0); err != nil {
			t.Fatal(err)
		}
		cmd.ExtraFiles = []*os.File{theirs}
	}}.try(t)
}

func TestNoProcessWithoutAFilterCanBeWrittenTo(t *testing.T) {
	attempt{args: []string{"mem"}}.try(t)
}

func TestNoProcessOutsideCanBeWrittenTo(t *testing.T) {
	attempt{args: []string{"attack"}, prepare: victimArgs}.try(t)
}

func victimArgs(_ *testing.T, w *world) []string {
	return []string{strconv.Itoa(w.plan.Victim), strconv.FormatUint(w.plan.Address, 10)}
}

func TestNoProcessOutsideCanBeSignalled(t *testing.T) {
	attempt{args: []string{"signals"}, prepare: victimArgs}.try(t)
}

func TestNoProcessOutsideCanBeLimited(t *testing.T) {
	attempt{args: []string{"limits"}, prepare: victimArgs}.try(t)
}

func TestNamespacesOfAProcessOutsideCannotBeEntered(t *testing.T) {
	needsRoot(t)
	attempt{args: []string{"setns"}, prepare: victimArgs}.try(t)
}

func TestIOUringIsClosed(t *testing.T) {
	attempt{args: []string{"io-uring"}, control: "kernel.io_uring_disabled"}.try(t)
}

func TestMPTCPIsNoWayAroundTheNetwork(t *testing.T) {
	attempt{args: []string{"mptcp"}, prepare: func(_ *testing.T, w *world) []string { return []string{strconv.Itoa(w.plan.TCP)} }, control: "net.mptcp.enabled"}.try(t)
}

func TestUDPIsNoWayAroundTheNetwork(t *testing.T) {
	attempt{args: []string{"udp"}, prepare: func(_ *testing.T, w *world) []string {
		return []string{strconv.Itoa(w.plan.UDP), w.plan.Token}
	}}.try(t)
}

func TestCallsOfOtherArchitecturesAreClosed(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("this architecture has no others beside it")
	}
	attempt{args: []string{"foreign"}, control: "the kernel has no such calls"}.try(t)
}

func TestAProgramInMemoryIsConfined(t *testing.T) {
	attempt{args: []string{"memfd", "{W}/outside/append"}, done: appended("{W}/outside/append")}.try(t)
}

func TestANestedNamespaceIsConfined(t *testing.T) {
	attempt{args: []string{"nested", "{W}/outside", "{W}/secret"}, done: appended("{W}/outside/append")}.try(t)
}

func TestANestedNamespaceIsConfinedForNobody(t *testing.T) {
	attempt{args: []string{"nested", "{W}/outside", "{W}/secret"}, uid: asNobody(t), done: appended("{W}/outside/append")}.try(t)
}

func TestASetuidProgramGivesNoRights(t *testing.T) {
	uid := asNobody(t)
	attempt{args: nil, uid: uid, prepare: func(t *testing.T, w *world) []string {
		program := w.path("cwd/setuid")
		if err := copyFile(w.tools.probe, program); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Chown(program, 0, 0), os.Chmod(program, 0o755|os.ModeSetuid)); err != nil {
			t.Fatal(err)
		}
		return nil
	}, start: func(_ *testing.T, w *world, cmd *exec.Cmd) {
		cmd.Args = append(cmd.Args[:len(cmd.Args)-2], w.path("cwd/setuid"), "escape", "euid")
		if len(cmd.Args) == 3 { // without a sandbox the program itself is started
			cmd.Path = cmd.Args[0]
		}
	}}.try(t)
}

func TestChrootIsNoWayOut(t *testing.T) {
	needsRoot(t)
	attempt{closes: true, args: []string{"chroot", "{W}/secret"}}.try(t)
}

func TestPivotRootIsNoWayOut(t *testing.T) {
	needsRoot(t)
	attempt{args: []string{"pivot-root", "{W}/cwd/empty"}}.try(t)
}

func TestAHiddenFolderCannotBeMountedElsewhere(t *testing.T) {
	needsRoot(t)
	attempt{closes: true, args: []string{"bind", "{W}/secret", "{W}/cwd/empty"}}.try(t)
}

func TestAMountCannotBeCopied(t *testing.T) {
	needsRoot(t)
	attempt{closes: true, args: []string{"open-tree", "{W}/secret"}}.try(t)
}

func TestAReadOnlyMountCannotBeMadeWritable(t *testing.T) {
	attempt{args: []string{"mount-setattr", "{W}/outside"}, done: appended("{W}/outside/append")}.try(t)
}

func TestTheRootsOfProcessesLeadNowhere(t *testing.T) {
	attempt{closes: true, args: []string{"proc-root", "{W}/secret/file"}}.try(t)
}

func TestNoProgramCanBeOverwritten(t *testing.T) {
	attempt{args: []string{"executables", "{T}/nightporter", "{T}/probe", "{W}/outside/program"}, prepare: func(t *testing.T, w *world) []string {
		if err := copyFile(w.tools.probe, w.path("outside/program")); err != nil {
			t.Fatal(err)
		}
		return nil
	}}.try(t)
}

func TestAHardLinkDoesNotMakeAFileWritable(t *testing.T) {
	attempt{args: []string{"hard-link", "{W}/outside/append", "{W}/cwd/linked"}, done: func(t *testing.T, w *world) bool {
		_, err := os.Lstat(w.path("outside/append"))
		return err != nil || appended("{W}/outside/append")(t, w)
	}}.try(t)
}

func TestAHardLinkDoesNotUnprotectAFile(t *testing.T) {
	attempt{closes: true, args: []string{"hard-link", "{W}/cwd/.git/append", "{W}/cwd/linked"}, done: func(t *testing.T, w *world) bool {
		_, err := os.Lstat(w.path("cwd/.git/append"))
		return err != nil || appended("{W}/cwd/.git/append")(t, w)
	}}.try(t)
}

func TestAHardLinkDoesNotUnhideAFile(t *testing.T) {
	attempt{closes: true, args: []string{"hard-link", "{W}/secret/append", "{W}/cwd/linked"}}.try(t)
}

// planted tells whether a file was made where a protected folder is, or was.
func planted(dir string) func(*testing.T, *world) bool {
	return func(_ *testing.T, w *world) bool {
		_, err := os.Lstat(w.path(dir, "planted"))
		return err == nil
	}
}

func TestAProtectedFolderCannotBeMovedAway(t *testing.T) {
	attempt{closes: true, args: []string{"move-parent", "{W}/cwd", ".git"}, done: planted("cwd/.git")}.try(t)
}

func TestAProtectedFolderCannotBeMovedAwayWithItsParent(t *testing.T) {
	s := state{json: managed(root, entry("cwd", "write"), entry("cwd/sub/deep", "read"))}
	attempt{closes: true, args: []string{"move-parent", "{W}/cwd/sub", "deep"}, state: &s, done: planted("cwd/sub/deep")}.try(t)
}

func TestAMissingProtectedFolderCannotBeMade(t *testing.T) {
	attempt{closes: true, args: []string{"move-parent", "{W}/cwd", ".git"}, prepare: func(t *testing.T, w *world) []string {
		remove("cwd/.git")(t, w)
		return nil
	}, done: planted("cwd/.git")}.try(t)
}

func TestMetadataOfAReadOnlyFileCannotBeChanged(t *testing.T) {
	attempt{args: []string{"metadata", "{W}/outside/file"}, prepare: withAttribute}.try(t)
}

func TestMetadataOfAProtectedFileCannotBeChanged(t *testing.T) {
	attempt{closes: true, args: []string{"metadata", "{W}/cwd/.git/file"}, prepare: withAttribute}.try(t)
}

func withAttribute(t *testing.T, w *world) []string {
	t.Helper()
	for _, path := range []string{"outside/file", "cwd/.git/file"} {
		if err := unix.Setxattr(w.path(path), "user.there", []byte("x"), 0); err != nil {
			t.Fatal(err)
		}
	}
	return nil
}

func TestAHandleDoesNotOpenAHiddenFile(t *testing.T) {
	needsRoot(t)
	attempt{args: []string{"by-handle", "{W}/secret/file", "{W}/cwd"}}.try(t)
}

func TestADeviceCannotBeMade(t *testing.T) {
	needsRoot(t)
	attempt{args: []string{"mknod", "{W}/cwd"}}.try(t)
}

func TestSharedMemoryOutsideCannotBeWrittenTo(t *testing.T) {
	attempt{args: []string{"sysv-shm"}, prepare: func(t *testing.T, _ *world) []string {
		id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, unix.IPC_CREAT|0o666)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) })
		return []string{strconv.Itoa(id)}
	}}.try(t)
}

func TestMessageQueuesOutsideCannotBeWrittenTo(t *testing.T) {
	attempt{args: []string{"sysv-msg"}, prepare: func(t *testing.T, _ *world) []string {
		id, _, errno := unix.Syscall(unix.SYS_MSGGET, unix.IPC_PRIVATE, unix.IPC_CREAT|0o666, 0)
		if errno != 0 {
			t.Fatal(errno)
		}
		t.Cleanup(func() { _, _, _ = unix.Syscall(unix.SYS_MSGCTL, id, unix.IPC_RMID, 0) })
		return []string{strconv.Itoa(int(id))}
	}}.try(t)
}

func TestPOSIXMessageQueuesOutsideCannotBeWrittenTo(t *testing.T) {
	attempt{args: []string{"posix-mq"}, prepare: func(t *testing.T, w *world) []string {
		name, err := unix.BytePtrFromString(w.plan.Abstract)
		if err != nil {
			t.Fatal(err)
		}
		attr := [8]int64{0, 1, 16}
		fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_CREAT|unix.O_RDWR, 0o666, uintptr(unsafe.Pointer(&attr)), 0, 0)
		if errno != 0 {
			t.Fatal(errno)
		}
		t.Cleanup(func() {
			_ = unix.Close(int(fd))
			_, _, _ = unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(name)), 0, 0)
		})
		return []string{w.plan.Abstract}
	}}.try(t)
}

func TestKeysOfTheSessionCannotBeRead(t *testing.T) {
	attempt{args: []string{"keyring"}, prepare: func(t *testing.T, w *world) []string {
		key, err := unix.AddKey("user", w.plan.Abstract, []byte("made-up"), unix.KEY_SPEC_USER_KEYRING)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = unix.KeyctlInt(unix.KEYCTL_REVOKE, key, 0, 0, 0) })
		return []string{w.plan.Abstract}
	}, control: "there are no keyrings"}.try(t)
}

func TestBPFIsClosed(t *testing.T) {
	attempt{args: []string{"bpf"}, control: "kernel.unprivileged_bpf_disabled"}.try(t)
}

func TestPerfEventsAreClosed(t *testing.T) {
	attempt{args: []string{"perf"}, control: "kernel.perf_event_paranoid"}.try(t)
}

func TestTheMachineCannotBeChanged(t *testing.T) {
	needsRoot(t)
	attempt{args: []string{"machine"}}.try(t)
}

// terminal is a pseudo terminal of the test's own, and what programs have open of it.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	return master, slave
}

func TestNothingIsTypedIntoTheTerminal(t *testing.T) {
	attempt{args: []string{"tiocsti"}, start: func(t *testing.T, _ *world, cmd *exec.Cmd) {
		_, slave := terminal(t)
		cmd.Stdin = slave
		cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty, cmd.SysProcAttr.Ctty = true, true, 0
	}, control: "dev.tty.legacy_tiocsti"}.try(t)
}

// gone waits for the end of what a sandboxed command left running: it holds the output open.
func gone(t *testing.T, output *bufio.Reader) bool {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := output.ReadByte(); err != nil {
				return
			}
		}
	}()
	select {
	case <-ended:
		return true
	case <-time.After(wait / 4):
		return false
	}
}

// startLeaving starts a command that leaves a process behind, whose output is the reader, and returns once that runs.
func startLeaving(t *testing.T, how implementation, mode string) (cmd *exec.Cmd, output *bufio.Reader, pid int) {
	t.Helper()
	w := newWorld(t, os.Getuid())
	t.Cleanup(func() { w.harm(t, map[string]bool{}) })
	prefix, env := how.command(t, w.tools, w.uid)
	if len(prefix) > 0 {
		prefix = append(prefix, "--sandbox-state-json", w.fillIn(open.json), "--")
	}
	cmd = w.command(context.Background(), append(prefix, w.tools.probe, "escape", mode), append(env, "TMPDIR="+w.path("tmp")))
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = read.Close() })
	cmd.Stdout, cmd.Stderr = write, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = write.Close()
	output = bufio.NewReader(read)
	line, err := output.ReadString('\n')
	if err != nil {
		t.Fatalf("nothing was left behind: %q, %v", line, err)
	}
	if pid, err = strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "pid "))); err != nil {
		t.Fatal(err)
	}
	return cmd, output, pid
}

func TestNothingOutlivesTheCommand(t *testing.T) {
	// The control: without a sandbox the process lives on.
	cmd, _, pid := startLeaving(t, noSandbox, "outlive")
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatalf("the control: %v", err)
	}
	for _, how := range mechanisms {
		t.Run(how.name, func(t *testing.T) {
			cmd, output, _ := startLeaving(t, how, "outlive")
			if err := cmd.Wait(); err != nil {
				t.Errorf("the command ended with %v", err)
			}
			if !gone(t, output) {
				t.Error("a process in a session of its own outlived the command")
			}
		})
	}
}

func TestNothingOutlivesTheKilledExecutor(t *testing.T) {
	cmd, _, pid := startLeaving(t, noSandbox, "stay")
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatalf("the control: %v", err)
	}
	for _, how := range mechanisms {
		t.Run(how.name, func(t *testing.T) {
			cmd, output, _ := startLeaving(t, how, "stay")
			_ = cmd.Process.Signal(syscall.SIGKILL)
			_ = cmd.Wait()
			if !gone(t, output) {
				t.Error("a process outlived the executor, which was killed")
			}
		})
	}
}

// TestALinkThatIsSwappedLeadsNowhere swaps a protected folder with a link out of the writable one, over and over,
// while sandboxes are started: what was checked may be another thing when it is enforced.
func TestALinkThatIsSwappedLeadsNowhere(t *testing.T) {
	const starts = 12
	for _, how := range []implementation{bubblewrap, namespaces} { // Landlock protects nothing in a writable folder
		t.Run(how.name, func(t *testing.T) {
			w := newWorld(t, os.Getuid())
			defer w.harm(t, map[string]bool{})
			symlink("../outside", "cwd/link")(t, w)
			ctx, stop := context.WithCancel(t.Context())
			swapped := make(chan int)
			go func() {
				n := 0
				for ctx.Err() == nil {
					if unix.Renameat2(unix.AT_FDCWD, w.path("cwd/link"), unix.AT_FDCWD, w.path("cwd/.git"), unix.RENAME_EXCHANGE) == nil {
						n++
					}
				}
				swapped <- n
			}()
			ran := 0
			for range starts {
				end, out := w.exec(t, how, confined, w.tools.probe, "escape", "append", w.path("outside/append"))
				if strings.HasSuffix(strings.TrimSpace(out), "escaped") {
					t.Error("a file outside was written to")
				}
				if end.code == 0 {
					ran++
				}
				_, _ = w.exec(t, how, confined, w.tools.probe, "escape", "append", w.path("cwd/.git/append"))
			}
			stop()
			if n := <-swapped; n < starts {
				t.Fatalf("swapped %d times only", n)
			} else {
				t.Logf("swapped %d times; %d of %d commands ran", n, ran, starts)
			}
			if appended("{W}/outside/append")(t, w) {
				t.Error("a file outside was written to, through a link that was swapped")
			}
		})
	}
}
