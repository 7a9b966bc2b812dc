package front

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"nightporter/internal/config"
	"nightporter/internal/mcp/access"
	"nightporter/internal/mcp/catalog"
	"nightporter/internal/mcp/gateway"
	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/sse"
	"nightporter/internal/mcp/wire"
	"nightporter/internal/secret"
	"nightporter/test/lab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = 60 * time.Second
	own      = "made-up-operator-token"
)

// house is a front on a real socket, over lab servers.
type house struct {
	t        *testing.T
	ctx      context.Context
	recorder *lab.Recorder
	f        *Front
	tokens   *access.Store
	url      string
	client   *http.Client
	conns    *Conns
	stop     context.CancelFunc // as SIGTERM does
	kill     chan struct{}      // as the second signal does
	served   chan error
	calls    chan gateway.Call
}

func newHouse(t *testing.T, change func(*Options), servers ...lab.Config) *house {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	h := &house{t: t, ctx: ctx, recorder: lab.Record(t), kill: make(chan struct{}), served: make(chan error, 1), calls: make(chan gateway.Call, 64)}
	var text strings.Builder
	for _, c := range servers {
		c.Log = h.recorder.Address
		fmt.Fprintf(&text, "[mcp_servers.%q]\ncommand = %q\nargs = [%s]\nsupports_parallel_tool_calls = true\n", c.Name, lab.Binary(t), wire.Quote(c.Arg()))
	}
	cfg, err := config.Parse("config.toml", []byte(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	store, err := catalog.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	rt := runtime.New(runtime.Options{Config: cfg, Catalogs: store, LookupEnv: os.LookupEnv})
	h.tokens = access.Open(filepath.Join(t.TempDir(), "tokens.json"))
	opened, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.conns = bound(opened, 64)
	o := Options{
		Profile: gateway.Profile{Dir: t.TempDir(), Grace: patience, OnCall: func(c gateway.Call) { h.calls <- c }},
		Token:   secret.New(own), Tokens: h.tokens, Version: "test", Conns: h.conns,
		Narrow: func(h access.Holder) runtime.Grant {
			if len(h.Servers) > 0 {
				return runtime.Servers(h.Servers)
			}
			return runtime.All{}
		},
	}
	if change != nil {
		change(&o)
	}
	h.f = New(rt, o)
	h.url = "http://" + opened.Addr().String() + "/mcp"
	h.client = &http.Client{Transport: &http.Transport{}}
	serving, stop := context.WithCancel(context.Background())
	h.stop = stop
	go func() { h.served <- h.f.Serve(serving, h.kill, h.conns, patience, patience) }()
	t.Cleanup(func() {
		stop()
		h.client.CloseIdleConnections()
		if err := <-h.served; err != nil {
			t.Errorf("serve: %v", err)
		}
		ending, done := context.WithTimeout(context.Background(), patience)
		defer done()
		rt.Close(ending)
	})
	return h
}

// token adds one.
func (h *house) token(t access.Token) string {
	h.t.Helper()
	made, err := h.tokens.Add(h.ctx, t)
	if err != nil {
		h.t.Fatal(err)
	}
	return made.Reveal()
}

// do sends a request with a token, which may be empty.
func (h *house) do(method, url, token, body string, header map[string]string) *http.Response {
	h.t.Helper()
	response, err := h.try(method, url, token, body, header)
	if err != nil {
		h.t.Fatal(err)
	}
	return response
}

func (h *house) try(method, url, token, body string, header map[string]string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(h.ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for key, value := range header {
		if key == "Host" {
			r.Host = value
		}
		r.Header.Set(key, value)
	}
	response, err := h.client.Do(r)
	if err == nil {
		h.t.Cleanup(func() { response.Body.Close() })
	}
	return response, err
}

// post returns the status and all of the answer.
func (h *house) post(url, token, body string, header map[string]string) (int, string) {
	h.t.Helper()
	response := h.do(http.MethodPost, url, token, body, header)
	data, err := io.ReadAll(response.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	response.Body.Close()
	return response.StatusCode, string(data)
}

const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`

func callOf(id, tool string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + tool + `","arguments":{}}}`
}

const listTools = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`

// session opens one and returns its header.
func (h *house) session(url, token string) map[string]string {
	h.t.Helper()
	response := h.do(http.MethodPost, url, token, initialize, nil)
	io.Copy(io.Discard, response.Body)
	id := response.Header.Get("Mcp-Session-Id")
	if id == "" {
		h.t.Fatal(response.Status)
	}
	return map[string]string{"Mcp-Session-Id": id}
}

// ended waits until a stream ends and returns what came on it.
func (h *house) ended(response *http.Response) []sse.Event {
	h.t.Helper()
	if response.StatusCode != http.StatusOK {
		h.t.Fatal(response.Status)
	}
	var all []sse.Event
	for in := sse.NewReader(response.Body); ; {
		e, err := in.Next()
		if err != nil {
			if h.ctx.Err() != nil {
				h.t.Fatal("the stream does not end")
			}
			return all
		}
		all = append(all, e)
	}
}

func TestEachTokenReachesItsOwnAndIsRecordedByName(t *testing.T) {
	h := newHouse(t, nil, lab.Config{Name: "a", Tools: lab.Tools("echo")}, lab.Config{Name: "b", Tools: lab.Tools("echo")})
	alice := h.token(access.Token{Name: "alice", Servers: []string{"a"}})
	session := h.session(h.url, alice)
	if _, body := h.post(h.url, alice, listTools, session); !strings.Contains(body, "a__echo") || strings.Contains(body, "b__echo") {
		t.Errorf("alice sees %s", body)
	}
	if _, body := h.post(h.url, alice, callOf("2", "b__echo"), session); !strings.Contains(body, "unknown tool") {
		t.Errorf("alice calls: %s", body)
	}
	if c := <-h.calls; c.Outcome != gateway.OutcomeRefused || c.Client != "token alice: client x 1" {
		t.Errorf("recorded %+v", c)
	}
	if status, _ := h.post(h.url+"/b", alice, initialize, nil); status != http.StatusNotFound {
		t.Errorf("the path of another server: %d", status)
	}
	if _, body := h.post(h.url, own, listTools, h.session(h.url, own)); !strings.Contains(body, "a__echo") || !strings.Contains(body, "b__echo") {
		t.Errorf("the operator sees %s", body)
	}
}

// Another token is of no use to who has seen a session's id.
func TestASessionBelongsToTheTokenThatOpenedIt(t *testing.T) {
	h := newHouse(t, nil, lab.Config{Name: "a", Tools: lab.Tools("echo")})
	alice, bob := h.token(access.Token{Name: "alice"}), h.token(access.Token{Name: "bob"})
	session := h.session(h.url, alice)
	for name, thief := range map[string]string{"another token": bob, "the operator's": own} {
		if status, body := h.post(h.url, thief, listTools, session); status != http.StatusNotFound {
			t.Errorf("%s uses it: %d %s", name, status, body)
		}
		if got := h.do(http.MethodGet, h.url, thief, "", session); got.StatusCode != http.StatusNotFound {
			t.Errorf("%s listens: %s", name, got.Status)
		}
		if got := h.do(http.MethodDelete, h.url, thief, "", session); got.StatusCode != http.StatusNotFound {
			t.Errorf("%s ends it: %s", name, got.Status)
		}
	}
	if status, body := h.post(h.url, alice, listTools, session); status != http.StatusOK {
		t.Errorf("its own token: %d %s", status, body)
	}
}

func TestARevokedTokenEndsItsSessionsStreamsAndServers(t *testing.T) {
	h := newHouse(t, nil, lab.Config{Name: "a", Tools: lab.Tools("echo"), Calls: map[string]lab.Fault{"echo": {Hold: true}}})
	alice, bob := h.token(access.Token{Name: "alice"}), h.token(access.Token{Name: "bob"})
	session, other := h.session(h.url, alice), h.session(h.url, bob)
	stream, kept := h.do(http.MethodGet, h.url, alice, "", session), h.do(http.MethodGet, h.url, bob, "", other)
	call := h.do(http.MethodPost, h.url, alice, callOf("5", "a__echo"), session)
	started, err := h.recorder.Wait(h.ctx, lab.Received(wire.ToolsCall))
	if err != nil {
		t.Fatal(err)
	}
	if err := h.tokens.Revoke(h.ctx, "alice"); err != nil {
		t.Fatal(err)
	}
	if status, body := h.post(h.url, alice, listTools, session); status != http.StatusUnauthorized {
		t.Errorf("a new request: %d %s", status, body)
	}
	h.ended(stream)
	if events := h.ended(call); len(events) > 0 && strings.Contains(string(events[len(events)-1].Data), `"result":{"content":[{`) {
		t.Errorf("the call was answered: %s", events[len(events)-1].Data)
	}
	if _, err := h.recorder.Wait(h.ctx, lab.Gone(started.PID)); err != nil {
		t.Error("its server is left:", err)
	}
	if status, body := h.post(h.url, bob, listTools, other); status != http.StatusOK {
		t.Errorf("another's session: %d %s", status, body)
	}
	kept.Body.Close()
}

func TestAnExpiredTokenEndsItsStreams(t *testing.T) {
	h := newHouse(t, nil, lab.Config{Name: "a", Tools: lab.Tools("echo")})
	alice := h.token(access.Token{Name: "alice", Expires: time.Now().Add(2 * time.Second)})
	session := h.session(h.url, alice)
	h.ended(h.do(http.MethodGet, h.url, alice, "", session))
	if status, body := h.post(h.url, alice, listTools, session); status != http.StatusUnauthorized {
		t.Errorf("%d %s", status, body)
	}
}

func TestRequestsThatMayNotComeAreRefused(t *testing.T) {
	h := newHouse(t, func(o *Options) { o.Origins = []string{"https://app.example.com"} })
	for name, c := range map[string]struct {
		method, token string
		header        map[string]string
		want          int
		challenge     string
	}{
		"no token":                        {http.MethodPost, "", nil, 401, `Bearer realm="nightporter"`},
		"a token that is none":            {http.MethodPost, "np_" + own, nil, 401, `Bearer realm="nightporter", error="invalid_token"`},
		"a page of another origin":        {http.MethodPost, own, map[string]string{"Origin": "https://evil.example"}, 403, ""},
		"what its browser asks first":     {http.MethodOptions, "", map[string]string{"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}, 403, ""},
		"a name that was bound to us":     {http.MethodPost, own, map[string]string{"Host": "evil.example"}, 403, ""},
		"a browser that asks for nothing": {http.MethodOptions, "", nil, 401, `Bearer realm="nightporter"`},
		"another path":                    {http.MethodPost, own, map[string]string{"X-Path": "/other"}, 404, ""},
	} {
		url := h.url
		if path := c.header["X-Path"]; path != "" {
			url = strings.TrimSuffix(url, "/mcp") + path
		}
		response := h.do(c.method, url, c.token, initialize, c.header)
		if response.StatusCode != c.want || !strings.HasPrefix(response.Header.Get("WWW-Authenticate"), c.challenge) {
			t.Errorf("%s: %s, challenge %q", name, response.Status, response.Header.Get("WWW-Authenticate"))
		}
		for header := range response.Header {
			if strings.HasPrefix(header, "Access-Control-") {
				t.Errorf("%s: a page may read it: %s", name, header)
			}
		}
	}
	page := map[string]string{"Origin": "https://app.example.com", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type,mcp-session-id"}
	asked := h.do(http.MethodOptions, h.url, "", "", page)
	allowed := strings.ToLower(asked.Header.Get("Access-Control-Allow-Headers"))
	if asked.StatusCode != http.StatusNoContent || asked.Header.Get("Access-Control-Allow-Origin") != page["Origin"] || asked.Header.Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("an allowed page: %s %v", asked.Status, asked.Header)
	}
	for _, header := range []string{"authorization", "content-type", "mcp-session-id", "mcp-protocol-version", "last-event-id"} {
		if !strings.Contains(allowed, header) {
			t.Errorf("an allowed page may not send %s", header)
		}
	}
	answer := h.do(http.MethodPost, h.url, own, initialize, page)
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Access-Control-Allow-Origin") != page["Origin"] || !strings.Contains(answer.Header.Get("Access-Control-Expose-Headers"), "Mcp-Session-Id") {
		t.Errorf("an allowed page's request: %s %v", answer.Status, answer.Header)
	}
}

// The end of a gateway, as its clients see it.
func TestWhatIsInFlightIsAnsweredBeforeTheEnd(t *testing.T) {
	h := newHouse(t, nil, lab.Config{Name: "a", Tools: lab.Tools("echo"), Calls: map[string]lab.Fault{"echo": {Hold: true}}})
	session := h.session(h.url, own)
	stream := h.do(http.MethodGet, h.url, own, "", session)
	call := h.do(http.MethodPost, h.url, own, callOf("5", "a__echo"), session)
	if _, err := h.recorder.Wait(h.ctx, lab.Received(wire.ToolsCall)); err != nil {
		t.Fatal(err)
	}
	h.stop()
	events := h.ended(stream)
	if len(events) == 0 || events[len(events)-1].Retry == 0 {
		t.Errorf("the stream ended without saying when to come back: %+v", events)
	}
	for name, send := range map[string]func() *http.Response{
		"a session":    func() *http.Response { return h.do(http.MethodPost, h.url, own, initialize, nil) },
		"a request":    func() *http.Response { return h.do(http.MethodPost, h.url, own, listTools, session) },
		"a stream":     func() *http.Response { return h.do(http.MethodGet, h.url, own, "", session) },
		"another path": func() *http.Response { return h.do(http.MethodPost, h.url+"/a", own, initialize, nil) },
		"someone unknown": func() *http.Response {
			return h.do(http.MethodPost, h.url, h.token(access.Token{Name: "new"}), initialize, nil)
		},
	} {
		if got := send(); got.StatusCode != http.StatusServiceUnavailable || got.Header.Get("Retry-After") == "" {
			t.Errorf("%s meanwhile: %s, Retry-After %q", name, got.Status, got.Header.Get("Retry-After"))
		}
	}
	if got := h.do(http.MethodPost, h.url, own, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}`, session); got.StatusCode != http.StatusAccepted {
		t.Errorf("a cancellation meanwhile: %s", got.Status)
	}
	if err := h.recorder.Release(h.ctx); err != nil {
		t.Fatal(err)
	}
	events = h.ended(call)
	if len(events) == 0 || !strings.Contains(string(events[len(events)-1].Data), `"id":5,"result"`) {
		t.Errorf("the call in flight got %+v", events)
	}
	err := <-h.served
	h.served <- err
	if _, err := net.Dial("tcp", h.conns.Addr().String()); err == nil {
		t.Error("it still listens")
	}
}

func TestASecondSignalEndsItAtOnce(t *testing.T) {
	h := newHouse(t, nil, lab.Config{Name: "a", Tools: lab.Tools("echo"), Calls: map[string]lab.Fault{"echo": {Hold: true}}})
	session := h.session(h.url, own)
	call := h.do(http.MethodPost, h.url, own, callOf("5", "a__echo"), session)
	called, err := h.recorder.Wait(h.ctx, lab.Received(wire.ToolsCall))
	if err != nil {
		t.Fatal(err)
	}
	h.stop()
	close(h.kill)
	err = <-h.served // the call is never answered
	h.served <- err
	h.ended(call)
	if _, err := h.recorder.Wait(h.ctx, lab.Gone(called.PID)); err != nil {
		t.Error("its server is left:", err)
	}
}

// raw opens a connection and says something.
func (h *house) raw(say string) net.Conn {
	h.t.Helper()
	conn, err := net.Dial("tcp", h.conns.Addr().String())
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, say); err != nil {
		h.t.Fatal(err)
	}
	return conn
}

func TestConnectionsOfStrangersAreDroppedTheOldestFirst(t *testing.T) {
	h := newHouse(t, nil) // with room for 64 connections, of which 16 are for strangers
	member := h.raw("")
	talk := func() int {
		fmt.Fprintf(member, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", own, len(initialize), initialize)
		response, err := http.ReadResponse(bufio.NewReader(member), nil)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, response.Body)
		return response.StatusCode
	}
	if got := talk(); got != http.StatusOK {
		t.Fatal(got)
	}
	first := h.raw("POST /mcp HTTP/1.1\r\nHost: localhost\r\n") // a header that does not end
	for range 200 {
		h.raw("")
	}
	if n, err := first.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the oldest is there still: %d, %v", n, err)
	}
	if got := talk(); got != http.StatusOK {
		t.Errorf("a connection of who had shown a token: %d", got)
	}
	if got := h.do(http.MethodPost, h.url, own, initialize, nil); got.StatusCode != http.StatusOK {
		t.Errorf("a new client: %s", got.Status)
	}
	h.conns.mu.Lock()
	defer h.conns.mu.Unlock()
	if h.conns.count > 64 || h.conns.strange.Len() > 16 {
		t.Errorf("%d connections, %d of strangers", h.conns.count, h.conns.strange.Len())
	}
}

func TestIdleConnectionsMakeRoomAndBusyOnesDoNot(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := bound(l, 4) // one stranger
	var made []*conn
	take := func() *conn {
		t.Helper()
		dialed, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dialed.Close() })
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { accepted.Close() })
		n := &conn{Conn: accepted, c: c}
		made = append(made, n)
		return n
	}
	for i := range 4 {
		n := take()
		if drop, ok := c.admit(n); !ok || drop != nil {
			t.Fatalf("%d: %v %v", i, drop, ok)
		}
		known(connContext(t.Context(), n))
	}
	if drop, ok := c.admit(take()); ok || drop != nil {
		t.Fatalf("room was made although all are busy: %v", drop)
	}
	c.state(made[2], http.StateIdle)
	c.state(made[1], http.StateIdle)
	c.state(made[2], http.StateActive)
	c.state(made[3], http.StateIdle)
	drop, ok := c.admit(take())
	if !ok || drop != made[1] {
		t.Fatalf("dropped %v", drop)
	}
	if c.count != 4 {
		t.Errorf("%d are counted", c.count)
	}
	for _, n := range made {
		n.Close()
		n.Close()
	}
	if c.count != 0 || c.idle.Len()+c.strange.Len() != 0 {
		t.Errorf("after the end %d are counted", c.count)
	}
}

