package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"nightporter/internal/safefile"
	"nightporter/internal/secret"
)

// Account is a login to one server, without its secrets.
type Account struct {
	Server   string `json:"server"` // the name that it was made under
	Issuer   string `json:"issuer,omitempty"`
	Resource string `json:"resource,omitempty"`
	ClientID string `json:"client_id,omitempty"`
	// Subject is who logged in, when the authorization server said so.
	Subject  string    `json:"subject,omitempty"`
	Scopes   []string  `json:"scopes,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Expires  time.Time `json:"expires,omitzero"` // of the access token; zero: it does not say
	Renews   bool      `json:"renews"`           // there is a refresh token
	Kept     Place     `json:"kept,omitempty"`
	Serial   int       `json:"serial"` // changes with every login, renewal and logout
	LoggedIn bool      `json:"logged_in"`
	// Problem says why a login is of no use any more.
	Problem string `json:"problem,omitempty"`
	// Wanted is what the server asked for last that the login did not give. Nil: nothing.
	Wanted *Challenge `json:"wanted,omitempty"`

	TokenEndpoint      string `json:"token_endpoint,omitempty"`
	RevocationEndpoint string `json:"revocation_endpoint,omitempty"`
	Method             string `json:"token_endpoint_auth_method,omitempty"`
}

// NeedsLogin reports whether the server has refused what there is, or that there is nothing.
func (a *Account) NeedsLogin() bool {
	return a != nil && (a.Problem != "" || a.Wanted != nil && a.Wanted.Error != insufficientScope)
}

const insufficientScope = "insufficient_scope"

// tokens are an account's secrets.
type tokens struct {
	Access       secret.String
	Refresh      secret.String // empty: there is none
	ClientSecret secret.String // of a client that was registered for this
	Expires      time.Time     // of Access; zero: it does not say
}

// keptTokens are tokens as they are kept.
type keptTokens struct {
	Access       string    `json:"access_token"`
	Refresh      string    `json:"refresh_token,omitempty"`
	ClientSecret string    `json:"client_secret,omitempty"`
	Expires      time.Time `json:"expires,omitzero"`
}

// Store keeps accounts in a folder, and their secrets in the keyring or in the folder. It is safe for concurrent use, by several
// processes too. Nothing is in memory: what one process logs in, the others see at their next use.
type Store struct {
	dir    string
	vaults map[Place]vault
	prefer Place
}

// Options say where secrets are kept.
type Options struct {
	// Prefer is where new logins go. Empty: the keyring when it works, else a file.
	Prefer Place
}

// Open returns the store in the folder dir, which need not exist.
func Open(dir string, o Options) *Store {
	return &Store{
		dir: dir, prefer: o.Prefer,
		vaults: map[Place]vault{InKeyring: keyringVault{}, InFile: fileVault{filepath.Join(dir, "tokens")}},
	}
}

func (s *Store) path(key string) string { return filepath.Join(s.dir, key+".json") }

// Account returns the server's account, or nil when there is none. The error names the file.
func (s *Store) Account(server Server) (*Account, error) { return s.read(server.key()) }

func (s *Store) read(key string) (*Account, error) {
	data, err := os.ReadFile(s.path(key))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the login: %w", err)
	}
	a := &Account{}
	if err := json.Unmarshal(data, a); err != nil {
		return nil, fmt.Errorf("read the login %s: %w", s.path(key), err)
	}
	return a, nil
}

func (s *Store) write(key string, a *Account) error {
	data, err := json.MarshalIndent(a, "", "  ")
	if err != nil {
		return err
	}
	return safefile.Write(s.path(key), append(data, '\n'))
}

const (
	lockPatience = time.Minute // a holder's exchange with its authorization server, twice
	lockPause    = 20 * time.Millisecond
)

// locked runs do while no other process changes the account.
func (s *Store) locked(ctx context.Context, key string, do func() error) error {
	if err := os.MkdirAll(s.dir, safefile.DirMode); err != nil {
		return fmt.Errorf("keep the login: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	lock := flock.New(filepath.Join(s.dir, key+".lock"), flock.SetPermissions(safefile.FileMode))
	if _, err := lock.TryLockContext(ctx, lockPause); err != nil {
		return fmt.Errorf("another Nightporter holds the login: %w", err)
	}
	defer lock.Close()
	return do()
}

// change reads, changes and writes an account. change may leave it nil-safe: it gets an empty one where there is none.
func (s *Store) change(ctx context.Context, key string, change func(*Account) error) error {
	return s.locked(ctx, key, func() error {
		a, err := s.read(key)
		if err != nil {
			return err
		}
		if a == nil {
			a = &Account{}
		}
		if err := change(a); err != nil {
			return err
		}
		return s.write(key, a)
	})
}

// secretKey is where an account's tokens are: under all that a token is bound to.
func secretKey(key string, a *Account) string { return hash(key, a.Issuer, a.Resource) }

func (s *Store) tokens(ctx context.Context, key string, a *Account) (*tokens, error) {
	v := s.vaults[a.Kept]
	if v == nil {
		return nil, fmt.Errorf("the login is kept in %q, which this version does not know", a.Kept)
	}
	data, err := v.get(ctx, secretKey(key, a))
	if err != nil {
		return nil, err
	}
	var t keptTokens
	if err := json.Unmarshal(data, &t); err != nil {
		return nil, errors.New("the kept tokens are damaged") // the error could quote them
	}
	return &tokens{secret.New(t.Access), secret.New(t.Refresh), secret.New(t.ClientSecret), t.Expires}, nil
}

// keep writes an account's tokens where a.Kept says, which it sets when it is empty or no place for them.
func (s *Store) keep(ctx context.Context, key string, a *Account, t *tokens) error {
	data, err := json.Marshal(keptTokens{t.Access.Reveal(), t.Refresh.Reveal(), t.ClientSecret.Reveal(), t.Expires})
	if err != nil {
		return err
	}
	if a.Kept == "" {
		a.Kept = s.place(ctx)
	}
	err = s.vaults[a.Kept].put(ctx, secretKey(key, a), data)
	if errors.Is(err, errTooBig) && s.prefer == "" {
		a.Kept = InFile // Windows' keyring takes 2560 bytes; the account says where they are
		err = s.vaults[InFile].put(ctx, secretKey(key, a), data)
	}
	if err != nil {
		return fmt.Errorf("keep the tokens in the %s: %w", a.Kept, err)
	}
	return nil
}

// place is where new logins go.
func (s *Store) place(ctx context.Context) Place {
	if s.prefer != "" {
		return s.prefer
	}
	if keyringWorks(ctx) {
		return InKeyring
	}
	return InFile
}

// registration is a client that an authorization server registered for us.
type registration struct {
	Issuer   string    `json:"issuer"`
	ClientID string    `json:"client_id"`
	Secret   string    `json:"client_secret,omitempty"`
	Method   string    `json:"token_endpoint_auth_method,omitempty"`
	Redirect string    `json:"redirect_uri"`
	Grants   []string  `json:"grant_types"`
	Expires  time.Time `json:"expires,omitzero"`
}

// registration returns the client that is registered with an issuer, or nil.
func (s *Store) registration(issuer string) *registration {
	data, err := fileVault{filepath.Join(s.dir, "clients")}.get(context.Background(), hash(issuer))
	r := &registration{}
	if err != nil || json.Unmarshal(data, r) != nil || r.Issuer != issuer || !r.Expires.IsZero() && time.Until(r.Expires) < time.Hour {
		return nil
	}
	return r
}

func (s *Store) register(r *registration) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return fileVault{filepath.Join(s.dir, "clients")}.put(context.Background(), hash(r.Issuer), data)
}

func (s *Store) unregister(issuer string) error {
	return fileVault{filepath.Join(s.dir, "clients")}.remove(context.Background(), hash(issuer))
}
