//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// kernel tries what reaches the kernel itself, or state that the whole machine shares.
func kernel(p plan, r results) {
	open := func(name, path string, flags int) {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		r[name] = outcome(err)
	}
	// Opened for writing, never written to.
	open("write /proc/sys", "/proc/sys/kernel/core_pattern", unix.O_WRONLY)
	open("write /proc/sysrq-trigger", "/proc/sysrq-trigger", unix.O_WRONLY)
	open("write /sys", "/sys/kernel/mm/transparent_hugepage/enabled", unix.O_WRONLY)
	open("write /dev/kmsg", "/dev/kmsg", unix.O_WRONLY)
	open("read /dev/mem", "/dev/mem", unix.O_RDONLY)
	open("read block device", "/dev/vda", unix.O_RDONLY)
	open("write /dev/null", "/dev/null", unix.O_WRONLY)
	open("read /dev/urandom", "/dev/urandom", unix.O_RDONLY)
	open("read /proc/self/status", "/proc/self/status", unix.O_RDONLY)
	r["create /dev/shm"] = outcome(writeTo(p.Shm, unix.O_CREAT|unix.O_EXCL))
	r["mkdir cgroup"] = outcome(unix.Mkdir(p.Cgroup, 0o755))

	r["mount"] = outcome(func() error {
		err := unix.Mount("none", p.Mount, "tmpfs", 0, "")
		if err == nil {
			_ = unix.Unmount(p.Mount, unix.MNT_DETACH)
		}
		return err
	}())
	for name, flags := range map[string]uintptr{"unshare user": syscall.CLONE_NEWUSER, "unshare mount": syscall.CLONE_NEWNS, "unshare network": syscall.CLONE_NEWNET} {
		cmd := exec.Command("/proc/self/exe", "true")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		if flags == syscall.CLONE_NEWUSER {
			cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWNS
		}
		r[name] = outcome(cmd.Run())
	}
	r["io_uring"] = outcome(ioUring())
}

func errnoError(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

// socketAndThen makes a socket and hands it to use.
func socketAndThen(domain, typ, proto int, use func(fd int) error) error {
	fd, err := unix.Socket(domain, typ|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// No wait without an end: what does not answer at once is refused.
	limit := unix.Timeval{Sec: 5}
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)
	return use(fd)
}

func loopback4(port int) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
}

func network(p plan, r results) {
	connect := func(to unix.Sockaddr) func(int) error {
		return func(fd int) error { return unix.Connect(fd, to) }
	}
	listen := func(at unix.Sockaddr) func(int) error {
		return func(fd int) error {
			if err := unix.Bind(fd, at); err != nil {
				return err
			}
			return unix.Listen(fd, 1)
		}
	}
	opened := func(int) error { return nil }

	r["tcp connect"] = outcome(socketAndThen(unix.AF_INET, unix.SOCK_STREAM, 0, connect(loopback4(p.TCP))))
	r["mptcp connect"] = outcome(socketAndThen(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP, connect(loopback4(p.TCP))))
	r["tcp fast open"] = outcome(socketAndThen(unix.AF_INET, unix.SOCK_STREAM, 0, func(fd int) error {
		return unix.Sendto(fd, []byte(p.Token), unix.MSG_FASTOPEN, loopback4(p.TCP))
	}))
	r["tcp listen"] = outcome(socketAndThen(unix.AF_INET, unix.SOCK_STREAM, 0, listen(loopback4(0))))
	r["tcp6 listen"] = outcome(socketAndThen(unix.AF_INET6, unix.SOCK_STREAM, 0, listen(&unix.SockaddrInet6{Addr: [16]byte{15: 1}})))
	r["udp send"] = outcome(socketAndThen(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) error {
		return unix.Sendto(fd, []byte(p.Token), 0, loopback4(p.UDP))
	}))
	r["udp bind"] = outcome(socketAndThen(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) error { return unix.Bind(fd, loopback4(0)) }))
	r["netlink"] = outcome(socketAndThen(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE, opened))
	r["packet socket"] = outcome(socketAndThen(unix.AF_PACKET, unix.SOCK_RAW, 0, opened))
	r["vsock"] = outcome(socketAndThen(unix.AF_VSOCK, unix.SOCK_STREAM, 0, opened))
	r["ping socket"] = outcome(socketAndThen(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP, opened))
	for name, path := range p.Sockets {
		r["unix connect "+name] = outcome(socketAndThen(unix.AF_UNIX, unix.SOCK_STREAM, 0, connect(&unix.SockaddrUnix{Name: path})))
	}
	r["abstract connect"] = outcome(socketAndThen(unix.AF_UNIX, unix.SOCK_STREAM, 0, connect(&unix.SockaddrUnix{Name: "@" + p.Abstract})))
	r["unix socketpair"] = outcome(func() error {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			_, err = unix.Write(pair[0], []byte("x"))
			_ = unix.Close(pair[0])
			_ = unix.Close(pair[1])
		}
		return err
	}())
}

func readDir(path string) error {
	_, err := os.ReadDir(path)
	return err
}

// processes tries what reaches another process: the victim, outside.
func processes(p plan, r results) {
	pid := p.Victim
	proc := func(name string) string { return fmt.Sprintf("/proc/%d/%s", pid, name) }
	r["read environ of outside"] = outcome(readAll(proc("environ")))
	r["read cmdline of outside"] = outcome(readAll(proc("cmdline")))
	r["read maps of outside"] = outcome(readAll(proc("maps")))
	r["list root of outside"] = outcome(readDir(proc("root")))
	r["list fd of outside"] = outcome(readDir(proc("fd")))
	fd, err := unix.Open(proc("mem"), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.Pwrite(fd, []byte("overwritten by mem"), int64(p.Address))
		_ = unix.Close(fd)
	}
	r["write mem of outside"] = outcome(err)

	buffer := make([]byte, 8)
	local := []unix.Iovec{{Base: &buffer[0], Len: 8}}
	remote := []unix.RemoteIovec{{Base: uintptr(p.Address), Len: 8}}
	_, err = unix.ProcessVMReadv(pid, local, remote, 0)
	r["process_vm_readv of outside"] = outcome(err)
	_, err = unix.ProcessVMWritev(pid, local, remote, 0)
	r["process_vm_writev of outside"] = outcome(err)

	pidfd, err := unix.PidfdOpen(pid, 0)
	if err == nil {
		var got int
		got, err = unix.PidfdGetfd(pidfd, 1, 0)
		if err == nil {
			_ = unix.Close(got)
		}
		_ = unix.Close(pidfd)
	}
	r["pidfd_getfd of outside"] = outcome(err)

	runtime.LockOSThread()
	err = unix.PtraceSeize(pid)
	if err == nil {
		_ = unix.PtraceInterrupt(pid)
		var status unix.WaitStatus
		_, _ = unix.Wait4(pid, &status, unix.WALL, nil)
		_ = unix.PtraceDetach(pid)
	}
	runtime.UnlockOSThread()
	r["ptrace of outside"] = outcome(err)

	r["change priority of outside"] = outcome(unix.Setpriority(unix.PRIO_PROCESS, pid, 5))
	r["signal 0 to outside"] = outcome(unix.Kill(pid, 0))
	r["signal USR1 to outside"] = outcome(unix.Kill(pid, unix.SIGUSR1))
}
