// Package server is one connection to one MCP server: it spawns or dials it, opens the protocol in either
// era, lists what it offers, carries calls, and ends it with all its processes.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"nightporter/internal/mcp/oauth"
	"nightporter/internal/mcp/wire"
	"nightporter/internal/sandbox"
)

// Conn is a connection to a server. It is safe for concurrent use.
type Conn struct {
	// Hello is what the server said when the connection was opened.
	Hello Hello
	// Mechanism enforces the server's sandbox; empty: it has none.
	Mechanism sandbox.Mechanism

	spec    *Spec
	client  wire.Client
	handler Handler
	mask    *masker
	t       transport

	ctx    context.Context // ends with the connection, and every question of the server with it
	end    context.CancelFunc
	closed chan struct{} // closed when the connection is gone
	beside group         // answers to the server

	mu      sync.Mutex
	err     error // why it is gone; set before closed is closed
	nextID  int64
	calls   map[string]*call // not yet answered, by the id we gave them
	order   []*call          // the same, oldest first
	tasks   []*call          // that are answered and go on as tasks, oldest first
	looking bool             // whether it hangs
	questions
}

// Hello is a server's answer to initialize or server/discover. Raw fields are as the server sent them.
type Hello struct {
	Version      string // negotiated protocol revision
	Capabilities json.RawMessage
	Info         json.RawMessage
	Instructions string
	TTL          json.RawMessage // ttlMs of server/discover; nil in the session era
}

// Era is the era that the connection speaks.
func (h *Hello) Era() wire.Era { return wire.EraOf(h.Version) }

// Handler takes what a server says outside of any call. Its methods must not block for long: they run
// where the server's frames are read.
type Handler interface {
	// Notify takes a notification.
	Notify(m wire.Message)
	// Request takes a request of the server that belongs to no call in flight, and answers it with result or error.
	// It may take its time. ctx ends when the server cancels it or the connection goes.
	Request(ctx context.Context, m wire.Message) (result json.RawMessage, err *wire.RPCError)
}

// transport moves frames to a server. What comes back goes to Conn.receive.
type transport interface {
	// send hands over one frame, and reports a *maybeSent when the server may have got it in spite of the error. related is the
	// call that m opens, or nil; its ctx lasts as long as the caller waits. Of HTTP, where the answer comes with the sending, it
	// ends after the answer.
	send(ctx context.Context, m *wire.Message, related *call) error
	// sendNow hands over a frame if that can be done without waiting. When it reports false, nothing was sent.
	sendNow(m *wire.Message) bool
	// opened is called once, when the protocol revision is known and before anything else is sent.
	opened(h *Hello)
	// close ends the connection and waits, bounded by ctx, until all that belongs to it has ended.
	close(ctx context.Context)
	// why explains the end of the connection for an error: exit status, last words. The error is masked.
	why(err error) error
	// pid is the process that the server runs in; 0 when it is not ours.
	pid() int
}

// call is one request in flight.
type call struct {
	id       string
	method   string
	owner    any
	headers  map[string]string
	token    string          // progress token that we gave: the id, as it stands in frames; empty when the caller gave none
	original json.RawMessage // the caller's own progress token
	later    func(wire.Message)
	ready    chan struct{} // has room for one; filled while there is something to take

	// Under Conn.mu:
	over    bool // answered or given up: nothing more belongs to it
	queue   []inbound
	bytes   int           // of the notifications in queue
	notices int           // how many they are
	asks    int           // questions of the server that are not answered yet
	answer  *wire.Message // comes after all that is in queue
}

// inbound is a frame that waits for a caller.
type inbound struct {
	wire.Message
	question *question // when it is a request
}

// What may wait for one caller. It is small as a rule (progress, log lines), and a caller that does not read must cost neither
// memory nor the server's other callers anything: beyond it notifications are dropped.
const (
	maxWaiting      = 256
	maxWaitingBytes = 16 << 20
)

