package runtime

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"nightporter/internal/config"
	"nightporter/internal/mcp/catalog"
	"nightporter/internal/mcp/oauth"
	"nightporter/internal/mcp/server"
	"nightporter/internal/mcp/wire"
)

// State is a server's state in one scope.
type State string

const (
	StateDormant  State = "dormant"  // known from its catalog, not running
	StateStarting State = "starting" // being started
	StateReady    State = "ready"    // running
	StateFailed   State = "failed"   // could not be started, or ended by itself; tried again when next used
	StateStopped  State = "stopped"  // not running, and not known from a catalog
	StateDisabled State = "disabled" // enabled = false, or its definition has a problem
)

// instance is one server of one scope.
type instance struct {
	scope *Scope
	name  string
	// definition is replaced when the configuration is read again and only what does not make another server changed.
	definition atomic.Pointer[config.Server]
	// serial has one place: calls of tools run one at a time unless the server takes several (A24).
	serial  chan struct{}
	waiting atomic.Int32 // calls that wait for their turn
	logins  atomic.Pointer[oauth.Source]

	mu         sync.Mutex
	state      State
	reason     string // for people: why it is in that state
	since      time.Time
	by         string // what it was last started for
	generation int
	link       *link            // nil while the server does not run
	cat        *catalog.Catalog // what it offers; nil when that is not known
	live       bool             // cat was listed over link
	offer      *offer           // cat, filtered
	pending    *attempt
	failures   int // starts in a row that failed, or were followed by the server's end at once
	retryAt    time.Time
	err        error
	used       time.Time
	bound      string        // the authority that a server bound to one runs under; see A30
	inflight   int           // calls and other requests, subscriptions included
	awake      int           // who wants it kept awake
	quiet      chan struct{} // closed when inflight becomes 0; nil while nobody waits for it
	closed     bool
	why        string // why it is closed
}

// def is the server's definition as it is now.
func (in *instance) def() *config.Server { return in.definition.Load() }

func newInstance(ctx context.Context, s *Scope, def *config.Server) *instance {
	in := &instance{scope: s, name: def.Name, serial: make(chan struct{}, 1), since: time.Now()}
	in.definition.Store(def)
	switch {
	case def.Problem != nil:
		in.state, in.reason = StateDisabled, def.Problem.Error()
		return in
	case !def.Enabled:
		in.state, in.reason = StateDisabled, "enabled = false"
		return in
	}
	in.state = StateStopped
	cat, reason := in.load(ctx)
	if cat == nil {
		in.reason = reason
		return in
	}
	in.setCatalog(cat, false)
	if reason := in.mustStart(); reason != "" {
		in.reason = reason
		return in
	}
	in.state = StateDormant
	in.reason = fmt.Sprintf("catalog of %d tools from %s, not used yet", len(cat.Tools), cat.FetchedAt.Local().Format(time.DateTime))
	return in
}

// load returns the saved catalog of the server as it is defined now, or why there is none.
func (in *instance) load(ctx context.Context) (*catalog.Catalog, string) {
	spec, err := in.prepare(ctx)
	if err != nil {
		return nil, err.Error()
	}
	store := in.scope.r.opts.Catalogs
	cat, err := store.Load(in.name, in.identity(spec))
	switch {
	case errors.Is(err, catalog.ErrNone):
		if _, err := store.Latest(in.name); err == nil {
			return nil, "its catalogs are of another definition, folder or client's abilities (with cwd the folder is always one)"
		}
		return nil, "no catalog yet"
	case err != nil:
		return nil, err.Error()
	}
	if ok, reason := store.Usable(cat, in.def().CatalogTTL, time.Now()); !ok {
		return nil, reason
	}
	return cat, ""
}

