//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// ownGroup puts the launcher, and what it starts, into a process group.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup ends all of it. A group whose leader has been waited for may be another's by now, but for the moment in between.
func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
