package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"nightporter/internal/config"
	"nightporter/internal/mcp/catalog"
	"nightporter/internal/mcp/gateway"
	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/wire"
	"nightporter/internal/secret"
	"nightporter/test/lab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = 2 * time.Minute
	token    = "made-up-gateway-token"
)

// house is a gateway over lab servers.
type house struct {
	t        *testing.T
	ctx      context.Context
	recorder *lab.Recorder
	rt       *runtime.Runtime
}

func newHouse(t *testing.T, servers ...lab.Config) *house {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	h := &house{t: t, ctx: ctx, recorder: lab.Record(t)}
	var text strings.Builder
	for _, c := range servers {
		c.Log = h.recorder.Address
		fmt.Fprintf(&text, "[mcp_servers.%q]\ncommand = %q\nargs = [%s]\nsupports_parallel_tool_calls = true\n", c.Name, lab.Binary(t), wire.Quote(c.Arg()))
	}
	h.configure(text.String())
	return h
}

// configure makes the runtime from a configuration; the endpoints that are made from then on use it.
func (h *house) configure(text string) {
	h.t.Helper()
	cfg, err := config.Parse("config.toml", []byte(text))
	if err != nil {
		h.t.Fatal(err)
	}
	store, err := catalog.Open(h.t.TempDir())
	if err != nil {
		h.t.Fatal(err)
	}
	if h.rt == nil {
		h.t.Cleanup(func() { h.rt.Close(context.Background()) })
	} else {
		h.rt.Close(h.ctx)
	}
	h.rt = runtime.New(runtime.Options{Config: cfg, Catalogs: store, LookupEnv: os.LookupEnv})
}

// endpoint serves a profile over HTTP, without a guard, and returns its URL.
func (h *house) endpoint(p gateway.Profile) (*gateway.Endpoint, string) {
	h.t.Helper()
	p.Dir, p.Grace = h.t.TempDir(), patience
	e := gateway.New(h.rt, p, "test", nil)
	return e, h.serve(e)
}

func (h *house) serve(e *gateway.Endpoint) string {
	s := httptest.NewServer(e)
	h.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		e.Close(ctx)
		s.CloseClientConnections()
		s.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return s.URL
}

// connect opens a go-sdk client of one era.
func (h *house) connect(url, version string, o *mcp.ClientOptions) *mcp.ClientSession {
	h.t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "sdk", Version: "1"}, o)
	session, err := client.Connect(h.ctx, &mcp.StreamableClientTransport{Endpoint: url}, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { session.Close() })
	return session
}

var versions = []string{wire.Latest, "2025-06-18", "2025-03-26", "2024-11-05", wire.Modern}

func toolNames(t *testing.T, ctx context.Context, s *mcp.ClientSession) (names []string) {
	t.Helper()
	for tool, err := range s.Tools(ctx, nil) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, tool.Name)
	}
	return names
}

func text(t *testing.T, result *mcp.CallToolResult) string {
	t.Helper()
	if len(result.Content) == 0 {
		t.Fatal("no content")
	}
	content, ok := result.Content[0].(*mcp.TextContent)
	if !ok {
		t.Fatalf("content %T", result.Content[0])
	}
	return content.Text
}

