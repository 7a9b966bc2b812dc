package boundary_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"nightporter/internal/boundary"
	"nightporter/internal/config"
	"nightporter/internal/mcp/catalog"
	"nightporter/internal/mcp/gateway"
	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/wire"
	"nightporter/internal/secret"
	"nightporter/test/lab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 2 * time.Minute

// rig is what boundaries are opened over.
type rig struct {
	t        *testing.T
	ctx      context.Context
	recorder *lab.Recorder
	options  boundary.Options
}

func newRig(t *testing.T, servers ...lab.Config) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	r := &rig{t: t, ctx: ctx, recorder: lab.Record(t)}
	var text strings.Builder
	for _, c := range servers {
		c.Log = r.recorder.Address
		fmt.Fprintf(&text, "[mcp_servers.%q]\ncommand = %q\nargs = [%s]\nsupports_parallel_tool_calls = true\n", c.Name, lab.Binary(t), wire.Quote(c.Arg()))
	}
	cfg, err := config.Parse("config.toml", []byte(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	store, err := catalog.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r.options = boundary.Options{Run: "1", Config: cfg, Catalogs: store, LookupEnv: os.LookupEnv, Workdir: t.TempDir(), Version: "test"}
	return r
}

func (r *rig) open() *boundary.Boundary {
	r.t.Helper()
	b, err := boundary.Open(r.ctx, r.options)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		b.Close(ctx)
	})
	return b
}

// bearer adds the token of a run.
type bearer struct{ token secret.String }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token.Reveal())
	return http.DefaultTransport.RoundTrip(r)
}

// connect is the run's agent.
func (r *rig) connect(b *boundary.Boundary) *mcp.ClientSession {
	r.t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil)
	session, err := client.Connect(r.ctx, &mcp.StreamableClientTransport{
		Endpoint: b.Gateway().URL, HTTPClient: &http.Client{Transport: bearer{b.Gateway().Token}},
	}, &mcp.ClientSessionOptions{ProtocolVersion: wire.Latest})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		session.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return session
}

func (r *rig) call(s *mcp.ClientSession, tool string, arguments map[string]any) (*mcp.CallToolResult, error) {
	return s.CallTool(r.ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments})
}

func TestAgentSeesAndCallsWhatItsRunWasGranted(t *testing.T) {
	r := newRig(t, lab.Config{Name: "files", Tools: lab.Tools("echo", "fail", "addtool")}, lab.Config{Name: "other", Tools: lab.Tools("echo")})
	r.options.Grant = runtime.Servers{"files"}
	var mu sync.Mutex
	var told []gateway.Outcome
	r.options.OnCall = func(c gateway.Call) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, c.Outcome)
	}
	b := r.open()
	want := []string{"files__addtool", "files__echo", "files__fail"}
	if got := b.Gateway().Tools; !slices.Equal(got, want) {
		t.Fatalf("tools %v, want %v", got, want)
	}
	if server, tool, ok := b.Gateway().RawName("files__echo", nil); !ok || server != "files" || tool != "echo" {
		t.Errorf("files__echo is %q of %q, %t", tool, server, ok)
	}
	s := r.connect(b)
	if _, err := r.call(s, "files__echo", nil); err != nil {
		t.Fatal(err)
	}
	if result, err := r.call(s, "files__fail", nil); err != nil || !result.IsError {
		t.Fatal(result, err)
	}
	// Refused: what the grant does not reach, what came after the tools were frozen, and what was never there.
	if _, err := r.call(s, "files__addtool", map[string]any{"name": "pid"}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, tool := range []string{"other__echo", "files__pid", "odd name"} {
			if _, err := r.call(s, tool, nil); err == nil {
				t.Errorf("%s was called", tool)
			}
		}
	}
	var calls []string
	for _, c := range b.Calls() {
		calls = append(calls, fmt.Sprintf("%s %s %t", c.Server, c.Tool, c.OK))
	}
	if want := []string{"files echo true", "files fail false", "files addtool true"}; !slices.Equal(calls, want) {
		t.Errorf("calls %q, want %q", calls, want)
	}
	if got, want := b.Denials(), []string{"mcp__other__echo", "mcp__files__pid", "mcp__nightporter__odd name"}; !slices.Equal(got, want) {
		t.Errorf("denials %q, want %q", got, want)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(told) != 9 {
		t.Errorf("told of %v", told)
	}
}

func TestOnlyTheTokenOpensTheBoundary(t *testing.T) {
	r := newRig(t, lab.Config{Name: "s", Tools: lab.Tools("echo")})
	b := r.open()
	for name, token := range map[string]string{"none": "", "another": "Bearer made-up"} {
		request, err := http.NewRequestWithContext(r.ctx, http.MethodPost, b.Gateway().URL, strings.NewReader(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", token)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusUnauthorized {
			t.Errorf("token %s: %s", name, response.Status)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestServersThatDoNotStartAreNoted(t *testing.T) {
	status := 3
	r := newRig(t, lab.Config{Name: "good", Tools: lab.Tools("echo")}, lab.Config{Name: "bad", Exit: &status})
	b := r.open()
	if notes := b.Notes(); len(notes) != 1 || !strings.Contains(notes[0], "server bad is not part of this run") {
		t.Errorf("notes %q", notes)
	}
}

func TestClosedBoundaryLeavesNoProcess(t *testing.T) {
	r := newRig(t, lab.Config{Name: "kind", Tools: lab.Tools("hang")}, lab.Config{Name: "stubborn", Tools: lab.Tools("echo"), IgnoreEOF: true, IgnoreTerm: true})
	b := r.open()
	s := r.connect(b)
	ended := make(chan struct{})
	go func() { // a call that hangs must not hold up the end
		defer close(ended)
		_, _ = r.call(s, "kind__hang", nil)
	}()
	if _, err := r.recorder.Wait(r.ctx, lab.Received(wire.ToolsCall)); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(r.ctx); err != nil {
		t.Error(err)
	}
	<-ended
	r.allGone(2)
	if calls := b.Calls(); len(calls) != 1 || calls[0].OK {
		t.Errorf("calls %v", calls)
	}
}

func TestCancelledOpeningLeavesNoProcess(t *testing.T) {
	r := newRig(t,
		lab.Config{Name: "open", Tools: lab.Tools("echo"), IgnoreTerm: true, IgnoreEOF: true},
		lab.Config{Name: "silent", Methods: map[string]lab.Fault{wire.Initialize: {Silent: true}}},
	)
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := boundary.Open(ctx, r.options)
		ended <- err
	}()
	if _, err := r.recorder.Wait(r.ctx, func(e lab.Entry) bool { return lab.Received(wire.Initialize)(e) && e.Name == "silent" }); err != nil {
		t.Fatal(err)
	}
	if _, err := r.recorder.Wait(r.ctx, lab.Received(wire.ToolsList)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("a cancelled opening came off")
	}
	r.allGone(2)
}

// allGone checks that every server that was started has ended.
func (r *rig) allGone(n int) {
	r.t.Helper()
	started := r.recorder.Select(lab.Happened("start"))
	if len(started) != n {
		r.t.Fatalf("%d servers were started, want %d", len(started), n)
	}
	for _, e := range started {
		if _, err := r.recorder.Wait(r.ctx, lab.Gone(e.PID)); err != nil {
			r.t.Errorf("server %s: %v", e.Name, err)
		}
	}
}
