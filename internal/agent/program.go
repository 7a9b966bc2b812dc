package agent

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// FindProgram resolves a command's first word to the absolute path of an executable: a name is looked for in the
// PATH of env (the last one counts), a path is taken relative to dir. It is the one look-up of a run.
//
// Folders of PATH that are not absolute are passed over: what they hold depends on where the run takes
// place. An executable that is not found is a *[Missing] that names what was searched.
func FindProgram(name, dir string, env []string) (string, error) {
	if name != filepath.Base(name) {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		// LookPath of a path does not search; it checks that the file can be run, with PATHEXT on Windows.
		found, err := exec.LookPath(path)
		if err != nil {
			return "", &Missing{Why: fmt.Sprintf("the program %s cannot be run: %v", name, cause(err)), Mend: "check the path and that the file is executable"}
		}
		return found, nil
	}
	path := Getenv(env, "PATH")
	for _, folder := range filepath.SplitList(path) {
		if !filepath.IsAbs(folder) {
			continue
		}
		if found, err := exec.LookPath(filepath.Join(folder, name)); err == nil {
			return found, nil
		}
	}
	return "", &Missing{
		Why:  fmt.Sprintf("the program %s was not found on PATH (%s)", name, path),
		Mend: "install it, or name it by its absolute path",
	}
}

// cause takes the reason out of an *exec.Error, whose text repeats the name.
func cause(err error) error {
	if e, ok := err.(*exec.Error); ok {
		return e.Err
	}
	return err
}

// Getenv returns the value of a variable in an environment of KEY=VALUE entries: the last one, as a program sees
// it, or empty. On Windows the case of names does not count.
func Getenv(env []string, key string) string {
	value, _ := LookupEnv(env, key)
	return value
}

// LookupEnv is [Getenv] that tells an empty value from none.
func LookupEnv(env []string, key string) (string, bool) {
	for i := len(env) - 1; i >= 0; i-- {
		if name, value, ok := strings.Cut(env[i], "="); ok && (name == key || runtime.GOOS == "windows" && strings.EqualFold(name, key)) {
			return value, true
		}
	}
	return "", false
}
