package runtime_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"nightporter/internal/config"
	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/wire"
	"nightporter/test/lab"
)

func (h *house) config(entries ...string) *config.Config {
	h.t.Helper()
	cfg, err := config.Parse("config.toml", []byte(strings.Join(entries, "\n")))
	if err != nil {
		h.t.Fatal(err)
	}
	return cfg
}

func (h *house) pid(s *runtime.Scope, name string) string {
	h.t.Helper()
	result, err := h.call(s, name, "pid", `{}`)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(wire.Get(result, "content"))
}

func TestA16UnusedServerGoesDormantAgainAndAUsedOneDoesNot(t *testing.T) {
	h := newHouse(t)
	tools := lab.Tools("pid", "echo")
	_, s := h.open(
		h.lab(lab.Config{Name: "idle", Tools: tools}, "idle_stop_sec = 1"),
		h.lab(lab.Config{Name: "busy", Tools: tools, Calls: map[string]lab.Fault{"echo": {Hold: true}}}, "idle_stop_sec = 1"),
		h.lab(lab.Config{Name: "kept", Tools: tools}),
	)
	for _, name := range []string{"idle", "kept"} {
		h.pid(s, name)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := h.call(s, "busy", "echo", `{}`); err != nil {
			t.Errorf("the call in progress: %v", err)
		}
	})
	gone, err := h.recorder.Wait(h.ctx, lab.Happened("gone"))
	if err != nil {
		t.Fatal(err)
	}
	if gone.Name != "idle" {
		t.Errorf("%s ended first", gone.Name)
	}
	got := states(s)
	if got["idle"] != runtime.StateDormant || got["busy"] != runtime.StateReady || got["kept"] != runtime.StateReady {
		t.Errorf("states %v", got)
	}
	if err := h.recorder.Release(h.ctx); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	h.pid(s, "idle")
}

func TestA16CapPutsTheLongestUnusedToSleepAndThenWaits(t *testing.T) {
	h := newHouse(t)
	entries := []string{"[gateway]\nmax_servers = 2\n"}
	for i := range 4 {
		entries = append(entries, h.lab(lab.Config{Name: fmt.Sprintf("s%d", i), Tools: lab.Tools("pid", "echo"), Calls: map[string]lab.Fault{"echo": {Hold: true}}}))
	}
	_, s := h.open(entries...)
	for i := range 3 {
		h.pid(s, fmt.Sprintf("s%d", i))
	}
	if got := states(s); got["s0"] != runtime.StateDormant || got["s1"] != runtime.StateReady || got["s2"] != runtime.StateReady {
		t.Errorf("after three under a cap of two: %v", got)
	}
	var wg sync.WaitGroup
	for _, name := range []string{"s1", "s2"} {
		wg.Go(func() { _, _ = h.call(s, name, "echo", `{}`) })
	}
	if _, err := h.recorder.WaitN(h.ctx, 2, lab.Happened("hold")); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := h.call(s, "s3", "pid", `{}`)
		answered <- err
	}()
	if err := h.recorder.Release(h.ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Errorf("the call that waited for a place: %v", err)
	}
	if err := h.recorder.Release(h.ctx); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	live := len(h.recorder.Select(lab.Happened("start"))) - len(h.recorder.Select(lab.Happened("gone")))
	if live > 2 {
		t.Errorf("%d servers live", live)
	}
}

