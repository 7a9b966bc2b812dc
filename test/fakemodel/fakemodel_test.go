package fakemodel_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"nightporter/test/fakemodel"
)

// limit bounds waits, those for a real agent on a busy machine included.
const limit = time.Minute

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

func post(t *testing.T, url, body string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(within(t), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

type event struct {
	Type string
	Data map[string]any
}

// events reads a stream to its end; err is how it ended when not by EOF.
func events(t *testing.T, body io.Reader) (all []event, err error) {
	t.Helper()
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var e event
		if err := json.Unmarshal([]byte(data), &e.Data); err != nil {
			t.Fatalf("event %s: %v", data, err)
		}
		e.Type, _ = e.Data["type"].(string)
		all = append(all, e)
	}
	return all, lines.Err()
}

func types(all []event) string {
	var names []string
	for _, e := range all {
		names = append(names, e.Type)
	}
	return strings.Join(names, " ")
}

// at follows a path of keys and indexes into decoded JSON.
func at(v any, path ...any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[step]
		case int:
			l, _ := v.([]any)
			if step >= len(l) {
				return nil
			}
			v = l[step]
		}
	}
	return v
}

const (
	messages  = "/v1/messages?beta=true"
	responses = "/v1/responses"
	streamed  = `{"model":"m","stream":true}`
)

func TestOneCallStepIsSpeltAsEachAgentSpellsIt(t *testing.T) {
	call := fakemodel.Calls("night porter", "everything__get-sum", `{"a":1}`)
	model := fakemodel.Start(t, fakemodel.Replies(call, call))

	claude, _ := events(t, post(t, model.URL+messages, streamed).Body)
	if got := at(claude[2].Data, "content_block", "name"); got != "mcp__night_porter__everything__get-sum" {
		t.Errorf("name for Claude: %v", got)
	}
	if got := at(claude[3].Data, "delta", "partial_json"); got != `{"a":1}` {
		t.Errorf("arguments for Claude: %v", got)
	}
	codex, _ := events(t, post(t, model.URL+responses, streamed).Body)
	item := at(codex[2].Data, "item")
	if at(item, "namespace") != "mcp__night_porter" || at(item, "name") != "everything__get_sum" || at(item, "arguments") != `{"a":1}` {
		t.Errorf("call for Codex: %v", item)
	}
}

func TestStreamsHaveTheEventsOfTheirAPI(t *testing.T) {
	step := fakemodel.Step{
		Parts: []fakemodel.Part{{Thinking: "hm"}, {Text: "äbc", Chunk: 2}, {Call: &fakemodel.Call{Name: "Bash"}}},
		Usage: &fakemodel.Usage{Input: 1, CacheRead: 2, CacheWrite: 3, Output: 4},
	}
	model := fakemodel.Start(t, fakemodel.Replies(step, step))

	claude, err := events(t, post(t, model.URL+messages, streamed).Body)
	if err != nil {
		t.Fatal(err)
	}
	want := "message_start ping" +
		" content_block_start content_block_delta content_block_delta content_block_stop" +
		" content_block_start content_block_delta content_block_delta content_block_stop" +
		" content_block_start content_block_delta content_block_stop" +
		" message_delta message_stop"
	if got := types(claude); got != want {
		t.Errorf("Messages API:\ngot  %s\nwant %s", got, want)
	}
	if got := at(claude[7].Data, "delta", "text"); got != "äb" {
		t.Errorf("first chunk: %v", got)
	}
	if got := at(claude[13].Data, "delta", "stop_reason"); got != "tool_use" {
		t.Errorf("stop reason: %v", got)
	}

	codex, err := events(t, post(t, model.URL+responses, streamed).Body)
	if err != nil {
		t.Fatal(err)
	}
	want = "response.created" +
		" response.output_item.added response.output_item.done" +
		" response.output_item.added response.output_text.delta response.output_text.delta response.output_item.done" +
		" response.output_item.added response.output_item.done" +
		" response.completed"
	if got := types(codex); got != want {
		t.Errorf("Responses API:\ngot  %s\nwant %s", got, want)
	}
	usage := at(codex[9].Data, "response", "usage")
	if at(usage, "input_tokens") != 6.0 || at(usage, "output_tokens") != 4.0 || at(usage, "input_tokens_details", "cached_tokens") != 2.0 {
		t.Errorf("usage: %v", usage)
	}
}

func TestAMessageWithoutStreamIsOneObject(t *testing.T) {
	model := fakemodel.Start(t, fakemodel.Replies(fakemodel.Step{Parts: []fakemodel.Part{{Text: "hi"}}, Stop: "max_tokens"}))
	var message map[string]any
	if err := json.NewDecoder(post(t, model.URL+messages, `{"model":"m"}`).Body).Decode(&message); err != nil {
		t.Fatal(err)
	}
	if at(message, "content", 0, "text") != "hi" || at(message, "stop_reason") != "max_tokens" || at(message, "usage", "output_tokens") != 42.0 {
		t.Errorf("got %v", message)
	}
}

