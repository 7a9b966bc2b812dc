package claude

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"nightporter/internal/agent"
	"nightporter/internal/lines"
	"nightporter/internal/proc"
	"nightporter/internal/secret"
)

// The recordings in testdata are what Claude Code 2.1.332 printed in runs with a scripted model, byte for
// byte (of the dialogues in 191 and 320 to 482 only what it wrote, with the long lists of its commands, agents and models emptied). Their one MCP server is called gw; replayed it takes the gateway's name, and their init events are
// made to fit the boundary, which has tests of its own.

func recording(t testing.TB, name string) [][]byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	data = bytes.ReplaceAll(data, []byte("mcp__gw__"), []byte(prefix))
	return bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
}

// planOf is a plan under which a recording's init event is as planned, with that event changed where
// it was made without our flags.
func planOf(t testing.TB, lines [][]byte) *plan {
	t.Helper()
	p := &plan{
		shape: shape{mode: "default"}, version: "2.1.332", tools: map[string]string{},
		gateway: &agent.Gateway{Token: secret.New(testToken), RawName: func(exposed string, _ json.RawMessage) (string, string, bool) { return "crm", exposed, true }},
	}
	for i, line := range lines {
		var h header
		if !decode(line, &h) {
			continue
		}
		if p.session == "" && isUUID(h.SessionID) {
			p.session = h.SessionID
		}
		if h.Type != "system" || h.Subtype != "init" {
			continue
		}
		var e map[string]any
		var typed initEvent
		if json.Unmarshal(line, &e) != nil || json.Unmarshal(line, &typed) != nil {
			t.Fatalf("init event %s", line)
		}
		p.mode, p.builtIn, p.tools = typed.PermissionMode, nil, map[string]string{}
		for _, tool := range typed.Tools {
			if exposed, ours := strings.CutPrefix(tool, prefix); ours {
				p.tools[tool] = exposed
			} else if !strings.HasPrefix(tool, "mcp__") {
				p.builtIn = append(p.builtIn, tool)
			}
		}
		e["tools"] = slices.DeleteFunc(typed.Tools, func(tool string) bool {
			return strings.HasPrefix(tool, "mcp__") && !strings.HasPrefix(tool, prefix)
		})
		e["mcp_servers"] = []server{{Name: agent.GatewayName, Status: "connected", Source: "dynamic"}}
		e["slash_commands"], e["skills"] = []string{}, []string{}
		lines[i], _ = json.Marshal(e)
	}
	return p
}

// prove brings a dialogue to the point where it has sent its prompt.
func prove(t testing.TB, d *dialogue) []agent.Action {
	t.Helper()
	d.Start()
	actions := d.Line(initializeAnswer(d.plan, nil))
	actions = append(actions, d.Line(statusAnswer(d, d.plan.expected()))...)
	if d.phase != asked {
		t.Fatalf("the proof failed: %v", d.err)
	}
	return actions
}

func initializeAnswer(p *plan, change func(map[string]any)) []byte {
	answer := map[string]any{
		"commands": []any{}, "claude_code_version": p.version, "current_permission_mode": p.mode, "sandbox_enabled": p.sandbox,
		"account": map[string]any{"apiKeySource": "ANTHROPIC_API_KEY"},
	}
	if change != nil {
		change(answer)
	}
	return controlResponse(idInitialize, answer)
}

func statusAnswer(d *dialogue, servers []map[string]any) []byte {
	return controlResponse(d.polling, map[string]any{"mcpServers": servers})
}

// expected is the list of servers of mcp_status that is as planned, tokens included.
func (p *plan) expected() []map[string]any {
	if p.gateway == nil {
		return []map[string]any{}
	}
	tools := []map[string]any{}
	for _, exposed := range p.tools {
		tools = append(tools, map[string]any{"name": exposed, "annotations": map[string]any{}})
	}
	return []map[string]any{{
		"name": agent.GatewayName, "status": "connected", "scope": "dynamic", "source": "dynamic", "transport": "http", "tools": tools,
		"config": map[string]any{"type": "http", "headers": map[string]any{"Authorization": "Bearer " + testToken}},
	}}
}

func controlResponse(id string, response any) []byte {
	line, _ := json.Marshal(map[string]any{
		"type": "control_response", "response": map[string]any{"subtype": "success", "request_id": id, "response": response},
	})
	return line
}

// eventsOf are the events among actions.
func eventsOf(actions []agent.Action) (events []agent.Event) {
	for _, a := range actions {
		if e, ok := a.(agent.Emit); ok {
			events = append(events, e.Event)
		}
	}
	return events
}

