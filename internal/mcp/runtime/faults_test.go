package runtime_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"nightporter/internal/mcp/runtime"
	"nightporter/test/lab"
)

// shell is the entry of a server that is a shell script: it answers initialize and tools/list with a tool called t, and then
// does what after says.
func shell(name, after string, lines ...string) string {
	script := `while read l; do id=${l#*\"id\":}; id=${id%%,*}; id=${id%%\}*}; case "$l" in
*'"method":"initialize"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"x","version":"1"}}}';;
*tools/list*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}}'
` + after + `;; esac; done`
	return fmt.Sprintf("[mcp_servers.%s]\ncommand = \"/bin/sh\"\nargs = [\"-c\", %q]\n%s\n", name, script, strings.Join(lines, "\n"))
}

func TestServerThatEndsRightAfterItsStartIsStartedOnceForACall(t *testing.T) {
	h := newHouse(t)
	marks := h.dir + "/starts"
	// Each start leaves a mark.
	_, s := h.open(shell("s", "echo started >>"+marks+"; exit 3"))
	for range 3 {
		if _, err := h.call(s, "s", "t", `{}`); err == nil {
			t.Fatal("it answered")
		}
	}
	data, err := os.ReadFile(marks)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(data), "started"); n > 3 {
		t.Errorf("%d starts for 3 calls", n)
	}
}

func TestListChangedDuringTheStartIsNotMissed(t *testing.T) {
	h := newHouse(t)
	// The first listing says one tool, and that it has changed before it is told; later ones say two.
	second := h.dir + "/second"
	script := `while read l; do id=${l#*\"id\":}; id=${id%%,*}; id=${id%%\}*}; case "$l" in
*'"method":"initialize"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"x","version":"1"}}}';;
*tools/list*) if test -e ` + second + `; then late=',{"name":"late","inputSchema":{"type":"object"}}'; else echo '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'; fi
touch ` + second + `
echo '{"jsonrpc":"2.0","id":'$id',"result":{"tools":[{"name":"t","inputSchema":{"type":"object"}}'$late']}}';; esac; done`
	_, s := h.open(fmt.Sprintf("[mcp_servers.s]\ncommand = \"/bin/sh\"\nargs = [\"-c\", %q]\n", script))
	if err := s.Start(h.ctx, patience); err != nil {
		t.Fatal(err)
	}
	h.eventually(func() bool { return len(s.Tools()) == 2 })
}

func TestStopDuringAStartLeavesNothingRunning(t *testing.T) {
	h := newHouse(t)
	_, s := h.open(h.lab(lab.Config{Name: "s", Tools: lab.Tools("pid"), Methods: map[string]lab.Fault{"tools/list": {Hold: true}}}))
	woken := make(chan error, 1)
	go func() { woken <- s.Wake(h.ctx, "s", "test") }()
	if _, err := h.recorder.Wait(h.ctx, lab.Happened("hold")); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = s.Stop(h.ctx, "s")
	}()
	_ = h.recorder.Release(h.ctx) // at the same moment
	<-stopped
	<-woken
	if st := s.Status()[0]; st.PID != 0 {
		t.Errorf("it runs: %+v", st)
	}
	if _, err := h.recorder.Wait(h.ctx, lab.Happened("gone")); err != nil {
		t.Error(err)
	}
}

func TestRoomIsNotMadeBySharedServersThatOthersUse(t *testing.T) {
	h := newHouse(t)
	rt := h.runtime("[gateway]\nmax_servers = 1\n",
		h.lab(lab.Config{Name: "shared", Tools: lab.Tools("pid")}, "shared = true"), h.lab(lab.Config{Name: "b", Tools: lab.Tools("pid")}))
	open := func() *runtime.Scope {
		return rt.Open(h.ctx, runtime.ScopeOptions{Name: "c", Dir: h.dir, Owner: &owner{}})
	}
	one, two := open(), open()
	for _, s := range []*runtime.Scope{one, two} {
		h.pid(s, "shared")
	}
	woken := make(chan error, 1)
	go func() { woken <- one.Wake(h.ctx, "b", "test") }()
	h.eventually(func() bool { return states(one)["b"] == runtime.StateStarting })
	if got := states(two)["shared"]; got != runtime.StateReady {
		t.Errorf("the other client's server is %s", got)
	}
	two.Close(h.ctx) // now one client alone has it, and it may be put to sleep
	if err := <-woken; err != nil {
		t.Error(err)
	}
}

func TestReloadWhileAScopeClosesStartsNothingInIt(t *testing.T) {
	h := newHouse(t)
	stubborn := h.lab(lab.Config{Name: "a", Tools: lab.Tools("pid"), IgnoreEOF: true, IgnoreTerm: true})
	rt := h.runtime(stubborn)
	s := rt.Open(h.ctx, runtime.ScopeOptions{Name: "c", Dir: h.dir, Owner: &owner{}})
	h.pid(s, "a")
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		ctx, cancel := context.WithTimeout(h.ctx, 10*time.Second)
		defer cancel()
		s.Close(ctx)
	}()
	if _, err := h.recorder.Wait(h.ctx, lab.Happened("eof")); err != nil {
		t.Fatal(err)
	}
	rt.Reload(h.ctx, h.config(stubborn, h.lab(lab.Config{Name: "b", Tools: lab.Tools("pid")})))
	<-closed
	for _, e := range h.recorder.Select(lab.Happened("start")) {
		if e.Name == "b" {
			t.Error("a server was started for a client that has gone")
		}
	}
}
