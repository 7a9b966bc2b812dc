//go:build unix

package config

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// endTree makes the end of cmd's context end what cmd started too.
func endTree(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
}
