//go:build unix

package run

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"nightporter/internal/agent"
	"nightporter/internal/agent/command"
	"nightporter/internal/approval"
	"nightporter/internal/ledger"
	"nightporter/internal/lines"
	"nightporter/internal/secret"
)

func TestACommandAnswers(t *testing.T) {
	s := specOf(t, nil)
	s.Adapter = command.Adapter{}
	s.Request.Argv = []string{"sh", "-c", `tr a-z A-Z; pwd >&2`}
	s.Request.Prompt = "what is it?\n"
	s.Request.Unproven = true
	o := Do(t.Context(), s)
	if o.Status != StatusOK || o.Reply == nil || *o.Reply != "WHAT IS IT?" || o.ExitCode() != 0 {
		t.Errorf("outcome %s", asJSON(t, o))
	}
	if o.Boundary.Proven || len(o.Boundary.Notes) == 0 {
		t.Errorf("the boundary of a command is told as %+v", o.Boundary)
	}
}

func TestAnOutcomeHasEveryFieldOfTheContract(t *testing.T) {
	o := Do(t.Context(), specOf(t, &shell{script: "exit 3"}))
	got := asJSON(t, o)
	for _, o := range []*Outcome{&o} {
		o.Run, o.DurationMS, o.Error.Message = "R", 0, "M"
	}
	want := `{"run":"R","conversation":"","agent":"plain","agent_version":"1.0","status":"failed","reply":null,` +
		`"error":{"code":"no_result","message":"M"},"session_id":"","resumed":false,"salvage":null,"denials":[],` +
		`"usage":{"input_tokens":0,"output_tokens":0,"cost_usd":0},"turns":0,"duration_ms":0,` +
		`"boundary":{"proven":false,"how":"","servers":[],"disabled":[],"failed":[],"notes":[]},"tool_calls":[]}`
	if s := asJSON(t, o); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
	if !strings.Contains(got, "exit status 3") {
		t.Errorf("the exit status is not told: %s", got)
	}
}

func TestWhyNothingWasStartedDecidesTheExitCode(t *testing.T) {
	for _, test := range []struct {
		err    error
		status Status
		code   string
		exit   int
	}{
		{&agent.Refusal{What: "--x", Why: "y"}, StatusRefused, agent.CodeRefused, 3},
		{fmt.Errorf("z: %w", &agent.Unproven{Why: "y", Proof: agent.Proof{Failed: []string{"gh"}}}), StatusRefused, agent.CodeBoundary, 3},
		{&agent.Missing{Why: "y"}, StatusFailed, agent.CodeMissing, 5},
		{&agent.Error{Code: agent.CodePromptTooLong}, StatusFailed, agent.CodePromptTooLong, 1},
		{errors.New("y"), StatusFailed, agent.CodeStartFailed, 1},
	} {
		o := Do(t.Context(), specOf(t, &shell{prepare: func(agent.Request) error { return test.err }}))
		if o.Status != test.status || o.Error.Code != test.code || o.ExitCode() != test.exit {
			t.Errorf("%v gives %s, %v, exit %d", test.err, o.Status, o.Error, o.ExitCode())
		}
		if test.code == agent.CodeBoundary && !slices.Equal(o.Boundary.Failed, []string{"gh"}) {
			t.Errorf("what is known of the boundary was lost: %+v", o.Boundary)
		}
	}
	s := specOf(t, &shell{})
	s.Request.Argv, s.Request.Program = []string{"nosuchagent"}, ""
	if o := Do(t.Context(), s); o.ExitCode() != ExitMissing || !strings.Contains(o.Error.Message, "/usr/bin:/bin") {
		t.Errorf("a program that is not there: %s", asJSON(t, o))
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("SIGINT"))
	o := Do(ctx, specOf(t, &shell{prepare: func(agent.Request) error { return ctx.Err() }}))
	if o.Status != StatusStopped || o.Error.Code != agent.CodeSignal || !strings.Contains(o.Error.Message, "SIGINT") || o.ExitCode() != 4 {
		t.Errorf("stopped before the start: %s", asJSON(t, o))
	}
}