// Request is one request to a server.
type Request struct {
	Method string
	Params json.RawMessage
	// Notify takes the notifications that belong to the request, in order, before it is answered. May be nil.
	Notify func(wire.Message)
	// Ask answers a request of the server that belongs to this one. May be nil: then the connection's handler is asked.
	Ask func(ctx context.Context, m wire.Message) (json.RawMessage, *wire.RPCError)
	// Later takes the progress that is told after the answer, when the answer says that a task was made, whose progress goes on
	// under the call's token (specification 2025-11-25, "Task Progress Notifications"). May be nil.
	Later func(wire.Message)
	// Timeout is how long the server may be silent: progress starts it anew, up to MaxTimeout in all, and the
	// time in which it waits for Ask does not count. Zero: no limit.
	Timeout    time.Duration
	MaxTimeout time.Duration
	// Headers are further ones of the HTTP request, to a server of the stateless era: what [wire.ParamHeader] makes of arguments.
	Headers map[string]string
	// Owner tells the clients of a shared connection apart: what a server says without saying to which call it belongs goes to a
	// call only while all calls in flight have one owner.
	Owner any
}

// TimeoutError says that a server did not answer in time.
type TimeoutError struct {
	Server, Method string
	After          time.Duration
	// Asking says that the server was waiting all that time for the answer to a question of its own, which nobody gave.
	Asking bool
}

func (e *TimeoutError) Error() string {
	if e.Asking {
		return fmt.Sprintf("server %q asked a question in the middle of %s, which nobody answered within %v", e.Server, e.Method, e.After)
	}
	return fmt.Sprintf("server %q did not answer %s within %v; raise mcp_servers.%s.tool_timeout_sec if it needs longer", e.Server, e.Method, rounded(e.After), e.Server)
}

// rounded is a duration without digits that nobody needs.
func rounded(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}

// GoneError says that the connection ended while a request was in flight, or before, or that the exchange which was to
// bring the request's answer did (HTTP).
type GoneError struct {
	Server string
	// Sent says that the request had been handed to the server: it may have taken effect.
	Sent bool
	Err  error
}

func (e *GoneError) Error() string {
	if e.Sent {
		return fmt.Sprintf("server %q failed during the call, which may or may not have taken effect: %v", e.Server, e.Err)
	}
	return fmt.Sprintf("server %q has ended: %v", e.Server, e.Err)
}

func (e *GoneError) Unwrap() error { return e.Err }

// HTTPError says that a server answered a request with an HTTP status and no frame. The connection goes on.
type HTTPError struct {
	Server, Method string
	Status         int
	Err            error // the status, and what the server said with it
}

func (e *HTTPError) Error() string {
	if e.Sent() {
		return fmt.Sprintf("server %q failed at %s, which may or may not have taken effect: %v", e.Server, e.Method, e.Err)
	}
	return fmt.Sprintf("server %q refused %s: %v", e.Server, e.Method, e.Err)
}

func (e *HTTPError) Unwrap() error { return e.Err }

// Sent says that the request may have taken effect: the server failed (5xx) rather than refuse.
func (e *HTTPError) Sent() bool { return e.Status/100 == 5 }

// maybeSent is a failure to send after which the server may have got the frame all the same.
type maybeSent struct{ error }

func (e *maybeSent) Unwrap() error { return e.error }

// reached reports whether the server has or may have what send returned err for.
func reached(err error) bool { return err == nil || errors.As(err, new(*maybeSent)) }

var errClosed = errors.New("closed by us")

func newConn(spec *Spec, client wire.Client, handler Handler) *Conn {
	ctx, end := context.WithCancel(context.Background())
	return &Conn{
		spec: spec, client: client, handler: handler, mask: spec.masker(), ctx: ctx, end: end, closed: make(chan struct{}),
		calls: map[string]*call{}, questions: newQuestions(),
	}
}

// Done is closed when the connection is gone.
func (c *Conn) Done() <-chan struct{} { return c.closed }

// Err says why the connection is gone; nil while it is not.
func (c *Conn) Err() error { return c.mask.error(c.gone()) }

func (c *Conn) gone() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Explain says why the connection ended, with the exit status and last words of a server that is a process of ours.
func (c *Conn) Explain() error { return c.t.why(c.gone()) }

// PID is the server's process, or 0 when it is not a process of ours.
func (c *Conn) PID() int { return c.t.pid() }

// Close ends the connection and, bounded by ctx, waits until everything that belongs to it has ended.
func (c *Conn) Close(ctx context.Context) {
	c.fail(errClosed)
	c.t.close(ctx)
	c.beside.close(ctx)
}

// fail ends the connection's life, once.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		close(c.closed)
		c.end()
	}
}

