package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"nightporter/internal/config"
	"nightporter/internal/mcp/catalog"
	"nightporter/internal/mcp/gateway"
	mcpruntime "nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/wire"
	"nightporter/test/lab"
)

// tolerance is what a count may be more than what counts.json says, as a share of it and, for small ones, in ones: what Go's own library does
// differs a little from run to run and from version to version.
const (
	tolerance = 0.2
	ones      = 0.5
)

// TestCounts holds what does not depend on the machine against counts.json. A count that has grown is a cost that somebody added: take it away,
// or write the new one down with the reason in the commit. One that has shrunk is only logged: write it down too, or the gain can be lost unseen.
func TestCounts(t *testing.T) {
	if raced {
		t.Skip("the race detector makes allocations of its own")
	}
	data, err := os.ReadFile("counts.json")
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]float64
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	h := newHouse(t)
	got := map[string]float64{
		"allocations a call":                                                 h.allocationsOfCall(),
		"allocations a tool, of a client's start":                            h.allocationsOfStart(),
		"goroutines an idle session":                                         h.goroutinesOfSession(),
		"bytes on disk, of a catalog of 10 tools, over what its server sent": h.bytesOfCatalog(),
	}
	for name, limit := range want {
		count, counted := got[name]
		t.Logf("%s: %.2f (counts.json: %.2f)", name, count, limit)
		if !counted {
			t.Errorf("%s is not counted any more", name)
		}
		if most := limit*(1+tolerance) + ones; count > most {
			t.Errorf("%s: %.2f, and may be %.2f", name, count, most)
		}
	}
	if len(got) != len(want) {
		t.Errorf("counts.json has %d counts of %d", len(want), len(got))
	}
}

const (
	countServers = 10
	countTools   = 10 // of each
)

// house is a gateway in this process, with servers of which it has catalogs.
type house struct {
	t        *testing.T
	rt       *mcpruntime.Runtime
	endpoint *gateway.Endpoint
	catalogs string
	sent     int // bytes of one server's tools
}

func newHouse(t *testing.T) *house {
	dir := t.TempDir()
	var text strings.Builder
	h := &house{t: t, catalogs: filepath.Join(dir, "catalogs")}
	for i := range countServers {
		c := lab.Config{Name: fmt.Sprintf("lab%d", i)}
		for j := range countTools {
			c.Tools = append(c.Tools, definition(0, j)) // of one size in all servers
		}
		h.sent = len(wire.Encode(c.Tools))
		file := filepath.Join(dir, c.Name+".json")
		if err := os.WriteFile(file, []byte(c.Arg()), 0o600); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "[mcp_servers.%s]\ncommand = %q\nargs = [%q]\ncwd = %q\n", c.Name, lab.Binary(t), "@"+file, dir)
	}
	cfg, err := config.Parse("config.toml", []byte(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	store, err := catalog.Open(h.catalogs)
	if err != nil {
		t.Fatal(err)
	}
	h.rt = mcpruntime.New(mcpruntime.Options{Config: cfg, Catalogs: store, LookupEnv: os.LookupEnv})
	h.endpoint = gateway.New(h.rt, gateway.Profile{Dir: dir, Grace: time.Minute}, "test", nil)
	t.Cleanup(func() {
		ctx, done := context.WithTimeout(context.Background(), time.Minute)
		defer done()
		h.endpoint.Close(ctx)
		h.rt.Close(ctx)
	})
	return h
}

// talk is a client on pipes, of which each exchange is a line each way.
type talk struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Reader
}

func (h *house) open() (c *talk, end func()) {
	theirIn, in := io.Pipe()
	out, theirOut := io.Pipe()
	ctx, cancel := context.WithCancel(h.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = h.endpoint.ServeStdio(ctx, theirIn, theirOut)
		theirOut.Close()
	}()
	c = &talk{h.t, in, bufio.NewReaderSize(out, 1<<20)}
	c.ask(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"counts","version":"1"}}}`)
	return c, func() {
		cancel()
		in.Close()
		go func() { _, _ = io.Copy(io.Discard, out) }() // ends with theirOut
		<-ended
	}
}

func (c *talk) ask(line string) string {
	c.t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
	for { // the answer, past what belongs to no request
		answer, err := c.out.ReadString('\n')
		if err != nil {
			c.t.Fatal(err)
		}
		if strings.Contains(answer, `"error"`) {
			c.t.Fatal(answer)
		}
		if strings.HasPrefix(answer, `{"jsonrpc":"2.0","id":`) && strings.Contains(answer, `"result"`) {
			return answer
		}
	}
}

// learn starts each server once, so that all catalogs are there, and at rest: they are shared from then on.
func (h *house) learn() {
	h.t.Helper()
	c, end := h.open()
	defer end()
	deadline := time.Now().Add(time.Minute)
	for strings.Count(c.ask(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`), `"inputSchema"`) < countServers*countTools {
		if time.Now().After(deadline) {
			h.t.Fatal("the servers do not start")
		}
	}
}

// mallocs is how many allocations do makes, the least of several times: what else goes on in the process only adds.
func mallocs(times int, do func()) float64 {
	least := uint64(1 << 62)
	for range times {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		do()
		runtime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
	}
	return float64(least)
}

func (h *house) allocationsOfCall() float64 {
	h.learn()
	c, end := h.open()
	defer end()
	const call = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"lab0__echo","arguments":{"id":"a"}}}`
	c.ask(call) // which starts the server
	const calls = 100
	return mallocs(5, func() {
		for range calls {
			c.ask(call)
		}
	}) / calls
}

func (h *house) allocationsOfStart() float64 {
	h.learn()
	return mallocs(5, func() {
		_, end := h.open()
		end()
	}) / (countServers * countTools)
}

func (h *house) goroutinesOfSession() float64 {
	h.learn()
	const sessions = 50
	before := runtime.NumGoroutine()
	for i := range sessions {
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"counts","version":"1"}}}`, i)
		r := httptest.NewRequestWithContext(h.t.Context(), http.MethodPost, "/mcp", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		w := httptest.NewRecorder()
		h.endpoint.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			h.t.Fatalf("session %d: status %d: %s", i, w.Code, w.Body)
		}
	}
	// What ends beside the answer may take a moment.
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(30 * time.Second); runtime.NumGoroutine() > before && time.Now().Before(deadline); {
		<-ticker.C
	}
	return max(0, float64(runtime.NumGoroutine()-before)/sessions)
}

func (h *house) bytesOfCatalog() float64 {
	h.learn()
	files, err := filepath.Glob(filepath.Join(h.catalogs, "*", "*.catalog"))
	if err != nil || len(files) == 0 {
		h.t.Fatalf("no catalogs: %v", err)
	}
	info, err := os.Stat(files[0])
	if err != nil {
		h.t.Fatal(err)
	}
	return float64(info.Size()) - float64(h.sent)
}