// Clients of every revision in front of servers of both eras, merged and alone.
func TestClientsOfEveryRevisionUseServersOfBothEras(t *testing.T) {
	h := newHouse(t,
		lab.Config{Name: "old", Tools: lab.Tools("echo", "roots"), Instructions: "old says hello", Prompts: []json.RawMessage{json.RawMessage(`{"name":"greet"}`)}, Resources: []json.RawMessage{json.RawMessage(`{"uri":"lab://a","name":"a"}`)}},
		lab.Config{Name: "new", Era: lab.Modern, Tools: lab.Tools("echo")},
	)
	_, merged := h.endpoint(gateway.Profile{})
	_, alone := h.endpoint(gateway.Profile{Single: "new"})
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			s := h.connect(merged, version, nil)
			if got := s.InitializeResult().ProtocolVersion; got != version {
				t.Errorf("negotiated %s", got)
			}
			if got := s.InitializeResult().Instructions; !strings.Contains(got, "# old") || !strings.Contains(got, "old says hello") {
				t.Errorf("instructions %q", got)
			}
			if got, want := toolNames(t, h.ctx, s), []string{"new__echo", "old__echo", "old__roots"}; !slices.Equal(got, want) {
				t.Errorf("tools %v, want %v", got, want)
			}
			for _, name := range []string{"old__echo", "new__echo"} {
				result, err := s.CallTool(h.ctx, &mcp.CallToolParams{Name: name, Arguments: map[string]any{"a": 1}})
				if err != nil {
					t.Fatal(err)
				}
				if got := text(t, result); !strings.HasSuffix(got, `{"a":1}`) {
					t.Errorf("%s answered %q", name, got)
				}
			}
			if prompts, err := s.ListPrompts(h.ctx, nil); err != nil || len(prompts.Prompts) != 1 || prompts.Prompts[0].Name != "old__greet" {
				t.Errorf("prompts %v, %v", prompts, err)
			}
			if _, err := s.GetPrompt(h.ctx, &mcp.GetPromptParams{Name: "old__greet"}); err != nil {
				t.Errorf("prompt: %v", err)
			}
			if _, err := s.ReadResource(h.ctx, &mcp.ReadResourceParams{URI: "lab://a"}); err != nil {
				t.Errorf("resource: %v", err)
			}
			if _, err := s.ReadResource(h.ctx, &mcp.ReadResourceParams{URI: "lab://nobody"}); err == nil {
				t.Error("a resource that nobody has was read")
			}
			if _, err := s.CallTool(h.ctx, &mcp.CallToolParams{Name: "old__nosuch"}); err == nil || !strings.Contains(err.Error(), "unknown tool") {
				t.Errorf("unknown tool: %v", err)
			}

			s = h.connect(alone, version, nil)
			if got := toolNames(t, h.ctx, s); !slices.Equal(got, []string{"echo"}) {
				t.Errorf("alone: tools %v", got)
			}
			if got := s.InitializeResult().ServerInfo.Name; got != "new" {
				t.Errorf("alone: server info %q", got)
			}
		})
	}
}

// A server's question in the middle of a call reaches the client in the client's way, whatever the server's.
func TestQuestionsOfServersCrossTheEras(t *testing.T) {
	h := newHouse(t,
		lab.Config{Name: "old", Tools: lab.Tools("elicit", "sample", "roots")},
		lab.Config{Name: "new", Era: lab.Modern, Tools: lab.Tools("elicit", "sample", "roots")},
	)
	_, url := h.endpoint(gateway.Profile{})
	for _, version := range []string{wire.Latest, wire.Modern} {
		t.Run(version, func(t *testing.T) {
			s := h.connect(url, version, &mcp.ClientOptions{
				ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
					return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada"}}, nil
				},
				//lint:ignore SA1019 deprecated in 2026-07-28, and still in use by servers of every earlier revision
				CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
					//lint:ignore SA1019 as above
					return &mcp.CreateMessageResult{Model: "m", Role: "assistant", Content: &mcp.TextContent{Text: "sampled"}}, nil
				},
			})
			for _, server := range []string{"old", "new"} {
				for tool, want := range map[string]string{"elicit": "Ada", "sample": "sampled", "roots": "roots"} {
					result, err := s.CallTool(h.ctx, &mcp.CallToolParams{Name: server + "__" + tool})
					if err != nil {
						t.Errorf("%s of %s: %v", tool, server, err)
						continue
					}
					if got := text(t, result); !strings.Contains(got, want) {
						t.Errorf("%s of %s answered %q", tool, server, got)
					}
				}
			}
		})
	}
}

func TestChangedListReachesClientsOfBothEras(t *testing.T) {
	for _, version := range []string{wire.Latest, wire.Modern} {
		for _, era := range []lab.Era{lab.Legacy, lab.Modern} {
			t.Run(version+"/"+string(era), func(t *testing.T) {
				h := newHouse(t, lab.Config{Name: "s", Era: era, Tools: lab.Tools("addtool")})
				_, url := h.endpoint(gateway.Profile{})
				changed := make(chan struct{}, 8)
				s := h.connect(url, version, &mcp.ClientOptions{ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} }})
				if _, err := s.CallTool(h.ctx, &mcp.CallToolParams{Name: "s__addtool", Arguments: map[string]any{"name": "echo"}}); err != nil {
					t.Fatal(err)
				}
				for !slices.Contains(toolNames(t, h.ctx, s), "s__echo") {
					select {
					case <-changed:
					case <-h.ctx.Done():
						t.Fatal("the client was not told")
					}
				}
			})
		}
	}
}