func has[A agent.Action](actions []agent.Action) bool {
	return slices.ContainsFunc(actions, func(a agent.Action) bool { _, ok := a.(A); return ok })
}

// replay feeds a recording to a dialogue whose boundary is proven.
func replay(t testing.TB, p *plan, lines [][]byte, exit proc.Exit, stderr string) (agent.Result, []agent.Action) {
	t.Helper()
	d := newDialogue(p)
	actions := prove(t, d)
	all := bytes.Join(lines, nil)
	if !bytes.Contains(all, []byte(`"init"`)) && (bytes.Contains(all, []byte(`"assistant"`)) || bytes.Contains(all, []byte(`"stream_event"`))) {
		actions = append(actions, d.Line(initLine(p, nil))...)
	}
	for _, line := range lines {
		actions = append(actions, d.Line(line)...)
	}
	return d.End(exit, []byte(stderr)), actions
}

func TestRecordingsGiveTheirOutcome(t *testing.T) {
	const (
		find = "mcp__crm__"
		cut  = "API Error: "
	)
	for _, c := range []struct {
		name    string
		exit    int
		reply   string
		code    string
		message string // in the error
		denials []string
		salvage string
		tools   []string // as events, in order
		skipped int
	}{
		{name: "01-plain", reply: "Hello from fake.", salvage: "Hello from fake."},
		{name: "02-tool-ok", reply: "done", salvage: "done", tools: []string{find + "echo"}},
		{name: "03-tool-denied", reply: "ok denied", salvage: "ok denied", tools: []string{find + "echo"}, denials: []string{find + "echo"}},
		{name: "04-tool-error-iserror", reply: "it failed", salvage: "it failed", tools: []string{find + "fail"}},
		{name: "05-tool-error-rpc", reply: "it failed", salvage: "it failed", tools: []string{find + "rpcfail"}},
		{name: "06-tool-unknown", reply: "hm", salvage: "hm", tools: []string{find + "nosuch"}},
		{name: "07-tool-die", reply: "hm", salvage: "hm", tools: []string{find + "die", find + "echo"}},
		{name: "08-tool-garbage", reply: "hm", salvage: "hm", tools: []string{find + "garbage"}},
		{name: "09-tool-structured-image", reply: "hm", salvage: "hm", tools: []string{find + "structured", find + "image"}},
		{name: "10-api-401", exit: -1, code: agent.CodeAuth, message: "HTTP 401"},
		{name: "12-max-turns", exit: 1, code: agent.CodeTurnLimit, message: "Reached maximum number of turns (2)", tools: []string{find + "echo", find + "echo"}},
		{name: "13-json-format", reply: "final"},
		{name: "16-partial", reply: "final", salvage: "final", tools: []string{find + "echo"}},
		{name: "18-api-500-retries1", exit: 1, code: agent.CodeModelAPI, message: cut + "500"},
		{name: "19-api-529-retries1", exit: 1, code: agent.CodeModelAPI, message: cut + "529"},
		{name: "22-sse-error", exit: 1, code: agent.CodeModelAPI, message: cut, salvage: "partial text"},
		{name: "23-sse-cut", exit: 1, code: agent.CodeModelAPI, message: cut + "Connection lost", salvage: "partial text"},
		{name: "26-refusal", exit: 1, code: agent.CodeModelAPI, message: "safeguards"},
		{name: "27-empty-answer", code: agent.CodeEmptyReply},
		{name: "29-no-key", exit: 1, code: agent.CodeAuth, message: "Not logged in"},
		{name: "30-int-stream", code: agent.CodeAgentError, message: "interrupted", salvage: "second message partial text", tools: []string{find + "echo"}},
		{name: "30-int-tool", code: agent.CodeAgentError, message: "interrupted", salvage: "calling slow", tools: []string{find + "slow"}},
		{name: "30-term-stream", exit: 143, code: agent.CodeNoResult, message: "exit status 143", salvage: "second message partial text", tools: []string{find + "echo"}},
		{name: "30-term-tool", exit: 143, code: agent.CodeNoResult, salvage: "calling slow", tools: []string{find + "slow"}},
		{name: "62-strict", code: agent.CodeBoundary, message: "the plugin plug"},
		{name: "64-strict-setting-sources-empty", reply: "Hi", salvage: "Hi"},
		{name: "95-cfg-badserver", code: agent.CodeBoundary, message: "the server c was skipped (unknown_type)"},
		{name: "96-cfg-one-bad-one-good", code: agent.CodeBoundary, message: "the server bad was skipped"},
		{name: "268-schema-alwaysLoad", reply: "f", salvage: "f", tools: []string{find + "b"}},
		{name: "268-schema-arr", reply: "f", salvage: "f", tools: []string{find + "b"}},
		{name: "268-schema-badprops", reply: "f", salvage: "f", tools: []string{find + "b"}},
		{name: "268-schema-empty-schema", reply: "f", salvage: "f", tools: []string{find + "b"}},
		{name: "268-schema-nodesc", reply: "f", salvage: "f", tools: []string{find + "b"}},
		{name: "268-schema-noname", reply: "f", salvage: "f", tools: []string{find + "b"}},
		{name: "268-schema-noschema", reply: "f", salvage: "f", tools: []string{find + "b"}},
		{name: "268-schema-null-desc", reply: "f", salvage: "f", tools: []string{find + "b"}},
		{name: "268-schema-oneof-notype", reply: "f", salvage: "f", tools: []string{find + "b"}},
		{name: "268-schema-outschema", reply: "f", salvage: "f", tools: []string{find + "b"}},
		{name: "268-schema-searchHint", reply: "f", salvage: "f", tools: []string{find + "b"}},
		{name: "268-schema-top-oneof", reply: "f", salvage: "f", tools: []string{find + "b"}},
		{name: "191-control", code: agent.CodeAgentError, message: "interrupted", salvage: "after int", tools: []string{find + "echo", find + "slow"}},
		{name: "320-sdkmcp", reply: "fin", salvage: "fin", tools: []string{find + "hello"}},
		{name: "44-res-unknown-json", exit: 1, code: agent.CodeNoResult, message: "exit status 1"}, // rejected when it was asked for: see below
		{name: "472-malformed", exit: 1, code: agent.CodeNoResult, message: "exit status 1"},
		{name: "476-status-secret", code: agent.CodeNoResult},
		{name: "480-hookcb", reply: "fin2", salvage: "fin2", tools: []string{find + "echo", find + "echo"}, denials: []string{find + "echo"}},
		{name: "482-elicit", reply: "fin", salvage: "fin", tools: []string{find + "elicit", find + "elicit_url"}},
		{name: "30-hup-stream", exit: 129, code: agent.CodeNoResult, message: "exit status 129", salvage: "second message partial text", tools: []string{find + "echo"}},
		{name: "30-hup-tool", exit: 129, code: agent.CodeNoResult, salvage: "calling slow", tools: []string{find + "slow"}},
		{name: "30-kill-stream", exit: -1, code: agent.CodeNoResult, message: "killed", salvage: "second message partial text", tools: []string{find + "echo"}},
		{name: "30-kill-tool", exit: -1, message: "killed", code: agent.CodeNoResult, salvage: "calling slow", tools: []string{find + "slow"}},
		{name: "40-res-first", reply: "first answer", salvage: "first answer", tools: []string{find + "echo"}},
		{name: "41-res-good", reply: "reply of 41-res-good", salvage: "reply of 41-res-good"},
		{name: "47-fork", reply: "reply of 47-fork", salvage: "reply of 47-fork"},
		{name: "136-list-error", reply: "fin", salvage: "fin", tools: []string{find + "echo"}},
		{name: "253-bgagent-None", code: agent.CodeNoResult, message: "its output begins: agent reply", skipped: 2},
		{name: "253-bgagent-json", reply: "SECOND main reply after agent"},
		{name: "253-bgagent-stream", reply: "SECOND main reply after agent", salvage: "SECOND main reply after agent", tools: []string{"Agent"}},
		{name: "264-list-changed", reply: "fin", salvage: "fin", tools: []string{find + "notify", "Bash", find + "added_tool_1"}},
		{name: "276-slash-clear", code: agent.CodeAgentError, message: "/clear"},
		{name: "450-recommended", reply: "fin", salvage: "fin", tools: []string{find + "echo", "Bash"}},
		{name: "474-replay", reply: "b", salvage: "b"},
		{name: "483-canuse-allow", exit: 1, code: agent.CodeAgentError, message: "interrupted", tools: []string{find + "echo", find + "elicit_url"}, denials: []string{find + "elicit_url"}},
		{name: "530-recommended-stream", reply: "fin", salvage: "fin", tools: []string{find + "echo", find + "other"}, denials: []string{find + "other"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			lines := recording(t, c.name)
			p, exit := planOf(t, lines), proc.Exit{Code: c.exit}
			if c.exit < 0 {
				exit.Signal = "killed"
			}
			v, actions := replay(t, p, lines, exit, "")
			whole, seed := string(bytes.Join(lines, []byte("\n")))+"\n", rand.Uint64()
			for how, pieces := range map[string]io.Reader{
				"byte by byte":                    iotest.OneByteReader(strings.NewReader(whole)),
				fmt.Sprint("in chunks of ", seed): &chunks{whole, rand.New(rand.NewPCG(seed, 0))},
				"without its last newline":        strings.NewReader(strings.TrimSuffix(whole, "\n")),
			} {
				if other, _ := replay(t, p, read(t, pieces), exit, ""); !reflect.DeepEqual(other, v) {
					t.Errorf("%s it is %+v, whole %+v", how, other, v)
				}
			}
			code, message := "", ""
			if v.Err != nil {
				code, message = v.Err.Code, v.Err.Message
			}
			if v.Reply != c.reply || code != c.code || !strings.Contains(message, c.message) || v.Salvage != c.salvage || v.Skipped != c.skipped {
				t.Errorf("got reply %q, error %s %q, salvage %q, skipped %d", v.Reply, code, message, v.Salvage, v.Skipped)
			}
			if !slices.Equal(v.Denials, c.denials) {
				t.Errorf("denials = %q, want %q", v.Denials, c.denials)
			}
			var tools, sessions []string
			for _, e := range eventsOf(actions) {
				switch e.Kind {
				case agent.EventTool:
					tools = append(tools, e.Tool)
				case agent.EventSession:
					sessions = append(sessions, e.SessionID)
				}
			}
			if !slices.Equal(tools, c.tools) {
				t.Errorf("tools = %q, want %q", tools, c.tools)
			}
			if want := lastSession(lines); v.SessionID != want || want != "" && sessions[len(sessions)-1] != want {
				t.Errorf("session = %q after events %q, want %q", v.SessionID, sessions, want)
			}
			if c.code != agent.CodeNoResult && !has[agent.CloseInput](actions) && !has[agent.Abort](actions) {
				t.Error("the input was left open after the result")
			}
		})
	}
}

