// Package agent says what a coding agent's adapter is: how its command is
// checked and shaped for an unattended run, and how what it prints is read.
//
// The adapters are in the packages below: claude, codex, acp, command, demo. An
// adapter starts no agent run itself. It prepares a [Launch]; package run starts the
// process, feeds the launch's [Dialogue] with what it prints, carries out the
// [Action]s that come back, and stops it by the launch's [Ladder].
package agent

import (
	"context"
	"encoding/json"
	"time"

	"nightporter/internal/proc"
	"nightporter/internal/secret"
)

// An Adapter knows one coding agent.
type Adapter interface {
	// Name is the agent's name in --agent and in outcomes: claude, codex, acp, command, demo.
	Name() string

	// DefaultArgv is the command that runs the agent when the operator gave none,
	// such as ["codex", "exec"]. Nil when there is none.
	DefaultArgv() []string

	// Recognises reports whether argv runs this agent unattended, in any form:
	// also one that Check will refuse. Only argv[0]'s base name and the words
	// after it are looked at; nothing is started.
	Recognises(argv []string) bool

	// Check reports whether the command can be shaped. A command that would defeat the
	// boundary or the reading is answered with a *[Refusal]. Nothing is started.
	Check(argv []string, mode ToolMode) error

	// Prepare shapes the command for one run and proves, as far as the agent can be
	// asked before its run, what it will reach. It may start the agent's
	// program to ask it, bounded by ctx, but no model is asked anything.
	//
	// Errors: *[Refusal] (the command), *[Unproven] (the boundary; nothing was started that
	// asks a model), *[Missing] (the program), or another error.
	Prepare(ctx context.Context, r Request) (*Launch, error)
}

// ToolMode says which tools an agent may use without asking.
type ToolMode string

const (
	// Granted lets the granted MCP tools run without asking, and of the agent's own
	// tools those of [Request.BuiltIn]; everything else is refused and reported.
	Granted ToolMode = "granted"
	// Bypass turns the agent's approvals and sandbox off.
	Bypass ToolMode = "bypass"
)

// BuiltIn says which of the agent's own tools (shell, editor, web) a run may use.
type BuiltIn string

const (
	BuiltInNone     BuiltIn = "none"      // none at all where the agent allows that
	BuiltInReadOnly BuiltIn = "read-only" // those that only look at files
	BuiltInAll      BuiltIn = "all"       // all, in the agent's own sandbox
)

// GatewayName is the name of the one MCP server that a run's agent sees.
const GatewayName = "nightporter"

// Gateway is the run's own endpoint, as the agent will reach it.
type Gateway struct {
	URL   string        // http://127.0.0.1:PORT/..., streamable HTTP
	Token secret.String // bearer token, good for this run alone
	Tools []string      // names of the tools that the endpoint lists, as it lists them, sorted
	// RawName maps a call of an exposed tool back to the real server and its tool. arguments are those of the call, by which one
	// tool may stand for others; they may be nil where they are not known.
	RawName func(exposed string, arguments json.RawMessage) (server, tool string, ok bool)
}

