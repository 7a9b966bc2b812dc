package server

import (
	"context"
	"sync"
)

// group owns goroutines. Unlike a [sync.WaitGroup] it may be closed while others start goroutines in it, and is waited for no
// longer than a ctx lasts. The zero value is ready.
type group struct {
	mu      sync.Mutex
	closed  bool
	running int
	ended   chan struct{} // made by close; closed when none runs
}

// start runs f in a goroutine, and reports false, without running it, once the group is closed.
func (g *group) start(f func()) bool {
	if !g.enter() {
		return false
	}
	go func() {
		defer g.done()
		f()
	}()
	return true
}

// enter makes the calling goroutine one of the group until done, unless the group is closed.
func (g *group) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.running++
	}
	return !g.closed
}

func (g *group) done() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running--; g.running == 0 && g.closed {
		close(g.ended)
	}
}

// close keeps new goroutines from starting, and waits until those that run have ended or ctx has.
func (g *group) close(ctx context.Context) {
	g.mu.Lock()
	if !g.closed {
		g.closed = true
		g.ended = make(chan struct{})
		if g.running == 0 {
			close(g.ended)
		}
	}
	g.mu.Unlock()
	select {
	case <-g.ended:
	case <-ctx.Done():
	}
}