func lastSession(lines [][]byte) (id string) {
	for _, line := range lines {
		var h header
		if decode(line, &h) && h.SessionID != "" {
			id = h.SessionID
		}
	}
	return id
}

func TestRecordingsOfSessionsThatAreUnknown(t *testing.T) {
	const dead = "1a93237e-8b87-4c6c-8819-45c9c55a3f45"
	said := noConversation + dead + "\n"
	for _, c := range []struct {
		name     string
		resume   string
		lines    [][]byte
		stderr   string
		code     string
		rejected bool
	}{
		{"stream", dead, recording(t, "42-res-unknown"), said, agent.CodeResumeRejected, true},
		{"stream without stderr", dead, recording(t, "42-res-unknown"), "", agent.CodeResumeRejected, true},
		{"stdout empty", dead, recording(t, "44-res-unknown-json"), said, agent.CodeResumeRejected, true},
		{"nothing was resumed", "", recording(t, "42-res-unknown"), said, agent.CodeBoundary, false},
		{"another id", "1a93237e-8b87-4c6c-8819-45c9c55a3f46", recording(t, "42-res-unknown"), said, agent.CodeBoundary, false},
		{"not a UUID", dead, recording(t, "43-res-notuuid"), "", agent.CodeBoundary, false},
		{"words around it", dead, nil, "Error: " + said, agent.CodeBoundary, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &plan{shape: shape{mode: "default"}, version: "2.1.332", session: c.resume, resume: c.resume != ""}
			d := newDialogue(p)
			actions := d.Start()
			for _, line := range c.lines {
				actions = append(actions, d.Line(line)...)
			}
			v := d.End(proc.Exit{Code: 1}, []byte(c.stderr))
			if v.Err == nil || v.Err.Code != c.code || v.ResumeRejected != c.rejected || v.SessionID != "" {
				t.Errorf("error %v, rejected %v, session %q", v.Err, v.ResumeRejected, v.SessionID)
			}
			if len(eventsOf(actions)) != 0 {
				t.Errorf("events %+v", eventsOf(actions))
			}
		})
	}
}

