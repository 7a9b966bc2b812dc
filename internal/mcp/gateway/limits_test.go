package gateway

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"nightporter/internal/mcp/wire"
)

// endless is a body of n bytes that nobody has in memory. It counts what was read of it.
type endless struct {
	left, read int64
	err        error // at the end; nil: io.EOF
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left == 0 {
		if e.err != nil {
			return 0, e.err
		}
		return 0, io.EOF
	}
	n := min(int64(len(p)), e.left)
	for i := range p[:n] {
		p[i] = ' '
	}
	e.left -= n
	e.read += n
	return int(n), nil
}

func TestBodiesAreReadNoFurtherThanTheirBounds(t *testing.T) {
	const huge = 1 << 30
	for name, c := range map[string]struct {
		body     *endless
		declared int64
		quota    *Quota
		status   int
		most     int64 // bytes read
	}{
		"too large, and says so":        {&endless{left: huge}, huge, nil, http.StatusRequestEntityTooLarge, 0},
		"too large, and does not":       {&endless{left: huge}, -1, nil, http.StatusRequestEntityTooLarge, maxFrame + 1},
		"too much together with others": {&endless{left: huge}, -1, NewQuota(1<<20, nil), http.StatusServiceUnavailable, 2 << 20},
		"too slow":                      {&endless{left: 10, err: os.ErrDeadlineExceeded}, 20, nil, http.StatusRequestTimeout, 10},
		"broken off":                    {&endless{left: 10, err: io.ErrUnexpectedEOF}, 20, nil, http.StatusBadRequest, 10},
	} {
		e := alone(t)
		e.p.Bodies = c.quota
		r := httptest.NewRequest(http.MethodPost, "/mcp", c.body)
		r.ContentLength = c.declared
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		if w.Code != c.status || c.body.read > c.most {
			t.Errorf("%s: %d after %d bytes, want %d after %d: %s", name, w.Code, c.body.read, c.status, c.most, w.Body)
		}
		if c.status == http.StatusServiceUnavailable && w.Header().Get("Retry-After") == "" {
			t.Errorf("%s: it does not say when to come again", name)
		}
		if c.quota.Used() != 0 {
			t.Errorf("%s: %d bytes are not given back", name, c.quota.Used())
		}
	}
}

func TestAnAnswerThatIsTooLargeToKeepIsAnErrorForWhoComesBack(t *testing.T) {
	gone := make(chan struct{})
	close(gone)
	o := &streamed{w: httptest.NewRecorder(), gone: gone, tape: new(tape), prime: true}
	o.begin()
	o.finish(http.StatusOK, wire.Message{ID: json.RawMessage("7"), Result: json.RawMessage(`"` + strings.Repeat("x", maxKeptBytes) + `"`)})
	frames, open, _ := o.tape.after(o.stream, 0)
	if open || len(frames) != 1 || !strings.Contains(string(frames[0].data), `"id":7,"error"`) || len(frames[0].data) > 1<<10 {
		t.Fatalf("%d frames, open %v", len(frames), open)
	}
}

func TestAClientReadsNoMoreThanSomeStreamsAtOnce(t *testing.T) {
	e := alone(t)
	c, err := e.admit(sessionKey("s"), wire.Client{}, wire.SessionEra)
	if err != nil {
		t.Fatal(err)
	}
	for range maxStreams {
		if !c.reads(1) {
			t.Fatal("refused")
		}
	}
	r := httptest.NewRequest(http.MethodGet, "/mcp", nil)
	r.Header.Set("Mcp-Session-Id", "s")
	r.Header.Set("Last-Event-ID", "1-0")
	w := httptest.NewRecorder()
	e.ServeHTTP(w, r)
	if w.Code != http.StatusTooManyRequests {
		t.Errorf("one more: %d", w.Code)
	}
}

func TestClientsOfSeveralEndpointsShareTheirQuota(t *testing.T) {
	quota := NewQuota(2, nil)
	one, other := alone(t), alone(t)
	one.p.Clients, other.p.Clients = quota, quota
	var clients []*client
	for i, e := range []*Endpoint{one, other} {
		c, err := e.admit("x", wire.Client{}, wire.SessionEra)
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		clients = append(clients, c)
	}
	if _, err := one.admit("y", wire.Client{}, wire.SessionEra); err == nil {
		t.Fatal("a third was admitted")
	}
	clients[1].close(t.Context())
	clients[1].close(t.Context())
	if quota.Used() != 1 {
		t.Errorf("%d are used after one has gone", quota.Used())
	}
	if _, err := one.admit("y", wire.Client{}, wire.SessionEra); err != nil {
		t.Error(err)
	}
}
