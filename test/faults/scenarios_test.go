package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"nightporter/test/programs"
)

// What may stand under "then".
const (
	goesOn = "the next call is answered"
	works  = "calls work"
	same   = "calls say the same"
	exit1  = "exit code 1"
	exit2  = "exit code 2"
	exit4  = "exit code 4"
)

func scenarios() []scenario {
	var all []scenario
	for _, part := range [][]scenario{serverScenarios, httpScenarios, clientScenarios, agentScenarios, machineScenarios, nightporterScenarios} {
		all = append(all, part...)
	}
	return all
}

// onCallOf is a fault of a server in a call.
func onCallOf(mode, fault, told, then string, more ...string) scenario {
	return scenario{"server", fault, told, then, func(t *testing.T) outcome {
		w := newWorld(t, server(mode, more...))
		c := w.session()
		o := outcome{told: c.call(true)}
		o.then = c.next()
		c.close()
		o.left = w.left()
		return o
	}}
}

// atStartOf is a fault of a server when it starts.
func atStartOf(mode, fault, told, then string, more ...string) scenario {
	return scenario{"server", fault, told, then, func(t *testing.T) outcome {
		w := newWorld(t, server(mode, more...))
		return w.listAndCall()
	}}
}

func (w *world) listAndCall() outcome {
	w.t.Helper()
	_, _, stderr := w.run("tools", "list")
	o := outcome{told: lastLine(stderr), then: works}
	code, stdout, stderr := w.run("tools", "call", "s", "do")
	switch {
	case code != 0 && strings.Contains(o.told, ": warning: "):
		o.then = same
	case code != 0 || stdout != "done\n":
		o.then = "a call says " + stdout + lastLine(stderr)
	}
	o.left = w.left()
	return o
}

const (
	diedInCall = `nightporter: server "s" failed during the call, which may or may not have taken effect: …`
	timedOut   = `nightporter: server "s" did not answer tools/call within 2s; raise mcp_servers.s.tool_timeout_sec if it needs longer`
	unreadable = `the answer of server "s" cannot be read: `
	warning    = `nightporter: warning: s: `
	startOf    = warning + `server "s": `
)