func TestTheAgentsEnvironmentIsTheOperatorsLessOurSecrets(t *testing.T) {
	a := &shell{script: `echo "$TMPDIR" "$NIGHTPORTER_TOKEN" "$CRM_TOKEN" "$KEEP" "$(pwd -P)"; mkdir -p "$TMPDIR/a/b"; touch "$TMPDIR/a/b/c"; chmod 500 "$TMPDIR/a/b"; echo reply ok`}
	var d *plain
	a.dialogue = func(r agent.Request) agent.Dialogue { d = &plain{}; return d }
	s := specOf(t, a)
	s.Request.Env = append(s.Request.Env, "TMPDIR=/nowhere", "NIGHTPORTER_TOKEN=n", "CRM_TOKEN=c", "KEEP=k")
	s.Withhold = []string{"CRM_TOKEN"}
	o := Do(t.Context(), s)
	if o.Status != StatusOK || len(o.Boundary.Notes) > 0 {
		t.Fatalf("outcome %s", asJSON(t, o))
	}
	words := strings.Split(d.lines[0], " ")
	tmp, workdir := words[0], a.requests[0].Workdir
	if want := []string{tmp, "", "", "k", workdir}; !slices.Equal(words, want) {
		t.Errorf("the agent saw %q, want %q", words, want)
	}
	private := a.requests[0].Private
	for _, dir := range []string{tmp, private} {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) || filepath.Base(filepath.Dir(dir)) == "nowhere" {
			t.Errorf("%s was left behind (%v)", dir, err)
		}
	}
}

func TestWhatLoadsForeignCodeIsNotHandedOnUnlessItWasGiven(t *testing.T) {
	kept := []string{"HTTPS_PROXY=p", "AWS_PROFILE=a", "CLAUDE_CODE_USE_BEDROCK=1", "NODE_EXTRA_CA_CERTS=/ca", "GIT_AUTHOR_NAME=Ann", "LD_LIBRARY_PATH=/lib", "PYTHONUNBUFFERED=1"}
	given := "NODE_OPTIONS=--max-old-space-size=4096"
	env := append(slices.Clone(kept), given, "BASH_FUNC_git%%=() { evil; }", "BUN_INSPECT_PRELOAD=x", "GIT_CONFIG_KEY_0=core.sshCommand")
	for _, l := range loaders {
		if l.name != "NODE_OPTIONS" && !strings.HasSuffix(l.name, "*") {
			env = append(env, l.name+"=x")
		}
		if l.why == "" {
			t.Errorf("%s has no reason", l.name)
		}
	}
	ours := func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return name == "PWD" || slices.Contains(tempVariables, name)
	}
	if got := slices.DeleteFunc(environ(env, "/tmp/x", "/work", nil, []string{"NODE_OPTIONS"}), ours); !slices.Equal(got, append(kept, given)) {
		t.Errorf("given: %q", got)
	}
	if got := slices.DeleteFunc(environ(env, "/tmp/x", "/work", nil, nil), ours); !slices.Equal(got, kept) {
		t.Errorf("not given: %q", got)
	}
}

func TestWhichVariablesHoldCredentials(t *testing.T) {
	for entry, want := range map[string]bool{
		"AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYmadeup": true,
		"ANTHROPIC_API_KEY=made-up-key-of-a-test":                    true,
		"TLS_KEY=/etc/ssl/private/server.key":                        false,
		"SIGNING_KEY=./keys/of/the/project.pem":                      false,
		"VAULT_TOKEN=https://vault.example/v1/token":                 false,
		"GITHUB_PAT=ghp_made_up_of_a_test":                           true,
		"DB_PASS=hunter2!":                                           true,
		"MYSQL_PWD=hunter2!":                                         true,
		"REGISTRY_AUTH=bWFkZTp1cC1vZi1hLXRlc3Q=":                     true,
		"HTTP_AUTHORIZATION=Bearer made-up-of-a-test":                true,
		"DATABASE_URL=postgres://ann:hunter2@db/crm":                 true,
		"SENTRY_DSN=ann:hunter2@tcp(db:3306)/crm":                    true,
		"SESSION_COOKIE=sid-made-up-of-a-test":                       true,
		"PWD=hunter2hunter2hunter2":                                  false,
		"BYPASS=made-up-of-a-test":                                   false,
		"DATABASE_URL=postgres://db/crm":                             false,
		"HTTPS_PROXY=http://proxy.example:3128":                      false,
		"CACHE_KEY=main":                                             false,
		"GREETING=long-enough-and-no-secret":                         false,
	} {
		if got := len(credentials([]string{entry})) == 1; got != want {
			t.Errorf("%s is a credential: %t, want %t", entry, got, want)
		}
	}
}