// Notify sends a notification to the server.
func (c *Conn) Notify(ctx context.Context, method string, params json.RawMessage) error {
	if c.Hello.Era() == wire.StatelessEra && method != wire.Cancelled {
		return nil // the stateless era has no notifications from clients but this one
	}
	return c.mask.error(c.t.send(ctx, &wire.Message{Method: method, Params: params}, nil))
}

// Call sends a request and waits for its answer, which is a message with Result or Error set. err is a *[TimeoutError], a
// *[GoneError], a *[HTTPError], a *[oauth.LoginError], or the error of ctx. When ctx ends or time is up, a server that may have the
// request is told that it is cancelled, and a late answer is dropped.
func (c *Conn) Call(ctx context.Context, r Request) (answer wire.Message, err error) {
	if err := ctx.Err(); err != nil {
		return wire.Message{}, err
	}
	k, params, err := c.register(r)
	if err != nil {
		return wire.Message{}, err
	}
	// Sending, and requests of the server that belong to this call, run beside it, and end with it.
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer c.handOver(k)
	defer cancel()
	var sent chan error // nil: it is sent
	m := wire.Message{ID: json.RawMessage(k.id), Method: r.Method, Params: params}
	if !c.t.sendNow(&m) {
		sent = make(chan error, 1)
		beside.Go(func() { sent <- c.t.send(ctx, &m, k) })
	}
	// ending ends the sending, and returns how it ended.
	var sending error
	ending := func() error {
		cancel()
		if sent != nil {
			sending, sent = <-sent, nil
		}
		return sending
	}
	waiting := 0 // questions in progress: while a person thinks, the server's clock stands still
	replied := make(chan struct{}, maxCallQuestions)

	timer := newStopwatch(r.Timeout, r.MaxTimeout, askPatience)
	defer timer.stop()
	over, closed := ctx.Done(), c.closed
	for {
		select {
		case <-k.ready:
			in, answer := c.take(k)
			switch {
			case answer:
				return in.Message, nil
			case in.question != nil:
				waiting++
				timer.pause()
				beside.Go(func() {
					c.reply(ctx, in.question, r.Ask)
					select {
					case replied <- struct{}{}:
					case <-ctx.Done():
					}
				})
			case in.Method != "":
				if in.Method == wire.Progress {
					timer.restart()
				}
				if r.Notify != nil {
					r.Notify(in.Message)
				} else {
					c.handler.Notify(in.Message)
				}
			}
		case <-replied:
			if waiting--; waiting == 0 {
				timer.resume()
			}
		case sending = <-sent:
			sent = nil
			// Of what else has happened by now, the answer and the caller's end come first.
			if sending != nil && ctx.Err() == nil && !c.answered(k) {
				return wire.Message{}, c.failure(k, sending, sending)
			}
		case <-timer.c():
			if reached(ending()) {
				c.cancel(k, "timed out")
			}
			c.lookAfter()
			if timer.paused {
				return wire.Message{}, &TimeoutError{c.spec.Name, r.Method, askPatience, true}
			}
			return wire.Message{}, &TimeoutError{c.spec.Name, r.Method, timer.spent(), false}
		case <-over:
			err := ctx.Err()
			if reached(ending()) {
				c.cancel(k, "cancelled by the client")
			}
			return wire.Message{}, err
		case <-closed:
			if c.answered(k) { // just before the end
				closed, over = nil, nil
				continue
			}
			return wire.Message{}, c.failure(k, ending(), c.gone())
		}
	}
}

// failure is the error of a call whose sending ended with sending, for the reason why.
func (c *Conn) failure(k *call, sending, why error) error {
	var login *oauth.LoginError
	if errors.As(sending, &login) {
		return login
	}
	var status *statusError
	if errors.As(sending, &status) && c.gone() == nil {
		return &HTTPError{c.spec.Name, k.method, status.status, status}
	}
	return &GoneError{c.spec.Name, reached(sending), c.t.why(why)}
}

