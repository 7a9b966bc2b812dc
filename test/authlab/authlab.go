// Package authlab is an OAuth 2.1 authorization server, and a gate that makes any MCP server on HTTP want its tokens. It is a real
// one, over HTTP: client registration (RFC 7591), PKCE (RFC 7636), resource indicators (RFC 8707), device authorization (RFC 8628),
// revocation (RFC 7009), iss (RFC 9207), refresh tokens that rotate and whose second use ends the whole login (RFC 9700). Only the
// person is missing: who asks is granted.
package authlab

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// TB is what the server needs of a test.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// Config is what the server does differently. The zero value is a good server.
type Config struct {
	Life           time.Duration // of access tokens; default: an hour
	Methods        []string      // code_challenge_methods_supported; default: S256
	Iss            string        // of the redirect; default: the issuer; "none" leaves it out
	State          string        // of the redirect; default: the one that was sent
	NoRegistration bool
	NoDevice       bool
	NoRefresh      bool
	NoRevocation   bool
	Documents      bool     // client metadata documents are supported, none is fetched
	Scopes         []string // scopes_supported
	AuthMethods    []string // token_endpoint_auth_methods_supported; default: none
	Deny           string   // answered instead of a code: an error
}

// Server is a running authorization server.
type Server struct {
	Issuer string
	config Config

	mu      sync.Mutex
	clients map[string]client
	codes   map[string]grant
	devices map[string]*device
	access  map[string]Token
	refresh map[string]string   // refresh token to family
	granted map[string][]string // scopes by family
	used    map[string]string   // refresh tokens that were used, to family
	ended   map[string]bool     // families
	counts  map[string]int
	forms   []url.Values
}

type client struct {
	secret    string
	redirects []string
}

type grant struct {
	client, redirect, challenge, resource string
	scopes                                []string
}

type device struct {
	grant
	user     string
	approved bool
}

// Token is what an access token is good for.
type Token struct {
	Client, Resource, Family string
	Scopes                   []string
	Expires                  time.Time
}

// Start starts a server that ends with the test.
func Start(t TB, c Config) *Server {
	t.Helper()
	if c.Life == 0 {
		c.Life = time.Hour
	}
	if c.Methods == nil {
		c.Methods = []string{"S256"}
	}
	if c.AuthMethods == nil {
		c.AuthMethods = []string{"none"}
	}
	s := &Server{
		config: c, clients: map[string]client{}, codes: map[string]grant{}, devices: map[string]*device{}, access: map[string]Token{},
		refresh: map[string]string{}, granted: map[string][]string{}, used: map[string]string{}, ended: map[string]bool{}, counts: map[string]int{},
	}
	mux := http.NewServeMux()
	for path, handle := range map[string]http.HandlerFunc{
		"GET /.well-known/oauth-authorization-server": s.metadata, "POST /register": s.register, "GET /authorize": s.authorize,
		"POST /token": s.token, "POST /device": s.device, "POST /revoke": s.revoke,
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.counts[r.URL.Path]++
			handle(w, r)
		})
	}
	web := httptest.NewServer(mux)
	t.Cleanup(web.Close)
	s.Issuer = web.URL
	return s
}

// Count is how often a path was asked for, such as /token.
func (s *Server) Count(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[path]
}

// Forms are the requests to the token endpoint, oldest first.
func (s *Server) Forms() []url.Values {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.forms)
}

// Reused reports whether a refresh token was used twice.
func (s *Server) Reused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ended) > 0
}

// Expire ends all access tokens.
func (s *Server) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.access)
}

// Revoke ends all logins.
func (s *Server) Revoke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.access)
	clear(s.refresh)
}

// Approve does what a person does who types a code of a device; false when there is no such code.
func (s *Server) Approve(userCode string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.devices {
		if d.user == userCode {
			d.approved = true
			return true
		}
	}
	return false
}

// Live returns the access tokens that are good now.
func (s *Server) Live() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for token, t := range s.access {
		if time.Now().Before(t.Expires) {
			list = append(list, token)
		}
	}
	return list
}

func answer(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value)
}

func refuse(w http.ResponseWriter, code, description string) {
	answer(w, http.StatusBadRequest, map[string]string{"error": code, "error_description": description})
}

