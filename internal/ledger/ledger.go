// Package ledger remembers the conversations of this host: which session each agent has in a conversation, and
// the conversation's own working folder. It lets one run at a time into a conversation, and into
// a session of an agent, over all processes of this user.
//
// The folder that [Open] is given holds
//
//	conversations/NAME/conversation.json  the sessions
//	conversations/NAME/lock, holder.json  the lock of the conversation, and who holds it
//	workspaces/NAME/                      the folder that its runs work in
//	sessions/HASH.lock, HASH.json         the lock of an agent's session, and who holds it
//
// where NAME is made from the conversation's key. Locks are the system's (flock, LockFileEx): the end of the process
// frees them, however it ends. A lock file is never removed, since another process may be about to lock it.
package ledger

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"nightporter/internal/agent"
	"nightporter/internal/safefile"
)

// Ledger is a folder of conversations. It is safe for concurrent use, also by several processes.
type Ledger struct{ dir string }

// Open returns the ledger in dir, which need not exist.
func Open(dir string) *Ledger { return &Ledger{dir} }

// Session is where an agent stands in a conversation.
type Session struct {
	ID      string      `json:"id"`     // the agent's own session id
	Totals  agent.Usage `json:"totals"` // of the session so far: [agent.Request].Before of its next run
	Run     string      `json:"run"`    // the run that recorded it
	Updated time.Time   `json:"updated"`
}

// Info describes a conversation from outside, without its lock.
type Info struct {
	Conversation string         `json:"conversation"` // its key
	Sessions     []AgentSession `json:"sessions"`
	Workspace    string         `json:"workspace"`        // empty when there is none yet
	Holder       *Holder        `json:"holder,omitempty"` // the run that is going on, if any
	Damaged      string         `json:"damaged,omitempty"`
}

// AgentSession is a session, and whose.
type AgentSession struct {
	Agent string `json:"agent"`
	Home  string `json:"home"` // the agent's home folder, in which the session lives
	Session
}

// List returns the conversations, the one that was used last first. One whose file cannot be read is in the list
// with Damaged saying why, and stays as it is.
func (l *Ledger) List() ([]Info, error) {
	root := filepath.Join(l.dir, "conversations")
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the conversations: %w", err)
	}
	list := []Info{}
	for _, entry := range entries {
		folder := filepath.Join(root, entry.Name())
		info := Info{Sessions: []AgentSession{}, Holder: held(folder)}
		switch file, err := readFile(folder); {
		case err == nil:
			info.Conversation = file.Conversation
			info.Sessions = append(info.Sessions, file.Sessions...)
		case errors.Is(err, fs.ErrNotExist) && info.Holder == nil:
			continue // locked once, and nothing came of it
		case errors.Is(err, fs.ErrNotExist):
			info.Conversation = info.Holder.Conversation
		default:
			info.Conversation, info.Damaged = entry.Name(), err.Error()
		}
		if workspace := filepath.Join(l.dir, "workspaces", entry.Name()); isFolder(workspace) {
			info.Workspace = workspace
		}
		list = append(list, info)
	}
	slices.SortStableFunc(list, func(a, b Info) int { return b.used().Compare(a.used()) })
	return list, nil
}

// used is when something last happened in the conversation.
func (i Info) used() time.Time {
	var last time.Time
	if i.Holder != nil {
		last = i.Holder.Since
	}
	for _, s := range i.Sessions {
		if s.Updated.After(last) {
			last = s.Updated
		}
	}
	return last
}

// folderName makes a name for the conversation key that is safe on every system: readable as far as possible, and
// told apart by a hash, so that no two keys share it where case or unusual characters do not count. It
// is kept short because it becomes part of agents' working directories, from which they make file names in turn.
func folderName(key string) string {
	const readable = 24
	var slug strings.Builder
	for _, r := range key {
		if slug.Len() == readable {
			break
		}
		switch {
		case 'A' <= r && r <= 'Z':
			slug.WriteRune(r + 'a' - 'A')
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9':
			slug.WriteRune(r)
		default:
			slug.WriteByte('_')
		}
	}
	hash := sha256.Sum256([]byte(key))
	return fmt.Sprintf("%s-%x", slug.String(), hash[:16])
}

// format is the version of conversation.json.
const format = 1

// file is conversation.json.
type file struct {
	Format       int            `json:"format"`
	Conversation string         `json:"conversation"`
	Sessions     []AgentSession `json:"sessions"` // at most one for each agent and home
	Dead         []deadSession  `json:"dead,omitempty"`
}

// deadSession is a session that its agent does not know any more.
type deadSession struct {
	Agent string `json:"agent"`
	Home  string `json:"home"`
	ID    string `json:"id"`
}

const fileName = "conversation.json"

func readFile(folder string) (*file, error) {
	path := filepath.Join(folder, fileName)
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if f.Format != format {
		return nil, fmt.Errorf("%s: format %d, and this version reads %d", path, f.Format, format)
	}
	return &f, nil
}

func (f *file) write(folder string) error {
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	return safefile.Write(filepath.Join(folder, fileName), append(data, '\n'))
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// resolve makes one spelling of an agent's home, so that a session is not taken for two. A home that does not exist yet
// has no links to resolve.
func resolve(home string) string {
	if abs, err := filepath.Abs(home); err == nil {
		home = abs
	}
	resolved, _ := filepath.EvalSymlinks(home)
	return cmp.Or(resolved, home)
}
