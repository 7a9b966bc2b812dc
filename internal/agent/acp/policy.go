package acp

import (
	"encoding/json"
	"slices"
	"strings"

	"nightporter/internal/agent"
)

// policy answers requests for permission.
type policy struct {
	mode    agent.ToolMode
	kinds   []string          // of the agent's own tools that are allowed, in the protocol's words
	all     bool              // all of its own tools are
	exposed map[string]string // the gateway's names of its tools, by the names that agents give them
	gateway *agent.Gateway
}

// prefixes are what agents put before the name of a server's tool: claude-agent-acp, Gemini CLI, Goose, OpenCode.
var prefixes = []string{"mcp__" + agent.GatewayName + "__", "mcp_" + agent.GatewayName + "_", agent.GatewayName + "__", agent.GatewayName + "_"}

func newPolicy(r agent.Request) policy {
	p := policy{mode: r.Mode, exposed: make(map[string]string), gateway: r.Gateway}
	switch r.BuiltIn {
	case agent.BuiltInReadOnly:
		p.kinds = []string{"read", "search"}
	case agent.BuiltInAll:
		p.all = true
	}
	if p.gateway != nil {
		for _, tool := range p.gateway.Tools {
			for _, prefix := range prefixes {
				p.exposed[prefix+sanitise(tool)] = tool
			}
		}
	}
	return p
}

// sanitise is a tool's name as agents give it to a model.
func sanitise(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, name)
}

// allows reports whether a call may be made. A title decides nothing: it holds what the model wrote.
func (p *policy) allows(c *call, kind string) bool {
	_, ours := p.exposed[c.name]
	switch {
	case p.mode == agent.Bypass, ours:
		return true
	case strings.HasPrefix(c.name, "mcp_"), kind == "switch_mode":
		return false // another server's; and a mode in which it need not ask
	}
	return p.all || slices.Contains(p.kinds, kind)
}

// real is a call's name as an outcome has it.
func (p *policy) real(c *call, input json.RawMessage) string {
	exposed, ours := p.exposed[c.name]
	switch {
	case ours:
		if server, tool, ok := p.gateway.RawName(exposed, input); ok {
			return "mcp__" + server + "__" + tool
		}
		return "mcp__" + agent.GatewayName + "__" + exposed
	case c.name != "":
		return agent.Activity(c.name)
	case c.title != "":
		return c.title
	}
	return "a tool without a name"
}
