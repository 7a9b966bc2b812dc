package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"nightporter/internal/mcp/wire"
	"nightporter/internal/secret"
)

// wireless is a transport that keeps what is sent. It never fails.
type wireless struct {
	mu   sync.Mutex
	sent []wire.Message
}

func (*wireless) sendNow(*wire.Message) bool { return false }
func (w *wireless) send(_ context.Context, m *wire.Message, _ *call) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, *m)
	return nil
}
func (*wireless) opened(*Hello)         {}
func (*wireless) close(context.Context) {}
func (*wireless) why(err error) error   { return err }
func (*wireless) pid() int              { return 0 }

// idle is a handler whose answers wait for block, and for nothing when it is nil.
type idle struct{ block <-chan struct{} }

func (idle) Notify(wire.Message) {}

func (h idle) Request(context.Context, wire.Message) (json.RawMessage, *wire.RPCError) {
	if h.block != nil {
		<-h.block
	}
	return json.RawMessage("{}"), nil
}

func connected(h Handler) (*Conn, *wireless) {
	c := newConn(&Spec{Name: "s"}, wire.Client{}, h)
	w := &wireless{}
	c.t = w
	return c, w
}

func TestQuestionThatNobodyAnswersEndsItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, w := connected(idle{})
		began := time.Now()
		ended := make(chan error, 1)
		go func() {
			_, err := c.Call(t.Context(), Request{
				Method: wire.ToolsCall, Timeout: time.Second, MaxTimeout: time.Minute,
				Ask: func(ctx context.Context, _ wire.Message) (json.RawMessage, *wire.RPCError) {
					<-ctx.Done()
					return nil, wire.Errorf(wire.CodeServer, "%v", ctx.Err())
				},
			})
			ended <- err
		}()
		synctest.Wait()
		c.receive(wire.Message{ID: json.RawMessage(`"q"`), Method: wire.ElicitCreate}, nil)
		err := <-ended
		var timeout *TimeoutError
		if !errors.As(err, &timeout) || !timeout.Asking || time.Since(began) != askPatience {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if last := w.sent[len(w.sent)-2:]; last[0].Method != wire.Cancelled && last[1].Method != wire.Cancelled {
			t.Errorf("the server was sent %v", w.sent)
		}
		c.Close(t.Context())
	})
}

func TestNotificationsThatNobodyReadsAreBoundedInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := connected(idle{})
		read, taken := make(chan struct{}), 0
		ended := make(chan error, 1)
		go func() {
			_, err := c.Call(t.Context(), Request{Method: wire.ToolsCall, Notify: func(wire.Message) {
				<-read
				taken++
			}})
			ended <- err
		}()
		synctest.Wait()
		params := wire.Quote(strings.Repeat("x", 1<<20))
		for range maxWaiting {
			c.receive(wire.Message{Method: wire.LogMessage, Params: params}, nil)
		}
		synctest.Wait()
		close(read)
		c.receive(wire.Message{ID: json.RawMessage("1"), Result: json.RawMessage("{}")}, nil)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if most := maxWaitingBytes>>20 + 1; taken == 0 || taken > most {
			t.Errorf("%d MiB waited for the caller, want at most %d", taken, most)
		}
		c.Close(t.Context())
	})
}

func TestCloseIsBoundedByItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		defer close(block)
		c, _ := connected(idle{block}) // it does not heed its ctx
		c.receive(wire.Message{ID: json.RawMessage("7"), Method: wire.RootsList}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		c.Close(ctx)
		if d := time.Since(began); d != 5*time.Second {
			t.Errorf("Close took %v", d)
		}
	})
}

func TestAnswersAreKnownByTheirIDHoweverItIsWritten(t *testing.T) {
	for id, want := range map[string]string{`3`: "3", `3.0`: "3", `3e0`: "3", `"3"`: "3", `"3.0"`: "3.0", `3.5`: "3.5", `30`: "30", `1e400`: "1e400", `null`: "null"} {
		if got := plainID(json.RawMessage(id)); got != want {
			t.Errorf("%s is taken for %s, want %s", id, got, want)
		}
	}
}

func TestTextsThatAreCutHoldNoPartOfASecret(t *testing.T) {
	spec := &Spec{
		URL:     "https://user:pass-word@h.example/mcp?key=query-secret",
		Headers: map[string]secret.String{"Authorization": secret.New("Bearer sk-abcdef/ghijkl")},
		secrets: []secret.String{secret.New("first line\nsecond line")},
	}
	m := spec.masker()
	for text, want := range map[string]string{
		"ghijkl and more":                          "*** and more",
		"at sk-abcdef":                             "at ***",
		"sk-abcdef/ghijkl x":                       "*** x",
		`{"k":"sk-abcdef\/gh"`:                     `{"k":"sk-abcdef\/gh"`, // neither whole nor at the edge
		`"sk-abcdef\/ghijkl" `:                     `"***" `,
		"only second line here":                    "only *** here",
		"pass-word@ query-secret, user:pass-word!": "***@ ***, ***!",
	} {
		if got := m.piece(text, true, true); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

// answering is a round tripper of a function.
type answering func(*http.Request) (*http.Response, error)

func (f answering) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestPausesOfTheGETStreamGrowAndBeginAnewAfterAGoodStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConn(&Spec{Name: "s", URL: "http://h.example/mcp"}, wire.Client{}, idle{})
		h := dialHTTP(c)
		c.t = h
		var pauses []time.Duration
		last := time.Now()
		enough := make(chan struct{})
		h.client.Transport = answering(func(*http.Request) (*http.Response, error) {
			pauses = append(pauses, time.Since(last))
			last = time.Now()
			body := ""
			switch len(pauses) {
			case 4:
				body = "data: {}\n\n"
			case 7:
				close(enough)
			}
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body))}, nil
		})
		h.listen()
		<-enough
		c.Close(t.Context())
		for i, want := range []time.Duration{0, 1, 2, 4, 1, 2, 4} {
			if pauses[i] != want*time.Second {
				t.Errorf("pauses %v", pauses)
				break
			}
		}
	})
}
