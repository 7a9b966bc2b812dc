//go:build unix

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"nightporter/test/fakemodel"
	"nightporter/test/lab"
	"nightporter/test/programs"
)

// network is a gateway of the operator's as its clients reach it.
type network struct {
	w       *world
	r       *running
	url     string
	address string
	token   string
	client  *http.Client
}

// gateway starts nightporter gateway and waits until it can be reached.
func (w *world) gateway(args ...string) *network {
	w.t.Helper()
	n := &network{w: w, r: w.start(append([]string{"gateway", "--listen", "127.0.0.1:0"}, args...)...), client: &http.Client{Transport: &http.Transport{}}}
	w.t.Cleanup(n.client.CloseIdleConnections)
	n.r.waitFor(func(ctx context.Context) error {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			records, _ := filepath.Glob(filepath.Join(w.home, "np", "state", "live", "*.json"))
			for _, record := range records {
				var found struct{ URL string }
				if data, err := os.ReadFile(record); err == nil && json.Unmarshal(data, &found) == nil && found.URL != "" {
					n.url = found.URL
					return nil
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	n.address = strings.TrimSuffix(strings.TrimPrefix(n.url, "http://"), "/mcp")
	token, err := os.ReadFile(filepath.Join(w.home, "np", "state", "gateway.token"))
	if err != nil {
		w.t.Fatal(err)
	}
	n.token = strings.TrimSpace(string(token))
	return n
}

// request makes one with the operator's token.
func (n *network) request(method string, body io.Reader, session string) *http.Request {
	n.w.t.Helper()
	r, err := http.NewRequestWithContext(within(n.w.t), method, n.url, body)
	if err != nil {
		n.w.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Authorization", "Bearer "+n.token)
	if session != "" {
		r.Header.Set("Mcp-Session-Id", session)
	}
	return r
}

const initializeSession = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"other","version":"1"}}}`

// session opens one.
func (n *network) session() string {
	n.w.t.Helper()
	response, err := n.client.Do(n.request(http.MethodPost, strings.NewReader(initializeSession), ""))
	if err != nil {
		n.w.t.Fatal(err)
	}
	defer response.Body.Close()
	io.Copy(io.Discard, response.Body)
	if response.StatusCode != http.StatusOK {
		n.w.t.Fatal(response.Status)
	}
	return response.Header.Get("Mcp-Session-Id")
}

// call calls a tool of the server "s" and returns all of the answer.
func (n *network) call(session, tool, arguments string) (string, error) {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"s__%s","arguments":%s}}`, tool, arguments)
	response, err := n.client.Do(n.request(http.MethodPost, strings.NewReader(body), session))
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	return string(data), err
}

