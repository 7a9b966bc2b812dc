package client

import "encoding/json"

// Pairing exchanges an invite's code for a host's own key: POST /v1/host/pair.
type Pairing struct {
	Code string `json:"code"`
	Name string `json:"name"`
}

// Paired is the answer to a [Pairing].
type Paired struct {
	Host string `json:"host"` // its id
	Key  string `json:"key"`  // told once
}

// Claim asks for work: POST /v1/host/claim. The answer is an [Assignment], or 204 after Wait without one.
type Claim struct {
	Slots   int    `json:"slots"` // how many runs the host takes at a time
	Version string `json:"version"`
	WaitMS  int64  `json:"wait_ms"` // at most 30000
}

// Assignment is a run that a host has been given, for as long as its lease lasts. Lease is a duration, counted from when the
// request was sent: clocks of hub and host need not agree.
type Assignment struct {
	Run          Run     `json:"run"`
	Fence        int64   `json:"fence"` // names this attempt; every request about the run carries it
	LeaseMS      int64   `json:"lease_ms"`
	Text         string  `json:"text"` // of the message
	Author       string  `json:"author,omitempty"`
	Profile      Profile `json:"profile"`
	First        bool    `json:"first"`             // the first message of its conversation
	History      []Turn  `json:"history,omitempty"` // what was said before, oldest first, bounded: for a host that has no session of the conversation
	TraceParent  string  `json:"traceparent,omitempty"`
	Conversation string  `json:"conversation"`
}

// Turn is a message and its reply.
type Turn struct {
	Text  string `json:"text"`
	Reply string `json:"reply,omitempty"` // empty when there was none
}

// Beat renews a lease: POST /v1/host/runs/{id}/beat. A lease that was lost is a problem with code lease_lost: the host ends
// the run and says nothing more of it.
type Beat struct {
	Fence     int64  `json:"fence"`
	Activity  string `json:"activity,omitempty"`
	SessionID string `json:"session_id,omitempty"`
}

// Beaten is the answer to a [Beat].
type Beaten struct {
	LeaseMS int64  `json:"lease_ms"`
	Cancel  string `json:"cancel,omitempty"` // why the run is to be stopped; empty: it is not
}

// Events are events of a run in order: POST /v1/host/runs/{id}/events. N counts those of an attempt from 1; the hub skips those
// that it has.
type Events struct {
	Fence  int64             `json:"fence"`
	N      int64             `json:"n"` // of the first
	Events []json.RawMessage `json:"events"`
}

// Finish ends a run with its outcome: POST /v1/host/runs/{id}/finish. It may be sent again.
type Finish struct {
	Fence   int64           `json:"fence"`
	Outcome json.RawMessage `json:"outcome"` // docs/outcomes.md
}

// Release gives a run back unfinished, for another host or attempt: POST /v1/host/runs/{id}/release.
type Release struct {
	Fence  int64  `json:"fence"`
	Reason string `json:"reason"`
}

// Ask puts a call or question to a person: POST /v1/host/runs/{id}/approvals. The answer is an [Approval]; its state is read
// by GET /v1/host/runs/{id}/approvals/{approval}?fence=…&wait_ms=….
type Ask struct {
	Fence      int64           `json:"fence"`
	ID         string          `json:"id"`   // made by the host, so that it may be sent again
	Kind       string          `json:"kind"` // call, question
	Digest     string          `json:"digest"`
	Question   json.RawMessage `json:"question"`
	DeadlineMS int64           `json:"deadline_ms"` // from now
}

// Update is a message of the run to its conversation before its reply: POST /v1/host/runs/{id}/updates.
type Update struct {
	Fence int64  `json:"fence"`
	ID    string `json:"id"` // made by the host
	Text  string `json:"text"`
}

// Attach adds a file: POST /v1/host/runs/{id}/files.
type Attach struct {
	Fence     int64  `json:"fence"`
	ID        string `json:"id"` // made by the host
	Name      string `json:"name"`
	MediaType string `json:"media_type"`
	Data      []byte `json:"data"` // at most 8 MiB
}

// Commands tell a host what to stop: GET /v1/host/commands?wait_ms=…, answered when there is something.
type Commands struct {
	Cancel []Cancelled `json:"cancel"`
}

// Cancelled is a run of the host that is to be stopped.
type Cancelled struct {
	Run    string `json:"run"`
	Fence  int64  `json:"fence"`
	Reason string `json:"reason"`
}
