package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"nightporter/internal/secret"
)

const (
	// queueLength is how many entries wait for the writer: more than a second of the fastest client that was
	// measured, while another process holds the file.
	queueLength = 1024
	// maxBatch is how many entries go into one transaction. Others wait for as long as it takes, some 10 ms.
	maxBatch = 256
	// gathering is the least time between two transactions while calls follow each other: each costs a sync and some 300 µs of a
	// processor, which is more than the call. The first call after a pause is written at once.
	gathering = 20 * time.Millisecond
	// patience is how long a call waits when the queue is full, before its entry is counted as lost. On a machine that
	// was busy with builds, 100 ms were too short for a transaction now and then.
	patience = time.Second
	// A transaction that failed is tried again after retryFirst, and then after twice as long each time up to
	// retryMost: a full disk is not helped by haste.
	retryFirst = 100 * time.Millisecond
	retryMost  = 30 * time.Second
	// sayAfter is the attempt at which a failure is said: what passes by itself, such as another process holding the
	// file, is not worth a line.
	sayAfter = 3
)

// Options of a Log. The zero value is useful.
type Options struct {
	Masker        *secret.Masker // known secrets, replaced in Detail, Exposed, Client and Arguments; may be nil
	KeepArguments bool           // keep the text of arguments, not only its digest
	MaxAge        time.Duration  // older entries are removed; 0: DefaultMaxAge
	MaxBytes      int64          // the oldest entries are removed while the file uses more; 0: DefaultMaxBytes
	Log           *slog.Logger   // told when the record cannot be written; may be nil
}

// Log writes to a record. It is safe for concurrent use, as the file is by many processes.
type Log struct {
	path     string
	o        Options
	patience time.Duration // see the constant

	mu     sync.RWMutex // read-locked to send to queue, locked to close it
	closed bool
	queue  chan Entry
	start  sync.Once
	ctx    context.Context // ends when Close must not wait any longer
	cancel context.CancelFunc
	ending chan struct{} // closed when no entries will follow
	done   chan struct{} // closed when the writer has ended

	stuck  atomic.Bool // a call has waited in vain since the last transaction
	losses losses
	keys   keys

	store *store // of the writer; nil until it writes
	err   error  // of the writer: why its last transaction failed, nil when it did not
}

// New returns a Log that writes to the file at path. Neither file nor goroutine exist until the first Record. The caller
// closes it.
func New(path string, o Options) *Log {
	if o.Masker == nil {
		o.Masker = new(secret.Masker)
	}
	if o.MaxAge == 0 {
		o.MaxAge = DefaultMaxAge
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Log{
		path: filepath.Clean(path), o: o, patience: patience, queue: make(chan Entry, queueLength), ctx: ctx, cancel: cancel,
		ending: make(chan struct{}), done: make(chan struct{}), keys: keys{path: path},
	}
}

// Record queues an entry. It returns at once as a rule, and after a second at most: an entry for which there was no
// room until then is lost, and an entry of its own says how many were and since when. After Close everything is lost.
func (l *Log) Record(e Entry) {
	e = l.prepared(e)
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		l.o.Log.Warn("a call was not recorded: the audit record is closed", "server", e.Server, "tool", e.Tool)
		return
	}
	l.start.Do(func() { go l.write() })
	if !l.offer(e) {
		l.losses.add(1, e.Time, e.Time)
	}
}

func (l *Log) offer(e Entry) bool {
	select {
	case l.queue <- e:
		return true
	default:
	}
	if l.stuck.Load() {
		return false // the writer is known to hang: not every call needs to wait for it
	}
	timer := time.NewTimer(l.patience)
	defer timer.Stop()
	select {
	case l.queue <- e:
		return true
	case <-timer.C:
		l.stuck.Store(true)
		return false
	}
}

// prepared is an entry as it is kept: without secrets, and bounded.
func (l *Log) prepared(e Entry) Entry {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	if e.Arguments != nil {
		e.ArgumentsBytes = int64(len(e.Arguments))
		digest, err := l.keys.digest(l.ctx, e.Arguments)
		if err != nil {
			l.o.Log.Warn("a call is recorded without a digest of its arguments", "err", err)
		}
		e.ArgumentsDigest = digest
	}
	e.Arguments = l.kept(e.Arguments)
	// Masked before they are cut: half a secret is not recognised.
	e.Client, e.Exposed, e.Approval = l.o.Masker.Text(e.Client), l.o.Masker.Text(e.Exposed), l.o.Masker.Text(e.Approval)
	e.Detail = bounded(l.o.Masker.Text(e.Detail), maxDetail)
	for _, name := range []*string{&e.Client, &e.Run, &e.Server, &e.Tool, &e.Exposed, &e.ArgumentsDigest, &e.Authority, &e.Revision, &e.Approval} {
		*name = bounded(*name, maxName)
	}
	return e
}

// kept is the text of arguments that goes into the record; nil for none.
func (l *Log) kept(arguments json.RawMessage) json.RawMessage {
	if !l.o.KeepArguments || len(arguments) == 0 || len(arguments) > maxArguments {
		return nil
	}
	text := l.o.Masker.Bytes(arguments)
	if len(text) > maxArguments || !json.Valid(text) || !utf8.Valid(text) {
		return nil
	}
	return append(json.RawMessage(nil), text...) // the caller's buffer is the caller's
}

// bounded is text as valid UTF-8 of at most most bytes.
func bounded(text string, most int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= most {
		return text
	}
	const cut = "…"
	end := most - len(cut)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + cut
}

