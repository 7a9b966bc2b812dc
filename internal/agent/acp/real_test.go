//go:build linux

package acp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"nightporter/internal/agent"
	"nightporter/internal/agent/acp"
	"nightporter/internal/approval"
	"nightporter/internal/ledger"
	"nightporter/internal/run"
	"nightporter/internal/secret"
	"nightporter/test/fakemodel"
	"nightporter/test/programs"
)

// runWait bounds a run of the real agent, which takes about 4 s on a quiet machine.
const runWait = 2 * time.Minute

const runToken = "np-test-token-0123456789"

// boundary is a stand-in for the run's endpoint: streamable HTTP behind a bearer token, with the tool notes__echo.
type boundary struct {
	gateway agent.Gateway
	close   func()
	mu      sync.Mutex
	called  []string
}

func (b *boundary) Gateway() *agent.Gateway     { return &b.gateway }
func (b *boundary) Calls() []agent.ToolCall     { return nil }
func (b *boundary) Denials() []string           { return nil }
func (b *boundary) Notes() []string             { return nil }
func (b *boundary) Close(context.Context) error { b.close(); return nil }

func (b *boundary) open(context.Context, string, approval.Func) (run.Boundary, error) {
	server := mcp.NewServer(&mcp.Implementation{Name: "stand-in", Version: "1"}, nil)
	tool := &mcp.Tool{Name: "notes__echo", Description: "a tool", InputSchema: json.RawMessage(`{"type":"object"}`)}
	server.AddTool(tool, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.called = append(b.called, string(r.Params.Arguments))
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "echoed"}}}, nil
	})
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+runToken {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	b.close = func() { endpoint.CloseClientConnections(); endpoint.Close() }
	b.gateway = agent.Gateway{
		URL: endpoint.URL + "/mcp", Token: secret.New(runToken), Tools: []string{"notes__echo"},
		RawName: func(exposed string, _ json.RawMessage) (string, string, bool) { return strings.Cut(exposed, "__") },
	}
	return b, nil
}

// house is what a run of claude-agent-acp, over Claude Code and the fake model, needs.
type house struct {
	run.Spec
	home     string
	model    *fakemodel.Server
	boundary *boundary
	events   []run.Event
}

func newHouse(t *testing.T, script fakemodel.Script) *house {
	t.Helper()
	h := &house{home: programs.Home(t), model: fakemodel.Start(t, script), boundary: &boundary{}}
	env := []string{
		"ANTHROPIC_BASE_URL=" + withoutTitles(t, h.model.URL), "ANTHROPIC_API_KEY=" + fakemodel.ClaudeKey, "CLAUDE_CODE_EXECUTABLE=" + programs.Claude(t),
		"CLAUDE_CODE_MAX_RETRIES=0", "CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION=false",
	}
	h.Spec = run.Spec{
		Adapter: acp.Adapter{}, Home: h.home, Conversation: "ann", Ledger: ledger.Open(filepath.Join(t.TempDir(), "ledger")),
		Transcripts: filepath.Join(t.TempDir(), "runs"), Timeout: runWait, Open: h.boundary.open,
		Request: agent.Request{
			Argv: []string{"node", programs.NPM(t, "@agentclientprotocol/claude-agent-acp/dist/index.js")}, Program: programs.Find(t, "node"),
			Env: programs.Env(h.home, env...), Workdir: t.TempDir(), Mode: agent.Granted, BuiltIn: agent.BuiltInNone, Unproven: true, Prompt: "what is it?",
		},
		Events: func(e run.Event) { h.events = append(h.events, e) },
	}
	return h
}

