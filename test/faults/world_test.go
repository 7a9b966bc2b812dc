package faults

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"nightporter/test/programs"
)

// limit bounds whatever a scenario waits for, on a loaded machine. What has not come by then hangs.
const limit = 60 * time.Second

var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "nightporter-faults-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "nightporter")
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", path, "nightporter/cmd/nightporter").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

// world is a user's machine: a home with a configuration, and all processes that have it in their environment.
type world struct {
	t    *testing.T
	home string
	env  []string
}

func newWorld(t *testing.T, config string) *world {
	t.Helper()
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		programs.Skip(t, "there is no /proc here, by which tests see what runs")
	}
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	// Not a folder named for the test: the path of a socket must be short.
	home, err := os.MkdirTemp("", "np-faults-")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, home: home}
	t.Cleanup(func() {
		for pid := range w.processes() {
			_ = syscall.Kill(pid, syscall.SIGKILL) // of a scenario that has failed
		}
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	// A name of its own for the program tells its guards, whose environment is empty, from those of tests beside it.
	if err := errors.Join(os.MkdirAll(w.path("bin"), 0o700), os.MkdirAll(w.path("tmp"), 0o700), os.MkdirAll(w.path("work"), 0o700), os.Link(path, w.path("bin", "nightporter"))); err != nil {
		t.Fatal(err)
	}
	w.env = programs.Env(home, "NIGHTPORTER_HOME="+w.path("np"))
	w.config(config)
	return w
}

func (w *world) path(parts ...string) string {
	return filepath.Join(append([]string{w.home}, parts...)...)
}

func (w *world) write(path, text string) {
	w.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) config(text string) { w.t.Helper(); w.write(w.path("np", "config.toml"), text) }

// server is an entry whose server behaves as mode says: see servers_test.go.
func server(mode string, more ...string) string {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	keys := strings.Join(more, "\n")
	for _, key := range []string{"tool_timeout_sec = 2", "startup_timeout_sec = 20"} {
		if name, _, _ := strings.Cut(key, " "); !strings.Contains(keys, name) {
			keys += "\n" + key
		}
	}
	return fmt.Sprintf("[mcp_servers.s]\ncommand = %q\nargs = [\"server\", %q]\n%s\n", self, mode, keys)
}

// processes are those of this world, with their arguments.
func (w *world) processes() map[int]string {
	return programs.Processes(w.t, w.home, w.path("bin", "nightporter"))
}

// left says what is left of the world's processes: nothing, as soon as that is so.
func (w *world) left() string {
	var found map[int]string
	if w.until(func() bool { found = w.processes(); return len(found) == 0 }) {
		return "nothing"
	}
	return fmt.Sprintf("left running: %v", found)
}

// until waits until something holds, and reports whether it came to hold.
func (w *world) until(holds func() bool) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(limit); ; {
		if holds() {
			return true
		}
		select {
		case <-tick.C:
		case <-end:
			return false
		}
	}
}

// command prepares nightporter with args, behind other words.
func (w *world) command(ctx context.Context, before []string, args ...string) *exec.Cmd {
	argv := append(append(append([]string{}, before...), w.path("bin", "nightporter")), args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = w.path("work"), w.env
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// run runs nightporter to its end and returns its exit code and what it printed.
func (w *world) run(args ...string) (code int, stdout, stderr string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	defer cancel()
	cmd := w.command(ctx, nil, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		w.t.Fatalf("nightporter %q: %v; %s", args, errors.Join(err, ctx.Err()), &errs)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// client is an MCP client on raw lines, in front of nightporter mcp.
type client struct {
	w      *world
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	lines  chan string // closed at its end
	stderr lockedBuffer
	id     int
	ended  chan struct{}
}

// lockedBuffer is a buffer that one writes while another reads.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string { b.mu.Lock(); defer b.mu.Unlock(); return b.b.String() }

// mcp starts nightporter mcp behind other words, and does not greet it.
func (w *world) mcp(before ...string) *client {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(cancel)
	c := &client{w: w, cmd: w.command(ctx, before, "mcp"), lines: make(chan string, 1024), ended: make(chan struct{})}
	c.cmd.Stderr = &c.stderr
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		w.t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		defer close(c.ended)
		defer close(c.lines)
		for r := bufio.NewReader(out); ; {
			line, err := r.ReadString('\n')
			if err != nil {
				break
			}
			c.lines <- line
		}
		_ = c.cmd.Wait()
	}()
	w.t.Cleanup(func() {
		cancel()
		for range c.lines { // so that the reader ends
		}
		<-c.ended
	})
	return c
}

// session is mcp, greeted.
func (w *world) session(before ...string) *client {
	w.t.Helper()
	c := w.mcp(before...)
	c.greet()
	return c
}

func (c *client) greet() {
	c.w.t.Helper()
	c.send(`{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"faults","version":"1"}}}`)
	if said := c.answer(`"hello"`); !strings.Contains(said, "protocolVersion") {
		c.w.t.Fatalf("initialize: %s", said)
	}
	c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

func (c *client) send(line string) { _, _ = io.WriteString(c.stdin, line+"\n") } // who has ended is seen by its answer

// answer is what the answer to a request says: the text of a result or the message of an error; "hangs" without one.
func (c *client) answer(id string) string {
	end := time.After(limit)
	for {
		select {
		case line, ok := <-c.lines:
			if !ok {
				return "ended: " + lastLine(c.stderr.String())
			}
			var m struct {
				ID     json.RawMessage
				Result json.RawMessage
				Error  *struct{ Message string }
			}
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				return "no JSON: " + line
			}
			if string(m.ID) != id || m.Result == nil && m.Error == nil {
				continue
			}
			if m.Error != nil {
				return m.Error.Message
			}
			var r struct {
				Content []struct{ Text string }
				IsError bool
			}
			if json.Unmarshal(m.Result, &r) == nil && len(r.Content) > 0 {
				return r.Content[0].Text
			}
			return string(m.Result)
		case <-end:
			return "hangs"
		}
	}
}

// ask sends a request and returns what its answer says.
func (c *client) ask(method, params string) string {
	c.id++
	c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, c.id, method, params))
	return c.answer(fmt.Sprint(c.id))
}

// call calls the server's tool; with fault it does what its mode says.
func (c *client) call(fault bool) string {
	return c.ask("tools/call", fmt.Sprintf(`{"name":"s__do","arguments":{"fault":%t}}`, fault))
}

// next says how it goes on: whether the next call is answered.
func (c *client) next() string {
	if said := c.call(false); said != "done" {
		return "not answered: " + said
	}
	return "the next call is answered"
}

// close ends the client's input and waits for the end of nightporter.
func (c *client) close() {
	_ = c.stdin.Close()
	c.wait()
}

func (c *client) wait() {
	c.w.t.Helper()
	go func() {
		for range c.lines {
		}
	}()
	select {
	case <-c.ended:
	case <-time.After(limit):
		c.w.t.Error("nightporter mcp does not end")
	}
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
