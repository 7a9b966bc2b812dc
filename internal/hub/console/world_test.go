package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"nightporter/client"
	"nightporter/internal/hub"
	"nightporter/internal/hub/store"
)

// world is a hub's database with hosts that work, and its console.
type world struct {
	t     testing.TB
	store *store.Store
	hub   *hub.Hub
	c     *Console
	http  *httptest.Server
	keys  map[string]string         // secrets by name
	ids   map[string]string         // of keys by name
	hosts map[string]*client.Client // by name, each with its own key
	asked int
}

func newWorld(t testing.TB) *world {
	t.Helper()
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "hub.db"), store.Options{Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, store: s, keys: map[string]string{}, ids: map[string]string{}, hosts: map[string]*client.Client{}}
	w.hub = hub.New(s, hub.Options{Version: "1.2.0"})
	w.c = New(w.hub, Options{})
	w.hub.Handle("/", w.c)
	w.http = httptest.NewServer(w.hub)
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		w.c.Close()
		w.http.Close()
		w.hub.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	w.key("ann", client.Scopes...)
	return w
}

func (w *world) ctx() context.Context { return context.WithoutCancel(w.t.Context()) }

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) key(name string, scopes ...client.Scope) (secret string) {
	w.t.Helper()
	secret = "npk_" + token()
	k, err := w.store.AddKey(w.ctx(), name, scopes, hash(secret), nil)
	w.must(err)
	w.keys[name], w.ids[name] = secret, k.ID
	return secret
}

// host pairs one, whatever its name, and returns its id.
func (w *world) host(name string) (id string) {
	w.t.Helper()
	code, secret := token(), "nph_"+token()
	_, err := w.store.AddInvite(w.ctx(), hash(code), time.Hour)
	w.must(err)
	id, err = w.store.Pair(w.ctx(), hash(code), name, hash(secret))
	w.must(err)
	w.hosts[name], err = client.New(w.http.URL, secret, nil)
	w.must(err)
	return id
}

func (w *world) profile(p client.Profile) { w.t.Helper(); w.must(w.store.SetProfile(w.ctx(), p)) }

func (w *world) send(n client.NewMessage) client.Message {
	w.t.Helper()
	m, _, err := w.store.AddMessage(w.ctx(), store.Sender{Key: w.ids["ann"]}, n)
	w.must(err)
	return m
}

// work is a run that a host has, led by the host protocol.
type work struct {
	w     *world
	host  *client.Client
	run   string
	fence int64
	n     int64
}

func (w *world) claim(host string) *work {
	w.t.Helper()
	var a client.Assignment
	w.must(w.hosts[host].Post(w.ctx(), "/v1/host/claim", client.Claim{Slots: 4, Version: "1.2.0"}, &a))
	if a.Fence == 0 {
		w.t.Fatal("there is nothing to claim")
	}
	return &work{w: w, host: w.hosts[host], run: a.Run.ID, fence: a.Fence, n: 1}
}

func (k *work) post(what string, in, out any) {
	k.w.t.Helper()
	k.w.must(k.host.Post(k.w.ctx(), "/v1/host/runs/"+k.run+"/"+what, in, out))
}

func (k *work) event(kind string, fields map[string]any) {
	k.w.t.Helper()
	all := map[string]any{"type": kind, "run": "20261130-200753-enaheypvfq", "time": time.Now().UTC()}
	for name, v := range fields {
		all[name] = v
	}
	raw, err := json.Marshal(all)
	k.w.must(err)
	k.post("events", client.Events{Fence: k.fence, N: k.n, Events: []json.RawMessage{raw}}, nil)
	k.n++
}

func (k *work) beat(activity string) {
	k.w.t.Helper()
	k.post("beat", client.Beat{Fence: k.fence, Activity: activity, SessionID: "8a319814-d19d-4fd7-bd7e-795c0ac9d8b8"}, &client.Beaten{})
}

func (k *work) ask(kind string, question any) (a client.Approval) {
	k.w.t.Helper()
	raw, err := json.Marshal(question)
	k.w.must(err)
	k.w.asked++
	k.post("approvals", client.Ask{
		Fence: k.fence, ID: fmt.Sprintf("ask-%d", k.w.asked), Kind: kind, Digest: hash(string(raw)), Question: raw, DeadlineMS: (50 * time.Minute).Milliseconds(),
	}, &a)
	return a
}

func (k *work) update(text string) {
	k.w.t.Helper()
	k.post("updates", client.Update{Fence: k.fence, ID: store.NewID(), Text: text}, nil)
}

