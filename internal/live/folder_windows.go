package live

import (
	"io/fs"
	"os"
)

// private checks no more than that dir is there: a user's folders are closed to others by what they inherit.
func private(dir string) error {
	_, err := os.Lstat(dir)
	return err
}

// ours does not ask: see private.
func ours(fs.FileInfo) bool { return true }
