//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// escapes are attempts to get out, by name. nil says that it worked; the error says why not.
var escapes = map[string]func(args []string) error{
	"append":        func(a []string) error { return writeTo(a[0], unix.O_APPEND) },
	"read":          func(a []string) error { return readAll(a[0]) },
	"outlive":       outlive,
	"linger":        linger,
	"stay":          stay,
	"descriptors":   descriptors,
	"mem":           mem,
	"io-uring":      func([]string) error { return ioUring() },
	"mptcp":         mptcp,
	"udp":           udp,
	"tiocsti":       tiocsti,
	"memfd":         memfd,
	"nested":        nested,
	"nested-inside": nestedInside,
	"euid":          euid,
	"chroot":        chroot,
	"pivot-root":    pivotRoot,
	"bind":          bind,
	"open-tree":     openTree,
	"mount-setattr": mountSetattr,
	"proc-root":     procRoot,
	"executables":   executables,
	"hard-link":     hardLink,
	"move-parent":   moveParent,
	"sysv-shm":      sysvShm,
	"sysv-msg":      sysvMsg,
	"posix-mq":      posixMQ,
	"attack":        attack,
	"signals":       signals,
	"keyring":       keyring,
	"bpf":           func([]string) error { return bpf() },
	"perf":          func([]string) error { return perf() },
	"mknod":         mknod,
	"metadata":      metadata,
	"by-handle":     byHandle,
	"setns":         setns,
	"machine":       func([]string) error { return machine() },
	"received":      received,
	"limits":        limits,
}

func escape(name string, args []string) error {
	try, ok := escapes[name]
	if !ok {
		return fmt.Errorf("no escape %q", name)
	}
	if err := try(args); err != nil {
		fmt.Println(outcomes(err))
		return nil
	}
	fmt.Println("escaped")
	return nil
}

// outcomes names all of several errors that were joined.
func outcomes(err error) string {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return outcome(err)
	}
	var names []string
	for _, e := range joined.Unwrap() {
		names = append(names, outcomes(e))
	}
	return strings.Join(names, " ")
}

