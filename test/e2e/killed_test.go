package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"nightporter/test/fakemodel"
	"nightporter/test/lab"
	"nightporter/test/programs"
)

// killedTime is how long after a kill -9 processes of the run may live.
const killedTime = 5 * time.Second

// agentProcess is the run's agent.
func (w *world) agentProcess(p program) *os.Process {
	w.t.Helper()
	var pids []int
	for pid := range w.processes() {
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && exe == resolved(w.t, p.find(w.t)) {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		w.t.Fatalf("the agent does not run; there are %v", w.processes())
	}
	process, err := os.FindProcess(slices.Min(pids))
	if err != nil {
		w.t.Fatal(err)
	}
	return process
}

// inCall starts a run and waits until its server, which has a grandchild in a session of its own and takes no
// notice of the end of its input or SIGTERM, hangs in a call.
func (w *world) inCall(p program, recorder *lab.Recorder) *running {
	w.t.Helper()
	w.config(w.lab(lab.Config{Name: "lab", Log: recorder.Address, Tools: lab.Tools("grandchild", "hang"), IgnoreEOF: true, IgnoreTerm: true}))
	r := w.start("run", "--agent", p.agent, "--server", "lab", "--conversation", "ann", "--output", "json", "work")
	r.waitFor(func(ctx context.Context) error {
		_, called := recorder.WaitN(ctx, 2, lab.Received("tools/call"))
		_, born := recorder.Wait(ctx, lab.Happened("grandchild"))
		return errors.Join(called, born)
	})
	return r
}

// allGone checks that nothing of the run is alive: what has its environment, and every lab and grandchild.
func (w *world) allGone(recorder *lab.Recorder) {
	w.t.Helper()
	w.gone(killedTime)
	for _, started := range recorder.Entries() {
		if started.What != "start" && started.What != "grandchild" {
			continue
		}
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", started.PID)); err == nil {
			w.t.Errorf("%s %d is still there", started.Name, started.PID)
		}
	}
}

// goesOn checks that the conversation of a run that was killed goes on. Claude Code writes its session to disk some time after
// what happens in it (measured: of a run that was killed within its first second there may be nothing): then a new one is
// begun, and a note says so.
func (w *world) goesOn(p program) {
	w.t.Helper()
	o, r := w.outcome("--agent", p.agent, "--conversation", "ann", "go on")
	w.replied(o, r, "gone on")
	lost := p.agent == claude.agent && slices.ContainsFunc(o.Boundary.Notes, func(note string) bool { return strings.Contains(note, "did not know session") })
	if o.Resumed == lost {
		w.t.Errorf("resumed %v, notes %q", o.Resumed, o.Boundary.Notes)
	}
}

func hangs() fakemodel.Script {
	rest := fakemodel.Says("gone on") // an agent without its gateway may ask once more before it is ended
	return fakemodel.Script{Steps: []fakemodel.Step{call("lab", "grandchild", `{}`), call("lab", "hang", `{}`)}, Default: &rest}
}

func TestAnAgentKilledInACallLeavesNothingBehind(t *testing.T) {
	eachAgent(t, hangs, func(t *testing.T, w *world, p program) {
		recorder := lab.Record(t)
		r := w.inCall(p, recorder)
		if err := w.agentProcess(p).Kill(); err != nil {
			t.Fatal(err)
		}
		w.allGone(recorder)
		done := r.end()
		o := w.outcomeOf(done.stdout)
		if done.code != 1 || o.Status != "failed" || o.code() != "no_result" || o.SessionID == "" {
			t.Errorf("exit %d, outcome %s", done.code, done.stdout)
		}
		w.goesOn(p)
	})
}

func TestANightporterKilledInARunLeavesNothingBehind(t *testing.T) {
	eachAgent(t, hangs, func(t *testing.T, w *world, p program) {
		recorder := lab.Record(t)
		r := w.inCall(p, recorder)
		agent := w.agentProcess(p)
		r.signal(os.Kill)
		w.allGone(recorder)
		if err := agent.Signal(os.Interrupt); err == nil {
			t.Errorf("the agent is still there")
		}
		w.goesOn(p)
	})
}