func TestThePrivateFolderIsGoneBeforeTheModelCouldReadIt(t *testing.T) {
	a := &shell{script: `echo proven
		tries=0
		while test -e "$TMPDIR/../private" && test $tries -lt 200; do sleep 0.05; tries=$((tries+1)); done
		test -e "$TMPDIR/../private" || echo reply gone`}
	a.prepare = func(r agent.Request) error {
		return os.WriteFile(filepath.Join(r.Private, "token"), []byte("t"), 0o600)
	}
	if o := Do(t.Context(), specOf(t, a)); o.Reply == nil || *o.Reply != "gone" || len(o.Boundary.Notes) > 0 {
		t.Errorf("outcome %s", asJSON(t, o))
	}
}

func TestASecondAttemptHasAPrivateFolderToo(t *testing.T) {
	a := &shell{script: `echo proven; if test -n "$1"; then echo reject; exit 1; fi; echo reply new`}
	a.prepare = func(r agent.Request) error {
		return os.WriteFile(filepath.Join(r.Private, "token"), []byte("t"), 0o600)
	}
	s := specOf(t, a)
	s.Ledger, s.Conversation = ledger.Open(t.TempDir()), "c"
	c, err := s.Ledger.Lock(t.Context(), "c", "earlier")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Record(a.Name(), s.Home, ledger.Session{ID: "dead"}), c.Unlock()); err != nil {
		t.Fatal(err)
	}
	if o := Do(t.Context(), s); o.Reply == nil || *o.Reply != "new" || len(a.requests) != 2 {
		t.Errorf("%d attempts, outcome %s", len(a.requests), asJSON(t, o))
	}
}

