package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/server"
	"nightporter/internal/mcp/wire"
)

// The two eras differ in how a server asks its client something in the middle of a request. In the session era it
// sends a request of its own and waits. In the stateless era it answers input_required, and the client sends its request again with
// the answers and the state that came with the questions (facts/mcp.md, section 1.1, "MRTR").

// maxRounds bounds how often one request is sent again with answers: a server that asks for ever is wrong.
const maxRounds = 32

type sender func(ctx context.Context, up server.Request) (runtime.Answer, error)

// outcome is what came of a request: an answer, whose bytes are the server's, or why there is none.
type outcome struct {
	answer runtime.Answer
	err    error
}

// refused is an outcome of our own.
func refused(err *wire.RPCError) outcome {
	return outcome{answer: runtime.Answer{Message: wire.Message{Error: err.Raw()}}}
}

// reply is the outcome for the client, when there is an answer.
func (o outcome) reply() (json.RawMessage, *wire.RPCError) {
	if o.answer.Error != nil {
		return nil, wire.AsRPCError(o.answer.Error)
	}
	return o.answer.Result, nil
}

// carry sends a request of the client to a server by send, and brings its questions to the client in the client's way. ended is told, once, how
// the request ended on the server, before carry returns that; a request that is parked ends later. It may be nil.
func (c *client) carry(ctx context.Context, name string, r request, send sender, ended func(outcome)) outcome {
	if ended == nil {
		ended = func(outcome) {}
	}
	if notify := r.x.notify; notify != nil {
		level := c.level()
		if r.modern {
			level, _ = wire.GetString(r.params, "_meta", wire.MetaLogLevel)
		}
		r.x.notify = func(m wire.Message) {
			if c.wantsLog(name, m, level) {
				notify(c.outwardNote(name, m))
			}
		}
	}
	if r.modern {
		return c.carryStateless(ctx, name, r, send, ended)
	}
	o := c.carrySession(ctx, name, r, send)
	ended(o)
	return o
}

func (c *client) carrySession(ctx context.Context, name string, r request, send sender) (o outcome) {
	params := r.params
	for range maxRounds {
		o.answer, o.err = send(ctx, server.Request{Method: r.method, Params: params, Notify: r.x.notify, Ask: r.x.of(name)})
		if o.err != nil || o.answer.Error != nil || o.answer.Era != wire.StatelessEra || !inputRequired(o.answer.Result) {
			return o
		}
		responses, rpcErr := c.answerAll(ctx, name, o.answer.Result, r.x)
		if rpcErr != nil {
			o.answer.Message = wire.Message{Error: rpcErr.Raw()}
			return o
		}
		params = wire.Set(r.params, responses, "inputResponses")
		params = wire.Set(params, wire.Get(o.answer.Result, "requestState"), "requestState")
	}
	o.answer.Message = wire.Message{Error: wire.Errorf(wire.CodeServer, "server %q asked for input more than %d times", name, maxRounds).Raw()}
	return o
}

// of is how a server asks the client; nil when it cannot.
func (x exchange) of(name string) func(context.Context, wire.Message) (json.RawMessage, *wire.RPCError) {
	if x.ask == nil {
		return nil
	}
	return func(ctx context.Context, m wire.Message) (json.RawMessage, *wire.RPCError) {
		return x.ask(ctx, name, m)
	}
}

func inputRequired(result json.RawMessage) bool {
	kind, _ := wire.GetString(result, "resultType")
	return kind == "input_required"
}

// answerAll asks a session's client everything that an input_required result asks.
func (c *client) answerAll(ctx context.Context, name string, result json.RawMessage, x exchange) (json.RawMessage, *wire.RPCError) {
	questions, err := wire.Members(orEmpty(wire.Get(result, "inputRequests")))
	if err != nil {
		return nil, wire.Errorf(wire.CodeInternal, "the server's inputRequests are not an object")
	}
	responses := json.RawMessage("{}")
	for _, q := range questions {
		method, _ := wire.GetString(q.Value, "method")
		if x.ask == nil {
			return nil, wire.Errorf(wire.CodeMethodNotFound, "the server asks for %s, and this client cannot be asked", method)
		}
		answer, rpcErr := x.ask(ctx, name, wire.Message{Method: method, Params: wire.Get(q.Value, "params")})
		if rpcErr != nil {
			return nil, rpcErr
		}
		responses = wire.Set(responses, answer, q.Key)
	}
	return responses, nil
}

// Bounds of requests whose server waits for an answer of a stateless client.
const (
	maxParked  = 1000
	parkedFor  = askedFor
	statePrefx = "nightporter-parked-" // which no server would begin a state of its own with
)

// pending is a request of a stateless client that runs on a server of the session era. It goes on while the client
// thinks about a question of the server.
type pending struct {
	client  *client
	method  string
	subject string // what it acts on, so that a state cannot be used for something else
	cancel  context.CancelFunc
	asks    chan question
	done    chan outcome
	open    map[string]question // asked and not answered
	size    int64               // of its parameters, in bytes

	mu     sync.Mutex
	notify func(wire.Message) // of the client's present request; nil while it is away
}

type question struct {
	m     wire.Message
	reply chan json.RawMessage
}

// parking holds requests while their clients are away.
type parking struct {
	mu     sync.Mutex
	byKey  map[string]*parkedEntry
	closed bool
}

type parkedEntry struct {
	p     *pending
	timer *time.Timer
}

func (e *parkedEntry) end() {
	e.timer.Stop()
	e.p.client.e.p.Bodies.Give(e.p.size)
}

