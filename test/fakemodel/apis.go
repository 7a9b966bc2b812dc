package fakemodel

import (
	"fmt"
	"net/http"
	"regexp"
)

// turn is what an answer says about itself.
type turn struct {
	number int // of the model request, from 0; ids are made of it
	model  string
	usage  Usage
	stream bool
}

// api is one of the two APIs.
type api struct {
	fault func(status int, message string) any // an error body
	open  func(w http.ResponseWriter, t turn) (stream, bool)
}

var (
	anthropic = api{
		fault: func(status int, message string) any {
			kind, ok := anthropicErrors[status]
			if !ok {
				kind = "api_error"
			}
			return fields{"type": "error", "error": fields{"type": kind, "message": orStatus(status, message)}}
		},
		open: func(w http.ResponseWriter, t turn) (stream, bool) {
			w.Header().Set("Request-Id", fmt.Sprintf("req_fake%03d", t.number))
			if !t.stream {
				return &message{w: w, turn: t}, true
			}
			return messages{openSSE(w), t}, true
		},
	}
	openai = api{
		fault: func(status int, message string) any {
			return fields{"error": fields{"message": orStatus(status, message), "type": "fake_error", "code": fmt.Sprintf("fake_%d", status)}}
		},
		open: func(w http.ResponseWriter, t turn) (stream, bool) {
			if !t.stream { // Codex always streams
				writeJSON(w, http.StatusBadRequest, openai400)
				return nil, false
			}
			return responses{openSSE(w), t}, true
		},
	}
	openai400 = fields{"error": fields{"message": "fakemodel answers /v1/responses only with stream true", "type": "fake_error", "code": "fake_400"}}
)

// anthropicErrors are the error types of the Messages API by HTTP status.
var anthropicErrors = map[int]string{
	400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
	413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 529: "overloaded_error",
}

func orStatus(status int, message string) string {
	if message != "" {
		return message
	}
	if text := http.StatusText(status); text != "" {
		return text
	}
	return fmt.Sprintf("status %d", status)
}

// The agents spell an MCP tool's name for the model in their own ways
// (facts/claude.md section 4, facts/codex.md table K and section 6). Not done
// here: the hashes with which Codex tells colliding names apart and, at 0.144.1,
// shortens those of more than 62 characters; give such a call by Name.
var (
	notClaude = regexp.MustCompile(`[^A-Za-z0-9_-]`)
	notCodex  = regexp.MustCompile(`[^A-Za-z0-9_]`)
)

// claudeName is the flat name that Claude Code offers the tool under.
func (c Call) claudeName() string {
	if c.Name != "" {
		return c.Name
	}
	return "mcp__" + notClaude.ReplaceAllString(c.Server, "_") + "__" + notClaude.ReplaceAllString(c.Tool, "_")
}

// codexName is the namespace and name that Codex offers the tool under.
func (c Call) codexName() (namespace, name string) {
	if c.Name != "" {
		return c.Namespace, c.Name
	}
	return "mcp__" + notCodex.ReplaceAllString(c.Server, "_"), notCodex.ReplaceAllString(c.Tool, "_")
}

func (t turn) id(kind string) string { return fmt.Sprintf("%s_fake%03d", kind, t.number) }

func (t turn) indexed(kind string, index int) string {
	return fmt.Sprintf("%s_fake%03d%02d", kind, t.number, index)
}

// messages streams an answer of Anthropic's Messages API.
type messages struct {
	sse
	turn
}

func (m messages) begin() {
	m.event("message_start", fields{"message": m.envelope([]any{}, nil, 1)})
	m.event("ping", fields{})
}

// envelope is the message object. At message_start output is 1 and not final, as on the real API.
func (t turn) envelope(content []any, stop any, output int) fields {
	return fields{
		"id": t.id("msg"), "type": "message", "role": "assistant", "model": t.model,
		"content": content, "stop_reason": stop, "stop_sequence": nil,
		"usage": fields{
			"input_tokens": t.usage.Input, "cache_creation_input_tokens": t.usage.CacheWrite,
			"cache_read_input_tokens": t.usage.CacheRead, "output_tokens": output, "service_tier": "standard",
		},
	}
}

func (m messages) block(index int, block fields, deltas ...fields) {
	m.event("content_block_start", fields{"index": index, "content_block": block})
	for _, delta := range deltas {
		m.event("content_block_delta", fields{"index": index, "delta": delta})
	}
	m.event("content_block_stop", fields{"index": index})
}

func (m messages) openText(index int) {
	m.event("content_block_start", fields{"index": index, "content_block": fields{"type": "text", "text": ""}})
}

func (m messages) delta(index int, text string) {
	m.event("content_block_delta", fields{"index": index, "delta": fields{"type": "text_delta", "text": text}})
}

func (m messages) closeText(index int, _ string) {
	m.event("content_block_stop", fields{"index": index})
}

func (m messages) thinking(index int, text string) {
	m.block(index, fields{"type": "thinking", "thinking": "", "signature": ""},
		fields{"type": "thinking_delta", "thinking": text}, fields{"type": "signature_delta", "signature": "c2ln"})
}

