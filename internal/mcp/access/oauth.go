package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

// OAuthOptions say whose access tokens are accepted.
type OAuthOptions struct {
	Resource string            // this gateway's URL, as clients know it; what tokens must be made for
	Issuers  []string          // authorization servers, as they call themselves
	JWKS     string            // where the keys are; empty: where each issuer's metadata says. Only with one issuer
	Scopes   []string          // each is needed
	Grants   map[string]string // scope to [grants.NAME]; not empty: a holder has the grants of its scopes, and needs one
}

// OAuth is the gateway as an OAuth 2.1 resource server: it accepts signed access tokens (JWT, RFC 9068) of the issuers, made for this
// resource. It is safe for concurrent use.
type OAuth struct {
	o       OAuthOptions
	issuers map[string]*keySet
}

// algorithms are those that sign with a private key. With none, or one that the keys' readers can sign with, anybody could make tokens.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

const (
	// leeway is how far the clock of an authorization server may be from ours.
	leeway = 30 * time.Second
	// keysRetry is when a client may try again whose issuer's keys could not be had.
	keysRetry = minRefresh
	// maxShown bounds what is shown of a subject, in characters. It stands in tables and in each entry of the audit record.
	maxShown = 128
)

// NewOAuth makes a resource server. Nothing is fetched before the first token. The error says what is missing or wrong in o.
func NewOAuth(o OAuthOptions) (*OAuth, error) {
	if err := CheckURL(o.Resource); err != nil {
		return nil, fmt.Errorf("resource: %w", err)
	}
	if len(o.Issuers) == 0 {
		return nil, errors.New("issuers: none is named")
	}
	if o.JWKS != "" {
		if len(o.Issuers) > 1 {
			return nil, errors.New("jwks_uri: several issuers cannot share one; leave it out, and each one's metadata says where its keys are")
		}
		if err := CheckURL(o.JWKS); err != nil {
			return nil, fmt.Errorf("jwks_uri: %w", err)
		}
	}
	a := &OAuth{o: o, issuers: map[string]*keySet{}}
	for _, issuer := range o.Issuers {
		if err := CheckURL(issuer); err != nil {
			return nil, fmt.Errorf("issuers: %w", err)
		}
		a.issuers[issuer] = newKeySet(issuer, o.JWKS)
	}
	return a, nil
}

// CheckURL says why a URL cannot be one of OAuth's: keys and tokens are only as good as the way on which they come.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return fmt.Errorf("%q is no URL", text)
	case u.Host == "" || u.User != nil || u.Fragment != "":
		return fmt.Errorf("%q is no URL of the form https://HOST/PATH", text)
	case u.Scheme != "https" && !(u.Scheme == "http" && isLoopback(u.Hostname())):
		return fmt.Errorf("%q is not https, which only a loopback address need not be", text)
	}
	return nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// MetadataPath is where a resource's metadata is, by RFC 9728 section 3.1: in front of the resource's own path.
const MetadataPath = "/.well-known/oauth-protected-resource"

func (a *OAuth) metadataURL() string {
	u, _ := url.Parse(a.o.Resource) // it was parsed before
	u.Path, u.RawPath, u.RawQuery = MetadataPath+strings.TrimSuffix(u.Path, "/"), "", ""
	return u.String()
}

// Metadata answers with the resource's metadata, which is for everybody.
func (a *OAuth) Metadata() http.Handler {
	scopes := slices.Concat(a.o.Scopes, slices.Sorted(maps.Keys(a.o.Grants)))
	return auth.ProtectedResourceMetadataHandler(&oauthex.ProtectedResourceMetadata{
		Resource: a.o.Resource, AuthorizationServers: a.o.Issuers, ScopesSupported: slices.Compact(scopes),
		BearerMethodsSupported: []string{"header"}, ResourceName: "Nightporter",
	})
}

// Challenge adds to a denial where a token can be had, and for what. It returns the denial.
func (a *OAuth) Challenge(d *Denial) *Denial {
	d.Params = append(d.Params, [2]string{"resource_metadata", a.metadataURL()})
	wanted := a.o.Scopes
	if len(wanted) == 0 {
		wanted = slices.Sorted(maps.Keys(a.o.Grants))
	}
	if len(wanted) > 0 {
		d.Params = append(d.Params, [2]string{"scope", strings.Join(wanted, " ")})
	}
	return d
}

// claims are what is read of an access token besides what every JWT has.
type claims struct {
	jwt.Claims
	Scope    string `json:"scope"`
	Scp      words  `json:"scp"` // what some servers say in its place
	ClientID string `json:"client_id"`
	Azp      string `json:"azp"`
}

