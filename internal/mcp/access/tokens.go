package access

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"nightporter/internal/safefile"
	"nightporter/internal/secret"
)

// Token is what is kept of a token: everything but the token itself.
type Token struct {
	Name     string    `json:"name"`
	Grants   []string  `json:"grants,omitempty"`   // [grants.NAME] of the configuration
	Servers  []string  `json:"servers,omitempty"`  // whole servers; both empty: all that the gateway serves
	Exposure string    `json:"exposure,omitempty"` // all or search; empty: as the gateway does
	Created  time.Time `json:"created"`
	Expires  time.Time `json:"expires,omitzero"` // zero: never

	// Hash is the SHA-256 of the token, in hex. A slow hash, as of passwords, would add nothing: the token has 130 random bits, so that
	// nobody finds it by trying; and it would let anybody who is not let in spend our time.
	Hash string `json:"sha256"`
}

// Expired reports whether the token is good no more at now.
func (t Token) Expired(now time.Time) bool { return !t.Expires.IsZero() && !now.Before(t.Expires) }

func (t Token) holder() Holder {
	return Holder{ID: idPrefix + t.Hash, Name: t.Name, Grants: t.Grants, Servers: t.Servers, Exposure: t.Exposure, Expires: t.Expires}
}

const (
	// prefix tells a token of ours from other texts, for people and for what looks for secrets that leaked.
	prefix = "np_"
	// idPrefix begins the ids of holders of tokens of ours.
	idPrefix = "token "
	// maxTokens bounds the tokens of one gateway. Each is a line that a person wrote.
	maxTokens = 1000
	// maxName bounds a token's name: it stands in tables and in each entry of the audit record.
	maxName = 64
	// maxFile bounds the file: maxTokens with a dozen grants each take half of it.
	maxFile = 1 << 20
	// lockRetry is how often a held lock is tried again. Who holds it writes one small file.
	lockRetry = 20 * time.Millisecond
)

// Store is the file of the tokens. Several processes may use it at the same time: changes are made under a lock, and readers see a file that
// was replaced as a whole. It is safe for concurrent use.
type Store struct {
	path string

	mu     sync.Mutex
	read   fs.FileInfo // of the file that tokens was read from; nil: there was none
	known  bool        // tokens is what the file held
	tokens []Token
	byHash map[string]Token
}

// Open returns the store in the file at path, which need not exist.
func Open(path string) *Store { return &Store{path: path} }

// ErrNoToken says that there is no token of a name.
var ErrNoToken = errors.New("there is no token of this name")

// Add makes a token for t, of which Created and Hash are set here, and returns it: nobody can read it again later. An expired token of the
// same name gives up its place. Waiting for other processes ends with ctx.
func (s *Store) Add(ctx context.Context, t Token) (secret.String, error) {
	if err := checkName(t.Name); err != nil {
		return secret.String{}, err
	}
	token := prefix + rand.Text()
	t.Created, t.Hash = time.Now().UTC().Truncate(time.Second), hashOf(token)
	if t.Expired(time.Now()) {
		return secret.String{}, errors.New("the token would have expired already")
	}
	err := s.change(ctx, func(all []Token) ([]Token, error) {
		all = slices.DeleteFunc(all, func(other Token) bool { return other.Name == t.Name && other.Expired(time.Now()) })
		switch {
		case slices.ContainsFunc(all, func(other Token) bool { return other.Name == t.Name }):
			return nil, fmt.Errorf("there is a token %q already; revoke it first, or give another name", t.Name)
		case len(all) >= maxTokens:
			return nil, fmt.Errorf("there are %d tokens already; revoke those that nobody uses", maxTokens)
		}
		return append(all, t), nil
	})
	if err != nil {
		return secret.String{}, err
	}
	return secret.New(token), nil
}

func checkName(name string) error {
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._@-", r)
	}) {
		return fmt.Errorf("a token's name has 1 to %d of the letters a to z, digits and . _ @ -, not %q", maxName, name)
	}
	return nil
}

// Revoke takes a token away. The error is [ErrNoToken] when there is none of that name.
func (s *Store) Revoke(ctx context.Context, name string) error {
	return s.change(ctx, func(all []Token) ([]Token, error) {
		left := slices.DeleteFunc(slices.Clone(all), func(t Token) bool { return t.Name == name })
		if len(left) == len(all) {
			return nil, ErrNoToken
		}
		return left, nil
	})
}

// List returns the tokens by name, expired ones included.
func (s *Store) List() ([]Token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refresh(); err != nil {
		return nil, err
	}
	return slices.Clone(s.tokens), nil
}

