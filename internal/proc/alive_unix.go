//go:build unix

package proc

import "golang.org/x/sys/unix"

// Alive reports whether a process with this id exists. Ids are used again: it may be another one by now.
func Alive(pid int) bool {
	err := unix.Kill(pid, 0)
	return err == nil || err == unix.EPERM
}
