package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"nightporter/client"
)

// Bounds of the history that an [client.Assignment] carries.
const (
	maxHistory      = 20
	maxHistoryBytes = 64 << 10
)

// maxRunEvents bounds the events that are kept of one attempt; an agent in a loop is not to fill the database.
const maxRunEvents = 20_000

// Claim gives a host the next run that it may have: those of conversations whose session it has first, then others, by priority and age.
// Nil: there is none, or the host has as many as it may. Errors: ErrRevoked.
func (s *Store) Claim(ctx context.Context, host string, slots int, version string) (*client.Assignment, error) {
	var a *client.Assignment
	err := s.in(ctx, func(t *tx) error {
		a = nil
		// A host's claims come one after another, and before or after its revocation.
		if err := t.get(`SELECT 1 FROM host WHERE id = ? {lock}`, []any{host}, new(int)); err != nil {
			return err
		}
		if err := t.seen(host); err != nil {
			return err
		}
		if _, err := t.exec(`UPDATE host SET slots = ?, version = ? WHERE id = ? AND (slots <> ? OR version <> ?)`, slots, version, host, slots, version); err != nil {
			return err
		}
		var running int
		if err := t.get(`SELECT count(*) FROM run WHERE host_id = ? AND state = 'running'`, []any{host}, &running); err != nil || running >= slots {
			return err
		}
		if s.o.MaxRunning > 0 {
			if s.postgres != "" {
				if _, err := t.exec(`SELECT pg_advisory_xact_lock(?)`, claimLock); err != nil {
					return err
				}
			}
			if err := t.get(`SELECT count(*) FROM run WHERE state = 'running'`, nil, &running); err != nil || running >= s.o.MaxRunning {
				return err
			}
		}
		id, err := t.next(host)
		if err != nil || id == "" {
			return err
		}
		if _, err := t.exec(`UPDATE run SET state = 'running', host_id = ?, fence = fence + 1, attempts = attempts + 1, lease = {now} + ?, heard = 0, started = {now}, activity = '', prefer = NULL
			WHERE id = ?`, host, s.o.Lease.Milliseconds(), id); err != nil {
			return err
		}
		a, err = t.assignment(id, host)
		return err
	})
	return a, err
}

// claimLock is the advisory lock under which the bound of all running runs is kept.
const claimLock = int64(0x6e69676874)

// next finds the run that a host may have and locks it with its conversation; empty: there is none. What is locked is passed over: whoever has it wakes
// the queue when it is done.
func (t *tx) next(host string) (id string, err error) {
	const best = `SELECT r.id FROM run r JOIN conversation c ON c.id = r.conversation_id WHERE r.state = 'ready' AND %s AND r.ready <= {now}
		ORDER BY r.priority DESC, r.ready, r.id LIMIT 1 {skip}`
	for {
		err := t.get(fmt.Sprintf(best, `r.prefer = ?`), []any{host}, &id)
		if errors.Is(err, ErrNotFound) {
			err = t.get(fmt.Sprintf(best, `r.prefer IS NULL`), nil, &id)
		}
		if !errors.Is(err, ErrNotFound) {
			return id, err
		}
		// Runs that have waited for their host for long enough are anybody's.
		n, err := t.exec(`UPDATE run SET prefer = NULL WHERE id IN (SELECT id FROM run WHERE state = 'ready' AND prefer IS NOT NULL AND prefer_until <= {now}
			ORDER BY prefer_until LIMIT 1000 {skip})`)
		if err != nil || n == 0 {
			return "", err
		}
	}
}

// seen notes that a host was heard of. Errors: ErrRevoked.
func (t *tx) seen(host string) error {
	var revoked sql.NullInt64
	var seen sql.NullInt64
	var now int64
	if err := t.get(`SELECT revoked, seen, {now} FROM host WHERE id = ?`, []any{host}, &revoked, &seen, &now); err != nil {
		return err
	}
	if revoked.Valid {
		return ErrRevoked
	}
	if seen.Valid && now-seen.Int64 < time.Second.Milliseconds() {
		return nil // often enough: each note is a write
	}
	_, err := t.exec(`UPDATE host SET seen = {now} WHERE id = ?`, host)
	return err
}

