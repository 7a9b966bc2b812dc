//go:build unix

package runtime_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"nightporter/internal/approval"
	"nightporter/internal/config"
	"nightporter/internal/mcp/authority"
	"nightporter/internal/mcp/pin"
	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/server"
	"nightporter/internal/mcp/wire"
	"nightporter/test/lab"
)

// A call waits, something that its authority captured changes, and it is sent or refused as docs/authority.md says (A22, A23).
func TestA23EachChangeInEachWait(t *testing.T) {
	table := readTable(t)
	if want := slices.Sorted(maps.Keys(changes)); !slices.Equal(want, slices.Sorted(maps.Keys(table))) {
		t.Fatalf("docs/authority.md has the rows %q, this test %q", slices.Sorted(maps.Keys(table)), want)
	}
	for captured, cells := range table {
		for how, cell := range cells {
			for wait, begin := range waits {
				t.Run(fmt.Sprintf("%s %s in a %s", captured, [...]string{"narrows", "stays", "widens"}[how], wait), func(t *testing.T) {
					t.Parallel()
					change, changed := changes[captured][how]
					if !changed { // it stays
						change = changes[captured][narrows]
						change.tools, change.pinned, change.do = nil, false, func(*waiting) {}
					}
					newWaiting(t, change).check(begin, change, cell.in(wait))
				})
			}
		}
	}
}

const (
	narrows = iota
	stays
	widens
)

// cell says what becomes of a call.
type cell struct {
	becomes string            // sent, sent without it, refused: CHECK
	but     map[string]string // in some kinds of wait
}

func (c cell) in(wait string) string {
	if other, ok := c.but[wait]; ok {
		return other
	}
	return c.becomes
}

// readTable reads the table of docs/authority.md.
func readTable(t *testing.T) map[string][]cell {
	t.Helper()
	page, err := os.ReadFile("../../../docs/authority.md")
	if err != nil {
		t.Fatal(err)
	}
	table := map[string][]cell{}
	for _, line := range strings.Split(string(page), "\n") {
		columns := strings.Split(strings.Trim(line, "|"), "|")
		if !strings.HasPrefix(line, "|") || len(columns) != 4 || strings.HasPrefix(line, "|-") || strings.HasPrefix(line, "| what") {
			continue
		}
		var cells []cell
		for _, text := range columns[1:] {
			becomes, rest, _ := strings.Cut(strings.TrimSpace(text), "; in a ")
			c := cell{becomes: becomes, but: map[string]string{}}
			if kinds, other, ok := strings.Cut(rest, ": "); ok {
				for _, kind := range strings.Split(kinds, " or ") {
					c.but[kind] = other
				}
			}
			cells = append(cells, c)
		}
		table[strings.TrimSpace(columns[0])] = cells
	}
	return table
}

// waiting is a client with a call that waits.
type waiting struct {
	*house
	change change
	rt     *runtime.Runtime
	s      *runtime.Scope
	grant  *mutableGrant
	script string // the file that holds the lab's configuration
	lines  []string
	codex  string        // the client's launcher
	fifo   string        // what our own launcher waits for
	ask    approval.Func // who is asked about calls of meta; nil: nobody
	others sync.WaitGroup
}

// change is something that happens while a call waits, and what was there before.
type change struct {
	lines  []string // of the server's entry
	policy *config.Sandbox
	// state is the state that the client gives with the call; nil: workspace-write in its folder.
	state    *string
	launcher bool
	pinned   bool // other definitions than the server's were accepted
	tools    []json.RawMessage
	do       func(*waiting)
}

var (
	none     = ""
	readOnly = &config.Sandbox{Mode: "read-only"}
	writes   = &config.Sandbox{Mode: "workspace-write"}
	full     = &config.Sandbox{Profile: json.RawMessage(`{"type":"disabled"}`)}
)

// mutableGrant grants what it is told to.
type mutableGrant struct {
	mu     sync.Mutex
	denied string
	policy *config.Sandbox
}

func (g *mutableGrant) AllowsServer(string) bool { return true }

func (g *mutableGrant) Allows(_, tool string) (bool, string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return tool != g.denied, "it was taken back"
}

func (g *mutableGrant) Policy() *config.Sandbox {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.policy
}

