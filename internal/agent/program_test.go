package agent

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestFindProgramSearchesTheRunsPathAndNamesIt(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("executables are told by their extension there")
	}
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	empty := filepath.Join(dir, "empty")
	for _, folder := range []string{bin, empty} {
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]os.FileMode{"agent": 0o700, "data": 0o600} {
		if err := os.WriteFile(filepath.Join(bin, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	path := "PATH=" + strings.Join([]string{"relative", "", empty, bin}, string(os.PathListSeparator))
	env := []string{"PATH=/nowhere", path}

	for name, want := range map[string]string{
		"agent":                     filepath.Join(bin, "agent"),
		"./bin/agent":               filepath.Join(bin, "agent"),
		filepath.Join(bin, "agent"): filepath.Join(bin, "agent"),
	} {
		if got, err := FindProgram(name, dir, env); err != nil || got != want {
			t.Errorf("FindProgram(%s) = %s, %v; want %s", name, got, err, want)
		}
	}
	for name, says := range map[string]string{
		"data":       path[len("PATH="):],
		"none":       "none was not found on PATH",
		"./bin/data": "permission denied",
		"./none":     "no such file",
	} {
		_, err := FindProgram(name, dir, env)
		var missing *Missing
		if !errors.As(err, &missing) || !strings.Contains(err.Error(), says) {
			t.Errorf("FindProgram(%s) gives %v; want a Missing that says %q", name, err, says)
		}
	}

	t.Chdir(bin)
	if got, err := FindProgram("agent", dir, []string{"PATH=." + string(os.PathListSeparator)}); err == nil {
		t.Errorf("a program of the working directory was taken: %s", got)
	}
}
