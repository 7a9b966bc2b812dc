//go:build unix

package runtime_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"nightporter/internal/approval"
	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/server"
	"nightporter/internal/mcp/wire"
	"nightporter/test/lab"
)

// desk is somebody who is asked: it hands over each question and waits for the answer to it.
type desk struct {
	questions chan approval.Question
	answers   chan approval.Answer
}

func newDesk() *desk { return &desk{make(chan approval.Question), make(chan approval.Answer)} }

func (d *desk) ask(ctx context.Context, q approval.Question) approval.Answer {
	select {
	case d.questions <- q:
	case <-ctx.Done():
		return approval.Answer{Reason: "ended"}
	}
	select {
	case a := <-d.answers:
		return a
	case <-ctx.Done():
		return approval.Answer{Reason: "ended"}
	}
}

// asked opens a client of entries that a desk is asked for.
func (h *house) asked(d *desk, entries ...string) *runtime.Scope {
	rt := h.runtime(entries...)
	return rt.Open(h.ctx, runtime.ScopeOptions{
		Name: "run r", Dir: h.dir, Owner: &owner{}, Unattended: true, Approver: func() approval.Func { return d.ask },
	})
}

// begin calls a tool and returns what becomes of it.
func (h *house) begin(ctx context.Context, s *runtime.Scope, tool, arguments string) <-chan called {
	done := make(chan called, 1)
	go func() {
		params := json.RawMessage(fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, arguments))
		answer, err := s.CallTool(ctx, "s", tool, server.Request{Method: wire.ToolsCall, Params: params})
		done <- called{answer, err}
	}()
	return done
}

type called struct {
	answer runtime.Answer
	err    error
}

func (h *house) question(d *desk) approval.Question {
	h.t.Helper()
	select {
	case q := <-d.questions:
		return q
	case <-h.ctx.Done():
		h.t.Fatal("nobody was asked")
	}
	return approval.Question{}
}

func TestACallWaitsForAPersonWhoSeesItAsItIsSent(t *testing.T) {
	h, d := newHouse(t), newDesk()
	tool := json.RawMessage(`{"name":"echo","description":"says it back","inputSchema":{"type":"object"},"annotations":{"destructiveHint":true}}`)
	s := h.asked(d, h.lab(lab.Config{Name: "s", Tools: append(lab.Tools("pid"), tool)}, `tools.echo = { approval_mode = "prompt" }`))
	const arguments = `{"b": 1.0e400,  "a":"\u00e4<&>"}`
	for i := range 2 { // an answer holds for one call
		done := h.begin(h.ctx, s, "echo", arguments)
		q := h.question(d)
		if q.Server != "s" || q.Tool != "echo" || string(q.Arguments) != arguments || q.Description != "says it back" ||
			string(q.Annotations) != `{"destructiveHint":true}` || q.Client != "run r" || q.Authority == "" {
			t.Errorf("asked about %+v", q)
		}
		if _, err := h.call(s, "s", "pid", `{}`); err != nil {
			t.Errorf("another call meanwhile: %v", err)
		}
		d.answers <- approval.Answer{Approved: true, By: "ann"}
		got := <-done
		if got.err != nil || got.answer.Approval == nil || !got.answer.Approval.Approved || got.answer.Approval.By != "ann" {
			t.Fatalf("call %d: %+v", i, got)
		}
		if a := got.answer.Authority; a.Digest() != q.Authority {
			t.Errorf("made under %s, approved under %s", a.Digest(), q.Authority)
		}
	}
	sent := 0
	for _, e := range h.recorder.Select(lab.Received(wire.ToolsCall)) {
		if name, _ := wire.GetString(e.Message, "params", "name"); name == "echo" {
			sent++
			if got := string(wire.Get(e.Message, "params", "arguments")); got != `{"b":1.0e400,"a":"\u00e4<&>"}` { // the recorder leaves out white space
				t.Errorf("sent with %s", got)
			}
		}
	}
	if sent != 2 {
		t.Errorf("sent %d times", sent)
	}
}

