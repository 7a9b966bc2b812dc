package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"nightporter/internal/config"
	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/wire"
)

// client is one MCP client: a session, or a stateless client that is known by what it says of itself.
type client struct {
	e    *Endpoint
	key  string
	who  wire.Client
	era  wire.Era
	ctx  context.Context // ends when the client is closed
	stop context.CancelFunc

	begin  sync.Once
	begun  chan struct{}  // closed when the start has ended; what follows is set before
	scope  *runtime.Scope // not nil when err is
	shared bool           // the scope is the endpoint's
	subs   *subscriptions
	err    error // why the client cannot be served

	view view
	mine aside // unless the scope is the endpoint's
	uris uris
	own  queue // what belongs to no request, for the session's own stream
	tape tape  // of the streams of its requests

	mu       sync.Mutex
	seen     time.Time
	expiry   *time.Timer
	busy     int                                // requests that are not answered
	inflight map[string]context.CancelCauseFunc // those that can be cancelled, by id as it is written
	flights  int                                // how many requests there were
	asked    map[string]asked                   // our requests to the client, by id
	nextID   int64
	listens  map[*listen]struct{}
	telling  map[string][]wire.Message // notifications to servers on their way, by server and method: what comes next
	logLevel string                    // of a session; empty until it says
	answers  map[string]string         // tasks that the client made for questions, with the servers that asked
	heir     *client                   // who came back for the tasks of this one, which is closed
	closed   chan struct{}
	vacated  bool // its place is another's
	streams  int  // requests' streams that it reads by GET
}

// vacate gives the client's place to another one.
func (c *client) vacate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.vacated {
		c.vacated = true
		c.e.p.Clients.Give(1)
	}
}

// maxAbout bounds what a client says of itself: it is kept, and told to servers, for as long as the client is there.
const maxAbout = 64 << 10

// tooMuch says why a client that says so much of itself is not taken.
func tooMuch(who wire.Client) *wire.RPCError {
	if len(who.Info)+len(who.Capabilities) <= maxAbout {
		return nil
	}
	return wire.Errorf(wire.CodeInvalidParams, "the client's clientInfo and capabilities are larger than %d KiB", maxAbout>>10)
}

func newClient(e *Endpoint, key string, who wire.Client, era wire.Era) *client {
	// Of its own, or all of the request that they came in would be kept.
	who.Info, who.Capabilities = bytes.Clone(who.Info), bytes.Clone(who.Capabilities)
	c := &client{
		e: e, key: key, who: who, era: era, seen: time.Now(), begun: make(chan struct{}),
		inflight: map[string]context.CancelCauseFunc{}, asked: map[string]asked{},
		listens: map[*listen]struct{}{}, telling: map[string][]wire.Message{}, closed: make(chan struct{}),
	}
	if e.p.Clients != nil { // which is a holder's, for all paths
		c.mine.kept.holder = e.p.Clients
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.expiry = time.AfterFunc(idleEnd, c.expire)
	return c
}

// start opens the client's servers, once; every request waits for it. A client whose start failed is given up, so that the next
// request makes another one, which tries again.
func (c *client) start(ctx context.Context) error {
	c.begin.Do(func() {
		switch fixed := c.e.fixed; {
		case fixed != nil:
			c.scope, c.shared, c.subs = fixed, true, c.e.subscriptions
			close(c.begun)
		case !c.e.background(c.open):
			c.err = errClosing
			close(c.begun)
		}
	})
	select {
	case <-c.begun:
		if c.err != nil {
			c.e.drop(c)
		}
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	case <-c.closed:
		return errClosing
	}
}

// open is the start. It outlives the request that caused it, and ends with the client.
func (c *client) open() {
	if c.err = c.known(); c.err == nil {
		c.scope = c.e.rt.Open(c.ctx, runtime.ScopeOptions{
			Name: c.name(), Client: c.toServers(), Prefer: c.era, Dir: c.e.p.Dir, Grant: c.grant(), Owner: c, Approver: c.e.p.Approver,
			Local: c.key == stdioKey,
		})
		c.subs = newSubscriptions(c.scope)
		c.err = c.scope.Start(c.ctx, c.e.p.Grace)
		if name := c.e.p.Single; c.err == nil && name != "" {
			// There is nothing to say about a single server before it is known.
			if _, known := c.scope.Hello(name); !known {
				c.err = c.scope.Settle(c.ctx)[name]
			}
		}
	}
	if c.ctx.Err() != nil {
		c.err = errClosing
	}
	close(c.begun)
	if c.ctx.Err() != nil && c.scope != nil {
		// The client was closed meanwhile, and who closed it may have waited no longer.
		ctx, done := context.WithTimeout(context.Background(), farewell)
		defer done()
		c.scope.Close(ctx)
	}
}

// toServers is what servers are told of the client. What only its own era has, and we do not bridge, is left out: a server of the other
// era would use it.
func (c *client) toServers() wire.Client {
	who := c.who
	if c.era == wire.SessionEra && wire.Get(who.Capabilities, "extensions", wire.ExtensionTasks) != nil {
		who.Capabilities = wire.Set(who.Capabilities, nil, "extensions", wire.ExtensionTasks)
	}
	return who
}

// inherit makes another client hear what the servers of this one say of tasks, when this one has gone.
func (c *client) inherit(heir *client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.closed:
		if heir != c {
			c.heir = heir
		}
	default:
	}
}

// present is the client, or who came back for its tasks.
func (c *client) present() *client {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.heir != nil {
		return c.heir
	}
	return c
}

