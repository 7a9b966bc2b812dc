package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestCatalogsAreSharedWhileTheFileIsTheSame: who loads a catalog that somebody has gets that one, until the file is another.
func TestCatalogsAreSharedWhileTheFileIsTheSame(t *testing.T) {
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	id := s.Identity(Parts{Name: "a"})
	save := func(tool string) {
		t.Helper()
		c := &Catalog{Server: "a", Identity: id, FetchedAt: time.Now(), Tools: []json.RawMessage{json.RawMessage(tool)}, Cacheable: true}
		if published, err := s.Publish(c); err != nil || !published {
			t.Fatalf("%v, %v", published, err)
		}
	}
	load := func() *Catalog {
		t.Helper()
		c, err := s.Load("a", id)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	path := filepath.Join(s.folder("a"), fileName(id))
	age := func(by time.Duration) {
		t.Helper()
		then := time.Now().Add(-by)
		if err := os.Chtimes(path, then, then); err != nil {
			t.Fatal(err)
		}
	}
	save(`{"name":"one"}`)
	age(0)
	if one, other := load(), load(); one == other {
		t.Error("a file that may still change within its time is taken for the same")
	}
	age(time.Hour)
	first := load()
	if load() != first {
		t.Error("it is read again")
	}
	save(`{"name":"two"}`)
	age(time.Hour)
	if second := load(); second == first || string(second.Tools[0]) != `{"name":"two"}` || string(first.Tools[0]) != `{"name":"one"}` {
		t.Errorf("after another was saved: %s", second.Tools)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Replace(data, []byte("two"), []byte("too"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	age(2 * time.Hour)
	if _, err := s.Load("a", id); !errors.Is(err, ErrDamaged) {
		t.Errorf("damage is not seen: %v", err)
	}
}
