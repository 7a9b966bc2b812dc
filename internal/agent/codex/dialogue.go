package codex

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"nightporter/internal/agent"
	"nightporter/internal/proc"
)

// dialogue reads the events of `codex exec --json`. It implements [agent.Dialogue].
type dialogue struct {
	prompt    string
	resume    string // session id that was asked for
	before    agent.Usage
	proveOnly bool
	rawName   func(string, json.RawMessage) (string, string, bool)
	off       map[string]bool // tools of Codex's own that were switched off
	reachable []string        // servers beside the gateway that were accepted
	proof     agent.Proof

	session  string
	message  string // the agent's last message
	finished bool   // the last thing of a turn was turn.completed
	failure  string // message of turn.failed
	failed   bool
	fatal    *agent.Error // ends the run whatever else comes
	turns    int
	totals   agent.Usage
	denials  []string
	skipped  int
	lines    int    // lines that were events
	odd      string // the first line that was not understood

	// A dropped line may have been the result. A lost message is made good by a later one; what
	// is not known stays lost.
	lostMessage, lostAny bool
	stopped              bool
}

func newDialogue(r agent.Request, proof agent.Proof, off map[string]bool) *dialogue {
	d := &dialogue{
		// Codex refuses a prompt that is no UTF-8.
		prompt: strings.ToValidUTF8(r.Prompt, "\uFFFD"), resume: r.Resume, proveOnly: r.ProveOnly, off: off, proof: proof,
	}
	if r.Resume != "" {
		d.before, d.totals = r.Before, r.Before
	}
	if r.Gateway != nil {
		d.rawName = r.Gateway.RawName
	}
	for _, name := range proof.Servers {
		if name != agent.GatewayName {
			d.reachable = append(d.reachable, name)
		}
	}
	return d
}

func emit(e agent.Event) []agent.Action { return []agent.Action{agent.Emit{Event: e}} }

// Start implements [agent.Dialogue]. The proof was complete before; Codex asks no model before it has read its
// standard input to the end.
func (d *dialogue) Start() []agent.Action {
	proof := d.proof
	actions := emit(agent.Event{Kind: agent.EventProven, Proof: &proof})
	if d.proveOnly {
		return append(actions, agent.Abort{})
	}
	return append(actions, agent.Write{Data: []byte(d.prompt)}, agent.CloseInput{})
}

// Tick implements [agent.Dialogue]: nothing is polled.
func (d *dialogue) Tick() []agent.Action { return nil }

// Stop implements [agent.Dialogue]: Codex cannot be asked to stop, SIGINT is the first rung of its ladder.
func (d *dialogue) Stop() []agent.Action {
	d.stopped = true
	return nil
}

// event is a line of `codex exec --json`.
type event struct {
	Type     string `json:"type"`
	ThreadID string `json:"thread_id"`
	Message  string `json:"message"`
	Item     *item  `json:"item"`
	Usage    *usage `json:"usage"`
	Error    *fault `json:"error"`
}

type fault struct {
	Message string `json:"message"`
}

type usage struct {
	Input  int64 `json:"input_tokens"`
	Output int64 `json:"output_tokens"`
}

type item struct {
	Type    string `json:"type"`
	Text    string `json:"text"`
	Server  string `json:"server"`
	Tool    string `json:"tool"`
	Status  string `json:"status"`
	Command string `json:"command"`
	Query   string `json:"query"`
	Message string `json:"message"`
	Error   *fault `json:"error"`

	Arguments json.RawMessage `json:"arguments"`
}

// Line implements [agent.Dialogue].
func (d *dialogue) Line(line []byte) []agent.Action {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return nil
	}
	var e event
	if line[0] != '{' || json.Unmarshal(line, &e) != nil {
		return d.skip(line)
	}
	actions, known := d.event(e)
	if !known {
		return d.skip(line)
	}
	d.lines++
	return actions
}

func (d *dialogue) skip(line []byte) []agent.Action {
	d.skipped++
	if d.odd == "" {
		d.odd = agent.Head(string(line[:min(len(line), 4<<10)]))
	}
	return nil
}

// event takes one event; known is false when it is none of those that are understood.
func (d *dialogue) event(e event) (actions []agent.Action, known bool) {
	switch e.Type {
	case "thread.started":
		return d.started(e.ThreadID), e.ThreadID != ""
	case "turn.started":
		d.turns++
		d.finished, d.failed = false, false
		return nil, true
	case "item.started", "item.updated", "item.completed":
		if e.Item == nil {
			return nil, false
		}
		return d.item(*e.Item, e.Type == "item.completed")
	case "error":
		return d.retried(e.Message), true
	case "turn.completed":
		d.finished, d.failed = true, false
		return d.counted(e.Usage), true
	case "turn.failed":
		d.finished, d.failed = false, true
		if d.failure = "no reason was given"; e.Error != nil && e.Error.Message != "" {
			d.failure = e.Error.Message
		}
		return nil, true
	}
	return nil, false
}

