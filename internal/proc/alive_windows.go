package proc

import "golang.org/x/sys/windows"

// Alive reports whether a process with this id exists. Ids are used again: it may be another one by now.
func Alive(pid int) bool {
	h, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION, false, uint32(pid))
	if err != nil {
		return false
	}
	_ = windows.CloseHandle(h)
	return true
}
