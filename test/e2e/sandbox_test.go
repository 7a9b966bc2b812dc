package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"nightporter/internal/config"
	"nightporter/internal/mcp/authority"
	"nightporter/internal/mcp/wire"
	"nightporter/test/fakemodel"
	"nightporter/test/lab"
)

// front is Codex with the same server attached to it in four ways: directly and behind Nightporter, over stdio and over HTTP. Each
// lab records what it is sent.
type front struct {
	*world
	recorder *lab.Recorder
}

// ways are the labs' names. Those of Codex's own entries are the same without their beginning: behind Nightporter a lab is called lab.
var ways = []string{"direct", "behind-stdio", "direct-http", "behind-http"}

// asks is what a server says that wants the state. Codex 0.144.1 knows the older name alone.
var asks = json.RawMessage(`{"codex/sandbox-state":{"version":1},"codex/sandbox-state-meta":{}}`)

func newFront(t *testing.T, p program) *front {
	t.Helper()
	f := &front{newWorld(t, fakemodel.Script{}), lab.Record(t)}
	f.install(p)
	behind := func(name string) string { return filepath.Join(f.home, "np-"+name, "config.toml") }
	named := func(name string) lab.Config {
		return lab.Config{Name: name, Log: f.recorder.Address, Tools: lab.Tools("meta"), Experimental: asks}
	}
	for _, name := range []string{"behind-stdio", "behind-http"} {
		f.write(behind(name), strings.Replace(f.lab(named(name)), "[mcp_servers."+name+"]", "[mcp_servers.lab]", 1))
	}
	gateway, token := f.gateway(behind("behind-http"))
	f.codexConfig = fmt.Sprintf(`
[mcp_servers.direct]
command = %q
args = [%q]
default_tools_approval_mode = "approve"
required = true
[mcp_servers.behind-stdio]
command = %q
args = ["mcp", "--config", %q]
env = { NIGHTPORTER_HOME = %q }
default_tools_approval_mode = "approve"
required = true
[mcp_servers.direct-http]
url = %q
default_tools_approval_mode = "approve"
required = true
[mcp_servers.behind-http]
url = %q
http_headers = { Authorization = "Bearer %s" }
default_tools_approval_mode = "approve"
required = true
`, lab.Binary(t), named("direct").Arg(), filepath.Join(f.bin(), "nightporter"), behind("behind-stdio"), filepath.Dir(behind("behind-stdio")),
		lab.Serve(t, named("direct-http")), gateway, token)
	f.ask(f.calls()...)
	return f
}

// gateway starts nightporter gateway, which ends with the test.
func (f *front) gateway(config string) (address, token string) {
	f.t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	at := free.Addr().String()
	_ = free.Close()
	token = "made-up-token-of-the-gateway"
	file := filepath.Join(filepath.Dir(config), "token")
	f.write(file, token)
	r := f.start("gateway", "--config", config, "--listen", at, "--token-file", file)
	f.t.Cleanup(func() { r.signal(os.Interrupt); r.end() }) // before the world looks for what is left
	return "http://" + at + "/mcp", token
}

// calls are the steps of one turn: a call of each lab, and a reply.
func (f *front) calls() []fakemodel.Step {
	return []fakemodel.Step{
		fakemodel.Calls("direct", "meta", `{}`), fakemodel.Calls("behind-stdio", "lab__meta", `{}`),
		fakemodel.Calls("direct-http", "meta", `{}`), fakemodel.Calls("behind-http", "lab__meta", `{}`), fakemodel.Says("done"),
	}
}

// metas are what came to each lab with its call number n, from 1.
func (f *front) metas(n int) map[string]json.RawMessage {
	f.t.Helper()
	metas := map[string]json.RawMessage{}
	for _, name := range ways {
		got, err := f.recorder.WaitN(within(f.t), n, func(e lab.Entry) bool { return lab.Received(wire.ToolsCall)(e) && e.Name == name })
		if err != nil {
			f.t.Fatalf("%s: %v\nthe model was told %+v", name, err, f.told())
		}
		metas[name] = wire.Get(got[n-1].Message, "params", "_meta")
	}
	return metas
}

