// Package run leads one run of an agent from its request to its [Outcome].
//
// [Do] makes the run's private folder and environment, has the adapter shape and prove the command, starts the
// process, feeds the adapter's dialogue with what it prints, keeps the deadlines, stops it by
// the adapter's ladder, and says how it ended. Nothing of the run's processes and
// files is left when it returns, but its transcript and the ledger's record.
package run

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"nightporter/internal/agent"
	"nightporter/internal/approval"
	"nightporter/internal/ledger"
	"nightporter/internal/proc"
	"nightporter/internal/safefile"
	"nightporter/internal/secret"
)

const (
	// DefaultTimeout bounds a run whose operator gave no deadline: a long night's work.
	DefaultTimeout = 8 * time.Hour
	// DefaultIdleTimeout is how long an agent may print nothing. Agents print an event at the start and
	// end of each tool call, and a test suite in between may take its time.
	DefaultIdleTimeout = 30 * time.Minute

	// closeWait bounds the end of the boundary's endpoint and servers, which have their own ladders of 2 to 5 s.
	closeWait = 15 * time.Second
)

// Boundary is the gateway's endpoint of one run.
type Boundary interface {
	// Gateway is what the agent is told. It does not change.
	Gateway() *agent.Gateway
	// Calls are the calls made so far, in order.
	Calls() []agent.ToolCall
	// Denials are the calls refused so far, as mcp__server__tool, in order.
	Denials() []string
	// Notes are what a person should know of the endpoint, such as a server that could not be started.
	Notes() []string
	// Close ends the endpoint, its sessions and its servers. Calls and Denials stay valid.
	Close(ctx context.Context) error
}

// Spec is one run to be made.
type Spec struct {
	Run          string // its id; see [NewID]
	Conversation string // the key of the conversation that it belongs to; empty: none, and nothing is recorded
	Adapter      agent.Adapter
	// Request holds what the operator wants: Argv, Env (her whole environment), Mode, Prompt and so on.
	// Program may be empty: then Argv[0] is looked up. Workdir may be empty in a run of a
	// conversation: then it is the conversation's own folder.
	// Private, Gateway, Approvals, Resume and Before are set by Do.
	Request agent.Request
	// Notes are what a person should know of how the run was asked for; they stand in its outcome.
	Notes []string
	// Withhold names variables of the environment that are not the agent's business.
	Withhold []string
	// Given names variables that the operator gave for the agent by name: they stay, also where others of their kind are not handed on.
	Given []string
	// Home is the agent's home folder, in which its sessions live.
	Home string

	Timeout     time.Duration // of the whole run, the wait for its conversation included; zero: [DefaultTimeout]
	IdleTimeout time.Duration // without a line of output; zero: [DefaultIdleTimeout]
	// Kill is closed when the run is to end without the ladder's waits; nil when nobody will.
	Kill <-chan struct{}

	Ledger *ledger.Ledger // nil: nothing is resumed or recorded
	// Open opens the run's endpoint, once it is known where the run takes place; nil: the run has no
	// tool servers. Do closes what it returns. approve asks about its calls, and is nil when Approve is.
	Open func(ctx context.Context, workdir string, approve approval.Func) (Boundary, error)
	// Approve asks a person about calls that want an approval; nil: such calls are refused. It is called from several goroutines at a time.
	// Run, Conversation and Agent of the question are set.
	Approve     approval.Func
	Transcripts string         // the folder of transcripts; empty: none is kept
	Masker      *secret.Masker // secrets to be masked; Do adds the run's own. May be nil

	// Events gets the run's events, in order, from one goroutine at a time. It must not block: deadlines
	// and reading wait for it. May be nil.
	Events func(Event)
}

// NewID makes an id for a run: it sorts by time and is good for a file's name.
func NewID() string {
	return time.Now().UTC().Format("20060102-150405-") + strings.ToLower(rand.Text()[:10])
}

// runner is a run being made.
type runner struct {
	Spec
	started      time.Time
	conversation *ledger.Conversation // nil when none is recorded
	boundary     Boundary             // nil when there is none
	waits        *waits
	workdir      agent.Mark
	version      string
	session      string // the one to be resumed, or as the agent named it last
	named        bool   // the agent has named session
	activity     string
	counts       Counts
	usageTold    bool // the agent told what it costs while it ran
	notes        []string
}

