// Package oauth logs in to MCP servers behind URLs, and keeps and renews the tokens (A38; specification 2026-07-28 and
// 2025-11-25, "Authorization").
//
// A login finds the server's authorization server from the server's own metadata (RFC 9728, RFC 8414), has a client registered
// there when none is configured, and gets a token that is good for this server alone (RFC 8707): by a browser, by a redirect
// address that is pasted, or by a code typed on another device (RFC 8628). What comes of it is an [Account] in a [Store], which
// every Nightporter of this user reads; a [Source] is a server's use of it. The tokens themselves are in the system's keyring or
// in a file, and leave this package only as [secret.String].
package oauth

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"nightporter/internal/config"
	"nightporter/internal/secret"
)

// Bounds of what is asked of other people's servers.
const (
	requestTimeout = 30 * time.Second // one exchange; it includes a slow sign-on system behind the token endpoint
	maxAnswer      = 1 << 20          // as go-sdk has it
	maxWords       = 200              // of what an authorization server says, in an error
	maxRedirects   = 3                // of metadata, within one origin
)

// Server is what a login needs to know of a server's definition.
type Server struct {
	Name     string
	URL      string   // of its MCP endpoint
	Resource string   // oauth_resource; empty: what the server's metadata says, else its URL
	Scopes   []string // asked for; nil: what the server asks for

	// The client, where it was registered by hand. ClientID may be the URL of a client metadata document.
	ClientID     string
	ClientSecret secret.String
	Callback     string // the redirect address that was registered; empty: http://127.0.0.1:PORT/callback
	Port         int    // the local port to listen on; 0: any
}

// Of returns what a login needs to know of def. endpoint is its URL with all references resolved.
func Of(ctx context.Context, def *config.Server, endpoint string, lookup config.LookupEnv) (Server, error) {
	s := Server{
		Name: def.Name, URL: endpoint, Resource: def.OAuthResource, Scopes: def.Scopes,
		ClientID: def.OAuth.ClientID, Callback: def.OAuth.CallbackURL, Port: def.OAuth.CallbackPort,
	}
	var err error
	if s.ClientSecret, err = def.OAuth.ClientSecret.Resolve(ctx, lookup); err != nil {
		return s, fmt.Errorf("oauth.client_secret: %w", err)
	}
	return s, nil
}

// LoginError says that a server wants a login that there is not, or more than the one there is allows. Nothing was carried out.
type LoginError struct {
	Server string
	Reason string   // without secrets
	Scopes []string // what it wants, when it said so
	More   bool     // there is a login, and it lacks scopes for this request alone

	store  *Store
	key    string
	serial int // of the account then
}

// Command is what a person has to run.
func (e *LoginError) Command() string { return "nightporter servers login " + e.Server }

func (e *LoginError) Error() string {
	want := "needs a login"
	if e.More {
		want = "needs a login with more scopes"
	}
	return fmt.Sprintf("server %q %s (%s); run: %s", e.Server, want, e.Reason, e.Command())
}

// Outdated reports whether somebody has logged in since, in this process or another.
func (e *LoginError) Outdated() bool {
	if e.store == nil {
		return false
	}
	a, err := e.store.read(e.key)
	return err == nil && a != nil && a.Serial != e.serial
}

// hash names files and keyring entries: URLs do not fit, and may hold secrets.
func hash(parts ...string) string {
	encoded, _ := json.Marshal(parts)
	sum := sha256.Sum256(encoded)
	return hex.EncodeToString(sum[:16])
}

// key is the server's account: what makes it another server for a login.
func (s *Server) key() string { return hash(s.URL, s.Resource, s.ClientID) }

// client makes HTTP requests that end with ctx and within a bound of time and size, and never goes to another origin.
func client(ctx context.Context) *http.Client {
	return &http.Client{
		Transport: bound{ctx},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			first := via[0]
			if first.Method != http.MethodGet || len(via) > maxRedirects || r.URL.Scheme != first.URL.Scheme || r.URL.Host != first.URL.Host {
				return http.ErrUseLastResponse
			}
			return nil
		},
	}
}

// bound makes one exchange, answer included: x/oauth2 sends a device authorization without a context, and does not close the answer.
type bound struct{ ctx context.Context }

// RoundTrip implements [http.RoundTripper].
func (b bound) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	defer context.AfterFunc(b.ctx, cancel)()
	response, err := http.DefaultTransport.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return nil, err
	}
	if len(body) > maxAnswer {
		return nil, fmt.Errorf("the answer is larger than %d bytes", maxAnswer)
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response, nil
}

// loopback reports whether host, without a port, is this machine: by the names that are nobody else's (RFC 6761, section 6.3), or by an
// address, to which the unspecified one belongs, since connections to it are made here.
func loopback(host string) bool {
	if name := strings.TrimSuffix(strings.ToLower(host), "."); name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	ip = ip.Unmap()
	return err == nil && (ip.IsLoopback() || ip.IsUnspecified())
}

// reachable refuses addresses that a server may not send us to: without TLS, or on this machine when the server is not.
func (s *Server) reachable(what, address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return fmt.Errorf("%s is not a URL", what)
	}
	own, err := url.Parse(s.URL)
	if err != nil {
		return errors.New("url is not a URL")
	}
	local := loopback(own.Hostname())
	switch {
	case u.User != nil:
		return fmt.Errorf("%s has a user in it", what)
	case u.Scheme != "https" && !(u.Scheme == "http" && local && loopback(u.Hostname())):
		return fmt.Errorf("%s is at %s://%s, and tokens are sent over https alone", what, u.Scheme, u.Host)
	case loopback(u.Hostname()) && !local:
		return fmt.Errorf("%s is at %s, on this machine, and the server is not", what, u.Host)
	}
	return nil
}

// words is what somebody else's server said, fit for an error.
func words(text string) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
	if r := []rune(text); len(r) > maxWords {
		text = string(r[:maxWords]) + "…"
	}
	return text
}

// union appends what is not there yet.
func union(all []string, more ...string) []string {
	all = slices.Clone(all)
	for _, s := range more {
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}