// Request is everything that an adapter needs to know to shape one run.
type Request struct {
	Argv    []string // the operator's command, checked; Argv[0] as it was written
	Program string   // the executable that Argv[0] was resolved to; it answers the proof and does the run
	Workdir string   // absolute, symlinks resolved; where the run takes place
	Env     []string // the agent's whole environment; the adapter may add to it and remove from it
	Private string   // a 0700 folder of this run alone for files the agent must read; removed once it is proven, before the prompt

	Gateway *Gateway // nil when nothing is behind it
	Direct  []Direct // servers for the agent itself, sorted by name; only for a [Wirer]
	Mode    ToolMode
	// SafeTools removes a bypass that the operator's own command carries.
	SafeTools bool
	BuiltIn   BuiltIn
	// OperatorSettings keeps the operator's own user settings of the agent: hooks, plugins, skills, instructions, as far as the agent can
	// keep these and not the working directory's. Servers stay those of the run.
	OperatorSettings bool
	// Hidden are absolute paths of Nightporter's own files and folders, which hold secrets and the means to reach other servers. Where the agent has
	// tools that read files or run commands, and a switch for it, they are kept from these.
	Hidden []string
	// AllowServers names servers of the agent's own that the operator accepts although they
	// cannot be switched off.
	AllowServers []string
	// AllowFlags names flags of the command that the operator accepts although the adapter does not know
	// them. A flag that it knows and refuses stays refused.
	AllowFlags []string

	Prompt string
	// Resume is the agent's session id to continue, in the agent's own form; empty starts a new session.
	Resume string
	// Before holds the totals that the session had at its last run: agents count
	// cost and tokens cumulatively over resumes.
	Before Usage

	// Approvals says that a person can be asked about calls of the agent's own tools: by [AskPerson], which an adapter whose agent can wait
	// for an answer then makes of what it would have had refused.
	Approvals bool

	// Unproven says that the operator accepts a run whose boundary cannot be proven.
	Unproven bool
	// MaxCostUSD ends the run when it has cost more; zero is no limit. Package run holds EventUsage
	// against it; an adapter also hands it to an agent that can limit itself.
	MaxCostUSD float64

	// ProveOnly ends the dialogue when the proof is complete, before the model is asked.
	ProveOnly bool
}

// Launch is a shaped and, as far as possible, proven run, ready to be started.
type Launch struct {
	Argv     []string // Argv[0] is the absolute path of the program
	Env      []string // complete; holds the run's token where the agent takes it from there
	Version  string   // the agent's version, such as "2.1.332"; empty when unknown
	Dialogue Dialogue
	Ladder   Ladder
	// Proof is set by an adapter that proves in Prepare; with ProveOnly the process is then not started.
	Proof *Proof
	// Changed names what has changed of that on which the preparation rests, such as the program's file; empty: nothing. It is called when
	// the process runs and has been given nothing. Nil: there is nothing to look at.
	Changed func() string
}

// A Dialogue is the agent's side of a run as a state machine without clock, process or
// goroutine: it is told what happened and answers with actions. It is total: no input makes
// it fail or panic, and what it does not know it skips and counts.
// Its methods are called from one goroutine at a time.
type Dialogue interface {
	// Start is called once, when the process runs.
	Start() []Action
	// Line takes one line of standard output without its newline, complete and
	// at most the line cap long. It must not keep the slice.
	Line(line []byte) []Action
	// Dropped says that a line longer than the cap was dropped. head holds
	// its first bytes (at most 64 KiB).
	Dropped(head []byte) []Action
	// Tick is called about every 200 ms while the process runs, for dialogues that poll.
	Tick() []Action
	// Stop is called when the run is to end early, before the ladder. It may answer with a Write that asks
	// the agent to interrupt itself, which lets it save most.
	Stop() []Action
	// End is called once, when the process has ended and all its output was given, and returns the
	// verdict. stderr holds the last lines that the agent wrote there.
	End(exit proc.Exit, stderr []byte) Result
}

// A Concealer is a [Dialogue] that knows lines of output which hold secrets that no masker can know, and which
// are therefore kept in no transcript. Conceal is called before Line, with the same line.
type Concealer interface {
	Conceal(line []byte) bool
}

// An Asker is a [Dialogue] that makes [AskPerson] of calls that want a person's approval.
type Asker interface {
	// Answer says what came of an AskPerson. It is not called when the run is being ended meanwhile, or after a Withdraw. reason is why it was
	// denied.
	Answer(id string, approved bool, reason string) []Action
}

// Action is what a dialogue asks for: one of [Write], [CloseInput], [Emit], [Abort], [AskPerson], [Withdraw].
type Action interface{ action() }

// Write sends bytes to the agent's standard input.
type Write struct{ Data []byte }

// CloseInput closes the agent's standard input after what was written.
type CloseInput struct{}

