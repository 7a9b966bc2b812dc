package lab_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"nightporter/test/lab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit bounds waits that are meant to end at once.
const limit = 2 * time.Minute

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// process is a lab on stdio, spoken to in raw lines.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr *bytes.Buffer
}

func start(t *testing.T, config lab.Config) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.CommandContext(within(t), lab.Binary(t), config.Arg()), stderr: new(bytes.Buffer)}
	p.cmd.Stderr = p.stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in, p.out = in, bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
	return p
}

func (p *process) send(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) line() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("read a line: %v, have %q", err, line)
	}
	return strings.TrimSpace(line)
}

// end waits for the process's end and returns its exit status.
func (p *process) end() int {
	p.t.Helper()
	_, _ = io.Copy(io.Discard, p.out)
	err := p.cmd.Wait()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

func call(id int, tool, arguments string) string {
	return `{"jsonrpc":"2.0","id":` + strconv.Itoa(id) + `,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + arguments + `}}`
}

func contains(t *testing.T, got string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(got, want) {
			t.Errorf("got %s\nwithout %s", got, want)
		}
	}
}

// connect connects go-sdk's client; an empty version lets it choose.
func connect(t *testing.T, transport mcp.Transport, version string, options *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, options)
	session, err := client.Connect(within(t), transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

func said(t *testing.T, result *mcp.CallToolResult, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Content) == 0 {
		t.Fatalf("no content: %+v", result)
	}
	text, ok := result.Content[0].(*mcp.TextContent)
	if !ok {
		t.Fatalf("not a text: %+v", result.Content[0])
	}
	return text.Text
}

func TestASDKClientIsServedInEachEraAndTransport(t *testing.T) {
	for _, c := range []struct {
		name   string
		era    lab.Era
		pin    string // what the client insists on
		speaks string // what is agreed on
		http   lab.HTTP
	}{
		{name: "legacy", era: lab.Legacy, speaks: "2025-11-25"},
		{name: "modern", era: lab.Modern, speaks: "2026-07-28"},
		{name: "both, new client", era: lab.Both, speaks: "2026-07-28"},
		{name: "both, old client", era: lab.Both, pin: "2025-06-18", speaks: "2025-06-18"},
		{name: "JSON answers", era: lab.Legacy, speaks: "2025-11-25", http: lab.HTTP{JSON: true}},
	} {
		for _, transport := range []string{"stdio", "http"} {
			t.Run(c.name+"/"+transport, func(t *testing.T) {
				changed := make(chan struct{}, 1)
				config := lab.Config{
					Name: "a", Era: c.era, Instructions: "use me", PageSize: 2, HTTP: c.http,
					Tools:     lab.Tools("echo", "addtool", "elicit", "sleep"),
					Prompts:   []json.RawMessage{[]byte(`{"name":"greet"}`)},
					Resources: []json.RawMessage{[]byte(`{"uri":"lab://r","name":"r"}`)},
				}
				var to mcp.Transport
				if transport == "stdio" {
					to = &mcp.CommandTransport{Command: exec.Command(lab.Binary(t), config.Arg())}
				} else {
					// Without connections kept open: nothing may be left when the test ends.
					web := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
					to = &mcp.StreamableClientTransport{Endpoint: lab.Serve(t, config), HTTPClient: web}
				}
				session := connect(t, to, c.pin, &mcp.ClientOptions{
					ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) {
						select {
						case changed <- struct{}{}:
						default:
						}
					},
					ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
						return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada"}}, nil
					},
				})
				ctx := within(t)
				if got := session.InitializeResult(); got.ProtocolVersion != c.speaks || got.Instructions != "use me" {
					t.Errorf("agreed on %q with instructions %q, want %q", got.ProtocolVersion, got.Instructions, c.speaks)
				}
				var names []string
				for tool, err := range session.Tools(ctx, nil) {
					if err != nil {
						t.Fatal(err)
					}
					names = append(names, tool.Name)
				}
				if want := []string{"echo", "addtool", "elicit", "sleep"}; !slices.Equal(names, want) {
					t.Errorf("tools over two pages: %v", names)
				}
				result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"x": 1}})
				if got := said(t, result, err); got != `a: {"x":1}` {
					t.Errorf("echo said %s", got)
				}
				result, err = session.CallTool(ctx, &mcp.CallToolParams{Name: "elicit"})
				contains(t, said(t, result, err), `"accept"`, `"Ada"`)
				if _, err := session.GetPrompt(ctx, &mcp.GetPromptParams{Name: "greet"}); err != nil {
					t.Errorf("prompt: %v", err)
				}
				if _, err := session.ReadResource(ctx, &mcp.ReadResourceParams{URI: "lab://r"}); err != nil {
					t.Errorf("resource: %v", err)
				}
				result, err = session.CallTool(ctx, &mcp.CallToolParams{Name: "addtool", Arguments: map[string]any{"name": "new"}})
				said(t, result, err)
				select {
				case <-changed:
				case <-ctx.Done():
					t.Error("the client was not told that the list has changed")
				}
			})
		}
	}
}

func TestFaultsOfMethods(t *testing.T) {
	const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`
	t.Run("an error of the test's own", func(t *testing.T) {
		p := start(t, lab.Config{Methods: map[string]lab.Fault{"initialize": {Error: []byte(`{"code":-1,"message":"no"}`), First: 1}}})
		p.send(initialize)
		contains(t, p.line(), `"error":{"code":-1,"message":"no"}`)
		p.send(initialize)
		contains(t, p.line(), `"result":`)
	})
	t.Run("a result as it stands", func(t *testing.T) {
		p := start(t, lab.Config{Methods: map[string]lab.Fault{"initialize": {Result: []byte(`{"n":12345678901234567890.10,"<":"&"}`)}}})
		p.send(initialize)
		contains(t, p.line(), `"result":{"n":12345678901234567890.10,"<":"&"}`)
	})
	t.Run("junk, then exit", func(t *testing.T) {
		p := start(t, lab.Config{Methods: map[string]lab.Fault{"initialize": {Junk: "half a li", Exit: new(7)}}})
		p.send(initialize)
		if rest, _ := io.ReadAll(p.out); string(rest) != "half a li" {
			t.Errorf("stdout: %q", rest)
		}
		if code := p.end(); code != 7 {
			t.Errorf("exit status %d", code)
		}
	})
	t.Run("silent, without holding others up", func(t *testing.T) {
		p := start(t, lab.Config{Methods: map[string]lab.Fault{"initialize": {Silent: true}}})
		p.send(initialize)
		p.send(`{"jsonrpc":"2.0","id":2,"method":"ping"}`)
		contains(t, p.line(), `"id":2`)
	})
	t.Run("delay", func(t *testing.T) {
		p := start(t, lab.Config{Methods: map[string]lab.Fault{"initialize": {Delay: lab.Duration(50 * time.Millisecond)}}})
		begun := time.Now()
		p.send(initialize)
		p.line()
		if took := time.Since(begun); took < 50*time.Millisecond {
			t.Errorf("answered after %v", took)
		}
	})
	t.Run("hold until released", func(t *testing.T) {
		recorder := lab.Record(t)
		p := start(t, lab.Config{Log: recorder.Address, Methods: map[string]lab.Fault{"initialize": {Hold: true}}})
		p.send(initialize)
		if _, err := recorder.Wait(within(t), lab.Happened("hold")); err != nil {
			t.Fatal(err)
		}
		p.send(`{"jsonrpc":"2.0","id":2,"method":"ping"}`)
		contains(t, p.line(), `"id":2`)
		if err := recorder.Release(within(t)); err != nil {
			t.Fatal(err)
		}
		contains(t, p.line(), `"id":1`)
	})
}

