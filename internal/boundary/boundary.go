// Package boundary opens the one MCP server that a run's agent sees: a gateway endpoint on loopback under a
// token that is good for that run alone, with exactly the servers and tools of the run's grant behind it.
//
// The agent's side of the boundary, that it reaches this server and no other, is planned and proven by the agent's adapter
// (package agent and below).
package boundary

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"nightporter/internal/agent"
	"nightporter/internal/approval"
	"nightporter/internal/config"
	"nightporter/internal/mcp/catalog"
	"nightporter/internal/mcp/gateway"
	"nightporter/internal/mcp/oauth"
	"nightporter/internal/mcp/pin"
	"nightporter/internal/mcp/runtime"
	"nightporter/internal/secret"
)

// Options say what is behind the endpoint of a run.
type Options struct {
	Run       string // its id
	Config    *config.Config
	Grant     runtime.Grant
	Exposure  gateway.Exposure // how the run's agent sees the tools
	Catalogs  *catalog.Store
	Pins      *pin.Store   // nil: tools of pinned servers are all held back
	Logins    *oauth.Store // nil: no server has a login
	LookupEnv config.LookupEnv
	Workdir   string // where the run takes place, absolute
	Version   string // Nightporter's
	Log       *slog.Logger
	Masker    *secret.Masker // told the secrets that the servers' definitions refer to; may be nil
	// Executable is Nightporter's program, which servers may run commands by; empty: it is not offered.
	Executable string
	// Approve asks a person about calls that want an approval; nil: they are refused.
	Approve approval.Func
	// OnCall is told of every call as it ends, before its client is. May be nil.
	OnCall func(gateway.Call)
}

// Boundary is the endpoint of one run. It is safe for concurrent use.
type Boundary struct {
	rt       *runtime.Runtime
	endpoint *gateway.Endpoint
	http     *http.Server
	serving  sync.WaitGroup
	gateway  agent.Gateway
	notes    []string
	onCall   func(gateway.Call)

	mu      sync.Mutex
	calls   []agent.ToolCall
	denials []string
	denied  map[string]bool // what is in denials
	beyond  int             // calls and denials that are over the bounds
}

const (
	// maxRecords bounds the calls and the denials that are kept of one run: an agent in a loop must not fill the memory. The audit log
	// has them all.
	maxRecords = 10_000
	// maxName bounds the names in them, in characters: an agent may call tools by any text.
	maxName = 200
	// endPatience bounds the end of servers after an opening that failed: each gets 4 s of grace, and all end at the same time.
	endPatience = 15 * time.Second
)

// Open opens the endpoint: it starts the granted servers whose tools are not known from a catalog, waits for
// them, and freezes what the agent may see. ctx bounds the opening. A required server that does not start is an error; another one
// is missing from the run, and noted.
func Open(ctx context.Context, o Options) (*Boundary, error) {
	b := &Boundary{onCall: o.OnCall, denied: map[string]bool{}}
	b.rt = runtime.New(runtime.Options{Config: o.Config, Catalogs: o.Catalogs, Pins: o.Pins, Logins: o.Logins, LookupEnv: o.LookupEnv, Log: o.Log, Masker: o.Masker, Executable: o.Executable})
	endpoint, failed, err := gateway.NewForRun(ctx, b.rt, gateway.Profile{
		Grant: o.Grant, Exposure: o.Exposure, Dir: o.Workdir, Owner: "run " + o.Run, OnCall: b.called, Approver: func() approval.Func { return o.Approve },
	}, o.Version, o.Log)
	giveUp := func() {
		// ctx may have ended, which is no reason to leave processes behind.
		ending, done := context.WithTimeout(context.WithoutCancel(ctx), endPatience)
		defer done()
		if endpoint != nil {
			endpoint.Close(ending)
		}
		b.rt.Close(ending)
	}
	if err != nil {
		giveUp()
		return nil, err
	}
	b.endpoint = endpoint
	for _, server := range slices.Sorted(maps.Keys(failed)) {
		b.notes = append(b.notes, fmt.Sprintf("server %s is not part of this run: %v", server, failed[server]))
	}
	flaws := endpoint.Flaws()
	for _, server := range slices.Sorted(maps.Keys(flaws)) {
		for _, flaw := range flaws[server] {
			b.notes = append(b.notes, fmt.Sprintf("server %s: %s", server, flaw))
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		giveUp()
		return nil, fmt.Errorf("listen for the run's agent: %w", err)
	}
	// 128 random bits, in an alphabet that needs no escaping anywhere.
	token := secret.New(rand.Text())
	mux := http.NewServeMux()
	mux.Handle("/mcp", endpoint)
	b.http = gateway.Server(&gateway.Guard{Authorize: gateway.ByToken(token, mux)})
	b.serving.Go(func() { _ = b.http.Serve(listener) })
	b.gateway = agent.Gateway{
		URL: "http://" + listener.Addr().String() + "/mcp", Token: token,
		Tools: endpoint.Tools(), RawName: endpoint.RawName,
	}
	return b, nil
}

// Gateway is what the agent is told. It does not change.
func (b *Boundary) Gateway() *agent.Gateway { return &b.gateway }

// Runtime is the servers behind the endpoint, for status.
func (b *Boundary) Runtime() *runtime.Runtime { return b.rt }

// Notes are servers that were granted and could not be started, definitions that are not offered, and how many calls are not listed.
func (b *Boundary) Notes() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	notes := slices.Clone(b.notes)
	if b.beyond > 0 {
		notes = append(notes, fmt.Sprintf("%d calls or denials are not listed: %d of each are kept", b.beyond, maxRecords))
	}
	return notes
}

// Calls are the calls that servers answered or failed to answer so far, in the order in which they ended.
func (b *Boundary) Calls() []agent.ToolCall {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.calls)
}

// Denials are the calls that were refused so far, as mcp__server__tool, in order and without repeats.
func (b *Boundary) Denials() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.denials)
}

func (b *Boundary) called(c gateway.Call) {
	if b.onCall != nil {
		b.onCall(c)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch c.Outcome {
	case gateway.OutcomeInput: // it has not ended: the client calls again
	case gateway.OutcomeRefused:
		name := "mcp__" + c.Server + "__" + c.Tool
		if c.Server == "" {
			name = "mcp__" + agent.GatewayName + "__" + c.Exposed
		}
		name = cut(name)
		switch {
		case b.denied[name]:
		case len(b.denials) == maxRecords:
			b.beyond++
		default:
			b.denied[name] = true
			b.denials = append(b.denials, name)
		}
	default:
		if len(b.calls) == maxRecords {
			b.beyond++
			return
		}
		b.calls = append(b.calls, agent.ToolCall{
			Server: cut(c.Server), Tool: cut(c.Tool), OK: c.Outcome == gateway.OutcomeOK, DurationMS: c.Duration.Milliseconds(),
		})
	}
}

// cut bounds a name. What was cut off is shown as …
func cut(name string) string {
	if len(name) <= maxName {
		return name
	}
	if runes := []rune(name); len(runes) > maxName {
		return string(runes[:maxName-1]) + "…"
	}
	return name
}

// Close ends the endpoint, its sessions and its servers, whether or not the agent said goodbye, and waits for them,
// bounded by ctx. Calls and Denials stay valid.
func (b *Boundary) Close(ctx context.Context) error {
	_ = b.http.Close() // agents keep streams open: there is nothing to wait for
	b.endpoint.Close(ctx)
	b.rt.Close(ctx)
	b.serving.Wait()
	if ctx.Err() != nil {
		return errors.New("the run's servers did not all end in time")
	}
	return nil
}
