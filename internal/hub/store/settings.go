package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"nightporter/client"
)

func (t *tx) profile(name string) (p client.Profile, err error) {
	var body string
	if err := t.get(`SELECT body FROM profile WHERE name = ?`, []any{name}, &body); errors.Is(err, ErrNotFound) {
		return p, fmt.Errorf("profile %q: %w", name, ErrNoProfile)
	} else if err != nil {
		return p, err
	}
	return p, json.Unmarshal([]byte(body), &p)
}

// Profiles returns them by name.
func (s *Store) Profiles(ctx context.Context) ([]client.Profile, error) {
	return bodies[client.Profile](ctx, s, `SELECT body FROM profile ORDER BY name`)
}

func bodies[T any](ctx context.Context, s *Store, query string, args ...any) ([]T, error) {
	return list(ctx, s, query, args, func(row func(...any) error) (v T, err error) {
		var body string
		if err := row(&body); err != nil {
			return v, err
		}
		return v, json.Unmarshal([]byte(body), &v)
	})
}

// SetProfile makes or changes a profile.
func (s *Store) SetProfile(ctx context.Context, p client.Profile) error {
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	_, err = s.db.ExecContext(ctx, s.query(`INSERT INTO profile (name, body, updated) VALUES (?, ?, {now}) ON CONFLICT (name) DO UPDATE SET body = excluded.body, updated = excluded.updated`), p.Name, string(body))
	return err
}

// RemoveProfile removes a profile. Runs that were accepted with it are done with what it said last... by hosts that still know its
// names. Errors: ErrNotFound.
func (s *Store) RemoveProfile(ctx context.Context, name string) error {
	return s.remove(ctx, "profile", name)
}

// Hooks returns the inbound webhooks by name, without secrets.
func (s *Store) Hooks(ctx context.Context) ([]client.Hook, error) {
	return bodies[client.Hook](ctx, s, `SELECT body FROM hook ORDER BY name`)
}

// Hook returns one with its secret. Errors: ErrNotFound.
func (s *Store) Hook(ctx context.Context, name string) (h client.Hook, err error) {
	var body, secret string
	if err := notFound(s.db.QueryRowContext(ctx, s.query(`SELECT body, secret FROM hook WHERE name = ?`), name).Scan(&body, &secret)); err != nil {
		return h, fmt.Errorf("hook %q: %w", name, err)
	}
	err = json.Unmarshal([]byte(body), &h)
	h.Secret = secret
	return h, err
}

// SetHook makes or changes an inbound webhook. One that exists keeps its secret.
func (s *Store) SetHook(ctx context.Context, h client.Hook) (created bool, err error) {
	secret := h.Secret
	h.Secret = ""
	body, err := json.Marshal(h)
	if err != nil {
		return false, err
	}
	err = s.in(ctx, func(t *tx) error {
		n, err := t.exec(`UPDATE hook SET body = ? WHERE name = ?`, string(body), h.Name)
		if created = n == 0; err != nil || !created {
			return err
		}
		_, err = t.exec(`INSERT INTO hook (name, body, secret) VALUES (?, ?, ?)`, h.Name, string(body), secret)
		return err
	})
	return created, err
}

// RemoveHook removes an inbound webhook. Errors: ErrNotFound.
func (s *Store) RemoveHook(ctx context.Context, name string) error {
	return s.remove(ctx, "hook", name)
}

// Schedules returns them by name.
func (s *Store) Schedules(ctx context.Context) ([]client.Schedule, error) {
	return list(ctx, s, `SELECT body, next, last FROM schedule ORDER BY name`, nil, scanSchedule)
}

func scanSchedule(row func(...any) error) (v client.Schedule, err error) {
	var body string
	var next, last sql.NullInt64
	if err := row(&body, &next, &last); err != nil {
		return v, err
	}
	err = json.Unmarshal([]byte(body), &v)
	v.Next, v.Last = optional(next), optional(last)
	return v, err
}

// SetSchedule makes or changes a schedule; Next says when it is due first, nil never.
func (s *Store) SetSchedule(ctx context.Context, v client.Schedule) error {
	next := sql.NullInt64{}
	if v.Next != nil {
		next = sql.NullInt64{Int64: v.Next.UnixMilli(), Valid: true}
	}
	v.Next, v.Last = nil, nil
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = s.db.ExecContext(ctx, s.query(`INSERT INTO schedule (name, body, next) VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET body = excluded.body, next = excluded.next`), v.Name, string(body), next)
	return err
}

