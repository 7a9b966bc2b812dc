package gateway

import (
	"bytes"
	"encoding/json"

	"nightporter/internal/mcp/wire"
)

// What servers say to a client of several has names in it that are good for one server alone. They are replaced by those that the
// client sees; nothing else is changed. A client of a single server gets everything as it is.

// outward is a server's result of a request, as the client sees it.
func (c *client) outward(server, method string, result json.RawMessage) json.RawMessage {
	if c.e.p.Single != "" || result == nil {
		return result
	}
	if bytes.Contains(result, []byte(`uri"`)) {
		switch method {
		case wire.ToolsCall, wire.TasksResult:
			result = c.contents(server, result)
		case wire.TasksGet:
			if inner := wire.Get(result, "result"); inner != nil {
				if changed := c.contents(server, inner); string(changed) != string(inner) {
					result = wire.Set(result, changed, "result")
				}
			}
		case wire.PromptsGet:
			result = each(result, "messages", func(message json.RawMessage) json.RawMessage {
				piece := wire.Get(message, "content")
				if changed := c.content(server, piece); string(changed) != string(piece) {
					return wire.Set(message, changed, "content")
				}
				return message
			})
		case wire.ResourcesRead:
			result = each(result, "contents", func(piece json.RawMessage) json.RawMessage { return c.relabelled(server, piece, "uri") })
		}
	}
	return c.taskOutward(server, method, result)
}

// contents is the result of a tool.
func (c *client) contents(server string, result json.RawMessage) json.RawMessage {
	return each(result, "content", func(piece json.RawMessage) json.RawMessage { return c.content(server, piece) })
}

// outwardNote is a notification, or a request, of a server, as the client sees it.
func (c *client) outwardNote(server string, m wire.Message) wire.Message {
	if c.e.p.Single != "" {
		return m
	}
	switch m.Method {
	case wire.ResourceUpdated:
		m.Params = c.relabelled(server, m.Params, "uri")
	case wire.TaskStatus:
		m.Params = c.retasked(server, m.Params, "taskId")
	case wire.TaskChanged:
		m.Params = c.outward(server, wire.TasksGet, m.Params)
	}
	m.Params = c.retasked(server, m.Params, "_meta", wire.MetaTask, "taskId")
	return m
}
