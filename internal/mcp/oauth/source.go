package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"nightporter/internal/secret"
)

// Renewal before the end.
const (
	// renewBefore is the life that an access token must still have: Codex's margin (facts/codex-runtime.md, section 7).
	renewBefore = 30 * time.Second
	// renewSpread is by how much processes differ in it, so that not all wait for one lock at once.
	renewSpread = 10 * time.Second
	// renewPause is the pause after a renewal that failed for a passing reason, while the old token is still good.
	renewPause = 10 * time.Second
)

// Source gives the tokens for the requests to one server. It is safe for concurrent use.
type Source struct {
	store  *Store
	server Server
	key    string
	margin time.Duration
	turn   chan struct{} // has one place: one caller at a time looks and renews

	// Of whoever has the turn:
	stamp  stamp
	have   *held
	paused time.Time // no renewal before
}

// held is an account with its tokens, as they were last read.
type held struct {
	account *Account
	tokens  *tokens
}

// stamp tells versions of an account's file apart: each is a new file.
type stamp struct {
	modified time.Time
	size     int64
}

// Source returns the tokens of the server's account.
func (s *Store) Source(server Server) *Source {
	return &Source{
		store: s, server: server, key: server.key(), turn: make(chan struct{}, 1),
		margin: renewBefore + rand.N(renewSpread),
	}
}

// Token returns the access token to send to the server now, renewed when it is about to expire; empty when there is no login. The
// error is a *[LoginError] when there was one and it cannot be renewed, and else says why it could not be read or renewed now.
func (s *Source) Token(ctx context.Context) (secret.String, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return secret.String{}, ctx.Err()
	}
	h, err := s.load(ctx)
	if err != nil || h == nil || !h.account.LoggedIn {
		return secret.String{}, err
	}
	if h.account.Problem != "" {
		return secret.String{}, s.wants(h.account, h.account.Problem)
	}
	if h.fresh(s.margin) {
		return h.tokens.Access, nil
	}
	alive := h.fresh(0)
	if alive && (h.tokens.Refresh.Empty() || time.Now().Before(s.paused)) {
		return h.tokens.Access, nil
	}
	renewed, err := s.renew(ctx, func(now *held) bool { return now.fresh(s.margin) })
	switch {
	case err == nil:
		return renewed.tokens.Access, nil
	case alive && !errors.As(err, new(*LoginError)):
		s.paused = time.Now().Add(renewPause)
		return h.tokens.Access, nil
	}
	return secret.String{}, err
}

// fresh reports whether the access token is good for margin more.
func (h *held) fresh(margin time.Duration) bool {
	return h.tokens.Expires.IsZero() || time.Until(h.tokens.Expires) > margin
}

