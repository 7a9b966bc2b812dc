package audit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"nightporter/internal/safefile"
)

// migrations[i] brings a file from schema i to schema i+1; PRAGMA user_version has the number. What was released is never
// changed: a new schema is one more.
var migrations = []string{`
CREATE TABLE calls (
	id               INTEGER PRIMARY KEY,
	time             INTEGER NOT NULL, -- nanoseconds since 1970, UTC
	client           TEXT NOT NULL,
	run              TEXT NOT NULL,
	server           TEXT NOT NULL,
	tool             TEXT NOT NULL,
	exposed          TEXT NOT NULL,
	arguments        TEXT,             -- NULL when not kept
	arguments_digest TEXT NOT NULL,
	arguments_bytes  INTEGER NOT NULL,
	result_bytes     INTEGER NOT NULL,
	outcome          TEXT NOT NULL,
	detail           TEXT NOT NULL,
	duration         INTEGER NOT NULL, -- nanoseconds
	authority        TEXT NOT NULL,
	generation       INTEGER NOT NULL,
	revision         TEXT NOT NULL,
	lost             INTEGER NOT NULL
) STRICT;
CREATE INDEX calls_time ON calls (time);
CREATE INDEX calls_run ON calls (run) WHERE run <> '';
`, `
ALTER TABLE calls ADD COLUMN approval TEXT NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN approval_wait INTEGER NOT NULL DEFAULT 0; -- nanoseconds
`}

// columns are those that an entry is written to and read from, in the order of values and scan.
const columns = "time, client, run, server, tool, exposed, arguments, arguments_digest, arguments_bytes, result_bytes, outcome, detail, duration, authority, generation, revision, lost, approval, approval_wait"

var insert = "INSERT INTO calls (" + columns + ") VALUES (?" + strings.Repeat(", ?", strings.Count(columns, ",")) + ")"

func (e *Entry) values() []any {
	arguments := sql.NullString{String: string(e.Arguments), Valid: e.Arguments != nil}
	return []any{
		nanoseconds(e.Time), e.Client, e.Run, e.Server, e.Tool, e.Exposed, arguments, e.ArgumentsDigest, e.ArgumentsBytes, e.ResultBytes,
		string(e.Outcome), e.Detail, int64(e.Duration), e.Authority, e.Generation, e.Revision, e.Lost, e.Approval, int64(e.ApprovalWaited),
	}
}

func (e *Entry) scan(rows *sql.Rows) error {
	var (
		at        int64
		arguments sql.NullString
	)
	err := rows.Scan(&at, &e.Client, &e.Run, &e.Server, &e.Tool, &e.Exposed, &arguments, &e.ArgumentsDigest, &e.ArgumentsBytes, &e.ResultBytes,
		&e.Outcome, &e.Detail, &e.Duration, &e.Authority, &e.Generation, &e.Revision, &e.Lost, &e.Approval, &e.ApprovalWaited)
	if e.Time = time.Unix(0, at).UTC(); arguments.Valid {
		e.Arguments = []byte(arguments.String)
	}
	return err
}

const (
	// busyTimeout is how long SQLite waits for another process's transaction. Those take some 10 ms. After it the
	// writer tries again by itself, so that a Close is not held up.
	busyTimeout = 500 * time.Millisecond
	// trimRows is how many old entries one transaction removes at most: more than it adds (maxBatch), and few enough
	// that other processes do not wait.
	trimRows = 4 * maxBatch
	// sparePages is how many free pages (of 4 KiB) stay in the file for what comes next; trimPages is how many of
	// the others one transaction gives back.
	sparePages = 1024
	trimPages  = 256
	// walLimit is what the file beside the record shrinks to again, after a long query kept it from being emptied.
	walLimit = 4 << 20
	// keepDamaged is how many damaged files stay: each may be as large as the record.
	keepDamaged = 3
)

// dsn is the data source of the file at path. Transactions are durable when they are committed (synchronous FULL): nobody
// waits for them, and what a call did outlives a power failure as well.
func dsn(path string) string {
	path = filepath.ToSlash(path)
	if filepath.VolumeName(path) != "" {
		path = "/" + path
	}
	u := url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: url.Values{
		"mode":    {"rw"},
		"_txlock": {"immediate"},
		"_pragma": {
			fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()),
			"synchronous(FULL)",
			fmt.Sprintf("journal_size_limit(%d)", walLimit),
		},
	}.Encode()}
	return u.String()
}

