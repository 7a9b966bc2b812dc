package claude

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"nightporter/internal/agent"
	"nightporter/internal/proc"
	"nightporter/internal/secret"
)

const sessionA, sessionB = "aaaaaaaa-0000-4000-8000-000000000001", "bbbbbbbb-0000-4000-8000-000000000002"

func testPlan() *plan {
	return &plan{
		shape: shape{mode: "default", builtIn: readOnlyTools}, version: "2.1.332", session: sessionA, prompt: "hello",
		gateway: &agent.Gateway{Token: secret.New(testToken), Tools: []string{"crm__find", "crm__note.add"}, RawName: func(exposed string, _ json.RawMessage) (string, string, bool) {
			server, tool, ok := strings.Cut(exposed, "__")
			return server, tool, ok && server == "crm"
		}},
		tools: map[string]string{prefix + "crm__find": "crm__find", prefix + "crm__note_add": "crm__note.add"},
	}
}

func initLine(p *plan, change func(map[string]any)) []byte {
	tools := slices.Clone(p.builtIn)
	for called := range p.tools {
		tools = append(tools, called)
	}
	e := map[string]any{
		"type": "system", "subtype": "init", "session_id": p.session, "tools": tools, "permissionMode": p.mode, "claude_code_version": p.version,
		"mcp_servers": []any{map[string]any{"name": agent.GatewayName, "status": "connected", "source": "dynamic"}},
		"skills":      []any{}, "slash_commands": []any{prefix + "greet"}, "agents": []any{"Explore"}, "sandbox_enabled": p.sandbox,
		"plugins": []any{map[string]any{"name": "cc-plugin-privacy", "path": "builtin"}},
	}
	if change != nil {
		change(e)
	}
	line, _ := json.Marshal(e)
	return line
}

func resultLine(change func(map[string]any)) []byte {
	r := map[string]any{"type": "result", "subtype": "success", "is_error": false, "result": "the reply", "num_turns": 1, "session_id": sessionA}
	if change != nil {
		change(r)
	}
	line, _ := json.Marshal(r)
	return line
}

func textLine(text, more string) []byte {
	return fmt.Appendf(nil, `{"type":"assistant","session_id":%q,"message":{"model":"m","content":[{"type":"text","text":%q}]}%s}`, sessionA, text, more)
}

func TestInitializeThatDiffersEndsTheRunUnproven(t *testing.T) {
	for _, c := range []struct {
		name, field string
		value       any
		want        string
	}{
		{"version", "claude_code_version", "2.1.333", "2.1.333"},
		{"mode", "current_permission_mode", "bypassPermissions", "permission mode is bypassPermissions"},
		{"commands", "commands", []any{map[string]any{"name": "deploy"}}, "command or skill deploy"},
		{"unreadable version", "claude_code_version", 7, "does not answer initialize as expected"},
		{"unreadable commands", "commands", map[string]any{"deploy": 1}, "does not answer initialize as expected"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDialogue(testPlan())
			d.Start()
			actions := d.Line(initializeAnswer(d.plan, func(a map[string]any) { a[c.field] = c.value }))
			unproven(t, d, actions, c.want)
		})
	}
	d := newDialogue(testPlan())
	d.Start()
	unproven(t, d, d.Line([]byte(`{"type":"control_response","response":{"subtype":"error","request_id":"np-initialize","error":"no"}}`)), "does not answer initialize")
}

// unproven checks that a run was ended before the model was asked.
func unproven(t *testing.T, d *dialogue, actions []agent.Action, want string) {
	t.Helper()
	if !has[agent.Abort](actions) || has[agent.Write](actions) {
		t.Errorf("actions = %+v", actions)
	}
	if more := append(d.Tick(), d.Line(statusAnswer(d, d.plan.expected()))...); len(more) != 0 {
		t.Errorf("after the end: %+v", more)
	}
	v := d.End(proc.Exit{Signal: "killed"}, nil)
	if v.Err == nil || v.Err.Code != agent.CodeBoundary || !strings.Contains(v.Err.Message, want) || v.Proof.Proven {
		t.Errorf("error %v, proven %v; want %q", v.Err, v.Proof.Proven, want)
	}
	noToken(t, v)
}

