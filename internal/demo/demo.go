// Package demo shows a run on a machine that has no agent, no account and no configuration: `nightporter demo`.
//
// What it shows is what happens: a configuration file, the gateway, the runtime with its catalogs, servers that are processes,
// and an agent that is one too, led by package run as any other. The servers are real and small (servers.go). Only the model
// is played (package agent/demo). Every number and word about the run is taken from the packages that made it, and
// where it is not what it should be, the demo says so and fails.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"nightporter/internal/agent"
	agentdemo "nightporter/internal/agent/demo"
	"nightporter/internal/approval"
	"nightporter/internal/boundary"
	"nightporter/internal/config"
	"nightporter/internal/dirs"
	"nightporter/internal/mcp/catalog"
	"nightporter/internal/mcp/gateway"
	"nightporter/internal/mcp/runtime"
	"nightporter/internal/run"
	"nightporter/internal/safefile"
)

// Options say where the demo runs.
type Options struct {
	Program string          // this executable, absolute; it is also the agent and the servers
	Env     []string        // the whole environment
	Version string          // Nightporter's
	Kill    <-chan struct{} // closed when the demo is to end at once; may be nil
	Out     io.Writer
	Title   func(string) string // how headings are printed
}

// timeout bounds each of the two runs, which take a tenth of a second: a demo that hangs is not one.
const timeout = 20 * time.Second

const (
	// grant is what the run is granted: mail is in none of it, and of notes the tool delete is not.
	grant = "[grants.demo]\nservers = [\"clock\"]\ntools.notes = [\"add\", \"list\"]\n"
	// prompt is what a model would have decided.
	prompt = `clock__now
notes__add {"text": "return the library books"}
notes__delete
clock__crash
clock__now
notes__list
`
)

// expected are the calls of the prompt as the gateway should see them.
var expected = []string{
	"clock now: ok", "notes add: ok", "notes__delete: refused", "clock crash: failed", "clock now: ok", "notes list: ok",
}

// show is a demo under way.
type show struct {
	Options
	home   string
	dirs   dirs.Dirs
	config *config.Config
	store  *catalog.Store

	started int   // server processes
	pids    []int // of servers, as far as they were seen
	wrong   []string
	err     error // the first error of Out
}

// Run shows the demo. The error says what was not as it should be, or that ctx ended.
func Run(ctx context.Context, o Options) (err error) {
	s := &show{Options: o}
	if s.home, err = os.MkdirTemp("", "nightporter-demo-"); err != nil {
		return fmt.Errorf("make the demo's folder: %w", err)
	}
	defer os.RemoveAll(s.home) // after an error; otherwise it is gone by then
	if err := s.prepare(); err != nil {
		return err
	}
	s.introduce()
	first := s.turn(ctx, true)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.proof(first)
	second := s.turn(ctx, false)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.timeline(second)
	s.outcome(second.outcome)
	s.farewell()
	if s.err != nil {
		return fmt.Errorf("print: %w", s.err)
	}
	if len(s.wrong) > 0 {
		return errors.New("the demo did not go as it should: " + strings.Join(s.wrong, "; "))
	}
	return nil
}

// prepare makes a home as an operator has one.
func (s *show) prepare() error {
	s.dirs = dirs.Find(func(string) string { return s.home })
	var text strings.Builder
	for _, name := range []string{"clock", "mail", "notes"} {
		text.WriteString(definition(s.Program, name))
	}
	text.WriteString(grant)
	err := safefile.Write(s.dirs.ConfigFile(), []byte(text.String()))
	if err == nil {
		err = os.Mkdir(s.workdir(), safefile.DirMode)
	}
	if err == nil {
		s.config, err = config.Load(s.dirs.ConfigFile())
	}
	if err == nil {
		s.store, err = catalog.Open(s.dirs.Catalogs())
	}
	if err != nil {
		return fmt.Errorf("prepare the demo: %w", err)
	}
	for _, p := range append(s.config.Problems, s.config.Warnings...) {
		s.wrong = append(s.wrong, p.Error())
	}
	return nil
}

func (s *show) workdir() string { return filepath.Join(s.home, "work") }

// turn is one run, and what was seen of it.
type turn struct {
	began   time.Time
	outcome run.Outcome
	opened  []runtime.Status // when the endpoint was open, before the agent was started
	closing []runtime.Status // when the agent had ended

	mu      sync.Mutex
	moments []moment
}