// register gives a request its id and its progress token, which are ours: several clients may use one
// connection, and their ids and tokens are not unique among them.
func (c *Conn) register(r Request) (*call, json.RawMessage, error) {
	if gone := c.gone(); gone != nil {
		return nil, nil, &GoneError{c.spec.Name, false, c.t.why(gone)}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nextID++
	id := wire.IntID(c.nextID)
	k := &call{id: string(id), method: r.Method, owner: r.Owner, headers: r.Headers, later: r.Later, ready: make(chan struct{}, 1)}
	params := r.Params
	if token := wire.Get(params, "_meta", "progressToken"); token != nil {
		k.original = token
		k.token = k.id
		params = wire.Set(params, id, "_meta", "progressToken")
	}
	c.calls[k.id] = k
	c.order = append(c.order, k)
	return k, params, nil
}

// forget ends what belongs to a call. c.mu is held.
func (c *Conn) forget(k *call) {
	k.over = true
	delete(c.calls, k.id)
	if i := slices.Index(c.order, k); i >= 0 {
		c.order = slices.Delete(c.order, i, i+1)
	}
}

// signal tells the caller that there is something to take. c.mu is held.
func (k *call) signal() {
	select {
	case k.ready <- struct{}{}:
	default:
	}
}

// take returns what came next for a caller, and whether it is the answer. There may be nothing.
func (c *Conn) take(k *call) (in inbound, answer bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case len(k.queue) > 0:
		in = k.queue[0]
		k.queue[0] = inbound{}
		k.queue = k.queue[1:]
		if in.question == nil {
			k.bytes -= size(in.Message)
			k.notices--
		}
	case k.answer != nil:
		return inbound{Message: *k.answer}, true
	}
	if len(k.queue) > 0 || k.answer != nil {
		k.signal()
	}
	return in, false
}

func (c *Conn) answered(k *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return k.answer != nil
}

// handOver gives what still waits for a caller that is gone to the handler.
func (c *Conn) handOver(k *call) {
	c.mu.Lock()
	c.forget(k)
	left := k.queue
	k.queue = nil
	c.mu.Unlock()
	for _, in := range left {
		switch {
		case in.question != nil:
			c.replyOutside(in.question)
		case in.Method != wire.Progress:
			c.handler.Notify(in.Message)
		}
	}
}

// cancelPatience bounds the sending of a cancellation: a server that reads nothing more must not hold its caller.
const cancelPatience = 2 * time.Second

func (c *Conn) cancel(k *call, reason string) {
	if k.method == wire.Initialize {
		return // the specification forbids to cancel it
	}
	ctx, stop := context.WithTimeout(context.Background(), cancelPatience)
	defer stop()
	params := wire.Set(wire.Set(nil, json.RawMessage(k.id), "requestId"), wire.Quote(reason), "reason")
	_ = c.Notify(ctx, wire.Cancelled, params)
}

// pingPatience is how long a server that has let a call time out may take for a ping: many answer none while they work.
const pingPatience = 10 * time.Second

// lookAfter ends the connection to a process of ours that hangs: one that has let a call time out, and does not answer a ping
// either. It would let every later call time out as well; so the next one starts it anew.
func (c *Conn) lookAfter() {
	if c.t.pid() == 0 {
		return
	}
	c.mu.Lock()
	looking := c.looking
	c.looking = true
	c.mu.Unlock()
	if looking {
		return
	}
	c.beside.start(func() {
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.looking = false
		}()
		ask := wire.Ping
		if c.Hello.Era() == wire.StatelessEra {
			ask = wire.Discover // this era has no ping
		}
		ctx, stop := context.WithTimeout(c.ctx, pingPatience)
		defer stop()
		_, err := c.Call(ctx, Request{Method: ask})
		c.mu.Lock()
		alone := len(c.order) == 0 && len(c.tasks) == 0 // what others wait for may yet come
		c.mu.Unlock()
		if errors.Is(err, context.DeadlineExceeded) && alone {
			c.fail(errHung)
		}
	})
}

var errHung = fmt.Errorf("it let a call time out and did not answer a ping within %v either, and was ended", pingPatience)

// unreadable ends the call whose answer begins with head and cannot be read for the reason why.
func (c *Conn) unreadable(head []byte, why string) {
	if id := wire.AnswerID(head); id != nil {
		c.receive(wire.Message{ID: id, Error: wire.Encode(wire.Errorf(wire.CodeInternal,
			"the answer of server %q cannot be read: %s", c.spec.Name, why))}, nil)
	}
}

