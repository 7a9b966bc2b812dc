package matrix

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"nightporter/internal/mcp/wire"
	"nightporter/test/fakemodel"
	"nightporter/test/lab"
	"nightporter/test/programs"
)

// features are the columns of the page.
var features = []string{"list", "call", "progress", "cancel", "elicitation", "sampling", "resources", "prompts", "list_changed"}

// cells are what was measured of one client, by feature: "yes", "–" where the client has none, another short text that the page
// explains, or why it does not work.
type cells map[string]string

// The two servers behind: old speaks the revisions with sessions, new speaks 2026-07-28. A feature works when it works with both.
var behind = []string{"old", "new"}

// place is a client's place: two servers with what they record, and the way to them.
type place struct {
	*house
	recorder *lab.Recorder
	url      string   // with HTTP
	command  []string // with stdio
}

const (
	onStdio = "stdio"
	onHTTP  = "HTTP"
)

func newPlace(t *testing.T, entry string) *place {
	p := &place{recorder: lab.Record(t)}
	var config strings.Builder
	for _, name := range behind {
		c := lab.Config{
			Name: name, Tools: lab.Tools("echo", "sleep", "hang", "elicit", "sample", "addtool"), Log: p.recorder.Address,
			Prompts: []json.RawMessage{json.RawMessage(`{"name":"greet"}`)}, Resources: []json.RawMessage{json.RawMessage(`{"uri":"lab://` + name + `","name":"r"}`)},
		}
		if name == "new" {
			c.Era = lab.Modern
		}
		fmt.Fprintf(&config, "[mcp_servers.%s]\ncommand = %q\nargs = [%s]\nrequired = true\n", name, lab.Binary(t), wire.Quote(c.Arg()))
	}
	p.house = newHouse(t, config.String())
	if entry == onStdio {
		// Clients differ in what they let a server have of their environment.
		p.command = []string{programs.Find(t, "env"), "NIGHTPORTER_HOME=" + filepath.Join(p.home, "np"), built(t, "nightporter/cmd/nightporter"), "mcp"}
	} else {
		base, _ := p.gateway()
		p.url = base + "/mcp"
	}
	return p
}

// lacks reports whether the client said that it has no such ability: servers are told what it said.
func (p *place) lacks(ability string) bool {
	said := p.recorder.Select(lab.Received(wire.Initialize))
	return len(said) > 0 && wire.Get(said[0].Message, "params", "capabilities", ability) == nil
}

// wantsProgress reports whether the client asked for progress of its calls.
func (p *place) wantsProgress() bool {
	calls := p.recorder.Select(lab.Received(wire.ToolsCall))
	return slices.ContainsFunc(calls, func(e lab.Entry) bool { return wire.Get(e.Message, "params", "_meta", "progressToken") != nil })
}

// run runs a program to its end.
func (p *place) run(t *testing.T, ctx context.Context, env []string, stdin, program string, args ...string) (stdout string, err error) {
	t.Helper()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env, cmd.Stdin = p.work, append(slices.Clone(p.env), env...), strings.NewReader(stdin)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("%w\n%.2000s\n%.2000s", err, &problems, &out)
	}
	return out.String(), err
}

// client is a row of the page.
type client struct {
	name string
	use  func(t *testing.T, ctx context.Context, p *place) cells
}

var clients = []client{
	{"MCP Inspector CLI 2.12.0, sessions", inspector("legacy")},
	{"MCP Inspector CLI 2.12.0, 2026-07-28", inspector("modern")},
	{"Claude Code 2.1.332", claudeCode},
	{"Codex 0.171.0", codex(programs.Codex, true)},
	{"Codex 0.144.1", codex(programs.Codex144, false)},
	{"go-sdk 1.8.0, 2025-11-25", goSDK("2025-11-25")},
	{"go-sdk 1.8.0, 2026-07-28", goSDK("2026-07-28")},
	{"TypeScript SDK 1.32.2", typeScript("v1", "2025-11-25")},
	{"TypeScript SDK 2.4.0, sessions", typeScript("v2", "2025-11-25")},
	{"TypeScript SDK 2.4.0, 2026-07-28", typeScript("v2", "2026-07-28")},
}

