package console

import (
	"cmp"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"net/url"
	"strconv"

	"nightporter/client"
	"nightporter/internal/hub/store"
)

// perPage is how many there are on a page of a list.
const perPage = 50

// older cuts the one item that was read beyond a page, and makes the address of the page that follows.
func older[T any](q *request, items []T, id func(T) string) ([]T, string) {
	if len(items) <= perPage {
		return items, ""
	}
	items = items[:perPage]
	values := q.r.URL.Query()
	values.Del("said")
	values.Set("before", id(items[perPage-1]))
	return items, q.r.URL.Path + "?" + values.Encode()
}

// home is the first page that the key may see.
func (c *Console) home(q *request) error {
	to := "/conversations"
	for _, e := range menu {
		if allowed(*q.key, e.Path) {
			to = e.Path
			break
		}
	}
	http.Redirect(q.w, q.r, to, http.StatusSeeOther)
	return nil
}

// choices of the filter of runs: a state of the queue, or how one ended.
var runChoices = []string{"waiting", "ready", "running", "ok", "failed", "refused", "stopped"}

func (c *Console) runs(q *request) error {
	get := q.r.URL.Query().Get
	f := store.RunFilter{Profile: get("profile"), Conversation: get("conversation"), Before: get("before"), Limit: perPage + 1}
	switch show := get("show"); show {
	case "waiting", "ready", "running":
		f.State = show
	case "ok", "failed", "refused", "stopped":
		f.Status = show
	}
	runs, err := c.store.Runs(q.ctx(), f)
	if err != nil {
		return err
	}
	profiles, err := c.store.Profiles(q.ctx())
	if err != nil {
		return err
	}
	runs, more := older(q, runs, func(r client.Run) string { return r.ID })
	v := view{Title: "Runs", Nav: "/runs", Data: map[string]any{
		"Runs": runs, "More": more, "Show": get("show"), "Profile": f.Profile, "Conversation": f.Conversation, "Profiles": profiles,
		"Choices": runChoices, "Filtered": f.State+f.Status+f.Profile+f.Conversation != "", "First": f.Before == "",
	}}
	if f.Before == "" {
		v.Live = "/live"
	}
	c.show(q, http.StatusOK, "runs", v)
	return nil
}

// readable is nil when the key may read a conversation.
func (c *Console) readable(q *request, conversation string) error {
	return c.hub.MayRead(q.ctx(), *q.key, conversation)
}

// by is the one who asks, as the audit record names it.
func (q *request) by() string { return "key " + q.key.Name }

// outcome is what a page shows of docs/outcomes.md.
type outcome struct {
	Agent        string   `json:"agent"`
	AgentVersion string   `json:"agent_version"`
	Resumed      bool     `json:"resumed"`
	Salvage      string   `json:"salvage"`
	Denials      []string `json:"denials"`
	Turns        int      `json:"turns"`
	Boundary     *proof   `json:"boundary"`
	ToolCalls    []struct {
		Server     string `json:"server"`
		Tool       string `json:"tool"`
		OK         bool   `json:"ok"`
		DurationMS int64  `json:"duration_ms"`
	} `json:"tool_calls"`
}

func (c *Console) run(q *request) error {
	run, err := c.store.Run(q.ctx(), q.r.PathValue("id"))
	if err != nil {
		return err
	}
	if err := c.readable(q, run.Conversation); err != nil {
		return err
	}
	after, _ := strconv.ParseInt(q.r.URL.Query().Get("after"), 10, 64)
	line, err := c.timeline(q.ctx(), run.ID, after)
	if err != nil {
		return err
	}
	attempts, err := c.store.Attempts(q.ctx(), run.ID)
	if err != nil {
		return err
	}
	message, err := c.store.Message(q.ctx(), run.Message)
	if err != nil {
		return err
	}
	all, err := c.store.Files(q.ctx(), run.Conversation)
	if err != nil {
		return err
	}
	var files []client.File
	for _, f := range all {
		if f.Run == run.ID {
			files = append(files, f)
		}
	}
	var end *outcome
	if len(run.Outcome) > 0 {
		end = &outcome{}
		if json.Unmarshal(run.Outcome, end) != nil { // a host's word: what is not understood is not shown
			end = nil
		}
	}
	if line.Proof == nil && end != nil && end.Boundary != nil {
		line.Proof = end.Boundary
	}
	v := view{Title: "Run " + run.ID, Nav: "/runs", Data: map[string]any{
		"Run": run, "Message": message, "Line": line, "Attempts": attempts, "Files": files, "Outcome": end,
	}}
	if run.State != client.RunDone {
		v.Live = "/live?conversation=" + url.QueryEscape(run.Conversation)
	}
	c.show(q, http.StatusOK, "run", v)
	return nil
}

