//go:build unix

package live

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"syscall"
	"testing"
)

func TestAFolderThatIsNotOursAloneIsRefused(t *testing.T) {
	base := folder(t)
	target := filepath.Join(base, "target")
	if err := os.Mkdir(target, 0o700); err != nil {
		t.Fatal(err)
	}
	link, dangling, file := filepath.Join(base, "link"), filepath.Join(base, "dangling"), filepath.Join(base, "file")
	if err := errors.Join(os.Symlink(target, link), os.Symlink(filepath.Join(base, "none"), dangling), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		link:       "is not a folder but a symbolic link: remove it",
		dangling:   "is not a folder but a symbolic link: remove it",
		file:       "is not a folder but a file: remove it",
		foreign(t): "belongs to another user: remove it",
	} {
		a, err := Announce(dir, Record{Kind: "gateway"}, http.NotFoundHandler())
		if err == nil {
			a.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("announced in %s: error %v, want %s", filepath.Base(dir), err, want)
		}
		if _, err := Find(within(t), dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("found in %s: error %v, want %s", filepath.Base(dir), err, want)
		}
	}
	if exists(filepath.Join(base, "none")) {
		t.Error("a folder was made behind a link")
	}
}

// foreign is a folder that belongs to somebody else.
func foreign(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		return "/" // root's
	}
	dir := filepath.Join(t.TempDir(), "foreign")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 12345, -1)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestOurFolderThatOthersReachIsClosed(t *testing.T) {
	for name, use := range map[string]func(dir string) error{
		"announce": func(dir string) error {
			a, err := Announce(dir, Record{Kind: "gateway"}, http.NotFoundHandler())
			if err == nil {
				a.Close()
			}
			return err
		},
		"find": func(dir string) error { _, err := Find(within(t), dir); return err },
	} {
		for _, mode := range []os.FileMode{0o777, 0o770, 0o755, 0o1777} {
			dir := filepath.Join(t.TempDir(), "live")
			if err := errors.Join(os.Mkdir(dir, 0o700), syscall.Chmod(dir, uint32(mode))); err != nil {
				t.Fatal(err)
			}
			if err := use(dir); err != nil {
				t.Fatalf("%s, mode %o: %v", name, mode, err)
			}
			if info, err := os.Lstat(dir); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("%s: mode %o became %v, %v", name, mode, info.Mode(), err)
			}
		}
	}
}

func TestARecordThatAnotherUserPutHereIsNone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file away")
	}
	dir := folder(t)
	mute(t, dir)
	if err := os.Chown(filepath.Join(dir, "mute"+recordSuffix), 12345, -1); err != nil {
		t.Fatal(err)
	}
	if found := mustFind(t, dir); len(found) != 0 {
		t.Errorf("found %v", found)
	}
}

// A stopped process whose queue is full refuses at once, with an error of its own.
func TestAStoppedProcessWithAFullQueueIsThere(t *testing.T) {
	dir := folder(t)
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	socket := filepath.Join(dir, "full.sock")
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: socket}), syscall.Listen(fd, 1)); err != nil {
		t.Fatal(err)
	}
	var queue []io.Closer
	for err == nil {
		var conn net.Conn
		if conn, err = dial(within(t), socket); err == nil {
			queue = append(queue, conn)
		}
	}
	defer func() {
		for _, conn := range queue {
			conn.Close()
		}
	}()
	record := write(t, dir, "full", os.Getpid(), socket)
	found := mustFind(t, dir)
	if !exists(record) || !exists(socket) {
		t.Fatalf("taken for gone after: %v", err)
	}
	if goruntime.GOOS == "linux" && len(found) != 1 {
		t.Fatalf("found %v", found)
	}
	for _, p := range found {
		if err := p.Ask(within(t), "GET", "/status", nil); !errors.Is(err, ErrMute) {
			t.Errorf("error %v", err)
		}
	}
}

func TestAProcessIsFoundWhateverTheLengthOfItsFolders(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", long)
	dir := filepath.Join(long, "live")
	a, err := Announce(dir, Record{Kind: "mcp", Name: "x"}, http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	found, err := Find(t.Context(), dir)
	if err != nil || len(found) != 1 {
		t.Errorf("found %+v: %v", found, err)
	}
	a.Close()
}