func (k *parking) put(p *pending) (state string, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed || len(k.byKey) >= maxParked || !p.client.e.p.Bodies.Take(p.size) { // its body is there still
		return "", false
	}
	if k.byKey == nil {
		k.byKey = map[string]*parkedEntry{}
	}
	state = statePrefx + rand.Text()
	k.byKey[state] = &parkedEntry{p, time.AfterFunc(parkedFor, func() {
		if p := k.take(state, nil); p != nil {
			p.cancel()
		}
	})}
	return state, true
}

// take removes a request when fits says that it is the right one.
func (k *parking) take(state string, fits func(*pending) bool) *pending {
	k.mu.Lock()
	defer k.mu.Unlock()
	entry := k.byKey[state]
	if entry == nil || fits != nil && !fits(entry.p) {
		return nil
	}
	entry.end()
	delete(k.byKey, state)
	return entry.p
}

func (k *parking) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for _, entry := range k.byKey {
		entry.end()
		entry.p.cancel()
	}
	clear(k.byKey)
}

// askable are the requests of servers that a stateless client can be asked (specification 2026-07-28, "Multi Round-Trip
// Requests").
var askable = map[string]bool{wire.ElicitCreate: true, wire.SamplingCreate: true, wire.RootsList: true}

func (c *client) carryStateless(ctx context.Context, name string, r request, send sender, ended func(outcome)) outcome {
	subject, _ := wire.GetString(r.params, "name")
	subject += "\x00" + name
	if state, ok := wire.GetString(r.params, "requestState"); ok && strings.HasPrefix(state, statePrefx) {
		p := c.e.parked.take(state, func(p *pending) bool { return p.client == c && p.method == r.method && p.subject == subject })
		if p == nil {
			o := refused(wire.Errorf(wire.CodeInvalidParams, "requestState is unknown, used or expired"))
			ended(o)
			return o
		}
		p.listen(r.x.notify) // before the server goes on
		responses := wire.Get(r.params, "inputResponses")
		for key, q := range p.open {
			if answer := wire.Get(orEmpty(responses), key); answer != nil {
				delete(p.open, key)
				q.reply <- answer
			}
		}
		return c.await(ctx, p, r)
	}
	// The request on the server may outlive the client's.
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &pending{
		client: c, method: r.method, subject: subject, cancel: cancel, size: int64(len(r.params)),
		asks: make(chan question), done: make(chan outcome, 1), open: map[string]question{}, notify: r.x.notify,
	}
	up := server.Request{Method: r.method, Params: r.params, Notify: p.tell}
	if c.e.fixed == nil { // in a run nobody is there to answer
		up.Ask = p.ask
	}
	begun := c.e.background(func() {
		defer cancel()
		var o outcome
		o.answer, o.err = send(running, up)
		ended(o)
		p.done <- o
	})
	if !begun {
		cancel()
		return outcome{err: errClosing}
	}
	return c.await(ctx, p, r)
}

// listen says where notifications go; nil: nowhere.
func (p *pending) listen(notify func(wire.Message)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notify = notify
}

// tell passes a notification on to the client's present request.
func (p *pending) tell(m wire.Message) {
	p.mu.Lock()
	notify := p.notify
	p.mu.Unlock()
	if notify != nil {
		notify(m)
	}
}

// ask puts a question of the server to the client, and waits for its answer.
func (p *pending) ask(ctx context.Context, m wire.Message) (json.RawMessage, *wire.RPCError) {
	switch {
	case m.Method == wire.Ping:
		return json.RawMessage("{}"), nil
	case !askable[m.Method]:
		return nil, wire.Errorf(wire.CodeMethodNotFound, "%s cannot be asked of a client of %s", m.Method, wire.Modern)
	}
	q := question{m, make(chan json.RawMessage, 1)}
	select {
	case p.asks <- q:
	case <-ctx.Done():
		return nil, wire.Errorf(wire.CodeServer, "%v", ctx.Err())
	}
	select {
	case answer := <-q.reply:
		return answer, nil
	case <-ctx.Done():
		return nil, wire.Errorf(wire.CodeServer, "%v", ctx.Err())
	}
}

// await waits for what the server does next: answer, or ask. Until then the server's notifications go to the request, as its caller
// has arranged.
func (c *client) await(ctx context.Context, p *pending, r request) outcome {
	defer p.listen(nil)
	if len(p.open) == 0 {
		select {
		case o := <-p.done:
			if o.answer.Error != nil && r.method == wire.ResourcesRead && o.answer.Era == wire.SessionEra {
				if err := wire.AsRPCError(o.answer.Error); err.Code == wire.CodeResourceNotFound {
					o.answer.Error = err.WithCode(wire.CodeInvalidParams).Raw() // as the stateless era has it
				}
			}
			return o
		case q := <-p.asks:
			p.open["ask-"+rand.Text()] = q
		case <-ctx.Done():
			p.cancel()
			// Its end is waited for, so that the server has been told when we say so.
			<-p.done
			return outcome{err: ctx.Err()}
		}
	}
	requests := json.RawMessage("{}")
	for key, q := range p.open {
		requests = wire.Set(requests, wire.Quote(q.m.Method), key, "method")
		if q.m.Params != nil {
			requests = wire.Set(requests, q.m.Params, key, "params")
		}
	}
	state, ok := c.e.parked.put(p)
	if !ok {
		p.cancel()
		return refused(wire.Errorf(wire.CodeServer, "too many requests wait for input"))
	}
	result := json.RawMessage(`{"resultType":"input_required"}`)
	result = wire.Set(result, requests, "inputRequests")
	result = wire.Set(result, wire.Quote(state), "requestState")
	return outcome{answer: runtime.Answer{Message: wire.Message{Result: result}}}
}
