package codex

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nightporter/internal/agent"
	"nightporter/internal/proc"
)

// granted is a request with a gateway of the servers crm and kb.
func granted() agent.Request {
	return agent.Request{Prompt: "hello", Gateway: &agent.Gateway{RawName: func(exposed string, _ json.RawMessage) (string, string, bool) {
		return strings.Cut(exposed, "__")
	}}}
}

// tell gives lines to a dialogue and returns the events; aborted says whether it asked for an abort.
func tell(d agent.Dialogue, lines ...string) (events []agent.Event, aborted bool) {
	for _, line := range lines {
		for _, a := range d.Line([]byte(line)) {
			switch a := a.(type) {
			case agent.Emit:
				events = append(events, a.Event)
			case agent.Abort:
				aborted = true
			}
		}
	}
	return events, aborted
}

const (
	thread    = `{"type":"thread.started","thread_id":"019a0000-0000-7000-8000-000000000001"}`
	turn      = `{"type":"turn.started"}`
	completed = `{"type":"turn.completed","usage":{"input_tokens":30,"output_tokens":8}}`
)

func message(text string) string {
	return fmt.Sprintf(`{"type":"item.completed","item":{"id":"i","type":"agent_message","text":%q}}`, text)
}

func call(server, tool, status, failure string) string {
	if failure == "" {
		failure = "null"
	} else {
		failure = fmt.Sprintf(`{"message":%q}`, failure)
	}
	return fmt.Sprintf(`{"type":"item.completed","item":{"id":"i","type":"mcp_tool_call","server":%q,"tool":%q,"result":null,"error":%s,"status":%q}}`, server, tool, failure, status)
}

func code(r agent.Result) string {
	if r.Err == nil {
		return ""
	}
	return r.Err.Code
}

func TestThePromptIsWrittenAndTheInputClosed(t *testing.T) {
	actions := newDialogue(granted(), agent.Proof{Proven: true}, nil).Start()
	if len(actions) != 3 || actions[0].(agent.Emit).Event.Proof == nil || string(actions[1].(agent.Write).Data) != "hello" || actions[2] != (agent.CloseInput{}) {
		t.Errorf("actions %#v", actions)
	}
}

func TestAnErrorEventIsNoEnd(t *testing.T) {
	d := newDialogue(granted(), agent.Proof{}, nil)
	events, _ := tell(d, thread, turn, `{"type":"error","message":"Reconnecting... 1/5 (stream disconnected)"}`, message("answer"), completed)
	if r := d.End(proc.Exit{}, nil); r.Reply != "answer" {
		t.Errorf("result %+v", r)
	}
	if events[1].Kind != agent.EventRetry || !strings.HasPrefix(events[1].Activity, "Reconnecting") {
		t.Errorf("events %+v", events)
	}
}

func TestTheLastMessageBeforeAFailureIsNoReply(t *testing.T) {
	d := newDialogue(granted(), agent.Proof{}, nil)
	tell(d, thread, turn, message("half"), `{"type":"turn.failed","error":{"message":"it broke"}}`)
	if r := d.End(proc.Exit{Code: 1}, nil); code(r) != agent.CodeAgentError || r.Salvage != "half" || r.Reply != "" || !strings.Contains(r.Err.Message, "it broke") {
		t.Errorf("result %+v", r)
	}
}

func TestATurnThatBeganAgainIsNotOver(t *testing.T) {
	d := newDialogue(granted(), agent.Proof{}, nil)
	tell(d, thread, turn, message("one"), completed, turn)
	if r := d.End(proc.Exit{Code: -1, Signal: "killed"}, nil); code(r) != agent.CodeNoResult || r.Turns != 2 {
		t.Errorf("result %+v", r)
	}
}

func TestASuccessWithoutWordsIsAFailureOfItsOwn(t *testing.T) {
	for _, lines := range [][]string{{thread, turn, completed}, {thread, turn, message("one"), message(" \n"), completed}} {
		d := newDialogue(granted(), agent.Proof{}, nil)
		tell(d, lines...)
		if r := d.End(proc.Exit{}, nil); code(r) != agent.CodeEmptyReply {
			t.Errorf("%q: result %+v", lines, r)
		}
	}
}

func TestOutputThatIsNoResultIsNeverTheReply(t *testing.T) {
	d := newDialogue(granted(), agent.Proof{}, nil)
	tell(d, "Traceback: made up", "\xff\x00", `{"type":"unheard.of"}`, `[1]`, `{"type":"item.completed"}`, `{"type":7}`, "")
	r := d.End(proc.Exit{Code: 3}, []byte("boom\n"))
	if code(r) != agent.CodeNoResult || r.Skipped != 6 || !strings.Contains(r.Err.Message, "Traceback") {
		t.Errorf("result %+v", r)
	}
}

