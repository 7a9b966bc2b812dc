package hub

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"nightporter/client"
	"nightporter/internal/hub/store"
	"nightporter/internal/hub/webhook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests.
const patience = 2 * time.Minute

// house is a hub on SQLite with a key that may do everything.
type house struct {
	t   *testing.T
	ctx context.Context
	h   *Hub
	url string
	all *client.Client
}

func newHouse(t *testing.T) *house {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	s, err := store.Open(ctx, filepath.Join(t.TempDir(), "hub.db"), store.Options{})
	must(t, err)
	h := New(s, Options{Version: "test"})
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		h.Close()
		server.Close()
		must(t, s.Close())
	})
	w := &house{t: t, ctx: ctx, h: h, url: server.URL}
	secret, err := FirstKey(ctx, s)
	must(t, err)
	if again, err := FirstKey(ctx, s); again != "" || err != nil {
		t.Fatalf("a second first key: %v", err)
	}
	w.all = w.with(secret)
	must(t, w.all.Put(ctx, "/v1/profiles/default", client.Profile{Agent: "demo"}, nil))
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *house) with(secret string) *client.Client {
	transport := &http.Transport{}
	w.t.Cleanup(transport.CloseIdleConnections)
	c, err := client.New(w.url, secret, &http.Client{Transport: transport})
	must(w.t, err)
	return c
}

// key makes a key with scopes.
func (w *house) key(name string, scopes ...client.Scope) *client.Client {
	w.t.Helper()
	var k client.Key
	must(w.t, w.all.Post(w.ctx, "/v1/keys", newKey{Name: name, Scopes: scopes}, &k))
	return w.with(k.Secret)
}

// host pairs a host.
func (w *house) host(name string) *client.Client {
	w.t.Helper()
	var i client.Invite
	must(w.t, w.all.Post(w.ctx, "/v1/invites", newInvite{}, &i))
	p, err := w.with("").Pair(w.ctx, client.Pairing{Code: strings.ToLower(i.Code), Name: name})
	must(w.t, err)
	return w.with(p.Key)
}

func (w *house) claim(h *client.Client) *client.Assignment {
	w.t.Helper()
	a, err := h.Claim(w.ctx, client.Claim{Slots: 8, Version: "1", WaitMS: 20_000})
	must(w.t, err)
	if a == nil {
		w.t.Fatal("no run came")
	}
	return a
}

var okOutcome = json.RawMessage(`{"status":"ok","reply":"42","session_id":"s","duration_ms":1,"usage":{"input_tokens":1,"output_tokens":2,"cost_usd":0.1}}`)

