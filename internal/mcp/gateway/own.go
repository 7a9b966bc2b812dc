package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/wire"
)

// Nightporter has tools of its own, for clients that see the others by search and for those whose results may be kept aside. They are
// called like tools of a server nightporter, which no configuration may define, so that no other tool has such a name (A3, A18).

// ownServer is the server that our own tools are told of under.
const ownServer = "nightporter"

// ownTool is one of them.
type ownTool struct {
	name       string // as clients see it
	definition json.RawMessage
	call       func(c *client, ctx context.Context, r request) (json.RawMessage, *wire.RPCError)
}

// The tools of our own.
var findTool, describeTool, callTool, readTool *ownTool

func init() {
	// Not composite literals of the variables: what they do refers to them.
	findTool = answering("find_tools", findDefinition, (*client).find)
	describeTool = answering("describe_tool", describeDefinition, (*client).describe)
	callTool = &ownTool{ownName("call_tool"), definitionOf("call_tool", callDefinition), (*client).callFound}
	readTool = answering("read_result", readDefinition, (*client).readResult)
}

func ownName(name string) string { return ownServer + separator + name }

// definitionOf is a definition with its name. Claude Code, which loads tools late by default, loads these at once: they are how the others are
// reached.
func definitionOf(name, definition string) json.RawMessage {
	d := wire.Set(wire.Set(nil, wire.Quote(ownName(name)), "name"), json.RawMessage("true"), "_meta", "anthropic/alwaysLoad")
	members, err := wire.Members([]byte(definition))
	if err != nil {
		panic("gateway: definition of " + name + ": " + err.Error()) // a constant of ours
	}
	for _, m := range members {
		d = wire.Set(d, m.Value, m.Key)
	}
	return d
}

// answering makes a tool that answers by itself. An error is the tool's own: a model can act on it.
func answering(name, definition string, do func(c *client, ctx context.Context, arguments json.RawMessage) (json.RawMessage, error)) *ownTool {
	return &ownTool{ownName(name), definitionOf(name, definition), func(c *client, ctx context.Context, r request) (json.RawMessage, *wire.RPCError) {
		arguments := orEmpty(wire.Get(r.params, "arguments"))
		call := Call{Time: time.Now(), Client: c.name(), Server: ownServer, Tool: name, Exposed: ownName(name), Arguments: arguments}
		result, err := do(c, ctx, arguments)
		if err != nil {
			result = toolError(err)
		}
		call.Outcome, call.Detail = Judge(runtime.Answer{Message: wire.Message{Result: result}}, nil)
		call.ResultBytes = len(result)
		c.record(call)
		return result, nil
	}}
}

// textResult is the result of a tool that says this.
func textResult(text string) json.RawMessage {
	return wire.Encode(map[string]any{"content": []map[string]string{{"type": "text", "text": text}}})
}

// own are the tools of ours that clients of a scope see.
func (e *Endpoint) own(s *runtime.Scope) (tools []*ownTool) {
	if e.p.Exposure == ExposeSearch {
		tools = append(tools, findTool, describeTool, callTool)
	}
	if e.limited(s) {
		tools = append(tools, readTool)
	}
	return tools
}

// own are the tools of ours that the client sees. What a single server calls so itself is its own, unless its tools are
// found by search.
func (c *client) ownTools() (tools []*ownTool) {
	for _, t := range c.e.own(c.scope) {
		if _, taken := c.tool(t.name); !taken || c.e.p.Exposure == ExposeSearch {
			tools = append(tools, t)
		}
	}
	return tools
}

func (c *client) ownTool(name string) *ownTool {
	for _, t := range c.ownTools() {
		if t.name == name {
			return t
		}
	}
	return nil
}

// whole reads an optional whole number of a call's arguments.
func whole(arguments json.RawMessage, key string, otherwise int64) (int64, error) {
	raw := wire.Get(arguments, key)
	if raw == nil || string(raw) == "null" {
		return otherwise, nil
	}
	var n float64 // models write 10.0 as well
	if json.Unmarshal(raw, &n) != nil || n != float64(int64(n)) || n < 0 {
		return 0, errors.New(key + " is not a whole number of 0 or more")
	}
	return int64(n), nil
}