func (in *instance) prepare(ctx context.Context) (*server.Spec, error) {
	spec, err := server.Prepare(ctx, in.def(), in.scope.r.opts.LookupEnv, in.scope.o.Dir)
	if spec == nil {
		return nil, err
	}
	spec.Masker = in.scope.r.opts.Masker
	if spec.Masker != nil {
		spec.Masker.Add(spec.Referred...)
	}
	if logins := in.scope.r.opts.Logins; logins != nil && !spec.Local() && err == nil {
		var about oauth.Server
		if about, err = oauth.Of(ctx, in.def(), spec.URL, in.scope.r.opts.LookupEnv); err != nil {
			return nil, err
		}
		spec.Tokens = logins.Source(about)
	}
	in.logins.Store(spec.Tokens)
	return spec, err
}

func (in *instance) identity(spec *server.Spec) catalog.Identity {
	var confined string
	if spec.Sandbox != nil {
		confined = string(spec.Sandbox.JSON())
	}
	return in.scope.r.opts.Catalogs.Identity(catalog.Parts{
		Name: in.name, Transport: string(in.def().Transport),
		Command: spec.Path, Args: spec.Args, Env: spec.Env, Cwd: spec.Dir, Sandbox: confined,
		URL: spec.URL, Headers: spec.Headers,
		Era: string(in.scope.o.Prefer), ClientCapabilities: in.scope.o.Client.Capabilities,
	})
}

// mustStart says why the server may not be deferred although it has a catalog (A12); empty when it may.
func (in *instance) mustStart() string {
	lazy := in.scope.r.Config().Gateway.Lazy
	if in.def().Lazy != nil {
		lazy = *in.def().Lazy
	}
	switch {
	case !lazy:
		return "lazy = false"
	case in.def().Required && in.def().Readiness != config.ReadyCatalog:
		return `required, with startup_readiness = "connection"`
	case len(in.offer.tools) == 0 && len(in.offer.appOnly) == 0:
		return "its filters leave no tool of the catalog"
	}
	return ""
}

// attempt is one start, which any number of callers may wait for.
type attempt struct {
	in         *instance
	generation int
	ctx        context.Context // ends when the start is to be given up
	cancel     context.CancelCauseFunc
	done       chan struct{}
	err        error
	link       *link           // what came of it, when err is nil
	counted    bool            // it has a place among the server processes that may live; see room
	stale      map[string]bool // list methods that the server said have changed, while it was being started
}

// begin marks the server as starting. The caller holds in.mu and hands the attempt to a round.
func (in *instance) begin(by string) *attempt {
	in.generation = in.scope.nextGeneration(in.name)
	ctx, cancel := context.WithCancelCause(context.Background())
	a := &attempt{in: in, generation: in.generation, ctx: ctx, cancel: cancel, done: make(chan struct{}), stale: map[string]bool{}}
	in.pending = a
	in.by = by
	in.set(StateStarting, by)
	return a
}

// set changes the state. The caller holds in.mu.
func (in *instance) set(state State, reason string) {
	in.state, in.reason, in.since = state, reason, time.Now()
}

// run starts the server, within its own deadline: not that of a call that may be waiting for it.
func (a *attempt) run(ctx context.Context) {
	in := a.in
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(a.ctx, cancel)
	defer stop()
	spec, err := in.prepare(ctx)
	if err != nil {
		a.end(nil, nil, err)
		return
	}
	l, err := a.connect(ctx, spec)
	if err != nil {
		a.end(nil, nil, err)
		return
	}
	// Listing is part of the start, which began when there was room for it.
	timeout := in.def().StartTimeout
	ctx, expire := context.WithDeadline(ctx, l.began.Add(timeout))
	defer expire()
	fetched := time.Now()
	lists, err := l.conn.List(ctx)
	if err != nil {
		e := &server.StartError{Server: in.name, Phase: "list tools", Elapsed: time.Since(l.began), Err: err}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			e.Timeout = timeout
		}
		l.end()
		a.end(nil, nil, e)
		return
	}
	a.end(l, in.catalogOf(spec, l.conn, lists, fetched), nil)
	if a.err == nil && l.listening != nil {
		// A change that the first call makes must not be missed.
		timer := time.NewTimer(listenPatience)
		defer timer.Stop()
		select {
		case <-l.listening:
		case <-timer.C:
		case <-l.ctx.Done():
		}
	}
}