var serverScenarios = []scenario{
	onCallOf("killed", "is killed in a call", diedInCall+"ended by signal: killed", goesOn),
	onCallOf("exits", "exits in a call", diedInCall+"exit status 3; its stderr ends: out of ideas", goesOn),
	{"server", "hangs in a call (SIGSTOP)", timedOut, "it is ended, and " + goesOn, func(t *testing.T) outcome {
		w := newWorld(t, server("stopped"))
		c := w.session()
		o := outcome{told: c.call(true)}
		if !w.until(func() bool { return !strings.Contains(fmt.Sprint(w.processes()), "server stopped") }) {
			o.then = "it is not ended, and "
		} else {
			o.then = "it is ended, and "
		}
		o.then += c.next()
		c.close()
		o.left = w.left()
		return o
	}},
	onCallOf("never", "never answers a call", timedOut, goesOn),
	onCallOf("another id", "answers another id", timedOut, goesOn),
	onCallOf("id of a type", "answers an id of another kind", timedOut, goesOn),
	onCallOf("twice", "answers twice", "done", goesOn),
	onCallOf("halves", "answers in two halves", "done", goesOn),
	onCallOf("half", "ends in half a frame", diedInCall+"1 lines on its standard output were no JSON-RPC frames, the first: …", goesOn),
	onCallOf("junk", "prints lines that are no frames", "done", goesOn),
	onCallOf("flood of lines", "prints 100 MB of such lines", "done", goesOn, "tool_timeout_sec = 60"),
	onCallOf("flood of errors", "prints 100 MB to its standard error", "done", goesOn, "tool_timeout_sec = 60"),
	onCallOf("string result", "gives a result that is a string", unreadable+`its result is no object: "done"`, goesOn),
	onCallOf("string error", "gives an error that is a string", `unreadable error: "no"`, goesOn),
	onCallOf("neither", "gives neither result nor error", unreadable+"not a JSON-RPC frame: neither method, result nor error", goesOn),
	onCallOf("array", "answers with an array", timedOut, goesOn),
	onCallOf("huge result", "gives a result of 100 MB", unreadable+"it is longer than 64 MiB", goesOn, "tool_timeout_sec = 60"),
	onCallOf("deep", "nests 100,000 arrays", unreadable+"not a JSON-RPC frame: nested more than 10000 deep", goesOn),
	onCallOf("bad utf-8", "gives text that is no UTF-8", "\uFFFD", goesOn),
	onCallOf("1e400", "gives the number 1e400", "done", goesOn),
	onCallOf("asks much", "asks its client 10,000 things in a call", "done", goesOn, "tool_timeout_sec = 60"),
	onCallOf("progress", "tells 100,000 progresses that nobody asked for", "done", goesOn, "tool_timeout_sec = 60"),
	onCallOf("logs", "sends 100,000 log messages", "done", goesOn, "tool_timeout_sec = 60"),
	onCallOf("lists change", "says 2,000 times that its tools have changed", "done", goesOn, "tool_timeout_sec = 60"),
	onCallOf("stdout closed", "closes its output in a call", diedInCall+"closed its standard input or output", goesOn),
	atStartOf("exit at start", "exits at its start", startOf+"initialize failed after …: exit status 3; its stderr ends: cannot find my key", same),
	atStartOf("mute", "says nothing at its start", startOf+"initialize did not end within 2s; raise mcp_servers.s.startup_timeout_sec if it needs longer", same, "startup_timeout_sec = 2"),
	atStartOf("endless line", "prints 100 MB without a newline at its start", startOf+"initialize did not end within 5s: 1 lines on its standard output were no JSON-RPC frames, the first: a line of more than 64 MiB, which begins …", same, "startup_timeout_sec = 5"),
	atStartOf("banner", "prints a banner", "", works),
	atStartOf("closed at start", "closes its output at its start", startOf+"initialize failed after … closed its standard input or output", same),
	atStartOf("initialize refused", "refuses to initialize", startOf+"initialize failed after …: it answered initialize: the licence has expired (code -32603)", same),
	atStartOf("initialize garbled", "initializes with nonsense", startOf+"initialize failed after …: it answered initialize: "+unreadable+"its result is no object: [1,2] (code -32603)", same),
	atStartOf("another version", "answers with a revision of its own", "", works),
	atStartOf("list refused", "refuses to list", startOf+"list tools failed after …: it answered tools/list: no tools today (code -32603)", same),
	atStartOf("list garbled", "lists nonsense", startOf+`list tools failed after …: its answer to tools/list has no list of tools: {"tools":"many"}`, same),
	atStartOf("list mute", "never answers the list", startOf+"list tools did not end within 2s; raise mcp_servers.s.startup_timeout_sec if it needs longer", same, "startup_timeout_sec = 2"),
	atStartOf("list without end", "lists pages without an end", startOf+"list tools failed after …: its list of tools gave the same cursor twice", same),
	atStartOf("one bad tool", "lists one tool that is malformed", warning+`tool 2 ("") is not offered: it has no name`, works),
	{"server", "dies after each start", "nightporter: …: exit status 1", exit1, func(t *testing.T) outcome {
		return newWorld(t, server("dies when idle")).ends("tools", "call", "s", "do")
	}},
	atStartOf("exit at start, once", "exits at its first start", startOf+"initialize failed after …: exit status 3; its stderr ends: cannot find my key", works),
	atStartOf("ignores all", "ignores the end of its input and TERM", "", works),
	atStartOf("grandchild", "starts a daemon that ignores TERM", "", works),
	{"server", "is gone from the disk after its catalog was saved", `nightporter: server "s": start failed after …: program: no such file or directory`, exit1, func(t *testing.T) outcome {
		w := newWorld(t, "")
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		copied := w.path("work", "server")
		if err := os.Link(self, copied); err != nil {
			programs.Skip(t, "the temporary folder is on another file system than the tests: "+err.Error())
		}
		w.config(fmt.Sprintf("[mcp_servers.s]\ncommand = %q\nargs = [\"server\", \"\"]\n", copied))
		if code, _, stderr := w.run("tools", "list"); code != 0 {
			t.Fatal(stderr)
		}
		if err := os.Remove(copied); err != nil {
			t.Fatal(err)
		}
		return w.ends("tools", "call", "s", "do")
	}},
}