func TestA40SharedServerIsOneProcessForAllWhoAreTheSameToIt(t *testing.T) {
	h := newHouse(t)
	rt := h.runtime(
		h.lab(lab.Config{Name: "shared", Tools: lab.Tools("pid", "exit", "sleep")}, "shared = true", "supports_parallel_tool_calls = true"),
		h.lab(lab.Config{Name: "own", Tools: lab.Tools("pid")}),
	)
	open := func(dir string) *runtime.Scope {
		return rt.Open(h.ctx, runtime.ScopeOptions{Name: "c", Dir: dir, Owner: &owner{}})
	}
	a, b, elsewhere := open(h.dir), open(h.dir), open(h.t.TempDir())
	if x, y := h.pid(a, "shared"), h.pid(b, "shared"); x != y {
		t.Errorf("shared: %s and %s", x, y)
	}
	if x, y := h.pid(a, "own"), h.pid(b, "own"); x == y {
		t.Errorf("two clients share %s without being told to", x)
	}
	if x, y := h.pid(a, "shared"), h.pid(elsewhere, "shared"); x == y {
		t.Error("a client in another folder shares the process")
	}
	// The progress of one is not told to the other, although both chose the same token.
	var wg sync.WaitGroup
	for _, s := range []*runtime.Scope{a, b} {
		wg.Go(func() {
			if _, err := h.call(s, "shared", "sleep", `{"for":"200ms"}`); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	a.Close(h.ctx)
	h.pid(b, "shared")
	if _, err := h.call(b, "shared", "exit", `{"status":1}`); err == nil {
		t.Error("it did not die")
	}
	h.pid(b, "shared")
	b.Close(h.ctx)
	elsewhere.Close(h.ctx)
	starts := len(h.recorder.Select(lab.Happened("start")))
	if _, err := h.recorder.WaitN(h.ctx, starts, lab.Happened("gone")); err != nil {
		t.Error(err)
	}
}

func TestA39ReloadKeepsWhatIsTheSame(t *testing.T) {
	h := newHouse(t)
	tools := lab.Tools("pid", "echo")
	same := h.lab(lab.Config{Name: "same", Tools: tools})
	filtered := func(extra ...string) string { return h.lab(lab.Config{Name: "filtered", Tools: tools}, extra...) }
	changed := func(text string) string {
		return h.lab(lab.Config{Name: "changed", Tools: tools, Instructions: text, Calls: map[string]lab.Fault{"echo": {Hold: true}}}, "supports_parallel_tool_calls = true")
	}
	removed := h.lab(lab.Config{Name: "removed", Tools: tools})
	rt := h.runtime(same, filtered(), changed("old"), removed)
	told := &owner{}
	s := rt.Open(h.ctx, runtime.ScopeOptions{Name: "c", Dir: h.dir, Owner: told})
	before := map[string]string{}
	for _, name := range []string{"same", "filtered", "changed", "removed"} {
		before[name] = h.pid(s, name)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := h.call(s, "changed", "echo", `{}`); err != nil {
			t.Errorf("the call in progress during the reload: %v", err)
		}
	})
	if _, err := h.recorder.Wait(h.ctx, lab.Happened("hold")); err != nil {
		t.Fatal(err)
	}
	added := h.lab(lab.Config{Name: "added", Tools: tools})
	// The file moved by some lines, too.
	got := rt.Reload(h.ctx, h.config("# a comment\n\n", added, filtered(`disabled_tools = ["echo"]`, "tool_timeout_sec = 7"), same, changed("new")))
	if want := []string{"added", "changed", "removed"}; !slices.Equal(got, want) {
		t.Errorf("changed %v, want %v", got, want)
	}
	if _, err := h.call(s, "removed", "pid", `{}`); err == nil {
		t.Error("the removed server was called")
	}
	if now := h.pid(s, "changed"); now == before["changed"] {
		t.Error("the changed server is the old process")
	}
	if err := h.recorder.Release(h.ctx); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for _, name := range []string{"same", "filtered"} {
		if now := h.pid(s, name); now != before[name] {
			t.Errorf("%s was started anew", name)
		}
	}
	if list := names(s.Tools()); slices.Contains(list, "filtered/echo") || !slices.Contains(list, "filtered/pid") {
		t.Errorf("tools %v", list)
	}
	h.pid(s, "added")
	// removed and the old process of changed
	if _, err := h.recorder.WaitN(h.ctx, 2, lab.Happened("gone")); err != nil {
		t.Error(err)
	}
	told.mu.Lock()
	defer told.mu.Unlock()
	if !slices.Contains(told.changed, wire.ToolsList) {
		t.Errorf("the client was told of %v", told.changed)
	}
}

// What narrows while a call waits for its turn refuses it; what widens does not help one that was refused.
func TestA23AuthorityIsHeldAgainstThePresentBeforeACallIsSent(t *testing.T) {
	for _, c := range []struct {
		name  string
		after func(h *house, tools []string) []string // the configuration while the call waits
		check string                                  // empty: the call is sent
	}{
		{"nothing changed", func(h *house, e []string) []string { return e }, ""},
		{"filter narrowed", func(h *house, e []string) []string { return []string{e[0] + "disabled_tools = [\"pid\"]\n"} }, "filter"},
		{"filter narrowed elsewhere", func(h *house, e []string) []string { return []string{e[0] + "disabled_tools = [\"other\"]\n"} }, ""},
		{"server removed", func(*house, []string) []string { return nil }, "server"},
		{"server defined anew", func(h *house, e []string) []string { return []string{e[0] + "env = { X = \"1\" }\n"} }, "server"},
		{"server disabled", func(h *house, e []string) []string { return []string{e[0] + "enabled = false\n"} }, "server"},
		{"timeout changed", func(h *house, e []string) []string { return []string{e[0] + "tool_timeout_sec = 9\n"} }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHouse(t)
			entries := []string{h.lab(lab.Config{Name: "s", Tools: lab.Tools("pid", "echo"), Calls: map[string]lab.Fault{"echo": {Hold: true}}})}
			rt := h.runtime(entries...)
			s := rt.Open(h.ctx, runtime.ScopeOptions{Name: "c", Dir: h.dir, Owner: &owner{}})
			h.pid(s, "s")
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = h.call(s, "s", "echo", `{}`) })
			if _, err := h.recorder.Wait(h.ctx, lab.Happened("hold")); err != nil {
				t.Fatal(err)
			}
			// The second call waits behind the first.
			waiting := make(chan error, 1)
			issued := make(chan struct{})
			go func() {
				close(issued)
				_, err := h.call(s, "s", "pid", `{}`)
				waiting <- err
			}()
			<-issued
			h.eventually(func() bool { return s.Waiting("s") == 1 })
			rt.Reload(h.ctx, h.config(c.after(h, entries)...))
			if err := h.recorder.Release(h.ctx); err != nil {
				t.Fatal(err)
			}
			err := <-waiting
			wg.Wait()
			var refused *runtime.RefusedError
			switch {
			case c.check == "" && err != nil:
				t.Errorf("it was not sent: %v", err)
			case c.check != "" && (!errors.As(err, &refused) || refused.Check != c.check):
				t.Errorf("got %v, want a refusal by the check %q", err, c.check)
			}
		})
	}
}