// Do makes the run. Ending ctx stops it by the agent's ladder; the cause, when it is an
// *[agent.Error], is the outcome's error, and any other is told in it. Do returns when nothing of the run is left, or when
// bounded waits for that have passed, and then a note says what is.
func Do(ctx context.Context, s Spec) Outcome {
	r := &runner{Spec: s, started: time.Now(), waits: newWaits(), notes: slices.Clone(s.Notes)}
	r.Request.Approvals = s.Approve != nil
	r.Run = cmp.Or(r.Run, NewID())
	r.Timeout = cmp.Or(r.Timeout, DefaultTimeout)
	r.IdleTimeout = cmp.Or(r.IdleTimeout, DefaultIdleTimeout)
	if r.Masker == nil {
		r.Masker = new(secret.Masker)
	}
	r.Masker.Add(credentials(r.Request.Env)...)
	ctx, cancel := context.WithTimeoutCause(ctx, r.Timeout, &agent.Error{
		Code: agent.CodeTimeout, Message: fmt.Sprintf("the run's time of %v was over", r.Timeout),
	})
	defer cancel()

	r.event(Event{Type: TypeStarted, Agent: r.Adapter.Name(), Conversation: r.Conversation})
	result := r.perform(ctx)
	outcome := r.outcome(result)
	r.event(Event{Type: TypeFinished, Outcome: &outcome})
	return outcome
}

// perform does everything but the outcome. What it cannot do is the result's error.
func (r *runner) perform(ctx context.Context) (result agent.Result) {
	// The conversation is left last: then nothing of this run is there to meet the next one.
	defer r.leaveConversation()
	defer r.closeBoundary(ctx)
	fail := func(err error) agent.Result {
		return agent.Result{Err: r.failure(ctx, err), SessionID: r.session, Proof: proofOf(err)}
	}
	if r.Ledger != nil && r.Conversation != "" {
		if err := r.enterConversation(ctx); err != nil {
			return fail(err)
		}
	}
	folder, err := makeFolder()
	if err != nil {
		return fail(fmt.Errorf("make the run's folder: %w", err))
	}
	defer func() { r.note(removeAll(folder)) }()
	tmp := filepath.Join(folder, "tmp")
	r.Request.Private = filepath.Join(folder, "private")
	if err := os.Mkdir(tmp, safefile.DirMode); err != nil {
		return fail(fmt.Errorf("make the run's folder: %w", err))
	}
	if r.Request.Workdir, err = filepath.EvalSymlinks(r.Request.Workdir); err != nil {
		return fail(fmt.Errorf("find the working directory: %w", err))
	}
	if r.workdir, err = agent.MarkOf(r.Request.Workdir); err != nil {
		return fail(err)
	}
	r.Request.Env = environ(r.Request.Env, tmp, r.Request.Workdir, r.Withhold, r.Given)
	if r.Request.Program == "" && len(r.Request.Argv) > 0 {
		if r.Request.Program, err = agent.FindProgram(r.Request.Argv[0], r.Request.Workdir, r.Request.Env); err != nil {
			return fail(err)
		}
	}

	if err := r.openBoundary(ctx); err != nil {
		return fail(err)
	}
	transcript, err := r.openTranscript()
	if err != nil {
		r.note(err)
	}
	defer func() { r.note(transcript.close()) }()

	result, err = r.attempt(ctx, transcript)
	if err == nil && result.ResumeRejected && ctx.Err() == nil {
		// The agent does not know the session and asked no model: once more, as a new one.
		r.forget(r.Request.Resume)
		r.notes = append(r.notes, fmt.Sprintf("%s did not know session %s any more; a new one was begun", r.Adapter.Name(), r.Request.Resume))
		r.Request.Resume, r.Request.Before, r.session, r.named = "", agent.Usage{}, "", false
		result, err = r.attempt(ctx, transcript)
	}
	if err != nil {
		return fail(err)
	}
	switch {
	case result.ResumeRejected:
		r.forget(r.Request.Resume)
		result.SessionID, r.session = "", ""
	case result.SessionID == "" && !r.named:
		result.SessionID = r.session // it ended before it named any: what was to be resumed can be still
	default:
		r.record(result.SessionID, result.Totals)
	}
	return result
}

func (r *runner) openTranscript() (*transcript, error) {
	if r.Transcripts == "" || r.Request.ProveOnly {
		return nil, nil
	}
	return openTranscript(r.Transcripts, r.Run, r.Masker, r.started)
}

