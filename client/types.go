// Package client talks to a Nightporter hub.
//
// Its types are the JSON of the API; docs/hub-api.md and /openapi.json of a hub describe the requests.
package client

import (
	"encoding/json"
	"time"
)

// Scope is what an API key may do. A key has one or more.
type Scope string

// The scopes, each apart from the others: [ScopeAdmin] alone lets nobody read a conversation.
const (
	ScopeAsk     Scope = "ask"     // send messages, cancel runs, and read the conversations that this key has sent messages to
	ScopeRead    Scope = "read"    // read all conversations, runs, approvals, hosts and figures
	ScopeApprove Scope = "approve" // answer approvals and questions
	ScopeAdmin   Scope = "admin"   // keys, invites, hosts, profiles, webhooks, hooks, schedules
)

// Scopes are all scopes.
var Scopes = []Scope{ScopeAsk, ScopeRead, ScopeApprove, ScopeAdmin}

// Page is one page of a list. Next is empty on the last page, else it is given as ?after= for the page that follows.
type Page[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"`
}

// NewMessage is a message for a conversation: POST /v1/messages. An Idempotency-Key header makes it safe to send again: the
// same key with the same body has the same answer and no second run, with another body it is an error (409).
type NewMessage struct {
	Conversation string `json:"conversation,omitempty"` // the conversation's key; empty: one of its own
	Profile      string `json:"profile,omitempty"`      // empty: the conversation's, else "default"
	Text         string `json:"text"`
	Author       string `json:"author,omitempty"`    // for people
	Priority     int    `json:"priority,omitempty"`  // of the run among those of other conversations, -100 to 100; the higher first
	Interrupt    bool   `json:"interrupt,omitempty"` // stop the run of the conversation that is going on
	Webhook      string `json:"webhook,omitempty"`   // the name of a webhook that gets the reply, beside those that get all
	// TraceParent is the W3C trace context that the run's spans belong to; empty: that of the request, if any.
	TraceParent string `json:"traceparent,omitempty"`
}

// Message is a message that the hub has accepted, with the run that answers it.
type Message struct {
	ID           string    `json:"id"`
	Conversation string    `json:"conversation"` // the conversation's key
	Seq          int64     `json:"seq"`          // its place in the conversation, from 1
	Profile      string    `json:"profile"`
	Text         string    `json:"text"`
	Author       string    `json:"author,omitempty"`
	Created      time.Time `json:"created"`
	Run          Run       `json:"run"`
}

// RunState says where a run is.
type RunState string

// The states of a run.
const (
	RunWaiting RunState = "waiting" // another run of its conversation comes first
	RunReady   RunState = "ready"   // a host may take it
	RunRunning RunState = "running" // a host has it
	RunDone    RunState = "done"    // it has an outcome
)

// Run is one turn of an agent: it answers one message.
type Run struct {
	ID           string     `json:"id"`
	Conversation string     `json:"conversation"`
	Message      string     `json:"message"`
	Seq          int64      `json:"seq"`
	Profile      string     `json:"profile"`
	Priority     int        `json:"priority"`
	State        RunState   `json:"state"`
	Attempts     int        `json:"attempts"`         // how often a host took it
	Host         string     `json:"host,omitempty"`   // the name of the host that has it, or had it last
	Cancel       string     `json:"cancel,omitempty"` // why it was asked to stop
	Reason       string     `json:"reason,omitempty"` // why it is ready again, or ended without a host's outcome
	Activity     string     `json:"activity,omitempty"`
	SessionID    string     `json:"session_id,omitempty"`
	Created      time.Time  `json:"created"`
	Started      *time.Time `json:"started,omitempty"` // of the last attempt
	Finished     *time.Time `json:"finished,omitempty"`

	// What follows is set when it is done.
	Status       string          `json:"status,omitempty"` // of the outcome: ok, failed, refused, stopped
	Reply        *string         `json:"reply,omitempty"`
	ErrorCode    string          `json:"error_code,omitempty"`
	ErrorMessage string          `json:"error_message,omitempty"`
	CostUSD      float64         `json:"cost_usd"`
	InputTokens  int64           `json:"input_tokens"`
	OutputTokens int64           `json:"output_tokens"`
	DurationMS   int64           `json:"duration_ms"`
	Outcome      json.RawMessage `json:"outcome,omitempty"` // as docs/outcomes.md has it; only where one run is asked for
}

// Attempt is one time that a host took a run.
type Attempt struct {
	N       int        `json:"n"` // from 1
	Host    string     `json:"host"`
	Started time.Time  `json:"started"`
	Ended   *time.Time `json:"ended,omitempty"`
	End     string     `json:"end,omitempty"` // finished, lease_lost, released, revoked
	Reason  string     `json:"reason,omitempty"`
}

