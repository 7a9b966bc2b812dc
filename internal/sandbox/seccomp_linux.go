//go:build linux && (amd64 || arm64)

package sandbox

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A filter is a seccomp filter: rules about system calls, tried in order; what none is about is allowed.
type filter []call

// call denies a system call when all its conditions hold.
type call struct {
	number uintptr
	when   []condition
	errno  unix.Errno
}

// condition is about the lower 32 bits of an argument: of flags, families and requests the kernel looks at no others.
type condition struct {
	arg  uint32
	mask uint32 // what is looked at; 0: everything
	op   operator
	to   uint32
}

type operator uint8

const (
	equal operator = iota
	notEqual
	anySet // one of the bits of to
)

// confinement is what no command may do, whatever its state: leave the sandbox by other means than files and
// networks. io_uring does what other calls are denied for; a new user namespace gives capabilities over the
// kernel; keys and, where there is no namespace for them, queues and shared memory are the user's and not the sandbox's; TIOCSTI and
// TIOCLINUX type into the terminal that the command shares with whoever started it.
func confinement() filter {
	f := filter{
		{unix.SYS_IO_URING_SETUP, nil, unix.EPERM},
		{unix.SYS_IO_URING_ENTER, nil, unix.EPERM},
		{unix.SYS_IO_URING_REGISTER, nil, unix.EPERM},
		{unix.SYS_UNSHARE, []condition{{arg: 0, op: anySet, to: unix.CLONE_NEWUSER}}, unix.EPERM},
		{unix.SYS_CLONE, []condition{{arg: 0, op: anySet, to: unix.CLONE_NEWUSER}}, unix.EPERM},
		{unix.SYS_CLONE3, nil, unix.ENOSYS}, // its flags are in memory, out of reach; without it libraries use clone
		{unix.SYS_IOCTL, []condition{{arg: 1, op: equal, to: unix.TIOCSTI}}, unix.EPERM},
		{unix.SYS_IOCTL, []condition{{arg: 1, op: equal, to: tioclinux}}, unix.EPERM},
		// Families whose peers no network namespace has: the hypervisor, and hardware.
		{unix.SYS_SOCKET, []condition{{arg: 0, op: equal, to: unix.AF_VSOCK}}, unix.EPERM},
		{unix.SYS_SOCKET, []condition{{arg: 0, op: equal, to: unix.AF_PACKET}}, unix.EPERM},
	}
	for _, number := range []uintptr{
		unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
		unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
		unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_FSOPEN, unix.SYS_SETNS,
		unix.SYS_OPEN_BY_HANDLE_AT,
	} {
		f = append(f, call{number, nil, unix.EPERM})
	}
	return f
}

const tioclinux = 0x541c // linux/tty: paste into a console

// offline is what a command without network may not do: have a socket of any family but unix, or
// reach anybody by one of those. What is left are pairs of sockets that are connected from the beginning. Datagram
// sockets are left out there too: a message names its receiver in memory, where no filter can look.
func offline() filter {
	f := filter{
		{unix.SYS_SOCKET, []condition{{arg: 0, op: notEqual, to: unix.AF_UNIX}}, unix.EPERM},
		{unix.SYS_SENDTO, []condition{{arg: 5, op: notEqual, to: 0}}, unix.EPERM}, // send() has no address
		{unix.SYS_PTRACE, nil, unix.EPERM},
		{unix.SYS_PROCESS_VM_READV, nil, unix.EPERM},
		{unix.SYS_PROCESS_VM_WRITEV, nil, unix.EPERM},
	}
	for _, call_ := range []uintptr{unix.SYS_SOCKET, unix.SYS_SOCKETPAIR} {
		// SOCK_RAW is another name for datagrams here.
		for _, kind := range []uint32{unix.SOCK_DGRAM, unix.SOCK_RAW} {
			f = append(f, call{call_, []condition{{arg: 1, mask: 0xf, op: equal, to: kind}}, unix.EPERM})
		}
	}
	for _, number := range []uintptr{unix.SYS_CONNECT, unix.SYS_BIND, unix.SYS_LISTEN, unix.SYS_ACCEPT, unix.SYS_ACCEPT4} {
		f = append(f, call{number, nil, unix.EPERM})
	}
	return f
}

