// Package hub serves conversations to people and programs, and runs to hosts, over HTTP. What it knows is in package store; several
// hubs may serve one PostgreSQL database, and any of them may die.
package hub

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"nightporter/client"
	"nightporter/internal/hub/store"
)

// Options of a Hub.
type Options struct {
	Version string       // Nightporter's
	Log     *slog.Logger // may be nil
	// HTTP makes the requests of webhooks; nil: one of the hub's own.
	HTTP *http.Client
	// DeliveryTimeout bounds one try of a delivery; 0: 20 s. What a hub that died was delivering is tried again by another, or by itself, after
	// twice as long.
	DeliveryTimeout time.Duration
	// Keep is how long conversations that are still are kept; 0: for ever.
	Keep time.Duration
	// Hosts are names in the Host header besides loopback's.
	Hosts []string
	// Now is the hub's clock, for tests; nil: the system's. Leases and order do not depend on it.
	Now func() time.Time
}

// Hub is an http.Handler. The caller closes it.
type Hub struct {
	store *store.Store
	o     Options
	mux   *http.ServeMux
	ctx   context.Context // ends when the hub closes, and streams and waits with it
	stop  context.CancelFunc
	work  sync.WaitGroup
	tries tries
}

// New makes a hub on a store and begins its work beside requests: taking back runs whose lease is lost, deliveries, schedules.
func New(s *store.Store, o Options) *Hub {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.DeliveryTimeout == 0 {
		o.DeliveryTimeout = deliveryTimeout
	}
	h := &Hub{store: s, o: o}
	h.ctx, h.stop = context.WithCancel(context.Background())
	h.tries.now = o.Now
	h.mux = h.routed()
	h.work.Go(h.sweep)
	h.work.Go(h.schedules)
	h.work.Go(newOutbox(h).run)
	return h
}

// Close ends streams, waits and the work beside requests. Runs that hosts have go on.
func (h *Hub) Close() {
	h.stop()
	h.work.Wait()
}

const (
	// sweepEvery is how often leases are looked at.
	sweepEvery = 2 * time.Second
	// jump is how far the hub's clock may move against its steady one within a sweep before it counts as set.
	jump = 2 * time.Second
	// pruneEvery is how often old conversations are looked for.
	pruneEvery = time.Hour
)

// sweep takes runs back. While a hub on SQLite was down, or its clock was set, no host could renew by the clock that counts: then every host
// has one whole lease to do so.
func (h *Hub) sweep() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	last, pruned := time.Now(), time.Time{}
	grace := last.Add(h.store.Lease())
	for {
		select {
		case <-tick.C:
		case <-h.ctx.Done():
			return
		}
		now := time.Now()
		if moved := now.Round(0).Sub(last.Round(0)) - now.Sub(last); moved > jump || moved < -jump {
			grace = now.Add(h.store.Lease())
		}
		last = now
		if !h.store.Postgres() && now.Before(grace) {
			continue
		}
		if n, err := h.store.Sweep(h.ctx); err != nil && h.ctx.Err() == nil {
			h.o.Log.Warn("leases cannot be looked at", "err", err)
		} else if n > 0 {
			h.o.Log.Info("runs were taken back", "runs", n)
		}
		if h.o.Keep > 0 && now.Sub(pruned) > pruneEvery {
			pruned = now
			if _, err := h.store.Prune(h.ctx, h.o.Keep); err != nil && h.ctx.Err() == nil {
				h.o.Log.Warn("old conversations cannot be removed", "err", err)
			}
		}
	}
}

const (
	// The kinds of keys, by which a key that was pasted somewhere is recognised.
	keyPrefix     = "npk_"
	hostKeyPrefix = "nph_"
)

// newSecret makes a key, and the hash by which it is kept.
func newSecret(prefix string) (secret, hash string) {
	var b [32]byte
	rand.Read(b[:]) // never fails
	secret = prefix + base64.RawURLEncoding.EncodeToString(b[:])
	return secret, hashed(secret)
}

func hashed(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// FirstKey makes a key with all scopes when there is none at all, for whoever starts the hub.
func FirstKey(ctx context.Context, s *store.Store) (secret string, err error) {
	keys, err := s.Keys(ctx)
	if err != nil || len(keys) > 0 {
		return "", err
	}
	secret, hash := newSecret(keyPrefix)
	_, err = s.AddKey(ctx, "first", client.Scopes, hash, nil)
	if errors.Is(err, store.ErrConflict) {
		return "", nil // another hub was faster
	}
	return secret, err
}

// tries bounds how often an address may show a credential that is none.
type tries struct {
	mu     sync.Mutex
	failed map[string][]time.Time
	now    func() time.Time
}

const (
	maxTries     = 20
	triesWindow  = time.Minute
	maxAddresses = 10_000
)

func address(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// allowed reports whether an address may try again.
func (t *tries) allowed(r *http.Request) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.recent(address(r))) < maxTries
}

func (t *tries) recent(from string) []time.Time {
	all := t.failed[from]
	for len(all) > 0 && t.now().Sub(all[0]) > triesWindow {
		all = all[1:]
	}
	if len(all) == 0 {
		delete(t.failed, from)
	}
	return all
}

// fail notes a credential that was none.
func (t *tries) fail(r *http.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed == nil || len(t.failed) > maxAddresses {
		t.failed = map[string][]time.Time{}
	}
	from := address(r)
	t.failed[from] = append(t.recent(from), t.now())
}
