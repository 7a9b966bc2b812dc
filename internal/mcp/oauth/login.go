package oauth

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"nightporter/internal/secret"
)

// Flow is how a person grants access.
type Flow string

const (
	Auto    Flow = ""        // the first of those that can work here
	Browser Flow = "browser" // on this machine
	Paste   Flow = "paste"   // in a browser anywhere; the address that it ends at is pasted here
	Device  Flow = "device"  // in a browser anywhere, by typing a code (RFC 8628)
)

// loginPatience is how long a person may take: as in Codex (facts/codex-runtime.md, section 7).
const loginPatience = 5 * time.Minute

// LoginOptions are how to reach the person.
type LoginOptions struct {
	Flow   Flow
	Scopes []string // asked for instead of all others; nil: those of the definition, the server's challenge, its metadata
	// Open shows a page in a browser of this machine. Nil: there is none.
	Open func(ctx context.Context, address string) error
	// Ask reads the line that a person pastes. Nil: nobody can. It may go on after its context has ended.
	Ask func(ctx context.Context) (string, error)
	// Say tells of progress.
	Say func(format string, args ...any)
}

// Login logs in to the server, and replaces the login that there may be. What it returns is in the store.
func (s *Store) Login(ctx context.Context, server Server, o LoginOptions) (*Account, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, loginPatience, fmt.Errorf("nobody logged in within %v", loginPatience))
	defer cancel()
	a, err := s.login(ctx, server, o)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return a, err
}

func (s *Store) login(ctx context.Context, server Server, o LoginOptions) (*Account, error) {
	before, err := s.Account(server)
	if err != nil {
		return nil, err
	}
	if before == nil {
		before = &Account{}
	}
	var wanted Challenge
	if before.Wanted != nil {
		wanted = *before.Wanted
	}
	o.Say("looking for the authorization server of %s", server.Name)
	d, err := server.discover(ctx, wanted)
	if err != nil {
		return nil, err
	}
	o.Say("its authorization server is %s", d.meta.Issuer)
	flow, err := s.flow(ctx, server, d, o)
	if err != nil {
		return nil, err
	}
	l := &attempt{store: s, server: server, d: d, o: o, flow: flow, scopes: scopes(server, d, before, wanted, o)}
	var token *oauth2.Token
	if flow == Device {
		token, err = l.device(ctx)
	} else {
		token, err = l.code(ctx)
	}
	if err != nil {
		return nil, err
	}
	return l.save(ctx, token)
}

// flow picks the way.
func (s *Store) flow(ctx context.Context, server Server, d *discovered, o LoginOptions) (Flow, error) {
	if o.Flow == Device || o.Flow == Auto && o.Open == nil {
		if err := server.findDevice(ctx, d); err != nil {
			return "", err
		}
	}
	switch {
	case o.Flow == Device && d.device == "":
		return "", fmt.Errorf("the authorization server %s has no device authorization; use --paste", d.meta.Issuer)
	case o.Flow == Paste && o.Ask == nil:
		return "", errors.New("nothing can be pasted: there is no standard input")
	case o.Flow != Auto:
		return o.Flow, nil
	case o.Open != nil:
		return Browser, nil
	case d.device != "":
		return Device, nil
	case o.Ask != nil:
		return Paste, nil
	}
	return "", errors.New("there is no browser here and nobody at a terminal; use --paste and give the address on standard input, or --browser")
}

// scopes are what to ask for (specification, "Scope Selection Strategy"): what the operator says, else what the server's refusal
// named, else what its metadata does. For a refusal for want of scopes, those that there were are asked for again.
func scopes(server Server, d *discovered, before *Account, wanted Challenge, o LoginOptions) []string {
	if o.Scopes != nil {
		return o.Scopes
	}
	list := server.Scopes
	stepUp := wanted.Error == insufficientScope && before.Issuer == d.meta.Issuer
	if list == nil {
		if list = wanted.Scopes; list == nil {
			list = d.scopes
		}
		// OpenID providers give a refresh token to who asks for this (SEP-2207).
		if slices.Contains(d.meta.ScopesSupported, offlineAccess) {
			list = union(list, offlineAccess)
		}
	}
	if stepUp {
		list = union(before.Scopes, union(list, wanted.Scopes...)...)
	}
	return list
}