// ends runs a command: what it says last, and how it ends.
func (w *world) ends(args ...string) outcome {
	w.t.Helper()
	code, _, stderr := w.run(args...)
	return outcome{told: firstSaid(stderr), left: w.left(), then: fmt.Sprintf("exit code %d", code)}
}

// firstSaid is the last line that is no hint.
func firstSaid(stderr string) string {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	for len(lines) > 1 && strings.HasPrefix(lines[len(lines)-1], "nightporter: hint: ") {
		lines = lines[:len(lines)-1]
	}
	return lines[len(lines)-1]
}

// httpOf is a server behind a URL that a handler spoils.
func httpOf(fault, told, then string, handler http.HandlerFunc) scenario {
	return scenario{"HTTP server", fault, told, then, func(t *testing.T) outcome {
		s := httptest.NewServer(handler)
		t.Cleanup(s.Close)
		return newWorld(t, remote(s.URL)).listAndCall()
	}}
}

func remote(url string) string {
	return fmt.Sprintf("[mcp_servers.s]\nurl = %q\nstartup_timeout_sec = 3\ntool_timeout_sec = 2\n", url)
}

// answered answers a request of MCP by a good server, and returns its method and id.
func answered(w http.ResponseWriter, r *http.Request, spoil func(method, id string) bool) {
	body, _ := io.ReadAll(r.Body)
	method, id := field(body, "method"), field(body, "id")
	if id == "" {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if spoil(method, id) {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	switch method {
	case "initialize":
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}}`, id)
	case "tools/list":
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"do","inputSchema":{"type":"object"}}]}}`, id)
	case "tools/call":
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"done"}]}}`, id)
	default:
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found"}}`, id)
	}
}

func field(body []byte, name string) string {
	_, rest, found := bytes.Cut(body, []byte(`"`+name+`":`))
	if !found {
		return ""
	}
	end := bytes.IndexAny(rest, ",}")
	return strings.Trim(string(rest[:max(end, 0)]), `"`)
}

func status(code int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, code) }
}

var httpScenarios = []scenario{
	{"HTTP server", "does not listen", startOf + "connect did not end within 3s: …connection refused; raise …", same, func(t *testing.T) outcome {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		return newWorld(t, remote("http://"+l.Addr().String()+"/mcp")).listAndCall()
	}},
	{"HTTP server", "has a name that DNS does not know", startOf + "connect …: lookup no-such-host.invalid…", same, func(t *testing.T) outcome {
		return newWorld(t, remote("http://no-such-host.invalid/mcp")).listAndCall()
	}},
	{"HTTP server", "has a certificate that nobody vouches for", startOf + "…certificate signed by unknown authority", same, func(t *testing.T) outcome {
		s := httptest.NewTLSServer(status(200, ""))
		t.Cleanup(s.Close)
		s.Config.ErrorLog = nil
		return newWorld(t, remote(s.URL)).listAndCall()
	}},
	{"HTTP server", "speaks no TLS where https is meant", startOf + "…server gave HTTP response to HTTPS client", same, func(t *testing.T) outcome {
		s := httptest.NewServer(status(200, ""))
		t.Cleanup(s.Close)
		return newWorld(t, remote(strings.Replace(s.URL, "http:", "https:", 1))).listAndCall()
	}},
	{"HTTP server", "accepts and says nothing", startOf + "connect did not end within 3s; raise mcp_servers.s.startup_timeout_sec if it needs longer", same, func(t *testing.T) outcome {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return newWorld(t, remote("http://"+l.Addr().String()+"/mcp")).listAndCall()
	}},
	httpOf("answers 500 to all", startOf+"connect did not end within 3s: HTTP status 500 Internal Server Error: on fire; raise …", same, status(500, "on fire")),
	httpOf("answers 404 to all", startOf+"connect failed after …: HTTP status 404 Not Found: no such page", same, status(404, "no such page")),
	httpOf("answers 401 to all", warning+`server "s" needs a login (it answered HTTP status 401); run: nightporter servers login s`, same, status(401, "who are you")),
	httpOf("answers a page", startOf+`connect failed after …: the answer's content type is "text/html", not JSON or an event stream; is … an MCP endpoint?`, same, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<html>Welcome</html>")
	}),
	httpOf("sends elsewhere", startOf+"connect failed after …: HTTP status 307 Temporary Redirect: it sends to http://127.0.0.1:1/elsewhere; if that is the server, make it the url", same, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://127.0.0.1:1/elsewhere", http.StatusTemporaryRedirect)
	}),
	httpOf("breaks off in the middle of an answer", "", "a call says nightporter: server \"s\" failed during the call, which may or may not have taken effect: …", func(w http.ResponseWriter, r *http.Request) {
		answered(w, r, func(method, id string) bool {
			if method != "tools/call" {
				return false
			}
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":`)
			return true
		})
	}),
	httpOf("answers a call with 503", "", "a call says nightporter: server \"s\" failed at tools/call, which may or may not have taken effect: …", func(w http.ResponseWriter, r *http.Request) {
		answered(w, r, func(method, _ string) bool {
			if method == "tools/call" {
				http.Error(w, "later", http.StatusServiceUnavailable)
			}
			return method == "tools/call"
		})
	}),
	httpOf("drips a call's answer for ever", "", "a call says nightporter: server \"s\" did not answer tools/call within 2s; raise mcp_servers.s.tool_timeout_sec if it needs longer", func(w http.ResponseWriter, r *http.Request) {
		answered(w, r, func(method, _ string) bool {
			if method != "tools/call" {
				return false
			}
			w.Header().Set("Content-Type", "text/event-stream")
			for tick := time.NewTicker(50 * time.Millisecond); ; {
				select {
				case <-tick.C:
					_, _ = io.WriteString(w, ": \n\n")
					_ = http.NewResponseController(w).Flush()
				case <-r.Context().Done():
					tick.Stop()
					return true
				}
			}
		})
	}),
	httpOf("is restarted and has forgotten its sessions", "", works, forgetful()),
}