func TestStatusThatDiffersEndsTheRunUnproven(t *testing.T) {
	tool := func(name string) map[string]any { return map[string]any{"name": name} }
	for _, c := range []struct {
		name   string
		change func(servers []map[string]any) []map[string]any
		want   string
	}{
		{"another server", func(s []map[string]any) []map[string]any {
			return append(s, map[string]any{"name": "rogue", "status": "connected", "source": "plugin"})
		}, "the server rogue (plugin)"},
		{"another server that failed", func(s []map[string]any) []map[string]any {
			return append(s, map[string]any{"name": "rogue", "status": "failed", "source": "user"})
		}, "the server rogue (user)"},
		{"missing", func([]map[string]any) []map[string]any { return []map[string]any{} }, "nightporter is missing"},
		{"twice", func(s []map[string]any) []map[string]any { return append(s, s[0]) }, "twice"},
		{"failed", func(s []map[string]any) []map[string]any {
			s[0]["status"], s[0]["error"] = "failed", "HTTP 401 with Bearer "+testToken
			return s
		}, "failed, not connected: HTTP 401"},
		{"needs a login", func(s []map[string]any) []map[string]any { s[0]["status"] = "needs-auth"; return s }, "needs-auth"},
		{"of another source", func(s []map[string]any) []map[string]any { s[0]["source"] = "user"; return s }, "comes from user"},
		{"of another scope", func(s []map[string]any) []map[string]any { s[0]["scope"] = "local"; return s }, "scope"},
		{"no tools", func(s []map[string]any) []map[string]any { delete(s[0], "tools"); return s }, "without any of its 2 tools"},
		{"one tool less", func(s []map[string]any) []map[string]any { s[0]["tools"] = []any{tool("crm__find")}; return s }, "crm__note_add are missing"},
		{"one tool more", func(s []map[string]any) []map[string]any {
			s[0]["tools"] = []any{tool("crm__find"), tool("crm__note.add"), tool("crm__zap")}
			return s
		}, "the tool mcp__nightporter__crm__zap is there"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDialogue(testPlan())
			d.Start()
			d.Line(initializeAnswer(d.plan, nil))
			unproven(t, d, d.Line(statusAnswer(d, c.change(d.plan.expected()))), c.want)
		})
	}
	d := newDialogue(testPlan())
	d.Start()
	d.Line(initializeAnswer(d.plan, nil))
	unproven(t, d, d.Line(controlResponse(d.polling, map[string]any{})), "without a list of servers")
}

func TestServersAreWaitedForWhilePendingAndNotForEver(t *testing.T) {
	d := newDialogue(testPlan())
	d.Start()
	d.Line(initializeAnswer(d.plan, nil))
	pending := d.plan.expected()
	pending[0]["status"] = "pending"
	for d.polls < eagerPolls {
		if actions := d.Line(statusAnswer(d, pending)); !has[agent.Write](actions) {
			t.Fatalf("pending was at first answered with %+v", actions)
		}
	}
	for range 3 {
		if actions := d.Line(statusAnswer(d, pending)); len(actions) != 0 {
			t.Fatalf("pending was answered with %+v", actions)
		}
		if actions := d.Tick(); !has[agent.Write](actions) {
			t.Fatalf("the tick asked nothing: %+v", actions)
		}
		if actions := d.Tick(); len(actions) != 0 {
			t.Fatalf("asked again before the answer: %+v", actions)
		}
	}
	if actions := d.Line(statusAnswer(d, d.plan.expected())); !has[agent.Write](actions) {
		t.Fatalf("connected was answered with %+v", actions)
	}

	d = newDialogue(testPlan())
	d.Start()
	for range proofTicks {
		d.Tick()
	}
	unproven(t, d, d.Tick(), "in time")
}

func TestProofComesBeforeThePrompt(t *testing.T) {
	d := newDialogue(testPlan())
	actions := prove(t, d)
	proven := slices.IndexFunc(actions, func(a agent.Action) bool {
		e, ok := a.(agent.Emit)
		return ok && e.Event.Kind == agent.EventProven && e.Event.Proof.Proven
	})
	prompt := slices.IndexFunc(actions, func(a agent.Action) bool {
		w, ok := a.(agent.Write)
		return ok && bytes.Contains(w.Data, []byte(`"hello"`))
	})
	if proven < 0 || prompt < proven || has[agent.CloseInput](actions) {
		t.Errorf("actions = %+v", actions)
	}
	for _, a := range actions {
		if e, ok := a.(agent.Emit); ok {
			noToken(t, e.Event)
		}
	}
}

