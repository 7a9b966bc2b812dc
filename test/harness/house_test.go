package harness

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"nightporter/internal/agent"
	"nightporter/internal/agent/claude"
	"nightporter/internal/agent/codex"
	"nightporter/internal/approval"
	"nightporter/internal/run"
	"nightporter/internal/secret"
	"nightporter/test/fakemodel"
	"nightporter/test/programs"
)

// runWait bounds a run of a real agent, which takes 1 to 3 s on a quiet machine.
const runWait = 3 * time.Minute

// house is a home, a folder to work in and a model for one agent.
type house struct {
	t       testing.TB
	home    string
	work    string
	program string // a symbolic link to the agent, as installers make it
	env     []string
	model   *fakemodel.Server
	adapter agent.Adapter
	argv    []string
	state   string // the agent's own folder
}

// agents make a house for each real agent.
var agents = map[string]func(t testing.TB, model *fakemodel.Server) *house{
	"claude": func(t testing.TB, model *fakemodel.Server) *house {
		h := newHouse(t, model, "claude", programs.Claude(t), model.ClaudeEnv()...)
		h.adapter, h.argv, h.state = claude.Adapter{}, []string{"claude", "-p"}, filepath.Join(h.home, ".claude")
		return h
	},
	"codex-0.171.0": func(t testing.TB, model *fakemodel.Server) *house { return codexHouse(t, model, programs.Codex(t)) },
	"codex-0.144.1": func(t testing.TB, model *fakemodel.Server) *house { return codexHouse(t, model, programs.Codex144(t)) },
}

func codexHouse(t testing.TB, model *fakemodel.Server, program string) *house {
	h := newHouse(t, model, "codex", program, model.CodexEnv()...)
	h.adapter, h.argv, h.state = codex.Adapter{}, []string{"codex", "exec"}, filepath.Join(h.home, ".codex")
	h.write(filepath.Join(h.state, "config.toml"), model.CodexConfig())
	return h
}

func newHouse(t testing.TB, model *fakemodel.Server, name, program string, env ...string) *house {
	t.Helper()
	if runtime.GOOS != "linux" {
		programs.Skip(t, "the agents that are installed are those for Linux")
	}
	h := &house{t: t, home: programs.Home(t), model: model}
	h.env = programs.Env(h.home, env...)
	h.program = filepath.Join(h.home, "bin", name)
	h.work = filepath.Join(h.home, "work")
	for _, dir := range []string{filepath.Dir(h.program), h.work} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	h.link(program)
	return h
}

// link makes the agent's name lead to another program, at once.
func (h *house) link(program string) {
	h.t.Helper()
	if err := os.Symlink(program, h.program+".new"); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Rename(h.program+".new", h.program); err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) write(path, text string) {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		h.t.Fatal(err)
	}
}

// spec is a run that asks "what is it?", behind an endpoint with one tool.
func (h *house) spec() run.Spec {
	return run.Spec{
		Adapter: h.adapter, Home: h.state, Timeout: runWait,
		Request: agent.Request{
			Argv: h.argv, Program: h.program, Workdir: h.work, Env: h.env,
			Mode: agent.Granted, BuiltIn: agent.BuiltInNone, Prompt: prompt,
		},
		Open: func(context.Context, string, approval.Func) (run.Boundary, error) { return newEndpoint(h.t), nil },
	}
}

// prompt and token are what an intruder is after.
const (
	prompt = "PROMPT-OF-A-STRANGER"
	token  = "made-up-token-of-the-run"
)

// endpoint is a run's endpoint with the one tool crm__lookup.
type endpoint struct {
	server  *httptest.Server
	gateway *agent.Gateway
}

func newEndpoint(t testing.TB) *endpoint {
	server := mcp.NewServer(&mcp.Implementation{Name: "gateway", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "crm__lookup", Description: "A tool."},
		func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "found"}}}, nil, nil
		})
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	e := &endpoint{server: httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Header.Get("Authorization") != "Bearer "+token {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, q)
	}))}
	e.gateway = &agent.Gateway{
		URL: e.server.URL, Token: secret.New(token), Tools: []string{"crm__lookup"},
		RawName: func(string, json.RawMessage) (string, string, bool) { return "crm", "lookup", true },
	}
	return e
}

func (e *endpoint) Gateway() *agent.Gateway { return e.gateway }
func (*endpoint) Calls() []agent.ToolCall   { return nil }
func (*endpoint) Denials() []string         { return nil }
func (*endpoint) Notes() []string           { return nil }

func (e *endpoint) Close(context.Context) error {
	e.server.CloseClientConnections()
	e.server.Close()
	return nil
}