func (s *Server) metadata(w http.ResponseWriter, _ *http.Request) {
	m := map[string]any{
		"issuer": s.Issuer, "authorization_endpoint": s.Issuer + "/authorize", "token_endpoint": s.Issuer + "/token", "jwks_uri": s.Issuer + "/keys",
		"response_types_supported": []string{"code"}, "code_challenge_methods_supported": s.config.Methods,
		"token_endpoint_auth_methods_supported": s.config.AuthMethods,
	}
	if s.config.Iss != "none" {
		m["authorization_response_iss_parameter_supported"] = true
	}
	if !s.config.NoRegistration {
		m["registration_endpoint"] = s.Issuer + "/register"
	}
	if !s.config.NoDevice {
		m["device_authorization_endpoint"] = s.Issuer + "/device"
	}
	if !s.config.NoRevocation {
		m["revocation_endpoint"] = s.Issuer + "/revoke"
	}
	if s.config.Scopes != nil {
		m["scopes_supported"] = s.config.Scopes
	}
	if s.config.Documents {
		m["client_id_metadata_document_supported"] = true
	}
	answer(w, http.StatusOK, m)
}

func (s *Server) register(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Redirects []string `json:"redirect_uris"`
		Method    string   `json:"token_endpoint_auth_method"`
		Type      string   `json:"application_type"`
	}
	body, _ := io.ReadAll(r.Body)
	if json.Unmarshal(body, &asked) != nil || !slices.Contains(s.config.AuthMethods, asked.Method) {
		refuse(w, "invalid_client_metadata", "the method is not supported")
		return
	}
	id, c := "client-"+rand.Text(), client{redirects: asked.Redirects}
	granted := map[string]any{"client_id": id, "redirect_uris": asked.Redirects, "token_endpoint_auth_method": asked.Method}
	if asked.Method != "none" {
		c.secret = rand.Text()
		granted["client_secret"], granted["client_secret_expires_at"] = c.secret, 0
	}
	s.clients[id] = c
	answer(w, http.StatusCreated, granted)
}

// Register registers a client by hand.
func (s *Server) Register(id, secret string, redirects ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients[id] = client{secret, redirects}
}

func (s *Server) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	c, ok := s.clients[q.Get("client_id")]
	if !ok && s.config.Documents && strings.HasPrefix(q.Get("client_id"), "https://") {
		c, ok = client{redirects: []string{q.Get("redirect_uri")}}, true
	}
	back, err := url.Parse(q.Get("redirect_uri"))
	if !ok || err != nil || !slices.Contains(c.redirects, back.String()) {
		http.Error(w, "unknown client or redirect address", http.StatusBadRequest)
		return
	}
	out := url.Values{"state": {q.Get("state")}}
	if s.config.State != "" {
		out.Set("state", s.config.State)
	}
	switch s.config.Iss {
	case "":
		out.Set("iss", s.Issuer)
	case "none":
	default:
		out.Set("iss", s.config.Iss)
	}
	switch {
	case s.config.Deny != "":
		out.Set("error", s.config.Deny)
	case q.Get("response_type") != "code" || q.Get("code_challenge") == "" || q.Get("code_challenge_method") != "S256":
		out.Set("error", "invalid_request")
	case q.Get("resource") == "":
		out.Set("error", "invalid_target")
	default:
		code := rand.Text()
		s.codes[code] = grant{q.Get("client_id"), back.String(), q.Get("code_challenge"), q.Get("resource"), strings.Fields(q.Get("scope"))}
		out.Set("code", code)
	}
	back.RawQuery = out.Encode()
	http.Redirect(w, r, back.String(), http.StatusFound)
}

// authenticate returns the client of a request for tokens; empty when it did not prove who it is.
func (s *Server) authenticate(r *http.Request) string {
	id, secret, basic := r.BasicAuth()
	if basic {
		id, _ = url.QueryUnescape(id)
		secret, _ = url.QueryUnescape(secret)
	} else {
		id, secret = r.PostForm.Get("client_id"), r.PostForm.Get("client_secret")
	}
	c, ok := s.clients[id]
	document := s.config.Documents && strings.HasPrefix(id, "https://")
	if !ok && !document || c.secret != secret {
		return ""
	}
	return id
}

