// Package runtime holds the MCP servers of all clients: which are known from their catalogs and dormant, which run
// and for whom, how they are started in rounds and woken on first use, and what they offer.
//
// A [Runtime] is the operator's definitions and the catalogs on disk. Each client or run opens a [Scope] of it, its own
// servers with its own processes: two clients never share one.
package runtime

import (
	"context"
	"errors"
	"log/slog"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"

	"nightporter/internal/approval"
	"nightporter/internal/config"
	"nightporter/internal/mcp/authority"
	"nightporter/internal/mcp/catalog"
	"nightporter/internal/mcp/oauth"
	"nightporter/internal/mcp/pin"
	"nightporter/internal/mcp/wire"
	"nightporter/internal/secret"
)

// Options are what a [Runtime] is made of.
type Options struct {
	Config    *config.Config
	Catalogs  *catalog.Store
	Pins      *pin.Store   // nil: tools of servers with pin = true are all held back
	Logins    *oauth.Store // nil: no server behind a URL has a login
	LookupEnv config.LookupEnv
	Log       *slog.Logger   // may be nil
	Masker    *secret.Masker // told the secrets that definitions refer to, as they are resolved; may be nil
	// Executable is Nightporter's own program, absolute, which servers may run commands by (A29); empty: it is not offered.
	Executable string
}

// Runtime holds servers. It is safe for concurrent use.
type Runtime struct {
	opts   Options
	config atomic.Pointer[config.Config]
	ctx    context.Context // ends at Close; starts run under it, not under who asked for them
	cancel context.CancelFunc
	feed   feed

	launchers *authority.Verifier
	looks     looks

	keeper sync.WaitGroup // of the goroutine that puts unused servers to sleep, and of those that wait for shared ones to end
	shared sharing
	// reloading and announcing keep reloads, and the announcements of rounds, in order.
	reloading, announcing sync.Mutex

	rounds int // under announcing

	mu     sync.Mutex
	scopes []*Scope
	living int           // servers that run or are being started
	left   chan struct{} // closed and replaced when one of them has ended or become idle
}

// maxStarts is how many servers of one client start at once: node servers take a core each for half a second, and more of them at
// a time make all of them later. Claude Code starts 3 at a time.
const maxStarts = 8

// New makes a runtime. Nothing is started.
func New(o Options) *Runtime {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &Runtime{opts: o, ctx: ctx, cancel: cancel, launchers: authority.NewVerifier(), left: make(chan struct{})}
	r.config.Store(o.Config)
	r.keeper.Go(r.keep)
	return r
}

// Config is the configuration as it was last read.
func (r *Runtime) Config() *config.Config { return r.config.Load() }

// Watch returns the status events from now on, in order. The channel is closed by stop, and when its reader is too slow.
func (r *Runtime) Watch() (events <-chan Event, stop func()) { return r.feed.watch() }

// Close ends every scope, and waits, bounded by ctx, until all servers have ended.
func (r *Runtime) Close(ctx context.Context) {
	r.cancel()
	r.mu.Lock()
	scopes := slices.Clone(r.scopes)
	r.mu.Unlock()
	var wg sync.WaitGroup
	for _, s := range scopes {
		wg.Go(func() { s.Close(ctx) })
	}
	wg.Wait()
	r.launchers.Close()
	r.keeper.Wait()
}

// Scopes returns the open scopes, oldest first.
func (r *Runtime) Scopes() []*Scope {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.scopes)
}

// Grant says which servers and tools a client or run may see and use. *config.Grant is one.
type Grant interface {
	AllowsServer(server string) bool
	// Allows reports whether the tool may be used, and if not, why.
	Allows(server, tool string) (ok bool, reason string)
	// Policy is what the tools may do on this machine, for servers that ask: the sandbox state of calls whose client gave none, and
	// a bound for those of which it gave one. Nil: it says nothing.
	Policy() *config.Sandbox
}

// All is the grant of everything.
type All struct{}

// AllowsServer is true.
func (All) AllowsServer(string) bool { return true }

// Allows is true.
func (All) Allows(string, string) (bool, string) { return true, "" }

// Policy is nil.
func (All) Policy() *config.Sandbox { return nil }

// Servers is the grant of every tool of the named servers.
type Servers []string

// AllowsServer reports whether the server is named.
func (s Servers) AllowsServer(server string) bool { return slices.Contains(s, server) }

// Allows reports whether the server is named.
func (s Servers) Allows(server, _ string) (bool, string) {
	if slices.Contains(s, server) {
		return true, ""
	}
	return false, "server " + server + " was not granted"
}

// Policy is nil.
func (Servers) Policy() *config.Sandbox { return nil }

