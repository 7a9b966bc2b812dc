// Package lines splits what another program writes into lines, incrementally and with a bound:
// a line over the limit is dropped whole, never cut into something that could be mistaken for a line.
package lines

import (
	"bytes"
	"io"
)

// Head is how much of a dropped line is kept to say what it was.
const Head = 64 << 10

// Reader reads lines from a stream. Its memory is bounded by the limit, however long a line is.
type Reader struct {
	r     io.Reader
	limit int
	buf   []byte // read and not yet returned; buf[:start] was
	start int
	seen  int // buf[start:seen] holds no newline
	err   error
}

// chunk is how much is read at once: a pipe's capacity on Linux.
const chunk = 64 << 10

// NewReader returns a reader of lines of at most limit bytes.
func NewReader(r io.Reader, limit int) *Reader { return &Reader{r: r, limit: limit} }

// Next returns the next line without its newline and without a carriage return before it. The line is good until the next
// call. A last line without newline counts. When the line was over the limit, dropped is true and line
// holds its first bytes (at most 64 KiB). After the last line Next returns the stream's error, io.EOF at its end.
func (r *Reader) Next() (line []byte, dropped bool, err error) {
	for {
		if i := bytes.IndexByte(r.buf[r.seen:], '\n'); i >= 0 {
			line := r.buf[r.start : r.seen+i]
			r.start = r.seen + i + 1
			r.seen = r.start
			if len(line) > r.limit {
				return line[:min(Head, r.limit)], true, nil
			}
			return bytes.TrimSuffix(line, []byte("\r")), false, nil
		}
		r.seen = len(r.buf)
		if len(r.buf)-r.start > r.limit {
			head := bytes.Clone(r.buf[r.start:][:min(Head, r.limit)])
			r.skip()
			return head, true, nil
		}
		if r.err != nil {
			line := r.buf[r.start:]
			r.start, r.seen = len(r.buf), len(r.buf)
			if len(line) > 0 {
				return bytes.TrimSuffix(line, []byte("\r")), false, nil
			}
			return nil, false, r.err
		}
		r.fill()
	}
}

// fill reads more behind what is buffered.
func (r *Reader) fill() {
	if r.start > 0 {
		n := copy(r.buf, r.buf[r.start:])
		r.buf, r.start, r.seen = r.buf[:n], 0, n
		if n == 0 && cap(r.buf) > 16*chunk {
			r.buf = nil // one long line must not hold its memory for ever
			r.seen = 0
		}
	}
	n := len(r.buf)
	if cap(r.buf)-n < chunk {
		grown := make([]byte, n, max(2*cap(r.buf), n+chunk))
		copy(grown, r.buf)
		r.buf = grown
	}
	read, err := r.r.Read(r.buf[n : n+chunk])
	r.buf = r.buf[:n+read]
	r.err = err
}

// skip reads up to the end of a line that is too long.
func (r *Reader) skip() {
	for {
		if i := bytes.IndexByte(r.buf[r.seen:], '\n'); i >= 0 {
			r.start = r.seen + i + 1
			r.seen = r.start
			return
		}
		r.start, r.seen = len(r.buf), len(r.buf)
		if r.err != nil {
			return
		}
		r.fill()
	}
}
