package hub

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"nightporter/client"
	"nightporter/internal/hub/store"
	"nightporter/internal/hub/webhook"
)

func newOf(v any) any { return reflect.New(reflect.TypeOf(v)).Interface() }

// reason is the body of a cancellation.
type reason struct {
	Reason string `json:"reason,omitempty"`
}

// newKey is the body of a new key.
type newKey struct {
	Name    string         `json:"name"`
	Scopes  []client.Scope `json:"scopes"`
	Expires *time.Time     `json:"expires,omitempty"`
}

// newInvite is the body of a new invite.
type newInvite struct {
	LifeSec int `json:"life_sec,omitempty"` // 0: 900
}

var routes []route

func init() { // the table and the handlers refer to each other
	routes = []route{
		{method: "POST", path: "/v1/messages", scope: client.ScopeAsk, in: client.NewMessage{}, out: client.Message{}, status: 201, do: (*Hub).send, says: "Send a message, which a run will answer."},
		{method: "GET", path: "/v1/messages/{id}", scope: someone, out: client.Message{}, do: (*Hub).message, says: "A message with its run."},
		{method: "GET", path: "/v1/runs", scope: client.ScopeRead, out: client.Page[client.Run]{}, query: []string{"state", "conversation", "profile", "status", "limit", "after"}, do: (*Hub).runs, says: "Runs, newest first."},
		{method: "GET", path: "/v1/runs/{id}", scope: someone, out: client.Run{}, do: (*Hub).run, says: "A run with its outcome."},
		{method: "GET", path: "/v1/runs/{id}/attempts", scope: someone, out: client.Page[client.Attempt]{}, do: (*Hub).attempts, says: "How often hosts took a run."},
		{method: "GET", path: "/v1/runs/{id}/events", scope: someone, out: client.Page[client.Event]{}, query: []string{"after", "limit"}, serve: (*Hub).runEvents, says: "Events of a run: a page, or a stream where text/event-stream is accepted."},
		{method: "POST", path: "/v1/runs/{id}/cancel", scope: client.ScopeAsk, in: reason{}, do: (*Hub).cancel, says: "End a run, or have its host stop it."},
		{method: "GET", path: "/v1/conversations", scope: client.ScopeRead, out: client.Page[client.Conversation]{}, query: []string{"limit", "after"}, do: (*Hub).conversations, says: "Conversations, the one that changed last first."},
		{method: "GET", path: "/v1/conversations/{key}", scope: someone, out: client.Conversation{}, do: (*Hub).conversation, says: "A conversation."},
		{method: "GET", path: "/v1/conversations/{key}/messages", scope: someone, out: client.Page[client.Message]{}, query: []string{"limit", "after"}, do: (*Hub).messages, says: "The messages of a conversation with their runs, oldest first."},
		{method: "GET", path: "/v1/conversations/{key}/events", scope: someone, out: client.Page[client.Event]{}, query: []string{"after", "limit"}, serve: (*Hub).conversationEvents, says: "Events of a conversation: a page, or a stream where text/event-stream is accepted."},
		{method: "GET", path: "/v1/conversations/{key}/files", scope: someone, out: client.Page[client.File]{}, do: (*Hub).files, says: "The files that runs attached to a conversation."},
		{method: "GET", path: "/v1/files/{id}", scope: someone, serve: (*Hub).file, says: "The content of a file."},
		{method: "GET", path: "/v1/approvals", scope: client.ScopeRead, out: client.Page[client.Approval]{}, query: []string{"state", "limit", "after"}, do: (*Hub).approvals, says: "Tool calls and questions that wait for a person, or did, newest first."},
		{method: "GET", path: "/v1/approvals/{id}", scope: client.ScopeRead, out: client.Approval{}, do: (*Hub).approval, says: "One of them."},
		{method: "POST", path: "/v1/approvals/{id}/answer", scope: client.ScopeApprove, in: client.Answer{}, out: client.Approval{}, do: (*Hub).decide, says: "Approve, deny or answer."},
		{method: "GET", path: "/v1/profiles", scope: client.ScopeRead, out: client.Page[client.Profile]{}, do: (*Hub).profiles, says: "The profiles."},
		{method: "PUT", path: "/v1/profiles/{name}", scope: client.ScopeAdmin, in: client.Profile{}, out: client.Profile{}, do: (*Hub).setProfile, says: "Make or change a profile."},
		{method: "DELETE", path: "/v1/profiles/{name}", scope: client.ScopeAdmin, do: removing("profile", (*store.Store).RemoveProfile), says: "Remove a profile."},
		{method: "GET", path: "/v1/webhooks", scope: client.ScopeAdmin, out: client.Page[client.Webhook]{}, do: (*Hub).webhooks, says: "Where the hub sends what happens."},
		{method: "PUT", path: "/v1/webhooks/{name}", scope: client.ScopeAdmin, in: client.Webhook{}, out: client.Webhook{}, do: (*Hub).setWebhook, says: "Make or change a webhook; the answer to the first has its secret."},
		{method: "DELETE", path: "/v1/webhooks/{name}", scope: client.ScopeAdmin, do: removing("webhook", (*store.Store).RemoveWebhook), says: "Remove a webhook."},
		{method: "GET", path: "/v1/deliveries", scope: client.ScopeRead, out: client.Page[client.Delivery]{}, query: []string{"state", "limit", "after"}, do: (*Hub).deliveries, says: "What webhooks got or are to get, newest first."},
		{method: "POST", path: "/v1/deliveries/{id}/retry", scope: client.ScopeAdmin, do: (*Hub).retry, says: "Try a dead delivery again."},
		{method: "GET", path: "/v1/hooks", scope: client.ScopeAdmin, out: client.Page[client.Hook]{}, do: (*Hub).hooks, says: "The inbound webhooks."},
		{method: "PUT", path: "/v1/hooks/{name}", scope: client.ScopeAdmin, in: client.Hook{}, out: client.Hook{}, do: (*Hub).setHook, says: "Make or change an inbound webhook; the answer to the first has its secret."},
		{method: "DELETE", path: "/v1/hooks/{name}", scope: client.ScopeAdmin, do: removing("hook", (*store.Store).RemoveHook), says: "Remove an inbound webhook."},
		{method: "POST", path: "/v1/hooks/{name}/messages", scope: anyone, out: client.Message{}, status: 201, do: (*Hub).hooked, body: 1 << 20, says: "Send a message by a signed webhook (Standard Webhooks)."},
		{method: "GET", path: "/v1/schedules", scope: client.ScopeRead, out: client.Page[client.Schedule]{}, do: (*Hub).listSchedules, says: "Messages that are sent by the clock."},
		{method: "PUT", path: "/v1/schedules/{name}", scope: client.ScopeAdmin, in: client.Schedule{}, out: client.Schedule{}, do: (*Hub).setSchedule, says: "Make or change a schedule."},
		{method: "DELETE", path: "/v1/schedules/{name}", scope: client.ScopeAdmin, do: removing("schedule", (*store.Store).RemoveSchedule), says: "Remove a schedule."},
		{method: "GET", path: "/v1/hosts", scope: client.ScopeRead, out: client.Page[client.Host]{}, do: (*Hub).hosts, says: "The hosts."},
		{method: "GET", path: "/v1/hosts/{id}", scope: client.ScopeRead, out: client.Host{}, do: (*Hub).oneHost, says: "A host with its report, by id or name."},
		{method: "DELETE", path: "/v1/hosts/{id}", scope: client.ScopeAdmin, do: (*Hub).revokeHost, says: "Revoke a host's key and take its runs back."},
		{method: "POST", path: "/v1/invites", scope: client.ScopeAdmin, in: newInvite{}, out: client.Invite{}, status: 201, do: (*Hub).invite, says: "A code with which one host can pair, once."},
		{method: "GET", path: "/v1/keys", scope: client.ScopeAdmin, out: client.Page[client.Key]{}, do: (*Hub).keys, says: "The keys, without what is secret of them."},
		{method: "POST", path: "/v1/keys", scope: client.ScopeAdmin, in: newKey{}, out: client.Key{}, status: 201, do: (*Hub).addKey, says: "Make a key; the answer has it, once."},
		{method: "DELETE", path: "/v1/keys/{id}", scope: client.ScopeAdmin, do: (*Hub).revokeKey, says: "Revoke a key, by id or name."},
		{method: "GET", path: "/v1/trends", scope: client.ScopeRead, out: client.Page[client.Trend]{}, query: []string{"days"}, do: (*Hub).trends, says: "Runs, failures and spend by day and profile."},
		{method: "GET", path: "/v1/audit", scope: client.ScopeAdmin, out: client.Page[client.AuditEntry]{}, query: []string{"limit"}, do: (*Hub).auditEntries, says: "What people and hosts did on the hub, newest first."},

		{method: "POST", path: "/v1/host/pair", scope: anyone, in: client.Pairing{}, out: client.Paired{}, status: 201, do: (*Hub).pair, body: 4096, says: "Exchange an invite's code for a host's own key."},
		{method: "POST", path: "/v1/host/claim", scope: aHost, in: client.Claim{}, out: client.Assignment{}, do: (*Hub).claim, says: "Take a run, or wait for one; 204 without."},
		{method: "GET", path: "/v1/host/commands", scope: aHost, out: client.Commands{}, query: []string{"wait_ms"}, do: (*Hub).commands, says: "Wait until a run is to be stopped."},
		{method: "PUT", path: "/v1/host/report", scope: aHost, in: client.HostReport{}, do: (*Hub).report, body: 4 << 20, says: "Say what the host has."},
		{method: "POST", path: "/v1/host/runs/{id}/beat", scope: aHost, in: client.Beat{}, out: client.Beaten{}, do: (*Hub).beat, says: "Renew the lease of a run."},
		{method: "POST", path: "/v1/host/runs/{id}/events", scope: aHost, in: client.Events{}, do: (*Hub).events, says: "Add events to a run."},
		{method: "POST", path: "/v1/host/runs/{id}/finish", scope: aHost, in: client.Finish{}, do: (*Hub).finish, says: "End a run with its outcome."},
		{method: "POST", path: "/v1/host/runs/{id}/release", scope: aHost, in: client.Release{}, do: (*Hub).release, says: "Give a run back."},
		{method: "POST", path: "/v1/host/runs/{id}/approvals", scope: aHost, in: client.Ask{}, out: client.Approval{}, do: (*Hub).ask, says: "Put a call or a question to a person."},
		{method: "GET", path: "/v1/host/runs/{id}/approvals/{approval}", scope: aHost, out: client.Approval{}, query: []string{"fence", "wait_ms"}, do: (*Hub).asked, says: "Wait for the answer."},
		{method: "POST", path: "/v1/host/runs/{id}/updates", scope: aHost, in: client.Update{}, do: (*Hub).update, says: "Say something before the reply."},
		{method: "POST", path: "/v1/host/runs/{id}/files", scope: aHost, in: client.Attach{}, do: (*Hub).attach, body: maxFileBody, says: "Attach a file."},
		{method: "GET", path: "/v1/host/runs/{id}/conversation", scope: aHost, out: client.Page[client.Message]{}, query: []string{"fence", "after"}, do: (*Hub).hostConversation, says: "The run's conversation."},
	}
}

