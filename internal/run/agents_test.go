//go:build unix

package run_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"nightporter/internal/agent"
	"nightporter/internal/agent/claude"
	"nightporter/internal/agent/codex"
	"nightporter/internal/approval"
	"nightporter/internal/ledger"
	"nightporter/internal/run"
	"nightporter/test/fakemodel"
	"nightporter/test/programs"
)

// runWait bounds a run of a real agent, which takes 1 to 3 s on a quiet machine.
const runWait = 3 * time.Minute

// real is a real agent in a home of its own.
type real struct {
	name  string
	spec  func(t *testing.T, home string, model *fakemodel.Server) run.Spec
	forgo func(t *testing.T, home string) // makes the agent forget its sessions
}

var agents = []real{
	{
		name: "claude",
		spec: func(t *testing.T, home string, model *fakemodel.Server) run.Spec {
			return run.Spec{
				Adapter: claude.Adapter{}, Home: filepath.Join(home, ".claude"),
				Request: agent.Request{
					Argv: []string{"claude", "-p"}, Program: programs.Claude(t),
					Env: programs.Env(home, append(model.ClaudeEnv(), "CLAUDE_CODE_MAX_RETRIES=0")...),
				},
			}
		},
		forgo: func(t *testing.T, home string) { remove(t, filepath.Join(home, ".claude", "projects")) },
	},
	{
		name: "codex",
		spec: func(t *testing.T, home string, model *fakemodel.Server) run.Spec {
			folder := filepath.Join(home, "codex")
			if err := os.MkdirAll(folder, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(folder, "config.toml"), []byte(model.CodexConfig()), 0o600); err != nil {
				t.Fatal(err)
			}
			return run.Spec{
				Adapter: codex.Adapter{}, Home: folder,
				Request: agent.Request{
					Argv: []string{"codex", "exec"}, Program: programs.Codex(t),
					Env: programs.Env(home, append(model.CodexEnv(), "CODEX_HOME="+folder)...),
				},
			}
		},
		forgo: func(t *testing.T, home string) { remove(t, filepath.Join(home, "codex", "sessions")) },
	},
}

