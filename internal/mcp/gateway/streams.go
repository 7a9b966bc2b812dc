package gateway

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// What a session's client is sent goes over streams that may break. Each event of one has an id, so that a client that comes
// back gets what it missed (specification 2025-11-25, "Resumability and Redelivery").

const (
	// maxUnread and maxUnreadBytes bound what belongs to no request and waits for a client to fetch it.
	maxUnread      = 256
	maxUnreadBytes = 8 << 20
	// maxKept and maxKeptBytes bound what is kept of streams, in case their client comes back.
	maxKept      = 64
	maxKeptBytes = 8 << 20
)

// frame is one event of a stream.
type frame struct {
	stream int // 0 is the session's own, others are of requests
	n      int // place in its stream, from 1
	data   []byte
}

func (f frame) id() string { return eventID(f.stream, f.n) }

func eventID(stream, n int) string { return fmt.Sprintf("%d-%d", stream, n) }

// parseEventID reads an id of ours.
func parseEventID(id string) (stream, n int, ok bool) {
	first, second, _ := strings.Cut(id, "-")
	stream, err := strconv.Atoi(first)
	n, err2 := strconv.Atoi(second)
	return stream, n, err == nil && err2 == nil && stream >= 0 && n >= 0
}

// recent is the newest frames, oldest first.
type recent struct {
	frames []frame
	size   int // bytes
}

func (r *recent) add(f frame) {
	r.frames = append(r.frames, f)
	r.size += len(f.data)
	for len(r.frames) > maxKept || r.size > maxKeptBytes {
		r.size -= len(r.frames[0].data)
		r.frames[0] = frame{}
		r.frames = r.frames[1:]
	}
}

// queue is a client's own stream: what belongs to no request.
type queue struct {
	mu      sync.Mutex
	last    int // n of the newest
	waiting []frame
	unread  int // bytes of waiting
	sent    recent
	reader  *reader
	more    chan struct{} // closed and replaced when something was added
}

// reader is who sends a queue's frames to the client. There is one at a time: the newest.
type reader struct{ replaced chan struct{} }

// put adds a frame. It reports false when the client has left too many unread: it must not grow our memory.
func (q *queue) put(data []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) >= maxUnread || q.unread+len(data) > maxUnreadBytes {
		return false
	}
	q.last++
	q.waiting = append(q.waiting, frame{0, q.last, data})
	q.unread += len(data)
	if q.more != nil {
		close(q.more)
		q.more = nil
	}
	return true
}

// attach makes a reader, in place of the one before. after is the last frame that the client has, or -1 when it did not say: then it gets
// what was sent to nobody.
func (q *queue) attach(after int) *reader {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.reader != nil {
		close(q.reader.replaced)
	}
	q.reader = &reader{make(chan struct{})}
	for after >= 0 && len(q.sent.frames) > 0 && q.sent.frames[len(q.sent.frames)-1].n > after {
		q.back()
	}
	return q.reader
}

// back makes the frame that was sent last one that waits. The caller holds q.mu.
func (q *queue) back() {
	end := len(q.sent.frames) - 1
	f := q.sent.frames[end]
	q.sent.frames = q.sent.frames[:end]
	q.sent.size -= len(f.data)
	q.waiting = append([]frame{f}, q.waiting...)
	q.unread += len(f.data)
}

// detach ends a reader. sent is false when its last frame did not go out.
func (q *queue) detach(r *reader, sent bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.reader != r {
		return
	}
	q.reader = nil
	if !sent && len(q.sent.frames) > 0 {
		q.back()
	}
}

// take returns the next frame; ok is false when there is none, until more is closed.
func (q *queue) take(r *reader) (f frame, ok bool, more <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.reader != r || len(q.waiting) == 0 {
		if q.more == nil {
			q.more = make(chan struct{})
		}
		return frame{}, false, q.more
	}
	f = q.waiting[0]
	q.waiting = q.waiting[1:]
	q.unread -= len(f.data)
	q.sent.add(f)
	return f, true, nil
}

// attended reports whether somebody reads.
func (q *queue) attended() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.reader != nil
}

// tape is what was sent, or could not be, on the streams of a session's requests.
type tape struct {
	mu        sync.Mutex
	kept      recent
	streams   int           // how many there were
	last      map[int]int   // n of the newest frame, of streams that have not ended
	followers map[int]int   // how many read a stream by GET
	more      chan struct{} // closed and replaced when something was added or ended
}

// open begins a stream. The caller ends it.
func (t *tape) open() (stream int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil {
		t.last, t.followers = map[int]int{}, map[int]int{}
	}
	t.streams++
	t.last[t.streams] = 0
	return t.streams
}

func (t *tape) changed() {
	if t.more != nil {
		close(t.more)
		t.more = nil
	}
}

// add keeps an event and returns its id.
func (t *tape) add(stream int, data []byte) (id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last[stream]++
	f := frame{stream, t.last[stream], data}
	t.kept.add(f)
	t.changed()
	return f.id()
}

// end says that nothing more comes on the stream.
func (t *tape) end(stream int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.last, stream)
	t.changed()
}

// after returns what is kept of a stream behind its frame n. open says that it has not ended, and more is closed when that has changed.
func (t *tape) after(stream, n int) (frames []frame, open bool, more <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.kept.frames {
		if f.stream == stream && f.n > n {
			frames = append(frames, f)
		}
	}
	_, open = t.last[stream]
	if t.more == nil {
		t.more = make(chan struct{})
	}
	return frames, open, t.more
}

// follow notes that a client reads the stream by GET, until the returned function is called.
func (t *tape) follow(stream int) (end func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, open := t.last[stream]; !open {
		return func() {}
	}
	t.followers[stream]++
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.followers[stream]--; t.followers[stream] == 0 {
			delete(t.followers, stream)
		}
	}
}

// followed reports whether a client reads the stream by GET.
func (t *tape) followed(stream int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.followers[stream] > 0
}

// attended reports whether a client reads any stream by GET.
func (t *tape) attended() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.followers) > 0
}