// others are clients that use the gateway all the while. What they notice is an error.
func (n *network) others() (stop func()) {
	ctx, cancel := context.WithCancel(within(n.w.t))
	var wg sync.WaitGroup
	calls := 0
	wg.Go(func() {
		session := n.session()
		for ctx.Err() == nil {
			if answer, err := n.call(session, "echo", `{"n":1}`); err != nil || !strings.Contains(answer, `"result"`) {
				n.w.t.Errorf("another client: %.200q, %v", answer, err)
				return
			}
			calls++
		}
	})
	wg.Go(func() { // always on a new connection, as a client that starts
		fresh := &network{w: n.w, url: n.url, token: n.token, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
		for ctx.Err() == nil {
			session := fresh.session()
			for _, c := range []struct {
				method string
				want   int
			}{{http.MethodPost, http.StatusOK}, {http.MethodDelete, http.StatusNoContent}} {
				response, err := fresh.client.Do(fresh.request(c.method, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`), session))
				if err != nil || response.StatusCode != c.want {
					n.w.t.Errorf("a client that starts: %v %v", response, err)
					return
				}
				response.Body.Close()
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
		if calls == 0 {
			n.w.t.Error("the other client did nothing meanwhile")
		}
	}
}

// memory is the gateway's resident memory, in bytes.
func (n *network) memory() int64 {
	n.w.t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.r.cmd.Process.Pid))
	if err != nil {
		n.w.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), "VmRSS:")
	var kb int64
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		n.w.t.Fatal(err)
	}
	return kb << 10
}

// sockets are how many the gateway has open.
func (n *network) sockets() (count int) {
	n.w.t.Helper()
	fds := fmt.Sprintf("/proc/%d/fd", n.r.cmd.Process.Pid)
	entries, err := os.ReadDir(fds)
	if err != nil {
		n.w.t.Fatal(err)
	}
	for _, entry := range entries {
		if to, err := os.Readlink(filepath.Join(fds, entry.Name())); err == nil && strings.HasPrefix(to, "socket:") {
			count++
		}
	}
	return count
}

// TestAPageInABrowserUsesTheGatewayOnlyWhereItIsAllowed has real pages try with the operator's own token.
func TestAPageInABrowserUsesTheGatewayOnlyWhereItIsAllowed(t *testing.T) {
	browser := programs.Find(t, "chromium")
	var n *network
	pages := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		// It asks synchronously, so that it is loaded when all is answered: first as scripts of MCP clients do, then as a form can.
		fmt.Fprintf(out, `<body>page</body><script>
			for (const type of ["application/json", "text/plain"]) {
				const asked = new XMLHttpRequest();
				asked.open("POST", %q, false);
				asked.setRequestHeader("Content-Type", type);
				asked.setRequestHeader("Accept", "application/json, text/event-stream");
				if (type == "application/json") asked.setRequestHeader("Authorization", "Bearer " + %q);
				try { asked.send(%q); document.body.append(" " + asked.status) } catch (e) { document.body.append(" " + e.name) }
			}
		</script>`, n.url, n.token, initializeSession)
	}))
	defer pages.Close()
	_, port, _ := net.SplitHostPort(pages.Listener.Addr().String())
	w := newWorld(t, fakemodel.Script{})
	w.config("[gateway]\nallowed_origins = [\"http://app.test:" + port + "\"]\n" + w.lab(lab.Config{Name: "s", Tools: lab.Tools("echo")}))
	n = w.gateway()
	_, own, _ := net.SplitHostPort(n.address)
	// A short name, because the browser makes sockets below it.
	home, err := os.MkdirTemp("", "np-page-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(home)
	for url, want := range map[string]string{
		"http://app.test:" + port + "/":     " 200 401<",
		"http://evil.test:" + port + "/":    " NetworkError NetworkError<",
		"http://evil.test:" + own + "/mcp/": "forbidden: the Host header evil.test", // a name of somebody else's that leads here
	} {
		cmd := exec.CommandContext(within(t), browser, "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir="+home,
			"--host-resolver-rules=MAP *.test 127.0.0.1", "--no-proxy-server", "--dump-dom", url)
		cmd.Env = programs.Env(home, "TMPDIR="+home)
		page, err := cmd.Output()
		said := string(page)
		if _, after, ok := strings.Cut(said, "</script>"); ok { // which has the token
			said = after
		}
		if err != nil || !strings.Contains(said, want) {
			t.Errorf("%s: %v: %s", url, err, said)
		}
	}
}

// spaces is n bytes of a body, made while it is read.
type spaces struct{ left int64 }

func (s *spaces) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), s.left))
	copy(p, bytes.Repeat([]byte(" "), n))
	s.left -= int64(n)
	return n, nil
}

// TestWhatAGatewayOnANetworkHasToBear does, one after the other, what one client or stranger must not be able to do to others.
func TestWhatAGatewayOnANetworkHasToBear(t *testing.T) {
	w := newWorld(t, fakemodel.Script{})
	w.config("[gateway]\ndrain_sec = 0\noptional_grace_ms = 60000\n" + w.lab(lab.Config{Name: "s", Tools: lab.Tools("echo", "big")}) + "supports_parallel_tool_calls = true\n")
	n := w.gateway()
	if _, err := n.call(n.session(), "echo", "{}"); err != nil { // its catalog is known from here on
		t.Fatal(err)
	}

	// Who reads slowly is begun first, and looked at last: until it is dropped takes slowClient, 30 s.
	slow, err := net.Dial("tcp", n.address)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	began := time.Now()
	if err := slow.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	r := n.request(http.MethodPost, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"s__big","arguments":{"bytes":20000000}}}`), n.session())
	if err := r.Write(slow); err != nil {
		t.Fatal(err)
	}

	t.Run("a body of a gigabyte", func(t *testing.T) {
		stop := n.others()
		defer stop()
		for _, declared := range []bool{true, false} {
			before := n.memory()
			most := before
			body := &spaces{1 << 30}
			r := n.request(http.MethodPost, body, "")
			if declared {
				r.ContentLength = body.left
			}
			watched := make(chan struct{})
			looked := make(chan struct{})
			go func() {
				defer close(looked)
				tick := time.NewTicker(20 * time.Millisecond)
				defer tick.Stop()
				for {
					select {
					case <-tick.C:
						most = max(most, n.memory())
					case <-watched:
						return
					}
				}
			}()
			response, err := n.client.Do(r)
			close(watched)
			<-looked
			switch {
			case err == nil && response.StatusCode != http.StatusRequestEntityTooLarge:
				t.Errorf("declared %v: %s", declared, response.Status)
			case err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET): // or it was written to while we closed
				t.Errorf("declared %v: %v", declared, err)
			}
			if err == nil {
				response.Body.Close()
			}
			sent := 1<<30 - body.left
			t.Logf("declared %v: %d MiB were sent, the gateway grew from %d to at most %d MiB", declared, sent>>20, before>>20, most>>20)
			if sent > 64<<20 || most-before > 256<<20 {
				t.Errorf("declared %v: %d MiB were taken, and %d MiB of memory", declared, sent>>20, (most-before)>>20)
			}
		}
	})

	t.Run("ten thousand idle connections", func(t *testing.T) {
		many := 10_000
		var limit syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		many = min(many, int(limit.Cur)-500)
		before := n.memory()
		stop := n.others()
		var conns []net.Conn
		defer func() {
			for _, conn := range conns {
				conn.Close()
			}
		}()
		for i := range many {
			conn, err := net.Dial("tcp", n.address)
			if err != nil {
				t.Fatalf("after %d: %v", i, err)
			}
			conns = append(conns, conn)
			if i%2 == 0 { // a slow header, as one that never ends
				if _, err := io.WriteString(conn, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-A: "); err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
					t.Fatal(err)
				}
			}
		}
		open, grown := n.sockets(), n.memory()-before
		stop()
		t.Logf("of %d connections the gateway holds %d, with %d MiB", many, open, grown>>20)
		if open > 1500 || grown > 128<<20 {
			t.Errorf("of %d connections the gateway holds %d, with %d MiB", many, open, grown>>20)
		}
	})

	t.Run("a slow reader", func(t *testing.T) {
		stop := n.others()
		defer stop()
		_, port, _ := net.SplitHostPort(slow.LocalAddr().String())
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for n.holds(port) {
			select {
			case <-tick.C:
			case <-within(t).Done():
				t.Fatal("it is waited for still")
			}
		}
		t.Logf("it was dropped after %v", time.Since(began).Round(time.Second))
	})

	n.r.signal(syscall.SIGTERM)
	if end := n.r.end(); end.code != 0 {
		t.Errorf("exit %d: %s", end.code, end.stderr)
	}
}

// holds reports whether the gateway has a connection open from a port of this machine.
func (n *network) holds(port string) bool {
	n.w.t.Helper()
	var number int
	if _, err := fmt.Sscan(port, &number); err != nil {
		n.w.t.Fatal(err)
	}
	pid := n.r.cmd.Process.Pid
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	if err != nil {
		n.w.t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) < 10 || !strings.HasSuffix(fields[2], fmt.Sprintf(":%04X", number)) {
			continue
		}
		entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		for _, entry := range entries {
			if to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, entry.Name())); err == nil && to == "socket:["+fields[9]+"]" {
				return true
			}
		}
	}
	return false
}

// TestAGatewayAnswersWhatIsInFlightBeforeItEnds is SIGTERM, as a service manager sends it, and the second one of somebody in a hurry.
func TestAGatewayAnswersWhatIsInFlightBeforeItEnds(t *testing.T) {
	for _, hurry := range []bool{false, true} {
		t.Run(map[bool]string{false: "one signal", true: "a second signal"}[hurry], func(t *testing.T) {
			w, recorder := newWorld(t, fakemodel.Script{}), lab.Record(t)
			w.config("[gateway]\ndrain_sec = 120\noptional_grace_ms = 60000\n" + w.lab(lab.Config{
				Name: "s", Log: recorder.Address, Tools: lab.Tools("echo"), Calls: map[string]lab.Fault{"echo": {Hold: true}}, IgnoreEOF: true, IgnoreTerm: true,
			}))
			n := w.gateway()
			session := n.session()
			answered := make(chan string, 1)
			go func() {
				answer, err := n.call(session, "echo", "{}")
				answered <- fmt.Sprint(answer, err)
			}()
			if _, err := recorder.Wait(within(t), lab.Received("tools/call")); err != nil {
				t.Fatal(err)
			}
			n.r.signal(syscall.SIGTERM)
			n.r.waitFor(func(ctx context.Context) error { // until it says that it is stopping
				for ctx.Err() == nil {
					response, err := n.client.Do(n.request(http.MethodPost, strings.NewReader(initializeSession), ""))
					if err != nil {
						return err
					}
					response.Body.Close()
					if response.StatusCode == http.StatusServiceUnavailable && response.Header.Get("Retry-After") != "" {
						return nil
					}
				}
				return ctx.Err()
			})
			if hurry {
				n.r.signal(syscall.SIGTERM)
			} else if err := recorder.Release(within(t)); err != nil {
				t.Fatal(err)
			}
			end, answer := n.r.end(), <-answered
			if end.code != 0 || strings.Contains(answer, `"result":{"content"`) == hurry {
				t.Errorf("exit %d, the call in flight got %s\n%s", end.code, answer, end.stderr)
			}
		})
	}
}
