package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"nightporter/internal/mcp/sse"
	"nightporter/internal/mcp/wire"
)

// keepAlive is how often a quiet stream is written to, so that no proxy takes it for dead and a client that is gone
// is noticed.
const keepAlive = 20 * time.Second

const (
	// bodyPatience is how long a client may take to send one request.
	bodyPatience = time.Minute
	// comeAgain is when a client may try again that was refused because of what others do.
	comeAgain = 5 * time.Second
	// maxStreams bounds the streams of requests that one client reads by GET. It has a few at most: those that broke.
	maxStreams = 32
)

// ServeHTTP implements streamable HTTP for both eras. Who may ask is checked before: see [Guard].
func (e *Endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	patient(w)
	switch r.Method {
	case http.MethodPost:
		e.post(w, r)
	case http.MethodGet:
		e.get(w, r)
	case http.MethodDelete:
		e.delete(w, r)
	default:
		hasty(w)
		w.Header().Set("Allow", "GET, POST, DELETE")
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

// delete ends a session.
func (e *Endpoint) delete(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get("Mcp-Session-Id")
	if id == "" {
		hasty(w)
		refuse(w, http.StatusBadRequest, nil, wire.Errorf(wire.CodeInvalidRequest, "no session: DELETE needs Mcp-Session-Id"))
		return
	}
	ctx, done := context.WithTimeout(context.WithoutCancel(r.Context()), farewell)
	defer done()
	found := e.dismiss(ctx, sessionKey(id))
	hasty(w)
	if !found {
		noSession(w, nil)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// sessionKey keeps sessions and stateless clients apart.
func sessionKey(id string) string { return "session " + id }

func noSession(w http.ResponseWriter, id json.RawMessage) {
	refuse(w, http.StatusNotFound, id, wire.Errorf(-32001, "session not found; open a new one by initialize"))
}

func refuse(w http.ResponseWriter, status int, id json.RawMessage, err *wire.RPCError) {
	if id == nil {
		id = json.RawMessage("null")
	}
	writeJSON(w, status, wire.Message{ID: id, Error: err.Raw()})
}

func writeJSON(w http.ResponseWriter, status int, m wire.Message) {
	patient(w)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = sse.WriteBounded(w, m.Append(nil))
}

func (e *Endpoint) post(w http.ResponseWriter, r *http.Request) {
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/json" {
		hasty(w)
		refuse(w, http.StatusUnsupportedMediaType, nil, wire.Errorf(wire.CodeInvalidRequest, "the content type must be application/json"))
		return
	}
	body, taken, ok := e.body(w, r)
	defer e.p.Bodies.Give(taken)
	if !ok {
		return
	}
	body = bytes.TrimPrefix(body, []byte("\xef\xbb\xbf"))
	m, err := wire.Parse(body)
	if err != nil {
		code := wire.CodeInvalidRequest
		if wire.Check(body) != nil {
			code = wire.CodeParse
		}
		refuse(w, http.StatusBadRequest, m.ID, wire.Errorf(code, "%v", err))
		return
	}
	if m.IsRequest() && e.gate.isShut() {
		busy(w, m.ID, errClosing)
		return
	}
	header := r.Header.Get("MCP-Protocol-Version")
	who, named := wire.ClientOf(m.Params)
	if wire.EraOf(header) == wire.StatelessEra || named && m.IsRequest() {
		e.postStateless(w, r, m, who, header)
		return
	}
	e.postSession(w, r, m)
}

// body reads a request's body. What it takes of the memory for bodies is given back by the caller. When ok is false, it has answered.
func (e *Endpoint) body(w http.ResponseWriter, r *http.Request) (body []byte, taken int64, ok bool) {
	tooLarge := func() {
		hasty(w)
		w.Header().Set("Connection", "close") // the rest is not read
		refuse(w, http.StatusRequestEntityTooLarge, nil, wire.Errorf(wire.CodeInvalidRequest, "the body is larger than %d MiB", maxFrame>>20))
	}
	if r.ContentLength > maxFrame {
		tooLarge()
		return nil, 0, false
	}
	reading := http.NewResponseController(w)
	_ = reading.SetReadDeadline(time.Now().Add(bodyPatience))
	metered := &metered{r: http.MaxBytesReader(w, r.Body, maxFrame), quota: e.p.Bodies}
	body, err := io.ReadAll(metered)
	switch {
	case err == nil:
		_ = reading.SetReadDeadline(time.Time{})
		return body, metered.taken, true
	case errors.As(err, new(*http.MaxBytesError)):
		tooLarge()
	case errors.Is(err, errBodies):
		hasty(w)
		busy(w, nil, err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		hasty(w)
		refuse(w, http.StatusRequestTimeout, nil, wire.Errorf(wire.CodeInvalidRequest, "the body did not come within %v", bodyPatience))
	default:
		hasty(w)
		refuse(w, http.StatusBadRequest, nil, wire.Errorf(wire.CodeInvalidRequest, "the body could not be read"))
	}
	return nil, metered.taken, false
}

var errBodies = errors.New("too much is being sent to the gateway at the same time")

// metered takes what is read from a quota.
type metered struct {
	r     io.Reader
	quota *Quota
	taken int64
}

func (m *metered) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	if n > 0 && !m.quota.Take(int64(n)) {
		return 0, errBodies
	}
	m.taken += int64(n)
	return n, err
}

// busy refuses what may be asked again later.
func busy(w http.ResponseWriter, id json.RawMessage, why error) {
	w.Header().Set("Retry-After", strconv.Itoa(int(comeAgain.Seconds())))
	refuse(w, http.StatusServiceUnavailable, id, wire.Errorf(wire.CodeServer, "%v", why))
}

func (e *Endpoint) postStateless(w http.ResponseWriter, r *http.Request, m wire.Message, who wire.Client, header string) {
	if !m.IsRequest() {
		w.WriteHeader(http.StatusAccepted) // the stateless era has nothing to notify a server of
		return
	}
	if problem, status := headersOf(r, m, who, header); problem != nil {
		refuse(w, status, m.ID, problem)
		return
	}
	if problem := tooMuch(who); problem != nil {
		refuse(w, http.StatusBadRequest, m.ID, problem)
		return
	}
	// Who shares an endpoint, which is of one token, and says the same of itself is one client: nothing tells them apart (docs/decisions/0006).
	// The token itself does not count: an access token that was refreshed is its client's still.
	sum := sha256.Sum256([]byte(string(who.Capabilities) + "\x00" + string(who.Info)))
	c, err := e.admit("stateless "+hex.EncodeToString(sum[:]), who, wire.StatelessEra)
	if err != nil {
		busy(w, m.ID, err)
		return
	}
	e.respond(w, r, c, request{id: m.ID, method: m.Method, params: m.Params, who: who, modern: true, header: r.Header})
}

// headersOf checks that the headers of a stateless request say what its body says (specification 2026-07-28: both
// are needed and must be equal, so that what a proxy decides by the headers is what is done).
func headersOf(r *http.Request, m wire.Message, who wire.Client, header string) (*wire.RPCError, int) {
	mismatch := func(format string, args ...any) (*wire.RPCError, int) {
		return wire.Errorf(wire.CodeHeaderMismatch, format, args...), http.StatusBadRequest
	}
	for _, name := range []string{"MCP-Protocol-Version", "Mcp-Method", "Mcp-Name"} {
		if n := len(r.Header.Values(name)); n > 1 { // of which others may read another one
			return mismatch("the header %s is there %d times", name, n)
		}
	}
	switch {
	case header == "":
		return mismatch("the header MCP-Protocol-Version is missing")
	case who.Version == "":
		return wire.Errorf(wire.CodeInvalidParams, "params._meta[%q] is missing", wire.MetaVersion), http.StatusBadRequest
	case header != who.Version:
		return mismatch("the header MCP-Protocol-Version is %q, params._meta says %q", header, who.Version)
	case who.Version != wire.Modern:
		return unsupported(who.Version), http.StatusBadRequest
	case who.Capabilities == nil:
		return wire.Errorf(wire.CodeInvalidParams, "params._meta[%q] is missing", wire.MetaCapabilities), http.StatusBadRequest
	case r.Header.Get("Mcp-Method") != m.Method:
		return mismatch("the header Mcp-Method is %q, the method is %q", r.Header.Get("Mcp-Method"), m.Method)
	}
	if key := wire.NameKey(m.Method); key != "" {
		name, _ := wire.GetString(m.Params, key)
		if got, ok := wire.FromHeader(r.Header.Get("Mcp-Name")); !ok || got != name {
			return mismatch("the header Mcp-Name is %q, params.%s is %q", r.Header.Get("Mcp-Name"), key, name)
		}
	}
	return nil, 0
}

func (e *Endpoint) postSession(w http.ResponseWriter, r *http.Request, m wire.Message) {
	id := r.Header.Get("Mcp-Session-Id")
	if m.Method == wire.Initialize && m.IsRequest() {
		id, who := rand.Text(), sessionClient(m.Params)
		if problem := tooMuch(who); problem != nil {
			refuse(w, http.StatusBadRequest, m.ID, problem)
			return
		}
		c, err := e.admit(sessionKey(id), who, wire.SessionEra)
		if err != nil {
			busy(w, m.ID, err)
			return
		}
		w.Header().Set("Mcp-Session-Id", id)
		e.respond(w, r, c, request{id: m.ID, method: m.Method, params: m.Params})
		return
	}
	if id == "" {
		if m.Method == wire.Discover {
			// A probe in the wrong form: the answer that makes every client fall back.
			refuse(w, http.StatusNotFound, m.ID, wire.Errorf(wire.CodeMethodNotFound, "server/discover needs the header MCP-Protocol-Version and the _meta of %s", wire.Modern))
			return
		}
		refuse(w, http.StatusBadRequest, m.ID, wire.Errorf(wire.CodeInvalidRequest, "no session: the header Mcp-Session-Id is missing; begin with initialize"))
		return
	}
	c := e.session(sessionKey(id))
	if c == nil {
		noSession(w, m.ID)
		return
	}
	switch {
	case m.IsResponse():
		c.answered(m)
		w.WriteHeader(http.StatusAccepted)
	case m.IsNotification():
		c.notified(m)
		w.WriteHeader(http.StatusAccepted)
	default:
		e.respond(w, r, c, request{id: m.ID, method: m.Method, params: m.Params})
	}
}

// respond runs a request and writes its answer: as JSON, or, from the first message that comes before it on, as a stream.
func (e *Endpoint) respond(w http.ResponseWriter, r *http.Request, c *client, q request) {
	ctx := r.Context()
	if !q.modern {
		// A session's request goes on when its connection breaks: only a cancellation ends it.
		ctx = context.WithoutCancel(ctx)
	}
	// A stateless request is cancelled by closing its connection, and its id is good for nothing else.
	ctx, flight, rpcErr := c.track(ctx, q.id, q.modern)
	if rpcErr != nil {
		refuse(w, http.StatusOK, q.id, rpcErr)
		return
	}
	defer flight.end()
	out := &streamed{w: w, gone: r.Context().Done(), primeAfter: primeAfter}
	switch {
	case q.method == wire.Listen:
		out.begin()
	case !q.modern && q.method != wire.Initialize:
		out.tape = &c.tape
		if q.method == wire.ToolsCall {
			// It may have had effects, so that it must not be asked again for its answer, however early its connection breaks.
			out.primeAfter = 0
		}
		out.prime = primes(c.who.Version) && strings.Contains(r.Header.Get("Accept"), "text/event-stream")
	}
	stopBeat := out.beat(ctx)
	defer stopBeat()
	q.x.notify = func(m wire.Message) { _ = out.event(m) }
	if !q.modern {
		q.x.ask = c.asker(out.event)
	}
	result, rpcErr := c.handle(ctx, q)
	status := http.StatusOK
	if q.modern && rpcErr != nil {
		// The status says what kind of error it is (specification 2026-07-28).
		switch rpcErr.Code {
		case wire.CodeMethodNotFound:
			status = http.StatusNotFound
		case wire.CodeInvalidParams, wire.CodeHeaderMismatch, wire.CodeMissingCapability, wire.CodeUnsupportedVersion:
			status = http.StatusBadRequest
		}
	}
	if q.method == wire.Initialize && rpcErr != nil {
		// No session came of it.
		w.Header().Del("Mcp-Session-Id")
		e.drop(c)
	}
	flight.answered()
	out.finish(status, response(q.id, result, rpcErr))
}

// primes reports whether clients of a revision know events that carry nothing but an id.
func primes(version string) bool { return version >= wire.Latest }

// primeAfter is when an unanswered request of a session gets a stream, with an id on it: from then on the client can come back for
// the answer when its connection breaks. Most answers are there before, and need none: what has no effects can be asked again.
const primeAfter = time.Second

// streamed is a response that becomes an event stream when something is to be said before the answer.
type streamed struct {
	w     http.ResponseWriter
	gone  <-chan struct{} // closed when the connection has broken
	tape  *tape           // where events are kept; nil: nowhere
	prime bool
	// primeAfter is when it becomes a stream in any case, if prime is set.
	primeAfter time.Duration

	mu     sync.Mutex
	s      *sse.Writer
	stream int   // its number on the tape
	broken error // why nothing more can be written
	over   bool
}

// newStream begins an event stream, however long ago its request came.
func newStream(w http.ResponseWriter) *sse.Writer {
	patient(w)
	return sse.NewWriter(w)
}

// begin makes the response a stream. The caller holds o.mu, or nobody else has o.
func (o *streamed) begin() {
	if o.s != nil {
		return
	}
	o.s = newStream(o.w)
	if o.tape != nil {
		o.stream = o.tape.open()
	}
	if o.prime {
		o.broken = o.s.Write(eventID(o.stream, 0), nil)
	}
}

// kept is what is kept of a message for who comes back for it. An answer that is too large for that is an error in its place, so that its
// client does not wait for ever.
func kept(m wire.Message, data []byte) []byte {
	if len(data) <= maxKeptBytes || m.ID == nil || m.Method != "" {
		return data
	}
	lost := response(m.ID, nil, wire.Errorf(wire.CodeServer,
		"the connection broke before the answer had come, and with %d bytes it was too large to be kept", len(data)))
	return lost.Append(nil)
}

// write sends one event. The caller holds o.mu.
func (o *streamed) write(m wire.Message) error {
	o.begin()
	data, id := m.Append(nil), ""
	if o.tape != nil {
		id = o.tape.add(o.stream, kept(m, data))
	}
	select {
	case <-o.gone:
		o.broken = errGone
	default:
	}
	if o.broken == nil {
		o.broken = o.s.Write(id, data)
	}
	if o.broken != nil && o.tape != nil && o.tape.followed(o.stream) {
		return nil // the client came back for it
	}
	return o.broken
}

var errGone = errors.New("its connection has broken")

func (o *streamed) event(m wire.Message) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over {
		return http.ErrHandlerTimeout
	}
	return o.write(m)
}

// beat keeps a stream alive until the returned function is called.
func (o *streamed) beat(ctx context.Context) (stop func()) {
	if o.prime && o.primeAfter == 0 {
		o.begin() // nobody else has it yet
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var prime <-chan time.Time
		if o.prime && o.primeAfter > 0 {
			timer := time.NewTimer(o.primeAfter)
			defer timer.Stop()
			prime = timer.C
		}
		ticker := time.NewTicker(keepAlive)
		defer ticker.Stop()
		for {
			select {
			case <-prime:
				o.mu.Lock()
				if !o.over {
					o.begin()
				}
				o.mu.Unlock()
			case <-ticker.C:
				o.mu.Lock()
				if o.s != nil && !o.over && o.broken == nil {
					o.broken = o.s.KeepAlive()
				}
				o.mu.Unlock()
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

func (o *streamed) finish(status int, m wire.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	if o.s == nil {
		writeJSON(o.w, status, m)
		return
	}
	_ = o.write(m)
	if o.tape != nil {
		o.tape.end(o.stream)
	}
}

// get is a session's own stream, of what belongs to no request; or the rest of a request's stream that broke.
func (e *Endpoint) get(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get("Mcp-Session-Id")
	if id == "" {
		hasty(w)
		w.Header().Set("Allow", "POST")
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	c := e.session(sessionKey(id))
	if c == nil {
		hasty(w)
		noSession(w, nil)
		return
	}
	defer c.touch()
	stream, n, ok := parseEventID(r.Header.Get("Last-Event-ID"))
	switch {
	case ok && stream > 0:
		c.resume(w, r, stream, n)
	case e.gate.isShut():
		hasty(w)
		busy(w, nil, errClosing)
	case ok:
		c.stream(w, r, n)
	default:
		c.stream(w, r, -1)
	}
}

// stream sends the client's own stream, in place of an older one: a client whose connection broke may be back before we know.
func (c *client) stream(w http.ResponseWriter, r *http.Request, after int) {
	reader := c.own.attach(after)
	var err error
	defer func() { c.own.detach(reader, err == nil) }()
	s := newStream(w)
	ticker := time.NewTicker(keepAlive)
	defer ticker.Stop()
	for r.Context().Err() == nil {
		f, ok, more := c.own.take(reader)
		if ok {
			if err = s.Write(f.id(), f.data); err != nil {
				return
			}
			continue
		}
		select {
		case <-more:
		case <-ticker.C:
			if s.KeepAlive() != nil {
				return
			}
		case <-reader.replaced:
			return
		case <-c.closed:
			return
		case <-c.e.gate.shut:
			_ = s.Retry(comeAgain)
			return
		case <-r.Context().Done():
			return
		}
	}
}

// resume sends what came on a request's stream behind event n, until the answer. A stream of which nothing is known any more stays silent:
// its request fails by its client's patience, where an error would end the session in some clients.
func (c *client) resume(w http.ResponseWriter, r *http.Request, stream, n int) {
	if !c.reads(1) {
		hasty(w)
		w.Header().Set("Retry-After", strconv.Itoa(int(comeAgain.Seconds())))
		http.Error(w, fmt.Sprintf("%d streams of this session are being read; close one", maxStreams), http.StatusTooManyRequests)
		return
	}
	defer c.reads(-1)
	defer c.tape.follow(stream)()
	s := newStream(w)
	ticker := time.NewTicker(keepAlive)
	defer ticker.Stop()
	sent := 0
	last := false
	for {
		frames, open, more := c.tape.after(stream, n)
		for _, f := range frames {
			if s.Write(f.id(), f.data) != nil {
				return
			}
			n = f.n
			sent++
		}
		if last || !open && sent > 0 {
			return
		}
		select {
		case <-more:
		case <-ticker.C:
			if s.KeepAlive() != nil {
				return
			}
		case <-c.closed:
			last = true // the answer may have come at the same time
		case <-r.Context().Done():
			return
		}
	}
}

// reads counts the streams of requests that the client reads by GET. It reports false when there are too many.
func (c *client) reads(more int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams+more > maxStreams {
		return false
	}
	c.streams += more
	return true
}
