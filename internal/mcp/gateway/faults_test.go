package gateway_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"nightporter/internal/mcp/gateway"
	"nightporter/internal/mcp/sse"
	"nightporter/internal/mcp/wire"
	"nightporter/internal/secret"
	"nightporter/test/lab"
)

// scripted is a server of the session era on HTTP whose tool t does what a test says. say sends a frame before the answer,
// and calls with a frame of the client each.
func (h *house) scripted(called func(say func(frame string), heard <-chan wire.Message), notified func(wire.Message)) {
	heard := make(chan wire.Message, 64)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		body, _ := io.ReadAll(r.Body)
		m, err := wire.Parse(body)
		answer := func(result string) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
		}
		switch {
		case err != nil || m.Method == wire.Discover:
			w.WriteHeader(http.StatusBadRequest)
		case m.Method == wire.Initialize:
			answer(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}`)
		case m.Method == wire.ToolsList:
			answer(`{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}`)
		case m.Method == wire.ToolsCall:
			out := sse.NewWriter(w)
			called(func(frame string) { _ = out.Write("", []byte(frame)) }, heard)
			_ = out.Write("", fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}`, m.ID))
		case m.IsResponse():
			heard <- m
			w.WriteHeader(http.StatusAccepted)
		default:
			if notified != nil {
				notified(m)
			}
			w.WriteHeader(http.StatusAccepted)
		}
	}))
	h.t.Cleanup(web.Close)
	h.configure(fmt.Sprintf("[mcp_servers.s]\nurl = %q\n", web.URL))
}

// session opens one by hand and returns its header.
func (h *house) session(url string) map[string]string {
	h.t.Helper()
	_, body, header := h.post(url, initialize, nil)
	if header.Get("Mcp-Session-Id") == "" {
		h.t.Fatal(body)
	}
	return map[string]string{"Mcp-Session-Id": header.Get("Mcp-Session-Id"), "Accept": "application/json, text/event-stream"}
}

const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{"listChanged":true}},"clientInfo":{"name":"x","version":"1"}}}`

func callOf(id, tool, more string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + tool + `","arguments":{` + more + `}}}`
}

func modernCall(id, tool, more string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + tool + `","arguments":{},` + more + triple + `}}`
}

// wires is a stdio client, frame by frame.
type wires struct {
	h     *house
	in    *io.PipeWriter
	lines chan string
	ended chan error
	stop  context.CancelFunc
}

// dial serves a profile over stdio. A client that is deaf reads nothing.
func (h *house) dial(p gateway.Profile, deaf bool) *wires {
	h.t.Helper()
	p.Dir, p.Grace = cmp.Or(p.Dir, h.t.TempDir()), patience
	e := gateway.New(h.rt, p, "test", nil)
	in, feed := io.Pipe()
	read, out := io.Pipe()
	ctx, stop := context.WithCancel(h.ctx)
	w := &wires{h: h, in: feed, lines: make(chan string, 1024), ended: make(chan error, 1), stop: stop}
	served := make(chan struct{})
	go func() {
		defer close(served)
		w.ended <- e.ServeStdio(ctx, in, out)
		out.Close()
	}()
	if !deaf {
		go func() {
			for scan := bufio.NewScanner(read); scan.Scan(); {
				w.lines <- scan.Text()
			}
		}()
	}
	h.t.Cleanup(func() {
		stop()
		feed.Close()
		read.Close()
		<-served
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		e.Close(ctx)
	})
	return w
}

func (w *wires) say(frames ...string) {
	w.h.t.Helper()
	for _, f := range frames {
		said := make(chan error, 1)
		go func() {
			_, err := io.WriteString(w.in, f+"\n")
			said <- err
		}()
		select {
		case err := <-said:
			if err != nil {
				w.h.t.Fatal(err)
			}
		case <-w.h.ctx.Done():
			w.h.t.Fatalf("%.100s was not read", f)
		}
	}
}

// hear waits for a line that holds text.
func (w *wires) hear(text string) string {
	w.h.t.Helper()
	for {
		select {
		case line := <-w.lines:
			if strings.Contains(line, text) {
				return line
			}
		case <-w.h.ctx.Done():
			w.h.t.Fatalf("%s did not come", text)
		}
	}
}

