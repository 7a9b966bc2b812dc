package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
)

// Entry is one line of a lab's log.
type Entry struct {
	Name string `json:"name"` // of the configuration
	PID  int    `json:"pid"`
	// What happened: start, in (a message came), bad (a line that is no JSON came), out, hold,
	// signal, eof, exit, grandchild, and on HTTP get, delete, refused (401). A Recorder adds
	// gone: the process has ended, or the HTTP server has.
	What    string            `json:"what"`
	Method  string            `json:"method,omitempty"`  // of the message
	Message json.RawMessage   `json:"message,omitempty"` // as it came or went, without white space
	Line    []byte            `json:"line,omitempty"`    // in: the message byte for byte, with Config.Mirror
	Text    string            `json:"text,omitempty"`    // of a bad line; the signal's name
	Status  int               `json:"status,omitempty"`  // of an exit
	Args    []string          `json:"args,omitempty"`    // start: the command line
	Cwd     string            `json:"cwd,omitempty"`     // start
	Parent  int               `json:"parent,omitempty"`  // start: the parent's pid
	Env     map[string]string `json:"env,omitempty"`     // start, with Config.LogEnv
	Header  http.Header       `json:"header,omitempty"`  // on HTTP
}

// What a recorder says to a lab, a byte each.
const (
	kept     = 'k' // it has the lab's last entry
	released = 'r' // a request on hold may go on
)

// maxHeld is more requests than any test has on hold: the words of a recorder never wait for one of them.
const maxHeld = 1024

// recorderScheme marks the address of a Recorder.
const recorderScheme = "tcp:"

// journal writes a lab's log, to a file or to a Recorder.
type journal struct {
	name string
	mu   sync.Mutex
	to   io.WriteCloser
	full bool          // messages go into the log byte for byte
	held chan struct{} // one value for each release
	kept chan struct{} // one value for each entry that a recorder has; nil with a file
	gone chan struct{} // closed when the recorder goes; never with a file
	done chan struct{} // closed by close
	work sync.WaitGroup
}

// openJournal opens a log by Config.Log.
func openJournal(name, target string) (*journal, error) {
	j := &journal{name: name, held: make(chan struct{}, maxHeld), gone: make(chan struct{}), done: make(chan struct{})}
	address, remote := strings.CutPrefix(target, recorderScheme)
	switch {
	case target == "":
		j.to = nowhere{}
	case remote:
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return nil, fmt.Errorf("log: %w", err)
		}
		j.to, j.kept = conn, make(chan struct{}, 1)
		j.work.Go(func() {
			defer close(j.gone)
			word := make([]byte, 1)
			for {
				if _, err := conn.Read(word); err != nil {
					return
				}
				into := j.kept
				if word[0] == released {
					into = j.held
				}
				select {
				case into <- struct{}{}:
				case <-j.done:
					return
				}
			}
		})
	default:
		file, err := os.OpenFile(target, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("log: %w", err)
		}
		j.to = file
	}
	return j, nil
}

type nowhere struct{}

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (nowhere) Close() error                { return nil }

// write returns when a recorder has the entry: what a test sees of a lab, such as an answer, is in the log before it.
func (j *journal) write(e Entry) {
	e.Name, e.PID = j.name, os.Getpid()
	j.mu.Lock()
	defer j.mu.Unlock()
	_, err := j.to.Write(append(encode(e), '\n')) // a recorder that has gone ends the process
	if j.kept == nil || err != nil {
		return
	}
	select {
	case <-j.kept:
	case <-j.gone:
	case <-j.done:
	}
}

func (j *journal) received(method string, line []byte, bad bool, header http.Header) {
	if bad {
		j.write(Entry{What: "bad", Text: string(line), Header: header})
		return
	}
	e := Entry{What: "in", Method: method, Message: bytes.TrimSpace(line), Header: header}
	if j.full {
		e.Line = bytes.TrimRight(line, "\r\n")
	}
	j.write(e)
}

// maxLogged bounds an outgoing message in the log; a huge result is told by its size.
const maxLogged = 64 << 10

func (j *journal) sent(line []byte) {
	var m message
	_ = json.Unmarshal(line, &m)
	if len(line) > maxLogged {
		line = encode(fields{"id": m.ID, "bytes": len(line)})
	}
	j.write(Entry{What: "out", Method: m.Method, Message: line})
}

// release waits until the recorder releases something on hold.
func (j *journal) release(ctx context.Context) error {
	select {
	case <-j.held:
		return nil
	case <-j.gone:
		return errors.New("the recorder has gone")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (j *journal) close() {
	close(j.done)
	_ = j.to.Close()
	j.work.Wait()
}

// ReadLog reads a log that was written to a file.
func ReadLog(path string) ([]Entry, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var entries []Entry
	err = readEntries(file, func(e Entry) { entries = append(entries, e) })
	if err != nil {
		return entries, fmt.Errorf("log %s: %w", path, err)
	}
	return entries, nil
}

func readEntries(from io.Reader, each func(Entry)) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return nil // a line that was cut off belongs to a process that was killed
		}
		if err != nil {
			return err
		}
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("%w: %s", err, line)
		}
		each(e)
	}
}