// known are cells that are not "yes" and no fault of Nightporter's, with the reason for the page.
var known = map[string]string{
	"–":         "the client has none: it does not say that it can, or has no way to",
	"`cancel`":  "the client answers so, as nobody is there to be asked: the servers get this answer",
	"`decline`": "the same",
}

// TestRealClientsWorkInFrontOfTheGateway takes each client through everything, in front of `nightporter mcp` and `nightporter gateway`.
func TestRealClientsWorkInFrontOfTheGateway(t *testing.T) {
	var mu sync.Mutex
	measured := map[string]cells{}
	t.Run("clients", func(t *testing.T) {
		for _, c := range clients {
			for _, entry := range []string{onStdio, onHTTP} {
				t.Run(c.name+" on "+entry, func(t *testing.T) {
					t.Parallel()
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					defer cancel()
					p := newPlace(t, entry)
					got := c.use(t, ctx, p)
					if entry == onStdio {
						if left := p.gone(); len(left) > 0 {
							t.Errorf("left behind the client:\n%s", strings.Join(left, "\n"))
						}
					}
					for _, f := range features {
						if got[f] != "yes" && known[got[f]] == "" {
							t.Errorf("%s: %s", f, got[f])
							got[f] = "**no**"
						}
					}
					mu.Lock()
					measured[c.name+entry] = got
					mu.Unlock()
				})
			}
		}
	})
	if t.Failed() {
		return
	}
	if len(measured) < 2*len(clients) {
		programs.Skip(t, "some clients are not here, and docs/clients.md is about all")
	}
	var text strings.Builder
	text.WriteString("# Clients that work in front of the gateway\n\n" +
		"Measured by `go test ./test/matrix`, which takes each client through everything, in front of `nightporter mcp` (stdio) and of\n" +
		"`nightporter gateway` (HTTP). Behind are two servers, one that speaks the revisions with sessions and one that speaks 2026-07-28, and a feature\n" +
		"counts when it works with both. CI fails when this page says something else than it measured.\n\n" +
		"| client | by | " + strings.Join(features, " | ") + " |\n|---|---|" + strings.Repeat("---|", len(features)) + "\n")
	for _, c := range clients {
		for _, entry := range []string{onStdio, onHTTP} {
			fmt.Fprintf(&text, "| %s | %s |", c.name, entry)
			for _, f := range features {
				fmt.Fprintf(&text, " %s |", measured[c.name+entry][f])
			}
			text.WriteString("\n")
		}
	}
	fmt.Fprintf(&text, "\n- yes: measured. *progress*: the client asked for it, and a call that reports it ends well; *cancel*: the server was told, while its client went on.\n")
	for _, cell := range []string{"–", "`cancel`", "`decline`"} {
		fmt.Fprintf(&text, "- %s: %s.\n", cell, known[cell])
	}
	page(t, "clients.md", text.String())
}

