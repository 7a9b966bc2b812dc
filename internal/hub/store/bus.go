package store

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Topics of [Store.Watch].
const (
	TopicQueue     = "queue"     // a run became ready
	TopicApprovals = "approvals" // one was asked or answered
	TopicOutbox    = "outbox"    // a delivery became pending
	TopicAll       = "all"       // something happened in some conversation
)

// TopicConversation is woken by each event of a conversation, by its id.
func TopicConversation(id string) string { return "c:" + id }

// TopicHost is woken when a run of a host is to be stopped.
func TopicHost(id string) string { return "h:" + id }

// bus wakes those who wait in this process.
type bus struct {
	mu       sync.Mutex
	watchers map[string]map[*watcher]bool
}

type watcher struct{ c chan struct{} }

// Watch returns a channel that has something to take whenever one of the topics was woken since the last time, by this hub or
// another, until stop. A wake may be lost with a connection to the database: who waits looks again now and then.
func (s *Store) Watch(topics ...string) (woken <-chan struct{}, stop func()) {
	w := &watcher{make(chan struct{}, 1)}
	b := &s.bus
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.watchers == nil {
		b.watchers = map[string]map[*watcher]bool{}
	}
	for _, topic := range topics {
		if b.watchers[topic] == nil {
			b.watchers[topic] = map[*watcher]bool{}
		}
		b.watchers[topic][w] = true
	}
	return w.c, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, topic := range topics {
			delete(b.watchers[topic], w)
			if len(b.watchers[topic]) == 0 {
				delete(b.watchers, topic)
			}
		}
	}
}

func (b *bus) wake(topics ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, topic := range topics {
		for w := range b.watchers[topic] {
			select {
			case w.c <- struct{}{}:
			default:
			}
		}
	}
}

// wakeAll is for when wakes may have been lost.
func (b *bus) wakeAll() {
	b.mu.Lock()
	topics := make([]string, 0, len(b.watchers))
	for topic := range b.watchers {
		topics = append(topics, topic)
	}
	b.mu.Unlock()
	b.wake(topics...)
}

// listenPause is how long a lost connection is left alone before another is made.
const listenPause = time.Second

// maxTold is how many topics wait to be told to other hubs.
const maxTold = 4096

// tellOthers wakes the other hubs, for many transactions at a time. It is no part of them: PostgreSQL commits those that notify one by one.
func (s *Store) tellOthers(ctx context.Context) {
	for {
		var topics []string
		select {
		case <-ctx.Done():
			return
		case topic := <-s.tell:
			topics = append(topics, topic)
		}
		for len(topics) < maxTold && len(s.tell) > 0 { // nobody else takes
			topics = append(topics, <-s.tell)
		}
		slices.Sort(topics)
		// An error is that of the database, which others tell of. What is not told is seen by looking.
		_, _ = s.db.ExecContext(ctx, `SELECT pg_notify('nightporter', topic) FROM unnest($1::text[]) AS topic`, slices.Compact(topics))
	}
}

// hear wakes this process for what other hubs did.
func (s *Store) hear(ctx context.Context) {
	for ctx.Err() == nil {
		s.hearOnce(ctx)
		timer := time.NewTimer(listenPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

func (s *Store) hearOnce(ctx context.Context) {
	conn, err := pgx.Connect(ctx, s.postgres)
	if err != nil {
		return
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "LISTEN nightporter"); err != nil {
		return
	}
	s.bus.wakeAll() // whoever was woken while nobody listened
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return
		}
		s.bus.wake(n.Payload)
	}
}
