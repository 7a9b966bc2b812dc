package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"nightporter/test/fakemodel"
	"nightporter/test/lab"
)

// refused checks a command that must end with a code, nothing on standard output and all of these words in its error.
func (w *world) refused(r result, code int, words ...string) {
	w.t.Helper()
	if r.code != code || r.stdout != "" {
		w.t.Errorf("exit %d, want %d; stdout %q", r.code, code, r.stdout)
	}
	for _, word := range words {
		if !strings.Contains(r.stderr, word) {
			w.t.Errorf("the error does not say %q: %s", word, r.stderr)
		}
	}
}

func TestAConfigurationThatDoesNotParseIsToldByItsPlace(t *testing.T) {
	w := newWorld(t, fakemodel.Script{})
	w.install(claude)
	file := filepath.Join(w.home, "np", "config.toml")
	w.config("[mcp_servers.a]\ncommand = \"a\"\nargs = [\"x\", \n\n[mcp_servers.b]\n")
	for _, args := range [][]string{
		{"run", "--agent", "claude", "hello"},
		{"run", "--agent", "claude", "--output", "json", "hello"},
		{"prove", "--agent", "claude"},
		{"mcp"},
		{"gateway", "--listen", "127.0.0.1:0"},
		{"status", "--json"},
		{"servers", "list"},
		{"tools", "list"},
	} {
		w.refused(w.run(args...), 2, file+":5:") // the table where a value of the list should be
	}
	if asked := len(w.model.Requests()); asked > 0 {
		t.Errorf("the model was asked %d times", asked)
	}
}

func TestABadEntryDisablesThatServerAlone(t *testing.T) {
	w := newWorld(t, fakemodel.Replies(fakemodel.Says("done")))
	w.install(claude)
	w.config("[mcp_servers.bad]\ncommand = 7\n" + w.lab(lab.Config{Name: "good", Tools: lab.Tools("echo")}))
	o, r := w.outcome("--agent", "claude", "--server", "good", "hello")
	w.replied(o, r, "done")
	w.refused(w.run("run", "--agent", "claude", "--server", "bad", "hello"), 2, "bad", "config.toml:2:", "command")
	for _, s := range w.status().Servers {
		if s.Server == "bad" && (s.State != "disabled" || !strings.Contains(s.Reason, "command")) {
			t.Errorf("status %+v", s)
		}
	}
}

func TestANameThatIsNotThereIsAnsweredWithTheNearest(t *testing.T) {
	w := newWorld(t, fakemodel.Script{})
	w.install(claude)
	w.config(w.lab(lab.Config{Name: "everything"}) + w.lab(lab.Config{Name: "crm"}) + "[grants.desk]\nservers = [\"crm\"]\n")
	w.refused(w.run("run", "--agent", "claude", "--server", "evrything", "hello"), 2, `"evrything"`, "did you mean everything?", "crm")
	w.refused(w.run("run", "--agent", "claude", "--grant", "dsek", "hello"), 2, `"dsek"`, "did you mean desk?")
	w.refused(w.run("run", "--agent", "cluade", "hello"), 2, `"cluade"`, "did you mean claude?", "codex")
	w.refused(w.run("mcp", "--server", "evrything"), 2, "did you mean everything?")
}

func TestAMissingProgramIsToldWithWhatWasSearched(t *testing.T) {
	for _, p := range []program{claude, codex} {
		w := newWorld(t, fakemodel.Script{}) // with neither agent
		w.env = append(w.env, "PATH="+w.bin())
		r := w.run("run", "--agent", p.agent, "hello")
		w.refused(r, 5, "program "+p.agent+" was not found on PATH", w.bin())
		w.refused(w.run("prove", "--agent", p.agent), 5, w.bin())
		o, r := w.outcome("--agent", p.agent, "hello")
		if r.code != 5 || o.Status != "failed" || o.code() != "agent_missing" || !strings.Contains(o.Error.Message, w.bin()) {
			t.Errorf("exit %d, outcome %s", r.code, r.stdout)
		}
	}
}

// A server that does not start is missing from the run, with what it said last; one that is required stops it.
func TestAServerThatExitsAtOnceIsToldWithItsLastWords(t *testing.T) {
	exit := 3
	dies := lab.Config{Name: "dies", Stderr: "no licence for this host\n", Exit: &exit}
	script := func() fakemodel.Script { return fakemodel.Replies(fakemodel.Says("done without it")) }
	eachAgent(t, script, func(t *testing.T, w *world, p program) {
		config := w.lab(lab.Config{Name: "lives", Tools: lab.Tools("echo")}) + w.lab(dies)
		w.config(config)
		args := []string{"--agent", p.agent, "--server", "dies", "--server", "lives", "hello"}
		o, r := w.outcome(args...)
		w.replied(o, r, "done without it")
		if notes := strings.Join(o.Boundary.Notes, "\n"); !strings.Contains(notes, "dies") || !strings.Contains(notes, "no licence for this host") || !strings.Contains(notes, "3") {
			t.Errorf("notes %q", notes)
		}

		w.config(config + "required = true\n")
		o, r = w.outcome(args...)
		if r.code != 1 || o.Status != "failed" || !strings.Contains(o.Error.Message, "no licence for this host") {
			t.Errorf("required: exit %d, outcome %s", r.code, r.stdout)
		}
		if asked := len(w.model.ModelRequests()); asked != 1 {
			t.Errorf("the model was asked %d times, want once", asked)
		}
	})
	w := newWorld(t, fakemodel.Script{})
	w.config(w.lab(dies))
	w.refused(w.run("tools", "call", "dies", "x"), 1, "no licence for this host", "3")
}

// A prompt that the agent cannot take fails the run, and the conversation goes on as if it had not been.
func TestAPromptOverTheAgentsLimitLosesNothing(t *testing.T) {
	script := func() fakemodel.Script {
		return fakemodel.Replies(fakemodel.Says("one"), fakemodel.Says("two"))
	}
	eachAgent(t, script, func(t *testing.T, w *world, p program) {
		args := []string{"--agent", p.agent, "--conversation", "ann"}
		first, r := w.outcome(append(args, "QUESTION-ONE")...)
		w.replied(first, r, "one")

		huge := strings.NewReader(strings.Repeat("many words ", 10<<20/11))
		r = w.startAs(nil, huge, append([]string{"run", "--output", "json"}, args...)...).end()
		o := w.outcomeOf(r.stdout)
		if r.code != 1 || o.Status != "failed" || o.code() != "prompt_too_long" {
			t.Errorf("exit %d, outcome %s", r.code, r.stdout)
		}

		last, r := w.outcome(append(args, "QUESTION-TWO")...)
		w.replied(last, r, "two")
		if !last.Resumed || last.SessionID != first.SessionID {
			t.Errorf("resumed %v, session %s after %s", last.Resumed, last.SessionID, first.SessionID)
		}
		if asked := w.model.ModelRequests(); len(asked) != 2 || !strings.Contains(string(asked[1].Body), "QUESTION-ONE") {
			t.Errorf("the model was asked %d times, want 2, the second time with the history", len(asked))
		}
	})
}
