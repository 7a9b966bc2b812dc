package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"nightporter/client"
)

// DefaultProfile is the profile of a conversation for which none was named.
const DefaultProfile = "default"

// DefaultAttempts is how often a run is tried when its profile does not say.
const DefaultAttempts = 3

// Sender is who sends a message.
type Sender struct {
	Key         string // the id of the API key, or "hook NAME", "schedule NAME"
	Idempotency string // empty: none
	Digest      string // of the request, to tell a repetition from another request with the same key
}

// AddMessage accepts a message with the run that answers it. created is false when the sender sent it before. Errors: ErrIdempotency,
// ErrNoProfile.
func (s *Store) AddMessage(ctx context.Context, from Sender, n client.NewMessage) (m client.Message, created bool, err error) {
	var id string
	err = s.in(ctx, func(t *tx) error {
		id, created = "", false
		if from.Idempotency != "" {
			var digest string
			err := t.get("SELECT id, digest FROM message WHERE key_id = ? AND idempotency = ?", []any{from.Key, from.Idempotency}, &id, &digest)
			switch {
			case err == nil && digest != from.Digest:
				return ErrIdempotency
			case err == nil:
				return nil
			case !errors.Is(err, ErrNotFound):
				return err
			}
		}
		id, created = NewID(), true
		return t.addMessage(id, from, n)
	})
	if err != nil {
		return client.Message{}, false, err
	}
	m, err = s.Message(ctx, id)
	return m, created, err
}

func (t *tx) addMessage(id string, from Sender, n client.NewMessage) error {
	key := cmp.Or(n.Conversation, "m-"+id)
	// The conversation's row is what all that changes its order waits for.
	if _, err := t.exec(`INSERT INTO conversation (id, key, profile, created, updated) VALUES (?, ?, ?, {now}, {now}) ON CONFLICT (key) DO NOTHING`,
		NewID(), key, cmp.Or(n.Profile, DefaultProfile)); err != nil {
		return err
	}
	var conversation, profile string
	var seq int64
	var host sql.NullString
	if err := t.get(`UPDATE conversation SET messages = messages + 1, updated = {now} WHERE key = ? RETURNING id, messages, profile, host_id`,
		[]any{key}, &conversation, &seq, &profile, &host); err != nil {
		return err
	}
	profile = cmp.Or(n.Profile, profile)
	p, err := t.profile(profile)
	if err != nil {
		return err
	}
	idempotency := sql.NullString{String: from.Idempotency, Valid: from.Idempotency != ""}
	if _, err := t.exec(`INSERT INTO message (id, conversation_id, seq, key_id, idempotency, digest, profile, text, author, webhook, traceparent, created)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {now})`,
		id, conversation, seq, from.Key, idempotency, from.Digest, profile, n.Text, n.Author, n.Webhook, n.TraceParent); err != nil {
		return err
	}
	if n.Interrupt {
		stopped, err := rowsIn(t, `UPDATE run SET cancel = ? WHERE conversation_id = ? AND state = 'running' AND cancel = '' RETURNING host_id`,
			[]any{"interrupted by a newer message", conversation}, func(row func(...any) error) (host string, err error) { return host, row(&host) })
		if err != nil {
			return err
		}
		for _, host := range stopped {
			t.wake(TopicHost(host))
		}
	}
	run := NewID()
	if _, err := t.exec(`INSERT INTO run (id, conversation_id, message_id, seq, profile, priority, state, max_attempts, created)
		VALUES (?, ?, ?, ?, ?, ?, 'waiting', ?, {now})`,
		run, conversation, id, seq, profile, n.Priority, cmp.Or(p.MaxAttempts, DefaultAttempts)); err != nil {
		return err
	}
	if err := t.promote(conversation); err != nil {
		return err
	}
	t.wake(TopicQueue) // for a claim that passed over the conversation while it was locked here
	_, err = t.event(conversation, run, 0, "message.accepted", map[string]any{"message": id, "seq": seq, "text": n.Text, "author": n.Author})
	return err
}

// promote makes the next run of a conversation ready, unless one is ready or running. The conversation's row is locked.
func (t *tx) promote(conversation string) error {
	changed, err := t.exec(`UPDATE run SET state = 'ready', ready = {now},
			prefer = (SELECT h.id FROM conversation c JOIN host h ON h.id = c.host_id WHERE c.id = ? AND h.revoked IS NULL AND h.seen > {now} - ?),
			prefer_until = {now} + ?
		WHERE id = (SELECT id FROM run WHERE conversation_id = ? AND state = 'waiting' ORDER BY seq LIMIT 1)
			AND NOT EXISTS (SELECT 1 FROM run WHERE conversation_id = ? AND state IN ('ready', 'running'))`,
		conversation, aliveFor.Milliseconds(), preferFor.Milliseconds(), conversation, conversation)
	if changed > 0 {
		t.wake(TopicQueue)
	}
	return err
}