// eventually waits for what nothing announces.
func (h *house) eventually(met func() bool) {
	h.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !met() {
		select {
		case <-tick.C:
		case <-h.ctx.Done():
			h.t.Fatal("it did not come about")
		}
	}
}

func TestA23ChangedCatalogRefusesCallsThatWereIssuedBefore(t *testing.T) {
	h := newHouse(t)
	_, s := h.open(h.lab(lab.Config{Name: "s", Tools: lab.Tools("addtool", "pid")}))
	h.pid(s, "s")
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := h.call(s, "s", "addtool", `{"name":"new"}`); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
	h.eventually(func() bool { return len(s.Tools()) == 3 })
	// One issued under the new catalog is fine.
	h.pid(s, "s")
}

// The policy that a server is told is that of the issuing call, never that of the session's past
// (facts/codex-runtime.md, section 5: Codex's own is stale after a change between turns).
func TestA22StateOfTheIssuingCallReachesTheServer(t *testing.T) {
	h := newHouse(t)
	_, s := h.open(h.lab(lab.Config{Name: "s", Tools: lab.Tools("meta"), Experimental: []byte(`{"codex/sandbox-state":{}}`)}))
	for _, state := range []string{`{"permissionProfile":{"type":"disabled"},"x":1.0}`, `{"permissionProfile":{"type":"managed"},"x":12345678901234567890}`} {
		result, err := h.callMeta(s, "s", "meta", state)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(result, strings.Trim(string(wire.Quote(state)), `"`)) {
			t.Errorf("the server got %s, want %s", result, state)
		}
	}
}

func TestA30ServerBoundToAnAuthorityIsStartedAnewForAnother(t *testing.T) {
	h := newHouse(t)
	_, s := h.open(
		h.lab(lab.Config{Name: "bound", Tools: lab.Tools("pid")}, "authority_bound = true"),
		h.lab(lab.Config{Name: "free", Tools: lab.Tools("pid")}),
	)
	for name, anew := range map[string]bool{"bound": true, "free": false} {
		var pids []string
		for _, state := range []string{`{"a":1}`, `{"a":1}`, `{"a":2}`} {
			result, err := h.callMeta(s, name, "pid", state)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, result)
		}
		if pids[0] != pids[1] || (pids[1] != pids[2]) != anew {
			t.Errorf("%s: processes %q", name, pids)
		}
	}
}
