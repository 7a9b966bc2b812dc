package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"nightporter/internal/mcp/wire"
)

// session is an MCP client's: any number of callers may use it at a time.
type session interface {
	// request returns the result of a request.
	request(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)
	notify(ctx context.Context, method string) error
	close()
}

const revision = "2025-11-25"

// hello opens a session.
func hello(ctx context.Context, s session) error {
	params := wire.Encode(map[string]any{
		"protocolVersion": revision, "capabilities": map[string]any{}, "clientInfo": map[string]string{"name": "bench", "version": "1"},
	})
	if _, err := s.request(ctx, "initialize", params); err != nil {
		return fmt.Errorf("initialize: %w", err)
	}
	return s.notify(ctx, "notifications/initialized")
}

// listTools reads all pages of tools/list.
func listTools(ctx context.Context, s session) (tools []json.RawMessage, err error) {
	cursor := ""
	for {
		params := json.RawMessage("{}")
		if cursor != "" {
			params = wire.Encode(map[string]string{"cursor": cursor})
		}
		result, err := s.request(ctx, "tools/list", params)
		if err != nil {
			return nil, fmt.Errorf("tools/list: %w", err)
		}
		page, err := wire.Elements(wire.Get(result, "tools"))
		if err != nil {
			return nil, fmt.Errorf("tools/list: %w", err)
		}
		tools = append(tools, page...)
		if cursor, _ = wire.GetString(result, "nextCursor"); cursor == "" {
			return tools, nil
		}
	}
}

// callTool calls a tool and reports an error also when the tool does.
func callTool(ctx context.Context, s session, name string, arguments json.RawMessage) (json.RawMessage, error) {
	result, err := s.request(ctx, "tools/call", wire.Encode(map[string]any{"name": name, "arguments": arguments}))
	if err != nil {
		return nil, fmt.Errorf("tools/call %s: %w", name, err)
	}
	if string(wire.Get(result, "isError")) == "true" {
		return nil, fmt.Errorf("tools/call %s: %.300s", name, result)
	}
	return result, nil
}

// pipe is a session over a process's standard input and output.
type pipe struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	read  chan struct{} // closed when the output has ended
	ids   atomic.Int64
	tail  *tail
	write sync.Mutex

	mu      sync.Mutex
	waiting map[string]chan wire.Message
}

func openPipe(cmd *exec.Cmd) (*pipe, error) {
	p := &pipe{cmd: cmd, read: make(chan struct{}), waiting: map[string]chan wire.Message{}, tail: &tail{}}
	cmd.Stderr = p.tail
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p.in = in
	go p.receive(out)
	return p, nil
}

func (p *pipe) receive(out io.Reader) {
	defer close(p.read)
	lines := bufio.NewReaderSize(out, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		m, err := wire.Parse(line)
		if err != nil || !m.IsResponse() {
			continue
		}
		p.mu.Lock()
		waiting := p.waiting[string(m.ID)]
		delete(p.waiting, string(m.ID))
		p.mu.Unlock()
		if waiting != nil {
			waiting <- m // has room for one
		}
	}
}

func (p *pipe) send(m wire.Message) error {
	line := append(m.Append(nil), '\n')
	p.write.Lock()
	defer p.write.Unlock()
	_, err := p.in.Write(line)
	return err
}

func (p *pipe) request(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	id := strconv.FormatInt(p.ids.Add(1), 10)
	answer := make(chan wire.Message, 1)
	p.mu.Lock()
	p.waiting[id] = answer
	p.mu.Unlock()
	if err := p.send(wire.Message{ID: json.RawMessage(id), Method: method, Params: params}); err != nil {
		return nil, fmt.Errorf("%w; its last words: %s", err, p.tail)
	}
	select {
	case m := <-answer:
		return outcome(m)
	case <-p.read:
		return nil, fmt.Errorf("the program's output has ended; its last words: %s", p.tail)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipe) notify(_ context.Context, method string) error {
	return p.send(wire.Message{Method: method})
}

// close ends the program, with its input first, and waits for it.
func (p *pipe) close() {
	_ = p.in.Close()
	end(p.cmd, p.read)
}

// endPatience is how long a program may take to end by itself.
const endPatience = 10 * time.Second

// end waits for a program whose output ended is closed with, and kills it when that takes long.
func end(cmd *exec.Cmd, ended <-chan struct{}) {
	timer := time.NewTimer(endPatience)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		_ = cmd.Process.Kill()
	}
	_ = cmd.Wait()
}

func outcome(m wire.Message) (json.RawMessage, error) {
	if m.Error != nil {
		return nil, fmt.Errorf("answered with an error: %.500s", m.Error)
	}
	return m.Result, nil
}

// web is a session over streamable HTTP.
type web struct {
	client *http.Client
	url    string
	token  string
	id     string // of the session; set by initialize
	ids    atomic.Int64
}

// transport keeps a connection for each of a thousand callers.
func transport() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConns: 4096, MaxIdleConnsPerHost: 4096, DisableCompression: true}}
}

func (w *web) post(ctx context.Context, m wire.Message) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(m.Append(nil)))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if w.token != "" {
		r.Header.Set("Authorization", "Bearer "+w.token)
	}
	if w.id != "" {
		r.Header.Set("Mcp-Session-Id", w.id)
		r.Header.Set("MCP-Protocol-Version", revision)
	}
	answer, err := w.client.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 300))
		answer.Body.Close()
		return nil, fmt.Errorf("HTTP status %s: %s", answer.Status, text)
	}
	return answer, nil
}

func (w *web) request(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	id := json.RawMessage(strconv.FormatInt(w.ids.Add(1), 10))
	answer, err := w.post(ctx, wire.Message{ID: id, Method: method, Params: params})
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if method == "initialize" {
		w.id = answer.Header.Get("Mcp-Session-Id")
	}
	if !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/event-stream") {
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			return nil, err
		}
		m, err := wire.Parse(body)
		if err != nil {
			return nil, err
		}
		return outcome(m)
	}
	lines := bufio.NewReaderSize(answer.Body, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok { // of one line, as all the servers write them
			if m, err := wire.Parse(bytes.TrimSpace(data)); err == nil && m.IsResponse() {
				_, _ = io.Copy(io.Discard, lines) // so that the connection is used again
				return outcome(m)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("the stream ended without an answer: %w", err)
		}
	}
}

func (w *web) notify(ctx context.Context, method string) error {
	answer, err := w.post(ctx, wire.Message{Method: method})
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.Body.Close()
}

func (w *web) close() {
	if w.id == "" {
		return
	}
	ctx, done := context.WithTimeout(context.Background(), endPatience)
	defer done()
	r, err := http.NewRequestWithContext(ctx, http.MethodDelete, w.url, nil)
	if err != nil {
		return
	}
	r.Header.Set("Mcp-Session-Id", w.id)
	if w.token != "" {
		r.Header.Set("Authorization", "Bearer "+w.token)
	}
	if answer, err := w.client.Do(r); err == nil {
		answer.Body.Close()
	}
}

// tail keeps the end of what a program says.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailSize = 2 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - tailSize; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(strings.Fields(string(t.text)), " ")
}

// readToken reads a bearer token from the file that a product made.
func readToken(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil // not yet
	}
	return strings.TrimSpace(string(data)), err
}