// any1 tries each way and is nil when one of them worked.
func any1(ways ...func() error) error {
	var errs []error
	for _, way := range ways {
		err := way()
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// outlive starts a process in a session of its own that keeps the standard output, and ends. It prints
// that process's id as seen from here.
func outlive([]string) error {
	cmd := exec.Command("/proc/self/exe", "escape", "linger")
	cmd.Stdout = os.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	fmt.Println("pid", cmd.Process.Pid)
	return nil
}

// linger waits, whatever signal comes, for one that cannot be caught.
func linger([]string) error {
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTERM)
	for {
		_ = unix.Pause()
	}
}

// stay does as outlive, and stays as well.
func stay(args []string) error {
	if err := outlive(args); err != nil {
		return err
	}
	return linger(nil)
}

// descriptors looks at every descriptor above 2: reads name in it when it is a folder, and writes to it when it is a file.
func descriptors(args []string) error {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	errs := []error{unix.EBADF}
	for _, entry := range fds {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil || fd <= 2 {
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil {
			continue
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			in, err := unix.Openat(fd, args[0], unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err == nil {
				_, err = unix.Read(in, make([]byte, 1))
			}
			errs = append(errs, err)
		case unix.S_IFREG:
			_, err := unix.Write(fd, []byte("through a descriptor"))
			errs = append(errs, err)
		case unix.S_IFSOCK:
			_, err := unix.Write(fd, []byte("through a descriptor"))
			errs = append(errs, err)
		}
	}
	for _, err := range errs {
		if err == nil {
			return nil
		}
	}
	return errors.Join(errs...)
}

// mem opens, for writing, the memory of every process in sight that runs without a system call filter.
func mem([]string) error {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	errs := []error{unix.ESRCH}
	for _, entry := range procs {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if bytes.Contains(status, []byte("Seccomp:\t2")) {
			continue
		}
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/mem", pid), unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs[len(errs)-1])
}

func ioUring() error {
	var params [120]byte // struct io_uring_params
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 4, uintptr(unsafe.Pointer(&params[0])), 0)
	if errno != 0 {
		return errno
	}
	return unix.Close(int(fd))
}

func loopback(port string) *unix.SockaddrInet4 {
	n, _ := strconv.Atoi(port)
	return loopback4(n)
}

func mptcp(args []string) error {
	return socketAndThen(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP, func(fd int) error { return unix.Connect(fd, loopback(args[0])) })
}

func udp(args []string) error {
	return socketAndThen(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) error { return unix.Sendto(fd, []byte(args[1]), 0, loopback(args[0])) })
}

// tiocsti types into the terminal that it was started from, by each descriptor that may be it.
func tiocsti([]string) error {
	ways := []func() error{}
	for _, open := range []func() (int, error){
		func() (int, error) { return 0, nil },
		func() (int, error) { return unix.Open("/dev/tty", unix.O_RDWR, 0) },
	} {
		ways = append(ways, func() error {
			fd, err := open()
			if err != nil {
				return err
			}
			for _, c := range []byte("injected\n") {
				// The upper half of the request is ignored by the kernel, and not by every filter.
				for _, request := range []uintptr{unix.TIOCSTI, unix.TIOCSTI | 1<<32} {
					if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(&c))); errno == 0 {
						err = nil
						break
					} else {
						err = errno
					}
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	return any1(ways...)
}

// memfd writes to a file from a program that exists in memory alone.
func memfd(args []string) error {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("program", 0)
	if err != nil {
		return err
	}
	if _, err := unix.Write(fd, program); err != nil {
		return err
	}
	out, err := exec.Command(fmt.Sprintf("/proc/self/fd/%d", fd), "escape", "append", args[0]).CombinedOutput()
	if err != nil {
		return err
	}
	return said(out)
}

func said(out []byte) error {
	if text := strings.TrimSpace(string(out)); text != "escaped" {
		return errors.New(text)
	}
	return nil
}

// nested makes a user and a mount namespace of its own, and tries from there. args: a folder that is
// read-only, a folder that is hidden.
func nested(args []string) error {
	cmd := exec.Command("/proc/self/exe", append([]string{"escape", "nested-inside"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return err
	}
	return said(out)
}

func nestedInside(args []string) error {
	readOnly, hidden := args[0], args[1]
	write := func() error { return writeTo(filepath.Join(readOnly, "append"), unix.O_APPEND) }
	read := func() error { return readAll(filepath.Join(hidden, "file")) }
	after := func(step, then func() error) func() error {
		return func() error {
			if err := step(); err != nil {
				return err
			}
			return then()
		}
	}
	ways := []func() error{write, read}
	for _, dir := range []string{readOnly, filepath.Dir(readOnly), "/"} {
		ways = append(ways,
			after(func() error { return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND, "") }, write),
			after(func() error {
				return unix.MountSetattr(unix.AT_FDCWD, dir, unix.AT_RECURSIVE, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
			}, write))
	}
	ways = append(ways,
		after(func() error { return unix.Unmount(hidden, unix.MNT_DETACH) }, read),
		after(func() error { return unix.Unmount(hidden, 0) }, read),
		after(func() error { return unix.Unmount(readOnly, unix.MNT_DETACH) }, write))
	return any1(ways...)
}

func euid([]string) error {
	if os.Geteuid() != 0 {
		return unix.EPERM
	}
	return nil
}

// chroot makes a folder the root and reads a file in it by the new name.
func chroot(args []string) error {
	return any1(
		func() error {
			if err := unix.Chroot(args[0]); err != nil {
				return err
			}
			return readAll("/file")
		},
		func() error {
			if err := unix.Chroot("/proc/1/root"); err != nil {
				return err
			}
			return readAll(filepath.Join(args[0], "file"))
		})
}

func pivotRoot(args []string) error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount(args[0], args[0], "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if err := unix.PivotRoot(args[0], args[0]); err != nil {
		return err
	}
	return nil
}

// bind mounts a folder over another, and reads through it.
func bind(args []string) error {
	from, to := args[0], args[1]
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	defer func() { _ = unix.Unmount(to, unix.MNT_DETACH) }()
	return readAll(filepath.Join(to, "file"))
}

// openTree takes a copy of a folder's mount and reads in it.
func openTree(args []string) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, args[0], unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	fd, err := unix.Openat(tree, "file", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func mountSetattr(args []string) error {
	_ = unix.MountSetattr(unix.AT_FDCWD, args[0], unix.AT_RECURSIVE, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
	_ = unix.Mount("", args[0], "", unix.MS_REMOUNT|unix.MS_BIND, "")
	return writeTo(filepath.Join(args[0], "append"), unix.O_APPEND)
}

// procRoot reads a file through the root folder and the working directory of every process in sight.
func procRoot(args []string) error {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	ways := []func() error{func() error { return unix.ESRCH }}
	for _, entry := range procs {
		if _, err := strconv.Atoi(entry.Name()); err != nil && entry.Name() != "self" && entry.Name() != "thread-self" {
			continue
		}
		for _, link := range []string{"root", "cwd/../../../../../../../.."} {
			ways = append(ways, func() error { return readAll("/proc/" + entry.Name() + "/" + link + args[0]) })
		}
	}
	return any1(ways...)
}

// executables opens programs for writing: those in args, and that of every process in sight. A running one
// is busy whoever asks, so the test looks at one that does not run.
func executables(args []string) error {
	procs, _ := os.ReadDir("/proc")
	for _, entry := range procs {
		if _, err := strconv.Atoi(entry.Name()); err == nil || entry.Name() == "self" {
			args = append(args, "/proc/"+entry.Name()+"/exe")
		}
	}
	var ways []func() error
	for _, path := range args {
		ways = append(ways, func() error {
			fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		})
	}
	return any1(ways...)
}

// hardLink links a file to a name where writing is allowed, in each way, and writes to it there.
func hardLink(args []string) error {
	from, to := args[0], args[1]
	var ways []func() error
	for i, link := range []func(to string) error{
		func(to string) error { return unix.Link(from, to) },
		func(to string) error {
			return unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.AT_SYMLINK_FOLLOW)
		},
		func(to string) error {
			fd, err := unix.Open(from, unix.O_PATH|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, to, unix.AT_SYMLINK_FOLLOW)
		},
		func(to string) error { return unix.Rename(from, to) },
	} {
		ways = append(ways, func() error {
			to := to + strconv.Itoa(i)
			if err := link(to); err != nil {
				return err
			}
			return writeTo(to, unix.O_APPEND)
		})
	}
	return any1(ways...)
}

// moveParent moves the parent of a protected folder away and makes another in its place, or swaps the two.
// args: the parent, the protected folder in it.
func moveParent(args []string) error {
	parent, protected := args[0], args[1]
	aside := parent + ".aside"
	fresh := func() error {
		if err := os.MkdirAll(filepath.Join(parent, protected), 0o755); err != nil {
			return err
		}
		return writeTo(filepath.Join(parent, protected, "planted"), unix.O_CREAT)
	}
	return any1(
		func() error {
			if err := unix.Rename(filepath.Join(parent, protected), filepath.Join(parent, protected+".aside")); err != nil {
				return err
			}
			return fresh()
		},
		func() error {
			if err := unix.Rename(parent, aside); err != nil {
				return err
			}
			return fresh()
		},
		func() error {
			if err := os.MkdirAll(filepath.Join(aside, protected), 0o755); err != nil {
				return err
			}
			if err := writeTo(filepath.Join(aside, protected, "planted"), unix.O_CREAT); err != nil {
				return err
			}
			return unix.Renameat2(unix.AT_FDCWD, aside, unix.AT_FDCWD, parent, unix.RENAME_EXCHANGE)
		})
}

func sysvShm(args []string) error {
	id, _ := strconv.Atoi(args[0])
	memory, err := unix.SysvShmAttach(id, 0, 0)
	if err != nil {
		return err
	}
	copy(memory, "escaped")
	return unix.SysvShmDetach(memory)
}

func sysvMsg(args []string) error {
	id, _ := strconv.Atoi(args[0])
	message := struct {
		kind int64
		text [8]byte
	}{1, [8]byte{'e', 's', 'c', 'a', 'p', 'e', 'd'}}
	if _, _, errno := unix.Syscall6(unix.SYS_MSGSND, uintptr(id), uintptr(unsafe.Pointer(&message)), 8, unix.IPC_NOWAIT, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

func posixMQ(args []string) error {
	name, err := unix.BytePtrFromString(args[0])
	if err != nil {
		return err
	}
	fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_WRONLY, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	text := []byte("escaped")
	_, _, errno = unix.Syscall6(unix.SYS_MQ_TIMEDSEND, fd, uintptr(unsafe.Pointer(&text[0])), uintptr(len(text)), 0, 0, 0)
	return errnoError(errno)
}

// attack writes to another process's memory. args: its id, the address.
func attack(args []string) error {
	pid, _ := strconv.Atoi(args[0])
	address, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return err
	}
	data := []byte("attacked")
	return any1(
		func() error {
			_, err := unix.ProcessVMWritev(pid, []unix.Iovec{{Base: &data[0], Len: uint64(len(data))}}, []unix.RemoteIovec{{Base: uintptr(address), Len: len(data)}}, 0)
			return err
		},
		func() error {
			fd, err := unix.Open(fmt.Sprintf("/proc/%d/mem", pid), unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			_, err = unix.Pwrite(fd, data, int64(address))
			return err
		},
		func() error {
			runtime.LockOSThread()
			if err := unix.PtraceAttach(pid); err != nil {
				return err
			}
			var status unix.WaitStatus
			_, _ = unix.Wait4(pid, &status, unix.WALL, nil)
			_, err := unix.PtracePokeData(pid, uintptr(address), data)
			_ = unix.PtraceDetach(pid)
			return err
		},
		func() error {
			pidfd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				return err
			}
			_, err = unix.PidfdGetfd(pidfd, 1, 0)
			return err
		})
}

// signals sends USR1 in each way that there is.
func signals(args []string) error {
	pid, _ := strconv.Atoi(args[0])
	info := make([]byte, 128) // siginfo_t
	*(*int32)(unsafe.Pointer(&info[0])) = int32(unix.SIGUSR1)
	*(*int32)(unsafe.Pointer(&info[8])) = -1 // SI_QUEUE
	return any1(
		func() error { return unix.Kill(pid, unix.SIGUSR1) },
		func() error { return unix.Tgkill(pid, pid, unix.SIGUSR1) },
		func() error {
			_, _, errno := unix.Syscall(unix.SYS_TKILL, uintptr(pid), uintptr(unix.SIGUSR1), 0)
			return errnoError(errno)
		},
		func() error {
			_, _, errno := unix.Syscall(unix.SYS_RT_SIGQUEUEINFO, uintptr(pid), uintptr(unix.SIGUSR1), uintptr(unsafe.Pointer(&info[0])))
			return errnoError(errno)
		},
		func() error {
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				return err
			}
			return unix.PidfdSendSignal(fd, unix.SIGUSR1, nil, 0)
		},
		func() error { return unix.Kill(-pid, unix.SIGUSR1) }, // the victim leads a group
		func() error {
			// The kernel sends the owner of a descriptor the signal asked for when input comes.
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			if _, err := unix.FcntlInt(uintptr(pair[0]), unix.F_SETOWN, pid); err != nil {
				return err
			}
			_, _ = unix.FcntlInt(uintptr(pair[0]), unix.F_SETSIG, int(unix.SIGUSR1))
			if _, err := unix.FcntlInt(uintptr(pair[0]), unix.F_SETFL, unix.O_ASYNC); err != nil {
				return err
			}
			_, _ = unix.Write(pair[1], []byte("x"))
			return errors.New("sent by the kernel, or not") // the victim knows
		})
}

// keyring reads a key of the session that the sandbox was started from. args: its description.
func keyring(args []string) error {
	return any1(
		func() error { return readKey(unix.KEY_SPEC_SESSION_KEYRING, args[0]) },
		func() error { return readKey(unix.KEY_SPEC_USER_KEYRING, args[0]) })
}

func readKey(ring int, description string) error {
	key, err := unix.KeyctlSearch(ring, "user", description, 0)
	if err != nil {
		return err
	}
	_, err = unix.KeyctlBuffer(unix.KEYCTL_READ, key, make([]byte, 64), 0)
	return err
}

func bpf() error {
	// A map needs no rights beyond those of bpf(2) itself.
	attr := [18]uint32{2 /* array */, 4, 8, 1}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_CREATE, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return errno
	}
	return unix.Close(int(fd))
}

func perf() error {
	attr := &unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Size: unix.PERF_ATTR_SIZE_VER0, Config: unix.PERF_COUNT_SW_TASK_CLOCK, Bits: unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv}
	fd, err := unix.PerfEventOpen(attr, 0, -1, -1, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// mknod makes a device of its own where files may be made, and opens it. args: the folder.
func mknod(args []string) error {
	return any1(
		func() error { return device(filepath.Join(args[0], "kmsg"), unix.S_IFCHR|0o600, 1, 11) },
		func() error { return device(filepath.Join(args[0], "mem"), unix.S_IFCHR|0o600, 1, 1) },
		func() error { return device(filepath.Join(args[0], "disk"), unix.S_IFBLK|0o600, 254, 0) })
}

func device(path string, mode, major, minor uint32) error {
	if err := unix.Mknod(path, mode, int(unix.Mkdev(major, minor))); err != nil {
		return err
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// metadata changes what is known of a file that may be read alone, in every way but one that was not found.
func metadata(args []string) error {
	path := args[0]
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	name, _ := unix.BytePtrFromString(path)
	attribute, _ := unix.BytePtrFromString("user.np")
	value := struct {
		value uint64
		size  uint32
		flags uint32
	}{uint64(uintptr(unsafe.Pointer(attribute))), 1, 0}
	here := unix.AT_FDCWD
	uid, gid := os.Getuid(), os.Getgid()
	fileAttr := [3]uint64{} // struct file_attr
	raw := func(number uintptr, a ...uintptr) func() error {
		return func() error {
			var full [6]uintptr
			copy(full[:], a)
			_, _, errno := unix.Syscall6(number, full[0], full[1], full[2], full[3], full[4], full[5])
			return errnoError(errno)
		}
	}
	ways := []func() error{
		func() error { return unix.Chmod(path, 0o601) },
		func() error { return unix.Fchmod(fd, 0o602) },
		raw(unix.SYS_FCHMODAT, uintptr(here), uintptr(unsafe.Pointer(name)), 0o603),
		raw(unix.SYS_FCHMODAT2, uintptr(here), uintptr(unsafe.Pointer(name)), 0o604, 0),
		func() error { return unix.Chown(path, uid, gid) },
		func() error { return unix.Lchown(path, uid, gid) },
		func() error { return unix.Fchown(fd, uid, gid) },
		func() error { return unix.Fchownat(here, path, uid, gid, 0) },
		func() error { return unix.Utimes(path, make([]unix.Timeval, 2)) },
		func() error { return unix.Futimes(fd, make([]unix.Timeval, 2)) },
		func() error { return unix.UtimesNanoAt(here, path, make([]unix.Timespec, 2), 0) },
		func() error { return unix.Setxattr(path, "user.np", []byte("x"), 0) },
		func() error { return unix.Lsetxattr(path, "user.np", []byte("x"), 0) },
		func() error { return unix.Fsetxattr(fd, "user.np", []byte("x"), 0) },
		raw(sysSetxattrat, uintptr(here), uintptr(unsafe.Pointer(name)), 0, uintptr(unsafe.Pointer(attribute)), uintptr(unsafe.Pointer(&value)), unsafe.Sizeof(value)),
		func() error { return unix.Removexattr(path, "user.there") },
		func() error { return unix.Fremovexattr(fd, "user.there") },
		func() error { return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, 0x40 /* do not dump */) },
		raw(sysFileSetattr, uintptr(here), uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&fileAttr)), unsafe.Sizeof(fileAttr), 0),
		func() error { return unix.Fallocate(fd, 0, 0, 1<<16) },
		func() error { return unix.Truncate(path, 1) },
	}
	if runtime.GOARCH == "amd64" {
		// What other architectures never had.
		ways = append(ways, raw(132 /* utime */, uintptr(unsafe.Pointer(name)), 0), raw(261 /* futimesat */, uintptr(here), uintptr(unsafe.Pointer(name)), 0))
	}
	err = any1(ways...)
	runtime.KeepAlive(name)
	runtime.KeepAlive(attribute)
	return err
}

// System calls that x/sys has no name for everywhere; their numbers are one on all architectures.
const (
	sysSetxattrat  = 463 // Linux 6.13
	sysFileSetattr = 469 // Linux 6.17
)

// byHandle opens a file by its handle, past all folders that lead to it. args: the file, a folder on the same file system.
func byHandle(args []string) error {
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, args[0], 0)
	if err != nil {
		return err
	}
	mount, err := unix.Open(args[1], unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	fd, err := unix.OpenByHandleAt(mount, handle, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		return err
	}
	_, err = unix.Read(fd, make([]byte, 1))
	return err
}

// setns goes to the namespaces of a process outside.
func setns(args []string) error {
	pid, _ := strconv.Atoi(args[0])
	runtime.LockOSThread()
	var ways []func() error
	for name, kind := range map[string]int{"net": unix.CLONE_NEWNET, "uts": unix.CLONE_NEWUTS, "ipc": unix.CLONE_NEWIPC} {
		ways = append(ways, func() error {
			fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Setns(fd, kind)
		})
	}
	return any1(ways...)
}

// machine asks for what changes the machine, in forms that change nothing.
func machine() error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err
	}
	host := bytes.TrimRight(name.Nodename[:], "\x00")
	notCode := []byte("no module")
	empty, _ := unix.BytePtrFromString("")
	return any1(
		func() error { return unix.Sethostname(host) },
		func() error {
			_, _, errno := unix.Syscall(unix.SYS_INIT_MODULE, uintptr(unsafe.Pointer(&notCode[0])), uintptr(len(notCode)), uintptr(unsafe.Pointer(empty)))
			if errno == unix.ENOEXEC {
				return nil // it was read
			}
			return errnoError(errno)
		},
		func() error {
			_, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, make([]byte, 16))
			return err
		},
		func() error {
			_, err := unix.Adjtimex(&unix.Timex{Modes: unix.ADJ_SETOFFSET | unix.ADJ_NANO})
			return err
		})
}

// received takes a descriptor out of a socket that it was started with, and opens a file in it.
func received(args []string) error {
	space := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(3, make([]byte, 1), space, unix.MSG_DONTWAIT)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(space[:n])
	if err != nil || len(messages) == 0 {
		return errors.Join(err, unix.ENODATA)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return err
	}
	fd, err := unix.Openat(fds[0], args[0], unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// limits changes what another process may use.
func limits(args []string) error {
	pid, _ := strconv.Atoi(args[0])
	var now unix.Rlimit
	return any1(
		func() error {
			if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &now); err != nil {
				return err
			}
			return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &now, nil)
		},
		func() error {
			var set unix.CPUSet
			if err := unix.SchedGetaffinity(pid, &set); err != nil {
				return err
			}
			return unix.SchedSetaffinity(pid, &set)
		},
		func() error { return unix.Setpriority(unix.PRIO_PROCESS, pid, 5) })
}