func (t *tx) assignment(id, host string) (*client.Assignment, error) {
	a := &client.Assignment{LeaseMS: t.s.o.Lease.Milliseconds()}
	var conversation string
	var err error
	if a.Run, err = scanRun(func(into ...any) error {
		return t.get(`SELECT `+runColumns+`, r.fence, c.id, m.text, m.author, m.traceparent FROM run r JOIN conversation c ON c.id = r.conversation_id
			JOIN message m ON m.id = r.message_id LEFT JOIN host h ON h.id = r.host_id WHERE r.id = ?`, []any{id},
			append(into, &a.Fence, &conversation, &a.Text, &a.Author, &a.TraceParent)...)
	}); err != nil {
		return nil, err
	}
	a.Conversation, a.First = a.Run.Conversation, a.Run.Seq == 1
	if a.Profile, err = t.profile(a.Run.Profile); err != nil && !errors.Is(err, ErrNoProfile) {
		return nil, err
	}
	if _, err := t.exec(`INSERT INTO attempt (run_id, n, fence, host_id, started) VALUES (?, ?, ?, ?, {now})`, id, a.Run.Attempts, a.Fence, host); err != nil {
		return nil, err
	}
	if _, err := t.event(conversation, id, int64(a.Run.Attempts), "run.taken", map[string]any{"host": a.Run.Host}); err != nil {
		return nil, err
	}
	turns, err := rowsIn(t, `SELECT m.text, COALESCE(r.reply, '') FROM message m JOIN run r ON r.conversation_id = m.conversation_id AND r.seq = m.seq
		WHERE m.conversation_id = ? AND m.seq < ? ORDER BY m.seq DESC LIMIT ?`, []any{conversation, a.Run.Seq, maxHistory},
		func(row func(...any) error) (turn client.Turn, err error) { return turn, row(&turn.Text, &turn.Reply) })
	if err != nil {
		return nil, err
	}
	size := 0
	for i, turn := range turns {
		if size += len(turn.Text) + len(turn.Reply); size > maxHistoryBytes {
			turns = turns[:i]
			break
		}
	}
	slices.Reverse(turns)
	a.History = turns
	return a, nil
}

// held checks that a host has a run under a fence, and locks its conversation. Errors: ErrLeaseLost.
func (t *tx) held(host, run string, fence int64) (conversation string, attempt int64, err error) {
	if err := t.get(`SELECT conversation_id FROM run WHERE id = ?`, []any{run}, &conversation); err != nil {
		return "", 0, err
	}
	if _, err := t.exec(`UPDATE conversation SET updated = {now} WHERE id = ?`, conversation); err != nil {
		return "", 0, err
	}
	err = t.get(`SELECT attempts FROM run WHERE id = ? AND host_id = ? AND fence = ? AND state = 'running'
		AND NOT EXISTS (SELECT 1 FROM host h WHERE h.id = run.host_id AND h.revoked IS NOT NULL) {lock}`, []any{run, host, fence}, &attempt)
	if errors.Is(err, ErrNotFound) {
		err = ErrLeaseLost
	}
	return conversation, attempt, err
}

// Beat renews a lease, also one that has passed while nobody else took the run, and returns why the run is to be stopped, if it is. Errors: ErrLeaseLost.
func (s *Store) Beat(ctx context.Context, host, run string, b client.Beat) (cancel string, err error) {
	err = s.in(ctx, func(t *tx) error {
		if err := t.seen(host); err != nil {
			return err
		}
		err := t.get(`UPDATE run SET lease = {now} + ?, activity = ?, session_id = CASE WHEN ? = '' THEN session_id ELSE ? END
			WHERE id = ? AND host_id = ? AND fence = ? AND state = 'running' RETURNING cancel`,
			[]any{s.o.Lease.Milliseconds(), b.Activity, b.SessionID, b.SessionID, run, host, b.Fence}, &cancel)
		if errors.Is(err, ErrNotFound) {
			return ErrLeaseLost
		}
		t.wake(TopicAll)
		return err
	})
	return cancel, err
}