func (w *wires) waitForEnd() {
	w.h.t.Helper()
	select {
	case err := <-w.ended:
		w.ended <- err
		if err != nil {
			w.h.t.Error(err)
		}
	case <-time.After(15 * time.Second): // two of its own bounds
		w.h.t.Fatal("it goes on")
	}
}

func TestQuestionsInARunAreRefusedAtOnce(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("elicit")})
	e, _, err := gateway.NewForRun(h.ctx, h.rt, gateway.Profile{Dir: t.TempDir(), Owner: "run 1"}, "test", nil)
	if err != nil {
		t.Fatal(err)
	}
	url := h.serve(e)
	_, session, _ := h.post(url, callOf("1", "s__elicit", ""), h.session(url))
	_, stateless, _ := h.post(url, modernCall("1", "s__elicit", ""), modern("tools/call", "s__elicit"))
	for _, body := range []string{session, stateless} {
		if !strings.Contains(body, "unattended run") {
			t.Errorf("the server was told %s", body)
		}
	}
}

func TestStatelessClientTriesAgainAfterAFailedStart(t *testing.T) {
	h := newHouse(t)
	url := lab.Serve(t, lab.Config{Name: "s", Era: lab.Legacy, Tools: lab.Tools("echo"), Log: h.recorder.Address, Methods: map[string]lab.Fault{wire.Initialize: {First: 1, Error: json.RawMessage(`{"code":-32000,"message":"down for a moment"}`)}}})
	h.configure(fmt.Sprintf("[mcp_servers.s]\nurl = %q\n", url))
	_, at := h.endpoint(gateway.Profile{Single: "s"})
	list := `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + triple + `}}`
	if _, body, _ := h.post(at, list, modern("tools/list", "")); !strings.Contains(body, "down for a moment") {
		t.Errorf("at first: %s", body)
	}
	if _, body, _ := h.post(at, list, modern("tools/list", "")); !strings.Contains(body, `"echo"`) {
		t.Errorf("and then: %s", body)
	}
}

func TestStdioClientTriesAgainAfterAFailedStart(t *testing.T) {
	h := newHouse(t)
	url := lab.Serve(t, lab.Config{Name: "s", Era: lab.Legacy, Tools: lab.Tools("echo"), Log: h.recorder.Address, Methods: map[string]lab.Fault{wire.Initialize: {First: 1, Error: json.RawMessage(`{"code":-32000,"message":"down for a moment"}`)}}})
	h.configure(fmt.Sprintf("[mcp_servers.s]\nurl = %q\n", url))
	w := h.dial(gateway.Profile{Single: "s"}, false)
	w.say(initialize)
	w.hear("down for a moment")
	w.say(initialize)
	w.hear(`"protocolVersion"`)
	w.say(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
	w.hear(`"echo"`)
}

func TestDisabledServerIsNamedAsSuch(t *testing.T) {
	h := newHouse(t)
	h.configure("[mcp_servers.off]\ncommand = \"x\"\nenabled = false\n[mcp_servers.wrong]\nurl = \"ftp://x\"\n")
	for name, want := range map[string]string{"off": "is disabled", "wrong": "cannot be used", "gone": "there is no server"} {
		_, url := h.endpoint(gateway.Profile{Single: name})
		if _, body, header := h.post(url, initialize, nil); !strings.Contains(body, want) || header.Get("Mcp-Session-Id") != "" {
			t.Errorf("%s: %s", name, body)
		}
		if _, body, _ := h.post(url, `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{`+triple+`}}`, modern("tools/list", "")); !strings.Contains(body, want) {
			t.Errorf("%s, stateless: %s", name, body)
		}
	}
}

func TestStdioEndsWithItsContextWhenTheClientReadsNothing(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("echo")})
	w := h.dial(gateway.Profile{}, true)
	w.say(initialize)
	if _, err := h.recorder.Wait(h.ctx, lab.Received(wire.ToolsList)); err != nil {
		t.Fatal(err)
	}
	w.stop()
	w.waitForEnd()
}

func TestStdioEndsWithItsInputWhenTheClientReadsNothing(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("echo")})
	w := h.dial(gateway.Profile{}, true)
	w.say(initialize, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":2,"method":"ping"}`)
	w.in.Close()
	w.waitForEnd()
}

