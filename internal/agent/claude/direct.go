package claude

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"nightporter/internal/agent"
	"nightporter/internal/secret"
)

// TakesDirect implements [agent.Wirer].
func (Adapter) TakesDirect() {}

// entry is a server in Claude Code's JSON. What was written as JSON stays as it was, with what it refers to in place of the
// references: Claude Code would send one that it cannot resolve literally (§3.1).
func entry(d *agent.Direct) (json.RawMessage, error) {
	members := map[string]json.RawMessage{}
	if !d.Written.Empty() {
		if err := json.Unmarshal([]byte(d.Written.Reveal()), &members); err != nil {
			return nil, fmt.Errorf("make the MCP config of the run: server %s: its definition is no object", d.Name)
		}
	} else if d.ToolTimeout > 0 {
		members["timeout"] = marshal(d.ToolTimeout.Milliseconds())
	}
	var texts []string
	set := func(key string, value any, all ...string) {
		members[key] = marshal(value)
		texts = append(texts, all...)
	}
	table := func(key string, values map[string]secret.String) {
		revealed := make(map[string]string, len(values))
		for name, value := range values {
			revealed[name] = value.Reveal()
			texts = append(texts, value.Reveal())
		}
		if len(revealed) > 0 {
			set(key, revealed)
		}
	}
	switch {
	case d.Command != "":
		command, args := d.Command, append([]string{}, d.Args...)
		if d.Cwd != "" {
			// Claude Code starts servers in its own folder, whatever cwd says (measured).
			if runtime.GOOS == "windows" {
				return nil, fmt.Errorf("make the MCP config of the run: server %s has a cwd, which Claude Code does not know, and there is no shell to go there", d.Name)
			}
			command, args = "/bin/sh", append([]string{"-c", `cd -- "$0" && exec "$@"`, d.Cwd, d.Command}, d.Args...)
		}
		set("type", "stdio")
		set("command", command, command)
		set("args", args, args...)
		table("env", d.Env)
	default:
		kind := "http"
		if d.SSE {
			kind = "sse"
		}
		set("type", kind)
		set("url", d.URL.Reveal(), d.URL.Reveal())
		table("headers", d.Headers)
		if d.HeadersHelper != "" {
			set("headersHelper", d.HeadersHelper)
		}
	}
	if slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, "${") }) {
		return nil, fmt.Errorf("make the MCP config of the run: a value of server %s contains ${, which Claude Code would take for a reference", d.Name)
	}
	return marshal(members), nil
}

// marshal encodes what cannot fail to be: texts, numbers, and JSON that was read as such.
func marshal(v any) json.RawMessage {
	data, _ := json.Marshal(v)
	return data
}

// rules are the permission rules that let the granted tools of a server run without asking, and those that refuse what is denied whatever
// else allows it. Patterns are left to the proof, which says that they are not enforced.
func rules(d *agent.Direct) (allow, deny []string) {
	whole := "mcp__" + sanitise(d.Name)
	tool := func(name string) string { return whole + "__" + sanitise(name) }
	if d.Allow == nil || slices.ContainsFunc(d.Allow, agent.IsGlob) {
		allow = append(allow, whole)
	} else {
		for _, name := range d.Allow {
			allow = append(allow, tool(name))
		}
	}
	for _, name := range d.Deny {
		if !agent.IsGlob(name) {
			deny = append(deny, tool(name))
		}
	}
	return allow, deny
}