func TestAFolderThatTheAgentMadeUnwritableIsRemoved(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "x")
	inner := filepath.Join(folder, "a", "b")
	if err := os.MkdirAll(inner, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{inner, filepath.Dir(inner)} {
		if err := os.Chmod(dir, 0o500); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeAll(folder); err != nil {
		t.Error(err)
	}
}

func TestALineOverTheCapIsToldAndTheRunGoesOn(t *testing.T) {
	d := &plain{}
	a := &shell{
		script:   fmt.Sprintf(`printf BEGIN; head -c %d /dev/zero | tr '\0' x; echo; printf 'nul \000 cr \r\n\377\nreply last'`, lineCap),
		dialogue: func(agent.Request) agent.Dialogue { return d },
	}
	o := Do(t.Context(), specOf(t, a))
	if len(d.dropped) != 1 || len(d.dropped[0]) != lines.Head || !strings.HasPrefix(d.dropped[0], "BEGINxxx") {
		t.Fatalf("dropped %d lines", len(d.dropped))
	}
	if want := []string{"nul \x00 cr ", "\xff", "reply last"}; !slices.Equal(d.lines, want) {
		t.Errorf("lines %q, want %q", d.lines, want)
	}
	if o.Status != StatusOK {
		t.Errorf("outcome %s", asJSON(t, o))
	}
}

func TestAPromptThatIsNeverReadHoldsNothingUp(t *testing.T) {
	s := specOf(t, &shell{script: "echo reply ok"})
	s.Request.Prompt = strings.Repeat("x", 9<<20)
	if o := Do(t.Context(), s); o.Status != StatusOK {
		t.Errorf("outcome %s", asJSON(t, o))
	}
}

func TestASessionIsInTheLedgerAsSoonAsItIsNamedAndIsResumed(t *testing.T) {
	book := ledger.Open(t.TempDir())
	a := &shell{script: `echo "session S1"; echo "cost 2.5"; echo "text $1"; echo "reply ok"`}
	s := specOf(t, a)
	s.Ledger, s.Conversation, s.Home, s.Request.Workdir = book, "ann", t.TempDir(), ""
	recorded := false
	s.Events = func(e Event) {
		if e.Type == TypeSession {
			infos, err := book.List()
			recorded = err == nil && len(infos) == 1 && len(infos[0].Sessions) == 1 && infos[0].Sessions[0].ID == "S1"
		}
	}
	first := Do(t.Context(), s)
	if !recorded || first.Resumed || first.SessionID != "S1" || first.Status != StatusOK {
		t.Fatalf("recorded %t, outcome %s", recorded, asJSON(t, first))
	}
	second := Do(t.Context(), s)
	if !second.Resumed || second.SessionID != "S1" {
		t.Errorf("outcome %s", asJSON(t, second))
	}
	if r := a.requests[1]; r.Resume != "S1" || r.Before.CostUSD != 2.5 {
		t.Errorf("the second run was asked to resume %q from %+v", r.Resume, r.Before)
	}
	if a.requests[0].Workdir == "" || a.requests[0].Workdir != a.requests[1].Workdir {
		t.Errorf("worked in %q and %q", a.requests[0].Workdir, a.requests[1].Workdir)
	}

	other := s
	other.Conversation = "bob"
	if Do(t.Context(), other); a.requests[2].Resume != "" || a.requests[2].Workdir == a.requests[0].Workdir {
		t.Errorf("bob was given ann's session or folder: %+v", a.requests[2])
	}
}

func TestAStoppedRunKeepsWhatItHasAndCanBeContinued(t *testing.T) {
	book := ledger.Open(t.TempDir())
	a := &shell{script: `echo "session S1"; echo "denied Bash"; echo "text half an answer"; exec sleep 1000`}
	s := specOf(t, a)
	s.Ledger, s.Conversation, s.Home = book, "ann", t.TempDir()
	ctx, cancel := context.WithCancelCause(t.Context())
	s.Events = func(e Event) {
		if e.Type == TypeText {
			cancel(errors.New("SIGTERM"))
		}
	}
	o := Do(ctx, s)
	if o.Status != StatusStopped || o.ExitCode() != 4 || o.SessionID != "S1" || o.Salvage == nil || *o.Salvage != "half an answer" ||
		!slices.Equal(o.Denials, []string{"Bash"}) {
		t.Errorf("outcome %s", asJSON(t, o))
	}
	a.script = `echo "reply $1"`
	if o := Do(t.Context(), s); o.Reply == nil || *o.Reply != "S1" || o.SessionID != "S1" {
		t.Errorf("the next run: %s", asJSON(t, o))
	}
}

func TestARunThatEndsBeforeItNamesItsSessionLosesNone(t *testing.T) {
	s := specOf(t, &shell{script: `echo "session S1"; echo "reply ok"`})
	s.Ledger, s.Conversation, s.Home = ledger.Open(t.TempDir()), "ann", t.TempDir()
	Do(t.Context(), s)
	crash := &shell{script: "exit 7"}
	s.Adapter = crash
	if o := Do(t.Context(), s); o.SessionID != "S1" || o.Status != StatusFailed {
		t.Errorf("outcome %s", asJSON(t, o))
	}
	Do(t.Context(), s)
	if got := crash.requests[1].Resume; got != "S1" {
		t.Errorf("after a crash the next run resumes %q, want S1", got)
	}
}

func TestARejectedSessionIsForgottenAndTheRunMadeOnceMore(t *testing.T) {
	book := ledger.Open(t.TempDir())
	a := &shell{script: `echo "session S1"; echo "reply ok"`}
	s := specOf(t, a)
	s.Ledger, s.Conversation, s.Home = book, "ann", t.TempDir()
	Do(t.Context(), s)
	a.script = `if test -n "$1"; then echo "session $1"; echo reject; exit 1; fi; echo "session S2"; echo "reply new"`
	o := Do(t.Context(), s)
	if o.Status != StatusOK || *o.Reply != "new" || o.Resumed || o.SessionID != "S2" {
		t.Errorf("outcome %s", asJSON(t, o))
	}
	if !slices.ContainsFunc(o.Boundary.Notes, func(n string) bool { return strings.Contains(n, "did not know session S1") }) {
		t.Errorf("the notes do not say why: %q", o.Boundary.Notes)
	}
	if len(a.requests) != 3 {
		t.Fatalf("%d launches, want 3", len(a.requests))
	}
	// An agent that rejects always is tried twice, not for ever.
	a.script = `echo reject; exit 1`
	if o := Do(t.Context(), s); o.Status != StatusFailed || len(a.requests) != 5 || o.SessionID != "" {
		t.Errorf("after %d launches: %s", len(a.requests), asJSON(t, o))
	}
	a.script = `echo "reply $1"`
	if Do(t.Context(), s); a.requests[5].Resume != "" {
		t.Errorf("the dead session %q was resumed", a.requests[5].Resume)
	}
}

func TestRunsOfOneConversationFollowEachOther(t *testing.T) {
	book, home := ledger.Open(t.TempDir()), t.TempDir()
	release := filepath.Join(t.TempDir(), "go")
	first := specOf(t, &shell{script: `echo tool x; while ! test -e ` + release + `; do sleep 0.02; done; echo reply 1`})
	second := specOf(t, &shell{script: `test -e ` + release + ` && echo reply 2`})
	inside := make(chan struct{})
	first.Events = func(e Event) {
		if e.Type == TypeTool {
			close(inside)
		}
	}
	second.Events = func(e Event) {
		if e.Type == TypeActivity && strings.Contains(e.Activity, "waiting for run") {
			if err := os.WriteFile(release, nil, 0o600); err != nil {
				t.Error(err)
			}
		}
	}
	var wg sync.WaitGroup
	for i, s := range []Spec{first, second} {
		s.Ledger, s.Conversation, s.Home = book, "ann", home
		wg.Go(func() {
			if i == 1 {
				<-inside
			}
			if o := Do(t.Context(), s); o.Status != StatusOK {
				t.Errorf("run %d: %s", i+1, asJSON(t, o))
			}
		})
	}
	wg.Wait()
}

func TestAProofThatNeedsNoProcessStartsNone(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "started")
	a := &shell{script: "touch " + mark, proof: &agent.Proof{Proven: true, How: "asked", Tools: []string{"t"}}}
	s := specOf(t, a)
	s.Request.ProveOnly = true
	s.Transcripts = filepath.Join(t.TempDir(), "runs")
	o := Do(t.Context(), s)
	if o.Status != StatusOK || !o.Boundary.Proven || len(o.Proof.Tools) != 1 || o.Reply != nil {
		t.Errorf("outcome %s", asJSON(t, o))
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("the agent was started")
	}
}

