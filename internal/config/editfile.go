package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"nightporter/internal/safefile"
)

// editPatience bounds the wait for another edit, which takes milliseconds.
const editPatience = 5 * time.Second

// EditFile replaces the content of the file at path by what edit makes of it, and reports whether that is something
// else. A missing file is empty, and made when edit returns text. Edits that name the same lock file wait for each
// other; what another program writes meanwhile is not written over but an error. A link is followed, not replaced.
// The file's mode afterwards is 0600, without what it had not before.
func EditFile(ctx context.Context, path, lock string, edit func(data []byte) ([]byte, error)) (changed bool, err error) {
	return EditFileOf(ctx, path, lock, maxFile, func(was fs.FileMode) fs.FileMode { return was & safefile.FileMode }, edit)
}

// EditFileOf is [EditFile] of another program's file, of at most so many bytes. mode says which mode it is to have, by the one that it had, which
// is 0600 for one that is missing.
func EditFileOf(
	ctx context.Context, path, lock string, most int64, mode func(was fs.FileMode) fs.FileMode, edit func(data []byte) ([]byte, error),
) (changed bool, err error) {
	if err := os.MkdirAll(filepath.Dir(lock), safefile.DirMode); err != nil {
		return false, fmt.Errorf("edit %s: %w", path, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, editPatience, fmt.Errorf("another edit has not ended within %s", editPatience))
	defer cancel()
	l := flock.New(lock, flock.SetPermissions(safefile.FileMode))
	if _, err := l.TryLockContext(ctx, 10*time.Millisecond); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return false, fmt.Errorf("edit %s: %w", path, err)
	}
	defer l.Close()

	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	} else if !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("edit %s: %w", path, err)
	} else if _, err := os.Lstat(path); err == nil {
		return false, fmt.Errorf("edit %s: it is a link to a file that does not exist", path)
	}
	before, was, err := readToEdit(path, most)
	if err != nil {
		return false, fmt.Errorf("edit %s: %w", path, err)
	}
	after, err := edit(before)
	if err != nil || bytes.Equal(before, after) {
		return false, err
	}
	if now, _, err := readToEdit(path, most); err != nil || !bytes.Equal(now, before) {
		return false, fmt.Errorf("edit %s: another program has written it meanwhile; try again", path)
	}
	if err := safefile.Write(path, after); err != nil {
		return false, err
	}
	if mode := mode(was); mode != safefile.FileMode {
		if err := os.Chmod(path, mode); err != nil {
			return true, fmt.Errorf("edit %s: %w", path, err)
		}
	}
	return true, nil
}

// readToEdit returns a file's content and its mode.
func readToEdit(path string, most int64) ([]byte, fs.FileMode, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, safefile.FileMode, nil
	}
	if err != nil {
		return nil, 0, err
	}
	data, err := readFile(path, most)
	return data, info.Mode().Perm(), err
}
