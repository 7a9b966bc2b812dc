package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"nightporter/client"
)

// AddKey keeps a key by the hash of its secret. Errors: ErrConflict when one that is not revoked has the name.
func (s *Store) AddKey(ctx context.Context, name string, scopes []client.Scope, hash string, expires *time.Time) (client.Key, error) {
	var words []string
	for _, scope := range scopes {
		words = append(words, string(scope))
	}
	id := NewID()
	err := s.in(ctx, func(t *tx) error {
		var one int
		if err := t.get(`SELECT 1 FROM api_key WHERE name = ? AND revoked IS NULL`, []any{name}, &one); err == nil {
			return fmt.Errorf("key %q: %w", name, ErrConflict)
		} else if !errors.Is(err, ErrNotFound) {
			return err
		}
		var until sql.NullInt64
		if expires != nil {
			until = sql.NullInt64{Int64: expires.UnixMilli(), Valid: true}
		}
		_, err := t.exec(`INSERT INTO api_key (id, name, scopes, hash, created, expires) VALUES (?, ?, ?, ?, {now}, ?)`, id, name, strings.Join(words, " "), hash, until)
		return err
	})
	if err != nil {
		return client.Key{}, err
	}
	return s.key(ctx, `id = ?`, id)
}

const keyColumns = `id, name, scopes, created, used, expires, revoked`

func scanKey(row func(...any) error) (k client.Key, err error) {
	var scopes string
	var created int64
	var used, expires, revoked sql.NullInt64
	err = row(&k.ID, &k.Name, &scopes, &created, &used, &expires, &revoked)
	for word := range strings.FieldsSeq(scopes) {
		k.Scopes = append(k.Scopes, client.Scope(word))
	}
	k.Created, k.LastUsed, k.Expires, k.Revoked = fromMS(created), optional(used), optional(expires), optional(revoked)
	return k, err
}

func (s *Store) key(ctx context.Context, where string, args ...any) (client.Key, error) {
	return scanKey(func(into ...any) error {
		return notFound(s.db.QueryRowContext(ctx, s.query(`SELECT `+keyColumns+` FROM api_key WHERE `+where), args...).Scan(into...))
	})
}

// usedOften is how exactly it is kept when a key was last used: each note is a write.
const usedOften = time.Minute

// KeyByHash finds a key that is neither revoked nor expired, and notes its use. Errors: ErrNotFound, ErrRevoked.
func (s *Store) KeyByHash(ctx context.Context, hash string) (client.Key, error) {
	k, err := s.key(ctx, `hash = ?`, hash)
	if err != nil {
		return k, err
	}
	return k, s.use(ctx, k)
}

func (s *Store) use(ctx context.Context, k client.Key) error {
	var now int64
	if err := s.db.QueryRowContext(ctx, s.query(`SELECT {now}`)).Scan(&now); err != nil {
		return err
	}
	if k.Revoked != nil || k.Expires != nil && k.Expires.UnixMilli() <= now {
		return ErrRevoked
	}
	if k.LastUsed == nil || now-k.LastUsed.UnixMilli() > usedOften.Milliseconds() {
		_, err := s.db.ExecContext(ctx, s.query(`UPDATE api_key SET used = {now} WHERE id = ?`), k.ID)
		return err
	}
	return nil
}

// Keys returns all keys, those that are good first.
func (s *Store) Keys(ctx context.Context) ([]client.Key, error) {
	return list(ctx, s, `SELECT `+keyColumns+` FROM api_key ORDER BY CASE WHEN revoked IS NULL THEN 0 ELSE 1 END, name, created DESC`, nil, scanKey)
}

// RevokeKey makes a key, and the sessions that it opened, good for nothing. Errors: ErrNotFound.
func (s *Store) RevokeKey(ctx context.Context, idOrName string) (name string, err error) {
	err = s.in(ctx, func(t *tx) error {
		var id string
		if err := t.get(`UPDATE api_key SET revoked = {now} WHERE (id = ? OR name = ?) AND revoked IS NULL RETURNING id, name`, []any{idOrName, idOrName}, &id, &name); err != nil {
			return fmt.Errorf("key %q: %w", idOrName, err)
		}
		_, err := t.exec(`DELETE FROM session WHERE key_id = ?`, id)
		return err
	})
	return name, err
}

// AddSession keeps a session of the console by the hash of its cookie.
func (s *Store) AddSession(ctx context.Context, hash, keyID, csrf string, life time.Duration) error {
	return s.in(ctx, func(t *tx) error {
		if _, err := t.exec(`DELETE FROM session WHERE expires <= {now}`); err != nil {
			return err
		}
		_, err := t.exec(`INSERT INTO session (hash, key_id, csrf, created, expires) VALUES (?, ?, ?, {now}, {now} + ?)`, hash, keyID, csrf, life.Milliseconds())
		return err
	})
}

// Session returns the key of a session, and its CSRF token. Errors: ErrNotFound, ErrRevoked.
func (s *Store) Session(ctx context.Context, hash string) (k client.Key, csrf string, err error) {
	var id string
	err = notFound(s.db.QueryRowContext(ctx, s.query(`SELECT key_id, csrf FROM session WHERE hash = ? AND expires > {now}`), hash).Scan(&id, &csrf))
	if err != nil {
		return k, "", err
	}
	if k, err = s.key(ctx, `id = ?`, id); err != nil {
		return k, "", err
	}
	return k, csrf, s.use(ctx, k)
}

// EndSession ends a session; one that is not there is ended.
func (s *Store) EndSession(ctx context.Context, hash string) error {
	_, err := s.db.ExecContext(ctx, s.query(`DELETE FROM session WHERE hash = ?`), hash)
	return err
}