// known says why a single server cannot be served, from its definition.
func (c *client) known() error {
	name := c.e.p.Single
	if name == "" {
		return nil
	}
	def, ok := c.e.rt.Config().Server(name)
	switch {
	case !ok:
		return fmt.Errorf("there is no server %q any more", name)
	case def.Problem != nil:
		return fmt.Errorf("server %q cannot be used: %w", name, def.Problem)
	case !def.Enabled:
		return fmt.Errorf("server %q is disabled: set enabled = true in mcp_servers.%s", name, name)
	}
	return nil
}

// running is the client's scope once it has been started, else nil.
func (c *client) running() *runtime.Scope {
	select {
	case <-c.begun:
		if c.err == nil {
			return c.scope
		}
	default:
	}
	return nil
}

// failed reports whether the start failed.
func (c *client) failed() bool {
	select {
	case <-c.begun:
		return c.err != nil
	default:
		return false
	}
}

// maxShown bounds what is shown of a client's own words, in characters. It stands in tables and in each entry of the audit record.
const maxShown = 100

func (c *client) name() string {
	if c.e.p.Owner != "" {
		return c.e.p.Owner
	}
	name, _ := wire.GetString(c.who.Info, "name")
	version, _ := wire.GetString(c.who.Info, "version")
	name, version = shortened(name, maxShown), shortened(version, maxShown)
	name = strings.TrimSpace("client " + name + " " + version)
	if c.e.p.Holder != "" {
		name = "token " + c.e.p.Holder + ": " + name // in front: what follows is the client's own choice
	}
	return name
}

func (c *client) grant() runtime.Grant {
	if c.e.p.Single != "" {
		return single{c.e.p.Single, c.e.p.Grant}
	}
	return c.e.p.Grant
}

// single narrows a grant to one server.
type single struct {
	server string
	grant  runtime.Grant
}

func (s single) AllowsServer(server string) bool {
	return server == s.server && (s.grant == nil || s.grant.AllowsServer(server))
}

func (s single) Allows(server, tool string) (bool, string) {
	if s.grant == nil {
		return true, ""
	}
	return s.grant.Allows(server, tool)
}

func (s single) Policy() *config.Sandbox {
	if s.grant == nil {
		return nil
	}
	return s.grant.Policy()
}

func (c *client) touch() {
	c.mu.Lock()
	c.seen = time.Now()
	c.mu.Unlock()
}

// idle is how long nothing came from the client; zero while it listens or waits for an answer.
func (c *client) idle() time.Duration {
	if c.own.attended() || c.tape.attended() {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy > 0 || len(c.listens) > 0 {
		return 0
	}
	return time.Since(c.seen)
}

// expire ends the client when it has been idle for long enough, and looks again later when not.
func (c *client) expire() {
	if idle := c.idle(); idle < idleEnd {
		c.mu.Lock()
		defer c.mu.Unlock()
		select {
		case <-c.closed:
		default:
			c.expiry.Reset(idleEnd - idle)
		}
		return
	}
	c.e.drop(c)
}

// leave closes a client whose end nobody waits for.
func (c *client) leave() {
	ctx, done := context.WithTimeout(context.Background(), farewell)
	defer done()
	c.close(ctx)
}

// close ends the client and its servers, and waits for them, bounded by ctx.
func (c *client) close(ctx context.Context) {
	c.mu.Lock()
	select {
	case <-c.closed:
		c.mu.Unlock()
		return
	default:
	}
	close(c.closed)
	if !c.vacated {
		c.vacated = true
		c.e.p.Clients.Give(1)
	}
	c.expiry.Stop()
	for _, cancel := range c.inflight {
		cancel(errClosing)
	}
	c.mu.Unlock()
	c.stop()
	c.mine.close()
	c.begin.Do(func() { // never started: there is nothing to end
		c.err = errClosing
		close(c.begun)
	})
	select {
	case <-c.begun:
	case <-ctx.Done():
	}
	select {
	case <-c.begun:
		if c.scope != nil && !c.shared && !c.e.tasks.keep(c) {
			c.scope.Close(ctx)
		}
	default: // the start is ending, and closes what it opened
	}
}

// flight is one request of the client, from its coming to the end of its answer's writing.
type flight struct {
	c      *client
	id     string
	cancel context.CancelCauseFunc
}

// track notes a request. It is refused when too many are in flight, or one with this id is. Requests whose id is
// their own affair, because they are cancelled by closing their connection, are not told apart by it.
func (c *client) track(ctx context.Context, id json.RawMessage, private bool) (context.Context, *flight, *wire.RPCError) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flights++
	f := &flight{c: c, id: string(id)}
	if private {
		f.id = fmt.Sprintf("request %d", c.flights) // which is no JSON, so that it is nobody's id
	}
	if !c.e.gate.enter() {
		return nil, nil, wire.Errorf(wire.CodeServer, "%v", errClosing)
	}
	switch {
	case c.busy >= maxRequests:
		c.e.gate.leave()
		return nil, nil, wire.Errorf(wire.CodeServer, "%d requests are in flight; wait for the answer of one", maxRequests)
	case c.inflight[f.id] != nil:
		c.e.gate.leave()
		return nil, nil, wire.Errorf(wire.CodeInvalidRequest, "a request with the id %s is in flight", id)
	}
	ctx, f.cancel = context.WithCancelCause(ctx)
	select {
	case <-c.closed:
		f.cancel(errClosing)
	default:
	}
	c.busy++
	c.inflight[f.id] = f.cancel
	return ctx, f, nil
}

// answered makes the id free: once the client has the answer it may use it again.
func (f *flight) answered() {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	delete(f.c.inflight, f.id)
}

// end gives the request's place free. The id must be free.
func (f *flight) end() {
	f.c.mu.Lock()
	f.c.busy--
	f.c.seen = time.Now()
	f.c.mu.Unlock()
	f.cancel(nil)
	f.c.e.gate.leave()
}
