// Package fakemodel is a scripted model API on loopback, the only thing that
// end-to-end tests fake.
//
// One server speaks Anthropic's Messages API as Claude Code uses it and OpenAI's
// Responses API as Codex uses it (wire forms measured in facts/claude.md and
// facts/codex.md), so that one [Script] drives either agent:
//
//	model := fakemodel.Start(t, fakemodel.Script{Steps: []fakemodel.Step{
//		fakemodel.Calls("nightporter", "everything__echo", `{"message":"hi"}`),
//		fakemodel.Says("done"),
//	}})
//	cmd.Env = programs.Env(home, model.ClaudeEnv()...)
//
// The same script as a file, for [Read]:
//
//	{"steps":[
//	  {"parts":[{"call":{"server":"nightporter","tool":"everything__echo","arguments":{"message":"hi"}}}]},
//	  {"parts":[{"text":"done"}]}]}
package fakemodel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Script is what the model does: one step per model request, in the order in
// which the requests arrive, then Default for ever.
type Script struct {
	Steps   []Step `json:"steps"`
	Default *Step  `json:"default,omitempty"` // nil: the text [Exhausted]
}

// Exhausted is what the model says once the steps are used up and the script has no default.
const Exhausted = "fakemodel: the script has no more steps"

// Step is the answer to one model request.
//
// With Status set it is an HTTP error. Otherwise it is a stream of Parts that
// ends normally, or by Fail or Cut.
type Step struct {
	Delay Duration `json:"delay,omitempty"` // before the first byte of the answer
	Hold  bool     `json:"hold,omitempty"`  // wait for Release before the first byte

	Status int               `json:"status,omitempty"` // HTTP status instead of a stream
	Header map[string]string `json:"header,omitempty"` // of that error, for example retry-after
	Body   json.RawMessage   `json:"body,omitempty"`   // of that error; default: an error object in the API's own form
	// Message is the text in the default Body.
	Message string `json:"message,omitempty"`

	Parts []Part `json:"parts,omitempty"`
	Usage *Usage `json:"usage,omitempty"` // default: DefaultUsage
	// Stop is the reason the model stopped, in Anthropic's words: end_turn,
	// tool_use, max_tokens, refusal. Default: tool_use after a call, else
	// end_turn. For OpenAI max_tokens and refusal become response.incomplete.
	Stop string `json:"stop,omitempty"`

	Fail *Fault `json:"fail,omitempty"` // after the parts: an SSE error event, or response.failed
	Cut  bool   `json:"cut,omitempty"`  // after the parts: the connection is broken off in the middle of the stream
}

// Part is one piece of an answer: exactly one of its kinds is set.
type Part struct {
	Text  string   `json:"text,omitempty"`  // a text block
	Chunk int      `json:"chunk,omitempty"` // with Text: runes per delta; 0 sends it whole
	Gap   Duration `json:"gap,omitempty"`   // with Text: the time between two deltas

	Thinking string `json:"thinking,omitempty"` // a thinking block, or a reasoning item
	Call     *Call  `json:"call,omitempty"`     // a tool call

	Pause Duration `json:"pause,omitempty"` // silence in the middle of the stream
	Hold  bool     `json:"hold,omitempty"`  // silence until Release, or until the client goes

	Raw *Raw `json:"raw,omitempty"` // a block or item in the API's own form
}

// Call is a tool call. Either Server and Tool name an MCP tool, which each agent
// spells in its own way, or Name is sent as it stands, with Namespace for Codex.
type Call struct {
	Server    string          `json:"server,omitempty"`
	Tool      string          `json:"tool,omitempty"`
	Name      string          `json:"name,omitempty"`
	Namespace string          `json:"namespace,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"` // a JSON object; default {}
}

// Raw is a part in each API's own form; the form that the asking agent's API lacks is left out of the answer.
type Raw struct {
	Anthropic json.RawMessage `json:"anthropic,omitempty"` // a content block
	OpenAI    json.RawMessage `json:"openai,omitempty"`    // an output item
}

// Usage is token counts in Anthropic's sense: Input excludes what was read from
// or written to the cache. OpenAI's input_tokens, which include the cache, are the sum.
type Usage struct {
	Input      int `json:"input"`
	CacheRead  int `json:"cache_read,omitempty"`
	CacheWrite int `json:"cache_write,omitempty"`
	Output     int `json:"output"`
}

// DefaultUsage is what a step without Usage reports.
var DefaultUsage = Usage{Input: 100, CacheRead: 20, CacheWrite: 10, Output: 42}

// Fault is an error inside a stream that began well.
type Fault struct {
	Code    string `json:"code"` // Anthropic's error.type, OpenAI's error.code
	Message string `json:"message"`
}

