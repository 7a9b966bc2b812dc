package access

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"nightporter/internal/secret"
)

func TestMain(m *testing.M) {
	if path := os.Getenv("ACCESS_TEST_STORE"); path != "" {
		addMany(path, os.Getenv("ACCESS_TEST_WHO"))
		return
	}
	os.Exit(m.Run())
}

func newStore(t *testing.T) *Store {
	t.Helper()
	return Open(filepath.Join(t.TempDir(), "state", "tokens.json"))
}

func add(t *testing.T, s *Store, token Token) secret.String {
	t.Helper()
	made, err := s.Add(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestATokenIsKnownByItsValueAloneAndKeptAsAHash(t *testing.T) {
	s := newStore(t)
	alice := add(t, s, Token{Name: "alice", Grants: []string{"g"}, Servers: []string{"s"}, Exposure: "search"})
	bob := add(t, s, Token{Name: "bob"})
	h, ok, err := s.Find(alice.Reveal())
	if err != nil || !ok || h.Name != "alice" || h.Grants[0] != "g" || h.Servers[0] != "s" || h.Exposure != "search" {
		t.Fatalf("%+v %v %v", h, ok, err)
	}
	other, _, _ := s.Find(bob.Reveal())
	if other.ID == h.ID {
		t.Error("two tokens are one holder")
	}
	hash := hashOf(alice.Reveal())
	for _, wrong := range []string{"", "np_", alice.Reveal()[:len(alice.Reveal())-1], alice.Reveal() + "A", hash, "np_" + hash, strings.ToLower(alice.Reveal())} {
		if _, ok, _ := s.Find(wrong); ok {
			t.Errorf("%q is a token", wrong)
		}
	}
	data, err := os.ReadFile(s.path)
	if err != nil || strings.Contains(string(data), strings.TrimPrefix(alice.Reveal(), prefix)) {
		t.Errorf("the file holds the token itself: %v", err)
	}
	if info, err := os.Stat(s.path); runtime.GOOS != "windows" && (err != nil || info.Mode().Perm() != 0o600) {
		t.Errorf("its mode is %v", info.Mode())
	}
	if len(alice.Reveal()) != len(prefix)+26 {
		t.Errorf("a token of %d characters", len(alice.Reveal()))
	}
}

func TestOtherStoresOfTheFileSeeWhatIsAddedAndRevoked(t *testing.T) {
	s := newStore(t)
	running := Open(s.path) // as the gateway has it
	if _, ok, err := running.Find("np_x"); ok || err != nil {
		t.Fatal(ok, err)
	}
	token := add(t, s, Token{Name: "a"})
	h, ok, _ := running.Find(token.Reveal())
	if !ok || !running.Good(h) {
		t.Fatal("an added token is not known")
	}
	if err := s.Revoke(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, ok, _ := running.Find(token.Reveal()); ok || running.Good(h) {
		t.Error("a revoked token is good")
	}
	if err := s.Revoke(t.Context(), "a"); !errors.Is(err, ErrNoToken) {
		t.Errorf("revoked again: %v", err)
	}
	if again := add(t, s, Token{Name: "a"}); again.Reveal() == token.Reveal() || running.Good(h) {
		t.Error("a new token of the name makes the old one good")
	}
}

func TestAnExpiredTokenIsGoodNoMoreAndLeavesItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		token := add(t, s, Token{Name: "a", Expires: time.Now().Add(time.Hour)})
		h, ok, _ := s.Find(token.Reveal())
		if !ok {
			t.Fatal("not good")
		}
		if _, err := s.Add(t.Context(), Token{Name: "a"}); err == nil {
			t.Error("two tokens of one name")
		}
		time.Sleep(time.Hour)
		if _, ok, _ := s.Find(token.Reveal()); ok || s.Good(h) {
			t.Error("an expired token is good")
		}
		add(t, s, Token{Name: "a"})
		if _, err := s.Add(t.Context(), Token{Name: "b", Expires: time.Now()}); err == nil {
			t.Error("a token was made that had expired")
		}
	})
}

