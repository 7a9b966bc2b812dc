// Package audit is the record of every tool call (A26): an SQLite file that many processes write to at the same
// time.
//
// A [Log] writes, [Query] reads. Neither is on the way of a call: [Log.Record] queues, and one goroutine writes what is
// queued in one transaction. docs/audit.md describes the file for people who read it with other programs.
package audit

import (
	"encoding/json"
	"time"
)

// Outcome is how a call ended.
type Outcome string

// Outcomes of calls. The last two are entries about the record itself.
const (
	OK          Outcome = "ok"           // the server answered, and not with an error
	ToolError   Outcome = "tool_error"   // the server answered with isError
	RPCError    Outcome = "rpc_error"    // the server answered with a JSON-RPC error
	Refused     Outcome = "refused"      // not sent; Detail says why
	Timeout     Outcome = "timeout"      // no answer in time
	Cancelled   Outcome = "cancelled"    // the client took it back
	ServerDied  Outcome = "server_died"  // the connection ended before the answer
	StartFailed Outcome = "start_failed" // the server could not be started for it
	// InputRequired is the outcome of a call that the server answered with a question: the client calls again with
	// the answer (specification 2026-07-28).
	InputRequired Outcome = "input_required"

	Lost    Outcome = "lost"    // Entry.Lost entries could not be recorded here
	Damaged Outcome = "damaged" // the record up to here was damaged and is set aside; Detail says where
)

// Outcomes are all of them, in the order of their declaration.
var Outcomes = []Outcome{OK, ToolError, RPCError, Refused, Timeout, Cancelled, ServerDied, StartFailed, InputRequired, Lost, Damaged}

// Failed reports whether the outcome is neither an answer nor a question of the server.
func (o Outcome) Failed() bool { return o != OK && o != InputRequired }

// Entry is one call, as it ended.
type Entry struct {
	Time   time.Time `json:"time"`             // when it was issued; zero: now
	Client string    `json:"client,omitempty"` // what the client calls itself
	Run    string    `json:"run,omitempty"`    // the run's id, when a run's agent made the call

	Server  string `json:"server,omitempty"`  // raw names; empty when the client named a tool that does not exist
	Tool    string `json:"tool,omitempty"`    //
	Exposed string `json:"exposed,omitempty"` // the tool as the client named it

	// Arguments as the client sent them. Record makes the digest of them, and forgets the text unless
	// Options.KeepArguments is set; then known secrets in it are masked. The text is absent from an entry that was read
	// when it was not kept, or is longer than 16 KiB.
	Arguments       json.RawMessage `json:"arguments,omitempty"`
	ArgumentsDigest string          `json:"arguments_digest,omitempty"` // see Digest; empty without arguments
	ArgumentsBytes  int64           `json:"arguments_bytes"`            // length of the text; set by Record

	ResultBytes int64         `json:"result_bytes"` // length of the result or error as the server sent it
	Outcome     Outcome       `json:"outcome"`
	Detail      string        `json:"detail,omitempty"` // the error or the reason; masked, at most 1 KiB
	Duration    time.Duration `json:"-"`                // from Time to the answer

	Authority  string `json:"authority,omitempty"`  // digest of the authority that the call had
	Generation int    `json:"generation,omitempty"` // of the server's connection; 0 when there was none
	Revision   string `json:"revision,omitempty"`   // of the server's catalog

	// Approval says who decided about a call that wanted a person's approval, and how: "approved by ann"; empty: nobody was asked.
	Approval       string        `json:"approval,omitempty"`
	ApprovalWaited time.Duration `json:"-"` // how long the answer took; a part of Duration

	Lost int64 `json:"lost,omitempty"` // how many entries are missing, when Outcome is Lost
}

// How long entries are kept when Options do not say otherwise.
const (
	// DefaultMaxAge is long enough for the questions that are asked after a quarter, and short enough that what an
	// operator forgot about does not stay for ever.
	DefaultMaxAge = 90 * 24 * time.Hour
	// DefaultMaxBytes holds a million calls (measured: 255 bytes each): 90 days of a call every 8 seconds.
	DefaultMaxBytes = 256 << 20
)

// Bounds of what one entry takes. Clients choose these texts, so that without a bound one call could fill the record.
const (
	maxName      = 512      // names, ids and digests; longer than any that was seen in the wild
	maxDetail    = 1 << 10  // an error with the lines of stderr that explain it
	maxArguments = 16 << 10 // with queueLength it bounds what waits in memory to 16 MiB
)