// Owner is the client or run that a scope is for. What a server says outside of any call goes to it.
type Owner interface {
	// Notify takes a notification of the server. It must not block.
	Notify(server string, m wire.Message)
	// Ask answers a request of the server that belongs to no call.
	Ask(ctx context.Context, server string, m wire.Message) (result []byte, err *wire.RPCError)
	// Changed says that a list of the server changed, of the kind that method (tools/list, …) lists.
	Changed(server, method string)
}

// ScopeOptions say whom a scope is for.
type ScopeOptions struct {
	Name   string      // for people: "client claude-code 2.1", "run 20261130-…"
	Client wire.Client // what servers are told of their client
	Prefer wire.Era    // the era to try first with a server
	Dir    string      // the client's working directory, absolute
	Grant  Grant       // nil: everything
	Owner  Owner
	// Approver is who is asked about calls of tools whose definition wants a person's approval, as of now. Nil, or while it returns nil:
	// nobody of ours.
	Approver func() approval.Func
	// Unattended says that the client has nobody to ask either: without an approver such calls are refused.
	Unattended bool
	// Local says that the client runs on this machine for this user, so that the launcher that it names may be executed.
	Local bool
}

// Open makes a scope with a server of its own for each definition that the grant reaches. Nothing is started, and no server is
// asked: what is known comes from the catalogs. The caller closes the scope.
func (r *Runtime) Open(ctx context.Context, o ScopeOptions) *Scope {
	if o.Grant == nil {
		o.Grant = All{}
	}
	if o.Prefer == "" {
		o.Prefer = wire.SessionEra
	}
	s := &Scope{r: r, o: o, starts: make(chan struct{}, maxStarts)}
	cfg := r.Config()
	var defs []*config.Server
	for i := range cfg.Servers {
		if def := &cfg.Servers[i]; o.Grant.AllowsServer(def.Name) {
			defs = append(defs, def)
		}
	}
	s.servers = make([]*instance, len(defs))
	inParallel(len(defs), func(i int) { s.servers[i] = newInstance(ctx, s, defs[i]) })
	r.mu.Lock()
	r.scopes = append(r.scopes, s)
	r.mu.Unlock()
	return s
}

// inParallel calls do for 0 to n-1 on all processors, and waits for all of them. Reading catalogs is the larger part of a client's start.
func inParallel(n int, do func(i int)) {
	var next atomic.Int64
	work := func() {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			do(i)
		}
	}
	var wg sync.WaitGroup
	for range min(goruntime.GOMAXPROCS(0), n) - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
}

// place waits for a place among the client's starts.
func (s *Scope) place(a *attempt) error {
	select {
	case s.starts <- struct{}{}:
		return nil
	case <-s.r.ctx.Done():
		return context.Cause(s.r.ctx)
	case <-a.ctx.Done():
		return context.Cause(a.ctx)
	}
}

// round starts servers together: it announces all of them, then each one's end, then the sum. It returns once the batch is
// announced. Each instance must have been marked as starting, with the attempt that is passed with it.
func (r *Runtime) round(s *Scope, attempts []*attempt) {
	names := make([]string, len(attempts))
	for i, a := range attempts {
		names[i] = a.in.name
	}
	slices.Sort(names)
	r.announcing.Lock()
	r.rounds++
	number := r.rounds
	r.feed.emit(Event{Type: StartingBatch, Round: number, Owner: s.o.Name, Servers: names})
	r.announcing.Unlock()

	sum := Event{Type: RoundComplete, Round: number, Owner: s.o.Name}
	var mu sync.Mutex
	left := len(attempts)
	for _, a := range attempts {
		s.wg.Go(func() {
			if err := s.place(a); err != nil {
				a.end(nil, nil, err)
			} else {
				a.run(r.ctx)
				<-s.starts
			}
			mu.Lock() // the sum is told after the last of them
			defer mu.Unlock()
			e := Event{Round: number, Owner: s.o.Name, Server: a.in.name, Generation: a.generation}
			switch {
			case a.err == nil:
				e.Type = Ready
				sum.ReadyServers = append(sum.ReadyServers, e.Server)
			case errors.Is(a.err, context.Canceled):
				e.Type = Cancelled
				sum.CancelledServers = append(sum.CancelledServers, e.Server)
			default:
				e.Type, e.Error = Failed, a.err.Error()
				sum.FailedServers = append(sum.FailedServers, e.Server)
			}
			r.feed.emit(e)
			if left--; left == 0 {
				slices.Sort(sum.ReadyServers)
				slices.Sort(sum.FailedServers)
				slices.Sort(sum.CancelledServers)
				r.feed.emit(sum)
			}
			// Only now, so that ready is told before what comes of it.
			a.release()
		})
	}
}
