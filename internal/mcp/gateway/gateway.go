// Package gateway is the MCP server that clients see: over stdio and streamable HTTP, in both protocol eras on one
// URL, with the tools, prompts and resources of many servers behind it, or of one as they are.
//
// What passes through keeps every byte that routing does not need (package wire). A client of one era in front of a
// server of the other is translated for, where the two differ.
package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"nightporter/internal/approval"
	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/wire"
)

// Call is one call of a tool that a client made, as it ended.
type Call struct {
	Time         time.Time // when it came
	Client       string    // the client or run
	Server, Tool string    // raw names; Server is empty when the client named a tool that does not exist
	Exposed      string    // as the client named it
	Arguments    json.RawMessage
	Outcome      Outcome
	Detail       string // why it was refused or failed; may hold what the server said
	ResultBytes  int
	Duration     time.Duration
	Authority    string // digest of the authority that it was made under
	Generation   int
	Revision     string           // of the server's catalog
	Approval     *approval.Answer // of the person who was asked about it; nil: nobody was
}

// Outcome is how a call ended.
type Outcome string

// The outcomes.
const (
	OutcomeOK         Outcome = "ok"
	OutcomeToolError  Outcome = "tool_error"     // the tool's own error
	OutcomeRPCError   Outcome = "rpc_error"      // the server's
	OutcomeInput      Outcome = "input_required" // the client was asked something, and calls again
	OutcomeRefused    Outcome = "refused"        // not sent
	OutcomeNotStarted Outcome = "start_failed"   // the server could not be started
	OutcomeTimeout    Outcome = "timeout"
	OutcomeCancelled  Outcome = "cancelled"
	OutcomeDied       Outcome = "server_died"
)

// Profile says what the clients of one endpoint see.
type Profile struct {
	// Single is the one server whose names stay as they are; empty merges all that the grant reaches.
	Single string
	Grant  runtime.Grant // nil: everything
	Dir    string        // the clients' working directory, absolute
	// Exposure is how the clients see tools.
	Exposure Exposure
	// Owner names the clients' owner for people; empty: what the client calls itself.
	Owner string
	// Holder is whose credential the clients have, for people; empty: nobody else's than the operator's.
	Holder string
	// Clients bounds the clients, and Bodies the bytes of requests, together with those of other endpoints. May be nil.
	Clients, Bodies *Quota
	// Grace is how long a client's session waits for optional servers that must start.
	Grace time.Duration
	// Approver is who is asked about calls that want a person's approval: see [runtime.ScopeOptions]. May be nil.
	Approver func() approval.Func
	// OnCall is told of every call of a tool. May be nil.
	OnCall func(Call)
}

// Exposure is how clients see tools. The words are those of the configuration.
type Exposure string

// The exposures.
const (
	ExposeTools  Exposure = "tools"  // all of them; so is the empty one
	ExposeSearch Exposure = "search" // by three tools that find, describe and call them (A21)
)

// Endpoint serves one profile. It is an http.Handler, and serves stdio by [Endpoint.ServeStdio].
type Endpoint struct {
	rt      *runtime.Runtime
	p       Profile
	version string
	log     *slog.Logger

	// fixed is the one scope that all clients share, when the endpoint was made for a run.
	fixed  *runtime.Scope
	frozen map[string]bool // exposed tools that may be seen and called; nil: all
	view   view            // of fixed
	aside  aside           // of fixed

	gate          *gate // of requests: see Drain
	parked        parking
	tasks         tasks
	subscriptions *subscriptions // of fixed

	mu      sync.Mutex
	clients map[string]*client // by session id, or by what a stateless client says of itself
	closed  bool
	wg      sync.WaitGroup // see background
}

// New makes an endpoint whose clients each have servers of their own. version is Nightporter's. The caller closes it.
func New(rt *runtime.Runtime, p Profile, version string, log *slog.Logger) *Endpoint {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Endpoint{rt: rt, p: p, version: version, log: log, clients: map[string]*client{}, gate: newGate()}
}

