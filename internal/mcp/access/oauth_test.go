package access

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

func ctx() context.Context { return context.Background() }

const resource = "https://mcp.example.com/mcp"

// server is an authorization server: metadata and keys over HTTP, and tokens that it signs.
type server struct {
	t   *testing.T
	web *httptest.Server

	mu      sync.Mutex
	keys    []jose.JSONWebKey // private
	broken  bool              // answers 500
	openID  bool              // has OpenID Connect's metadata alone
	fetches atomic.Int64      // of keys
}

func authorizationServer(t *testing.T) *server {
	t.Helper()
	s := &server{t: t}
	s.rotate("first")
	mux := http.NewServeMux()
	metadata := func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, s.issuer(), s.web.URL+"/keys")
	}
	mux.HandleFunc("/.well-known/oauth-authorization-server/tenant", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.openID {
			http.NotFound(w, r)
			return
		}
		metadata(w, r)
	})
	mux.HandleFunc("/tenant/.well-known/openid-configuration", metadata)
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		s.fetches.Add(1)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.broken {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		keys := []any{map[string]string{"kty": "of the future", "kid": "x"}}
		for _, key := range s.keys {
			keys = append(keys, key.Public())
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": keys})
	})
	s.web = httptest.NewServer(mux)
	t.Cleanup(s.web.Close)
	return s
}

func (s *server) issuer() string { return s.web.URL + "/tenant" }

// rotate gives the server one new key in place of what it had.
func (s *server) rotate(kid string) {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = []jose.JSONWebKey{{Key: key, KeyID: kid, Algorithm: string(jose.ES256), Use: "sig"}}
}

