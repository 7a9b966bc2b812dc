// Package live lets the Nightporters of one user find and ask each other: each process that holds servers keeps a record in
// one folder, and answers on a unix socket that only this user can reach.
package live

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"nightporter/internal/proc"
	"nightporter/internal/safefile"
)

// Record is what a process says of itself.
type Record struct {
	PID     int       `json:"pid"`
	Kind    string    `json:"kind"`             // "gateway", "mcp", "run", "demo"
	Name    string    `json:"name"`             // for people: the run's id, the gateway's address
	URL     string    `json:"url,omitempty"`    // where its clients connect
	Config  string    `json:"config,omitempty"` // the configuration's file
	Started time.Time `json:"started"`
	Socket  string    `json:"socket"`
}

const recordSuffix = ".json"

// maxSocketPath is what a unix socket's path may be long: 108 bytes on Linux, 104 on macOS, with the final NUL.
const maxSocketPath = 103

// Process is a process that can be asked.
type Process struct {
	Record
	client *http.Client
}

// Announcement is a process's own record and socket.
type Announcement struct {
	record  string
	scratch string // a folder for the socket, when its path would have been too long
	server  *http.Server
	serving sync.WaitGroup
}

// Announce makes this process findable in dir, and answers requests of the same user by h. The caller closes it.
func Announce(dir string, r Record, h http.Handler) (*Announcement, error) {
	if err := makeFolder(dir); err != nil {
		return nil, fmt.Errorf("announce this process: %w", err)
	}
	r.PID, r.Started = os.Getpid(), time.Now()
	// One process may hold several: its tests do.
	base := fmt.Sprintf("%d-%x", r.PID, r.Started.UnixNano())
	a := &Announcement{record: filepath.Join(dir, base+recordSuffix)}
	r.Socket = filepath.Join(dir, base+".sock")
	if len(r.Socket) > maxSocketPath {
		scratch, err := os.MkdirTemp(scratchParent(), scratchPrefix) // 0700
		if err != nil {
			return nil, fmt.Errorf("announce this process: %w", err)
		}
		a.scratch, r.Socket = scratch, filepath.Join(scratch, "s")
	}
	// The socket is there before the record is, so a record whose socket nobody listens on is of a process that is gone.
	listener, err := net.Listen("unix", r.Socket)
	if err != nil {
		os.RemoveAll(a.scratch)
		return nil, fmt.Errorf("announce this process: %w", err)
	}
	// The folder keeps others out already; this is for the case that somebody opened it.
	_ = os.Chmod(r.Socket, safefile.FileMode)
	a.server = &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	a.serving.Go(func() { _ = a.server.Serve(listener) })
	data, err := json.Marshal(r)
	if err == nil {
		err = safefile.Write(a.record, data)
	}
	if err != nil {
		a.Close()
		return nil, fmt.Errorf("announce this process: %w", err)
	}
	return a, nil
}

// Close takes the record and the socket away.
func (a *Announcement) Close() {
	_ = os.Remove(a.record)
	_ = a.server.Close()
	a.serving.Wait()
	if a.scratch != "" {
		_ = os.RemoveAll(a.scratch)
	}
}

// dialPatience bounds one attempt to reach a process of this machine.
const dialPatience = 2 * time.Second

// Find returns the processes that are there, oldest first, and removes the records of those that are gone. A process that
// hangs or is stopped is there. Who can write in dir can pass for one of them: a folder that others reach is an error.
func Find(ctx context.Context, dir string) ([]Process, error) {
	err := private(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var entries []fs.DirEntry
	if err == nil {
		entries, err = os.ReadDir(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("find running processes: %w", err)
	}
	var found []Process
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), recordSuffix) || strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		record := filepath.Join(dir, entry.Name())
		r, ok := read(record)
		if !ok {
			continue
		}
		conn, err := dial(ctx, r.Socket)
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return nil, fmt.Errorf("find running processes: %w", ctx.Err())
		}
		switch {
		case err == nil:
			conn.Close()
		case gone(err, r.PID):
			// Ended by SIGKILL: nobody else takes this away. Another process may do so at the same time.
			_ = os.Remove(record)
			removeSocket(dir, r.Socket)
			continue
		case !timedOut(err):
			continue
		}
		found = append(found, Process{r, &http.Client{Transport: &http.Transport{
			DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, r.Socket) },
			DisableKeepAlives: true,
		}}})
	}
	slices.SortFunc(found, func(a, b Process) int {
		return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.PID, b.PID))
	})
	return found, nil
}

