package ledger

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func FuzzRecordOfAConversation(f *testing.F) {
	for _, seed := range []string{
		``, `null`, `{}`, `{"format":1}`,
		`{"format":1,"conversation":"k","sessions":[{"agent":"claude","home":"/h","id":"s","totals":{"input_tokens":1}}],"dead":[{"id":"d"}]}`,
		`{"format":1,"sessions":null,"dead":[null]}`, `{"format":1e999}`, `[1`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		l := Open(t.TempDir())
		folder := filepath.Join(l.dir, "conversations", folderName("k"))
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, fileName), data, 0o600); err != nil {
			t.Fatal(err)
		}
		// Whatever is in the file, the conversation can be used.
		c := lockNow(t, l, "k")
		if err := c.Record("claude", "/h", Session{ID: "new"}); errors.Is(err, ErrDead) {
			return // so the file said
		} else if err != nil {
			t.Fatal(err)
		}
		c.Unlock()
		c = lockNow(t, l, "k")
		if s, ok := c.Session("claude", "/h"); !ok || s.ID != "new" || len(c.Notes()) != 0 {
			t.Errorf("read back %v, %v, notes %q", s, ok, c.Notes())
		}
	})
}
