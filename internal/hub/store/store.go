// Package store is the hub's database: conversations, messages, the queue of runs with its leases and fences, the outbox, and all that
// a hub remembers. One set of statements serves SQLite and PostgreSQL.
//
// The database's clock is the only one that counts: hubs and hosts may be minutes apart. What is to happen exactly once happens in one
// transaction.
package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"embed"
	"encoding/base32"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver of PostgreSQL
	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// What went wrong, as far as a caller has to tell it apart.
var (
	ErrNotFound    = errors.New("not found")
	ErrConflict    = errors.New("it exists already")
	ErrIdempotency = errors.New("the idempotency key was used for another request")
	ErrLeaseLost   = errors.New("the lease is lost: the run is another's by now, or has ended")
	ErrRevoked     = errors.New("revoked")
	ErrInvite      = errors.New("the invite is not known, was used, or has expired")
	ErrNoProfile   = errors.New("there is no such profile")
	ErrOver        = errors.New("it is decided already")
)

// Options of a Store. The zero value is useful.
type Options struct {
	Lease      time.Duration // how long a host has a run without renewing; 0: [DefaultLease]
	MaxRunning int           // runs that run at a time, of all hosts; 0: any number
}

const (
	// DefaultLease outlasts a hub's restart and a short loss of the network; a host that died is missed for that long.
	DefaultLease = 60 * time.Second
	// preferFor is how long a run waits for the host that has its conversation's session, when that host is alive.
	preferFor = 30 * time.Second
	// aliveFor is how long after it was last heard of a host counts as alive.
	aliveFor = 90 * time.Second
	// busyTimeout is how long a statement of SQLite waits for another's transaction.
	busyTimeout = 10 * time.Second
	// maxConns bounds the connections to PostgreSQL, whose own bound is 100 for all.
	maxConns = 16
	// maxTries bounds how often a transaction is tried that another got in the way of.
	maxTries = 20
)

// Store is an open database. It is safe for concurrent use.
type Store struct {
	db       *sql.DB
	postgres string // its URL; empty: SQLite
	o        Options
	bus      bus
	writing  chan struct{} // held by the transaction that writes to SQLite: others wait here, in order, and not by polling its lock
	tell     chan string   // topics for the other hubs
	queries  sync.Map      // by their text here

	stop   context.CancelFunc
	listen sync.WaitGroup
}

//go:embed migrations/*.sql
var migrations embed.FS

// Open opens a database and brings its schema up to date. target is a URL postgres://… or the path of a SQLite file, which is made, with
// its folder (0700), where there is none. The caller closes the store.
func Open(ctx context.Context, target string, o Options) (*Store, error) {
	if o.Lease == 0 {
		o.Lease = DefaultLease
	}
	s := &Store{o: o, writing: make(chan struct{}, 1), tell: make(chan string, maxTold)}
	fail := func(err error) (*Store, error) {
		if s.db != nil {
			s.db.Close()
		}
		return nil, fmt.Errorf("open the hub's database: %w", err)
	}
	dialect := goose.DialectSQLite3
	var err error
	if strings.HasPrefix(target, "postgres://") || strings.HasPrefix(target, "postgresql://") {
		s.postgres, dialect = target, goose.DialectPostgres
		if s.db, err = sql.Open("pgx", target); err != nil {
			return fail(errors.New("the URL of PostgreSQL cannot be read")) // the driver's error has the password in it
		}
		s.db.SetMaxOpenConns(maxConns)
		s.db.SetMaxIdleConns(maxConns)
	} else {
		if strings.Contains(target, "://") {
			return fail(errors.New("it is neither postgres://… nor the path of a file"))
		}
		if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
			return fail(err)
		}
		// SQLite makes its files with the mode that the first has.
		f, err := os.OpenFile(target, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return fail(err)
		}
		f.Close()
		query := url.Values{"_txlock": {"immediate"}, "_pragma": {
			"journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)", "busy_timeout(" + strconv.FormatInt(busyTimeout.Milliseconds(), 10) + ")",
		}}
		if s.db, err = sql.Open("sqlite", (&url.URL{Scheme: "file", OmitHost: true, Path: target, RawQuery: query.Encode()}).String()); err != nil {
			return fail(err)
		}
		s.db.SetMaxOpenConns(8) // writers take turns in any case
	}
	folder, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fail(err)
	}
	// Several hubs may start at once: PostgreSQL lets one at a time migrate.
	opts := []goose.ProviderOption{}
	if s.postgres != "" {
		locker, err := newLocker()
		if err != nil {
			return fail(err)
		}
		opts = append(opts, goose.WithSessionLocker(locker))
	}
	provider, err := goose.NewProvider(dialect, s.db, folder, opts...)
	if err != nil {
		return fail(err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fail(err)
	}
	listening, stop := context.WithCancel(context.Background())
	s.stop = stop
	if s.postgres != "" {
		s.listen.Go(func() { s.hear(listening) })
		s.listen.Go(func() { s.tellOthers(listening) })
	}
	return s, nil
}