// Emit hands an event to whoever watches the run.
type Emit struct{ Event Event }

// Abort ends the run at once, by the ladder; Result from End says why.
type Abort struct {
	// Now leaves the ladder out: the whole tree is killed. It is for a boundary that
	// broke, where each moment more may reach the model.
	Now bool
}

// AskPerson wants a person's approval for a call of one of the agent's own tools. The answer comes by [Asker].
type AskPerson struct {
	ID        string // the dialogue's, and of no other AskPerson of it
	Tool      string // the agent's name of it
	Arguments json.RawMessage
	// Authority is under what the call would be made, beside the working directory, such as the agent's session and permission mode.
	Authority []string
}

// Withdraw takes an [AskPerson] back: the agent does not wait for it any more.
type Withdraw struct{ ID string }

func (Write) action()      {}
func (CloseInput) action() {}
func (Emit) action()       {}
func (Abort) action()      {}
func (AskPerson) action()  {}
func (Withdraw) action()   {}

// EventKind names an event of a run.
type EventKind string

const (
	EventSession  EventKind = "session"  // SessionID became known or changed
	EventProven   EventKind = "proven"   // the boundary is proven; Proof is set
	EventActivity EventKind = "activity" // Activity is what the agent does now
	EventText     EventKind = "text"     // Text is something that the agent wrote, whole
	EventTool     EventKind = "tool"     // Tool was called by the agent
	EventDenied   EventKind = "denied"   // Tool was refused
	EventRetry    EventKind = "retry"    // the model's API is being retried; Activity says why
	EventUsage    EventKind = "usage"    // Usage is what the run has cost up to now
)

// Event is one thing that happened in a run.
type Event struct {
	Kind      EventKind `json:"kind"`
	SessionID string    `json:"session_id,omitempty"`
	Activity  string    `json:"activity,omitempty"` // see [Activity]
	Text      string    `json:"text,omitempty"`
	Tool      string    `json:"tool,omitempty"` // mcp__server__tool of the real server, or the agent's own tool name
	Proof     *Proof    `json:"proof,omitempty"`
	Usage     *Usage    `json:"usage,omitempty"`
}

// Usage counts what a run or a session cost.
type Usage struct {
	InputTokens  int64   `json:"input_tokens"`
	OutputTokens int64   `json:"output_tokens"`
	CostUSD      float64 `json:"cost_usd"`
}

// Result is a dialogue's verdict on a run.
type Result struct {
	Reply string // set only when Err is nil
	Err   *Error
	// SessionID is the session that the next run may resume: the one that the stream named last, and
	// empty when there is none or it is known to be dead.
	SessionID string
	// ResumeRejected says that the agent does not know Request.Resume, and nothing was asked of a model:
	// the run may be made once more without it.
	ResumeRejected bool
	Salvage        string // the tail of what the agent last wrote; see [Tail]
	Denials        []string
	Usage          Usage // of this run
	Totals         Usage // of the session, as the agent counts; the Request.Before of its next run
	Turns          int
	Proof          Proof
	Skipped        int      // lines that were not understood
	Notes          []string // what a person should know of the reading
}

// Proof is the evidence of a run's boundary.
type Proof struct {
	Proven   bool     `json:"proven"`
	How      string   `json:"how"`      // one sentence: who was asked what
	Servers  []string `json:"servers"`  // MCP servers that the agent reaches
	Disabled []string `json:"disabled"` // servers of the agent's own that were switched off
	Failed   []string `json:"failed"`   // those that could not be
	Notes    []string `json:"notes"`    // what is not covered, what was allowed

	// The rest is shown by `prove`.
	Tools   []string `json:"tools,omitempty"`    // MCP tools that the agent sees, as the gateway lists them
	BuiltIn []string `json:"built_in,omitempty"` // the agent's own tools
	Rings   []Ring   `json:"rings,omitempty"`    // from the inside out
}

