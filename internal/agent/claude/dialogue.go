package claude

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"nightporter/internal/agent"
	"nightporter/internal/proc"
)

// phase is how far a dialogue has come.
type phase int

const (
	starting phase = iota // initialize was written
	settling              // mcp_status is polled until no server is pending
	asked                 // the boundary is proven and the prompt was sent
	finished              // a result came, or there will be none: input is closed
	aborted               // d.err says why
)

// proofTicks bounds the proof, in ticks of about 200 ms: two minutes. Claude Code gives up on a server
// that does not connect after 30 s, and took up to 18 s to start on a loaded machine (§4, §6).
const proofTicks = 600

// eagerPolls are asked one upon the other's answer, before ticks pace them: the gateway connects some 50 ms after
// Claude Code can be asked, an answer takes 5 ms, and to wait for a tick would lengthen every run by 100 ms (measured).
const eagerPolls = 20

// exitTicks is how long Claude Code may take to end after its input was closed: 30 s. It
// took 0.7 s (§1.7). The verdict is by then known, and an end by force does not change it.
const exitTicks = 150

// Ids of our control requests.
const (
	idInitialize = "np-initialize"
	idInterrupt  = "np-interrupt"
	idStatus     = "np-status-" // and a number
)

// dialogue is the [agent.Dialogue] of one run.
type dialogue struct {
	plan  *plan
	phase phase

	ticks       int // since the start, while the boundary is not proven
	lingering   int // ticks since the input was closed
	polls       int
	polling     string // id of the mcp_status that is not answered yet
	interrupted bool
	initialized initialized

	err     *agent.Error // why the run was aborted
	proof   agent.Proof
	session string // as the stream named it last
	checked bool   // an init event was as planned
	reset   bool   // the stream announced a new session id

	text     string      // what the agent wrote last, its tail
	writing  writing     // what it is writing now
	streamed agent.Usage // tokens of the messages up to now, without their cost
	denials  []string
	denied   map[string]bool
	asking   map[string]call   // by the id of the question
	meant    map[string]string // real names by the id of a use, of tools that stand for others
	results  []result
	banner   string // machine-readable reason of the last error banner
	dropped  bool   // a line that may have been a result was too long
	garbled  bool   // a result line could not be read
	turned   bool   // the model has written something
	skipped  int
	junk     string // the first output that was not understood
	notes    []string
}

var (
	_ agent.Dialogue = (*dialogue)(nil)
	_ agent.Asker    = (*dialogue)(nil)
)

func newDialogue(p *plan) *dialogue {
	return &dialogue{plan: p, proof: p.proof(), denied: make(map[string]bool), meant: make(map[string]string)}
}

// Start implements [agent.Dialogue].
func (d *dialogue) Start() []agent.Action {
	return []agent.Action{control(idInitialize, "initialize")}
}

// Tick implements [agent.Dialogue]: it polls mcp_status while a server is pending, and bounds
// the proof and the end.
func (d *dialogue) Tick() []agent.Action {
	switch d.phase {
	case starting, settling:
		if d.ticks++; d.ticks > proofTicks {
			return d.unproven(differences{"it did not answer in time what it reaches"})
		}
		if d.phase == settling && d.polling == "" {
			return []agent.Action{d.poll()}
		}
	case finished:
		if d.lingering++; d.lingering == exitTicks {
			d.note("Claude Code did not end by itself after its result and was stopped")
			return []agent.Action{agent.Abort{}}
		}
	}
	return nil
}

func (d *dialogue) poll() agent.Action {
	d.polls++
	d.polling = fmt.Sprint(idStatus, d.polls)
	return control(d.polling, "mcp_status")
}

// Stop implements [agent.Dialogue]. Once the model was asked it writes an interrupt: Claude Code then saves
// what it has, reports the result, and ends when its input closes.
func (d *dialogue) Stop() []agent.Action {
	switch {
	case d.phase < asked:
		d.phase = finished
		return []agent.Action{agent.CloseInput{}}
	case d.phase == asked && !d.interrupted:
		d.interrupted = true
		return []agent.Action{control(idInterrupt, "interrupt")}
	}
	return nil
}

// header is what every line is looked at for.
type header struct {
	Type      string `json:"type"`
	Subtype   string `json:"subtype"`
	SessionID string `json:"session_id"`
	Parent    string `json:"parent_tool_use_id"` // set in what a subagent says
}

