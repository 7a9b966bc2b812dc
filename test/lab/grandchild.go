package lab

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

const grandchildArg = "-grandchild"

// spawnGrandchild starts a process in a session of its own that ignores TERM
// and HUP, logs to the same place and holds no pipe of this process.
func spawnGrandchild(log string) (pid int, err error) {
	program, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("start a grandchild: %w", err)
	}
	cmd := exec.Command(program, grandchildArg, log)
	cmd.SysProcAttr = ownSession()
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start a grandchild: %w", err)
	}
	return cmd.Process.Pid, cmd.Process.Release()
}

// grandchild lives until it is killed, until its recorder goes, or for maxLife.
func grandchild(target string) error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
	log, err := openJournal("grandchild", target)
	if err != nil {
		return err
	}
	log.write(Entry{What: "grandchild", Parent: os.Getppid()})
	select {
	case <-log.gone:
	case <-time.After(maxLife):
	}
	return nil
}