func TestBehavioursOfTools(t *testing.T) {
	config := lab.Config{
		Name: "b", Tools: lab.Tools(slices.Collect(keys(lab.Behaviours))...), Behaves: map[string]string{"shout": "fail"},
		Calls: map[string]lab.Fault{"fixed": {Result: []byte(`{"content":[],"own":1.0}`)}},
	}
	p := start(t, config)
	for i, c := range []struct{ tool, arguments, want string }{
		{"anything", `{"x": 1.0}`, `b: {\"x\": 1.0}`},
		{"fail", `{}`, `"isError":true`},
		{"shout", `{}`, `"isError":true`},
		{"fixed", `{}`, `"result":{"content":[],"own":1.0}`},
		{"rpcerror", `{}`, `"code":-32050`},
		{"pid", `{}`, `"` + strconv.Itoa(p.cmd.Process.Pid) + `"`},
		{"env", `{}`, `\"cwd\":`},
		{"sleep", `{"for":"1ms"}`, `slept 1ms`},
		{"structured", `{}`, `"structuredContent":{"answer":42}`},
		{"image", `{}`, `"resource_link"`},
	} {
		p.send(call(i, c.tool, c.arguments))
		contains(t, p.line(), `"id":`+strconv.Itoa(i), c.want)
	}
	p.send(call(90, "big", `{"bytes":100000}`))
	if got := len(p.line()); got < 100000 {
		t.Errorf("big answered %d bytes", got)
	}
	p.send(call(91, "junk", `{}`))
	if got := p.line(); json.Valid([]byte(got)) {
		t.Errorf("junk is JSON: %s", got)
	}
	contains(t, p.line(), `after junk`)
	p.send(`{"jsonrpc":"2.0","id":92,"method":"tools/call","params":{"name":"meta","_meta":{"codex/x":12345678901234567890,"progressToken":7}}}`)
	contains(t, p.line(), `{\"codex/x\":12345678901234567890,\"progressToken\":7}`)
	p.send(`{"jsonrpc":"2.0","id":93,"method":"tools/call","params":{"name":"sleep","arguments":{"for":"1h","progress":"1ms"},"_meta":{"progressToken":7}}}`)
	contains(t, p.line(), `"method":"notifications/progress"`, `"progressToken":7`)
	p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":93}}`)
	p.send(call(94, "exit", `{"status":5}`))
	if code := p.end(); code != 5 {
		t.Errorf("exit status %d", code)
	}
}