// listenPatience is how long a start waits for a server to acknowledge that it will tell of changed lists.
const listenPatience = time.Second

// stopPatience bounds the end of one server.
const stopPatience = 6 * time.Second

func (in *instance) catalogOf(spec *server.Spec, conn *server.Conn, l *server.Lists, fetched time.Time) *catalog.Catalog {
	h := conn.Hello
	c := &catalog.Catalog{
		Server: in.name, Identity: in.identity(spec), FetchedAt: fetched, Protocol: h.Version,
		ServerInfo: h.Info, Capabilities: h.Capabilities, Instructions: h.Instructions,
		Tools: l.Tools, Prompts: l.Prompts, Resources: l.Resources, Templates: l.Templates,
		CacheScope: l.CacheScope,
		// Only the boolean false counts (facts/codex-runtime.md, section 3.1).
		Cacheable: string(wire.Get(h.Capabilities, "experimental", "codex/tool-catalog-cache", "cacheable")) != "false",
	}
	var ms int64
	if json.Unmarshal(l.TTL, &ms) == nil && ms > 0 {
		c.TTL = time.Duration(ms) * time.Millisecond
	}
	c.Revision = catalog.RevisionOf(c)
	for _, note := range l.Notes {
		in.scope.r.opts.Log.Warn("could not list", "server", in.name, "what", note)
	}
	return c
}

// end records how the start went. Whoever waits for it goes on only at release.
func (a *attempt) end(l *link, cat *catalog.Catalog, err error) {
	in := a.in
	if err == nil {
		if source := in.logins.Load(); source != nil {
			source.Served()
		}
		// Saved before anybody can use it, so that who saw the server ready finds its catalog.
		if _, saveErr := in.scope.r.opts.Catalogs.Publish(cat); saveErr != nil {
			in.scope.r.opts.Log.Warn("the catalog could not be saved", "server", in.name, "error", saveErr)
		}
	}
	if a.ctx.Err() != nil || in.scope.r.ctx.Err() != nil {
		err = context.Canceled
	}
	in.mu.Lock()
	if in.closed {
		err = context.Canceled
	}
	a.err = err
	var changed []string
	switch {
	case err == nil:
		a.link, in.link, in.err = l, l, nil
		changed = in.setCatalog(cat, true)
		in.set(StateReady, "started: "+in.by)
		in.scope.wg.Go(func() { in.watch(l) })
		if notifications := listChanges(l.conn.Hello); notifications != nil {
			l.listening = make(chan struct{})
			in.scope.wg.Go(func() { in.listen(l, notifications) })
		}
		for method := range a.stale {
			in.restale(l, method)
		}
	case errors.Is(err, context.Canceled):
		in.rest("its start was cancelled")
	default:
		in.failed(err)
	}
	in.mu.Unlock()
	if err != nil {
		if l != nil {
			l.end()
		}
		if a.counted {
			in.scope.r.gone() // no process has the place
		}
	}
	for _, method := range changed {
		in.scope.o.Owner.Changed(in.name, method)
	}
}

// release lets go on who waits for the start.
func (a *attempt) release() {
	a.in.mu.Lock()
	a.in.pending = nil
	a.in.mu.Unlock()
	close(a.done)
}

// Backoff of a server that cannot be started: tried again when next used, but not more often than this.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// A server that ends so soon after its start has not been of use. Once it may be the call that ended it, and the next one
	// tries again at once; from the second time on it is as good as one that cannot be started.
	soon = 10 * time.Second
)

// failed records an end that nobody asked for. The caller holds in.mu.
func (in *instance) failed(err error) {
	in.link, in.live = nil, false
	in.err = err
	in.failures++
	in.retryAt = time.Now().Add(min(firstRetry<<min(in.failures-1, 10), lastRetry))
	if login := (*oauth.LoginError)(nil); errors.As(err, &login) {
		in.retryAt = time.Now().Add(lastRetry) // or as soon as somebody has logged in; see use
	}
	in.set(StateFailed, err.Error())
}

