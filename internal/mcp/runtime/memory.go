package runtime

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// memory is the resident size of a process in bytes; 0 where the system does not say (other than Linux).
func memory(pid int) int64 {
	if pid == 0 {
		return 0
	}
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(statm))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
