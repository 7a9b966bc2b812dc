package acp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"nightporter/internal/agent"
	"nightporter/internal/proc"
	"nightporter/internal/secret"
)

const (
	// startTicks bounds everything before the prompt, in ticks of about 200 ms: two minutes. Agents connect to their
	// servers in it.
	startTicks = 600
	// quietTicks is how long nothing may have come after session/load before the prompt is sent. The history belongs before
	// its answer; Gemini CLI sends it after (seen in its source), and it must not be taken for the reply.
	quietTicks = 3
	// exitTicks is how long the agent may take to end after its input was closed: 30 s. The verdict is by then known.
	exitTicks = 150

	// maxReply is how many bytes of text are taken as a reply, as of any command's.
	maxReply = 1 << 20
	// openingBytes is how much of a message is there when its beginning is shown a second time, after its first words.
	openingBytes = 128
	// maxCalls bounds the tool calls whose names are kept: those that have not ended. One more has no name, and is refused.
	maxCalls = 4096
	// maxListed bounds the lists of an outcome: denials and notes.
	maxListed = 1000
	// maxSessionID is more than any id that was seen: they are UUIDs, or short words.
	maxSessionID = 512
)

// Methods of the protocol (schema v1).
const (
	methodInitialize   = "initialize"
	methodAuthenticate = "authenticate"
	methodNew          = "session/new"
	methodLoad         = "session/load"
	methodResume       = "session/resume"
	methodMode         = "session/set_mode"
	methodPrompt       = "session/prompt"
	methodCancel       = "session/cancel"
	methodUpdate       = "session/update"
	methodPermission   = "session/request_permission"
)

// askingModes are ids of modes in which known agents ask before they act, the first that an agent has is taken: of claude-agent-acp
// (which starts in "auto", where a model decides) and Gemini CLI, of Goose, and of codex-acp.
var askingModes = []string{"default", "approve", "ask", "manual", "read-only"}

// quietModes are modes beside those to which an agent may turn by itself: it then acts less.
var quietModes = []string{"plan", "chat", "architect"}

// dialogue is the [agent.Dialogue] of one run.
type dialogue struct {
	request agent.Request
	env     []string
	proof   agent.Proof
	policy  policy

	awaiting string // the method whose answer is awaited; one at a time
	id       int    // of that request
	ticks    int    // since the start, until the prompt; since the input was closed, after it
	quiet    int    // ticks since the last line
	loaded   bool   // the history was asked for
	asked    bool   // the prompt was sent
	closed   bool   // the input was closed: nothing more is awaited
	stopped  bool
	authed   bool

	agent     initialized
	session   string
	resumable bool   // a session of this agent can be continued
	mode      string // the one that is on, as far as the agent says
	wanted    string // the mode in which it asks; empty: none is known

	err      *agent.Error
	rejected bool
	turn     *turned

	calls   map[string]*call // those that have not ended, by their ids
	message writing
	ids     bool   // messages of this turn have ids
	reply   []byte // the last message that is complete; nil once a tool was called after it
	long    bool   // there was more of it
	last    string // its tail, also then
	lost    bool   // a line that may have been part of the message was dropped
	denials []string
	denied  map[string]bool
	cost    float64 // of the session, in USD
	skipped int
	junk    string // the first output that was not understood
	notes   []string
}

// call is a tool call that has not ended.
type call struct {
	name  string // of the tool; empty where the agent tells none
	title string // for people; what it says may be the model's choice
	told  bool
}

// writing is the message that the agent is writing.
type writing struct {
	id    string // as the agent numbers messages; empty: it does not
	text  []byte
	long  bool // more than maxReply: text is its end
	shown int  // how often its opening was shown
}

var _ agent.Dialogue = (*dialogue)(nil)

func newDialogue(r agent.Request, env []string, proof agent.Proof) *dialogue {
	return &dialogue{request: r, env: env, proof: proof, policy: newPolicy(r), calls: make(map[string]*call), denied: make(map[string]bool)}
}