func TestStdioEndsDuringAStart(t *testing.T) {
	for _, by := range []string{"end of input", "signal"} {
		t.Run(by, func(t *testing.T) {
			h := newHouse(t, lab.Config{Name: "s", Methods: map[string]lab.Fault{wire.Initialize: {Silent: true}}})
			w := h.dial(gateway.Profile{Single: "s"}, false)
			w.say(initialize)
			started, err := h.recorder.Wait(h.ctx, lab.Received(wire.Initialize))
			if err != nil {
				t.Fatal(err)
			}
			if by == "signal" {
				w.stop()
			} else {
				w.in.Close()
			}
			w.waitForEnd()
			if _, err := h.recorder.Wait(h.ctx, lab.Gone(started.PID)); err != nil {
				t.Error(err)
			}
			if n := len(h.rt.Scopes()); n > 0 {
				t.Errorf("%d scopes are left", n)
			}
		})
	}
}

func TestCloseDuringAStartEndsTheServer(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Methods: map[string]lab.Fault{wire.Initialize: {Silent: true}}})
	e, url := h.endpoint(gateway.Profile{Single: "s"})
	answered := make(chan string, 1)
	go func() {
		_, body, _ := h.post(url, initialize, nil)
		answered <- body
	}()
	started, err := h.recorder.Wait(h.ctx, lab.Received(wire.Initialize))
	if err != nil {
		t.Fatal(err)
	}
	e.Close(h.ctx)
	if h.ctx.Err() != nil {
		t.Error("the end took all the time there was")
	}
	if _, err := h.recorder.Wait(h.ctx, lab.Gone(started.PID)); err != nil {
		t.Error(err)
	}
	if body := <-answered; !strings.Contains(body, "closing") {
		t.Errorf("the client was told %s", body)
	}
	if n := len(h.rt.Scopes()); n > 0 {
		t.Errorf("%d scopes are left", n)
	}
}

func TestRefusedRequestsDoNotHoldTheirConnections(t *testing.T) {
	h := newHouse(t)
	e := gateway.New(h.rt, gateway.Profile{Dir: t.TempDir()}, "test", nil)
	h.serve(e) // which sees to its end
	web := gateway.Server(&gateway.Guard{Authorize: gateway.ByToken(secret.New(token), e)})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = web.Serve(listener)
	}()
	t.Cleanup(func() {
		web.Close()
		<-served
	})
	good := "Authorization: Bearer " + token + "\r\n"
	var all sync.WaitGroup
	for _, c := range []struct{ name, request, status string }{
		{"no token", "POST /mcp HTTP/1.1\r\nHost: localhost\r\n", "401"},
		{"another host", "POST /mcp HTTP/1.1\r\nHost: evil.example\r\n" + good, "403"},
		{"a web page", "POST /mcp HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\n" + good, "403"},
		{"another type", "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n" + good, "415"},
		{"another method", "PUT /mcp HTTP/1.1\r\nHost: localhost\r\n" + good, "405"},
		{"no session", "GET /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: x\r\n" + good, "404"},
	} {
		all.Go(func() {
			conn, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(patience))
			fmt.Fprintf(conn, "%sContent-Length: 100\r\n\r\n", c.request)
			answer, err := io.ReadAll(conn) // until the connection is ended
			if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 "+c.status) {
				t.Errorf("%s: %.60q, %v", c.name, answer, err)
			}
		})
	}
	all.Wait()
}

func TestHungServerDoesNotStallTheSession(t *testing.T) {
	h := newHouse(t)
	hang := make(chan struct{})
	told := make(chan string, 64)
	h.scripted(func(func(string), <-chan wire.Message) {}, func(m wire.Message) {
		if m.Method == wire.RootsChanged {
			told <- m.Method
			<-hang
		}
	})
	t.Cleanup(func() { close(hang) }) // before the server is closed
	w := h.dial(gateway.Profile{}, false)
	w.say(initialize)
	w.hear(`"protocolVersion"`)
	for range 100 {
		w.say(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
	}
	<-told
	w.say(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	w.hear(`"id":1,`)
	if len(told) > 0 {
		t.Error("the server was told twice at the same time")
	}
}

func TestOneRequestTooManyIsRefusedAndCancellationsAreRead(t *testing.T) {
	const bound = 256
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("hang")})
	w := h.dial(gateway.Profile{}, false)
	w.say(initialize)
	w.hear(`"protocolVersion"`)
	for i := range bound {
		w.say(callOf(fmt.Sprint(i+1), "s__hang", ""))
	}
	w.say(callOf("9999", "s__hang", ""))
	if line := w.hear(`"id":9999`); !strings.Contains(line, "256 requests are in flight") {
		t.Error(line)
	}
	if _, err := h.recorder.WaitN(h.ctx, bound, lab.Received(wire.ToolsCall)); err != nil {
		t.Fatal(err)
	}
	for i := range bound {
		w.say(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, i+1))
	}
	if _, err := h.recorder.WaitN(h.ctx, bound, lab.Received(wire.Cancelled)); err != nil {
		t.Error(err)
	}
}