func (k *work) finish(outcome map[string]any) {
	k.w.t.Helper()
	raw, err := json.Marshal(outcome)
	k.w.must(err)
	k.post("finish", client.Finish{Fence: k.fence, Outcome: raw}, nil)
}

func (k *work) attach(name, kind string, data []byte) {
	k.w.t.Helper()
	k.post("files", client.Attach{Fence: k.fence, ID: store.NewID(), Name: name, MediaType: kind, Data: data}, nil)
}

func ok(reply string, cost float64) map[string]any {
	return map[string]any{
		"run": "20261130-200753-enaheypvfq", "agent": "claude", "agent_version": "2.1.332", "status": "ok", "reply": reply, "error": nil, "session_id": "8a319814", "resumed": true, "salvage": nil,
		"denials": []string{"mcp__crm__delete"}, "usage": map[string]any{"input_tokens": 5120, "output_tokens": 210, "cost_usd": cost}, "turns": 2, "duration_ms": 8210,
		"boundary":   map[string]any{"proven": true, "how": "asked the agent", "servers": []string{"nightporter"}, "disabled": []string{}, "failed": []string{}, "notes": []string{}},
		"tool_calls": []map[string]any{{"server": "crm", "tool": "find", "ok": true, "duration_ms": 312}, {"server": "crm", "tool": "history", "ok": false, "duration_ms": 30012}},
	}
}

func failed(code, message string) map[string]any {
	return map[string]any{"status": "failed", "reply": nil, "error": map[string]any{"code": code, "message": message}, "salvage": "I found two of the three orders; the third", "denials": []string{}, "usage": map[string]any{"input_tokens": 900, "output_tokens": 20, "cost_usd": 0.0042}, "duration_ms": 61200, "turns": 1, "tool_calls": []any{}}
}

var provenEvent = map[string]any{"proof": map[string]any{
	"proven": true, "how": "Claude Code 2.1.332 was started without a model and asked for its MCP servers, tools and settings: it named what was planned and nothing else.",
	"servers": []string{"nightporter"}, "disabled": []string{"linear", "playwright"}, "failed": []string{}, "notes": []string{"not covered: what a server does by itself"},
	"tools": []string{"mcp__crm__find", "mcp__crm__history", "mcp__crm__refund"}, "built_in": []string{"Read", "Grep", "Glob"},
	"rings": []map[string]any{
		{"name": "servers", "planned": "nightporter alone", "enforced": []string{"--strict-mcp-config", "--mcp-config with one server"}, "proven": "mcp_status named one server", "not_covered": []string{}},
		{"name": "settings, hooks, plugins, skills, memory", "planned": "none of the user's or the folder's", "enforced": []string{"--setting-sources= (empty)", "CLAUDE_CONFIG_DIR of its own"}, "proven": "the init message listed no plugin and no skill", "not_covered": []string{"settings that an administrator manages"}},
		{"name": "own tools", "planned": "Read, Grep, Glob", "enforced": []string{"--tools Read,Grep,Glob"}, "proven": "the init message listed these three", "not_covered": []string{}},
		{"name": "prompt", "planned": "ours", "enforced": []string{"--system-prompt"}, "proven": "", "not_covered": []string{"what the model makes of it"}},
	},
}}

