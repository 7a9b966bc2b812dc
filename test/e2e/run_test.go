package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"syscall"
	"testing"

	"nightporter/test/fakemodel"
)

// echoes is a model that calls echo of the server everything and then answers.
func echoes() fakemodel.Script {
	return fakemodel.Replies(call("everything", "echo", `{"message":"hello from the model"}`), fakemodel.Says("the server said it back"))
}

func TestRunAnswersThroughTheGateway(t *testing.T) {
	eachAgent(t, echoes, func(t *testing.T, w *world, p program) {
		w.config(w.everything("everything") + w.everything("other"))
		o, r := w.outcome("--agent", p.agent, "--server", "everything", "say hello")
		w.replied(o, r, "the server said it back")
		if !o.Boundary.Proven || !slices.Equal(o.Boundary.Servers, []string{"nightporter"}) {
			t.Errorf("boundary %+v", o.Boundary)
		}
		if o.Agent != p.agent || o.Version == "" || o.SessionID == "" {
			t.Errorf("agent %q, version %q, session %q", o.Agent, o.Version, o.SessionID)
		}
		if len(o.ToolCalls) != 1 || o.ToolCalls[0].Server != "everything" || o.ToolCalls[0].Tool != "echo" || !o.ToolCalls[0].OK {
			t.Errorf("tool calls %+v", o.ToolCalls)
		}
		requests := w.model.ModelRequests()
		last := string(requests[len(requests)-1].Body)
		if !strings.Contains(last, "Echo: hello from the model") {
			t.Errorf("the tool's answer did not reach the model")
		}
		if strings.Contains(last, "other__echo") {
			t.Errorf("the model saw a tool that was not granted")
		}
	})
}

// lastEvent checks a run's events, of which the last one and no other is the outcome.
func (w *world) lastEvent(r result) outcome {
	w.t.Helper()
	lines := strings.Split(strings.TrimSuffix(r.stdout, "\n"), "\n")
	for i, line := range lines {
		var event struct {
			Type    string
			Outcome json.RawMessage
		}
		w.object(line, &event)
		last := i == len(lines)-1
		if last != (event.Type == "run.finished") || last != (event.Outcome != nil) {
			w.t.Fatalf("event %d of %d: %s\nstderr: %s", i+1, len(lines), line, r.stderr)
		}
		if last {
			return w.outcomeOf(string(event.Outcome))
		}
	}
	w.t.Fatalf("no events; stderr: %s", r.stderr)
	return outcome{}
}

func TestTheLastEventIsTheOutcome(t *testing.T) {
	script := func() fakemodel.Script {
		refuse := fakemodel.Step{Status: 401, Message: "no such key"}
		return fakemodel.Script{Steps: []fakemodel.Step{fakemodel.Says("hello"), held("begun")}, Default: &refuse}
	}
	eachAgent(t, script, func(t *testing.T, w *world, p program) {
		args := []string{"run", "--agent", p.agent, "--output", "stream-json", "say hello"}
		check := func(r result, code int, status, reason string) {
			t.Helper()
			if o := w.lastEvent(r); r.code != code || o.Status != status || o.code() != reason {
				t.Errorf("exit %d, want %d; outcome %+v\nstderr: %s", r.code, code, o, r.stderr)
			}
		}
		check(w.run(args...), 0, "ok", "")
		r := w.start(args...)
		r.waitHeld()
		r.signal(syscall.SIGTERM)
		check(r.end(), 4, "stopped", "signal")
		check(w.run(args...), 1, "failed", "model_auth")
		w.env = append(w.env, "PATH=/nowhere")
		check(w.run(args...), 5, "failed", "agent_missing")
	})
}