// Start implements [agent.Dialogue].
func (d *dialogue) Start() []agent.Action {
	return d.ask(methodInitialize, object{
		"protocolVersion": protocolVersion,
		// Nothing of ours: an agent that asks to read or write a file or to run a command is answered with an error.
		"clientCapabilities": object{"fs": object{"readTextFile": false, "writeTextFile": false}, "terminal": false},
		"clientInfo":         object{"name": "nightporter", "version": "1"},
	})
}

// ask sends a request.
func (d *dialogue) ask(method string, params object) []agent.Action {
	d.id++
	d.awaiting = method
	return []agent.Action{write(object{"id": d.id, "method": method, "params": params})}
}

// Tick implements [agent.Dialogue].
func (d *dialogue) Tick() []agent.Action {
	d.ticks++
	d.quiet++
	switch {
	case d.closed && d.ticks == exitTicks:
		d.note("the agent did not end by itself and was stopped")
		return []agent.Action{agent.Abort{}}
	case d.closed || d.asked:
	case d.ticks > startTicks:
		return d.abort(agent.CodeAgentError, "the agent did not answer %s in time", d.awaiting)
	case d.loaded && d.awaiting == "" && d.quiet > quietTicks:
		d.loaded = false
		return d.choose()
	}
	return nil
}

// Stop implements [agent.Dialogue]. The turn is cancelled: the agent then saves what it has and reports.
func (d *dialogue) Stop() []agent.Action {
	d.stopped = true
	if d.asked && !d.closed {
		return []agent.Action{write(object{"method": methodCancel, "params": object{"sessionId": d.session}})}
	}
	return d.finish()
}

// finish closes the input, upon which the agent ends.
func (d *dialogue) finish() []agent.Action {
	if d.closed {
		return nil
	}
	d.closed, d.ticks, d.awaiting = true, 0, ""
	return []agent.Action{agent.CloseInput{}}
}

// abort ends the run with an error. The agent is not asked anything more.
func (d *dialogue) abort(code, format string, args ...any) []agent.Action {
	if d.closed {
		return nil
	}
	d.err = &agent.Error{Code: code, Message: fmt.Sprintf(format, args...)}
	return d.finish()
}

// Line implements [agent.Dialogue].
func (d *dialogue) Line(line []byte) []agent.Action {
	d.quiet = 0
	if len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	var m message
	if !decode(line, &m) || m.Method == "" && len(m.ID) == 0 {
		d.skip(line)
		return nil
	}
	switch {
	case m.Method != "" && hasID(m.ID):
		return d.answer(m)
	case m.Method == methodUpdate:
		return d.update(m.Params)
	case m.Method != "":
		return nil // notifications of extensions, such as _auth/status_update
	case d.awaiting == "" || string(m.ID) != strconv.Itoa(d.id):
		d.skip(line)
		return nil
	}
	return d.response(d.awaiting, m)
}

func hasID(id json.RawMessage) bool { return len(id) > 0 && !bytes.Equal(id, []byte("null")) }

// Dropped implements [agent.Dialogue]. A line that may have been an answer or a question is not waited for.
func (d *dialogue) Dropped(head []byte) []agent.Action {
	d.quiet = 0
	d.skipped++
	method, kind := kindOfHead(head)
	switch {
	case d.closed:
	case method != methodUpdate:
		return d.abort(agent.CodeResultTooLong, "a line that may have been the result was too long and was dropped")
	case d.asked:
		d.note("an update of the agent was too long and was dropped")
		// While a tool is at work it is what the tool answered; and after the next call another message begins.
		d.lost = d.lost || kind == "agent_message_chunk" || kind == "" && len(d.calls) == 0
	}
	return nil
}

func (d *dialogue) skip(line []byte) {
	d.skipped++
	if d.junk == "" {
		d.junk = d.quote(string(line[:min(len(line), 4096)]))
	}
}

// quote is the head of a text that the agent wrote, without the run's token.
func (d *dialogue) quote(text string) string {
	if g := d.request.Gateway; g != nil {
		var m secret.Masker
		m.Add(g.Token)
		text = m.Text(text)
	}
	return agent.Head(text)
}

func (d *dialogue) note(text string) {
	if !slices.Contains(d.notes, text) && len(d.notes) < maxListed {
		d.notes = append(d.notes, text)
	}
}

