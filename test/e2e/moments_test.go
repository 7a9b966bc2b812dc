package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"nightporter/test/fakemodel"
	"nightporter/test/lab"
)

// A moment at which something of a run is killed.
type moment struct {
	stage  string // one of stages
	victim string // the agent, or Nightporter
	signal syscall.Signal
	fresh  bool // in a conversation that has no session yet
}

func (m moment) String() string {
	in := "a conversation"
	if m.fresh {
		in = "a new conversation"
	}
	return fmt.Sprintf("%v of %s, %s, in %s", m.signal, m.victim, m.stage, in)
}

const (
	atStart  = "at its start"
	inProof  = "in its proof"
	proven   = "when it is proven"
	inModel  = "while the model writes"
	inCall   = "in a tool call"
	afterAll = "after its last word"
)

// anyMoment is a moment at random.
func anyMoment(random *rand.Rand) moment {
	stages := []string{atStart, inProof, proven, inModel, inCall, afterAll}
	signals := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL}
	return moment{
		stages[random.IntN(len(stages))], []string{"the agent", "Nightporter"}[random.IntN(2)],
		signals[random.IntN(len(signals))], random.IntN(3) == 0,
	}
}

const half, whole = "half a sentence", "the whole answer"

// steps are what the model does until the moment.
func (m moment) steps() []fakemodel.Step {
	said := fakemodel.Part{Text: half}
	if m.stage == inModel {
		return []fakemodel.Step{{Parts: []fakemodel.Part{said, {Hold: true}}}}
	}
	tool := "echo"
	if m.stage == inCall {
		tool = "hang"
	}
	called := fakemodel.Part{Call: &fakemodel.Call{Server: "nightporter", Tool: "lab__" + tool, Arguments: json.RawMessage(`{}`)}}
	return []fakemodel.Step{{Parts: []fakemodel.Part{said, called}}, fakemodel.Says(whole)}
}

// told is an event of a run.
type told struct {
	Type      string
	SessionID string `json:"session_id"`
	Text      string
	Activity  string
	Outcome   json.RawMessage
}

// ear listens to a run's events as they come.
type ear struct {
	mu      sync.Mutex
	rest    []byte
	events  []told
	changed chan struct{}
}

func (e *ear) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rest = append(e.rest, p...)
	for {
		line, rest, whole := bytes.Cut(e.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		e.rest = rest
		var event told
		if json.Unmarshal(line, &event) == nil { // what was cut by a kill is none
			e.events = append(e.events, event)
		}
		close(e.changed)
		e.changed = make(chan struct{})
	}
}

func (e *ear) heard() ([]told, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.events), e.changed
}