// attempt is one login in progress.
type attempt struct {
	store  *Store
	server Server
	d      *discovered
	o      LoginOptions
	flow   Flow
	scopes []string
	client *registration
}

// The grants and the ways in which a client proves who it is.
const (
	offlineAccess = "offline_access"

	grantCode    = "authorization_code"
	grantRefresh = "refresh_token"
	grantDevice  = "urn:ietf:params:oauth:grant-type:device_code"

	clientSecretBasic = "client_secret_basic"
	clientSecretPost  = "client_secret_post"
	methodNone        = "none"
)

// method is how a client with or without a secret proves who it is.
func (l *attempt) method(hasSecret bool) string {
	if !hasSecret {
		return methodNone
	}
	supported := l.d.meta.TokenEndpointAuthMethodsSupported
	if slices.Contains(supported, clientSecretPost) && !slices.Contains(supported, clientSecretBasic) {
		return clientSecretPost
	}
	return clientSecretBasic // the default of RFC 8414
}

// register finds the client: the configured one, one with a metadata document, one that is registered now (specification, "Client
// Registration Approaches"). redirect is empty where none is needed.
func (l *attempt) register(ctx context.Context, redirect string) error {
	id, meta := l.server.ClientID, l.d.meta
	document := strings.HasPrefix(id, "https://") && l.server.ClientSecret.Empty()
	if id != "" && (!document || meta.ClientIDMetadataDocumentSupported) {
		clientSecret := l.server.ClientSecret.Reveal()
		l.client = &registration{Issuer: meta.Issuer, ClientID: id, Secret: clientSecret, Method: l.method(clientSecret != "")}
		return nil
	}
	if have := l.store.registration(meta.Issuer); have != nil && (redirect == "" || have.Redirect == redirect) && (l.flow != Device || slices.Contains(have.Grants, grantDevice)) {
		l.client = have
		return nil
	}
	if meta.RegistrationEndpoint == "" {
		return fmt.Errorf("the authorization server %s registers no clients by itself; register one there by hand and set mcp_servers.%s.oauth.client_id", meta.Issuer, l.server.Name)
	}
	l.o.Say("registering as a client of %s", meta.Issuer)
	ask := &oauthex.ClientRegistrationMetadata{
		ClientName: "Nightporter", ApplicationType: "native", ResponseTypes: []string{"code"},
		GrantTypes: []string{grantCode}, TokenEndpointAuthMethod: clientSecretBasic,
	}
	if redirect != "" {
		ask.RedirectURIs = []string{redirect}
	}
	supports := func(grant string) bool {
		return len(meta.GrantTypesSupported) == 0 || slices.Contains(meta.GrantTypesSupported, grant)
	}
	if supports(grantRefresh) {
		ask.GrantTypes = append(ask.GrantTypes, grantRefresh)
	}
	if l.flow == Device {
		ask.GrantTypes = append(ask.GrantTypes, grantDevice)
	}
	for _, method := range []string{methodNone, clientSecretBasic, clientSecretPost} {
		if slices.Contains(meta.TokenEndpointAuthMethodsSupported, method) {
			ask.TokenEndpointAuthMethod = method
			break
		}
	}
	got, err := oauthex.RegisterClient(ctx, meta.RegistrationEndpoint, ask, client(ctx))
	if err != nil {
		var refused *oauthex.ClientRegistrationError
		if errors.As(err, &refused) {
			return fmt.Errorf("register as a client of %s: it refused: %s: %s", meta.Issuer, words(refused.ErrorCode), words(refused.ErrorDescription))
		}
		// Its text may quote the answer, and the answer a secret.
		text, _, _ := strings.Cut(err.Error(), "(")
		return fmt.Errorf("register as a client of %s: %s", meta.Issuer, words(text))
	}
	l.client = &registration{
		Issuer: meta.Issuer, ClientID: got.ClientID, Secret: got.ClientSecret, Redirect: redirect, Grants: ask.GrantTypes,
		Method: cmp.Or(got.TokenEndpointAuthMethod, ask.TokenEndpointAuthMethod), Expires: got.ClientSecretExpiresAt,
	}
	if got.ClientSecret == "" {
		l.client.Method = methodNone
	}
	return l.store.register(l.client)
}