func TestAStatusStepAnswersWithItsHeadersAndBody(t *testing.T) {
	model := fakemodel.Start(t, fakemodel.Replies(
		fakemodel.Step{Status: 429, Header: map[string]string{"Retry-After": "7"}, Message: "slow down"},
		fakemodel.Step{Status: 400, Body: json.RawMessage(`{"own":1}`)},
	))
	first := post(t, model.URL+messages, streamed)
	body, _ := io.ReadAll(first.Body)
	if first.StatusCode != 429 || first.Header.Get("Retry-After") != "7" ||
		!strings.Contains(string(body), `"rate_limit_error"`) || !strings.Contains(string(body), "slow down") {
		t.Errorf("got %s, %v, %s", first.Status, first.Header, body)
	}
	second := post(t, model.URL+responses, streamed)
	body, _ = io.ReadAll(second.Body)
	if second.StatusCode != 400 || strings.TrimSpace(string(body)) != `{"own":1}` {
		t.Errorf("got %s, %s", second.Status, body)
	}
}

func TestFailAndCutEndTheStreamAfterItsParts(t *testing.T) {
	part := []fakemodel.Part{{Text: "half"}}
	fail := fakemodel.Step{Parts: part, Fail: &fakemodel.Fault{Code: "overloaded_error", Message: "m"}}
	cut := fakemodel.Step{Parts: part, Cut: true}
	model := fakemodel.Start(t, fakemodel.Replies(fail, fail, cut, cut))
	for _, c := range []struct {
		path, last string
		cut        bool
	}{
		{messages, "error", false},
		{responses, "response.failed", false},
		{messages, "content_block_stop", true},
		{responses, "response.output_item.done", true},
	} {
		all, err := events(t, post(t, model.URL+c.path, streamed).Body)
		if got := all[len(all)-1].Type; got != c.last {
			t.Errorf("%s: last event %s, want %s", c.path, got, c.last)
		}
		if errors.Is(err, io.ErrUnexpectedEOF) != c.cut {
			t.Errorf("%s: end of stream: %v", c.path, err)
		}
	}
}

