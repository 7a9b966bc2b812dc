package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"nightporter/internal/mcp/search"
	"nightporter/internal/mcp/wire"
)

// How a client finds, describes and calls tools when it does not see them all (A21).

const findDefinition = `{
"title": "Find tools",
"description": "Finds tools by what they do. There are more tools than are listed: look here before you say that there is none for a task. Words are looked for in names, descriptions and parameters; the best fit comes first. Parameters with * are required.",
"inputSchema": {"type": "object", "properties": {
 "query": {"type": "string", "description": "What the tool should do, in a few words, such as: create an issue. Empty lists all."},
 "server": {"type": "string", "description": "Only tools of this server."},
 "limit": {"type": "integer", "minimum": 1, "maximum": 50, "description": "How many to show at most; 10 when left out."}},
 "required": ["query"]},
"annotations": {"readOnlyHint": true, "destructiveHint": false, "idempotentHint": true, "openWorldHint": false}}`

const describeDefinition = `{
"title": "Describe a tool",
"description": "Returns the whole definition of a tool: its description, and the JSON Schema of its arguments.",
"inputSchema": {"type": "object", "properties": {
 "name": {"type": "string", "description": "The tool's name, as nightporter__find_tools gives it."}},
 "required": ["name"]},
"annotations": {"readOnlyHint": true, "destructiveHint": false, "idempotentHint": true, "openWorldHint": false}}`

const callDefinition = `{
"title": "Call a tool",
"description": "Calls a tool that nightporter__find_tools found, and returns what it answers.",
"inputSchema": {"type": "object", "properties": {
 "name": {"type": "string", "description": "The tool's name, as nightporter__find_tools gives it."},
 "arguments": {"type": "object", "description": "The tool's arguments, as its own inputSchema says.", "additionalProperties": true}},
 "required": ["name"]}}`

const (
	// findLimit and maxFind are how many tools an answer shows: ten, of some 300 bytes each, are read at a glance.
	findLimit = 10
	maxFind   = 50
	// maxGist bounds what is shown of a description, and maxParameters the names of parameters: the rest is in the definition.
	maxGist       = 200
	maxParameters = 20
	// maxServers bounds the names of servers in a text.
	maxServers = 50
)

// finder is the index of the tools that a client, or a run, sees. It is made when it is first asked.
type finder struct {
	mu      sync.Mutex
	index   *search.Index
	version uint64 // of the scope, of which the index is
	closed  bool
}

// of returns the index of what the client sees now.
func (f *finder) of(ctx context.Context, c *client) (*search.Index, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	version := c.scope.Version() // before the tools are read: they may change meanwhile
	switch {
	case f.closed:
		return nil, errClosing
	case f.index != nil && f.version == version:
		return f.index, nil
	case f.index == nil:
		index, err := search.New()
		if err != nil {
			return nil, err
		}
		f.index = index
	}
	listed := c.tools()
	tools := make([]search.Tool, len(listed))
	for i, t := range listed {
		tools[i] = search.Tool{Server: t.Server, Name: t.exposed, Raw: t.Raw}
	}
	if err := f.index.Update(ctx, tools); err != nil {
		return nil, err
	}
	f.version = version
	return f.index, nil
}

func (f *finder) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	if f.index != nil {
		_ = f.index.Close() // memory alone
	}
}

func (c *client) find(ctx context.Context, arguments json.RawMessage) (json.RawMessage, error) {
	query, ok := wire.GetString(arguments, "query")
	if !ok && wire.Get(arguments, "query") != nil {
		return nil, errors.New("query is not a text")
	}
	server, _ := wire.GetString(arguments, "server")
	limit, err := whole(arguments, "limit", findLimit)
	if err != nil {
		return nil, err
	}
	limit = min(max(limit, 1), maxFind)
	if server != "" && !c.scope.Has(server) {
		return nil, fmt.Errorf("there is no server %q here. %s", server, serversOf(c.tools()))
	}
	index, err := c.aside().finder.of(ctx, c)
	if err != nil {
		return nil, err
	}
	hits, total, err := index.Find(ctx, query, server, int(limit))
	var b strings.Builder
	switch {
	case errors.Is(err, search.ErrNoWords):
		hits, total = c.all(server, int(limit))
		fmt.Fprintf(&b, "%s, of which these are the first %d:\n", count(total, "tool"), len(hits))
	case err != nil:
		return nil, err
	case total == 0:
		return textResult(fmt.Sprintf("No tool fits %q. Try other words. %s", query, serversOf(c.tools()))), nil
	case total == len(hits):
		fmt.Fprintf(&b, "%s, the best first:\n", count(total, "tool"))
	default:
		fmt.Fprintf(&b, "%s, of which these are the best %d; more words, or a server, leave fewer:\n", count(total, "tool"), len(hits))
	}
	for _, h := range hits {
		b.WriteString("\n" + h.Name)
		if h.Score > 0 {
			fmt.Fprintf(&b, " (score %.1f)", h.Score)
		}
		if gist := gist(h.Raw); gist != "" {
			b.WriteString("\n  " + gist)
		}
		if parameters := parametersOf(h.Raw); parameters != "" {
			b.WriteString("\n  parameters: " + parameters)
		}
	}
	return textResult(b.String()), nil
}

