package lab

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
)

// TB is the part of testing.TB that this package's helpers need; the program lab
// does not take in package testing.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// Recorder gathers the logs of labs while they run, over loopback TCP. Since a
// process's connection ends with it, the recorder also knows when it has gone.
type Recorder struct {
	// Address is for Config.Log.
	Address string

	listener net.Listener
	work     sync.WaitGroup

	mu      sync.Mutex
	entries []Entry
	holds   []net.Conn // of labs that wait for Release, oldest first
	conns   map[net.Conn]struct{}
	closed  bool
	changed chan struct{} // closed and replaced when an entry comes
}

// Record starts a recorder that ends with the test. Labs that are still there then end themselves.
func Record(t TB) *Recorder {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen for the logs of labs: %v", err)
	}
	r := &Recorder{
		Address: recorderScheme + listener.Addr().String(), listener: listener,
		conns: map[net.Conn]struct{}{}, changed: make(chan struct{}),
	}
	r.work.Go(r.accept)
	t.Cleanup(r.close)
	return r
}

func (r *Recorder) accept() {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return // closed
		}
		r.mu.Lock()
		if r.closed {
			r.mu.Unlock()
			_ = conn.Close()
			return
		}
		r.conns[conn] = struct{}{}
		r.mu.Unlock()
		r.work.Go(func() { r.read(conn) })
	}
}

func (r *Recorder) close() {
	r.mu.Lock()
	r.closed = true
	for conn := range r.conns {
		_ = conn.Close()
	}
	r.mu.Unlock()
	_ = r.listener.Close()
	r.work.Wait()
}

// read takes in one lab's log until it ends.
func (r *Recorder) read(conn net.Conn) {
	var last Entry
	// An error is the connection's end as well: a process that is killed may reset it.
	_ = readEntries(conn, func(e Entry) {
		last = e
		r.add(e, conn)
		_, _ = conn.Write([]byte{kept}) // or the lab has gone
	})
	_ = conn.Close()
	r.mu.Lock()
	delete(r.conns, conn)
	r.holds = slices.DeleteFunc(r.holds, func(held net.Conn) bool { return held == conn })
	r.mu.Unlock()
	if last.PID != 0 {
		r.add(Entry{Name: last.Name, PID: last.PID, What: "gone"}, nil)
	}
}

func (r *Recorder) add(e Entry, from net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries = append(r.entries, e)
	if e.What == "hold" {
		r.holds = append(r.holds, from)
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// Entries are all entries so far, those of one process in order.
func (r *Recorder) Entries() []Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.entries)
}

// Len is how many entries there are so far.
func (r *Recorder) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.entries)
}

// After are the entries behind the first n.
func (r *Recorder) After(n int) []Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.entries[n:])
}

// Select are the entries so far that match.
func (r *Recorder) Select(match func(Entry) bool) []Entry {
	return slices.DeleteFunc(r.Entries(), func(e Entry) bool { return !match(e) })
}

// Wait waits for an entry that matches and returns the first.
func (r *Recorder) Wait(ctx context.Context, match func(Entry) bool) (Entry, error) {
	entries, err := r.WaitN(ctx, 1, match)
	if err != nil {
		return Entry{}, err
	}
	return entries[0], nil
}

// WaitN waits until n entries match and returns them.
func (r *Recorder) WaitN(ctx context.Context, n int, match func(Entry) bool) ([]Entry, error) {
	for {
		r.mu.Lock()
		changed := r.changed
		r.mu.Unlock()
		found := r.Select(match)
		if len(found) >= n {
			return found[:n], nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for %d log entries, have %d; the log is %s: %w", n, len(found), r.summary(), ctx.Err())
		}
	}
}

// summary names the entries, for errors.
func (r *Recorder) summary() string {
	var words []string
	for _, e := range r.Entries() {
		words = append(words, strings.TrimSpace(fmt.Sprintf("%d %s %s", e.PID, e.What, e.Method)))
	}
	return "[" + strings.Join(words, ", ") + "]"
}

// Release lets the request that has been on hold longest go on; see Fault.Hold. It waits for one.
func (r *Recorder) Release(ctx context.Context) error {
	for {
		r.mu.Lock()
		changed := r.changed
		var conn net.Conn
		if len(r.holds) > 0 {
			conn, r.holds = r.holds[0], r.holds[1:]
		}
		r.mu.Unlock()
		if conn != nil {
			_, err := conn.Write([]byte{released})
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("release a request on hold: %w", ctx.Err())
		}
	}
}

// Received matches messages of a method that came to a lab.
func Received(method string) func(Entry) bool {
	return func(e Entry) bool { return e.What == "in" && e.Method == method }
}

// Happened matches entries by what happened.
func Happened(what string) func(Entry) bool {
	return func(e Entry) bool { return e.What == what }
}

// Gone matches the end of a process.
func Gone(pid int) func(Entry) bool {
	return func(e Entry) bool { return e.What == "gone" && e.PID == pid }
}