// receive takes a frame of the server. related is the call that it came with, where the transport
// can tell (HTTP); frames over stdio say so themselves or not at all.
func (c *Conn) receive(m wire.Message, related *call) {
	switch {
	case m.IsResponse():
		if m.Result != nil && m.Result[0] != '{' { // every result of MCP is an object, and clients take nothing else
			c.unreadable(m.Append(nil), fmt.Sprintf("its result is no object: %s", c.mask.excerpt(m.Result)))
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if k := c.calls[plainID(m.ID)]; k != nil { // else an answer to nothing, or a late one
			c.forget(k)
			if k.token != "" && k.later != nil && wire.Get(m.Result, "task", "taskId") != nil {
				if len(c.tasks) >= maxTasks {
					c.tasks = c.tasks[1:]
				}
				c.tasks = append(c.tasks, k)
			}
			k.answer = &m
			k.signal()
		}
	case m.IsRequest():
		c.question(m, related)
	case m.Method == wire.Cancelled:
		c.mu.Lock()
		defer c.mu.Unlock()
		if q := c.open[string(wire.Get(m.Params, "requestId"))]; q != nil {
			q.cancel()
		}
	default:
		c.notification(m, related)
	}
}

func (c *Conn) notification(m wire.Message, related *call) {
	c.mu.Lock()
	k := c.callOf(m, related)
	if m.Method == wire.Progress {
		if k == nil {
			later := c.afterAnswer(&m)
			c.mu.Unlock()
			if later != nil {
				later(m)
			}
			return
		}
		if k.token == "" || string(wire.Get(m.Params, "progressToken")) != k.token {
			c.mu.Unlock()
			return // of a call that has ended, or one that asked for none
		}
		m.Params = wire.Set(m.Params, k.original, "progressToken")
	}
	if k != nil {
		if k.notices == 0 || k.notices < maxWaiting && k.bytes+size(m) <= maxWaitingBytes {
			k.notices++
			k.bytes += size(m)
			k.queue = append(k.queue, inbound{Message: m})
			k.signal()
		}
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	c.handler.Notify(m)
}

// maxTasks bounds the tasks of a connection of whose progress is told.
const maxTasks = 256

// afterAnswer finds who hears of the progress of a call that was answered with a task. c.mu is held.
func (c *Conn) afterAnswer(m *wire.Message) func(wire.Message) {
	token := string(wire.Get(m.Params, "progressToken"))
	for _, k := range c.tasks {
		if k.token == token {
			m.Params = wire.Set(m.Params, k.original, "progressToken")
			return k.later
		}
	}
	return nil
}

// size is about what a frame takes in memory.
func size(m wire.Message) int { return len(m.ID) + len(m.Method) + len(m.Params) + len(m.Extra) }

// plainID is a response's id in the form in which we gave it: some servers answer with 1.0 or "1" to 1.
func plainID(id json.RawMessage) string {
	if text, ok := wire.Text(id); ok {
		return text
	}
	if n, err := strconv.ParseFloat(string(id), 64); err == nil && n == math.Trunc(n) && math.Abs(n) < 1<<53 {
		return strconv.FormatInt(int64(n), 10)
	}
	return string(id)
}

// callOf finds the call that a frame belongs to. c.mu is held.
func (c *Conn) callOf(m wire.Message, related *call) *call {
	switch {
	case related == nil, m.Method == wire.Progress && string(wire.Get(m.Params, "progressToken")) != related.token:
		return c.correlate(m)
	case related.over:
		return nil
	}
	return related
}

// correlate finds the call that a frame over stdio belongs to. Progress names its token and subscriptions
// their id; other frames say nothing, and the newest call in flight is the likeliest cause. What tells of the server as a whole
// belongs to no call. c.mu is held.
func (c *Conn) correlate(m wire.Message) *call {
	if m.Method == wire.Progress {
		return c.calls[string(wire.Get(m.Params, "progressToken"))]
	}
	if id := wire.Get(m.Params, "_meta", wire.MetaSubscription); id != nil {
		return c.calls[plainID(id)]
	}
	switch m.Method {
	case wire.ToolsChanged, wire.PromptsChanged, wire.ResourcesChanged, wire.ResourceUpdated, wire.TaskStatus:
		return nil
	}
	var newest *call
	for _, k := range slices.Backward(c.order) {
		switch {
		case k.method == wire.Listen:
		case newest == nil:
			newest = k
		case k.owner != newest.owner:
			return nil
		}
	}
	return newest
}