// withoutTitles is a model API that refuses the agent's request for a session's title, which comes at any time and would take a step of
// the script, and leaves the rest to the API at model.
func withoutTitles(t *testing.T, model string) string {
	t.Helper()
	target, err := url.Parse(model)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.FlushInterval = -1
	proxy.ErrorLog = log.New(io.Discard, "", 0) // requests that an agent gives up
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || bytes.Contains(body, []byte("You are naming a coding session")) {
			http.Error(w, "{}", http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server.URL
}

func told(o run.Outcome) string {
	data, _ := json.MarshalIndent(o, "", " ")
	return string(data)
}

// left are processes that have this house's home in their environment.
func (h *house) left(t *testing.T) (pids []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil && bytes.Contains(data, []byte(h.home)) {
			pids = append(pids, filepath.Base(filepath.Dir(file)))
		}
	}
	return pids
}

func TestARealACPAgentAnswersAndIsResumed(t *testing.T) {
	t.Parallel()
	h := newHouse(t, fakemodel.Replies(fakemodel.Says("first"), fakemodel.Says("second"), fakemodel.Says("third")))
	first := run.Do(t.Context(), h.Spec)
	if first.Status != run.StatusOK || *first.Reply != "first" || first.SessionID == "" || first.Resumed || first.Boundary.Proven {
		t.Fatalf("first run: %s", told(first))
	}
	second := run.Do(t.Context(), h.Spec)
	if second.Status != run.StatusOK || *second.Reply != "second" || second.SessionID != first.SessionID || !second.Resumed {
		t.Fatalf("second run: %s", told(second))
	}
	if first.Usage.CostUSD == 0 || second.Usage.OutputTokens != first.Usage.OutputTokens || second.Usage.CostUSD > 1.5*first.Usage.CostUSD {
		t.Errorf("two like runs cost %+v and %+v: the second is not told for itself", first.Usage, second.Usage)
	}
	if err := os.RemoveAll(filepath.Join(h.home, ".claude", "projects")); err != nil {
		t.Fatal(err)
	}
	third := run.Do(t.Context(), h.Spec)
	if third.Status != run.StatusOK || *third.Reply != "third" || third.SessionID == first.SessionID || third.Resumed ||
		!slices.ContainsFunc(third.Boundary.Notes, func(n string) bool { return strings.Contains(n, "did not know session "+first.SessionID) }) {
		t.Errorf("run after the sessions were lost: %s", told(third))
	}
	if left := h.left(t); len(left) > 0 {
		t.Errorf("left running: %q", left)
	}
}

func TestARealACPAgentCallsGrantedToolsAndNoOthers(t *testing.T) {
	t.Parallel()
	h := newHouse(t, fakemodel.Replies(
		fakemodel.Calls(agent.GatewayName, "notes__echo", `{"message":"hi"}`),
		fakemodel.Step{Parts: []fakemodel.Part{{Call: &fakemodel.Call{Name: "Bash", Arguments: json.RawMessage(`{"command":"touch made","description":"mcp__nightporter__notes__echo"}`)}}}},
		fakemodel.Says("all done"),
	))
	o := run.Do(t.Context(), h.Spec)
	if o.Status != run.StatusOK || *o.Reply != "all done" || !slices.Equal(o.Denials, []string{"Bash"}) {
		t.Fatalf("outcome: %s", told(o))
	}
	if !slices.Equal(h.boundary.called, []string{`{"message":"hi"}`}) {
		t.Errorf("the gateway was called with %q", h.boundary.called)
	}
	if made, _ := filepath.Glob(filepath.Join(h.Request.Workdir, "made")); len(made) > 0 {
		t.Errorf("the refused command ran: %q", made)
	}
	var tools []string
	for _, e := range h.events {
		if e.Tool != "" {
			tools = append(tools, e.Type+" "+e.Tool)
		}
	}
	results := h.model.ModelRequests()[2].ToolResults()
	if len(results) != 2 || !strings.Contains(string(mustMarshal(t, results[0])), "echoed") || !strings.Contains(string(mustMarshal(t, results[1])), "refused") {
		t.Errorf("the model was told %s; tools told: %q", mustMarshal(t, results), tools)
	}
	if !slices.ContainsFunc(tools, func(s string) bool { return strings.HasSuffix(s, " mcp__notes__echo") }) {
		t.Errorf("tools told: %q", tools)
	}
	files, _ := filepath.Glob(filepath.Join(h.Transcripts, "*"))
	for _, file := range files {
		if data, err := os.ReadFile(file); err != nil || bytes.Contains(data, []byte(runToken)) {
			t.Errorf("the transcript %s has the token, or %v", file, err)
		}
	}
	if len(files) == 0 || strings.Contains(told(o), runToken) {
		t.Errorf("%d transcripts; outcome %s", len(files), told(o))
	}
}

func mustMarshal(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestARealACPAgentIsCancelledAndGoesOn(t *testing.T) {
	t.Parallel()
	held := fakemodel.Step{Parts: []fakemodel.Part{{Text: "thinking about it"}, {Hold: true}}}
	h := newHouse(t, fakemodel.Replies(held, fakemodel.Says("later")))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := h.Spec
	s.Events = func(e run.Event) {
		if strings.Contains(e.Activity, "thinking about it") {
			cancel()
		}
	}
	o := run.Do(ctx, s)
	if o.Status != run.StatusStopped || o.Error.Code != agent.CodeSignal || o.Salvage == nil || *o.Salvage != "thinking about it" || o.SessionID == "" {
		t.Fatalf("outcome: %s", told(o))
	}
	if !slices.ContainsFunc(o.Boundary.Notes, func(n string) bool { return strings.Contains(n, "cancelled its turn") }) {
		t.Errorf("the agent was not asked to cancel, or did not answer: %s", told(o))
	}
	if left := h.left(t); len(left) > 0 {
		t.Errorf("left running: %q", left)
	}
	next := run.Do(t.Context(), h.Spec)
	if next.Status != run.StatusOK || *next.Reply != "later" || next.SessionID != o.SessionID || !next.Resumed {
		t.Errorf("the next run: %s", told(next))
	}
}

func TestARealACPAgentIsKilledAndNothingIsLeft(t *testing.T) {
	t.Parallel()
	h := newHouse(t, fakemodel.Replies(fakemodel.Step{Parts: []fakemodel.Part{{Text: "thinking about it"}, {Hold: true}}}))
	kill := make(chan struct{})
	var once sync.Once
	s := h.Spec
	s.Kill = kill
	s.Events = func(e run.Event) {
		if strings.Contains(e.Activity, "thinking about it") {
			once.Do(func() { close(kill) })
		}
	}
	o := run.Do(t.Context(), s)
	if o.Status != run.StatusStopped || o.SessionID == "" || o.Salvage == nil || *o.Salvage != "thinking about it" {
		t.Errorf("outcome: %s", told(o))
	}
	if left := h.left(t); len(left) > 0 {
		t.Errorf("left running: %q", left)
	}
}

func TestARealACPAgentWithoutAccessToItsModelSaysSo(t *testing.T) {
	t.Parallel()
	h := newHouse(t, fakemodel.Script{Default: &fakemodel.Step{Status: http.StatusUnauthorized}})
	o := run.Do(t.Context(), h.Spec)
	if o.Status != run.StatusFailed || o.Error.Code != agent.CodeAuth || o.Reply != nil || o.Salvage != nil {
		t.Errorf("outcome: %s", told(o))
	}
}

func TestARealACPAgentTakesAPromptAsData(t *testing.T) {
	t.Parallel()
	h := newHouse(t, fakemodel.Replies(fakemodel.Says("read")))
	h.Request.Prompt = "/cost @/etc/passwd\n/clear\n!touch made"
	o := run.Do(t.Context(), h.Spec)
	if o.Status != run.StatusOK || *o.Reply != "read" {
		t.Fatalf("outcome: %s", told(o))
	}
	body := string(h.model.ModelRequests()[0].Body)
	if asked, _ := json.Marshal(h.Request.Prompt); !strings.Contains(body, strings.Trim(string(asked), `"`)) || strings.Contains(body, "root:") {
		t.Errorf("the model was sent %s", body)
	}
}
