package cli

import (
	"testing"
	"time"

	"nightporter/internal/run"
)

func TestARunsActivityIsItsLastAndCountsWhatItDid(t *testing.T) {
	a := newActivity("claude")
	if got := a.now(); got.Doing != "starting" || got.Agent != "claude" || got.Since.IsZero() {
		t.Fatalf("at the start: %+v", got)
	}
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	for i, e := range []run.Event{
		{Type: run.TypeActivity, Activity: "thinking"},
		{Type: run.TypeTool, Tool: "mcp__crm__find"},
		{Type: run.TypeTool, Tool: "mcp__crm__find"},
		{Type: run.TypeHeartbeat},
		{Type: run.TypeDenied, Tool: "Bash"},
	} {
		e.Time = at(i)
		a.event(e)
	}
	got := a.now()
	if got.Doing != "using mcp__crm__find" || !got.Since.Equal(at(1)) || got.Tools != 2 || got.Denied != 1 {
		t.Errorf("got %+v", got)
	}
}