func (s *server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// claimsOf are those of a good token, with changes.
func (s *server) claimsOf(changes map[string]any) map[string]any {
	c := map[string]any{
		"iss": s.issuer(), "aud": resource, "sub": "alice", "client_id": "app", "scope": "mcp other",
		"exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(),
	}
	for key, value := range changes {
		if value == nil {
			delete(c, key)
		} else {
			c[key] = value
		}
	}
	return c
}

func (s *server) token(changes map[string]any) string {
	s.t.Helper()
	return sign(s.t, jose.SigningKey{Algorithm: jose.ES256, Key: s.keys[0]}, "at+jwt", s.claimsOf(changes))
}

func sign(t *testing.T, key jose.SigningKey, kind string, claims any) string {
	t.Helper()
	signer, err := jose.NewSigner(key, (&jose.SignerOptions{}).WithType(jose.ContentType(kind)))
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func (s *server) resourceServer(change func(*OAuthOptions)) *OAuth {
	s.t.Helper()
	o := OAuthOptions{Resource: resource, Issuers: []string{s.issuer()}, Scopes: []string{"mcp"}}
	if change != nil {
		change(&o)
	}
	a, err := NewOAuth(o)
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

func TestOnlyAccessTokensThatAreGoodInAllPointsAreTaken(t *testing.T) {
	s := authorizationServer(t)
	a := s.resourceServer(nil)
	h, denial := a.Find(ctx(), s.token(nil))
	if denial != nil || h.Name != "alice" || h.Narrow {
		t.Fatalf("%+v %v", h, denial)
	}
	other := authorizationServer(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	public, err := s.keys[0].Public().MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for name, c := range map[string]struct {
		token  string
		status int
		code   string
	}{
		"expired":                                {s.token(map[string]any{"exp": now.Add(-time.Minute).Unix()}), 401, "invalid_token"},
		"never expires":                          {s.token(map[string]any{"exp": nil}), 401, "invalid_token"},
		"not good yet":                           {s.token(map[string]any{"nbf": now.Add(time.Minute).Unix()}), 401, "invalid_token"},
		"another audience":                       {s.token(map[string]any{"aud": resource + "/"}), 401, "invalid_token"},
		"no audience":                            {s.token(map[string]any{"aud": nil}), 401, "invalid_token"},
		"its issuer's audience":                  {s.token(map[string]any{"aud": []string{s.issuer()}}), 401, "invalid_token"},
		"another issuer":                         {other.token(nil), 401, "invalid_token"},
		"another's key":                          {other.token(map[string]any{"iss": s.issuer()}), 401, "invalid_token"},
		"no issuer":                              {s.token(map[string]any{"iss": nil}), 401, "invalid_token"},
		"nobody's":                               {s.token(map[string]any{"sub": nil, "client_id": nil}), 401, "invalid_token"},
		"without the scope":                      {s.token(map[string]any{"scope": "mcpx"}), 403, "insufficient_scope"},
		"no scopes":                              {s.token(map[string]any{"scope": nil}), 403, "insufficient_scope"},
		"signed with a public key as a password": {sign(t, jose.SigningKey{Algorithm: jose.HS256, Key: public}, "at+jwt", s.claimsOf(nil)), 401, "invalid_token"},
		"of another algorithm":                   {sign(t, jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: rsaKey, KeyID: "first"}}, "at+jwt", s.claimsOf(nil)), 401, "invalid_token"},
		"unsigned":                               {"eyJhbGciOiJub25lIiwidHlwIjoiYXQrand0In0." + strings.Split(s.token(nil), ".")[1] + ".", 401, "invalid_token"},
		"of another kind":                        {sign(t, jose.SigningKey{Algorithm: jose.ES256, Key: s.keys[0]}, "logout+jwt", s.claimsOf(nil)), 401, "invalid_token"},
		"no token":                               {"np_ABC", 401, "invalid_token"},
		"changed":                                {swap(s.token(nil), s.token(map[string]any{"sub": "mallory"})), 401, "invalid_token"},
	} {
		h, denial := a.Find(ctx(), c.token)
		if denial == nil {
			t.Errorf("%s: taken as %+v", name, h)
			continue
		}
		if denial.Status != c.status || denial.Code != c.code {
			t.Errorf("%s: %d %s (%s)", name, denial.Status, denial.Code, denial.Reason)
		}
		w := httptest.NewRecorder()
		denial.Write(w)
		challenge := w.Header().Get("WWW-Authenticate")
		for _, part := range []string{`error="` + c.code + `"`, `scope="mcp"`, `resource_metadata="https://mcp.example.com/.well-known/oauth-protected-resource/mcp"`} {
			if !strings.Contains(challenge, part) {
				t.Errorf("%s: %s is not in %s", name, part, challenge)
			}
		}
		if strings.Contains(w.Body.String()+challenge, c.token) {
			t.Errorf("%s: the token is in the answer", name)
		}
	}
	for name, changes := range map[string]map[string]any{
		"scp as a list":     {"scope": nil, "scp": []string{"x", "mcp"}},
		"scp as a text":     {"scope": nil, "scp": "x mcp"},
		"several audiences": {"aud": []string{"https://else.example", resource}},
		"a clock's leeway":  {"exp": now.Add(-5 * time.Second).Unix(), "nbf": now.Add(5 * time.Second).Unix()},
		"only a client":     {"sub": nil},
	} {
		if _, denial := a.Find(ctx(), s.token(changes)); denial != nil {
			t.Errorf("%s: %v", name, denial)
		}
	}
}

func TestLongSubjectsAreShownCutAndToldApart(t *testing.T) {
	s := authorizationServer(t)
	a := s.resourceServer(nil)
	long := strings.Repeat("x", 1000)
	first, denial := a.Find(ctx(), s.token(map[string]any{"sub": long + "1"}))
	second, _ := a.Find(ctx(), s.token(map[string]any{"sub": long + "2"}))
	if denial != nil || len(first.Name) > 200 || first.ID == second.ID {
		t.Errorf("%v: %q, %q", denial, first.Name, first.ID)
	}
}

// swap is the first token with the second one's claims.
func swap(first, second string) string {
	a, b := strings.Split(first, "."), strings.Split(second, ".")
	return a[0] + "." + b[1] + "." + a[2]
}

func TestEveryAlgorithmThatIsListedWorks(t *testing.T) {
	s := authorizationServer(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	var keys []jose.JSONWebKey
	for _, alg := range algorithms {
		var key crypto.PrivateKey = rsaKey
		switch alg {
		case jose.ES256, jose.ES384, jose.ES512:
			curve := map[jose.SignatureAlgorithm]elliptic.Curve{jose.ES256: elliptic.P256(), jose.ES384: elliptic.P384(), jose.ES512: elliptic.P521()}[alg]
			if key, err = ecdsa.GenerateKey(curve, rand.Reader); err != nil {
				t.Fatal(err)
			}
		case jose.EdDSA:
			_, made, err := ed25519Key()
			if err != nil {
				t.Fatal(err)
			}
			key = made
		}
		keys = append(keys, jose.JSONWebKey{Key: key, KeyID: string(alg)})
	}
	s.set(func() { s.keys = keys })
	a := s.resourceServer(nil)
	for i, alg := range algorithms {
		if _, denial := a.Find(ctx(), sign(t, jose.SigningKey{Algorithm: alg, Key: keys[i]}, "JWT", s.claimsOf(nil))); denial != nil {
			t.Errorf("%s: %v", alg, denial)
		}
	}
}

func TestScopesGiveGrantsAndNothingElse(t *testing.T) {
	s := authorizationServer(t)
	a := s.resourceServer(func(o *OAuthOptions) {
		o.Scopes, o.Grants = nil, map[string]string{"mcp:read": "reading", "mcp:write": "writing"}
	})
	h, denial := a.Find(ctx(), s.token(map[string]any{"scope": "mcp:read"}))
	if denial != nil || !h.Narrow || fmt.Sprint(h.Grants) != "[reading]" {
		t.Errorf("%+v %v", h, denial)
	}
	again, _ := a.Find(ctx(), s.token(map[string]any{"scope": "mcp:read openid", "jti": "x"}))
	more, _ := a.Find(ctx(), s.token(map[string]any{"scope": "mcp:read mcp:write"}))
	someone, _ := a.Find(ctx(), s.token(map[string]any{"scope": "mcp:read", "sub": "bob"}))
	program, _ := a.Find(ctx(), s.token(map[string]any{"scope": "mcp:read", "client_id": "other"}))
	if again.ID != h.ID {
		t.Error("another token of the same person, client and grants is another holder")
	}
	for _, other := range []Holder{more, someone, program} {
		if other.ID == h.ID || other.ID == "" {
			t.Errorf("%+v is the same holder", other)
		}
	}
	if _, denial := a.Find(ctx(), s.token(map[string]any{"scope": "mcp"})); denial == nil || denial.Status != http.StatusForbidden {
		t.Errorf("without a scope that gives something: %v", denial)
	}
}

func TestANewKeyIsFoundAndUnknownOnesDoNotFloodTheIssuer(t *testing.T) {
	s := authorizationServer(t)
	a := s.resourceServer(nil)
	if _, denial := a.Find(ctx(), s.token(nil)); denial != nil {
		t.Fatal(denial)
	}
	old := s.token(nil)
	s.rotate("second")
	fresh := s.token(nil)
	keys := a.issuers[s.issuer()]
	wind := func(d time.Duration) { // the clock, for the keys
		keys.mu.Lock()
		defer keys.mu.Unlock()
		keys.tried, keys.fetched = keys.tried.Add(-d), keys.fetched.Add(-d)
	}
	before := s.fetches.Load()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, denial := a.Find(ctx(), fresh); denial == nil || denial.Status != http.StatusUnauthorized {
				t.Errorf("a key that is not known: %v", denial)
			}
		})
	}
	wg.Wait()
	if n := s.fetches.Load() - before; n > 0 {
		t.Errorf("%d fetches within %v of the last", n, minRefresh)
	}
	wind(minRefresh)
	for range 50 {
		wg.Go(func() {
			if _, denial := a.Find(ctx(), fresh); denial != nil {
				t.Errorf("the new key: %v", denial)
			}
		})
	}
	wg.Wait()
	if n := s.fetches.Load() - before; n != 1 {
		t.Errorf("%d fetches for a new key", n)
	}
	if _, denial := a.Find(ctx(), old); denial == nil {
		t.Error("a key that was taken back is good")
	}
}