// goSDK is go-sdk's own client.
func goSDK(version string) func(*testing.T, context.Context, *place) cells {
	return func(t *testing.T, ctx context.Context, p *place) cells {
		progress, changed := make(chan string, 1024), make(chan string, 64)
		options := &mcp.ClientOptions{
			ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada"}}, nil
			},
			//lint:ignore SA1019 deprecated in 2026-07-28, and still in use by servers of every earlier revision
			CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
				//lint:ignore SA1019 as above
				return &mcp.CreateMessageResult{Model: "m", Role: "assistant", Content: &mcp.TextContent{Text: "sampled"}}, nil
			},
			ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
				progress <- fmt.Sprint(r.Params.ProgressToken)
			},
			ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- "" },
		}
		var transport mcp.Transport = &mcp.StreamableClientTransport{Endpoint: p.url, HTTPClient: authorised()}
		if p.command != nil {
			cmd := exec.Command(p.command[0], p.command[1:]...)
			cmd.Env, cmd.Dir = p.env, p.work
			transport = &mcp.CommandTransport{Command: cmd}
		}
		s := connect(ctx, t, transport, version, options)
		say := func(ctx context.Context, server, tool string, args map[string]any, want string) error {
			params := &mcp.CallToolParams{Name: server + "__" + tool, Arguments: args}
			if args["progress"] != nil {
				params.SetProgressToken(fmt.Sprint(server, args["for"]))
			}
			result, err := s.CallTool(ctx, params)
			if err != nil {
				return err
			}
			text, _ := json.Marshal(result)
			if !strings.Contains(string(text), want) {
				return fmt.Errorf("want %s in %s", want, text)
			}
			return nil
		}
		contains := func(got any, err error, want string) error {
			text, _ := json.Marshal(got)
			if err == nil && !strings.Contains(string(text), want) {
				err = fmt.Errorf("want %s in %s", want, text)
			}
			return err
		}
		await := func(what <-chan string, which string) error {
			for {
				select {
				case got := <-what:
					if got == which {
						return nil
					}
				case <-ctx.Done():
					return errors.New("nothing came")
				}
			}
		}
		do := map[string]func(server string) error{
			"list": func(server string) error {
				list, err := s.ListTools(ctx, nil)
				return contains(list, err, server+"__echo")
			},
			"call": func(server string) error {
				return say(ctx, server, "echo", map[string]any{"message": "hi"}, server+": ")
			},
			"progress": func(server string) error {
				if err := say(ctx, server, "sleep", map[string]any{"for": "300ms", "progress": "20ms"}, "slept"); err != nil {
					return err
				}
				return await(progress, server+"300ms")
			},
			"cancel": func(server string) error {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				ended := make(chan error, 1)
				go func() {
					ended <- say(ctx, server, "sleep", map[string]any{"for": "60s", "progress": "20ms"}, "slept")
				}()
				if err := await(progress, server+"60s"); err != nil {
					return err
				}
				cancel()
				if err := <-ended; err == nil {
					return errors.New("it was answered")
				}
				return nil
			},
			"elicitation": func(server string) error { return say(ctx, server, "elicit", nil, "Ada") },
			"sampling":    func(server string) error { return say(ctx, server, "sample", nil, "sampled") },
			"resources": func(server string) error {
				list, err := s.ListResources(ctx, nil)
				if err := contains(list, err, "lab://"+server); err != nil {
					return err
				}
				read, err := s.ReadResource(ctx, &mcp.ReadResourceParams{URI: "lab://" + server})
				return contains(read, err, "resource lab://"+server)
			},
			"prompts": func(server string) error {
				list, err := s.ListPrompts(ctx, nil)
				if err := contains(list, err, server+"__greet"); err != nil {
					return err
				}
				got, err := s.GetPrompt(ctx, &mcp.GetPromptParams{Name: server + "__greet"})
				return contains(got, err, "prompt greet")
			},
			"list_changed": func(server string) error {
				if err := say(ctx, server, "addtool", map[string]any{"name": "late"}, "added"); err != nil {
					return err
				}
				for {
					if err := await(changed, ""); err != nil {
						return err
					}
					list, err := s.ListTools(ctx, nil)
					if contains(list, err, server+"__late") == nil {
						return nil
					}
				}
			},
		}
		got := cells{}
		for _, f := range features {
			got[f] = "yes"
			for _, server := range behind {
				if err := do[f](server); err != nil {
					got[f] = server + ": " + err.Error()
					break
				}
			}
		}
		p.checkCancelled(ctx, got)
		_ = s.Close() // its error is that of the process that it ended
		return got
	}
}

