package run

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"

	"nightporter/internal/agent"
	"nightporter/internal/approval"
)

// waits are the calls of a run that wait for a person. It is safe for concurrent use.
type waits struct {
	changed chan struct{} // of capacity 1: has something when the list changed

	mu    sync.Mutex
	names []string
}

func newWaits() *waits { return &waits{changed: make(chan struct{}, 1)} }

// begin notes a call that waits, until end is called.
func (w *waits) begin(name string) (end func()) {
	w.change(func() { w.names = append(w.names, name) })
	return func() {
		w.change(func() {
			i := slices.Index(w.names, name)
			w.names = slices.Delete(w.names, i, i+1)
		})
	}
}

func (w *waits) change(how func()) {
	w.mu.Lock()
	how()
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// activity says what is waited for; empty: nothing.
func (w *waits) activity() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch n := len(w.names); n {
	case 0:
		return ""
	case 1:
		return agent.Activity("waiting for approval of " + w.names[0])
	default:
		return agent.Activity(fmt.Sprintf("waiting for approval of %s and %d more", w.names[0], n-1))
	}
}

// approver is who is asked about calls of the run; nil: nobody can be.
func (r *runner) approver() approval.Func {
	if r.Approve == nil {
		return nil
	}
	return func(ctx context.Context, q approval.Question) approval.Answer {
		q.Run, q.Conversation, q.Agent = r.Run, r.Conversation, r.Adapter.Name()
		defer r.waits.begin(q.Name())()
		return r.Approve(ctx, q)
	}
}

// askPerson asks about a call of one of the agent's own tools.
func (r *runner) askPerson(ctx context.Context, a agent.AskPerson) approval.Answer {
	ask := r.approver()
	if ask == nil {
		return approval.Answer{Reason: "nobody can be asked in this run"}
	}
	// What decides on the call beside its arguments, each part on a line of its own: none of them has line breaks of others' making.
	under := append([]string{r.Run, r.Adapter.Name(), r.version, r.Request.Workdir, string(r.Request.Mode), string(r.Request.BuiltIn)}, a.Authority...)
	sum := sha256.Sum256([]byte(strings.Join(under, "\n")))
	return ask(ctx, approval.Question{
		Client: "run " + r.Run, Tool: a.Tool, Arguments: a.Arguments, Authority: hex.EncodeToString(sum[:16]),
	})
}

// answered is an answer about a call of the agent's own tools.
type answered struct {
	id     string
	answer approval.Answer
}

// asking are the calls of an agent's own tools that wait for a person: who made it ends them, by end.
type asking struct {
	ctx     context.Context
	cancel  context.CancelFunc
	ask     func(context.Context, agent.AskPerson) approval.Answer
	answers chan answered

	calls   map[string]context.CancelFunc // by id; used by the supervisor's goroutine alone
	running sync.WaitGroup
}

func newAsking(ctx context.Context, ask func(context.Context, agent.AskPerson) approval.Answer) *asking {
	a := &asking{ask: ask, answers: make(chan answered), calls: map[string]context.CancelFunc{}}
	a.ctx, a.cancel = context.WithCancel(ctx)
	return a
}

func (a *asking) begin(call agent.AskPerson) {
	ctx, cancel := context.WithCancel(a.ctx)
	a.calls[call.ID] = cancel
	a.running.Go(func() {
		defer cancel()
		answer := a.ask(ctx, call)
		select {
		case a.answers <- answered{call.ID, answer}:
		case <-ctx.Done():
		}
	})
}

// withdraw ends the question about a call, whose answer is then not delivered.
func (a *asking) withdraw(id string) {
	if cancel := a.calls[id]; cancel != nil {
		cancel()
		delete(a.calls, id)
	}
}

// delivered reports whether an answer is still waited for.
func (a *asking) delivered(id string) bool {
	_, waits := a.calls[id]
	delete(a.calls, id)
	return waits && a.ctx.Err() == nil
}

// end ends all questions and waits for them.
func (a *asking) end() {
	a.cancel()
	a.running.Wait()
}
