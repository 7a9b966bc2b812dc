package ledger

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"nightporter/internal/agent"
)

// lockNow locks the conversation or fails the test.
func lockNow(t *testing.T, l *Ledger, key string) *Conversation {
	t.Helper()
	c, err := l.Lock(t.Context(), key, "run-of-"+t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Unlock() })
	return c
}

// ended is a context that is over: what it bounds tries once.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestASessionIsThereForTheNextHolder(t *testing.T) {
	l, home := Open(filepath.Join(t.TempDir(), "ledger")), t.TempDir()
	c := lockNow(t, l, "k")
	if s, ok := c.Session("claude", home); ok {
		t.Fatalf("a fresh conversation has session %v", s)
	}
	want := Session{ID: "s1", Totals: agent.Usage{InputTokens: 1 << 60, OutputTokens: 2, CostUSD: 0.1}, Run: "r1", Updated: time.Now().UTC().Round(0)}
	for _, s := range []Session{{ID: "s0"}, want} {
		if err := c.Record("claude", home, s); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Unlock(); err != nil {
		t.Fatal(err)
	}
	if err := c.Record("claude", home, want); err == nil {
		t.Error("recorded without the lock")
	}

	c = lockNow(t, l, "k")
	if got, ok := c.Session("claude", home); !ok || got != want {
		t.Errorf("session is %v, %v; want %v", got, ok, want)
	}
	if got, ok := c.Session("codex", home); ok {
		t.Errorf("another agent has session %v", got)
	}
	if got, ok := c.Session("claude", t.TempDir()); ok {
		t.Errorf("another home has session %v", got)
	}
	if got, ok := lockNow(t, l, "K").Session("claude", home); ok {
		t.Errorf("another conversation has session %v", got)
	}
}

func TestASessionIsOnDiskBeforeUnlock(t *testing.T) {
	l := Open(t.TempDir())
	c := lockNow(t, l, "k")
	if err := c.Record("codex", t.TempDir(), Session{ID: "early"}); err != nil {
		t.Fatal(err)
	}
	list, err := l.List()
	if err != nil || len(list) != 1 || len(list[0].Sessions) != 1 || list[0].Sessions[0].ID != "early" || list[0].Sessions[0].Run == "" {
		t.Errorf("listed %+v, %v", list, err)
	}
}

func TestALinkToAHomeIsThatHome(t *testing.T) {
	home := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(home, link); err != nil {
		t.Skip(err)
	}
	l := Open(t.TempDir())
	c := lockNow(t, l, "k")
	if err := c.Record("claude", link, Session{ID: "s"}); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.Session("claude", home); !ok {
		t.Error("not found under the folder's own path")
	}
	if err := c.Claim(t.Context(), "claude", link, "s"); err != nil {
		t.Fatal(err)
	}
	var busy *Busy
	if err := lockNow(t, l, "other").Claim(ended(), "claude", home, "s"); !errors.As(err, &busy) {
		t.Errorf("claimed twice under two paths: %v", err)
	}
}

func TestADeadSessionIsNeverStoredAgain(t *testing.T) {
	l, home := Open(t.TempDir()), t.TempDir()
	c := lockNow(t, l, "k")
	for _, id := range []string{"dead", "alive"} {
		if err := c.Record("claude", home, Session{ID: id}); err != nil {
			t.Fatal(err)
		}
		if id == "dead" {
			if err := c.Forget("claude", home, id); err != nil {
				t.Fatal(err)
			}
			if s, ok := c.Session("claude", home); ok {
				t.Errorf("still there after Forget: %v", s)
			}
		}
	}
	c.Unlock()
	c = lockNow(t, l, "k")
	if err := c.Record("claude", home, Session{ID: "dead"}); !errors.Is(err, ErrDead) {
		t.Errorf("Record of the dead id: %v, want ErrDead", err)
	}
	if s, ok := c.Session("claude", home); !ok || s.ID != "alive" {
		t.Errorf("the session is %v, %v; want alive", s, ok)
	}
	// An id is dead for its agent only.
	if err := c.Record("codex", home, Session{ID: "dead"}); err != nil {
		t.Error(err)
	}
}

func TestForgottenIdsAreBounded(t *testing.T) {
	l, home := Open(t.TempDir()), t.TempDir()
	c := lockNow(t, l, "k")
	f := *c.file
	for i := range maxDead {
		f.Dead = append(f.Dead, deadSession{"claude", resolve(home), fmt.Sprint("old", i)})
	}
	c.file = &f
	if err := c.Forget("claude", home, "last"); err != nil {
		t.Fatal(err)
	}
	if n := len(c.file.Dead); n != maxDead {
		t.Errorf("%d dead ids are kept, want %d", n, maxDead)
	}
	if err := c.Record("claude", home, Session{ID: "last"}); !errors.Is(err, ErrDead) {
		t.Errorf("the newest dead id was dropped: %v", err)
	}
}

