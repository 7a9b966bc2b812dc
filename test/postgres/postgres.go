// Package postgres runs a real PostgreSQL for tests: one server for a test process, a database of its own for each test.
package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver

	"nightporter/test/programs"
)

// patience bounds the start and the end of the server, on a loaded machine.
const patience = 90 * time.Second

type server struct {
	dir, bin string
	port     int
	cmd      *exec.Cmd
}

var (
	mu      sync.Mutex
	running *server
	last    atomic.Int64
)

// Database makes an empty database and returns its URL. It skips where there is no PostgreSQL. Whoever uses it calls [Stop] at the
// end of TestMain.
func Database(t testing.TB) string {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	if running == nil {
		s, err := start()
		if errors.Is(err, errMissing) {
			programs.Skip(t, err.Error())
		}
		if err != nil {
			t.Fatal(err)
		}
		running = s
	}
	name := fmt.Sprintf("t%d", last.Add(1))
	db, err := sql.Open("pgx", running.url("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return running.url(name)
}

// Stop ends the server, if one was started, and removes its files.
func Stop() {
	mu.Lock()
	defer mu.Unlock()
	if running == nil {
		return
	}
	_ = running.cmd.Process.Signal(os.Interrupt) // fast shutdown
	killed := time.AfterFunc(patience, func() { _ = running.cmd.Process.Kill() })
	_ = running.cmd.Wait()
	killed.Stop()
	_ = os.RemoveAll(running.dir)
	running = nil
}

func (s *server) url(database string) string {
	u := url.URL{Scheme: "postgres", User: url.User("test"), Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)), Path: database, RawQuery: "sslmode=disable"}
	return u.String()
}

var errMissing = errors.New("PostgreSQL is not installed (Debian: apt-get install postgresql)")

// find looks where Debian puts the programs, of which only clients are on PATH.
func find() (bin string, err error) {
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb"); len(found) > 0 {
		return filepath.Dir(found[len(found)-1]), nil
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path), nil
	}
	return "", errMissing
}

func start() (s *server, err error) {
	bin, err := find()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "nightporter-postgres-")
	if err != nil {
		return nil, err
	}
	s = &server{dir: dir, bin: bin}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir)
		}
	}()
	// PostgreSQL refuses to run as root.
	attr, err := unprivileged(dir)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	init := exec.Command(filepath.Join(bin, "initdb"), "-D", data, "-U", "test", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C")
	init.SysProcAttr, init.Dir = attr, dir
	if out, err := init.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.port = l.Addr().(*net.TCPAddr).Port
	l.Close()
	s.cmd = exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-p", strconv.Itoa(s.port), "-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off", "-c", "max_connections=100")
	s.cmd.SysProcAttr, s.cmd.Dir = attr, dir
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	db, err := sql.Open("pgx", s.url("postgres"))
	if err != nil {
		return nil, err
	}
	defer db.Close()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		if err = db.PingContext(ctx); err == nil {
			return s, nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			_ = s.cmd.Process.Kill()
			_ = s.cmd.Wait()
			said, _ := os.ReadFile(filepath.Join(dir, "log"))
			return nil, fmt.Errorf("PostgreSQL does not answer: %w\n%s", err, said)
		}
	}
}

// nobody is the user that Debian's package makes, or any that is not root.
func nobody() (uid, gid int, err error) {
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err1 == nil && err2 == nil {
			return uid, gid, nil
		}
	}
	return 0, 0, errors.New("there is no user postgres or nobody to run PostgreSQL as")
}