// Close writes what is queued, and waits for that until ctx ends. The error says how many entries are missing, and
// why. Calls after the first return at once, without an error.
func (l *Log) Close(ctx context.Context) error {
	l.mu.Lock()
	again := l.closed
	l.closed = true
	l.mu.Unlock()
	if again {
		return nil
	}
	close(l.ending)
	close(l.queue)
	defer l.cancel()
	l.start.Do(func() { close(l.done) }) // there was nothing to write
	select {
	case <-l.done:
	case <-ctx.Done():
		l.cancel()
		<-l.done
	}
	if lost, ok := l.losses.take(); ok {
		return fmt.Errorf("%d calls are missing in the audit record %s: %w", lost.Lost, l.path, errors.Join(l.err, ctx.Err()))
	}
	return nil
}

// write is the writer.
func (l *Log) write() {
	defer close(l.done)
	defer func() {
		if l.store != nil {
			l.store.close()
		}
	}()
	batch := make([]Entry, 0, maxBatch)
	for e := range l.queue {
		batch = l.fill(append(batch[:0], e))
		l.commit(batch)
		clear(batch)
		l.gather()
	}
	if l.losses.any() {
		l.commit(nil)
	}
}

// gather waits for more entries, unless there is a batch of them already or none will follow.
func (l *Log) gather() {
	if len(l.queue) >= maxBatch {
		return
	}
	timer := time.NewTimer(gathering)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.ending:
	case <-l.ctx.Done():
	}
}

// fill adds what is queued to a batch.
func (l *Log) fill(batch []Entry) []Entry {
	for len(batch) < maxBatch {
		select {
		case e, ok := <-l.queue:
			if !ok {
				return batch
			}
			batch = append(batch, e)
		default:
			return batch
		}
	}
	return batch
}

// commit writes a batch and what was lost before it. It tries again until it has, or must give up: then the batch is lost.
func (l *Log) commit(batch []Entry) {
	for attempt, wait := 1, retryFirst; l.ctx.Err() == nil; attempt, wait = attempt+1, min(2*wait, retryMost) {
		err := l.try(batch)
		if err == nil {
			l.err = nil
			l.stuck.Store(false)
			return
		}
		if attempt == sayAfter {
			l.o.Log.Warn("the audit record cannot be written; trying again", "err", err)
		}
		l.err = err
		if !l.again(err, wait) {
			break
		}
	}
	if len(batch) > 0 {
		l.losses.add(int64(len(batch)), batch[0].Time, batch[len(batch)-1].Time)
	}
}

// again waits before the next attempt, and reports whether there should be one.
func (l *Log) again(err error, wait time.Duration) bool {
	ending := l.ending
	if busy(err) {
		wait = retryFirst // the others' transactions are as short as ours
	}
	select {
	case <-ending:
		if !busy(err) {
			return false // not to be waited for at the end of a process
		}
		ending = nil
	default:
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ending:
		return true // once more, at once
	case <-l.ctx.Done():
		return false
	}
}

// try writes a batch in one transaction, into a new file when the one that there is turns out to be damaged.
func (l *Log) try(batch []Entry) (err error) {
	entries := batch
	if lost, ok := l.losses.take(); ok {
		defer func() {
			if err != nil {
				l.losses.add(lost.Lost, lost.Time, lost.Time.Add(lost.Duration))
			}
		}()
		lost.Detail = "they came faster than they could be written"
		if l.err != nil {
			lost.Detail = bounded(l.o.Masker.Text(l.err.Error()), maxDetail)
		}
		entries = append(entries[:len(entries):len(entries)], lost)
	}
	err = l.add(entries)
	var damaged *damagedError
	if !errors.As(err, &damaged) {
		return err
	}
	aside, err := setAside(l.ctx, l.path, damaged.file)
	if err != nil {
		return fmt.Errorf("%w; it cannot be set aside: %w", damaged, err)
	}
	if aside == "" { // by another process
		return l.add(entries)
	}
	note := Entry{Time: time.Now(), Outcome: Damaged, Detail: bounded(fmt.Sprintf("%v; set aside as %s", damaged, aside), maxDetail)}
	l.o.Log.Warn("the audit record was damaged; a new one is begun", "err", damaged, "aside", aside)
	return l.add(append(entries[:len(entries):len(entries)], note))
}

// add writes entries to the file that is at the path when they are in it.
func (l *Log) add(entries []Entry) error {
	// A file is moved away when it is damaged, or by its operator. What was written to it meanwhile goes into its
	// successor as well, as nobody will look for it where it is.
	for range moves {
		if l.store == nil {
			s, err := open(l.ctx, l.path, migrations)
			if err != nil {
				return err
			}
			l.store = s
		}
		err := l.store.add(l.ctx, entries, l.o.MaxAge, l.o.MaxBytes)
		moved := l.store.moved()
		if moved || err != nil && !busy(err) {
			l.store.close()
			l.store = nil
		}
		if !moved {
			return err
		}
	}
	return fmt.Errorf("%s is moved away again and again", l.path)
}

// moves is how often the file may be moved away during one attempt.
const moves = 3

// losses counts entries that could not be recorded.
type losses struct {
	mu          sync.Mutex
	n           int64
	first, last time.Time
}

func (l *losses) add(n int64, first, last time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n == 0 || first.Before(l.first) {
		l.first = first
	}
	if l.n == 0 || last.After(l.last) {
		l.last = last
	}
	l.n += n
}

func (l *losses) any() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n > 0
}

// take returns the entry that tells the losses up to now, and forgets them.
func (l *losses) take() (e Entry, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e = Entry{Time: l.first, Duration: l.last.Sub(l.first), Outcome: Lost, Lost: l.n}
	l.n = 0
	return e, e.Lost > 0
}