// checkCancelled checks that servers were told what the client cancelled.
func (p *place) checkCancelled(ctx context.Context, got cells) {
	for _, server := range behind {
		told := lab.Received(wire.Cancelled)
		of := func(e lab.Entry) bool { return e.Name == server && told(e) }
		if _, err := p.recorder.Wait(ctx, of); err != nil && got["cancel"] == "yes" {
			got["cancel"] = server + " was not told: " + err.Error()
		}
	}
}

// typeScript is a client of the official TypeScript SDK.
func typeScript(sdk, version string) func(*testing.T, context.Context, *place) cells {
	return func(t *testing.T, ctx context.Context, p *place) cells {
		programs.NPM(t, map[string]string{"v1": "@modelcontextprotocol/sdk/dist/esm/client/index.js", "v2": "@modelcontextprotocol/client/dist/index.mjs"}[sdk])
		options := map[string]any{
			"modules": filepath.Join(programs.Root(), "test", "npm", "node_modules"), "sdk": sdk, "version": version, "servers": behind,
			"url": p.url, "token": token,
		}
		if p.command != nil {
			options["command"] = p.command
		}
		script := filepath.Join(programs.Root(), "test", "matrix", "driver.mjs")
		out, err := p.run(t, ctx, nil, "", programs.Find(t, "node"), script, string(wire.Encode(options)))
		if err != nil {
			t.Fatal(err)
		}
		got := cells{}
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		p.checkCancelled(ctx, got)
		return got
	}
}

// inspector is the MCP Inspector's command line, a process for each request.
func inspector(era string) func(*testing.T, context.Context, *place) cells {
	return func(t *testing.T, ctx context.Context, p *place) cells {
		node, script := programs.Find(t, "node"), programs.NPM(t, "@modelcontextprotocol/inspector/clients/launcher/build/index.js")
		entry := map[string]any{"type": "streamable-http", "url": p.url, "headers": map[string]string{"Authorization": "Bearer " + token}}
		if p.command != nil {
			entry = map[string]any{"type": "stdio", "command": p.command[0], "args": p.command[1:]}
		}
		config := filepath.Join(p.home, "inspector.json")
		p.write(config, string(wire.Encode(map[string]any{"mcpServers": map[string]any{"np": entry}})))
		args := func(method string, more ...string) []string {
			return append([]string{script, "--cli", "--config", config, "--server", "np", "--protocol-era", era, "--format", "json", "-q", "--method", method}, more...)
		}
		check := func(want, method string, more ...string) string {
			out, err := p.run(t, ctx, nil, "", node, args(method, more...)...)
			switch {
			case err != nil:
				return fmt.Sprintf("%s: %v", method, err)
			case !strings.Contains(out, want):
				return fmt.Sprintf("%s: want %s in %.1000s", method, want, out)
			}
			return "yes"
		}
		all := func(results ...string) string {
			for _, r := range results {
				if r != "yes" {
					return r
				}
			}
			return "yes"
		}
		got := cells{
			"list":      all(check("old__echo", "tools/list"), check("new__echo", "tools/list")),
			"call":      all(check("old: ", "tools/call", "--tool-name", "old__echo", "--tool-arg", "message=hi"), check("new: ", "tools/call", "--tool-name", "new__echo", "--tool-arg", "message=hi")),
			"resources": all(check("lab://new", "resources/list"), check("resource lab://old", "resources/read", "--uri", "lab://old"), check("resource lab://new", "resources/read", "--uri", "lab://new")),
			"prompts":   all(check("new__greet", "prompts/list"), check("prompt greet", "prompts/get", "--prompt-name", "old__greet"), check("prompt greet", "prompts/get", "--prompt-name", "new__greet")),
			"progress":  all(check("slept", "tools/call", "--tool-name", "old__sleep", "--tool-args-json", `{"for":"300ms","progress":"20ms"}`), check("slept", "tools/call", "--tool-name", "new__sleep", "--tool-args-json", `{"for":"300ms","progress":"20ms"}`)),
			// It asks for one thing and ends: a call is given up with its connection, and nothing else can be heard.
			"list_changed": "–", "cancel": "–",
		}
		if got["progress"] == "yes" && !p.wantsProgress() {
			got["progress"] = "–"
		}
		for f, tool := range map[string]string{"elicitation": "elicit", "sampling": "sample"} {
			if p.lacks(f) {
				got[f] = "–"
				continue
			}
			got[f] = check("accept", "tools/call", "--tool-name", "old__"+tool)
		}
		return got
	}
}

