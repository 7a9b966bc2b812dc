package runtime_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/server"
	"nightporter/internal/mcp/wire"
	"nightporter/test/lab"
	"nightporter/test/programs"
)

// checkRounds holds a stream of events against A5 and A6.
func checkRounds(t *testing.T, events []runtime.Event, dormant ...string) {
	t.Helper()
	type round struct {
		announced map[string]bool
		ended     map[string]runtime.EventType
		complete  bool
	}
	rounds := map[int]*round{}
	generations := map[string]int{}
	last := 0
	for _, e := range events {
		r := rounds[e.Round]
		if e.Type == runtime.StartingBatch {
			if r != nil {
				t.Errorf("round %d is announced twice", e.Round)
			}
			if e.Round <= last {
				t.Errorf("round %d is announced after round %d", e.Round, last)
			}
			last = e.Round
			r = &round{map[string]bool{}, map[string]runtime.EventType{}, false}
			rounds[e.Round] = r
			for _, s := range e.Servers {
				r.announced[s] = true
				if slices.Contains(dormant, s) {
					t.Errorf("the dormant server %s is in round %d", s, e.Round)
				}
			}
			continue
		}
		switch {
		case r == nil:
			t.Fatalf("%+v before its round is announced", e)
		case r.complete:
			t.Errorf("%+v after its round is complete", e)
		case e.Type == runtime.RoundComplete:
			r.complete = true
			for s := range r.announced {
				if r.ended[s] == "" {
					t.Errorf("round %d is complete without %s", e.Round, s)
				}
			}
			if sum := len(e.ReadyServers) + len(e.FailedServers) + len(e.CancelledServers); sum != len(r.announced) {
				t.Errorf("the sum of round %d has %d servers of %d", e.Round, sum, len(r.announced))
			}
			for kind, list := range map[runtime.EventType][]string{runtime.Ready: e.ReadyServers, runtime.Failed: e.FailedServers, runtime.Cancelled: e.CancelledServers} {
				for _, s := range list {
					if r.ended[s] != kind {
						t.Errorf("round %d: %s ended %s, the sum says %s", e.Round, s, r.ended[s], kind)
					}
				}
			}
		default:
			if !r.announced[e.Server] {
				t.Errorf("%+v was not announced", e)
			}
			if r.ended[e.Server] != "" {
				t.Errorf("%s ended twice in round %d", e.Server, e.Round)
			}
			r.ended[e.Server] = e.Type
			// A start that was given up may end after a later one; its number tells them apart.
			key := fmt.Sprint(e.Owner, "/", e.Server, "/", e.Generation)
			if generations[key]++; generations[key] > 1 {
				t.Errorf("%s ended twice", key)
			}
		}
	}
	for number, r := range rounds {
		if !r.complete {
			t.Errorf("round %d is not complete", number)
		}
	}
}

// record collects the events of a runtime until the returned function is called, which returns them.
func record(rt *runtime.Runtime) func() []runtime.Event {
	events, stop := rt.Watch()
	var all []runtime.Event
	var wg sync.WaitGroup
	wg.Go(func() {
		for e := range events {
			all = append(all, e)
		}
	})
	return func() []runtime.Event {
		stop()
		wg.Wait()
		return all
	}
}

func TestA5BatchIsAnnouncedBeforeAnyOfItEnds(t *testing.T) {
	h := newHouse(t)
	one := 1
	sleeper := h.lab(lab.Config{Name: "sleeper", Tools: lab.Tools("echo")})
	h.learn(sleeper)
	rt, s := h.open(sleeper,
		h.lab(lab.Config{Name: "fast", Tools: lab.Tools("echo")}),
		h.lab(lab.Config{Name: "slow", Tools: lab.Tools("echo"), StartDelay: lab.Duration(300 * time.Millisecond)}),
		h.lab(lab.Config{Name: "bad", Exit: &one}),
		"[mcp_servers.off]\ncommand = \"x\"\nenabled = false\n",
	)
	stop := record(rt)
	if err := s.Start(h.ctx, 0); err != nil {
		t.Fatal(err)
	}
	s.Settle(h.ctx)
	if _, err := h.call(s, "sleeper", "echo", `{}`); err != nil {
		t.Fatal(err)
	}
	h.close(rt)
	events := stop()
	checkRounds(t, events)
	if len(events) != 5+3 || !slices.Equal(events[0].Servers, []string{"bad", "fast", "slow"}) || !slices.Equal(events[5].Servers, []string{"sleeper"}) {
		t.Errorf("events %+v", events)
	}
}