// What an agent's own shell started, in a session of its own and deaf to signals, ends with the run as well.
func TestNothingThatAnAgentsShellStartedOutlivesTheRun(t *testing.T) {
	for _, killed := range []string{"the agent", "Nightporter"} {
		t.Run(killed, func(t *testing.T) {
			eachAgent(t, hangs, func(t *testing.T, w *world, p program) {
				sh, setsid := programs.Find(t, "sh"), programs.Find(t, "setsid")
				born := filepath.Join(w.home, "born")
				child := fmt.Sprintf(`trap "" TERM HUP INT; echo $$ >%s; exec sleep 600 >/dev/null 2>&1 </dev/null`, born)
				command := fmt.Sprintf("%s -f %s -c '%s'; until test -s %s; do sleep 0.01; done", setsid, sh, child, born)
				shell := fakemodel.Call{Name: "Bash", Arguments: json.RawMessage(text(object{"command": command}))}
				if p.agent == codex.agent {
					shell = fakemodel.Call{Name: "exec_command", Arguments: json.RawMessage(text(object{"cmd": command}))}
				}
				w.ask(fakemodel.Step{Parts: []fakemodel.Part{{Call: &shell}}}, held("done"))
				r := w.start("run", "--agent", p.agent, "--tools", "bypass", "--built-in", "all", "--output", "json", "work")
				r.waitHeld()
				pid, err := os.ReadFile(born)
				if err != nil {
					t.Fatalf("the agent's shell started nothing: %v; the model was told %+v", err, w.model.ModelRequests()[1].ToolResults())
				}
				process := "/proc/" + strings.TrimSpace(string(pid))
				if _, err := os.Stat(process); err != nil {
					t.Fatal(err)
				}
				if killed == "Nightporter" {
					r.signal(os.Kill)
				} else if err := w.agentProcess(p).Kill(); err != nil {
					t.Fatal(err)
				}
				w.gone(killedTime)
				if _, err := os.Stat(process); err == nil {
					t.Errorf("what the shell started is still there")
				}
			})
		})
	}
}

func TestANightporterKilledWhileAServerStartsLeavesNothingBehind(t *testing.T) {
	w, recorder := newWorld(t, hangs()), lab.Record(t)
	w.install(claude)
	w.config(w.lab(lab.Config{
		Name: "lab", Log: recorder.Address, Tools: lab.Tools("echo"), Grandchild: true, IgnoreEOF: true, IgnoreTerm: true,
		Methods: map[string]lab.Fault{"initialize": {Silent: true}},
	}))
	r := w.start("run", "--agent", "claude", "--server", "lab", "--output", "json", "work")
	r.waitFor(func(ctx context.Context) error {
		_, asked := recorder.Wait(ctx, lab.Received("initialize"))
		_, born := recorder.Wait(ctx, lab.Happened("grandchild"))
		return errors.Join(asked, born)
	})
	r.signal(os.Kill)
	w.allGone(recorder)
	if asked := len(w.model.Requests()); asked > 0 {
		t.Errorf("the model was asked %d times", asked)
	}
}

// The next command clears away what a killed Nightporter could not.
func TestStatusAfterAKilledNightporterTellsNoneOfIt(t *testing.T) {
	w, recorder := newWorld(t, hangs()), lab.Record(t)
	w.install(claude)
	r := w.inCall(claude, recorder)
	r.signal(os.Kill)
	<-r.done
	s := w.status()
	if len(s.Processes) != 0 || len(s.Servers) != 1 || s.Servers[0].State == "ready" || s.Servers[0].PID != 0 || s.Servers[0].Owner != "" {
		t.Errorf("status %+v", s)
	}
}