// Line implements [agent.Dialogue].
func (d *dialogue) Line(line []byte) []agent.Action {
	if len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	var h header
	if !decode(line, &h) || h.Type == "" {
		d.skip(line)
		return nil
	}
	actions := d.follow(h)
	if d.phase == aborted {
		return actions
	}
	switch h.Type {
	case "control_response":
		return append(actions, d.answer(line)...)
	case "control_request":
		return append(actions, d.question(line)...)
	case "system":
		return append(actions, d.system(h.Subtype, line)...)
	case "assistant":
		return append(actions, d.assistant(h, line)...)
	case "result":
		return append(actions, d.result(line)...)
	case "conversation_reset":
		d.reset = true // the id that follows is another one (§1.1)
	case "stream_event":
		return append(actions, d.stream(h, line)...)
	case "control_cancel_request":
		return append(actions, d.withdrawn(line)...)
	case "user", "command_lifecycle":
		// Tool results, echoes of the prompt, the life of a queued message.
	default:
		d.skip(line)
	}
	return actions
}

// Dropped implements [agent.Dialogue]. A line whose type cannot be seen in its head may have been the
// result: then none is waited for, and the run fails.
func (d *dialogue) Dropped(head []byte) []agent.Action {
	d.skipped++
	if kind, ok := topLevelType(head); ok && kind != "result" {
		switch {
		case d.phase < asked:
			return d.unproven(differences{"its answer is too long to be read"})
		case kind == "system":
			return d.broken(differences{"an event that may say which tools it has is too long to be read"})
		}
		d.note("a line of type " + quote(kind) + " was too long and was dropped")
		return nil
	}
	d.dropped = true
	return d.finish()
}

func (d *dialogue) skip(line []byte) {
	d.skipped++
	if d.junk == "" {
		d.junk = d.quote(string(line[:min(len(line), 4096)]))
	}
}

// quote is the head of a text that Claude Code wrote, without the run's token.
func (d *dialogue) quote(text string) string {
	return agent.Head(d.plan.masked(text))
}

func (d *dialogue) note(text string) {
	if !slices.Contains(d.notes, text) {
		d.notes = append(d.notes, text)
	}
}

// follow keeps up with the session id. The first must be the one that was asked for.
func (d *dialogue) follow(h header) []agent.Action {
	id := h.SessionID
	if h.Type == "result" && len(d.results) == 0 && d.phase < asked {
		return nil // a start that failed names a session that is dead, or none that ever was (§2)
	}
	if id == d.session || !isUUID(id) {
		return nil
	}
	if id != d.plan.session && d.session == "" && !d.reset && h.Type != "conversation_reset" {
		return d.abort(agent.CodeSessionMismatch, fmt.Sprintf("session %s was asked for, and Claude Code answered with %s", d.plan.session, id))
	}
	d.session = id
	return []agent.Action{agent.Emit{Event: agent.Event{Kind: agent.EventSession, SessionID: id}}}
}

// answer takes the answer to one of our control requests.
func (d *dialogue) answer(line []byte) []agent.Action {
	var a struct {
		Response struct {
			Subtype   string          `json:"subtype"`
			RequestID string          `json:"request_id"`
			Error     string          `json:"error"`
			Response  json.RawMessage `json:"response"`
		} `json:"response"`
	}
	if !decode(line, &a) {
		d.skip([]byte("a control_response that could not be read")) // the line itself may hold a token
		return nil
	}
	r := a.Response
	switch {
	case r.RequestID == idInitialize && d.phase == starting:
		if r.Subtype != "success" || json.Unmarshal(r.Response, &d.initialized) != nil {
			return d.unproven(differences{"it does not answer initialize as expected"})
		}
		if found := d.plan.checkInitialize(&d.initialized); len(found) > 0 {
			return d.unproven(found)
		}
		d.phase = settling
		return []agent.Action{d.poll()}
	case d.phase == settling && d.polling != "" && r.RequestID == d.polling:
		d.polling = ""
		var s status
		if r.Subtype != "success" || json.Unmarshal(r.Response, &s) != nil {
			return d.unproven(differences{"it does not answer mcp_status as expected"})
		}
		if s.pending() {
			if d.polls < eagerPolls {
				return []agent.Action{d.poll()}
			}
			return nil // the next tick asks again
		}
		if found := d.plan.checkStatus(&s); len(found) > 0 {
			return d.unproven(found)
		}
		return d.ask()
	}
	return nil
}

