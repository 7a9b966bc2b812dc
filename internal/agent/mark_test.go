package agent

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestAMarkTellsAFileFromWhatIsPutInItsPlace(t *testing.T) {
	for name, c := range map[string]struct {
		change func(path string) error
		same   bool
	}{
		"left alone": {func(string) error { return nil }, true},
		"another of the same size and time": {func(path string) error {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			if err := os.WriteFile(path+".new", []byte("two"), 0o700); err != nil {
				return err
			}
			if err := os.Chtimes(path+".new", info.ModTime(), info.ModTime()); err != nil {
				return err
			}
			return os.Rename(path+".new", path)
		}, false},
		"written to": {func(path string) error { return os.WriteFile(path, []byte("longer"), 0o700) }, false},
		"touched":    {func(path string) error { return os.Chtimes(path, time.Time{}, time.Unix(1, 0)) }, false},
		"removed":    {os.Remove, false},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "program")
			if err := os.WriteFile(path, []byte("one"), 0o700); err != nil {
				t.Fatal(err)
			}
			mark, err := MarkOf(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.change(path); err != nil {
				t.Fatal(err)
			}
			if mark.Same() != c.same {
				t.Errorf("same is %v", !c.same)
			}
		})
	}
}

func TestAMarkedFolderIsTheSameWhateverIsInIt(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	mark, err := MarkOf(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if !mark.Same() {
		t.Error("it is another because of a file in it")
	}
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if mark.Same() {
		t.Error("another folder passes for it")
	}
}
