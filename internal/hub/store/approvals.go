package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"nightporter/client"
)

// AskApproval puts a question of a run to people. Sent again it is the same question. Errors: ErrLeaseLost, ErrConflict.
func (s *Store) AskApproval(ctx context.Context, host, run string, a client.Ask) (client.Approval, error) {
	err := s.in(ctx, func(t *tx) error {
		conversation, attempt, err := t.held(host, run, a.Fence)
		if err != nil {
			return err
		}
		if known, err := t.approval(a.ID); err == nil && (known.Run != run || known.Digest != a.Digest) {
			return fmt.Errorf("approval %s is another question: %w", a.ID, ErrConflict)
		}
		added, err := t.exec(`INSERT INTO approval (id, kind, run_id, conversation_id, fence, host_id, digest, question, state, asked, deadline)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'pending', {now}, {now} + ?) ON CONFLICT (id) DO NOTHING`,
			a.ID, a.Kind, run, conversation, a.Fence, host, a.Digest, string(a.Question), a.DeadlineMS)
		if err != nil || added == 0 {
			return err
		}
		seq, err := t.event(conversation, run, attempt, "approval.asked", map[string]any{"approval": a.ID, "kind": a.Kind, "question": a.Question})
		if err != nil {
			return err
		}
		t.wake(TopicApprovals)
		asked, err := t.approval(a.ID)
		if err != nil {
			return err
		}
		return t.deliver(conversation, run, seq, "approval.asked", asked)
	})
	if err != nil {
		return client.Approval{}, err
	}
	return s.Approval(ctx, a.ID)
}

const approvalColumns = `SELECT a.id, a.kind, a.run_id, c.key, COALESCE(h.name, ''), a.digest, a.question, a.state, a.asked, a.deadline, a.answered, a.answered_by, a.reason
	FROM approval a JOIN conversation c ON c.id = a.conversation_id LEFT JOIN host h ON h.id = a.host_id `

func scanApproval(row func(...any) error) (a client.Approval, err error) {
	var question string
	var asked, deadline int64
	var answered sql.NullInt64
	err = row(&a.ID, &a.Kind, &a.Run, &a.Conversation, &a.Host, &a.Digest, &question, &a.State, &asked, &deadline, &answered, &a.By, &a.Reason)
	a.Question, a.Asked, a.Deadline, a.Answered = json.RawMessage(question), fromMS(asked), fromMS(deadline), optional(answered)
	return a, err
}

func (t *tx) approval(id string) (client.Approval, error) {
	return scanApproval(func(into ...any) error { return t.get(approvalColumns+`WHERE a.id = ?`, []any{id}, into...) })
}

// Approval returns one by its id. Errors: ErrNotFound.
func (s *Store) Approval(ctx context.Context, id string) (client.Approval, error) {
	a, err := scanApproval(func(into ...any) error {
		return notFound(s.db.QueryRowContext(ctx, s.query(approvalColumns+`WHERE a.id = ?`), id).Scan(into...))
	})
	if err != nil {
		return a, fmt.Errorf("approval %s: %w", id, err)
	}
	return a, nil
}

// RunApproval is Approval for the host that asked. Errors: ErrNotFound, ErrLeaseLost.
func (s *Store) RunApproval(ctx context.Context, host, run, id string, fence int64) (client.Approval, error) {
	var one int
	err := notFound(s.db.QueryRowContext(ctx, s.query(`SELECT 1 FROM run WHERE id = ? AND host_id = ? AND fence = ? AND state = 'running'`), run, host, fence).Scan(&one))
	if errors.Is(err, ErrNotFound) {
		return client.Approval{}, ErrLeaseLost
	}
	if err != nil {
		return client.Approval{}, err
	}
	a, err := s.Approval(ctx, id)
	if err == nil && a.Run != run {
		err = ErrNotFound
	}
	return a, err
}

// Approvals returns approvals, newest first, of one state or all.
func (s *Store) Approvals(ctx context.Context, state client.ApprovalState, before string, limit int) ([]client.Approval, error) {
	where, args := "1 = 1", []any{}
	if state != "" {
		where, args = "a.state = ?", append(args, state)
	}
	if before != "" {
		where += " AND (a.asked, a.id) < (SELECT x.asked, x.id FROM approval x WHERE x.id = ?)"
		args = append(args, before)
	}
	return list(ctx, s, approvalColumns+`WHERE `+where+` ORDER BY a.asked DESC, a.id DESC LIMIT ?`, append(args, page(limit)), scanApproval)
}