func (c *Console) conversations(q *request) error {
	data := map[string]any{}
	if has(*q.key, client.ScopeRead) {
		list, err := c.store.Conversations(q.ctx(), q.r.URL.Query().Get("before"), perPage+1)
		if err != nil {
			return err
		}
		data["Conversations"], data["More"] = older(q, list, func(v client.Conversation) string { return v.Key })
	}
	profiles, err := c.store.Profiles(q.ctx())
	if err != nil {
		return err
	}
	data["Profiles"], data["Idempotency"] = profiles, token()
	v := view{Title: "Conversations", Nav: "/conversations", Data: data}
	if q.r.URL.Query().Get("before") == "" && has(*q.key, client.ScopeRead) {
		v.Live = "/live"
	}
	c.show(q, http.StatusOK, "conversations", v)
	return nil
}

func (c *Console) conversation(q *request) error {
	key := q.r.URL.Query().Get("key")
	if err := c.readable(q, key); err != nil {
		return err
	}
	about, err := c.store.Conversation(q.ctx(), key)
	if err != nil {
		return err
	}
	// The newest are what is wanted: the page before is one number back.
	first := max(0, about.Messages-perPage)
	if at, err := strconv.ParseInt(q.r.URL.Query().Get("from"), 10, 64); err == nil {
		first = max(0, min(at-1, first))
	}
	messages, err := c.store.Messages(q.ctx(), key, first, perPage)
	if err != nil {
		return err
	}
	files, err := c.store.Files(q.ctx(), key)
	if err != nil {
		return err
	}
	byRun := map[string][]client.File{}
	for _, f := range files {
		byRun[f.Run] = append(byRun[f.Run], f)
	}
	earlier := ""
	if first > 0 {
		earlier = "/conversation?" + url.Values{"key": {key}, "from": {strconv.FormatInt(max(1, first-perPage+1), 10)}}.Encode()
	}
	v := view{Title: "Conversation " + oneLine(key, 60), Nav: "/conversations", Data: map[string]any{
		"About": about, "Messages": messages, "Files": byRun, "Earlier": earlier, "Newest": first+perPage >= about.Messages, "Idempotency": token(),
	}}
	if first+perPage >= about.Messages {
		v.Live = "/live?conversation=" + url.QueryEscape(key)
	}
	c.show(q, http.StatusOK, "conversation", v)
	return nil
}

// file gives a file to be saved, never to be shown: an agent made it.
func (c *Console) file(q *request) error {
	f, conversation, data, err := c.store.File(q.ctx(), q.r.PathValue("id"))
	if err != nil {
		return err
	}
	if err := c.readable(q, conversation); err != nil {
		return err
	}
	h := q.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", cmp.Or(mime.FormatMediaType("attachment", map[string]string{"filename": f.Name}), "attachment"))
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	h.Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = q.w.Write(data) // the browser may be gone
	return nil
}

// asked is an approval with its question read.
type asked struct {
	client.Approval
	Call struct { // docs/approvals.md
		Client         string          `json:"client"`
		Agent          string          `json:"agent"`
		Server         string          `json:"server"`
		Tool           string          `json:"tool"`
		Description    string          `json:"description"`
		Annotations    json.RawMessage `json:"annotations"`
		Authority      string          `json:"authority"`
		Arguments      json.RawMessage `json:"arguments"`
		InputResponses json.RawMessage `json:"input_responses"`
	}
	Ask struct {
		Text    string   `json:"text"`
		Choices []string `json:"choices"`
	}
	Odd bool // the question is not what was expected: it is shown raw, and cannot be approved here
}

func read(a client.Approval) asked {
	v := asked{Approval: a}
	switch a.Kind {
	case "call":
		v.Odd = json.Unmarshal(a.Question, &v.Call) != nil || v.Call.Tool == ""
	case "question":
		v.Odd = json.Unmarshal(a.Question, &v.Ask) != nil || v.Ask.Text == ""
	default:
		v.Odd = true
	}
	return v
}

func (c *Console) approvals(q *request) error {
	pending, err := c.store.Approvals(q.ctx(), client.ApprovalPending, "", 0)
	if err != nil {
		return err
	}
	all, err := c.store.Approvals(q.ctx(), "", q.r.URL.Query().Get("before"), perPage+1)
	if err != nil {
		return err
	}
	all, more := older(q, all, func(a client.Approval) string { return a.ID })
	var waiting, decided []asked
	for i := len(pending) - 1; i >= 0; i-- { // who has waited longest comes first
		waiting = append(waiting, read(pending[i]))
	}
	for _, a := range all {
		if a.State != client.ApprovalPending {
			decided = append(decided, read(a))
		}
	}
	c.show(q, http.StatusOK, "approvals", view{
		Title: "Approvals", Nav: "/approvals", Live: "/live", Data: map[string]any{"Waiting": waiting, "Decided": decided, "More": more},
	})
	return nil
}

