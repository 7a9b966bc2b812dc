package run

import (
	"time"

	"nightporter/internal/agent"
)

// The types of [Event]. docs/events.md says what each carries.
const (
	TypeStarted   = "run.started"
	TypeSession   = "run.session"
	TypeProven    = "run.proven"
	TypeActivity  = "run.activity"
	TypeText      = "run.text"
	TypeTool      = "run.tool"
	TypeDenied    = "run.denied"
	TypeRetry     = "run.retry"
	TypeUsage     = "run.usage"
	TypeHeartbeat = "run.heartbeat"
	TypeFinished  = "run.finished"
)

// typeOf is the type of an event that a dialogue emits.
var typeOf = map[agent.EventKind]string{
	agent.EventSession:  TypeSession,
	agent.EventProven:   TypeProven,
	agent.EventActivity: TypeActivity,
	agent.EventText:     TypeText,
	agent.EventTool:     TypeTool,
	agent.EventDenied:   TypeDenied,
	agent.EventRetry:    TypeRetry,
	agent.EventUsage:    TypeUsage,
}

// Event is one thing that happened in a run, as `run --output stream-json` prints it. Secrets that are known
// are masked in it.
type Event struct {
	Type string    `json:"type"`
	Run  string    `json:"run"`
	Time time.Time `json:"time"`

	Agent        string       `json:"agent,omitempty"`
	Conversation string       `json:"conversation,omitempty"`
	SessionID    string       `json:"session_id,omitempty"`
	Activity     string       `json:"activity,omitempty"`
	Text         string       `json:"text,omitempty"`
	Tool         string       `json:"tool,omitempty"`
	Proof        *agent.Proof `json:"proof,omitempty"`
	Usage        *agent.Usage `json:"usage,omitempty"`
	Counts       *Counts      `json:"counts,omitempty"`
	Outcome      *Outcome     `json:"outcome,omitempty"`
}

// Counts is what a run did so far.
type Counts struct {
	Lines   int `json:"lines"` // that the agent printed
	Tools   int `json:"tools"` // calls that the agent reported
	Denied  int `json:"denied"`
	Retries int `json:"retries"` // of the model's API
}