// agentCells reads what an agent did from what the servers recorded and the model was told. texts are the results of the calls
// that the script of agentScript makes.
func (p *place) agentCells(model *fakemodel.Server) (got cells, texts []string) {
	got = cells{}
	requests := model.ModelRequests()
	if len(requests) > 0 { // the last has the results of all calls
		for _, result := range requests[len(requests)-1].ToolResults() {
			texts = append(texts, result.Text)
		}
	}
	all := strings.Join(texts, "\n")
	has := func(wants ...string) string {
		for _, want := range wants {
			if !strings.Contains(all, want) {
				return fmt.Sprintf("want %s among the results\n%.3000s", want, all)
			}
		}
		return "yes"
	}
	got["list"] = "no tools were offered"
	if len(requests) > 0 {
		if offered := strings.Join(requests[0].MCPTools(), " "); strings.Contains(offered, "old__echo") && strings.Contains(offered, "new__echo") {
			got["list"] = "yes"
		}
	}
	got["call"] = has("old: ", "new: ")
	if got["progress"] = has("slept 300ms"); got["progress"] == "yes" && !p.wantsProgress() {
		got["progress"] = "–"
	}
	for f, answer := range map[string]string{"elicitation": "action", "sampling": "sampled"} {
		switch {
		case p.lacks(f):
			got[f] = "–"
		case f == "elicitation" && strings.Contains(all, `decline`):
			got[f] = "`decline`"
		case f == "elicitation" && strings.Contains(all, `cancel`):
			got[f] = "`cancel`"
		default:
			got[f] = has(answer)
		}
	}
	got["resources"] = has("resource lab://old", "resource lab://new")
	got["list_changed"] = "–"
	if len(requests) > 0 && strings.Contains(strings.Join(requests[len(requests)-1].MCPTools(), " "), "old__late") {
		got["list_changed"] = "yes"
	}
	return got, texts
}

// agentScript is what an agent's model does. resource makes the call by which the agent reads a resource.
func agentScript(resource func(uri string) fakemodel.Call) fakemodel.Script {
	var steps []fakemodel.Step
	for _, server := range behind {
		steps = append(steps, fakemodel.Calls("nightporter", server+"__echo", `{"message":"hi"}`))
		steps = append(steps, fakemodel.Calls("nightporter", server+"__sleep", `{"for":"300ms","progress":"20ms"}`))
		read := resource("lab://" + server)
		steps = append(steps, fakemodel.Step{Parts: []fakemodel.Part{{Call: &read}}})
		steps = append(steps, fakemodel.Calls("nightporter", server+"__elicit", `{}`))
	}
	steps = append(steps, fakemodel.Calls("nightporter", "old__addtool", `{"name":"late"}`))
	for _, server := range behind {
		steps = append(steps, fakemodel.Calls("nightporter", server+"__hang", `{}`))
	}
	last := fakemodel.Says("done")
	last.Hold = true
	return fakemodel.Replies(append(steps, last)...)
}

// drive runs an agent through agentScript. Before the model's last answer the calls that hang have timed out, and the
// agent is still there: servers were told of a cancellation then, or are not.
func (p *place) drive(t *testing.T, ctx context.Context, model *fakemodel.Server, cancels bool, run func() error) cells {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- run() }()
	held := make(chan error, 1)
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	go func() { held <- model.WaitHeld(waiting) }()
	select {
	case err := <-ended:
		t.Fatalf("the agent ended before its model's last answer: %v", err)
	case err := <-held:
		if err != nil {
			t.Fatal(err)
		}
	}
	got, texts := p.agentCells(model)
	t.Logf("results: %.2000q", texts)
	if got["cancel"] = "yes"; cancels {
		p.checkCancelled(ctx, got)
	} else if got["cancel"] = "–"; len(p.recorder.Select(lab.Received(wire.Cancelled))) > 0 {
		got["cancel"] = "it cancels, and did not when this was written"
	}
	if err := model.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	return got
}

