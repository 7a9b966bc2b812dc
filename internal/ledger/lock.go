package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"nightporter/internal/safefile"
)

// lockRetry is how often a held lock is tried again: a run takes seconds to hours.
const lockRetry = 50 * time.Millisecond

// Holder says who holds a lock.
type Holder struct {
	PID          int       `json:"pid"`
	Run          string    `json:"run"`
	Conversation string    `json:"conversation"`
	Since        time.Time `json:"since"`
}

// Busy says that somebody else holds what was to be locked, until the end of the wait.
type Busy struct {
	What   string  // "conversation …" or "session … of claude"
	Holder *Holder // nil when the holder has not written yet who it is
	Err    error   // the context's
}

func (b *Busy) Error() string {
	holder := "another process"
	if h := b.Holder; h != nil {
		holder = fmt.Sprintf("run %s of conversation %q (process %d, since %s)", h.Run, h.Conversation, h.PID, h.Since.Format(time.RFC3339))
	}
	return fmt.Sprintf("%s is in use by %s: %v", b.What, holder, b.Err)
}

func (b *Busy) Unwrap() error { return b.Err }

// lock is a lock that is held, and the note beside it that says by whom.
type lock struct {
	flock *flock.Flock
	note  string
}

// take takes the lock at path, at least trying once, and waits until ctx ends. what names it in a *Busy.
func take(ctx context.Context, path, note, what string, holder Holder) (*lock, error) {
	if err := os.MkdirAll(filepath.Dir(path), safefile.DirMode); err != nil {
		return nil, err
	}
	l := &lock{flock.New(path, flock.SetPermissions(safefile.FileMode)), note}
	ok, err := l.flock.TryLock()
	if !ok && err == nil {
		_, err = l.flock.TryLockContext(ctx, lockRetry)
	}
	switch {
	case err != nil && errors.Is(err, ctx.Err()):
		return nil, &Busy{What: what, Holder: readHolder(note), Err: context.Cause(ctx)}
	case err != nil:
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	holder.Since = time.Now()
	data, err := json.Marshal(holder)
	if err == nil {
		err = safefile.Write(note, append(data, '\n'))
	}
	if err != nil {
		return nil, errors.Join(err, l.free())
	}
	return l, nil
}

// free gives the lock back.
func (l *lock) free() error {
	// First the note: after the lock it might be the next holder's.
	os.Remove(l.note)
	return l.flock.Unlock()
}

func readHolder(note string) *Holder {
	data, err := os.ReadFile(note)
	var h Holder
	if err != nil || json.Unmarshal(data, &h) != nil {
		return nil
	}
	return &h
}

// held returns who holds the conversation in folder, nil when nobody does. A note without a held lock is what a holder that
// was killed left behind.
func held(folder string) *Holder {
	holder := readHolder(filepath.Join(folder, noteName))
	if holder == nil {
		return nil
	}
	probe := flock.New(filepath.Join(folder, lockName), flock.SetPermissions(safefile.FileMode))
	if ok, err := probe.TryRLock(); ok || err != nil {
		probe.Unlock()
		return nil
	}
	return holder
}
