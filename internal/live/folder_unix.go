//go:build unix

package live

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"nightporter/internal/safefile"
)

// private checks that dir is a folder of this user that nobody else reaches, and closes it to others where it is open: who
// can write there can pass for a gateway of this user, and clients would join it.
func private(dir string) error {
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a folder but %v: remove it, and it is made anew", dir, kind(info))
	case !ours(info):
		return fmt.Errorf("%s belongs to another user: remove it, or give it to user %d with chown", dir, os.Geteuid())
	case info.Mode().Perm() == safefile.DirMode:
		return nil
	}
	if err := os.Chmod(dir, safefile.DirMode); err != nil {
		return fmt.Errorf("%s is open to other users, and cannot be closed: %w; remove it, and it is made anew", dir, err)
	}
	// A file system without modes takes any, and changes nothing.
	if info, err = os.Lstat(dir); err != nil || info.Mode().Perm() != safefile.DirMode {
		return fmt.Errorf("%s is open to other users, and its file system keeps no modes: let NIGHTPORTER_HOME name a folder elsewhere", dir)
	}
	return nil
}

func kind(info fs.FileInfo) string {
	if info.Mode().Type() == fs.ModeSymlink {
		return "a symbolic link"
	}
	return "a file"
}

// ours reports whether a file belongs to this user.
func ours(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}
