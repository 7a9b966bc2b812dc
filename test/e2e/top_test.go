package e2e

import (
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"nightporter/test/fakemodel"
	"nightporter/test/lab"
	"nightporter/test/programs"
)

// screen is a terminal of tmux in which a program runs.
type screen struct {
	t      *testing.T
	tmux   string
	socket string
}

// terminal opens a terminal of so many columns and lines.
func (w *world) terminal(columns, lines int, argv ...string) *screen {
	w.t.Helper()
	s := &screen{w.t, programs.Find(w.t, "tmux"), filepath.Join(w.t.TempDir(), "tmux")}
	args := append([]string{"-f", "/dev/null", "new-session", "-d", "-x", fmt.Sprint(columns), "-y", fmt.Sprint(lines), "--"}, argv...)
	cmd := s.command(args...)
	cmd.Dir, cmd.Env = w.work, append(w.env, "TERM=xterm-256color", "LANG=C.UTF-8", "LC_ALL=C.UTF-8")
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("tmux: %v: %s", err, out)
	}
	w.t.Cleanup(func() { _ = s.command("kill-server").Run() }) // it may have ended
	return s
}

func (s *screen) command(args ...string) *exec.Cmd {
	return exec.CommandContext(within(s.t), s.tmux, append([]string{"-u", "-S", s.socket}, args...)...)
}

func (s *screen) do(args ...string) string {
	s.t.Helper()
	out, err := s.command(args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return string(out)
}

// shows waits until the screen meets a condition, and returns it.
func (s *screen) shows(what string, met func(text string) bool) string {
	s.t.Helper()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	end := time.After(limit)
	for {
		text := s.do("capture-pane", "-p")
		if met(text) {
			return text
		}
		select {
		case <-again.C:
		case <-end:
			s.t.Fatalf("the screen does not show %s:\n%s", what, text)
		}
	}
}

func (s *screen) contains(words ...string) string {
	s.t.Helper()
	return s.shows(fmt.Sprintf("%q", words), func(text string) bool {
		for _, word := range words {
			if !strings.Contains(text, word) {
				return false
			}
		}
		return true
	})
}

// Top in a real terminal: a call in flight is seen, a server is stopped and started by key, and it fits at three sizes.
func TestTopInATerminal(t *testing.T) {
	w := newWorld(t, fakemodel.Script{})
	w.config(w.lab(lab.Config{Name: "orders", Tools: lab.Tools("echo", "hang", "stderr")}) + w.lab(lab.Config{Name: "wiki", Tools: lab.Tools("echo")}))
	s := w.terminal(80, 24, w.own(), "top")
	s.contains("orders", "wiki", "q quit", "0 processes")

	in, client := io.Pipe()
	defer client.Close()
	w.startAs(nil, in, "mcp")
	say := func(text string) {
		if _, err := io.WriteString(client, text+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	say(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"editor","version":"1"}}}`)
	say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"wiki__echo","arguments":{"text":"x"}}}`)
	say(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"orders__hang","arguments":{}}}`)
	for _, size := range [][2]int{{80, 24}, {120, 40}, {60, 20}} {
		s.do("resize-window", "-x", fmt.Sprint(size[0]), "-y", fmt.Sprint(size[1]))
		text := s.shows("the whole view", func(text string) bool {
			lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
			return len(lines) == size[1] && strings.Contains(lines[len(lines)-1], "q quit") && strings.HasPrefix(lines[0], "Nightporter  ") &&
				strings.Contains(text, "orders hang  client editor 1") && strings.Contains(text, "2 ready")
		})
		t.Logf("%v\n%s", size, text)
	}
	s.do("send-keys", "/")
	s.contains("filter:")
	s.do("send-keys", "wiki", "Enter")
	s.shows("wiki alone", func(text string) bool {
		return strings.Contains(text, "> wiki") && !strings.Contains(text, "  orders  ")
	})
	s.do("send-keys", "x")
	s.contains("stop wiki: done", "dormant")
	s.do("send-keys", "s")
	s.contains("start wiki: done", "ready")
	s.do("send-keys", "t")
	s.contains("1 tool of wiki", "echo", "esc: back")
	s.do("send-keys", "q")
	s.contains("filter: wiki")
	s.do("send-keys", "Escape")
	s.contains("> wiki", "  orders")
	client.Close() // the client goes, and with it its Nightporter
	s.contains("0 processes")
	s.do("send-keys", "q")
	s.gone()
}

// gone waits until the program has ended, and with it tmux.
func (s *screen) gone() {
	s.t.Helper()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	end := time.After(limit)
	for s.command("list-sessions").Run() == nil {
		select {
		case <-again.C:
		case <-end:
			s.t.Fatal("it has not ended")
		}
	}
}

func TestTopWithoutATerminalPointsToStatus(t *testing.T) {
	w := newWorld(t, fakemodel.Script{})
	if r := w.run("top"); r.code != 2 || !strings.Contains(r.stderr, "nightporter status") || r.stdout != "" {
		t.Errorf("exit %d, output %q, errors %q", r.code, r.stdout, r.stderr)
	}
}
