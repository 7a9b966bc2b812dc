package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"nightporter/internal/mcp/oauth"
	"nightporter/internal/mcp/sse"
	"nightporter/internal/mcp/wire"
	"nightporter/internal/secret"
)

// httpTransport is the transport to a server behind a URL (streamable HTTP).
type httpTransport struct {
	conn   *Conn
	client *http.Client

	ctx    context.Context // ends with the connection
	cancel context.CancelFunc
	beside group

	mu      sync.Mutex
	version string // sent as MCP-Protocol-Version once known
	era     wire.Era
	session string
	hidden  secret.String // the token that was sent last
	// listening is closed once the server has answered the first request for the session's own stream; nil while none was made.
	listening chan struct{}
}

// connectTimeout bounds one attempt to reach the server; the whole start is bounded by StartTimeout.
const connectTimeout = 10 * time.Second

// idleTimeout is how long an unused connection is kept, as in [http.DefaultTransport].
const idleTimeout = 90 * time.Second

// maxHeader bounds an answer's header, of which what a server wants of a login is kept and shown: as much as we take of clients.
const maxHeader = 64 << 10

// errorBody is how much of an error's body is read: enough for a JSON-RPC error or a message.
const errorBody = 64 << 10

// statusError is an HTTP answer that carries no frame.
type statusError struct {
	status int
	body   string
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("HTTP status %d %s", e.status, http.StatusText(e.status))
	if e.body != "" {
		text += ": " + e.body
	}
	return text
}

// transient reports whether another attempt may help: the codes that Codex retries (facts/codex-runtime.md, section 2).
func transient(err error) bool {
	err = unmasked(err)
	var status *statusError
	if errors.As(err, &status) {
		switch status.status {
		case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError,
			http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return true
		}
		return false
	}
	var dial *net.OpError
	return errors.As(err, &dial)
}

func dialHTTP(conn *Conn) *httpTransport {
	ctx, cancel := context.WithCancel(context.Background())
	return &httpTransport{
		conn: conn, ctx: ctx, cancel: cancel,
		client: &http.Client{
			Transport: &http.Transport{
				Proxy:                  http.ProxyFromEnvironment,
				DialContext:            (&net.Dialer{Timeout: connectTimeout}).DialContext,
				TLSHandshakeTimeout:    connectTimeout,
				ForceAttemptHTTP2:      true,
				MaxIdleConnsPerHost:    16,
				MaxResponseHeaderBytes: maxHeader,
				IdleConnTimeout:        idleTimeout,
			},
			// A redirect could carry our headers to another host.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

func (t *httpTransport) opened(h *Hello) {
	t.mu.Lock()
	t.version, t.era = h.Version, h.Era()
	t.mu.Unlock()
}

func (t *httpTransport) request(ctx context.Context, method string, body []byte) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, method, t.conn.spec.URL, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("url: %w", withoutURL(err))
	}
	for key, value := range t.conn.spec.Headers {
		r.Header.Set(key, value.Reveal())
	}
	r.Header.Set("User-Agent", "nightporter")
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.version != "" {
		r.Header.Set("MCP-Protocol-Version", t.version)
	}
	if t.session != "" {
		r.Header.Set("Mcp-Session-Id", t.session)
	}
	return r, nil
}

// do sends a request, with the token of a login when there is one. A request that the server refuses for its token is sent once more
// when there is another token; nothing was carried out then. The error is a *[oauth.LoginError] when no token that there is will
// do; else it names the URL without what may be secret in it, and is a *maybeSent once there was a connection.
func (t *httpTransport) do(r *http.Request) (*http.Response, error) {
	source := t.conn.spec.Tokens
	if source == nil || r.Header.Get("Authorization") != "" {
		return t.once(r)
	}
	for last := false; ; last = true {
		token, err := source.Token(r.Context())
		if err != nil {
			return nil, err
		}
		if !token.Empty() {
			t.hide(token)
			r.Header.Set("Authorization", "Bearer "+token.Reveal())
		}
		response, err := t.once(r)
		if err != nil || response.StatusCode != http.StatusUnauthorized && response.StatusCode != http.StatusForbidden {
			return response, err
		}
		other, err := source.Refused(r.Context(), token, response.StatusCode, response.Header, last)
		if other {
			return response, nil
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, errorBody)) // so that the connection can be used again
		response.Body.Close()
		if err != nil {
			return nil, err
		}
		r = r.Clone(r.Context())
		if r.Body, err = r.GetBody(); err != nil {
			return nil, err
		}
	}
}

// hide keeps a token out of all texts from now on.
func (t *httpTransport) hide(token secret.String) {
	t.mu.Lock()
	known := t.hidden == token
	t.hidden = token
	t.mu.Unlock()
	if known {
		return
	}
	t.conn.mask.hide(token)
	if m := t.conn.spec.Masker; m != nil {
		m.Add(token)
	}
}

// once sends a request.
func (t *httpTransport) once(r *http.Request) (*http.Response, error) {
	var connected atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }}
	response, err := t.client.Do(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
	if err == nil {
		return response, nil
	}
	err = fmt.Errorf("%s %s: %w", r.Method, shown(r.URL), withoutURL(err))
	if connected.Load() {
		err = &maybeSent{err}
	}
	return nil, err
}

