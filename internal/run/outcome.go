package run

import (
	"slices"

	"nightporter/internal/agent"
)

// Status says how a run ended.
type Status string

const (
	StatusOK      Status = "ok"
	StatusFailed  Status = "failed"
	StatusRefused Status = "refused" // the boundary was not proven, or the command would defeat it; no model was asked
	StatusStopped Status = "stopped" // deadline, signal or budget
)

// Outcome is how a run ended, in the JSON of DESIGN.md: every field is always there, lists are
// never null.
type Outcome struct {
	Run          string           `json:"run"`
	Conversation string           `json:"conversation"` // empty when the run belongs to none
	Agent        string           `json:"agent"`
	AgentVersion string           `json:"agent_version"` // empty when unknown
	Status       Status           `json:"status"`
	Reply        *string          `json:"reply"`      // set only when Status is ok
	Error        *agent.Error     `json:"error"`      // nil only when Status is ok
	SessionID    string           `json:"session_id"` // what the next run of the conversation may resume; empty when there is none
	Resumed      bool             `json:"resumed"`    // the run continued a session
	Salvage      *string          `json:"salvage"`    // the tail of what was last written, when there is no reply
	Denials      []string         `json:"denials"`
	Usage        agent.Usage      `json:"usage"` // of this run
	Turns        int              `json:"turns"`
	DurationMS   int64            `json:"duration_ms"`
	Boundary     Evidence         `json:"boundary"`
	ToolCalls    []agent.ToolCall `json:"tool_calls"` // as the gateway saw them

	// Proof is all that is known of the boundary, for `prove`. It is no part of the outcome's JSON.
	Proof agent.Proof `json:"-"`
}

// Evidence is the part of a proof that an outcome carries.
type Evidence struct {
	Proven   bool     `json:"proven"`
	How      string   `json:"how"`
	Servers  []string `json:"servers"`
	Disabled []string `json:"disabled"`
	Failed   []string `json:"failed"`
	Notes    []string `json:"notes"` // of the proof, and what else a person should know of the run
}

// The exit codes of commands (DESIGN.md, "Exit codes").
const (
	ExitOK      = 0 // done
	ExitFailed  = 1 // the run or call failed
	ExitUsage   = 2 // wrong usage or configuration; no outcome has it
	ExitRefused = 3 // the boundary could not be proven; nothing was asked of a model
	ExitStopped = 4 // stopped before the end
	ExitMissing = 5 // the agent's program is missing or too old
)

// ExitCode is the exit status of a command that ends with this outcome.
func (o Outcome) ExitCode() int {
	switch {
	case o.Status == StatusOK:
		return ExitOK
	case o.Status == StatusRefused:
		return ExitRefused
	case o.Status == StatusStopped:
		return ExitStopped
	case o.Error != nil && o.Error.Code == agent.CodeMissing:
		return ExitMissing
	}
	return ExitFailed
}

// statusOf is the status that goes with an error's code.
func statusOf(err *agent.Error) Status {
	if err == nil {
		return StatusOK
	}
	switch err.Code {
	case agent.CodeBoundary, agent.CodeRefused:
		return StatusRefused
	case agent.CodeTimeout, agent.CodeIdle, agent.CodeSignal, agent.CodeBudget:
		return StatusStopped
	}
	return StatusFailed
}

// list is in as a list that is never null, without repeats, in order, masked.
func list(mask func(string) string, ins ...[]string) []string {
	out := []string{}
	for _, in := range ins {
		for _, text := range in {
			if text = mask(text); !slices.Contains(out, text) {
				out = append(out, text)
			}
		}
	}
	return out
}

// optional is text, or nil when it is empty.
func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}