// NewForRun makes an endpoint with one set of servers, which is opened at once: servers without a catalog are
// started and waited for, so that the tools are known before the run's agent is. They are frozen then: the list may
// shrink afterwards, never grow (B11). The error names required servers that failed; failed names the others.
func NewForRun(ctx context.Context, rt *runtime.Runtime, p Profile, version string, log *slog.Logger) (e *Endpoint, failed map[string]error, err error) {
	e = New(rt, p, version, log)
	// Nobody is there to answer a server's questions, so that servers are told of a client without abilities.
	e.fixed = rt.Open(ctx, runtime.ScopeOptions{Name: p.Owner, Dir: p.Dir, Grant: p.Grant, Owner: e, Approver: p.Approver, Unattended: true})
	e.subscriptions = newSubscriptions(e.fixed)
	err = e.fixed.Start(ctx, 0)
	if err == nil {
		failed = e.fixed.Settle(ctx)
		err = ctx.Err()
	}
	if err != nil {
		// Its end has time of its own: ctx may be what failed.
		ending, done := context.WithTimeout(context.WithoutCancel(ctx), farewell)
		defer done()
		e.Close(ending)
		return nil, nil, err
	}
	frozen := map[string]bool{}
	listed, _ := e.view.of(e, e.fixed)
	for _, t := range listed {
		frozen[t.exposed] = true
	}
	e.view = view{}
	e.frozen = frozen
	return e, failed, nil
}

