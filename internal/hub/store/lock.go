package store

import "github.com/pressly/goose/v3/lock"

// newLocker lets one hub at a time migrate a PostgreSQL database.
func newLocker() (lock.SessionLocker, error) { return lock.NewPostgresSessionLocker() }
