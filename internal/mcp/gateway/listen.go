package gateway

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/server"
	"nightporter/internal/mcp/wire"
)

// listen is one subscriptions/listen stream of a stateless client.
type listen struct {
	id     json.RawMessage
	wants  map[string]bool // notifications
	uris   []string
	notify chan wire.Message
}

// unread is how many notifications may wait for a stream to be written.
const unread = 256

// tell queues a notification if the stream asked for it.
func (l *listen) tell(method string, params json.RawMessage) {
	if !l.wants[method] {
		return
	}
	select {
	case l.notify <- wire.Message{Method: method, Params: wire.Set(params, l.id, "_meta", wire.MetaSubscription)}:
	default: // list_changed says the same however often it is said
	}
}

// listen serves a stream until the client closes it. Changes of lists are our own to tell; dormant servers
// are not woken for them (A13). Subscriptions to resources go to the servers that have them.
func (c *client) listen(ctx context.Context, r request) (json.RawMessage, *wire.RPCError) {
	wanted := wire.Get(r.params, "notifications")
	if _, err := wire.Members(wanted); err != nil {
		return nil, wire.Errorf(wire.CodeInvalidParams, "params.notifications is not an object")
	}
	if wire.Get(wanted, "taskIds") != nil {
		if err := c.mayTask(r); err != nil {
			return nil, err
		}
	}
	l := &listen{id: r.id, wants: map[string]bool{}, notify: make(chan wire.Message, unread)}
	agreed := json.RawMessage("{}")
	capabilities := c.about().Capabilities
	for _, kind := range []struct{ key, capability, method string }{
		{"toolsListChanged", "tools", wire.ToolsChanged},
		{"promptsListChanged", "prompts", wire.PromptsChanged},
		{"resourcesListChanged", "resources", wire.ResourcesChanged},
	} {
		if string(wire.Get(wanted, kind.key)) == "true" && string(wire.Get(capabilities, kind.capability, "listChanged")) == "true" {
			l.wants[kind.method] = true
			agreed = wire.Set(agreed, json.RawMessage("true"), kind.key)
		}
	}
	// What servers tell of is theirs to say, once they are asked.
	l.wants[wire.ResourceUpdated], l.wants[wire.TaskChanged] = true, true
	uris, _ := wire.Elements(wire.Get(wanted, "resourceSubscriptions"))
	ctx, cancel := context.WithCancel(ctx)
	var upstream sync.WaitGroup
	defer upstream.Wait()
	defer cancel()
	var kept []json.RawMessage
	for _, raw := range uris {
		uri, ok := wire.Text(raw)
		owner, meant := c.meantURI(uri)
		if !ok || owner == "" {
			continue
		}
		own := raw
		if meant != uri {
			own = wire.Quote(meant)
		}
		if c.subscribe(ctx, &upstream, l, owner, own) {
			l.uris = append(l.uris, uri)
			kept = append(kept, raw)
		}
	}
	if len(kept) > 0 {
		agreed = wire.Set(agreed, wire.Encode(kept), "resourceSubscriptions")
	}
	if ids, _ := wire.Elements(wire.Get(wanted, "taskIds")); len(ids) > 0 {
		if told := c.listenTasks(ctx, &upstream, l, ids); len(told) > 0 {
			agreed = wire.Set(agreed, wire.Encode(told), "taskIds")
		}
	}
	c.mu.Lock()
	c.listens[l] = struct{}{}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.listens, l)
		c.mu.Unlock()
	}()
	ack := wire.Set(nil, agreed, "notifications")
	r.x.notify(wire.Message{Method: wire.ListenAck, Params: wire.Set(ack, r.id, "_meta", wire.MetaSubscription)})
	for string(agreed) != "{}" {
		select {
		case m := <-l.notify:
			r.x.notify(m)
			continue
		case <-ctx.Done():
		case <-c.closed:
		case <-c.e.gate.shut: // its answer says that nothing more comes
		}
		break
	}
	return wire.Set(nil, r.id, "_meta", wire.MetaSubscription), nil
}

