package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"nightporter/internal/config"
	"nightporter/internal/mcp/catalog"
	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/wire"
)

// alone is an endpoint without servers.
func alone(t *testing.T) *Endpoint {
	store, err := catalog.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	rt := runtime.New(runtime.Options{Config: &config.Config{}, Catalogs: store, LookupEnv: os.LookupEnv})
	e := New(rt, Profile{Dir: t.TempDir()}, "test", nil)
	t.Cleanup(func() {
		e.Close(context.Background())
		rt.Close(context.Background())
	})
	return e
}

func TestClientThatIsClosedBeforeItsStartIsRefused(t *testing.T) {
	e := New(nil, Profile{}, "test", nil)
	c, err := e.admit("session x", wire.Client{}, wire.SessionEra)
	if err != nil {
		t.Fatal(err)
	}
	e.Close(context.Background())
	for range 50 { // which of the two ends of a start is seen is up to chance
		if _, err := c.handle(context.Background(), request{id: json.RawMessage("1"), method: wire.ToolsList}); err == nil || !strings.Contains(err.Message, "closing") {
			t.Fatal(err)
		}
	}
}

func TestQuestionThatNobodyAnswersIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := alone(t).admit("x", wire.Client{}, wire.SessionEra)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var sent []string
		_, rpcErr := c.askOver(t.Context(), "s", wire.Message{Method: wire.ElicitCreate}, func(m wire.Message) error {
			sent = append(sent, m.Method)
			return nil
		})
		if rpcErr == nil || time.Since(began) != askedFor {
			t.Errorf("after %v: %v", time.Since(began), rpcErr)
		}
		if len(sent) != 2 || sent[1] != wire.Cancelled {
			t.Errorf("the client was sent %v", sent)
		}
	})
}

func TestQuestionIsRefusedWhenTheClientReadsNothing(t *testing.T) {
	c, err := alone(t).admit("x", wire.Client{}, wire.SessionEra)
	if err != nil {
		t.Fatal(err)
	}
	for range maxUnread {
		c.Notify("s", wire.Message{Method: wire.LogMessage})
	}
	if _, rpcErr := c.Ask(t.Context(), "s", wire.Message{Method: wire.ElicitCreate}); rpcErr == nil || !strings.Contains(rpcErr.Message, "unread") {
		t.Error(rpcErr)
	}
}

func TestUnreadIsBoundedInBytes(t *testing.T) {
	var q queue
	for q.put(make([]byte, 1<<20)) {
	}
	if len(q.waiting) != maxUnreadBytes>>20 {
		t.Errorf("%d MiB wait", len(q.waiting))
	}
	var r recent
	for range 20 {
		r.add(frame{data: make([]byte, 1<<20)})
	}
	if r.size > maxKeptBytes || len(r.frames) != maxKeptBytes>>20 {
		t.Errorf("%d frames of %d bytes are kept", len(r.frames), r.size)
	}
}

func TestFrameThatDidNotGoOutComesAgain(t *testing.T) {
	var q queue
	q.put([]byte("one"))
	q.put([]byte("two"))
	r := q.attach(-1)
	if f, ok, _ := q.take(r); !ok || string(f.data) != "one" {
		t.Fatal(f, ok)
	}
	q.detach(r, false)
	r = q.attach(-1)
	for _, want := range []string{"one", "two"} {
		if f, ok, _ := q.take(r); !ok || string(f.data) != want {
			t.Errorf("%q came, want %s", f.data, want)
		}
	}
}

