package runtime

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"nightporter/internal/approval"
	"nightporter/internal/config"
	"nightporter/internal/mcp/authority"
	"nightporter/internal/mcp/oauth"
	"nightporter/internal/mcp/server"
	"nightporter/internal/mcp/wire"
)

// Scope is the servers of one client or run. It is safe for concurrent use.
type Scope struct {
	r  *Runtime
	o  ScopeOptions
	wg sync.WaitGroup
	// starts has a place for each start in progress.
	starts chan struct{}

	mu       sync.Mutex
	servers  []*instance // by name; replaced, not changed
	retired  []*instance // taken out by a reload; they end after their calls
	closed   bool
	started  map[string]int // how many connections each server had, also under earlier definitions
	threads  map[string]*thread
	tallies  map[string]*tally // of calls, by server
	version  atomic.Uint64
	logLevel string // that the client set; empty: none

	closing sync.Once
}

// Version changes whenever what the scope offers may have changed.
func (s *Scope) Version() uint64 { return s.version.Load() }

func (s *Scope) list() []*instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.servers
}

// nextGeneration numbers the connections of a server, across its definitions.
func (s *Scope) nextGeneration(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started == nil {
		s.started = map[string]int{}
	}
	s.started[name]++
	return s.started[name]
}

// Name says whom the scope is for.
func (s *Scope) Name() string { return s.o.Name }

// Servers returns the names of the servers that the scope reaches, disabled ones included, sorted.
func (s *Scope) Servers() []string {
	var names []string
	for _, in := range s.list() {
		names = append(names, in.name)
	}
	return names
}