// forgetful forgets each session after its list: what comes then gets 404, as the specification wants.
func forgetful() http.HandlerFunc {
	var mu sync.Mutex
	sessions, last := map[string]bool{}, 0
	return func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if id := r.Header.Get("Mcp-Session-Id"); id != "" && !sessions[id] {
			http.Error(w, "no such session", http.StatusNotFound)
			return
		}
		answered(w, r, func(method, _ string) bool {
			switch method {
			case "initialize":
				last++
				id := fmt.Sprint("session-", last)
				sessions[id] = true
				w.Header().Set("Mcp-Session-Id", id)
			case "tools/list":
				if last == 1 {
					clear(sessions)
				}
			}
			return false
		})
	}
}

// clientOf is a fault of a client in front of nightporter mcp.
func clientOf(fault, told, then string, do func(c *client) string) scenario {
	return scenario{"client", fault, told, then, func(t *testing.T) outcome {
		w := newWorld(t, server(""))
		c := w.session()
		o := outcome{told: do(c)}
		if then == goesOn {
			o.then = c.next()
			c.close()
		} else {
			c.wait()
			o.then = fmt.Sprintf("exit code %d", c.cmd.ProcessState.ExitCode())
		}
		o.left = w.left()
		return o
	}}
}

var clientScenarios = []scenario{
	clientOf("sends a line that is no JSON", "not a JSON-RPC frame: not a JSON object", goesOn, func(c *client) string { c.send("hello"); return c.answer("null") }),
	clientOf("sends a batch", "a batch is not taken: send each message by itself", goesOn, func(c *client) string { c.send(`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`); return c.answer("null") }),
	clientOf("asks for a method that nobody knows", `method "tools/bake" is not known here; …`, goesOn, func(c *client) string { return c.ask("tools/bake", "{}") }),
	clientOf("calls a tool that is not there", `unknown tool "s__bake"`, goesOn, func(c *client) string { return c.ask("tools/call", `{"name":"s__bake"}`) }),
	clientOf("sends a line of 100 MB", "a frame is larger than 32 MiB", goesOn, func(c *client) string {
		c.send(`{"jsonrpc":"2.0","id":"big","method":"ping","params":{"x":"` + strings.Repeat("x", 100<<20) + `"}}`)
		return c.answer("null")
	}),
	clientOf("uses an id twice at the same time", `…a request with the id "a" is in flight…`, goesOn, func(c *client) string {
		c.send(`{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"s__do","arguments":{}}}` + "\n" + `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"s__do","arguments":{}}}`)
		return c.answer(`"a"`) + "; " + c.answer(`"a"`)
	}),
	clientOf("answers what nobody asked", "", goesOn, func(c *client) string { c.send(`{"jsonrpc":"2.0","id":77,"result":{}}`); return "" }),
	clientOf("ends its input in half a frame", "", "exit code 0", func(c *client) string {
		_, _ = io.WriteString(c.stdin, `{"jsonrpc":"2.0","id":1,"me`)
		_ = c.stdin.Close()
		return ""
	}),
	{"client", "goes away in a call", "", "exit code 0", func(t *testing.T) outcome {
		w := newWorld(t, server("never", "tool_timeout_sec = 300"))
		c := w.session()
		c.send(`{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"s__do","arguments":{"fault":true}}}`)
		_ = c.stdin.Close()
		c.wait()
		return outcome{then: fmt.Sprintf("exit code %d", c.cmd.ProcessState.ExitCode()), left: w.left()}
	}},
	{"client", "sends 20,000 requests and reads nothing", "nightporter: …the client goes on sending, and has read nothing for 10s", exit1, func(t *testing.T) outcome {
		w := newWorld(t, server(""))
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		cmd := w.command(ctx, nil, "mcp")
		var said lockedBuffer
		cmd.Stderr = &said
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe() // that nobody reads
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for i := range 20_000 {
			if _, err := fmt.Fprintf(in, `{"jsonrpc":"2.0","id":%d,"method":"tools/list"}`+"\n", i); err != nil {
				break // it has ended
			}
		}
		in.Close()
		err = cmd.Wait()
		if ctx.Err() != nil {
			return outcome{told: "hangs", left: w.left()}
		}
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return outcome{told: lastLine(said.String()), then: fmt.Sprintf("exit code %d", cmd.ProcessState.ExitCode()), left: w.left()}
	}},
}