func TestAHeldAnswerGoesOnWhenReleased(t *testing.T) {
	model := fakemodel.Start(t, fakemodel.Replies(
		fakemodel.Step{Parts: []fakemodel.Part{{Text: "before"}, {Hold: true}, {Text: "after"}}}))
	response := post(t, model.URL+messages, streamed)
	if err := model.WaitHeld(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := model.Release(within(t)); err != nil {
		t.Fatal(err)
	}
	all, err := events(t, response.Body)
	if err != nil || all[len(all)-1].Type != "message_stop" {
		t.Errorf("ended with %v, %v", all[len(all)-1], err)
	}
}

func TestCloseEndsAHeldAnswer(t *testing.T) {
	model, err := fakemodel.Listen(fakemodel.Replies(fakemodel.Step{Parts: []fakemodel.Part{{Hold: true}}}))
	if err != nil {
		t.Fatal(err)
	}
	response := post(t, model.URL+messages, streamed)
	if err := model.WaitHeld(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := model.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(response.Body); err == nil {
		t.Error("the stream ended as if it were whole")
	}
	if _, err := model.Wait(within(t), 2); err == nil {
		t.Error("Wait after Close found a request that was never made")
	}
}

func TestAHoldEndsWhenTheClientGoes(t *testing.T) {
	model := fakemodel.Start(t, fakemodel.Replies(
		fakemodel.Step{Parts: []fakemodel.Part{{Text: "x"}, {Hold: true}}},
		fakemodel.Step{Parts: []fakemodel.Part{{Hold: true}}}))
	first := post(t, model.URL+messages, streamed)
	if err := model.WaitHeld(within(t)); err != nil {
		t.Fatal(err)
	}
	_ = first.Body.Close()
	if err := model.WaitFree(within(t)); err != nil {
		t.Errorf("the first answer is still held: %v", err)
	}
}

func TestStepsGoToModelRequestsInOrderThenTheDefault(t *testing.T) {
	script := fakemodel.Replies(fakemodel.Says("one"))
	script.Default = &fakemodel.Step{Parts: []fakemodel.Part{{Text: "rest"}}}
	dir := filepath.Join(t.TempDir(), "records")
	model := fakemodel.Start(t, script, fakemodel.RecordTo(dir))
	post(t, model.URL+"/v1/messages/count_tokens?beta=true", `{}`)
	for _, want := range []string{"one", "rest", "rest"} {
		body, _ := io.ReadAll(post(t, model.URL+messages, `{"model":"m"}`).Body)
		if !strings.Contains(string(body), `"`+want+`"`) {
			t.Errorf("want %s, got %s", want, body)
		}
	}
	response, err := http.Get(model.URL + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if all, asked := len(model.Requests()), len(model.ModelRequests()); all != 5 || asked != 3 {
		t.Errorf("recorded %d requests, %d of them to the model; want 5 and 3", all, asked)
	}
	names, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	if len(names) != 5 || filepath.Base(names[1]) != "001-post-messages.json" {
		t.Errorf("on disk: %v", names)
	}
	data, _ := os.ReadFile(names[1])
	if !bytes.Contains(data, []byte(`"model": "m"`)) {
		t.Errorf("record without its body: %s", data)
	}
}

func TestARequestTellsToolsAndResultsAlikeForBothAgents(t *testing.T) {
	want := []fakemodel.ToolResult{{ID: "c1", Text: "pong"}}
	for name, body := range map[string]string{
		"claude": `{"tools":[{"name":"Bash"},{"name":"mcp__np__echo"}],"messages":[{"role":"user","content":"hi"},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":[{"type":"text","text":"pong"}]}]}]}`,
		"codex": `{"tools":[{"type":"web_search"},{"type":"namespace","name":"mcp__np","tools":[{"name":"echo"}]}],
			"input":[{"type":"function_call_output","call_id":"c1","output":"pong"}]}`,
	} {
		request := fakemodel.Request{Body: []byte(body)}
		if got := request.MCPTools(); !reflect.DeepEqual(got, []string{"mcp__np__echo"}) || len(request.Tools()) != 2 {
			t.Errorf("%s: tools %v of %v", name, got, request.Tools())
		}
		if got := request.ToolResults(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: results %v", name, got)
		}
	}
}

func TestAScriptFileIsTheGoValue(t *testing.T) {
	path := filepath.Join(t.TempDir(), "script.json")
	text := `{"steps":[
		{"delay":"5ms","parts":[{"call":{"server":"s","tool":"t","arguments":{"x":1}}}]},
		{"status":529},
		{"parts":[{"text":"a","chunk":1,"gap":"1ms"},{"hold":true}],"usage":{"input":1,"output":2},"fail":{"code":"c","message":"m"}}],
		"default":{"parts":[{"text":"z"}]}}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := fakemodel.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	last := fakemodel.Says("z")
	call := fakemodel.Calls("s", "t", `{"x":1}`)
	call.Delay = fakemodel.Duration(5 * time.Millisecond)
	want := fakemodel.Script{Steps: []fakemodel.Step{
		call,
		{Status: 529},
		{
			Parts: []fakemodel.Part{{Text: "a", Chunk: 1, Gap: fakemodel.Duration(time.Millisecond)}, {Hold: true}},
			Usage: &fakemodel.Usage{Input: 1, Output: 2}, Fail: &fakemodel.Fault{Code: "c", Message: "m"},
		},
	}, Default: &last}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestAScriptThatCannotBePlayedIsRefused(t *testing.T) {
	for text, reason := range map[string]string{
		`{"steps":[{"txt":"x"}]}`:                                       "txt",
		`{"steps":[{"parts":[{"text":"a","hold":true}]}]}`:              "step 0: part 0",
		`{"steps":[{"parts":[{}]}]}`:                                    "has 0 of",
		`{"steps":[{"status":200}]}`:                                    "not an HTTP error",
		`{"steps":[{"status":500,"cut":true}]}`:                         "no parts",
		`{"steps":[{"body":{}}]}`:                                       "with a status",
		`{"steps":[{"cut":true,"fail":{"code":"a","message":"b"}}]}`:    "not by both",
		`{"steps":[{"parts":[{"call":{"server":"s"}}]}]}`:               "server and tool",
		`{"steps":[{"parts":[{"call":{"name":"n","arguments":[1]}}]}]}`: "not a JSON object",
		`{"steps":[{"delay":5}]}`:                                       `want a string such as "250ms"`,
		`{"default":{"parts":[{"call":{"server":"s","name":"n"}}]}}`:    "default step",
		`{"steps":[]} x`:                                                "after the script",
	} {
		if _, err := fakemodel.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: error %v, want one with %q", text, err, reason)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"steps":[{"parts":[{"call":{"server":"s","tool":"t","arguments":{"x":1}}}]},{"status":529}],"default":{"hold":true}}`))
	f.Add([]byte(`{"steps":[{"delay":"5ms","parts":[{"raw":{"openai":{}}}],"cut":true}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		script, err := fakemodel.Parse(data)
		if err != nil {
			return
		}
		text, err := json.Marshal(script)
		if err != nil {
			t.Fatalf("a script that was read cannot be written: %v", err)
		}
		if _, err := fakemodel.Parse(text); err != nil {
			t.Fatalf("a script that was written cannot be read: %v\n%s", err, text)
		}
	})
}