// Start starts every server that may not be deferred, as one round, and waits for the required ones to be ready, and for
// the others no longer than grace. It fails with the names and causes of all required servers that failed. ctx bounds the
// waiting; the starts go on.
func (s *Scope) Start(ctx context.Context, grace time.Duration) error {
	var eager []*attempt
	var problems []error
	for _, in := range s.list() {
		in.mu.Lock()
		switch {
		case in.state == StateDisabled && in.def().Required && in.def().Enabled:
			problems = append(problems, fmt.Errorf("%s: %s", in.name, in.reason))
		case in.state == StateStopped && in.pending == nil:
			eager = append(eager, in.begin("at the start, because "+in.reason))
		}
		in.mu.Unlock()
	}
	if len(eager) > 0 {
		s.r.round(s, eager)
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	late := false
	for _, required := range []bool{true, false} {
		for _, a := range eager {
			if a.in.def().Required != required || late && !required {
				continue
			}
			expired := timer.C
			if required {
				expired = nil
			}
			select {
			case <-a.done:
				if required && a.err != nil {
					problems = append(problems, fmt.Errorf("%s: %w", a.in.name, a.err))
				}
			case <-expired:
				late = true
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	if len(problems) > 0 {
		return fmt.Errorf("required MCP servers failed to start: %w", errors.Join(problems...))
	}
	return nil
}

// Settle waits until no server is starting, bounded by ctx, and returns what could not be started, by server.
func (s *Scope) Settle(ctx context.Context) map[string]error {
	failed := map[string]error{}
	for _, in := range s.list() {
		in.mu.Lock()
		a := in.pending
		in.mu.Unlock()
		if a != nil {
			select {
			case <-a.done:
			case <-ctx.Done():
			}
		}
		in.mu.Lock()
		switch {
		case in.state == StateFailed:
			failed[in.name] = in.err
		case in.state == StateDisabled:
			failed[in.name] = errors.New(in.reason)
		case in.pending != nil:
			failed[in.name] = errors.New("it was still starting")
		}
		in.mu.Unlock()
	}
	return failed
}

// Unknown reports whether some server is starting whose offer is not known yet.
func (s *Scope) Unknown() bool {
	return slices.ContainsFunc(s.list(), func(in *instance) bool {
		in.mu.Lock()
		defer in.mu.Unlock()
		return in.pending != nil && in.cat == nil
	})
}

func (s *Scope) items(pick func(*offer) []Item) (all []Item) {
	for _, in := range s.list() {
		in.mu.Lock()
		if in.offer != nil {
			all = append(all, pick(in.offer)...)
		}
		in.mu.Unlock()
	}
	return all
}

// Tools returns the tools that models may see, in order of servers and then as each server lists them.
func (s *Scope) Tools() []Item { return s.items(func(o *offer) []Item { return o.tools }) }

// AppTools returns the tools that are not for models but may be called by apps (A15).
func (s *Scope) AppTools() []Item { return s.items(func(o *offer) []Item { return o.appOnly }) }

// Prompts returns the prompts.
func (s *Scope) Prompts() []Item { return s.items(func(o *offer) []Item { return o.prompts }) }

// Resources returns the resources.
func (s *Scope) Resources() []Item { return s.items(func(o *offer) []Item { return o.resources }) }

// Templates returns the resource templates.
func (s *Scope) Templates() []Item { return s.items(func(o *offer) []Item { return o.templates }) }

// Hello is what a server said of itself when it was last seen live. ok is false when it was not.
func (s *Scope) Hello(name string) (h server.Hello, ok bool) {
	in := s.find(name)
	if in == nil {
		return h, false
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.cat == nil {
		return h, false
	}
	h = server.Hello{Version: in.cat.Protocol, Capabilities: in.cat.Capabilities, Info: in.cat.ServerInfo, Instructions: in.cat.Instructions}
	// A server that hints at all says both: without a scope the zero is no hint.
	if in.cat.TTL > 0 || in.cat.CacheScope != "" {
		h.TTL = wire.IntID(in.cat.TTL.Milliseconds())
	}
	return h, true
}

// Has reports whether the scope reaches the server.
func (s *Scope) Has(name string) bool { return s.find(name) != nil }

func (s *Scope) find(name string) *instance {
	for _, in := range s.list() {
		if in.name == name {
			return in
		}
	}
	return nil
}

// RefusedError says why a call was not made. Nothing was sent to the server.
type RefusedError struct {
	Server, Tool string
	Check        string // which check refused it: see package authority
	Reason       string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("tool %q of server %q was refused: %s", e.Tool, e.Server, e.Reason)
}

// maxCall bounds a call however much progress its server reports; a tool timeout that is longer than
// this is not cut.
const maxCall = time.Hour

// Answer is what came of a request.
type Answer struct {
	wire.Message                     // with Result or Error, when there was no error of Go's
	Era          wire.Era            // of the connection
	Authority    authority.Authority // under which a tool was called, completed when the call was sent
	Approval     *approval.Answer    // of the person who was asked about the call; nil: nobody was
}

// CallTool calls a tool, waking its server. The authority of the call is captured now, and held against the present when the server
// runs and the call's turn has come: then the live definitions decide (A14, A19, A22, A23). Where they want a person's approval, the call
// gives up its turn, waits for the answer, and all of that is done again. err is a *[RefusedError], a start's error, or one of [server.Conn.Call].
func (s *Scope) CallTool(ctx context.Context, name, tool string, r server.Request) (answer Answer, err error) {
	in := s.find(name)
	if in == nil {
		return answer, &RefusedError{name, tool, "server", "there is no such server"}
	}
	ended := s.count(name, tool)
	defer func() { ended(answer, err) }()
	answer.Authority = in.capture(tool, r.Params)
	defer s.enter(answer.Authority)()
	var given *consent
	refuse := func() error {
		if check, reason := answer.Authority.Refuse(in.present(answer.Authority, given)); reason != "" {
			return &RefusedError{name, tool, check, reason}
		}
		return nil
	}
	// wanted reports whether a person's approval is all that a refused call lacks, and can be asked for.
	wanted := func(refused error) bool {
		var r *RefusedError
		return errors.As(refused, &r) && r.Check == authority.Approval && given == nil && s.approver() != nil
	}
	if err := refuse(); err != nil && !wanted(err) {
		return answer, err
	}
	var t *turn
	for {
		if t, err = in.takeTurn(ctx, answer.Authority); err != nil {
			if refused := refuse(); refused != nil && !wanted(refused) {
				return answer, refused // the better reason
			}
			return answer, err
		}
		err = refuse()
		if err == nil {
			break
		}
		t.end()
		if !wanted(err) {
			return answer, err
		}
		if given, err = in.askFor(ctx, &answer, r.Params); err != nil {
			return answer, err
		}
	}
	defer t.end()
	l := t.link
	if !l.told() {
		r.Params = authority.Strip(r.Params)
	} else if r.Params, err = answer.Authority.Attach(r.Params, s.still(t.launchers)); err != nil {
		return answer, &RefusedError{name, tool, "sandbox", err.Error()}
	}
	in.mu.Lock()
	answer.Authority.Generation, answer.Authority.Revision = in.generation, in.cat.Revision
	in.mu.Unlock()
	r.Timeout, r.MaxTimeout = in.def().ToolTimeout, max(maxCall, in.def().ToolTimeout)
	answer.Era = l.conn.Hello.Era()
	r.Headers = in.headers(l, tool, r.Params)
	answer.Message, err = s.send(ctx, l, r)
	if err == nil && answer.Error != nil && wire.AsRPCError(answer.Error).Code == wire.CodeHeaderMismatch {
		// Its tools have changed, perhaps, and the headers that it wants with them (specification 2026-07-28, "Client Behavior"). A call
		// that was issued on the tools as they were is made again only after its client has seen them (A22).
		if in.reread(l) == nil {
			if err := refuse(); err != nil {
				return answer, err
			}
			if headers := in.headers(l, tool, r.Params); !maps.Equal(headers, r.Headers) {
				r.Headers = headers
				answer.Message, err = s.send(ctx, l, r)
			}
		}
	}
	in.refused(l, err)
	if err == nil {
		in.mu.Lock()
		l.served = true
		in.mu.Unlock()
	}
	return answer, err
}

// turn is a call's place on a server that runs, until end is called.
type turn struct {
	link      *link
	launchers authority.Launchers
	end       func()
}

// takeTurn waits for a call's turn, and for its server to run.
func (in *instance) takeTurn(ctx context.Context, a authority.Authority) (t *turn, err error) {
	free := func() {}
	defer func() {
		if err != nil {
			free()
		}
	}()
	def, s := in.def(), in.scope
	if def.Transport == config.Stdio && !def.ParallelToolCalls || def.AuthorityBound {
		in.waiting.Add(1)
		select {
		case in.serial <- struct{}{}:
			in.waiting.Add(-1)
			free = func() { <-in.serial }
		case <-ctx.Done():
			in.waiting.Add(-1)
			return nil, fmt.Errorf("tool %q of server %q waited for its turn (supports_parallel_tool_calls is not set): %w", a.Tool, in.name, ctx.Err())
		}
	}
	if def.AuthorityBound {
		in.rebind(ctx, a.Binding())
	}
	by := "call of tool " + short(a.Tool) + " by " + s.o.Name
	t = &turn{}
	t.link, err = in.wake(ctx, by)
	if err == nil && def.Transport == config.Stdio && a.Sandbox != "" && t.link.told() {
		in.leave() // programs are asked what they can do, and the connection may be another one by then
		t.launchers = s.launchers(ctx, a)
		t.link, err = in.wake(ctx, by)
	}
	if err != nil {
		return nil, err
	}
	t.end = func() {
		in.leave()
		free()
	}
	return t, nil
}

// consent is what a person approved of a call, beside its arguments and its authority, which do not change.
type consent struct{ definition string }

// approver is who can be asked about calls; nil: nobody.
func (s *Scope) approver() approval.Func {
	if s.o.Approver == nil {
		return nil
	}
	return s.o.Approver()
}

// askFor asks a person about a call, and notes the answer in it. The error is why it is not to be made.
func (in *instance) askFor(ctx context.Context, answer *Answer, params json.RawMessage) (*consent, error) {
	s, a := in.scope, answer.Authority
	ask := s.approver()
	in.mu.Lock()
	item, _ := in.offer.tool(a.Tool) // it was live a moment ago
	a.Revision = in.cat.Revision     // as the record of the call will have it
	in.mu.Unlock()
	refused := func(reason string) error { return &RefusedError{a.Server, a.Tool, authority.Approval, reason} }
	if ask == nil {
		return nil, refused("it asks for a person's approval, and nobody can be asked any more")
	}
	description, _ := wire.GetString(item.Raw, "description")
	got := ask(ctx, approval.Question{
		Client: s.o.Name, Server: a.Server, Tool: a.Tool,
		Arguments: wire.Get(params, "arguments"), InputResponses: wire.Get(params, "inputResponses"), Description: description, Annotations: wire.Get(item.Raw, "annotations"), Authority: a.Digest(),
	})
	answer.Approval = &got
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("tool %q of server %q waited for a person's approval: %w", a.Tool, a.Server, ctx.Err())
	case !got.Approved:
		return nil, refused("it asked for a person's approval and was " + got.String() + ": " + got.Reason)
	}
	return &consent{string(item.Raw)}, nil
}

// headers are those that a call of the tool must have over HTTP, beside those that every request has.
func (in *instance) headers(l *link, tool string, params json.RawMessage) (headers map[string]string) {
	if in.def().Transport == config.Stdio || l.conn.Hello.Era() != wire.StatelessEra {
		return nil
	}
	in.mu.Lock()
	item, _ := in.offer.tool(tool)
	in.mu.Unlock()
	declared, _ := wire.ParamHeaders(wire.Get(item.Raw, "inputSchema")) // a tool that breaks the rules is not offered
	arguments := wire.Get(params, "arguments")
	for _, h := range declared {
		if text, ok := h.Of(arguments); ok {
			if headers == nil {
				headers = map[string]string{}
			}
			headers[h.Name] = wire.HeaderValue(text)
		}
	}
	return headers
}

// Waiting is how many calls wait for their turn on a server.
func (s *Scope) Waiting(name string) int {
	if in := s.find(name); in != nil {
		return int(in.waiting.Load())
	}
	return 0
}

// capture takes down under what authority a call is issued.
func (in *instance) capture(tool string, params json.RawMessage) authority.Authority {
	in.mu.Lock()
	defer in.mu.Unlock()
	a := authority.Authority{Client: in.scope.o.Name, Server: in.name, Tool: tool, Dir: in.scope.o.Dir, Live: in.live}
	if in.cat != nil {
		a.Revision = in.cat.Revision
	}
	if in.live {
		a.Generation = in.generation
	}
	a = a.Of(params)
	if !in.scope.o.Local {
		a.Launcher = "" // it names a program of this machine, by whoever is not on it
	}
	policy, _ := in.scope.policy() // what is wrong with it, present says
	return a.Under(policy)
}

// policy is the sandbox state of the operator's policy for the client; empty: there is none.
func (s *Scope) policy() (string, error) {
	return authority.Policy(s.o.Grant.Policy(), s.o.Dir)
}

// thread is one of the client's conversations, while calls of it are under way.
type thread struct {
	calls  int
	latest string // the sandbox state that its client gave last; empty: none
}

// enter notes a call and its client's sandbox state. What it returns is called when the call has ended.
func (s *Scope) enter(a authority.Authority) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.threads == nil {
		s.threads = map[string]*thread{}
	}
	t := s.threads[a.Thread]
	if t == nil {
		t = &thread{}
		s.threads[a.Thread] = t
	}
	t.calls++
	if a.Sandbox != "" && !a.Own {
		t.latest = a.Sandbox
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if t.calls--; t.calls == 0 {
			delete(s.threads, a.Thread)
		}
	}
}

// latest is the sandbox state that the client gave last in a conversation.
func (s *Scope) latest(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.threads[name]; t != nil {
		return t.latest
	}
	return ""
}

// launchers are the programs that a server on this machine is offered for a call (A29): each of them must have said that it can do
// it. One that has not is left out.
func (s *Scope) launchers(ctx context.Context, a authority.Authority) (l authority.Launchers) {
	for _, p := range []struct {
		path string
		into *string
	}{{a.Executable(), &l.Codex}, {s.r.opts.Executable, &l.Own}} {
		if p.path == "" {
			continue
		}
		if err := s.r.launchers.Verify(ctx, p.path); err != nil {
			s.r.opts.Log.Info("a launcher is left out of a call", "server", a.Server, "client", s.o.Name, "error", err)
			continue
		}
		*p.into = p.path
	}
	return l
}

// still is what is left of launchers that were verified before a wait.
func (s *Scope) still(l authority.Launchers) authority.Launchers {
	for _, path := range []*string{&l.Codex, &l.Own} {
		if *path != "" && !s.r.launchers.Still(*path) {
			*path = ""
		}
	}
	return l
}

// told reports whether the server asked to be told the sandbox state of calls (A27).
func (l *link) told() bool { return authority.Advertised(l.conn.Hello.Capabilities) }

// present is how things are now for a call, about which a person may have been asked: given is nil unless she approved it.
func (in *instance) present(a authority.Authority, given *consent) (now authority.Present) {
	tool := a.Tool
	now.Latest = in.scope.latest(a.Thread)
	if policy, err := in.scope.policy(); err != nil {
		now.Sandbox = err.Error()
	} else {
		now.Policy = policy
	}
	canAsk := in.scope.approver() != nil
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.closed && in.why == "":
		now.Client = "its client has gone"
	case in.closed:
		now.Server = in.why
	case in.state == StateDisabled:
		now.Server = "the server is disabled: " + in.reason
	}
	if ok, reason := in.def().Allows(tool); !ok {
		now.Filter = reason
	}
	if ok, reason := in.scope.o.Grant.Allows(in.name, tool); !ok {
		now.Grant = reason
	}
	now.Approval = in.approval(tool, canAsk, given)
	if in.cat != nil {
		now.Generation, now.Revision = in.generation, in.cat.Revision
		now.Told = authority.Advertised(in.cat.Capabilities)
	}
	if in.offer != nil {
		now.Pin = in.offer.held[tool]
		if _, reason := in.offer.tool(tool); reason != "" && (in.live || in.offer.withheld[tool] != "") {
			now.Tool = reason // a saved catalog may be behind: whether a tool is there, the live list decides
		}
	}
	return now
}

// approval says why a call lacks a person's approval (A20). A mode that was not set asks for none: the grant of an unattended run is the
// approval. A client that is attended asks its own person, unless we have somebody to ask. The caller holds in.mu.
func (in *instance) approval(tool string, canAsk bool, given *consent) string {
	if !in.scope.o.Unattended && !canAsk && given == nil {
		return ""
	}
	why := ""
	var item Item
	if in.offer != nil {
		item, _ = in.offer.tool(tool)
	}
	switch in.def().ApprovalFor(tool) {
	case config.ApprovePrompt:
		why = `approval_mode = "prompt" asks a person`
	case config.ApproveWrites:
		// Hints count from a live server alone (A14).
		if in.live && string(wire.Get(item.Raw, "annotations", "readOnlyHint")) != "true" {
			why = `approval_mode = "writes" asks a person for tools that are not read-only`
		}
	}
	switch {
	case why == "":
		return ""
	case given != nil && given.definition == string(item.Raw):
		return ""
	case given != nil:
		return "the server changed the tool after a person approved the call"
	case !canAsk:
		return why + ", and nobody can be asked"
	}
	return why
}

// rebind ends a connection that was started under another authority, after its calls (A30).
func (in *instance) rebind(ctx context.Context, binding string) {
	in.mu.Lock()
	other := in.link != nil && in.bound != binding
	in.mu.Unlock()
	if other {
		in.settle(ctx)
		in.stop(ctx, "ended because the authority changed, to which it is bound")
	}
	in.mu.Lock()
	in.bound = binding
	in.mu.Unlock()
}

// Do sends any other request to a server, waking it.
func (s *Scope) Do(ctx context.Context, name string, r server.Request) (answer Answer, err error) {
	in := s.find(name)
	if in == nil {
		return answer, fmt.Errorf("there is no server %q", name)
	}
	r.Params = authority.Strip(r.Params) // sandbox metadata belongs to calls of tools
	l, err := in.wake(ctx, short(r.Method)+" by "+s.o.Name)
	if err != nil {
		return answer, err
	}
	defer in.leave()
	switch r.Method {
	case wire.Listen:
	case wire.TasksResult: // it takes as long as the task
		r.Timeout = maxCall
	default:
		r.Timeout, r.MaxTimeout = in.def().ToolTimeout, max(maxCall, in.def().ToolTimeout)
	}
	answer.Era = l.conn.Hello.Era()
	answer.Message, err = s.send(ctx, l, r)
	in.refused(l, err)
	if err == nil && answer.Error == nil {
		uri, _ := wire.GetString(r.Params, "uri")
		in.mu.Lock()
		defer in.mu.Unlock()
		l.served = true
		switch r.Method { // a subscription keeps its server awake
		case wire.Subscribe:
			l.subscriptions[sha256.Sum256([]byte(uri))] = true
		case wire.Unsubscribe:
			delete(l.subscriptions, sha256.Sum256([]byte(uri)))
		}
	}
	return answer, err
}

// send puts params into the form of the connection's era.
func (s *Scope) send(ctx context.Context, l *link, r server.Request) (wire.Message, error) {
	r.Owner = s
	_, modern := wire.ClientOf(r.Params)
	level, _ := wire.GetString(r.Params, "_meta", wire.MetaLogLevel)
	switch l.conn.Hello.Era() {
	case wire.StatelessEra:
		if !modern {
			r.Params = wire.WithClient(r.Params, s.o.Client)
			if level = s.level(); level != "" {
				r.Params = wire.Set(r.Params, wire.Quote(level), "_meta", wire.MetaLogLevel)
			}
		}
	case wire.SessionEra:
		if modern {
			r.Params = wire.WithoutClient(r.Params)
		} else {
			level = s.level()
		}
		if r.Method != wire.SetLevel {
			s.setLevel(ctx, l, level, modern)
		}
	}
	answer, err := l.conn.Call(ctx, r)
	if err == nil && answer.Error == nil && r.Method == wire.SetLevel {
		l.in.mu.Lock()
		l.level, _ = wire.GetString(r.Params, "level")
		l.in.mu.Unlock()
	}
	return answer, err
}

// Levels are the levels of log messages, the least severe first (RFC 5424).
var Levels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// SetLevel says from which level on the client wants log messages of its servers.
func (s *Scope) SetLevel(level string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logLevel = level
}

func (s *Scope) level() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logLevel
}

// setLevel sees to it that a server of the session era sends log messages of a level. It does not stop those below it where others
// may want them: other clients of a shared connection, or with atLeast other requests.
func (s *Scope) setLevel(ctx context.Context, l *link, level string, atLeast bool) {
	rank := slices.Index(Levels, level)
	l.in.mu.Lock()
	set := slices.Index(Levels, l.level)
	fine := rank < 0 || set == rank || set >= 0 && set < rank && (atLeast || l.share != nil)
	if fine || wire.Get(l.conn.Hello.Capabilities, "logging") == nil {
		l.in.mu.Unlock()
		return
	}
	l.level = level
	l.in.mu.Unlock()
	// A server that refuses sends what it thinks right.
	_, _ = l.conn.Call(ctx, server.Request{Method: wire.SetLevel, Params: wire.Set(nil, wire.Quote(level), "level"), Timeout: levelPatience, Owner: s})
}

// levelPatience bounds what a server takes to note from which level on it is to log, which a request waits for.
const levelPatience = 5 * time.Second

// Tell sends a notification to the servers that run; dormant ones need not know.
func (s *Scope) Tell(ctx context.Context, method string, params json.RawMessage) {
	params = authority.Strip(params)
	for _, in := range s.list() {
		if conn := in.running(); conn != nil {
			_ = conn.Notify(ctx, method, params)
		}
	}
}

// TellServer sends a notification to one server, if it runs.
func (s *Scope) TellServer(ctx context.Context, name, method string, params json.RawMessage) {
	if in := s.find(name); in != nil {
		if conn := in.running(); conn != nil {
			_ = conn.Notify(ctx, method, authority.Strip(params))
		}
	}
}

// Hold keeps a server that runs from being put to sleep until release is called, which may be done more than once.
func (s *Scope) Hold(name string) (release func()) {
	in := s.find(name)
	if in == nil {
		return func() {}
	}
	in.mu.Lock()
	in.awake++
	in.mu.Unlock()
	return sync.OnceFunc(func() {
		in.mu.Lock()
		in.awake--
		in.used = time.Now()
		in.mu.Unlock()
		s.r.stir()
	})
}

// Each calls do for the servers that run.
func (s *Scope) Each(do func(name string, about server.Hello)) {
	for _, in := range s.list() {
		if conn := in.running(); conn != nil {
			do(in.name, conn.Hello)
		}
	}
}

// running is the server's connection; nil when it does not run.
func (in *instance) running() *server.Conn {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.link == nil {
		return nil
	}
	return in.link.conn
}

// Wake starts a server that does not run, and waits for it.
func (s *Scope) Wake(ctx context.Context, name, by string) error {
	in := s.find(name)
	if in == nil {
		return fmt.Errorf("there is no server %q", name)
	}
	_, err := in.wake(ctx, by)
	if err == nil {
		in.leave()
	}
	return err
}

// LoggedIn says that somebody has logged in to a server. It is started where it failed for want of that, so that clients see
// tools that were not known before.
func (s *Scope) LoggedIn(ctx context.Context, name string) error {
	in := s.find(name)
	if in == nil {
		return fmt.Errorf("there is no server %q", name)
	}
	in.mu.Lock()
	waits := in.state == StateFailed && errors.As(in.err, new(*oauth.LoginError))
	in.mu.Unlock()
	if !waits {
		return nil
	}
	return s.Wake(ctx, name, "somebody logged in")
}

// Stop ends a server's process or connection; its next use starts it again.
func (s *Scope) Stop(ctx context.Context, name string) error {
	in := s.find(name)
	if in == nil {
		return fmt.Errorf("there is no server %q", name)
	}
	in.stop(ctx, "stopped by hand")
	return nil
}

// Restart ends the server and starts it anew, whatever its catalog says (A9).
func (s *Scope) Restart(ctx context.Context, name string) error {
	in := s.find(name)
	if in == nil {
		return fmt.Errorf("there is no server %q", name)
	}
	in.stop(ctx, "restarted by hand")
	in.mu.Lock()
	in.retryAt = time.Time{}
	in.mu.Unlock()
	return s.Wake(ctx, name, "restarted by hand")
}

// Recheck looks again at what the server offers, because what a person accepted of it changed.
func (s *Scope) Recheck(name string) {
	if in := s.find(name); in != nil {
		in.redefine(in.def())
	}
}

// Flaws are the definitions that are not offered, or should be looked at, with the reason, by server.
func (s *Scope) Flaws() map[string][]string {
	all := map[string][]string{}
	for _, in := range s.list() {
		in.mu.Lock()
		if in.offer != nil && len(in.offer.flaws) > 0 {
			all[in.name] = in.offer.flaws
		}
		in.mu.Unlock()
	}
	return all
}

// Close ends all servers of the scope and waits for them, bounded by ctx.
func (s *Scope) Close(ctx context.Context) {
	s.closing.Do(func() {
		s.mu.Lock()
		s.closed = true
		all := slices.Concat(s.servers, s.retired)
		s.mu.Unlock()
		var wg sync.WaitGroup
		for _, in := range all {
			wg.Go(func() { in.close(ctx, "") })
		}
		wg.Wait()
		over := make(chan struct{})
		go func() {
			s.wg.Wait()
			close(over)
		}()
		select {
		case <-over:
		case <-ctx.Done(): // what is left ends by itself, bounded
		}
		s.r.mu.Lock()
		defer s.r.mu.Unlock()
		s.r.scopes = slices.DeleteFunc(s.r.scopes, func(other *Scope) bool { return other == s })
	})
}

// Status is what is known of one server in one scope.
type Status struct {
	Server     string    `json:"server"`
	State      State     `json:"state"`
	Reason     string    `json:"reason"`
	Tools      int       `json:"tools"`
	Flaws      []string  `json:"flaws,omitempty"` // definitions that are not offered because they cannot be used
	Generation int       `json:"generation"`
	PID        int       `json:"pid,omitempty"`
	Memory     int64     `json:"memory_bytes,omitempty"` // resident, of the server's process
	Protocol   string    `json:"protocol,omitempty"`
	LastError  string    `json:"last_error,omitempty"`
	Since      time.Time `json:"since"`
	By         string    `json:"by,omitempty"` // what it was last started for
	Calls      Calls     `json:"calls"`
	// Sandbox is what its process may do, and while it runs what enforces that; empty: it is not confined.
	Sandbox string `json:"sandbox,omitempty"`
	// Code tells kinds of failures apart, where a program may want to: see the constants. Empty: no particular one.
	Code string `json:"code,omitempty"`
	// Login is the command to run, when Code is CodeNeedsLogin.
	Login string `json:"login,omitempty"`
}

// CodeNeedsLogin is the code of a server that is failed because it wants a login that there is not. It is tried again when used, as
// soon as somebody has logged in.
const CodeNeedsLogin = "needs_login"

// needsLogin says that a login is needed, when that is known and the server does not run. The caller holds in.mu.
func (in *instance) needsLogin() *oauth.LoginError {
	var login *oauth.LoginError
	switch {
	case in.state == StateFailed && errors.As(in.err, &login) && !login.Outdated():
		return login
	case in.state == StateFailed || in.state == StateDormant || in.state == StateStopped:
		if source := in.logins.Load(); source != nil {
			return source.Needed()
		}
	}
	return nil
}

// Status returns the state of every server, by name.
func (s *Scope) Status() []Status {
	list := []Status{}
	for _, in := range s.list() {
		calls := s.calls(in.name)
		in.mu.Lock()
		st := Status{
			Server: in.name, State: in.state, Reason: in.reason,
			Generation: in.generation, Since: in.since, By: in.by, Calls: calls,
		}
		if in.offer != nil {
			st.Tools, st.Flaws = len(in.offer.tools), in.offer.flaws
		}
		if in.cat != nil {
			st.Protocol = in.cat.Protocol
		}
		if in.err != nil {
			st.LastError = in.err.Error()
		}
		if confined := in.def().Sandbox; confined != nil {
			st.Sandbox = confined.String()
			if in.link != nil {
				st.Sandbox += ", by " + string(in.link.conn.Mechanism)
			}
		}
		if in.link != nil {
			st.PID = in.link.conn.PID()
			st.Memory = memory(st.PID)
		}
		if login := in.needsLogin(); login != nil {
			st.State, st.Code, st.Login, st.Reason = StateFailed, CodeNeedsLogin, login.Command(), login.Error()
		}
		in.mu.Unlock()
		list = append(list, st)
	}
	return list
}

// Logs is what a running server wrote to its standard error last; empty when it does not run.
func (s *Scope) Logs(name string) string {
	in := s.find(name)
	if in == nil {
		return ""
	}
	conn := in.running()
	if conn == nil {
		return ""
	}
	return strings.TrimSpace(conn.Stderr())
}
