package console

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"nightporter/client"
	"nightporter/internal/hub/store"
)

const (
	// maxStreams bounds the pages that are open and live, of all browsers: each is a connection and a goroutine.
	maxStreams = 1000
	// quiet is the least time between two words to a page: a page is made anew for each.
	quiet = 300 * time.Millisecond
	// lookAgain is how often a page is made anew without a word of the database, which may be lost, and how soon the stream of a session that is
	// over ends.
	lookAgain = 15 * time.Second
	// writePatience is how long a browser may take for a line.
	writePatience = 30 * time.Second
)

// streams are the pages that are open.
type streams struct {
	mu     sync.Mutex
	n      int
	closed chan struct{}
	once   sync.Once
}

func newStreams() *streams { return &streams{closed: make(chan struct{})} }

func (s *streams) close() { s.once.Do(func() { close(s.closed) }) }

func (s *streams) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == maxStreams {
		return false
	}
	s.n++
	return true
}

func (s *streams) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n--
}

// live tells a page that it is to look again: nothing of what happened is in the stream, so that what may be seen is decided in one place only.
func (c *Console) live(q *request) error {
	if !c.streams.enter() {
		return &problem{http.StatusServiceUnavailable, "Too many pages are open", "This page does not change by itself now. Reload it."}
	}
	defer c.streams.leave()
	topics := []string{store.TopicAll, store.TopicApprovals, store.TopicQueue, store.TopicOutbox}
	if key := q.r.URL.Query().Get("conversation"); key != "" {
		if err := c.readable(q, key); err != nil {
			return err
		}
		id, err := c.store.ConversationID(q.ctx(), key)
		if err != nil {
			return err
		}
		topics = []string{store.TopicConversation(id), store.TopicApprovals}
	} else if !has(*q.key, client.ScopeRead, client.ScopeApprove) {
		return errForbidden
	}
	woken, stop := c.store.Watch(topics...)
	defer stop()
	cookie, err := q.r.Cookie(c.cookieName(q.r))
	if err != nil {
		return errSignIn
	}

	q.w.Header().Set("Content-Type", "text/event-stream")
	q.w.Header().Set("X-Accel-Buffering", "no") // for proxies that would hold lines back
	out := http.NewResponseController(q.w)
	say := func(line string) bool {
		err := out.SetWriteDeadline(time.Now().Add(writePatience))
		if err != nil && !errors.Is(err, http.ErrNotSupported) {
			return false
		}
		if _, err := io.WriteString(q.w, line); err != nil {
			return false
		}
		return out.Flush() == nil
	}
	again, pause := time.NewTicker(lookAgain), time.NewTimer(0)
	defer again.Stop()
	defer pause.Stop()
	<-pause.C
	if !say("retry: 2000\n\n") {
		return nil
	}
	for {
		select {
		case <-q.ctx().Done():
			return nil
		case <-c.streams.closed:
			return nil
		case <-again.C:
		case <-woken:
		}
		// Words that come close together are one.
		pause.Reset(quiet)
		select {
		case <-q.ctx().Done():
			return nil
		case <-pause.C:
		}
		if _, _, err := c.store.Session(q.ctx(), hash(cookie.Value)); err != nil {
			if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrRevoked) {
				say("event: over\ndata: \n\n")
			}
			return nil
		}
		if !say("event: changed\ndata: \n\n") {
			return nil
		}
	}
}