// Conversation is a thread of messages and their runs.
type Conversation struct {
	Key      string    `json:"key"`
	Profile  string    `json:"profile"`
	Messages int64     `json:"messages"`
	Waiting  int64     `json:"waiting"`        // runs that are not done
	Host     string    `json:"host,omitempty"` // that has its session
	Created  time.Time `json:"created"`
	Updated  time.Time `json:"updated"`
}

// Event is one thing that happened in a conversation. Seq counts all events of a conversation from 1 without gaps, and is
// the id of a server-sent event.
type Event struct {
	Seq     int64           `json:"seq"`
	Run     string          `json:"run,omitempty"`
	Attempt int             `json:"attempt,omitempty"`
	Type    string          `json:"type"` // message.accepted, run.taken, run.requeued, run.done, approval.asked, approval.answered, update.posted, file.attached, and all of docs/events.md
	Time    time.Time       `json:"time"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Profile is a way to run agents. It names what hosts have defined (agent, grant): a hub defines no programs.
type Profile struct {
	Name           string   `json:"name"`
	Instructions   string   `json:"instructions,omitempty"` // standing ones; they stand before the first message of a session
	Agent          string   `json:"agent"`                  // the name of an agent of the host
	Grant          string   `json:"grant,omitempty"`        // the name of a grant of the host; empty: no servers
	HubTools       []string `json:"hub_tools,omitempty"`    // conversation_read, post_update, attach_file, ask_person
	Template       string   `json:"template,omitempty"`     // a folder on the host that a new conversation's workspace is copied from
	Approvals      bool     `json:"approvals,omitempty"`    // calls that want an approval are put to a person at the hub; otherwise as the host says
	ApprovalSec    int      `json:"approval_sec,omitempty"` // how long a person may take; 0: 3600
	TimeoutSec     int      `json:"timeout_sec,omitempty"`
	IdleTimeoutSec int      `json:"idle_timeout_sec,omitempty"`
	MaxCostUSD     float64  `json:"max_cost_usd,omitempty"` // of a run
	MaxAttempts    int      `json:"max_attempts,omitempty"` // 0: 3
	Unproven       bool     `json:"unproven,omitempty"`     // runs agents whose boundary cannot be proven, if the host allows it too
}

// Host executes runs.
type Host struct {
	ID       string          `json:"id"`
	Name     string          `json:"name"`
	Version  string          `json:"version,omitempty"`
	Slots    int             `json:"slots"` // how many runs it takes at a time
	Running  int             `json:"running"`
	Paired   time.Time       `json:"paired"`
	LastSeen *time.Time      `json:"last_seen,omitempty"`
	Alive    bool            `json:"alive"` // it was heard of lately
	Revoked  *time.Time      `json:"revoked,omitempty"`
	Report   json.RawMessage `json:"report,omitempty"` // a [HostReport]; only where one host is asked for
}

// HostReport is what a host says of itself: its agents, and its servers with their catalogs.
type HostReport struct {
	Agents  []string       `json:"agents"`
	Grants  []string       `json:"grants"`
	Servers []ServerReport `json:"servers"`
}

// ServerReport is an MCP server of a host, as `nightporter status` and `tools diff` show it there.
type ServerReport struct {
	Name     string       `json:"name"`
	State    string       `json:"state"`
	Revision string       `json:"revision,omitempty"`
	Error    string       `json:"error,omitempty"`
	Tools    []ToolReport `json:"tools"`
	Diff     string       `json:"diff,omitempty"` // how it differs from what was accepted, as text
}

// ToolReport is a tool of a server.
type ToolReport struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
}

// ApprovalState says what came of an approval.
type ApprovalState string

// The states of an approval.
const (
	ApprovalPending   ApprovalState = "pending"
	ApprovalApproved  ApprovalState = "approved"
	ApprovalDenied    ApprovalState = "denied"
	ApprovalAnswered  ApprovalState = "answered"  // of a question
	ApprovalExpired   ApprovalState = "expired"   // nobody answered in time
	ApprovalCancelled ApprovalState = "cancelled" // the run does not wait any more
)

// Approval is a tool call that waits for a person, or a question of an agent to one.
type Approval struct {
	ID           string          `json:"id"`
	Kind         string          `json:"kind"` // call, question
	Run          string          `json:"run"`
	Conversation string          `json:"conversation"`
	Host         string          `json:"host"`
	Digest       string          `json:"digest"`   // of the question; an answer has to name it
	Question     json.RawMessage `json:"question"` // of a call: what docs/approvals.md describes; of a question: {"text", "choices"}
	State        ApprovalState   `json:"state"`
	Asked        time.Time       `json:"asked"`
	Deadline     time.Time       `json:"deadline"`
	Answered     *time.Time      `json:"answered,omitempty"`
	By           string          `json:"by,omitempty"`
	Reason       string          `json:"reason,omitempty"` // of a denial; of a question the answer's text
}

// Answer answers an approval: POST /v1/approvals/{id}/answer.
type Answer struct {
	Decision string `json:"decision"` // approve, deny; of a question: answer
	Digest   string `json:"digest"`
	Reason   string `json:"reason,omitempty"` // why; of a question the answer
}

// Webhook is where the hub sends what happens, signed by the Standard Webhooks scheme.
type Webhook struct {
	Name   string   `json:"name"`
	URL    string   `json:"url"`
	Events []string `json:"events"`           // run.done, approval.asked, update.posted; of messages that name it run.done and update.posted in any case
	All    bool     `json:"all"`              // of all conversations, not only of messages that name it
	Secret string   `json:"secret,omitempty"` // whsec_…; told once, when it is made
}

// Delivery is one thing that a webhook gets. Its ID is the webhook-id header, the same at every try.
type Delivery struct {
	ID           string     `json:"id"`
	Webhook      string     `json:"webhook"`
	Conversation string     `json:"conversation"`
	Run          string     `json:"run"`
	Event        string     `json:"event"`
	State        string     `json:"state"` // waiting (behind another of its conversation), pending, delivered, dead
	Attempts     int        `json:"attempts"`
	Next         *time.Time `json:"next,omitempty"`
	Error        string     `json:"error,omitempty"`
	Created      time.Time  `json:"created"`
	Delivered    *time.Time `json:"delivered,omitempty"`
}

// Hook lets another service send messages by webhook: POST /v1/hooks/{name}, signed by the Standard Webhooks scheme.
type Hook struct {
	Name         string `json:"name"`
	Profile      string `json:"profile,omitempty"`
	Text         string `json:"text"`                   // JSON pointer into the body to the message's text
	Conversation string `json:"conversation,omitempty"` // likewise to the conversation's key; empty: one of its own
	Author       string `json:"author,omitempty"`       // likewise
	Webhook      string `json:"webhook,omitempty"`      // gets the replies
	Secret       string `json:"secret,omitempty"`       // whsec_…; told once, when it is made
}

// Schedule sends a message at a time, or again and again.
type Schedule struct {
	Name    string     `json:"name"`
	Cron    string     `json:"cron,omitempty"` // five fields; empty: once, at At
	At      *time.Time `json:"at,omitempty"`
	Zone    string     `json:"zone,omitempty"` // of Cron, a name of the IANA database; empty: UTC
	Message NewMessage `json:"message"`
	Next    *time.Time `json:"next,omitempty"` // nil: never again
	Last    *time.Time `json:"last,omitempty"`
	Paused  bool       `json:"paused,omitempty"`
}

// Key is a key of the API.
type Key struct {
	ID       string     `json:"id"`
	Name     string     `json:"name"`
	Scopes   []Scope    `json:"scopes"`
	Created  time.Time  `json:"created"`
	LastUsed *time.Time `json:"last_used,omitempty"`
	Expires  *time.Time `json:"expires,omitempty"`
	Revoked  *time.Time `json:"revoked,omitempty"`
	Secret   string     `json:"secret,omitempty"` // the key itself; told once, when it is made
}

// Invite lets one host pair, once.
type Invite struct {
	Code    string    `json:"code"`
	Expires time.Time `json:"expires"`
}

// File is a file that a run attached to its conversation.
type File struct {
	ID        string    `json:"id"`
	Run       string    `json:"run"`
	Name      string    `json:"name"`
	MediaType string    `json:"media_type"`
	Size      int64     `json:"size"`
	SHA256    string    `json:"sha256"`
	Created   time.Time `json:"created"`
}

// Trend is what happened on one day (UTC) in one profile.
type Trend struct {
	Day          string  `json:"day"` // 2006-01-02
	Profile      string  `json:"profile"`
	Runs         int64   `json:"runs"`
	OK           int64   `json:"ok"`
	Failed       int64   `json:"failed"`
	Refused      int64   `json:"refused"`
	Stopped      int64   `json:"stopped"`
	CostUSD      float64 `json:"cost_usd"`
	InputTokens  int64   `json:"input_tokens"`
	OutputTokens int64   `json:"output_tokens"`
	DurationMS   int64   `json:"duration_ms"` // of all together
}

// AuditEntry is an act of a person or host on the hub.
type AuditEntry struct {
	Time   time.Time `json:"time"`
	Actor  string    `json:"actor"`  // key NAME, host NAME, hub
	Action string    `json:"action"` // such as key.add, host.revoke, approval.answer, run.cancel
	Object string    `json:"object"`
	Detail string    `json:"detail,omitempty"`
}

// Problem is an error of the API (RFC 9457, application/problem+json).
type Problem struct {
	Type   string `json:"type"` // about:blank
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"` // what happened, and what to do
	Code   string `json:"code"`   // stable: invalid, unauthorized, forbidden, not_found, conflict, idempotency_mismatch, lease_lost, revoked, too_large, rate_limited, unavailable, internal
}