// started takes the session's id. Codex silently starts a new session for an id that it takes for an unknown name
// (facts/codex.md H); the id that comes back is therefore compared.
func (d *dialogue) started(id string) []agent.Action {
	if id == "" || d.fatal != nil {
		return nil
	}
	if d.resume != "" && !strings.EqualFold(id, d.resume) {
		return d.abort(agent.CodeSessionMismatch, fmt.Sprintf("session %s was to be continued, and Codex opened %s", d.resume, agent.Head(id)))
	}
	if id == d.session {
		return nil
	}
	d.session = id
	return emit(agent.Event{Kind: agent.EventSession, SessionID: id})
}

// abort ends the run now, for a reason that nothing later changes. A boundary that broke is no proven one, and nothing
// is waited for.
func (d *dialogue) abort(code, message string) []agent.Action {
	if d.fatal == nil {
		d.fatal = &agent.Error{Code: code, Message: message}
	}
	broken := code == agent.CodeBroken
	if broken {
		d.proof.Proven = false
	}
	return []agent.Action{agent.Abort{Now: broken}}
}

// retried takes an `error` event: no end of a run, but a request to the model that failed. Credentials that were
// refused once are refused again: Codex would try for nine seconds (facts/codex.md section 1).
func (d *dialogue) retried(message string) []agent.Action {
	actions := emit(agent.Event{Kind: agent.EventRetry, Activity: agent.Activity(message)})
	if strings.HasPrefix(message, "Reconnecting") && statusIn(message) == "401" {
		return append(actions, d.abort(agent.CodeAuth, agent.Head(message))...)
	}
	return actions
}

// counted takes the usage of a turn's end, which is that of the whole session.
func (d *dialogue) counted(u *usage) []agent.Action {
	if u == nil || u.Input < 0 || u.Output < 0 {
		return nil
	}
	d.totals.InputTokens, d.totals.OutputTokens = u.Input, u.Output
	own := d.usage()
	return emit(agent.Event{Kind: agent.EventUsage, Usage: &own})
}

// usage is what the run has used: the session's, less what it had used before.
func (d *dialogue) usage() agent.Usage {
	return agent.Usage{
		InputTokens:  max(0, d.totals.InputTokens-d.before.InputTokens),
		OutputTokens: max(0, d.totals.OutputTokens-d.before.OutputTokens),
	}
}

// item takes something that the agent did.
func (d *dialogue) item(i item, completed bool) (actions []agent.Action, known bool) {
	switch i.Type {
	case "agent_message":
		if !completed {
			return nil, true
		}
		d.message, d.lostMessage = i.Text, false
		if strings.TrimSpace(i.Text) == "" {
			return nil, true
		}
		return emit(agent.Event{Kind: agent.EventText, Text: i.Text, Activity: agent.Activity(i.Text)}), true
	case "mcp_tool_call":
		return d.call(i, completed), true
	case "command_execution":
		return d.own(shellTool, i.Status, completed), true
	case "file_change":
		return d.own(patchTool, i.Status, completed), true
	case "web_search":
		return d.own("web_search", i.Status, completed), true
	case "collab_tool_call":
		if i.Tool == "" {
			i.Tool = "spawn_agent"
		}
		return d.own(agent.Activity(i.Tool), i.Status, completed), true
	case "reasoning", "todo_list", "error":
		return nil, true
	}
	return nil, false
}

// The names under which the agent's own tools are reported. Codex has several for each, depending on the model.
const (
	shellTool = "exec_command"
	patchTool = "apply_patch"
)

// refusals are the messages of an MCP call that Codex refused, in every version's words; anything else is a
// tool that failed. The first two are 0.144.1's, the others 0.171.0's (facts/codex.md D, and the programs' strings).
var refusals = []string{
	"user cancelled MCP tool call",
	"user rejected MCP tool call",
	"MCP tool call requires approval, but approval policy is never",
	"MCP tool call cancelled before approval",
	"MCP tool call cancelled: interactive approval is unavailable in exec mode",
	"MCP tool call blocked by app configuration",
}

// call takes a call of an MCP tool.
func (d *dialogue) call(i item, completed bool) []agent.Action {
	name := d.toolName(i.Server, i.Tool, i.Arguments)
	switch {
	case !completed:
		return used(name)
	case i.Status == "completed" && i.Error == nil && !d.planned(i.Server):
		return d.abort(agent.CodeBroken, fmt.Sprintf("Codex called %s, of a server that the run was to have no part of", name))
	case i.Error != nil && slices.Contains(refusals, strings.TrimSpace(i.Error.Message)):
		return d.denied(name)
	}
	return nil
}