// told are the results that the model got, for messages.
func (f *front) told() (texts []string) {
	for _, asked := range f.model.ModelRequests() {
		for _, r := range asked.ToolResults() {
			texts = append(texts, fmt.Sprintf("%.300s", r.Text))
		}
	}
	return texts
}

// same checks that the labs behind Nightporter were told the state that the same Codex told those in front of it, and of launchers what
// belongs to a process of this machine.
func (f *front) same(metas map[string]json.RawMessage) (state string) {
	f.t.Helper()
	direct := metas["direct"]
	state = string(wire.Get(direct, authority.MetaStateLegacy)) // which both versions of Codex give
	if state == "" {
		f.t.Fatalf("Codex gives no state: %s", direct)
	}
	launcher := string(wire.Get(direct, authority.MetaLauncher))
	for _, name := range ways {
		for _, key := range []string{authority.MetaState, authority.MetaStateLegacy} {
			// Codex 0.144.1 itself gives it under the older name alone; behind Nightporter it is there under both.
			if got := string(wire.Get(metas[name], key)); got != state && (got != "" || strings.HasPrefix(name, "behind") || wire.Get(direct, key) != nil) {
				f.t.Errorf("%s: %s is\n%s, not\n%s", name, key, got, state)
			}
		}
		want := launcher
		if strings.HasSuffix(name, "http") {
			want = ""
		}
		// Of the gateway over HTTP the client is elsewhere, though the server is a process of this machine.
		if got := string(wire.Get(metas[name], authority.MetaLauncher)); got != want {
			f.t.Errorf("%s: the launcher is %s, not %s", name, got, want)
		}
		own, _ := wire.GetString(metas[name], authority.MetaOwnLauncher, "executable")
		if path := f.own(); strings.HasPrefix(name, "behind") != (own == path) || own != "" && own != path {
			f.t.Errorf("%s: our own launcher is %q, of %q", name, own, path)
		}
	}
	return state
}

// What a server behind Nightporter is told of the sandbox is what the same server is told by Codex itself, byte for byte (A27 to A29).
func TestA28CodexsStateReachesAServerBehindNightporterAsItIs(t *testing.T) {
	t.Parallel()
	for _, p := range []program{codex, codex144} {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			f := newFront(t, p)
			seen := map[string]string{}
			for i, mode := range []string{"read-only", "workspace-write", "danger-full-access"} {
				f.ask(f.calls()...)
				cmd := exec.CommandContext(within(t), filepath.Join(f.bin(), "codex"), "exec", "-s", mode, "--skip-git-repo-check", "go")
				cmd.Dir, cmd.Env, cmd.WaitDelay = f.work, f.env, killedTime
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				state := f.same(f.metas(i + 1))
				for other, was := range seen {
					if was == state {
						t.Errorf("%s and %s have one state", mode, other)
					}
				}
				seen[mode] = state
			}
			if !strings.Contains(seen["danger-full-access"], `"disabled"`) || !strings.Contains(seen["read-only"], `"managed"`) {
				t.Errorf("states %v", seen)
			}
		})
	}
}

// Codex's own state is stale after its policy was changed between turns (facts/codex-runtime.md, section 5). What came with a call is
// passed on all the same: nothing is kept from one call to the next.
func TestA22StateIsThatOfEachCallWhenCodexsPolicyChanges(t *testing.T) {
	t.Parallel()
	f := newFront(t, codex)
	f.ask(slices.Repeat(f.calls(), 3)...)
	ctx := within(t)
	cmd := exec.CommandContext(ctx, filepath.Join(f.bin(), "codex"), "app-server")
	cmd.Dir, cmd.Env, cmd.WaitDelay = f.work, f.env, killedTime
	c := dialAppServer(t, cmd)
	c.request(ctx, "initialize", object{"clientInfo": object{"name": "test", "version": "1"}})
	started := c.request(ctx, "thread/start", object{"cwd": f.work, "sandbox": "danger-full-access", "approvalPolicy": "never"})
	thread, _ := wire.GetString(started, "thread", "id")
	input := []object{{"type": "text", "text": "go"}}
	turns := []object{
		{"threadId": thread, "input": input},
		{"threadId": thread, "input": input, "sandboxPolicy": object{"type": "readOnly"}},
		{"threadId": thread, "input": input, "sandboxPolicy": object{"type": "workspaceWrite", "writableRoots": []string{}, "networkAccess": false}, "cwd": filepath.Join(f.home, "tmp")},
	}
	states := map[string]bool{}
	for i, turn := range turns {
		c.request(ctx, "turn/start", turn)
		c.await(ctx, "turn/completed")
		states[f.same(f.metas(i+1))] = true
	}
	if len(states) < 2 {
		t.Errorf("the states of all turns are one: %v", states)
	}
	c.end()
}