// RemoveSchedule removes a schedule. Errors: ErrNotFound.
func (s *Store) RemoveSchedule(ctx context.Context, name string) error {
	return s.remove(ctx, "schedule", name)
}

// FireSchedules sends the message of each schedule that is due, once, and lets following say when it is due next, after the time given; nil: never. What cannot be sent
// is told to failed, and not tried again before it is due next.
func (s *Store) FireSchedules(ctx context.Context, following func(v client.Schedule, after time.Time) *time.Time, failed func(v client.Schedule, err error)) (fired int, err error) {
	due, err := list(ctx, s, `SELECT body, next, last FROM schedule WHERE next <= {now} ORDER BY next LIMIT 100`, nil, scanSchedule)
	if err != nil {
		return 0, err
	}
	for _, v := range due {
		took := false
		fire := func(t *tx, message bool) error {
			took = false
			var now int64
			if err := t.get(`SELECT {now}`, nil, &now); err != nil {
				return err
			}
			next := sql.NullInt64{}
			if at := following(v, fromMS(now)); at != nil {
				next = sql.NullInt64{Int64: at.UnixMilli(), Valid: true}
			}
			// Of several hubs, and of a change meanwhile, one wins.
			n, err := t.exec(`UPDATE schedule SET last = {now}, next = ? WHERE name = ? AND next = ?`, next, v.Name, v.Next.UnixMilli())
			if err != nil || n == 0 {
				return err
			}
			took = true
			if !message {
				return nil
			}
			return t.addMessage(NewID(), Sender{Key: "schedule " + v.Name}, v.Message)
		}
		err := s.in(ctx, func(t *tx) error { return fire(t, true) })
		if errors.Is(err, ErrNoProfile) {
			failed(v, err)
			err = s.in(ctx, func(t *tx) error { return fire(t, false) })
			took = false
		}
		if err != nil {
			return fired, err
		}
		if took {
			fired++
		}
	}
	return fired, nil
}

// Trends returns what happened on the last days, oldest first.
func (s *Store) Trends(ctx context.Context, days int) ([]client.Trend, error) {
	var now int64
	if err := s.db.QueryRowContext(ctx, s.query(`SELECT {now}`)).Scan(&now); err != nil {
		return nil, err
	}
	type part struct {
		client.Trend
		status string
	}
	parts, err := list(ctx, s, `SELECT day, profile, status, runs, cost_usd, input_tokens, output_tokens, duration_ms FROM trend WHERE day > ? ORDER BY day, profile, status`,
		[]any{fromMS(now).AddDate(0, 0, -days).Format(time.DateOnly)}, func(row func(...any) error) (p part, err error) {
			return p, row(&p.Day, &p.Profile, &p.status, &p.Runs, &p.CostUSD, &p.InputTokens, &p.OutputTokens, &p.DurationMS)
		})
	if err != nil {
		return nil, err
	}
	all := []client.Trend{}
	for _, p := range parts {
		if len(all) == 0 || all[len(all)-1].Day != p.Day || all[len(all)-1].Profile != p.Profile {
			all = append(all, client.Trend{Day: p.Day, Profile: p.Profile})
		}
		t := &all[len(all)-1]
		t.Runs += p.Runs
		t.CostUSD += p.CostUSD
		t.InputTokens += p.InputTokens
		t.OutputTokens += p.OutputTokens
		t.DurationMS += p.DurationMS
		if n := map[string]*int64{"ok": &t.OK, "failed": &t.Failed, "refused": &t.Refused, "stopped": &t.Stopped}[p.status]; n != nil {
			*n += p.Runs
		}
	}
	return all, nil
}

// Audit records an act.
func (s *Store) Audit(ctx context.Context, actor, action, object, detail string) error {
	_, err := s.db.ExecContext(ctx, s.query(`INSERT INTO audit (id, at, actor, action, object, detail) VALUES (?, {now}, ?, ?, ?, ?)`), NewID(), actor, action, object, detail)
	return err
}