func (s *Server) token(w http.ResponseWriter, r *http.Request) {
	if r.ParseForm() != nil {
		refuse(w, "invalid_request", "no form")
		return
	}
	s.forms = append(s.forms, r.PostForm)
	id := s.authenticate(r)
	if id == "" {
		answer(w, http.StatusUnauthorized, map[string]string{"error": "invalid_client"})
		return
	}
	f := r.PostForm
	switch f.Get("grant_type") {
	case "authorization_code":
		g, ok := s.codes[f.Get("code")]
		delete(s.codes, f.Get("code"))
		sum := sha256.Sum256([]byte(f.Get("code_verifier")))
		switch {
		case !ok || g.client != id || g.redirect != f.Get("redirect_uri") || g.resource != f.Get("resource"):
			refuse(w, "invalid_grant", "the code is not of this login")
		case g.challenge != base64.RawURLEncoding.EncodeToString(sum[:]):
			refuse(w, "invalid_grant", "the verifier does not fit the challenge")
		default:
			s.issue(w, id, g.resource, "family-"+rand.Text(), g.scopes)
		}
	case "refresh_token":
		token := f.Get("refresh_token")
		if family, ok := s.used[token]; ok { // a thief or a race: the whole login ends
			s.ended[family] = true
			for other, of := range s.refresh {
				if of == family {
					delete(s.refresh, other)
				}
			}
			for other, of := range s.access {
				if of.Family == family {
					delete(s.access, other)
				}
			}
		}
		family, ok := s.refresh[token]
		switch {
		case !ok:
			refuse(w, "invalid_grant", "the refresh token is not good")
		case f.Get("resource") == "":
			refuse(w, "invalid_target", "no resource")
		default:
			delete(s.refresh, token)
			s.used[token] = family
			s.issue(w, id, f.Get("resource"), family, nil)
		}
	case "urn:ietf:params:oauth:grant-type:device_code":
		d, ok := s.devices[f.Get("device_code")]
		switch {
		case !ok || d.client != id:
			refuse(w, "expired_token", "no such code")
		case !d.approved:
			refuse(w, "authorization_pending", "")
		default:
			delete(s.devices, f.Get("device_code"))
			s.issue(w, id, d.resource, "family-"+rand.Text(), d.scopes)
		}
	default:
		refuse(w, "unsupported_grant_type", "")
	}
}