// TestIdleSessionsEnd is about clients that vanished without a word.
func TestIdleSessionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := alone(t)
		post := func(session, body string) *httptest.ResponseRecorder {
			r := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Mcp-Session-Id", session)
			w := httptest.NewRecorder()
			e.ServeHTTP(w, r)
			return w
		}
		open := func() string {
			return post("", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`).Header().Get("Mcp-Session-Id")
		}
		ping := func(session string) int { return post(session, `{"jsonrpc":"2.0","id":1,"method":"ping"}`).Code }
		vanished, used, listening := open(), open(), open()
		ctx, cancel := context.WithCancel(t.Context())
		streamed := make(chan struct{})
		go func() {
			defer close(streamed)
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/mcp", nil)
			r.Header.Set("Mcp-Session-Id", listening)
			e.ServeHTTP(httptest.NewRecorder(), r)
		}()
		time.Sleep(idleEnd - time.Minute)
		if got := ping(used); got != http.StatusOK {
			t.Fatalf("used: %d", got)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		for name, c := range map[string]struct {
			session string
			want    int
		}{"vanished": {vanished, 404}, "used": {used, 200}, "listening": {listening, 200}} {
			if got := ping(c.session); got != c.want {
				t.Errorf("%s: %d, want %d", name, got, c.want)
			}
		}
		if n := len(e.rt.Scopes()); n != 2 {
			t.Errorf("%d scopes are left", n)
		}
		cancel()
		<-streamed
		time.Sleep(2 * idleEnd)
		synctest.Wait()
		if n := len(e.all()); n != 0 {
			t.Errorf("%d clients are left", n)
		}
	})
}

// deadlines is a response that notes when it is written to without a bound.
type deadlines struct {
	*httptest.ResponseRecorder
	set, late bool
}

func (d *deadlines) SetWriteDeadline(at time.Time) error {
	d.set = !at.IsZero()
	return nil
}

func (d *deadlines) WriteHeader(status int) {
	d.late = d.late || !d.set
	d.ResponseRecorder.WriteHeader(status)
}

func (d *deadlines) Write(b []byte) (int, error) {
	d.late = d.late || !d.set
	return d.ResponseRecorder.Write(b)
}

func TestAnswersAreWrittenWithinABound(t *testing.T) {
	m := wire.Message{ID: json.RawMessage("1"), Result: json.RawMessage("{}")}
	for name, write := range map[string]func(http.ResponseWriter){
		"JSON":   func(w http.ResponseWriter) { writeJSON(w, http.StatusOK, m) },
		"stream": func(w http.ResponseWriter) { _ = (&streamed{w: w}).event(m) },
	} {
		d := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		write(d)
		if d.late || d.Body.Len() == 0 {
			t.Errorf("%s: %q was written without a bound", name, d.Body)
		}
	}
}

func TestServerIsUnsubscribedWithTheLastStream(t *testing.T) {
	var told []string
	granted := false
	s := &subscriptions{tell: func(_ context.Context, owner, method string, uri json.RawMessage) bool {
		told = append(told, method)
		return granted
	}}
	uri := json.RawMessage(`"lab://a"`)
	if s.join(t.Context(), "s", uri) {
		t.Error("joined what was not granted")
	}
	granted = true
	for range 3 {
		if !s.join(t.Context(), "s", uri) {
			t.Fatal("not joined")
		}
	}
	s.part(t.Context(), "s", uri)
	s.part(t.Context(), "s", uri)
	if want := []string{wire.Subscribe, wire.Subscribe}; !slices.Equal(told, want) {
		t.Errorf("the server was told %v, want %v", told, want)
	}
	s.part(t.Context(), "s", uri)
	if want := []string{wire.Subscribe, wire.Subscribe, wire.Unsubscribe}; !slices.Equal(told, want) {
		t.Errorf("the server was told %v, want %v", told, want)
	}
	if len(s.all) > 0 {
		t.Errorf("%d subscriptions are left", len(s.all))
	}
}

func TestPingsOfServersAreAnsweredWithoutTheClient(t *testing.T) {
	ping := wire.Message{Method: wire.Ping}
	if result, err := new(pending).ask(t.Context(), ping); err != nil || string(result) != "{}" {
		t.Error(string(result), err)
	}
	if result, err := new(client).askOver(t.Context(), "s", ping, nil); err != nil || string(result) != "{}" {
		t.Error(string(result), err)
	}
}

func TestClientsAreKeptWithoutTheRequestThatTheyCameIn(t *testing.T) {
	body := json.RawMessage(`{"_meta":{"` + wire.MetaVersion + `":"2026-07-28","` + wire.MetaClientInfo + `":{"name":"x"},"` + wire.MetaCapabilities + `":{"y":1}}}`)
	who, _ := wire.ClientOf(body)
	c, err := alone(t).admit("x", who, wire.StatelessEra)
	if err != nil {
		t.Fatal(err)
	}
	clear(body)
	if string(c.who.Info) != `{"name":"x"}` || string(c.who.Capabilities) != `{"y":1}` {
		t.Errorf("%q and %q are of the request's body", c.who.Info, c.who.Capabilities)
	}
}

func TestWhatAClientCallsItselfIsShownCut(t *testing.T) {
	info := json.RawMessage(`{"name":"` + strings.Repeat("n", 10000) + `","version":"` + strings.Repeat("v", 10000) + `"}`)
	c, err := alone(t).admit("x", wire.Client{Info: info}, wire.StatelessEra)
	if err != nil {
		t.Fatal(err)
	}
	if name := c.name(); len(name) > 300 {
		t.Errorf("%d bytes: %s", len(name), name)
	}
}
