package runtime_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"nightporter/internal/config"
	"nightporter/internal/mcp/catalog"
	"nightporter/internal/mcp/pin"
	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/server"
	"nightporter/internal/mcp/wire"
	"nightporter/test/lab"
)

func TestMain(m *testing.M) {
	// What runs in parallel here waits for processes and deadlines, not for a processor.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// patience bounds every wait of these tests; reaching it is a failure.
const patience = 2 * time.Minute

// house is an operator's servers, with catalogs that outlive a runtime.
type house struct {
	t        *testing.T
	ctx      context.Context
	recorder *lab.Recorder
	catalogs *catalog.Store
	pins     *pin.Store
	dir      string
	env      map[string]string
}

func newHouse(t *testing.T) *house {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	store, err := catalog.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &house{t: t, ctx: ctx, recorder: lab.Record(t), catalogs: store, dir: t.TempDir(), env: map[string]string{"PATH": os.Getenv("PATH"), "HOME": t.TempDir()}}
}

// lab is the entry of a lab server. extra are further lines of it.
func (h *house) lab(c lab.Config, extra ...string) string {
	c.Log = h.recorder.Address
	return fmt.Sprintf("[mcp_servers.%q]\ncommand = %q\nargs = [%s]\n%s\n", c.Name, lab.Binary(h.t), wire.Quote(c.Arg()), strings.Join(extra, "\n"))
}

// owner counts what a scope's client is told.
type owner struct {
	mu      sync.Mutex
	changed []string
	notes   []wire.Message
}

func (o *owner) Notify(_ string, m wire.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.notes = append(o.notes, m)
}

func (o *owner) Ask(context.Context, string, wire.Message) ([]byte, *wire.RPCError) {
	return nil, wire.Errorf(wire.CodeMethodNotFound, "nobody is here")
}

func (o *owner) Changed(_, method string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.changed = append(o.changed, method)
}

// open makes a runtime of entries and one scope of it. Both are closed with the test.
func (h *house) open(entries ...string) (*runtime.Runtime, *runtime.Scope) {
	h.t.Helper()
	rt := h.runtime(entries...)
	return rt, rt.Open(h.ctx, runtime.ScopeOptions{Name: "test", Dir: h.dir, Owner: &owner{}})
}

func (h *house) runtime(entries ...string) *runtime.Runtime {
	h.t.Helper()
	return h.runtimeWith(runtime.Options{}, entries...)
}

// runtimeWith makes a runtime with further options.
func (h *house) runtimeWith(o runtime.Options, entries ...string) *runtime.Runtime {
	h.t.Helper()
	cfg, err := config.Parse("config.toml", []byte(strings.Join(entries, "\n")))
	if err != nil {
		h.t.Fatal(err)
	}
	o.Config, o.Catalogs, o.Pins = cfg, h.catalogs, h.pins
	o.LookupEnv = func(key string) (string, bool) {
		value, ok := h.env[key]
		return value, ok
	}
	rt := runtime.New(o)
	h.t.Cleanup(func() { h.close(rt) })
	return rt
}

func (h *house) close(rt *runtime.Runtime) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	rt.Close(ctx)
}

// learn starts every server once, so that its catalog is saved, and ends it.
func (h *house) learn(entries ...string) {
	h.t.Helper()
	rt, s := h.open(entries...)
	if err := s.Start(h.ctx, 0); err != nil {
		h.t.Fatal(err)
	}
	if failed := s.Settle(h.ctx); len(failed) > 0 {
		h.t.Fatal(failed)
	}
	h.close(rt)
}

func (h *house) starts() int { return len(h.recorder.Select(lab.Happened("start"))) }

func (h *house) call(s *runtime.Scope, name, tool, arguments string) (json.RawMessage, error) {
	params := wire.Set(wire.Set(nil, wire.Quote(tool), "name"), json.RawMessage(arguments), "arguments")
	answer, err := s.CallTool(h.ctx, name, tool, server.Request{Method: wire.ToolsCall, Params: params})
	if err == nil && answer.Error != nil {
		err = wire.AsRPCError(answer.Error)
	}
	return answer.Result, err
}