// wait waits for an event.
func (e *ear) wait(ctx context.Context, is func(told) bool) error {
	for {
		events, changed := e.heard()
		if slices.ContainsFunc(events, is) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// victims is a world in which runs of one agent are killed.
type victims struct {
	*world
	p        program
	recorder *lab.Recorder
	random   *rand.Rand
	session  string // of the conversation that goes on
	tokens   map[string]string
	anew     int // conversations whose session the agent had not written down yet
}

// model gives the agent a model that does these steps and then says that it has gone on.
func (v *victims) ask(steps ...fakemodel.Step) {
	v.t.Helper()
	rest := fakemodel.Says("gone on")
	v.model = fakemodel.Start(v.t, fakemodel.Script{Steps: steps, Default: &rest})
	v.useModel()
}

// agent is the process of the agent, nil when there is none.
func (v *victims) agent() *os.Process {
	program := resolved(v.t, v.p.find(v.t))
	for _, pid := range slices.Sorted(maps.Keys(v.processes())) {
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && exe == program {
			process, err := os.FindProcess(pid)
			if err == nil {
				return process
			}
		}
	}
	return nil
}

// find waits for the agent's process. It is nil when the run ends before there is one.
func (v *victims) find(r *running) *os.Process {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if process := v.agent(); process != nil {
			return process
		}
		select {
		case <-tick.C:
		case <-r.done:
			return nil
		}
	}
}

// reach waits until the run is at the moment, or has ended before it.
func (v *victims) reach(r *running, e *ear, m moment, calls int) {
	ctx, cancel := context.WithCancel(within(v.t))
	defer cancel()
	go func() {
		select {
		case <-r.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	is := func(kind string) func(told) bool { return func(t told) bool { return t.Type == kind } }
	switch m.stage {
	case inProof:
		_ = e.wait(ctx, is("run.started"))
	case proven:
		_ = e.wait(ctx, is("run.proven"))
	case inModel:
		_ = v.model.WaitHeld(ctx)
	case inCall:
		_, _ = v.recorder.WaitN(ctx, calls+1, lab.Received("tools/call"))
	case afterAll:
		_ = e.wait(ctx, func(t told) bool { return strings.Contains(t.Text, whole) })
	}
}

// kill makes a run, kills something of it at the moment, and checks what is left.
func (v *victims) kill(i int, m moment) {
	t := v.t
	conversation, before := "ann", v.session
	if m.fresh {
		conversation, before = fmt.Sprint("new-", i), ""
	}
	v.ask(m.steps()...)
	e := &ear{changed: make(chan struct{})}
	private := v.watchPrivateFiles()
	calls := len(v.recorder.Select(lab.Received("tools/call")))
	v.tee = e
	r := v.start("run", "--agent", v.p.agent, "--server", "lab", "--conversation", conversation, "--output", "stream-json", "work")
	v.tee = nil
	v.reach(r, e, m, calls)
	var process *os.Process
	if m.victim == "the agent" {
		process = v.find(r)
	} else {
		process = v.agent()
	}
	if process != nil {
		if environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", process.Pid)); err == nil {
			v.token(environ)
		}
	}
	if m.victim == "Nightporter" {
		process = r.cmd.Process
	}
	if process != nil {
		_ = process.Signal(m.signal) // it may have ended by itself
	}
	done := r.end()
	v.token(private())
	v.gone(killedTime)

	// What the run has told of itself.
	events, _ := e.heard()
	session, said := before, false
	var last outcome
	for _, event := range events {
		if event.Type == "run.session" {
			session = event.SessionID
		}
		said = said || strings.Contains(event.Text, half) || strings.Contains(event.Activity, half)
		if event.Type == "run.finished" {
			if err := json.Unmarshal(event.Outcome, &last); err != nil {
				t.Errorf("outcome %s: %v", event.Outcome, err)
			}
		}
	}
	switch cut := m.victim == "Nightporter" && (m.signal == syscall.SIGKILL || m.stage == atStart); {
	case last.Status == "" && !cut:
		t.Errorf("it ended without an outcome: exit %d\n%s\n%s", done.code, done.stdout, done.stderr)
	case last.Status == "":
	case last.Status == "ok":
		if m.stage != afterAll || !strings.Contains(*last.Reply, whole) {
			if process != nil && !(m.victim == "the agent" && (m.stage == atStart || m.stage == inProof)) { // a question's process, which is asked again
				t.Errorf("it ended well: %s", done.stdout)
			}
		}
	default:
		if last.SessionID != session {
			t.Errorf("the outcome's session is %q, want %q:\n%s", last.SessionID, session, done.stdout)
		}
		if said && (last.Salvage == nil || !strings.Contains(*last.Salvage, half) && !strings.Contains(*last.Salvage, whole)) {
			t.Errorf("what was said is not salvaged:\n%s", done.stdout)
		}
		if m.victim == "Nightporter" && (last.Status != "stopped" || last.code() != "signal" || done.code != 4) {
			t.Errorf("exit %d, it ended %s (%s)", done.code, last.Status, last.code())
		}
	}

	// The next turn.
	v.ask()
	o, next := v.outcome("--agent", v.p.agent, "--server", "lab", "--conversation", conversation, "go on")
	v.replied(o, next, "gone on")
	unknown := slices.ContainsFunc(o.Boundary.Notes, func(note string) bool { return strings.Contains(note, "did not know session "+session) })
	switch {
	case session == "" && o.Resumed:
		t.Errorf("session %s was resumed, and none was begun", o.SessionID)
	case session == "":
	case unknown && before == "" && !o.Resumed:
		v.anew++
	case !o.Resumed || o.SessionID != session:
		t.Errorf("resumed %v, session %s after %s; notes %q", o.Resumed, o.SessionID, session, o.Boundary.Notes)
	}
	if !m.fresh {
		v.session = o.SessionID
	}
	v.gone(killedTime)
	secrets := map[string]string{"the model's key": v.p.key}
	maps.Copy(secrets, v.tokens)
	v.files(secrets, v.home, v.work)
}

// token remembers the tokens that stand in a text.
func (v *victims) token(text []byte) {
	for _, found := range tokens.FindAllSubmatch(text, -1) {
		v.tokens["the token "+strconv.Itoa(len(v.tokens))] = string(found[1])
	}
}

// Wherever a run is killed, its session is known, nothing is left, and the conversation goes on. NIGHTPORTER_KILLS says at how many moments, all agents together,
// NIGHTPORTER_SEED which.
func TestARunThatIsKilledAtAnyMomentLosesNothing(t *testing.T) {
	kills, seed := 18, rand.Uint64()
	for name, set := range map[string]func(string) error{
		"NIGHTPORTER_KILLS": func(s string) (err error) { kills, err = strconv.Atoi(s); return err },
		"NIGHTPORTER_SEED":  func(s string) (err error) { seed, err = strconv.ParseUint(s, 10, 64); return err },
	} {
		if s := os.Getenv(name); s != "" {
			if err := set(s); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	t.Logf("NIGHTPORTER_SEED=%d", seed)
	for n, p := range agents {
		t.Run(p.name, func(t *testing.T) {
			v := &victims{world: newWorld(t, fakemodel.Script{}), p: p, recorder: lab.Record(t), random: rand.New(rand.NewPCG(seed, uint64(n))), tokens: map[string]string{}}
			v.install(p)
			v.config(v.lab(lab.Config{Name: "lab", Log: v.recorder.Address, Tools: lab.Tools("echo", "hang")}))
			v.ask()
			o, r := v.outcome("--agent", p.agent, "--server", "lab", "--conversation", "ann", "hello")
			v.replied(o, r, "gone on")
			v.session = o.SessionID
			for i := n; i < kills; i += len(agents) {
				m := anyMoment(v.random)
				t.Logf("moment %d: %v", i, m)
				v.kill(i, m)
				if t.Failed() {
					t.FailNow()
				}
			}
			if len(v.tokens) == 0 && kills >= 18 {
				t.Error("no token was seen: that none is on disk shows nothing")
			}
			t.Logf("%d sessions were begun anew, %d tokens seen", v.anew, len(v.tokens))

			v.status() // clears away the sockets of processes that were killed

			left, _ := filepath.Glob(filepath.Join(v.home, "tmp", "nightporter-*")) // the pattern is well-formed
			for _, folder := range left {
				if in, err := os.ReadDir(folder); err != nil || len(in) > 0 || strings.Contains(folder, "nightporter-run-") { // an empty one is of a process killed between two steps
					t.Errorf("%s is left, with %v", folder, in)
				}
			}
		})
	}
}