func TestACallThatIsNotApprovedIsRefused(t *testing.T) {
	h, d := newHouse(t), newDesk()
	s := h.asked(d, h.lab(lab.Config{Name: "s", Tools: lab.Tools("echo")}, `default_tools_approval_mode = "prompt"`))
	done := h.begin(h.ctx, s, "echo", `{}`)
	h.question(d)
	d.answers <- approval.Answer{Reason: "not today", By: "ann"}
	got := <-done
	var refused *runtime.RefusedError
	if !errors.As(got.err, &refused) || refused.Check != "approval" || !strings.Contains(refused.Reason, "denied by ann: not today") || got.answer.Approval == nil {
		t.Errorf("got %+v", got)
	}
	ctx, cancel := context.WithCancel(h.ctx)
	done = h.begin(ctx, s, "echo", `{}`)
	h.question(d)
	cancel()
	if got := <-done; !errors.Is(got.err, context.Canceled) || errors.As(got.err, new(*runtime.RefusedError)) {
		t.Errorf("taken back by its client: %v", got.err)
	}
	if sent := h.recorder.Select(lab.Received(wire.ToolsCall)); len(sent) != 0 {
		t.Errorf("the server got %s", sent[0].Message)
	}
}

// What a person approved is the tool as she saw it. The call was issued while the server slept, so that no other check sees the change.
func TestAToolThatChangesWhileAPersonIsAskedIsRefused(t *testing.T) {
	h, d := newHouse(t), newDesk()
	define := func(description string) []json.RawMessage {
		return []json.RawMessage{json.RawMessage(fmt.Sprintf(`{"name":"echo","description":%q,"inputSchema":{"type":"object"}}`, description))}
	}
	w := &waiting{house: h, script: t.TempDir() + "/lab.json"}
	entry := w.entry(`default_tools_approval_mode = "prompt"`)
	w.serve(define("reads"), false)
	h.learn(entry)
	s := h.asked(d, entry)
	done := h.begin(h.ctx, s, "echo", `{}`)
	if q := h.question(d); q.Description != "reads" {
		t.Errorf("asked about %+v", q)
	}
	w.serve(define("deletes"), false)
	if err := s.Restart(h.ctx, "s"); err != nil {
		t.Fatal(err)
	}
	d.answers <- approval.Answer{Approved: true}
	var refused *runtime.RefusedError
	if got := <-done; !errors.As(got.err, &refused) || refused.Check != "approval" || !strings.Contains(refused.Reason, "changed the tool") {
		t.Errorf("got %+v", got)
	}
}

func TestOnlyCallsThatWantAPersonAreAskedAbout(t *testing.T) {
	reader := json.RawMessage(`{"name":"reads","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}`)
	for mode, want := range map[string][]string{"auto": nil, "approve": nil, "prompt": {"reads", "echo"}, "writes": {"echo"}} {
		for _, unattended := range []bool{true, false} {
			t.Run(fmt.Sprint(mode, unattended), func(t *testing.T) {
				h := newHouse(t)
				var asked []string
				rt := h.runtime(h.lab(lab.Config{Name: "s", Tools: append(lab.Tools("echo"), reader)}, fmt.Sprintf("default_tools_approval_mode = %q", mode)))
				s := rt.Open(h.ctx, runtime.ScopeOptions{Name: "c", Dir: h.dir, Owner: &owner{}, Unattended: unattended, Approver: func() approval.Func {
					return func(_ context.Context, q approval.Question) approval.Answer {
						asked = append(asked, q.Tool)
						return approval.Answer{Approved: true}
					}
				}})
				for _, tool := range []string{"reads", "echo"} {
					if _, err := h.call(s, "s", tool, `{}`); err != nil {
						t.Errorf("%s: %v", tool, err)
					}
				}
				if !slices.Equal(asked, want) {
					t.Errorf("asked about %v, want %v", asked, want)
				}
			})
		}
	}
}

func TestNobodyIsAskedAboutACallThatIsRefusedAnyway(t *testing.T) {
	h := newHouse(t)
	rt := h.runtime(h.lab(lab.Config{Name: "s", Tools: lab.Tools("echo")}, `default_tools_approval_mode = "prompt"`, `disabled_tools = ["echo"]`))
	s := rt.Open(h.ctx, runtime.ScopeOptions{Name: "c", Dir: h.dir, Owner: &owner{}, Approver: func() approval.Func {
		return func(context.Context, approval.Question) approval.Answer {
			t.Error("somebody was asked")
			return approval.Answer{Approved: true}
		}
	}})
	var refused *runtime.RefusedError
	if _, err := h.call(s, "s", "echo", `{}`); !errors.As(err, &refused) || refused.Check != "filter" {
		t.Errorf("got %v", err)
	}
}