func TestAMessageIsAnsweredByAHostAndItsReplyComesByStreamAndWebhook(t *testing.T) {
	w := newHouse(t)
	var mu sync.Mutex
	var got []*http.Request
	var bodies [][]byte
	arrived := make(chan struct{}, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		got, bodies = append(got, r), append(bodies, body)
		n := len(got)
		mu.Unlock()
		if n == 1 {
			http.Error(rw, "not now", http.StatusInternalServerError)
			return
		}
		arrived <- struct{}{}
	}))
	t.Cleanup(receiver.Close)
	var hook client.Webhook
	must(t, w.all.Put(w.ctx, "/v1/webhooks/inbox", client.Webhook{URL: receiver.URL}, &hook))
	if !strings.HasPrefix(hook.Secret, "whsec_") {
		t.Fatalf("%+v", hook)
	}
	var again client.Webhook
	must(t, w.all.Put(w.ctx, "/v1/webhooks/inbox", client.Webhook{URL: receiver.URL, Events: []string{"run.done"}}, &again))
	if again.Secret != "" {
		t.Error("a secret was told twice")
	}

	h := w.host("laptop")
	claimed := make(chan *client.Assignment, 1)
	go func() { // it waits before there is anything
		a, err := h.Claim(w.ctx, client.Claim{Slots: 1, Version: "1", WaitMS: 30_000})
		if err != nil {
			t.Error(err)
		}
		claimed <- a
	}()
	m, err := w.all.Send(w.ctx, client.NewMessage{Conversation: "a/b c", Text: "what is the answer?", Webhook: "inbox"}, "once")
	must(t, err)
	twice, err := w.all.Send(w.ctx, client.NewMessage{Conversation: "a/b c", Text: "what is the answer?", Webhook: "inbox"}, "once")
	must(t, err)
	if twice.ID != m.ID {
		t.Error("it was accepted twice")
	}
	if _, err := w.all.Send(w.ctx, client.NewMessage{Conversation: "a/b c", Text: "another"}, "once"); !client.IsCode(err, "idempotency_mismatch") {
		t.Error(err)
	}
	a := <-claimed
	if a == nil || a.Text != "what is the answer?" || a.Profile.Agent != "demo" {
		t.Fatalf("%+v", a)
	}
	var events []string
	followed := make(chan error, 1)
	go func() {
		followed <- w.all.RunEvents(w.ctx, a.Run.ID, 0, func(e client.Event) error { events = append(events, e.Type); return nil })
	}()
	beaten, err := h.Beat(w.ctx, a.Run.ID, client.Beat{Fence: a.Fence, Activity: "using mcp__x__y", SessionID: "s"})
	must(t, err)
	if beaten.LeaseMS != store.DefaultLease.Milliseconds() || beaten.Cancel != "" {
		t.Errorf("%+v", beaten)
	}
	batch := client.Events{Fence: a.Fence, N: 1, Events: []json.RawMessage{json.RawMessage(`{"type":"run.started"}`), json.RawMessage(`{"type":"run.text","text":"<b>"}`)}}
	must(t, h.SendEvents(w.ctx, a.Run.ID, batch))
	must(t, h.SendEvents(w.ctx, a.Run.ID, batch)) // again
	must(t, h.PostUpdate(w.ctx, a.Run.ID, client.Update{Fence: a.Fence, ID: "u1", Text: "thinking"}))
	must(t, h.Attach(w.ctx, a.Run.ID, client.Attach{Fence: a.Fence, ID: "f1", Name: "ä.html", MediaType: "text/html", Data: []byte("<script>")}))
	conversation, err := h.ReadConversation(w.ctx, a.Run.ID, a.Fence, 0)
	must(t, err)
	if len(conversation.Items) != 1 || conversation.Items[0].Text != "what is the answer?" {
		t.Errorf("%+v", conversation)
	}
	must(t, h.Finish(w.ctx, a.Run.ID, client.Finish{Fence: a.Fence, Outcome: okOutcome}))
	must(t, h.Finish(w.ctx, a.Run.ID, client.Finish{Fence: a.Fence, Outcome: okOutcome}))
	must(t, <-followed)
	if want := []string{"message.accepted", "run.taken", "run.started", "run.text", "update.posted", "file.attached", "run.done"}; !slices.Equal(events, want) {
		t.Errorf("%q", events)
	}
	r, err := w.all.Run(w.ctx, a.Run.ID)
	must(t, err)
	if r.Reply == nil || *r.Reply != "42" || r.Status != "ok" || r.Host != "laptop" || string(r.Outcome) == "" {
		t.Errorf("%+v", r)
	}
	for range 2 { // the update and the reply
		select {
		case <-arrived:
		case <-w.ctx.Done():
			t.Fatal("no webhook came")
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if got[0].Header.Get(webhook.HeaderID) != got[1].Header.Get(webhook.HeaderID) {
		t.Error("the second try has another id")
	}
	for i, r := range got {
		if _, err := webhook.Verify(r.Header, hook.Secret, time.Now(), bodies[i]); err != nil {
			t.Error(err)
		}
	}
	var last struct {
		Type         string
		Conversation string
		Data         client.Run
	}
	must(t, json.Unmarshal(bodies[len(bodies)-1], &last))
	if last.Type != "run.done" || last.Conversation != "a/b c" || *last.Data.Reply != "42" {
		t.Errorf("%s", bodies[len(bodies)-1])
	}

	// A key that only asks sees its own conversations.
	asker := w.key("asker", client.ScopeAsk)
	if _, err := asker.Run(w.ctx, a.Run.ID); !client.IsCode(err, "not_found") {
		t.Error(err)
	}
	if _, err := asker.Send(w.ctx, client.NewMessage{Conversation: "a/b c", Text: "and I?"}, ""); !client.IsCode(err, "forbidden") {
		t.Error(err)
	}
	mine, err := asker.Send(w.ctx, client.NewMessage{Conversation: "mine", Text: "x"}, "")
	must(t, err)
	if _, err := asker.Run(w.ctx, mine.Run.ID); err != nil {
		t.Error(err)
	}
	must(t, asker.Cancel(w.ctx, mine.Run.ID, "no need"))
	if r, err := asker.Run(w.ctx, mine.Run.ID); err != nil || r.Status != "stopped" || r.ErrorMessage != "no need" {
		t.Errorf("%+v %v", r, err)
	}

	// A file never comes back as a page.
	response := w.get(w.secret(), "/v1/files/f1")
	defer response.Body.Close()
	if body, _ := io.ReadAll(response.Body); string(body) != "<script>" || response.Header.Get("Content-Type") != "application/octet-stream" || !strings.HasPrefix(response.Header.Get("Content-Disposition"), "attachment") {
		t.Errorf("%s %v", body, response.Header)
	}
}

// secret makes a key that may do everything.
func (w *house) secret() string {
	w.t.Helper()
	var k client.Key
	must(w.t, w.all.Post(w.ctx, "/v1/keys", newKey{Name: "raw" + store.NewID(), Scopes: client.Scopes}, &k))
	return k.Secret
}

func (w *house) get(secret, path string) *http.Response { return w.do(secret, "GET", path, "", nil) }

func (w *house) do(secret, method, path, body string, header http.Header) *http.Response {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.ctx, method, w.url+path, strings.NewReader(body))
	must(w.t, err)
	r.Header.Set("Content-Type", "application/json")
	for name, values := range header {
		r.Header[name] = values
	}
	if host := r.Header.Get("Host"); host != "" {
		r.Host = host
	}
	if secret != "" {
		r.Header.Set("Authorization", "Bearer "+secret)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := transport.RoundTrip(r)
	must(w.t, err)
	return response
}

// problem is the code with which a request was refused; empty when it was not.
func (w *house) problem(secret, method, path, body string, header http.Header) string {
	w.t.Helper()
	response := w.do(secret, method, path, body, header)
	defer response.Body.Close()
	raw, _ := io.ReadAll(response.Body)
	if response.StatusCode/100 == 2 {
		return ""
	}
	var p client.Problem
	if response.Header.Get("Content-Type") != "application/problem+json" || json.Unmarshal(raw, &p) != nil || p.Status != response.StatusCode || p.Detail == "" || statuses[p.Code] != p.Status {
		w.t.Errorf("%s %s: %s is no problem: %s", method, path, response.Status, raw)
	}
	return p.Code
}

func example(r route) string {
	path := strings.NewReplacer("{id}", "none", "{key}", "none", "{name}", "none", "{approval}", "none").Replace(r.path)
	return path
}

func TestEachRouteWantsItsScopeAndNoOther(t *testing.T) {
	w := newHouse(t)
	secrets := map[client.Scope]string{}
	for _, scope := range client.Scopes {
		var k client.Key
		must(t, w.all.Post(w.ctx, "/v1/keys", newKey{Name: "only-" + string(scope), Scopes: []client.Scope{scope}}, &k))
		secrets[scope] = k.Secret
	}
	var i client.Invite
	must(t, w.all.Post(w.ctx, "/v1/invites", newInvite{}, &i))
	paired, err := w.with("").Pair(w.ctx, client.Pairing{Code: i.Code, Name: "h"})
	must(t, err)
	secrets[aHost] = paired.Key
	for _, r := range routes {
		if r.scope == anyone {
			continue
		}
		// A fresh hub for each would be slow; the bound on failures is another test's.
		w.h.tries.mu.Lock()
		w.h.tries.failed = nil
		w.h.tries.mu.Unlock()
		if got := w.problem("", r.method, example(r), "", nil); got != "unauthorized" {
			t.Errorf("%s %s without a key: %q", r.method, r.path, got)
		}
		for scope, secret := range secrets {
			got := w.problem(secret, r.method, example(r), "", nil)
			allowed := scope == r.scope || r.scope == someone && (scope == client.ScopeRead || scope == client.ScopeAsk)
			refused := got == "forbidden" || got == "unauthorized"
			if allowed == refused {
				t.Errorf("%s %s with %s: %q", r.method, r.path, scope, got)
			}
		}
	}
}

func TestWhatIsHostileIsRefused(t *testing.T) {
	w := newHouse(t)
	secret := w.secret()
	for what, c := range map[string]struct {
		method, path, body string
		header             http.Header
		want               string
	}{
		"a page of another site": {"GET", "/v1/hosts", "", http.Header{"Sec-Fetch-Site": {"cross-site"}}, "forbidden"},
		"another name":           {"GET", "/v1/hosts", "", http.Header{"Host": {"evil.example.com"}}, "forbidden"},
		"a form":                 {"POST", "/v1/messages", "text=x", http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, "media_type"},
		"text":                   {"POST", "/v1/messages", `{"text":"x"}`, http.Header{"Content-Type": {"text/plain"}}, "media_type"},
		"a long body":            {"POST", "/v1/host/pair", strings.Repeat("x", 5000), nil, "too_large"},
		"no JSON":                {"POST", "/v1/messages", "hello", nil, "invalid"},
		"two values":             {"POST", "/v1/messages", `{"text":"x"} {}`, nil, "invalid"},
		"an unknown field":       {"POST", "/v1/messages", `{"text":"x","profil":"y"}`, nil, "invalid"},
		"no text":                {"POST", "/v1/messages", `{"text":" "}`, nil, "invalid"},
		"no such profile":        {"POST", "/v1/messages", `{"text":"x","profile":"none"}`, nil, "invalid"},
		"no such webhook":        {"POST", "/v1/messages", `{"text":"x","webhook":"none"}`, nil, "invalid"},
		"a zero byte":            {"POST", "/v1/messages", `{"text":"x\u0000"}`, nil, "invalid"},
		"a priority":             {"POST", "/v1/messages", `{"text":"x","priority":101}`, nil, "invalid"},
		"a path as a name":       {"PUT", "/v1/profiles/..%2Fx", `{"agent":"x"}`, nil, "invalid"},
		"a file as a webhook":    {"PUT", "/v1/webhooks/w", `{"url":"file:///etc/passwd"}`, nil, "invalid"},
		"a scope":                {"POST", "/v1/keys", `{"name":"k","scopes":["root"]}`, nil, "invalid"},
		"a number":               {"GET", "/v1/conversations/c/messages?after=-1", "", nil, "invalid"},
		"nothing there":          {"GET", "/v1/nothing", "", nil, "not_found"},
		"another method":         {"PATCH", "/v1/hosts", "", nil, "not_found"},
	} {
		if got := w.problem(secret, c.method, c.path, c.body, c.header); got != c.want {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
	// Markup in text comes back as text of JSON alone.
	markup := `<script>alert("x")</script>`
	m, err := w.all.Send(w.ctx, client.NewMessage{Conversation: markup, Text: markup, Author: markup}, "")
	must(t, err)
	response := w.get(secret, "/v1/messages/"+m.ID)
	defer response.Body.Close()
	raw, _ := io.ReadAll(response.Body)
	if strings.Contains(string(raw), "<script>") || response.Header.Get("X-Content-Type-Options") != "nosniff" || m.Text != markup {
		t.Errorf("%s", raw)
	}
	// Who guesses is slowed down, and who has a key of another address is not.
	for range maxTries {
		if got := w.problem("npk_guess", "GET", "/v1/hosts", "", nil); got != "unauthorized" {
			t.Fatal(got)
		}
	}
	if got := w.problem("npk_guess", "GET", "/v1/hosts", "", nil); got != "rate_limited" {
		t.Error(got)
	}
}

func TestAnInviteThatWasUsedAndAHostThatWasRevokedAreRefused(t *testing.T) {
	w := newHouse(t)
	var i client.Invite
	must(t, w.all.Post(w.ctx, "/v1/invites", newInvite{}, &i))
	none := w.with("")
	p, err := none.Pair(w.ctx, client.Pairing{Code: i.Code, Name: "a"})
	must(t, err)
	if _, err := none.Pair(w.ctx, client.Pairing{Code: i.Code, Name: "b"}); !client.IsCode(err, "unauthorized") {
		t.Error(err)
	}
	h := w.with(p.Key)
	_, err = w.all.Send(w.ctx, client.NewMessage{Text: "x"}, "")
	must(t, err)
	a := w.claim(h)
	must(t, w.all.Delete(w.ctx, "/v1/hosts/a"))
	for what, err := range map[string]error{
		"claim":  func() error { _, err := h.Claim(w.ctx, client.Claim{Slots: 1}); return err }(),
		"beat":   func() error { _, err := h.Beat(w.ctx, a.Run.ID, client.Beat{Fence: a.Fence}); return err }(),
		"finish": h.Finish(w.ctx, a.Run.ID, client.Finish{Fence: a.Fence, Outcome: okOutcome}),
	} {
		if !client.IsCode(err, "revoked") {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Its run is another's now.
	if b := w.claim(w.host("b")); b.Run.ID != a.Run.ID || b.Run.Attempts != 2 {
		t.Errorf("%+v", b)
	}
	var audit client.Page[client.AuditEntry]
	must(t, w.all.Get(w.ctx, "/v1/audit", &audit))
	var acts []string
	for _, e := range audit.Items {
		acts = append(acts, e.Actor+" "+e.Action+" "+e.Object)
	}
	if !slices.Contains(acts, "key first host.revoke a") || !slices.Contains(acts, "host a host.pair a") {
		t.Errorf("%q", acts)
	}
}

func TestAWebhookThatIsForgedOrReplayedIsRefused(t *testing.T) {
	w := newHouse(t)
	var k client.Hook
	must(t, w.all.Put(w.ctx, "/v1/hooks/crm", client.Hook{Text: "/issue/text", Conversation: "/issue/id"}, &k))
	body := `{"issue":{"id":17,"text":"help"}}`
	signed := func(secret, id string, at time.Time) http.Header {
		header := http.Header{}
		must(t, webhook.Sign(header, secret, id, at, []byte(body)))
		return header
	}
	post := func(path, body string, header http.Header) string { return w.problem("", "POST", path, body, header) }
	const path = "/v1/hooks/crm/messages"
	good := signed(k.Secret, "evt1", time.Now())
	for what, c := range map[string]struct {
		path, body string
		header     http.Header
		want       string
	}{
		"no signature":   {path, body, nil, "unauthorized"},
		"another secret": {path, body, signed(webhook.NewSecret(), "e", time.Now()), "unauthorized"},
		"another body":   {path, strings.Replace(body, "help", "halp", 1), good, "unauthorized"},
		"old":            {path, body, signed(k.Secret, "e", time.Now().Add(-time.Hour)), "unauthorized"},
		"no such hook":   {"/v1/hooks/none/messages", body, good, "unauthorized"},
		"good":           {path, body, good, ""},
		"replayed":       {path, body, good, ""},
	} {
		if got := post(c.path, c.body, c.header); got != c.want {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
	var messages client.Page[client.Message]
	must(t, w.all.Get(w.ctx, "/v1/conversations/crm:17/messages", &messages))
	if len(messages.Items) != 1 || messages.Items[0].Text != "help" {
		t.Errorf("%+v", messages.Items)
	}
}

func TestACancellationAndAnInterruptionReachTheHost(t *testing.T) {
	w := newHouse(t)
	h := w.host("a")
	m, err := w.all.Send(w.ctx, client.NewMessage{Conversation: "c", Text: "one"}, "")
	must(t, err)
	a := w.claim(h)
	heard := make(chan client.Commands, 1)
	go func() {
		c, err := h.Commands(w.ctx, client.MaxWait)
		if err != nil {
			t.Error(err)
		}
		heard <- c
	}()
	_, err = w.all.Send(w.ctx, client.NewMessage{Conversation: "c", Text: "two", Interrupt: true}, "")
	must(t, err)
	if c := <-heard; len(c.Cancel) != 1 || c.Cancel[0].Run != m.Run.ID || c.Cancel[0].Fence != a.Fence {
		t.Fatalf("%+v", c)
	}
	b, err := h.Beat(w.ctx, m.Run.ID, client.Beat{Fence: a.Fence})
	must(t, err)
	if b.Cancel != "interrupted by a newer message" {
		t.Errorf("%+v", b)
	}
	must(t, h.Finish(w.ctx, m.Run.ID, client.Finish{Fence: a.Fence, Outcome: json.RawMessage(`{"status":"stopped","error":{"code":"cancelled","message":"interrupted"}}`)}))
	if next := w.claim(h); next.Text != "two" {
		t.Errorf("%+v", next)
	}
}

func TestAnApprovalIsAnsweredAndTheHostHearsIt(t *testing.T) {
	w := newHouse(t)
	h := w.host("a")
	_, err := w.all.Send(w.ctx, client.NewMessage{Conversation: "c", Text: "one"}, "")
	must(t, err)
	a := w.claim(h)
	_, err = h.Ask(w.ctx, a.Run.ID, client.Ask{Fence: a.Fence, ID: "q", Kind: "call", Digest: "d", Question: json.RawMessage(`{"tool":"x"}`), DeadlineMS: 60_000})
	must(t, err)
	heard := make(chan client.Approval, 1)
	go func() {
		q, err := h.Asked(w.ctx, a.Run.ID, "q", a.Fence, client.MaxWait)
		if err != nil {
			t.Error(err)
		}
		heard <- q
	}()
	approver := w.key("ann", client.ScopeApprove)
	if err := approver.Post(w.ctx, "/v1/approvals/q/answer", client.Answer{Decision: "approve", Digest: "another"}, nil); !client.IsCode(err, "conflict") {
		t.Error(err)
	}
	must(t, approver.Post(w.ctx, "/v1/approvals/q/answer", client.Answer{Decision: "approve", Digest: "d"}, nil))
	if q := <-heard; q.State != client.ApprovalApproved || q.By != "key ann" {
		t.Errorf("%+v", q)
	}
	if err := approver.Post(w.ctx, "/v1/approvals/q/answer", client.Answer{Decision: "deny", Digest: "d"}, nil); !client.IsCode(err, "over") {
		t.Error(err)
	}
}

func TestSchedulesKnowTheirZones(t *testing.T) {
	now := time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC)
	v := client.Schedule{Cron: "30 9 * * *", Zone: "Europe/Berlin"}
	must(t, checkSchedule(&v, now))
	// On 29 March 2026 summer time begins there.
	if want := time.Date(2026, 3, 29, 7, 30, 0, 0, time.UTC); !v.Next.Equal(want) {
		t.Errorf("%v, want %v", v.Next, want)
	}
	for _, bad := range []client.Schedule{{}, {Cron: "x"}, {Cron: "* * * * *", At: &now}, {Cron: "* * * * *", Zone: "Mars"}, {At: &now, Zone: "UTC"}} {
		if err := checkSchedule(&bad, now); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

func TestPausesBetweenTriesGrowWithinBounds(t *testing.T) {
	for attempts := range 100 {
		if d := pauseBefore(attempts); d < firstRetry/2 || d > mostRetry+firstRetry {
			t.Errorf("after %d tries: %v", attempts, d)
		}
	}
}

// TestTheDocumentIsThatOfTheRoutes checks the OpenAPI document against the table and what handlers answer against its schemas.
func TestTheDocumentIsThatOfTheRoutes(t *testing.T) {
	w := newHouse(t)
	response := w.get("", "/openapi.json")
	defer response.Body.Close()
	raw, _ := io.ReadAll(response.Body)
	var doc struct {
		OpenAPI    string
		Paths      map[string]map[string]struct{ OperationID, Summary string }
		Components struct {
			Schemas map[string]struct{ Properties map[string]any }
		}
	}
	must(t, json.Unmarshal(raw, &doc))
	ids, n := map[string]bool{}, 0
	for path, operations := range doc.Paths {
		for method, o := range operations {
			n++
			if ids[o.OperationID] || o.Summary == "" || !strings.HasSuffix(o.Summary, ".") {
				t.Errorf("%s %s: %+v", method, path, o)
			}
			ids[o.OperationID] = true
		}
	}
	if n != len(routes) || doc.OpenAPI != "3.1.0" {
		t.Errorf("%d operations of %d routes", n, len(routes))
	}
	for _, ref := range strings.Split(string(raw), `"$ref":"#/components/schemas/`)[1:] {
		name, _, _ := strings.Cut(ref, `"`)
		if doc.Components.Schemas[name].Properties == nil {
			t.Errorf("the schema %s is not there", name)
		}
	}
	for _, v := range []any{client.Run{}, client.Message{}, client.Assignment{}} {
		schema := doc.Components.Schemas[reflect.TypeOf(v).Name()]
		raw, err := json.Marshal(v)
		must(t, err)
		var fields map[string]any
		must(t, json.Unmarshal(raw, &fields))
		for field := range fields {
			if schema.Properties[field] == nil {
				t.Errorf("%T has %s, and its schema not", v, field)
			}
		}
	}
}

func TestAHubThatClosesLetsGoOfWhoWaits(t *testing.T) {
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "hub.db"), store.Options{})
	must(t, err)
	defer s.Close()
	h := New(s, Options{})
	server := httptest.NewServer(h)
	defer server.Close()
	w := &house{t: t, ctx: t.Context(), h: h, url: server.URL}
	secret, err := FirstKey(w.ctx, s)
	must(t, err)
	w.all = w.with(secret)
	host := w.host("a")
	ended := make(chan error, 1)
	began := make(chan struct{})
	go func() {
		close(began)
		a, err := host.Claim(w.ctx, client.Claim{Slots: 1, WaitMS: 30_000})
		if a != nil {
			err = errors.New("a run came")
		}
		ended <- err
	}()
	<-began
	h.Close()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("it still waits")
	}
}