func TestAProofTakesPlaceInTheConversationsFolderAndHoldsNobodyUp(t *testing.T) {
	book := ledger.Open(t.TempDir())
	a := &shell{script: "echo session S1; echo reply x", proof: &agent.Proof{Proven: true}}
	s := specOf(t, a)
	s.Ledger, s.Conversation, s.Home, s.Request.Workdir = book, "ann", t.TempDir(), ""
	Do(t.Context(), s)
	s.Request.ProveOnly = true
	a.prepare = func(agent.Request) error {
		c, err := book.Lock(t.Context(), "ann", "other")
		if err != nil {
			return err
		}
		return c.Unlock()
	}
	if o := Do(t.Context(), s); o.Status != StatusOK || a.requests[1].Workdir != a.requests[0].Workdir || a.requests[1].Resume != "" {
		t.Errorf("proved in %q, resuming %q: %s", a.requests[1].Workdir, a.requests[1].Resume, asJSON(t, o))
	}
}

// endpoint is a boundary that saw one call and refused two.
type endpoint struct {
	token  string
	closed int
}

func (e *endpoint) Gateway() *agent.Gateway {
	return &agent.Gateway{URL: "http://127.0.0.1:9/mcp", Token: secret.New(e.token)}
}

func (*endpoint) Calls() []agent.ToolCall {
	return []agent.ToolCall{{Server: "crm", Tool: "find", OK: true, DurationMS: 3}}
}

