package run

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"nightporter/internal/proc"
)

// folderPrefix begins the names of runs' folders; the process that made one follows.
const folderPrefix = "nightporter-run-"

// makeFolder makes a folder for one run, 0700, and removes those of runs whose process was killed: they hold
// tokens, useless by now, that nobody else removes.
func makeFolder() (string, error) {
	sweep(os.TempDir())
	return os.MkdirTemp("", fmt.Sprintf("%s%d-", folderPrefix, os.Getpid()))
}

// sweep removes the folders of dead runs. What cannot be removed belongs to somebody else.
func sweep(dir string) {
	found, _ := filepath.Glob(filepath.Join(dir, folderPrefix+"*"))
	for _, folder := range found {
		text, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(folder), folderPrefix), "-")
		if pid, err := strconv.Atoi(text); err == nil && !proc.Alive(pid) {
			_ = removeAll(folder)
		}
	}
}