// subscribe asks the server for updates of a resource in the way of its era.
func (c *client) subscribe(ctx context.Context, upstream *sync.WaitGroup, l *listen, owner string, uri json.RawMessage) bool {
	if c.scope.Wake(ctx, owner, "subscription of "+c.scope.Name()) != nil {
		return false
	}
	about, _ := c.scope.Hello(owner)
	if about.Era() == wire.SessionEra {
		if !c.subs.join(ctx, owner, uri) {
			return false
		}
		upstream.Go(func() {
			<-ctx.Done()
			ending, done := context.WithTimeout(context.WithoutCancel(ctx), farewell)
			defer done()
			c.subs.part(ending, owner, uri)
		})
		return true
	}
	params := wire.Set(nil, wire.Encode([]json.RawMessage{uri}), "notifications", "resourceSubscriptions")
	upstream.Go(func() {
		_, _ = c.scope.Do(ctx, owner, server.Request{Method: wire.Listen, Params: params, Notify: func(m wire.Message) {
			if m = c.outwardNote(owner, m); m.Method == wire.ResourceUpdated {
				l.tell(m.Method, m.Params)
			}
		}})
	})
	return true
}

// updated tells the streams that subscribed to a resource.
func (c *client) updated(m wire.Message) {
	uri, _ := wire.GetString(m.Params, "uri")
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := range c.listens {
		if slices.Contains(l.uris, uri) {
			l.tell(m.Method, m.Params)
		}
	}
}

// subscriptions are those of a scope to resources of servers of the session era, which know one subscription of a resource however
// many streams want it.
type subscriptions struct {
	// tell sends a server a request about a resource, and reports whether it was granted.
	tell func(ctx context.Context, owner, method string, uri json.RawMessage) bool

	mu  sync.Mutex
	all map[string]*subscription // by server and URI
}

func newSubscriptions(scope *runtime.Scope) *subscriptions {
	return &subscriptions{tell: func(ctx context.Context, owner, method string, uri json.RawMessage) bool {
		answer, err := scope.Do(ctx, owner, server.Request{Method: method, Params: wire.Set(nil, uri, "uri")})
		return err == nil && answer.Error == nil
	}}
}

type subscription struct {
	near   int           // streams that have it, or are about to take or give it up; under subscriptions.mu
	turn   chan struct{} // has one place: its holder talks to the server, and may change active
	active int           // streams that have it
}

// with calls do while nobody else talks to the server of this resource. It reports false when ctx ends first.
func (s *subscriptions) with(ctx context.Context, owner string, uri json.RawMessage, do func(sub *subscription)) bool {
	key := owner + "\x00" + string(uri)
	s.mu.Lock()
	if s.all == nil {
		s.all = map[string]*subscription{}
	}
	sub := s.all[key]
	if sub == nil {
		sub = &subscription{turn: make(chan struct{}, 1)}
		s.all[key] = sub
	}
	sub.near++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if sub.near--; sub.near == 0 {
			delete(s.all, key)
		}
	}()
	select {
	case sub.turn <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-sub.turn }()
	before := sub.active
	do(sub)
	s.mu.Lock()
	sub.near += sub.active - before
	s.mu.Unlock()
	return true
}

// join subscribes to a resource for one more stream.
func (s *subscriptions) join(ctx context.Context, owner string, uri json.RawMessage) (joined bool) {
	s.with(ctx, owner, uri, func(sub *subscription) {
		if sub.active > 0 || s.tell(ctx, owner, wire.Subscribe, uri) {
			sub.active++
			joined = true
		}
	})
	return joined
}

// part ends the subscription of one stream that joined.
func (s *subscriptions) part(ctx context.Context, owner string, uri json.RawMessage) {
	s.with(ctx, owner, uri, func(sub *subscription) {
		if sub.active--; sub.active == 0 {
			s.tell(ctx, owner, wire.Unsubscribe, uri)
		}
	})
}
