//go:build linux && (amd64 || arm64)

package sandbox

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// A target is a folder that was made so that something could be mounted over a path that must not come into being. It
// is there for everybody while commands run, empty, and goes with the last of them.
//
// Every command that needs it holds a shared lock on it, and who can get the lock alone takes it away. A target is told
// from somebody's own empty folder by its date, so that one that was left by a SIGKILL goes with the next command.
type target struct {
	path string
	fd   int
}

var targetTime = unix.NsecToTimespec(targetDate.UnixNano())

func makeTargets(paths []string) ([]target, error) {
	var made []target
	for _, at := range paths {
		t, err := makeTarget(at)
		if err != nil {
			removeTargets(made)
			return nil, err
		}
		made = append(made, t)
	}
	return made, nil
}

func makeTarget(at string) (target, error) {
	for {
		err := unix.Mkdir(at, 0o700)
		ours := err == nil
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return target{}, fmt.Errorf("%s must not come into being, and cannot be kept from it: make a folder to mount over: %w", at, err)
		}
		fd, err := unix.Open(at, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			continue // its last user took it away just now
		} else if err != nil {
			return target{}, fmt.Errorf("%s came into being while the sandbox was made: %w", at, err)
		}
		if ours {
			// Another user's command may need it as well, and opens it for its lock.
			if err := unix.Fchmod(fd, 0o755); err != nil {
				unix.Close(fd)
				return target{}, fmt.Errorf("open %s to others: %w", at, err)
			}
			if err := unix.UtimesNanoAt(fd, "", []unix.Timespec{targetTime, targetTime}, unix.AT_EMPTY_PATH); err != nil {
				unix.Close(fd)
				return target{}, fmt.Errorf("date %s: %w", at, err)
			}
		}
		if err := unix.Flock(fd, unix.LOCK_SH); err != nil {
			unix.Close(fd)
			return target{}, fmt.Errorf("lock %s: %w", at, err)
		}
		if same(at, fd) {
			return target{at, fd}, nil
		}
		unix.Close(fd)
	}
}

// same reports whether a path is still what was opened.
func same(at string, fd int) bool {
	var there, here unix.Stat_t
	return unix.Lstat(at, &there) == nil && unix.Fstat(fd, &here) == nil && there.Dev == here.Dev && there.Ino == here.Ino
}

// removeTargets takes away those that nobody else needs. What somebody has put into one since stays.
func removeTargets(targets []target) {
	for _, t := range targets {
		var st unix.Stat_t
		if unix.Flock(t.fd, unix.LOCK_EX|unix.LOCK_NB) == nil && unix.Fstat(t.fd, &st) == nil && st.Mtim == targetTime && same(t.path, t.fd) {
			_ = unix.Rmdir(t.path)
		}
		unix.Close(t.fd)
	}
}
