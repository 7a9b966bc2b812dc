package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"nightporter/internal/config"
	"nightporter/internal/mcp/gateway"
	"nightporter/internal/mcp/wire"
	"nightporter/test/lab"
)

const (
	find      = "nightporter__find_tools"
	describe  = "nightporter__describe_tool"
	callFound = "nightporter__call_tool"
)

var three = []string{find, describe, callFound}

// use calls a tool of ours and returns its text.
func use(t *testing.T, ctx context.Context, s *mcp.ClientSession, tool string, arguments any) (string, *mcp.CallToolResult) {
	t.Helper()
	result, err := s.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		t.Fatalf("%s %v: %v", tool, arguments, err)
	}
	return text(t, result), result
}

func TestBySearchThreeToolsReachAllOthers(t *testing.T) {
	const odd = `{"name":"create_issue","description":"Opens a ticket.","inputSchema":{"type":"object","properties":{"title":{"type":"string","default":1.0},"n":{"maximum":12345678901234567890}},"required":["title"]},"x-own":[1e3]}`
	h := newHouse(t,
		lab.Config{Name: "old", Tools: append(lab.Tools("echo", "elicit", "fail", "addtool"), json.RawMessage(odd)), Instructions: "old says hello"},
		lab.Config{Name: "new", Era: lab.Modern, Tools: append(lab.Tools("echo", "elicit"), json.RawMessage(`{"name":"readFile","description":"Reads one.","inputSchema":{"type":"object"}}`))},
	)
	told := &calls{}
	_, url := h.endpoint(gateway.Profile{Exposure: gateway.ExposeSearch, OnCall: told.add})
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			s := h.connect(url, version, &mcp.ClientOptions{
				ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
					return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada"}}, nil
				},
			})
			if got := toolNames(t, h.ctx, s); !slices.Equal(got, three) {
				t.Errorf("tools %v", got)
			}
			if got := s.InitializeResult().Instructions; !strings.Contains(got, find) || !strings.Contains(got, "old (5 tools)") || !strings.Contains(got, "# old\n\nold says hello") {
				t.Errorf("instructions %q", got)
			}
			got, _ := use(t, h.ctx, s, find, map[string]any{"query": "creating issues"})
			if !strings.Contains(got, "\nold__create_issue (score ") || !strings.Contains(got, "Opens a ticket.") || !strings.Contains(got, "title*, n") || strings.Contains(got, "echo") {
				t.Errorf("found %q", got)
			}
			if got, _ := use(t, h.ctx, s, find, map[string]any{"query": "reading of files", "server": "new", "limit": 1}); !strings.Contains(got, "new__readFile") {
				t.Errorf("found %q", got)
			}
			if got, _ := use(t, h.ctx, s, find, map[string]any{"query": "", "server": "new"}); !strings.HasPrefix(got, "3 tools, ") || strings.Contains(got, "old__") {
				t.Errorf("all of a server: %q", got)
			}
			if got, _ := use(t, h.ctx, s, find, map[string]any{"query": "zebra"}); !strings.Contains(got, "No tool fits") || !strings.Contains(got, "new (3 tools), old (5 tools)") {
				t.Errorf("nothing fits: %q", got)
			}
			if got, _ := use(t, h.ctx, s, describe, map[string]any{"name": "old__create_issue"}); got != strings.Replace(odd, "create_issue", "old__create_issue", 1) {
				t.Errorf("described as %q", got)
			}
			for _, server := range []string{"old", "new"} {
				if got, _ := use(t, h.ctx, s, callFound, map[string]any{"name": server + "__echo", "arguments": map[string]any{"a": 1}}); got != server+`: {"a":1}` {
					t.Errorf("%s answered %q", server, got)
				}
				if got, _ := use(t, h.ctx, s, callFound, map[string]any{"name": server + "__elicit"}); !strings.Contains(got, "Ada") {
					t.Errorf("a question of %s: %q", server, got)
				}
			}
			if got, _ := use(t, h.ctx, s, callFound, map[string]any{"name": "old__echo", "arguments": `{"as":"text"}`}); got != `old: {"as":"text"}` {
				t.Errorf("arguments as a text: %q", got)
			}
			if got, result := use(t, h.ctx, s, callFound, map[string]any{"name": "old__fail"}); got != "deliberate failure" || !result.IsError {
				t.Errorf("a tool's own error: %q", got)
			}
			for _, wrong := range []struct {
				arguments any
				want      string
			}{
				{map[string]any{"name": "old__nosuch"}, `no tool "old__nosuch"`},
				{map[string]any{"name": find}, "no tool"},
				{map[string]any{"name": "old__echo", "arguments": []int{1}}, "not an object"},
				{map[string]any{"name": 5}, "name is not a text"},
			} {
				if got, result := use(t, h.ctx, s, callFound, wrong.arguments); !result.IsError || !strings.Contains(got, wrong.want) {
					t.Errorf("%v: %q", wrong.arguments, got)
				}
			}
			if got, result := use(t, h.ctx, s, find, map[string]any{"query": "x", "server": "nobody"}); !result.IsError || !strings.Contains(got, "no server") {
				t.Errorf("an unknown server: %q", got)
			}
		})
	}
	raw := func(c gateway.Call) bool {
		return c.Server == "old" && c.Tool == "echo" && c.Exposed == "old__echo" && string(c.Arguments) == `{"a":1}` && c.Outcome == gateway.OutcomeOK && c.Authority != ""
	}
	refusal := func(c gateway.Call) bool {
		return c.Server == "old" && c.Tool == "nosuch" && c.Outcome == gateway.OutcomeRefused
	}
	looked := func(c gateway.Call) bool {
		return c.Server == "nightporter" && c.Tool == "find_tools" && c.ResultBytes > 0
	}
	for what, is := range map[string]func(gateway.Call) bool{"call": raw, "refusal": refusal, "search": looked} {
		if !slices.ContainsFunc(told.list(), is) {
			t.Errorf("no %s is recorded as what it was: %+v", what, told.list())
		}
	}
}

