package run

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFoldersOfKilledRunsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	// No process has an id beyond the largest that Linux gives.
	dead := filepath.Join(dir, folderPrefix+"4194305-x")
	foreign := filepath.Join(dir, "nightporter-other")
	for _, folder := range []string{filepath.Join(dead, "private"), foreign} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	mine, err := makeFolder()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := makeFolder(); err != nil {
		t.Fatal(err)
	}
	for folder, want := range map[string]bool{dead: false, foreign: true, mine: true} {
		if _, err := os.Stat(folder); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", filepath.Base(folder), err == nil, want)
		}
	}
}