func (s *Server) issue(w http.ResponseWriter, id, resource, family string, scopes []string) {
	if scopes == nil {
		scopes = s.granted[family]
	}
	s.granted[family] = scopes
	access := "access-" + rand.Text()
	s.access[access] = Token{id, resource, family, scopes, time.Now().Add(s.config.Life)}
	claims := base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"u1","email":"night@example.com"}`))
	out := map[string]any{
		"access_token": access, "token_type": "Bearer", "expires_in": max(1, int(s.config.Life/time.Second)), "id_token": "e30." + claims + ".x",
	}
	if len(scopes) > 0 {
		out["scope"] = strings.Join(scopes, " ")
	}
	if !s.config.NoRefresh {
		token := "refresh-" + rand.Text()
		s.refresh[token] = family
		out["refresh_token"] = token
	}
	answer(w, http.StatusOK, out)
}

func (s *Server) device(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	f := r.PostForm
	if _, ok := s.clients[f.Get("client_id")]; !ok || s.config.NoDevice || f.Get("resource") == "" {
		refuse(w, "invalid_client", "")
		return
	}
	code, user := rand.Text(), rand.Text()[:8]
	s.devices[code] = &device{grant: grant{client: f.Get("client_id"), resource: f.Get("resource"), scopes: strings.Fields(f.Get("scope"))}, user: user}
	answer(w, http.StatusOK, map[string]any{
		"device_code": code, "user_code": user, "verification_uri": s.Issuer + "/activate", "expires_in": 300, "interval": 1,
	})
}

func (s *Server) revoke(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	if s.authenticate(r) == "" {
		answer(w, http.StatusUnauthorized, map[string]string{"error": "invalid_client"})
		return
	}
	delete(s.refresh, r.PostForm.Get("token"))
	delete(s.access, r.PostForm.Get("token"))
	w.WriteHeader(http.StatusOK)
}

// Gate is how a protected server behaves.
type Gate struct {
	// Needs are the scopes that a request with this MCP method or tool needs: "tools/list", "tool:echo".
	Needs map[string]string
	// Open are methods that need no token: "initialize".
	Open []string
	// Metadata replaces the RFC 9728 document. Nil: a right one. Empty: there is none.
	Metadata map[string]any
	// Header replaces WWW-Authenticate, less its error: "Bearer". Empty: it names the metadata.
	Header string
	// Redirect answers every request with a token by a redirect to this address.
	Redirect string
	// Seen takes the Authorization header of every request. May be nil.
	Seen func(authorization string)
}

// Protect puts a gate in front of the MCP server at upstream, which ends with the test, and returns the URL of its endpoint.
func (s *Server) Protect(t TB, upstream string, g Gate) string {
	t.Helper()
	target, err := url.Parse(upstream)
	if err != nil {
		t.Fatalf("upstream: %v", err)
	}
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.URL.Path = target.Scheme, target.Host, target.Path
			r.Out.Header.Del("Authorization") // no server passes its clients' tokens on
		},
	}
	web := httptest.NewUnstartedServer(nil)
	own := ""
	web.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/.well-known/oauth-protected-resource") {
			switch {
			case g.Metadata != nil && len(g.Metadata) == 0:
				http.NotFound(w, r)
			case g.Metadata != nil:
				answer(w, http.StatusOK, g.Metadata)
			default:
				answer(w, http.StatusOK, map[string]any{"resource": own + "/mcp", "authorization_servers": []string{s.Issuer}})
			}
			return
		}
		if r.URL.Path != "/mcp" {
			http.NotFound(w, r)
			return
		}
		s.guard(w, r, own+"/mcp", g, proxy)
	})
	web.Start()
	own = web.URL
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	return own + "/mcp"
}

func (s *Server) guard(w http.ResponseWriter, r *http.Request, resource string, g Gate, next http.Handler) {
	if g.Seen != nil {
		g.Seen(r.Header.Get("Authorization"))
	}
	body, _ := io.ReadAll(http.MaxBytesReader(w, r.Body, 32<<20))
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	var m struct {
		Method string `json:"method"`
		Params struct {
			Name string `json:"name"`
		} `json:"params"`
	}
	_ = json.Unmarshal(body, &m) // a GET has none
	text, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	needs := g.Needs[m.Method]
	if tool := g.Needs["tool:"+m.Params.Name]; m.Method == "tools/call" && tool != "" {
		needs = tool
	}
	s.mu.Lock()
	token, known := s.access[text]
	s.mu.Unlock()
	header := g.Header
	if header == "" {
		header = fmt.Sprintf(`Bearer resource_metadata="%s/.well-known/oauth-protected-resource/mcp"`, strings.TrimSuffix(resource, "/mcp"))
	}
	if needs != "" {
		header += fmt.Sprintf(`, scope="%s"`, needs)
	}
	refused := func(status int, code string) {
		if code != "" {
			header += fmt.Sprintf(`, error="%s", error_description="for %s"`, code, text)
		}
		w.Header().Set("WWW-Authenticate", header)
		w.WriteHeader(status)
	}
	switch {
	case slices.Contains(g.Open, m.Method):
		next.ServeHTTP(w, r)
	case !bearer:
		refused(http.StatusUnauthorized, "")
	case g.Redirect != "":
		http.Redirect(w, r, g.Redirect, http.StatusTemporaryRedirect)
	case !known || time.Now().After(token.Expires) || token.Resource != resource:
		refused(http.StatusUnauthorized, "invalid_token")
	case needs != "" && !slices.Contains(token.Scopes, needs):
		refused(http.StatusForbidden, "insufficient_scope")
	default:
		next.ServeHTTP(w, r)
	}
}

// Browse opens an address as a browser does whose person agrees to everything, and returns the address at which it ends, the
// redirect back to the program. follow says whether to go there as well.
func Browse(address string, follow bool) (string, error) {
	c := &http.Client{Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := c.Get(address)
	if err != nil {
		return "", err
	}
	response.Body.Close()
	back := response.Header.Get("Location")
	if back == "" {
		return "", fmt.Errorf("HTTP status %d and no redirect", response.StatusCode)
	}
	if follow {
		response, err := c.Get(back)
		if err != nil {
			return "", err
		}
		response.Body.Close()
	}
	return back, nil
}
