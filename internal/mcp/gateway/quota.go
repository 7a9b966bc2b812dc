package gateway

import "sync"

// Quota bounds how many of something there may be at a time, and counts into the quota that it is part of: no holder of a token takes
// what there is for all. A nil quota has no bound. It is safe for concurrent use.
type Quota struct {
	most int64
	of   *Quota

	mu   sync.Mutex
	used int64
}

// NewQuota makes a quota of most, as part of another one, which may be nil.
func NewQuota(most int64, of *Quota) *Quota { return &Quota{most: most, of: of} }

// Take takes n, and reports whether there was as much. Who took gives back.
func (q *Quota) Take(n int64) bool {
	if q == nil {
		return true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.used+n > q.most || !q.of.Take(n) {
		return false
	}
	q.used += n
	return true
}

// Give gives n back.
func (q *Quota) Give(n int64) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.used -= n
	q.of.Give(n)
}

// Used is how much is taken.
func (q *Quota) Used() int64 {
	if q == nil {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.used
}