func TestProgressAndCancellationPass(t *testing.T) {
	direct := func(tool string, arguments map[string]any) *mcp.CallToolParams {
		return &mcp.CallToolParams{Name: "s__" + tool, Arguments: arguments}
	}
	found := func(tool string, arguments map[string]any) *mcp.CallToolParams {
		return &mcp.CallToolParams{Name: callFound, Arguments: map[string]any{"name": "s__" + tool, "arguments": arguments}}
	}
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("sleep", "hang")})
	for exposure, call := range map[gateway.Exposure]func(string, map[string]any) *mcp.CallToolParams{gateway.ExposeTools: direct, gateway.ExposeSearch: found} {
		_, url := h.endpoint(gateway.Profile{Exposure: exposure})
		for _, version := range []string{wire.Latest, wire.Modern} {
			t.Run(fmt.Sprint(exposure, " ", version), func(t *testing.T) {
				progress := make(chan any, 64)
				s := h.connect(url, version, &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
					progress <- r.Params.ProgressToken
				}})
				params := call("sleep", map[string]any{"for": "500ms", "progress": "50ms"})
				params.SetProgressToken("mine")
				if _, err := s.CallTool(h.ctx, params); err != nil {
					t.Fatal(err)
				}
				select {
				case got := <-progress:
					if got != "mine" {
						t.Errorf("progress token %v", got)
					}
				case <-h.ctx.Done():
					t.Error("no progress came")
				}
				before := len(h.recorder.Select(lab.Received(wire.Cancelled)))
				ctx, cancel := context.WithCancel(h.ctx)
				ended := make(chan struct{})
				calls := len(h.recorder.Select(lab.Received(wire.ToolsCall)))
				go func() {
					defer close(ended)
					_, _ = s.CallTool(ctx, call("hang", map[string]any{}))
				}()
				if _, err := h.recorder.WaitN(h.ctx, calls+1, lab.Received(wire.ToolsCall)); err != nil {
					t.Fatal(err)
				}
				cancel()
				<-ended
				if _, err := h.recorder.WaitN(h.ctx, before+1, lab.Received(wire.Cancelled)); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func TestEachClientHasServersOfItsOwnUntilItGoes(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("pid")})
	_, url := h.endpoint(gateway.Profile{})
	pids := map[string]bool{}
	var sessions []*mcp.ClientSession
	for range 3 {
		s := h.connect(url, wire.Latest, nil)
		sessions = append(sessions, s)
		for range 2 {
			result, err := s.CallTool(h.ctx, &mcp.CallToolParams{Name: "s__pid"})
			if err != nil {
				t.Fatal(err)
			}
			pids[text(t, result)] = true
		}
	}
	if len(pids) != 3 {
		t.Errorf("3 clients had %d processes", len(pids))
	}
	for _, s := range sessions {
		s.Close()
	}
	if _, err := h.recorder.WaitN(h.ctx, 3, lab.Happened("gone")); err != nil {
		t.Error(err)
	}
}

