package front

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"nightporter/internal/mcp/access"
	"nightporter/internal/mcp/runtime"
	"nightporter/test/lab"
)

// login is an authorization server with one key.
type login struct {
	t   *testing.T
	web *httptest.Server
	key jose.JSONWebKey
}

func newLogin(t *testing.T) *login {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	l := &login{t: t, key: jose.JSONWebKey{Key: private, KeyID: "one"}}
	l.web = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/keys") {
			_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{l.key.Public()}})
			return
		}
		fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, l.web.URL, l.web.URL+"/keys")
	}))
	t.Cleanup(l.web.Close)
	return l
}

func (l *login) token(subject, scope string, good time.Duration) string {
	l.t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: l.key}, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(map[string]any{
		"iss": l.web.URL, "aud": "http://127.0.0.1/mcp", "sub": subject, "scope": scope, "client_id": "app", "exp": time.Now().Add(good).Unix(),
	}).Serialize()
	if err != nil {
		l.t.Fatal(err)
	}
	return token
}

// What a client does that knows nothing but the gateway's address: it asks, is told where tokens are, and comes back with one.
func TestAccessTokensOfAnAuthorizationServerAreTakenForWhatTheirScopesGive(t *testing.T) {
	l := newLogin(t)
	oauth, err := access.NewOAuth(access.OAuthOptions{Resource: "http://127.0.0.1/mcp", Issuers: []string{l.web.URL}, Grants: map[string]string{"mcp:a": "a", "mcp:b": "b"}})
	if err != nil {
		t.Fatal(err)
	}
	h := newHouse(t, func(o *Options) {
		o.OAuth = oauth
		o.Narrow = func(h access.Holder) runtime.Grant { return runtime.Servers(h.Grants) }
	}, lab.Config{Name: "a", Tools: lab.Tools("echo")}, lab.Config{Name: "b", Tools: lab.Tools("echo")})
	refused := h.do(http.MethodPost, h.url, "", initialize, nil)
	where := regexp.MustCompile(`resource_metadata="http://127\.0\.0\.1(/[^"]*)"`).FindStringSubmatch(refused.Header.Get("WWW-Authenticate"))
	if refused.StatusCode != http.StatusUnauthorized || where == nil {
		t.Fatalf("%s %s", refused.Status, refused.Header.Get("WWW-Authenticate"))
	}
	metadata := h.do(http.MethodGet, strings.TrimSuffix(h.url, "/mcp")+where[1], "", "", map[string]string{"Origin": "https://any.example"})
	var m struct {
		Servers []string `json:"authorization_servers"`
	}
	if err := json.NewDecoder(metadata.Body).Decode(&m); err != nil || len(m.Servers) != 1 || m.Servers[0] != l.web.URL || metadata.Header.Get("Access-Control-Allow-Origin") != "*" {
		t.Fatalf("%s %+v %v", metadata.Status, m, err)
	}
	alice, bob := l.token("alice", "mcp:a", time.Hour), l.token("bob", "mcp:a", time.Hour)
	session := h.session(h.url, alice)
	if _, body := h.post(h.url, alice, listTools, session); !strings.Contains(body, "a__echo") || strings.Contains(body, "b__echo") {
		t.Errorf("alice sees %s", body)
	}
	h.post(h.url, alice, callOf("2", "a__echo"), session)
	if c := <-h.calls; c.Client != "token alice: client x 1" {
		t.Errorf("recorded as of %s", c.Client)
	}
	if status, _ := h.post(h.url, l.token("alice", "mcp:a", 2*time.Hour), listTools, session); status != http.StatusOK {
		t.Errorf("with a token that was refreshed: %d", status)
	}
	for name, token := range map[string]string{"another person's": bob, "with other scopes": l.token("alice", "mcp:a mcp:b", time.Hour)} {
		if status, _ := h.post(h.url, token, listTools, session); status != http.StatusNotFound {
			t.Errorf("the session with a token %s: %d", name, status)
		}
	}
	if status, _ := h.post(h.url, l.token("alice", "openid", time.Hour), listTools, session); status != http.StatusForbidden {
		t.Errorf("without a scope of ours: %d", status)
	}
	if status, _ := h.post(h.url, h.token(access.Token{Name: "static", Servers: []string{"a"}}), initialize, nil); status != http.StatusOK {
		t.Errorf("a token of the gateway's own: %d", status)
	}
	// A stream that was opened with a token is not there for longer than the token: with its leeway that is 30 s.
	h.ended(h.do(http.MethodGet, h.url, l.token("alice", "mcp:a", -28*time.Second), "", session))
}
