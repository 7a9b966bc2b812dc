package codex

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"nightporter/internal/agent"
	"nightporter/internal/proc"
	"nightporter/internal/secret"
	"nightporter/test/fakemodel"
	"nightporter/test/programs"
)

// versions are the real programs.
var versions = map[string]func(testing.TB) string{"0.171.0": programs.Codex, "0.144.1": programs.Codex144}

// onEachVersion runs a test with each of the real programs.
func onEachVersion(t *testing.T, test func(t *testing.T, program string)) {
	for name, find := range versions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, find(t))
		})
	}
}

// token is the run's made-up token.
const token = "made-up-token-of-one-run"

// rig is the surroundings of one run: a home, a working directory, a model and a gateway.
type rig struct {
	t       testing.TB
	program string
	home    string
	work    string
	model   *fakemodel.Server
	gateway *agent.Gateway
	calls   *calls
	env     []string
}

// calls counts what the stand-in for the gateway was asked.
type calls struct {
	mu      sync.Mutex
	tools   []string
	refused int // requests without the token
}

func (c *calls) add(tool string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tools = append(c.tools, tool)
}

func (c *calls) all() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.tools)
}

func newRig(t testing.TB, program string, script fakemodel.Script) *rig {
	t.Helper()
	home := programs.Home(t)
	r := &rig{t: t, program: program, home: home, work: filepath.Join(home, "work"), model: fakemodel.Start(t, script), calls: &calls{}}
	r.gateway = r.startGateway()
	r.write(".codex/config.toml", r.config(""))
	if err := os.MkdirAll(r.work, 0o700); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.work, err = filepath.EvalSymlinks(r.work); err != nil {
		t.Fatal(err)
	}
	r.env = programs.Env(home, r.model.CodexEnv()...)
	return r
}

// config is a config.toml for the fake model, with more tables after it.
func (r *rig) config(tables string) string {
	return r.model.CodexConfig() + tables
}

// write writes a file below the home.
func (r *rig) write(name, text string) string {
	r.t.Helper()
	path := filepath.Join(r.home, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// startGateway starts an MCP server with the two tools crm__lookup and crm__refund, behind the run's token.
func (r *rig) startGateway() *agent.Gateway {
	server := mcp.NewServer(&mcp.Implementation{Name: "gateway", Version: "1"}, nil)
	type arguments struct {
		Name string `json:"name"`
	}
	for _, tool := range []string{"crm__lookup", "crm__refund"} {
		mcp.AddTool(server, &mcp.Tool{Name: tool, Description: "A tool."},
			func(_ context.Context, _ *mcp.CallToolRequest, in arguments) (*mcp.CallToolResult, any, error) {
				r.calls.add(tool)
				if in.Name == "nobody" {
					return nil, nil, errors.New("there is no such customer")
				}
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "found " + in.Name}}}, nil, nil
			})
	}
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Header.Get("Authorization") != "Bearer "+token {
			r.calls.mu.Lock()
			r.calls.refused++
			r.calls.mu.Unlock()
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, q)
	}))
	r.t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	return &agent.Gateway{
		URL: web.URL + "/mcp", Token: secret.New(token), Tools: []string{"crm__lookup", "crm__refund"},
		RawName: func(exposed string, _ json.RawMessage) (string, string, bool) { return strings.Cut(exposed, "__") },
	}
}

// request is a request for a run that asks "hello".
func (r *rig) request() agent.Request {
	return agent.Request{
		Argv: []string{"codex", "exec"}, Program: r.program, Workdir: r.work, Env: r.env, Private: r.t.TempDir(),
		Gateway: r.gateway, Mode: agent.Granted, BuiltIn: agent.BuiltInNone, Prompt: "hello",
	}
}

// finished is a run that ended.
type finished struct {
	agent.Result
	launch *agent.Launch
	events []agent.Event
	stdout string
	stderr string
	exit   proc.Exit
}

func (f finished) told(kind agent.EventKind) (all []agent.Event) {
	for _, e := range f.events {
		if e.Kind == kind {
			all = append(all, e)
		}
	}
	return all
}

// runTime bounds one run of a real program on a loaded machine.
const runTime = 2 * time.Minute

// prepare is Prepare, which must succeed.
func (r *rig) prepare(q agent.Request) *agent.Launch {
	r.t.Helper()
	launch, err := Adapter{}.Prepare(r.t.Context(), q)
	if err != nil {
		r.t.Fatalf("Prepare: %v", err)
	}
	return launch
}

// run prepares and runs. interrupt, when not nil, sends SIGINT once it is closed.
func (r *rig) run(q agent.Request, interrupt <-chan struct{}) finished {
	r.t.Helper()
	launch := r.prepare(q)
	ctx, cancel := context.WithTimeout(r.t.Context(), runTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, launch.Argv[0], launch.Argv[1:]...)
	cmd.Dir, cmd.Env = r.work, launch.Env
	stdin, err := cmd.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	f := finished{launch: launch}
	ended := make(chan struct{})
	var stopping sync.WaitGroup
	if interrupt != nil {
		stopping.Go(func() {
			select {
			case <-interrupt:
				_ = cmd.Process.Signal(syscall.SIGINT)
			case <-ended:
			}
		})
	}
	act := func(actions []agent.Action) {
		for _, a := range actions {
			switch a := a.(type) {
			case agent.Write:
				_, _ = stdin.Write(a.Data)
			case agent.CloseInput:
				_ = stdin.Close()
			case agent.Emit:
				f.events = append(f.events, a.Event)
			case agent.Abort:
				_ = cmd.Process.Kill()
			}
		}
	}
	act(launch.Dialogue.Start())
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadBytes('\n')
		f.stdout += string(line)
		if len(line) > 0 {
			act(launch.Dialogue.Line(bytes.TrimSuffix(line, []byte("\n"))))
		}
		if err == io.EOF || errors.Is(err, os.ErrClosed) {
			break
		} else if err != nil {
			r.t.Fatal(err)
		}
	}
	_ = cmd.Wait() // its exit is looked at
	close(ended)
	stopping.Wait()
	if ctx.Err() != nil {
		r.t.Fatalf("the run did not end; stdout:\n%s\nstderr:\n%s", f.stdout, stderr.String())
	}
	f.exit = proc.Exit{Code: cmd.ProcessState.ExitCode()}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		f.exit.Signal = status.Signal().String()
	}
	f.stderr = stderr.String()
	f.Result = launch.Dialogue.End(f.exit, stderr.Bytes())
	return f
}

// want fails the test unless the run replied with text.
func (f finished) want(t testing.TB, text string) {
	t.Helper()
	if f.Err != nil || f.Reply != text {
		t.Fatalf("reply %q, error %v, want %q\nargv: %q\nstdout:\n%s\nstderr:\n%s", f.Reply, f.Err, text, f.launch.Argv, f.stdout, f.stderr)
	}
}