// response takes the answer to our request.
func (d *dialogue) response(method string, m message) []agent.Action {
	d.awaiting = ""
	if m.Error != nil {
		return d.failed(method, m.Error)
	}
	switch method {
	case methodInitialize:
		if json.Unmarshal(m.Result, &d.agent) != nil {
			return d.abort(agent.CodeAgentError, "the agent's answer to initialize cannot be read")
		}
		return d.open()
	case methodAuthenticate:
		return d.open()
	case methodNew, methodLoad, methodResume:
		return d.opened(method, m.Result)
	case methodMode:
		d.mode = d.wanted
		return d.prompt()
	}
	var t turned
	if !decode(m.Result, &t) || t.StopReason == "" {
		return d.abort(agent.CodeNoResult, "the agent's answer to session/prompt has no stop reason")
	}
	d.turn = &t
	actions := d.flush()
	usage, _ := d.count()
	actions = append(actions, agent.Emit{Event: agent.Event{Kind: agent.EventUsage, Usage: &usage}})
	return append(actions, d.finish()...)
}

// failed takes an error in answer to our request.
func (d *dialogue) failed(method string, f *fault) []agent.Action {
	said := d.quote(f.Message + " " + string(f.Data))
	opening := method == methodNew || method == methodLoad || method == methodResume
	switch {
	case method == methodInitialize:
		return d.abort(agent.CodeAgentError, "the agent refused to initialize: %s", said)
	case f.auth() && opening && !d.authed:
		return d.authenticate(said)
	case f.auth() || method == methodAuthenticate:
		return d.abort(agent.CodeAuth, "the agent has no access to its model: %s%s", said, d.logins())
	case opening && d.request.Resume != "" && (f.Code == codeNotFound || strings.Contains(f.Message+string(f.Data), d.request.Resume)):
		d.rejected = true
		return d.abort(agent.CodeResumeRejected, "the agent does not know session %s: %s", d.quote(d.request.Resume), said)
	}
	return d.abort(agent.CodeAgentError, "the agent answered %s with an error: %s", method, said)
}

// authenticate uses the one method that needs nobody, if there is one.
func (d *dialogue) authenticate(said string) []agent.Action {
	d.authed = true
	for _, m := range d.agent.AuthMethods {
		if m.ready(d.env) {
			return d.ask(methodAuthenticate, object{"methodId": m.ID})
		}
	}
	return d.abort(agent.CodeAuth, "the agent has no access to its model: %s%s", said, d.logins())
}

// logins names the agent's ways to log in.
func (d *dialogue) logins() string {
	var ids []string
	for _, m := range d.agent.AuthMethods[:min(len(d.agent.AuthMethods), 8)] {
		ids = append(ids, d.quote(m.ID))
	}
	if len(ids) == 0 {
		return "; log in with the agent's own command, or set its key"
	}
	return "; log in with the agent's own command, or set its key (it knows " + strings.Join(ids, ", ") + ")"
}

// open opens the session, or what was one.
func (d *dialogue) open() []agent.Action {
	servers := []object{}
	if g := d.request.Gateway; g != nil {
		if !d.agent.Capabilities.MCP.HTTP {
			return d.abort(agent.CodeBoundary, "the agent takes no MCP servers over HTTP (mcpCapabilities.http), and the run's gateway is one; run it without servers")
		}
		headers := []object{}
		if !g.Token.Empty() {
			headers = append(headers, object{"name": "Authorization", "value": "Bearer " + g.Token.Reveal()})
		}
		servers = append(servers, object{"type": "http", "name": agent.GatewayName, "url": g.URL, "headers": headers})
	}
	params := object{"cwd": d.request.Workdir, "mcpServers": servers}
	if v := d.agent.Version; v != protocolVersion {
		return d.abort(agent.CodeAgentError, "the agent speaks version %d of the Agent Client Protocol, and version %d is understood", v, protocolVersion)
	}
	how := d.agent.resume()
	d.resumable = how != ""
	switch {
	case d.request.Resume == "":
		return d.ask(methodNew, params)
	case how == "":
		d.rejected = true
		return d.abort(agent.CodeResumeRejected, "the agent cannot continue a session (neither session/resume nor session/load)")
	}
	d.loaded = how == methodLoad
	params["sessionId"] = d.request.Resume
	return d.ask(how, params)
}