func names(items []runtime.Item) (list []string) {
	for _, item := range items {
		list = append(list, item.Server+"/"+item.Name)
	}
	return list
}

func states(s *runtime.Scope) map[string]runtime.State {
	m := map[string]runtime.State{}
	for _, st := range s.Status() {
		m[st.Server] = st.State
	}
	return m
}

func TestA10CatalogOfOneProcessServesTheNextWithoutAStart(t *testing.T) {
	h := newHouse(t)
	entries := []string{
		h.lab(lab.Config{Name: "a", Tools: lab.Tools("echo", "pid"), Instructions: "use me"}),
		h.lab(lab.Config{Name: "b", Tools: lab.Tools("echo"), PageSize: 1}),
	}
	h.learn(entries...)
	before := h.starts()
	_, s := h.open(entries...)
	if err := s.Start(h.ctx, 0); err != nil {
		t.Fatal(err)
	}
	if got, want := names(s.Tools()), []string{"a/echo", "a/pid", "b/echo"}; !slices.Equal(got, want) {
		t.Errorf("tools %v, want %v", got, want)
	}
	if about, ok := s.Hello("a"); !ok || about.Instructions != "use me" {
		t.Errorf("a's instructions were not kept: %+v, %v", about, ok)
	}
	if n := h.starts() - before; n != 0 {
		t.Errorf("%d servers were started", n)
	}
	if got := states(s); got["a"] != runtime.StateDormant || got["b"] != runtime.StateDormant {
		t.Errorf("states %v", got)
	}
}

func TestA12ServersThatMayNotBeDeferredStart(t *testing.T) {
	plain := lab.Config{Tools: lab.Tools("echo")}
	for _, c := range []struct {
		name  string
		lab   lab.Config
		lines []string
		state runtime.State
	}{
		{"usable catalog", plain, nil, runtime.StateDormant},
		{"required", plain, []string{"required = true"}, runtime.StateReady},
		{"required by catalog", plain, []string{"required = true", `startup_readiness = "catalog"`}, runtime.StateDormant},
		{"lazy = false", plain, []string{"lazy = false"}, runtime.StateReady},
		{"filters leave nothing", plain, []string{`disabled_tools = ["*"]`}, runtime.StateReady},
		{"filters leave something", plain, []string{`enabled_tools = ["e*"]`}, runtime.StateDormant},
		{"no tools", lab.Config{}, nil, runtime.StateReady},
		{"only tools for apps", lab.Config{Tools: []json.RawMessage{json.RawMessage(`{"name":"x","inputSchema":{"type":"object"},"_meta":{"ui":{"visibility":["app"]}}}`)}}, nil, runtime.StateDormant},
		{"not cacheable", lab.Config{Tools: lab.Tools("echo"), Experimental: json.RawMessage(`{"codex/tool-catalog-cache":{"cacheable":false}}`)}, nil, runtime.StateReady},
		{"cacheable only for false", lab.Config{Tools: lab.Tools("echo"), Experimental: json.RawMessage(`{"codex/tool-catalog-cache":{"cacheable":0}}`)}, nil, runtime.StateDormant},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHouse(t)
			c.lab.Name = "s"
			entry := h.lab(c.lab, c.lines...)
			h.learn(entry)
			_, s := h.open(entry)
			if err := s.Start(h.ctx, 0); err != nil {
				t.Fatal(err)
			}
			s.Settle(h.ctx)
			if got := states(s)["s"]; got != c.state {
				t.Errorf("state %s, want %s: %+v", got, c.state, s.Status())
			}
		})
	}
}