func TestInitThatDiffersKillsTheRun(t *testing.T) {
	for _, c := range []struct {
		name, field string
		value       any
		want        string
	}{
		{"built-in tool", "tools", []any{"Bash", prefix + "crm__find", prefix + "crm__note_add"}, "built-in tool Bash"},
		{"tool of another server", "tools", []any{"mcp__rogue__x", prefix + "crm__find", prefix + "crm__note_add"}, "mcp__rogue__x"},
		{"missing tool", "tools", []any{prefix + "crm__find"}, "missing"},
		{"server", "mcp_servers", []any{map[string]any{"name": "rogue"}}, "the server rogue"},
		{"skipped entry", "mcp_server_errors", []any{map[string]any{"name": "x", "type": "invalid_config"}}, "x was skipped (invalid_config)"},
		{"mode", "permissionMode", "acceptEdits", "acceptEdits"},
		{"version", "claude_code_version", "2.1.331", "2.1.331"},
		{"skill", "skills", []any{"deploy"}, "the skill deploy"},
		{"command", "slash_commands", []any{"deploy"}, "the command deploy"},
		{"plugin", "plugins", []any{map[string]any{"name": "evil", "path": "/p"}}, "the plugin evil"},
		{"unreadable", "mcp_server_errors", map[string]any{"x": 1}, "cannot be read"},
		{"folder", "additional_directories", []any{"/etc"}, "/etc"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDialogue(testPlan())
			prove(t, d)
			actions := d.Line(initLine(d.plan, func(e map[string]any) { e[c.field] = c.value }))
			if !slices.Contains(actions, agent.Action(agent.Abort{Now: true})) {
				t.Errorf("actions = %+v", actions)
			}
			v := d.End(proc.Exit{Signal: "killed"}, nil)
			if v.Err == nil || v.Err.Code != agent.CodeBoundary || !strings.Contains(v.Err.Message, c.want) || v.Proof.Proven {
				t.Errorf("error %v, proven %v", v.Err, v.Proof.Proven)
			}
		})
	}
	d := newDialogue(testPlan())
	prove(t, d)
	if actions := d.Line(textLine("hello", "")); !slices.Contains(actions, agent.Action(agent.Abort{Now: true})) {
		t.Errorf("the model wrote before init: %+v", actions)
	}
	d = newDialogue(testPlan())
	prove(t, d)
	if actions := d.Line(initLine(d.plan, nil)); has[agent.Abort](actions) {
		t.Errorf("as planned: %+v, %v", actions, d.err)
	}
	d.Line([]byte(`{"type":"result","is_error":false,"result":"x"}`))
	if actions := d.Line(initLine(d.plan, func(e map[string]any) { e["skills"] = []any{"late"} })); !has[agent.Abort](actions) {
		t.Error("a later init event was not looked at")
	}
	if v := d.End(proc.Exit{Signal: "killed"}, nil); codeOf(v) != agent.CodeBroken || v.Proof.Proven {
		t.Errorf("after a model was asked the error is %v, proven %v", v.Err, v.Proof.Proven)
	}
}

func TestSessionIDsAreFollowed(t *testing.T) {
	named := func(id string) []byte {
		return fmt.Appendf(nil, `{"type":"system","subtype":"status","session_id":%q}`, id)
	}
	reset := fmt.Appendf(nil, `{"type":"conversation_reset","session_id":%q,"new_conversation_id":"x"}`, sessionA)
	for _, c := range []struct {
		name  string
		lines [][]byte
		want  string
		code  string
	}{
		{"as asked", [][]byte{named(sessionA), resultLine(nil)}, sessionA, ""},
		{"another than asked", [][]byte{named(sessionB)}, "", agent.CodeSessionMismatch},
		{"announced change", [][]byte{named(sessionA), reset, named(sessionB), resultLine(func(r map[string]any) { r["session_id"] = sessionB })}, sessionB, ""},
		{"change before the first", [][]byte{reset, named(sessionB), resultLine(func(r map[string]any) { r["session_id"] = sessionB })}, sessionB, ""},
		{"not of the form", [][]byte{named("x"), named("AAAAAAAA-0000-4000-8000-000000000001"), resultLine(func(r map[string]any) { delete(r, "session_id") })}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, actions := replay(t, testPlan(), c.lines, proc.Exit{}, "")
			code := ""
			if v.Err != nil {
				code = v.Err.Code
			}
			if v.SessionID != c.want || code != c.code || (c.code != "") != has[agent.Abort](actions) {
				t.Errorf("session %q, error %v, actions %+v", v.SessionID, v.Err, actions)
			}
		})
	}
}

func TestOnlyTheAgentsOwnWordsAreActivityAndSalvage(t *testing.T) {
	lines := [][]byte{
		textLine("mine", ""),
		textLine("a subagent's", `,"parent_tool_use_id":"toolu_1"`),
		textLine("API Error: 500", `,"is_api_error_message":true`),
		fmt.Appendf(nil, `{"type":"assistant","session_id":%q,"message":{"model":"<synthetic>","content":[{"type":"text","text":"made up"}]}}`, sessionA),
		fmt.Appendf(nil, `{"type":"user","isReplay":true,"session_id":%q,"message":{"content":"hello"}}`, sessionA),
		fmt.Appendf(nil, `{"type":"user","isSynthetic":true,"session_id":%q,"message":{"content":[{"type":"text","text":"nudge"}]}}`, sessionA),
		fmt.Appendf(nil, `{"type":"stream_event","parent_tool_use_id":"t","event":{"type":"content_block_delta","delta":{"type":"text_delta","text":"a subagent's"}}}`),
	}
	v, actions := replay(t, testPlan(), lines, proc.Exit{Code: 143}, "")
	if v.Salvage != "mine" || v.Skipped != 0 {
		t.Errorf("salvage %q, skipped %d", v.Salvage, v.Skipped)
	}
	for _, e := range eventsOf(actions) {
		if (e.Kind == agent.EventActivity || e.Kind == agent.EventText) && e.Activity+e.Text != "mine" {
			t.Errorf("event %+v", e)
		}
	}
}