// A model that quotes Claude Code's words about unknown sessions must not have its run made again.
func TestWordsOfAModelAreNotARejectedSession(t *testing.T) {
	lines := recording(t, "41-res-good")
	p := planOf(t, lines)
	p.resume = true
	quoted := noConversation + p.session
	for i := range lines {
		lines[i] = bytes.ReplaceAll(lines[i], []byte("reply of 41-res-good"), []byte(quoted))
	}
	v, _ := replay(t, p, lines, proc.Exit{}, quoted+"\n")
	if v.Err != nil || v.ResumeRejected || v.Reply != quoted {
		t.Errorf("error %v, rejected %v, reply %q", v.Err, v.ResumeRejected, v.Reply)
	}

	// Nor when the run then ends without a result, with the words on stderr.
	v, _ = replay(t, p, lines[:len(lines)-1], proc.Exit{Code: 1}, quoted+"\n")
	if v.ResumeRejected || v.Err == nil || v.Err.Code != agent.CodeNoResult || v.SessionID != p.session {
		t.Errorf("error %v, rejected %v, session %q", v.Err, v.ResumeRejected, v.SessionID)
	}
}

// Whatever stands between the lines, and in whatever order their keys are, the outcome is the same.
func TestRecordingsAreReadThroughJunkAndInAnyKeyOrder(t *testing.T) {
	junk := [][]byte{
		[]byte("npm warn something"), []byte("\x00\xff\xfe"), []byte(`{"type":"future_event","session_id":7}`), []byte(`{}`), []byte(`[1,2]`),
		[]byte(`{"type":"user","message":7,"session_id":null}`), []byte(`{"type":12}`), []byte("null"), []byte(`"result"`),
		[]byte(`{"type":"control_response"}`), []byte(`{"type":"control_request"}`),
	}
	files, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".jsonl")
		lines := recording(t, name)
		p := planOf(t, lines)
		want, _ := replay(t, p, lines, proc.Exit{}, "")
		var noisy [][]byte
		for _, line := range lines {
			noisy = append(noisy, junk...)
			var v map[string]any
			if json.Unmarshal(line, &v) == nil {
				line, _ = json.Marshal(v) // keys sorted: type is among the last
			}
			noisy = append(noisy, append(line, '\r'), []byte(" \t"))
		}
		got, _ := replay(t, p, noisy, proc.Exit{}, "")
		if got.Skipped <= want.Skipped {
			t.Errorf("%s: skipped %d, with junk %d", name, want.Skipped, got.Skipped)
		}
		got.Skipped = want.Skipped
		if want.Err != nil && got.Err != nil && want.Err.Code == agent.CodeNoResult {
			got.Err = want.Err // it quotes what came first
		}
		if a, b := fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", got); a != b {
			t.Errorf("%s:\nalone     %s\nwith junk %s", name, a, b)
		}
	}
}

