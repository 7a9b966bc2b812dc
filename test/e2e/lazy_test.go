package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"nightporter/test/fakemodel"
	"nightporter/test/lab"
	"nightporter/test/programs"
)

// status is what status --json prints.
type status struct {
	Servers   []server
	Processes []struct {
		PID  int
		Kind string
	}
}

type server struct {
	Server, State, Reason, Owner, By string
	Tools, PID                       int
}

func (w *world) status() (s status) {
	w.t.Helper()
	r := w.run("status", "--json")
	if r.code != 0 {
		w.t.Fatalf("status: exit %d\n%s", r.code, r.stderr)
	}
	w.object(r.stdout, &s)
	return s
}

// everythings are the processes of server-everything, by their arguments.
func (w *world) everythings() (pids []int) {
	for pid, args := range w.processes() {
		if strings.Contains(args, programs.Everything(w.t)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Ten servers are configured and granted. Only the first run has to start them all, to ask for their tools.
func TestOfTenServersOneRunsWhenOneToolIsUsed(t *testing.T) {
	const used = "copy-3"
	w := newWorld(t, fakemodel.Script{})
	var config strings.Builder
	grant := []string{"--agent", "", "--output", "json"}
	for i := range 10 {
		name := fmt.Sprintf("copy-%d", i)
		config.WriteString(w.everything(name))
		grant = append(grant, "--server", name)
	}
	w.config(config.String())
	first := true
	for _, p := range agents {
		w.install(p)
		grant[1] = p.agent
		run := func(steps ...fakemodel.Step) *running {
			w.ask(steps...)
			return w.start(append(append([]string{"run"}, grant...), "work")...)
		}
		if first {
			r := run(call(used, "echo", `{"message":"first"}`), fakemodel.Says("one")).end()
			w.replied(w.outcomeOf(r.stdout), r, "one")
			first = false
		}
		t.Run(p.name+" uses one tool", func(t *testing.T) {
			r := run(call(used, "echo", `{"message":"second"}`), held("two"))
			r.waitHeld()
			running := w.everythings()
			if len(running) != 1 {
				t.Errorf("%d servers run, want 1", len(running))
			}
			for _, s := range w.ofRun(t, r) {
				switch {
				case s.Server == used && (s.State != "ready" || len(running) == 1 && s.PID != running[0] || !strings.Contains(s.Reason+s.By, "echo")):
					t.Errorf("the server that is used: %+v", s)
				case s.Server != used && (s.State != "dormant" || s.PID != 0 || !strings.Contains(s.Reason, "not used yet")):
					t.Errorf("a server that is not used: %+v", s)
				}
			}
			w.release()
			done := r.end()
			w.replied(w.outcomeOf(done.stdout), done, "two")
		})
		t.Run(p.name+" uses none", func(t *testing.T) {
			r := run(held("three"))
			r.waitHeld()
			if running := w.everythings(); len(running) != 0 {
				t.Errorf("%d servers run, want none", len(running))
			}
			for _, s := range w.ofRun(t, r) {
				if s.State != "dormant" || s.PID != 0 || !strings.Contains(s.Reason, "not used yet") {
					t.Errorf("a server that is not used: %+v", s)
				}
			}
			w.release()
			done := r.end()
			w.replied(w.outcomeOf(done.stdout), done, "three")
		})
	}
	for _, s := range w.status().Servers {
		if s.State != "dormant" || s.Owner != "" || s.Reason == "" || s.Tools == 0 {
			t.Errorf("after the runs: %+v", s)
		}
	}
}

// ofRun are the servers of a run that goes on, as status tells them: all ten.
func (w *world) ofRun(t *testing.T, r *running) []server {
	t.Helper()
	s := w.status()
	if len(s.Processes) != 1 || s.Processes[0].PID != r.cmd.Process.Pid || s.Processes[0].Kind != "run" {
		t.Errorf("processes %+v, want the run alone", s.Processes)
	}
	if len(s.Servers) != 10 {
		t.Errorf("status tells %d servers, want 10", len(s.Servers))
	}
	for _, server := range s.Servers {
		if !strings.HasPrefix(server.Owner, "run ") || server.Tools == 0 {
			t.Errorf("whose is it, and what has it: %+v", server)
		}
	}
	return s.Servers
}

func TestASecondProcessListsToolsFromTheFirstOnesCatalogs(t *testing.T) {
	w, recorder := newWorld(t, fakemodel.Script{}), lab.Record(t)
	w.config(w.lab(lab.Config{Name: "one", Log: recorder.Address, Tools: lab.Tools("a", "b")}) +
		w.lab(lab.Config{Name: "two", Log: recorder.Address, Tools: lab.Tools("c")}))
	var lists []string
	for range 2 {
		r := w.run("tools", "list", "--json")
		if r.code != 0 {
			t.Fatalf("exit %d: %s", r.code, r.stderr)
		}
		var tools []struct{ Server, Tool string }
		if err := json.Unmarshal([]byte(r.stdout), &tools); err != nil {
			t.Fatal(err)
		}
		lists = append(lists, fmt.Sprint(tools))
		if starts := recorder.Select(lab.Happened("start")); len(starts) != 2 {
			t.Errorf("after list %d, %d servers were started, want 2", len(lists), len(starts))
		}
	}
	if want := "[{one a} {one b} {two c}]"; lists[0] != want || lists[1] != want {
		t.Errorf("listed %q, want %q each time", lists, want)
	}

	// What was found by a command is there for a run, and the other way round.
	w.install(claude)
	w.ask(fakemodel.Says("done"))
	o, r := w.outcome("--agent", "claude", "--server", "one", "work")
	w.replied(o, r, "done")
	if starts := recorder.Select(lab.Happened("start")); len(starts) != 2 {
		t.Errorf("the run started a server that it did not use: %d starts in all, want 2", len(starts))
	}
	asked := w.model.ModelRequests()
	if offered := strings.Join(asked[len(asked)-1].MCPTools(), " "); offered != "mcp__nightporter__one__a mcp__nightporter__one__b" {
		t.Errorf("the model was offered %q", offered)
	}
}