func (c *Console) approval(q *request) error {
	a, err := c.store.Approval(q.ctx(), q.r.PathValue("id"))
	if err != nil {
		return err
	}
	v := view{Title: "Approval", Nav: "/approvals", Data: read(a)}
	if a.State == client.ApprovalPending {
		v.Live = "/live"
	}
	c.show(q, http.StatusOK, "approval", v)
	return nil
}

func (c *Console) hosts(q *request) error {
	hosts, err := c.store.Hosts(q.ctx())
	if err != nil {
		return err
	}
	c.show(q, http.StatusOK, "hosts", view{Title: "Hosts", Nav: "/hosts", Live: "/live", Data: hosts})
	return nil
}

// reported is a host with its report read.
type reported struct {
	client.Host
	Told client.HostReport
	None bool // it has sent none that is understood
}

func (c *Console) servers(q *request) error {
	hosts, err := c.store.Hosts(q.ctx())
	if err != nil {
		return err
	}
	var all []reported
	for _, h := range hosts {
		if h.Revoked != nil {
			continue
		}
		full, err := c.store.Host(q.ctx(), h.ID)
		if errors.Is(err, store.ErrNotFound) {
			continue
		} else if err != nil {
			return err
		}
		v := reported{Host: full}
		v.None = json.Unmarshal(full.Report, &v.Told) != nil
		all = append(all, v)
	}
	c.show(q, http.StatusOK, "servers", view{Title: "Servers", Nav: "/servers", Live: "/live", Data: all})
	return nil
}

func (c *Console) deliveries(q *request) error {
	get := q.r.URL.Query().Get
	state := get("state")
	list, err := c.store.Deliveries(q.ctx(), state, get("before"), perPage+1)
	if err != nil {
		return err
	}
	list, more := older(q, list, func(d client.Delivery) string { return d.ID })
	v := view{Title: "Deliveries", Nav: "/deliveries", Data: map[string]any{
		"Deliveries": list, "More": more, "State": state, "States": []string{"dead", "pending", "waiting", "delivered"},
	}}
	if get("before") == "" {
		v.Live = "/live"
	}
	c.show(q, http.StatusOK, "deliveries", v)
	return nil
}

func (c *Console) audit(q *request) error {
	entries, err := c.store.AuditEntries(q.ctx(), 0)
	if err != nil {
		return err
	}
	c.show(q, http.StatusOK, "audit", view{Title: "Audit", Nav: "/audit", Data: entries})
	return nil
}

// back goes to a page after a form was done, with the word for what was done.
func back(q *request, to, word string) error {
	sign := "?"
	if u, err := url.Parse(to); err == nil && u.RawQuery != "" {
		sign = "&"
	}
	http.Redirect(q.w, q.r, to+sign+"said="+word, http.StatusSeeOther)
	return nil
}

func (c *Console) send(q *request) error {
	get := q.r.PostForm.Get
	n := client.NewMessage{Conversation: get("conversation"), Profile: get("profile"), Text: get("text"), Author: q.key.Name, Interrupt: get("interrupt") != ""}
	digest, err := json.Marshal(n)
	if err != nil {
		return err
	}
	m, err := c.hub.Send(q.ctx(), *q.key, n, "console "+get("idempotency"), hash(string(digest)))
	if err != nil {
		return err
	}
	return back(q, "/conversation?key="+url.QueryEscape(m.Conversation), "sent")
}

func (c *Console) cancel(q *request) error {
	id := q.r.PathValue("id")
	run, err := c.store.Run(q.ctx(), id)
	if err != nil {
		return err
	}
	if err := c.readable(q, run.Conversation); err != nil {
		return err
	}
	if err := c.hub.Cancel(q.ctx(), q.by(), id, cmp.Or(q.r.PostForm.Get("reason"), "stopped by "+q.by())); err != nil {
		return err
	}
	return back(q, "/runs/"+url.PathEscape(id), "cancelled")
}

func (c *Console) answer(q *request) error {
	get := q.r.PostForm.Get
	n := client.Answer{Decision: get("decision"), Digest: get("digest"), Reason: get("reason")}
	if n.Decision == "answer" {
		if n.Reason = cmp.Or(get("text"), get("choice")); n.Reason == "" {
			return &problem{http.StatusUnprocessableEntity, "The answer is empty", "Nothing was sent. Go back, choose or write one, and send it again."}
		}
	}
	a, err := c.hub.Answer(q.ctx(), q.by(), q.r.PathValue("id"), n)
	if err != nil {
		return err
	}
	return back(q, "/approvals", string(a.State))
}

func (c *Console) revoke(q *request) error {
	if err := c.hub.RevokeHost(q.ctx(), q.by(), q.r.PathValue("id")); err != nil {
		return err
	}
	return back(q, "/hosts", "revoked")
}

func (c *Console) retry(q *request) error {
	if err := c.hub.RetryDelivery(q.ctx(), q.by(), q.r.PathValue("id")); err != nil {
		return err
	}
	return back(q, "/deliveries", "retried")
}