func TestIDInFlightIsNotTakenTwice(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("hang", "echo")})
	_, url := h.endpoint(gateway.Profile{})
	session := h.session(url)
	ended := make(chan string, 1)
	go func() {
		_, body, _ := h.post(url, callOf("5", "s__hang", ""), session)
		ended <- body
	}()
	if _, err := h.recorder.Wait(h.ctx, lab.Received(wire.ToolsCall)); err != nil {
		t.Fatal(err)
	}
	if _, body, _ := h.post(url, callOf("5", "s__echo", ""), session); !strings.Contains(body, "-32600") {
		t.Errorf("the second: %s", body)
	}
	h.post(url, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`, session)
	<-ended
	if _, body, _ := h.post(url, callOf("5", "s__echo", ""), session); !strings.Contains(body, `"result"`) {
		t.Errorf("after its end: %s", body)
	}
}

func TestStatelessRequestsMayHaveTheSameID(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("hang", "echo")})
	_, url := h.endpoint(gateway.Profile{})
	ctx, cancel := context.WithCancel(h.ctx)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(modernCall("5", "s__hang", "")))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for key, value := range modern("tools/call", "s__hang") {
		r.Header.Set(key, value)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if response, err := http.DefaultClient.Do(r); err == nil {
			response.Body.Close()
		}
	}()
	if _, err := h.recorder.Wait(h.ctx, lab.Received(wire.ToolsCall)); err != nil {
		t.Fatal(err)
	}
	if _, body, _ := h.post(url, modernCall("5", "s__echo", ""), modern("tools/call", "s__echo")); !strings.Contains(body, `"result"`) {
		t.Error(body)
	}
	cancel()
	<-ended
	if _, err := h.recorder.Wait(h.ctx, lab.Received(wire.Cancelled)); err != nil {
		t.Errorf("the first can not be cancelled any more: %v", err)
	}
}

func TestStatelessClientsAreAskedOnlyWhatTheirEraKnows(t *testing.T) {
	h := newHouse(t)
	answers := make(chan wire.Message, 2)
	h.scripted(func(say func(string), heard <-chan wire.Message) {
		for _, frame := range []string{`{"jsonrpc":"2.0","id":"p","method":"ping"}`, `{"jsonrpc":"2.0","id":"x","method":"x/ask"}`} {
			say(frame)
			select {
			case m := <-heard:
				answers <- m
			case <-h.ctx.Done():
				return
			}
		}
	}, nil)
	_, url := h.endpoint(gateway.Profile{})
	_, body, _ := h.post(url, modernCall("1", "s__t", ""), modern("tools/call", "s__t"))
	if !strings.Contains(body, `"content":[]`) {
		t.Fatalf("the client got %s", body)
	}
	if m := <-answers; string(m.Result) != "{}" {
		t.Errorf("ping: %s %s", m.Result, m.Error)
	}
	if m := <-answers; wire.AsRPCError(m.Error).Code != wire.CodeMethodNotFound {
		t.Errorf("another method: %s %s", m.Result, m.Error)
	}
}

// calls gathers what endpoints tell of calls.
type calls struct {
	mu  sync.Mutex
	all []gateway.Call
}

func (c *calls) add(call gateway.Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, call)
}

func (c *calls) list() []gateway.Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.all)
}

func TestCallThatAsksIsRecordedOnce(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("elicit")})
	var told calls
	e, url := h.endpoint(gateway.Profile{OnCall: told.add})
	ask := func() (state, key string) {
		_, first, _ := h.post(url, modernCall("1", "s__elicit", ""), modern("tools/call", "s__elicit"))
		state, _ = wire.GetString([]byte(first), "result", "requestState")
		members, _ := wire.Members(wire.Get([]byte(first), "result", "inputRequests"))
		if len(members) != 1 {
			t.Fatalf("the first answer: %s", first)
		}
		return state, members[0].Key
	}
	state, key := ask()
	if got := told.list(); len(got) > 0 {
		t.Errorf("recorded while it waits: %+v", got)
	}
	answers := fmt.Sprintf(`"requestState":%q,"inputResponses":{%q:{"action":"accept","content":{"name":"Ada"}}},`, state, key)
	if _, body, _ := h.post(url, modernCall("2", "s__elicit", answers), modern("tools/call", "s__elicit")); !strings.Contains(body, "Ada") {
		t.Fatal(body)
	}
	got := told.list()
	if len(got) != 1 || got[0].Outcome != gateway.OutcomeOK || got[0].Authority == "" || got[0].Generation == 0 || got[0].Revision == "" || got[0].ResultBytes == 0 {
		t.Errorf("recorded: %+v", got)
	}
	ask() // and nobody comes back
	e.Close(h.ctx)
	if got := told.list(); len(got) != 2 || got[1].Outcome != gateway.OutcomeCancelled || got[1].Authority == "" {
		t.Errorf("recorded: %+v", got)
	}
}

// events reads a stream until it ends or the test has enough.
type events struct {
	body   io.Closer
	frames chan sse.Event
}

func (h *house) stream(method, url, body string, header map[string]string) *events {
	h.t.Helper()
	r, err := http.NewRequestWithContext(h.ctx, method, url, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for key, value := range header {
		r.Header.Set(key, value)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		h.t.Fatal(err)
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		h.t.Fatal(response.Status)
	}
	s := &events{response.Body, make(chan sse.Event, 64)}
	go func() {
		defer close(s.frames)
		for in := sse.NewReader(response.Body); ; {
			e, err := in.Next()
			if err != nil {
				return
			}
			s.frames <- e
		}
	}()
	h.t.Cleanup(func() { response.Body.Close() })
	return s
}

func (h *house) next(s *events) (e sse.Event, ok bool) {
	h.t.Helper()
	select {
	case e, ok = <-s.frames:
	case <-h.ctx.Done():
		h.t.Fatal("no event came")
	}
	return e, ok
}

func with(header map[string]string, key, value string) map[string]string {
	more := map[string]string{key: value}
	for k, v := range header {
		more[k] = v
	}
	return more
}

func TestAnswerOfABrokenConnectionIsGotByItsEventID(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("echo"), Calls: map[string]lab.Fault{"echo": {Hold: true}}})
	_, url := h.endpoint(gateway.Profile{})
	session := h.session(url)
	for _, when := range []string{"before the answer", "after it"} {
		call := h.stream(http.MethodPost, url, callOf("5", "s__echo", `"a":1`), session)
		first, _ := h.next(call)
		if first.ID == "" || len(first.Data) > 0 {
			t.Fatalf("the first event is %q %q", first.ID, first.Data)
		}
		call.body.Close()
		var again *events
		if when == "before the answer" {
			again = h.stream(http.MethodGet, url, "", with(session, "Last-Event-ID", first.ID))
		}
		if err := h.recorder.Release(h.ctx); err != nil {
			t.Fatal(err)
		}
		if again == nil {
			again = h.stream(http.MethodGet, url, "", with(session, "Last-Event-ID", first.ID))
		}
		answer, _ := h.next(again)
		if !strings.Contains(string(answer.Data), `"id":5,"result"`) {
			t.Errorf("%s: %s", when, answer.Data)
		}
		if e, ok := h.next(again); ok {
			t.Errorf("%s: the stream goes on with %s", when, e.Data)
		}
	}
}

func TestNewerStreamReplacesAnOlderOneAndMissesNothing(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("addtool")})
	_, url := h.endpoint(gateway.Profile{})
	session := h.session(url)
	change := func(name string) {
		h.post(url, callOf("1", "s__addtool", `"name":"`+name+`"`), session)
	}
	older := h.stream(http.MethodGet, url, "", session)
	change("one")
	first, _ := h.next(older)
	if !strings.Contains(string(first.Data), wire.ToolsChanged) || first.ID == "" {
		t.Fatalf("%s %s", first.ID, first.Data)
	}
	newer := h.stream(http.MethodGet, url, "", session)
	if e, ok := h.next(older); ok {
		t.Fatalf("the older stream goes on with %s", e.Data)
	}
	change("two")
	second, _ := h.next(newer)
	if second.ID == first.ID || len(second.Data) == 0 {
		t.Errorf("the newer stream began with %s %s", second.ID, second.Data)
	}
	// One that says what it has gets what came after that.
	newest := h.stream(http.MethodGet, url, "", with(session, "Last-Event-ID", first.ID))
	if e, _ := h.next(newest); e.ID != second.ID || string(e.Data) != string(second.Data) {
		t.Errorf("again came %s %s, want %s", e.ID, e.Data, second.ID)
	}
}

func TestOneStreamsEndDoesNotUnsubscribeAnother(t *testing.T) {
	h := newHouse(t, lab.Config{
		Name: "s", Era: lab.Legacy, Resources: []json.RawMessage{json.RawMessage(`{"uri":"lab://a","name":"a"}`)},
		Methods: map[string]lab.Fault{wire.Subscribe: {Result: json.RawMessage("{}")}, wire.Unsubscribe: {Result: json.RawMessage("{}")}},
	})
	_, url := h.endpoint(gateway.Profile{})
	listen := func(id string) *events {
		s := h.stream(http.MethodPost, url, `{"jsonrpc":"2.0","id":`+id+`,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":["lab://a"]},`+triple+`}}`, modern(wire.Listen, ""))
		if e, _ := h.next(s); !strings.Contains(string(e.Data), "lab://a") {
			t.Fatalf("acknowledged: %s", e.Data)
		}
		return s
	}
	first, second := listen("1"), listen("2")
	first.body.Close()
	third := listen("3") // which comes after the first one's end, or before it
	second.body.Close()
	third.body.Close()
	if _, err := h.recorder.Wait(h.ctx, lab.Received(wire.Unsubscribe)); err != nil {
		t.Fatal(err)
	}
	if n := len(h.recorder.Select(lab.Received(wire.Subscribe))); n != 1 {
		t.Errorf("subscribed %d times", n)
	}
	if n := len(h.recorder.Select(lab.Received(wire.Unsubscribe))); n != 1 {
		t.Errorf("unsubscribed %d times", n)
	}
}

