package runtime_test

import (
	"context"
	"testing"

	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/server"
	"nightporter/internal/mcp/wire"
	"nightporter/test/lab"
)

func TestStatusCountsCallsAndNamesThoseInFlight(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	rt, s := h.open(h.lab(lab.Config{Name: "s", Tools: lab.Tools("echo", "fail", "hang")}, "supports_parallel_tool_calls = true"))
	defer h.close(rt)
	calls := func() runtime.Calls { return s.Status()[0].Calls }
	if got := calls(); got.Ended != 0 || got.InFlight != 0 {
		t.Fatalf("before any call: %+v", got)
	}
	for range 3 {
		if _, err := h.call(s, "s", "echo", `{"text":"x"}`); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = h.call(s, "s", "fail", `{}`)
	_, _ = h.call(s, "s", "there is none", `{}`)
	if got := calls(); got.Ended != 5 || got.Failed != 2 || got.InFlight != 0 || len(got.Live) != 0 {
		t.Errorf("after three good calls, one that failed and one that was refused: %+v", got)
	}
	ctx, stop := context.WithCancel(h.ctx)
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = s.CallTool(ctx, "s", "hang", server.Request{Method: wire.ToolsCall, Params: []byte(`{"name":"hang"}`)})
	}()
	h.eventually(func() bool { return calls().InFlight == 1 })
	if live := calls().Live; len(live) != 1 || live[0].Tool != "hang" || live[0].Since.IsZero() {
		t.Errorf("in flight: %+v", live)
	}
	stop()
	<-done
	if got := calls(); got.Ended != 6 || got.Failed != 3 || got.InFlight != 0 {
		t.Errorf("after a call that was given up: %+v", got)
	}
}