// What cannot be read lets nobody in, and is not written over.
func TestADamagedFileHoldsNoTokens(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"no JSON":        func(t *testing.T, path string) { write(t, path, "{") },
		"another format": func(t *testing.T, path string) { write(t, path, `{"version":2,"tokens":[]}`) },
		"an entry without a hash": func(t *testing.T, path string) {
			write(t, path, `{"version":1,"tokens":[{"name":"a","sha256":""}]}`)
		},
		"a restriction of another name": func(t *testing.T, path string) {
			rewrite(t, path, `"name": "good",`, `"name": "good", "grant": ["x"],`)
		},
		"more behind its end": func(t *testing.T, path string) { rewrite(t, path, "\n}\n", "\n}\n{}") },
		"open to others": func(t *testing.T, path string) {
			if runtime.GOOS == "windows" {
				t.Skip("no modes")
			}
			if err := os.Chmod(path, 0o620); err != nil {
				t.Fatal(err)
			}
		},
		"a folder": func(t *testing.T, path string) {
			if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			token := add(t, s, Token{Name: "good"})
			h, _, _ := s.Find(token.Reveal())
			damage(t, s.path)
			// A change of the mode alone does not show in what a reader compares: it is looked at by who reads anew.
			s = Open(s.path)
			if _, ok, err := s.Find(token.Reveal()); ok || err == nil || s.Good(h) {
				t.Errorf("found %v, %v", ok, err)
			}
			if _, err := s.Add(t.Context(), Token{Name: "more"}); err == nil {
				t.Error("one was added")
			}
		})
	}
}

func TestAHolderWhoseTokenIsNarrowedIsNotTheOneItWas(t *testing.T) {
	s := newStore(t)
	token := add(t, s, Token{Name: "a", Servers: []string{"x", "y"}, Expires: time.Now().Add(time.Hour)})
	before, _, _ := s.Find(token.Reveal())
	rewrite(t, s.path, `"y"`, `"z"`)
	s = Open(s.path) // a reader may not see a change within one tick of the clock
	if after, ok, err := s.Find(token.Reveal()); !ok || err != nil || s.Good(before) || !s.Good(after) {
		t.Errorf("%+v was found, %v; as it was it is good: %v", after, err, s.Good(before))
	}
}

// rewrite replaces a text in a file, which must be there.
func rewrite(t *testing.T, path, from, to string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(data), from) {
		t.Fatalf("%v: %s", err, data)
	}
	write(t, path, strings.Replace(string(data), from, to, 1))
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestNamesThatCouldBeMisreadAreRefused(t *testing.T) {
	s := newStore(t)
	for _, name := range []string{"", "a b", "a:b", "a\nb", "ä", strings.Repeat("a", maxName+1), "../a"} {
		if _, err := s.Add(t.Context(), Token{Name: name}); err == nil {
			t.Errorf("%q is a name", name)
		}
	}
}

const perProcess = 10

func addMany(path, who string) {
	for i := range perProcess {
		if _, err := Open(path).Add(ctx(), Token{Name: fmt.Sprintf("%s-%d", who, i)}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func TestProcessesThatAddAtTheSameTimeLoseNothing(t *testing.T) {
	s := newStore(t)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), "ACCESS_TEST_STORE="+s.path, fmt.Sprintf("ACCESS_TEST_WHO=p%d", i))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	all, err := s.List()
	if err != nil || len(all) != 4*perProcess {
		t.Errorf("%d tokens, %v", len(all), err)
	}
}

func FuzzTokensFile(f *testing.F) {
	f.Add([]byte(`{"version":1,"tokens":[{"name":"a","created":"2026-11-30T00:00:00Z","sha256":"` + hashOf("x") + `"}]}`))
	f.Add([]byte(`{"version":1,"tokens":[{"name":"a","expires":"x"}]}`))
	f.Add([]byte(`{"version":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tokens, err := parse(data)
		if err != nil && tokens != nil {
			t.Error("tokens and an error")
		}
		names := map[string]bool{}
		for _, token := range tokens {
			if checkName(token.Name) != nil || names[token.Name] || len(token.Hash) != 64 {
				t.Errorf("%+v", token)
			}
			names[token.Name] = true
		}
	})
}