// sendNow is not for HTTP, where sending takes its time.
func (t *httpTransport) sendNow(*wire.Message) bool { return false }

// send posts a frame. For a request it ends when the answer has come, or cannot come any more.
func (t *httpTransport) send(ctx context.Context, m *wire.Message, related *call) error {
	ctx, done, err := t.within(ctx)
	if err != nil {
		return err
	}
	defer done()
	return t.post(ctx, m, related)
}

// within makes ctx end with the connection, whose end waits for done.
func (t *httpTransport) within(ctx context.Context) (context.Context, func(), error) {
	if !t.beside.enter() {
		return nil, nil, errClosed
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(t.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
		t.beside.done()
	}, nil
}

func (t *httpTransport) post(ctx context.Context, m *wire.Message, related *call) error {
	modern := false
	t.mu.Lock()
	era := t.era
	t.mu.Unlock()
	if m.IsRequest() {
		if c, ok := wire.ClientOf(m.Params); ok {
			modern = wire.EraOf(c.Version) == wire.StatelessEra
		}
	} else if era == wire.StatelessEra {
		return nil // the end of the request's stream is the cancellation; there are no other notifications
	}
	if m.Method == wire.ToolsCall {
		t.ready(ctx)
	}
	r, err := t.request(ctx, http.MethodPost, m.Append(nil))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if modern {
		r.Header.Set("MCP-Protocol-Version", wire.Modern)
		r.Header.Set("Mcp-Method", m.Method)
		if key := wire.NameKey(m.Method); key != "" {
			if name, ok := wire.GetString(m.Params, key); ok {
				r.Header.Set("Mcp-Name", wire.HeaderValue(name))
			}
		}
		if related != nil {
			for name, value := range related.headers {
				r.Header.Set(name, value)
			}
		}
	}
	response, err := t.do(r)
	if err != nil {
		return err
	}
	if id := response.Header.Get("Mcp-Session-Id"); id != "" && m.Method == wire.Initialize {
		t.mu.Lock()
		t.session = id
		t.mu.Unlock()
	}
	if !m.IsRequest() {
		defer response.Body.Close()
		if response.StatusCode/100 != 2 {
			return t.failed(response, related)
		}
		return nil // any 2xx, with or without a body (facts/codex-runtime.md, section 9, no. 23)
	}
	if response.StatusCode/100 != 2 {
		defer response.Body.Close()
		return t.failed(response, related)
	}
	if err := t.answer(ctx, response, related); err != nil {
		return &maybeSent{err}
	}
	return nil
}

// answer reads what the server answered to a request.
func (t *httpTransport) answer(ctx context.Context, response *http.Response, related *call) error {
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	switch kind {
	case "application/json":
		defer response.Body.Close()
		body, err := io.ReadAll(io.LimitReader(response.Body, maxFrame+1))
		if err != nil {
			return err
		}
		if len(body) > maxFrame {
			return fmt.Errorf("the answer is larger than %d MiB", maxFrame>>20)
		}
		m, err := wire.Parse(body)
		if err != nil {
			return err
		}
		if !answers(&m, related) {
			return fmt.Errorf("its answer is none to the request, which has the id %s: %s", related.id, t.conn.mask.excerpt(body))
		}
		t.conn.receive(m, related)
		return nil
	case "text/event-stream":
		return t.stream(ctx, response.Body, related)
	default:
		response.Body.Close()
		return fmt.Errorf("the answer's content type is %q, not JSON or an event stream; is %s an MCP endpoint?",
			t.conn.mask.Text(response.Header.Get("Content-Type")), shown(response.Request.URL))
	}
}

// answers reports whether m, which came with the response to related, answers it. Some servers answer errors with a null id, and
// get it mended.
func answers(m *wire.Message, related *call) bool {
	if related == nil || !m.IsResponse() {
		return false
	}
	if m.Error != nil && string(m.ID) == "null" {
		m.ID = json.RawMessage(related.id)
	}
	return plainID(m.ID) == related.id
}

// failed makes an error of an HTTP status, or delivers the JSON-RPC error that it carries.
func (t *httpTransport) failed(response *http.Response, related *call) error {
	body, _ := io.ReadAll(io.LimitReader(response.Body, errorBody))
	if response.StatusCode == http.StatusNotFound && response.Request.Header.Get("Mcp-Session-Id") != "" {
		// The session is gone: the next use opens a new one.
		err := &statusError{response.StatusCode, "the server has ended the session"}
		t.conn.fail(err)
		return err
	}
	if m, err := wire.Parse(body); err == nil && m.IsResponse() && m.Error != nil && related != nil {
		m.ID = json.RawMessage(related.id) // some servers answer errors with a null id
		t.conn.receive(m, related)
		return nil
	}
	if to, err := response.Location(); err == nil && response.StatusCode/100 == 3 {
		// Not followed: the credential would go along.
		return &statusError{response.StatusCode, fmt.Sprintf("it sends to %s; if that is the server, make it the url", shown(to))}
	}
	return &statusError{response.StatusCode, lastLines(t.conn.mask.piece(string(body), false, len(body) == errorBody), 3)}
}

// Bounds of a stream that the server cut before its answer (specification 2025-11-25, "Sending Messages to the
// Server": it may, and says when to come back).
const (
	resumeDefault = time.Second
	resumeTries   = 5 // in a row without an event
)

// stream reads the frames of one answer. ctx lasts as long as the caller waits.
func (t *httpTransport) stream(ctx context.Context, body io.ReadCloser, related *call) error {
	retry, last := resumeDefault, ""
	for try := 0; ; try++ {
		err := t.events(body, related, func(e sse.Event) {
			try = 0
			if e.ID != "" {
				last = e.ID
			}
			if e.Retry > 0 {
				retry = e.Retry
			}
		})
		if err == nil || ctx.Err() != nil || t.ctx.Err() != nil {
			return nil
		}
		if last == "" || try >= resumeTries {
			return fmt.Errorf("the server ended the stream before its answer: %w", err)
		}
		if !wait(ctx, t.ctx, retry) {
			return nil
		}
		response, err := t.get(ctx, last)
		if err != nil {
			body = io.NopCloser(strings.NewReader(""))
			continue
		}
		body = response
	}
}

// events delivers the frames of a stream. It returns nil once the answer to related has come.
func (t *httpTransport) events(body io.ReadCloser, related *call, seen func(sse.Event)) error {
	defer body.Close()
	stop := context.AfterFunc(t.ctx, func() { body.Close() })
	defer stop()
	r := sse.NewReader(body)
	for {
		e, err := r.Next()
		if err != nil {
			return err
		}
		seen(e)
		if len(bytes.TrimSpace(e.Data)) == 0 {
			continue
		}
		m, err := wire.Parse(e.Data)
		if err != nil {
			continue
		}
		answered := answers(&m, related)
		t.conn.receive(m, related)
		if answered {
			return nil
		}
	}
}

func (t *httpTransport) get(ctx context.Context, last string) (io.ReadCloser, error) {
	r, err := t.request(ctx, http.MethodGet, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "text/event-stream")
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	response, err := t.do(r)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		return nil, t.failed(response, nil)
	}
	return response.Body, nil
}