func used(name string) []agent.Action {
	return emit(agent.Event{Kind: agent.EventTool, Tool: name, Activity: agent.Activity("using " + name)})
}

// resourceServer is the name that Codex gives to its own tools for MCP resources in events.
const resourceServer = "codex"

func (d *dialogue) planned(server string) bool {
	return server == agent.GatewayName && d.rawName != nil || server == resourceServer || slices.Contains(d.reachable, server)
}

// toolName is mcp__server__tool of the real server. Events carry a tool's name as its server listed it.
func (d *dialogue) toolName(server, tool string, arguments json.RawMessage) string {
	if server == agent.GatewayName && d.rawName != nil {
		if s, t, ok := d.rawName(tool, arguments); ok {
			server, tool = s, t
		}
	}
	return agent.Activity("mcp__" + server + "__" + tool)
}

// own takes a use of one of the agent's own tools.
func (d *dialogue) own(name, status string, completed bool) []agent.Action {
	switch {
	case status == "declined":
		return d.denied(name)
	case !completed:
		return used(name)
	}
	return nil
}

// denied records a refusal, once.
func (d *dialogue) denied(name string) []agent.Action {
	if slices.Contains(d.denials, name) {
		return nil
	}
	d.denials = append(d.denials, name)
	return emit(agent.Event{Kind: agent.EventDenied, Tool: name})
}

// Dropped implements [agent.Dialogue]. Lines over the cap are results of tools as a rule: the event tells its
// type before its contents.
func (d *dialogue) Dropped(head []byte) []agent.Action {
	switch kind, of := opening(head); {
	case kind == "item.completed" && of == "agent_message":
		d.lostMessage = true
	case strings.HasPrefix(kind, "item.") && of != "":
	default:
		d.lostAny = true
	}
	return nil
}

// opening reads the type of an event, and of its item, from its beginning; what it does not hold is empty.
func opening(head []byte) (kind, of string) {
	dec := json.NewDecoder(bytes.NewReader(head))
	var path []string // keys that lead to where dec stands; one for each open object
	key := false
	for {
		token, err := dec.Token()
		if err != nil {
			return kind, of
		}
		switch t := token.(type) {
		case json.Delim:
			switch t {
			case '{':
				path, key = append(path, ""), true
				continue
			case '}':
				path = path[:len(path)-1]
			default:
				return kind, of // no array stands before the types
			}
		case string:
			if key {
				path[len(path)-1], key = t, false
				continue
			}
			switch strings.Join(path, ".") {
			case "type":
				kind = t
			case "item.type":
				of = t
			}
		}
		if len(path) == 0 {
			return kind, of
		}
		key = true
	}
}

// End implements [agent.Dialogue].
func (d *dialogue) End(exit proc.Exit, stderr []byte) agent.Result {
	stderr = colours.ReplaceAll(stderr, nil) // with --color always
	d.refused(stderr)
	r := agent.Result{
		SessionID: d.session, Salvage: agent.Tail(d.message), Denials: d.denials,
		Usage: d.usage(), Totals: d.totals, Turns: d.turns, Proof: d.proof, Skipped: d.skipped,
	}
	switch reply := strings.TrimSpace(d.message); {
	case d.fatal != nil:
		r.Err = d.fatal
	case d.failed:
		r.Err = classify(d.failure)
	case (d.lostAny || d.lostMessage && d.finished):
		r.Err = &agent.Error{Code: agent.CodeResultTooLong, Message: "a line that may have been the result was too long to be read"}
	case !d.finished:
		d.withoutResult(&r, exit, stderr)
	case reply == "":
		r.Err = &agent.Error{Code: agent.CodeEmptyReply, Message: "Codex ended its turn well and said nothing"}
	default:
		r.Reply = reply
	}
	if d.finished && (exit.Code != 0 || exit.Signal != "") {
		r.Notes = append(r.Notes, fmt.Sprintf("Codex completed its turn and then ended with %v", exit))
	}
	return r
}

// colours are the sequences that colour text on a terminal.
var colours = regexp.MustCompile("\x1b\\[[0-9;]*m")

// startFailure is how Codex tells that a run could not begin: on standard error, as the last line.
var (
	startFailure  = regexp.MustCompile(`(?m)^Error: (.*\S)\s*$`)
	requiredFails = regexp.MustCompile(`required MCP servers failed to initialize: (.*?)(?: \(code -?\d+\))?$`)
	inputTooLong  = regexp.MustCompile(`^turn/start: turn/start failed: (Input exceeds the maximum length of \d+ characters)`)
)