// paged is a list as an answer; next names the page that follows a full one.
func paged[T any](items []T, err error, limit int, next func(T) string) (any, error) {
	if err != nil {
		return nil, err
	}
	p := client.Page[T]{Items: items}
	if limit == 0 {
		limit = store.MaxPage
	}
	if next != nil && len(items) == limit {
		p.Next = next(items[len(items)-1])
	}
	return p, nil
}

const (
	maxText    = 16 << 20 // of a message: more than any agent takes
	maxKeyText = 500      // of a conversation's key
	maxLabel   = 200      // of names for people
)

var nameOK = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

func checkName(what, name string) error {
	if !nameOK.MatchString(name) {
		return problemf("invalid", "a %s's name is 1 to 100 letters, digits and . _ -, not %q", what, name)
	}
	return nil
}

func (h *Hub) send(c *call) (any, error) {
	m := c.in.(*client.NewMessage)
	if err := h.checkMessage(c, m); err != nil {
		return nil, err
	}
	if m.TraceParent == "" {
		m.TraceParent = c.r.Header.Get("Traceparent")
	}
	sum := sha256.Sum256(c.raw)
	idempotency := c.r.Header.Get("Idempotency-Key")
	if len(idempotency) > maxLabel {
		return nil, problemf("invalid", "an idempotency key has at most %d bytes", maxLabel)
	}
	sent, created, err := h.store.AddMessage(c.ctx, store.Sender{Key: c.key.ID, Idempotency: idempotency, Digest: hex.EncodeToString(sum[:])}, *m)
	if err != nil {
		return nil, err
	}
	if !created {
		return withStatus{http.StatusOK, sent}, nil
	}
	return sent, nil
}