func TestRefusalsOfEveryVersionAreDenialsOfTheRealTool(t *testing.T) {
	d := newDialogue(granted(), agent.Proof{}, nil)
	tell(d, thread, turn)
	for i, words := range refusals {
		tell(d, call("nightporter", fmt.Sprintf("crm__tool%d", i), "failed", words))
	}
	tell(d,
		call("nightporter", "crm__tool0", "failed", refusals[0]), // again
		call("nightporter", "crm__broken", "failed", "tool call error: it said: "+refusals[0]),
		call("nightporter", "unmapped", "failed", refusals[0]),
		call("other", "crm__x", "failed", refusals[0]),
		`{"type":"item.completed","item":{"type":"command_execution","command":"rm","status":"declined"}}`,
		`{"type":"item.completed","item":{"type":"command_execution","command":"false","exit_code":1,"status":"failed"}}`,
		`{"type":"item.completed","item":{"type":"file_change","status":"declined"}}`,
		completed)
	want := []string{
		"mcp__crm__tool0", "mcp__crm__tool1", "mcp__crm__tool2", "mcp__crm__tool3", "mcp__crm__tool4", "mcp__crm__tool5",
		"mcp__nightporter__unmapped", "mcp__other__crm__x", "exec_command", "apply_patch",
	}
	if r := d.End(proc.Exit{}, nil); !slices.Equal(r.Denials, want) {
		t.Errorf("denials %q, want %q", r.Denials, want)
	}
}

func TestACallOfAServerThatWasNotPlannedEndsTheRun(t *testing.T) {
	for server, want := range map[string]bool{"nightporter": false, "allowed": false, "codex": false, "evil": true} {
		d := newDialogue(granted(), agent.Proof{Proven: true, Servers: []string{"allowed", "nightporter"}}, nil)
		_, aborted := tell(d, thread, turn, call(server, "x", "completed", ""), message("done"), completed)
		if r := d.End(proc.Exit{}, nil); aborted != want || (code(r) == agent.CodeBroken) != want || r.Proof.Proven == want {
			t.Errorf("%s: aborted %v, result %+v", server, aborted, r)
		}
		// A name that a model made up reaches nothing, and must not end the run.
		d = newDialogue(granted(), agent.Proof{}, nil)
		if _, aborted := tell(d, call(server, "x", "failed", "unknown server")); aborted {
			t.Errorf("%s: a call that failed ended the run", server)
		}
	}
}

func TestAnotherSessionThanTheOneAskedForEndsTheRun(t *testing.T) {
	q := granted()
	q.Resume = "019A0000-0000-7000-8000-000000000001"
	d := newDialogue(q, agent.Proof{}, nil)
	if _, aborted := tell(d, thread); aborted {
		t.Error("the same id in capitals is another session")
	}
	d = newDialogue(q, agent.Proof{}, nil)
	_, aborted := tell(d, strings.ReplaceAll(thread, "0001", "0002"), turn, message("x"), completed)
	if r := d.End(proc.Exit{}, nil); !aborted || code(r) != agent.CodeSessionMismatch || r.SessionID != "" || r.ResumeRejected {
		t.Errorf("aborted %v, result %+v", aborted, r)
	}
}

func TestOnlyTheExactWordsOfADeadSessionAreOne(t *testing.T) {
	const id = "019a0000-0000-7000-8000-000000000001"
	const dead = "Error: thread/resume: thread/resume failed: no rollout found for thread id " + id + " (code -32600)"
	for _, test := range []struct {
		name, resume, stderr string
		lines                []string
		exit                 proc.Exit
		want                 bool
	}{
		{"as it is", id, dead + "\n", nil, proc.Exit{Code: 1}, true},
		{"after a banner", id, "Reading additional input from stdin...\n" + dead + "\n", nil, proc.Exit{Code: 1}, true},
		{"no resume", "", dead, nil, proc.Exit{Code: 1}, false},
		{"another id", strings.ReplaceAll(id, "1", "2"), dead, nil, proc.Exit{Code: 1}, false},
		{"after output", id, dead, []string{thread}, proc.Exit{Code: 1}, false},
		{"after junk", id, dead, []string{"junk"}, proc.Exit{Code: 1}, false},
		{"another exit", id, dead, nil, proc.Exit{Code: 2}, false},
		{"by signal", id, dead, nil, proc.Exit{Code: -1, Signal: "killed"}, false},
		{"quoted", id, "x: " + dead, nil, proc.Exit{Code: 1}, false},
		{"not the last word", id, dead + "\nError: something else\n", nil, proc.Exit{Code: 1}, false},
		{"longer", id, dead + " and so on", nil, proc.Exit{Code: 1}, false},
	} {
		q := granted()
		q.Resume = test.resume
		d := newDialogue(q, agent.Proof{}, nil)
		tell(d, test.lines...)
		if r := d.End(test.exit, []byte(test.stderr)); r.ResumeRejected != test.want || r.Err == nil || (r.Err.Code == agent.CodeResumeRejected) != test.want {
			t.Errorf("%s: result %+v", test.name, r)
		}
	}
}