func (*endpoint) Denials() []string { return []string{"mcp__crm__delete", "Bash", "mcp__crm__delete"} }

func (*endpoint) Notes() []string { return []string{"server fx is down"} }
func (e *endpoint) Close(context.Context) error {
	e.closed++
	return nil
}

func TestNoSecretLeavesARun(t *testing.T) {
	const token, key = "token-of-the-run-0123456789", "sk-operator-0123456789abcdef"
	b := &endpoint{token: token}
	a := &shell{script: `env >&2; for w in text tool denied; do echo "$w $LEAK $TOKEN"; done; echo "junk $LEAK $TOKEN"`}
	a.dialogue = func(r agent.Request) agent.Dialogue { return &plain{} }
	s := specOf(t, a)
	s.Request.Env = append(s.Request.Env, "LEAK_KEY="+key, "LEAK="+key, "TOKEN="+token)
	s.Open = func(_ context.Context, workdir string, _ approval.Func) (Boundary, error) {
		if workdir != s.Request.Workdir {
			t.Errorf("the endpoint was opened for %s", workdir)
		}
		return b, nil
	}
	s.Transcripts = filepath.Join(t.TempDir(), "runs")
	var left bytes.Buffer
	s.Events = func(e Event) { fmt.Fprintln(&left, asJSON(t, e)) }
	s.Run = "r1"
	o := Do(t.Context(), s)
	fmt.Fprintln(&left, asJSON(t, o))
	path := filepath.Join(s.Transcripts, "r1.jsonl")
	kept, err := os.ReadFile(path)
	if err != nil || bytes.Count(kept, []byte("\n")) != 4 {
		t.Errorf("transcript %q, %v", kept, err)
	}
	for name, text := range map[string]string{"events and outcome": left.String(), "transcript": string(kept)} {
		if strings.Contains(text, token) || strings.Contains(text, key) || !strings.Contains(text, secret.Mask) {
			t.Errorf("%s: %s", name, text)
		}
	}
	for path, want := range map[string]os.FileMode{path: 0o600, s.Transcripts: 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	if want := []string{"*** ***", "mcp__crm__delete", "Bash"}; !slices.Equal(o.Denials, want) || b.closed != 1 || len(o.ToolCalls) != 1 ||
		!slices.Contains(o.Boundary.Notes, "server fx is down") {
		t.Errorf("denials %q, closed %d times, calls %v, notes %q", o.Denials, b.closed, o.ToolCalls, o.Boundary.Notes)
	}
}

// discreet conceals lines that start with "text".
type discreet struct{ plain }

func (*discreet) Conceal(line []byte) bool { return bytes.HasPrefix(line, []byte("text")) }

func TestARunWhoseEndpointCannotBeOpenedStartsNoAgent(t *testing.T) {
	a := &shell{script: "echo reply x"}
	s := specOf(t, a)
	s.Open = func(context.Context, string, approval.Func) (Boundary, error) {
		return nil, errors.New("required server crm failed")
	}
	if o := Do(t.Context(), s); o.Status != StatusFailed || !strings.Contains(o.Error.Message, "crm failed") || len(a.requests) != 0 {
		t.Errorf("outcome %s", asJSON(t, o))
	}
}

func TestConcealedLinesAreInNoTranscript(t *testing.T) {
	a := &shell{script: `echo text a; echo tool b; echo reply c`, dialogue: func(agent.Request) agent.Dialogue { return &discreet{} }}
	s := specOf(t, a)
	s.Run, s.Transcripts = "r1", t.TempDir()
	Do(t.Context(), s)
	if kept, err := os.ReadFile(filepath.Join(s.Transcripts, "r1.jsonl")); string(kept) != "tool b\nreply c\n" {
		t.Errorf("kept %q, %v", kept, err)
	}
}

func TestOldTranscriptsMakeRoom(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	for name, age := range map[string]time.Duration{"old.jsonl": 3, "big.jsonl": 2, "new.jsonl": 1, "other.txt": 9} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, make([]byte, 60), 0o600); err != nil {
			t.Fatal(err)
		}
		when := now.Add(-age * time.Hour)
		if err := os.Chtimes(path, when, when); err != nil {
			t.Fatal(err)
		}
	}
	left := func() (names []string) {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	if err := prune(dir, now.Add(-150*time.Minute), 1000); err != nil || !slices.Equal(left(), []string{"big.jsonl", "new.jsonl", "other.txt"}) {
		t.Errorf("by age: %v, %v", left(), err)
	}
	if err := prune(dir, now.Add(-24*time.Hour), 100); err != nil || !slices.Equal(left(), []string{"new.jsonl", "other.txt"}) {
		t.Errorf("by size: %v, %v", left(), err)
	}
}

