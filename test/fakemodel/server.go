package fakemodel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxBody bounds a request's body. Claude Code refuses prompts over 10 MB
// itself; a conversation with a few large tool results stays below this.
const maxBody = 64 << 20

// Server is the fake model API. Its methods may be used from any goroutine.
type Server struct {
	// URL is the base of both APIs, http://127.0.0.1:PORT without a slash at the end.
	URL string

	script  Script
	dir     string // requests are recorded here too; may be empty
	http    *http.Server
	ctx     context.Context // ends every hold and pause
	cancel  context.CancelFunc
	release chan struct{}
	work    sync.WaitGroup // the listener and every request under way

	mu       sync.Mutex
	closed   bool // no further request is let in
	requests []Request
	asked    int           // model requests so far
	held     int           // answers now in a hold
	changed  chan struct{} // closed and replaced when any of the above changes
	failure  error         // the first failure to write a record
}

// Option changes how a server is set up.
type Option func(*Server)

// RecordTo also writes each request to dir, one JSON file each, as it arrives.
func RecordTo(dir string) Option { return func(s *Server) { s.dir = dir } }

// Listen starts a server on a free port of 127.0.0.1. The caller closes it.
func Listen(script Script, options ...Option) (*Server, error) {
	if err := script.check(); err != nil {
		return nil, fmt.Errorf("model script: %w", err)
	}
	s := &Server{script: script, release: make(chan struct{}), changed: make(chan struct{})}
	for _, option := range options {
		option(s)
	}
	if s.dir != "" {
		if err := os.MkdirAll(s.dir, 0o700); err != nil {
			return nil, fmt.Errorf("folder for recorded requests: %w", err)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for model requests: %w", err)
	}
	s.URL = "http://" + listener.Addr().String()
	s.ctx, s.cancel = context.WithCancel(context.Background())

	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/messages", func(w http.ResponseWriter, r *http.Request) { s.answer(w, r, anthropic) })
	mux.HandleFunc("POST /v1/responses", func(w http.ResponseWriter, r *http.Request) { s.answer(w, r, openai) })
	mux.HandleFunc("POST /v1/messages/count_tokens", s.countTokens)
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("/", s.unknown)
	s.http = &http.Server{Handler: s.gate(mux), ReadHeaderTimeout: 10 * time.Second}
	s.work.Go(func() { _ = s.http.Serve(listener) })
	return s, nil
}

// Close ends every answer under way and waits for them. It returns the first
// failure to write a record, if any.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	err := s.http.Close()
	s.work.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.failure, err)
}

// gate lets requests in until Close, which waits for those that it let in.
func (s *Server) gate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		closed := s.closed
		if !closed {
			s.work.Add(1)
		}
		s.mu.Unlock()
		if closed {
			return
		}
		defer s.work.Done()
		next.ServeHTTP(w, r)
		s.mu.Lock()
		closed = s.closed
		s.mu.Unlock()
		if closed {
			panic(http.ErrAbortHandler) // an answer that Close has cut off must not look whole
		}
	})
}

// TB is the part of testing.TB that Start needs; a command that uses this
// package does not take in package testing.
type TB interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Start starts a server that ends with the test.
func Start(t TB, script Script, options ...Option) *Server {
	t.Helper()
	s, err := Listen(script, options...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close the fake model: %v", err)
		}
	})
	return s
}

// Requests are all requests so far, in order of arrival.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// ModelRequests are the requests that asked the model something: not token
// counts, model lists or probes. Request i got step i of the script.
func (s *Server) ModelRequests() []Request {
	return slices.DeleteFunc(s.Requests(), func(r Request) bool { return r.Step < 0 })
}

// Wait waits until the model was asked at least n times, and returns those requests.
func (s *Server) Wait(ctx context.Context, n int) ([]Request, error) {
	if err := s.until(ctx, func() bool { return s.asked >= n }); err != nil {
		return nil, fmt.Errorf("wait for model request %d, seen %d: %w", n, len(s.ModelRequests()), err)
	}
	return s.ModelRequests(), nil
}