func (l *attempt) config(redirect string) *oauth2.Config {
	c := &oauth2.Config{
		ClientID: l.client.ClientID, ClientSecret: l.client.Secret, RedirectURL: redirect, Scopes: l.scopes,
		Endpoint: oauth2.Endpoint{
			AuthURL: l.d.meta.AuthorizationEndpoint, TokenURL: l.d.meta.TokenEndpoint, DeviceAuthURL: l.d.device, AuthStyle: oauth2.AuthStyleInParams,
		},
	}
	if l.client.Method == clientSecretBasic && l.client.Secret != "" {
		c.Endpoint.AuthStyle = oauth2.AuthStyleInHeader
	}
	return c
}

// code is the authorization code flow.
func (l *attempt) code(ctx context.Context) (*oauth2.Token, error) {
	if l.d.meta.AuthorizationEndpoint == "" {
		return nil, fmt.Errorf("the authorization server %s has no authorization endpoint", l.d.meta.Issuer)
	}
	verifier, state := oauth2.GenerateVerifier(), rand.Text()
	back, err := l.listen(ctx, state)
	if err != nil {
		return nil, err
	}
	defer back.close()
	if err := l.register(ctx, back.address); err != nil {
		return nil, err
	}
	cfg := l.config(back.address)
	resource := oauth2.SetAuthURLParam("resource", l.d.resource)
	page := cfg.AuthCodeURL(state, oauth2.S256ChallengeOption(verifier), resource)
	params, err := l.consent(ctx, page, state, back)
	if err != nil {
		return nil, err
	}
	if err := l.judge(params); err != nil {
		return nil, err
	}
	l.o.Say("exchanging the code for tokens")
	token, err := cfg.Exchange(context.WithValue(ctx, oauth2.HTTPClient, client(ctx)), params.Get("code"), oauth2.VerifierOption(verifier), resource)
	return token, l.refused(err)
}