func TestWithoutKeysNoTokenIsTaken(t *testing.T) {
	s := authorizationServer(t)
	s.set(func() { s.broken = true })
	a := s.resourceServer(nil)
	_, denial := a.Find(ctx(), s.token(nil))
	if denial == nil || denial.Status != http.StatusServiceUnavailable || denial.Retry == 0 || denial.Cause == nil || strings.Contains(denial.Reason, s.web.URL) {
		t.Fatalf("%+v", denial)
	}
	keys := a.issuers[s.issuer()]
	wind := func(d time.Duration) {
		keys.mu.Lock()
		defer keys.mu.Unlock()
		keys.tried = keys.tried.Add(-d)
		if !keys.fetched.IsZero() {
			keys.fetched = keys.fetched.Add(-d)
		}
	}
	s.set(func() { s.broken = false })
	wind(minRefresh)
	token := s.token(nil)
	if _, denial := a.Find(ctx(), token); denial != nil {
		t.Fatalf("after the server came back: %v", denial)
	}
	// Keys that are known outlive a failure of their server, for a while.
	s.set(func() { s.broken = true })
	wind(freshFor)
	if _, denial := a.Find(ctx(), token); denial != nil {
		t.Errorf("shortly after it failed: %v", denial)
	}
	wind(staleFor)
	if _, denial := a.Find(ctx(), token); denial == nil || denial.Status != http.StatusServiceUnavailable {
		t.Errorf("long after it failed: %v", denial)
	}
}

