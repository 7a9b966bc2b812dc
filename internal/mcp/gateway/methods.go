package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"nightporter/internal/mcp/authority"
	"nightporter/internal/mcp/server"
	"nightporter/internal/mcp/wire"
)

// exchange is where what belongs to one request of the client goes.
type exchange struct {
	notify func(wire.Message)
	ask    asker // nil when this client cannot be asked
}

// asker sends a request of a server to the client and waits for its answer.
type asker func(ctx context.Context, server string, m wire.Message) (json.RawMessage, *wire.RPCError)

// request is one request of a client, on its way.
type request struct {
	id     json.RawMessage
	method string
	params json.RawMessage
	who    wire.Client // of a stateless request; of the session else
	modern bool
	header http.Header // of a stateless request over HTTP; nil else
	x      exchange
}

// handle answers one request. It blocks until the answer is there.
func (c *client) handle(ctx context.Context, r request) (json.RawMessage, *wire.RPCError) {
	c.touch()
	defer c.touch()
	if err := wire.Unambiguous(orEmpty(r.params), "name", "uri", "arguments", "_meta", "ref", "requestState", "inputResponses", "taskId"); err != nil {
		return nil, wire.Errorf(wire.CodeInvalidParams, "params are refused: %v", err)
	}
	if err := c.start(ctx); err != nil {
		return nil, wire.Errorf(wire.CodeServer, "%v", err)
	}
	if r.modern && removed[r.method] || !r.modern && added[r.method] {
		return nil, wire.Errorf(wire.CodeMethodNotFound, "%s is no method of this protocol revision", r.method)
	}
	do, known := methods[r.method]
	if !known {
		if c.e.p.Single == "" {
			return nil, wire.Errorf(wire.CodeMethodNotFound, "method %q is not known here; the endpoint of one server, /mcp/NAME, passes unknown methods on", r.method)
		}
		do = (*client).forwardSingle
	}
	result, err := do(c, ctx, r)
	if err != nil {
		return nil, err
	}
	if r.modern {
		result = c.modernResult(r, result)
	}
	return result, nil
}

func orEmpty(params json.RawMessage) json.RawMessage {
	if params == nil {
		return json.RawMessage("{}")
	}
	return params
}

// removed and added are the methods that only one era has (facts/mcp.md, section 1.1).
var (
	removed = map[string]bool{wire.Initialize: true, wire.Ping: true, wire.SetLevel: true, wire.Subscribe: true, wire.Unsubscribe: true, wire.TasksResult: true, wire.TasksList: true}
	added   = map[string]bool{wire.Discover: true, wire.Listen: true, wire.TasksUpdate: true}
)

var methods map[string]func(*client, context.Context, request) (json.RawMessage, *wire.RPCError)

func init() {
	// Not a composite literal of the variable: the methods refer to it.
	methods = map[string]func(*client, context.Context, request) (json.RawMessage, *wire.RPCError){
		wire.Initialize: (*client).initialize,
		wire.Discover:   (*client).discover,
		wire.Ping: func(*client, context.Context, request) (json.RawMessage, *wire.RPCError) {
			return json.RawMessage("{}"), nil
		},
		wire.ToolsList:     (*client).listTools,
		wire.PromptsList:   (*client).listPrompts,
		wire.ResourcesList: (*client).listResources,
		wire.TemplatesList: (*client).listTemplates,
		wire.ToolsCall:     (*client).callTool,
		wire.PromptsGet:    (*client).getPrompt,
		wire.ResourcesRead: (*client).forwardResource,
		wire.Subscribe:     (*client).forwardResource,
		wire.Unsubscribe:   (*client).forwardResource,
		wire.Complete:      (*client).complete,
		wire.SetLevel:      (*client).setLevel,
		wire.Listen:        (*client).listen,
		wire.TasksGet:      (*client).onTask,
		wire.TasksCancel:   (*client).onTask,
		wire.TasksResult:   (*client).onTask,
		wire.TasksUpdate:   (*client).onTask,
		wire.TasksList:     (*client).listTasks,
	}
}

// initialize opens a session. What a single server said of itself is said in its place.
func (c *client) initialize(_ context.Context, r request) (json.RawMessage, *wire.RPCError) {
	asked, _ := wire.GetString(r.params, "protocolVersion")
	version := wire.Latest
	if slices.Contains(wire.SessionVersions, asked) {
		version = asked
	}
	about := c.about()
	result := wire.Set(nil, wire.Quote(version), "protocolVersion")
	result = wire.Set(result, about.Capabilities, "capabilities")
	result = wire.Set(result, about.Info, "serverInfo")
	if instructions := c.instructions(); instructions != "" {
		result = wire.Set(result, wire.Quote(instructions), "instructions")
	}
	return result, nil
}

func (c *client) discover(context.Context, request) (json.RawMessage, *wire.RPCError) {
	about := c.about()
	result := wire.Set(nil, wire.Encode(wire.Versions()), "supportedVersions")
	result = wire.Set(result, about.Capabilities, "capabilities")
	if instructions := c.instructions(); instructions != "" {
		result = wire.Set(result, wire.Quote(instructions), "instructions")
	}
	return wire.Set(result, about.Info, "_meta", wire.MetaServerInfo), nil
}