// Refused takes the server's refusal of a request that was sent with token, which may be empty: status 401, or 403. It returns nil
// when the request should be sent once more, with another token. last says that this has been done. The error is a *[LoginError],
// or says why it is not known whether another token would help; other is set when the refusal has nothing to do with logins.
func (s *Source) Refused(ctx context.Context, token secret.String, status int, h http.Header, last bool) (other bool, err error) {
	c, description := challengeOf(h)
	if status == http.StatusForbidden && c.Error != insufficientScope {
		return true, nil
	}
	reason := fmt.Sprintf("it answered HTTP status %d", status)
	var mask secret.Masker
	mask.Add(token)
	for _, said := range []string{c.Error, description} {
		if said != "" {
			reason += ": " + words(mask.Text(said)) // masked before it is cut
		}
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	now, err := s.load(ctx)
	if err != nil {
		return false, err
	}
	if !last && now != nil && now.account.LoggedIn && now.account.Problem == "" {
		if now.tokens.Access != token {
			return false, nil // renewed or logged in meanwhile
		}
		if status == http.StatusUnauthorized && !now.tokens.Refresh.Empty() {
			_, err := s.renew(ctx, func(h *held) bool { return h.tokens.Access != token })
			return false, err
		}
	}
	if status == http.StatusUnauthorized && !token.Empty() {
		reason += "; the token of the login is refused"
	}
	return false, s.record(ctx, c, reason)
}

// record notes what the server wants, for the next login and for status, and returns the error that says so.
func (s *Source) record(ctx context.Context, c Challenge, reason string) error {
	wants := &LoginError{Server: s.server.Name, Reason: reason, Scopes: c.Scopes, More: c.Error == insufficientScope, store: s.store, key: s.key}
	a, err := s.store.read(s.key)
	if err == nil && a != nil && a.Wanted.equal(&c) {
		wants.serial = a.Serial
		return wants
	}
	err = s.store.change(ctx, s.key, func(a *Account) error {
		if a.Server == "" {
			a.Server = s.server.Name
		}
		a.Wanted = &c
		wants.serial = a.Serial
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w (and that could not be noted: %v)", wants, err)
	}
	return wants
}

func (c *Challenge) equal(d *Challenge) bool {
	return c != nil && c.Error == d.Error && c.Metadata == d.Metadata && strings.Join(c.Scopes, " ") == strings.Join(d.Scopes, " ")
}

// Served notes that the server was of use: what it asked for before is over.
func (s *Source) Served() {
	a, err := s.store.read(s.key)
	if err != nil || a == nil || a.Wanted == nil || a.Wanted.Error == insufficientScope {
		return
	}
	// That it could not be noted costs a line in status until the next login.
	_ = s.store.change(context.Background(), s.key, func(a *Account) error {
		if a.Wanted != nil && a.Wanted.Error != insufficientScope {
			a.Wanted = nil
		}
		return nil
	})
}

// Needed returns the error of a login that is known to be needed before anything is asked; nil when none is.
func (s *Source) Needed() *LoginError {
	a, err := s.store.read(s.key)
	if err != nil || !a.NeedsLogin() {
		return nil
	}
	reason := a.Problem
	if reason == "" {
		reason = "it asked for one"
	}
	return s.wants(a, reason)
}

func (s *Source) wants(a *Account, reason string) *LoginError {
	return &LoginError{Server: s.server.Name, Reason: reason, store: s.store, key: s.key, serial: a.Serial}
}

// load returns the account and its tokens as they are kept; nil when there is none. The caller has the turn.
func (s *Source) load(ctx context.Context) (*held, error) {
	info, err := os.Stat(s.store.path(s.key))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.have, s.stamp = nil, stamp{}
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the login: %w", err)
	}
	if now := (stamp{info.ModTime(), info.Size()}); s.have != nil && s.stamp == now {
		return s.have, nil
	}
	s.have = nil
	h, err := s.read(ctx)
	if err == nil {
		s.have, s.stamp = h, stamp{info.ModTime(), info.Size()}
	}
	return h, err
}

// read reads the account and its tokens.
func (s *Source) read(ctx context.Context) (*held, error) {
	a, err := s.store.read(s.key)
	if err != nil || a == nil {
		return nil, err
	}
	h := &held{a, &tokens{}}
	if a.LoggedIn && a.Problem == "" {
		if h.tokens, err = s.store.tokens(ctx, s.key, a); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil, s.wants(a, "the tokens of the login are gone from the "+string(a.Kept))
			}
			return nil, fmt.Errorf("server %q: read the tokens of its login: %w", s.server.Name, err)
		}
	}
	return h, nil
}

// renew uses the refresh token, under the lock of all processes, unless enough says that another one has. The caller has the turn.
//
// Once the refresh token is sent it must not be forgotten what came of it: many authorization servers revoke everything when one is
// used twice. So it is not ended by ctx, but by a timeout of its own.
func (s *Source) renew(ctx context.Context, enough func(*held) bool) (*held, error) {
	var result *held
	err := s.store.locked(ctx, s.key, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout+2*keyringPatience)
		defer cancel()
		h, err := s.read(ctx)
		switch {
		case err != nil:
			return err
		case h == nil || !h.account.LoggedIn:
			return &LoginError{Server: s.server.Name, Reason: "it was logged out", store: s.store, key: s.key}
		case h.account.Problem != "":
			return s.wants(h.account, h.account.Problem)
		case enough(h):
			result = h
			return nil
		case h.tokens.Refresh.Empty():
			return s.lapse(h.account, "the login has expired, and cannot be renewed")
		}
		fresh, err := s.exchange(ctx, h)
		var refused *refusal
		if errors.As(err, &refused) && refused.final() {
			return s.lapse(h.account, "the login has ended: "+refused.Error())
		}
		if err != nil {
			return fmt.Errorf("server %q: its login could not be renewed: %w", s.server.Name, err)
		}
		h.account.Serial++
		h.account.Expires, h.account.Renews = fresh.Expires, !fresh.Refresh.Empty()
		if h.account.Wanted != nil && h.account.Wanted.Error != insufficientScope {
			h.account.Wanted = nil
		}
		// The tokens first: what the account says of them is for people.
		if err := s.store.keep(ctx, s.key, h.account, fresh); err != nil {
			return err
		}
		result = &held{h.account, fresh}
		return s.store.write(s.key, h.account)
	})
	s.have = nil // read again
	return result, err
}