// ask sends the prompt: the boundary is proven.
func (d *dialogue) ask() []agent.Action {
	d.proof = d.plan.proven(&d.initialized)
	proof := d.proof
	actions := []agent.Action{agent.Emit{Event: agent.Event{Kind: agent.EventProven, Proof: &proof}}}
	if d.plan.proveOnly {
		d.phase = finished
		return append(actions, agent.CloseInput{})
	}
	d.phase = asked
	// Input stays open until the result: an interrupt needs it.
	return append(actions, message(d.plan.prompt))
}

// message is a user message. A prompt is data: alone it would be taken for a command of Claude Code
// where it begins with a slash. Only the last block of text is looked at for that, and one of
// white space is left out of what the model sees, so that the prompt arrives as it was written.
func message(prompt string) agent.Action {
	type block struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	return write(map[string]any{
		"type":               "user",
		"message":            map[string]any{"role": "user", "content": []block{{"text", prompt}, {"text", "\n"}}},
		"parent_tool_use_id": nil,
		"session_id":         "",
	})
}

// question takes a question of Claude Code. One about a tool is asked of a person, where somebody can be. None is expected under
// --permission-prompts none; one that came all the same must not wait for ever.
func (d *dialogue) question(line []byte) []agent.Action {
	var q struct {
		RequestID string `json:"request_id"`
		Request   struct {
			Subtype string          `json:"subtype"`
			Tool    string          `json:"tool_name"`
			Input   json.RawMessage `json:"input"`
		} `json:"request"`
	}
	if !decode(line, &q) || q.RequestID == "" {
		d.skip(line)
		return nil
	}
	r := q.Request
	if r.Subtype != "can_use_tool" {
		return []agent.Action{response(map[string]any{"request_id": q.RequestID, "subtype": "error", "error": "nobody can be asked in this run"})}
	}
	_, twice := d.asking[q.RequestID]
	own := slices.Contains(d.plan.builtIn, r.Tool)
	if !d.plan.asks || d.phase != asked || d.interrupted || twice || !own || len(r.Input) == 0 || len(d.asking) >= maxAsking {
		// Tools of the gateway do not ask here: they are allowed, and the gateway asks where it is to be.
		return d.denyCall(q.RequestID, r.Tool, r.Input, "Nobody can be asked in this run: the tool was not granted.")
	}
	if d.asking == nil {
		d.asking = make(map[string]call)
	}
	d.asking[q.RequestID] = call{r.Tool, r.Input}
	return []agent.Action{agent.AskPerson{
		ID: q.RequestID, Tool: r.Tool, Arguments: r.Input, Authority: []string{d.plan.version, d.plan.mode, d.session},
	}}
}

// call is one that waits for a person's answer.
type call struct {
	tool  string
	input json.RawMessage
}

// maxAsking bounds the calls that wait for an answer at a time. A model makes some ten at once.
const maxAsking = 100

// Answer implements [agent.Asker]. An approval is of the input that was asked about: Claude Code takes it from the answer.
func (d *dialogue) Answer(id string, approved bool, reason string) []agent.Action {
	c, waits := d.asking[id]
	if !waits {
		return nil
	}
	delete(d.asking, id)
	if !approved || d.phase != asked {
		return d.denyCall(id, c.tool, c.input, "This call was not approved: "+reason)
	}
	return []agent.Action{response(map[string]any{
		"request_id": id, "subtype": "success", "response": map[string]any{"behavior": "allow", "updatedInput": c.input},
	})}
}

// withdrawn takes Claude Code's word that it does not wait for an answer any more.
func (d *dialogue) withdrawn(line []byte) []agent.Action {
	var e struct {
		RequestID string `json:"request_id"`
	}
	decode(line, &e)
	if _, waits := d.asking[e.RequestID]; !waits {
		return nil
	}
	delete(d.asking, e.RequestID)
	return []agent.Action{agent.Withdraw{ID: e.RequestID}}
}

// denyCall answers a question with no. No event tells of it, so that it is noted here (§8).
func (d *dialogue) denyCall(id, tool string, input json.RawMessage, why string) []agent.Action {
	return append(d.deny(tool, d.plan.realName(tool, input)), response(map[string]any{
		"request_id": id, "subtype": "success", "response": map[string]any{"behavior": "deny", "message": why},
	}))
}