func claudeCode(t *testing.T, ctx context.Context, p *place) cells {
	claude := programs.Claude(t)
	entry := map[string]any{"type": "http", "url": p.url, "headers": map[string]string{"Authorization": "Bearer " + token}}
	if p.command != nil {
		entry = map[string]any{"command": p.command[0], "args": p.command[1:]}
	}
	config := filepath.Join(p.home, "claude.json")
	p.write(config, string(wire.Encode(map[string]any{"mcpServers": map[string]any{"nightporter": entry}})))
	model := fakemodel.Start(t, agentScript(func(uri string) fakemodel.Call {
		return fakemodel.Call{Name: "ReadMcpResourceTool", Arguments: wire.Encode(map[string]string{"server": "nightporter", "uri": uri})}
	}))
	ask := func(model *fakemodel.Server, prompt string) error {
		env := append(model.ClaudeEnv(), "MCP_TOOL_TIMEOUT=3000", "ENABLE_TOOL_SEARCH=false")
		_, err := p.run(t, ctx, env, prompt, claude, "-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions",
			"--strict-mcp-config", "--mcp-config", config, "--setting-sources", "")
		return err
	}
	got := p.drive(t, ctx, model, true, func() error { return ask(model, "hello") })

	got["prompts"] = "yes"
	for _, server := range behind {
		told := fakemodel.Start(t, fakemodel.Replies(fakemodel.Says("done")))
		if err := ask(told, "/mcp__nightporter__"+server+"__greet"); err != nil {
			t.Fatal(err)
		}
		if asked := told.ModelRequests(); len(asked) == 0 || !bytes.Contains(asked[0].Body, []byte("prompt greet")) {
			got["prompts"] = "the model was not told the prompt"
		}
	}
	return got
}

// codex is a version of Codex. 0.144.1 gives a call up without a word to its server (measured without Nightporter as well).
func codex(find func(testing.TB) string, cancels bool) func(*testing.T, context.Context, *place) cells {
	return func(t *testing.T, ctx context.Context, p *place) cells {
		program := find(t)
		model := fakemodel.Start(t, agentScript(func(uri string) fakemodel.Call {
			return fakemodel.Call{Name: "read_mcp_resource", Arguments: wire.Encode(map[string]string{"server": "nightporter", "uri": uri})}
		}))
		codexHome := filepath.Join(p.home, ".codex")
		entry := fmt.Sprintf("url = %q\nbearer_token_env_var = \"NP_TOKEN\"\n", p.url)
		if p.command != nil {
			entry = fmt.Sprintf("command = %q\nargs = %s\n", p.command[0], wire.Encode(p.command[1:]))
		}
		p.write(filepath.Join(codexHome, "config.toml"), model.CodexConfig()+"\n[mcp_servers.nightporter]\n"+entry+"required = true\ntool_timeout_sec = 3\ndefault_tools_approval_mode = \"approve\"\n")
		env := append(model.CodexEnv(), "CODEX_HOME="+codexHome, "NP_TOKEN="+token)
		got := p.drive(t, ctx, model, cancels, func() error {
			_, err := p.run(t, ctx, env, "", program, "exec", "--json", "--skip-git-repo-check", "hello")
			return err
		})
		got["prompts"] = "–" // it never asks for them (facts/codex.md, section 3)
		if asked := p.recorder.Select(lab.Received(wire.PromptsGet)); len(asked) > 0 {
			got["prompts"] = "it asks for prompts"
		}
		return got
	}
}
