package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"nightporter/client"
)

// deliver puts what happened into the outbox, for each webhook that wants it. The conversation is locked, so that the order of its
// deliveries is that of its events.
func (t *tx) deliver(conversation, run string, seq int64, event string, data any) error {
	var named string
	if err := t.get(`SELECT m.webhook FROM run r JOIN message m ON m.id = r.message_id WHERE r.id = ?`, []any{run}, &named); err != nil {
		return err
	}
	hooks, err := rowsIn(t, `SELECT name, url, events, every_conversation, '' FROM webhook`, nil, scanWebhook)
	if err != nil {
		return err
	}
	body := ""
	for _, hook := range hooks {
		mine := hook.Name == named
		if !(hook.All && slices.Contains(hook.Events, event)) && !(mine && (event != "approval.asked" || slices.Contains(hook.Events, event))) {
			continue
		}
		if body == "" {
			var key string
			var now int64
			if err := t.get(`SELECT key, {now} FROM conversation WHERE id = ?`, []any{conversation}, &key, &now); err != nil {
				return err
			}
			raw, err := json.Marshal(map[string]any{"type": event, "timestamp": fromMS(now), "conversation": key, "seq": seq, "data": data})
			if err != nil {
				return err
			}
			body = string(raw)
		}
		if _, err := t.exec(`INSERT INTO delivery (id, webhook, conversation_id, seq, run_id, event, body, state, next, created) VALUES (?, ?, ?, ?, ?, ?, ?, 'waiting', {now}, {now})`,
			"msg_"+NewID(), hook.Name, conversation, seq, run, event, body); err != nil {
			return err
		}
		if err := t.nextDelivery(hook.Name, conversation); err != nil {
			return err
		}
	}
	return nil
}

// nextDelivery makes the oldest delivery of a conversation at a webhook pending, unless one is.
func (t *tx) nextDelivery(webhook, conversation string) error {
	n, err := t.exec(`UPDATE delivery SET state = 'pending', next = {now}
		WHERE id = (SELECT id FROM delivery WHERE webhook = ? AND conversation_id = ? AND state = 'waiting' ORDER BY seq, id LIMIT 1)
			AND NOT EXISTS (SELECT 1 FROM delivery WHERE webhook = ? AND conversation_id = ? AND state = 'pending')`, webhook, conversation, webhook, conversation)
	if n > 0 {
		t.wake(TopicOutbox)
	}
	return err
}

// Due is a delivery that is to be made now, by whom it was given to.
type Due struct {
	ID, Webhook, URL, Secret, Event, Body string
	Attempts                              int
	Fence                                 int64
	Created                               time.Time
	Age                                   time.Duration // by the database's clock
}

