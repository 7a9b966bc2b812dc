package ledger

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"nightporter/internal/safefile"
)

const (
	lockName = "lock"
	noteName = "holder.json"
)

// maxDead is how many dead session ids are remembered for one conversation. An agent names a dead id again in the
// same run, if at all; hundreds of runs later nobody does.
const maxDead = 256

// ErrDead says that a session was not recorded because [Conversation.Forget] was told that it is dead.
var ErrDead = errors.New("the session is known to be dead")

// errUnlocked is what methods answer after Unlock.
var errUnlocked = errors.New("the conversation is not locked any more")

// Conversation is a conversation whose lock is held by this value, until Unlock or the end of the process.
// It is safe for concurrent use.
type Conversation struct {
	ledger *Ledger
	key    string
	run    string
	folder string
	notes  []string

	mu    sync.Mutex
	locks []*lock // the conversation's own first, then those of sessions; empty after Unlock
	file  *file
}

// Lock lets the run into the conversation, whose key may be any text but the empty one. While another run holds it,
// in this process or another, Lock waits until ctx ends; the error is then a *[Busy]. When the conversation's
// file is damaged it is set aside, the conversation starts fresh, and [Conversation.Notes] says so.
func (l *Ledger) Lock(ctx context.Context, conversation, run string) (*Conversation, error) {
	if conversation == "" {
		return nil, errors.New("lock a conversation: its key is empty")
	}
	c := &Conversation{ledger: l, key: conversation, run: run}
	c.folder = filepath.Join(l.dir, "conversations", folderName(conversation))
	lock, err := take(ctx, filepath.Join(c.folder, lockName), filepath.Join(c.folder, noteName),
		fmt.Sprintf("conversation %q", shown(conversation)), c.holder())
	if err != nil {
		return nil, err
	}
	c.locks = append(c.locks, lock)
	if err := c.read(); err != nil {
		return nil, errors.Join(fmt.Errorf("conversation %q: %w", shown(conversation), err), c.Unlock())
	}
	return c, nil
}

// shown is a key as it stands in messages: whole, unless it is very long.
func shown(key string) string {
	const most = 120
	if runes := []rune(key); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return key
}

func (c *Conversation) holder() Holder {
	return Holder{PID: os.Getpid(), Run: c.run, Conversation: shown(c.key)}
}

// read reads the conversation's file, or starts a fresh one.
func (c *Conversation) read() error {
	f, err := readFile(c.folder)
	if err == nil {
		c.file = f
		return nil
	}
	c.file = &file{Format: format, Conversation: c.key}
	var unreadable *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.As(err, &unreadable):
		return err // not readable now; its content may be good
	}
	path := filepath.Join(c.folder, fileName)
	aside := path + ".damaged"
	if err := os.Rename(path, aside); err != nil {
		return err
	}
	c.notes = append(c.notes, fmt.Sprintf("the record of this conversation could not be read and was moved to %s; its agents start new sessions (%v)", aside, err))
	return nil
}

// Notes returns what a person should know about the conversation's record.
func (c *Conversation) Notes() []string { return slices.Clone(c.notes) }

// Session returns the session that the agent has in this conversation. home is the agent's home folder (HOME,
// CLAUDE_CONFIG_DIR, CODEX_HOME), because the session lives there.
func (c *Conversation) Session(agent, home string) (Session, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.index(agent, resolve(home)); i >= 0 {
		return c.file.Sessions[i].Session, true
	}
	return Session{}, false
}

func (c *Conversation) index(agent, home string) int {
	return slices.IndexFunc(c.file.Sessions, func(s AgentSession) bool { return s.Agent == agent && s.Home == home })
}

// Record stores s as the agent's session in this conversation, in place of the one before. When it returns nil
// the session is on disk. Run and Updated are filled in where they are empty. An id that is
// known to be dead is not stored: the error is [ErrDead].
func (c *Conversation) Record(agent, home string, s Session) error {
	if s.ID == "" {
		return errors.New("record a session: it has no id")
	}
	if s.Run == "" {
		s.Run = c.run
	}
	if s.Updated.IsZero() {
		s.Updated = time.Now()
	}
	home = resolve(home)
	return c.change(func(f *file) error {
		if slices.Contains(f.Dead, deadSession{agent, home, s.ID}) {
			return fmt.Errorf("record session %s of %s: %w", s.ID, agent, ErrDead)
		}
		entry := AgentSession{agent, home, s}
		if i := c.index(agent, home); i >= 0 {
			f.Sessions[i] = entry
		} else {
			f.Sessions = append(f.Sessions, entry)
		}
		return nil
	})
}

// Forget says that the agent does not know the session any more. It is removed and never recorded again in
// this conversation.
func (c *Conversation) Forget(agent, home, sessionID string) error {
	home = resolve(home)
	return c.change(func(f *file) error {
		f.Sessions = slices.DeleteFunc(f.Sessions, func(s AgentSession) bool {
			return s.Agent == agent && s.Home == home && s.ID == sessionID
		})
		dead := deadSession{agent, home, sessionID}
		if !slices.Contains(f.Dead, dead) {
			f.Dead = append(f.Dead, dead)
			f.Dead = f.Dead[max(0, len(f.Dead)-maxDead):]
		}
		return nil
	})
}

// change makes a change to the file, in memory only once it is on disk.
func (c *Conversation) change(edit func(*file) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.locks) == 0 {
		return errUnlocked
	}
	next := *c.file
	next.Sessions = slices.Clone(next.Sessions)
	next.Dead = slices.Clone(next.Dead)
	if err := edit(&next); err != nil {
		return err
	}
	if err := next.write(c.folder); err != nil {
		return err
	}
	c.file = &next
	return nil
}

// Claim takes the agent's session for this conversation, until Unlock: to be called before a session is resumed. Agents do
// not all lock their sessions: two resumes of one Claude session both succeed and interleave in
// one transcript (facts/claude.md, 2). While another conversation has it Claim waits until ctx ends; the error is then a *[Busy].
func (c *Conversation) Claim(ctx context.Context, agent, home, sessionID string) error {
	home = resolve(home)
	hash := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", agent, home, sessionID))
	path := filepath.Join(c.ledger.dir, "sessions", fmt.Sprintf("%x", hash[:16]))

	c.mu.Lock()
	unlocked := len(c.locks) == 0
	claimed := slices.ContainsFunc(c.locks, func(l *lock) bool { return l.note == path+".json" })
	c.mu.Unlock()
	switch {
	case unlocked:
		return errUnlocked
	case claimed:
		return nil
	}
	lock, err := take(ctx, path+".lock", path+".json", fmt.Sprintf("session %s of %s", sessionID, agent), c.holder())
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.locks) == 0 {
		return errors.Join(errUnlocked, lock.free())
	}
	c.locks = append(c.locks, lock)
	return nil
}

// Workspace returns the conversation's own folder for its runs to work in, and makes it (0700) where there is none.
func (c *Conversation) Workspace() (string, error) {
	path := filepath.Join(c.ledger.dir, "workspaces", filepath.Base(c.folder))
	if err := os.MkdirAll(path, safefile.DirMode); err != nil {
		return "", fmt.Errorf("make the conversation's workspace: %w", err)
	}
	return path, nil
}

// Unlock frees the conversation and the sessions that it claimed. It may be called again.
func (c *Conversation) Unlock() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, l := range slices.Backward(c.locks) {
		errs = append(errs, l.free())
	}
	c.locks = nil
	return errors.Join(errs...)
}
