package runtime

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"nightporter/internal/config"
)

// idleCheck is how often unused servers are looked for. idle_stop_sec is in seconds.
const idleCheck = time.Second

// keep puts servers to sleep that were not used for as long as their definition says (A16). One goroutine for all of them.
func (r *Runtime) keep() {
	ticker := time.NewTicker(idleCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-r.ctx.Done():
			return
		}
		for _, s := range r.Scopes() {
			for _, in := range s.list() {
				if limit := in.def().IdleStop; limit > 0 && in.idle() >= limit {
					in.sleep(fmt.Sprintf("not used for %v", limit), limit)
				}
			}
		}
	}
}

// idle is how long a running server has not been used; negative while it is used, or does not run.
func (in *instance) idle() time.Duration {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.busy() {
		return -1
	}
	return time.Since(in.used)
}

// busy reports whether the server does not run, or may not be ended. The caller holds in.mu.
func (in *instance) busy() bool {
	return in.link == nil || in.pending != nil || in.inflight > 0 || in.awake > 0 || len(in.link.subscriptions) > 0
}

// sleep ends a server that has been idle for at least limit, and reports whether it did.
func (in *instance) sleep(reason string, limit time.Duration) bool {
	in.mu.Lock()
	if in.busy() || time.Since(in.used) < limit {
		in.mu.Unlock()
		return false
	}
	l := in.link
	in.rest(reason)
	in.mu.Unlock()
	l.end()
	return true
}

// roomPatience is how long a start waits for a place among the processes that may live.
const roomPatience = 30 * time.Second

// room waits until another server process may be started (gateway.max_servers). The one that was unused longest makes
// room; when all are in use, the start waits for one of them.
func (r *Runtime) room(a *attempt) error {
	if a.in.def().Transport != config.Stdio {
		return nil
	}
	timer := time.NewTimer(roomPatience)
	defer timer.Stop()
	for {
		most := r.Config().Gateway.MaxServers
		r.mu.Lock()
		if most <= 0 || r.living < most {
			r.living++
			a.counted = true
			r.mu.Unlock()
			return nil
		}
		left := r.left
		r.mu.Unlock()
		if r.sleepOne("to make room for " + a.in.name) {
			continue
		}
		select {
		case <-left:
		case <-timer.C:
			return fmt.Errorf("server %s has waited %v for a place: gateway.max_servers is %d, and in use are %s", a.in.name, roomPatience, most, strings.Join(r.busyServers(), ", "))
		case <-a.ctx.Done():
			return context.Cause(a.ctx)
		case <-r.ctx.Done():
			return context.Cause(r.ctx)
		}
	}
}

// gone notes that a counted server process has ended.
func (r *Runtime) gone() {
	r.mu.Lock()
	r.living--
	r.mu.Unlock()
	r.stir()
}

// stir wakes the starts that wait for room: a server has ended, or has become idle.
func (r *Runtime) stir() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.left)
	r.left = make(chan struct{})
}

// sleepOne puts the process to sleep that was unused longest, if there is one that nobody uses.
func (r *Runtime) sleepOne(reason string) bool {
	type candidate struct {
		in   *instance
		idle time.Duration
	}
	var idle []candidate
	for _, s := range r.Scopes() {
		for _, in := range s.list() {
			d := in.idle()
			in.mu.Lock()
			mine := in.link != nil && in.link.sole()
			in.mu.Unlock()
			if d >= 0 && mine && in.def().Transport == config.Stdio {
				idle = append(idle, candidate{in, d})
			}
		}
	}
	slices.SortFunc(idle, func(a, b candidate) int { return cmp.Compare(b.idle, a.idle) })
	for _, c := range idle {
		if c.in.sleep(reason, 0) {
			return true
		}
	}
	return false
}

// busyServers names the servers that run, and for whom.
func (r *Runtime) busyServers() (names []string) {
	for _, s := range r.Scopes() {
		for _, in := range s.list() {
			in.mu.Lock()
			if in.link != nil || in.pending != nil {
				names = append(names, in.name+" ("+in.by+")")
			}
			in.mu.Unlock()
		}
	}
	return names
}