// rest records that the server does not run and need not. The caller holds in.mu.
func (in *instance) rest(reason string) {
	in.link, in.live = nil, false
	if in.cat != nil && in.cat.Cacheable {
		in.set(StateDormant, reason)
	} else {
		in.set(StateStopped, reason)
	}
}

// watch waits for the end of the connection, or of this instance's use of it.
func (in *instance) watch(l *link) {
	select {
	case <-l.conn.Done():
		why := fmt.Errorf("it ended by itself: %w", l.conn.Explain()) // takes its time: not under the lock
		in.mu.Lock()
		if in.link == l {
			sudden := time.Since(l.began) < soon && !l.served
			if !sudden {
				in.failures = 0
			}
			in.failed(why)
			if in.failures <= 1 {
				in.retryAt = time.Time{}
			}
		}
		in.mu.Unlock()
	case <-l.ctx.Done():
	}
	l.end()
}

// wake returns the server's connection, starting it when there is none. by says what for. Callers that come together wait for one
// start; ctx ends the waiting of this one alone. Who got a connection says when it needs it no more, by leave.
func (in *instance) wake(ctx context.Context, by string) (*link, error) {
	for range maxWakes {
		in.mu.Lock()
		if l, err := in.use(); l != nil || err != nil {
			in.mu.Unlock()
			return l, err
		}
		a, started := in.pending, false
		if a == nil {
			a, started = in.begin(by), true
		}
		in.mu.Unlock()
		if started {
			in.scope.r.round(in.scope, []*attempt{a})
		}
		select {
		case <-a.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("server %s was still starting: %w", in.name, ctx.Err())
		}
		if a.err != nil {
			return nil, a.err
		}
		in.mu.Lock()
		mine, failed := in.link == a.link, in.state == StateFailed
		if mine && a.link.conn.Err() == nil {
			if l, err := in.use(); l != nil || err != nil {
				in.mu.Unlock()
				return l, err
			}
		}
		in.mu.Unlock()
		if mine || failed {
			// One start for one caller: what ends as soon as it is there would be started for ever.
			return nil, fmt.Errorf("server %s ended as soon as it had started: %w", in.name, a.link.conn.Explain())
		}
		// It was stopped or restarted by hand meanwhile.
	}
	return nil, fmt.Errorf("server %s was stopped each time that it had started", in.name)
}

// maxWakes is how often a caller starts a server that others stop.
const maxWakes = 3

// use takes the connection that there is. Both results are nil when there is none and one may be made. The caller holds in.mu.
func (in *instance) use() (*link, error) {
	switch {
	case in.closed:
		return nil, fmt.Errorf("server %s: %s", in.name, cmp.Or(in.why, "its client has gone"))
	case in.state == StateDisabled:
		return nil, fmt.Errorf("server %s is disabled: %s", in.name, in.reason)
	case in.pending != nil:
		return nil, nil
	case in.link != nil && in.link.conn.Err() == nil:
		in.used = time.Now()
		in.inflight++
		return in.link, nil
	case in.err != nil && time.Now().Before(in.retryAt):
		if login := (*oauth.LoginError)(nil); errors.As(in.err, &login) {
			if login.Outdated() {
				return nil, nil
			}
			return nil, in.err
		}
		return nil, fmt.Errorf("%w (it is tried again when used in %v or later)", in.err, max(time.Until(in.retryAt).Round(time.Second), time.Second))
	}
	return nil, nil
}