// schedules is how many generated workloads are run: all of them in CI, some at a desk.
func schedules() int {
	switch {
	case programs.Strict():
		return 200
	case testing.Short():
		return 3
	}
	return 20
}

// Any mix of servers, speeds, failures, floods, hangs, wakes, restarts, cancellations and reloads keeps the order of
// events (A5, A6), answers every call, and leaves no process and no descriptor.
func TestA6RoundsKeepTheirOrderUnderAnyWorkload(t *testing.T) {
	fds := descriptors(t)
	t.Run("schedule", func(t *testing.T) {
		for i := range schedules() {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel() // most of it is waiting
				schedule(t, rand.New(rand.NewPCG(uint64(i), 7)))
			})
		}
	})
	h := &house{t: t, ctx: t.Context()}
	h.eventually(func() bool { return descriptors(t) <= fds+2 }) // lab.Binary's and the poller's own
}

func descriptors(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("descriptors can be counted on Linux alone")
	}
	return len(entries)
}

func schedule(t *testing.T, random *rand.Rand) {
	h := newHouse(t)
	entry := func(n int, extra ...string) string {
		c := lab.Config{
			Name: fmt.Sprintf("s%d", n), Tools: lab.Tools("echo", "exit", "hang", "stderr", "junk", "big"),
			StartDelay: lab.Duration(random.IntN(60)) * lab.Duration(time.Millisecond),
		}
		switch random.IntN(8) {
		case 0:
			status := 1
			c.Exit = &status
		case 1:
			c.Methods = map[string]lab.Fault{"tools/list": {Silent: true}}
		case 2:
			c.IgnoreEOF, c.IgnoreTerm, c.Grandchild = true, true, true
		}
		extra = append(extra, "startup_timeout_sec = 0.5", "tool_timeout_sec = 0.3")
		if random.IntN(3) == 0 {
			extra = append(extra, "shared = true", "supports_parallel_tool_calls = true")
		}
		return h.lab(c, extra...)
	}
	var entries []string
	for n := range 4 {
		entries = append(entries, entry(n))
	}
	other := append(slices.Clone(entries[:2]), entry(2), entry(5))
	rt := h.runtime(entries...)
	stop := record(rt)
	var wg sync.WaitGroup
	for client := range 2 {
		s := rt.Open(h.ctx, runtime.ScopeOptions{Name: fmt.Sprint("client ", client), Dir: h.dir, Owner: &owner{}})
		wg.Go(func() { _ = s.Start(h.ctx, 0) })
		for range 3 {
			moves := make([]int, 5)
			for m := range moves {
				moves[m] = random.IntN(40)
			}
			wg.Go(func() {
				for _, move := range moves {
					name := fmt.Sprintf("s%d", move%4)
					switch move / 4 {
					case 0, 1, 2:
						_, _ = h.call(s, name, "echo", `{}`)
					case 3:
						_ = s.Restart(h.ctx, name)
					case 4:
						_, _ = h.call(s, name, "exit", `{"status":1}`)
					case 5:
						_, _ = h.call(s, name, "stderr", `{"bytes":3000000}`)
					case 6:
						_, _ = h.call(s, name, "junk", `{}`)
					case 7:
						ctx, cancel := context.WithTimeout(h.ctx, 100*time.Millisecond)
						_, _ = s.CallTool(ctx, name, "hang", server.Request{Method: wire.ToolsCall, Params: []byte(`{"name":"hang"}`)})
						cancel()
					case 8:
						rt.Reload(h.ctx, h.config(other...))
					case 9:
						_ = s.Stop(h.ctx, name)
					}
				}
				if moves[0] < 4 {
					s.Close(h.ctx)
				}
			})
		}
	}
	wg.Wait()
	if h.ctx.Err() != nil {
		t.Error("a call was not answered")
	}
	h.close(rt)
	checkRounds(t, stop())
	starts := h.recorder.Select(lab.Happened("start"))
	if _, err := h.recorder.WaitN(h.ctx, len(starts), lab.Happened("gone")); err != nil {
		t.Errorf("processes are left: %v", err)
	}
}