// AppendEvents keeps events of an attempt that are not kept yet. Errors: ErrLeaseLost.
func (s *Store) AppendEvents(ctx context.Context, host, run string, e client.Events) error {
	return s.in(ctx, func(t *tx) error {
		conversation, attempt, err := t.held(host, run, e.Fence)
		if err != nil {
			return err
		}
		var heard int64
		if err := t.get(`SELECT heard FROM run WHERE id = ?`, []any{run}, &heard); err != nil {
			return err
		}
		if e.N < 1 || e.N > heard+1 {
			return fmt.Errorf("events %d and on were sent, and %d are kept: %w", e.N, heard, ErrConflict)
		}
		first, kinds, kept := heard, []string{}, []json.RawMessage{}
		for i, event := range e.Events {
			n := e.N + int64(i)
			if n <= heard {
				continue
			}
			heard = n
			if n > maxRunEvents {
				continue
			}
			var kind struct{ Type string }
			if err := json.Unmarshal(event, &kind); err != nil || kind.Type == "" {
				continue // what is no event is not kept
			}
			kinds, kept = append(kinds, kind.Type), append(kept, event)
		}
		if heard == first {
			return nil
		}
		var seq int64 // of the last
		if err := t.get(`UPDATE conversation SET events = events + ? WHERE id = ? RETURNING events`, []any{len(kept), conversation}, &seq); err != nil {
			return err
		}
		for i, event := range kept {
			if _, err := t.exec(`INSERT INTO event (conversation_id, seq, run_id, attempt, type, at, data) VALUES (?, ?, ?, ?, ?, {now}, ?)`,
				conversation, seq-int64(len(kept)-1-i), run, attempt, kinds[i], string(event)); err != nil {
				return err
			}
		}
		t.wake(TopicConversation(conversation), TopicAll)
		_, err = t.exec(`UPDATE run SET heard = ? WHERE id = ?`, heard, run)
		return err
	})
}

// ending is how a run ends.
type ending struct {
	status, code, message string
	reply                 *string
	cost                  float64
	input, output         int64
	duration              int64
	outcome               string
	sessionID             string
	host                  string // that has the session now; empty: as before
	by, reason            string // of the attempt; by is empty when there was none
}

// Finish ends a run with its outcome. Sent again it changes nothing. Errors: ErrLeaseLost.
func (s *Store) Finish(ctx context.Context, host, run string, f client.Finish) error {
	var o struct {
		Status     string
		Reply      *string
		SessionID  string `json:"session_id"`
		Error      *struct{ Code, Message string }
		DurationMS int64 `json:"duration_ms"`
		Usage      struct {
			InputTokens  int64   `json:"input_tokens"`
			OutputTokens int64   `json:"output_tokens"`
			CostUSD      float64 `json:"cost_usd"`
		}
	}
	if err := json.Unmarshal(f.Outcome, &o); err != nil || !slices.Contains([]string{"ok", "failed", "refused", "stopped"}, o.Status) {
		return fmt.Errorf("the outcome cannot be read: %w", errors.Join(err, ErrConflict))
	}
	e := ending{status: o.Status, reply: o.Reply, cost: o.Usage.CostUSD, input: o.Usage.InputTokens, output: o.Usage.OutputTokens, duration: o.DurationMS, outcome: string(f.Outcome), sessionID: o.SessionID, host: host, by: "finished"}
	if o.Error != nil {
		e.code, e.message = o.Error.Code, o.Error.Message
	}
	return s.in(ctx, func(t *tx) error {
		conversation, attempt, err := t.held(host, run, f.Fence)
		if errors.Is(err, ErrLeaseLost) {
			var one int
			if t.get(`SELECT 1 FROM attempt WHERE run_id = ? AND fence = ? AND host_id = ? AND ended_by = 'finished'`, []any{run, f.Fence, host}, &one) == nil {
				return nil
			}
		}
		if err != nil {
			return err
		}
		return t.end(conversation, run, attempt, e)
	})
}

