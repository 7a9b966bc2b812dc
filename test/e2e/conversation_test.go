package e2e

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"nightporter/test/fakemodel"
)

// forgetSession removes what the agent has of a session, as `rm` would.
func (w *world) forgetSession(session string) {
	w.t.Helper()
	removed := 0
	for _, dir := range []string{".claude/projects", ".codex/sessions"} {
		err := filepath.WalkDir(filepath.Join(w.home, filepath.FromSlash(dir)), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && strings.Contains(entry.Name(), session) {
				removed++
				return os.Remove(path)
			}
			return nil
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	if removed == 0 {
		w.t.Fatalf("the agent has no file of session %s", session)
	}
}

func TestAConversationIsResumedUntilItsSessionIsDead(t *testing.T) {
	script := func() fakemodel.Script {
		return fakemodel.Replies(fakemodel.Says("ANSWER-ONE"), fakemodel.Says("ANSWER-TWO"), fakemodel.Says("ANSWER-THREE"), fakemodel.Says("ANSWER-FOUR"))
	}
	eachAgent(t, script, func(t *testing.T, w *world, p program) {
		ask := func(question, answer string) outcome {
			t.Helper()
			o, r := w.outcome("--agent", p.agent, "--conversation", "ann", question)
			w.replied(o, r, answer)
			return o
		}
		knows := func(texts ...string) bool {
			asked := w.model.ModelRequests()
			for _, text := range texts {
				if !bytes.Contains(asked[len(asked)-1].Body, []byte(text)) {
					return false
				}
			}
			return true
		}
		first := ask("QUESTION-ONE", "ANSWER-ONE")
		if first.Resumed {
			t.Error("the first run resumed something")
		}
		second := ask("QUESTION-TWO", "ANSWER-TWO")
		if !second.Resumed || second.SessionID != first.SessionID || !knows("QUESTION-ONE", "ANSWER-ONE", "QUESTION-TWO") {
			t.Errorf("resumed %v, session %s after %s", second.Resumed, second.SessionID, first.SessionID)
		}

		w.forgetSession(first.SessionID)
		third := ask("QUESTION-THREE", "ANSWER-THREE")
		if third.Resumed || third.SessionID == first.SessionID || third.SessionID == "" || knows("QUESTION-ONE") {
			t.Errorf("after its session was deleted: resumed %v, session %s", third.Resumed, third.SessionID)
		}
		if notes := strings.Join(third.Boundary.Notes, "\n"); !strings.Contains(notes, first.SessionID) {
			t.Errorf("no note says why: %q", notes)
		}
		fourth := ask("QUESTION-FOUR", "ANSWER-FOUR")
		if !fourth.Resumed || fourth.SessionID != third.SessionID || !knows("QUESTION-THREE", "ANSWER-THREE") {
			t.Errorf("resumed %v, session %s after %s", fourth.Resumed, fourth.SessionID, third.SessionID)
		}
		if asked := len(w.model.ModelRequests()); asked != 4 {
			t.Errorf("the model was asked %d times, want 4", asked)
		}
	})
}