// Duration is a time.Duration that JSON spells as Go does: "250ms".
type Duration time.Duration

// UnmarshalJSON reads a duration in Go's spelling.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return fmt.Errorf(`duration %s: want a string such as "250ms"`, data)
	}
	parsed, err := time.ParseDuration(text)
	if err != nil {
		return err
	}
	*d = Duration(parsed)
	return nil
}

// MarshalJSON writes the duration in Go's spelling.
func (d Duration) MarshalJSON() ([]byte, error) {
	return json.Marshal(time.Duration(d).String())
}

// Says is a step that answers with a text.
func Says(text string) Step { return Step{Parts: []Part{{Text: text}}} }

// Calls is a step that calls one MCP tool with a JSON object of arguments.
func Calls(server, tool, arguments string) Step {
	return Step{Parts: []Part{{Call: &Call{Server: server, Tool: tool, Arguments: json.RawMessage(arguments)}}}}
}

// Replies is a script that answers each model request with the next step.
func Replies(steps ...Step) Script { return Script{Steps: steps} }

// Read reads a script from a JSON file. Unknown fields are errors, so that a
// misspelt step does not pass as a plain one.
func Read(path string) (Script, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Script{}, fmt.Errorf("read model script: %w", err)
	}
	script, err := Parse(data)
	if err != nil {
		return Script{}, fmt.Errorf("read model script %s: %w", path, err)
	}
	return script, nil
}

// Parse is Read for bytes already at hand.
func Parse(data []byte) (Script, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var script Script
	if err := decoder.Decode(&script); err != nil {
		return Script{}, err
	}
	if _, err := decoder.Token(); err != io.EOF {
		return Script{}, errors.New("text after the script's object")
	}
	return script, script.check()
}

func (s Script) check() error {
	for i, step := range s.Steps {
		if err := step.check(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	if s.Default != nil {
		if err := s.Default.check(); err != nil {
			return fmt.Errorf("default step: %w", err)
		}
	}
	return nil
}

func (s Step) check() error {
	if s.Status != 0 {
		if s.Status < 400 || s.Status > 599 {
			return fmt.Errorf("status %d is not an HTTP error", s.Status)
		}
		if len(s.Parts) > 0 || s.Fail != nil || s.Cut {
			return errors.New("a step with a status has no parts, fail or cut")
		}
		if s.Body != nil && !json.Valid(s.Body) {
			return errors.New("body is not JSON")
		}
	} else if s.Body != nil || s.Header != nil || s.Message != "" {
		return errors.New("body, header and message belong to a step with a status")
	}
	if s.Fail != nil && s.Cut {
		return errors.New("a stream ends by fail or by cut, not by both")
	}
	for i, part := range s.Parts {
		if err := part.check(); err != nil {
			return fmt.Errorf("part %d: %w", i, err)
		}
	}
	return nil
}

func (p Part) check() error {
	kinds := 0
	for _, set := range []bool{p.Text != "", p.Thinking != "", p.Call != nil, p.Pause != 0, p.Hold, p.Raw != nil} {
		if set {
			kinds++
		}
	}
	if kinds != 1 {
		return fmt.Errorf("has %d of text, thinking, call, pause, hold and raw; want one", kinds)
	}
	if p.Raw != nil {
		for _, form := range []json.RawMessage{p.Raw.Anthropic, p.Raw.OpenAI} {
			if form != nil && !json.Valid(form) {
				return errors.New("a raw form is not JSON")
			}
		}
	}
	if p.Call == nil {
		return nil
	}
	call := *p.Call
	mcp := call.Server != "" && call.Tool != "" && call.Name == "" && call.Namespace == ""
	own := call.Server == "" && call.Tool == "" && call.Name != ""
	if !mcp && !own {
		return errors.New("a call has server and tool, or name with an optional namespace")
	}
	if call.Arguments == nil {
		return nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(call.Arguments, &object); err != nil {
		return fmt.Errorf("arguments %s are not a JSON object", call.Arguments)
	}
	return nil
}

// arguments are the call's arguments, never empty.
func (c Call) arguments() json.RawMessage {
	if c.Arguments == nil {
		return json.RawMessage("{}")
	}
	return c.Arguments
}

func (s Step) usage() Usage {
	if s.Usage == nil {
		return DefaultUsage
	}
	return *s.Usage
}

// stop is why the model stopped, in Anthropic's words.
func (s Step) stop() string {
	if s.Stop != "" {
		return s.Stop
	}
	for _, part := range s.Parts {
		if part.Call != nil {
			return "tool_use"
		}
	}
	return "end_turn"
}