// appServer is a Codex that is spoken to in JSON-RPC, line by line.
type appServer struct {
	t     *testing.T
	stdin io.WriteCloser
	lines chan json.RawMessage
	end   func()
	id    int
}

func dialAppServer(t *testing.T, cmd *exec.Cmd) *appServer {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &appServer{t: t, stdin: stdin, lines: make(chan json.RawMessage, 10_000)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for r := bufio.NewReader(stdout); ; {
			line, err := r.ReadBytes('\n')
			if err != nil {
				return
			}
			select {
			case c.lines <- line:
			default: // nobody reads as much
			}
		}
	}()
	c.end = func() {
		_ = stdin.Close()
		<-done
		_ = cmd.Wait()
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		c.end()
	})
	return c
}

// next waits for a message for which match is true.
func (c *appServer) next(ctx context.Context, what string, match func(json.RawMessage) bool) json.RawMessage {
	c.t.Helper()
	for {
		select {
		case line := <-c.lines:
			if match(line) {
				return line
			}
		case <-ctx.Done():
			c.t.Fatalf("wait for %s: %v", what, ctx.Err())
		}
	}
}

func (c *appServer) request(ctx context.Context, method string, params object) json.RawMessage {
	c.t.Helper()
	c.id++
	if _, err := fmt.Fprintf(c.stdin, "%s\n", text(object{"id": c.id, "method": method, "params": params})); err != nil {
		c.t.Fatal(err)
	}
	answer := c.next(ctx, "the answer to "+method, func(line json.RawMessage) bool {
		return string(wire.Get(line, "id")) == fmt.Sprint(c.id) && wire.Get(line, "method") == nil
	})
	if wire.Get(answer, "error") != nil {
		c.t.Fatalf("%s: %s", method, answer)
	}
	return wire.Get(answer, "result")
}

func (c *appServer) await(ctx context.Context, method string) {
	c.t.Helper()
	c.next(ctx, method, func(line json.RawMessage) bool { got, _ := wire.GetString(line, "method"); return got == method })
}

// In a run the operator's policy reaches the server whatever the agent says of itself: Claude Code gives no state, so that one is made; Codex
// gives its own, which must lie within the policy (A28). Nightporter's own launcher comes with it: agents of runs are clients over HTTP.
func TestA28RunsServerIsToldTheGrantsSandbox(t *testing.T) {
	t.Parallel()
	script := func() fakemodel.Script { return fakemodel.Replies(call("lab", "meta", `{}`), fakemodel.Says("done")) }
	eachAgent(t, script, func(t *testing.T, w *world, p program) {
		recorder := lab.Record(t)
		w.config(w.lab(lab.Config{Name: "lab", Log: recorder.Address, Tools: lab.Tools("meta"), Experimental: asks}) +
			"[grants.g]\nservers = [\"lab\"]\nsandbox = \"workspace-write\"\n")
		o, r := w.outcome("--agent", p.agent, "--grant", "g", "--workdir", w.work, "go")
		w.replied(o, r, "done")
		got, err := recorder.Wait(within(t), lab.Received(wire.ToolsCall))
		if err != nil {
			t.Fatalf("%v\n%+v", err, o)
		}
		meta := wire.Get(got.Message, "params", "_meta")
		state := string(wire.Get(meta, authority.MetaState))
		own, err := authority.Policy(&config.Sandbox{Mode: "workspace-write"}, w.work)
		if err != nil {
			t.Fatal(err)
		}
		if p.agent == "claude" && state != own || authority.Within(state, own) != nil || state != string(wire.Get(meta, authority.MetaStateLegacy)) {
			t.Errorf("the server was told %s, the policy is %s", meta, own)
		}
		if wire.Get(meta, authority.MetaLauncher) != nil || wire.Get(meta, authority.MetaOwnLauncher) == nil {
			t.Errorf("launchers: %s", meta)
		}
	})
}

