package agent

import (
	"fmt"
	"io/fs"
	"syscall"
)

// Identity tells a file from one that was put in its place, and from itself before a change: device, inode and the time of its last change
// of any kind, which no program can set. It reports false where the system does not tell.
func Identity(info fs.FileInfo) (string, bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", false
	}
	return fmt.Sprintf("%d %d %d.%d", s.Dev, s.Ino, s.Ctim.Sec, s.Ctim.Nsec), true
}