// agentOf is a fault of an agent of kind command.
func agentOf(mode, fault, told, then string, flags ...string) scenario {
	return scenario{"agent", fault, told, then, func(t *testing.T) outcome {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, fmt.Sprintf("[agents.x]\nexec = [%q, \"agent\", %q]\n", self, mode))
		args := append([]string{"run", "--agent", "x", "--unproven"}, flags...)
		code, stdout, stderr := w.run(append(args, "hello")...)
		o := outcome{told: firstSaid(stderr), left: w.left(), then: fmt.Sprintf("exit code %d", code)}
		if code == 0 {
			o.told = strings.TrimSpace(stdout)
		}
		return o
	}}
}

const overdue = "nightporter: the run's time of "

var agentScenarios = []scenario{
	agentOf("silent", "prints nothing", "nightporter: … ended well and printed nothing; it said nothing on standard error", exit1),
	agentOf("fails", "fails", "nightporter: …: exit status 7; it last said: my key is not accepted", exit1),
	agentOf("killed", "is killed in its answer", "nightporter: …: ended by signal: killed; it said nothing on standard error", exit1),
	agentOf("never ends", "never ends", overdue+"2s was over", exit4, "--timeout", "2s"),
	agentOf("never ends", "goes silent", "nightporter: the agent printed nothing for 2s", exit4, "--idle-timeout", "2s"),
	agentOf("ignores all", "ignores TERM", overdue+"2s was over", exit4, "--timeout", "2s"),
	agentOf("leaves a process", "leaves a daemon that ignores TERM", "done", "exit code 0"),
	agentOf("endless line", "prints 100 MB without a newline", "nightporter: … printed more than 1048576 bytes", exit1),
	agentOf("flood", "prints 100 MB of lines", "nightporter: … printed more than 1048576 bytes", exit1),
	agentOf("closes its output", "closes its output and stays", overdue+"5s was over", exit4, "--timeout", "5s"),
	agentOf("reads nothing", "does not read its prompt", "done", "exit code 0"),
	agentOf("binary", "prints what is no text", "…", "exit code 0"),
	{"agent", "is not installed", "nightporter: the program no-such-agent was not found on PATH (…); install it, or name it by its absolute path", "exit code 5", func(t *testing.T) outcome {
		w := newWorld(t, "[agents.x]\nexec = [\"no-such-agent\"]\n")
		return w.ends("run", "--agent", "x", "--unproven", "hello")
	}},
}