func TestTheKeysOfOpenIDConnectAreFoundAndAnothersMetadataIsNot(t *testing.T) {
	s := authorizationServer(t)
	s.set(func() { s.openID = true })
	if _, denial := s.resourceServer(nil).Find(ctx(), s.token(nil)); denial != nil {
		t.Error(denial)
	}
	liar := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, s.issuer(), s.web.URL+"/keys")
	}))
	t.Cleanup(liar.Close)
	a := s.resourceServer(func(o *OAuthOptions) { o.Issuers = []string{liar.URL} })
	if _, denial := a.Find(ctx(), s.token(map[string]any{"iss": liar.URL})); denial == nil || !strings.Contains(denial.Cause.Error(), "another issuer") {
		t.Errorf("%+v", denial)
	}
	moved := httptest.NewServer(http.RedirectHandler(s.web.URL+"/keys", http.StatusFound))
	t.Cleanup(moved.Close)
	a = s.resourceServer(func(o *OAuthOptions) { o.JWKS = moved.URL })
	if _, denial := a.Find(ctx(), s.token(nil)); denial == nil || denial.Status != http.StatusServiceUnavailable {
		t.Errorf("a redirect was followed: %+v", denial)
	}
}

func TestAddressesWithoutTLSAreRefused(t *testing.T) {
	good := OAuthOptions{Resource: resource, Issuers: []string{"https://i.example"}}
	if _, err := NewOAuth(good); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*OAuthOptions){
		"issuer":     func(o *OAuthOptions) { o.Issuers = []string{"http://i.example"} },
		"no issuer":  func(o *OAuthOptions) { o.Issuers = nil },
		"resource":   func(o *OAuthOptions) { o.Resource = "http://mcp.example.com/mcp" },
		"a fragment": func(o *OAuthOptions) { o.Resource += "#x" },
		"keys":       func(o *OAuthOptions) { o.JWKS = "http://i.example/keys" },
		"a file":     func(o *OAuthOptions) { o.JWKS = "file:///keys" },
		"several for one key": func(o *OAuthOptions) {
			o.Issuers = append(o.Issuers, "https://j.example")
			o.JWKS = "https://i.example/keys"
		},
	} {
		o := good
		change(&o)
		if _, err := NewOAuth(o); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func TestMetadataSaysWhereTokensAre(t *testing.T) {
	s := authorizationServer(t)
	w := httptest.NewRecorder()
	s.resourceServer(nil).Metadata().ServeHTTP(w, httptest.NewRequest(http.MethodGet, MetadataPath, nil))
	var m struct {
		Resource string
		Servers  []string `json:"authorization_servers"`
		Scopes   []string `json:"scopes_supported"`
		Methods  []string `json:"bearer_methods_supported"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &m); err != nil {
		t.Fatal(err)
	}
	if m.Resource != resource || fmt.Sprint(m.Servers, m.Scopes, m.Methods) != fmt.Sprintf("[%s] [mcp] [header]", s.issuer()) {
		t.Errorf("%s", w.Body)
	}
}

func FuzzAccessToken(f *testing.F) {
	f.Add("a.b.c")
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Add("eyJhbGciOiJFUzI1NiIsImtpZCI6ImZpcnN0In0.eyJpc3MiOiJodHRwczovL2kuZXhhbXBsZSJ9.AAAA")
	a, err := NewOAuth(OAuthOptions{Resource: resource, Issuers: []string{"https://i.example"}})
	if err != nil {
		f.Fatal(err)
	}
	keys := a.issuers["https://i.example"]
	keys.fetched, keys.tried = time.Now(), time.Now().Add(time.Hour) // none, and none are fetched
	f.Fuzz(func(t *testing.T, token string) {
		if h, denial := a.Find(ctx(), token); denial == nil {
			t.Errorf("%q is taken as %+v", token, h)
		}
	})
}

func ed25519Key() (ed25519.PublicKey, ed25519.PrivateKey, error) {
	return ed25519.GenerateKey(rand.Reader)
}