// The matrix of facts/codex-runtime.md, section 3.1: what makes another server of a server.
func TestA11ChangedIdentityMeansAStart(t *testing.T) {
	base := func(h *house, extra ...string) string {
		return h.lab(lab.Config{Name: "s", Tools: lab.Tools("echo", "pid")}, extra...)
	}
	for _, c := range []struct {
		name   string
		before func(h *house) string
		after  func(h *house) string
		defers bool
	}{
		{"nothing", nil, nil, true},
		{"another folder of the client", nil, func(h *house) string { h.dir = h.t.TempDir(); return base(h) }, false},
		{"another folder, cwd fixed", func(h *house) string { return base(h, `cwd = "/"`) }, func(h *house) string { h.dir = h.t.TempDir(); return base(h, `cwd = "/"`) }, true},
		{"args", nil, func(h *house) string {
			return h.lab(lab.Config{Name: "s", Tools: lab.Tools("echo", "pid"), Instructions: "new"})
		}, false},
		{"env added", nil, func(h *house) string { return base(h, `env = { X = "1" }`) }, false},
		{"env value", func(h *house) string { return base(h, `env = { X = "1" }`) }, func(h *house) string { return base(h, `env = { X = "2" }`) }, false},
		{"value of env_vars", func(h *house) string { h.env["X"] = "1"; return base(h, `env_vars = ["X"]`) }, func(h *house) string { h.env["X"] = "2"; return base(h, `env_vars = ["X"]`) }, false},
		{"filter", nil, func(h *house) string { return base(h, `enabled_tools = ["echo"]`) }, true},
		{"timeouts", nil, func(h *house) string { return base(h, "tool_timeout_sec = 5", "startup_timeout_sec = 20") }, true},
		{"approval", nil, func(h *house) string { return base(h, `default_tools_approval_mode = "approve"`) }, true},
		{"another server", nil, func(h *house) string { return base(h) + h.lab(lab.Config{Name: "t", Tools: lab.Tools("echo")}) }, true},
		{"renamed", nil, func(h *house) string {
			return strings.Replace(base(h), `[mcp_servers."s"]`, `[mcp_servers."z"]`, 1)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHouse(t)
			before, after := c.before, c.after
			if before == nil {
				before = func(h *house) string { return base(h) }
			}
			if after == nil {
				after = before
			}
			h.learn(before(h))
			_, s := h.open(after(h))
			name := "s"
			if c.name == "renamed" {
				name = "z"
			}
			if got := states(s)[name] == runtime.StateDormant; got != c.defers {
				t.Errorf("deferred %v, want %v: %+v", got, c.defers, s.Status())
			}
		})
	}
}

func TestA13FirstUseStartsOnceHoweverManyCall(t *testing.T) {
	h := newHouse(t)
	entry := h.lab(lab.Config{Name: "s", Tools: lab.Tools("echo"), StartDelay: lab.Duration(200 * time.Millisecond)}, "supports_parallel_tool_calls = true")
	h.learn(entry)
	before := h.starts()
	_, s := h.open(entry)
	impatient, cancel := context.WithCancel(h.ctx)
	var wg sync.WaitGroup
	errs := make(chan error, 50)
	for range 50 {
		wg.Go(func() {
			_, err := h.call(s, "s", "echo", `{"x":"1"}`)
			errs <- err
		})
	}
	wg.Go(func() {
		_, err := s.CallTool(impatient, "s", "echo", server.Request{Method: wire.ToolsCall, Params: json.RawMessage(`{"name":"echo"}`)})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the caller that went away got %v", err)
		}
	})
	cancel()
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	if n := h.starts() - before; n != 1 {
		t.Errorf("%d starts", n)
	}
}

func TestA13StartHasItsOwnDeadline(t *testing.T) {
	h := newHouse(t)
	entry := h.lab(lab.Config{Name: "s", Tools: lab.Tools("echo"), Methods: map[string]lab.Fault{"initialize": {Delay: lab.Duration(1500 * time.Millisecond)}}}, "tool_timeout_sec = 1")
	h.learn(entry)
	_, s := h.open(entry)
	if _, err := h.call(s, "s", "echo", `{}`); err != nil {
		t.Errorf("a start of 1.5 s under a tool timeout of 1 s: %v", err)
	}
}