// refused takes an error of a request over l. When the server wants a login, and not only for this request, it is of no use until
// there is one: the connection ends after the calls that are still in flight.
func (in *instance) refused(l *link, err error) {
	var login *oauth.LoginError
	if !errors.As(err, &login) || login.More {
		return
	}
	in.mu.Lock()
	mine := in.link == l
	if mine {
		in.failed(login)
	}
	in.mu.Unlock()
	if mine {
		in.scope.wg.Go(func() {
			ctx, done := context.WithTimeout(in.scope.r.ctx, maxCall)
			defer done()
			in.settle(ctx)
			l.end()
		})
	}
}

// leave ends the use of a connection that wake returned.
func (in *instance) leave() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.used = time.Now()
	if in.inflight--; in.inflight > 0 {
		return
	}
	if in.quiet != nil {
		close(in.quiet)
		in.quiet = nil
	}
	in.scope.r.stir()
}

// settle waits until nothing uses the connection.
func (in *instance) settle(ctx context.Context) {
	in.mu.Lock()
	if in.inflight == 0 {
		in.mu.Unlock()
		return
	}
	if in.quiet == nil {
		in.quiet = make(chan struct{})
	}
	quiet := in.quiet
	in.mu.Unlock()
	select {
	case <-quiet:
	case <-ctx.Done():
	}
}

// stop ends the server's process or connection, and waits for it, bounded by ctx.
func (in *instance) stop(ctx context.Context, reason string) {
	for {
		in.mu.Lock()
		l, pending := in.link, in.pending
		if l != nil {
			in.rest(reason)
		}
		in.mu.Unlock()
		if l != nil {
			l.endWithin(ctx)
		}
		if pending == nil {
			return
		}
		pending.cancel(context.Canceled)
		select {
		case <-pending.done: // and look again: it may have succeeded in this moment
		case <-ctx.Done():
			return
		}
	}
}

// close is stop for good. why says it to who still calls; empty: the client has gone.
func (in *instance) close(ctx context.Context, why string) {
	in.mu.Lock()
	in.closed, in.why = true, why
	in.mu.Unlock()
	in.stop(ctx, cmp.Or(why, "its client has gone"))
}

// retire takes the server out of use: new calls are refused, those in progress end first.
func (in *instance) retire(why string) {
	in.mu.Lock()
	in.closed, in.why = true, why
	in.mu.Unlock()
	in.scope.wg.Go(func() {
		in.settle(in.scope.r.ctx)
		ctx, done := context.WithTimeout(context.WithoutCancel(in.scope.r.ctx), stopPatience)
		defer done()
		in.stop(ctx, why)
	})
}

// listChanges is what a server of the stateless era must be asked for, to tell of changed lists; nil when it tells of none, or
// tells unasked.
func listChanges(h server.Hello) json.RawMessage {
	if h.Era() != wire.StatelessEra {
		return nil
	}
	var notifications json.RawMessage
	for capability, key := range map[string]string{"tools": "toolsListChanged", "prompts": "promptsListChanged", "resources": "resourcesListChanged"} {
		if string(wire.Get(h.Capabilities, capability, "listChanged")) == "true" {
			notifications = wire.Set(notifications, json.RawMessage("true"), key)
		}
	}
	return notifications
}

const (
	// listenAgain is the pause before a stream that a server ended is opened again.
	listenAgain = 5 * time.Second
	// relistPause is how long a list that was read again is good at least, whatever the server says: one that tells of changes
	// in a loop must not keep us and its clients busy.
	relistPause = time.Second
)

// listen keeps a stream open on which a server of the stateless era tells of changed lists.
func (in *instance) listen(l *link, notifications json.RawMessage) {
	params := wire.WithClient(wire.Set(nil, notifications, "notifications"), in.scope.o.Client)
	acknowledged := sync.OnceFunc(func() { close(l.listening) })
	h := handler{in, l.generation}
	for again := false; ; again = true {
		answer, err := l.conn.Call(l.ctx, server.Request{Method: wire.Listen, Params: params, Notify: func(m wire.Message) {
			if m.Method == wire.ListenAck {
				acknowledged()
				if again { // what changed meanwhile was not told
					for _, method := range lists {
						in.changed(method, l.generation)
					}
				}
			}
			h.Notify(m)
		}})
		acknowledged()
		if err == nil && answer.Error != nil {
			return // it does not serve such streams after all
		}
		if !pause(l.ctx, listenAgain) {
			return
		}
	}
}