// store is an open file.
type store struct {
	path    string
	file    os.FileInfo // of path when it was opened
	db      *sql.DB
	conn    *sql.Conn // the one connection: db alone might make another, to what is at the path by then
	version int
}

// open opens the file at path, made or migrated to the schema that steps lead to where it is needed.
func open(ctx context.Context, path string, steps []string) (*store, error) {
	s, err := openCurrent(ctx, path, len(steps))
	if s != nil || err != nil {
		return s, err
	}
	unlock, err := lock(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("open the audit record: %w", err)
	}
	defer unlock()
	if err := create(path); err != nil {
		return nil, err
	}
	if s, err = connect(ctx, path); err != nil {
		return nil, err
	}
	if err := s.migrate(ctx, steps); err != nil {
		s.disconnect()
		return nil, err
	}
	return s, nil
}

// openCurrent opens the file at path when it has the schema already, as nearly always. It returns nil when it has not.
func openCurrent(ctx context.Context, path string, version int) (*store, error) {
	unlock, err := lockShared(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("open the audit record: %w", err)
	}
	defer unlock()
	s, err := connect(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && s.version != version {
		s.disconnect()
		return nil, nil
	}
	return s, err
}

// close closes the file.
func (s *store) close() {
	// When there is no lock to be had, an open file would be worse.
	if unlock, err := lockShared(context.Background(), s.path); err == nil {
		defer unlock()
	}
	s.disconnect()
}

// create makes an empty file at path when there is none.
func create(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, safefile.FileMode)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		err = f.Close()
	}
	// What an earlier file left behind is not the new one's. Connections to that file may still use it.
	for _, suffix := range []string{"-wal", "-shm"} {
		if gone := os.Remove(path + suffix); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	if err != nil {
		return fmt.Errorf("make the audit record: %w", err)
	}
	return nil
}

// connect opens the file at path as it is, under the lock that the caller has. Errors: fs.ErrNotExist, *damagedError, others.
func connect(ctx context.Context, path string) (*store, error) {
	file, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("open the audit record: %w", err)
	}
	db, err := sql.Open("sqlite", dsn(path))
	if err != nil {
		return nil, fmt.Errorf("open the audit record %s: %w", path, err)
	}
	s := &store{path: path, file: file, db: db}
	if s.conn, err = db.Conn(ctx); err == nil {
		// This reads: from here on the connection has all its files.
		err = s.conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&s.version)
	}
	if err != nil {
		s.disconnect()
		return nil, s.failed("open", err)
	}
	return s, nil
}

// disconnect closes the connection, under the lock that the caller has.
func (s *store) disconnect() {
	// Their errors change nothing: what was committed stays, and what was not is reported where it failed.
	if s.conn != nil {
		s.conn.Close()
	}
	s.db.Close()
}

// moved reports whether another file is at the path now, or none.
func (s *store) moved() bool {
	now, err := os.Stat(s.path)
	return errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(now, s.file)
}

// failed says what failed, and that the file is damaged where SQLite says so.
func (s *store) failed(what string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s the audit record %s: %w", what, s.path, err)
	if c := code(err); c == sqlite3.SQLITE_CORRUPT || c == sqlite3.SQLITE_NOTADB {
		return &damagedError{s.file, err}
	}
	return err
}

// damagedError is the error of a file that SQLite cannot make sense of.
type damagedError struct {
	file os.FileInfo
	err  error
}

func (d *damagedError) Error() string { return d.err.Error() }
func (d *damagedError) Unwrap() error { return d.err }

// busy reports whether another process held the file for too long.
func busy(err error) bool { return code(err) == sqlite3.SQLITE_BUSY }

