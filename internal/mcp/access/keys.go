package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	// minRefresh is the least time between two fetches of an issuer's keys. Anybody can send tokens that name keys which do not exist, and
	// each would be a fetch.
	minRefresh = 10 * time.Second
	// freshFor is how long keys are taken without asking again: a key that its issuer took back is good for so long.
	freshFor = 10 * time.Minute
	// staleFor is how long keys are taken while their issuer cannot be reached. After that its tokens are refused.
	staleFor = time.Hour
	// fetchPatience bounds a fetch, metadata and keys.
	fetchPatience = 10 * time.Second
	// maxDocument and maxKeys bound what an issuer may send. The largest providers have a dozen keys in 20 KiB.
	maxDocument = 1 << 20
	maxKeys     = 100
	// maxCandidates bounds the keys that are tried for a token that names none.
	maxCandidates = 5
)

// keySet is the keys of an issuer, fetched when they are needed.
type keySet struct {
	issuer string
	jwks   string // may be empty: then the issuer's metadata says it
	client *http.Client

	turn chan struct{} // has one place: of who fetches

	mu      sync.Mutex
	keys    []jose.JSONWebKey
	fetched time.Time // when the keys came; zero: never
	tried   time.Time // when the last fetch ended
	problem error     // how it ended
}

func newKeySet(issuer, jwks string) *keySet {
	return &keySet{issuer: issuer, jwks: jwks, turn: make(chan struct{}, 1), client: &http.Client{
		Timeout: fetchPatience,
		// Where keys are is said by the configuration or by metadata that was checked, and by nobody else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, TLSHandshakeTimeout: fetchPatience},
	}}
}

// find returns the keys that a token may be signed with. An error says that the issuer's keys are not known; a key that does not exist is none.
func (s *keySet) find(ctx context.Context, kid, alg string) ([]jose.JSONWebKey, error) {
	found, fresh := s.known(kid, alg)
	if fresh && len(found) > 0 {
		return found, nil
	}
	err := s.refresh(ctx)
	found, _ = s.known(kid, alg)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fetched.IsZero() || time.Since(s.fetched) > staleFor {
		if err == nil {
			err = s.problem
		}
		if err == nil {
			err = errors.New("they were not fetched")
		}
		return nil, err
	}
	return found, nil
}

func (s *keySet) known(kid, alg string) (found []jose.JSONWebKey, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range s.keys {
		if (kid == "" || key.KeyID == kid) && (key.Algorithm == "" || key.Algorithm == alg) && len(found) < maxCandidates {
			found = append(found, key)
		}
	}
	return found, time.Since(s.fetched) < freshFor
}

// refresh fetches the keys, if the last fetch is long enough ago. Who comes meanwhile waits for the same fetch, which no single caller can cancel.
func (s *keySet) refresh(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.turn }()
	s.mu.Lock()
	if !s.tried.IsZero() && time.Since(s.tried) < minRefresh {
		defer s.mu.Unlock()
		return s.problem
	}
	s.mu.Unlock()
	fetching, done := context.WithTimeout(context.WithoutCancel(ctx), fetchPatience)
	defer done()
	keys, err := s.fetch(fetching)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problem, s.tried = err, time.Now()
	if err == nil {
		s.keys, s.fetched = keys, time.Now()
	}
	return err
}

func (s *keySet) fetch(ctx context.Context) ([]jose.JSONWebKey, error) {
	where := s.jwks
	if where == "" {
		var err error
		if where, err = s.discover(ctx); err != nil {
			return nil, err
		}
	}
	var set struct{ Keys []json.RawMessage }
	if _, err := s.get(ctx, where, &set); err != nil {
		return nil, err
	}
	var keys []jose.JSONWebKey
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		// Keys of kinds that are not known here, and those for encryption, are for others.
		if key.UnmarshalJSON(raw) != nil || !key.Valid() || !key.IsPublic() || key.Use != "" && key.Use != "sig" {
			continue
		}
		if keys = append(keys, key); len(keys) == maxKeys {
			break
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s has no key that can be used", where)
	}
	return keys, nil
}

// discover finds the address of the issuer's keys in its metadata: by RFC 8414, or as OpenID Connect has it.
func (s *keySet) discover(ctx context.Context) (string, error) {
	u, err := url.Parse(s.issuer)
	if err != nil {
		return "", fmt.Errorf("%s: %w", s.issuer, err)
	}
	path := strings.TrimSuffix(u.Path, "/")
	var problem error
	for _, place := range []string{
		"/.well-known/oauth-authorization-server" + path, path + "/.well-known/openid-configuration", "/.well-known/openid-configuration" + path,
	} {
		at := *u
		at.Path, at.RawPath, at.RawQuery = place, "", ""
		var metadata struct {
			Issuer string `json:"issuer"`
			JWKS   string `json:"jwks_uri"`
		}
		status, err := s.get(ctx, at.String(), &metadata)
		switch {
		case err != nil:
			problem = err
			if status/100 == 4 {
				continue // it has no metadata there
			}
			return "", err
		case metadata.Issuer != s.issuer: // RFC 8414 section 3.3
			return "", fmt.Errorf("%s is the metadata of another issuer", at.String())
		case metadata.JWKS == "":
			return "", fmt.Errorf("%s does not say where the keys are", at.String())
		}
		return metadata.JWKS, CheckURL(metadata.JWKS)
	}
	return "", problem
}

// get fetches a JSON document. status is zero when there was no answer.
func (s *keySet) get(ctx context.Context, from string, into any) (status int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Accept", "application/json")
	response, err := s.client.Do(r)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return response.StatusCode, fmt.Errorf("%s answers %s", from, response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxDocument+1))
	switch {
	case err != nil:
		return response.StatusCode, fmt.Errorf("%s: %w", from, err)
	case len(body) > maxDocument:
		return response.StatusCode, fmt.Errorf("%s is larger than %d KiB", from, maxDocument>>10)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return response.StatusCode, fmt.Errorf("%s is no JSON document of its kind: %w", from, err)
	}
	return response.StatusCode, nil
}
