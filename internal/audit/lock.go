package audit

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"nightporter/internal/safefile"
)

const (
	// lockPatience bounds the wait for another process that opens, makes, migrates or sets aside the file.
	lockPatience = 30 * time.Second
	// lockRetry is how often a held lock is tried again. It is held for some 10 ms, and longer only to migrate.
	lockRetry = 5 * time.Millisecond
)

// SQLite finds a write-ahead log by the name of its database, when a connection first reads and when the last one is closed.
// A file must not be replaced then: the connection would join the log of one file to another (measured: entries
// lost, and an I/O error). So whoever opens or closes a connection holds the lock beside the file together with others
// who do; whoever makes, migrates or sets aside the file, or makes the key, holds it alone. In between an open
// connection keeps to the files that it opened, whatever their names are by then.

// lock takes the lock of the record at path alone. It makes the folder.
func lock(ctx context.Context, path string) (unlock func() error, err error) {
	return take(ctx, path, (*flock.Flock).TryLockContext)
}

// lockShared takes the lock of the record at path together with others.
func lockShared(ctx context.Context, path string) (unlock func() error, err error) {
	return take(ctx, path, (*flock.Flock).TryRLockContext)
}

func take(ctx context.Context, path string, try func(*flock.Flock, context.Context, time.Duration) (bool, error)) (unlock func() error, err error) {
	ctx, done := context.WithTimeout(ctx, lockPatience)
	defer done()
	if err := os.MkdirAll(filepath.Dir(path), safefile.DirMode); err != nil {
		return nil, err
	}
	l := flock.New(path+".lock", flock.SetPermissions(safefile.FileMode))
	if _, err := try(l, ctx, lockRetry); err != nil {
		return nil, fmt.Errorf("lock %s: %w", l.Path(), err)
	}
	return l.Unlock, nil
}