// enterConversation takes the conversation's lock and finds what is to be resumed.
func (r *runner) enterConversation(ctx context.Context) error {
	conversation, err := r.lock(ctx)
	if err != nil {
		return err
	}
	r.conversation = conversation
	r.notes = append(r.notes, conversation.Notes()...)
	if r.Request.Workdir == "" {
		if r.Request.Workdir, err = conversation.Workspace(); err != nil {
			return err
		}
	}
	if r.Request.ProveOnly {
		r.conversation = nil // nothing is resumed or recorded, and it is not held up
		return conversation.Unlock()
	}
	session, ok := conversation.Session(r.Adapter.Name(), r.Home)
	if !ok {
		return nil
	}
	if err := conversation.Claim(ctx, r.Adapter.Name(), r.Home, session.ID); err != nil {
		return err
	}
	r.Request.Resume, r.Request.Before, r.session = session.ID, session.Totals, session.ID
	return nil
}

func (r *runner) leaveConversation() {
	if r.conversation != nil {
		r.note(r.conversation.Unlock())
	}
}

// lock takes the conversation's lock, and says so when it has to wait for it.
func (r *runner) lock(ctx context.Context) (*ledger.Conversation, error) {
	now, cancel := context.WithCancel(ctx)
	cancel()
	conversation, err := r.Ledger.Lock(now, r.Conversation, r.Run)
	var busy *ledger.Busy
	if !errors.As(err, &busy) || ctx.Err() != nil {
		return conversation, err
	}
	waiting := "waiting for the conversation"
	if busy.Holder != nil {
		waiting = "waiting for run " + busy.Holder.Run + " of the same conversation"
	}
	r.agentEvent(agent.Event{Kind: agent.EventActivity, Activity: waiting})
	return r.Ledger.Lock(ctx, r.Conversation, r.Run)
}

// attempt makes one launch. The error is why the agent was given nothing.
func (r *runner) attempt(ctx context.Context, transcript *transcript) (agent.Result, error) {
	launch, tree, changed, err := r.launch(ctx)
	if changed != "" && ctx.Err() == nil {
		// It may have been an update, or Codex's own first start.
		launch, tree, changed, err = r.launch(ctx)
	}
	if changed != "" {
		err = &agent.Unproven{Why: changed + " changed while the run was prepared", Mend: "run it again when nothing changes it", Proof: proofOfLaunch(launch)}
	}
	var known *agent.Error
	if r.Request.Resume != "" && errors.As(err, &known) && known.Code == agent.CodeResumeRejected {
		// The recorded id is not of the agent's form: no agent knows it.
		return agent.Result{ResumeRejected: true, Err: known}, nil
	}
	if err != nil {
		return agent.Result{}, err
	}
	if tree == nil {
		return agent.Result{Proof: *launch.Proof}, nil
	}
	concealer, _ := launch.Dialogue.(agent.Concealer)
	s := supervisor{
		tree: tree, streams: streams{tree.Stdin, tree.Stdout, tree.Stderr},
		dialogue: launch.Dialogue, ladder: launch.Ladder,
		idle: r.IdleTimeout, maxCost: r.Request.MaxCostUSD, kill: r.Kill,
		emit: r.agentEvent, beat: r.beat,
		ask: r.askPerson, waits: r.waits, waiting: r.waiting,
		line: func(line []byte) {
			r.counts.Lines++
			if concealer == nil || !concealer.Conceal(line) {
				transcript.line(line)
			}
		},
	}
	ended := s.supervise(ctx)
	r.notes = append(r.notes, ended.notes...)
	result := ended.result
	if launch.Proof != nil && result.Proof.How == "" {
		result.Proof = *launch.Proof
	}
	switch {
	case ended.why == nil:
	case result.Err == nil:
		r.notes = append(r.notes, "the run was stopped after its reply was complete: "+ended.why.Message)
	default:
		if result.Err.Code != ended.why.Code && result.Err.Code != agent.CodeNoResult {
			r.notes = append(r.notes, "the agent's own word on being stopped: "+result.Err.Message)
		}
		result.Err = ended.why
	}
	return result, nil
}

// launch prepares the agent and starts it. changed names what the preparation rests on and is another by then; the process is ended again.
// tree is nil as well when only the proof was wanted, and it is there.
func (r *runner) launch(ctx context.Context) (launch *agent.Launch, tree *proc.Tree, changed string, err error) {
	if err := os.MkdirAll(r.Request.Private, safefile.DirMode); err != nil {
		return nil, nil, "", fmt.Errorf("make the run's folder: %w", err)
	}
	if launch, err = r.Adapter.Prepare(ctx, r.Request); err != nil {
		return nil, nil, "", err
	}
	r.version = launch.Version
	if launch.Proof != nil && r.Request.ProveOnly {
		return launch, nil, "", nil
	}
	tree, err = proc.Start(proc.Command{Path: launch.Argv[0], Args: launch.Argv[1:], Env: launch.Env, Dir: r.Request.Workdir})
	if err != nil {
		return nil, nil, "", err
	}
	if changed = r.changed(launch, tree.PID()); changed == "" {
		return launch, tree, "", nil
	}
	tree.Kill()
	<-tree.Done()
	for _, stream := range []*os.File{tree.Stdout, tree.Stderr} {
		_ = stream.Close()
	}
	return launch, nil, changed, nil
}