// What tells a token is in no transcript.
func TestTheRecordedAnswerThatHoldsATokenIsConcealed(t *testing.T) {
	lines := recording(t, "476-status-secret")
	d, held := newDialogue(planOf(t, lines)), 0
	for _, line := range lines {
		if bytes.Contains(line, []byte("Bearer ")) {
			held++
			if !d.Conceal(line) {
				t.Errorf("not concealed: %.100s", line)
			}
		}
	}
	if held == 0 {
		t.Error("the recording holds no token")
	}
}

// read returns what comes in pieces as package run reads it.
func read(t testing.TB, pieces io.Reader) (all [][]byte) {
	t.Helper()
	const most = 4 << 20 // package run's
	for in := lines.NewReader(pieces, most); ; {
		line, dropped, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil || dropped {
			t.Fatalf("a line was dropped: %v, %v", dropped, err)
		}
		all = append(all, bytes.Clone(line))
	}
}

// chunks reads a text in random pieces.
type chunks struct {
	text   string
	random *rand.Rand
}

func (c *chunks) Read(p []byte) (int, error) {
	if c.text == "" {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), 1+c.random.IntN(300))], c.text)
	c.text = c.text[n:]
	return n, nil
}

func TestEveryRecordingIsInATest(t *testing.T) {
	source, err := os.ReadFile("replay_test.go")
	if err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob("testdata/*.jsonl")
	if len(files) != 66 {
		t.Errorf("%d recordings are here, want 66", len(files))
	}
	for _, file := range files {
		if name := strings.TrimSuffix(filepath.Base(file), ".jsonl"); !bytes.Contains(source, []byte(`"`+name+`"`)) {
			t.Errorf("%s is in no test", name)
		}
	}
}