// opened takes the session.
func (d *dialogue) opened(method string, result json.RawMessage) []agent.Action {
	var o opened
	if !decode(result, &o) {
		return d.abort(agent.CodeAgentError, "the agent's answer to %s cannot be read", method)
	}
	if method != methodNew {
		if o.SessionID != "" && o.SessionID != d.request.Resume {
			return d.abort(agent.CodeSessionMismatch, "session %s was asked for, and the agent answered with %s", d.quote(d.request.Resume), d.quote(o.SessionID))
		}
		o.SessionID = d.request.Resume
	}
	if o.SessionID == "" || len(o.SessionID) > maxSessionID {
		return d.abort(agent.CodeAgentError, "the agent opened a session without an id, or with one of more than %d bytes", maxSessionID)
	}
	d.session = o.SessionID
	if o.Modes != nil {
		d.mode, d.wanted = o.Modes.Current, o.Modes.asking()
	}
	if d.wanted == "" && d.request.Mode != agent.Bypass {
		d.note("the agent has no mode that is known to ask before it acts: what it does without asking is its own affair")
	}
	var actions []agent.Action
	if d.resumable {
		actions = append(actions, agent.Emit{Event: agent.Event{Kind: agent.EventSession, SessionID: d.session}})
	}
	if d.loaded {
		return actions // until it is quiet
	}
	return append(actions, d.choose()...)
}

// choose sets the mode in which the agent asks, in bypass too: it then asks, and is let.
func (d *dialogue) choose() []agent.Action {
	if d.wanted == d.mode || d.wanted == "" {
		return d.prompt()
	}
	return d.ask(methodMode, object{"sessionId": d.session, "modeId": d.wanted})
}

// prompt sends the prompt.
func (d *dialogue) prompt() []agent.Action {
	d.asked = true
	return d.ask(methodPrompt, object{
		"sessionId": d.session,
		"prompt":    []object{{"type": "text", "text": guarded(d.request.Prompt)}},
	})
}

// commandMarks begin what agents take for a command of their own: /cost ran in claude-agent-acp, and the model was not asked (measured).
const commandMarks = "/!#$@"

// guarded is a prompt that no agent takes for a command: a first line stands before one that begins as commands do.
func guarded(prompt string) string {
	if first := strings.TrimSpace(prompt); first != "" && strings.ContainsRune(commandMarks, rune(first[0])) {
		return "The message is:\n\n" + prompt
	}
	return prompt
}

// update takes what the agent tells while it works. What comes before the prompt is history, and what
// comes of other sessions is a subagent's.
func (d *dialogue) update(params json.RawMessage) []agent.Action {
	var p struct {
		SessionID string `json:"sessionId"`
		Update    update `json:"update"`
	}
	if !decode(params, &p) {
		d.skip(params)
		return nil
	}
	u := &p.Update
	if p.SessionID != d.session || !d.asked || d.closed {
		return nil
	}
	switch u.Kind {
	case "agent_message_chunk":
		return d.chunk(u)
	case "user_message_chunk":
		return d.flush()
	case "tool_call", "tool_call_update":
		return d.tool(&u.toolCall, u.Kind == "tool_call")
	case "current_mode_update":
		return d.turnedTo(u.ModeID)
	case "usage_update":
		if u.Cost == nil || u.Cost.Currency != "USD" {
			return nil
		}
		d.cost = u.Cost.Amount
		usage, _ := d.count()
		return []agent.Action{agent.Emit{Event: agent.Event{Kind: agent.EventUsage, Usage: &usage}}}
	}
	return nil // thoughts, plans, lists of commands and options
}

// turnedTo takes another mode of the agent's. One that may not ask ends the run.
func (d *dialogue) turnedTo(mode string) []agent.Action {
	d.mode = mode
	if d.wanted == "" || d.request.Mode == agent.Bypass || slices.Contains(askingModes, mode) || slices.Contains(quietModes, mode) {
		return nil
	}
	d.abort(agent.CodeBroken, "the agent turned to its mode %s, in which it may act without asking", d.quote(mode))
	return []agent.Action{agent.Abort{Now: true}}
}

