package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"nightporter/internal/mcp/gateway"
	"nightporter/internal/mcp/wire"
	"nightporter/test/lab"
)

// opened opens a session of a client and returns its header.
func (h *house) opened(url, client, capabilities string) map[string]string {
	h.t.Helper()
	_, body, header := h.post(url, `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":`+capabilities+
		`,"clientInfo":{"name":"`+client+`","version":"1"}}}`, map[string]string{"Accept": "application/json, text/event-stream"})
	id := header.Get("Mcp-Session-Id")
	if id == "" {
		h.t.Fatalf("no session: %s", body)
	}
	return map[string]string{"Mcp-Session-Id": id}
}

// ask sends a request of a session and returns its result or error: the frame.
func (h *house) ask(url string, session map[string]string, method, params string) json.RawMessage {
	h.t.Helper()
	_, body, _ := h.post(url, `{"jsonrpc":"2.0","id":"q","method":"`+method+`","params":`+params+`}`, session)
	return answerIn(body)
}

// answerIn finds the answer in a body, which may be a stream.
func answerIn(body string) json.RawMessage {
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(strings.TrimPrefix(line, "data:"))
		if m, err := wire.Parse([]byte(line)); err == nil && m.IsResponse() {
			return json.RawMessage(line)
		}
	}
	return nil
}

// askModern is ask of a stateless client.
func (h *house) askModern(url, client, method, name, params string) json.RawMessage {
	h.t.Helper()
	with := wire.WithClient(json.RawMessage(params), wire.Client{
		Capabilities: json.RawMessage(`{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}`),
		Info:         json.RawMessage(`{"name":"` + client + `","version":"1"}`),
	})
	_, body, _ := h.post(url, `{"jsonrpc":"2.0","id":"q","method":"`+method+`","params":`+string(with)+`}`, modern(method, name))
	return answerIn(body)
}

func (h *house) want(got json.RawMessage, want string, path ...string) {
	h.t.Helper()
	if text, _ := wire.GetString(got, path...); text != want {
		h.t.Errorf("%s at %s, want %q", got, strings.Join(path, "."), want)
	}
}

func tasker(name string, era lab.Era) lab.Config {
	return lab.Config{Name: name, Era: era, Tasks: true, Tools: []json.RawMessage{
		lab.TaskTool("slow_compute", "optional"), lab.TaskTool("failing_job", "required"), lab.TaskTool("confirm_delete", "required"), lab.TaskTool("greet", "optional"),
	}}
}

// Two servers with tasks of equal ids, and one without tasks, behind one endpoint.
func TestTasksOfSeveralServersAreToldApart(t *testing.T) {
	h := newHouse(t, tasker("a", lab.Legacy), tasker("b", lab.Legacy), tasker("m", lab.Modern), tasker("n", lab.Modern),
		lab.Config{Name: "none", Tools: []json.RawMessage{lab.TaskTool("greet", "optional")}})
	_, url := h.endpoint(gateway.Profile{})
	session := h.opened(url, "x", "{}")
	listed := string(h.ask(url, session, wire.ToolsList, "{}"))
	for _, want := range []string{`"name":"none__greet"`, `"taskSupport":"forbidden"`, `"taskSupport":"required"`} {
		if !strings.Contains(listed, want) {
			t.Errorf("%s is not in %s", want, listed)
		}
	}
	for _, server := range []string{"a", "b"} {
		made := h.ask(url, session, wire.ToolsCall, `{"name":"`+server+`__greet","arguments":{"name":"of `+server+`"},"task":{"ttl":60000}}`)
		h.want(made, server+"/task-1", "result", "task", "taskId")
	}
	for _, server := range []string{"b", "a"} {
		of := `{"taskId":"` + server + `/task-1"}`
		result := h.ask(url, session, wire.TasksResult, of)
		if text := string(result); !strings.Contains(text, "Hello, of "+server) {
			t.Errorf("result of %s: %s", server, text)
		}
		h.want(result, server+"/task-1", "result", "_meta", wire.MetaTask, "taskId")
		h.want(h.ask(url, session, wire.TasksGet, of), "completed", "result", "status")
	}
	if got := string(h.ask(url, session, wire.TasksList, "{}")); strings.Count(got, `"taskId"`) != 2 || !strings.Contains(got, "a/task-1") || !strings.Contains(got, "b/task-1") {
		t.Errorf("list %s", got)
	}
	for _, server := range []string{"m", "n"} {
		made := h.askModern(url, "x", wire.ToolsCall, server+"__greet", `{"name":"`+server+`__greet","arguments":{"name":"of `+server+`"}}`)
		h.want(made, server+"/task-1", "result", "taskId")
	}
	for _, server := range []string{"m", "n"} {
		for { // until it has ended: the server says when to ask again
			got := h.askModern(url, "x", wire.TasksGet, server+"/task-1", `{"taskId":"`+server+`/task-1"}`)
			status, _ := wire.GetString(got, "result", "status")
			if status == "working" && h.ctx.Err() == nil {
				continue
			}
			if !strings.Contains(string(got), "Hello, of "+server) {
				t.Errorf("task of %s: %s", server, got)
			}
			h.want(got, server+"/task-1", "result", "taskId")
			break
		}
	}
	// What one era has made is nothing that the other can read.
	if got := string(h.ask(url, session, wire.TasksGet, `{"taskId":"m/task-1"}`)); !strings.Contains(got, "-32602") {
		t.Errorf("across the eras: %s", got)
	}
}