// Close closes the database.
func (s *Store) Close() error {
	s.stop()
	s.listen.Wait()
	return s.db.Close()
}

// Ping reports whether the database answers.
func (s *Store) Ping(ctx context.Context) error { return s.db.PingContext(ctx) }

// Lease is how long a host has a run without renewing.
func (s *Store) Lease() time.Duration { return s.o.Lease }

// Postgres reports whether the database is one that several hubs share.
func (s *Store) Postgres() bool { return s.postgres != "" }

// Backup writes a copy of a SQLite database to a file that does not exist, while the hub runs.
func (s *Store) Backup(ctx context.Context, file string) error {
	if s.postgres != "" {
		return errors.New("back up PostgreSQL with pg_dump (docs/hub-database.md)")
	}
	if _, err := os.Lstat(file); err == nil {
		return fmt.Errorf("back up to %s: %w", file, ErrConflict)
	}
	// The copy is made readable for its owner alone before anything is in it.
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("back up to %s: %w", file, err)
	}
	f.Close()
	if _, err := s.db.ExecContext(ctx, "VACUUM INTO ?", file); err != nil {
		return fmt.Errorf("back up to %s: %w", file, err)
	}
	return nil
}

// query is a statement for the database at hand: {now} is its clock in milliseconds, {skip} locks the rows and leaves out what another
// transaction has locked, {lock} locks them. Neither gets in the way of foreign keys.
func (s *Store) query(text string) string {
	if q, ok := s.queries.Load(text); ok {
		return q.(string)
	}
	now, skip, lock := "CAST(unixepoch('subsec') * 1000 AS INTEGER)", "", ""
	if s.postgres != "" {
		now, skip, lock = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)", "FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE"
	}
	q := strings.NewReplacer("{now}", now, "{skip}", skip, "{lock}", lock).Replace(text)
	if s.postgres != "" {
		var b strings.Builder
		n := 0
		for _, r := range q {
			if r == '?' {
				n++
				fmt.Fprintf(&b, "$%d", n)
				continue
			}
			b.WriteRune(r)
		}
		q = b.String()
	}
	s.queries.Store(text, q)
	return q
}

// tx is one transaction. What is to be woken is woken after its commit.
type tx struct {
	s     *Store
	t     *sql.Tx
	ctx   context.Context
	wakes []string
}

func (t *tx) exec(query string, args ...any) (int64, error) {
	r, err := t.t.ExecContext(t.ctx, t.s.query(query), storable(args)...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// get reads one row. The error is ErrNotFound when there is none.
func (t *tx) get(query string, args []any, into ...any) error {
	return notFound(t.t.QueryRowContext(t.ctx, t.s.query(query), storable(args)...).Scan(into...))
}

// storable replaces in texts what PostgreSQL takes in none: NUL, and bytes that are not UTF-8.
func storable(args []any) []any {
	for i, arg := range args {
		switch text := arg.(type) {
		case string:
			args[i] = storableText(text)
		case *string:
			if text != nil {
				args[i] = storableText(*text)
			}
		}
	}
	return args
}

func storableText(text string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "\uFFFD"), "\uFFFD")
}