func TestTextThatIsBeingWrittenIsActivityAndSalvage(t *testing.T) {
	delta := func(text string) []byte {
		return fmt.Appendf(nil, `{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"text_delta","text":%q}}}`, text)
	}
	begin := []byte(`{"type":"stream_event","event":{"type":"content_block_start"}}`)
	lines := [][]byte{textLine("before", ""), begin, delta("The "), delta("answer")}
	for range 2000 {
		lines = append(lines, delta(" is long"))
	}
	v, actions := replay(t, testPlan(), append(lines, delta(" and ends here")), proc.Exit{Signal: "killed"}, "")
	if !strings.HasSuffix(v.Salvage, "is long and ends here") || len(v.Salvage) != 500 {
		t.Errorf("salvage = %d %q", len(v.Salvage), v.Salvage)
	}
	var shown []string
	for _, e := range eventsOf(actions) {
		if e.Kind == agent.EventActivity {
			shown = append(shown, e.Activity)
		}
	}
	if len(shown) != 3 || shown[1] != "The" || !strings.HasPrefix(shown[2], "The answer is long is long") {
		t.Errorf("activity = %q", shown)
	}

	v, _ = replay(t, testPlan(), append(lines, textLine("whole", "")), proc.Exit{Signal: "killed"}, "")
	if v.Salvage != "whole" {
		t.Errorf("salvage = %q", v.Salvage)
	}
}

func TestDenialsAreInOrderWithoutRepeatsUnderTheirRealNames(t *testing.T) {
	denied := func(tool string) []byte {
		return fmt.Appendf(nil, `{"type":"system","subtype":"permission_denied","tool_name":%q}`, tool)
	}
	lines := [][]byte{
		denied(prefix + "crm__note_add"), denied("Bash"), denied(prefix + "crm__note_add"),
		resultLine(func(r map[string]any) {
			r["permission_denials"] = []any{map[string]any{"tool_name": "Bash"}, map[string]any{"tool_name": prefix + "crm__find"}, map[string]any{"tool_name": "mcp__other__x"}}
		}),
	}
	v, _ := replay(t, testPlan(), lines, proc.Exit{}, "")
	want := []string{"mcp__crm__note.add", "Bash", "mcp__crm__find", "mcp__other__x"}
	if !slices.Equal(v.Denials, want) || v.Reply != "the reply" {
		t.Errorf("denials %q, reply %q", v.Denials, v.Reply)
	}
}

func TestALineThatMayHaveBeenTheResultFailsTheRun(t *testing.T) {
	long := strings.Repeat("x", 1000)
	for _, c := range []struct{ name, head, code string }{
		{"result", `{"type":"result","result":"` + long, agent.CodeResultTooLong},
		{"type not reached", `{"duration_api_ms":1,"modelUsage":{"a":{"b":[1,2]}},"result":"` + long, agent.CodeResultTooLong},
		{"a type of something inside", `{"x":{"type":"user"},"result":"` + long, agent.CodeResultTooLong},
		{"junk", long, agent.CodeResultTooLong},
		{"init", `{"type":"system","subtype":"init","tools":["` + long, agent.CodeBoundary},
		{"user", `{"type":"user","message":{"content":"` + long, ""},
		{"user, type later", `{"a":[{"type":"result"}],"type":"user","x":"` + long, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDialogue(testPlan())
			prove(t, d)
			actions := d.Dropped([]byte(c.head))
			if (has[agent.CloseInput](actions) || has[agent.Abort](actions)) != (c.code != "") {
				t.Errorf("actions = %+v", actions)
			}
			d.Line(resultLine(nil))
			v := d.End(proc.Exit{}, nil)
			if code := codeOf(v); code != c.code || v.Skipped != 1 {
				t.Errorf("error %v, skipped %d", v.Err, v.Skipped)
			}
		})
	}
}

func codeOf(v agent.Result) string {
	if v.Err == nil {
		return ""
	}
	return v.Err.Code
}

