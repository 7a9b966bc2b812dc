package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

// Challenge is what a server said when it refused a request for want of a login (RFC 6750, RFC 9728).
type Challenge struct {
	Error    string   `json:"error,omitempty"` // "invalid_token", "insufficient_scope"
	Scopes   []string `json:"scopes,omitempty"`
	Metadata string   `json:"resource_metadata,omitempty"`
}

// challengeOf reads WWW-Authenticate. A header that cannot be read says nothing.
func challengeOf(h http.Header) (c Challenge, description string) {
	challenges, err := oauthex.ParseWWWAuthenticate(h.Values("WWW-Authenticate"))
	if err != nil {
		return c, ""
	}
	for _, one := range challenges {
		if one.Scheme == "bearer" {
			return Challenge{one.Params["error"], strings.Fields(one.Params["scope"]), one.Params["resource_metadata"]}, one.Params["error_description"]
		}
	}
	return c, ""
}

// discovered is where a server's tokens come from.
type discovered struct {
	resource string   // RFC 8707
	scopes   []string // that the server's metadata names
	guessed  bool     // the server names no authorization server
	meta     *oauthex.AuthServerMeta
	device   string // device_authorization_endpoint, which go-sdk's metadata does not have; empty: none
}

// discover finds the authorization server.
func (s *Server) discover(ctx context.Context, c Challenge) (*discovered, error) {
	if err := s.reachable("url", s.URL); err != nil {
		return nil, err
	}
	d, issuers, err := s.resourceMetadata(ctx, c)
	if err != nil {
		return nil, err
	}
	if s.Resource != "" {
		d.resource = s.Resource
	}
	var problems []error
	for _, issuer := range issuers {
		if err := s.reachable("its authorization server", issuer); err != nil {
			problems = append(problems, err)
			continue
		}
		meta, err := auth.GetAuthServerMetadata(ctx, issuer, client(ctx))
		switch {
		case err != nil:
			problems = append(problems, fmt.Errorf("the authorization server %s: %s", issuer, words(err.Error())))
		case meta == nil && d.guessed:
			problems = append(problems, fmt.Errorf("the server has no metadata of its own (RFC 9728), and there is no authorization server at %s: "+
				"it may want a key, to be given by bearer_token_env_var or http_headers", issuer))
		case meta == nil:
			problems = append(problems, fmt.Errorf("the authorization server %s has no metadata (RFC 8414, OpenID Connect Discovery)", issuer))
		default:
			d.meta = meta
			return d, s.check(ctx, d)
		}
	}
	return nil, errors.Join(problems...)
}

// check refuses an authorization server that is not safe to use.
func (s *Server) check(ctx context.Context, d *discovered) error {
	if !slices.Contains(d.meta.CodeChallengeMethodsSupported, "S256") {
		return fmt.Errorf("the authorization server %s does not offer PKCE with S256, without which a login can be stolen", d.meta.Issuer)
	}
	for what, address := range map[string]string{
		"the authorization endpoint": d.meta.AuthorizationEndpoint, "the token endpoint": d.meta.TokenEndpoint,
		"the registration endpoint": d.meta.RegistrationEndpoint, "the revocation endpoint": d.meta.RevocationEndpoint,
	} {
		if address == "" && what != "the token endpoint" {
			continue
		}
		if err := s.reachable(what, address); err != nil {
			return err
		}
	}
	return nil
}

// findDevice looks for the device endpoint in the metadata's own text.
func (s *Server) findDevice(ctx context.Context, d *discovered) error {
	issuer, err := url.Parse(d.meta.Issuer)
	if err != nil {
		return err
	}
	path := strings.TrimSuffix(issuer.Path, "/")
	for _, place := range []string{
		"/.well-known/oauth-authorization-server" + path, "/.well-known/openid-configuration" + path, path + "/.well-known/openid-configuration",
	} {
		at := *issuer
		at.Path = place
		var found struct {
			Issuer string `json:"issuer"`
			Device string `json:"device_authorization_endpoint"`
		}
		if getJSON(ctx, at.String(), &found) != nil || found.Issuer != d.meta.Issuer {
			continue
		}
		if found.Device == "" {
			return nil
		}
		d.device = found.Device
		return s.reachable("the device authorization endpoint", d.device)
	}
	return nil
}

// resourceMetadata is what the server says of itself, and who issues its tokens.
func (s *Server) resourceMetadata(ctx context.Context, c Challenge) (*discovered, []string, error) {
	own, err := url.Parse(s.URL)
	if err != nil {
		return nil, nil, errors.New("url is not a URL")
	}
	at := func(path string) string { return (&url.URL{Scheme: own.Scheme, Host: own.Host, Path: path}).String() }
	const known = "/.well-known/oauth-protected-resource"
	places := []string{at(known + strings.TrimSuffix(own.Path, "/")), at(known)}
	if c.Metadata != "" {
		named, err := own.Parse(c.Metadata)
		if err != nil || named.Scheme != own.Scheme || named.Host != own.Host {
			// It may only speak for itself: metadata elsewhere could be anybody's, or a service of our network.
			return nil, nil, fmt.Errorf("the server names metadata of another origin than its own, %s", words(c.Metadata))
		}
		places = []string{named.String()}
	}
	for _, place := range slices.Compact(places) {
		var meta oauthex.ProtectedResourceMetadata
		switch err := getJSON(ctx, place, &meta); {
		case errors.As(err, new(notThere)) && c.Metadata == "":
			continue
		case err != nil:
			return nil, nil, fmt.Errorf("the server's metadata at %s: %w", place, err)
		case !covers(meta.Resource, own):
			return nil, nil, fmt.Errorf("the server's metadata is of another resource, %s", words(meta.Resource))
		case len(meta.AuthorizationServers) == 0:
			return nil, nil, errors.New("the server's metadata names no authorization server")
		}
		return &discovered{resource: meta.Resource, scopes: meta.ScopesSupported}, meta.AuthorizationServers, nil
	}
	// Servers of 2025-03-26 have no metadata of their own: their origin is the authorization server.
	return &discovered{resource: at(own.Path), guessed: true}, []string{at("")}, nil
}

// covers reports whether a resource identifier is the server's own: its URL, or a folder above it. RFC 9728 wants the URL
// itself; many servers name their origin, which takes nothing away: no other origin gets the token.
func covers(resource string, own *url.URL) bool {
	r, err := url.Parse(resource)
	if err != nil || r.Scheme != own.Scheme || r.Host != own.Host || r.User != nil || r.Fragment != "" {
		return false
	}
	if r.RawQuery != "" {
		return r.Path == own.Path && r.RawQuery == own.RawQuery
	}
	folder := strings.TrimSuffix(r.Path, "/")
	return own.Path == r.Path || own.Path == folder || strings.HasPrefix(own.Path, folder+"/")
}

// notThere says that there is nothing at an address.
type notThere struct{ status int }

func (e notThere) Error() string { return fmt.Sprintf("HTTP status %d", e.status) }

// getJSON reads a JSON object.
func getJSON(ctx context.Context, address string, into any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Accept", "application/json")
	response, err := client(ctx).Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); {
	case response.StatusCode/100 == 4:
		return notThere{response.StatusCode}
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("HTTP status %d", response.StatusCode)
	case !strings.HasSuffix(kind, "json"):
		return fmt.Errorf("its content type is %q, not JSON", words(kind))
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("it is not the JSON that it should be: %w", err)
	}
	return nil
}
