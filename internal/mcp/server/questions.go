package server

import (
	"context"
	"encoding/json"

	"nightporter/internal/mcp/wire"
)

// Bounds of what a server may ask us. Servers ask one thing at a time; these keep one that asks in a loop from costing anybody but itself.
const (
	maxCallQuestions = 32       // in progress that belong to one call
	maxQuestions     = 64       // in progress in all
	maxQuestionBytes = maxFrame // of all in progress
	maxQuestionID    = 1 << 10  // longer ids are not answered, as an answer repeats them
	maxReplies       = 4 * 64   // answers on their way that nobody waits for: pings, refusals
)

// question is a request of the server that is not answered yet.
type question struct {
	wire.Message
	call   *call           // that it belongs to, or nil
	ctx    context.Context // ends when the server cancels it, and with the connection
	cancel context.CancelFunc
}

// questions are those of a connection. All but replies is under Conn.mu.
type questions struct {
	open    map[string]*question // by the server's id, until they are answered
	asked   int                  // how many are answered or will be, until the answer is on its way
	bytes   int                  // of those
	replies chan struct{}        // holds one for each answer on its way that nobody waits for
}

func newQuestions() questions {
	return questions{open: map[string]*question{}, replies: make(chan struct{}, maxReplies)}
}

// question takes a request of the server. It never blocks: what cannot be taken is refused.
func (c *Conn) question(m wire.Message, related *call) {
	if len(m.ID) > maxQuestionID {
		return
	}
	if m.Method == wire.Ping { // it asks whether this connection lives, which nobody else knows
		c.sendBeside(wire.Message{ID: m.ID, Result: json.RawMessage("{}")})
		return
	}
	q, refusal := c.admit(m, related)
	switch {
	case refusal != nil:
		c.sendBeside(wire.Message{ID: m.ID, Error: refusal.Raw()})
	case q != nil:
		c.replyOutside(q)
	}
}

// admit counts a request of the server in. It returns a question that belongs to no call; others have gone to theirs.
func (c *Conn) admit(m wire.Message, related *call) (outside *question, refusal *wire.RPCError) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.callOf(m, related)
	switch {
	case c.err != nil:
		return nil, nil
	case c.open[string(m.ID)] != nil:
		return nil, wire.Errorf(wire.CodeInvalidRequest, "a request with this id is in progress")
	case c.asked >= maxQuestions, k != nil && k.asks >= maxCallQuestions, c.asked > 0 && c.bytes+size(m) > maxQuestionBytes:
		return nil, wire.Errorf(wire.CodeServer, "too many requests are in progress")
	}
	q := &question{Message: m, call: k}
	q.ctx, q.cancel = context.WithCancel(c.ctx)
	c.open[string(m.ID)] = q
	c.asked++
	c.bytes += size(m)
	if k == nil {
		return q, nil
	}
	k.asks++
	k.queue = append(k.queue, inbound{m, q})
	k.signal()
	return nil, nil
}

// replyOutside lets the handler answer a question that belongs to no call, or to one that is over.
func (c *Conn) replyOutside(q *question) {
	if !c.beside.start(func() {
		ctx, stop := context.WithTimeout(q.ctx, askPatience)
		defer stop()
		c.reply(ctx, q, nil)
	}) {
		c.settle(q)
		c.release(q)
	}
}

// reply lets ask, or else the handler, answer a question, and sends the answer. The question ends with ctx, too.
func (c *Conn) reply(ctx context.Context, q *question, ask func(context.Context, wire.Message) (json.RawMessage, *wire.RPCError)) {
	defer c.release(q)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(q.ctx, cancel)
	defer stop()
	if ask == nil {
		ask = c.handler.Request
	}
	answer := wire.Message{ID: q.ID}
	if result, err := ask(ctx, q.Message); err != nil {
		answer.Error = err.Raw()
	} else {
		answer.Result = result
	}
	c.settle(q)
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), cancelPatience)
	defer cancel()
	_ = c.t.send(ctx, &answer, nil)
}

// settle makes the question's id free: once it has the answer, the server may use it again.
func (c *Conn) settle(q *question) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, string(q.ID))
}

// release gives up the question's place.
func (c *Conn) release(q *question) {
	q.cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked--
	c.bytes -= size(q.Message)
	if q.call != nil {
		q.call.asks--
	}
}

// sendBeside sends an answer beside the reading of frames. To a server that asks and does not read, it is dropped.
func (c *Conn) sendBeside(answer wire.Message) {
	select {
	case c.replies <- struct{}{}:
	default:
		return
	}
	if !c.beside.start(func() {
		defer func() { <-c.replies }()
		ctx, stop := context.WithTimeout(c.ctx, cancelPatience)
		defer stop()
		_ = c.t.send(ctx, &answer, nil)
	}) {
		<-c.replies
	}
}