// moment is something that happened during a run.
type moment struct {
	at   time.Time
	what string
	text string
}

func (t *turn) note(what, text string) { t.noteAt(time.Now(), what, text) }

func (t *turn) noteAt(at time.Time, what, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.moments = append(t.moments, moment{at, what, text})
}

// Kinds of moments.
const (
	proven  = "proof"
	started = "start"
	called  = "call"
	refused = "refusal"
)

// turn makes a run, as `nightporter prove` does or as `nightporter run` does.
func (s *show) turn(ctx context.Context, proveOnly bool) *turn {
	t := &turn{began: time.Now()}
	id := run.NewID()
	spec := run.Spec{
		Run: id, Adapter: agentdemo.Adapter{},
		Request: agent.Request{
			Argv: []string{s.Program, agentdemo.Command}, Program: s.Program, Workdir: s.workdir(), Env: s.Env,
			Mode: agent.Granted, BuiltIn: agent.BuiltInNone, Prompt: prompt, ProveOnly: proveOnly,
		},
		Home: s.home, Timeout: timeout, Kill: s.Kill, Transcripts: s.dirs.Runs(),
		Open: func(ctx context.Context, workdir string, _ approval.Func) (run.Boundary, error) {
			return s.open(ctx, t, id, workdir)
		},
		Events: func(e run.Event) {
			if e.Type == run.TypeProven {
				t.noteAt(e.Time, proven, "the agent's boundary is proven: only now is it given its prompt")
			}
		},
	}
	t.outcome = run.Do(ctx, spec)
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.SortStableFunc(t.moments, func(a, b moment) int { return a.at.Compare(b.at) })
	for _, status := range t.closing {
		s.started += status.Generation
	}
	for _, status := range slices.Concat(t.opened, t.closing) {
		if status.PID != 0 && !slices.Contains(s.pids, status.PID) {
			s.pids = append(s.pids, status.PID)
		}
	}
	return t
}

// open opens the run's endpoint, and watches the runtime behind it.
func (s *show) open(ctx context.Context, t *turn, id, workdir string) (run.Boundary, error) {
	b, err := boundary.Open(ctx, boundary.Options{
		Run: id, Config: s.config, Grant: s.config.Grants["demo"], Catalogs: s.store,
		LookupEnv: func(key string) (string, bool) { return agent.LookupEnv(s.Env, key) },
		Workdir:   workdir, Version: s.Version, OnCall: t.call,
	})
	if err != nil {
		return nil, err
	}
	w := &watched{Boundary: b, turn: t}
	t.opened = w.status()
	events, stop := b.Runtime().Watch()
	w.stop = stop
	w.watching.Go(func() { t.watch(events) })
	return w, nil
}

// call takes a call from the gateway.
func (t *turn) call(c gateway.Call) {
	switch took := millis(c.Duration); {
	case c.Outcome == gateway.OutcomeRefused:
		t.note(refused, fmt.Sprintf("%s: refused, %s", c.Exposed, c.Detail))
	case (c.Outcome == gateway.OutcomeOK):
		t.note(called, fmt.Sprintf("%s %s: ok, %s", c.Server, c.Tool, took))
	default:
		t.note(called, fmt.Sprintf("%s %s: failed, %s", c.Server, c.Tool, took))
	}
}

// watch takes the runtime's events.
func (t *turn) watch(events <-chan runtime.Event) {
	began := map[int]time.Time{}
	for e := range events {
		switch e.Type {
		case runtime.StartingBatch:
			began[e.Round] = e.Time
		case runtime.Ready:
			t.noteAt(e.Time, started, fmt.Sprintf("%s is woken for a call and ready in %s: process %d of it in this run",
				e.Server, millis(e.Time.Sub(began[e.Round])), e.Generation))
		case runtime.Failed:
			t.noteAt(e.Time, started, fmt.Sprintf("%s did not start: %s", e.Server, e.Error))
		}
	}
}

// watched is a run's endpoint that is looked at before it is closed.
type watched struct {
	*boundary.Boundary
	turn     *turn
	stop     func()
	watching sync.WaitGroup
}

func (w *watched) status() (all []runtime.Status) {
	for _, scope := range w.Runtime().Scopes() {
		all = append(all, scope.Status()...)
	}
	return all
}

func (w *watched) Close(ctx context.Context) error {
	w.turn.closing = w.status()
	err := w.Boundary.Close(ctx)
	w.stop()
	w.watching.Wait()
	return err
}
