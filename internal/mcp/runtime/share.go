package runtime

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"sync"
	"time"

	"nightporter/internal/mcp/server"
	"nightporter/internal/mcp/wire"
)

// shared is one connection that several clients use, because the server's definition says shared = true (A40). They are clients
// for which the server is the same: its identity holds their folder, capabilities and environment.
type shared struct {
	opening sync.Mutex // held while the connection is opened, so that all who come wait for one start

	mu      sync.Mutex
	conn    *server.Conn
	users   map[*link]server.Handler
	counted bool // the process has a place among those that may live
}

// Notify implements [server.Handler]: all clients are told.
func (s *shared) Notify(m wire.Message) {
	for _, h := range s.handlers() {
		h.Notify(m)
	}
}

// Request implements [server.Handler]: a question can be put to one client, and not to one of several.
func (s *shared) Request(ctx context.Context, m wire.Message) (json.RawMessage, *wire.RPCError) {
	handlers := s.handlers()
	if len(handlers) == 1 || m.Method == wire.Ping && len(handlers) > 0 {
		return handlers[0].Request(ctx, m)
	}
	return nil, wire.Errorf(wire.CodeMethodNotFound, "%s cannot be asked: several clients share this server, and the question belongs to no call", m.Method)
}

func (s *shared) handlers() (list []server.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.users {
		list = append(list, h)
	}
	return list
}

// sharing are a runtime's shared connections.
type sharing struct {
	mu   sync.Mutex
	byID map[string]*shared
}

func (k *sharing) of(id string) *shared {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.byID == nil {
		k.byID = map[string]*shared{}
	}
	if k.byID[id] == nil {
		k.byID[id] = &shared{users: map[*link]server.Handler{}}
	}
	return k.byID[id]
}

// link is an instance's use of one connection, its own or one that it shares.
type link struct {
	r          *Runtime
	in         *instance
	conn       *server.Conn
	share      *shared // nil: the connection is the instance's own
	counted    bool    // the process has a place among those that may live; for a shared one, share.counted
	generation int
	began      time.Time
	ctx        context.Context // ends when the use does
	cancel     context.CancelFunc
	listening  chan struct{} // closed when the server has acknowledged that it will tell of changed lists; nil when it is not asked
	once       sync.Once
	ended      chan struct{} // closed when end has done its work

	// Under in.mu:
	served        bool                       // it answered a request
	stale         map[string]bool            // list methods that the server said have changed; not nil while they are read again
	subscriptions map[[sha256.Size]byte]bool // hashes of the URIs of resources, which clients choose as long as they like
	level         string                     // of log messages, that we asked for
}

// connect opens a connection of the instance's own, or joins the one that others have. When it succeeds the attempt's place among the
// processes belongs to the link.
func (a *attempt) connect(ctx context.Context, spec *server.Spec) (*link, error) {
	in, r := a.in, a.in.scope.r
	l := &link{r: r, in: in, generation: a.generation, began: time.Now(), ended: make(chan struct{}), subscriptions: map[[sha256.Size]byte]bool{}}
	h := handler{in, a.generation}
	open := func(h server.Handler) (*server.Conn, error) {
		if err := r.room(a); err != nil {
			return nil, err
		}
		l.began = time.Now() // waiting for room is not starting
		return server.Open(ctx, spec, in.scope.o.Client, in.scope.o.Prefer, h)
	}
	if !in.def().Shared {
		conn, err := open(h)
		if err != nil {
			return nil, err
		}
		l.conn, l.counted = conn, a.counted
	} else {
		key := string(in.identity(spec))
		if in.def().AuthorityBound { // shared by those with the same authority (A30)
			in.mu.Lock()
			key += " " + in.bound
			in.mu.Unlock()
		}
		s := r.shared.of(key)
		s.opening.Lock()
		defer s.opening.Unlock()
		s.mu.Lock()
		fresh := s.conn == nil || s.conn.Err() != nil
		s.mu.Unlock()
		var conn *server.Conn
		if fresh {
			var err error
			if conn, err = open(s); err != nil {
				return nil, err
			}
		}
		s.mu.Lock()
		if fresh {
			s.conn, s.users, s.counted = conn, map[*link]server.Handler{}, a.counted
		}
		s.users[l] = h
		l.conn, l.share = s.conn, s
		s.mu.Unlock()
	}
	a.counted = false
	l.ctx, l.cancel = context.WithCancel(r.ctx)
	return l, nil
}

// end gives up the use of the connection, and ends the connection when it was the last. It returns when that is done.
func (l *link) end() {
	l.once.Do(func() {
		defer close(l.ended)
		l.cancel()
		counted := l.counted
		if s := l.share; s != nil {
			s.mu.Lock()
			delete(s.users, l)
			last := len(s.users) == 0 && s.conn == l.conn
			if last {
				s.conn = nil // who comes now opens another one
				counted = s.counted
			}
			s.mu.Unlock()
			if !last {
				l.r.stir() // whoever is left may be alone with it now
				return
			}
		}
		ctx, done := context.WithTimeout(context.Background(), stopPatience)
		defer done()
		l.conn.Close(ctx)
		if counted {
			l.r.gone()
		}
	})
	<-l.ended
}

// endWithin is end for who waits no longer than ctx.
func (l *link) endWithin(ctx context.Context) {
	l.in.scope.wg.Go(l.end)
	select {
	case <-l.ended:
	case <-ctx.Done():
	}
}

// sole reports whether the connection is used by this link alone.
func (l *link) sole() bool {
	if l.share == nil {
		return true
	}
	l.share.mu.Lock()
	defer l.share.mu.Unlock()
	return len(l.share.users) == 1
}
