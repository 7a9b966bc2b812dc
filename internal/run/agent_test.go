package run

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"nightporter/internal/agent"
	"nightporter/internal/proc"
)

// plain is a dialogue with an agent that prints one word and an argument on each line:
// session, text, tool, denied, cost, reply, reject, abort, broken, proven, close.
type plain struct {
	prompt  string
	onStop  []agent.Action
	onEvent func(string) // sees every call

	lines   []string
	dropped []string
	ticks   int
	stops   int
	ends    int
	exit    proc.Exit
	stderr  string
	result  agent.Result
}

func (p *plain) saw(what string) {
	if p.onEvent != nil {
		p.onEvent(what)
	}
}

func (p *plain) Start() []agent.Action {
	p.saw("start")
	if p.prompt == "" {
		return nil
	}
	return []agent.Action{agent.Write{Data: []byte(p.prompt)}}
}

func (p *plain) Line(line []byte) []agent.Action {
	p.lines = append(p.lines, string(line))
	p.saw(string(line))
	word, rest, _ := strings.Cut(string(line), " ")
	event := func(e agent.Event) []agent.Action { return []agent.Action{agent.Emit{Event: e}} }
	switch word {
	case "session":
		p.result.SessionID = rest
		return event(agent.Event{Kind: agent.EventSession, SessionID: rest})
	case "text":
		p.result.Salvage = rest
		return append(event(agent.Event{Kind: agent.EventText, Text: rest}),
			event(agent.Event{Kind: agent.EventActivity, Activity: agent.Activity(rest)})...)
	case "tool":
		return event(agent.Event{Kind: agent.EventTool, Tool: rest})
	case "denied":
		p.result.Denials = append(p.result.Denials, rest)
		return event(agent.Event{Kind: agent.EventDenied, Tool: rest})
	case "cost":
		cost, _ := strconv.ParseFloat(rest, 64)
		p.result.Usage.CostUSD, p.result.Totals.CostUSD = cost, cost
		return event(agent.Event{Kind: agent.EventUsage, Usage: &agent.Usage{CostUSD: cost}})
	case "reply":
		p.result.Reply = rest
	case "reject":
		p.result.ResumeRejected = true
	case "dead":
		p.result.SessionID = ""
	case "abort":
		p.result.Err = &agent.Error{Code: agent.CodeAuth, Message: rest}
		return []agent.Action{agent.Abort{}}
	case "broken":
		p.result.Err = &agent.Error{Code: agent.CodeBoundary, Message: rest}
		return []agent.Action{agent.Abort{Now: true}}
	case "proven":
		return event(agent.Event{Kind: agent.EventProven, Proof: &agent.Proof{Proven: true}})
	case "close":
		return []agent.Action{agent.CloseInput{}}
	}
	return nil
}

func (p *plain) Dropped(head []byte) []agent.Action {
	p.dropped = append(p.dropped, string(head))
	p.saw("dropped")
	return nil
}

func (p *plain) Tick() []agent.Action {
	p.ticks++
	return nil
}

func (p *plain) Stop() []agent.Action {
	p.stops++
	p.saw("stop")
	return p.onStop
}

func (p *plain) End(exit proc.Exit, stderr []byte) agent.Result {
	p.ends++
	p.exit, p.stderr = exit, string(stderr)
	if p.result.Reply == "" && p.result.Err == nil {
		p.result.Err = &agent.Error{Code: agent.CodeNoResult, Message: fmt.Sprintf("no reply: %v: %s", exit, stderr)}
	}
	return p.result
}

// shell is an adapter whose agent is a shell script that gets the session to be resumed as $1.
type shell struct {
	script   string
	prepare  func(agent.Request) error
	dialogue func(agent.Request) agent.Dialogue // nil: a plain one
	proof    *agent.Proof
	changed  func() string
	requests []agent.Request
}

func (*shell) Name() string                         { return "plain" }
func (*shell) DefaultArgv() []string                { return nil }
func (*shell) Recognises([]string) bool             { return false }
func (*shell) Check([]string, agent.ToolMode) error { return nil }

func (s *shell) Prepare(_ context.Context, r agent.Request) (*agent.Launch, error) {
	s.requests = append(s.requests, r)
	if s.prepare != nil {
		if err := s.prepare(r); err != nil {
			return nil, err
		}
	}
	var d agent.Dialogue = &plain{prompt: r.Prompt}
	if s.dialogue != nil {
		d = s.dialogue(r)
	}
	return &agent.Launch{
		Argv: []string{"/bin/sh", "-c", s.script, "sh", r.Resume}, Env: r.Env, Version: "1.0",
		Dialogue: d, Ladder: agent.Ladder{{Signal: agent.RungTerminate, Wait: 1 << 40}}, Proof: s.proof, Changed: s.changed,
	}, nil
}

// request is a run of a shell script.
func specOf(t *testing.T, a *shell) Spec {
	t.Helper()
	return Spec{
		Adapter: a,
		Request: agent.Request{Argv: []string{"sh"}, Program: "/bin/sh", Workdir: t.TempDir(), Env: []string{"PATH=/usr/bin:/bin"}},
	}
}