// A session's server says that it has no such resource in a code of its era; the same code of a tool is the tool's own.
func TestErrorsOfServersKeepEveryByte(t *testing.T) {
	fault := `{"code":-32002,"hint":"kept","message":"m","data":null,"n":1e400}`
	h := newHouse(t, lab.Config{
		Name: "s", Era: lab.Legacy, Tools: lab.Tools("echo"), Resources: []json.RawMessage{json.RawMessage(`{"uri":"lab://a","name":"a"}`)},
		Calls: map[string]lab.Fault{"echo": {Error: json.RawMessage(fault)}}, Methods: map[string]lab.Fault{wire.ResourcesRead: {Error: json.RawMessage(fault)}},
	})
	_, url := h.endpoint(gateway.Profile{})
	if _, body, _ := h.post(url, callOf("1", "s__echo", ""), h.session(url)); !strings.Contains(body, `"error":`+fault) {
		t.Errorf("a session got %s", body)
	}
	if _, body, _ := h.post(url, modernCall("1", "s__echo", ""), modern("tools/call", "s__echo")); !strings.Contains(body, `"error":`+fault) {
		t.Errorf("a stateless client got %s of a tool", body)
	}
	want := `"error":` + strings.Replace(fault, "-32002", "-32602", 1)
	read := `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"lab://a",` + triple + `}}`
	if _, body, _ := h.post(url, read, modern("resources/read", "lab://a")); !strings.Contains(body, want) {
		t.Errorf("a stateless client got %s of a resource", body)
	}
}