// event appends an event to a conversation and returns its number.
func (t *tx) event(conversation, run string, attempt int64, kind string, data any) (seq int64, err error) {
	raw, ok := data.(json.RawMessage)
	if !ok && data != nil {
		if raw, err = json.Marshal(data); err != nil {
			return 0, err
		}
	}
	if err := t.get(`UPDATE conversation SET events = events + 1, updated = {now} WHERE id = ? RETURNING events`, []any{conversation}, &seq); err != nil {
		return 0, err
	}
	t.wake(TopicConversation(conversation), TopicAll)
	_, err = t.exec(`INSERT INTO event (conversation_id, seq, run_id, attempt, type, at, data) VALUES (?, ?, ?, ?, ?, {now}, ?)`,
		conversation, seq, sql.NullString{String: run, Valid: run != ""}, attempt, kind, string(raw))
	return seq, err
}

const messageColumns = `m.id, c.key, m.seq, m.profile, m.text, m.author, m.created`

// Message returns a message with its run.
func (s *Store) Message(ctx context.Context, id string) (client.Message, error) {
	found, err := s.messages(ctx, `WHERE m.id = ?`, id)
	if err == nil && len(found) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return client.Message{}, fmt.Errorf("message %s: %w", id, err)
	}
	return found[0], nil
}

// Messages returns the messages of a conversation, oldest first, from the one behind after on.
func (s *Store) Messages(ctx context.Context, conversation string, after int64, limit int) ([]client.Message, error) {
	return s.messages(ctx, `WHERE c.key = ? AND m.seq > ? ORDER BY m.seq LIMIT ?`, conversation, after, page(limit))
}

func (s *Store) messages(ctx context.Context, where string, args ...any) ([]client.Message, error) {
	return list(ctx, s, `SELECT `+messageColumns+`, `+runColumns+` FROM message m JOIN conversation c ON c.id = m.conversation_id
		JOIN run r ON r.message_id = m.id AND r.conversation_id = m.conversation_id AND r.seq = m.seq LEFT JOIN host h ON h.id = r.host_id `+where, args,
		func(row func(...any) error) (m client.Message, err error) {
			var created int64
			m.Run, err = scanRun(func(into ...any) error {
				return row(append([]any{&m.ID, &m.Conversation, &m.Seq, &m.Profile, &m.Text, &m.Author, &created}, into...)...)
			})
			m.Created = fromMS(created)
			return m, err
		})
}