// unshared is what a command may not do where there is no namespace that keeps it to itself.
func unshared() filter {
	var f filter
	for _, number := range []uintptr{
		unix.SYS_MQ_OPEN, unix.SYS_MQ_UNLINK, unix.SYS_MSGGET, unix.SYS_MSGCTL, unix.SYS_MSGSND, unix.SYS_MSGRCV,
		unix.SYS_SEMGET, unix.SYS_SEMCTL, unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_SHMCTL,
	} {
		f = append(f, call{number, nil, unix.EPERM})
	}
	// What other processes may use of the machine: the own one is 0.
	for _, number := range []uintptr{
		unix.SYS_PRLIMIT64, unix.SYS_SCHED_SETAFFINITY, unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_SETATTR,
	} {
		f = append(f, call{number, []condition{{arg: 0, op: notEqual, to: 0}}, unix.EPERM})
	}
	for _, number := range []uintptr{unix.SYS_SETPRIORITY, unix.SYS_IOPRIO_SET} {
		f = append(f,
			call{number, []condition{{arg: 1, op: notEqual, to: 0}}, unix.EPERM},
			call{number, []condition{{arg: 0, op: equal, to: ofUser[number]}}, unix.EPERM})
	}
	return f
}

// ofUser is how all processes of a user are named.
var ofUser = map[uintptr]uint32{unix.SYS_SETPRIORITY: unix.PRIO_USER, unix.SYS_IOPRIO_SET: 3 /* IOPRIO_WHO_USER */}

// unruled is what Landlock has no rules for: who owns a file, its mode, times and extended attributes. Without a mount that is
// read-only nothing else keeps a command from changing them on any file of its user.
func unruled() filter {
	var f filter
	for _, number := range append([]uintptr{
		unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_UTIMENSAT,
		unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, sysSetxattrat, unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR, sysRemovexattrat,
		sysFileSetattr,
	}, olderCalls...) {
		f = append(f, call{number, nil, unix.EPERM})
	}
	// The flags of a file, such as immutable, are set by requests.
	for _, request := range []uint32{unix.FS_IOC_SETFLAGS, fsIocFssetxattr} {
		f = append(f, call{unix.SYS_IOCTL, []condition{{arg: 1, op: equal, to: request}}, unix.EPERM})
	}
	return f
}

const (
	fsIocFssetxattr = 0x401c5820 // FS_IOC_FSSETXATTR (linux/fs.h)

	// Of Linux 6.13 and 6.17, the same on each architecture.
	sysSetxattrat    = 463
	sysRemovexattrat = 466
	sysFileSetattr   = 469
)

// Where the kernel puts what a filter looks at (struct seccomp_data), on little-endian machines.
const (
	numberAt = 0
	archAt   = 4
	argsAt   = 16
)

// assemble is the filter as a program for the kernel. Each call becomes a block of its own that begins with loading the
// number: short jumps, and nothing is shared that could be got wrong.
func (f filter) assemble() []unix.SockFilter {
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	jump := func(kind uint16, k uint32, yes, no int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | kind | unix.BPF_K, Jt: uint8(yes), Jf: uint8(no), K: k}
	}
	give := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }

	// Calls of another architecture have other numbers, and programs can make them: they end the process.
	program := []unix.SockFilter{
		load(archAt), jump(unix.BPF_JEQ, auditArch, 1, 0), give(unix.SECCOMP_RET_KILL_PROCESS),
		load(numberAt), jump(unix.BPF_JGE, foreignNumbers, 0, 1), give(unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)),
	}
	for _, c := range f {
		block := []unix.SockFilter{}
		for _, w := range c.when {
			block = append(block, load(argsAt+8*w.arg))
			if w.mask != 0 {
				block = append(block, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: w.mask})
			}
			// A condition that does not hold jumps behind the block: the distance is set below.
			switch w.op {
			case equal:
				block = append(block, jump(unix.BPF_JEQ, w.to, 0, away))
			case notEqual:
				block = append(block, jump(unix.BPF_JEQ, w.to, away, 0))
			case anySet:
				block = append(block, jump(unix.BPF_JSET, w.to, 0, away))
			}
		}
		block = append(block, give(unix.SECCOMP_RET_ERRNO|uint32(c.errno)))
		block = append([]unix.SockFilter{load(numberAt), jump(unix.BPF_JEQ, uint32(c.number), 0, away)}, block...)
		for i := range block {
			behind := uint8(len(block) - i - 1)
			if block[i].Code&0x7 == unix.BPF_JMP {
				if block[i].Jt == away {
					block[i].Jt = behind
				}
				if block[i].Jf == away {
					block[i].Jf = behind
				}
			}
		}
		program = append(program, block...)
	}
	return append(program, give(unix.SECCOMP_RET_ALLOW))
}

// away marks a jump behind the block.
const away = 255

// install puts the filter on this thread and what it becomes. It cannot be taken back.
func (f filter) install() error {
	program := f.assemble()
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&fprog))); errno != 0 {
		return fmt.Errorf("the kernel takes no seccomp filter: %w", errno)
	}
	return nil
}
