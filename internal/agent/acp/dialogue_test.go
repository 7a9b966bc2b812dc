package acp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nightporter/internal/agent"
	"nightporter/internal/proc"
	"nightporter/internal/secret"
)

const testToken = "np-test-token-0123456789"

// request is a run with a gateway that has one tool, echo of the server notes.
func request() agent.Request {
	return agent.Request{
		Argv: []string{"gem"}, Program: "/bin/gem", Workdir: "/home/ann/w", Mode: agent.Granted, BuiltIn: agent.BuiltInNone,
		Prompt: "hello", Unproven: true,
		Gateway: &agent.Gateway{
			URL: "http://127.0.0.1:1/mcp", Token: secret.New(testToken), Tools: []string{"echo"},
			RawName: func(exposed string, arguments json.RawMessage) (string, string, bool) {
				return "notes", exposed, true
			},
		},
	}
}

// player gives lines to a dialogue and keeps what it answers.
type player struct {
	dialogue agent.Dialogue
	sent     []message
	events   []agent.Event
	closed   bool
	aborted  *agent.Abort
}

func play(t testing.TB, r agent.Request) *player {
	t.Helper()
	launch, err := Adapter{}.Prepare(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	p := &player{dialogue: launch.Dialogue}
	p.do(t, p.dialogue.Start())
	return p
}

func (p *player) do(t testing.TB, actions []agent.Action) {
	t.Helper()
	for _, action := range actions {
		switch a := action.(type) {
		case agent.Write:
			var m message
			if p.closed || !bytes.HasSuffix(a.Data, []byte("\n")) || json.Unmarshal(a.Data, &m) != nil {
				t.Fatalf("wrote %q, input closed: %t", a.Data, p.closed)
			}
			p.sent = append(p.sent, m)
		case agent.CloseInput:
			p.closed = true
		case agent.Emit:
			p.events = append(p.events, a.Event)
		case agent.Abort:
			p.aborted = &a
		}
	}
}

func (p *player) lines(t testing.TB, lines ...string) {
	t.Helper()
	for _, line := range lines {
		p.do(t, p.dialogue.Line([]byte(line)))
	}
}

func (p *player) ticks(t testing.TB, n int) {
	t.Helper()
	for range n {
		p.do(t, p.dialogue.Tick())
	}
}

func (p *player) end() agent.Result { return p.dialogue.End(proc.Exit{}, nil) }

func (p *player) last() message { return p.sent[len(p.sent)-1] }

// told are the events of a kind, as text.
func (p *player) told(kind agent.EventKind) (out []string) {
	for _, e := range p.events {
		if e.Kind == kind {
			out = append(out, e.Tool+e.Text+e.Activity+e.SessionID)
		}
	}
	return out
}

// recording is what claude-agent-acp 0.101.0 printed, line by line.
func recording(t testing.TB, name string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// session is the session of the recordings that belong together.
func session(t testing.TB) string {
	for _, line := range recording(t, "turn.jsonl") {
		if _, after, ok := strings.Cut(line, `"sessionId":"`); ok {
			return after[:strings.IndexByte(after, '"')]
		}
	}
	t.Fatal("the recording names no session")
	return ""
}

func mustFail(t *testing.T, r agent.Result, code string) {
	t.Helper()
	if r.Err == nil || r.Err.Code != code || r.Reply != "" {
		t.Fatalf("error %v, reply %q; want code %s", r.Err, r.Reply, code)
	}
	if strings.Contains(r.Err.Message, testToken) {
		t.Errorf("the run's token is in %q", r.Err.Message)
	}
}

// What the agent is until the prompt, for tests of what comes after.
const (
	initializeLine = `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"mcpCapabilities":{"http":true}},"authMethods":[]}}`
	newLine        = `{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s1"}}`
	endLine        = `{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}`
)

func said(text string) string {
	data, _ := json.Marshal(text)
	return `{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":` + string(data) + `}}}}`
}

func TestARecordedTurnIsReadAndAnswered(t *testing.T) {
	p := play(t, request())
	p.lines(t, recording(t, "turn.jsonl")...)
	r := p.end()
	if r.Err != nil || r.Reply != "all done" || r.Skipped != 0 || !p.closed {
		t.Fatalf("error %v, reply %q, skipped %d, closed %t", r.Err, r.Reply, r.Skipped, p.closed)
	}
	var methods []string
	for _, m := range p.sent {
		methods = append(methods, m.Method)
	}
	if want := []string{methodInitialize, methodNew, methodMode, methodPrompt, "", ""}; !slices.Equal(methods, want) {
		t.Errorf("sent %q, want %q", methods, want)
	}
	if got := string(p.sent[1].Params); !strings.Contains(got, `"headers":[{"name":"Authorization","value":"Bearer `+testToken+`"}]`) || !strings.Contains(got, `"type":"http"`) {
		t.Errorf("session/new has %s", got)
	}
	if got := string(p.sent[2].Params); !strings.Contains(got, `"modeId":"default"`) {
		t.Errorf("session/set_mode has %s", got)
	}
	if allowed, refused := string(p.sent[4].Result), string(p.sent[5].Result); !strings.Contains(allowed, `"allow-once"`) || !strings.Contains(refused, `"reject"`) {
		t.Errorf("answered %s and %s", allowed, refused)
	}
	if got := p.told(agent.EventTool); !slices.Equal(got, []string{"mcp__notes__echo", "Bash"}) {
		t.Errorf("tools %q", got)
	}
	if !slices.Equal(r.Denials, []string{"Bash"}) || !slices.Equal(p.told(agent.EventDenied), r.Denials) {
		t.Errorf("denials %q", r.Denials)
	}
	if want := (agent.Usage{InputTokens: 390, OutputTokens: 126, CostUSD: 0.003882}); r.Usage != want || r.Totals != want {
		t.Errorf("usage %+v, totals %+v", r.Usage, r.Totals)
	}
	if r.SessionID != session(t) || !slices.Equal(p.told(agent.EventSession), []string{r.SessionID}) {
		t.Errorf("session %q, told %q", r.SessionID, p.told(agent.EventSession))
	}
}

func TestARecordedSessionIsContinuedAndItsHistoryIsNoReply(t *testing.T) {
	for name, before := range map[string]agent.Usage{ // the session was loaded after turn.jsonl, and resumed after that
		"load.jsonl":   {InputTokens: 390, OutputTokens: 126, CostUSD: 0.003882},
		"resume.jsonl": {InputTokens: 520, OutputTokens: 168, CostUSD: 0.005176},
	} {
		t.Run(name, func(t *testing.T) {
			r := request()
			r.Resume, r.Before = session(t), before
			lines := recording(t, name)
			if name == "load.jsonl" {
				lines[0] = strings.Replace(lines[0], `"resume":{}`, `"other":{}`, 1)
			}
			p := play(t, r)
			for _, line := range lines {
				p.lines(t, line)
				if strings.Contains(line, `"id":2,`) {
					p.ticks(t, 2*quietTicks)
				}
			}
			result := p.end()
			if result.Err != nil || result.Reply != "first" || result.SessionID != r.Resume || len(p.told(agent.EventTool)) != 0 {
				t.Fatalf("error %v, reply %q, session %q, tools %q", result.Err, result.Reply, result.SessionID, p.told(agent.EventTool))
			}
			if got := result.Usage; got.InputTokens != 130 || got.OutputTokens != 42 || got.CostUSD < 0.0012 || got.CostUSD > 0.0014 {
				t.Errorf("usage %+v is not of this run alone", got)
			}
			if result.Totals.InputTokens != before.InputTokens+130 {
				t.Errorf("totals %+v", result.Totals)
			}
		})
	}
}

func TestHistoryThatComesAfterTheAnswerIsNoReply(t *testing.T) {
	r := request()
	r.Resume = "s1"
	p := play(t, r)
	p.lines(t, initializeLine, `{"jsonrpc":"2.0","id":2,"result":{}}`)
	for range 5 {
		p.ticks(t, quietTicks)
		p.lines(t, said("of old"))
	}
	if got := p.last().Method; got != methodLoad {
		t.Fatalf("%s was sent before the history was over", got)
	}
	p.ticks(t, quietTicks+1)
	p.lines(t, said("new"), endLine)
	if got := p.end(); got.Reply != "new" {
		t.Errorf("reply %q, error %v", got.Reply, got.Err)
	}
}

func TestARecordedUnknownSessionIsRejected(t *testing.T) {
	r := request()
	r.Resume = "caaebc6a-4212-4296-b49b-d0d265c58cb8"
	p := play(t, r)
	p.lines(t, recording(t, "unknown.jsonl")...)
	got := p.end()
	mustFail(t, got, agent.CodeResumeRejected)
	if !got.ResumeRejected || got.SessionID != "" || !p.closed {
		t.Errorf("rejected %t, session %q, closed %t", got.ResumeRejected, got.SessionID, p.closed)
	}
}

func TestOnlyAnUnknownSessionIsRejected(t *testing.T) {
	for name, test := range map[string]struct {
		lines    []string
		rejected bool
	}{
		"another error":       {[]string{initializeLine, `{"id":2,"error":{"code":-32603,"message":"Internal error","data":{"details":"no session found: the disk is full"}}}`}, false},
		"it names the id":     {[]string{initializeLine, `{"id":2,"error":{"code":-32603,"message":"Internal error","data":{"details":"Invalid session identifier \"s-one\""}}}`}, true},
		"it cannot continue":  {[]string{strings.Replace(initializeLine, `"loadSession":true`, `"loadSession":false`, 1)}, true},
		"the model's access":  {[]string{initializeLine, `{"id":2,"error":{"code":-32000,"message":"s-one"}}`}, false},
		"it comes to the end": {[]string{initializeLine}, false},
	} {
		r := request()
		r.Resume = "s-one"
		p := play(t, r)
		p.lines(t, test.lines...)
		if got := p.end(); got.ResumeRejected != test.rejected || got.Err == nil {
			t.Errorf("%s: rejected %t, error %v", name, got.ResumeRejected, got.Err)
		}
	}
}

func TestARecordedFailureOfAccessIsModelAuth(t *testing.T) {
	p := play(t, request())
	p.lines(t, recording(t, "auth.jsonl")...)
	got := p.end()
	mustFail(t, got, agent.CodeAuth)
	if got.Salvage != "" {
		t.Errorf("the agent's banner is salvage: %q", got.Salvage)
	}
}

func TestARecordedCancelKeepsWhatWasWritten(t *testing.T) {
	p := play(t, request())
	for _, line := range recording(t, "cancel.jsonl") {
		p.lines(t, line)
		if strings.Contains(line, "agent_message_chunk") && p.last().Method != methodCancel {
			p.do(t, p.dialogue.Stop())
		}
	}
	if p.last().Method != methodCancel || !p.closed {
		t.Errorf("last sent %q, closed %t", p.last().Method, p.closed)
	}
	got := p.end()
	mustFail(t, got, agent.CodeAgentError)
	if got.Salvage != "thinking about it at length" || got.SessionID == "" {
		t.Errorf("salvage %q, session %q", got.Salvage, got.SessionID)
	}
}

func TestOnlyAReadyMethodIsUsedToLogIn(t *testing.T) {
	const required = `{"id":2,"error":{"code":-32000,"message":"Authentication required"}}`
	for name, test := range map[string]struct {
		methods string
		env     []string
		used    string
	}{
		"a browser":          {`[{"id":"oauth-personal","name":"Log in"}]`, nil, ""},
		"a key that is not":  {`[{"id":"gemini-api-key"}]`, nil, ""},
		"a key that is":      {`[{"id":"oauth-personal"},{"id":"gemini-api-key"}]`, []string{"GEMINI_API_KEY=made-up"}, "gemini-api-key"},
		"a variable":         {`[{"id":"x","type":"env_var","vars":[{"name":"A"},{"name":"B","optional":true}]}]`, []string{"A=1"}, "x"},
		"one of two":         {`[{"id":"x","type":"env_var","vars":[{"name":"A"},{"name":"B"}]}]`, []string{"A=1"}, ""},
		"a terminal's":       {`[{"id":"x","type":"terminal"}]`, nil, ""},
		"no variable at all": {`[{"id":"x","type":"env_var","vars":[]}]`, nil, ""},
	} {
		r := request()
		r.Env = test.env
		p := play(t, r)
		p.lines(t, strings.Replace(initializeLine, `"authMethods":[]`, `"authMethods":`+test.methods, 1), required)
		if test.used == "" {
			mustFail(t, p.end(), agent.CodeAuth)
			continue
		}
		if got := p.last(); got.Method != methodAuthenticate || !strings.Contains(string(got.Params), `"`+test.used+`"`) {
			t.Errorf("%s: sent %s %s", name, got.Method, got.Params)
		}
		p.lines(t, `{"id":3,"result":null}`)
		if got := p.last(); got.Method != methodNew {
			t.Errorf("%s: after it %s was sent", name, got.Method)
		}
		p.lines(t, strings.Replace(required, `"id":2`, `"id":4`, 1))
		mustFail(t, p.end(), agent.CodeAuth)
	}
}

func TestPermissionIsForGrantedToolsAndChosenKinds(t *testing.T) {
	const ours = "mcp__nightporter__echo"
	for _, test := range []struct {
		name, kind string
		mode       agent.ToolMode
		builtIn    agent.BuiltIn
		title      string
		allowed    bool
	}{
		{ours, "other", agent.Granted, agent.BuiltInNone, "", true},
		{"nightporter__echo", "", agent.Granted, agent.BuiltInNone, "", true},
		{"nightporter_echo", "", agent.Granted, agent.BuiltInNone, "", true},
		{"mcp__nightporter__delete", "other", agent.Granted, agent.BuiltInAll, "", false},
		{"mcp__other__echo", "read", agent.Granted, agent.BuiltInAll, "", false},
		{"", "other", agent.Granted, agent.BuiltInNone, ours, false}, // a title is the model's
		{"Bash", "execute", agent.Granted, agent.BuiltInNone, ours, false},
		{"Bash", "execute", agent.Granted, agent.BuiltInReadOnly, "", false},
		{"Read", "read", agent.Granted, agent.BuiltInNone, "", false},
		{"Read", "read", agent.Granted, agent.BuiltInReadOnly, "", true},
		{"Bash", "execute", agent.Granted, agent.BuiltInAll, "", true},
		{"ExitPlanMode", "switch_mode", agent.Granted, agent.BuiltInAll, "", false},
		{"Bash", "execute", agent.Bypass, agent.BuiltInNone, "", true},
	} {
		r := request()
		r.Mode, r.BuiltIn = test.mode, test.builtIn
		p := play(t, r)
		p.lines(t, initializeLine, newLine)
		call, _ := json.Marshal(object{"toolCallId": "c1", "name": test.name, "kind": test.kind, "title": test.title})
		p.lines(t, `{"jsonrpc":"2.0","id":"q","method":"session/request_permission","params":{"sessionId":"s1","toolCall":`+string(call)+
			`,"options":[{"optionId":"always","kind":"allow_always"},{"optionId":"yes","kind":"allow_once"},{"optionId":"no","kind":"reject_once"}]}}`)
		want := `{"outcome":{"optionId":"no","outcome":"selected"}}`
		if test.allowed {
			want = `{"outcome":{"optionId":"yes","outcome":"selected"}}`
		}
		if got := p.last(); string(got.ID) != `"q"` || string(got.Result) != want {
			t.Errorf("%+v: answered %s %s", test, got.ID, got.Result)
		}
		if denied := len(p.end().Denials) == 1; denied == test.allowed {
			t.Errorf("%+v: reported as refused: %t", test, denied)
		}
	}
}

func TestNothingIsAllowedForGood(t *testing.T) {
	p := play(t, request())
	p.lines(t, initializeLine, newLine, `{"id":0,"method":"session/request_permission","params":{"toolCall":{"toolCallId":"c","name":"mcp__nightporter__echo"},"options":[{"optionId":"always","kind":"allow_always"}]}}`)
	if got := string(p.last().Result); got != `{"outcome":{"outcome":"cancelled"}}` {
		t.Errorf("answered %s", got)
	}
	if got := p.end().Denials; !slices.Equal(got, []string{"mcp__notes__echo"}) {
		t.Errorf("denials %q", got)
	}
}

func TestFilesAndTerminalsOfTheClientAreRefused(t *testing.T) {
	p := play(t, request())
	if got := string(p.sent[0].Params); !strings.Contains(got, `"fs":{"readTextFile":false,"writeTextFile":false},"terminal":false`) {
		t.Errorf("offered: %s", got)
	}
	p.lines(t, initializeLine, newLine)
	for _, method := range []string{"fs/read_text_file", "fs/write_text_file", "terminal/create", "elicitation/create"} {
		p.lines(t, `{"id":7,"method":"`+method+`","params":{}}`)
		if got := p.last(); got.Error == nil || got.Error.Code != codeMethodNotFound {
			t.Errorf("%s was answered with %+v", method, got)
		}
	}
	if got := p.end().Denials; len(got) != 3 {
		t.Errorf("denials %q", got)
	}
}

func TestAModeThatMayNotAskEndsTheRun(t *testing.T) {
	modes := strings.Replace(newLine, `"s1"`, `"s1","modes":{"currentModeId":"default","availableModes":[{"id":"yolo"},{"id":"default"}]}`, 1)
	turn := func(mode string) string {
		return `{"method":"session/update","params":{"sessionId":"s1","update":{"sessionUpdate":"current_mode_update","currentModeId":"` + mode + `"}}}`
	}
	p := play(t, request())
	p.lines(t, initializeLine, modes, turn("plan"))
	if p.aborted != nil {
		t.Error("mode plan ended the run")
	}
	p.lines(t, turn("yolo"))
	if p.aborted == nil || !p.aborted.Now {
		t.Errorf("abort %+v", p.aborted)
	}
	mustFail(t, p.end(), agent.CodeBroken)
}

func TestStopReasonsHaveTheirCodes(t *testing.T) {
	for reason, code := range map[string]string{
		"max_tokens": agent.CodeTurnLimit, "max_turn_requests": agent.CodeTurnLimit, "refusal": agent.CodeAgentError,
		"cancelled": agent.CodeAgentError, "of_tomorrow": agent.CodeAgentError, "": agent.CodeNoResult,
	} {
		p := play(t, request())
		p.lines(t, initializeLine, newLine, said("partial"), strings.Replace(endLine, "end_turn", reason, 1))
		got := p.end()
		mustFail(t, got, code)
		if got.Salvage != "partial" {
			t.Errorf("%s: salvage %q", reason, got.Salvage)
		}
	}
}

func TestTheReplyIsTheMessageAfterTheLastTool(t *testing.T) {
	const tool = `{"method":"session/update","params":{"sessionId":"s1","update":{"sessionUpdate":"tool_call","toolCallId":"c","name":"Read","title":"x"}}}`
	other := strings.Replace(said("of a subagent"), `"s1"`, `"s2"`, 1)
	for name, test := range map[string]struct {
		lines []string
		reply string
		code  string
	}{
		"chunks":             {[]string{said("a"), said("b "), other, said("c")}, "ab c", ""},
		"after a tool":       {[]string{said("let me look"), tool, said("found")}, "found", ""},
		"nothing after it":   {[]string{said("let me look"), tool}, "", agent.CodeEmptyReply},
		"blank":              {[]string{said(" \n")}, "", agent.CodeEmptyReply},
		"more than is taken": {[]string{said(strings.Repeat("x", maxReply)), said("x")}, "", agent.CodeResultTooLong},
	} {
		p := play(t, request())
		p.lines(t, initializeLine, newLine)
		p.lines(t, append(test.lines, endLine)...)
		got := p.end()
		if test.code != "" {
			mustFail(t, got, test.code)
		} else if got.Err != nil || got.Reply != test.reply {
			t.Errorf("%s: reply %q, error %v", name, got.Reply, got.Err)
		}
	}
}

func TestADroppedLineThatMayHaveBeenOfTheResultFailsTheRun(t *testing.T) {
	const big = `{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":{`
	for name, test := range map[string]struct {
		head string
		tool bool
		code string
	}{
		"an answer":             {`{"jsonrpc":"2.0","id":3,"result":{"x":"xxx`, false, agent.CodeResultTooLong},
		"junk":                  {`xxxxxx`, false, agent.CodeResultTooLong},
		"a piece of the reply":  {big + `"sessionUpdate":"agent_message_chunk","content":{"te`, false, agent.CodeResultTooLong},
		"an unknown update":     {big + `"_meta":{"x":"xxx`, false, agent.CodeResultTooLong},
		"a tool's answer":       {big + `"_meta":{"x":"xxx`, true, ""},
		"another kind of thing": {big + `"sessionUpdate":"tool_call_update","x":"xxx`, false, ""},
	} {
		p := play(t, request())
		p.lines(t, initializeLine, newLine)
		if test.tool {
			p.lines(t, `{"method":"session/update","params":{"sessionId":"s1","update":{"sessionUpdate":"tool_call","toolCallId":"c","name":"Read"}}}`)
		}
		p.do(t, p.dialogue.Dropped([]byte(test.head)))
		if !p.closed {
			p.lines(t, said("done"), endLine)
		}
		got := p.end()
		if test.code != "" {
			mustFail(t, got, test.code)
		} else if got.Reply != "done" || got.Skipped != 1 {
			t.Errorf("%s: reply %q, error %v", name, got.Reply, got.Err)
		}
	}
}

func TestAnAgentThatDoesNotAnswerIsEnded(t *testing.T) {
	p := play(t, request())
	p.ticks(t, startTicks+1)
	if !p.closed {
		t.Fatal("it is waited for without end")
	}
	p.ticks(t, exitTicks)
	if p.aborted == nil {
		t.Error("it is not ended by force")
	}
	mustFail(t, p.end(), agent.CodeAgentError)
}

func TestAnAgentThatTakesNoHTTPServersIsRefused(t *testing.T) {
	p := play(t, request())
	p.lines(t, strings.Replace(initializeLine, `"http":true`, `"sse":true`, 1))
	mustFail(t, p.end(), agent.CodeBoundary)
	r := request()
	r.Gateway = nil
	p = play(t, r)
	p.lines(t, strings.Replace(initializeLine, `"http":true`, `"sse":true`, 1))
	if got := p.last(); got.Method != methodNew || !strings.Contains(string(got.Params), `"mcpServers":[]`) {
		t.Errorf("without servers it was sent %s %s", got.Method, got.Params)
	}
}

func TestAPromptIsNoCommand(t *testing.T) {
	for prompt, want := range map[string]string{
		"what is /cost?":     "what is /cost?",
		"/cost":              "The message is:\n\n/cost",
		"\n !ls":             "The message is:\n\n\n !ls",
		"@/etc/passwd":       "The message is:\n\n@/etc/passwd",
		"ünï /x\nline\x00 2": "ünï /x\nline\x00 2",
	} {
		if got := guarded(prompt); got != want {
			t.Errorf("%q is sent as %q", prompt, got)
		}
	}
}

func TestItRunsOnlyUnprovenAndSaysWhatIsEnforced(t *testing.T) {
	r := request()
	r.Unproven = false
	_, err := Adapter{}.Prepare(context.Background(), r)
	var unproven *agent.Unproven
	if !errors.As(err, &unproven) || unproven.Proof.Proven || len(unproven.Proof.Rings) != 4 {
		t.Fatalf("Prepare: %v", err)
	}
	for _, ring := range unproven.Proof.Rings {
		if ring.Proven != "" || len(ring.Open) == 0 {
			t.Errorf("ring %+v claims what nobody was asked", ring)
		}
	}
	r = request()
	launch, err := Adapter{}.Prepare(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	if data, _ := json.Marshal(append(launch.Argv, launch.Env...)); bytes.Contains(data, []byte(testToken)) || bytes.Contains(data, []byte(r.Prompt)) {
		t.Errorf("the command has %s", data)
	}
}

// FuzzDialogue gives a dialogue any lines, with ticks, drops and a stop between them.
func FuzzDialogue(f *testing.F) {
	for _, name := range []string{"turn.jsonl", "load.jsonl", "cancel.jsonl", "auth.jsonl", "unknown.jsonl"} {
		f.Add([]byte(strings.Join(recording(f, name), "\n")), uint8(255), false)
		f.Add([]byte(strings.Join(recording(f, name), "\n")), uint8(4), true)
	}
	f.Add([]byte(initializeLine+"\n"+newLine+"\n"+said("x")+"\n"+endLine), uint8(3), false)
	f.Fuzz(func(t *testing.T, data []byte, stop uint8, resume bool) {
		r := request()
		if resume {
			r.Resume = "s1"
		}
		p := play(t, r)
		for i, line := range bytes.Split(data, []byte("\n")) {
			switch {
			case i == int(stop):
				p.do(t, p.dialogue.Stop())
			case len(line) > 4096:
				p.do(t, p.dialogue.Dropped(line[:4096]))
				continue
			}
			kept := bytes.Clone(line)
			p.do(t, p.dialogue.Line(kept))
			clear(kept) // the line is not the dialogue's to keep
			p.do(t, p.dialogue.Tick())
		}
		got := p.end()
		if (got.Err == nil) == (got.Reply == "") {
			t.Fatalf("error %v with reply %q", got.Err, got.Reply)
		}
		if _, err := json.Marshal(got); err != nil {
			t.Fatal(err)
		}
		for _, e := range p.events {
			if len([]rune(e.Activity)) > 120 || strings.ContainsAny(e.Activity, "\n\r") {
				t.Fatalf("activity %q", e.Activity)
			}
		}
	})
}
