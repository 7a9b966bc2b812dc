package runtime

import (
	"slices"
	"time"

	"nightporter/internal/mcp/wire"
)

const (
	// latencies is of how many calls the median is: enough that one slow call does not move it, few enough that it tells of now.
	latencies = 64
	// maxLiveCalls bounds the calls that a status names. A client may have any number under way; the oldest are those to look at.
	maxLiveCalls = 32
)

// Calls is what became of the calls of a server's tools by one client.
type Calls struct {
	Ended  int `json:"ended"`  // refused and failed ones included
	Failed int `json:"failed"` // of those that ended: refused, not answered, or answered with an error
	// LastMS and MedianMS are how long the client waited: for the last call, and in the middle of the last 64. The wait for the server to
	// start, for the call's turn and for a person's approval is in it.
	LastMS   int64      `json:"last_ms,omitempty"`
	MedianMS int64      `json:"median_ms,omitempty"`
	InFlight int        `json:"in_flight"`
	Live     []LiveCall `json:"live,omitempty"` // the oldest 32 in flight, oldest first
}

// LiveCall is a call that has not ended.
type LiveCall struct {
	Tool  string    `json:"tool"`
	Since time.Time `json:"since"`
}

// tally counts the calls of one server in one scope; also under earlier definitions. It is under the scope's mu.
type tally struct {
	ended, failed int
	live          []*LiveCall     // oldest first
	took          []time.Duration // of the last calls, oldest first
}

// count notes a call that begins. What it returns is called with how it ended.
func (s *Scope) count(name, tool string) (ended func(Answer, error)) {
	call := &LiveCall{Tool: tool, Since: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tallies == nil {
		s.tallies = map[string]*tally{}
	}
	t := s.tallies[name]
	if t == nil {
		t = &tally{}
		s.tallies[name] = t
	}
	t.live = append(t.live, call)
	return func(answer Answer, err error) {
		failed := err != nil || answer.Error != nil || string(wire.Get(answer.Result, "isError")) == "true"
		s.mu.Lock()
		defer s.mu.Unlock()
		t.live = slices.DeleteFunc(t.live, func(c *LiveCall) bool { return c == call })
		t.ended++
		if failed {
			t.failed++
		}
		t.took = append(t.took, time.Since(call.Since))
		t.took = t.took[max(0, len(t.took)-latencies):]
	}
}

// calls is the sum of a server's calls.
func (s *Scope) calls(name string) (sum Calls) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tallies[name]
	if t == nil {
		return sum
	}
	sum = Calls{Ended: t.ended, Failed: t.failed, InFlight: len(t.live)}
	for _, call := range t.live[:min(len(t.live), maxLiveCalls)] {
		sum.Live = append(sum.Live, *call)
	}
	if n := len(t.took); n > 0 {
		sum.LastMS = t.took[n-1].Milliseconds()
		sum.MedianMS = slices.Sorted(slices.Values(t.took))[n/2].Milliseconds()
	}
	return sum
}
