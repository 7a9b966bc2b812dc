package live

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"nightporter/internal/safefile"
)

// scratchPrefix begins the names of our folders in the system's folder for temporary files.
const scratchPrefix = "nightporter-"

// scratchParent is the folder in which a socket's path is short enough: the system's folder for temporary files, unless TMPDIR is
// a long path itself.
func scratchParent() string {
	const rest = len("/" + scratchPrefix + "1234567890/s") // what os.MkdirTemp adds, and the socket's name
	if runtime.GOOS != "windows" && len(os.TempDir())+rest > maxSocketPath {
		return "/tmp"
	}
	return os.TempDir()
}

// makeFolder makes dir where there is none. It is not made through a link: os.MkdirAll would follow one.
func makeFolder(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), safefile.DirMode); err != nil {
		return err
	}
	if err := os.Mkdir(dir, safefile.DirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return private(dir)
}

// removeSocket removes the socket of a process that is gone. A record may name any path, so nothing else than a socket is
// removed, and only where Announce makes them: in dir, or in a scratch folder, which goes with it.
func removeSocket(dir, socket string) {
	parent := filepath.Dir(socket)
	if info, err := os.Lstat(socket); err == nil && info.Mode().Type() != fs.ModeSocket {
		return
	}
	if parent == filepath.Clean(dir) {
		_ = os.Remove(socket)
		return
	}
	info, err := os.Lstat(parent)
	if err != nil || !info.IsDir() || !ours(info) ||
		filepath.Dir(parent) != filepath.Clean(scratchParent()) || !strings.HasPrefix(filepath.Base(parent), scratchPrefix) {
		return
	}
	_ = os.Remove(socket)
	_ = os.Remove(parent) // not when something else is in it
}
