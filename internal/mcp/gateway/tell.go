package gateway

import (
	"context"
	"encoding/json"
	"time"

	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/wire"
)

// notified takes a notification of the client. It does not wait.
func (c *client) notified(m wire.Message) {
	c.touch()
	switch m.Method {
	case wire.Initialized: // servers hear ours
	case wire.Cancelled:
		c.mu.Lock()
		cancel := c.inflight[string(wire.Get(m.Params, "requestId"))]
		c.mu.Unlock()
		if cancel != nil {
			cancel(nil)
		}
	case wire.RootsChanged:
		c.tell("", m)
	case wire.Progress:
		if name, token := c.askedWith(wire.Get(m.Params, "progressToken")); token != nil {
			m.Params = wire.Set(m.Params, token, "progressToken")
			c.tell(name, m)
		}
	case wire.TaskStatus:
		id, _ := wire.GetString(m.Params, "taskId")
		if name := c.clientTaskOf(id); name != "" {
			c.tell(name, m)
		}
	default:
		if c.e.p.Single != "" { // of several servers, nothing says which is meant
			c.tell("", m)
		}
	}
}

// askedWith finds the server that waits for an answer of the client and gave it the token, which is ours, and the token that the server
// itself gave; nil when there is none.
func (c *client) askedWith(ours json.RawMessage) (server string, token json.RawMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.asked[string(ours)]
	return a.server, a.token
}

const (
	// tellPatience bounds the telling of servers: one that reads nothing must not keep the next notification for ever.
	tellPatience = 10 * time.Second
	// maxTelling bounds the notifications that wait behind one of their method and server, and those.
	maxTelling = 64
)

// tell passes a notification on to a server, or when name is empty to all that run, beside the reading of what the client sends. One of each
// method is on its way at a time; those that come meanwhile wait, and beyond a bound are lost.
func (c *client) tell(name string, m wire.Message) {
	scope := c.running()
	if scope == nil {
		return // no server has heard anything yet
	}
	key := name + "\x00" + m.Method
	c.mu.Lock()
	waiting, busy := c.telling[key]
	switch {
	case busy && m.Method == wire.RootsChanged:
		c.telling[key] = []wire.Message{m} // it says the same however often it is said
	case busy && len(waiting) < maxTelling:
		c.telling[key] = append(waiting, m)
	}
	begin := !busy && len(c.telling) < maxTelling
	if begin {
		c.telling[key] = nil
	}
	c.mu.Unlock()
	if begin {
		c.e.background(func() { c.tellOn(scope, name, key, m) }) // or the endpoint is closing, and all is said
	}
}

func (c *client) tellOn(scope *runtime.Scope, name, key string, m wire.Message) {
	for {
		ctx, done := context.WithTimeout(c.ctx, tellPatience)
		if name == "" {
			scope.Tell(ctx, m.Method, m.Params)
		} else {
			scope.TellServer(ctx, name, m.Method, m.Params)
		}
		done()
		c.mu.Lock()
		waiting := c.telling[key]
		if len(waiting) == 0 || c.ctx.Err() != nil {
			delete(c.telling, key)
			c.mu.Unlock()
			return
		}
		m, c.telling[key] = waiting[0], waiting[1:]
		c.mu.Unlock()
	}
}
