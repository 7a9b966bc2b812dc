package claude

import (
	"encoding/json"
	"fmt"
	"strings"

	"nightporter/internal/agent"
	"nightporter/internal/proc"
)

// result is a result event, or the one object of --output-format json (§1.2).
type result struct {
	Subtype   string          `json:"subtype"`
	IsError   json.RawMessage `json:"is_error"` // decides: true or false, or this is no result
	Text      string          `json:"result"`   // a banner where the run failed
	Errors    []string        `json:"errors"`   // of the error_* subtypes
	Turns     int             `json:"num_turns"`
	Reason    string          `json:"terminal_reason"`
	APIStatus int             `json:"api_error_status"`
	Command   string          `json:"local_command"` // a command of Claude Code's own that answered instead of the model

	Cost   float64           `json:"total_cost_usd"` // of the session, resumed history included
	Models map[string]tokens `json:"modelUsage"`     // likewise
	Own    map[string]tokens `json:"model_usage_since_last_result"`

	Denials []struct {
		Tool  string          `json:"tool_name"`
		Input json.RawMessage `json:"tool_input"`
	} `json:"permission_denials"`
}

func (r *result) failed() bool { return string(r.IsError) != "false" }

func (r *result) valid() bool { return string(r.IsError) == "true" || !r.failed() }

type tokens struct {
	Input      int64   `json:"inputTokens"`
	CacheRead  int64   `json:"cacheReadInputTokens"`
	CacheWrite int64   `json:"cacheCreationInputTokens"`
	Output     int64   `json:"outputTokens"`
	Cost       float64 `json:"costUSD"`
}

// sum adds up the models. Input is all that was read, from the cache or not.
func sum(models map[string]tokens) (u agent.Usage) {
	for _, m := range models {
		u.InputTokens += m.Input + m.CacheRead + m.CacheWrite
		u.OutputTokens += m.Output
		u.CostUSD += m.Cost
	}
	return u
}

// count returns the run's own usage, the session's totals and the number of turns.
//
// Claude Code counts over the session, so a run's own usage is the difference to the last known
// totals; what a run that was killed before its result cost is thereby counted with the next.
// Where there are no totals to compare with, or the session has lost some (SIGKILL: §1.6),
// what the results say of themselves counts. Without a result there are only the tokens
// of the messages that were seen.
func (d *dialogue) count() (run, totals agent.Usage, turns int) {
	totals = d.plan.before
	if len(d.results) == 0 {
		totals.InputTokens += d.streamed.InputTokens
		totals.OutputTokens += d.streamed.OutputTokens
		return d.streamed, totals, 0
	}
	for _, r := range d.results {
		own := sum(r.Own)
		run.InputTokens += own.InputTokens
		run.OutputTokens += own.OutputTokens
		run.CostUSD += own.CostUSD
		turns += r.Turns
	}
	last, before := d.results[len(d.results)-1], d.plan.before
	now := sum(last.Models)
	now.CostUSD = last.Cost
	if now == (agent.Usage{}) {
		return run, totals, turns // nothing was asked
	}
	if before != (agent.Usage{}) && now.InputTokens >= before.InputTokens && now.OutputTokens >= before.OutputTokens && now.CostUSD >= before.CostUSD {
		run = agent.Usage{
			InputTokens:  now.InputTokens - before.InputTokens,
			OutputTokens: now.OutputTokens - before.OutputTokens,
			CostUSD:      now.CostUSD - before.CostUSD,
		}
	}
	return run, now, turns
}

// noConversation is what Claude Code says of a session that it does not know, followed by the id (§2).
const noConversation = "No conversation found with session ID: "

// judge sets the reply or the error of a run.
func (d *dialogue) judge(v *agent.Result, exit proc.Exit, stderr string) {
	fail := func(code, format string, args ...any) {
		v.Err = &agent.Error{Code: code, Message: fmt.Sprintf(format, args...)}
	}
	var last *result
	if len(d.results) > 0 {
		last = &d.results[len(d.results)-1]
	}
	switch {
	case d.err != nil:
		v.Err = d.err
	case d.rejected(last, stderr):
		v.ResumeRejected, v.SessionID = true, ""
		fail(agent.CodeResumeRejected, "Claude Code does not know session %s", d.plan.session)
	case d.dropped:
		fail(agent.CodeResultTooLong, "a line that may have been the result was too long and was dropped")
	case d.garbled:
		fail(agent.CodeNoResult, "the result could not be read: %s", d.junk)
	case d.plan.proveOnly && d.proof.Proven:
		// The proof was all that was asked for.
	case !d.proof.Proven:
		d.judgeStart(fail, last, exit, stderr)
	case last == nil:
		fail(agent.CodeNoResult, "Claude Code ended without a result (%s)%s", exit, d.said(stderr))
	case last.failed():
		code, message := d.diagnose(last)
		fail(code, "%s", message)
	case last.Command != "":
		fail(agent.CodeAgentError, "Claude Code answered the prompt itself, as its command /%s, and the model was not asked", agent.Head(last.Command))
	default:
		v.Reply = d.reply()
		if v.Reply == "" {
			fail(agent.CodeEmptyReply, "Claude Code reported success and wrote no reply")
		}
	}
}

