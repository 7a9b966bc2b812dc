package e2e

import (
	"bytes"
	"os"
	"strings"
	"syscall"
	"testing"

	"nightporter/test/fakemodel"
)

// A conversation survives two signals: each run ends with what it had said, and the next one goes on from there.
func TestAStoppedRunIsResumedByTheNextOfItsConversation(t *testing.T) {
	script := func() fakemodel.Script {
		return fakemodel.Replies(held("BEGUN-ONE"), held("BEGUN-TWO"), fakemodel.Says("finished"))
	}
	eachAgent(t, script, func(t *testing.T, w *world, p program) {
		args := []string{"run", "--agent", p.agent, "--conversation", "ann", "--output", "json"}
		session := ""
		for i, s := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
			r := w.start(append(args, []string{"QUESTION-ONE", "QUESTION-TWO"}[i])...)
			r.waitHeld()
			r.signal(s)
			done := r.end()
			o := w.outcomeOf(done.stdout)
			if done.code != 4 || o.Status != "stopped" || o.code() != "signal" || o.SessionID == "" {
				t.Fatalf("%v: exit %d, outcome %s\nstderr: %s", s, done.code, done.stdout, done.stderr)
			}
			if session == "" {
				session = o.SessionID
			}
			if o.SessionID != session {
				t.Errorf("%v: session %s, want %s", s, o.SessionID, session)
			}
		}
		o, r := w.outcome(append(args[1:], "QUESTION-THREE")...)
		w.replied(o, r, "finished")
		if !o.Resumed || o.SessionID != session {
			t.Errorf("resumed %v, session %s, want %s", o.Resumed, o.SessionID, session)
		}
		asked := w.model.ModelRequests()
		for _, question := range []string{"QUESTION-ONE", "QUESTION-TWO", "QUESTION-THREE"} {
			if !bytes.Contains(asked[len(asked)-1].Body, []byte(question)) {
				t.Errorf("the model was not told %s", question)
			}
		}
	})
}

func TestADeadlineStopsTheRun(t *testing.T) {
	script := func() fakemodel.Script { return fakemodel.Replies(held("begun"), held("begun")) }
	const limit = "3s"
	eachAgent(t, script, func(t *testing.T, w *world, p program) {
		for _, c := range []struct{ flag, code string }{{"--timeout", "timeout"}, {"--idle-timeout", "idle_timeout"}} {
			o, r := w.outcome("--agent", p.agent, c.flag, limit, "work")
			if r.code != 4 || o.Status != "stopped" || o.code() != c.code {
				t.Errorf("%s: exit %d, outcome %s\nstderr: %s", c.flag, r.code, r.stdout, r.stderr)
			}
			if len(w.model.ModelRequests()) > 0 && o.SessionID == "" { // on a loaded machine 3 s end before the model is asked
				t.Errorf("%s: no session", c.flag)
			}
			if !strings.Contains(o.Error.Message, limit) {
				t.Errorf("%s: message %q", c.flag, o.Error.Message)
			}
		}
	})
}