// AuditEntries returns acts, newest first.
func (s *Store) AuditEntries(ctx context.Context, limit int) ([]client.AuditEntry, error) {
	return list(ctx, s, `SELECT at, actor, action, object, detail FROM audit ORDER BY id DESC LIMIT ?`, []any{page(limit)}, func(row func(...any) error) (e client.AuditEntry, err error) {
		var at int64
		err = row(&at, &e.Actor, &e.Action, &e.Object, &e.Detail)
		e.Time = fromMS(at)
		return e, err
	})
}

// Stats are counts for metrics.
type Stats struct {
	Runs       map[string]int64 // by state; done ones are not counted
	Deliveries map[string]int64 // by state, without those that were delivered
	Approvals  int64            // that wait
	HostsAlive int64
}

// Stats counts. It looks at what waits, not at what is done.
func (s *Store) Stats(ctx context.Context) (Stats, error) {
	st := Stats{Runs: map[string]int64{}, Deliveries: map[string]int64{}}
	count := func(query string, args ...any) (n int64, err error) {
		err = s.db.QueryRowContext(ctx, s.query(query), args...).Scan(&n)
		return n, err
	}
	var errs []error
	for _, state := range []string{"waiting", "ready", "running"} {
		n, err := count(`SELECT count(*) FROM run WHERE state = '` + state + `'`) // written out, or no partial index is used
		st.Runs[state], errs = n, append(errs, err)
	}
	for _, state := range []string{"waiting", "pending"} {
		n, err := count(`SELECT count(*) FROM delivery WHERE state = '` + state + `'`)
		st.Deliveries[state], errs = n, append(errs, err)
	}
	var err error
	st.Approvals, err = count(`SELECT count(*) FROM approval WHERE state = 'pending'`)
	errs = append(errs, err)
	st.HostsAlive, err = count(`SELECT count(*) FROM host WHERE revoked IS NULL AND seen > {now} - ?`, aliveFor.Milliseconds())
	return st, errors.Join(append(errs, err)...)
}

// Prune removes conversations that have been still for so long and have nothing that waits, with all that belongs to them, and old audit
// entries. It returns how many conversations there were; at most a thousand at a time.
func (s *Store) Prune(ctx context.Context, age time.Duration) (int, error) {
	old, err := list(ctx, s, `SELECT id FROM conversation c WHERE updated < {now} - ?
		AND NOT EXISTS (SELECT 1 FROM run r WHERE r.conversation_id = c.id AND r.state = 'waiting')
		AND NOT EXISTS (SELECT 1 FROM run r WHERE r.conversation_id = c.id AND r.state IN ('ready', 'running'))
		AND NOT EXISTS (SELECT 1 FROM delivery d WHERE d.conversation_id = c.id AND d.state IN ('waiting', 'pending')) ORDER BY updated LIMIT 1000`,
		[]any{age.Milliseconds()}, func(row func(...any) error) (id string, err error) { return id, row(&id) })
	if err != nil {
		return 0, err
	}
	n := 0
	for _, id := range old {
		err := s.in(ctx, func(t *tx) error {
			// Locked, and looked at again: a message may have come.
			changed, err := t.exec(`UPDATE conversation SET updated = updated WHERE id = ? AND updated < {now} - ?`, id, age.Milliseconds())
			if err != nil || changed == 0 {
				return err
			}
			for _, statement := range []string{
				`DELETE FROM delivery WHERE conversation_id = ?`, `DELETE FROM approval WHERE run_id IN (SELECT id FROM run WHERE conversation_id = ?)`, `DELETE FROM file WHERE conversation_id = ?`,
				`DELETE FROM event WHERE conversation_id = ?`, `DELETE FROM run_update WHERE run_id IN (SELECT id FROM run WHERE conversation_id = ?)`,
				`DELETE FROM attempt WHERE run_id IN (SELECT id FROM run WHERE conversation_id = ?)`,
				`DELETE FROM run WHERE conversation_id = ?`, `DELETE FROM message WHERE conversation_id = ?`, `DELETE FROM conversation WHERE id = ?`,
			} {
				if _, err := t.exec(statement, id); err != nil {
					return err
				}
			}
			n++
			return nil
		})
		if err != nil {
			return n, err
		}
	}
	_, err = s.db.ExecContext(ctx, s.query(`DELETE FROM audit WHERE at < {now} - ?`), age.Milliseconds())
	return n, err
}