func (h *Hub) checkMessage(c *call, m *client.NewMessage) error {
	switch {
	case strings.TrimSpace(m.Text) == "":
		return problemf("invalid", "the message has no text")
	case len(m.Text) > maxText:
		return problemf("too_large", "the text is longer than %d bytes", maxText)
	case len(m.Conversation) > maxKeyText || !utf8.ValidString(m.Conversation):
		return problemf("invalid", "a conversation's key is text of at most %d bytes", maxKeyText)
	case len(m.Author) > maxLabel:
		return problemf("invalid", "the author is longer than %d bytes", maxLabel)
	case m.Priority < -100 || m.Priority > 100:
		return problemf("invalid", "the priority is -100 to 100")
	case strings.ContainsRune(m.Text+m.Conversation+m.Author, 0):
		return problemf("invalid", "a text holds a zero byte")
	}
	if m.Webhook != "" {
		hooks, err := h.store.Webhooks(c.ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(hooks, func(w client.Webhook) bool { return w.Name == m.Webhook }) {
			return problemf("invalid", "there is no webhook %q", m.Webhook)
		}
	}
	// With scope ask alone, a conversation that others began is not to be joined.
	if m.Conversation != "" && !c.may(client.ScopeRead) && c.key.ID != "" {
		if _, err := h.store.Conversation(c.ctx, m.Conversation); err == nil {
			sent, err := h.store.Sent(c.ctx, c.key.ID, m.Conversation)
			if err != nil {
				return err
			}
			if !sent {
				return problemf("forbidden", "the conversation is another's; take a key with the scope read, or another conversation")
			}
		}
	}
	return nil
}

func (h *Hub) message(c *call) (any, error) {
	m, err := h.store.Message(c.ctx, c.r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	return m, h.mayRead(c, m.Conversation)
}

func (h *Hub) runs(c *call) (any, error) {
	q := c.r.URL.Query()
	limit := c.limit()
	runs, err := h.store.Runs(c.ctx, store.RunFilter{State: q.Get("state"), Conversation: q.Get("conversation"), Profile: q.Get("profile"), Status: q.Get("status"), Before: q.Get("after"), Limit: limit})
	return paged(runs, err, limit, func(r client.Run) string { return r.ID })
}

// readable returns a run that the caller may read.
func (h *Hub) readable(c *call) (client.Run, error) {
	r, err := h.store.Run(c.ctx, c.r.PathValue("id"))
	if err != nil {
		return r, err
	}
	return r, h.mayRead(c, r.Conversation)
}

func (h *Hub) run(c *call) (any, error) {
	r, err := h.readable(c)
	return r, err
}

func (h *Hub) attempts(c *call) (any, error) {
	r, err := h.readable(c)
	if err != nil {
		return nil, err
	}
	attempts, err := h.store.Attempts(c.ctx, r.ID)
	return paged(attempts, err, 0, nil)
}

func (h *Hub) cancel(c *call) (any, error) {
	r, err := h.readable(c)
	if err != nil {
		return nil, err
	}
	why := c.in.(*reason).Reason
	if why == "" {
		why = "cancelled by " + c.name
	}
	return nil, h.Cancel(c.ctx, c.name, r.ID, why)
}

func (h *Hub) conversations(c *call) (any, error) {
	limit := c.limit()
	list, err := h.store.Conversations(c.ctx, c.r.URL.Query().Get("after"), limit)
	return paged(list, err, limit, func(v client.Conversation) string { return v.Key })
}

func (h *Hub) conversation(c *call) (any, error) {
	if err := h.mayRead(c, c.r.PathValue("key")); err != nil {
		return nil, err
	}
	return answerOf(h.store.Conversation(c.ctx, c.r.PathValue("key")))
}

// answerOf makes a value and its error an answer.
func answerOf[T any](v T, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return v, nil
}

func (h *Hub) messages(c *call) (any, error) {
	if err := h.mayRead(c, c.r.PathValue("key")); err != nil {
		return nil, err
	}
	after, err := c.number("after")
	if err != nil {
		return nil, err
	}
	limit := c.limit()
	list, err := h.store.Messages(c.ctx, c.r.PathValue("key"), after, limit)
	return paged(list, err, limit, func(m client.Message) string { return fmt.Sprint(m.Seq) })
}

func (h *Hub) files(c *call) (any, error) {
	if err := h.mayRead(c, c.r.PathValue("key")); err != nil {
		return nil, err
	}
	list, err := h.store.Files(c.ctx, c.r.PathValue("key"))
	return paged(list, err, 0, nil)
}

func (h *Hub) file(c *call) {
	f, conversation, data, err := h.store.File(c.ctx, c.r.PathValue("id"))
	if err == nil {
		err = h.mayRead(c, conversation)
	}
	if err != nil {
		writeProblem(c.w, h.problemOf(err))
		return
	}
	ServeFile(c.w, f, data)
}

// ServeFile answers a file of a run, so that no browser takes it for a page of the hub.
func ServeFile(w http.ResponseWriter, f client.File, data []byte) {
	header := w.Header()
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Content-Disposition", "attachment; filename*=UTF-8''"+url.PathEscape(f.Name))
	header.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	header.Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(data) // who has gone need not know
}

func (h *Hub) approvals(c *call) (any, error) {
	limit := c.limit()
	list, err := h.store.Approvals(c.ctx, client.ApprovalState(c.r.URL.Query().Get("state")), c.r.URL.Query().Get("after"), limit)
	return paged(list, err, limit, func(a client.Approval) string { return a.ID })
}

func (h *Hub) approval(c *call) (any, error) {
	return answerOf(h.store.Approval(c.ctx, c.r.PathValue("id")))
}

func (h *Hub) decide(c *call) (any, error) {
	return answerOf(h.Answer(c.ctx, c.name, c.r.PathValue("id"), *c.in.(*client.Answer)))
}

func (h *Hub) profiles(c *call) (any, error) {
	list, err := h.store.Profiles(c.ctx)
	return paged(list, err, 0, nil)
}

var hubTools = []string{"conversation_read", "post_update", "attach_file", "ask_person"}

func (h *Hub) setProfile(c *call) (any, error) {
	p := c.in.(*client.Profile)
	p.Name = c.r.PathValue("name")
	if err := checkName("profile", p.Name); err != nil {
		return nil, err
	}
	if p.Agent == "" {
		return nil, problemf("invalid", "a profile needs an agent, by the name that hosts have for it")
	}
	for _, tool := range p.HubTools {
		if !slices.Contains(hubTools, tool) {
			return nil, problemf("invalid", "there is no hub tool %q; there are %s", tool, strings.Join(hubTools, ", "))
		}
	}
	if p.ApprovalSec < 0 || p.TimeoutSec < 0 || p.IdleTimeoutSec < 0 || p.MaxCostUSD < 0 || p.MaxAttempts < 0 || p.MaxAttempts > 100 {
		return nil, problemf("invalid", "limits are 0 or more, and max_attempts at most 100")
	}
	if err := h.store.SetProfile(c.ctx, *p); err != nil {
		return nil, err
	}
	return p, h.store.Audit(c.ctx, c.name, "profile.set", p.Name, "")
}

// removing makes a handler that removes what a path names.
func removing(what string, remove func(*store.Store, context.Context, string) error) func(*Hub, *call) (any, error) {
	return func(h *Hub, c *call) (any, error) {
		name := c.r.PathValue("name")
		if err := remove(h.store, c.ctx, name); err != nil {
			return nil, err
		}
		return nil, h.store.Audit(c.ctx, c.name, what+".remove", name, "")
	}
}

func (h *Hub) webhooks(c *call) (any, error) {
	list, err := h.store.Webhooks(c.ctx)
	return paged(list, err, 0, nil)
}

var webhookEvents = []string{"run.done", "approval.asked", "update.posted"}

func (h *Hub) setWebhook(c *call) (any, error) {
	w := c.in.(*client.Webhook)
	w.Name = c.r.PathValue("name")
	if err := checkName("webhook", w.Name); err != nil {
		return nil, err
	}
	if u, err := url.Parse(w.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, problemf("invalid", "the URL of a webhook begins with https:// or http://, and has no user in it")
	}
	for _, event := range w.Events {
		if !slices.Contains(webhookEvents, event) {
			return nil, problemf("invalid", "there is no event %q; there are %s", event, strings.Join(webhookEvents, ", "))
		}
	}
	if len(w.Events) == 0 {
		w.Events = []string{"run.done"}
	}
	w.Secret = webhook.NewSecret()
	created, err := h.store.SetWebhook(c.ctx, *w)
	if err != nil {
		return nil, err
	}
	if err := h.store.Audit(c.ctx, c.name, "webhook.set", w.Name, w.URL); err != nil {
		return nil, err
	}
	if !created {
		w.Secret = ""
	}
	return w, nil
}

func (h *Hub) deliveries(c *call) (any, error) {
	limit := c.limit()
	list, err := h.store.Deliveries(c.ctx, c.r.URL.Query().Get("state"), c.r.URL.Query().Get("after"), limit)
	return paged(list, err, limit, func(d client.Delivery) string { return d.ID })
}

func (h *Hub) retry(c *call) (any, error) {
	return nil, h.RetryDelivery(c.ctx, c.name, c.r.PathValue("id"))
}

func (h *Hub) hooks(c *call) (any, error) {
	list, err := h.store.Hooks(c.ctx)
	return paged(list, err, 0, nil)
}

func (h *Hub) setHook(c *call) (any, error) {
	k := c.in.(*client.Hook)
	k.Name = c.r.PathValue("name")
	if err := checkName("hook", k.Name); err != nil {
		return nil, err
	}
	for _, pointer := range []string{k.Text, k.Conversation, k.Author} {
		if pointer != "" && !strings.HasPrefix(pointer, "/") {
			return nil, problemf("invalid", "%q is no JSON pointer, such as /issue/title", pointer)
		}
	}
	if k.Text == "" {
		return nil, problemf("invalid", "a hook needs text, the JSON pointer to the message's text")
	}
	k.Secret = webhook.NewSecret()
	created, err := h.store.SetHook(c.ctx, *k)
	if err != nil {
		return nil, err
	}
	if err := h.store.Audit(c.ctx, c.name, "hook.set", k.Name, ""); err != nil {
		return nil, err
	}
	if !created {
		k.Secret = ""
	}
	return k, nil
}

// hooked takes a message that another service sends. The webhook's id is its idempotency key: services send again.
func (h *Hub) hooked(c *call) (any, error) {
	name := c.r.PathValue("name")
	if !h.tries.allowed(c.r) {
		return nil, problemf("rate_limited", "too many requests that were refused came from this address; try again in a minute")
	}
	forged := func() (any, error) {
		h.tries.fail(c.r)
		return nil, problemf("unauthorized", "the webhook is not known, or not signed by its secret, or too old")
	}
	k, err := h.store.Hook(c.ctx, name)
	if err != nil {
		if problem := h.problemOf(err); problem.Code != "not_found" {
			return nil, problem
		}
		return forged()
	}
	id, err := webhook.Verify(c.r.Header, k.Secret, h.o.Now(), c.raw)
	if err != nil {
		return forged()
	}
	var body any
	if err := json.Unmarshal(c.raw, &body); err != nil {
		return nil, problemf("invalid", "the body is no JSON")
	}
	m := client.NewMessage{Profile: k.Profile, Webhook: k.Webhook, TraceParent: c.r.Header.Get("Traceparent")}
	for _, part := range []struct {
		pointer string
		into    *string
	}{{k.Text, &m.Text}, {k.Conversation, &m.Conversation}, {k.Author, &m.Author}} {
		if *part.into, err = pointed(body, part.pointer); err != nil {
			return nil, err
		}
	}
	if m.Conversation != "" {
		m.Conversation = name + ":" + m.Conversation // nobody writes to another's conversation by a hook
	}
	if err := h.checkMessage(c, &m); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(c.raw)
	sent, created, err := h.store.AddMessage(c.ctx, store.Sender{Key: "hook " + name, Idempotency: id, Digest: hex.EncodeToString(sum[:])}, m)
	if err != nil {
		return nil, err
	}
	if !created {
		return withStatus{http.StatusOK, sent}, nil
	}
	return sent, nil
}

// pointed is the text, number or truth that a JSON pointer (RFC 6901) leads to; empty for an empty pointer.
func pointed(v any, pointer string) (string, error) {
	if pointer == "" {
		return "", nil
	}
	for part := range strings.SplitSeq(pointer[1:], "/") {
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		switch in := v.(type) {
		case map[string]any:
			v = in[part]
		case []any:
			var i int
			if _, err := fmt.Sscan(part, &i); err != nil || i < 0 || i >= len(in) {
				return "", problemf("invalid", "the body has nothing at %s", pointer)
			}
			v = in[i]
		default:
			v = nil
		}
	}
	switch v := v.(type) {
	case string:
		return v, nil
	case float64, bool:
		return fmt.Sprint(v), nil
	}
	return "", problemf("invalid", "the body has no text at %s", pointer)
}

func (h *Hub) listSchedules(c *call) (any, error) {
	list, err := h.store.Schedules(c.ctx)
	return paged(list, err, 0, nil)
}

func (h *Hub) setSchedule(c *call) (any, error) {
	v := c.in.(*client.Schedule)
	v.Name = c.r.PathValue("name")
	if err := checkName("schedule", v.Name); err != nil {
		return nil, err
	}
	if err := h.checkMessage(c, &v.Message); err != nil {
		return nil, err
	}
	if err := checkSchedule(v, h.o.Now()); err != nil {
		return nil, err
	}
	if err := h.store.SetSchedule(c.ctx, *v); err != nil {
		return nil, err
	}
	return v, h.store.Audit(c.ctx, c.name, "schedule.set", v.Name, v.Cron)
}

func (h *Hub) hosts(c *call) (any, error) {
	list, err := h.store.Hosts(c.ctx)
	return paged(list, err, 0, nil)
}

func (h *Hub) oneHost(c *call) (any, error) {
	return answerOf(h.store.Host(c.ctx, c.r.PathValue("id")))
}

func (h *Hub) revokeHost(c *call) (any, error) {
	return nil, h.RevokeHost(c.ctx, c.name, c.r.PathValue("id"))
}

const (
	inviteLife    = 15 * time.Minute
	maxInviteLife = 24 * time.Hour
)

// inviteText has no letters that are mistaken for others.
var inviteText = base32.NewEncoding("ABCDEFGHJKMNPQRSTVWXYZ0123456789").WithPadding(base32.NoPadding)

func (h *Hub) invite(c *call) (any, error) {
	life := time.Duration(c.in.(*newInvite).LifeSec) * time.Second
	if life == 0 {
		life = inviteLife
	}
	if life < 0 || life > maxInviteLife {
		return nil, problemf("invalid", "an invite lasts for a day at most")
	}
	var b [10]byte
	rand.Read(b[:]) // never fails; 80 bits
	text := inviteText.EncodeToString(b[:])
	code := text[:4] + "-" + text[4:8] + "-" + text[8:12] + "-" + text[12:]
	expires, err := h.store.AddInvite(c.ctx, hashed(plainCode(code)), life)
	if err != nil {
		return nil, err
	}
	return client.Invite{Code: code, Expires: expires}, h.store.Audit(c.ctx, c.name, "invite.add", "", "")
}

// plainCode is a code as it is kept, however it was typed.
func plainCode(code string) string {
	return strings.NewReplacer("-", "", " ", "", "I", "1", "L", "1", "O", "0", "U", "V").Replace(strings.ToUpper(code))
}

func (h *Hub) pair(c *call) (any, error) {
	p := c.in.(*client.Pairing)
	if !h.tries.allowed(c.r) {
		return nil, problemf("rate_limited", "too many codes that are none came from this address; try again in a minute")
	}
	if err := checkName("host", p.Name); err != nil {
		return nil, err
	}
	secret, hash := newSecret(hostKeyPrefix)
	id, err := h.store.Pair(c.ctx, hashed(plainCode(p.Code)), p.Name, hash)
	if err != nil {
		h.tries.fail(c.r)
		return nil, err
	}
	return client.Paired{Host: id, Key: secret}, h.store.Audit(c.ctx, "host "+p.Name, "host.pair", p.Name, address(c.r))
}

func (h *Hub) keys(c *call) (any, error) {
	list, err := h.store.Keys(c.ctx)
	return paged(list, err, 0, nil)
}

func (h *Hub) addKey(c *call) (any, error) {
	n := c.in.(*newKey)
	if err := checkName("key", n.Name); err != nil {
		return nil, err
	}
	if len(n.Scopes) == 0 {
		return nil, problemf("invalid", "a key needs scopes")
	}
	for _, scope := range n.Scopes {
		if !slices.Contains(client.Scopes, scope) {
			return nil, problemf("invalid", "there is no scope %q; there are ask, read, approve, admin", scope)
		}
	}
	secret, hash := newSecret(keyPrefix)
	key, err := h.store.AddKey(c.ctx, n.Name, n.Scopes, hash, n.Expires)
	if err != nil {
		return nil, err
	}
	key.Secret = secret
	return key, h.store.Audit(c.ctx, c.name, "key.add", n.Name, fmt.Sprint(n.Scopes))
}

func (h *Hub) revokeKey(c *call) (any, error) {
	name, err := h.store.RevokeKey(c.ctx, c.r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	return nil, h.store.Audit(c.ctx, c.name, "key.revoke", name, "")
}

const usualDays = 30

func (h *Hub) trends(c *call) (any, error) {
	days, err := c.number("days")
	if err != nil {
		return nil, err
	}
	if days == 0 {
		days = usualDays
	}
	list, err := h.store.Trends(c.ctx, int(min(days, 366)))
	return paged(list, err, 0, nil)
}

func (h *Hub) auditEntries(c *call) (any, error) {
	list, err := h.store.AuditEntries(c.ctx, c.limit())
	return paged(list, err, 0, nil)
}