func TestA14ToolThatIsGoneIsRefusedWithoutACall(t *testing.T) {
	h := newHouse(t)
	// The definition does not say what the server lists: a file does, which changes.
	list := h.dir + "/tools.json"
	write := func(tools ...string) string {
		c := lab.Config{Name: "s", Log: h.recorder.Address, Tools: lab.Tools(tools...)}
		if err := os.WriteFile(list, []byte(c.Arg()), 0o600); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("[mcp_servers.s]\ncommand = %q\nargs = [%q]\n", lab.Binary(t), "@"+list)
	}
	h.learn(write("echo", "old"))
	rt := h.runtime(write("echo", "new"))
	told := &owner{}
	s := rt.Open(h.ctx, runtime.ScopeOptions{Name: "test", Dir: h.dir, Owner: told})
	if got := names(s.Tools()); !slices.Equal(got, []string{"s/echo", "s/old"}) {
		t.Fatalf("catalog: %v", got)
	}
	_, err := h.call(s, "s", "old", `{}`)
	var refused *runtime.RefusedError
	if !errors.As(err, &refused) {
		t.Fatalf("the vanished tool: %v", err)
	}
	if got := names(s.Tools()); !slices.Equal(got, []string{"s/echo", "s/new"}) {
		t.Errorf("live: %v", got)
	}
	if calls := h.recorder.Select(lab.Received("tools/call")); len(calls) != 0 {
		t.Errorf("the server was called: %v", calls)
	}
	if !slices.Contains(told.changed, wire.ToolsList) {
		t.Errorf("the client was told of %v", told.changed)
	}
}

func TestA19FiltersActOnCatalogsAndLiveListsAlike(t *testing.T) {
	h := newHouse(t)
	c := lab.Config{Name: "s", Tools: lab.Tools("echo", "pid", "env")}
	h.learn(h.lab(c))
	_, s := h.open(h.lab(c, `enabled_tools = ["e*", "p*"]`, `disabled_tools = ["env"]`))
	want := []string{"s/echo", "s/pid"}
	if got := names(s.Tools()); !slices.Equal(got, want) {
		t.Errorf("catalog: %v", got)
	}
	_, err := h.call(s, "s", "env", `{}`)
	if err == nil || !strings.Contains(err.Error(), "disabled_tools") {
		t.Errorf("a filtered tool: %v", err)
	}
	if h.starts() != 1 {
		t.Error("the refused call woke the server")
	}
	if _, err := h.call(s, "s", "pid", `{}`); err != nil {
		t.Fatal(err)
	}
	if got := names(s.Tools()); !slices.Equal(got, want) {
		t.Errorf("live: %v", got)
	}
}

func TestA15ToolsForAppsAreHiddenFromModels(t *testing.T) {
	h := newHouse(t)
	hidden := json.RawMessage(`{"name":"echo","inputSchema":{"type":"object"},"_meta":{"ui":{"visibility":["app"]}}}`)
	_, s := h.open(h.lab(lab.Config{Name: "s", Tools: append(lab.Tools("pid"), hidden)}))
	if err := s.Start(h.ctx, 0); err != nil {
		t.Fatal(err)
	}
	s.Settle(h.ctx)
	if got := names(s.Tools()); !slices.Equal(got, []string{"s/pid"}) {
		t.Errorf("listed: %v", got)
	}
	if _, err := h.call(s, "s", "echo", `{}`); err != nil {
		t.Errorf("an app's call: %v", err)
	}
}

func TestMalformedToolsCostThemselvesAlone(t *testing.T) {
	h := newHouse(t)
	tools := lab.Tools("echo")
	for _, bad := range []string{
		`{"inputSchema":{"type":"object"}}`, `{"name":"noschema"}`, `{"name":"array","inputSchema":[]}`, `{"name":"notype","inputSchema":{}}`,
		`{"name":"nulldesc","description":null,"inputSchema":{"type":"object"}}`, `{"name":"huge","inputSchema":{"type":"object","maximum":1e400}}`,
		`{"name":"echo","inputSchema":{"type":"object"}}`, `7`,
	} {
		tools = append(tools, json.RawMessage(bad))
	}
	_, s := h.open(h.lab(lab.Config{Name: "s", Tools: tools}))
	if err := s.Start(h.ctx, 0); err != nil {
		t.Fatal(err)
	}
	if failed := s.Settle(h.ctx); len(failed) > 0 {
		t.Fatal(failed)
	}
	if got := names(s.Tools()); !slices.Equal(got, []string{"s/echo"}) {
		t.Errorf("tools %v", got)
	}
	if flaws := s.Status()[0].Flaws; len(flaws) != 8 {
		t.Errorf("flaws %q", flaws)
	}
}