// Sent reports whether a key has sent a message to a conversation.
func (s *Store) Sent(ctx context.Context, key, conversation string) (bool, error) {
	var one int
	err := s.db.QueryRowContext(ctx, s.query(`SELECT 1 FROM message m JOIN conversation c ON c.id = m.conversation_id WHERE m.key_id = ? AND c.key = ? LIMIT 1`), key, conversation).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

const runColumns = `r.id, r.message_id, r.seq, r.profile, r.priority, r.state, r.attempts, h.name, r.cancel, r.reason, r.activity, r.session_id,
	r.created, r.started, r.finished, r.status, r.reply, r.error_code, r.error_message, r.cost_usd, r.input_tokens, r.output_tokens, r.duration_ms, c.key`

func scanRun(row func(...any) error) (r client.Run, err error) {
	var created int64
	var started, finished sql.NullInt64
	var host, reply sql.NullString
	err = row(&r.ID, &r.Message, &r.Seq, &r.Profile, &r.Priority, &r.State, &r.Attempts, &host, &r.Cancel, &r.Reason, &r.Activity, &r.SessionID,
		&created, &started, &finished, &r.Status, &reply, &r.ErrorCode, &r.ErrorMessage, &r.CostUSD, &r.InputTokens, &r.OutputTokens, &r.DurationMS, &r.Conversation)
	r.Host, r.Created, r.Started, r.Finished = host.String, fromMS(created), optional(started), optional(finished)
	if reply.Valid {
		r.Reply = &reply.String
	}
	return r, err
}

// Run returns a run with its outcome.
func (s *Store) Run(ctx context.Context, id string) (client.Run, error) {
	var outcome string
	r, err := scanRun(func(into ...any) error {
		return notFound(s.db.QueryRowContext(ctx, s.query(`SELECT `+runColumns+`, r.outcome FROM run r JOIN conversation c ON c.id = r.conversation_id
			LEFT JOIN host h ON h.id = r.host_id WHERE r.id = ?`), id).Scan(append(into, &outcome)...))
	})
	if err != nil {
		return client.Run{}, fmt.Errorf("run %s: %w", id, err)
	}
	if outcome != "" {
		r.Outcome = json.RawMessage(outcome)
	}
	return r, nil
}

// RunFilter chooses runs; what is empty chooses all.
type RunFilter struct {
	State, Profile, Status, Conversation string
	Before                               string // the id of the last run of the page before
	Limit                                int
}

// Runs returns runs, newest first.
func (s *Store) Runs(ctx context.Context, f RunFilter) ([]client.Run, error) {
	where, args := "1 = 1", []any{}
	// The states and what has failed stand in the text, as the partial indexes have them.
	if i := slices.Index([]string{"waiting", "ready", "running", "done"}, f.State); i >= 0 {
		where += " AND r.state = '" + f.State + "'"
	} else if f.State != "" {
		where += " AND 1 = 0"
	}
	if f.Status != "" && f.Status != "ok" {
		where += " AND r.status NOT IN ('', 'ok')"
	}
	for column, value := range map[string]string{"r.profile": f.Profile, "r.status": f.Status, "c.key": f.Conversation} {
		if value != "" {
			where += " AND " + column + " = ?"
			args = append(args, value)
		}
	}
	if f.Before != "" {
		where += ` AND (r.created, r.id) < (SELECT x.created, x.id FROM run x WHERE x.id = ?)`
		args = append(args, f.Before)
	}
	return list(ctx, s, `SELECT `+runColumns+` FROM run r JOIN conversation c ON c.id = r.conversation_id LEFT JOIN host h ON h.id = r.host_id
		WHERE `+where+` ORDER BY r.created DESC, r.id DESC LIMIT ?`, append(args, page(f.Limit)), scanRun)
}

// Attempts returns how often a run was tried, oldest first.
func (s *Store) Attempts(ctx context.Context, run string) ([]client.Attempt, error) {
	return list(ctx, s, `SELECT a.n, COALESCE(h.name, ''), a.started, a.ended, a.ended_by, a.reason FROM attempt a LEFT JOIN host h ON h.id = a.host_id
		WHERE a.run_id = ? ORDER BY a.n`, []any{run}, func(row func(...any) error) (a client.Attempt, err error) {
		var started int64
		var ended sql.NullInt64
		err = row(&a.N, &a.Host, &started, &ended, &a.End, &a.Reason)
		a.Started, a.Ended = fromMS(started), optional(ended)
		return a, err
	})
}

const conversationColumns = `c.key, c.profile, c.messages, (SELECT count(*) FROM run r WHERE r.conversation_id = c.id AND r.state = 'waiting') + (SELECT count(*) FROM run r WHERE r.conversation_id = c.id AND r.state IN ('ready', 'running')),
	COALESCE(h.name, ''), c.created, c.updated`

func scanConversation(row func(...any) error) (c client.Conversation, err error) {
	var created, updated int64
	err = row(&c.Key, &c.Profile, &c.Messages, &c.Waiting, &c.Host, &created, &updated)
	c.Created, c.Updated = fromMS(created), fromMS(updated)
	return c, err
}

// Conversation returns a conversation by its key.
func (s *Store) Conversation(ctx context.Context, key string) (client.Conversation, error) {
	c, err := scanConversation(func(into ...any) error {
		return notFound(s.db.QueryRowContext(ctx, s.query(`SELECT `+conversationColumns+` FROM conversation c LEFT JOIN host h ON h.id = c.host_id WHERE c.key = ?`), key).Scan(into...))
	})
	if err != nil {
		return c, fmt.Errorf("conversation %q: %w", key, err)
	}
	return c, nil
}

// Conversations returns conversations, the one that changed last first. before is the key of the last one of the page before.
func (s *Store) Conversations(ctx context.Context, before string, limit int) ([]client.Conversation, error) {
	where, args := "1 = 1", []any{}
	if before != "" {
		where, args = "(c.updated, c.id) < (SELECT x.updated, x.id FROM conversation x WHERE x.key = ?)", []any{before}
	}
	return list(ctx, s, `SELECT `+conversationColumns+` FROM conversation c LEFT JOIN host h ON h.id = c.host_id WHERE `+where+`
		ORDER BY c.updated DESC, c.id DESC LIMIT ?`, append(args, page(limit)), scanConversation)
}

// ConversationID is the id behind a key, for [TopicConversation].
func (s *Store) ConversationID(ctx context.Context, key string) (id string, err error) {
	err = notFound(s.db.QueryRowContext(ctx, s.query("SELECT id FROM conversation WHERE key = ?"), key).Scan(&id))
	return id, err
}

func scanEvent(row func(...any) error) (e client.Event, err error) {
	var run sql.NullString
	var at int64
	var data string
	err = row(&e.Seq, &run, &e.Attempt, &e.Type, &at, &data)
	e.Run, e.Time = run.String, fromMS(at)
	if data != "" {
		e.Data = json.RawMessage(data)
	}
	return e, err
}

// Events returns the events of a conversation behind the one numbered after, in order.
func (s *Store) Events(ctx context.Context, conversation string, after int64, limit int) ([]client.Event, error) {
	return list(ctx, s, `SELECT e.seq, e.run_id, e.attempt, e.type, e.at, e.data FROM event e JOIN conversation c ON c.id = e.conversation_id
		WHERE c.key = ? AND e.seq > ? ORDER BY e.seq LIMIT ?`, []any{conversation, after, page(limit)}, scanEvent)
}

// RunEvents is Events of one run.
func (s *Store) RunEvents(ctx context.Context, run string, after int64, limit int) ([]client.Event, error) {
	return list(ctx, s, `SELECT e.seq, e.run_id, e.attempt, e.type, e.at, e.data FROM event e WHERE e.run_id = ? AND e.seq > ? ORDER BY e.seq LIMIT ?`,
		[]any{run, after, page(limit)}, scanEvent)
}