// response answers a control request of Claude Code's.
func response(r map[string]any) agent.Action {
	return write(map[string]any{"type": "control_response", "response": r})
}

// deny records that a tool was refused, under its real name.
func (d *dialogue) deny(called, name string) []agent.Action {
	if called == "" || d.denied[name] {
		return nil
	}
	d.denied[name] = true
	d.denials = append(d.denials, name)
	return []agent.Action{agent.Emit{Event: agent.Event{Kind: agent.EventDenied, Tool: name}}}
}

func (d *dialogue) system(subtype string, line []byte) []agent.Action {
	switch subtype {
	case "init":
		var e initEvent
		if json.Unmarshal(line, &e) != nil {
			return d.broken(differences{"its init event cannot be read"})
		}
		if found := d.plan.checkInit(&e); len(found) > 0 {
			return d.broken(found)
		}
		d.checked = true
	case "permission_denied":
		var e struct {
			Tool string `json:"tool_name"`
			Use  string `json:"tool_use_id"`
		}
		decode(line, &e)
		name, known := d.meant[e.Use] // the event does not say what the tool was called with
		if !known {
			name = d.plan.realName(e.Tool, nil)
		}
		return d.deny(e.Tool, name)
	case "api_retry":
		return d.retry(line)
	}
	return nil // hooks, status, tasks, notifications: nothing that a run's outcome needs
}

func (d *dialogue) retry(line []byte) []agent.Action {
	var e struct {
		Attempt int    `json:"attempt"`
		Max     int    `json:"max_retries"`
		Status  int    `json:"error_status"`
		Error   string `json:"error"`
	}
	if !decode(line, &e) {
		return nil
	}
	if e.Status == 401 || e.Error == authenticationFailed {
		// Claude Code would try ten times, for three minutes (§1.4).
		return d.abort(agent.CodeAuth, "the model's API refused the credentials (HTTP 401)")
	}
	why := strings.ReplaceAll(e.Error, "_", " ")
	if e.Status != 0 {
		why = strings.TrimSpace(fmt.Sprintf("HTTP %d %s", e.Status, why))
	}
	activity := agent.Activity(fmt.Sprintf("asking the model again, %d of %d: %s", e.Attempt, e.Max, why))
	return []agent.Action{agent.Emit{Event: agent.Event{Kind: agent.EventRetry, Activity: activity}}}
}

// authenticationFailed is how api_retry and error banners name a refused credential.
const authenticationFailed = "authentication_failed"

func (d *dialogue) assistant(h header, line []byte) []agent.Action {
	var e struct {
		Banner  bool   `json:"is_api_error_message"`
		Error   string `json:"error"`
		Message struct {
			Model   string `json:"model"`
			Content []struct {
				Type string `json:"type"`
				Text string `json:"text"`
				Name string `json:"name"`

				ID    string          `json:"id"`
				Input json.RawMessage `json:"input"`
			} `json:"content"`
		} `json:"message"`
	}
	if !decode(line, &e) {
		d.skip(line)
		return nil
	}
	if e.Banner || e.Message.Model == "<synthetic>" {
		d.banner = e.Error
		return nil
	}
	if actions := d.turn(); actions != nil {
		return actions
	}
	for _, block := range e.Message.Content {
		if name := d.plan.realName(block.Name, block.Input); block.Type == "tool_use" && name != d.plan.realName(block.Name, nil) {
			d.meant[block.ID] = name
		}
	}
	if h.Parent != "" {
		return nil // a subagent's words are not the agent's
	}
	var actions []agent.Action
	emit := func(e agent.Event) { actions = append(actions, agent.Emit{Event: e}) }
	for _, block := range e.Message.Content {
		switch {
		case block.Type == "text" && strings.TrimSpace(block.Text) != "":
			d.text, d.writing = agent.Tail(block.Text), writing{}
			emit(agent.Event{Kind: agent.EventText, Text: block.Text})
			emit(agent.Event{Kind: agent.EventActivity, Activity: agent.Activity(block.Text)})
		case block.Type == "tool_use" && block.Name != "":
			name := d.plan.realName(block.Name, block.Input)
			emit(agent.Event{Kind: agent.EventTool, Tool: name})
			emit(agent.Event{Kind: agent.EventActivity, Activity: agent.Activity("using " + name)})
		}
	}
	return actions
}