func TestToolsOfARunAreFrozen(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("addtool", "echo")}, lab.Config{Name: "other", Tools: lab.Tools("echo")})
	var calls []gateway.Call
	e, failed, err := gateway.NewForRun(h.ctx, h.rt, gateway.Profile{
		Grant: runtime.Servers{"s"}, Dir: t.TempDir(), Owner: "run 1", OnCall: func(c gateway.Call) { calls = append(calls, c) },
	}, "test", nil)
	if err != nil || len(failed) > 0 {
		t.Fatal(err, failed)
	}
	url := h.serve(e)
	want := []string{"s__addtool", "s__echo"}
	if got := e.Tools(); !slices.Equal(got, want) {
		t.Fatalf("tools %v", got)
	}
	s := h.connect(url, wire.Latest, nil)
	if _, err := s.CallTool(h.ctx, &mcp.CallToolParams{Name: "s__addtool", Arguments: map[string]any{"name": "pid"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.recorder.WaitN(h.ctx, 2, lab.Received(wire.ToolsList)); err != nil {
		t.Fatal(err)
	}
	if got := toolNames(t, h.ctx, s); !slices.Equal(got, want) {
		t.Errorf("tools grew to %v", got)
	}
	for _, name := range []string{"s__pid", "other__echo"} {
		if _, err := s.CallTool(h.ctx, &mcp.CallToolParams{Name: name}); err == nil {
			t.Errorf("%s was called", name)
		}
	}
	var refused []string
	for _, c := range calls {
		if c.Outcome == gateway.OutcomeRefused {
			refused = append(refused, c.Exposed)
		}
	}
	if !slices.Equal(refused, []string{"s__pid", "other__echo"}) {
		t.Errorf("refused calls %q", refused)
	}
	if server, tool, ok := e.RawName("s__echo", nil); !ok || server != "s" || tool != "echo" {
		t.Errorf("raw name %s %s %v", server, tool, ok)
	}
}

// post sends one frame and returns the status and the body.
func (h *house) post(url, body string, header map[string]string) (int, string, http.Header) {
	h.t.Helper()
	r, err := http.NewRequestWithContext(h.ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for key, value := range header {
		if key == "Host" {
			r.Host = value
		}
		r.Header.Set(key, value)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		h.t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return response.StatusCode, string(b), response.Header
}

const triple = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`

func modern(method, name string) map[string]string {
	h := map[string]string{"MCP-Protocol-Version": wire.Modern, "Mcp-Method": method}
	if name != "" {
		h["Mcp-Name"] = name
	}
	return h
}

func TestStatelessRequestsMustSayTheSameInHeadersAndBody(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("echo")})
	_, url := h.endpoint(gateway.Profile{})
	call := `{"jsonrpc":"2.0","id":"q","method":"tools/call","params":{"name":"s__echo","arguments":{},` + triple + `}}`
	for _, c := range []struct {
		name   string
		body   string
		header map[string]string
		status int
		code   int
	}{
		{"good", call, modern("tools/call", "s__echo"), 200, 0},
		{"good in base64", call, modern("tools/call", "=?base64?c19fZWNobw==?="), 200, 0},
		{"other method", call, modern("tools/list", "s__echo"), 400, wire.CodeHeaderMismatch},
		{"other name", call, modern("tools/call", "s__other"), 400, wire.CodeHeaderMismatch},
		{"no name", call, modern("tools/call", ""), 400, wire.CodeHeaderMismatch},
		{"no version header", call, map[string]string{"Mcp-Method": "tools/call", "Mcp-Name": "s__echo"}, 400, wire.CodeHeaderMismatch},
		{"other version", strings.Replace(call, "2026-07-28", "2027-01-01", 1), modern("tools/call", "s__echo"), 400, wire.CodeHeaderMismatch},
		{"unknown version", strings.Replace(call, "2026-07-28", "2027-01-01", 1), map[string]string{"MCP-Protocol-Version": "2027-01-01", "Mcp-Method": "tools/call", "Mcp-Name": "s__echo"}, 400, wire.CodeUnsupportedVersion},
		{"no capabilities", strings.Replace(call, `,"io.modelcontextprotocol/clientCapabilities":{}`, "", 1), modern("tools/call", "s__echo"), 400, wire.CodeInvalidParams},
		{"removed method", `{"jsonrpc":"2.0","id":"q","method":"ping","params":{` + triple + `}}`, modern("ping", ""), 404, wire.CodeMethodNotFound},
		{"unknown method", `{"jsonrpc":"2.0","id":"q","method":"x/y","params":{` + triple + `}}`, modern("x/y", ""), 404, wire.CodeMethodNotFound},
		{"name twice", strings.Replace(call, `"arguments"`, `"name":"s__other","arguments"`, 1), modern("tools/call", "s__other"), 400, wire.CodeInvalidParams},
		{"name in another case", strings.Replace(call, `"arguments"`, `"Name":"s__other","arguments"`, 1), modern("tools/call", "s__echo"), 400, wire.CodeInvalidParams},
		{"method twice", strings.Replace(call, `"method"`, `"method":"tools/list","method"`, 1), modern("tools/call", "s__echo"), 400, wire.CodeInvalidRequest},
		{"no JSON", `{`, modern("tools/call", "s__echo"), 400, wire.CodeParse},
		{"batch", `[` + call + `]`, modern("tools/call", "s__echo"), 400, wire.CodeInvalidRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, body, _ := h.post(url, c.body, c.header)
			var answer struct{ Error struct{ Code int } }
			if err := json.Unmarshal([]byte(body), &answer); err != nil {
				t.Fatalf("%d %s: %v", status, body, err)
			}
			if status != c.status || answer.Error.Code != c.code {
				t.Errorf("%d %s, want %d and code %d", status, body, c.status, c.code)
			}
		})
	}
}

func TestSessionsAreOpenedUsedAndClosed(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("echo")})
	_, url := h.endpoint(gateway.Profile{})
	list := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	if status, _, _ := h.post(url, list, nil); status != http.StatusBadRequest {
		t.Errorf("without a session: %d", status)
	}
	if status, _, _ := h.post(url, list, map[string]string{"Mcp-Session-Id": "made-up"}); status != http.StatusNotFound {
		t.Errorf("with an unknown session: %d", status)
	}
	_, _, header := h.post(url, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`, nil)
	id := map[string]string{"Mcp-Session-Id": header.Get("Mcp-Session-Id")}
	if status, body, _ := h.post(url, list, id); status != 200 || !strings.Contains(body, "s__echo") {
		t.Errorf("%d %s", status, body)
	}
	r, _ := http.NewRequestWithContext(h.ctx, http.MethodDelete, url, nil)
	r.Header.Set("Mcp-Session-Id", id["Mcp-Session-Id"])
	response, err := http.DefaultClient.Do(r)
	if err != nil || response.StatusCode != http.StatusNoContent {
		t.Fatal(response, err)
	}
	response.Body.Close()
	if status, _, _ := h.post(url, list, id); status != http.StatusNotFound {
		t.Errorf("after its end: %d", status)
	}
}

func TestGuardLetsInOnlyWhoMayCome(t *testing.T) {
	h := newHouse(t)
	inside := httptest.NewServer(&gateway.Guard{AllowedHosts: []string{"mcp.example.org"}, AllowedOrigins: []string{"https://app.example.org"}, Authorize: gateway.ByToken(secret.New(token), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
	}))})
	t.Cleanup(inside.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	good := "Bearer " + token
	for _, c := range []struct {
		name   string
		header map[string]string
		want   int
	}{
		{"token", map[string]string{"Authorization": good}, http.StatusTeapot},
		{"token, lower-case scheme", map[string]string{"Authorization": "bearer " + token}, http.StatusTeapot},
		{"no token", nil, http.StatusUnauthorized},
		{"wrong token", map[string]string{"Authorization": "Bearer x"}, http.StatusUnauthorized},
		{"empty token", map[string]string{"Authorization": "Bearer "}, http.StatusUnauthorized},
		{"other scheme", map[string]string{"Authorization": "Basic " + token}, http.StatusUnauthorized},
		{"a page of this machine", map[string]string{"Authorization": good, "Origin": "http://localhost:3000"}, http.StatusTeapot},
		{"an allowed page", map[string]string{"Authorization": good, "Origin": "https://app.example.org"}, http.StatusTeapot},
		{"another page", map[string]string{"Authorization": good, "Origin": "https://evil.example"}, http.StatusForbidden},
		{"a page without origin", map[string]string{"Authorization": good, "Origin": "null"}, http.StatusForbidden},
		{"an extension", map[string]string{"Authorization": good, "Origin": "chrome-extension://127.0.0.1"}, http.StatusForbidden},
		{"a page with a user", map[string]string{"Authorization": good, "Origin": "http://x@localhost"}, http.StatusForbidden},
		{"a page with a path", map[string]string{"Authorization": good, "Origin": "http://localhost/x"}, http.StatusForbidden},
		{"an empty origin", map[string]string{"Authorization": good, "Origin": ""}, http.StatusForbidden},
		{"a host with a user", map[string]string{"Authorization": good, "Host": "x@localhost"}, http.StatusForbidden},
		{"a host in brackets", map[string]string{"Authorization": good, "Host": "[[localhost]]"}, http.StatusForbidden},
		{"a page that looks local", map[string]string{"Authorization": good, "Origin": "http://localhost.evil.example"}, http.StatusForbidden},
		{"a rebound name", map[string]string{"Authorization": good, "Host": "evil.example"}, http.StatusForbidden},
		{"an allowed host", map[string]string{"Authorization": good, "Host": "mcp.example.org"}, http.StatusTeapot},
		{"IPv6 loopback", map[string]string{"Authorization": good, "Host": "[::1]:8722"}, http.StatusTeapot},
	} {
		if status, body, _ := h.post(inside.URL, "{}", c.header); status != c.want {
			t.Errorf("%s: %d %s, want %d", c.name, status, body, c.want)
		}
	}
	r, err := http.NewRequestWithContext(h.ctx, http.MethodPost, inside.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"Authorization": {good}, "Origin": {"http://localhost", "https://evil.example"}}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusForbidden {
		t.Errorf("two origins: %s", response.Status)
	}
}

// stdio runs frames through an endpoint's standard streams and returns what came out, one frame for each wanted.
func (h *house) stdio(p gateway.Profile, want int, frames ...string) []string {
	h.t.Helper()
	p.Dir, p.Grace = h.t.TempDir(), patience
	e := gateway.New(h.rt, p, "test", nil)
	in, feed := io.Pipe()
	read, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- e.ServeStdio(h.ctx, in, out)
		out.Close()
	}()
	go func() {
		for _, f := range frames {
			if _, err := io.WriteString(feed, f+"\n"); err != nil {
				return
			}
		}
	}()
	var got []string
	buffer := new(bytes.Buffer)
	chunk := make([]byte, 64<<10)
	for len(got) < want {
		n, err := read.Read(chunk)
		buffer.Write(chunk[:n])
		got = strings.Split(strings.TrimSuffix(buffer.String(), "\n"), "\n")
		if err != nil {
			break
		}
		if !strings.HasSuffix(buffer.String(), "\n") {
			got = got[:len(got)-1]
		}
	}
	feed.Close()
	go io.Copy(io.Discard, read)
	if err := <-ended; err != nil {
		h.t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e.Close(ctx)
	return got
}

func TestStdioKeepsEveryByte(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: []json.RawMessage{json.RawMessage(`{"name":"echo","x-unknown":[1.0,1e5],"inputSchema":{"type":"object","x-kw":12345678901234567890},"execution":{"a":"\u003c"}}`)}})
	arguments := `{"n":12345678901234567890,"f":1.0,"e":1e400,"dup":1,"dup":2,"s":"\u00e9 <&>"}`
	got := h.stdio(gateway.Profile{}, 3,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","id":"two","method":"tools/list"}`,
		`{"jsonrpc":"2.0","id":3.50,"method":"tools/call","params":{"name":"s__echo","arguments":`+arguments+`}}`,
	)
	all := strings.Join(got, "\n")
	for _, want := range []string{
		`"id":"two"`, `{"name":"s__echo","x-unknown":[1.0,1e5],"inputSchema":{"type":"object","x-kw":12345678901234567890},"execution":{"a":"\u003c"}}`,
		`"id":3.50`, strings.Trim(string(wire.Quote(arguments)), `"`),
	} {
		if !strings.Contains(all, want) {
			t.Errorf("%s is not in\n%s", want, all)
		}
	}
}