// full makes a world in which every page has something to show.
func full(t testing.TB) *world {
	w := newWorld(t)
	w.profile(client.Profile{Name: "default", Agent: "claude", Grant: "support", Approvals: true})
	w.profile(client.Profile{Name: "on-call", Agent: "codex", Grant: "ops"})
	build := w.host("build-7")
	w.host("laptop-of-mara")
	w.host("old-one")
	report, err := json.Marshal(client.HostReport{Agents: []string{"claude", "codex"}, Grants: []string{"support", "ops"}, Servers: []client.ServerReport{
		{Name: "crm", State: "ready", Revision: "6f2c19ab", Tools: []client.ToolReport{{Name: "find", Description: "Finds customers by name, mail or number."}, {Name: "history", Description: "What a customer has ordered."}, {Name: "refund", Description: "Pays money back. Cannot be undone."}}, Diff: "--- accepted\n+++ live\n tool refund\n-  description: Pays money back.\n+  description: Pays money back. Cannot be undone.\n"},
		{Name: "metrics", State: "dormant", Revision: "09aa41c0", Tools: []client.ToolReport{{Name: "query", Description: "Runs one query."}}},
		{Name: "pager", State: "failed", Error: "pager-mcp exited with status 1: PAGER_TOKEN is not set", Tools: []client.ToolReport{}},
	}})
	w.must(err)
	w.must(w.store.Report(w.ctx(), build, report))
	gone := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusGone) }))
	t.Cleanup(gone.Close)
	_, err = w.store.SetWebhook(w.ctx(), client.Webhook{Name: "chat", URL: gone.URL, Events: []string{"run.done"}, All: true, Secret: "whsec_" + token()})
	w.must(err)

	for i := range 5 {
		w.send(client.NewMessage{Conversation: fmt.Sprintf("ticket/%d", 4821+i), Text: "Which of my orders are still open, and when do they come?", Author: "Ann Weber"})
		k := w.claim("build-7")
		k.event("run.started", map[string]any{"agent": "claude"})
		k.event("starting.batch", map[string]any{"round": 1, "servers": []string{"crm", "pager"}})
		k.event("ready", map[string]any{"round": 1, "server": "crm"})
		k.event("failed", map[string]any{"round": 1, "server": "pager", "error": "exited with status 1: PAGER_TOKEN is not set"})
		k.event("round.complete", map[string]any{"round": 1, "ready": []string{"crm"}, "failed": []string{"pager"}})
		k.event("run.proven", provenEvent)
		k.event("run.session", map[string]any{"session_id": "8a319814-d19d-4fd7-bd7e-795c0ac9d8b8"})
		k.event("run.activity", map[string]any{"activity": "using mcp__crm__find"})
		k.event("run.tool", map[string]any{"tool": "mcp__crm__find"})
		k.event("run.denied", map[string]any{"tool": "mcp__crm__delete"})
		k.event("run.heartbeat", map[string]any{"activity": "using mcp__crm__find"})
		k.event("run.text", map[string]any{"text": "I found the customer. I look at the orders now."})
		k.update("Still looking: two of three orders are found.")
		k.event("run.usage", map[string]any{"usage": map[string]any{"input_tokens": 5120, "output_tokens": 210, "cost_usd": 0.0231}})
		switch i {
		case 1:
			k.finish(failed("model_api", "The model's API answered 529 (overloaded) five times."))
		case 3:
			k.finish(map[string]any{"status": "refused", "reply": nil, "error": map[string]any{"code": "boundary_unproven", "message": "The agent reaches the server linear, which was not granted."}, "usage": map[string]any{}, "duration_ms": 1800})
		default:
			k.attach("orders.csv", "text/csv", []byte("order,state\n7,open\n"))
			k.finish(ok("There are three open orders:\n\n1. 7312, on its way, here on Thursday\n2. 7344, being packed\n3. 7350, waiting for payment", 0.0231*float64(i+1)))
		}
	}
	// One that waits for a person, one that asks, one that runs, one that is ready.
	w.send(client.NewMessage{Conversation: "ticket/4830", Text: "Order 7312 came broken. I want my money back.", Author: "Jonas Falk"})
	k := w.claim("build-7")
	k.event("run.started", map[string]any{"agent": "claude"})
	k.event("run.proven", provenEvent)
	k.event("run.tool", map[string]any{"tool": "mcp__crm__refund"})
	k.beat("waiting for approval of mcp__crm__refund")
	k.ask("call", map[string]any{"client": "run", "conversation": "ticket/4830", "agent": "claude", "server": "crm", "tool": "refund", "description": "Pays money back. Cannot be undone.", "annotations": map[string]any{"destructiveHint": true}, "authority": "a41b77c0", "arguments": map[string]any{"order": 7312, "amount": "129.00", "currency": "EUR", "note": "arrived broken"}})
	w.send(client.NewMessage{Conversation: "standup", Text: "Write the notes of the stand-up.", Author: "schedule", Profile: "on-call"})
	k = w.claim("build-7")
	k.event("run.started", map[string]any{"agent": "codex"})
	k.ask("question", map[string]any{"text": "Two people are named Kim. Whose notes are these?", "choices": []string{"Kim Larsen", "Kim Oyelaran"}})
	w.send(client.NewMessage{Conversation: "incident-88", Text: "The queue grows. Find out why.", Author: "pager", Profile: "on-call"})
	k = w.claim("laptop-of-mara")
	k.event("run.started", map[string]any{"agent": "codex"})
	k.event("run.proven", provenEvent)
	k.beat("using mcp__metrics__query")
	k.event("run.tool", map[string]any{"tool": "mcp__metrics__query"})
	w.send(client.NewMessage{Conversation: "incident-88", Text: "It is the second time this week.", Author: "pager"})
	w.send(client.NewMessage{Conversation: "ticket/4831", Text: "Where is my invoice?", Author: "Li Na"})
	_, err = w.store.RevokeHost(w.ctx(), "old-one")
	w.must(err)
	for _, e := range [][3]string{{"key.add", "bot", "scopes ask"}, {"host.revoke", "old-one", ""}, {"approval.answer", "ask-0", "denied: not this customer's order"}, {"webhook.set", "chat", ""}} {
		w.must(w.store.Audit(w.ctx(), "key ann", e[0], e[1], e[2]))
	}
	return w
}

