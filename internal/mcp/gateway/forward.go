package gateway

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/server"
	"nightporter/internal/mcp/wire"
)

func (c *client) getPrompt(ctx context.Context, r request) (json.RawMessage, *wire.RPCError) {
	name, _ := wire.GetString(r.params, "name")
	for _, item := range c.scope.Prompts() {
		if c.e.expose(item.Server, item.Name) == name {
			r.params = renamed(r.params, name, item.Name)
			return c.forward(ctx, item.Server, r)
		}
	}
	if c.e.p.Single != "" {
		return c.forward(ctx, c.e.p.Single, r)
	}
	return nil, wire.Errorf(wire.CodeInvalidParams, "unknown prompt %q", name)
}

// forwardResource passes a request on to the server that has the resource.
func (c *client) forwardResource(ctx context.Context, r request) (json.RawMessage, *wire.RPCError) {
	uri, _ := wire.GetString(r.params, "uri")
	if isResult(uri) && c.e.limited(c.scope) {
		return c.readKept(r, uri)
	}
	owner, meant := c.meantURI(uri)
	if owner == "" {
		code := wire.CodeResourceNotFound
		if r.modern {
			code = wire.CodeInvalidParams
		}
		err := wire.Errorf(code, "resource not found")
		err.Data = wire.Encode(map[string]string{"uri": uri})
		return nil, err
	}
	if meant != uri {
		r.params = wire.Set(r.params, wire.Quote(meant), "uri")
	}
	return c.forward(ctx, owner, r)
}

// templateFits reports whether uri can come of a URI template (RFC 6570): its literal parts occur in order, the first
// at the start. fixed is how long they are together.
func templateFits(template, uri string) (fixed int, ok bool) {
	rest := uri
	first := true
	for template != "" {
		literal, after, found := strings.Cut(template, "{")
		fixed += len(literal)
		at := strings.Index(rest, literal)
		if at < 0 || first && at != 0 {
			return 0, false
		}
		rest = rest[at+len(literal):]
		first = false
		if !found {
			return fixed, rest == ""
		}
		_, template, _ = strings.Cut(after, "}")
	}
	return fixed, true
}

func (c *client) complete(ctx context.Context, r request) (json.RawMessage, *wire.RPCError) {
	if c.e.p.Single != "" {
		return c.forward(ctx, c.e.p.Single, r)
	}
	if uri, ok := wire.GetString(r.params, "ref", "uri"); ok {
		if owner, meant := c.meantTemplate(uri); owner != "" {
			if meant != uri {
				r.params = wire.Set(r.params, wire.Quote(meant), "ref", "uri")
			}
			return c.forward(ctx, owner, r)
		}
	}
	if name, ok := wire.GetString(r.params, "ref", "name"); ok {
		for _, item := range c.scope.Prompts() {
			if c.e.expose(item.Server, item.Name) == name {
				r.params = wire.Set(r.params, wire.Quote(item.Name), "ref", "name")
				return c.forward(ctx, item.Server, r)
			}
		}
	}
	return nil, wire.Errorf(wire.CodeInvalidParams, "params.ref names nothing that is offered here")
}

// setLevel notes the level, and tells it to the servers that run; others hear it when they are started. A single server is woken for it: its
// client means that server.
func (c *client) setLevel(ctx context.Context, r request) (json.RawMessage, *wire.RPCError) {
	level, _ := wire.GetString(r.params, "level")
	if c.e.p.Single == "" && !slices.Contains(runtime.Levels, level) {
		return nil, wire.Errorf(wire.CodeInvalidParams, "params.level is none of %s", strings.Join(runtime.Levels, ", "))
	}
	note := func() {
		c.mu.Lock()
		c.logLevel = level
		c.mu.Unlock()
		if !c.shared { // a run's servers are not one client's to set
			c.scope.SetLevel(level)
		}
	}
	if name := c.e.p.Single; name != "" {
		if about, ok := c.scope.Hello(name); ok && about.Era() == wire.StatelessEra {
			note() // it hears it with each request
			return json.RawMessage("{}"), nil
		}
		result, err := c.forward(ctx, name, r)
		if err == nil {
			note()
		}
		return result, err
	}
	note()
	c.scope.Each(func(name string, about server.Hello) {
		if about.Era() == wire.SessionEra && wire.Get(about.Capabilities, "logging") != nil {
			_, _ = c.forward(ctx, name, r)
		}
	})
	return json.RawMessage("{}"), nil
}

// level is from which level on the client wants log messages; empty when it did not say.
func (c *client) level() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.logLevel
}

// wantsLog reports whether a log message of a server is for the client, which asked for those from a level on. A server may send more, because
// others asked for them. To a stateless client that asked for none, servers send none, unless they are of the session era.
func (c *client) wantsLog(server string, m wire.Message, level string) bool {
	if m.Method != wire.LogMessage {
		return true
	}
	if level == "" {
		if c.era == wire.SessionEra {
			return true
		}
		about, _ := c.scope.Hello(server)
		return about.Era() == wire.StatelessEra
	}
	has, _ := wire.GetString(m.Params, "level")
	rank := slices.Index(runtime.Levels, has)
	return rank < 0 || rank >= slices.Index(runtime.Levels, level)
}

func (c *client) forwardSingle(ctx context.Context, r request) (json.RawMessage, *wire.RPCError) {
	return c.forward(ctx, c.e.p.Single, r)
}

func (c *client) forward(ctx context.Context, name string, r request) (json.RawMessage, *wire.RPCError) {
	return c.forwardIn(ctx, c.scope, name, r)
}

// forwardIn passes a request on to a server of a scope, and its result as the client sees it.
func (c *client) forwardIn(ctx context.Context, scope *runtime.Scope, name string, r request) (json.RawMessage, *wire.RPCError) {
	o := c.carry(ctx, name, r, in(scope, name), nil)
	if o.err != nil {
		return nil, wire.Errorf(wire.CodeServer, "nightporter: %v", o.err)
	}
	result, rpcErr := o.reply()
	if rpcErr != nil {
		return nil, rpcErr
	}
	result = c.outward(name, r.method, result)
	if what := boundedMethods[r.method]; what != "" {
		return c.bounded(name, what, r, result)
	}
	return result, nil
}

// in makes a sender to a server of a scope.
func in(scope *runtime.Scope, name string) sender {
	return func(ctx context.Context, up server.Request) (runtime.Answer, error) { return scope.Do(ctx, name, up) }
}