func TestA8FailedStartTellsWhatIsNeededToMendIt(t *testing.T) {
	three := 3
	for _, c := range []struct {
		name  string
		entry func(h *house) string
		want  []string
	}{
		{"exits", func(h *house) string {
			return h.lab(lab.Config{Name: "s", Stderr: "cannot open the database\n", Stdout: "Welcome to s\n", Exit: &three})
		}, []string{"exit status 3", "cannot open the database", "Welcome to s"}},
		{"no program", func(*house) string { return "[mcp_servers.s]\ncommand = \"nosuchprogram\"\n" }, []string{"nosuchprogram", "PATH, searched: /"}},
		{"no file", func(*house) string { return "[mcp_servers.s]\ncommand = \"/nosuch/program\"\n" }, []string{"/nosuch/program"}},
		{"silent", func(h *house) string {
			return h.lab(lab.Config{Name: "s", Stderr: "loading\n", Methods: map[string]lab.Fault{"initialize": {Silent: true}}}, "startup_timeout_sec = 0.5")
		}, []string{"500ms", "startup_timeout_sec", "initialize", "loading"}},
		{"silent list", func(h *house) string {
			return h.lab(lab.Config{Name: "s", Tools: lab.Tools("echo"), Methods: map[string]lab.Fault{"tools/list": {Silent: true}}}, "startup_timeout_sec = 0.5")
		}, []string{"500ms", "startup_timeout_sec", "list tools"}},
		{"refuses", func(h *house) string {
			return h.lab(lab.Config{Name: "s", Methods: map[string]lab.Fault{"initialize": {Error: json.RawMessage(`{"code":-32000,"message":"license expired"}`)}}})
		}, []string{"license expired"}},
		{"nobody listens", func(*house) string {
			return "[mcp_servers.s]\nurl = \"http://127.0.0.1:9/mcp\"\nstartup_timeout_sec = 1\n"
		}, []string{"127.0.0.1:9", "refused"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHouse(t)
			_, s := h.open(c.entry(h))
			if err := s.Start(h.ctx, 0); err != nil {
				t.Fatal(err)
			}
			err := s.Settle(h.ctx)["s"]
			if err == nil {
				t.Fatal("it started")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
		})
	}
}

func TestA8FailedServerIsTriedAgain(t *testing.T) {
	h := newHouse(t)
	one := 1
	// Fails at its first start, and lists nothing before: there is no catalog.
	marker := h.dir + "/started"
	program := h.dir + "/flaky.sh"
	c := lab.Config{Name: "s", Log: h.recorder.Address, Tools: lab.Tools("echo")}
	_ = one
	script := fmt.Sprintf("#!/bin/sh\nif test -e %s; then exec %s '%s'; fi\ntouch %s\nexit 1\n", marker, lab.Binary(t), c.Arg(), marker)
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	_, s := h.open(fmt.Sprintf("[mcp_servers.s]\ncommand = %q\n", program))
	if err := s.Start(h.ctx, 0); err != nil {
		t.Fatal(err)
	}
	if s.Settle(h.ctx)["s"] == nil {
		t.Fatal("the first start did not fail")
	}
	_, err := h.call(s, "s", "echo", `{}`)
	if err == nil || !strings.Contains(err.Error(), "tried again") {
		t.Fatalf("within the backoff: %v", err)
	}
	if err := s.Restart(h.ctx, "s"); err != nil {
		t.Fatalf("by hand, at once: %v", err)
	}
	if _, err := h.call(s, "s", "echo", `{}`); err != nil {
		t.Error(err)
	}
}

func TestA25ServerThatDiesInACallIsWokenByTheNext(t *testing.T) {
	h := newHouse(t)
	_, s := h.open(h.lab(lab.Config{Name: "s", Tools: lab.Tools("exit", "pid")}))
	_, err := h.call(s, "s", "exit", `{"status":7}`)
	if err == nil || !strings.Contains(err.Error(), "may or may not have taken effect") || !strings.Contains(err.Error(), "exit status 7") {
		t.Fatalf("the call that killed it: %v", err)
	}
	if _, err := h.call(s, "s", "pid", `{}`); err != nil {
		t.Errorf("the next call: %v", err)
	}
	if _, err := h.recorder.WaitN(h.ctx, 2, lab.Received("tools/call")); err != nil {
		t.Error(err)
	}
	if got := len(h.recorder.Select(lab.Received("tools/call"))); got != 2 {
		t.Errorf("%d calls came to servers: none may be repeated", got)
	}
	if generation := s.Status()[0].Generation; generation != 2 {
		t.Errorf("generation %d", generation)
	}
}

func TestA24CallsRunOneAtATimeUnlessTheServerTakesMore(t *testing.T) {
	for _, parallel := range []bool{false, true} {
		t.Run(fmt.Sprintf("parallel=%v", parallel), func(t *testing.T) {
			h := newHouse(t)
			_, s := h.open(h.lab(lab.Config{Name: "s", Tools: lab.Tools("echo"), Calls: map[string]lab.Fault{"echo": {Hold: true}}}, fmt.Sprintf("supports_parallel_tool_calls = %v", parallel)))
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					if _, err := h.call(s, "s", "echo", `{}`); err != nil {
						t.Error(err)
					}
				})
			}
			if parallel {
				if _, err := h.recorder.WaitN(h.ctx, 3, lab.Happened("hold")); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 3 {
				if _, err := h.recorder.WaitN(h.ctx, i+1, lab.Happened("hold")); err != nil {
					t.Fatal(err)
				}
				if n := len(h.recorder.Select(lab.Received("tools/call"))); !parallel && n != i+1 {
					t.Errorf("%d calls were sent while %d should have been", n, i+1)
				}
				if err := h.recorder.Release(h.ctx); err != nil {
					t.Fatal(err)
				}
			}
			wg.Wait()
		})
	}
}

