package demo

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"nightporter/internal/agent"
	"nightporter/internal/mcp/wire"
	"nightporter/internal/proc"
	"nightporter/internal/secret"
)

func request() agent.Request {
	return agent.Request{
		Argv: Adapter{}.DefaultArgv(), Program: "/opt/nightporter", Env: []string{"HOME=/h", urlVariable + "=http://elsewhere"}, Prompt: "clock__now",
		Gateway: &agent.Gateway{
			URL: "http://127.0.0.1:1/mcp", Token: secret.New("made-up-token"), Tools: []string{"clock__now"},
			RawName: func(exposed string, _ json.RawMessage) (string, string, bool) {
				return "clock", "now", exposed == "clock__now"
			},
		},
	}
}

func line(t *testing.T, d agent.Dialogue, e event) []agent.Action {
	t.Helper()
	data, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return d.Line(data)
}

func TestTheProgramGetsTheRunsGatewayAndNoOther(t *testing.T) {
	launch, err := Adapter{}.Prepare(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"HOME=/h", urlVariable + "=http://127.0.0.1:1/mcp", tokenVariable + "=made-up-token"}; !slices.Equal(launch.Env, want) {
		t.Errorf("its environment is %q, want %q", launch.Env, want)
	}
	if want := []string{"/opt/nightporter", Command}; !slices.Equal(launch.Argv, want) {
		t.Errorf("its command is %q, want %q", launch.Argv, want)
	}
	r := request()
	r.Gateway = nil
	if launch, err = (Adapter{}).Prepare(t.Context(), r); err != nil || !slices.Equal(launch.Env, []string{"HOME=/h"}) {
		t.Errorf("without a gateway its environment is %q, %v", launch.Env, err)
	}
}

func TestCommandsThatAreNotTheAgentAreRefused(t *testing.T) {
	for _, argv := range [][]string{nil, {"nightporter"}, {"nightporter", "run"}, {"cat", Command}, {"nightporter", Command, "more"}} {
		if err := (Adapter{}).Check(argv, agent.Granted); err == nil {
			t.Errorf("%q was accepted", argv)
		}
	}
	for _, argv := range [][]string{{"nightporter", Command}, {"/opt/bin/nightporter", Command}, Adapter{}.DefaultArgv()} {
		if err := (Adapter{}).Check(argv, agent.Granted); err != nil {
			t.Errorf("%q: %v", argv, err)
		}
	}
}

func TestThePromptIsGivenOnlyAfterTheProof(t *testing.T) {
	d := newDialogue(request())
	if actions := d.Start(); len(actions) > 0 {
		t.Errorf("at the start: %v", actions)
	}
	if actions := line(t, d, event{Type: typeReply, Text: "early"}); len(actions) > 0 {
		t.Errorf("at a reply before the proof: %v", actions)
	}
	actions := line(t, d, event{Type: typeReaches, Servers: []string{"nightporter"}, Tools: []string{"clock__now"}})
	want := []string{"agent.Emit", "agent.Write", "agent.CloseInput"}
	var got []string
	for _, a := range actions {
		got = append(got, reflect.TypeOf(a).String())
	}
	if !slices.Equal(got, want) {
		t.Fatalf("after the proof: %v, want %v", got, want)
	}
	if e := actions[0].(agent.Emit).Event; e.Kind != agent.EventProven || !e.Proof.Proven {
		t.Errorf("the proof is %+v", e)
	}
	if e := line(t, d, event{Type: typeCall, Tool: "clock__now"})[0].(agent.Emit).Event; e.Tool != "mcp__clock__now" {
		t.Errorf("the tool's name is %s", e.Tool)
	}
	line(t, d, event{Type: typeReply, Text: "noon"})
	if r := d.End(proc.Exit{}, nil); r.Reply != "noon" || r.Err != nil || !r.Proof.Proven || r.Skipped != 1 {
		t.Errorf("the result is %+v", r)
	}
}

func TestAnAgentThatReachesSomethingElseGetsNoPrompt(t *testing.T) {
	for name, e := range map[string]event{
		"another server":  {Type: typeReaches, Servers: []string{"nightporter", "own"}, Tools: []string{"clock__now"}},
		"another tool":    {Type: typeReaches, Servers: []string{"nightporter"}, Tools: []string{"clock__now", "shell"}},
		"a tool too few":  {Type: typeReaches, Servers: []string{"nightporter"}},
		"nothing at all":  {Type: typeReaches},
		"no gateway's":    {Type: typeReaches, Servers: []string{"own"}, Tools: []string{"clock__now"}},
		"twice the tools": {Type: typeReaches, Servers: []string{"nightporter"}, Tools: []string{"clock__now", "clock__now"}},
	} {
		d := newDialogue(request())
		if actions := line(t, d, e); !reflect.DeepEqual(actions, []agent.Action{agent.Abort{Now: true}}) {
			t.Errorf("%s: %v", name, actions)
		}
		// What it says now counts for nothing.
		line(t, d, event{Type: typeReply, Text: "done"})
		if r := d.End(proc.Exit{}, nil); r.Err == nil || r.Err.Code != agent.CodeBoundary || r.Reply != "" || r.Proof.Proven {
			t.Errorf("%s: the result is %+v", name, r)
		}
	}
}