// What a tool answers is the same to the byte, whichever way it was called, and so is what its server was sent.
func TestACallBySearchIsTheCallItself(t *testing.T) {
	const result = `{"content":[{"type":"odd","n":12345678901234567890,"x":1.0}],"structuredContent":{"a":1e2},"_meta":{"k":null},"isError":false,"zz":"\u0041"}`
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("raw"), Calls: map[string]lab.Fault{"raw": {Result: json.RawMessage(result)}}})
	const arguments = `{"n":12345678901234567890,"d":{"a":1.0},"d2":"\u0041"}`
	var answers []string
	for _, p := range []struct {
		exposure gateway.Exposure
		params   string
	}{
		{gateway.ExposeTools, `"name":"s__raw","arguments":` + arguments},
		{gateway.ExposeSearch, `"name":"` + callFound + `","arguments":{"name":"s__raw","arguments":` + arguments + `}`},
	} {
		lines := h.stdio(gateway.Profile{Exposure: p.exposure}, 2,
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`,
			`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{`+p.params+`,"_meta":{"progressToken":7,"codex/sandbox-state":{"n":1.0}},"unknown":[1.0]}}`)
		answers = append(answers, lines[1])
	}
	if answers[0] != answers[1] || !strings.Contains(answers[0], result) {
		t.Errorf("directly\n%s\nby search\n%s", answers[0], answers[1])
	}
	sent := h.recorder.Select(lab.Received(wire.ToolsCall))
	if len(sent) != 2 || string(wire.Get(sent[0].Message, "params")) != string(wire.Get(sent[1].Message, "params")) || !strings.Contains(string(sent[1].Message), arguments) {
		t.Errorf("the server was sent %+v", sent)
	}
}

func TestWhatIsNotOfferedIsNeitherFoundNorDescribedNorCalled(t *testing.T) {
	h := newHouse(t)
	app := json.RawMessage(`{"name":"secretapp","inputSchema":{"type":"object"},"_meta":{"ui":{"visibility":["app"]}}}`)
	flawed := json.RawMessage(`{"name":"secretflaw","description":null,"inputSchema":{"type":"object"}}`)
	entry := func(c lab.Config, more string) string {
		c.Log = h.recorder.Address
		return fmt.Sprintf("[mcp_servers.%q]\ncommand = %q\nargs = [%s]\n%s\n", c.Name, lab.Binary(t), wire.Quote(c.Arg()), more)
	}
	h.configure(entry(lab.Config{Name: "s", Tools: append(lab.Tools("open", "secretfiltered", "secretungranted"), app, flawed)}, `disabled_tools = ["secretfiltered"]`) +
		entry(lab.Config{Name: "other", Tools: lab.Tools("secretother")}, "") +
		entry(lab.Config{Name: "held", Tools: lab.Tools("secretheld")}, "pin = true"))
	grant := &config.Grant{Name: "g", Servers: []string{"s", "held"}, Deny: map[string][]string{"s": {"*ungranted"}}}
	told := &calls{}
	_, url := h.endpoint(gateway.Profile{Exposure: gateway.ExposeSearch, Grant: grant, OnCall: told.add})
	s := h.connect(url, wire.Latest, nil)
	hidden := []string{"s__secretfiltered", "s__secretungranted", "s__secretapp", "s__secretflaw", "other__secretother", "held__secretheld"}
	for _, query := range []string{"secretfiltered secretungranted secretapp secretflaw secretother secretheld s open", ""} {
		if got, _ := use(t, h.ctx, s, find, map[string]any{"query": query}); !strings.Contains(got, "s__open") || strings.Contains(got, "secret") {
			t.Errorf("%q found %q", query, got)
		}
	}
	for _, name := range hidden {
		if got, result := use(t, h.ctx, s, describe, map[string]any{"name": name}); !result.IsError {
			t.Errorf("%s is described: %q", name, got)
		}
		if got, result := use(t, h.ctx, s, callFound, map[string]any{"name": name}); !result.IsError || !strings.Contains(got, "no tool") {
			t.Errorf("%s is called: %q", name, got)
		}
	}
	if got, result := use(t, h.ctx, s, callFound, map[string]any{"name": "s__open"}); result.IsError {
		t.Errorf("what is offered is not called: %q", got)
	}
	if sent := h.recorder.Select(lab.Received(wire.ToolsCall)); len(sent) != 1 {
		t.Errorf("servers were sent %d calls", len(sent))
	}
}

func TestAChangedListIsFoundAtOnceAndTheClientIsNotToldOfIt(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("addtool")})
	_, url := h.endpoint(gateway.Profile{Exposure: gateway.ExposeSearch})
	s := h.connect(url, wire.Latest, &mcp.ClientOptions{ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) {
		t.Error("the client was told of a list that is the same")
	}})
	use(t, h.ctx, s, callFound, map[string]any{"name": "s__addtool", "arguments": map[string]any{"name": "zebra"}})
	for {
		if got, _ := use(t, h.ctx, s, find, map[string]any{"query": "zebra"}); strings.Contains(got, "s__zebra") {
			break
		}
		if h.ctx.Err() != nil {
			t.Fatal("the new tool is not found")
		}
	}
	if got, result := use(t, h.ctx, s, callFound, map[string]any{"name": "s__zebra"}); result.IsError {
		t.Errorf("the new tool: %q", got)
	}
}

func TestARunBySearchHasThreeToolsOverAFrozenSet(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("echo", "addtool")})
	told := &calls{}
	e, failed, err := gateway.NewForRun(h.ctx, h.rt, gateway.Profile{Owner: "run 1", Dir: t.TempDir(), Exposure: gateway.ExposeSearch, OnCall: told.add}, "test", nil)
	if err != nil || len(failed) > 0 {
		t.Fatal(err, failed)
	}
	url := h.serve(e)
	sorted := slices.Sorted(slices.Values(three))
	if got := e.Tools(); !slices.Equal(got, sorted) {
		t.Errorf("tools %v", got)
	}
	s := h.connect(url, wire.Latest, nil)
	use(t, h.ctx, s, callFound, map[string]any{"name": "s__addtool", "arguments": map[string]any{"name": "zebra"}})
	if _, err := h.recorder.WaitN(h.ctx, 2, lab.Received(wire.ToolsList)); err != nil {
		t.Fatal(err)
	}
	if got, _ := use(t, h.ctx, s, find, map[string]any{"query": "zebra"}); strings.Contains(got, "s__zebra") {
		t.Errorf("the set has grown: %q", got)
	}
	if _, result := use(t, h.ctx, s, callFound, map[string]any{"name": "s__zebra"}); !result.IsError {
		t.Error("a tool beyond the set was called")
	}
	if got, _ := use(t, h.ctx, s, callFound, map[string]any{"name": "s__echo"}); got != "s: {}" {
		t.Errorf("answered %q", got)
	}
	for _, c := range []struct{ exposed, arguments, server, tool string }{
		{callFound, `{"name":"s__echo","arguments":{}}`, "s", "echo"},
		{callFound, `{"name":"s__zebra"}`, "s", "zebra"},
		{callFound, `{"name":5}`, "nightporter", "call_tool"},
		{callFound, "", "nightporter", "call_tool"},
		{find, `{"query":"s__echo"}`, "nightporter", "find_tools"},
		{"s__echo", "", "s", "echo"},
	} {
		if server, tool, ok := e.RawName(c.exposed, json.RawMessage(c.arguments)); !ok || server != c.server || tool != c.tool {
			t.Errorf("%s %s is %s %s, %v", c.exposed, c.arguments, server, tool, ok)
		}
	}
}

func TestASingleServerIsFoundUnderItsOwnNames(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("echo", find), Instructions: "hello"})
	_, url := h.endpoint(gateway.Profile{Single: "s", Exposure: gateway.ExposeSearch})
	s := h.connect(url, wire.Latest, nil)
	if got := toolNames(t, h.ctx, s); !slices.Equal(got, three) {
		t.Errorf("tools %v", got)
	}
	if got, _ := use(t, h.ctx, s, callFound, map[string]any{"name": "echo"}); got != "s: {}" {
		t.Errorf("answered %q", got)
	}
	// What the server calls so itself is still there, behind ours.
	if got, _ := use(t, h.ctx, s, callFound, map[string]any{"name": find}); got != "s: {}" {
		t.Errorf("answered %q", got)
	}
	if got := s.InitializeResult().Instructions; !strings.HasSuffix(got, "\n\nhello") {
		t.Errorf("instructions %q", got)
	}
}