func TestResultsAreJudged(t *testing.T) {
	set := func(pairs ...any) []byte {
		return resultLine(func(r map[string]any) {
			for i := 0; i < len(pairs); i += 2 {
				r[pairs[i].(string)] = pairs[i+1]
			}
		})
	}
	failed := func(text, reason string, more ...any) []byte {
		return set(append([]any{"is_error", true, "result", text, "terminal_reason", reason}, more...)...)
	}
	for _, c := range []struct {
		name  string
		lines [][]byte
		code  string
		reply string
	}{
		{"success", [][]byte{set()}, "", "the reply"},
		{"is_error with subtype success", [][]byte{failed("API Error: 400 bad thing", "api_error")}, agent.CodeModelAPI, ""},
		{"403", [][]byte{failed("API Error: 403", "api_error", "api_error_status", 403)}, agent.CodeAuth, ""},
		{"429", [][]byte{failed("API Error: Request rejected (429)", "api_error", "api_error_status", 429)}, agent.CodeModelAPI, ""},
		{"prompt too long", [][]byte{failed("Prompt is too long", "blocking_limit")}, agent.CodePromptTooLong, ""},
		{"is_error without a known reason", [][]byte{failed("something", "")}, agent.CodeAgentError, ""},
		{"is_error missing", [][]byte{set("is_error", nil)}, agent.CodeNoResult, ""},
		{"is_error of another type", [][]byte{set("is_error", "false")}, agent.CodeNoResult, ""},
		{"blank reply", [][]byte{set("result", " \n")}, agent.CodeEmptyReply, ""},
		{"no reply", [][]byte{set("result", nil)}, agent.CodeEmptyReply, ""},
		{"command of its own", [][]byte{set("local_command", "clear", "result", "cleared")}, agent.CodeAgentError, ""},
		{"the last decides", [][]byte{failed("x", "api_error"), set("result", "second")}, "", "second"},
		{"the last decides, to fail", [][]byte{set("result", "first"), failed("x", "api_error")}, agent.CodeModelAPI, ""},
		{"an empty echo of a task", [][]byte{set("result", "first"), set("result", "")}, "", "first"},
		{"none", nil, agent.CodeNoResult, ""},
		{"only in a model's text", [][]byte{textLine(string(set()), "")}, agent.CodeNoResult, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, _ := replay(t, testPlan(), c.lines, proc.Exit{}, "")
			if codeOf(v) != c.code || v.Reply != c.reply {
				t.Errorf("error %v, reply %q", v.Err, v.Reply)
			}
		})
	}
}

func TestUsageIsTheDifferenceToTheSessionsTotals(t *testing.T) {
	counted := func(input, output int, cost float64, own int) []byte {
		return resultLine(func(r map[string]any) {
			r["total_cost_usd"] = cost
			r["modelUsage"] = map[string]any{"m": map[string]any{"inputTokens": input, "outputTokens": output, "costUSD": cost}}
			r["model_usage_since_last_result"] = map[string]any{"m": map[string]any{"inputTokens": own, "outputTokens": 1, "costUSD": 0.5}}
		})
	}
	streamed := [][]byte{
		[]byte(`{"type":"stream_event","event":{"type":"message_start","message":{"usage":{"input_tokens":5,"cache_read_input_tokens":2}}}}`),
		[]byte(`{"type":"stream_event","event":{"type":"message_delta","usage":{"output_tokens":3}}}`),
	}
	for _, c := range []struct {
		name         string
		before       agent.Usage
		lines        [][]byte
		run, session agent.Usage
	}{
		{"first run", agent.Usage{}, [][]byte{counted(10, 4, 2, 10)}, agent.Usage{InputTokens: 10, OutputTokens: 1, CostUSD: 0.5}, agent.Usage{InputTokens: 10, OutputTokens: 4, CostUSD: 2}},
		{"later run", agent.Usage{InputTokens: 6, OutputTokens: 1, CostUSD: 0.5}, [][]byte{counted(10, 4, 2, 3)}, agent.Usage{InputTokens: 4, OutputTokens: 3, CostUSD: 1.5}, agent.Usage{InputTokens: 10, OutputTokens: 4, CostUSD: 2}},
		{"session lost a run", agent.Usage{InputTokens: 99, OutputTokens: 99, CostUSD: 9}, [][]byte{counted(10, 4, 2, 3)}, agent.Usage{InputTokens: 3, OutputTokens: 1, CostUSD: 0.5}, agent.Usage{InputTokens: 10, OutputTokens: 4, CostUSD: 2}},
		{"two results", agent.Usage{InputTokens: 6, OutputTokens: 1, CostUSD: 0.5}, [][]byte{counted(8, 2, 1, 2), counted(10, 4, 2, 2)}, agent.Usage{InputTokens: 4, OutputTokens: 3, CostUSD: 1.5}, agent.Usage{InputTokens: 10, OutputTokens: 4, CostUSD: 2}},
		{"killed", agent.Usage{InputTokens: 6, OutputTokens: 1, CostUSD: 0.5}, streamed, agent.Usage{InputTokens: 7, OutputTokens: 3}, agent.Usage{InputTokens: 13, OutputTokens: 4, CostUSD: 0.5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := testPlan()
			p.before = c.before
			v, _ := replay(t, p, c.lines, proc.Exit{}, "")
			if v.Usage != c.run || v.Totals != c.session {
				t.Errorf("usage %+v, totals %+v", v.Usage, v.Totals)
			}
		})
	}
}