func TestA24TimeoutTellsTheServerAndProgressExtendsIt(t *testing.T) {
	h := newHouse(t)
	_, s := h.open(h.lab(lab.Config{Name: "s", Tools: lab.Tools("hang", "sleep")}, "tool_timeout_sec = 0.6"))
	_, err := h.call(s, "s", "hang", `{}`)
	var timeout *server.TimeoutError
	if !errors.As(err, &timeout) || !strings.Contains(err.Error(), "tool_timeout_sec") {
		t.Fatalf("a call that hangs: %v", err)
	}
	if _, err := h.recorder.Wait(h.ctx, lab.Received(wire.Cancelled)); err != nil {
		t.Error(err)
	}
	var progress []wire.Message
	answer, err := s.CallTool(h.ctx, "s", "sleep", server.Request{
		Method: wire.ToolsCall, Params: json.RawMessage(`{"name":"sleep","arguments":{"for":"1500ms","progress":"100ms"},"_meta":{"progressToken":"mine"}}`),
		Notify: func(m wire.Message) { progress = append(progress, m) },
	})
	if err != nil || answer.Error != nil {
		t.Fatalf("1.5 s with progress under a timeout of 0.6 s: %v %s", err, answer.Error)
	}
	if len(progress) < 3 || string(wire.Get(progress[0].Params, "progressToken")) != `"mine"` {
		t.Errorf("%d progress notifications, the first %s", len(progress), progress[0].Params)
	}
}

