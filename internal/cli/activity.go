package cli

import (
	"sync"
	"time"

	"nightporter/internal/live"
	"nightporter/internal/run"
)

// activity keeps what a run does, for status and top.
type activity struct {
	mu sync.Mutex
	is live.Activity
}

func newActivity(agent string) *activity {
	return &activity{is: live.Activity{Agent: agent, Doing: "starting", Since: time.Now()}}
}

func (a *activity) now() live.Activity {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.is
}

// event takes an event of the run.
func (a *activity) event(e run.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	doing := a.is.Doing
	switch e.Type {
	case run.TypeActivity, run.TypeRetry:
		doing = e.Activity
	case run.TypeText:
		doing = "writing"
	case run.TypeTool:
		doing = "using " + e.Tool
		a.is.Tools++
	case run.TypeDenied:
		a.is.Denied++
	}
	if doing != a.is.Doing {
		a.is.Doing, a.is.Since = doing, e.Time
	}
}

// each hands events to one and then to the other.
func each(one, other func(run.Event)) func(run.Event) {
	return func(e run.Event) {
		one(e)
		other(e)
	}
}