func TestTasksAreTheirClientsAloneAndOutliveItsSession(t *testing.T) {
	h := newHouse(t, tasker("s", lab.Legacy))
	e, url := h.endpoint(gateway.Profile{Single: "s"})
	first := h.opened(url, "x", "{}")
	h.want(h.ask(url, first, wire.ToolsCall, `{"name":"slow_compute","arguments":{"seconds":600},"task":{}}`), "task-1", "result", "task", "taskId")
	other := h.opened(url, "y", "{}")
	for method, params := range map[string]string{wire.TasksGet: `{"taskId":"task-1"}`, wire.TasksResult: `{"taskId":"task-1"}`, wire.TasksCancel: `{"taskId":"task-1"}`} {
		if got := string(h.ask(url, other, method, params)); !strings.Contains(got, "-32602") {
			t.Errorf("%s of another client: %s", method, got)
		}
	}
	if got := string(h.ask(url, other, wire.TasksList, `{}`)); strings.Contains(got, "task-1") {
		t.Errorf("another client's list: %s", got)
	}
	r, _ := http.NewRequestWithContext(h.ctx, http.MethodDelete, url, nil)
	r.Header.Set("Mcp-Session-Id", first["Mcp-Session-Id"])
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	again := h.opened(url, "x", "{}")
	h.want(h.ask(url, again, wire.TasksGet, `{"taskId":"task-1"}`), "working", "result", "status")
	if got := string(h.ask(url, again, wire.TasksList, `{}`)); !strings.Contains(got, "task-1") {
		t.Errorf("the list of who came back: %s", got)
	}
	// With its last task the server goes, too.
	h.want(h.ask(url, again, wire.TasksCancel, `{"taskId":"task-1"}`), "cancelled", "result", "status")
	if _, err := h.recorder.Wait(h.ctx, lab.Happened("gone")); err != nil {
		t.Error(err)
	}
	_ = e
}

func TestServersWithTasksOfClientsThatAreGoneEndWithTheEndpoint(t *testing.T) {
	h := newHouse(t, tasker("s", lab.Legacy))
	e, url := h.endpoint(gateway.Profile{})
	session := h.opened(url, "x", "{}")
	h.want(h.ask(url, session, wire.ToolsCall, `{"name":"s__slow_compute","arguments":{"seconds":600},"task":{}}`), "s/task-1", "result", "task", "taskId")
	r, _ := http.NewRequestWithContext(h.ctx, http.MethodDelete, url, nil)
	r.Header.Set("Mcp-Session-Id", session["Mcp-Session-Id"])
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	e.Close(h.ctx)
	if _, err := h.recorder.Wait(h.ctx, lab.Happened("gone")); err != nil {
		t.Error(err)
	}
}

// A stateless client cannot ask for a task of a server of the session era: a tool that is one or nothing is called for it so.
func TestToolsThatMustBeTasksCanBeCalledByStatelessClients(t *testing.T) {
	h := newHouse(t, tasker("s", lab.Legacy))
	_, url := h.endpoint(gateway.Profile{})
	got := h.askModern(url, "x", wire.ToolsCall, "s__failing_job", `{"name":"s__failing_job","arguments":{}}`)
	if text := string(got); !strings.Contains(text, "deliberate failure") || strings.Contains(text, "task-1") {
		t.Errorf("got %s", text)
	}
	first := h.askModern(url, "x", wire.ToolsCall, "s__confirm_delete", `{"name":"s__confirm_delete","arguments":{}}`)
	h.want(first, "input_required", "result", "resultType")
	members, _ := wire.Members(wire.Get(first, "result", "inputRequests"))
	if len(members) != 1 {
		t.Fatalf("%s", first)
	}
	state := wire.Get(first, "result", "requestState")
	params := fmt.Sprintf(`{"name":"s__confirm_delete","arguments":{},"requestState":%s,"inputResponses":{%s:{"action":"accept","content":{"name":"Ada"}}}}`, state, wire.Quote(members[0].Key))
	if got := string(h.askModern(url, "x", wire.ToolsCall, "s__confirm_delete", params)); !strings.Contains(got, "Ada") {
		t.Errorf("with the answer: %s", got)
	}
	// Tasks are not offered to it, as it could not use them.
	if about := h.askModern(url, "x", wire.Discover, "", `{}`); wire.Get(about, "result", "capabilities", "tasks") != nil || wire.Get(about, "result", "capabilities", "extensions", wire.ExtensionTasks) != nil {
		t.Errorf("offered: %s", about)
	}
	session := h.opened(url, "x", "{}")
	if got := string(h.ask(url, session, wire.ToolsCall, `{"name":"s__failing_job","arguments":{}}`)); !strings.Contains(got, "-32601") {
		t.Errorf("a session that does not ask for a task: %s", got)
	}
}

