package lab

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
)

// Binary is the path of the program lab, built once per test process. It stays
// in the temporary folder, named by its content, so that the test processes of
// several packages and checkouts share it without getting another's.
func Binary(t TB) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return path
}

var suffix = map[string]string{"windows": ".exe"}[runtime.GOOS]

var build = sync.OnceValues(func() (string, error) {
	_, source, _, _ := runtime.Caller(0)
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("nightporter-lab-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("folder for the program lab: %w", err)
	}
	// Several processes may build at the same time: each under a name of its
	// own, put in place in one step.
	temporary, err := os.CreateTemp(dir, "build-*")
	if err != nil {
		return "", fmt.Errorf("build the program lab: %w", err)
	}
	_ = temporary.Close()
	defer os.Remove(temporary.Name())
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", temporary.Name(), "./cmd/lab")
	cmd.Dir = filepath.Dir(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program lab: %w\n%s", err, out)
	}
	program, err := os.ReadFile(temporary.Name())
	if err != nil {
		return "", fmt.Errorf("build the program lab: %w", err)
	}
	sum := sha256.Sum256(program)
	path := filepath.Join(dir, fmt.Sprintf("lab-%x%s", sum[:8], suffix))
	if err := os.Rename(temporary.Name(), path); err != nil {
		return "", fmt.Errorf("build the program lab: %w", err)
	}
	return path, nil
})