// code is SQLite's primary result code of an error; 0 when it is not SQLite's.
func code(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

// NewerError is the error of a record that a newer Nightporter has written. It is not touched.
type NewerError struct {
	Path        string
	Have, Known int // schemas
}

func (e *NewerError) Error() string {
	return fmt.Sprintf("the audit record %s has schema %d, and this Nightporter knows up to %d: use the newer Nightporter that wrote it, or move the file away",
		e.Path, e.Have, e.Known)
}

// migrate brings the file to the schema that steps lead to.
func (s *store) migrate(ctx context.Context, steps []string) error {
	if s.version == 0 { // both must be said before there is a table
		if _, err := s.conn.ExecContext(ctx, "PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL"); err != nil {
			return s.failed("make", err)
		}
	}
	for s.version < len(steps) {
		err := s.transact(ctx, s.version, func(tx *sql.Tx) error {
			_, err := tx.Exec(steps[s.version] + fmt.Sprintf("; PRAGMA user_version = %d", s.version+1))
			return err
		})
		if err != nil {
			return err
		}
		s.version++
	}
	if s.version > len(steps) {
		return &NewerError{s.path, s.version, len(steps)}
	}
	return nil
}

// transact does something in one transaction, provided that the schema is still version.
func (s *store) transact(ctx context.Context, version int, do func(*sql.Tx) error) error {
	tx, err := s.conn.BeginTx(ctx, nil)
	if err != nil {
		return s.failed("write to", err)
	}
	defer tx.Rollback()
	var now int
	if err := tx.QueryRow("PRAGMA user_version").Scan(&now); err != nil {
		return s.failed("write to", err)
	}
	if now != version {
		return &NewerError{s.path, now, version}
	}
	if err := do(tx); err != nil {
		return s.failed("write to", err)
	}
	return s.failed("write to", tx.Commit())
}

// add writes entries, and removes old ones: those older than maxAge, and the oldest while the file uses more than
// maxBytes.
func (s *store) add(ctx context.Context, entries []Entry, maxAge time.Duration, maxBytes int64) error {
	return s.transact(ctx, s.version, func(tx *sql.Tx) error {
		row, err := tx.Prepare(insert)
		if err != nil {
			return err
		}
		defer row.Close()
		for i := range entries {
			if _, err := row.Exec(entries[i].values()...); err != nil {
				return err
			}
		}
		return trim(tx, time.Now().Add(-maxAge), maxBytes)
	})
}

// trim does a part of the removal of old entries. What it leaves is for the next transactions.
func trim(tx *sql.Tx, oldest time.Time, maxBytes int64) error {
	const remove = "DELETE FROM calls WHERE id IN (SELECT id FROM calls WHERE time < ? ORDER BY time LIMIT ?)"
	removed, err := tx.Exec(remove, oldest.UnixNano(), trimRows)
	if err != nil {
		return err
	}
	var pages, free, pageSize int64
	if err := tx.QueryRow("SELECT * FROM pragma_page_count, pragma_freelist_count, pragma_page_size").Scan(&pages, &free, &pageSize); err != nil {
		return err
	}
	if n, err := removed.RowsAffected(); err == nil && n == 0 && (pages-free)*pageSize > maxBytes {
		if _, err := tx.Exec(remove, int64(math.MaxInt64), trimRows); err != nil {
			return err
		}
	}
	if free > sparePages {
		_, err = tx.Exec(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", trimPages))
	}
	return err
}

// damagedSuffix is how the names of files that were set aside end.
const damagedSuffix = ".damaged"

// setAside renames the file at path, when it still is the one that was found to be damaged. It returns the new path, or ""
// when another process has done so.
func setAside(ctx context.Context, path string, damaged os.FileInfo) (string, error) {
	unlock, err := lock(ctx, path)
	if err != nil {
		return "", err
	}
	defer unlock()
	now, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(now, damaged) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	aside := path + "." + time.Now().UTC().Format("20060102T150405.000000000") + damagedSuffix
	if err := os.Rename(path, aside); err != nil {
		return "", err
	}
	// The write-ahead log may have what the file lacks, and SQLite looks for it under this name.
	if err := os.Rename(path+"-wal", aside+"-wal"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.Remove(path + "-shm"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	all, err := filepath.Glob(globEscaped(path) + ".*" + damagedSuffix)
	if err != nil {
		return "", err
	}
	slices.Sort(all) // by time
	for _, old := range all[:max(0, len(all)-keepDamaged)] {
		os.Remove(old)
		os.Remove(old + "-wal")
	}
	return aside, nil
}

// globEscaped is path as a pattern that matches it alone.
func globEscaped(path string) string {
	if os.PathSeparator == '\\' { // there is no escape on Windows; [ is the one character that may be in a name
		return strings.ReplaceAll(path, "[", "[[]")
	}
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
