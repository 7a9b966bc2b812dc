// Package command is the adapter for any program that reads a prompt on standard
// input and prints a reply: a script, a model's own command line tool, cat.
//
// Nobody can be asked what such a program reaches, so it runs only with [agent.Request.Unproven]. A run's gateway
// is told to it in its environment: NIGHTPORTER_MCP_URL and NIGHTPORTER_MCP_TOKEN.
package command

import (
	"context"
	"fmt"
	"strings"
	"time"

	"nightporter/internal/agent"
	"nightporter/internal/proc"
)

// MaxReply is how many bytes of output are taken as a reply. Replies are read by people and sent through chats
// and mail; a program that prints more has not answered, it has dumped something.
const MaxReply = 1 << 20

// salvageKept is how many bytes of output are kept for salvage once there is too much for a reply: at
// least the 500 characters of [agent.Tail].
const salvageKept = 4 << 10

// ladder is short for programs that we know nothing of: most end at the first signal.
var ladder = agent.Ladder{
	{Signal: agent.RungInterrupt, Wait: 2 * time.Second},
	{Signal: agent.RungTerminate, Wait: 3 * time.Second},
}

// Adapter is the adapter. Its zero value is ready.
type Adapter struct{}

var _ agent.Adapter = Adapter{}

// Name implements [agent.Adapter].
func (Adapter) Name() string { return "command" }

// DefaultArgv implements [agent.Adapter]: there is none.
func (Adapter) DefaultArgv() []string { return nil }

// Recognises implements [agent.Adapter]. It is always false: a command is this adapter's when no other recognises it.
func (Adapter) Recognises([]string) bool { return false }

// Check implements [agent.Adapter]: every command will do.
func (Adapter) Check(argv []string, _ agent.ToolMode) error {
	if len(argv) == 0 {
		return &agent.Refusal{What: "the command", Why: "it is empty", Mend: `give one with --exec "PROGRAM ARGUMENTS"`}
	}
	return nil
}

// Prepare implements [agent.Adapter].
func (a Adapter) Prepare(_ context.Context, r agent.Request) (*agent.Launch, error) {
	if err := a.Check(r.Argv, r.Mode); err != nil {
		return nil, err
	}
	proof := agent.Proof{How: "nobody was asked: a command has no list of what it reaches"}
	for _, ring := range []string{agent.RingServers, agent.RingSettings, agent.RingTools, agent.RingPrompt} {
		proof.Rings = append(proof.Rings, agent.Ring{Name: ring, Planned: "whatever the command does", Open: []string{"everything"}})
	}
	if !r.Unproven {
		return nil, &agent.Unproven{
			Why:   fmt.Sprintf("%s is no agent that can be asked what it reaches", r.Argv[0]),
			Mend:  "use claude or codex, or accept that with --unproven",
			Proof: proof,
		}
	}
	proof.Notes = []string{"the command was run unproven: it may reach whatever this user can"}
	env := r.Env
	if g := r.Gateway; g != nil {
		env = append(env[:len(env):len(env)], "NIGHTPORTER_MCP_URL="+g.URL, "NIGHTPORTER_MCP_TOKEN="+g.Token.Reveal())
		proof.Servers = []string{agent.GatewayName}
	}
	return &agent.Launch{
		Argv:     append([]string{r.Program}, r.Argv[1:]...),
		Env:      env,
		Dialogue: &dialogue{name: r.Argv[0], prompt: r.Prompt, proof: proof},
		Ladder:   ladder,
		Proof:    &proof,
	}, nil
}

// dialogue collects what the command prints. It implements [agent.Dialogue].
type dialogue struct {
	name, prompt string
	proof        agent.Proof

	text    []byte // what was printed; once tooLong, only its end
	last    string // the activity that was told last
	tooLong bool
	stopped bool
}

func (d *dialogue) Start() []agent.Action {
	return []agent.Action{agent.Write{Data: []byte(d.prompt)}, agent.CloseInput{}}
}

func (d *dialogue) Line(line []byte) []agent.Action {
	d.text = append(append(d.text, line...), '\n')
	d.tooLong = d.tooLong || len(d.text) > MaxReply
	if d.tooLong && len(d.text) > 2*salvageKept {
		d.text = append([]byte(nil), d.text[len(d.text)-salvageKept:]...)
	}
	activity := agent.Activity(string(line))
	if activity == "" || activity == d.last {
		return nil
	}
	d.last = activity
	return []agent.Action{agent.Emit{Event: agent.Event{Kind: agent.EventActivity, Activity: activity}}}
}

func (d *dialogue) Dropped(head []byte) []agent.Action {
	d.tooLong = true
	return d.Line(head)
}

func (d *dialogue) Tick() []agent.Action { return nil }

func (d *dialogue) Stop() []agent.Action {
	d.stopped = true
	return nil
}

func (d *dialogue) End(exit proc.Exit, stderr []byte) agent.Result {
	text := strings.TrimSpace(strings.ToValidUTF8(string(d.text), "\uFFFD"))
	result := agent.Result{Salvage: agent.Tail(text), Turns: 1, Proof: d.proof}
	switch {
	case d.stopped:
		result.Err = &agent.Error{Code: agent.CodeNoResult, Message: d.name + " was stopped before it ended"}
	case exit.Code != 0 || exit.Signal != "":
		result.Err = &agent.Error{Code: agent.CodeAgentError, Message: fmt.Sprintf("%s: %v%s", d.name, exit, said(stderr))}
	case d.tooLong:
		result.Err = &agent.Error{Code: agent.CodeResultTooLong, Message: fmt.Sprintf("%s printed more than %d bytes", d.name, MaxReply)}
	case text == "":
		result.Err = &agent.Error{Code: agent.CodeEmptyReply, Message: d.name + " ended well and printed nothing" + said(stderr)}
	default:
		result.Reply = text
	}
	return result
}

// said quotes the end of what was written to standard error.
func said(stderr []byte) string {
	if tail := agent.Activity(lastLines(agent.Tail(string(stderr)))); tail != "" {
		return "; it last said: " + tail
	}
	return "; it said nothing on standard error"
}

// lastLines is the last two lines of text: the message and what led to it.
func lastLines(text string) string {
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		if j := strings.LastIndexByte(text[:i], '\n'); j >= 0 {
			return text[j+1:]
		}
	}
	return text
}
