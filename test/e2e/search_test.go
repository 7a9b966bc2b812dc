package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"nightporter/test/fakemodel"
	"nightporter/test/lab"
)

// ours is a step that calls one of Nightporter's own tools.
func ours(tool, arguments string) fakemodel.Step {
	return fakemodel.Calls("nightporter", "nightporter__"+tool, arguments)
}

// An agent with a grant by search sees three tools, finds, describes and calls another through them, and what it was refused is
// told by its real name.
func TestARunBySearch(t *testing.T) {
	script := func() fakemodel.Script {
		return fakemodel.Replies(
			ours("find_tools", `{"query":"echoing a message"}`),
			ours("describe_tool", `{"name":"everything__echo"}`),
			ours("call_tool", `{"name":"everything__echo","arguments":{"message":"found"}}`),
			ours("call_tool", `{"name":"everything__get-sum","arguments":{"a":1,"b":2}}`),
			ours("call_tool", `{"name":"asks__echo","arguments":{}}`),
			fakemodel.Says("done"),
		)
	}
	eachAgent(t, script, func(t *testing.T, w *world, p program) {
		w.config(w.everything("everything") + w.lab(lab.Config{Name: "asks", Tools: lab.Tools("echo")}) +
			"default_tools_approval_mode = \"prompt\"\n" +
			"[grants.g]\nservers = [\"everything\", \"asks\"]\ndeny.everything = [\"get-sum\"]\nexposure = \"search\"\n")
		o, r := w.outcome("--agent", p.agent, "--grant", "g", "look")
		w.replied(o, r, "done")
		requests := w.model.ModelRequests()
		first, last := string(requests[0].Body), string(requests[len(requests)-1].Body)
		for _, name := range []string{"nightporter__find_tools", "nightporter__describe_tool", "nightporter__call_tool"} {
			if !strings.Contains(first, name+`"`) {
				t.Errorf("the model was not offered %s", name)
			}
		}
		if strings.Contains(first, `everything__`) {
			t.Error("the model was offered a tool that is to be found")
		}
		if !strings.Contains(first, "The tools of the servers here are found by search") {
			t.Error("the model was not told how tools are found")
		}
		for _, want := range []string{"everything__echo (score ", `inputSchema`, "Echo: found", `there is no tool`, "nobody can be asked"} {
			if !strings.Contains(last, want) {
				t.Errorf("%q did not reach the model", want)
			}
		}
		if want := []string{"mcp__everything__get-sum", "mcp__asks__echo"}; !slices.Equal(o.Denials, want) {
			t.Errorf("denials %q, want %q", o.Denials, want)
		}
		var calls []string
		for _, c := range o.ToolCalls {
			calls = append(calls, fmt.Sprint(c.Server, " ", c.Tool, " ", c.OK))
		}
		if want := []string{"nightporter find_tools true", "nightporter describe_tool true", "everything echo true"}; !slices.Equal(calls, want) {
			t.Errorf("calls %q, want %q", calls, want)
		}
	})
}

// A result over its server's bound is shown by its beginning, and an agent without tools for resources reads the rest by a tool that it
// had from the beginning.
func TestALongResultInARun(t *testing.T) {
	eachAgent(t, func() fakemodel.Script { return fakemodel.Replies(fakemodel.Says("unused")) }, func(t *testing.T, w *world, p program) {
		w.config(w.lab(lab.Config{Name: "s", Tools: lab.Tools("big")}) + "max_result_bytes = 8000\n")
		w.ask(call("s", "big", `{"bytes":300000}`), fakemodel.Says("seen"))
		o, r := w.outcome("--agent", p.agent, "--server", "s", "look")
		w.replied(o, r, "seen")
		requests := w.model.ModelRequests()
		first, last := string(requests[0].Body), string(requests[len(requests)-1].Body)
		if !strings.Contains(first, `nightporter__read_result"`) {
			t.Error("the model was not offered the tool that reads results")
		}
		if !strings.Contains(last, "over the bound of 8000 that is set") || !strings.Contains(last, "/content/0") || len(last) > len(first)+50_000 {
			t.Errorf("the model was sent %d bytes more", len(last)-len(first))
		}
		// The result went with its run.
		uri := last[strings.Index(last, "nightporter://results/"):]
		uri = uri[:strings.Index(uri, "/content/0")+len("/content/0")]
		w.ask(ours("read_result", fmt.Sprintf(`{"uri":%q,"offset":299990}`, uri)), fakemodel.Says("gone"))
		o, r = w.outcome("--agent", p.agent, "--server", "s", "again")
		w.replied(o, r, "gone")
		requests = w.model.ModelRequests()
		if last := string(requests[len(requests)-1].Body); !strings.Contains(last, "there is no such result here") {
			t.Error("a result was read after its run")
		}
	})
}