func TestStdioAnswersWhatItCannotRead(t *testing.T) {
	h := newHouse(t)
	got := h.stdio(gateway.Profile{}, 3, `{nonsense`, `{"jsonrpc":"2.0","id":5,"method":"tools/list"}`, `{"jsonrpc":"2.0","id":6,"id":7,"method":"ping"}`)
	for i, want := range []string{`"code":-32700`, `"id":5,"error":{"code":-32600`, `"code":-32600`} {
		if i >= len(got) || !strings.Contains(got[i], want) {
			t.Errorf("answers %q, want %s in no. %d", got, want, i+1)
		}
	}
}

func TestRequestStateIsGoodOnceAndForItsOwnRequest(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("elicit", "echo")})
	_, url := h.endpoint(gateway.Profile{})
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}`
	call := func(tool, more string) string {
		_, body, _ := h.post(url, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"s__`+tool+`","arguments":{},`+more+meta+`}}`, modern("tools/call", "s__"+tool))
		return body
	}
	first := call("elicit", "")
	state, _ := wire.GetString([]byte(first), "result", "requestState")
	members, err := wire.Members(wire.Get([]byte(first), "result", "inputRequests"))
	if err != nil || len(members) != 1 || state == "" {
		t.Fatalf("the first answer: %s", first)
	}
	answers := fmt.Sprintf(`"requestState":%q,"inputResponses":{%q:{"action":"accept","content":{"name":"Ada"}}},`, state, members[0].Key)
	if got := call("echo", answers); !strings.Contains(got, "requestState") || !strings.Contains(got, "-32602") {
		t.Errorf("for another tool: %s", got)
	}
	if got := call("elicit", answers); !strings.Contains(got, "Ada") {
		t.Errorf("for its own: %s", got)
	}
	if got := call("elicit", answers); !strings.Contains(got, "-32602") {
		t.Errorf("a second time: %s", got)
	}
}

// A script that writes its requests and closes is answered.
func TestStdioAnswersWhatCameBeforeTheEndOfTheInput(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("pid")})
	e := gateway.New(h.rt, gateway.Profile{Dir: t.TempDir(), Grace: patience}, "test", nil)
	in := strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}` + "\n" +
		`{"jsonrpc":"2.0","id":2,"method":"tools/list"}` + "\n")
	var out bytes.Buffer
	if err := e.ServeStdio(h.ctx, in, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"id":1,"result"`, `"id":2,"result"`, "s__pid"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s is not in %s", want, &out)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e.Close(ctx)
}