// changed names what is another than it was when the run was prepared.
func (r *runner) changed(launch *agent.Launch, pid int) string {
	if !r.workdir.Same() || !runsIn(pid, r.workdir) {
		return "the working directory " + r.Request.Workdir
	}
	if launch.Changed != nil {
		return launch.Changed()
	}
	return ""
}

func proofOfLaunch(launch *agent.Launch) (proof agent.Proof) {
	if launch.Proof != nil {
		proof = *launch.Proof
	}
	proof.Proven = false
	return proof
}

// failure is err as an outcome's error.
func (r *runner) failure(ctx context.Context, err error) *agent.Error {
	var (
		known    *agent.Error
		refusal  *agent.Refusal
		unproven *agent.Unproven
		missing  *agent.Missing
	)
	switch {
	case errors.As(err, &refusal):
		return &agent.Error{Code: agent.CodeRefused, Message: err.Error()}
	case errors.As(err, &unproven):
		return &agent.Error{Code: agent.CodeBoundary, Message: err.Error()}
	case ctx.Err() != nil:
		why := *reason(ctx)
		why.Message += " before the agent was started: " + err.Error()
		return &why
	case errors.As(err, &known):
		return known
	case errors.As(err, &missing):
		return &agent.Error{Code: agent.CodeMissing, Message: err.Error()}
	}
	return &agent.Error{Code: agent.CodeStartFailed, Message: err.Error()}
}

// proofOf is what an error knows of the boundary.
func proofOf(err error) agent.Proof {
	var unproven *agent.Unproven
	if errors.As(err, &unproven) {
		return unproven.Proof
	}
	return agent.Proof{}
}

// agentEvent takes an event of the dialogue.
func (r *runner) agentEvent(e agent.Event) {
	switch e.Kind {
	case agent.EventSession:
		if e.SessionID != r.session {
			r.record(e.SessionID, agent.Usage{})
			r.session = e.SessionID
		}
		r.named = true
	case agent.EventProven:
		// The agent has read what it was to read. The run's token is not to lie where commands of a model, of this run
		// or of another one, could read it.
		r.note(os.RemoveAll(r.Request.Private))
	case agent.EventActivity, agent.EventRetry:
		r.activity = e.Activity
	case agent.EventTool:
		r.counts.Tools++
	case agent.EventDenied:
		r.counts.Denied++
	case agent.EventUsage:
		r.usageTold = true
	}
	if e.Kind == agent.EventRetry {
		r.counts.Retries++
	}
	r.event(Event{
		Type: typeOf[e.Kind], SessionID: e.SessionID, Activity: e.Activity, Text: e.Text, Tool: e.Tool, Proof: e.Proof, Usage: e.Usage,
	})
}

func (r *runner) beat() {
	counts := r.counts
	r.event(Event{Type: TypeHeartbeat, SessionID: r.session, Activity: cmp.Or(r.waits.activity(), r.activity), Counts: &counts})
}

// waiting tells that calls wait for a person; when they do no more, what the agent does.
func (r *runner) waiting(activity string) {
	if activity = cmp.Or(activity, r.activity); activity != "" {
		r.event(Event{Type: TypeActivity, Activity: activity})
	}
}

// event hands an event on, masked.
func (r *runner) event(e Event) {
	if r.Events == nil {
		return
	}
	e.Run, e.Time = r.Run, time.Now().UTC()
	e.Activity, e.Text, e.Tool = r.Masker.Text(e.Activity), r.Masker.Text(e.Text), r.Masker.Text(e.Tool)
	if e.Proof != nil {
		proof := r.proof(*e.Proof)
		e.Proof = &proof
	}
	r.Events(e)
}

// record stores where the agent's session stands. An empty session says that the one named before is dead.
func (r *runner) record(session string, totals agent.Usage) {
	switch {
	case r.conversation == nil:
	case session == "":
		r.forget(r.session)
	default:
		err := r.conversation.Record(r.Adapter.Name(), r.Home, ledger.Session{ID: session, Totals: totals})
		if !errors.Is(err, ledger.ErrDead) {
			r.note(err)
		}
	}
}

