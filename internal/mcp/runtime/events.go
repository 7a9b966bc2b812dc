package runtime

import (
	"sync"
	"time"
)

// EventType names a status event (DESIGN.md, "Status events").
type EventType string

const (
	StartingBatch EventType = "starting.batch"
	Ready         EventType = "ready"
	Failed        EventType = "failed"
	Cancelled     EventType = "cancelled"
	RoundComplete EventType = "round.complete"
)

// Event is one status event of a round. Every server that a batch names gets exactly one of ready, failed and
// cancelled after it, and the round's summary follows the last of them.
type Event struct {
	Type  EventType `json:"type"`
	Time  time.Time `json:"time"`
	Round int       `json:"round"`
	Owner string    `json:"owner"` // the client or run that the servers are started for

	Servers []string `json:"servers,omitempty"` // starting.batch

	Server     string `json:"server,omitempty"` // ready, failed, cancelled
	Generation int    `json:"generation,omitempty"`
	Error      string `json:"error,omitempty"`

	// round.complete; sorted.
	ReadyServers     []string `json:"ready,omitempty"`
	FailedServers    []string `json:"failed,omitempty"`
	CancelledServers []string `json:"cancelled,omitempty"`
}

// watcherQueue is how many events may wait for a watcher; one that falls further behind is dropped, not waited for.
const watcherQueue = 4096

// feed hands events to watchers, in the order in which they happened.
type feed struct {
	mu       sync.Mutex
	watchers map[chan Event]struct{}
}

func (f *feed) emit(e Event) {
	e.Time = time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.watchers {
		select {
		case w <- e:
		default:
			delete(f.watchers, w)
			close(w)
		}
	}
}

// watch returns a channel of the events from now on. It is closed by stop, or when its reader fell too far behind.
func (f *feed) watch() (events <-chan Event, stop func()) {
	w := make(chan Event, watcherQueue)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watchers == nil {
		f.watchers = map[chan Event]struct{}{}
	}
	f.watchers[w] = struct{}{}
	return w, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if _, there := f.watchers[w]; there {
			delete(f.watchers, w)
			close(w)
		}
	}
}
