package run

import (
	"fmt"

	"nightporter/internal/agent"
)

// runsIn reports whether a process has the folder as its working directory. A process that has ended is taken to.
func runsIn(pid int, folder agent.Mark) bool {
	is, err := folder.Is(fmt.Sprintf("/proc/%d/cwd", pid))
	return is || err != nil
}