// consent sends the person to the authorization server and waits for what comes back.
func (l *attempt) consent(ctx context.Context, page, state string, back *listener) (url.Values, error) {
	l.o.Say("open this address in a browser to log in: %s", page)
	if l.flow == Browser && l.o.Open != nil {
		if err := l.o.Open(ctx, page); err != nil {
			l.o.Say("no browser could be opened (%v): open the address yourself, on this machine", err)
		}
	}
	pasted := make(chan url.Values, 1)
	failed := make(chan error, 1)
	if l.flow == Paste {
		l.o.Say("then paste here the address that the browser ends at, even if it cannot show the page")
		go func() { // ends with the process at the latest: a read of standard input cannot be ended
			params, err := l.paste(ctx, back.address)
			if err != nil {
				failed <- err
				return
			}
			pasted <- params
		}()
	} else {
		l.o.Say("waiting for the browser to come back to %s", back.address)
	}
	for {
		select {
		case <-back.forged:
			l.o.Say("a redirect that belongs to no login of ours was ignored: its state is wrong")
			back.forged = nil // any page can send any number here
		case params := <-back.requests:
			return params, nil
		case params := <-pasted:
			if !isOf(params, state) {
				return nil, errors.New("the address belongs to another login: its state is not the one of this login")
			}
			return params, nil
		case err := <-failed:
			return nil, err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// isOf reports whether what came back is of the login with this state.
func isOf(params url.Values, state string) bool {
	return subtle.ConstantTimeCompare([]byte(params.Get("state")), []byte(state)) == 1
}

// maxPasted bounds what is pasted.
const maxPasted = 16 << 10

func (l *attempt) paste(ctx context.Context, expected string) (url.Values, error) {
	line, err := l.o.Ask(ctx)
	if err != nil {
		return nil, err
	}
	if line = strings.TrimSpace(line); len(line) > maxPasted {
		return nil, errors.New("what was pasted is too long to be an address")
	}
	got, err := url.Parse(line)
	want, _ := url.Parse(expected)
	if err != nil || got.Host != want.Host || got.Path != want.Path {
		return nil, fmt.Errorf("what was pasted is not the address that the browser ends at, which begins with %s", expected)
	}
	return got.Query(), nil
}

// judge checks what came back, who it is from first (RFC 9207: an attacker's answer must not be read, be it an error).
func (l *attempt) judge(params url.Values) error {
	iss, meta := params.Get("iss"), l.d.meta
	switch {
	case iss == "" && meta.AuthorizationResponseIssParameterSupported:
		return fmt.Errorf("the answer does not say who it is from (iss), as %s promises: it may be forged", meta.Issuer)
	case iss != "" && iss != meta.Issuer:
		return fmt.Errorf("the answer is from %s, not from %s: it is not trusted", words(iss), meta.Issuer)
	case params.Get("error") != "":
		return &refusal{Code: params.Get("error"), Description: params.Get("error_description"), status: http.StatusBadRequest}
	case params.Get("code") == "":
		return errors.New("the answer has no code in it")
	}
	return nil
}

// refused makes an error of x/oauth2's, whose text has the whole answer in it.
func (l *attempt) refused(err error) error {
	var e *oauth2.RetrieveError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &e):
		return fmt.Errorf("ask %s for tokens: %w", l.d.meta.Issuer, err)
	}
	refused := &refusal{Code: e.ErrorCode, Description: e.ErrorDescription}
	if e.Response != nil {
		refused.status = e.Response.StatusCode
	}
	if refused.Code == "invalid_client" {
		_ = l.store.unregister(l.d.meta.Issuer) // the next login registers anew
	}
	return refused
}

// Bounds of the pauses that a device authorization asks for, in seconds.
const minInterval, maxInterval = 1, 60

// device is the device authorization flow.
func (l *attempt) device(ctx context.Context) (*oauth2.Token, error) {
	if err := l.register(ctx, l.redirect(l.port())); err != nil {
		return nil, err
	}
	cfg := l.config("")
	ctx = context.WithValue(ctx, oauth2.HTTPClient, client(ctx))
	resource := oauth2.SetAuthURLParam("resource", l.d.resource)
	asked, err := cfg.DeviceAuth(ctx, resource)
	if err != nil {
		return nil, l.refused(err)
	}
	page, err := url.Parse(asked.VerificationURI)
	if err != nil || page.Scheme != "https" && page.Scheme != "http" || asked.DeviceCode == "" || asked.UserCode == "" {
		return nil, fmt.Errorf("the answer of %s to the device authorization has no address or no code", l.d.meta.Issuer)
	}
	if asked.Interval != 0 {
		asked.Interval = min(max(asked.Interval, minInterval), maxInterval)
	}
	l.o.Say("open %s in a browser, on any machine, and enter the code %s there", words(page.String()), words(asked.UserCode))
	l.o.Say("waiting until the code is entered")
	token, err := cfg.DeviceAccessToken(ctx, asked, resource)
	if errors.Is(err, context.DeadlineExceeded) && context.Cause(ctx) == nil {
		return nil, errors.New("the code has expired; log in again")
	}
	return token, l.refused(err)
}

// save keeps what came of the login.
func (l *attempt) save(ctx context.Context, token *oauth2.Token) (*Account, error) {
	if !strings.EqualFold(token.Type(), "Bearer") {
		return nil, fmt.Errorf("%s issued a token of the type %s, which MCP does not use", l.d.meta.Issuer, words(token.Type()))
	}
	granted, said := token.Extra("scope").(string)
	have := l.scopes
	if said {
		have = strings.Fields(granted)
	}
	fresh := &tokens{Access: secret.New(token.AccessToken), Refresh: secret.New(token.RefreshToken), Expires: token.Expiry}
	if l.client.ClientID != l.server.ClientID {
		fresh.ClientSecret = secret.New(l.client.Secret)
	}
	var account *Account
	key := l.server.key()
	err := l.store.change(ctx, key, func(a *Account) error {
		old := *a
		*a = Account{
			Server: l.server.Name, Issuer: l.d.meta.Issuer, Resource: l.d.resource, ClientID: l.client.ClientID, Subject: subject(token),
			Scopes: have, Since: time.Now().Truncate(time.Second), Expires: fresh.Expires, Renews: !fresh.Refresh.Empty(),
			Serial: old.Serial + 1, LoggedIn: true,
			TokenEndpoint: l.d.meta.TokenEndpoint, RevocationEndpoint: l.d.meta.RevocationEndpoint, Method: l.client.Method,
		}
		if err := l.store.keep(ctx, key, a, fresh); err != nil {
			return err
		}
		if old.Kept != "" && (old.Kept != a.Kept || secretKey(key, &old) != secretKey(key, a)) {
			_ = l.store.vaults[old.Kept].remove(ctx, secretKey(key, &old)) // tokens that nothing refers to any more
		}
		account = a
		return nil
	})
	return account, err
}

// subject is who logged in, from the ID token of OpenID Connect. It is shown and decides nothing, so its signature does not matter.
func subject(token *oauth2.Token) string {
	text, _ := token.Extra("id_token").(string)
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Email string `json:"email"`
		User  string `json:"preferred_username"`
		Sub   string `json:"sub"`
	}
	if err != nil || json.Unmarshal(payload, &claims) != nil {
		return ""
	}
	return words(cmp.Or(claims.Email, claims.User, claims.Sub))
}