// words is a list, or one text with spaces between.
type words []string

// UnmarshalJSON implements [json.Unmarshaler].
func (w *words) UnmarshalJSON(data []byte) error {
	var list []string
	if json.Unmarshal(data, &list) == nil {
		*w = list
		return nil
	}
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return errors.New("scp is neither a list of texts nor a text")
	}
	*w = strings.Fields(text)
	return nil
}

// Find returns the holder of an access token, or a denial.
func (a *OAuth) Find(ctx context.Context, token string) (Holder, *Denial) {
	bad := func(format string, args ...any) (Holder, *Denial) {
		return Holder{}, a.Challenge(BadToken(fmt.Sprintf(format, args...)))
	}
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil || len(parsed.Headers) != 1 {
		return bad("this is no signed access token that is accepted here")
	}
	header := parsed.Headers[0]
	if kind, _ := header.ExtraHeaders[jose.HeaderType].(string); !slices.Contains([]string{"", "jwt", "at+jwt", "application/at+jwt"}, strings.ToLower(kind)) {
		return bad("this kind of token is not accepted here")
	}
	// The issuer's own word says only which keys are to be tried.
	var said jwt.Claims
	if err := parsed.UnsafeClaimsWithoutVerification(&said); err != nil {
		return bad("the token's claims cannot be read")
	}
	keys := a.issuers[said.Issuer]
	if keys == nil {
		return bad("the token's issuer is not accepted here")
	}
	candidates, err := keys.find(ctx, header.KeyID, header.Algorithm)
	if err != nil {
		return Holder{}, &Denial{
			Status: http.StatusServiceUnavailable, Retry: keysRetry,
			Reason: "the keys of the authorization server cannot be had at present, and without them none of its tokens is accepted",
			Cause:  fmt.Errorf("fetch the keys of %s: %w", said.Issuer, err),
		}
	}
	var c claims
	err = errors.New("no key")
	for _, key := range candidates {
		if err = parsed.Claims(key, &c); err == nil {
			break
		}
	}
	switch {
	case err != nil:
		return bad("the token is not signed by a key of its issuer")
	case c.Expiry == nil:
		return bad("the token never expires")
	}
	err = c.ValidateWithLeeway(jwt.Expected{Issuer: said.Issuer, AnyAudience: jwt.Audience{a.o.Resource}, Time: time.Now()}, leeway)
	switch {
	case errors.Is(err, jwt.ErrInvalidAudience):
		return bad("the token is for another resource than %s", a.o.Resource)
	case errors.Is(err, jwt.ErrExpired):
		return bad("the token has expired")
	case err != nil:
		return bad("the token is not good: %v", err)
	}
	return a.holder(c)
}

func (a *OAuth) holder(c claims) (Holder, *Denial) {
	scopes := append(strings.Fields(c.Scope), c.Scp...)
	lacking := func(what string) (Holder, *Denial) {
		return Holder{}, a.Challenge(&Denial{Status: http.StatusForbidden, Code: "insufficient_scope", Reason: "forbidden: the token lacks the scope " + what})
	}
	for _, scope := range a.o.Scopes {
		if !slices.Contains(scopes, scope) {
			return lacking(scope)
		}
	}
	client := c.ClientID
	if client == "" {
		client = c.Azp
	}
	h := Holder{Name: c.Subject, Expires: c.Expiry.Time().Add(leeway), Narrow: len(a.o.Grants) > 0}
	if h.Name == "" {
		h.Name = client
	}
	if r := []rune(h.Name); len(r) > maxShown {
		h.Name = string(r[:maxShown]) + "…"
	}
	if h.Name == "" {
		return Holder{}, a.Challenge(BadToken("the token says neither whose it is nor which client's"))
	}
	for scope, grant := range a.o.Grants {
		if slices.Contains(scopes, scope) {
			h.Grants = append(h.Grants, grant)
		}
	}
	slices.Sort(h.Grants)
	h.Grants = slices.Compact(h.Grants)
	if h.Narrow && len(h.Grants) == 0 {
		return lacking("one of " + strings.Join(slices.Sorted(maps.Keys(a.o.Grants)), ", "))
	}
	// Another access token of the same person, client and grants is the same holder: sessions outlive the refresh of a token.
	id, err := json.Marshal([]any{c.Issuer, c.Subject, client, h.Grants})
	h.ID = "oauth " + string(id)
	if err != nil {
		return Holder{}, a.Challenge(BadToken("the token's claims cannot be read"))
	}
	return h, nil
}
