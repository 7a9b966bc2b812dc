package proc

import "sync"

// TailSize is how much of a stream a [Tail] keeps: 64 KiB, enough for any stack trace and
// small enough to be held for every server.
const TailSize = 64 << 10

// Tail is an [io.Writer] that keeps the last [TailSize] bytes that were written to it, for
// streams that must be drained but are only looked at when something went wrong. The zero value is
// ready. It takes no memory before the first write, never fails, and may be used by several goroutines.
type Tail struct {
	mu    sync.Mutex
	ring  []byte // grows up to TailSize, then next wraps around
	next  int    // where the next byte goes once the ring is full
	total int64
}

// Write keeps the last bytes of p. It always takes all of p.
func (t *Tail) Write(p []byte) (int, error) {
	n := len(p)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total += int64(n)
	p = p[max(0, n-TailSize):]
	grow := min(len(p), TailSize-len(t.ring))
	t.ring = append(t.ring, p[:grow]...)
	for p = p[grow:]; len(p) > 0; {
		k := copy(t.ring[t.next:], p)
		p = p[k:]
		t.next = (t.next + k) % TailSize
	}
	return n, nil
}

// Bytes returns a copy of what is kept, oldest byte first.
func (t *Tail) Bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]byte, 0, len(t.ring))
	out = append(out, t.ring[t.next:]...)
	return append(out, t.ring[:t.next]...)
}

// String returns what is kept, as [Tail.Bytes] does.
func (t *Tail) String() string { return string(t.Bytes()) }

// Dropped returns how many bytes were written before those that are kept.
func (t *Tail) Dropped() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total - int64(len(t.ring))
}