// end ends a run whose conversation is locked.
func (t *tx) end(conversation, run string, attempt int64, e ending) error {
	if _, err := t.exec(`UPDATE run SET state = 'done', lease = NULL, prefer = NULL, finished = {now}, status = ?, reply = ?, error_code = ?, error_message = ?, cost_usd = ?, input_tokens = ?,
			output_tokens = ?, duration_ms = ?, outcome = ?, session_id = CASE WHEN ? = '' THEN session_id ELSE ? END, activity = '', reason = CASE WHEN ? = '' THEN reason ELSE ? END
		WHERE id = ?`,
		e.status, e.reply, e.code, e.message, e.cost, e.input, e.output, e.duration, e.outcome, e.sessionID, e.sessionID, e.reason, e.reason, run); err != nil {
		return err
	}
	if err := t.endAttempt(run, attempt, e.by, e.reason); err != nil {
		return err
	}
	if e.host != "" {
		if _, err := t.exec(`UPDATE conversation SET host_id = ? WHERE id = ?`, e.host, conversation); err != nil {
			return err
		}
	}
	r, err := scanRun(func(into ...any) error {
		return t.get(`SELECT `+runColumns+` FROM run r JOIN conversation c ON c.id = r.conversation_id LEFT JOIN host h ON h.id = r.host_id WHERE r.id = ?`, []any{run}, into...)
	})
	if err != nil {
		return err
	}
	seq, err := t.event(conversation, run, attempt, "run.done", r)
	if err != nil {
		return err
	}
	if err := t.deliver(conversation, run, seq, "run.done", r); err != nil {
		return err
	}
	if err := t.promote(conversation); err != nil {
		return err
	}
	t.wake(TopicQueue) // a slot is free, and a claim may have passed over the conversation while it was locked here
	// The last statement: other runs that end wait for this row until the commit.
	_, err = t.exec(`INSERT INTO trend (day, profile, status, shard, runs, cost_usd, input_tokens, output_tokens, duration_ms) VALUES (?, ?, ?, ?, 1, ?, ?, ?, ?)
		ON CONFLICT (day, profile, status, shard) DO UPDATE SET runs = trend.runs + 1, cost_usd = trend.cost_usd + excluded.cost_usd,
			input_tokens = trend.input_tokens + excluded.input_tokens, output_tokens = trend.output_tokens + excluded.output_tokens, duration_ms = trend.duration_ms + excluded.duration_ms`,
		r.Finished.Format(time.DateOnly), r.Profile, e.status, rand.IntN(trendShards), e.cost, e.input, e.output, e.duration)
	return err
}

// trendShards is how many rows the figures of a day and profile are spread over.
const trendShards = 8

// endAttempt ends an attempt, and with it whatever waits for a person in it.
func (t *tx) endAttempt(run string, attempt int64, by, reason string) error {
	if by == "" {
		return nil
	}
	if _, err := t.exec(`UPDATE attempt SET ended = {now}, ended_by = ?, reason = ? WHERE run_id = ? AND n = ?`, by, reason, run, attempt); err != nil {
		return err
	}
	n, err := t.exec(`UPDATE approval SET state = 'cancelled', answered = {now}, reason = 'the run does not wait any more' WHERE run_id = ? AND state = 'pending'`, run)
	if n > 0 {
		t.wake(TopicApprovals)
	}
	return err
}

// requeue makes a run ready for another attempt after a pause, or ends it when it was to be stopped or has had all its attempts. The conversation is locked.
func (t *tx) requeue(conversation, run string, attempt int64, by, reason string, pause time.Duration) error {
	var most int64
	var cancel, host string
	if err := t.get(`SELECT max_attempts, cancel, host_id FROM run WHERE id = ?`, []any{run}, &most, &cancel, &host); err != nil {
		return err
	}
	switch {
	case cancel != "":
		return t.end(conversation, run, attempt, ending{status: "stopped", code: "cancelled", message: cancel, by: by, reason: reason})
	case attempt >= most:
		return t.end(conversation, run, attempt, ending{
			status: "failed", code: "attempts_used_up", by: by, reason: reason,
			message: fmt.Sprintf("the run was tried %d times; the last time: %s", attempt, reason),
		})
	}
	// The host that has the session is waited for, unless it is the one that did not end the run.
	if _, err := t.exec(`UPDATE run SET state = 'ready', ready = {now} + ?, lease = NULL, activity = '', reason = ?, prefer_until = {now} + ?,
			prefer = (SELECT h.id FROM conversation c JOIN host h ON h.id = c.host_id WHERE c.id = ? AND h.id <> ? AND h.revoked IS NULL AND h.seen > {now} - ?)
		WHERE id = ?`, pause.Milliseconds(), reason, preferFor.Milliseconds(), conversation, host, aliveFor.Milliseconds(), run); err != nil {
		return err
	}
	if err := t.endAttempt(run, attempt, by, reason); err != nil {
		return err
	}
	_, err := t.event(conversation, run, attempt, "run.requeued", map[string]any{"reason": reason, "by": by})
	t.wake(TopicQueue)
	return err
}