// Answer decides an approval that waits, for the very question that has the digest. Errors: ErrNotFound, ErrOver, ErrConflict when the
// digest or the decision is none of this question.
func (s *Store) Answer(ctx context.Context, id string, n client.Answer, by string) (client.Approval, error) {
	err := s.in(ctx, func(t *tx) error {
		a, err := t.approval(id)
		if err != nil {
			return err
		}
		state, ok := map[string]client.ApprovalState{
			"call approve": client.ApprovalApproved, "call deny": client.ApprovalDenied, "question answer": client.ApprovalAnswered, "question deny": client.ApprovalDenied,
		}[a.Kind+" "+n.Decision]
		switch {
		case !ok:
			return fmt.Errorf("%q is no decision on a %s: %w", n.Decision, a.Kind, ErrConflict)
		case n.Digest != a.Digest:
			return fmt.Errorf("the digest is that of another question: %w", ErrConflict)
		}
		conversation, attempt, err := t.locked(a.Run, "")
		if err != nil {
			return err
		}
		changed, err := t.exec(`UPDATE approval SET state = ?, answered = {now}, answered_by = ?, reason = ? WHERE id = ? AND state = 'pending' AND deadline > {now}
			AND EXISTS (SELECT 1 FROM run r WHERE r.id = approval.run_id AND r.state = 'running' AND r.fence = approval.fence)`, state, by, n.Reason, id)
		if err != nil {
			return err
		}
		if changed == 0 {
			return ErrOver
		}
		t.wake(TopicApprovals)
		_, err = t.event(conversation, a.Run, attempt, "approval.answered", map[string]any{"approval": id, "decision": state, "by": by, "reason": n.Reason})
		return err
	})
	if err != nil {
		return client.Approval{}, fmt.Errorf("approval %s: %w", id, err)
	}
	return s.Approval(ctx, id)
}

// expire ends the approvals that nobody answered in time.
func (s *Store) expire(ctx context.Context) error {
	return s.in(ctx, func(t *tx) error {
		n, err := t.exec(`UPDATE approval SET state = 'expired', answered = {now}, reason = 'nobody answered in time' WHERE state = 'pending' AND deadline <= {now}`)
		if n > 0 {
			t.wake(TopicApprovals)
		}
		return err
	})
}

// PostUpdate adds what a run says before its reply. Sent again it is the same. Errors: ErrLeaseLost.
func (s *Store) PostUpdate(ctx context.Context, host, run string, u client.Update) error {
	return s.in(ctx, func(t *tx) error {
		conversation, attempt, err := t.held(host, run, u.Fence)
		if err != nil {
			return err
		}
		added, err := t.exec(`INSERT INTO run_update (id, run_id, text) VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING`, u.ID, run, u.Text)
		if err != nil || added == 0 {
			return err
		}
		said := map[string]any{"id": u.ID, "run": run, "text": u.Text}
		seq, err := t.event(conversation, run, attempt, "update.posted", said)
		if err != nil {
			return err
		}
		return t.deliver(conversation, run, seq, "update.posted", said)
	})
}

// AttachFile adds a file to a run's conversation. Sent again it is the same. Errors: ErrLeaseLost.
func (s *Store) AttachFile(ctx context.Context, host, run string, f client.Attach) error {
	return s.in(ctx, func(t *tx) error {
		conversation, attempt, err := t.held(host, run, f.Fence)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(f.Data)
		added, err := t.exec(`INSERT INTO file (id, run_id, conversation_id, name, media_type, size, sha256, created, data) VALUES (?, ?, ?, ?, ?, ?, ?, {now}, ?) ON CONFLICT (id) DO NOTHING`,
			f.ID, run, conversation, f.Name, f.MediaType, len(f.Data), hex.EncodeToString(sum[:]), f.Data)
		if err != nil || added == 0 {
			return err
		}
		_, err = t.event(conversation, run, attempt, "file.attached", map[string]any{"file": f.ID, "name": f.Name, "media_type": f.MediaType, "size": len(f.Data)})
		return err
	})
}

// Files returns the files of a conversation, oldest first.
func (s *Store) Files(ctx context.Context, conversation string) ([]client.File, error) {
	return list(ctx, s, `SELECT f.id, f.run_id, f.name, f.media_type, f.size, f.sha256, f.created FROM file f JOIN conversation c ON c.id = f.conversation_id WHERE c.key = ? ORDER BY f.created, f.id`,
		[]any{conversation}, scanFile)
}

func scanFile(row func(...any) error) (f client.File, err error) {
	var created int64
	err = row(&f.ID, &f.Run, &f.Name, &f.MediaType, &f.Size, &f.SHA256, &created)
	f.Created = fromMS(created)
	return f, err
}

// File returns a file with its content and the key of its conversation. Errors: ErrNotFound.
func (s *Store) File(ctx context.Context, id string) (f client.File, conversation string, data []byte, err error) {
	f, err = scanFile(func(into ...any) error {
		return notFound(s.db.QueryRowContext(ctx, s.query(`SELECT f.id, f.run_id, f.name, f.media_type, f.size, f.sha256, f.created, c.key, f.data FROM file f JOIN conversation c ON c.id = f.conversation_id WHERE f.id = ?`), id).
			Scan(append(into, &conversation, &data)...))
	})
	return f, conversation, data, err
}
