package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"nightporter/test/fakemodel"
	"nightporter/test/lab"
	"nightporter/test/programs"
)

// decides is a hook that does what the name of the tool says. It keeps each question.
const decides = `#!/bin/sh
q=$(cat)
d=$(printf %s "$q" | sed 's/^{"digest":"\([0-9a-f]*\)".*/\1/')
t=$(printf %s "$q" | sed 's/.*"tool":"\([A-Za-z]*\)".*/\1/')
printf '%s\n' "$q" >"question-$t"
case $t in
approved | Read) echo '{"decision":"approve","digest":"'$d'","by":"ann"}' ;;
denied) echo '{"decision":"deny","digest":"'$d'","by":"ann","reason":"not on a Sunday"}' ;;
crashes) echo '{"decision":"approve","digest":"'$d'"}'; kill -9 $$ ;;
another) echo '{"decision":"approve","digest":"00'$d'"}' ;;
hangs) echo $$ >pid.part; mv pid.part pid; sleep 1000 ;;
esac
`

// decided configures a hook, and the server s with tools that want approval.
func (w *world) decided(timeout string, tools ...string) {
	w.t.Helper()
	folder := filepath.Join(w.home, "np")
	w.write(filepath.Join(folder, "ask.sh"), decides)
	if err := os.Chmod(filepath.Join(folder, "ask.sh"), 0o700); err != nil {
		w.t.Fatal(err)
	}
	behaves := map[string]string{}
	for _, tool := range tools {
		behaves[tool] = "echo"
	}
	w.config(fmt.Sprintf("on_approval = [\"./ask.sh\"]\napproval_timeout = %q\n", timeout) +
		w.lab(lab.Config{Name: "s", Tools: lab.Tools(tools...), Behaves: behaves}) + "default_tools_approval_mode = \"prompt\"\n")
}

