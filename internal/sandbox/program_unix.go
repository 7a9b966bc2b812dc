//go:build unix

package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// exit ends this process. Not os.Exit: hooks at exit, such as those of coverage, have no business in an executor.
func exit(code int) { unix.Exit(code) }

// failure is an error with an exit code.
type failure struct {
	code int
	err  error
}

func (f *failure) Error() string { return f.err.Error() }

// exitOf is the exit code that goes with an error.
func exitOf(err error) int {
	var f *failure
	if errors.As(err, &f) {
		return f.code
	}
	return codeRefused
}

// notRun is the error of a program that could not be started.
func notRun(name string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &failure{codeNotFound, fmt.Errorf("program %q was not found, or what it needs to run was not", name)}
	case errors.Is(err, unix.ENOEXEC):
		return &failure{codeNotExecutable, fmt.Errorf("program %q is neither a program nor a script with a #! line", name)}
	default:
		return &failure{codeNotExecutable, fmt.Errorf("program %q cannot be executed: %w", name, err)}
	}
}

// lookUp finds a program as a shell would, from inside the sandbox. Relative entries of PATH are left out: what lies in the
// working directory may be what a command wrote there.
func lookUp(name string, env []string) (string, error) {
	if strings.ContainsRune(name, '/') {
		return name, nil
	}
	path := lookup(env, "PATH")
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		if found, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return found, nil
		}
	}
	return "", &failure{codeNotFound, fmt.Errorf("program %q was not found inside the sandbox, on PATH: %s", name, path)}
}
