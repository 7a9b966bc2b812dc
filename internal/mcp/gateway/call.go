package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/server"
	"nightporter/internal/mcp/wire"
)

func (c *client) callTool(ctx context.Context, r request) (json.RawMessage, *wire.RPCError) {
	name, ok := wire.GetString(r.params, "name")
	if !ok {
		return nil, wire.Errorf(wire.CodeInvalidParams, "params.name is not a text")
	}
	if own := c.ownTool(name); own != nil {
		return own.call(c, ctx, r)
	}
	t, ok := c.tool(name)
	if !ok && c.e.p.Single != "" && c.e.frozen == nil {
		// A single server may have tools that its catalog does not know yet.
		t, ok = tool{Item: runtime.Item{Server: c.e.p.Single, Name: name}, exposed: name}, true
	}
	if !ok {
		call := Call{Time: time.Now(), Client: c.name(), Exposed: name, Arguments: wire.Get(r.params, "arguments")}
		if c.e.p.Single == "" {
			call.Server, call.Tool = meant(name)
		}
		call.Outcome, call.Detail = Judge(runtime.Answer{}, &runtime.RefusedError{Server: call.Server, Tool: cmp.Or(call.Tool, name), Check: "tool", Reason: "there is no such tool here"})
		c.record(call)
		if c.scope.Unknown() {
			return nil, wire.Errorf(wire.CodeInvalidParams, "unknown tool %q; a server is still starting, and its tools are not known yet: wait for the list to change", name)
		}
		return nil, wire.Errorf(wire.CodeInvalidParams, "unknown tool %q", name)
	}
	return c.callAs(ctx, r, name, t)
}

// record tells of a call that has ended.
func (c *client) record(call Call) {
	call.Duration = time.Since(call.Time)
	if c.e.p.OnCall != nil {
		c.e.p.OnCall(call)
	}
}

// callAs calls a tool that the client named name, as params.name says.
func (c *client) callAs(ctx context.Context, r request, name string, t tool) (json.RawMessage, *wire.RPCError) {
	call := Call{Time: time.Now(), Client: c.name(), Server: t.Server, Tool: t.Name, Exposed: name, Arguments: wire.Get(r.params, "arguments")}
	ended := func(o outcome) {
		call.Outcome, call.Detail = Judge(o.answer, o.err)
		call.ResultBytes = len(o.answer.Result)
		call.Authority, call.Generation, call.Revision = o.answer.Authority.Digest(), o.answer.Authority.Generation, o.answer.Authority.Revision
		call.Approval = o.answer.Approval
		c.record(call)
	}
	if err := repeats(r, t); err != nil {
		ended(refused(err))
		return nil, err
	}
	r.params = renamed(r.params, name, t.Name)
	send := func(ctx context.Context, up server.Request) (runtime.Answer, error) {
		up.Later = func(m wire.Message) { c.Notify(t.Server, m) }
		return c.scope.CallTool(ctx, t.Server, t.Name, up)
	}
	if r.modern && mustTask(t) {
		send = c.awaitTask(t.Server, send)
	}
	o := c.carry(ctx, t.Server, r, send, ended)
	switch {
	case o.err != nil && ctx.Err() != nil:
		return nil, wire.Errorf(wire.CodeServer, "%v", ctx.Err())
	case o.err != nil && c.e.p.Single != "" && unknownTool(o.err):
		return nil, wire.Errorf(wire.CodeInvalidParams, "unknown tool %q", name) // as the server itself would say
	case o.err != nil:
		// What a model can act on reaches it as the tool's own error (specification 2025-11-25, "Error Handling").
		return toolError(o.err), nil
	}
	result, rpcErr := o.reply()
	if rpcErr == nil {
		c.e.tasks.add(c, t.Server, r.modern, result)
		result, rpcErr = c.bounded(t.Server, "tool "+t.Name, r, c.outward(t.Server, r.method, result))
	}
	return result, rpcErr
}

// unknownTool reports whether a call was refused because its server has no such tool.
func unknownTool(err error) bool {
	var refused *runtime.RefusedError
	return errors.As(err, &refused) && refused.Check == "tool"
}

// repeats checks that the headers of a stateless request repeat the arguments that the tool's schema says they must, so that
// what a proxy decides by the headers is what is done. A declaration that breaks the rules binds nobody.
func repeats(r request, t tool) *wire.RPCError {
	if r.header == nil {
		return nil
	}
	declared, err := wire.ParamHeaders(wire.Get(t.Raw, "inputSchema"))
	if err != nil {
		return nil
	}
	arguments := wire.Get(r.params, "arguments")
	for _, h := range declared {
		if err := h.Check(r.header.Values(h.Name), arguments); err != nil {
			return wire.Errorf(wire.CodeHeaderMismatch, "%v", err)
		}
	}
	return nil
}

// Judge says how a call of a tool ended, and why.
func Judge(answer runtime.Answer, err error) (o Outcome, detail string) {
	switch {
	case err == nil && answer.Error != nil:
		return OutcomeRPCError, wire.AsRPCError(answer.Error).Error()
	case err == nil && string(wire.Get(answer.Result, "isError")) == "true":
		return OutcomeToolError, ""
	case err == nil && inputRequired(answer.Result):
		return OutcomeInput, ""
	case err == nil:
		return OutcomeOK, ""
	case errors.As(err, new(*runtime.RefusedError)):
		o = OutcomeRefused
	case errors.Is(err, context.Canceled):
		o = OutcomeCancelled
	case errors.As(err, new(*server.TimeoutError)):
		o = OutcomeTimeout
	case errors.As(err, new(*server.GoneError)):
		o = OutcomeDied
	case errors.As(err, new(*server.HTTPError)):
		o = OutcomeRPCError // the server's answer, in its way
	case errors.Is(err, errClosing):
		o = OutcomeCancelled
	default:
		o = OutcomeNotStarted
	}
	return o, err.Error()
}

func toolError(err error) json.RawMessage {
	return wire.Encode(map[string]any{
		"content": []map[string]string{{"type": "text", "text": "nightporter: " + err.Error()}},
		"isError": true,
	})
}
