//go:build linux && (amd64 || arm64)

package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What Landlock knows by version (Documentation/userspace-api/landlock.rst).
const (
	landlockScopes = 6 // from here on it keeps signals and abstract sockets in

	readRights = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	fileRights = readRights | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	allRights  = fileRights | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_MAKE_CHAR |
		unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO |
		unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REFER
)

// landlockVersion is the version of Landlock that the kernel has and lets be used; 0: none.
func landlockVersion() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

// opening is a path that Landlock opens, with everything below it.
type opening struct {
	Path   string
	Rights uint64
	Exact  bool // not what a symbolic link there points to
}

// openings is a plan in Landlock's terms: it can open more below what is open, and close nothing. The error says which
// rule it cannot enforce.
//
// The root is opened but for /dev and /proc, and for what the host closes, folder by folder: other mechanisms give a command a /dev of its own, and a /proc in which there
// are no processes but its own. What is made in the root itself later is not opened, nor is its list.
func (p Plan) openings() ([]opening, error) {
	if p.Rules[0].Access == None {
		return nil, errors.New("landlock cannot hide names, sizes and links, and the state opens some folders alone")
	}
	list := []opening{}
	var open []Rule
	shut := []string{"/dev", "/proc"}
	for _, r := range p.Rules {
		if r.Host {
			shut = append(shut, r.Path)
		}
	}
	for _, r := range p.Rules {
		if r.Host {
			continue
		}
		for _, over := range slices.Backward(open) { // the nearest first
			if !within(r.Path, over.Path) {
				continue
			}
			switch {
			case r.Missing:
				return nil, fmt.Errorf("landlock cannot keep %s from being made, because %s may be written", r.Path, over.Path)
			case r.Access == Read && over.Access == Write:
				return nil, fmt.Errorf("landlock cannot keep %s read-only, because %s may be written", r.Path, over.Path)
			case r.Access == None:
				return nil, fmt.Errorf("landlock cannot close %s, because %s may be read", r.Path, over.Path)
			}
			break
		}
		if r.Access == None {
			continue
		}
		open = append(open, r)
		rights := uint64(readRights)
		switch {
		case r.Access == Write && r.Folder:
			rights = allRights
		case r.Access == Write:
			rights = fileRights
		case !r.Folder:
			rights &^= unix.LANDLOCK_ACCESS_FS_READ_DIR
		}
		if !r.Folder {
			rights &^= unix.LANDLOCK_ACCESS_FS_READ_DIR
		}
		around, err := openAround(r.Path, rights, shut)
		if err != nil {
			return nil, err
		}
		list = append(list, around...)
		if r.Path == "/" {
			list = append(list, ofProc()...)
		}
	}
	// What programs need of /dev, as the other mechanisms give it.
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty", "ptmx"} {
		list = append(list, opening{"/dev/" + name, fileRights &^ unix.LANDLOCK_ACCESS_FS_READ_DIR, false})
	}
	return list, nil
}

// openAround opens a path but for some paths in it: then what the folder holds now is opened, one by one.
func openAround(at string, rights uint64, shut []string) ([]opening, error) {
	if slices.Contains(shut, at) {
		return nil, nil
	}
	if !slices.ContainsFunc(shut, func(path string) bool { return within(path, at) }) {
		return []opening{{at, rights, true}}, nil
	}
	below, err := os.ReadDir(at)
	if err != nil {
		return nil, fmt.Errorf("landlock: list %s, to open what is in it: %w", at, err)
	}
	var list []opening
	for _, entry := range below {
		next := filepath.Join(at, entry.Name())
		switch {
		case entry.IsDir():
			around, err := openAround(next, rights, shut)
			if err != nil {
				return nil, err
			}
			list = append(list, around...)
		case entry.Type().IsRegular() && !slices.Contains(shut, next):
			list = append(list, opening{next, rights & fileRights &^ unix.LANDLOCK_ACCESS_FS_READ_DIR, true})
		}
	}
	return list, nil
}

// ofProc is what a command may read of /proc: the machine's files, and its own. That the latter is not for its
// children is a price of Landlock: their folders do not exist yet.
func ofProc() []opening {
	list := []opening{{ownProcess, readRights, false}}
	for _, name := range []string{"cpuinfo", "filesystems", "loadavg", "meminfo", "stat", "uptime", "version"} {
		list = append(list, opening{"/proc/" + name, readRights &^ unix.LANDLOCK_ACCESS_FS_READ_DIR, false})
	}
	return append(list, opening{"/proc/sys", readRights, false})
}

// ownProcess is the folder of the process that opens it: the command's, which keeps its number.
const ownProcess = "/proc/self"

func within(path, folder string) bool {
	return path == folder || folder == "/" || strings.HasPrefix(path, folder+"/")
}

// landlock restricts this thread, and what it becomes, to what is opened; nil restricts no files. Signals and abstract sockets
// are kept in.
func landlock(list []opening) error {
	attr := unix.LandlockRulesetAttr{Scoped: unix.LANDLOCK_SCOPE_SIGNAL | unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET}
	if list != nil {
		attr.Handled_access_fs = allRights
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return fmt.Errorf("landlock: make a ruleset: %w", errno)
	}
	defer unix.Close(int(fd))
	for _, o := range list {
		flags := unix.O_PATH | unix.O_CLOEXEC
		if o.Exact {
			flags |= unix.O_NOFOLLOW
		}
		at, err := unix.Open(o.Path, flags, 0)
		if os.IsNotExist(err) {
			continue // opens nothing
		} else if err != nil {
			return fmt.Errorf("landlock: open %s: %w", o.Path, err)
		}
		beneath := unix.LandlockPathBeneathAttr{Allowed_access: o.Rights, Parent_fd: int32(at)}
		_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, fd, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&beneath)), 0, 0, 0)
		unix.Close(at)
		if errno != 0 {
			return fmt.Errorf("landlock: a rule for %s: %w", o.Path, errno)
		}
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return fmt.Errorf("landlock: restrict the command: %w", errno)
	}
	return nil
}
