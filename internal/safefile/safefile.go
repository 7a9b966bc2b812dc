// Package safefile writes files so that a reader, and a crash, sees the old
// content or the new, never a part: to a temporary name, synced, renamed.
package safefile

import (
	"fmt"
	"os"
	"path/filepath"
)

// Modes of everything that Nightporter keeps: for its user alone.
const (
	FileMode = 0o600
	DirMode  = 0o700
)

// Write replaces the file at path with data, mode 0600, making its folder (0700) where there is none.
func Write(path string, data []byte) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, DirMode); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	// CreateTemp makes the file 0600.
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			tmp.Close()
			os.Remove(tmp.Name())
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	if _, err := tmp.Write(data); err != nil {
		return err
	}
	if err := tmp.Sync(); err != nil {
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