// WaitHeld waits until an answer has come to a hold: everything before the hold has been sent.
func (s *Server) WaitHeld(ctx context.Context) error {
	if err := s.until(ctx, func() bool { return s.held > 0 }); err != nil {
		return fmt.Errorf("wait for an answer on hold: %w", err)
	}
	return nil
}

// WaitFree waits until no answer is on hold: those that were have been released, or their clients have gone.
func (s *Server) WaitFree(ctx context.Context) error {
	if err := s.until(ctx, func() bool { return s.held == 0 }); err != nil {
		return fmt.Errorf("wait for the end of all holds: %w", err)
	}
	return nil
}

// Release lets one answer on hold go on. It waits for one to be there.
func (s *Server) Release(ctx context.Context) error {
	select {
	case s.release <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("release an answer on hold: %w", ctx.Err())
	}
}

// until waits for a condition, which is evaluated with mu held.
func (s *Server) until(ctx context.Context, holds func() bool) error {
	for {
		s.mu.Lock()
		done, changed := holds(), s.changed
		s.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ctx.Done():
			return errors.New("the fake model was closed")
		}
	}
}

// change runs f with mu held and wakes those who wait.
func (s *Server) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// receive reads and records a request. A model request gets the next step.
func (s *Server) receive(r *http.Request, asks bool) (Request, error) {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	if err != nil {
		return Request{}, err
	}
	got := Request{Method: r.Method, Path: r.URL.RequestURI(), Header: r.Header.Clone(), Body: body, Step: -1}
	s.change(func() {
		if asks {
			got.Step = s.asked
			s.asked++
		}
		s.requests = append(s.requests, got)
		if err := got.write(s.dir, len(s.requests)-1); err != nil && s.failure == nil {
			s.failure = err
		}
	})
	return got, nil
}

// step is what answers the i-th model request.
func (s *Server) step(i int) Step {
	switch {
	case i < len(s.script.Steps):
		return s.script.Steps[i]
	case s.script.Default != nil:
		return *s.script.Default
	}
	return Says(Exhausted)
}

// answer serves one model request.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, api api) {
	request, err := s.receive(r, true)
	if err != nil {
		return // the client went before it had asked
	}
	var asked struct {
		Model  string `json:"model"`
		Stream bool   `json:"stream"`
	}
	if err := json.Unmarshal(request.Body, &asked); err != nil {
		writeJSON(w, http.StatusBadRequest, api.fault(http.StatusBadRequest, "the body is not JSON: "+err.Error()))
		return
	}
	step := s.step(request.Step)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	if !pause(ctx, step.Delay) || step.Hold && !s.hold(ctx) {
		return
	}
	if step.Status != 0 {
		for name, value := range step.Header {
			w.Header().Set(name, value)
		}
		var body any = step.Body
		if step.Body == nil {
			body = api.fault(step.Status, step.Message)
		}
		writeJSON(w, step.Status, body)
		return
	}
	stream, ok := api.open(w, turn{number: request.Step, model: asked.Model, usage: step.usage(), stream: asked.Stream})
	if !ok {
		return
	}
	s.play(ctx, step, stream)
}

// stream writes one answer in an API's form. Index counts the blocks or items of the answer.
type stream interface {
	begin()
	openText(index int)
	delta(index int, text string)
	closeText(index int, text string)
	thinking(index int, text string)
	call(index int, call Call)
	raw(index int, raw Raw) bool // false: nothing in this API's form
	fail(fault Fault)
	end(stop string)
}

