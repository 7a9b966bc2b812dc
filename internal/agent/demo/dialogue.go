package demo

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"nightporter/internal/agent"
	"nightporter/internal/proc"
)

// event is one line of the program's stream, in the order of the types:
//
//	reaches  once, before the prompt is read: Servers and Tools
//	call     before a tool is called: Tool
//	said     what came of it: Text
//	reply    once, at the end: Text
type event struct {
	Type    string   `json:"type"`
	Servers []string `json:"servers,omitempty"`
	Tools   []string `json:"tools,omitempty"` // as the server lists them, sorted
	Tool    string   `json:"tool,omitempty"`
	Text    string   `json:"text,omitempty"`
}

const (
	typeReaches = "reaches"
	typeCall    = "call"
	typeSaid    = "said"
	typeReply   = "reply"
)

// dialogue is the [agent.Dialogue] of one run.
type dialogue struct {
	request agent.Request
	proof   agent.Proof

	answered bool // it said what it reaches
	reply    *string
	said     []string
	err      *agent.Error // why the run was aborted
	stopped  bool
	skipped  int
}

var _ agent.Dialogue = (*dialogue)(nil)

func newDialogue(r agent.Request) *dialogue {
	return &dialogue{request: r, proof: agent.Proof{
		How: "the demo agent itself was asked, before it had a prompt, for its servers and the tools that they list",
		Rings: []agent.Ring{
			{Name: agent.RingServers, Planned: "the run's gateway, when it has one", Proven: "its own list of servers and tools, before it has the prompt"},
			{Name: agent.RingSettings, Planned: "none", Proven: "it knows none"},
			{Name: agent.RingTools, Planned: "none", Proven: "it knows none"},
			{Name: agent.RingPrompt, Planned: "text", Proven: "no model reads it"},
		},
	}}
}

// Start implements [agent.Dialogue]. The program speaks first, and is given nothing before.
func (d *dialogue) Start() []agent.Action { return nil }

// Line implements [agent.Dialogue].
func (d *dialogue) Line(line []byte) []agent.Action {
	var e event
	if json.Unmarshal(line, &e) != nil {
		d.skipped++
		return nil
	}
	emit := func(e agent.Event) []agent.Action { return []agent.Action{agent.Emit{Event: e}} }
	switch {
	case d.err != nil:
		return nil
	case e.Type == typeReaches && !d.answered:
		return d.prove(e)
	case !d.answered || d.reply != nil:
	case e.Type == typeCall:
		name := d.rawName(e.Tool)
		return append(emit(agent.Event{Kind: agent.EventTool, Tool: name}),
			emit(agent.Event{Kind: agent.EventActivity, Activity: agent.Activity("using " + name)})...)
	case e.Type == typeSaid:
		d.said = append(d.said, e.Text)
		return emit(agent.Event{Kind: agent.EventText, Text: e.Text})
	case e.Type == typeReply:
		d.reply = &e.Text
		return nil
	}
	d.skipped++
	return nil
}

// prove compares what the program reaches with what the run was planned to have.
func (d *dialogue) prove(e event) []agent.Action {
	d.answered = true
	var servers, tools []string
	if g := d.request.Gateway; g != nil {
		servers, tools = []string{agent.GatewayName}, g.Tools
	}
	d.proof.Servers, d.proof.Tools = e.Servers, e.Tools
	if d.proof.Proven = slices.Equal(e.Servers, servers) && slices.Equal(e.Tools, tools); !d.proof.Proven && !d.request.Unproven {
		d.err = &agent.Error{Code: agent.CodeBoundary, Message: fmt.Sprintf(
			"the demo agent reaches %s with %s, planned were %s with %s; it was given no prompt",
			words(e.Servers), words(e.Tools), words(servers), words(tools))}
		return []agent.Action{agent.Abort{Now: true}}
	}
	var actions []agent.Action
	if d.proof.Proven {
		proof := d.proof
		actions = append(actions, agent.Emit{Event: agent.Event{Kind: agent.EventProven, Proof: &proof}})
	}
	if !d.request.ProveOnly {
		actions = append(actions, agent.Write{Data: []byte(d.request.Prompt)})
	}
	return append(actions, agent.CloseInput{})
}

// rawName is the real name of a tool as an outcome has it.
func (d *dialogue) rawName(exposed string) string {
	if g := d.request.Gateway; g != nil {
		if server, tool, ok := g.RawName(exposed, nil); ok {
			return "mcp__" + server + "__" + tool
		}
	}
	return "mcp__" + agent.GatewayName + "__" + exposed
}

func words(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

// Dropped implements [agent.Dialogue].
func (d *dialogue) Dropped([]byte) []agent.Action {
	d.skipped++
	return nil
}

// Tick implements [agent.Dialogue].
func (d *dialogue) Tick() []agent.Action { return nil }

// Stop implements [agent.Dialogue]. The program ends with its input where it still waits for a prompt.
func (d *dialogue) Stop() []agent.Action {
	d.stopped = true
	return []agent.Action{agent.CloseInput{}}
}

// End implements [agent.Dialogue].
func (d *dialogue) End(exit proc.Exit, stderr []byte) agent.Result {
	r := agent.Result{Turns: 1, Proof: d.proof, Skipped: d.skipped, Salvage: agent.Tail(strings.Join(d.said, "\n"))}
	fail := func(code, format string, args ...any) {
		r.Err = &agent.Error{Code: code, Message: fmt.Sprintf(format, args...)}
	}
	words := "it said nothing on standard error"
	if said := agent.Head(string(stderr)); said != "" {
		words = "it said: " + said
	}
	bad := exit != proc.Exit{}
	switch {
	case d.err != nil:
		r.Err = d.err
	case !d.answered && d.stopped:
		fail(agent.CodeNoResult, "the demo agent was stopped before it said what it reaches")
	case !d.answered:
		fail(agent.CodeBoundary, "the demo agent ended (%v) before it said what it reaches; %s", exit, words)
	case bad && !d.stopped:
		fail(agent.CodeAgentError, "the demo agent: %v; %s", exit, words)
	case d.request.ProveOnly:
		r.Turns = 0
	case d.reply == nil:
		fail(agent.CodeNoResult, "the demo agent ended (%v) without a reply; %s", exit, words)
	case *d.reply == "":
		fail(agent.CodeEmptyReply, "the demo agent had nothing to say: its prompt has no calls")
	default:
		r.Reply = *d.reply
	}
	return r
}