// Over stdio: status, progress and questions of a task come while no call is in flight.
func TestWhatATaskSaysReachesItsClient(t *testing.T) {
	h := newHouse(t, tasker("s", lab.Legacy))
	w := h.dial(gateway.Profile{}, false)
	w.say(initialize)
	w.hear(`"protocolVersion"`)
	w.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"s__slow_compute","arguments":{"seconds":0.5,"progress":"50ms"},"task":{},"_meta":{"progressToken":"mine"}}}`)
	w.hear(`"taskId":"s/task-1"`)
	if got := w.hear(wire.Progress); !strings.Contains(got, `"progressToken":"mine"`) || !strings.Contains(got, `"taskId":"s/task-1"`) {
		t.Errorf("progress: %s", got)
	}
	if got := w.hear(wire.TaskStatus); !strings.Contains(got, `"taskId":"s/task-1"`) || !strings.Contains(got, "completed") {
		t.Errorf("status: %s", got)
	}
	w.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"s__confirm_delete","arguments":{},"task":{}}}`)
	question := w.hear(wire.ElicitCreate)
	if !strings.Contains(question, `"taskId":"s/task-2"`) {
		t.Errorf("question: %s", question)
	}
	w.say(`{"jsonrpc":"2.0","id":3,"method":"tasks/result","params":{"taskId":"s/task-2"}}`,
		fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{"name":"Ada"}}}`, wire.Get([]byte(question), "id")))
	if got := w.hear(`"id":3`); !strings.Contains(got, "Ada") {
		t.Errorf("result: %s", got)
	}
}

// Each client is of an endpoint of its own, as with a token of its own.
func TestWhatASharedServerSaysOfATaskReachesItsClientAlone(t *testing.T) {
	h := newHouse(t)
	c := tasker("s", lab.Legacy)
	h.configure(fmt.Sprintf("[mcp_servers.s]\ncommand = %q\nargs = [%s]\nshared = true\n", lab.Binary(t), wire.Quote(c.Arg())))
	dir := t.TempDir()
	var clients []*wires
	for range 2 {
		w := h.dial(gateway.Profile{Dir: dir}, false)
		w.say(initialize)
		w.hear(`"protocolVersion"`)
		w.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"s__greet","arguments":{"name":"Ada"}}}`)
		w.hear("Ada")
		clients = append(clients, w)
	}
	for i, w := range clients {
		id := fmt.Sprintf("s/task-%d", i+1) // which says that both have one server
		w.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"s__slow_compute","arguments":{"seconds":0.5},"task":{}}}`)
		if got := w.hear(`"taskId"`); !strings.Contains(got, `"id":2`) || !strings.Contains(got, id) {
			t.Errorf("client %d heard first of a task: %s", i+1, got)
		}
		if got := w.hear(wire.TaskStatus); !strings.Contains(got, id) {
			t.Errorf("client %d: %s", i+1, got)
		}
	}
}

// Each client has a server of its own, and those give their tasks equal ids.
func TestWhatServersSayOfTasksOfEqualIDsReachesEachClient(t *testing.T) {
	h := newHouse(t, tasker("s", lab.Legacy))
	_, url := h.endpoint(gateway.Profile{})
	var streams []textLines
	var sessions []map[string]string
	for _, name := range []string{"x", "y"} {
		session := h.opened(url, name, "{}")
		r, _ := http.NewRequestWithContext(h.ctx, http.MethodGet, url, nil)
		r.Header.Set("Mcp-Session-Id", session["Mcp-Session-Id"])
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		sessions, streams = append(sessions, session), append(streams, newLines(response.Body))
	}
	for i, session := range sessions {
		h.want(h.ask(url, session, wire.ToolsCall, `{"name":"s__slow_compute","arguments":{"seconds":0.5},"task":{}}`), "s/task-1", "result", "task", "taskId")
		if got := streams[i].next(wire.TaskStatus); !strings.Contains(got, "s/task-1") {
			t.Errorf("client %d: %s", i+1, got)
		}
	}
}

// Two servers, each of which has asked the client for something that the client does as a task of its own.
func TestTasksOfClientsAreTheirServersAlone(t *testing.T) {
	h := newHouse(t)
	answers := make(chan string, 8)
	h.scripted(func(say func(string), heard <-chan wire.Message) {
		say(`{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"m","task":{"ttl":1000}}}`)
		hear := func() {
			select {
			case m := <-heard:
				answers <- string(m.Result) + string(m.Error)
			case <-h.ctx.Done():
			}
		}
		hear()
		say(`{"jsonrpc":"2.0","id":"r","method":"tasks/get","params":{"taskId":"mine-1"}}`)
		hear()
		say(`{"jsonrpc":"2.0","id":"s","method":"tasks/get","params":{"taskId":"of another"}}`)
		hear()
		say(`{"jsonrpc":"2.0","id":"t","method":"tasks/list"}`)
		hear()
	}, func(wire.Message) {})
	w := h.dial(gateway.Profile{Single: "s"}, false)
	w.say(initialize)
	w.hear(`"protocolVersion"`)
	w.say(callOf("1", "t", ""))
	reply := func(method, result string) {
		t.Helper()
		question := w.hear(method)
		w.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, wire.Get([]byte(question), "id"), result))
	}
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-answers:
			if !strings.Contains(got, want) {
				t.Errorf("the server heard %s, want %s", got, want)
			}
		case <-h.ctx.Done():
			t.Fatal("the server heard nothing")
		}
	}
	reply(wire.ElicitCreate, `{"task":{"taskId":"mine-1","status":"working"}}`)
	expect("mine-1")
	reply(wire.TasksGet, `{"taskId":"mine-1","status":"working"}`)
	expect(`"working"`)
	expect("-32602")
	reply(wire.TasksList, `{"tasks":[{"taskId":"mine-1"},{"taskId":"of another"}]}`)
	expect(`{"tasks":[{"taskId":"mine-1"}]}`)
}

// textLines are those of a stream.
type textLines struct{ in *bufio.Scanner }

func newLines(r io.Reader) textLines { return textLines{bufio.NewScanner(r)} }

// next is the next line with a text in it; empty at the end.
func (l textLines) next(with string) string {
	for l.in.Scan() {
		if strings.Contains(l.in.Text(), with) {
			return l.in.Text()
		}
	}
	return ""
}

func TestStatelessClientsHearOfTheirTasksByListening(t *testing.T) {
	h := newHouse(t, tasker("s", lab.Modern))
	_, url := h.endpoint(gateway.Profile{})
	made := h.askModern(url, "x", wire.ToolsCall, "s__confirm_delete", `{"name":"s__confirm_delete","arguments":{}}`)
	h.want(made, "s/task-1", "result", "taskId")
	params := wire.WithClient(json.RawMessage(`{"notifications":{"taskIds":["s/task-1","s/none"]}}`), wire.Client{
		Capabilities: json.RawMessage(`{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}`), Info: json.RawMessage(`{"name":"x","version":"1"}`),
	})
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":`+string(params)+`}`))
	r.Header.Set("Content-Type", "application/json")
	for key, value := range modern(wire.Listen, "") {
		r.Header.Set(key, value)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	stream := newLines(response.Body)
	if got := stream.next("acknowledged"); !strings.Contains(got, `"taskIds":["s/task-1"]`) {
		t.Errorf("acknowledged %s", got)
	}
	var key string
	for key == "" {
		got := h.askModern(url, "x", wire.TasksGet, "s/task-1", `{"taskId":"s/task-1"}`)
		members, _ := wire.Members(wire.Get(got, "result", "inputRequests"))
		if len(members) > 0 {
			key = members[0].Key
		}
		if h.ctx.Err() != nil {
			t.Fatal(h.ctx.Err())
		}
	}
	h.askModern(url, "x", wire.TasksUpdate, "s/task-1", `{"taskId":"s/task-1","inputResponses":{`+string(wire.Quote(key))+`:{"action":"accept","content":{"name":"Ada"}}}}`)
	got := stream.next(`"completed"`)
	for _, want := range []string{`"taskId":"s/task-1"`, `subscriptionId":"l"`, "Ada"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is not in %s", want, got)
		}
	}
}