// play writes a step's parts and its end.
func (s *Server) play(ctx context.Context, step Step, out stream) {
	out.begin()
	index := 0
	for _, part := range step.Parts {
		switch {
		case part.Text != "":
			out.openText(index)
			for i, chunk := range chunks(part.Text, part.Chunk) {
				if i > 0 && !pause(ctx, part.Gap) {
					return
				}
				out.delta(index, chunk)
			}
			out.closeText(index, part.Text)
			index++
		case part.Thinking != "":
			out.thinking(index, part.Thinking)
			index++
		case part.Call != nil:
			out.call(index, *part.Call)
			index++
		case part.Raw != nil:
			if out.raw(index, *part.Raw) {
				index++
			}
		case part.Hold:
			if !s.hold(ctx) {
				return
			}
		default:
			if !pause(ctx, part.Pause) {
				return
			}
		}
	}
	switch {
	case step.Cut:
		panic(http.ErrAbortHandler) // net/http's way to break a connection off; it goes no further than the server
	case step.Fail != nil:
		out.fail(*step.Fail)
	default:
		out.end(step.stop())
	}
}

// hold waits for Release; false when the client or the server goes first.
func (s *Server) hold(ctx context.Context) bool {
	s.change(func() { s.held++ })
	defer s.change(func() { s.held-- })
	select {
	case <-s.release:
		return true
	case <-ctx.Done():
		return false
	}
}

// pause waits; false when the client or the server goes first.
func pause(ctx context.Context, d Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(time.Duration(d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// chunks splits a text into pieces of n runes; n < 1 leaves it whole.
func chunks(text string, n int) []string {
	if n < 1 {
		return []string{text}
	}
	var pieces []string
	for piece := range slices.Chunk([]rune(text), n) {
		pieces = append(pieces, string(piece))
	}
	return pieces
}

// countTokens answers as a tokenizer of four bytes a token.
func (s *Server) countTokens(w http.ResponseWriter, r *http.Request) {
	if request, err := s.receive(r, false); err == nil {
		writeJSON(w, http.StatusOK, map[string]int{"input_tokens": len(request.Body) / 4})
	}
}

func (s *Server) models(w http.ResponseWriter, r *http.Request) {
	if _, err := s.receive(r, false); err == nil {
		writeJSON(w, http.StatusOK, map[string]any{
			"object": "list", "data": []any{map[string]string{"id": CodexModel, "object": "model"}}, "models": []any{},
		})
	}
}

func (s *Server) unknown(w http.ResponseWriter, r *http.Request) {
	if _, err := s.receive(r, false); err == nil {
		writeJSON(w, http.StatusNotFound, anthropic.fault(http.StatusNotFound, "no such endpoint"))
	}
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a client that went is not an error here
}

// sse writes server-sent events.
type sse struct{ w http.ResponseWriter }

func openSSE(w http.ResponseWriter) sse {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	return sse{w}
}

type fields map[string]any

// event writes one event whose data repeats its type, as both APIs do.
func (s sse) event(kind string, data fields) {
	data["type"] = kind
	text, err := json.Marshal(data)
	if err != nil {
		return // only a script's raw part can cause it, and check has looked at those
	}
	// Write errors mean that the client went; the request's context says so too.
	_, _ = fmt.Fprintf(s.w, "event: %s\ndata: %s\n\n", kind, text)
	_ = http.NewResponseController(s.w).Flush()
}

// write records a request as a file of the folder, in the order of arrival.
func (r Request) write(dir string, index int) error {
	if dir == "" {
		return nil
	}
	body := json.RawMessage(r.Body)
	if !json.Valid(r.Body) {
		body, _ = json.Marshal(string(r.Body))
	}
	data, err := json.MarshalIndent(struct {
		Request
		Body json.RawMessage `json:"body"`
	}{r, body}, "", " ")
	if err != nil {
		return fmt.Errorf("record request %d: %w", index, err)
	}
	name := fmt.Sprintf("%03d-%s-%s.json", index, strings.ToLower(r.Method), filepath.Base(strings.SplitN(r.Path, "?", 2)[0]))
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
		return fmt.Errorf("record request %d: %w", index, err)
	}
	return nil
}