func TestOneTokenDoesNotTakeAllThereIs(t *testing.T) {
	all := gateway.NewQuota(10, nil)
	one, other := gateway.NewQuota(6, all), gateway.NewQuota(6, all)
	for range 6 {
		if !one.Take(1) {
			t.Fatal("refused")
		}
	}
	if one.Take(1) || !other.Take(4) || other.Take(1) {
		t.Error("the parts are not what they are said to be")
	}
	one.Give(3)
	if !other.Take(2) || other.Take(1) || all.Used() != 9 {
		t.Errorf("%d are used", all.Used())
	}
}

func TestOnlyLoopbackNeedsNoMoreThanItsName(t *testing.T) {
	h := newHouse(t, func(o *Options) { o.Hosts = []string{"mcp.example.com"} })
	var answer struct {
		Result struct{ ServerInfo struct{ Name string } }
	}
	_, body := h.post(h.url, own, initialize, map[string]string{"Host": "mcp.example.com"})
	if err := json.Unmarshal([]byte(body), &answer); err != nil || answer.Result.ServerInfo.Name != "nightporter" {
		t.Errorf("%s: %v", body, err)
	}
}

func TestAFileOfTokensThatCannotBeReadLetsInNobodyButTheOperatorAndIsToldOnce(t *testing.T) {
	told := new(lockedBuffer)
	path := filepath.Join(t.TempDir(), "tokens.json")
	h := newHouse(t, func(o *Options) {
		o.Tokens, o.Log = access.Open(path), slog.New(slog.NewTextHandler(told, nil))
	})
	h.tokens = access.Open(path)
	alice := h.token(access.Token{Name: "alice"})
	session := h.session(h.url, alice)
	stream := h.do(http.MethodGet, h.url, alice, "", session)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got := h.do(http.MethodPost, h.url, alice, listTools, session); got.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("its holder: %s", got.Status)
		}
	}
	h.ended(stream)
	if status, _ := h.post(h.url, own, initialize, nil); status != http.StatusOK {
		t.Errorf("the operator: %d", status)
	}
	if n := told.count("level=WARN"); n != 1 {
		t.Errorf("it was told %d times", n)
	}
}