func TestALineThatWasDroppedMayHaveBeenTheResult(t *testing.T) {
	long := strings.Repeat("x", 1000)
	for _, test := range []struct {
		name, head string
		after      []string
		want       string
	}{
		{"result of a tool", `{"type":"item.completed","item":{"id":"item_1","type":"mcp_tool_call","server":"` + long, []string{message("answer"), completed}, ""},
		{"message", `{"type":"item.completed","item":{"id":"item_1","type":"agent_message","text":"` + long, []string{completed}, agent.CodeResultTooLong},
		{"message, then another", `{"type":"item.completed","item":{"id":"item_1","type":"agent_message","text":"` + long, []string{message("answer"), completed}, ""},
		{"end of a turn", `{"type":"turn.completed","x":"` + long, []string{message("answer")}, agent.CodeResultTooLong},
		{"unknown", long, []string{message("answer"), completed}, agent.CodeResultTooLong},
		{"types behind the text", `{"item":{"text":"` + long, []string{message("answer"), completed}, agent.CodeResultTooLong},
		{"a type in the text", `{"type":"item.completed","item":{"arguments":{"type":"mcp_tool_call"},"text":"` + long, []string{message("answer"), completed}, agent.CodeResultTooLong},
		{"nothing", ``, []string{message("answer"), completed}, agent.CodeResultTooLong},
	} {
		d := newDialogue(granted(), agent.Proof{}, nil)
		tell(d, thread, turn)
		d.Dropped([]byte(test.head))
		tell(d, test.after...)
		if r := d.End(proc.Exit{}, nil); code(r) != test.want {
			t.Errorf("%s: result %+v, want code %q", test.name, r, test.want)
		}
	}
}

func TestFailuresOfTheModelHaveTheirCodes(t *testing.T) {
	for message, want := range map[string]string{
		"unexpected status 401 Unauthorized: no, url: http://127.0.0.1/v1":            agent.CodeAuth,
		"unexpected status 403 Forbidden: no":                                         agent.CodeAuth,
		"Missing environment variable: `KEY`.":                                        agent.CodeAuth,
		"exceeded retry limit, last status: 401 Unauthorized":                         agent.CodeAuth,
		"exceeded retry limit, last status: 429 Too Many Requests":                    agent.CodeModelAPI,
		"unexpected status 503 Service Unavailable: no":                               agent.CodeModelAPI,
		"We’re currently experiencing high demand, which may cause temporary errors.": agent.CodeModelAPI,
		"stream disconnected before completion: x":                                    agent.CodeModelAPI,
		`{"error": {"message": "bad thing"}}`:                                         agent.CodeModelAPI,
		"Codex ran out of room in the model's context window. Start a new thread":     agent.CodePromptTooLong,
		"Input exceeds the maximum length of 1048576 characters.":                     agent.CodePromptTooLong,
		"something else":                       agent.CodeAgentError,
		"":                                     agent.CodeAgentError,
		"the tool said: unexpected status 500": agent.CodeAgentError,
	} {
		d := newDialogue(granted(), agent.Proof{}, nil)
		tell(d, thread, turn, fmt.Sprintf(`{"type":"turn.failed","error":{"message":%q}}`, message))
		if r := d.End(proc.Exit{Code: 1}, nil); code(r) != want {
			t.Errorf("%q: code %q, want %q", message, code(r), want)
		}
	}
}

func TestARefusedKeyWhileReconnectingEndsTheRun(t *testing.T) {
	for message, want := range map[string]bool{
		"Reconnecting... 1/5 (unexpected status 401 Unauthorized: no)": true,
		"Reconnecting... 1/5 (unexpected status 500: no)":              false,
		"the model wrote: unexpected status 401":                       false,
	} {
		d := newDialogue(granted(), agent.Proof{}, nil)
		_, aborted := tell(d, thread, turn, fmt.Sprintf(`{"type":"error","message":%q}`, message))
		if r := d.End(proc.Exit{Code: -1, Signal: "killed"}, nil); aborted != want || (code(r) == agent.CodeAuth) != want || r.SessionID == "" {
			t.Errorf("%q: aborted %v, result %+v", message, aborted, r)
		}
	}
}

