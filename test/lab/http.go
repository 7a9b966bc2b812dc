package lab

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
)

// maxBody bounds a request's body on HTTP.
const maxBody = 32 << 20

// Serve serves the configuration on streamable HTTP until the test ends and
// returns the URL of its endpoint. The process is the test's: exit faults break the connection off instead.
func Serve(t TB, config Config) string {
	t.Helper()
	log, err := openJournal(config.Name, config.Log)
	if err != nil {
		t.Fatalf("%v", err)
	}
	s := newServer(config, log)
	s.exit = func(int) { panic(http.ErrAbortHandler) } // net/http's way to break a connection off
	s.spawn = func(string) (int, error) { return 0, errors.New("a lab on HTTP starts no processes") }
	h := &handler{server: s, sessions: map[string]bool{}}
	web := httptest.NewServer(h)
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
		log.close()
	})
	return web.URL + "/mcp"
}

// handler is a server's endpoint on streamable HTTP.
type handler struct {
	*server
	mu       sync.Mutex
	sessions map[string]bool
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.HTTP.Token != "" && r.Header.Get("Authorization") != "Bearer "+h.HTTP.Token {
		h.log.write(Entry{What: "refused", Method: r.Method, Header: r.Header})
		w.Header().Set("WWW-Authenticate", "Bearer")
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	session := r.Header.Get("Mcp-Session-Id")
	h.mu.Lock()
	known := h.sessions[session]
	h.mu.Unlock()
	switch r.Method {
	case http.MethodPost:
		h.post(w, r, session, known)
	case http.MethodGet:
		h.log.write(Entry{What: "get", Header: r.Header})
		if !known {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		out := newReply(w, h.log, false)
		out.open()
		defer h.addSink(&sink{send: out.send})()
		<-r.Context().Done()
	case http.MethodDelete:
		h.log.write(Entry{What: "delete", Header: r.Header})
		h.mu.Lock()
		delete(h.sessions, session)
		h.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

func (h *handler) post(w http.ResponseWriter, r *http.Request, session string, known bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	}
	var m message
	bad := json.Unmarshal(body, &m) != nil
	h.log.received(m.Method, body, bad, r.Header)
	if bad {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	p := m.params()
	modern := h.modern(p)
	switch {
	case modern, h.HTTP.Stateless, m.Method == "server/discover":
	case m.Method == "initialize" && h.Era != Modern:
		if session = h.HTTP.SessionID; session == "" {
			session = rand.Text()
		}
		h.mu.Lock()
		h.sessions[session] = true
		h.mu.Unlock()
		w.Header().Set("Mcp-Session-Id", session)
	case session == "":
		w.WriteHeader(http.StatusBadRequest)
		return
	case !known:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	out := newReply(w, h.log, h.HTTP.JSON)
	out.modern = modern
	x := &exchange{
		server: h.server, message: m, params: p, client: session + "/", modern: modern,
		send: out.send, raw: out.raw, junk: out.junk, status: out.status,
	}
	if h.HTTP.JSON {
		x.send = func(m message) {
			if m.Method == "" {
				out.send(m)
				return
			}
			h.elsewhere(m)
		}
	}
	if m.ID == nil || m.Method == "" {
		h.receive(r.Context(), x, nil)
		w.WriteHeader(http.StatusAccepted)
		return
	}
	// The work is done here: the answer is over when the handler returns.
	h.receive(r.Context(), x, func(work func()) { work() })
}

// elsewhere sends a message on the GET streams.
func (h *handler) elsewhere(m message) {
	h.server.mu.Lock()
	defer h.server.mu.Unlock()
	for to := range h.sinks {
		to.send(m)
	}
}

// reply is the body of one HTTP answer.
type reply struct {
	log    *journal
	asJSON bool
	modern bool

	mu     sync.Mutex
	w      http.ResponseWriter
	opened bool
}

func newReply(w http.ResponseWriter, log *journal, asJSON bool) *reply {
	return &reply{w: w, log: log, asJSON: asJSON}
}

// open sends the header of a stream.
func (r *reply) open() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.start("text/event-stream")
}

func (r *reply) start(kind string) {
	if r.opened {
		return
	}
	r.opened = true
	r.w.Header().Set("Content-Type", kind)
	r.w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(r.w).Flush()
}

func (r *reply) send(m message) {
	line := m.bytes()
	r.log.sent(line)
	r.mu.Lock()
	defer r.mu.Unlock()
	// Write errors mean that the client has gone; the request's context says so too.
	if r.modern && !r.opened {
		if status := httpStatus(m.Error); status != 0 {
			r.opened = true
			r.w.Header().Set("Content-Type", "application/json")
			r.w.WriteHeader(status)
			_, _ = r.w.Write(line)
			return
		}
	}
	if r.asJSON {
		r.start("application/json")
		_, _ = r.w.Write(line)
		return
	}
	r.event(line)
}

// raw sends one frame as it stands, in a stream.
func (r *reply) raw(line []byte) {
	r.log.sent(line)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.event(line)
}

// event sends one event of a stream. The caller holds r.mu.
func (r *reply) event(line []byte) {
	r.start("text/event-stream")
	_, _ = fmt.Fprintf(r.w, "event: message\ndata: %s\n\n", line)
	_ = http.NewResponseController(r.w).Flush()
}

// httpStatus is the status that the 2026-07-28 revision asks for with some errors; else 0.
func httpStatus(rpcError json.RawMessage) int {
	var e struct {
		Code int `json:"code"`
	}
	_ = json.Unmarshal(rpcError, &e) // no error has no code
	switch {
	case e.Code == -32601:
		return http.StatusNotFound
	case e.Code == -32602, e.Code <= -32020 && e.Code >= -32022:
		return http.StatusBadRequest
	}
	return 0
}

func (r *reply) junk(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.start("text/event-stream")
	_, _ = io.WriteString(r.w, text)
}

func (r *reply) status(code int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.opened {
		r.opened = true
		r.w.WriteHeader(code)
	}
}
