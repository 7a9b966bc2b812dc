package audit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Filter chooses entries. The zero value chooses all.
type Filter struct {
	Since time.Time // issued then or later; zero: no bound
	Until time.Time // issued before; zero: no bound
	Run   string    // this run's

	// Patterns, of which * stands for any text, ? for any character, and [a-z] for one of several; case counts. Tool is
	// held against the raw name, or what the client called it where there is no such tool. Empty: any.
	Client, Server, Tool string

	Outcomes        []Outcome // one of these; empty: any
	ArgumentsDigest string    // see Digest; empty: any
	Limit           int       // at most so many, the newest; 0: all
}

// Query returns the entries of the record at path, the newest first. A record that does not exist has none. The iteration
// ends with the first error.
func Query(ctx context.Context, path string, f Filter) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		if err := query(ctx, filepath.Clean(path), f, yield); err != nil {
			yield(Entry{}, err)
		}
	}
}

// query yields entries until there are no more, or yield wants none.
func query(ctx context.Context, path string, f Filter, yield func(Entry, error) bool) error {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	s, err := open(ctx, path, migrations)
	if err != nil {
		return advice(err)
	}
	defer s.close()
	where, args := f.where()
	rows, err := s.conn.QueryContext(ctx, "SELECT "+columns+" FROM calls"+where, args...)
	if err != nil {
		return advice(s.failed("read", err))
	}
	defer rows.Close()
	for rows.Next() {
		var e Entry
		if err := e.scan(rows); err != nil {
			return advice(s.failed("read", err))
		}
		if !yield(e, nil) {
			return nil
		}
	}
	return advice(s.failed("read", rows.Err()))
}

// advice says what to do about a damaged file. It is not set aside here: who reads changes nothing.
func advice(err error) error {
	var damaged *damagedError
	if errors.As(err, &damaged) {
		return fmt.Errorf("%w; the next call that is recorded sets the file aside if it cannot be written to either, and sqlite3's .recover may save entries", err)
	}
	return err
}

// where is the filter in SQL, and its arguments.
func (f *Filter) where() (string, []any) {
	var (
		conditions []string
		args       []any
	)
	add := func(condition string, values ...any) {
		conditions = append(conditions, condition)
		args = append(args, values...)
	}
	if !f.Since.IsZero() {
		add("time >= ?", nanoseconds(f.Since))
	}
	if !f.Until.IsZero() {
		add("time < ?", nanoseconds(f.Until))
	}
	if f.Run != "" {
		add("run = ? AND run <> ''", f.Run) // the second half lets SQLite use the index
	}
	for _, c := range []struct{ expression, pattern string }{
		{"client", f.Client}, {"server", f.Server}, {"iif(tool = '', exposed, tool)", f.Tool},
	} {
		if c.pattern != "" {
			add(c.expression+" GLOB ?", c.pattern)
		}
	}
	if len(f.Outcomes) > 0 {
		values := make([]any, len(f.Outcomes))
		for i, o := range f.Outcomes {
			values[i] = string(o)
		}
		add("outcome IN (?"+strings.Repeat(", ?", len(values)-1)+")", values...)
	}
	if f.ArgumentsDigest != "" {
		add("arguments_digest = ?", f.ArgumentsDigest)
	}
	var b strings.Builder
	for i, c := range conditions {
		b.WriteString([]string{" WHERE ", " AND "}[min(i, 1)] + c)
	}
	b.WriteString(" ORDER BY time DESC, id DESC")
	if f.Limit > 0 {
		b.WriteString(" LIMIT ?")
		args = append(args, f.Limit)
	}
	return b.String(), args
}

// nanoseconds is a time as the record has it, or the nearest that can be: from 1678 to 2262.
func nanoseconds(t time.Time) int64 {
	switch {
	case t.Before(time.Unix(0, math.MinInt64)):
		return math.MinInt64
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	}
	return t.UnixNano()
}