// pause waits, and reports false when ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// changed notes that the server said that a list changed, and sees to it that it is read again.
func (in *instance) changed(method string, generation int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.closed:
	case in.pending != nil && in.pending.generation == generation && in.link == nil:
		in.pending.stale[method] = true // it said so while it was being started
	case in.link != nil && in.link.generation == generation:
		in.restale(in.link, method)
	}
}

// restale sees to it that a list is read again. The caller holds in.mu.
func (in *instance) restale(l *link, method string) {
	if l.stale == nil {
		l.stale = map[string]bool{}
		in.scope.wg.Go(func() { in.refresh(l) })
	}
	l.stale[method] = true
}

// refresh lists again what a running server offers, until it says no more that something changed meanwhile. Clients
// are told of what the server named, and of what we found changed.
func (in *instance) refresh(l *link) {
	for first := true; ; first = false {
		if !first && !pause(l.ctx, relistPause) {
			return
		}
		in.mu.Lock()
		said := l.stale
		if len(said) == 0 || in.link != l {
			l.stale = nil
			in.mu.Unlock()
			return
		}
		l.stale = map[string]bool{}
		in.mu.Unlock()

		cat, err := in.relist(l.conn)
		if err != nil && l.ctx.Err() == nil {
			in.scope.r.opts.Log.Warn("a changed list could not be read", "server", in.name, "error", err)
		}
		in.mu.Lock()
		if err == nil && in.link == l {
			for _, method := range in.setCatalog(cat, true) {
				said[method] = true
			}
		}
		in.mu.Unlock()
		for method := range said {
			in.scope.o.Owner.Changed(in.name, method)
		}
	}
}

// reread lists again what the server offers, and tells of what changed.
func (in *instance) reread(l *link) error {
	cat, err := in.relist(l.conn)
	if err != nil {
		return err
	}
	var changed []string
	in.mu.Lock()
	if in.link == l {
		changed = in.setCatalog(cat, true)
	}
	in.mu.Unlock()
	for _, method := range changed {
		in.scope.o.Owner.Changed(in.name, method)
	}
	return nil
}

func (in *instance) relist(conn *server.Conn) (*catalog.Catalog, error) {
	ctx, cancel := context.WithTimeout(in.scope.r.ctx, in.def().StartTimeout)
	defer cancel()
	spec, err := in.prepare(ctx)
	if err != nil {
		return nil, err
	}
	fetched := time.Now()
	lists, err := conn.List(ctx)
	if err != nil {
		return nil, err
	}
	cat := in.catalogOf(spec, conn, lists, fetched)
	if _, err := in.scope.r.opts.Catalogs.Publish(cat); err != nil {
		in.scope.r.opts.Log.Warn("the catalog could not be saved", "server", in.name, "error", err)
	}
	return cat, nil
}

// handler takes what a server says outside of any call.
type handler struct {
	in         *instance
	generation int
}

// lists are the list methods whose answer a notification says has changed.
var lists = map[string]string{
	wire.ToolsChanged: wire.ToolsList, wire.PromptsChanged: wire.PromptsList, wire.ResourcesChanged: wire.ResourcesList,
}

func (h handler) Notify(m wire.Message) {
	if method, ok := lists[m.Method]; ok {
		h.in.changed(method, h.generation)
		return
	}
	if m.Method != wire.ListenAck {
		h.in.scope.o.Owner.Notify(h.in.name, m)
	}
}

func (h handler) Request(ctx context.Context, m wire.Message) (json.RawMessage, *wire.RPCError) {
	if m.Method == wire.Ping {
		return json.RawMessage("{}"), nil
	}
	return h.in.scope.o.Owner.Ask(ctx, h.in.name, m)
}