// Find returns the holder of a token as the file has it now. ok is false when it is no token of this store, or was revoked or has expired. An
// error says that the file cannot be read: then nobody is known.
func (s *Store) Find(token string) (h Holder, ok bool, err error) {
	if !strings.HasPrefix(token, prefix) {
		return Holder{}, false, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refresh(); err != nil {
		return Holder{}, false, err
	}
	// Comparing hashes in a map takes a time that depends on them. That tells nothing: nobody can choose a token by its hash.
	t, ok := s.byHash[hashOf(token)]
	if !ok || t.Expired(time.Now()) {
		return Holder{}, false, nil
	}
	return t.holder(), true, nil
}

// Issued reports whether the holder's credential is a token of a store.
func (*Store) Issued(h Holder) bool { return strings.HasPrefix(h.ID, idPrefix) }

// Good reports whether the holder of a token, as [Store.Find] returned it, is one still, and reaches the same.
func (s *Store) Good(h Holder) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refresh() != nil {
		return false
	}
	hash, _ := strings.CutPrefix(h.ID, idPrefix)
	t, ok := s.byHash[hash]
	return ok && !t.Expired(time.Now()) && reflect.DeepEqual(t.holder(), h)
}

func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// refresh reads the file when it is another one than last time. The caller holds s.mu. What cannot be read holds no tokens.
func (s *Store) refresh() error {
	info, err := os.Stat(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.set(nil, nil)
		return nil
	case err == nil && s.known && s.read != nil && os.SameFile(info, s.read) && info.ModTime().Equal(s.read.ModTime()) && info.Size() == s.read.Size():
		return nil
	}
	var tokens []Token
	if err == nil {
		tokens, info, err = load(s.path)
	}
	if errors.Is(err, fs.ErrNotExist) { // it was taken away meanwhile
		err = nil
	}
	if err != nil {
		s.set(nil, nil)
		s.known = false
		return fmt.Errorf("read the gateway's tokens: %w", err)
	}
	s.set(tokens, info)
	return nil
}

func (s *Store) set(tokens []Token, info fs.FileInfo) {
	s.tokens, s.read, s.known = tokens, info, true
	s.byHash = make(map[string]Token, len(tokens))
	for _, t := range tokens {
		s.byHash[t.Hash] = t
	}
}

// file is what the file holds.
type file struct {
	Version int     `json:"version"`
	Tokens  []Token `json:"tokens"`
}

// version is of the file's format. A newer one may mean restrictions that are not known here.
const version = 1

func load(path string) ([]Token, fs.FileInfo, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat() // of what is read, whatever the name means by now
	if err != nil {
		return nil, nil, err
	}
	if goruntime.GOOS != "windows" && info.Mode().Perm()&0o022 != 0 {
		return nil, nil, fmt.Errorf("%s can be written by others, who could add tokens; look at who did, then chmod 600 it", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, nil, err
	}
	tokens, err := parse(data)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return tokens, info, nil
}

// parse reads the file's text. One entry that cannot be used makes the file unreadable: it was not written by us.
func parse(data []byte) ([]Token, error) {
	if len(data) > maxFile {
		return nil, fmt.Errorf("it is larger than %d bytes", maxFile)
	}
	var content file
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields() // a restriction whose name was mistyped would be none
	if err := decoder.Decode(&content); err != nil {
		return nil, fmt.Errorf("it is damaged: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("it is damaged: something stands behind its end")
	}
	if content.Version != version {
		return nil, fmt.Errorf("it has the format %d, this program knows %d", content.Version, version)
	}
	if len(content.Tokens) > maxTokens {
		return nil, fmt.Errorf("it has more than %d tokens", maxTokens)
	}
	names := map[string]bool{}
	for _, t := range content.Tokens {
		hash, err := hex.DecodeString(t.Hash)
		switch {
		case checkName(t.Name) != nil || names[t.Name]:
			return nil, fmt.Errorf("it is damaged: %q is no name of one token", t.Name)
		case err != nil || len(hash) != sha256.Size || hex.EncodeToString(hash) != t.Hash:
			return nil, fmt.Errorf("it is damaged: the hash of %q is none", t.Name)
		}
		names[t.Name] = true
	}
	slices.SortFunc(content.Tokens, func(a, b Token) int { return strings.Compare(a.Name, b.Name) })
	return content.Tokens, nil
}

// change replaces the tokens by what edit makes of them, while no other process does.
func (s *Store) change(ctx context.Context, edit func([]Token) ([]Token, error)) (err error) {
	defer func() {
		if err != nil && !errors.Is(err, ErrNoToken) {
			err = fmt.Errorf("change the gateway's tokens: %w", err)
		}
	}()
	if err := os.MkdirAll(filepath.Dir(s.path), safefile.DirMode); err != nil {
		return err
	}
	lock := flock.New(s.path+".lock", flock.SetPermissions(safefile.FileMode))
	if _, err := lock.TryLockContext(ctx, lockRetry); err != nil {
		return fmt.Errorf("wait for another process that changes them: %w", err)
	}
	defer lock.Unlock()
	tokens, _, err := load(s.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if tokens, err = edit(tokens); err != nil {
		return err
	}
	data, err := json.MarshalIndent(file{version, tokens}, "", "  ")
	if err != nil {
		return err
	}
	return safefile.Write(s.path, append(data, '\n'))
}