func TestUsageIsTheSessionsLessWhatWasBefore(t *testing.T) {
	q := granted()
	q.Before = agent.Usage{InputTokens: 20, OutputTokens: 9}
	for resume, want := range map[string]agent.Usage{"": {InputTokens: 30, OutputTokens: 8}, "019a0000-0000-7000-8000-000000000001": {InputTokens: 10}} {
		q.Resume = resume
		d := newDialogue(q, agent.Proof{}, nil)
		tell(d, thread, turn, message("x"), completed)
		if r := d.End(proc.Exit{}, nil); r.Usage != want || r.Totals != (agent.Usage{InputTokens: 30, OutputTokens: 8}) {
			t.Errorf("resume %q: usage %+v, totals %+v, want %+v", resume, r.Usage, r.Totals, want)
		}
		d = newDialogue(q, agent.Proof{}, nil)
		tell(d, thread, turn)
		if r := d.End(proc.Exit{Code: 1}, nil); r.Usage != (agent.Usage{}) || resume != "" && r.Totals != q.Before {
			t.Errorf("resume %q, without an end: usage %+v, totals %+v", resume, r.Usage, r.Totals)
		}
	}
}

// No input makes the dialogue panic, take junk for a reply, or keep the line.
func FuzzDialogue(f *testing.F) {
	for _, r := range recordings {
		data, err := os.ReadFile(filepath.Join("testdata", "recordings", r.name+".txtar"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, false)
	}
	f.Add([]byte(thread+"\n"+turn+"\n"+message("x")+"\n"+completed), true)
	f.Add([]byte(`{"type":"item.completed","item":{"type":"agent_message","text":["`), true)
	f.Fuzz(func(t *testing.T, data []byte, drop bool) {
		q := granted()
		if drop {
			q.Resume = "019a0000-0000-7000-8000-000000000001"
		}
		d := newDialogue(q, agent.Proof{}, map[string]bool{"exec_command": true})
		d.Start()
		for line := range bytes.Lines(data) {
			line = bytes.TrimSuffix(bytes.Clone(line), []byte("\n"))
			if drop && len(line) > 200 {
				d.Dropped(line[:100])
			}
			d.Line(line)
			clear(line)
		}
		r := d.End(proc.Exit{}, data)
		if (r.Reply != "") != (r.Err == nil) {
			t.Errorf("reply %q and error %v", r.Reply, r.Err)
		}
		if r.Err != nil && (r.Err.Code == "" || r.Err.Message == "") {
			t.Errorf("an error that says nothing: %+v", r.Err)
		}
		if r.Err == nil && !bytes.Contains(data, []byte("turn.completed")) && !bytes.Contains(data, []byte(`\u`)) {
			t.Errorf("reply %q without turn.completed", r.Reply)
		}
	})
}

// A tool that calls others by name is told of as the one that it called.
func TestAToolThatStandsForOthersIsToldOfByTheirNames(t *testing.T) {
	r := granted()
	r.Gateway.RawName = func(exposed string, arguments json.RawMessage) (string, string, bool) {
		var called struct{ Name string }
		if json.Unmarshal(arguments, &called) == nil && called.Name != "" {
			return strings.Cut(called.Name, "__")
		}
		return "nightporter", exposed, true
	}
	d := newDialogue(r, agent.Proof{}, nil)
	events, _ := tell(
		d, thread, turn,
		`{"type":"item.started","item":{"id":"i","type":"mcp_tool_call","server":"nightporter","tool":"call","arguments":{"name":"crm__find"},"status":"in_progress"}}`,
		`{"type":"item.completed","item":{"id":"i","type":"mcp_tool_call","server":"nightporter","tool":"call","arguments":{"name":"crm__find"},"error":{"message":"user cancelled MCP tool call"},"status":"failed"}}`,
		message("done"), completed,
	)
	var kinds []string
	for _, e := range events {
		if e.Tool != "" {
			kinds = append(kinds, string(e.Kind)+" "+e.Tool)
		}
	}
	if want := []string{"tool mcp__crm__find", "denied mcp__crm__find"}; !slices.Equal(kinds, want) {
		t.Errorf("events %q, want %q", kinds, want)
	}
	if got := d.End(proc.Exit{}, nil).Denials; !slices.Equal(got, []string{"mcp__crm__find"}) {
		t.Errorf("denials %q", got)
	}
}
