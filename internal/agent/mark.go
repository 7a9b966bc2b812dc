package agent

import (
	"fmt"
	"io/fs"
	"os"
)

// Mark is what was seen of a file or folder at one time, to know later whether it is still that one. Symbolic links are followed.
type Mark struct {
	path string
	info fs.FileInfo
}

// MarkOf looks at a file or folder.
func MarkOf(path string) (Mark, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Mark{}, fmt.Errorf("look at %s: %w", path, err)
	}
	return Mark{path, info}, nil
}

// Same reports whether the path leads to the same file, unchanged, or to the same folder, whatever is in it now.
func (m Mark) Same() bool {
	now, err := os.Stat(m.path)
	switch {
	case err != nil || !os.SameFile(m.info, now):
		return false
	case now.IsDir():
		return true
	}
	then, _ := Identity(m.info)
	same, _ := Identity(now)
	return m.info.Size() == now.Size() && m.info.ModTime().Equal(now.ModTime()) && then == same
}

// Is reports whether another path leads to the same file or folder.
func (m Mark) Is(path string) (bool, error) {
	info, err := os.Stat(path)
	return err == nil && os.SameFile(m.info, info), err
}