// Logout forgets the login and asks the authorization server to revoke it. revoked says whether it did; why says why not. There was
// none when account is nil.
func (s *Store) Logout(ctx context.Context, server Server) (account *Account, revoked bool, why, err error) {
	key := server.key()
	err = s.change(ctx, key, func(a *Account) error {
		if !a.LoggedIn {
			return nil
		}
		old := *a
		account = &old
		t, err := s.tokens(ctx, key, a)
		switch {
		case err != nil:
			why = err
		case a.RevocationEndpoint == "":
			why = fmt.Errorf("%s has no revocation endpoint", a.Issuer)
		default:
			why = server.revoke(ctx, &held{a, t}, s.Source(server))
			revoked = why == nil
		}
		if v := s.vaults[a.Kept]; v != nil {
			if err := v.remove(ctx, secretKey(key, a)); err != nil {
				return fmt.Errorf("forget the tokens: %w", err)
			}
		}
		if a.ClientID != server.ClientID {
			_ = s.unregister(a.Issuer) // a login that did not work may be the registration's fault
		}
		*a = Account{Server: server.Name, Serial: a.Serial + 1}
		return nil
	})
	return account, revoked, why, err
}

// revoke asks for the end of both tokens (RFC 7009): the refresh token first, with which most servers end the other.
func (s *Server) revoke(ctx context.Context, h *held, source *Source) error {
	for _, t := range []struct {
		kind  string
		token secret.String
	}{{"refresh_token", h.tokens.Refresh}, {"access_token", h.tokens.Access}} {
		if t.token.Empty() {
			continue
		}
		form := url.Values{"token": {t.token.Reveal()}, "token_type_hint": {t.kind}}
		if _, err := s.post(ctx, h.account.RevocationEndpoint, form, source.clientSecret(h), h.account); err != nil {
			return err
		}
	}
	return nil
}