// withoutResult says why a run ended without turn.completed or turn.failed.
func (d *dialogue) withoutResult(r *agent.Result, exit proc.Exit, stderr []byte) {
	said := ""
	if all := startFailure.FindAllSubmatch(stderr, -1); len(all) > 0 {
		said = string(all[len(all)-1][1])
	}
	begun := d.session != "" || d.lines > 0 || d.skipped > 0
	dead := fmt.Sprintf("thread/resume: thread/resume failed: no rollout found for thread id %s (code -32600)", strings.ToLower(d.resume))
	required := requiredFails.FindStringSubmatch(said)
	switch {
	case d.stopped:
		r.Err = &agent.Error{Code: agent.CodeNoResult, Message: "Codex was stopped before it ended its turn"}
	case d.resume != "" && !begun && exit.Code == 1 && said == dead:
		r.ResumeRejected = true
		r.Err = &agent.Error{Code: agent.CodeResumeRejected, Message: "Codex does not know session " + d.resume}
	case required != nil && !begun:
		r.Err = &agent.Error{Code: agent.CodeBoundary, Message: "Codex could not reach the run's server: " + agent.Head(required[1])}
	case inputTooLong.MatchString(said):
		r.Err = &agent.Error{
			Code:    agent.CodePromptTooLong,
			Message: "Codex: " + inputTooLong.FindStringSubmatch(said)[1] + ": put what is long into a file of the working directory",
		}
	case said != "":
		r.Err = &agent.Error{Code: agent.CodeNoResult, Message: fmt.Sprintf("Codex ended without a result (%v): %s", exit, agent.Head(said))}
	case d.odd != "":
		r.Err = &agent.Error{Code: agent.CodeNoResult, Message: fmt.Sprintf("Codex ended without a result (%v); it printed: %s", exit, d.odd)}
	default:
		r.Err = &agent.Error{Code: agent.CodeNoResult, Message: fmt.Sprintf("Codex ended without a result (%v)%s", exit, complaint(stderr))}
	}
}

// causes finds the code of a failed turn by the words of its message, in this order.
var causes = []struct {
	code  string
	words *regexp.Regexp
}{
	{agent.CodeAuth, regexp.MustCompile(`^(unexpected status 40[13]\b|Missing environment variable: |Your access token could not be refreshed)`)},
	{agent.CodePromptTooLong, regexp.MustCompile(`ran out of room in the model's context window|^Input exceeds the maximum length|context_length_exceeded`)},
	{agent.CodeModelAPI, regexp.MustCompile(`^(unexpected status \d|exceeded retry limit|stream disconnected|We.re currently experiencing high demand|Selected model is at capacity|Quota exceeded|You've hit your usage limit|Connection failed|request timed out|timeout waiting for|error sending request|\{\s*"error")`)},
}

// classify makes an error of the message of turn.failed.
func classify(message string) *agent.Error {
	e := &agent.Error{Code: agent.CodeAgentError, Message: "Codex reported: " + agent.Head(message)}
	for _, c := range causes {
		if c.words.MatchString(message) {
			e.Code = c.code
			break
		}
	}
	if statusIn(message) == "401" {
		e.Code = agent.CodeAuth
	}
	return e
}

var statusWords = regexp.MustCompile(`(?:unexpected|last) status:? (\d{3})\b`)

// statusIn is the HTTP status that a message names, or empty.
func statusIn(message string) string {
	if m := statusWords.FindStringSubmatch(message); m != nil {
		return m[1]
	}
	return ""
}

// Codex tells only its standard error when it refuses a tool of its own; there is no event. The line
// stands for the tool in both versions.
var (
	routerError = regexp.MustCompile(`(?m)^\S+Z\s+ERROR codex_core::tools::router: error=(.*)$`)
	unsupported = regexp.MustCompile(`^unsupported (?:custom tool )?call: ([A-Za-z0-9_]+)\s*$`)
	refusedOwn  = []struct {
		tool  string
		words *regexp.Regexp
	}{
		{patchTool, regexp.MustCompile(`^patch rejected\b`)},
		{shellTool, regexp.MustCompile(`^approval policy is Never; reject command`)},
		{shellTool, regexp.MustCompile(`^exec_command failed\b.*\bRejected\(`)},
	}
)

// refused finds refusals of the agent's own tools in what it wrote to standard error.
func (d *dialogue) refused(stderr []byte) {
	for _, line := range routerError.FindAllSubmatch(stderr, -1) {
		what := string(line[1])
		if m := unsupported.FindStringSubmatch(what); m != nil && d.off[m[1]] {
			d.denied(m[1])
			continue
		}
		for _, own := range refusedOwn {
			if own.words.MatchString(what) {
				d.denied(own.tool)
				break
			}
		}
	}
}
