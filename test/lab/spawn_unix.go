//go:build unix

package lab

import "syscall"

// ownSession puts a process into a session of its own, out of reach of signals to its parent's group.
func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
