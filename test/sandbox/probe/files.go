//go:build linux

package main

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// outcome names how an attempt ended: "ok" or the error's name.
func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		if name := unix.ErrnoName(errno); name != "" {
			return name
		}
	}
	return err.Error()
}

// fileOps are tried in every place, each on a file of its own.
var fileOps = map[string]func(dir string) error{
	"read": func(dir string) error { return readAll(filepath.Join(dir, "file")) },
	"stat": func(dir string) error {
		var st unix.Stat_t
		return unix.Lstat(filepath.Join(dir, "file"), &st)
	},
	"list": func(dir string) error {
		_, err := os.ReadDir(dir)
		return err
	},
	"readlink": func(dir string) error {
		_, err := os.Readlink(filepath.Join(dir, "link"))
		return err
	},
	"create": func(dir string) error { return writeTo(filepath.Join(dir, "new"), unix.O_CREAT|unix.O_EXCL) },
	"append": func(dir string) error { return writeTo(filepath.Join(dir, "append"), unix.O_APPEND) },
	"truncate": func(dir string) error {
		return unix.Truncate(filepath.Join(dir, "truncate"), 0)
	},
	"open-truncate": func(dir string) error {
		fd, err := unix.Open(filepath.Join(dir, "open-truncate"), unix.O_RDONLY|unix.O_TRUNC|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	},
	"chmod":  func(dir string) error { return unix.Chmod(filepath.Join(dir, "chmod"), 0o640) },
	"utimes": func(dir string) error { return unix.Utimes(filepath.Join(dir, "utimes"), make([]unix.Timeval, 2)) },
	"setxattr": func(dir string) error {
		return unix.Setxattr(filepath.Join(dir, "setxattr"), "user.np", []byte("x"), 0)
	},
	"delete": func(dir string) error { return unix.Unlink(filepath.Join(dir, "delete")) },
	"rename": func(dir string) error {
		return unix.Rename(filepath.Join(dir, "rename"), filepath.Join(dir, "renamed"))
	},
	"mkdir":   func(dir string) error { return unix.Mkdir(filepath.Join(dir, "mkdir"), 0o755) },
	"rmdir":   func(dir string) error { return unix.Rmdir(filepath.Join(dir, "rmdir")) },
	"symlink": func(dir string) error { return unix.Symlink("file", filepath.Join(dir, "symlink")) },
	"mkfifo":  func(dir string) error { return unix.Mkfifo(filepath.Join(dir, "mkfifo"), 0o600) },
	"hardlink": func(dir string) error {
		return unix.Link(filepath.Join(dir, "file"), filepath.Join(dir, "hardlink"))
	},
}

func files(p plan, r results) {
	// In an order: two names may stand for one folder, and the first to create a file wins.
	for _, place := range slices.Sorted(maps.Keys(p.Places)) {
		for _, op := range slices.Sorted(maps.Keys(fileOps)) {
			r[op+" "+place] = outcome(fileOps[op](p.Places[place]))
		}
	}
	for _, move := range p.Moves {
		from, to := p.Places[move[0]], p.Places[move[1]]
		name := strings.ReplaceAll(move[0]+" to "+move[1], "/", ":")
		r["rename "+move[0]+" to "+move[1]] = outcome(unix.Rename(filepath.Join(from, "move "+name), filepath.Join(to, "moved "+name)))
		r["hardlink "+move[0]+" to "+move[1]] = outcome(unix.Link(filepath.Join(from, "file"), filepath.Join(to, "linked "+name)))
	}
	for name, link := range p.Links {
		r["append through "+name] = outcome(writeTo(link, unix.O_APPEND))
		r["read through "+name] = outcome(readAll(link))
	}
	for name, dir := range p.Make {
		_ = unix.Mkdir(dir, 0o755)
		r["make "+name] = outcome(writeTo(filepath.Join(dir, "new"), unix.O_CREAT))
	}
}

func readAll(path string) error {
	_, err := os.ReadFile(path)
	return err
}

func writeTo(path string, flags int) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC|flags, 0o644)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte("written by the probe\n"))
	return err
}