func (t *tx) wake(topics ...string) { t.wakes = append(t.wakes, topics...) }

func notFound(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return ErrNotFound
	}
	return err
}

// in runs f in a transaction, and again when another transaction got in its way.
func (s *Store) in(ctx context.Context, f func(t *tx) error) error {
	var err error
	for try := range maxTries {
		if err = s.once(ctx, f); err == nil || !collided(err) {
			return err
		}
		// A short wait, longer each time, lets the other one end.
		timer := time.NewTimer(time.Duration(try+1) * 5 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
	return err
}

func (s *Store) once(ctx context.Context, f func(t *tx) error) error {
	if s.postgres == "" {
		select {
		case s.writing <- struct{}{}:
			defer func() { <-s.writing }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	sqlTx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer sqlTx.Rollback()
	t := &tx{s: s, t: sqlTx, ctx: ctx}
	if err := f(t); err != nil {
		return err
	}
	if err := sqlTx.Commit(); err != nil {
		return err
	}
	slices.Sort(t.wakes)
	t.wakes = slices.Compact(t.wakes)
	s.bus.wake(t.wakes...)
	if s.postgres != "" {
		for _, topic := range t.wakes {
			select {
			case s.tell <- topic:
			default: // the database has not answered for long; the others look now and then
			}
		}
	}
	return nil
}

// collided reports whether a transaction failed because of another, and may succeed when it is tried again.
func collided(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "40001", "40P01", "23505", "55P03": // serialization, deadlock, unique, lock not available
			return true
		}
		return false
	}
	var lite *sqlite.Error
	if errors.As(err, &lite) {
		switch lite.Code() & 0xff {
		case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
			return true
		}
		return unique(err)
	}
	return false
}

// unique reports whether a statement violated a unique index.
func unique(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code == "23505"
	}
	var lite *sqlite.Error
	return errors.As(err, &lite) && (lite.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE || lite.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
}

// list reads rows, each by scan.
func list[T any](ctx context.Context, s *Store, query string, args []any, scan func(row func(...any) error) (T, error)) ([]T, error) {
	rows, err := s.db.QueryContext(ctx, s.query(query), storable(args)...)
	if err != nil {
		return nil, err
	}
	return collect(rows, scan)
}

func collect[T any](rows *sql.Rows, scan func(row func(...any) error) (T, error)) ([]T, error) {
	defer rows.Close()
	all := []T{}
	for rows.Next() {
		v, err := scan(rows.Scan)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}

func rowsIn[T any](t *tx, query string, args []any, scan func(row func(...any) error) (T, error)) ([]T, error) {
	rows, err := t.t.QueryContext(t.ctx, t.s.query(query), storable(args)...)
	if err != nil {
		return nil, err
	}
	return collect(rows, scan)
}

var idText = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// NewID makes an id: it sorts by time, as far as clocks agree, and cannot be guessed.
func NewID() string {
	var b [16]byte
	ms := time.Now().UnixMilli()
	for i := range 6 {
		b[i] = byte(ms >> (8 * (5 - i)))
	}
	rand.Read(b[6:]) // never fails
	return idText.EncodeToString(b[:])
}

func fromMS(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

func optional(ms sql.NullInt64) *time.Time {
	if !ms.Valid {
		return nil
	}
	t := fromMS(ms.Int64)
	return &t
}

// page bounds what one list gives.
func page(limit int) int {
	if limit <= 0 || limit > MaxPage {
		return MaxPage
	}
	return limit
}

// MaxPage is the most that one list gives.
const MaxPage = 200