// listener waits on this machine for the browser to come back.
type listener struct {
	address  string          // the redirect address
	requests chan url.Values // has room for one, of this login
	forged   chan struct{}   // the same for word of those that are not
	server   *http.Server
	ended    chan struct{}
}

const callbackPath = "/callback"

// port is the local port to listen on: the configured one, that of the client that is registered, or any.
func (l *attempt) port() int {
	if l.server.Port != 0 {
		return l.server.Port
	}
	if u, err := url.Parse(l.server.Callback); err == nil && l.server.Callback != "" {
		port, _ := strconv.Atoi(u.Port())
		return port
	}
	if l.server.ClientID == "" || strings.HasPrefix(l.server.ClientID, "https://") {
		if have := l.store.registration(l.d.meta.Issuer); have != nil {
			if u, err := url.Parse(have.Redirect); err == nil {
				port, _ := strconv.Atoi(u.Port())
				return port
			}
		}
	}
	return 0
}

// redirect is the redirect address for a port.
func (l *attempt) redirect(port int) string {
	if l.server.Callback != "" {
		return l.server.Callback
	}
	return fmt.Sprintf("http://127.0.0.1:%d%s", port, callbackPath)
}

// page is what the browser shows at the end.
const page = `<!doctype html><meta charset="utf-8"><title>Nightporter</title><p>Nightporter has the answer. You can close this page and go back to the terminal.`

func (l *attempt) listen(ctx context.Context, state string) (*listener, error) {
	port := l.port()
	callback, err := url.Parse(l.redirect(port))
	if err != nil || callback.Host == "" {
		return nil, fmt.Errorf("oauth.callback_url of %s is not a URL", l.server.Name)
	}
	back := &listener{address: callback.String(), requests: make(chan url.Values, 1), forged: make(chan struct{}, 1), ended: make(chan struct{})}
	local := callback.Scheme == "http" && loopback(callback.Hostname())
	if !local {
		if l.flow != Paste {
			return nil, fmt.Errorf("oauth.callback_url of %s is not on this machine, so that nothing can listen there; use --paste", l.server.Name)
		}
		close(back.ended)
		return back, nil
	}
	var config net.ListenConfig
	socket, err := config.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil && l.server.Port == 0 && l.server.Callback == "" {
		socket, err = config.Listen(ctx, "tcp", "127.0.0.1:0") // another client is registered for it
	}
	if err != nil {
		return nil, fmt.Errorf("listen for the browser: %w", err)
	}
	if l.server.Callback == "" {
		back.address = l.redirect(socket.Addr().(*net.TCPAddr).Port)
	}
	forged := back.forged
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+exactly(callback.Path), func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Content-Security-Policy", "default-src 'none'")
		w.Header().Set("Referrer-Policy", "no-referrer") // the address has the code in it
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte(page))
		params := r.URL.Query()
		if !isOf(params, state) {
			select {
			case forged <- struct{}{}:
			default:
			}
			return
		}
		select {
		case back.requests <- params:
		default:
		}
	})
	back.server = &http.Server{Handler: mux, ReadHeaderTimeout: requestTimeout, MaxHeaderBytes: 64 << 10}
	go func() {
		defer close(back.ended)
		_ = back.server.Serve(socket)
	}()
	return back, nil
}

// exactly is the pattern of a path and none below it.
func exactly(path string) string {
	if path == "" || strings.HasSuffix(path, "/") {
		return strings.TrimSuffix(path, "/") + "/{$}"
	}
	return path
}

func (b *listener) close() {
	if b.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second) // the page is on its way
		defer cancel()
		if b.server.Shutdown(ctx) != nil {
			_ = b.server.Close()
		}
	}
	<-b.ended
}