// pauseAfter is how long a run that was given back is left alone: longer after each attempt.
func pauseAfter(attempt int64) time.Duration { return time.Second << min(attempt, 6) }

// Release takes a run back from its host for another attempt. Errors: ErrLeaseLost.
func (s *Store) Release(ctx context.Context, host, run string, r client.Release) error {
	return s.in(ctx, func(t *tx) error {
		conversation, attempt, err := t.held(host, run, r.Fence)
		if err != nil {
			return err
		}
		return t.requeue(conversation, run, attempt, "released", r.Reason, pauseAfter(attempt))
	})
}

// Sweep takes back the runs whose lease has passed, and ends approvals whose deadline has. It returns how many runs there were.
func (s *Store) Sweep(ctx context.Context) (int, error) {
	lost, err := list(ctx, s, `SELECT id FROM run WHERE state = 'running' AND lease < {now} ORDER BY lease LIMIT 200`, nil,
		func(row func(...any) error) (id string, err error) { return id, row(&id) })
	if err != nil {
		return 0, err
	}
	n := 0
	for _, id := range lost {
		err := s.in(ctx, func(t *tx) error {
			conversation, attempt, err := t.locked(id, "AND state = 'running' AND lease < {now}")
			if errors.Is(err, ErrNotFound) {
				return nil // its host was faster
			}
			if err != nil {
				return err
			}
			n++
			return t.requeue(conversation, id, attempt, "lease_lost", "its host was not heard of for longer than its lease", 0)
		})
		if err != nil {
			return n, err
		}
	}
	return n, s.expire(ctx)
}

// locked locks a run that fulfils a condition, after its conversation: a beat, which locks the run alone, comes before or after. Errors: ErrNotFound.
func (t *tx) locked(run, condition string) (conversation string, attempt int64, err error) {
	if err := t.get(`SELECT conversation_id FROM run WHERE id = ?`, []any{run}, &conversation); err != nil {
		return "", 0, err
	}
	if _, err := t.exec(`UPDATE conversation SET updated = {now} WHERE id = ?`, conversation); err != nil {
		return "", 0, err
	}
	err = t.get(`SELECT attempts FROM run WHERE id = ? `+condition+` {lock}`, []any{run}, &attempt)
	return conversation, attempt, err
}

// Cancel ends a run that has not begun, and has the host of one that runs stop it. Errors: ErrNotFound, ErrOver.
func (s *Store) Cancel(ctx context.Context, run, reason string) error {
	return s.in(ctx, func(t *tx) error {
		conversation, attempt, err := t.locked(run, "")
		if err != nil {
			return err
		}
		var state client.RunState
		var host sql.NullString
		if err := t.get(`SELECT state, host_id FROM run WHERE id = ?`, []any{run}, &state, &host); err != nil {
			return err
		}
		switch state {
		case client.RunDone:
			return ErrOver
		case client.RunRunning:
			t.wake(TopicHost(host.String), TopicAll)
			_, err := t.exec(`UPDATE run SET cancel = ? WHERE id = ? AND cancel = ''`, reason, run)
			return err
		}
		return t.end(conversation, run, attempt, ending{status: "stopped", code: "cancelled", message: reason, reason: reason})
	})
}

// Commands are the runs of a host that are to be stopped.
func (s *Store) Commands(ctx context.Context, host string) (client.Commands, error) {
	cancel, err := list(ctx, s, `SELECT id, fence, cancel FROM run WHERE host_id = ? AND state = 'running' AND cancel <> ''`, []any{host},
		func(row func(...any) error) (c client.Cancelled, err error) {
			return c, row(&c.Run, &c.Fence, &c.Reason)
		})
	return client.Commands{Cancel: cancel}, err
}

// HeldConversation is the key of the conversation whose run a host has. Errors: ErrLeaseLost.
func (s *Store) HeldConversation(ctx context.Context, host, run string, fence int64) (key string, err error) {
	err = notFound(s.db.QueryRowContext(ctx, s.query(`SELECT c.key FROM run r JOIN conversation c ON c.id = r.conversation_id WHERE r.id = ? AND r.host_id = ? AND r.fence = ? AND r.state = 'running'`), run, host, fence).Scan(&key))
	if errors.Is(err, ErrNotFound) {
		err = ErrLeaseLost
	}
	return key, err
}