// chunk takes a piece of a message.
func (d *dialogue) chunk(u *update) (actions []agent.Action) {
	text := u.text()
	switch {
	case text == "":
		return nil
	case u.MessageID == "" && d.ids:
		// A notice of claude-agent-acp's own among the model's messages (measured).
		d.note("the agent noted: " + d.quote(text))
		return nil
	case u.MessageID != d.message.id:
		actions = d.flush()
	}
	d.ids = u.MessageID != ""
	m := &d.message
	m.id = u.MessageID
	if m.text = append(m.text, text...); len(m.text) > maxReply {
		m.text, m.long = append([]byte(nil), m.text[len(m.text)-maxReply/2:]...), true
	}
	if m.shown == 0 || m.shown == 1 && len(m.text) >= openingBytes {
		if activity := agent.Activity(string(m.text[:min(len(m.text), 4*openingBytes)])); activity != "" {
			m.shown++
			actions = append(actions, agent.Emit{Event: agent.Event{Kind: agent.EventActivity, Activity: activity}})
		}
	}
	return actions
}

// flush ends the message that is being written.
func (d *dialogue) flush() []agent.Action {
	m := d.message
	d.message = writing{}
	text := strings.TrimSpace(strings.ToValidUTF8(string(m.text), "\uFFFD"))
	if text == "" {
		return nil
	}
	d.reply, d.long, d.last = []byte(text), m.long, agent.Tail(text)
	return []agent.Action{agent.Emit{Event: agent.Event{Kind: agent.EventText, Text: text}}}
}

// tool takes a tool call, or what is new of one.
func (d *dialogue) tool(t *toolCall, begins bool) (actions []agent.Action) {
	c := d.calls[t.ID]
	if c == nil {
		if !begins || len(d.calls) >= maxCalls {
			return nil
		}
		actions = d.flush()
		d.reply, d.long, d.lost = nil, false, false
		c = &call{}
		d.calls[t.ID] = c
	} else {
		begins = false
	}
	if t.Name != "" {
		c.name = t.Name
	}
	if c.title == "" {
		c.title = agent.Activity(t.Title)
	}
	// A tool of the gateway is told when its arguments are there, which claude-agent-acp sends second.
	if _, ours := d.policy.exposed[c.name]; !c.told && !(ours && begins && noInput(t.Input)) {
		c.told = true
		name := d.policy.real(c, t.Input)
		actions = append(
			actions,
			agent.Emit{Event: agent.Event{Kind: agent.EventTool, Tool: name}},
			agent.Emit{Event: agent.Event{Kind: agent.EventActivity, Activity: agent.Activity("using " + name)}},
		)
	}
	if t.State == "completed" || t.State == "failed" {
		delete(d.calls, t.ID)
	}
	return actions
}

func noInput(input json.RawMessage) bool { return len(input) == 0 || string(input) == "{}" }

// answer takes a request of the agent's.
func (d *dialogue) answer(m message) []agent.Action {
	if d.closed {
		return nil
	}
	if m.Method != methodPermission {
		var actions []agent.Action
		if strings.HasPrefix(m.Method, "fs/") || strings.HasPrefix(m.Method, "terminal/") {
			actions = d.deny(m.Method)
		}
		return append(actions, write(object{"id": m.ID, "error": object{"code": codeMethodNotFound, "message": "not offered by this client"}}))
	}
	var p struct {
		Call    toolCall `json:"toolCall"`
		Options []option `json:"options"`
	}
	decode(m.Params, &p)
	actions := d.tool(&p.Call, true) // Gemini CLI tells of a call by asking for it
	c := d.calls[p.Call.ID]
	if c == nil {
		c = &call{name: p.Call.Name, title: agent.Activity(p.Call.Title)}
	}
	outcome := object{"outcome": "cancelled"}
	if d.stopped {
		return append(actions, write(object{"id": m.ID, "result": object{"outcome": outcome}}))
	}
	want := "reject_once"
	if d.policy.allows(c, p.Call.Kind) && slices.ContainsFunc(p.Options, func(o option) bool { return o.Kind == "allow_once" }) {
		want = "allow_once"
	} else {
		actions = append(actions, d.deny(d.policy.real(c, p.Call.Input))...)
	}
	for _, o := range p.Options {
		if o.Kind == want {
			outcome = object{"outcome": "selected", "optionId": o.ID}
			break
		}
	}
	return append(actions, write(object{"id": m.ID, "result": object{"outcome": outcome}}))
}