func TestTheTokenIsMaskedInWhatIsQuoted(t *testing.T) {
	for _, c := range []struct{ line, stderr string }{
		{`{"mcpServers":[{"headers":{"Authorization":"Bearer ` + testToken + `"`, ""},
		{`{"type":"mcp_dump","text":"` + strings.Repeat("x", 150) + testToken + `"}`, ""},
		{"", "Error: cannot reach the server with " + testToken},
	} {
		for _, proven := range []bool{false, true} {
			d := newDialogue(testPlan())
			if d.Start(); proven {
				prove(t, d)
			}
			d.Line([]byte(c.line))
			v := d.End(proc.Exit{Code: 1}, []byte(c.stderr))
			if v.Err == nil || !strings.Contains(v.Err.Message, secret.Mask) || strings.Contains(v.Err.Message, testToken[:12]) {
				t.Errorf("error %v", v.Err)
			}
		}
	}
}

func TestRetriesAreShownAndRefusedCredentialsEndTheRun(t *testing.T) {
	retry := func(status int, reason string) []byte {
		return fmt.Appendf(nil, `{"type":"system","subtype":"api_retry","attempt":2,"max_retries":5,"error_status":%d,"error":%q}`, status, reason)
	}
	d := newDialogue(testPlan())
	prove(t, d)
	events := eventsOf(d.Line(retry(529, "overloaded_error")))
	if len(events) != 1 || events[0].Kind != agent.EventRetry || events[0].Activity != "asking the model again, 2 of 5: HTTP 529 overloaded error" {
		t.Errorf("events = %+v", events)
	}
	if actions := d.Line(retry(401, "authentication_failed")); !has[agent.Abort](actions) {
		t.Errorf("actions = %+v", actions)
	}
	if v := d.End(proc.Exit{Code: 143}, nil); codeOf(v) != agent.CodeAuth || !v.Proof.Proven {
		t.Errorf("error %v, proven %v", v.Err, v.Proof.Proven)
	}
}

func TestStopAsksOnceForAnInterruptAndClosesAfterTheResult(t *testing.T) {
	d := newDialogue(testPlan())
	prove(t, d)
	d.Line(initLine(d.plan, nil))
	d.Line(textLine("half of it", ""))
	if actions := d.Stop(); !has[agent.Write](actions) || has[agent.CloseInput](actions) {
		t.Errorf("actions = %+v", actions)
	}
	if actions := d.Stop(); len(actions) != 0 {
		t.Errorf("second Stop = %+v", actions)
	}
	actions := d.Line(resultLine(func(r map[string]any) {
		r["subtype"], r["is_error"], r["terminal_reason"], r["errors"] = "error_during_execution", true, "aborted_streaming", []any{"[ede_diagnostic] x"}
	}))
	if !has[agent.CloseInput](actions) {
		t.Errorf("actions = %+v", actions)
	}
	v := d.End(proc.Exit{}, nil)
	if codeOf(v) != agent.CodeAgentError || v.Salvage != "half of it" || v.SessionID != sessionA {
		t.Errorf("%+v", v)
	}

	d = newDialogue(testPlan())
	d.Start()
	if actions := d.Stop(); !has[agent.CloseInput](actions) {
		t.Errorf("before the proof: %+v", actions)
	}
	if actions := d.Line(initializeAnswer(d.plan, nil)); len(actions) != 0 {
		t.Errorf("went on after Stop: %+v", actions)
	}
}

func TestARunThatDoesNotEndAfterItsResultIsEnded(t *testing.T) {
	d := newDialogue(testPlan())
	prove(t, d)
	for range 10 * exitTicks {
		if actions := d.Tick(); len(actions) != 0 {
			t.Fatalf("a run at work was answered with %+v", actions)
		}
	}
	d.Line(resultLine(nil))
	aborts := 0
	for range 3 * exitTicks {
		if has[agent.Abort](d.Tick()) {
			aborts++
		}
	}
	v := d.End(proc.Exit{Signal: "terminated"}, nil)
	if aborts != 1 || v.Err != nil || v.Reply != "the reply" || len(v.Notes) != 1 {
		t.Errorf("%d aborts, %+v", aborts, v)
	}
}

func TestQuestionsOfTheAgentAreRefused(t *testing.T) {
	d := newDialogue(testPlan())
	prove(t, d)
	actions := d.Line([]byte(`{"type":"control_request","request_id":"q1","request":{"subtype":"can_use_tool","tool_name":"mcp__nightporter__crm__find"}}`))
	if !strings.Contains(fmt.Sprintf("%s", actions), `"behavior":"deny"`) || d.denials[0] != "mcp__crm__find" {
		t.Errorf("actions %s, denials %q", actions, d.denials)
	}
	actions = d.Line([]byte(`{"type":"control_request","request_id":"q2","request":{"subtype":"elicitation"}}`))
	if text := fmt.Sprintf("%s", actions); !strings.Contains(text, `"request_id":"q2","subtype":"error"`) {
		t.Errorf("actions %s", text)
	}
}

// askingPlan is a plan of a run in which somebody can be asked.
func askingPlan() *plan {
	p := testPlan()
	p.asks = true
	return p
}

const canUse = `{"type":"control_request","request_id":%q,"request":{"subtype":"can_use_tool","tool_name":%q,"input":%s}}`

