package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"nightporter/internal/lines"
	"nightporter/internal/mcp/wire"
	"nightporter/internal/proc"
)

// maxFrame bounds one frame on a server's standard output. Images and documents in base64 reach some tens of
// megabytes; a line beyond this is a server gone wrong.
const maxFrame = 64 << 20

// stopGrace is what a server gets to end by itself: after its standard input is closed, and after TERM. Codex gives 2 s after
// TERM and none before. server-everything does not end at the end of its input, and a person waits for this.
var stopGrace = proc.Grace{Input: 500 * time.Millisecond, Term: 2 * time.Second}

// stdio is the transport to a server that is a process of ours.
type stdio struct {
	conn   *Conn
	tree   *proc.Tree
	stderr proc.Tail
	heard  chan struct{} // closed when all of stderr is there

	// One writer owns the pipe. Who sends waits for its turn or for its ctx, so that a server that does not read
	// holds nobody longer than they want to wait.
	turn  chan struct{}
	input direct // the pipe, to be written without waiting; under turn

	mu   sync.Mutex
	junk string // the first line on stdout that was no frame
	skip int    // how many

	beside group
}

func startStdio(conn *Conn) (*stdio, error) {
	command, mechanism, err := conn.spec.command()
	if err != nil {
		return nil, err
	}
	tree, err := proc.Start(command)
	if err != nil {
		return nil, err
	}
	conn.Mechanism = mechanism
	t := &stdio{conn: conn, tree: tree, heard: make(chan struct{}), turn: make(chan struct{}, 1), input: directly(tree.Stdin)}
	conn.t = t // before anything is read: the server may ask at once
	t.beside.start(func() {
		defer close(t.heard)
		defer tree.Stderr.Close()
		_, _ = io.Copy(&t.stderr, tree.Stderr)
	})
	t.beside.start(t.read)
	return t, nil
}

func (t *stdio) read() {
	defer t.tree.Stdout.Close()
	r := lines.NewReader(t.tree.Stdout, maxFrame)
	for {
		line, dropped, err := r.Next()
		if err != nil {
			t.conn.fail(io.ErrUnexpectedEOF)
			return
		}
		if len(line) == 0 {
			continue
		}
		if dropped {
			t.note(line, true)
			t.conn.unreadable(line, fmt.Sprintf("it is longer than %d MiB", maxFrame>>20))
			continue
		}
		m, err := wire.Parse(append([]byte(nil), line...))
		if err != nil {
			t.note(line, false)
			t.conn.unreadable(line, err.Error())
			continue
		}
		t.conn.receive(m, nil)
	}
}

// quotedJunk is how much of such a line is shown: enough to know it again.
const quotedJunk = 120

// note keeps the first line that was no frame. It is masked before it is cut and quoted, or half a secret would be left.
func (t *stdio) note(line []byte, dropped bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.skip++; t.skip > 1 {
		return
	}
	t.junk = fmt.Sprintf("%.*q", quotedJunk, t.conn.mask.piece(string(line), false, dropped))
	if dropped {
		t.junk = fmt.Sprintf("a line of more than %d MiB, which begins %s", maxFrame>>20, t.junk)
	}
}

func (t *stdio) opened(*Hello) {}

// sendNow sends a frame that the pipe takes as a whole at once, as it does with all but long ones as long as the server reads. For those there is no
// goroutine to be made and woken.
func (t *stdio) sendNow(m *wire.Message) bool {
	select {
	case t.turn <- struct{}{}:
	default:
		return false // others are sending
	}
	defer func() { <-t.turn }()
	return t.input.write(t.line(m))
}

// frameRoom is what a frame takes beside its method and params: an id, and the names of members.
const frameRoom = 128

func (t *stdio) line(m *wire.Message) []byte {
	return append(m.Append(make([]byte, 0, len(m.Method)+len(m.Params)+len(m.Result)+len(m.Error)+frameRoom)), '\n')
}

func (t *stdio) send(ctx context.Context, m *wire.Message, _ *call) error {
	select {
	case t.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("the server does not read: %w", ctx.Err())
	case <-t.conn.closed:
		return t.conn.gone()
	}
	if err := ctx.Err(); err != nil { // the turn may have come at the same time
		<-t.turn
		return err
	}
	line := t.line(m)
	if t.input.write(line) {
		<-t.turn
		return nil
	}
	// The write goes on when the caller gives up: a frame cut in the middle would take the connection with it.
	written := make(chan error, 1)
	if !t.beside.start(func() {
		n, err := t.tree.Stdin.Write(line)
		<-t.turn
		if err != nil && n > 0 {
			err = &maybeSent{err}
		}
		written <- err
	}) {
		<-t.turn
		return t.conn.gone()
	}
	select {
	case err := <-written:
		return err
	case <-ctx.Done():
		return &maybeSent{fmt.Errorf("the server does not read: %w", ctx.Err())}
	case <-t.conn.closed:
		return &maybeSent{t.conn.gone()}
	}
}

func (t *stdio) close(ctx context.Context) {
	_ = t.tree.Stop(ctx, stopGrace)
	// What is left open by now is held by nobody that we could wait for.
	t.tree.Stdout.Close()
	t.tree.Stderr.Close()
	t.beside.close(ctx)
}

func (t *stdio) pid() int { return t.tree.PID() }

// exitPatience is how long an error waits for the exit status and the last words of a server whose output has ended: they
// are on their way, unless a child of the server holds its stderr.
const exitPatience = time.Second

func (t *stdio) why(err error) error {
	if errors.Is(err, errClosed) {
		return err
	}
	var parts []string
	closed := errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrClosed)
	if closed {
		patience, cancel := context.WithTimeout(context.Background(), exitPatience)
		defer cancel()
		for _, end := range []<-chan struct{}{t.tree.Exited(), t.heard} {
			select {
			case <-end:
			case <-patience.Done():
			}
		}
	}
	select {
	case <-t.tree.Exited():
		parts = append(parts, fmt.Sprintf("%s: %s", t.conn.spec.Path, t.tree.Exit()))
	default:
		if closed {
			parts = append(parts, fmt.Sprintf("%s closed its standard input or output", t.conn.spec.Path))
		} else if err != nil && !errors.Is(err, context.DeadlineExceeded) { // whose deadline it was is said with it
			parts = append(parts, err.Error())
		}
	}
	if words := lastLines(t.lastWords(), 5); words != "" {
		parts = append(parts, "its stderr ends: "+words)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.skip > 0 {
		parts = append(parts, fmt.Sprintf("%d lines on its standard output were no JSON-RPC frames, the first: %s", t.skip, t.junk))
	}
	return t.conn.mask.error(errors.New(strings.Join(parts, "; ")))
}

// lastWords is what is kept of stderr, masked.
func (t *stdio) lastWords() string {
	return t.conn.mask.piece(t.stderr.String(), t.stderr.Dropped() > 0, false)
}

// lastLines is the end of a text, for an error that quotes it.
func lastLines(text string, n int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	if len(all) > n {
		all = all[len(all)-n:]
	}
	text = strings.TrimSpace(strings.Join(all, " | "))
	const most = 1000
	if len(text) > most {
		text = "…" + strings.ToValidUTF8(text[len(text)-most:], "")
	}
	return text
}

// Stderr is what the server wrote to its standard error last (at most 64 KiB), with its secrets masked; empty
// for servers that are no process of ours.
func (c *Conn) Stderr() string {
	if t, ok := c.t.(*stdio); ok {
		return t.lastWords()
	}
	return ""
}
