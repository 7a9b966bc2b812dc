package cli

import (
	"os"

	"golang.org/x/sys/windows"
)

func terminalWidth(f *os.File) int {
	var mode uint32
	handle := windows.Handle(f.Fd())
	if windows.GetConsoleMode(handle, &mode) != nil {
		return 0
	}
	var info windows.ConsoleScreenBufferInfo
	if windows.GetConsoleScreenBufferInfo(handle, &info) != nil {
		return usualWidth // an input handle
	}
	return int(info.Window.Right-info.Window.Left) + 1
}
