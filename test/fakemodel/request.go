package fakemodel

import (
	"encoding/json"
	"net/http"
	"strings"
)

// Request is a request that an agent made.
type Request struct {
	Method string      `json:"method"`
	Path   string      `json:"path"` // with the query
	Header http.Header `json:"header"`
	Body   []byte      `json:"-"`
	Step   int         `json:"step"` // the script's step that answered it; -1 when it did not ask the model
}

// body is what both APIs' requests may hold that tests ask about.
type body struct {
	Tools []struct {
		Type  string `json:"type"`
		Name  string `json:"name"`
		Tools []struct {
			Name string `json:"name"`
		} `json:"tools"` // of a Codex namespace
	} `json:"tools"`
	Messages []struct { // Anthropic
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"` // a string, or blocks
	} `json:"messages"`
	Input []struct { // OpenAI
		Type   string          `json:"type"`
		Role   string          `json:"role"`
		CallID string          `json:"call_id"`
		Output json.RawMessage `json:"output"` // a string, or content parts
	} `json:"input"`
}

func (r Request) parse() body {
	var b body
	_ = json.Unmarshal(r.Body, &b) // what does not fit stays empty
	return b
}

// Tools are the names of the tools that the request offers to the model, in the
// request's order. MCP tools read mcp__SERVER__TOOL for both agents: what Codex
// sends as a namespace with tools is joined.
func (r Request) Tools() []string {
	var names []string
	for _, tool := range r.parse().Tools {
		switch {
		case tool.Type == "namespace":
			for _, inner := range tool.Tools {
				names = append(names, tool.Name+"__"+inner.Name)
			}
		case tool.Name != "":
			names = append(names, tool.Name)
		default:
			names = append(names, tool.Type) // OpenAI's built-in tools have only a type
		}
	}
	return names
}

// MCPTools are those of Tools that come from an MCP server.
func (r Request) MCPTools() []string {
	var names []string
	for _, name := range r.Tools() {
		if strings.HasPrefix(name, "mcp__") {
			names = append(names, name)
		}
	}
	return names
}

// ToolResult is what an agent told the model about a call.
type ToolResult struct {
	ID      string // the call's id
	Text    string // its text; the raw JSON where it is not text alone
	IsError bool   // Anthropic only
}

// ToolResults are the results of all calls in the request's history, oldest first.
func (r Request) ToolResults() []ToolResult {
	var results []ToolResult
	parsed := r.parse()
	for _, message := range parsed.Messages {
		var blocks []struct {
			Type    string          `json:"type"`
			ID      string          `json:"tool_use_id"`
			Content json.RawMessage `json:"content"`
			IsError bool            `json:"is_error"`
		}
		if json.Unmarshal(message.Content, &blocks) != nil {
			continue // a plain string
		}
		for _, block := range blocks {
			if block.Type == "tool_result" {
				results = append(results, ToolResult{block.ID, plain(block.Content), block.IsError})
			}
		}
	}
	for _, item := range parsed.Input {
		if item.Type == "function_call_output" {
			results = append(results, ToolResult{ID: item.CallID, Text: plain(item.Output)})
		}
	}
	return results
}

// plain is the text of a JSON string or of a list of text parts, else the JSON itself.
func plain(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var parts []struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return string(raw)
	}
	var texts []string
	for _, part := range parts {
		if part.Text == nil {
			return string(raw)
		}
		texts = append(texts, *part.Text)
	}
	return strings.Join(texts, "\n")
}