func TestA33ServerGetsNoMoreOfTheEnvironmentThanItIsGiven(t *testing.T) {
	h := newHouse(t)
	h.env["SECRET_X"], h.env["GIVEN"], h.env["TERM"] = "leak", "by name", "dumb"
	_, s := h.open(h.lab(lab.Config{Name: "s", Tools: lab.Tools("echo"), LogEnv: true}, `env_vars = ["GIVEN", "UNSET"]`, `env = { OWN = "${env:GIVEN}!", HOME = "/elsewhere" }`))
	if err := s.Wake(h.ctx, "s", "test"); err != nil {
		t.Fatal(err)
	}
	entry, err := h.recorder.Wait(h.ctx, lab.Happened("start"))
	if err != nil {
		t.Fatal(err)
	}
	delete(entry.Env, "NIGHTPORTER_TREE")
	want := map[string]string{"PATH": h.env["PATH"], "HOME": "/elsewhere", "TERM": "dumb", "GIVEN": "by name", "OWN": "by name!"}
	if fmt.Sprint(entry.Env) != fmt.Sprint(want) {
		t.Errorf("environment %v\nwant %v", entry.Env, want)
	}
	if entry.Cwd != h.dir {
		t.Errorf("working directory %s, want the client's, %s", entry.Cwd, h.dir)
	}
}

func TestA33NoProcessOfAServerOutlivesItsScope(t *testing.T) {
	h := newHouse(t)
	rt, s := h.open(h.lab(lab.Config{Name: "s", Tools: lab.Tools("pid"), IgnoreEOF: true, IgnoreTerm: true, Grandchild: true}))
	if _, err := h.call(s, "s", "pid", `{}`); err != nil {
		t.Fatal(err)
	}
	entry, err := h.recorder.Wait(h.ctx, lab.Happened("grandchild"))
	if err != nil {
		t.Fatal(err)
	}
	h.close(rt)
	for _, e := range h.recorder.Select(func(e lab.Entry) bool { return e.What == "start" || e.What == "grandchild" }) {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", e.PID)); err == nil && e.What == "start" {
			t.Errorf("process %d is still there", e.PID)
		}
	}
	_ = entry
}

func TestA7RequiredServersFailTogether(t *testing.T) {
	h := newHouse(t)
	one := 1
	_, s := h.open(
		h.lab(lab.Config{Name: "bad1", Exit: &one, Stderr: "first reason\n"}, "required = true"),
		h.lab(lab.Config{Name: "bad2", Exit: &one, Stderr: "second reason\n"}, "required = true"),
		h.lab(lab.Config{Name: "bad3", Exit: &one}),
		h.lab(lab.Config{Name: "good", Tools: lab.Tools("echo")}, "required = true"),
	)
	err := s.Start(h.ctx, time.Second)
	if err == nil {
		t.Fatal("it started")
	}
	for _, want := range []string{"bad1", "first reason", "bad2", "second reason"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "bad3") || strings.Contains(err.Error(), "good") {
		t.Errorf("servers that did not fail it are named: %v", err)
	}
}

func TestA7OptionalServersHoldNobodyUp(t *testing.T) {
	h := newHouse(t)
	rt := h.runtime(h.lab(lab.Config{Name: "slow", Tools: lab.Tools("echo"), Methods: map[string]lab.Fault{"initialize": {Hold: true}}}))
	told := &owner{}
	s := rt.Open(h.ctx, runtime.ScopeOptions{Name: "test", Dir: h.dir, Owner: told})
	if err := s.Start(h.ctx, 0); err != nil {
		t.Fatal(err)
	}
	if len(s.Tools()) != 0 || !s.Unknown() {
		t.Errorf("tools %v before the server is there", names(s.Tools()))
	}
	if err := h.recorder.Release(h.ctx); err != nil {
		t.Fatal(err)
	}
	if failed := s.Settle(h.ctx); len(failed) > 0 {
		t.Fatal(failed)
	}
	if len(s.Tools()) != 1 || !slices.Contains(told.changed, wire.ToolsList) {
		t.Errorf("tools %v, told %v", names(s.Tools()), told.changed)
	}
}

// callMeta calls a tool with a sandbox state.
func (h *house) callMeta(s *runtime.Scope, name, tool, state string) (string, error) {
	params := wire.Set(wire.Set(nil, wire.Quote(tool), "name"), json.RawMessage(state), "_meta", "codex/sandbox-state")
	answer, err := s.CallTool(h.ctx, name, tool, server.Request{Method: wire.ToolsCall, Params: params})
	return string(wire.Get(answer.Result, "content")), err
}