func keys(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for key := range m {
			if !yield(key) {
				return
			}
		}
	}
}

func TestALabThatExitsAtStartTellsWhyOnStderr(t *testing.T) {
	p := start(t, lab.Config{Stderr: "no database\n", Stdout: "welcome\n", Exit: new(3)})
	if got := p.line(); got != "welcome" {
		t.Errorf("stdout: %s", got)
	}
	if code := p.end(); code != 3 || p.stderr.String() != "no database\n" {
		t.Errorf("exit status %d, stderr %q", code, p.stderr)
	}
}

func TestToolsAreSentAsTheyStand(t *testing.T) {
	odd := `{"name":"","inputSchema":null,"n":1e400}`
	p := start(t, lab.Config{Tools: []json.RawMessage{[]byte(odd)}, Experimental: []byte(`{"codex/sandbox-state":{}}`)})
	p.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	contains(t, p.line(), `"tools":[`+odd+`]`)
	p.send(`{"jsonrpc":"2.0","id":2,"method":"initialize","params":{"protocolVersion":"x"}}`)
	contains(t, p.line(), `"experimental":{"codex/sandbox-state":{}}`, `"protocolVersion":"x"`)
}

func TestTheRecorderSeesTheWholeLifeOfAProcess(t *testing.T) {
	recorder := lab.Record(t)
	p := start(t, lab.Config{Name: "a", Log: recorder.Address, LogEnv: true})
	p.send(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	p.line()
	p.send(`not JSON`)
	if err := p.in.Close(); err != nil {
		t.Fatal(err)
	}
	pid := p.cmd.Process.Pid
	if _, err := recorder.Wait(within(t), lab.Gone(pid)); err != nil {
		t.Fatal(err)
	}
	var happened []string
	for _, e := range recorder.Entries() {
		happened = append(happened, e.What)
		if e.PID != pid || e.Name != "a" {
			t.Errorf("entry %s of %s, pid %d", e.What, e.Name, e.PID)
		}
	}
	if got, want := strings.Join(happened, " "), "start in out bad eof gone"; got != want {
		t.Errorf("log: %s, want %s", got, want)
	}
	if begin := recorder.Entries()[0]; begin.Env["PATH"] == "" || len(begin.Args) != 2 {
		t.Errorf("start entry: %+v", begin)
	}
}

func TestALogFileHoldsTheSameEntries(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	p := start(t, lab.Config{Log: path})
	if err := p.in.Close(); err != nil {
		t.Fatal(err)
	}
	p.end()
	entries, err := lab.ReadLog(path)
	if err != nil || len(entries) != 2 || entries[0].What != "start" || entries[1].What != "eof" {
		t.Errorf("log: %+v, %v", entries, err)
	}
}

func TestAStubbornLabOutlivesEOFAndTERMButNotItsTest(t *testing.T) {
	if os.PathSeparator != '/' {
		t.Skip("needs signals")
	}
	recorder := lab.Record(t)
	p := start(t, lab.Config{Log: recorder.Address, IgnoreEOF: true, IgnoreTerm: true, Grandchild: true})
	ctx := within(t)
	grandchild, err := recorder.Wait(ctx, lab.Happened("grandchild"))
	if err != nil {
		t.Fatal(err)
	}
	if grandchild.Parent != p.cmd.Process.Pid {
		t.Errorf("the grandchild's parent is %d, want %d", grandchild.Parent, p.cmd.Process.Pid)
	}
	if err := p.in.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := recorder.Wait(ctx, lab.Happened("eof")); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if _, err := recorder.Wait(ctx, lab.Happened("signal")); err != nil {
		t.Fatal(err)
	}
	if gone := recorder.Select(lab.Happened("gone")); len(gone) > 0 {
		t.Fatalf("ended by EOF or TERM: %+v", gone)
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := recorder.Wait(ctx, lab.Gone(p.cmd.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	if gone := recorder.Select(lab.Gone(grandchild.PID)); len(gone) > 0 {
		t.Error("the grandchild went with its parent; nothing would have to be cleaned up")
	}
	// The grandchild is this test's to end.
	process, err := os.FindProcess(grandchild.PID)
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := recorder.Wait(ctx, lab.Gone(grandchild.PID)); err != nil {
		t.Fatal(err)
	}
}

func TestHTTPFaults(t *testing.T) {
	recorder := lab.Record(t)
	url := lab.Serve(t, lab.Config{
		Log: recorder.Address, HTTP: lab.HTTP{Token: "tok", SessionID: "s1"}, Tools: lab.Tools("exit"),
		Methods: map[string]lab.Fault{"tools/list": {Status: 503}},
	})
	post := func(token, session, body string) (int, error) {
		request, err := http.NewRequestWithContext(within(t), http.MethodPost, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Close = true
		request.Header.Set("Authorization", "Bearer "+token)
		if session != "" {
			request.Header.Set("Mcp-Session-Id", session)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return 0, err
		}
		defer response.Body.Close()
		_, err = io.ReadAll(response.Body)
		return response.StatusCode, err
	}
	const list = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	for _, c := range []struct {
		token, session, body string
		want                 int
	}{
		{"wrong", "", list, 401},
		{"tok", "", list, 400},
		{"tok", "nosuch", list, 404},
		{"tok", "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`, 200},
		{"tok", "s1", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, 202},
		{"tok", "s1", list, 503},
	} {
		if got, err := post(c.token, c.session, c.body); got != c.want || err != nil {
			t.Errorf("%s with token %q, session %q: %d, %v; want %d", c.body, c.token, c.session, got, err, c.want)
		}
	}
	if _, err := post("tok", "s1", call(2, "exit", `{}`)); err == nil {
		t.Error("exit on HTTP answered")
	}
	entry, err := recorder.Wait(within(t), lab.Received("notifications/initialized"))
	if err != nil || entry.Header.Get("Mcp-Session-Id") != "s1" {
		t.Errorf("recorded %+v, %v", entry, err)
	}
}

func TestAMisspeltConfigIsRefused(t *testing.T) {
	out, err := exec.Command(lab.Binary(t), `{"nmae":"x"}`).CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("nmae")) {
		t.Errorf("%v: %s", err, out)
	}
	out, err = exec.Command(lab.Binary(t), lab.Config{Experimental: []byte(`{`)}.Arg()).CombinedOutput()
	if err == nil {
		t.Errorf("a config that is not JSON was taken: %s", out)
	}
}