// Bounds of the pause before a stream is opened again that ended. The server may name another one.
const (
	shortestPause = 100 * time.Millisecond
	longestPause  = 30 * time.Second
)

// listenPatience is how long a call of a tool waits for the session's own stream to be open.
const listenPatience = time.Second

// ready waits until the session's own stream is open, or is known not to be. What a server asks or says during a call it may send
// there, and servers on the TypeScript SDK drop what finds no stream.
func (t *httpTransport) ready(ctx context.Context) {
	t.mu.Lock()
	listening := t.listening
	t.mu.Unlock()
	if listening == nil {
		return
	}
	timer := time.NewTimer(listenPatience)
	defer timer.Stop()
	select {
	case <-listening:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// listen keeps the session's own stream open, on which a server of the session era says what belongs to no
// request. A server may have none (405). The pauses grow while nothing comes of it.
func (t *httpTransport) listen() {
	listening := make(chan struct{})
	t.mu.Lock()
	t.listening = listening
	t.mu.Unlock()
	answered := sync.OnceFunc(func() { close(listening) })
	started := t.beside.start(func() {
		defer answered()
		retry, last := resumeDefault, ""
		pause := retry
		for {
			body, err := t.get(t.ctx, last)
			answered()
			var status *statusError
			if errors.As(err, &status) && status.status/100 == 4 || errors.As(err, new(*oauth.LoginError)) {
				return
			}
			began, heard := time.Now(), false
			if err == nil {
				_ = t.events(body, nil, func(e sse.Event) {
					heard = true
					if e.ID != "" {
						last = e.ID
					}
					if e.Retry > 0 {
						retry = max(shortestPause, e.Retry)
					}
				})
			}
			if heard || time.Since(began) >= longestPause {
				pause = retry
			}
			if !wait(t.ctx, t.ctx, pause) {
				return
			}
			pause = max(pause, min(2*pause, longestPause))
		}
	})
	if !started {
		answered()
	}
}

// wait waits for d, and reports false when one of the contexts ends first.
func wait(a, b context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-a.Done():
	case <-b.Done():
	}
	return false
}

func (t *httpTransport) close(ctx context.Context) {
	t.mu.Lock()
	session := t.session
	t.mu.Unlock()
	if session != "" {
		// Bounded: an unreachable server must not hold us.
		ctx, stop := context.WithTimeout(ctx, cancelPatience)
		defer stop()
		if r, err := t.request(ctx, http.MethodDelete, nil); err == nil {
			if response, err := t.do(r); err == nil {
				response.Body.Close()
			}
		}
	}
	t.cancel()
	t.beside.close(ctx)
	t.client.CloseIdleConnections()
}

func (t *httpTransport) pid() int { return 0 }

func (t *httpTransport) why(err error) error {
	if err == nil {
		return errClosed
	}
	return t.conn.mask.error(err)
}