func TestAFailedWriteChangesNothing(t *testing.T) {
	l, home := Open(t.TempDir()), t.TempDir()
	c := lockNow(t, l, "k")
	if err := c.Record("claude", home, Session{ID: "good"}); err != nil {
		t.Fatal(err)
	}
	// A folder in the file's place cannot be replaced by a file, whoever runs the test.
	path := filepath.Join(c.folder, fileName)
	if err := errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := c.Record("claude", home, Session{ID: "lost"}); err == nil {
		t.Fatal("Record says that it wrote")
	}
	if s, _ := c.Session("claude", home); s.ID != "good" {
		t.Errorf("the session in memory is %q, which is not on disk", s.ID)
	}
}

func TestDamagedFileIsSetAsideAndTheConversationStartsFresh(t *testing.T) {
	home := t.TempDir()
	for name, damage := range map[string]func([]byte) []byte{
		"empty":        func([]byte) []byte { return nil },
		"cut off":      func(b []byte) []byte { return b[:len(b)/2] },
		"not JSON":     func(b []byte) []byte { return append([]byte("\x00"), b...) },
		"null":         func([]byte) []byte { return []byte("null") },
		"later format": func(b []byte) []byte { return []byte(strings.Replace(string(b), `"format": 1`, `"format": 2`, 1)) },
	} {
		t.Run(name, func(t *testing.T) {
			l := Open(t.TempDir())
			c := lockNow(t, l, "k")
			if err := c.Record("claude", home, Session{ID: "s"}); err != nil {
				t.Fatal(err)
			}
			c.Unlock()
			path := filepath.Join(c.folder, fileName)
			good, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			bad := damage(good)
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			if list, err := l.List(); err != nil || len(list) != 1 || list[0].Damaged == "" {
				t.Errorf("List says nothing of the damage: %+v, %v", list, err)
			}

			c = lockNow(t, l, "k")
			if s, ok := c.Session("claude", home); ok {
				t.Errorf("session %v from a damaged file", s)
			}
			aside := path + ".damaged"
			if notes := c.Notes(); len(notes) != 1 || !strings.Contains(notes[0], aside) {
				t.Errorf("notes %q do not say where the file is", notes)
			}
			if kept, err := os.ReadFile(aside); err != nil || string(kept) != string(bad) {
				t.Errorf("the damaged file was not kept: %q, %v", kept, err)
			}
			if err := c.Record("claude", home, Session{ID: "new"}); err != nil {
				t.Fatal(err)
			}
			c.Unlock()
			if s, _ := lockNow(t, l, "k").Session("claude", home); s.ID != "new" {
				t.Errorf("the fresh record holds %q", s.ID)
			}
		})
	}
}

func TestFolderNamesAreSafeAndNeverShared(t *testing.T) {
	seen := map[string]string{}
	check := func(key string) string {
		name := folderName(key)
		if len(name) > 60 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" {
			return fmt.Sprintf("%q is not safe everywhere", name)
		}
		if other, ok := seen[name]; ok && other != key {
			return fmt.Sprintf("%q and %q share %q", key, other, name)
		}
		seen[name] = key
		return ""
	}
	for _, key := range []string{
		"a", "A", "ä", "a\u0308", "..", ".", "/", "a/b", `a\b`, "CON", "nul.txt", "a ", "a.", " a", "\x00", "\xff", "\xfe",
		strings.Repeat("x", 10<<10), strings.Repeat("x", 10<<10) + "y", "C:", "-rf", "~", "日本語", "日本",
	} {
		if msg := check(key); msg != "" {
			t.Error(msg)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		if msg := check(rapid.String().Draw(t, "key")); msg != "" {
			t.Error(msg)
		}
	})
}

func TestAnyKeyIsAConversation(t *testing.T) {
	l, home := Open(t.TempDir()), t.TempDir()
	for i, key := range []string{"../../x", strings.Repeat("ключ/", 2<<10), "\xff\x00", "A", "a"} {
		c := lockNow(t, l, key)
		if s, ok := c.Session("claude", home); ok {
			t.Errorf("%.20q found the session of another key: %v", key, s)
		}
		id := fmt.Sprint("s", i)
		if err := c.Record("claude", home, Session{ID: id}); err != nil {
			t.Fatal(err)
		}
		c.Unlock()
		if s, _ := lockNow(t, l, key).Session("claude", home); s.ID != id {
			t.Errorf("%.20q has session %q, want %q", key, s.ID, id)
		}
	}
	if _, err := l.Lock(t.Context(), "", "r"); err == nil {
		t.Error("the empty key was taken")
	}
}

