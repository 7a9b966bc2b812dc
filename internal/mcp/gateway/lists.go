package gateway

import (
	"context"
	"encoding/json"

	"nightporter/internal/mcp/wire"
)

func (c *client) tools() []tool {
	listed, _ := c.view.of(c.e, c.scope)
	return listed
}

func (c *client) tool(name string) (tool, bool) {
	_, byName := c.view.of(c.e, c.scope)
	t, ok := byName[name]
	return t, ok
}

// list makes the answer of a list method.
func list(member string, items []json.RawMessage) json.RawMessage {
	size := len(member) + 8
	for _, item := range items {
		size += len(item) + 1
	}
	b := make([]byte, 0, size)
	b = append(append(append(b, `{"`...), member...), `":[`...)
	for i, item := range items {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, item...)
	}
	return append(b, "]}"...)
}

func (c *client) listTools(context.Context, request) (json.RawMessage, *wire.RPCError) {
	var raws []json.RawMessage
	for _, t := range c.ownTools() {
		raws = append(raws, t.definition)
	}
	if c.e.p.Exposure != ExposeSearch {
		for _, t := range c.tools() {
			raws = append(raws, c.definition(t))
		}
	}
	return list("tools", raws), nil
}

// definition is a tool's definition for the client: as its server sent it, under the name that clients see. Where results may be kept aside,
// nothing is promised of their form (docs/decisions/0008-long-results.md).
func (c *client) definition(t tool) json.RawMessage {
	raw := t.Raw
	if c.e.limit(t.Server) > 0 {
		raw = wire.Set(raw, nil, "outputSchema")
	}
	raw = renamed(raw, t.Name, t.exposed)
	if c.e.p.Single != "" {
		return raw
	}
	for _, key := range uiKeys {
		raw = c.relabelled(t.Server, raw, key...)
	}
	// That a tool may be called as a task counts where its server takes tasks (specification 2025-11-25, "Tool-Level Negotiation"),
	// which the client cannot see of one server among several.
	taking := []string{"requests", "tools", "call"}
	if support, ok := wire.GetString(raw, "execution", "taskSupport"); ok && support != "forbidden" && c.offersTasks(false, taking...) {
		if about, ok := c.scope.Hello(t.Server); ok && wire.Get(about.Capabilities, append([]string{"tasks"}, taking...)...) == nil {
			raw = wire.Set(raw, json.RawMessage(`"forbidden"`), "execution", "taskSupport")
		}
	}
	return raw
}

func (c *client) listPrompts(context.Context, request) (json.RawMessage, *wire.RPCError) {
	var raws []json.RawMessage
	for _, item := range c.scope.Prompts() {
		raws = append(raws, renamed(item.Raw, item.Name, c.e.expose(item.Server, item.Name)))
	}
	return list("prompts", raws), nil
}

func (c *client) listResources(context.Context, request) (json.RawMessage, *wire.RPCError) {
	items := c.scope.Resources()
	raws := make([]json.RawMessage, len(items))
	for i, item := range items {
		raws[i] = c.relabelled(item.Server, item.Raw, "uri")
	}
	return list("resources", raws), nil
}

func (c *client) listTemplates(context.Context, request) (json.RawMessage, *wire.RPCError) {
	items := c.scope.Templates()
	raws := make([]json.RawMessage, len(items))
	for i, item := range items {
		raws[i] = item.Raw
		if exposed := c.exposedTemplate(item.Server, item.Name); exposed != item.Name {
			raws[i] = wire.Set(item.Raw, wire.Quote(exposed), "uriTemplate")
		}
	}
	if c.e.limited(c.scope) {
		raws = append(raws, resultTemplate)
	}
	return list("resourceTemplates", raws), nil
}

func renamed(raw json.RawMessage, name, exposed string) json.RawMessage {
	if name == exposed {
		return raw
	}
	return wire.Set(raw, wire.Quote(exposed), "name")
}