func TestACallOfAnOwnToolIsAskedAboutAndGoesAsItWasApproved(t *testing.T) {
	d := newDialogue(askingPlan())
	prove(t, d)
	const input = `{"file_path":"/a <b> & c","n":1.0e400}`
	ask, ok := d.Line(fmt.Appendf(nil, canUse, "q1", "Read", input))[0].(agent.AskPerson)
	if !ok || ask.ID != "q1" || ask.Tool != "Read" || string(ask.Arguments) != input || len(ask.Authority) == 0 {
		t.Fatalf("asked %+v", ask)
	}
	if again := d.Line(fmt.Appendf(nil, canUse, "q1", "Read", `{"file_path":"/other"}`)); !strings.Contains(fmt.Sprintf("%s", again), `"behavior":"deny"`) {
		t.Errorf("a second question of that id: %s", again)
	}
	d.Line(fmt.Appendf(nil, canUse, "q2", "Grep", `{"pattern":"x"}`))
	for _, c := range []struct{ answer, want string }{
		{fmt.Sprintf("%s", d.Answer("q1", true, "")), `"behavior":"allow","updatedInput":` + input},
		{fmt.Sprintf("%s", d.Answer("q1", true, "")), `[]`}, // it holds once
		{fmt.Sprintf("%s", d.Answer("q2", false, "not now")), `"message":"This call was not approved: not now"`},
		{fmt.Sprintf("%s", d.Answer("q9", true, "")), `[]`},
	} {
		if !strings.Contains(c.answer, c.want) {
			t.Errorf("answered %s, want %s", c.answer, c.want)
		}
	}
	if !slices.Equal(d.denials, []string{"Read", "Grep"}) {
		t.Errorf("denials %q", d.denials)
	}
}

func TestWhatMustNotBeAskedAboutIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		plan *plan
		line string
		do   func(d *dialogue)
	}{
		"nobody to ask":            {testPlan(), fmt.Sprintf(canUse, "q", "Read", "{}"), nil},
		"a tool of the gateway":    {askingPlan(), fmt.Sprintf(canUse, "q", prefix+"crm__find", "{}"), nil},
		"a tool that is not there": {askingPlan(), fmt.Sprintf(canUse, "q", "Bash", "{}"), nil},
		"an interrupted run":       {askingPlan(), fmt.Sprintf(canUse, "q", "Read", "{}"), func(d *dialogue) { d.Stop() }},
		"no input":                 {askingPlan(), `{"type":"control_request","request_id":"q","request":{"subtype":"can_use_tool","tool_name":"Read"}}`, nil},
	} {
		d := newDialogue(c.plan)
		prove(t, d)
		if c.do != nil {
			c.do(d)
		}
		if got := fmt.Sprintf("%s", d.Line([]byte(c.line))); !strings.Contains(got, `"behavior":"deny"`) || len(d.denials) != 1 {
			t.Errorf("%s: %s, denials %q", name, got, d.denials)
		}
	}
}

func TestAQuestionThatTheAgentTakesBackIsWithdrawn(t *testing.T) {
	d := newDialogue(askingPlan())
	prove(t, d)
	d.Line(fmt.Appendf(nil, canUse, "q1", "Read", `{}`))
	if got := d.Line([]byte(`{"type":"control_cancel_request","request_id":"q1"}`)); len(got) != 1 || got[0] != (agent.Withdraw{ID: "q1"}) {
		t.Errorf("actions %v", got)
	}
	if got := d.Answer("q1", true, ""); got != nil {
		t.Errorf("a late answer is passed on: %s", got)
	}
}

func TestStartsThatFailSayWhyAndWhatToDo(t *testing.T) {
	failedStart := func(message string) []byte {
		return fmt.Appendf(nil, `{"type":"result","subtype":"error_during_execution","is_error":true,"num_turns":0,"session_id":%q,"errors":[%q]}`, sessionB, message)
	}
	for _, c := range []struct {
		name   string
		lines  [][]byte
		stderr string
		code   string
		want   string
	}{
		{"root", nil, "--dangerously-skip-permissions cannot be used with root/sudo privileges for security reasons\n", agent.CodeRefused, "IS_SANDBOX=1"},
		{"managed servers", nil, "You cannot use --strict-mcp-config when an enterprise MCP config is present\n", agent.CodeBoundary, "managed-mcp.json"},
		{"no sandbox", [][]byte{failedStart("Error: sandbox required but unavailable: bubblewrap (bwrap) not installed")}, "", agent.CodeBoundary, "install bubblewrap"},
		{"unknown option", nil, "error: unknown option '--permission-prompts'\n", agent.CodeBoundary, "unknown option"},
		{"nothing", nil, "", agent.CodeBoundary, "exit status 1"},
		{"something else", [][]byte{failedStart("Error: odd")}, "", agent.CodeBoundary, "Error: odd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDialogue(testPlan())
			d.Start()
			for _, line := range c.lines {
				d.Line(line)
			}
			v := d.End(proc.Exit{Code: 1}, []byte(c.stderr))
			if codeOf(v) != c.code || !strings.Contains(v.Err.Message, c.want) || v.SessionID != "" || v.Proof.Proven {
				t.Errorf("error %v, session %q", v.Err, v.SessionID)
			}
		})
	}
}