// payloads are texts that would do something in a page that did not escape them where they stand: an element, an attribute, a link, a script, a
// style.
var payloads = []string{
	`<script>window.hit=1</script>`,
	`"><img src=x onerror="window.hit=1">`,
	`' autofocus onfocus='window.hit=1' x='`,
	`javascript:window.hit=1//`,
	`<svg onload=window.hit=1><a xlink:href="javascript:window.hit=1">x</a></svg>`,
	`</title></textarea></script><script>window.hit=1</script>`,
	`{{.CSRF}} ${window.hit=1} <!-- -->`,
	`<form action="//evil.example"><input name=csrf></form><base href="//evil.example/"><meta http-equiv=refresh content="0;url=//evil.example">`,
	"a\u202egnp.exe \u200b\u2066x\u2069 \U000E0041 \x1b[31m",
	`../../%2e%2e/?a=b&c=d#e`,
}

// hostile makes a world where each text that comes from outside is a payload.
func hostile(t testing.TB) *world {
	w := newWorld(t)
	for i, p := range payloads {
		w.profile(client.Profile{Name: p, Agent: p, Grant: p})
		id := w.host(p)
		report, err := json.Marshal(client.HostReport{Agents: []string{p}, Grants: []string{p}, Servers: []client.ServerReport{{Name: p, State: p, Revision: p, Error: p, Diff: p, Tools: []client.ToolReport{{Name: p, Description: p}}}}})
		w.must(err)
		w.must(w.store.Report(w.ctx(), id, report))
		w.key("key "+p, client.ScopeRead)
		_, err = w.store.SetWebhook(w.ctx(), client.Webhook{Name: p, URL: "http://127.0.0.1:1/" + fmt.Sprint(i), Events: []string{"run.done"}, All: true, Secret: "whsec_x"})
		w.must(err)
		w.must(w.store.Audit(w.ctx(), p, p, p, p))

		w.send(client.NewMessage{Conversation: p, Profile: p, Text: p, Author: p})
		k := w.claim(p)
		for kind := range lines {
			if kind != "message.accepted" {
				k.event(kind, map[string]any{
					"agent": p, "text": p, "author": p, "tool": p, "activity": p, "session_id": p, "host": p, "reason": p, "by": p, "approval": p, "decision": p, "file": p, "name": p, "status": p,
					"servers": []string{p}, "server": p, "error": p, "question": map[string]any{"server": p, "tool": p, "text": p},
					"proof": map[string]any{
						"how": p, "servers": []string{p}, "disabled": []string{p}, "failed": []string{p}, "notes": []string{p}, "tools": []string{p}, "built_in": []string{p},
						"rings": []map[string]any{{"name": p, "planned": p, "enforced": []string{p}, "proven": p, "not_covered": []string{p}}},
					},
				})
			}
		}
		k.event(strings.ToValidUTF8(p, "?"), map[string]any{p: p})
		k.attach(p, p, []byte(p))
		if i%2 == 0 {
			k.finish(map[string]any{"status": "ok", "reply": p, "agent": p, "agent_version": p, "salvage": p, "denials": []string{p}, "tool_calls": []map[string]any{{"server": p, "tool": p}}})
		} else {
			k.finish(map[string]any{"status": "failed", "error": map[string]any{"code": p, "message": p}, "agent": p, "agent_version": p, "salvage": p, "denials": []string{p}, "tool_calls": []map[string]any{{"server": p, "tool": p}}})
		}
		w.send(client.NewMessage{Conversation: p, Profile: p, Text: p, Author: p})
		k = w.claim(p)
		k.beat(p)
		k.ask("call", map[string]any{"client": p, "agent": p, "server": p, "tool": p, "description": p, "annotations": map[string]any{p: p}, "authority": p, "arguments": map[string]any{p: p}, "input_responses": map[string]any{p: p}})
		k.ask("question", map[string]any{"text": p, "choices": []string{p, p}})
		k.ask("call", []string{p})
		a := k.ask("question", map[string]any{"text": p})
		_, err = w.store.Answer(w.ctx(), a.ID, client.Answer{Decision: "answer", Digest: a.Digest, Reason: p}, p)
		w.must(err)
		w.must(w.store.Cancel(w.ctx(), k.run, p))
	}
	return w
}