func TestWorkspacesAreOwnAndPrivate(t *testing.T) {
	l := Open(filepath.Join(t.TempDir(), "ledger"))
	seen := map[string]bool{}
	for _, key := range []string{"a", "A", "a/b"} {
		c := lockNow(t, l, key)
		path, err := c.Workspace()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := c.Workspace(); err != nil || again != path {
			t.Errorf("the second call gave %s, %v", again, err)
		}
		if seen[strings.ToLower(path)] {
			t.Errorf("%s belongs to two conversations", path)
		}
		seen[strings.ToLower(path)] = true
		// The record must not lie in a parent of the folder that the agent works in.
		if rel, err := filepath.Rel(c.folder, path); err != nil || !strings.HasPrefix(rel, "..") {
			t.Errorf("the workspace %s is inside the record's folder", path)
		}
		for dir := path; dir != filepath.Dir(l.dir); dir = filepath.Dir(dir) {
			// Windows has no modes.
			if info, err := os.Stat(dir); err != nil || runtime.GOOS != "windows" && info.Mode() != os.ModeDir|0o700 {
				t.Errorf("%s has mode %v, %v; want 0700", dir, info.Mode(), err)
			}
		}
	}
}

func TestASecondHolderWaitsAndIsToldWhoIsInside(t *testing.T) {
	l := Open(t.TempDir())
	first := lockNow(t, l, "k")
	var busy *Busy
	_, err := l.Lock(ended(), "k", "second")
	if !errors.As(err, &busy) || !errors.Is(err, context.Canceled) || busy.Holder == nil {
		t.Fatalf("error is %v, want a *Busy with its holder", err)
	}
	for _, want := range []string{first.run, fmt.Sprint(os.Getpid()), "since 2", `"k"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %q", err, want)
		}
	}

	got := make(chan error)
	go func() {
		c, err := l.Lock(t.Context(), "k", "second")
		if err == nil {
			err = c.Unlock()
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("the second holder did not wait: %v", err)
	default:
	}
	first.Unlock()
	if err := <-got; err != nil {
		t.Error(err)
	}
	// Or the next to wait would be told of a holder that has gone.
	if _, err := os.Stat(filepath.Join(first.folder, noteName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the holder's note is left: %v", err)
	}
}

func TestOneAtATimeInOneProcess(t *testing.T) {
	l := Open(t.TempDir())
	var inside sync.Mutex
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			c, err := l.Lock(t.Context(), "k", "r")
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Unlock()
			if !inside.TryLock() {
				t.Error("two at a time")
				return
			}
			defer inside.Unlock()
			if err := c.Record("claude", "/home/x", Session{ID: "s"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestASessionBelongsToOneConversationAtATime(t *testing.T) {
	l, home := Open(t.TempDir()), t.TempDir()
	a, b := lockNow(t, l, "a"), lockNow(t, l, "b")
	for range 2 { // the second claim by the same conversation is none
		if err := a.Claim(t.Context(), "claude", home, "s"); err != nil {
			t.Fatal(err)
		}
	}
	var busy *Busy
	if err := b.Claim(ended(), "claude", home, "s"); !errors.As(err, &busy) || busy.Holder == nil || busy.Holder.Conversation != "a" {
		t.Errorf("error is %v, want a *Busy that names conversation a", err)
	}
	for _, other := range [][3]string{{"codex", home, "s"}, {"claude", t.TempDir(), "s"}, {"claude", home, "s2"}} {
		if err := b.Claim(ended(), other[0], other[1], other[2]); err != nil {
			t.Errorf("%v is another session: %v", other, err)
		}
	}
	a.Unlock()
	if err := b.Claim(ended(), "claude", home, "s"); err != nil {
		t.Errorf("still held after Unlock: %v", err)
	}
	if err := a.Claim(ended(), "claude", home, "s3"); err == nil {
		t.Error("claimed for a conversation that is not locked")
	}
}

func TestListShowsWhoIsInside(t *testing.T) {
	l, home := Open(t.TempDir()), t.TempDir()
	if list, err := l.List(); err != nil || len(list) != 0 {
		t.Fatalf("an empty ledger lists %v, %v", list, err)
	}
	old := lockNow(t, l, "old")
	if err := old.Record("claude", home, Session{ID: "s", Updated: time.Now().Add(-time.Hour)}); err != nil {
		t.Fatal(err)
	}
	workspace, err := old.Workspace()
	if err != nil {
		t.Fatal(err)
	}
	old.Unlock()
	lockNow(t, l, "unused").Unlock()
	lockNow(t, l, "going on")

	list, err := l.List()
	if err != nil || len(list) != 2 {
		t.Fatalf("listed %+v, %v; want two", list, err)
	}
	if i := list[0]; i.Conversation != "going on" || i.Holder == nil || i.Holder.PID != os.Getpid() {
		t.Errorf("first is %+v, want the one going on", i)
	}
	if i := list[1]; i.Conversation != "old" || i.Holder != nil || i.Workspace != workspace || len(i.Sessions) != 1 {
		t.Errorf("second is %+v", i)
	}
}