func (g *mutableGrant) set(denied string, policy *config.Sandbox) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.denied, g.policy = denied, policy
}

var baseTools = lab.Tools("meta", "pid", "exit", "held")

// changes are how each thing narrows and widens.
var changes = map[string]map[int]change{
	"client": {
		narrows: {do: func(w *waiting) {
			w.beside(func() { w.s.Close(w.ctx) })
			w.eventually(func() bool { return w.pidOf() == 0 })
		}},
		widens: {do: func(w *waiting) { w.rt.Open(w.ctx, runtime.ScopeOptions{Name: "another", Dir: w.dir, Owner: &owner{}}) }},
	},
	"grant": {
		narrows: {do: func(w *waiting) { w.grant.set("meta", nil) }},
		widens:  {do: func(w *waiting) { w.grant.set("", nil) }},
	},
	"operator's sandbox": {
		narrows: {state: &none, policy: writes, do: func(w *waiting) { w.grant.set("", readOnly) }},
		widens:  {state: &none, policy: readOnly, do: func(w *waiting) { w.grant.set("", writes) }},
	},
	"client's sandbox": {
		narrows: {do: func(w *waiting) { w.callsUnder(readOnly) }},
		widens:  {do: func(w *waiting) { w.callsUnder(full) }},
	},
	"launcher": {
		narrows: {launcher: true, do: func(w *waiting) {
			if err := os.Remove(w.codex); err != nil {
				w.t.Error(err)
			}
		}},
		widens: {do: func(w *waiting) { w.callsUnder(writes) }}, // which names a launcher
	},
	"working directory": {
		narrows: {state: &none, policy: readOnly, do: elsewhere},
		widens:  {state: &none, policy: writes, do: elsewhere},
	},
	"generation": {
		narrows: {do: (*waiting).restart},
		widens:  {do: (*waiting).restart},
	},
	"catalog": {
		narrows: {tools: lab.Tools("pid", "exit", "held"), do: (*waiting).restart},
		widens:  {tools: append(lab.Tools("more"), baseTools...), do: (*waiting).restart},
	},
	"filters": {
		narrows: {do: func(w *waiting) { w.reload(`disabled_tools = ["meta"]`) }},
		widens:  {lines: []string{`enabled_tools = ["meta", "pid", "exit", "held"]`}, do: func(w *waiting) { w.reload(`enabled_tools = ["*"]`) }},
	},
	"approval": {
		narrows: {do: func(w *waiting) { w.reload(`default_tools_approval_mode = "prompt"`) }},
		widens:  {lines: []string{`default_tools_approval_mode = "auto"`}, do: func(w *waiting) { w.reload(`default_tools_approval_mode = "approve"`) }},
	},
	"pin": {
		narrows: {pinned: true, do: func(w *waiting) { w.reload("pin = true") }},
		widens:  {lines: []string{"pin = true"}, do: func(w *waiting) { w.reload() }},
	},
	"definition": {
		narrows: {do: func(w *waiting) { w.rt.Reload(w.ctx, w.config("")) }},
		widens:  {do: func(w *waiting) { w.reload(`env = { MORE = "1" }`) }},
	},
}

func elsewhere(w *waiting) {
	w.serve(w.live(), false)
	s := w.rt.Open(w.ctx, runtime.ScopeOptions{Name: "another", Dir: w.t.TempDir(), Owner: &owner{}, Grant: &mutableGrant{policy: writes}})
	w.beside(func() { _, _ = w.house.call(s, "s", "pid", `{}`) })
}

func newWaiting(t *testing.T, c change) *waiting {
	w := &waiting{house: newHouse(t), change: c, grant: &mutableGrant{policy: c.policy}, lines: c.lines}
	w.script = filepath.Join(t.TempDir(), "lab.json")
	w.codex, _ = w.launcher()
	w.pins = pin.Open(t.TempDir())
	if c.pinned {
		if err := w.pins.Accept("s", []json.RawMessage{json.RawMessage(`{"name":"meta","description":"another one","inputSchema":{"type":"object"}}`)}); err != nil {
			t.Fatal(err)
		}
	}
	w.serve(baseTools, false)
	return w
}

