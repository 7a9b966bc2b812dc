//go:build unix

package front

import "syscall"

// descriptors is how many files and connections the process can have open. The Go runtime has raised the soft limit to the hard one at the
// start, and gives children the soft one that was.
func descriptors() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 1024 // what there is where nobody said otherwise
	}
	return int(min(uint64(limit.Cur), 2*maxConnections)) //nolint:unconvert // its type differs between systems
}
