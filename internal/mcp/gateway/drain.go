package gateway

import (
	"context"
	"sync"
)

// gate counts the requests of an endpoint, until it takes no more.
type gate struct {
	mu     sync.Mutex // held while nothing else is locked
	inside int
	shut   chan struct{} // closed when no request is taken any more
	empty  chan struct{} // closed when none is inside, after that
}

func newGate() *gate { return &gate{shut: make(chan struct{}), empty: make(chan struct{})} }

// isShut reports whether no request is taken any more.
func (g *gate) isShut() bool {
	select {
	case <-g.shut:
		return true
	default:
		return false
	}
}

// enter notes a request, and reports false when none is taken any more. Who entered leaves.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isShut() {
		return false
	}
	g.inside++
	return true
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside--; g.inside == 0 && g.isShut() {
		close(g.empty)
	}
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isShut() {
		return
	}
	close(g.shut)
	if g.inside == 0 {
		close(g.empty)
	}
}

// Drain takes no new requests, ends the streams that belong to none, and waits until those that are in flight are answered, bounded by
// ctx. Answers and cancellations of clients are taken meanwhile: a call may wait for them. It reports whether all were answered.
// The endpoint is still to be closed.
func (e *Endpoint) Drain(ctx context.Context) bool {
	e.gate.close()
	select {
	case <-e.gate.empty:
		return true
	case <-ctx.Done():
		return false
	}
}