func FuzzDialogue(f *testing.F) {
	for _, name := range []string{"02-tool-ok", "16-partial", "42-res-unknown", "530-recommended-stream"} {
		f.Add(bytes.Join(recording(f, name), []byte("\n")), false)
	}
	d := newDialogue(testPlan())
	d.Start()
	handshake := append(initializeAnswer(d.plan, nil), '\n')
	d.Line(handshake)
	f.Add(append(handshake, statusAnswer(d, d.plan.expected())...), true)
	f.Add([]byte(`{"type":"control_request","request_id":"x","request":{"subtype":"can_use_tool","tool_name":"Bash"}}`), true)
	f.Add([]byte(`drop {"type":"user","message":{"content":"`), false)
	f.Add([]byte(`drop {"duration_api_ms":1,"result":"`), false)
	f.Fuzz(func(t *testing.T, data []byte, unproven bool) {
		d := newDialogue(testPlan())
		if unproven {
			d.Start()
		} else {
			prove(t, d)
		}
		for line := range bytes.SplitSeq(data, []byte("\n")) {
			step := d.Line
			if head, ok := bytes.CutPrefix(line, []byte("drop ")); ok {
				line, step = head, d.Dropped
			}
			for _, a := range step(line) {
				if w, ok := a.(agent.Write); ok && (!json.Valid(w.Data) || bytes.Count(w.Data, []byte("\n")) != 1) {
					t.Fatalf("wrote %q, which is not one line of JSON", w.Data)
				}
				if e, ok := a.(agent.Emit); ok {
					noToken(t, e.Event)
				}
			}
			d.Tick()
		}
		d.Stop()
		v := d.End(proc.Exit{}, data)
		if (v.Err == nil) != (v.Reply != "") || v.Err == nil && !v.Proof.Proven {
			t.Fatalf("reply %q, error %v, proven %v", v.Reply, v.Err, v.Proof.Proven)
		}
		if v.SessionID != "" && !isUUID(v.SessionID) {
			t.Fatalf("session %q", v.SessionID)
		}
	})
}

// A tool that calls others by name is told of as the one that it called, whatever names it in the stream.
func TestAToolThatStandsForOthersIsToldOfByTheirNames(t *testing.T) {
	p := testPlan()
	p.gateway.RawName = func(exposed string, arguments json.RawMessage) (string, string, bool) {
		var called struct{ Name string }
		if json.Unmarshal(arguments, &called) == nil && called.Name != "" {
			return "crm", called.Name, true
		}
		return "nightporter", exposed, true
	}
	p.tools[prefix+"call"] = "call"
	use := func(id, name, more string) []byte {
		return fmt.Appendf(nil, `{"type":"assistant","session_id":%q,"message":{"model":"m","content":[{"type":"tool_use","id":%q,"name":%q,"input":{"name":%q}}]}%s}`, sessionA, id, prefix+"call", name, more)
	}
	v, actions := replay(t, p, [][]byte{
		use("u1", "one", ""), use("u2", "two", `,"parent_tool_use_id":"u0"`),
		fmt.Appendf(nil, `{"type":"system","subtype":"permission_denied","tool_name":%q,"tool_use_id":"u1"}`, prefix+"call"),
		fmt.Appendf(nil, `{"type":"system","subtype":"permission_denied","tool_name":%q,"tool_use_id":"u2"}`, prefix+"call"),
		fmt.Appendf(nil, `{"type":"control_request","request_id":"r","request":{"subtype":"can_use_tool","tool_name":%q,"input":{"name":"three"}}}`, prefix+"call"),
		resultLine(func(r map[string]any) {
			r["permission_denials"] = []any{
				map[string]any{"tool_name": prefix + "call", "tool_use_id": "u1", "tool_input": map[string]any{"name": "one"}},
				map[string]any{"tool_name": prefix + "call", "tool_use_id": "u4", "tool_input": map[string]any{"name": "four"}},
			}
		}),
	}, proc.Exit{}, "")
	var used []string
	for _, a := range actions {
		if e, ok := a.(agent.Emit); ok && e.Event.Kind == agent.EventTool {
			used = append(used, e.Event.Tool)
		}
	}
	if !slices.Equal(used, []string{"mcp__crm__one"}) {
		t.Errorf("used %q", used)
	}
	if want := []string{"mcp__crm__one", "mcp__crm__two", "mcp__crm__three", "mcp__crm__four"}; !slices.Equal(v.Denials, want) {
		t.Errorf("denials %q, want %q", v.Denials, want)
	}
}
