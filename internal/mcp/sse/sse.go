// Package sse reads and writes server-sent events, as MCP's HTTP transport uses them
// (WHATWG HTML, section 9.2; one JSON-RPC frame in each event's data).
package sse

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"nightporter/internal/lines"
)

// Event is one event. Data is without its line breaks' framing.
type Event struct {
	Name  string // "message" when the stream gave none
	ID    string
	Data  []byte
	Retry time.Duration // zero when the event set none
}

// MaxEvent bounds one line of an event, and the data of one event: the largest frame that MCP peers send here is
// an image or a document in base64.
const MaxEvent = 64 << 20

// Reader reads events from a stream.
type Reader struct{ lines *lines.Reader }

// NewReader returns a reader of the events in r.
func NewReader(r io.Reader) *Reader { return &Reader{lines.NewReader(r, MaxEvent)} }

// Next returns the next event that has data, an id or a retry. At the end of the stream it returns the
// stream's error; an event that the end cut short is not returned. An event over [MaxEvent] is an error.
func (r *Reader) Next() (Event, error) {
	e := Event{Name: "message"}
	var data bytes.Buffer
	filled := false
	for {
		line, dropped, err := r.lines.Next()
		if err != nil {
			return Event{}, err
		}
		if dropped || data.Len() > MaxEvent {
			return Event{}, fmt.Errorf("an event is larger than %d MiB", MaxEvent>>20)
		}
		if len(line) == 0 {
			if filled {
				e.Data = bytes.TrimSuffix(data.Bytes(), []byte("\n"))
				return e, nil
			}
			continue
		}
		field, value, _ := strings.Cut(string(line[:min(len(line), fieldName)]), ":")
		switch field {
		case "data":
			raw := bytes.TrimPrefix(bytes.TrimPrefix(line[len("data"):], []byte(":")), []byte(" "))
			data.Write(raw)
			data.WriteByte('\n')
			filled = true
		case "event":
			e.Name = strings.TrimPrefix(string(line[len("event"):]), ":")
			e.Name = strings.TrimPrefix(e.Name, " ")
		case "id":
			e.ID = strings.TrimPrefix(strings.TrimPrefix(string(line[len("id"):]), ":"), " ")
			filled = true
		case "retry":
			if ms, err := strconv.ParseUint(strings.TrimSpace(value), 10, 31); err == nil {
				e.Retry = time.Duration(ms) * time.Millisecond
				filled = true
			}
		}
	}
}

// fieldName is enough of a line to find its field and a short value.
const fieldName = 32

// Writer writes events to an HTTP response and flushes each.
type Writer struct {
	w http.ResponseWriter
	c *http.ResponseController
}

// NewWriter begins an event stream: it writes the header with status 200.
func NewWriter(w http.ResponseWriter) *Writer {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no") // or nginx holds events back
	w.WriteHeader(http.StatusOK)
	sw := &Writer{w, http.NewResponseController(w)}
	_ = sw.c.Flush()
	return sw
}

const (
	// slowClient is how long one piece may take to be written before a client that does not read is dropped.
	slowClient = 30 * time.Second
	// piece is what is written in one. Who takes less in that time reads too slowly, at 35 KB/s.
	piece = 1 << 20
)

// WriteBounded writes data to a response, and gives up when the client does not read. However much it is, a client that reads gets it.
func WriteBounded(w http.ResponseWriter, data []byte) error {
	c := http.NewResponseController(w)
	for part := range slices.Chunk(data, piece) {
		_ = c.SetWriteDeadline(time.Now().Add(slowClient))
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// Write sends data, which must be one line, as one event. An empty id is left out.
func (w *Writer) Write(id string, data []byte) error {
	var b bytes.Buffer
	b.Grow(len(data) + len(id) + 32)
	b.WriteString("event: message\n")
	if id != "" {
		b.WriteString("id: " + id + "\n")
	}
	b.WriteString("data: ")
	b.Write(data)
	b.WriteString("\n\n")
	if err := WriteBounded(w.w, b.Bytes()); err != nil {
		return err
	}
	return w.c.Flush()
}

// Retry tells the client after which time to come back when the stream has ended.
func (w *Writer) Retry(after time.Duration) error {
	_ = w.c.SetWriteDeadline(time.Now().Add(slowClient))
	if _, err := fmt.Fprintf(w.w, "retry: %d\n\n", after.Milliseconds()); err != nil {
		return err
	}
	return w.c.Flush()
}

// KeepAlive sends a comment, which keeps proxies from closing a quiet stream.
func (w *Writer) KeepAlive() error {
	_ = w.c.SetWriteDeadline(time.Now().Add(slowClient))
	if _, err := io.WriteString(w.w, ": \n\n"); err != nil {
		return err
	}
	return w.c.Flush()
}