func (m messages) call(index int, call Call) {
	m.block(index, fields{"type": "tool_use", "id": m.indexed("toolu", index), "name": call.claudeName(), "input": fields{}},
		fields{"type": "input_json_delta", "partial_json": string(call.arguments())})
}

func (m messages) raw(index int, raw Raw) bool {
	if raw.Anthropic != nil {
		m.event("content_block_start", fields{"index": index, "content_block": raw.Anthropic})
		m.event("content_block_stop", fields{"index": index})
	}
	return raw.Anthropic != nil
}

func (m messages) fail(fault Fault) {
	m.event("error", fields{"error": fields{"type": fault.Code, "message": fault.Message}})
}

func (m messages) end(stop string) {
	m.event("message_delta", fields{
		"delta": fields{"stop_reason": stop, "stop_sequence": nil},
		"usage": fields{"output_tokens": m.usage.Output},
	})
	m.event("message_stop", fields{})
}

// message is an answer of the Messages API without a stream.
type message struct {
	turn
	w       http.ResponseWriter
	content []any
}

func (m *message) begin()            { m.content = []any{} }
func (m *message) openText(int)      {}
func (m *message) delta(int, string) {}

func (m *message) closeText(_ int, text string) {
	m.content = append(m.content, fields{"type": "text", "text": text})
}

func (m *message) thinking(_ int, text string) {
	m.content = append(m.content, fields{"type": "thinking", "thinking": text, "signature": "c2ln"})
}

func (m *message) call(index int, call Call) {
	m.content = append(m.content, fields{
		"type": "tool_use", "id": m.indexed("toolu", index), "name": call.claudeName(), "input": call.arguments(),
	})
}

func (m *message) raw(_ int, raw Raw) bool {
	if raw.Anthropic != nil {
		m.content = append(m.content, raw.Anthropic)
	}
	return raw.Anthropic != nil
}

func (m *message) fail(fault Fault) {
	writeJSON(m.w, http.StatusInternalServerError, fields{"type": "error", "error": fields{"type": fault.Code, "message": fault.Message}})
}

func (m *message) end(stop string) {
	writeJSON(m.w, http.StatusOK, m.envelope(m.content, stop, m.usage.Output))
}

// responses streams an answer of OpenAI's Responses API.
type responses struct {
	sse
	turn
}

func (r responses) begin() {
	r.event("response.created", fields{"response": fields{"id": r.id("resp")}})
}

func (r responses) item(index int, added, done any) {
	r.event("response.output_item.added", fields{"output_index": index, "item": added})
	r.event("response.output_item.done", fields{"output_index": index, "item": done})
}

func (r responses) text(index int, content ...any) fields {
	return fields{"type": "message", "role": "assistant", "id": r.indexed("msg", index), "content": append([]any{}, content...)}
}

func (r responses) openText(index int) {
	r.event("response.output_item.added", fields{"output_index": index, "item": r.text(index)})
}

func (r responses) delta(index int, text string) {
	r.event("response.output_text.delta", fields{
		"item_id": r.indexed("msg", index), "output_index": index, "content_index": 0, "delta": text,
	})
}

func (r responses) closeText(index int, text string) {
	r.event("response.output_item.done", fields{
		"output_index": index, "item": r.text(index, fields{"type": "output_text", "text": text}),
	})
}

func (r responses) thinking(index int, text string) {
	item := fields{
		"type": "reasoning", "id": r.indexed("rs", index),
		"summary": []any{fields{"type": "summary_text", "text": text}},
	}
	r.item(index, item, item)
}

func (r responses) call(index int, call Call) {
	namespace, name := call.codexName()
	item := func(arguments string) fields {
		item := fields{
			"type": "function_call", "id": r.indexed("fc", index), "call_id": r.indexed("call", index),
			"name": name, "arguments": arguments,
		}
		if namespace != "" {
			item["namespace"] = namespace
		}
		return item
	}
	r.item(index, item(""), item(string(call.arguments())))
}

func (r responses) raw(index int, raw Raw) bool {
	if raw.OpenAI != nil {
		r.item(index, raw.OpenAI, raw.OpenAI)
	}
	return raw.OpenAI != nil
}

func (r responses) fail(fault Fault) {
	r.event("response.failed", fields{"response": fields{
		"id": r.id("resp"), "error": fields{"code": fault.Code, "message": fault.Message},
	}})
}

// incomplete are the stops that the Responses API tells as response.incomplete, with its reasons for them.
var incomplete = map[string]string{"max_tokens": "max_output_tokens", "refusal": "content_filter"}

func (r responses) end(stop string) {
	input := r.usage.Input + r.usage.CacheRead + r.usage.CacheWrite
	response := fields{"id": r.id("resp"), "usage": fields{
		"input_tokens": input, "input_tokens_details": fields{"cached_tokens": r.usage.CacheRead},
		"output_tokens": r.usage.Output, "output_tokens_details": fields{"reasoning_tokens": 0},
		"total_tokens": input + r.usage.Output,
	}}
	if reason, ok := incomplete[stop]; ok {
		response["incomplete_details"] = fields{"reason": reason}
		r.event("response.incomplete", fields{"response": response})
		return
	}
	r.event("response.completed", fields{"response": response})
}

var (
	_ stream = messages{}
	_ stream = (*message)(nil)
	_ stream = responses{}
)