// reply is the text of the last result that has one. The last result decides whether the run
// succeeded; a later one may be the empty echo of a finished background task (§1.5).
func (d *dialogue) reply() string {
	for i := len(d.results) - 1; i >= 0; i-- {
		if r := d.results[i]; !r.failed() && strings.TrimSpace(r.Text) != "" {
			return r.Text
		}
	}
	return ""
}

// rejected reports whether the session to resume is unknown, in the exact form in which Claude Code says
// so before anything is asked: a result of no turns, or, with no output at all, a line on stderr.
// The same words in a model's text are neither.
func (d *dialogue) rejected(last *result, stderr string) bool {
	if !d.plan.resume || d.turned || d.phase == aborted {
		return false
	}
	want := noConversation + d.plan.session
	if last != nil {
		return last.failed() && last.Subtype == "error_during_execution" && last.Turns == 0 && len(last.Errors) == 1 && last.Errors[0] == want
	}
	if d.proof.Proven || d.session != "" {
		return false
	}
	for line := range strings.Lines(stderr) {
		if strings.TrimSpace(line) == want {
			return true
		}
	}
	return false
}

// startFailures are ways in which Claude Code refuses to start, by words of its message, each seen at 2.1.332.
var startFailures = []struct{ words, code, mend string }{
	{"cannot be used with root/sudo", agent.CodeRefused, "run as another user, or set IS_SANDBOX=1 in the environment if this machine is itself a sandbox"},
	{"bypassPermissions not supported in restricted mode", agent.CodeRefused, "remove --restricted, or the bypass"},
	{"enterprise MCP config", agent.CodeBoundary, "an administrator's managed-mcp.json forbids servers of one's own on this machine"},
	{"sandbox required but unavailable", agent.CodeBoundary, "install bubblewrap and socat, or allow no built-in tools, or only read-only ones"},
	{"Prompt is too long", agent.CodePromptTooLong, ""},
	{"is already in use", agent.CodeAgentError, "run again"},
}

// judgeStart is the verdict on a run that ended before its boundary was proven.
func (d *dialogue) judgeStart(fail func(code, format string, args ...any), last *result, exit proc.Exit, stderr string) {
	said := stderr
	if last != nil {
		said = strings.Join(append(last.Errors, last.Text, stderr), "\n")
	}
	for _, f := range startFailures {
		if strings.Contains(said, f.words) {
			message := "Claude Code did not start: " + d.quote(said)
			if f.mend != "" {
				message += "; " + f.mend
			}
			fail(f.code, "%s", message)
			return
		}
	}
	if last != nil {
		fail(agent.CodeBoundary, "Claude Code ended before it was asked what it reaches: %s", d.quote(said))
		return
	}
	fail(agent.CodeBoundary, "Claude Code ended (%s) before it was asked what it reaches%s", exit, d.said(stderr))
}

// said quotes the first thing that came, for a run without a result.
func (d *dialogue) said(stderr string) string {
	switch {
	case d.junk != "":
		return "; its output begins: " + d.junk
	case strings.TrimSpace(stderr) != "":
		return "; it wrote: " + d.quote(stderr)
	}
	return ""
}

// diagnose finds the code and the message of a result that is an error.
func (d *dialogue) diagnose(r *result) (code, message string) {
	message = agent.Head(strings.Join(r.Errors, "; "))
	if message == "" {
		message = agent.Head(r.Text)
	}
	switch {
	case r.Subtype == "error_max_turns":
		code = agent.CodeTurnLimit
	case r.Subtype == "error_max_budget_usd":
		code = agent.CodeBudget
	case strings.HasPrefix(r.Reason, "aborted_"):
		return agent.CodeAgentError, "Claude Code was interrupted"
	case r.APIStatus == 401, r.APIStatus == 403, d.banner == authenticationFailed:
		code = agent.CodeAuth
	case r.Text == "Prompt is too long":
		code, message = agent.CodePromptTooLong, "the prompt is longer than the model takes"
	case r.Reason == "api_error":
		code = agent.CodeModelAPI
	default:
		code = agent.CodeAgentError
	}
	if message == "" {
		message = "Claude Code reported an error of kind " + quote(r.Subtype)
	}
	return code, message
}
