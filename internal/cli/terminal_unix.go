//go:build unix

package cli

import (
	"os"

	"golang.org/x/sys/unix"
)

func terminalWidth(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	switch {
	case err != nil:
		return 0
	case size.Col == 0:
		return usualWidth
	}
	return int(size.Col)
}