// about is what we say of ourselves, but for the instructions.
func (c *client) about() server.Hello {
	if name := c.e.p.Single; name != "" {
		if h, ok := c.scope.Hello(name); ok {
			if h.Capabilities == nil {
				h.Capabilities = json.RawMessage("{}")
			}
			h.Capabilities = c.withoutTasks(h.Era(), h.Capabilities)
			if h.Info == nil {
				h.Info = c.e.serverInfo()
			}
			if c.e.limited(c.scope) && wire.Get(h.Capabilities, "resources") == nil {
				h.Capabilities = wire.Set(h.Capabilities, json.RawMessage("{}"), "resources")
			}
			h.Capabilities = authority.Advertise(h.Capabilities)
			return h
		}
	}
	h := server.Hello{Info: c.e.serverInfo()}
	capabilities := wire.Set(nil, mergedCapabilities["tools"], "tools")
	for _, capability := range together {
		if c.scope.Unknown() || capability == "resources" && c.e.limited(c.scope) { // of what is still starting anything may come
			capabilities = wire.Set(capabilities, mergedCapabilities[capability], capability)
		}
	}
	for _, name := range c.scope.Servers() {
		if about, ok := c.scope.Hello(name); ok {
			capabilities = c.merge(capabilities, about)
		}
	}
	h.Capabilities = authority.Advertise(capabilities)
	return h
}

// together are the capabilities of what we do for several servers together, beside tools.
var together = []string{"prompts", "resources", "completions", "logging"}

var mergedCapabilities = map[string]json.RawMessage{
	"tools":       json.RawMessage(`{"listChanged":true}`),
	"prompts":     json.RawMessage(`{"listChanged":true}`),
	"resources":   json.RawMessage(`{"listChanged":true,"subscribe":true}`),
	"completions": json.RawMessage("{}"),
	"logging":     json.RawMessage("{}"),
}

// merge adds what one of several servers can do. Of extensions and experiments, which consist of what is in results and in _meta,
// each is there that some server has, as the first says it; their own methods cannot be passed on, since nothing says whose they
// are. Capabilities that we do not know are methods as a rule, and are left out.
func (c *client) merge(capabilities json.RawMessage, about server.Hello) json.RawMessage {
	for _, capability := range together {
		if wire.Get(about.Capabilities, capability) != nil {
			capabilities = wire.Set(capabilities, mergedCapabilities[capability], capability)
		}
	}
	theirs := c.withoutTasks(about.Era(), about.Capabilities)
	for _, group := range []string{"extensions", "experimental"} {
		members, _ := wire.Members(wire.Get(theirs, group))
		for _, m := range members {
			if wire.Get(capabilities, group, m.Key) == nil && !ownExperiments[m.Key] {
				capabilities = wire.Set(capabilities, m.Value, group, m.Key)
			}
		}
	}
	for _, path := range [][]string{{"tasks", "list"}, {"tasks", "cancel"}, {"tasks", "requests", "tools", "call"}} {
		if value := wire.Get(theirs, path...); value != nil && wire.Get(capabilities, path...) == nil {
			capabilities = wire.Set(capabilities, value, path...)
		}
	}
	return capabilities
}

// ownExperiments are those that a server means for us and for itself alone: whether its catalog may be saved, and that it wants
// the state of a sandbox with its calls, which another server must not get.
var ownExperiments = map[string]bool{
	"codex/tool-catalog-cache": true, authority.MetaState: true, authority.MetaStateLegacy: true,
}

// withoutTasks leaves tasks out in the form of one era, for a client of the other (docs/decisions/0011).
func (c *client) withoutTasks(era wire.Era, capabilities json.RawMessage) json.RawMessage {
	path := []string{"tasks"}
	if era == wire.StatelessEra {
		path = []string{"extensions", wire.ExtensionTasks}
	}
	if era == c.era || wire.Get(capabilities, path...) == nil {
		return capabilities
	}
	return wire.Set(capabilities, nil, path...)
}

// Caching hints on what we answer from catalogs (specification 2026-07-28): lists change when a server is woken, which
// clients that listen are told; the others look again after this time. A list is for its client alone.
const (
	maxListTTL = 10 * time.Second
	listPrivat = `"private"`
)

// listTTL is how long a list of ours is good: no longer than any server said of its own.
func (c *client) listTTL() json.RawMessage {
	ttl := maxListTTL.Milliseconds()
	for _, name := range c.scope.Servers() {
		var ms int64
		if about, ok := c.scope.Hello(name); ok && about.TTL != nil && json.Unmarshal(about.TTL, &ms) == nil && ms >= 0 {
			ttl = min(ttl, ms)
		}
	}
	return wire.IntID(ttl)
}

// cacheable are the methods whose results must have caching hints.
var cacheable = map[string]bool{
	wire.Discover: true, wire.ToolsList: true, wire.PromptsList: true, wire.ResourcesList: true, wire.TemplatesList: true, wire.ResourcesRead: true,
}

// modernResult adds to a result what the stateless era wants and an older server did not say.
func (c *client) modernResult(r request, result json.RawMessage) json.RawMessage {
	missing := func(value json.RawMessage, path ...string) {
		if wire.Get(result, path...) == nil {
			result = wire.Set(result, value, path...)
		}
	}
	missing(json.RawMessage(`"complete"`), "resultType")
	if cacheable[r.method] && string(wire.Get(result, "resultType")) == `"complete"` {
		ttl := c.listTTL()
		if r.method == wire.ResourcesRead {
			ttl = json.RawMessage("0")
		}
		missing(ttl, "ttlMs")
		missing(json.RawMessage(listPrivat), "cacheScope")
	}
	if r.method != wire.Listen {
		missing(c.about().Info, "_meta", wire.MetaServerInfo)
	}
	return result
}