// lapse notes that a login is of no use any more. The lock is held.
func (s *Source) lapse(a *Account, reason string) error {
	a.Serial++
	a.Problem = reason
	if err := s.store.write(s.key, a); err != nil {
		return err
	}
	return s.wants(a, reason)
}

// refusal is an error of a token endpoint (RFC 6749, section 5.2).
type refusal struct {
	Code        string `json:"error"`
	Description string `json:"error_description"`
	status      int
}

func (e *refusal) Error() string {
	switch {
	case e.Code == "":
		return fmt.Sprintf("the authorization server answered HTTP status %d", e.status)
	case e.Description == "":
		return "the authorization server refused: " + words(e.Code)
	}
	return "the authorization server refused: " + words(e.Code) + ": " + words(e.Description)
}

// final reports whether the same request cannot succeed later.
func (e *refusal) final() bool {
	return e.status/100 == 4 && e.status != http.StatusTooManyRequests && e.status != http.StatusRequestTimeout && e.Code != "temporarily_unavailable"
}

// exchange sends the refresh token. x/oauth2 would send neither the resource (RFC 8707 and MCP want it in every request for a
// token) nor tell a refusal from a server that is down.
func (s *Source) exchange(ctx context.Context, h *held) (*tokens, error) {
	a := h.account
	form := url.Values{"grant_type": {"refresh_token"}, "refresh_token": {h.tokens.Refresh.Reveal()}, "resource": {a.Resource}}
	answer, err := s.server.post(ctx, a.TokenEndpoint, form, s.clientSecret(h), a)
	if err != nil {
		return nil, err
	}
	var t struct {
		Access  string      `json:"access_token"`
		Type    string      `json:"token_type"`
		Refresh string      `json:"refresh_token"`
		Seconds json.Number `json:"expires_in"`
	}
	if json.Unmarshal(answer, &t) != nil || t.Access == "" || !strings.EqualFold(t.Type, "Bearer") {
		return nil, errors.New("the authorization server's answer is no bearer token")
	}
	fresh := &tokens{Access: secret.New(t.Access), Refresh: secret.New(t.Refresh), ClientSecret: h.tokens.ClientSecret}
	if fresh.Refresh.Empty() {
		fresh.Refresh = h.tokens.Refresh
	}
	if seconds, err := t.Seconds.Float64(); err == nil && seconds > 0 {
		fresh.Expires = time.Now().Add(time.Duration(min(seconds, maxLife) * float64(time.Second)))
	}
	return fresh, nil
}

// maxLife, in seconds, is as long as a token's life is taken: longer ones overflow.
const maxLife = 10 * 365 * 24 * 3600

// clientSecret is the configured client's secret, which may have changed since the login, else the registered one's.
func (s *Source) clientSecret(h *held) secret.String {
	if s.server.ClientID == h.account.ClientID && !s.server.ClientSecret.Empty() {
		return s.server.ClientSecret
	}
	return h.tokens.ClientSecret
}

// post sends a form to an endpoint of the account's authorization server, as its client.
func (s *Server) post(ctx context.Context, endpoint string, form url.Values, clientSecret secret.String, a *Account) ([]byte, error) {
	if err := s.reachable("the authorization server's endpoint", endpoint); err != nil {
		return nil, err
	}
	basic := a.Method == clientSecretBasic && !clientSecret.Empty()
	if !basic {
		form.Set("client_id", a.ClientID)
		if !clientSecret.Empty() {
			form.Set("client_secret", clientSecret.Reveal())
		}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, errors.New("the authorization server's endpoint is not a URL")
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Accept", "application/json")
	if basic {
		r.SetBasicAuth(url.QueryEscape(a.ClientID), url.QueryEscape(clientSecret.Reveal()))
	}
	response, err := client(ctx).Do(r)
	if err != nil {
		return nil, err // names the endpoint; the form is not in it
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		refused := &refusal{}
		_ = json.Unmarshal(body, refused) // else the status says it
		refused.status = response.StatusCode
		var mask secret.Masker // some quote what they were sent
		mask.Add(clientSecret)
		for _, key := range []string{"refresh_token", "token"} {
			mask.Add(secret.New(form.Get(key)))
		}
		refused.Code, refused.Description = mask.Text(refused.Code), mask.Text(refused.Description)
		return nil, refused
	}
	return body, nil
}
