package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"nightporter/internal/mcp/wire"
)

// Notify implements [runtime.Owner]: what a server says outside of any request.
func (c *client) Notify(server string, m wire.Message) {
	c = c.present()
	if m.Method == wire.TaskStatus {
		id, _ := wire.GetString(m.Params, "taskId")
		if !c.hears(server, id) {
			return
		}
	}
	if m = c.outwardNote(server, m); m.Method == wire.ResourceUpdated {
		c.updated(m)
	}
	if c.era == wire.SessionEra && c.wantsLog(server, m, c.level()) {
		_ = c.push(m) // a client that does not fetch loses the newest
	}
}

var errUnread = errors.New("it has left too much unread")

// push puts a message on the session's own stream.
func (c *client) push(m wire.Message) error {
	if !c.own.put(m.Append(nil)) {
		return errUnread
	}
	return nil
}

// Ask implements [runtime.Owner].
func (c *client) Ask(ctx context.Context, server string, m wire.Message) ([]byte, *wire.RPCError) {
	c = c.present()
	if c.era != wire.SessionEra {
		return nil, wire.Errorf(wire.CodeMethodNotFound, "%s cannot be asked outside of a request", m.Method)
	}
	return c.askOver(ctx, server, m, c.push)
}

// Changed implements [runtime.Owner].
func (c *client) Changed(_, method string) {
	changed := map[string]string{
		wire.ToolsList: wire.ToolsChanged, wire.PromptsList: wire.PromptsChanged,
		wire.ResourcesList: wire.ResourcesChanged, wire.TemplatesList: wire.ResourcesChanged,
	}[method]
	if c.running() == nil {
		return // its session begins with the changed list
	}
	if method == wire.ToolsList && c.e.p.Exposure == ExposeSearch {
		return // what it lists are the tools that find the others
	}
	c.mu.Lock()
	for l := range c.listens {
		l.tell(changed, nil)
	}
	c.mu.Unlock()
	if c.era == wire.SessionEra {
		_ = c.push(wire.Message{Method: changed}) // what waits unread says so already
	}
}

// asked is a request of ours to the client.
type asked struct {
	answer chan wire.Message
	server string          // who asks
	token  json.RawMessage // of the progress that the server wants to hear of; may be nil
}

// askedFor is how long a client may take to answer a question of a server: a person may have to be found.
const askedFor = 10 * time.Minute

// asker makes an [asker] of the way to the client. It is nil where nobody is there to answer: in a run.
func (c *client) asker(send func(wire.Message) error) asker {
	if c.e.fixed != nil {
		return nil
	}
	return func(ctx context.Context, server string, m wire.Message) (json.RawMessage, *wire.RPCError) {
		return c.askOver(ctx, server, m, send)
	}
}

// askOver sends a server's request to the client under an id of ours, which is its progress token, too, and waits for the answer.
func (c *client) askOver(ctx context.Context, server string, m wire.Message, send func(wire.Message) error) (json.RawMessage, *wire.RPCError) {
	if m.Method == wire.Ping {
		return json.RawMessage("{}"), nil // the server asks for us
	}
	if err := c.askedOfTask(server, m); err != nil {
		return nil, err
	}
	m = c.outwardNote(server, m)
	a := asked{make(chan wire.Message, 1), server, wire.Get(m.Params, "_meta", "progressToken")}
	c.mu.Lock()
	c.nextID++
	id := wire.Quote(fmt.Sprintf("np-%d", c.nextID))
	c.asked[string(id)] = a
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.asked, string(id))
		c.mu.Unlock()
	}()
	if a.token != nil {
		m.Params = wire.Set(m.Params, id, "_meta", "progressToken")
	}
	if err := send(wire.Message{ID: id, Method: m.Method, Params: m.Params}); err != nil {
		return nil, wire.Errorf(wire.CodeServer, "the client cannot be asked: %v", err)
	}
	giveUp := func(format string, args ...any) (json.RawMessage, *wire.RPCError) {
		_ = send(wire.Message{Method: wire.Cancelled, Params: wire.Set(nil, id, "requestId")})
		return nil, wire.Errorf(wire.CodeServer, format, args...)
	}
	timer := time.NewTimer(askedFor)
	defer timer.Stop()
	select {
	case answer := <-a.answer:
		if answer.Error != nil {
			return nil, wire.AsRPCError(answer.Error)
		}
		c.clientTask(server, answer.Result)
		return c.answerOfTasks(server, m, c.untasked(server, answer.Result)), nil
	case <-timer.C:
		return giveUp("the client did not answer within %v", askedFor)
	case <-ctx.Done():
		return giveUp("%v", ctx.Err())
	case <-c.closed:
		return nil, wire.Errorf(wire.CodeServer, "the client has gone")
	}
}

// answered takes a client's answer to a request of ours.
func (c *client) answered(m wire.Message) {
	c.touch()
	c.mu.Lock()
	a, ok := c.asked[string(m.ID)]
	delete(c.asked, string(m.ID))
	c.mu.Unlock()
	if ok {
		a.answer <- m
	}
}