// Ring is one ring of the boundary around an agent: what it is to be, and what that rests on.
type Ring struct {
	Name     string   `json:"name"`        // one of the Ring names
	Planned  string   `json:"planned"`     // what the agent is to reach
	Enforced []string `json:"enforced"`    // by which switch, each
	Proven   string   `json:"proven"`      // how it is known to hold in this run; empty: it is not
	Open     []string `json:"not_covered"` // what it does not hold against
}

// NotCovered begins the note that an outcome has for each of the things that a ring does not hold against.
const NotCovered = "not covered: "

// The rings of every agent (REQUIREMENTS B11 to B19).
const (
	RingServers  = "servers"
	RingSettings = "settings, hooks, plugins, skills, memory"
	RingTools    = "own tools"
	RingPrompt   = "prompt"
)

// Error is why a run has no reply. Code is stable.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// The stable codes of [Error], as they stand in an outcome's error.code.
const (
	CodeAgentError      = "agent_error"        // the agent reported that the run failed
	CodeNoResult        = "no_result"          // it ended without a result that we recognise
	CodeEmptyReply      = "empty_reply"        // it reported success and said nothing
	CodeResultTooLong   = "result_too_long"    // a line over the cap, which may have been the result, was dropped
	CodeAuth            = "model_auth"         // the model's API refused the credentials
	CodeModelAPI        = "model_api"          // the model's API failed
	CodeTurnLimit       = "turn_limit"         // the agent's own limit on turns
	CodeBudget          = "budget"             // a limit on cost
	CodePromptTooLong   = "prompt_too_long"    // over the agent's limit
	CodeResumeRejected  = "resume_rejected"    // the agent does not know the session
	CodeSessionMismatch = "session_mismatch"   // another session came back than was asked for
	CodeBoundary        = "boundary_unproven"  // the agent reaches what was not planned, or not what was; no model was asked
	CodeBroken          = "boundary_broken"    // likewise, and a model was asked before it was seen
	CodeRefused         = "command_refused"    // the command cannot be shaped
	CodeMissing         = "agent_missing"      // program missing or too old
	CodeStartFailed     = "agent_start_failed" // the program could not be started
	CodeTimeout         = "timeout"            // total deadline
	CodeIdle            = "idle_timeout"       // no event for too long
	CodeSignal          = "signal"             // stopped by a signal
)

// Refusal says why a command cannot be run under a boundary. What names the flag, word or character.
type Refusal struct {
	What string
	Why  string
	Mend string // what to do instead; may be empty
}

func (r *Refusal) Error() string { return sentence("refused: "+r.What+": "+r.Why, r.Mend) }

// Unproven says that the boundary could not be proven.
type Unproven struct {
	Why   string
	Mend  string
	Proof Proof // what is known
}

func (u *Unproven) Error() string {
	return sentence("the boundary could not be proven: "+u.Why, u.Mend)
}

// Missing says that the agent's program is not there or is too old.
type Missing struct {
	Why  string // names what was searched
	Mend string
}

func (m *Missing) Error() string { return sentence(m.Why, m.Mend) }

func sentence(text, mend string) string {
	if mend == "" {
		return text
	}
	return text + "; " + mend
}

// ToolCall is one call that a run's agent made through its gateway.
type ToolCall struct {
	Server     string `json:"server"`
	Tool       string `json:"tool"`
	OK         bool   `json:"ok"`
	DurationMS int64  `json:"duration_ms"`
}

// Ladder is how an agent is stopped: each step is tried for its wait, then the next; after the
// last the whole process tree is killed.
type Ladder []Rung

// Rung is one step of a [Ladder].
type Rung struct {
	Signal RungSignal
	Wait   time.Duration
}

// RungSignal is what a rung does.
type RungSignal string

const (
	RungAsk       RungSignal = "ask"       // nothing but Dialogue.Stop's writes; wait for it to end
	RungInterrupt RungSignal = "interrupt" // SIGINT to the agent's process
	RungTerminate RungSignal = "terminate" // SIGTERM to the whole tree
)