func (r *runner) forget(session string) {
	if r.conversation != nil && session != "" {
		r.note(r.conversation.Forget(r.Adapter.Name(), r.Home, session))
	}
}

// note keeps what went wrong beside the run, without which the run is what it is.
func (r *runner) note(err error) {
	if err != nil {
		r.notes = append(r.notes, err.Error())
	}
}

func (r *runner) openBoundary(ctx context.Context) error {
	if r.Open == nil {
		return nil
	}
	boundary, err := r.Open(ctx, r.Request.Workdir, r.approver())
	if err != nil {
		return fmt.Errorf("open the run's endpoint: %w", err)
	}
	r.boundary = boundary
	r.Request.Gateway = boundary.Gateway()
	r.Masker.Add(r.Request.Gateway.Token)
	return nil
}

func (r *runner) closeBoundary(ctx context.Context) {
	if r.boundary == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWait)
	defer cancel()
	if err := r.boundary.Close(ctx); err != nil {
		r.note(fmt.Errorf("close the run's endpoint: %w", err))
	}
}

// outcome puts together how the run ended.
func (r *runner) outcome(result agent.Result) Outcome {
	mask := r.Masker.Text
	o := Outcome{
		Run: r.Run, Conversation: r.Conversation, Agent: r.Adapter.Name(), AgentVersion: r.version,
		Status: statusOf(result.Err), SessionID: result.SessionID,
		Usage: result.Usage, Turns: result.Turns, ToolCalls: []agent.ToolCall{},
	}
	if result.Err == nil {
		o.Resumed = r.Request.Resume != ""
		o.Reply = optional(mask(result.Reply))
	} else {
		o.Resumed = r.Request.Resume != "" && !result.ResumeRejected && result.SessionID == r.Request.Resume
		o.Error = &agent.Error{Code: result.Err.Code, Message: mask(result.Err.Message)}
		o.Salvage = optional(mask(result.Salvage))
	}
	denials := [][]string{result.Denials}
	if r.boundary != nil {
		denials = append(denials, r.boundary.Denials())
		r.notes = append(r.notes, r.boundary.Notes()...)
		o.ToolCalls = append(o.ToolCalls, r.boundary.Calls()...)
	}
	o.Denials = list(mask, denials...)
	if result.Skipped > 0 {
		r.notes = append(r.notes, fmt.Sprintf("%d lines of the agent's output were not understood", result.Skipped))
	}
	if r.Request.MaxCostUSD > 0 && !r.usageTold && result.Usage.CostUSD == 0 && result.Usage.OutputTokens > 0 {
		r.notes = append(r.notes, r.Adapter.Name()+" does not tell what it costs: the limit on cost could not be held")
	}
	o.Proof = r.proof(result.Proof)
	o.Boundary = Evidence{
		Proven: o.Proof.Proven, How: o.Proof.How, Servers: o.Proof.Servers, Disabled: o.Proof.Disabled, Failed: o.Proof.Failed,
		Notes: list(mask, o.Proof.Notes, result.Notes, r.notes),
	}
	o.DurationMS = time.Since(r.started).Milliseconds()
	return o
}

// proof is a proof masked, whose lists are never null.
func (r *runner) proof(p agent.Proof) agent.Proof {
	mask := r.Masker.Text
	p.How = mask(p.How)
	for _, l := range []*[]string{&p.Servers, &p.Disabled, &p.Failed, &p.Notes, &p.Tools, &p.BuiltIn} {
		*l = list(mask, *l)
	}
	p.Rings = slices.Clone(p.Rings)
	for i := range p.Rings {
		for _, open := range p.Rings[i].Open {
			p.Notes = append(p.Notes, agent.NotCovered+mask(open))
		}
		ring := &p.Rings[i]
		ring.Planned, ring.Proven = mask(ring.Planned), mask(ring.Proven)
		ring.Enforced, ring.Open = list(mask, ring.Enforced), list(mask, ring.Open)
	}
	return p
}

// removeAll removes a folder with what programs may have made unwritable in it, as Go's module cache does.
func removeAll(folder string) error {
	if os.RemoveAll(folder) == nil {
		return nil
	}
	_ = filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(path, safefile.DirMode) // RemoveAll below says what could not be removed
		}
		return nil
	})
	return os.RemoveAll(folder)
}