// until waits for what another process does to files.
func until(holds func() bool) func(context.Context) error {
	return func(ctx context.Context) error {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for !holds() {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
}

// audited are the calls of a run that are recorded, by tool.
func (w *world) audited(run string) map[string]auditedCall {
	w.t.Helper()
	r := w.run("audit", "--run", run, "--json")
	var list []auditedCall
	if err := json.Unmarshal([]byte(r.stdout), &list); err != nil {
		w.t.Fatalf("%v: %s%s", err, r.stdout, r.stderr)
	}
	calls := map[string]auditedCall{}
	for _, c := range list {
		calls[c.Tool] = c
	}
	return calls
}

type auditedCall struct {
	Server, Tool, Outcome, Detail, Approval, Authority string
	ApprovalWaitMS                                     float64 `json:"approval_wait_ms"`
}

func TestACallIsMadeAsAPersonDecides(t *testing.T) {
	tools := []string{"approved", "denied", "crashes", "another"}
	script := func() fakemodel.Script {
		var steps []fakemodel.Step
		for _, tool := range tools {
			steps = append(steps, call("s", tool, `{"n":1}`))
		}
		return fakemodel.Replies(append(steps, fakemodel.Says("all are decided"))...)
	}
	eachAgent(t, script, func(t *testing.T, w *world, p program) {
		w.decided("5m", tools...)
		o, r := w.outcome("--agent", p.agent, "--server", "s", "--conversation", "ann", "go")
		w.replied(o, r, "all are decided")
		if want := []string{"mcp__s__denied", "mcp__s__crashes", "mcp__s__another"}; !slices.Equal(o.Denials, want) {
			t.Errorf("denials %q, want %q", o.Denials, want)
		}
		if len(o.ToolCalls) != 1 || o.ToolCalls[0].Tool != "approved" || !o.ToolCalls[0].OK {
			t.Errorf("calls %+v", o.ToolCalls)
		}
		requests := w.model.ModelRequests()
		last := string(requests[len(requests)-1].Body)
		for _, reason := range []string{"not on a Sunday", "ended by signal: killed", "its digest is not that of this question"} {
			if !strings.Contains(last, reason) {
				t.Errorf("the model was not told %q", reason)
			}
		}
		var asked map[string]any
		question, err := os.ReadFile(filepath.Join(w.home, "np", "question-approved"))
		if err != nil || json.Unmarshal(question, &asked) != nil {
			t.Fatalf("question %s (%v)", question, err)
		}
		for member, want := range map[string]string{"run": o.Run, "conversation": "ann", "agent": p.agent, "server": "s", "tool": "approved"} {
			if asked[member] != want {
				t.Errorf("asked with %s %v, want %s", member, asked[member], want)
			}
		}
		calls := w.audited(o.Run)
		if c := calls["approved"]; c.Outcome != "ok" || c.Approval != "approved by ann" || c.ApprovalWaitMS <= 0 || c.Authority != asked["authority"] {
			t.Errorf("recorded %+v", c)
		}
		if c := calls["denied"]; c.Outcome != "refused" || c.Approval != "denied by ann" || !strings.Contains(c.Detail, "not on a Sunday") {
			t.Errorf("recorded %+v", c)
		}
	})
}

func TestACallThatNobodyDecidesAboutIsRefused(t *testing.T) {
	script := func() fakemodel.Script {
		return fakemodel.Replies(call("s", "hangs", `{}`), fakemodel.Says("nobody came"))
	}
	eachAgent(t, script, func(t *testing.T, w *world, p program) {
		w.decided("1s", "hangs")
		o, r := w.outcome("--agent", p.agent, "--server", "s", "go")
		w.replied(o, r, "nobody came")
		if !slices.Equal(o.Denials, []string{"mcp__s__hangs"}) || len(o.ToolCalls) != 0 {
			t.Errorf("denials %q, calls %+v", o.Denials, o.ToolCalls)
		}
		if c := w.audited(o.Run)["hangs"]; c.Outcome != "refused" || !strings.Contains(c.Detail, "nobody approved it within 1s") || c.ApprovalWaitMS < 1000 {
			t.Errorf("recorded %+v", c)
		}
	})
}

func TestARunThatIsStoppedWaitsForNobody(t *testing.T) {
	script := func() fakemodel.Script { return fakemodel.Replies(call("s", "hangs", `{}`)) }
	eachAgent(t, script, func(t *testing.T, w *world, p program) {
		w.decided("5m", "hangs")
		r := w.start("run", "--agent", p.agent, "--server", "s", "--output", "stream-json", "go")
		var hook int
		r.waitFor(until(func() bool {
			text, err := os.ReadFile(filepath.Join(w.home, "np", "pid"))
			_, _ = fmt.Sscan(string(text), &hook)
			return err == nil
		}))
		r.signal(syscall.SIGTERM)
		done := r.end()
		o := w.lastEvent(done)
		if done.code != 4 || o.Status != "stopped" || len(o.Denials) != 0 {
			t.Errorf("exit %d, outcome %+v\nstderr: %s", done.code, o, done.stderr)
		}
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", hook)); err == nil {
			t.Errorf("the hook, process %d, is left", hook)
		}
		if !strings.Contains(done.stdout, `"activity":"waiting for approval of mcp__s__hangs"`) {
			t.Errorf("nobody was told of the wait: %s", done.stdout)
		}
	})
}

// The agent's own tools: those of Claude Code alone can wait.
func TestAnOwnToolOfClaudeIsRecordedAsAPersonDecided(t *testing.T) {
	w := newWorld(t, fakemodel.Script{})
	outside := filepath.Join(w.home, "outside.txt")
	w.write(outside, "the text outside")
	read := fakemodel.Step{Parts: []fakemodel.Part{{Call: &fakemodel.Call{Name: "Read", Arguments: json.RawMessage(`{"file_path":"` + outside + `"}`)}}}}
	w.ask(read, fakemodel.Says("read"))
	w.install(claude)
	w.decided("5m", "approved")
	o, r := w.outcome("--agent", "claude", "--built-in", "read-only", "go")
	w.replied(o, r, "read")
	requests := w.model.ModelRequests()
	if len(o.Denials) != 0 || !strings.Contains(string(requests[len(requests)-1].Body), "the text outside") {
		t.Errorf("denials %q", o.Denials)
	}
	if c := w.audited(o.Run)["Read"]; c.Server != "" || c.Outcome != "ok" || c.Approval != "approved by ann" || c.Authority == "" {
		t.Errorf("recorded %+v", c)
	}
}

// The example of the page is what people begin with.
func TestTheExampleOfAnApproverWorks(t *testing.T) {
	python := programs.Find(t, "/usr/bin/python3")
	page, err := os.ReadFile("../../docs/approvals.md")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)```python\n(.*?)```").FindSubmatch(page)
	if example == nil {
		t.Fatal("the page has no example")
	}
	w := newWorld(t, fakemodel.Replies(call("s", "approved", `{}`), call("s", "denied", `{}`), fakemodel.Says("done")))
	w.install(claude)
	w.decided("5m", "approved", "denied")
	w.write(filepath.Join(w.home, "np", "ask.py"), string(example[1]))
	config := filepath.Join(w.home, "np", "config.toml")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	w.write(config, strings.Replace(string(text), `["./ask.sh"]`, fmt.Sprintf("[%q, \"./ask.py\"]", python), 1))
	r := w.start("run", "--agent", "claude", "--server", "s", "--output", "json", "go")
	for _, decision := range []string{"approve", "deny"} {
		var question string
		r.waitFor(until(func() bool {
			found, _ := filepath.Glob(filepath.Join(w.home, "approvals", "*.json"))
			if len(found) == 1 {
				question = found[0]
			}
			return len(found) == 1
		}))
		w.write(strings.TrimSuffix(question, "json")+decision, "")
		r.waitFor(until(func() bool {
			_, err := os.Stat(question)
			return err != nil
		}))
	}
	done := r.end()
	o := w.outcomeOf(done.stdout)
	w.replied(o, done, "done")
	if !slices.Equal(o.Denials, []string{"mcp__s__denied"}) || len(o.ToolCalls) != 1 {
		t.Errorf("denials %q, calls %+v", o.Denials, o.ToolCalls)
	}
}