func TestNotificationsOfClientsReachTheirServer(t *testing.T) {
	h := newHouse(t)
	told := make(chan string, 8)
	h.scripted(func(say func(string), heard <-chan wire.Message) {
		say(`{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{"_meta":{"progressToken":"mine"}}}`)
		select {
		case <-heard:
		case <-h.ctx.Done():
		}
	}, func(m wire.Message) {
		if m.Method != wire.Initialized {
			told <- string(m.Params)
		}
	})
	w := h.dial(gateway.Profile{Single: "s"}, false)
	w.say(initialize)
	w.hear(`"protocolVersion"`)
	w.say(callOf("1", "t", ""))
	question := w.hear(wire.SamplingCreate)
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-told:
			if got != want {
				t.Errorf("the server was told %s, want %s", got, want)
			}
		case <-h.ctx.Done():
			t.Errorf("the server was not told %s", want)
		}
	}
	token := wire.Get([]byte(question), "params", "_meta", "progressToken")
	w.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"another","progress":1}}`,
		fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1.0}}`, token))
	expect(`{"progressToken":"mine","progress":1.0}`)
	w.say(`{"jsonrpc":"2.0","method":"notifications/x","params":{"y":1.0}}`)
	expect(`{"y":1.0}`)
	w.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, wire.Get([]byte(question), "id")))
	w.hear(`"id":1,"result"`)
}