// serve says what the server does from its next start on.
func (w *waiting) serve(tools []json.RawMessage, hold bool) {
	w.t.Helper()
	c := lab.Config{Name: "s", Log: w.recorder.Address, Tools: tools, Experimental: json.RawMessage(`{"codex/sandbox-state":{}}`), Calls: map[string]lab.Fault{"held": {Hold: true}}}
	if hold {
		c.Methods = map[string]lab.Fault{wire.Initialize: {Hold: true}}
	}
	if err := os.WriteFile(w.script, []byte(c.Arg()), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *waiting) entry(lines ...string) string {
	if w.ask != nil {
		lines = append(slices.Clone(lines), `tools.meta = { approval_mode = "prompt" }`)
	}
	return fmt.Sprintf("[mcp_servers.s]\ncommand = %q\nargs = [%q]\n%s\n", lab.Binary(w.t), "@"+w.script, strings.Join(lines, "\n"))
}

func (w *waiting) reload(lines ...string) { w.rt.Reload(w.ctx, w.config(w.entry(lines...))) }

// live is what the server offers by the time at which the call would be sent.
func (w *waiting) live() []json.RawMessage {
	if w.change.tools != nil {
		return w.change.tools
	}
	return baseTools
}

// restart makes the server's connection another one. One that is just being made is.
func (w *waiting) restart() {
	if w.pidOf() == 0 {
		return
	}
	w.serve(w.live(), false)
	if err := w.s.Restart(w.ctx, "s"); err != nil {
		w.t.Error(err)
	}
}

// pidOf is the server's process; 0 while none is ready.
func (w *waiting) pidOf() int { return w.s.Status()[0].PID }

// beside does something that may take until the call has ended.
func (w *waiting) beside(f func()) { w.others.Go(f) }

// open opens the client. Our own launcher, when it has one, waits for the fifo.
func (w *waiting) open(own string) {
	w.rt = w.runtimeWith(runtime.Options{Executable: own}, w.entry(w.lines...))
	w.s = w.rt.Open(w.ctx, runtime.ScopeOptions{Name: "c", Dir: w.dir, Owner: &owner{}, Grant: w.grant, Unattended: true, Local: true, Approver: func() approval.Func { return w.ask }})
}

// given is what the client gives with the call.
func (w *waiting) given() string {
	meta := json.RawMessage(`{"threadId":"t"}`)
	state, err := authority.Policy(writes, w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	if w.change.state != nil {
		state = *w.change.state
	}
	if state != "" {
		meta = wire.Set(meta, json.RawMessage(state), authority.MetaState)
	}
	if w.change.launcher {
		meta = wire.Set(meta, wire.Encode(map[string]string{"codexExecutable": w.codex}), authority.MetaLauncher)
	}
	return string(meta)
}

// callsUnder makes another call of the client's conversation, under another state and with a launcher. It waits behind the first, unless that waits
// for a person.
func (w *waiting) callsUnder(policy *config.Sandbox) {
	state, err := authority.Policy(policy, w.dir)
	if err != nil {
		w.t.Error(err)
	}
	meta := wire.Set(json.RawMessage(`{"threadId":"t"}`), json.RawMessage(state), authority.MetaState)
	meta = wire.Set(meta, wire.Encode(map[string]string{"codexExecutable": w.codex}), authority.MetaLauncher)
	other := func() {
		_, _ = w.s.CallTool(w.ctx, "s", "pid", server.Request{Method: wire.ToolsCall, Params: metaParams("pid", string(meta))})
	}
	if w.ask != nil {
		other()
		return
	}
	before := w.s.Waiting("s")
	w.beside(other)
	w.eventually(func() bool { return w.s.Waiting("s") > before })
}

// waits bring a call to wait. Each opens the client, calls issue, returns when the call waits, and with what lets it go on.
var waits = map[string]func(w *waiting, issue func()) (goOn func(context.Context)){
	"start": func(w *waiting, issue func()) func(context.Context) {
		w.learn(w.entry(w.lines...))
		w.serve(w.live(), true)
		w.open("")
		issue()
		w.held()
		return w.release
	},
	"reconnect": func(w *waiting, issue func()) func(context.Context) {
		w.open("")
		w.pid(w.s, "s")
		w.serve(w.live(), true)
		if _, err := w.house.call(w.s, "s", "exit", `{}`); err == nil {
			w.t.Fatal("the server lives")
		}
		// Its caller hears of the end before the runtime has noted it, and a call that is issued in between is one of the old list.
		w.eventually(func() bool { return w.pidOf() == 0 })
		issue()
		w.held()
		return w.release
	},
	"queue": func(w *waiting, issue func()) func(context.Context) {
		w.open("")
		w.pid(w.s, "s")
		w.beside(func() { _, _ = w.house.call(w.s, "s", "held", `{}`) })
		w.held()
		issue()
		w.eventually(func() bool { return w.s.Waiting("s") == 1 })
		return w.release
	},
	"question": func(w *waiting, issue func()) func(context.Context) {
		asked, answer := make(chan struct{}), make(chan struct{})
		w.ask = func(ctx context.Context, _ approval.Question) approval.Answer {
			close(asked) // and asking twice panics
			select {
			case <-answer:
			case <-ctx.Done():
			}
			return approval.Answer{Approved: true}
		}
		w.open("")
		w.pid(w.s, "s")
		issue()
		select {
		case <-asked:
		case <-w.ctx.Done():
			w.t.Fatal("nobody was asked")
		}
		return func(context.Context) { close(answer) }
	},
	"probe": func(w *waiting, issue func()) func(context.Context) {
		dir := w.t.TempDir()
		w.fifo = filepath.Join(dir, "fifo")
		own := filepath.Join(dir, "own")
		if err := syscall.Mkfifo(w.fifo, 0o600); err != nil {
			w.t.Fatal(err)
		}
		w.program(own, fmt.Sprintf("cat %s\necho --sandbox-state-json\n", w.fifo))
		w.open(own)
		if err := w.s.Wake(w.ctx, "s", "the test"); err != nil { // without a call, which would have been the one that waits
			w.t.Fatal(err)
		}
		issue()
		var asked *os.File
		w.eventually(func() (reads bool) {
			var err error
			asked, err = os.OpenFile(w.fifo, os.O_WRONLY|syscall.O_NONBLOCK, 0) // opens when the program reads it
			return err == nil
		})
		return func(context.Context) { _ = asked.Close() }
	},
}

func (w *waiting) held() {
	w.t.Helper()
	if _, err := w.recorder.Wait(w.ctx, lab.Happened("hold")); err != nil {
		w.t.Fatal(err)
	}
}

// release lets the lab go on, unless it has gone.
func (w *waiting) release(ctx context.Context) { _ = w.recorder.Release(ctx) }

// check brings the call to wait, lets the change happen and the call go on, and looks at what became of it.
func (w *waiting) check(begin func(*waiting, func()) func(context.Context), c change, becomes string) {
	w.t.Helper()
	given := w.given()
	want, err := authority.Policy(c.policy, w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	if state := string(wire.Get([]byte(given), authority.MetaState)); state != "" {
		want = state
	}
	type result struct {
		meta string
		err  error
	}
	done := make(chan result, 1)
	goOn := begin(w, func() {
		go func() {
			meta, err := w.metaOf(w.s, "s", given)
			done <- result{meta, err}
		}()
	})
	c.do(w)
	ctx, cancel := context.WithCancel(w.ctx)
	w.beside(func() { goOn(ctx) })
	got := <-done
	cancel()
	w.others.Wait()
	check, refused := strings.CutPrefix(becomes, "refused: ")
	var reason *runtime.RefusedError
	switch {
	case refused:
		if !errors.As(got.err, &reason) || reason.Check != check {
			w.t.Errorf("it became %v, %s; want a refusal by %s", got.err, got.meta, check)
		}
		for _, e := range w.recorder.Select(lab.Received(wire.ToolsCall)) {
			if name, _ := wire.GetString(e.Message, "params", "name"); name == "meta" {
				w.t.Errorf("and yet the server got %s", e.Message)
			}
		}
	case got.err != nil:
		w.t.Errorf("it was not sent: %v", got.err)
	case string(wire.Get([]byte(got.meta), authority.MetaState)) != want:
		w.t.Errorf("it was sent under %s, not %s", got.meta, want)
	default:
		launcher := wire.Get([]byte(got.meta), authority.MetaLauncher) != nil
		if launcher != (c.launcher && becomes == "sent") {
			w.t.Errorf("a launcher was sent or not: %s", got.meta)
		}
	}
}
