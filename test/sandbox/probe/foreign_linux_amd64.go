package main

import (
	"os/exec"

	"golang.org/x/sys/unix"
)

// int80 makes a system call of the 32-bit architecture, which has numbers of its own.
func int80(number, a, b, c uint32) int32

func init() {
	// In a process of its own: where the kernel has no such calls, or a filter forbids them, it dies of it.
	escapes["foreign"] = func([]string) error {
		return any1(func() error {
			out, err := exec.Command("/proc/self/exe", "escape", "foreign-i386").Output()
			if err != nil {
				return err
			}
			return said(out)
		}, func() error {
			out, err := exec.Command("/proc/self/exe", "escape", "foreign-x32").Output()
			if err != nil {
				return err
			}
			return said(out)
		})
	}
	escapes["foreign-i386"] = func([]string) error {
		const socket = 359
		if got := int80(socket, unix.AF_INET, unix.SOCK_DGRAM, 0); got < 0 {
			return unix.Errno(-got)
		}
		return nil
	}
	escapes["foreign-x32"] = func([]string) error {
		const x32 = 0x40000000
		_, _, errno := unix.Syscall(x32+unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM, 0)
		return errnoError(errno)
	}
}