func TestTheEndOfTheProgramIsTold(t *testing.T) {
	proof := event{Type: typeReaches, Servers: []string{"nightporter"}, Tools: []string{"clock__now"}}
	for _, test := range []struct {
		name   string
		lines  []event
		stop   bool
		exit   proc.Exit
		code   string
		saying string
	}{
		{"silent", nil, false, proc.Exit{Code: 1}, agent.CodeBoundary, "it said: no such thing"},
		{"stopped before the proof", nil, true, proc.Exit{Signal: "killed"}, agent.CodeNoResult, "stopped"},
		{"failed", []event{proof}, false, proc.Exit{Code: 1}, agent.CodeAgentError, "exit status 1; it said: no such thing"},
		{"failed after its reply", []event{proof, {Type: typeReply, Text: "x"}}, false, proc.Exit{Signal: "killed"}, agent.CodeAgentError, "killed"},
		{"without a reply", []event{proof}, false, proc.Exit{}, agent.CodeNoResult, "without a reply"},
		{"empty", []event{proof, {Type: typeReply}}, false, proc.Exit{}, agent.CodeEmptyReply, "no calls"},
	} {
		d := newDialogue(request())
		for _, e := range test.lines {
			line(t, d, e)
		}
		if test.stop {
			d.Stop()
		}
		r := d.End(test.exit, []byte("no such thing\n"))
		if r.Err == nil || r.Err.Code != test.code || !strings.Contains(r.Err.Message, test.saying) || r.Reply != "" {
			t.Errorf("%s: %+v, want %s with %q", test.name, r.Err, test.code, test.saying)
		}
	}
}

func TestAskedForAProofAloneItIsGivenNoPrompt(t *testing.T) {
	r := request()
	r.ProveOnly = true
	d := newDialogue(r)
	for _, a := range line(t, d, event{Type: typeReaches, Servers: []string{"nightporter"}, Tools: []string{"clock__now"}}) {
		if _, wrote := a.(agent.Write); wrote {
			t.Error("the prompt was given")
		}
	}
	if r := d.End(proc.Exit{}, nil); r.Err != nil || !r.Proof.Proven || r.Turns != 0 {
		t.Errorf("the result is %+v", r)
	}
}

// TestTheClientReadsBothFormsOfAnAnswer is for servers that answer in an event stream: ours do so when something is said
// before the answer.
func TestTheClientReadsBothFormsOfAnAnswer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body json.RawMessage
		_ = json.NewDecoder(r.Body).Decode(&body)
		m, err := wire.Parse(body)
		switch {
		case err != nil || r.Header.Get("Authorization") != "Bearer made-up-token":
			w.WriteHeader(http.StatusUnauthorized)
		case m.Method == wire.Initialize:
			w.Header().Set("Mcp-Session-Id", "s1")
			w.Header().Set("Content-Type", "application/json; charset=utf-8")
			answer := wire.Message{ID: m.ID, Result: json.RawMessage(`{"protocolVersion":"2025-11-25"}`)}
			_, _ = w.Write(answer.Append(nil))
		case r.Header.Get("Mcp-Session-Id") != "s1":
			w.WriteHeader(http.StatusNotFound)
		case m.IsNotification():
			w.WriteHeader(http.StatusAccepted)
		case m.Method == wire.ToolsList:
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = w.Write([]byte("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\"}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"tools\":[{\"name\":\"b\"},{\"name\":\"a\"}]}}\n\n"))
		default:
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = w.Write([]byte("data: {\"jsonrpc\":\"2.0\",\"id\":99,\"result\":{}}\n\n"))
		}
	}))
	defer server.Close()
	c := &client{url: server.URL, token: "made-up-token"}
	if err := c.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if tools, err := c.tools(t.Context()); err != nil || !slices.Equal(tools, []string{"a", "b"}) {
		t.Errorf("tools %v, %v", tools, err)
	}
	if said := c.use(t.Context(), call{"a", json.RawMessage("{}")}); !strings.HasPrefix(said, "error: the stream ended before the answer") {
		t.Errorf("a call that is not answered says %q", said)
	}
	wrong := &client{url: server.URL, token: "other"}
	if err := wrong.open(t.Context()); err == nil || !strings.Contains(err.Error(), "401") || strings.Contains(err.Error(), "other") {
		t.Errorf("with a wrong token: %v", err)
	}
}

func TestWithoutAGatewayTheAgentReachesNothing(t *testing.T) {
	var out strings.Builder
	if err := Main(context.Background(), nil, strings.NewReader("\nclock__now\n"), &out); err != nil {
		t.Fatal(err)
	}
	want := `{"type":"reaches"}
{"type":"call","tool":"clock__now"}
{"type":"said","text":"clock__now: error: there is no server"}
{"type":"reply","text":"clock__now: error: there is no server"}
`
	if out.String() != want {
		t.Errorf("it printed %s, want %s", out.String(), want)
	}
}

func FuzzPrompt(f *testing.F) {
	for _, seed := range []string{"", "clock__now", "a {}\n\n b {\"x\": [1]}", "a [", "a {} {}", "\x00 \xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, prompt string) {
		calls, err := parse(prompt)
		for _, call := range calls {
			if err != nil || call.tool == "" || strings.ContainsAny(call.tool, " \n") || !json.Valid(call.args) {
				t.Errorf("%q gives %q with %s, %v", prompt, call.tool, call.args, err)
			}
		}
	})
}

func FuzzDialogue(f *testing.F) {
	f.Add([]byte(`{"type":"reaches","servers":["nightporter"],"tools":["clock__now"]}`), []byte(`{"type":"reply","text":"x"}`))
	f.Add([]byte(`{"type":"reaches"}`), []byte(`null`))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		d := newDialogue(request())
		d.Line(first)
		d.Line(second)
		if r := d.End(proc.Exit{}, nil); r.Reply != "" && (r.Err != nil || !r.Proof.Proven) {
			t.Errorf("%q, %q: a reply without a proof: %+v", first, second, r)
		}
	})
}
