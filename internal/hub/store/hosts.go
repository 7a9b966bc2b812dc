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

// AddInvite keeps the hash of an invite's code, good for so long.
func (s *Store) AddInvite(ctx context.Context, hash string, life time.Duration) (expires time.Time, err error) {
	var ms int64
	err = notFound(s.db.QueryRowContext(ctx, s.query(`INSERT INTO invite (hash, created, expires) VALUES (?, {now}, {now} + ?) RETURNING expires`), hash, life.Milliseconds()).Scan(&ms))
	return fromMS(ms), err
}

// Pair uses an invite, once, and makes the host. Errors: ErrInvite, ErrConflict when a host has the name.
func (s *Store) Pair(ctx context.Context, inviteHash, name, keyHash string) (id string, err error) {
	id = NewID()
	err = s.in(ctx, func(t *tx) error {
		used, err := t.exec(`UPDATE invite SET used = {now}, host_id = ? WHERE hash = ? AND used IS NULL AND expires > {now}`, id, inviteHash)
		if err != nil {
			return err
		}
		if used == 0 {
			return ErrInvite
		}
		var one int
		if err := t.get(`SELECT 1 FROM host WHERE name = ? AND revoked IS NULL`, []any{name}, &one); err == nil {
			return fmt.Errorf("host %q: %w", name, ErrConflict)
		} else if !errors.Is(err, ErrNotFound) {
			return err
		}
		_, err = t.exec(`INSERT INTO host (id, name, hash, paired) VALUES (?, ?, ?, {now})`, id, name, keyHash)
		return err
	})
	return id, err
}

// HostByKey finds the host whose key has a hash. Errors: ErrNotFound, ErrRevoked.
func (s *Store) HostByKey(ctx context.Context, hash string) (id, name string, err error) {
	var revoked sql.NullInt64
	err = notFound(s.db.QueryRowContext(ctx, s.query(`SELECT id, name, revoked FROM host WHERE hash = ?`), hash).Scan(&id, &name, &revoked))
	if err == nil && revoked.Valid {
		err = ErrRevoked
	}
	return id, name, err
}

// Report keeps what a host says of itself.
func (s *Store) Report(ctx context.Context, host string, report json.RawMessage) error {
	return s.in(ctx, func(t *tx) error {
		if err := t.seen(host); err != nil {
			return err
		}
		_, err := t.exec(`UPDATE host SET report = ? WHERE id = ?`, string(report), host)
		t.wake(TopicAll)
		return err
	})
}

// Hosts returns the hosts, those that are not revoked first, by name.
func (s *Store) Hosts(ctx context.Context) ([]client.Host, error) {
	hosts, _, err := s.hosts(ctx, `1 = 1`)
	return hosts, err
}

// Host returns a host by its id or the name that it has and no revoked one, with its report.
func (s *Store) Host(ctx context.Context, idOrName string) (client.Host, error) {
	hosts, reports, err := s.hosts(ctx, `h.id = ? OR h.name = ?`, idOrName, idOrName)
	if err == nil && len(hosts) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return client.Host{}, fmt.Errorf("host %q: %w", idOrName, err)
	}
	if reports[0] != "" {
		hosts[0].Report = json.RawMessage(reports[0])
	}
	return hosts[0], nil
}

func (s *Store) hosts(ctx context.Context, where string, args ...any) ([]client.Host, []string, error) {
	var reports []string
	hosts, err := list(ctx, s, `SELECT h.id, h.name, h.version, h.slots, (SELECT count(*) FROM run r WHERE r.host_id = h.id AND r.state = 'running'), h.paired, h.seen, h.revoked, h.report, {now}
		FROM host h WHERE `+where+` ORDER BY CASE WHEN h.revoked IS NULL THEN 0 ELSE 1 END, h.name, h.paired DESC`, args,
		func(row func(...any) error) (h client.Host, err error) {
			var paired, now int64
			var seen, revoked sql.NullInt64
			var report string
			err = row(&h.ID, &h.Name, &h.Version, &h.Slots, &h.Running, &paired, &seen, &revoked, &report, &now)
			h.Paired, h.LastSeen, h.Revoked = fromMS(paired), optional(seen), optional(revoked)
			h.Alive = !revoked.Valid && seen.Valid && now-seen.Int64 < aliveFor.Milliseconds()
			reports = append(reports, report)
			return h, err
		})
	return hosts, reports, err
}

// RevokeHost makes a host's key good for nothing and takes its runs back. Errors: ErrNotFound.
func (s *Store) RevokeHost(ctx context.Context, idOrName string) (name string, err error) {
	var id string
	err = s.in(ctx, func(t *tx) error {
		return t.get(`UPDATE host SET revoked = {now} WHERE (id = ? OR name = ?) AND revoked IS NULL RETURNING id, name`, []any{idOrName, idOrName}, &id, &name)
	})
	if err != nil {
		return "", fmt.Errorf("host %q: %w", idOrName, err)
	}
	runs, err := list(ctx, s, `SELECT id FROM run WHERE host_id = ? AND state = 'running'`, []any{id}, func(row func(...any) error) (run string, err error) { return run, row(&run) })
	if err != nil {
		return name, err
	}
	for _, run := range runs {
		err := s.in(ctx, func(t *tx) error {
			conversation, attempt, err := t.locked(run, `AND state = 'running'`)
			if errors.Is(err, ErrNotFound) {
				return nil
			}
			if err != nil {
				return err
			}
			return t.requeue(conversation, run, attempt, "revoked", "its host was revoked", 0)
		})
		if err != nil {
			return name, err
		}
	}
	return name, nil
}