func remove(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("the agent keeps its sessions elsewhere: %v", err)
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

// each runs a test with every real agent, in a conversation.
func each(t *testing.T, steps []fakemodel.Step, test func(t *testing.T, a real, home string, model *fakemodel.Server, s run.Spec)) {
	if runtime.GOOS != "linux" {
		programs.Skip(t, "the agents that are installed are those for Linux")
	}
	for _, a := range agents {
		t.Run(a.name, func(t *testing.T) {
			home, model := programs.Home(t), fakemodel.Start(t, fakemodel.Replies(steps...))
			s := a.spec(t, home, model)
			s.Conversation, s.Ledger = "ann", ledger.Open(filepath.Join(t.TempDir(), "ledger"))
			s.Transcripts = filepath.Join(t.TempDir(), "runs")
			s.Timeout = runWait
			s.Request.Mode, s.Request.BuiltIn, s.Request.Prompt = agent.Granted, agent.BuiltInNone, "what is it?"
			test(t, a, home, model, s)
		})
	}
}

func TestARealAgentAnswersAndIsResumed(t *testing.T) {
	steps := []fakemodel.Step{fakemodel.Says("first"), fakemodel.Says("second"), fakemodel.Says("third")}
	each(t, steps, func(t *testing.T, a real, home string, model *fakemodel.Server, s run.Spec) {
		first := run.Do(t.Context(), s)
		if first.Status != run.StatusOK || *first.Reply != "first" || first.SessionID == "" || first.Resumed || !first.Boundary.Proven {
			t.Fatalf("first run: %s", told(first))
		}
		second := run.Do(t.Context(), s)
		if second.Status != run.StatusOK || *second.Reply != "second" || second.SessionID != first.SessionID || !second.Resumed {
			t.Fatalf("second run: %s", told(second))
		}
		if first.Usage.OutputTokens == 0 || second.Usage.OutputTokens != first.Usage.OutputTokens {
			t.Errorf("two like runs cost %+v and %+v: the second is not told for itself", first.Usage, second.Usage)
		}
		a.forgo(t, home)
		third := run.Do(t.Context(), s)
		if third.Status != run.StatusOK || *third.Reply != "third" || third.SessionID == first.SessionID || third.Resumed ||
			!slices.ContainsFunc(third.Boundary.Notes, func(n string) bool { return strings.Contains(n, "did not know session "+first.SessionID) }) {
			t.Errorf("run after the sessions were lost: %s", told(third))
		}
		if n := len(model.ModelRequests()); n != 3 {
			t.Errorf("the model was asked %d times, want 3: a rejected resume asks nothing", n)
		}
	})
}

func TestARealAgentIsProvenWithoutTheModel(t *testing.T) {
	each(t, nil, func(t *testing.T, _ real, _ string, model *fakemodel.Server, s run.Spec) {
		s.Request.ProveOnly, s.Request.Prompt = true, ""
		o := run.Do(t.Context(), s)
		if o.Status != run.StatusOK || !o.Boundary.Proven || o.Reply != nil || o.AgentVersion == "" {
			t.Errorf("outcome %s", told(o))
		}
		if n := len(model.ModelRequests()); n != 0 {
			t.Errorf("the model was asked %d times", n)
		}
	})
}

func TestARealAgentThatIsStoppedCanBeContinued(t *testing.T) {
	steps := []fakemodel.Step{
		{Parts: []fakemodel.Part{{Text: "half an answer"}, {Hold: true}}},
		fakemodel.Says("the rest"),
	}
	each(t, steps, func(t *testing.T, _ real, _ string, model *fakemodel.Server, s run.Spec) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		go func() {
			if err := model.WaitHeld(ctx); err == nil {
				cancel(errors.New("SIGTERM"))
			}
		}()
		o := run.Do(ctx, s)
		if o.Status != run.StatusStopped || o.Error.Code != agent.CodeSignal || o.SessionID == "" {
			t.Fatalf("stopped run: %s", told(o))
		}
		next := run.Do(t.Context(), s)
		if next.Status != run.StatusOK || *next.Reply != "the rest" || next.SessionID != o.SessionID || !next.Resumed {
			t.Errorf("next run: %s", told(next))
		}
	})
}