func TestEventsStartAndEndWithTheRun(t *testing.T) {
	s := specOf(t, &shell{script: `echo session S; echo text a; echo tool b; echo denied c; echo cost 1; echo reply d`})
	var types []string
	var last Event
	s.Events = func(e Event) {
		types, last = append(types, e.Type), e
		if e.Run == "" || e.Time.IsZero() {
			t.Errorf("event without run or time: %s", asJSON(t, e))
		}
	}
	o := Do(t.Context(), s)
	want := []string{TypeStarted, TypeSession, TypeText, TypeActivity, TypeTool, TypeDenied, TypeUsage, TypeFinished}
	if !slices.Equal(types, want) || last.Outcome == nil || asJSON(t, *last.Outcome) != asJSON(t, o) {
		t.Errorf("events %v, want %v", types, want)
	}
}

func TestARunOverItsTimeIsStopped(t *testing.T) {
	s := specOf(t, &shell{script: "exec sleep 1000"})
	s.Timeout = 50 * time.Millisecond
	if o := Do(t.Context(), s); o.Status != StatusStopped || o.Error.Code != agent.CodeTimeout {
		t.Errorf("outcome %s", asJSON(t, o))
	}
	s.Timeout, s.IdleTimeout = 0, 50*time.Millisecond
	if o := Do(t.Context(), s); o.Status != StatusStopped || o.Error.Code != agent.CodeIdle {
		t.Errorf("outcome %s", asJSON(t, o))
	}
}

// TestNothingIsLeftOfAHundredKilledRuns stops runs at random moments, by the ladder and by kill, of an agent
// whose children ignore TERM and moved into sessions of their own.
func TestNothingIsLeftOfAHundredKilledRuns(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only on Linux is a tree told whole (package proc)")
	}
	runs := 100
	if testing.Short() {
		runs = 10
	}
	mark := "RUN_TEST_MARK=" + NewID()
	script := `trap '' TERM; setsid sh -c 'trap "" TERM; sleep 1000' & (sleep 1000 &) ; i=0; while :; do i=$((i+1)); echo "text $i"; sleep 0.01; done`
	before := openFiles(t)
	// What is ours alone: other tests' goroutines have ended, those of the test framework are there.
	leak := goleak.IgnoreCurrent()
	var wg sync.WaitGroup
	slots := make(chan struct{}, 4)
	for i := range runs {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithCancel(t.Context())
			kill := make(chan struct{})
			timer := time.AfterFunc(time.Duration(rand.IntN(150))*time.Millisecond, func() {
				cancel()
				close(kill)
			})
			defer timer.Stop()
			s := specOf(t, &shell{script: script})
			s.Request.Env = append(s.Request.Env, mark)
			s.Kill = kill
			if o := Do(ctx, s); o.Status != StatusStopped || len(o.Boundary.Notes) > 0 {
				t.Errorf("run %d: %s", i, asJSON(t, o))
			}
		})
	}
	wg.Wait()
	if left := marked(t, mark); len(left) > 0 {
		t.Errorf("still there: %v", left)
	}
	goleak.VerifyNone(t, leak)
	if after := openFiles(t); after > before {
		t.Errorf("%d open files, %d before", after, before)
	}
}

// marked lists the processes whose environment has the entry.
func marked(t *testing.T, entry string) (found []string) {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if env, err := os.ReadFile(path); err == nil && bytes.Contains(env, []byte(entry)) {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
			found = append(found, fmt.Sprintf("%s %q", path, line))
		}
	}
	return found
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