// turn notes that the model has written something. The init event must have come before: it alone
// says which built-in tools there are.
func (d *dialogue) turn() []agent.Action {
	d.turned = true
	if !d.checked && d.phase != aborted {
		return d.broken(differences{"the model wrote before an init event said which tools there are"})
	}
	return nil
}

func (d *dialogue) result(line []byte) []agent.Action {
	var r result
	if !decode(line, &r) || !r.valid() {
		d.skip(line)
		d.garbled = true
		return d.finish()
	}
	d.results = append(d.results, r)
	var actions []agent.Action
	for _, denial := range r.Denials {
		actions = append(actions, d.deny(denial.Tool, d.plan.realName(denial.Tool, denial.Input))...)
	}
	if usage, _, _ := d.count(); usage != (agent.Usage{}) {
		actions = append(actions, agent.Emit{Event: agent.Event{Kind: agent.EventUsage, Usage: &usage}})
	}
	return append(actions, d.finish()...)
}

// finish closes the input, upon which Claude Code ends.
func (d *dialogue) finish() []agent.Action {
	if d.phase >= finished {
		return nil
	}
	d.phase = finished
	return []agent.Action{agent.CloseInput{}}
}

// unproven ends a run whose boundary is not what was planned, before the model was asked.
func (d *dialogue) unproven(found differences) []agent.Action {
	return d.abort(agent.CodeBoundary, "Claude Code reaches not what was planned: "+strings.Join(found, "; ")+"; no model was asked")
}

// broken ends a run whose boundary changed after it was proven, without the ladder: the model
// request follows within 50 ms to 300 ms, and only a kill was seen to come before it (§3.3).
func (d *dialogue) broken(found differences) []agent.Action {
	code := agent.CodeBoundary
	if d.checked || d.turned {
		code = agent.CodeBroken
	}
	d.abort(code, "the boundary changed after it was proven: "+strings.Join(found, "; "))
	return []agent.Action{agent.Abort{Now: true}}
}

func (d *dialogue) abort(code, message string) []agent.Action {
	if code == agent.CodeBoundary || code == agent.CodeBroken {
		d.proof.Proven = false
	}
	d.err = &agent.Error{Code: code, Message: message}
	d.phase = aborted
	return []agent.Action{agent.Abort{}}
}

// control is a control request to Claude Code (§8).
func control(id, subtype string) agent.Action {
	return write(map[string]any{"type": "control_request", "request_id": id, "request": map[string]any{"subtype": subtype}})
}

// write is a line of input. What is written are maps, strings and numbers of ours: they marshal.
func write(v any) agent.Action {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // an input that is given back stays as it is
	_ = e.Encode(v)
	return agent.Write{Data: b.Bytes()}
}

// decode reads JSON into v and reports whether it is JSON. A field of an unexpected type
// is left as it was: what an event holds beside what is read must not make it unreadable. The
// answers that prove the boundary are read strictly instead.
func decode(data []byte, v any) bool {
	err := json.Unmarshal(data, v)
	var mistyped *json.UnmarshalTypeError
	return err == nil || errors.As(err, &mistyped)
}

// topLevelType finds the type of an event of which only the head is there.
func topLevelType(head []byte) (string, bool) {
	dec := json.NewDecoder(bytes.NewReader(head))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return "", false
	}
	for {
		key, err := dec.Token()
		if err != nil {
			return "", false
		}
		if key == "type" {
			value, err := dec.Token()
			kind, ok := value.(string)
			return kind, err == nil && ok
		}
		var skipped json.RawMessage
		if err := dec.Decode(&skipped); err != nil {
			return "", false
		}
	}
}

// End implements [agent.Dialogue].
func (d *dialogue) End(exit proc.Exit, stderr []byte) agent.Result {
	salvage := d.text
	if unfinished := agent.Tail(d.writing.ending); unfinished != "" {
		salvage = unfinished
	}
	v := agent.Result{
		SessionID: d.session, Salvage: salvage, Denials: d.denials, Proof: d.proof,
		Skipped: d.skipped, Notes: d.notes,
	}
	v.Usage, v.Totals, v.Turns = d.count()
	d.judge(&v, exit, string(stderr))
	return v
}