// told is an outcome for a test's message.
func told(o run.Outcome) string {
	data, err := json.MarshalIndent(o, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// Claude Code's own tools ask (facts/claude.md, section 8): reading a file outside of the working directory does.
func TestClaudesOwnToolsWaitForAPerson(t *testing.T) {
	secretFile := filepath.Join(t.TempDir(), "outside.txt")
	if err := os.WriteFile(secretFile, []byte("the text outside"), 0o600); err != nil {
		t.Fatal(err)
	}
	arguments := `{"file_path":"` + secretFile + `"}`
	read := fakemodel.Part{Call: &fakemodel.Call{Name: "Read", Arguments: json.RawMessage(arguments)}}
	begin := func(t *testing.T, approve approval.Func, parts ...fakemodel.Part) (run.Outcome, []run.Event, string) {
		home, model := programs.Home(t), fakemodel.Start(t, fakemodel.Replies(fakemodel.Step{Parts: parts}, fakemodel.Says("done")))
		s := agents[0].spec(t, home, model)
		s.Timeout, s.Request.Workdir = runWait, t.TempDir()
		s.Request.Mode, s.Request.BuiltIn, s.Request.Prompt = agent.Granted, agent.BuiltInReadOnly, "read it"
		var once sync.Once
		var events []run.Event
		waits := make(chan struct{})
		s.Events = func(e run.Event) {
			events = append(events, e)
			if strings.HasPrefix(e.Activity, "waiting for approval of Read") {
				once.Do(func() { close(waits) })
			}
		}
		s.Approve = func(ctx context.Context, q approval.Question) approval.Answer {
			select {
			case <-waits: // before that nobody was told
			case <-ctx.Done():
			}
			return approve(ctx, q)
		}
		o := run.Do(t.Context(), s)
		asked := model.ModelRequests()
		return o, events, string(asked[len(asked)-1].Body)
	}
	var questions []approval.Question
	var mu sync.Mutex
	answer := func(a approval.Answer) approval.Func {
		return func(_ context.Context, q approval.Question) approval.Answer {
			mu.Lock()
			defer mu.Unlock()
			questions = append(questions, q)
			return a
		}
	}
	t.Run("approved", func(t *testing.T) {
		o, events, last := begin(t, answer(approval.Answer{Approved: true}), read)
		if o.Status != run.StatusOK || len(o.Denials) != 0 || !strings.Contains(last, "the text outside") {
			t.Errorf("outcome %s\nmodel saw %s", told(o), last)
		}
		if len(questions) != 1 || questions[0].Tool != "Read" || questions[0].Server != "" || string(questions[0].Arguments) != arguments || questions[0].Run != o.Run || questions[0].Agent != "claude" {
			t.Errorf("asked about %+v", questions)
		}
		if !slices.ContainsFunc(events, func(e run.Event) bool {
			return e.Type == run.TypeActivity && e.Activity == "waiting for approval of Read"
		}) {
			t.Errorf("nobody was told: %s", asText(events))
		}
	})
	t.Run("denied", func(t *testing.T) {
		o, events, last := begin(t, answer(approval.Answer{Reason: "not that file"}), read)
		if o.Status != run.StatusOK || !slices.Equal(o.Denials, []string{"Read"}) || strings.Contains(last, "the text outside") || !strings.Contains(last, "not that file") {
			t.Errorf("outcome %s\nmodel saw %s", told(o), last)
		}
		if n := len(slices.DeleteFunc(events, func(e run.Event) bool { return e.Type != run.TypeDenied })); n != 1 {
			t.Errorf("%d denials are told", n)
		}
	})
	t.Run("two at once", func(t *testing.T) {
		questions = nil
		both := make(chan struct{}, 2)
		ask := func(ctx context.Context, q approval.Question) approval.Answer {
			both <- struct{}{}
			for len(both) < 2 && ctx.Err() == nil { // until the other is asked too
				runtime.Gosched()
			}
			return approval.Answer{Approved: strings.Contains(string(q.Arguments), "outside.txt"), Reason: "only that one"}
		}
		other := fakemodel.Part{Call: &fakemodel.Call{Name: "Read", Arguments: json.RawMessage(`{"file_path":"/etc/hostname"}`)}}
		o, _, last := begin(t, ask, read, other)
		if o.Status != run.StatusOK || !slices.Equal(o.Denials, []string{"Read"}) || !strings.Contains(last, "the text outside") || !strings.Contains(last, "only that one") {
			t.Errorf("outcome %s\nmodel saw %s", told(o), last)
		}
	})
	t.Run("proof", func(t *testing.T) {
		home, model := programs.Home(t), fakemodel.Start(t, fakemodel.Replies())
		s := agents[0].spec(t, home, model)
		s.Request.Workdir, s.Request.Mode, s.Request.BuiltIn, s.Request.ProveOnly = t.TempDir(), agent.Granted, agent.BuiltInReadOnly, true
		s.Approve = answer(approval.Answer{})
		o := run.Do(t.Context(), s)
		if o.Status != run.StatusOK || !strings.Contains(asText(o.Proof.Rings), "--permission-prompt-tool stdio") || strings.Contains(asText(o.Proof.Rings), "--permission-prompts none") {
			t.Errorf("outcome %s\nrings %s", told(o), asText(o.Proof.Rings))
		}
	})
}

func asText(v any) string {
	data, _ := json.Marshal(v)
	return string(data)
}