// all are the first tools in their order, of one server or of all, and how many there are.
func (c *client) all(server string, limit int) (hits []search.Hit, total int) {
	for _, t := range c.tools() {
		if server != "" && t.Server != server {
			continue
		}
		if total++; total <= limit {
			hits = append(hits, search.Hit{Tool: search.Tool{Server: t.Server, Name: t.exposed, Raw: t.Raw}})
		}
	}
	return hits, total
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// gist is the beginning of a tool's description, on one line.
func gist(raw json.RawMessage) string {
	text, _ := wire.GetString(raw, "description")
	if text == "" {
		text, _ = wire.GetString(raw, "title")
	}
	if len(text) > 8*maxGist { // fields that are looked at for nothing
		text = strings.ToValidUTF8(text[:8*maxGist], "")
	}
	return shortened(strings.Join(strings.Fields(text), " "), maxGist)
}

// shortened cuts a text after so many characters, and says so.
func shortened(text string, most int) string {
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "…"
	}
	return text
}

func parametersOf(raw json.RawMessage) string {
	var names []string
	parameters := search.Parameters(raw)
	for i, p := range parameters {
		if i == maxParameters {
			names = append(names, fmt.Sprintf("and %d more", len(parameters)-i))
			break
		}
		name := shortened(p.Name, maxName)
		if p.Required {
			name += "*"
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// serversOf says which servers have tools.
func serversOf(listed []tool) string {
	var names []string
	counts := map[string]int{}
	for _, t := range listed {
		if counts[t.Server]++; counts[t.Server] == 1 {
			names = append(names, t.Server)
		}
	}
	if len(names) == 0 {
		return "No server has tools here."
	}
	for i, name := range names {
		if i == maxServers {
			names = append(names[:i], fmt.Sprintf("and %d more", len(names)-i))
			break
		}
		names[i] = fmt.Sprintf("%s (%s)", name, count(counts[name], "tool"))
	}
	return "Servers: " + strings.Join(names, ", ") + "."
}

// found is the tool of a name that a client has from find. Tools that are for apps alone are not among them.
func (c *client) found(name string) (tool, bool) {
	t, ok := c.tool(name)
	return t, ok && !t.app
}

func (c *client) describe(_ context.Context, arguments json.RawMessage) (json.RawMessage, error) {
	name, ok := wire.GetString(arguments, "name")
	if !ok {
		return nil, errors.New("name is not a text")
	}
	t, ok := c.found(name)
	if !ok {
		return nil, noTool(name)
	}
	return textResult(string(c.definition(t))), nil
}

func noTool(name string) error {
	return fmt.Errorf("there is no tool %q here; %s finds those that there are", shortened(name, 2*maxName), findTool.name)
}

// callFound calls the tool that the arguments name, in every respect as if the client had called it itself.
func (c *client) callFound(ctx context.Context, r request) (json.RawMessage, *wire.RPCError) {
	name, arguments, err := callee(wire.Get(r.params, "arguments"))
	t, ok := c.found(name)
	if err == nil && !ok {
		err = noTool(name)
	}
	if err != nil {
		call := Call{Time: time.Now(), Client: c.name(), Exposed: cmp.Or(name, callTool.name), Arguments: arguments, Outcome: OutcomeRefused, Detail: err.Error()}
		call.Server, call.Tool = meant(call.Exposed)
		c.record(call)
		return toolError(err), nil
	}
	r.params = wire.Set(wire.Set(r.params, wire.Quote(name), "name"), arguments, "arguments")
	r.header = nil // they repeat what the client called
	return c.callAs(ctx, r, name, t)
}

// callee reads which tool call_tool is to call. Models that are used to functions write the arguments as a text that holds
// them; no tool takes a text, so that this cannot be misread.
func callee(outer json.RawMessage) (name string, arguments json.RawMessage, err error) {
	if err := wire.Unambiguous(orEmpty(outer), "name", "arguments"); err != nil {
		return "", nil, err
	}
	name, ok := wire.GetString(outer, "name")
	if !ok {
		return "", nil, errors.New("name is not a text")
	}
	arguments = wire.Get(outer, "arguments")
	if inner, ok := wire.Text(arguments); ok {
		arguments = json.RawMessage(inner)
	}
	if arguments == nil || string(arguments) == "null" {
		arguments = json.RawMessage("{}")
	}
	if _, err := wire.Members(arguments); err != nil {
		return name, nil, fmt.Errorf("arguments are not an object: %w", err)
	}
	return name, arguments, nil
}

// RawName maps a call of a run's client back to the server and the raw name of its tool: exposed is the name that the client called,
// and arguments what it called it with, which for a call by search say which tool is meant.
func (e *Endpoint) RawName(exposed string, arguments json.RawMessage) (server, tool string, ok bool) {
	for _, t := range e.own(e.fixed) {
		if t.name != exposed {
			continue
		}
		if t == callTool {
			if inner, _ := wire.GetString(arguments, "name"); inner != "" {
				if server, tool, ok = e.rawName(inner); !ok {
					server, tool = meant(inner)
				}
				if server != "" {
					return server, tool, true
				}
			}
		}
		return ownServer, strings.TrimPrefix(exposed, ownServer+separator), true
	}
	return e.rawName(exposed)
}

func (e *Endpoint) rawName(exposed string) (server, tool string, ok bool) {
	_, byName := e.view.of(e, e.fixed)
	t, ok := byName[exposed]
	return t.Server, t.Name, ok
}