// A call may have had effects: its answer must not be lost when its connection breaks, however early that is.
func TestTheAnswerOfAQuickCallIsGotAgainByItsEventID(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("echo")})
	_, url := h.endpoint(gateway.Profile{})
	session := h.session(url)
	call := h.stream(http.MethodPost, url, callOf("5", "s__echo", `"a":1`), session)
	first, _ := h.next(call)
	if first.ID == "" || len(first.Data) > 0 {
		t.Fatalf("the first event is %q %q: nobody could come back for what follows", first.ID, first.Data)
	}
	answer, _ := h.next(call)
	call.body.Close()
	again := h.stream(http.MethodGet, url, "", with(session, "Last-Event-ID", first.ID))
	got, _ := h.next(again)
	if string(got.Data) != string(answer.Data) || !strings.Contains(string(got.Data), `"id":5,"result"`) {
		t.Errorf("got %s, then %s", answer.Data, got.Data)
	}
}

func TestClientsThatSayTooMuchOfThemselvesAreRefused(t *testing.T) {
	h := newHouse(t)
	_, url := h.endpoint(gateway.Profile{})
	long := strings.Repeat("x", 64<<10)
	for _, c := range []struct {
		body   string
		header map[string]string
	}{
		{`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"` + long + `","version":"1"}}}`, nil},
		{`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + strings.Replace(triple, "{}", `{"`+long+`":{}}`, 1) + `}}`, modern(wire.ToolsList, "")},
	} {
		status, body, header := h.post(url, c.body, c.header)
		if status != http.StatusBadRequest || !strings.Contains(body, "64 KiB") || header.Get("Mcp-Session-Id") != "" {
			t.Errorf("%d %.200s", status, body)
		}
	}
	frame := strings.Replace(initialize, `"x"`, `"`+long+`"`, 1)
	if got := h.stdio(gateway.Profile{}, 2, frame, initialize); !strings.Contains(got[0], "64 KiB") || !strings.Contains(got[1], "protocolVersion") {
		t.Errorf("%.300q", got)
	}
}

func TestRequestsThatWaitForTheirClientCountAsBodies(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("elicit")})
	bodies := gateway.NewQuota(150<<10, nil) // of which a body takes 40, and a request that waits
	e, url := h.endpoint(gateway.Profile{Bodies: bodies})
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}},"io.modelcontextprotocol/clientInfo":{"name":`
	call := func(client, more string) string {
		_, body, _ := h.post(url, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"s__elicit","arguments":{"junk":"`+strings.Repeat("x", 40<<10)+`"},`+more+
			meta+`"`+client+`","version":"1"}}}}`, modern(wire.ToolsCall, "s__elicit"))
		return body
	}
	first := call("a", "")
	state, _ := wire.GetString([]byte(first), "result", "requestState")
	if used := bodies.Used(); state == "" || used < 40<<10 {
		t.Fatalf("%d bytes are counted of %s", used, first)
	}
	if got := call("b", ""); !strings.Contains(got, "input_required") {
		t.Errorf("a second one: %s", got)
	}
	if got := call("c", ""); !strings.Contains(got, "too many requests wait") {
		t.Errorf("a third one: %s", got)
	}
	e.Close(h.ctx)
	if used := bodies.Used(); used != 0 {
		t.Errorf("%d bytes are counted at the end", used)
	}
}