// Tools returns the names of the tools that a run's clients are listed, sorted: those of the servers, or those by which they are found.
func (e *Endpoint) Tools() []string {
	var names []string
	for _, t := range e.own(e.fixed) {
		names = append(names, t.name)
	}
	if e.p.Exposure != ExposeSearch {
		listed, _ := e.view.of(e, e.fixed)
		for _, t := range listed {
			names = append(names, t.exposed)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Flaws are the definitions that a run's clients are not offered because they cannot be used or are held back, with the
// reason, by server.
func (e *Endpoint) Flaws() map[string][]string { return e.fixed.Flaws() }

// Close ends all clients and their servers, and waits for them, bounded by ctx.
func (e *Endpoint) Close(ctx context.Context) {
	e.mu.Lock()
	e.closed = true
	clients := make([]*client, 0, len(e.clients))
	for _, c := range e.clients {
		clients = append(clients, c)
	}
	clear(e.clients)
	e.mu.Unlock()
	e.parked.close()
	e.tasks.close(ctx)
	var wg sync.WaitGroup
	for _, c := range clients {
		wg.Go(func() { c.close(ctx) })
	}
	wg.Wait()
	if e.fixed != nil {
		e.fixed.Close(ctx)
	}
	e.aside.close()
	await(ctx, e.wg.Wait)
}

// background runs f beside, and Close waits for it. It reports false, and f is not run, when the endpoint is closing.
func (e *Endpoint) background(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.wg.Go(f)
	return true
}

// await waits until wait returns, bounded by ctx.
func await(ctx context.Context, wait func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		wait()
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// tool is a tool as clients see it.
type tool struct {
	runtime.Item
	exposed string
	app     bool // for apps alone (A15): neither listed nor found
}

func (e *Endpoint) expose(server, name string) string {
	if e.p.Single != "" {
		return name
	}
	return exposedName(server, name)
}

// view is what clients see of a scope, by the names they see. It is made anew when the scope's offer changed: with many tools, names
// are worth keeping.
type view struct {
	mu      sync.Mutex
	made    bool
	version uint64
	listed  []tool
	byName  map[string]tool // also tools that are for apps alone, unless the tools are frozen
}

func (v *view) of(e *Endpoint, s *runtime.Scope) (listed []tool, byName map[string]tool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	version := s.Version() // before the offer is read: it may change meanwhile
	if v.made && v.version == version {
		return v.listed, v.byName
	}
	v.made, v.version, v.listed, v.byName = true, version, nil, map[string]tool{}
	add := func(items []runtime.Item, list bool) {
		for _, item := range items {
			t := tool{item, e.expose(item.Server, item.Name), !list}
			if e.frozen != nil && !e.frozen[t.exposed] {
				continue
			}
			if _, taken := v.byName[t.exposed]; taken {
				continue
			}
			v.byName[t.exposed] = t
			if list {
				v.listed = append(v.listed, t)
			}
		}
	}
	add(s.Tools(), true)
	if e.frozen == nil {
		add(s.AppTools(), false)
	}
	return v.listed, v.byName
}

// Notify implements [runtime.Owner] for the scope of a run: all its clients are told.
func (e *Endpoint) Notify(server string, m wire.Message) {
	for _, c := range e.all() {
		if c.running() != nil { // else its session begins later
			c.Notify(server, m)
		}
	}
}

// Ask implements [runtime.Owner] for the scope of a run: nobody answers.
func (e *Endpoint) Ask(_ context.Context, _ string, m wire.Message) ([]byte, *wire.RPCError) {
	return nil, wire.Errorf(wire.CodeMethodNotFound, "%s is not answered in an unattended run", m.Method)
}

// Changed implements [runtime.Owner] for the scope of a run.
func (e *Endpoint) Changed(server, method string) {
	for _, c := range e.all() {
		c.Changed(server, method)
	}
}

func (e *Endpoint) all() []*client {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]*client, 0, len(e.clients))
	for _, c := range e.clients {
		all = append(all, c)
	}
	return all
}

var errClosing = errors.New("the gateway is closing")

// maxClients bounds sessions and stateless clients of one endpoint: each may hold processes.
const maxClients = 1000

// admit makes a client under a key that is not taken, or returns the one that is there.
func (e *Endpoint) admit(key string, who wire.Client, prefer wire.Era) (*client, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, errClosing
	}
	if c := e.clients[key]; c != nil {
		return c, nil
	}
	if len(e.clients) >= maxClients && !e.evict() || !e.p.Clients.Take(1) && !(e.evict() && e.p.Clients.Take(1)) {
		return nil, errors.New("too many clients are connected")
	}
	c := newClient(e, key, who, prefer)
	e.clients[key] = c
	return c, nil
}

const (
	// idleClient is how long a client that said nothing and listens to nothing is kept when others want its place.
	idleClient = 10 * time.Minute
	// idleEnd is how long it is kept else. It may come back from a person's lunch, and holds processes meanwhile.
	idleEnd = 30 * time.Minute
)

// evict ends the client that was quiet longest. The caller holds e.mu.
func (e *Endpoint) evict() bool {
	var oldest *client
	for _, c := range e.clients {
		if idle := c.idle(); idle > idleClient && (oldest == nil || idle > oldest.idle()) {
			oldest = c
		}
	}
	if oldest == nil {
		return false
	}
	delete(e.clients, oldest.key)
	oldest.vacate()
	e.wg.Go(oldest.leave)
	return true
}

func (e *Endpoint) session(key string) *client {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.clients[key]
}

// dismiss ends a client and waits for its servers, bounded by ctx. It reports whether there was one.
func (e *Endpoint) dismiss(ctx context.Context, key string) bool {
	e.mu.Lock()
	c := e.clients[key]
	delete(e.clients, key)
	e.mu.Unlock()
	if c == nil {
		return false
	}
	c.close(ctx)
	return true
}

// drop ends a client beside, so that the next request under its key makes another one.
func (e *Endpoint) drop(c *client) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.clients[c.key] != c {
		return // who took it out ends it
	}
	delete(e.clients, c.key)
	e.wg.Go(c.leave)
}

// serverInfo is who we are, for merged servers.
func (e *Endpoint) serverInfo() json.RawMessage {
	return wire.Encode(map[string]string{"name": "nightporter", "title": "Nightporter", "version": e.version})
}