// option is one of the answers that the agent offers.
type option struct {
	ID   string `json:"optionId"`
	Kind string `json:"kind"`
}

// deny records that a tool was refused.
func (d *dialogue) deny(name string) []agent.Action {
	if d.denied[name] || len(d.denials) >= maxListed {
		return nil
	}
	d.denied[name] = true
	d.denials = append(d.denials, name)
	return []agent.Action{agent.Emit{Event: agent.Event{Kind: agent.EventDenied, Tool: name}}}
}

// count is the run's own usage and the session's totals. Cost is told of the session, tokens of the turn.
func (d *dialogue) count() (run, totals agent.Usage) {
	totals = d.request.Before
	if d.turn != nil && d.turn.Usage != nil {
		u := d.turn.Usage
		run.InputTokens, run.OutputTokens = u.Input+u.CachedRead+u.CachedWrite, u.Output
		totals.InputTokens += run.InputTokens
		totals.OutputTokens += run.OutputTokens
	}
	if d.cost > 0 {
		run.CostUSD = d.cost
		if d.cost >= totals.CostUSD {
			run.CostUSD -= totals.CostUSD
		}
		totals.CostUSD = d.cost
	}
	return run, totals
}

// stops says what the stop reasons are that are no good end.
var stops = map[string]struct{ code, message string }{
	"max_tokens":        {agent.CodeTurnLimit, "the model reached its limit of tokens"},
	"max_turn_requests": {agent.CodeTurnLimit, "the agent reached its limit of requests to the model"},
	"refusal":           {agent.CodeAgentError, "the agent refused to go on with the prompt"},
	"cancelled":         {agent.CodeAgentError, "the agent cancelled its turn"},
}

// End implements [agent.Dialogue].
func (d *dialogue) End(exit proc.Exit, stderr []byte) agent.Result {
	d.closed = true
	r := agent.Result{Salvage: d.last, Denials: d.denials, Proof: d.proof, Skipped: d.skipped, Notes: d.notes}
	if unfinished := agent.Tail(string(d.message.text)); unfinished != "" {
		r.Salvage = unfinished
	}
	if d.asked {
		r.Turns = 1
	}
	if d.resumable {
		r.SessionID = d.session
	}
	r.Usage, r.Totals = d.count()
	fail := func(code, format string, args ...any) {
		r.Err = &agent.Error{Code: code, Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case d.err != nil:
		r.Err, r.ResumeRejected = d.err, d.rejected
		if d.err.Code == agent.CodeAuth {
			r.Salvage = "" // the agent's own banner
		}
	case d.turn == nil && !d.asked:
		fail(agent.CodeNoResult, "the agent ended (%v) before it was asked anything%s", exit, d.said(stderr))
	case d.turn == nil:
		fail(agent.CodeNoResult, "the agent ended (%v) in the middle of its turn%s", exit, d.said(stderr))
	case d.turn.StopReason != "end_turn":
		stop, known := stops[d.turn.StopReason]
		if !known {
			stop.code, stop.message = agent.CodeAgentError, "the agent stopped for a reason that is not known: "+d.quote(d.turn.StopReason)
		}
		fail(stop.code, "%s", stop.message)
	case d.lost:
		fail(agent.CodeResultTooLong, "a line that may have been part of the reply was too long and was dropped")
	case d.long:
		fail(agent.CodeResultTooLong, "the agent wrote a reply of more than %d bytes", maxReply)
	case len(d.reply) == 0:
		fail(agent.CodeEmptyReply, "the agent ended its turn well and wrote no reply%s", d.said(stderr))
	default:
		r.Reply = string(d.reply)
	}
	return r
}

// said quotes the first output that was not understood, or the end of standard error.
func (d *dialogue) said(stderr []byte) string {
	switch words := agent.Tail(string(stderr)); {
	case d.junk != "":
		return "; its output begins: " + d.junk
	case words != "":
		return "; it wrote: " + d.quote(words)
	}
	return ""
}