// DueDeliveries takes deliveries that are due, for so long: who takes longer has lost them. A webhook that is gone makes its deliveries dead.
func (s *Store) DueDeliveries(ctx context.Context, limit int, hold time.Duration) ([]Due, error) {
	var due []Due
	err := s.in(ctx, func(t *tx) error {
		var err error
		due, err = rowsIn(t, `UPDATE delivery SET fence = fence + 1, attempts = attempts + 1, next = {now} + ?
			WHERE id IN (SELECT id FROM delivery WHERE state = 'pending' AND next <= {now} ORDER BY next, id LIMIT ? {skip})
			RETURNING id, webhook, event, body, attempts, fence, created, {now}`, []any{hold.Milliseconds(), limit},
			func(row func(...any) error) (d Due, err error) {
				var created, now int64
				err = row(&d.ID, &d.Webhook, &d.Event, &d.Body, &d.Attempts, &d.Fence, &created, &now)
				d.Created, d.Age = fromMS(created), time.Duration(now-created)*time.Millisecond
				return d, err
			})
		if err != nil {
			return err
		}
		for i := range due {
			err := t.get(`SELECT url, secret FROM webhook WHERE name = ?`, []any{due[i].Webhook}, &due[i].URL, &due[i].Secret)
			if err != nil && !errors.Is(err, ErrNotFound) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err // what was read was rolled back, and its fences may be another's by now
	}
	return due, nil
}

// Delivered notes that a receiver took a delivery.
func (s *Store) Delivered(ctx context.Context, d Due) error {
	return s.settle(ctx, d, `state = 'delivered', delivered = {now}, error = ''`)
}

// NotDelivered notes why not; it is tried again after a pause.
func (s *Store) NotDelivered(ctx context.Context, d Due, why string, pause time.Duration) error {
	_, err := s.db.ExecContext(ctx, s.query(`UPDATE delivery SET error = ?, next = {now} + ? WHERE id = ? AND fence = ? AND state = 'pending'`), why, pause.Milliseconds(), d.ID, d.Fence)
	return err
}

// GiveUp notes that a delivery is not tried any more.
func (s *Store) GiveUp(ctx context.Context, d Due, why string) error {
	return s.settle(ctx, d, `state = 'dead', error = ?`, why)
}

func (s *Store) settle(ctx context.Context, d Due, set string, args ...any) error {
	return s.in(ctx, func(t *tx) error {
		var webhook, conversation string
		err := t.get(`UPDATE delivery SET `+set+` WHERE id = ? AND fence = ? AND state = 'pending' RETURNING webhook, conversation_id`, append(args, d.ID, d.Fence), &webhook, &conversation)
		if errors.Is(err, ErrNotFound) {
			return nil // another has it by now
		}
		if err != nil {
			return err
		}
		// What is appended meanwhile waits for this row.
		if _, err := t.exec(`UPDATE conversation SET updated = updated WHERE id = ?`, conversation); err != nil {
			return err
		}
		t.wake(TopicAll)
		return t.nextDelivery(webhook, conversation)
	})
}

// RetryDelivery makes a dead delivery due again. Errors: ErrNotFound, ErrOver when it is not dead.
func (s *Store) RetryDelivery(ctx context.Context, id string) error {
	return s.in(ctx, func(t *tx) error {
		var state, webhook, conversation string
		if err := t.get(`SELECT state, webhook, conversation_id FROM delivery WHERE id = ?`, []any{id}, &state, &webhook, &conversation); err != nil {
			return fmt.Errorf("delivery %s: %w", id, err)
		}
		if state != "dead" {
			return fmt.Errorf("delivery %s is %s: %w", id, state, ErrOver)
		}
		if _, err := t.exec(`UPDATE conversation SET updated = updated WHERE id = ?`, conversation); err != nil {
			return err
		}
		if _, err := t.exec(`UPDATE delivery SET state = 'waiting', attempts = 0, created = {now} WHERE id = ?`, id); err != nil {
			return err
		}
		return t.nextDelivery(webhook, conversation)
	})
}

// Deliveries returns deliveries, newest first, of one state or all.
func (s *Store) Deliveries(ctx context.Context, state, before string, limit int) ([]client.Delivery, error) {
	where, args := "1 = 1", []any{}
	if state != "" {
		where, args = "d.state = ?", append(args, state)
	}
	if before != "" {
		where += " AND (d.created, d.id) < (SELECT x.created, x.id FROM delivery x WHERE x.id = ?)"
		args = append(args, before)
	}
	return list(ctx, s, `SELECT d.id, d.webhook, c.key, d.run_id, d.event, d.state, d.attempts, d.next, d.error, d.created, d.delivered
		FROM delivery d JOIN conversation c ON c.id = d.conversation_id WHERE `+where+` ORDER BY d.created DESC, d.id DESC LIMIT ?`, append(args, page(limit)),
		func(row func(...any) error) (d client.Delivery, err error) {
			var created int64
			var next, delivered sql.NullInt64
			err = row(&d.ID, &d.Webhook, &d.Conversation, &d.Run, &d.Event, &d.State, &d.Attempts, &next, &d.Error, &created, &delivered)
			if d.State == "pending" {
				d.Next = optional(next)
			}
			d.Created, d.Delivered = fromMS(created), optional(delivered)
			return d, err
		})
}

func scanWebhook(row func(...any) error) (w client.Webhook, err error) {
	var events string
	var all int64
	err = row(&w.Name, &w.URL, &events, &all, &w.Secret)
	w.Events, w.All = strings.Fields(events), all != 0
	return w, err
}

// Webhooks returns them by name, without secrets.
func (s *Store) Webhooks(ctx context.Context) ([]client.Webhook, error) {
	return list(ctx, s, `SELECT name, url, events, every_conversation, '' FROM webhook ORDER BY name`, nil, scanWebhook)
}

// SetWebhook makes or changes a webhook. One that exists keeps its secret.
func (s *Store) SetWebhook(ctx context.Context, w client.Webhook) (created bool, err error) {
	var all int64
	if w.All {
		all = 1
	}
	err = s.in(ctx, func(t *tx) error {
		n, err := t.exec(`UPDATE webhook SET url = ?, events = ?, every_conversation = ? WHERE name = ?`, w.URL, strings.Join(w.Events, " "), all, w.Name)
		if err != nil || n > 0 {
			created = false
			return err
		}
		created = true
		_, err = t.exec(`INSERT INTO webhook (name, url, events, every_conversation, secret, created) VALUES (?, ?, ?, ?, ?, {now})`, w.Name, w.URL, strings.Join(w.Events, " "), all, w.Secret)
		return err
	})
	return created, err
}

// RemoveWebhook removes a webhook. Its deliveries end as dead when they are due. Errors: ErrNotFound.
func (s *Store) RemoveWebhook(ctx context.Context, name string) error {
	return s.remove(ctx, "webhook", name)
}

func (s *Store) remove(ctx context.Context, table, name string) error {
	return s.in(ctx, func(t *tx) error {
		n, err := t.exec(`DELETE FROM `+table+` WHERE name = ?`, name)
		if err == nil && n == 0 {
			err = fmt.Errorf("%s %q: %w", table, name, ErrNotFound)
		}
		return err
	})
}