// A grant that a command names is that of the configuration as it was last read: what is narrowed there holds for clients that are connected.
func TestA23GrantIsThatOfTheConfigurationAsItIsNow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fakemodel.Script{})
	entry := w.lab(lab.Config{Name: "lab", Tools: lab.Tools("meta"), Experimental: asks})
	grant := func(lines string) { w.config(entry + "[grants.g]\nservers = [\"lab\"]\n" + lines) }
	grant(`sandbox = "workspace-write"`)
	ctx := within(t)
	cmd := exec.Command(w.own(), "mcp", "--alone", "--grant", "g")
	var said bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stderr = w.work, w.env, &said
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatalf("%v; it said: %s", err, &said)
	}
	t.Cleanup(func() { _ = session.Close() })
	// until calls until the answer holds a text.
	until := func(want string) {
		t.Helper()
		for tick := time.NewTicker(20 * time.Millisecond); ; {
			answer, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "lab__meta"})
			got := fmt.Sprint(err)
			if err == nil {
				got = answer.Content[0].(*mcp.TextContent).Text
			}
			if strings.Contains(got, want) {
				tick.Stop()
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				t.Fatalf("the answer is still %s, not %s", got, want)
			}
		}
	}
	until(`"access":"write"`)
	grant(`sandbox = { type = "disabled" }`)
	until(`{"type":"disabled"}`)
	grant(`sandbox = "read-only"`)
	until(`"access":"read"}]},"network":"restricted"}`)
	grant(`tools.lab = []`)
	until("unknown tool")
	w.config(entry) // and without the grant
	until("unknown tool")
}

// All of it together: what the user lets Codex do is what a command may do that a server behind Nightporter runs for it.
func TestA28CommandOfAServerBehindNightporterIsUnderCodexsPolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fakemodel.Script{})
	w.install(codex)
	runner := filepath.Join(t.TempDir(), "runner")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", runner, "nightporter/examples/sandboxed-runner").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	// By our own launcher: Codex finds no helper of its own when its home is a temporary folder (facts/codex-runtime.md, section 6).
	w.config(fmt.Sprintf("[mcp_servers.runner]\ncommand = %q\nargs = [\"-launcher\", \"nightporter\"]\n", runner))
	w.codexConfig = fmt.Sprintf(`
[mcp_servers.nightporter]
command = %q
args = ["mcp"]
env = { NIGHTPORTER_HOME = %q }
default_tools_approval_mode = "approve"
required = true
`, w.own(), filepath.Join(w.home, "np"))
	file := filepath.Join(w.work, "made")
	for _, mode := range []string{"read-only", "workspace-write"} {
		w.ask(call("runner", "run", text(object{"command": []string{"sh", "-c", "echo it ran; echo x >" + file}})), fakemodel.Says("done"))
		cmd := exec.CommandContext(within(t), filepath.Join(w.bin(), "codex"), "exec", "-s", mode, "--skip-git-repo-check", "go")
		cmd.Dir, cmd.Env, cmd.WaitDelay = w.work, w.env, killedTime
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		var told string
		for _, asked := range w.model.ModelRequests() {
			for _, r := range asked.ToolResults() {
				told += r.Text
			}
		}
		_, err := os.Stat(file)
		if made := err == nil; made != (mode == "workspace-write") || !strings.Contains(told, "it ran") {
			t.Errorf("%s: made %v; the model was told %s", mode, made, told)
		}
	}
}