// read reads a record of this user. What others put here, while the folder was open to them, is none.
func read(path string) (r Record, ok bool) {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || !ours(info) {
		return r, false
	}
	data, err := os.ReadFile(path)
	return r, err == nil && json.Unmarshal(data, &r) == nil && r.Socket != ""
}

func dial(ctx context.Context, socket string) (net.Conn, error) {
	return (&net.Dialer{Timeout: dialPatience}).DialContext(ctx, "unix", socket)
}

// gone reports whether a process that cannot be reached has ended. Its pid says little: it may be another's by now. A socket
// that is not there, or that nobody listens on, says all on Linux. BSDs refuse also while a stopped process has its
// queue full, and Windows has numbers of its own for errors.
func gone(err error, pid int) bool {
	switch {
	case errors.Is(err, fs.ErrNotExist), goruntime.GOOS == "linux" && errors.Is(err, syscall.ECONNREFUSED):
		return true
	case timedOut(err):
		return false
	}
	return !proc.Alive(pid)
}

// timedOut reports whether err says that a process did not answer in time. Linux says so at once (EAGAIN) when the queue of
// a stopped process is full.
func timedOut(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// maxAnswer bounds an answer: the status of a thousand servers with a reason each is some hundred KiB.
const maxAnswer = 16 << 20

// Patience bounds a question to a process of this machine: the answer is in its memory.
const Patience = 2 * time.Second

// slow are the requests that wait for a server's program to start or end, as the last part of their path.
var slow = []string{"start", "stop", "restart"}

// ErrMute says that a process did not answer in time: it hangs, is stopped by a signal or a debugger, or has too much to do.
var ErrMute = errors.New("does not answer")

// String names the process for people.
func (r Record) String() string { return fmt.Sprintf("process %d (%s %s)", r.PID, r.Kind, r.Name) }

// Ask sends a request to the process and decodes its JSON answer into into, which may be nil. It waits for Patience, or for a
// server's start or end as long as the process itself would; then the error is ErrMute.
func (p Process) Ask(ctx context.Context, method, requestPath string, into any) error {
	patience := Patience
	if slices.Contains(slow, path.Base(requestPath)) {
		patience += controlPatience
	}
	ctx, done := context.WithTimeout(ctx, patience)
	defer done()
	body, err := p.ask(ctx, method, requestPath)
	if err == nil && into != nil {
		err = json.Unmarshal(body, into)
	}
	var refusal refusal
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refusal):
		return refusal
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("ask %s: %w", p, ctx.Err())
	case timedOut(err):
		return fmt.Errorf("%s %w", p, ErrMute)
	}
	var wrapped *url.Error // names an address that does not exist
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	return fmt.Errorf("ask %s: %w", p, err)
}

// refusal is what a process said instead of an answer.
type refusal string

func (r refusal) Error() string { return string(r) }

func (p Process) ask(ctx context.Context, method, requestPath string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://nightporter"+requestPath, nil)
	if err != nil {
		return nil, err
	}
	response, err := p.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err == nil && response.StatusCode/100 != 2 {
		err = refusal(bytes.TrimSpace(body))
	}
	return body, err
}

// Events follows the status events of the process, until ctx ends or the process does. The caller closes the body, a JSON object on
// each line.
func (p Process) Events(ctx context.Context) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://nightporter/events", nil)
	if err != nil {
		return nil, err
	}
	response, err := p.client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("follow %s: %w", p, err)
	}
	return response.Body, nil
}

// Upgrade turns a request to the process into a stream of bytes in both directions. The caller closes it.
func (p Process) Upgrade(ctx context.Context, path string) (net.Conn, *bufio.Reader, error) {
	conn, err := dial(ctx, p.Socket)
	if err != nil {
		return nil, nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(dialPatience))
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://nightporter"+path, nil)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "nightporter")
	reader := bufio.NewReader(conn)
	if err := r.Write(conn); err != nil {
		conn.Close()
		return nil, nil, err
	}
	response, err := http.ReadResponse(reader, r)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		body, _ := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
		conn.Close()
		return nil, nil, errors.New(string(bytes.TrimSpace(body)))
	}
	_ = conn.SetDeadline(time.Time{})
	return conn, reader, nil
}

// Accept is Upgrade's other side. The caller closes the connection.
func Accept(w http.ResponseWriter) (net.Conn, *bufio.Reader, error) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, err
	}
	if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: nightporter\r\n\r\n"); err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, buffered.Reader, nil
}
