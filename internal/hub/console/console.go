// Package console is the hub in a browser: pages made on the server, forms, and one small script that keeps them fresh. All works without the
// script, by reloading.
package console

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"nightporter/client"
	"nightporter/internal/hub"
	"nightporter/internal/hub/store"
)

//go:embed templates/*.html
var templateFiles embed.FS

//go:embed static
var staticFiles embed.FS

const (
	// sessionLife is how long a sign-in lasts: a working day. The key itself is not kept by the browser.
	sessionLife = 12 * time.Hour
	// maxForm bounds a posted form: more than anybody types. Longer messages come by the API.
	maxForm = 8 << 20
	// loginLife is how long a sign-in form that was opened may be sent.
	loginLife = time.Hour
)

// Options of a Console.
type Options struct {
	Log *slog.Logger // may be nil
	// TLS says that browsers come by https even where this process sees none, behind a proxy that ends it: cookies are then sent over https
	// alone.
	TLS bool
}

// Console is an http.Handler for all paths that are not the API's.
type Console struct {
	hub     *hub.Hub
	store   *store.Store
	o       Options
	pages   map[string]*template.Template
	static  map[string]asset
	streams *streams
	handler http.Handler
}

// asset is a file of ours as browsers get it, under a name that changes with its content.
type asset struct {
	body []byte
	kind string
	tag  string
}

// New makes the console of a hub, which stays the caller's. It is mounted by h.Handle("/", c).
func New(h *hub.Hub, o Options) *Console {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	c := &Console{hub: h, store: h.Store(), o: o, static: map[string]asset{}, streams: newStreams()}
	for name, kind := range map[string]string{"console.css": "text/css; charset=utf-8", "console.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"} {
		body, err := fs.ReadFile(staticFiles, "static/"+name)
		if err != nil {
			panic(err) // they are part of the program
		}
		sum := sha256.Sum256(body)
		c.static[name] = asset{body, kind, hex.EncodeToString(sum[:6])}
	}
	c.pages = c.parse()
	c.handler = c.routes()
	return c
}

func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.handler.ServeHTTP(w, r) }

// Close ends the streams of pages that are open.
func (c *Console) Close() { c.streams.close() }

// route is a page or an act, and who may have it: a key with one of the scopes.
type route struct {
	pattern string
	scopes  []client.Scope
	serve   func(*Console, *request) error
}

func routes() []route {
	const ask, read, approve, admin = client.ScopeAsk, client.ScopeRead, client.ScopeApprove, client.ScopeAdmin
	any := client.Scopes
	return []route{
		{"GET /{$}", any, (*Console).home},
		{"GET /runs", []client.Scope{read}, (*Console).runs},
		{"GET /runs/{id}", []client.Scope{read, ask}, (*Console).run},
		{"GET /conversations", []client.Scope{read, ask}, (*Console).conversations},
		{"GET /conversation", []client.Scope{read, ask}, (*Console).conversation},
		{"GET /files/{id}", []client.Scope{read, ask}, (*Console).file},
		{"GET /approvals", []client.Scope{read, approve}, (*Console).approvals},
		{"GET /approvals/{id}", []client.Scope{read, approve}, (*Console).approval},
		{"GET /hosts", []client.Scope{read}, (*Console).hosts},
		{"GET /servers", []client.Scope{read}, (*Console).servers},
		{"GET /trends", []client.Scope{read}, (*Console).trends},
		{"GET /deliveries", []client.Scope{read}, (*Console).deliveries},
		{"GET /audit", []client.Scope{admin}, (*Console).audit},
		{"GET /live", any, (*Console).live},
		{"POST /messages", []client.Scope{ask}, (*Console).send},
		{"POST /runs/{id}/cancel", []client.Scope{ask}, (*Console).cancel},
		{"POST /approvals/{id}/answer", []client.Scope{approve}, (*Console).answer},
		{"POST /hosts/{id}/revoke", []client.Scope{admin}, (*Console).revoke},
		{"POST /deliveries/{id}/retry", []client.Scope{admin}, (*Console).retry},
		{"POST /logout", any, (*Console).logout},
	}
}

func (c *Console) routes() http.Handler {
	mux := http.NewServeMux()
	for _, r := range routes() {
		mux.HandleFunc(r.pattern, func(w http.ResponseWriter, q *http.Request) { c.serve(w, q, r) })
	}
	mux.HandleFunc("GET /login", c.loginPage)
	mux.HandleFunc("POST /login", c.login)
	mux.HandleFunc("GET /static/{name}", c.asset)
	mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		c.fail(&request{w: w, r: q}, &problem{http.StatusNotFound, "There is no such page", "Go to the list of runs, or check the address."})
	})
	// A form of another site is refused by what the browser says of its origin, before its token is looked at.
	cross := http.NewCrossOriginProtection()
	cross.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { c.fail(&request{w: w, r: q}, errCrossSite) }))
	guarded := cross.Handler(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		for name, value := range headers {
			w.Header().Set(name, value)
		}
		guarded.ServeHTTP(w, q)
	})
}

// headers are those of every answer. The referrer policy is same-origin rather than none, which would make browsers send Origin: null with our own
// forms; either way no other site learns an address of ours.
var headers = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; " +
		"base-uri 'none'; frame-ancestors 'none'",
	"Referrer-Policy":              "same-origin",
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Permissions-Policy":           "camera=(), microphone=(), geolocation=()",
	"Cache-Control":                "no-store",
}

// request is one request of somebody who is signed in, where key is set.
type request struct {
	w    http.ResponseWriter
	r    *http.Request
	key  *client.Key
	csrf string
}

func (q *request) ctx() context.Context { return q.r.Context() }

// serve finds who asks, whether they may, and for a post whether the form is of ours.
func (c *Console) serve(w http.ResponseWriter, r *http.Request, to route) {
	q := &request{w: w, r: r}
	err := c.admit(q, to)
	if err == nil {
		err = to.serve(c, q)
	}
	if err != nil {
		c.fail(q, err)
	}
}

func (c *Console) admit(q *request, to route) error {
	cookie, err := q.r.Cookie(c.cookieName(q.r))
	if err != nil {
		return errSignIn
	}
	key, csrf, err := c.store.Session(q.ctx(), hash(cookie.Value))
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrRevoked):
		c.setCookie(q, c.cookieName(q.r), "", -1)
		return errSignIn
	case err != nil:
		return err
	}
	q.key, q.csrf = &key, csrf
	if !has(key, to.scopes...) {
		return errForbidden
	}
	if q.r.Method != http.MethodPost {
		return nil
	}
	if err := form(q); err != nil {
		return err
	}
	if !same(q.r.PostForm.Get("csrf"), csrf) {
		return errCrossSite
	}
	return nil
}

func form(q *request) error {
	q.r.Body = http.MaxBytesReader(q.w, q.r.Body, maxForm)
	if err := q.r.ParseForm(); err != nil {
		return &problem{http.StatusBadRequest, "The form could not be read", "It is too long or was cut off. Go back, shorten it, and send it again."}
	}
	for _, values := range q.r.PostForm {
		for i := range values {
			values[i] = strings.ReplaceAll(values[i], "\r\n", "\n") // as browsers send line breaks, whatever they were
		}
	}
	return nil
}

// hash is how the secret of a session is kept: it is random, so that a slow hash would add nothing.
func hash(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// has reports whether a key has one of the scopes.
func has(k client.Key, scopes ...client.Scope) bool {
	return slices.ContainsFunc(scopes, func(s client.Scope) bool { return slices.Contains(k.Scopes, s) })
}

func same(a, b string) bool { return b != "" && subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

func (c *Console) https(r *http.Request) bool { return c.o.TLS || r.TLS != nil }

// cookieName is the session's. With https it has the prefix that binds a cookie to this very host.
func (c *Console) cookieName(r *http.Request) string {
	if c.https(r) {
		return "__Host-nightporter"
	}
	return "nightporter"
}

func (c *Console) loginCookie(r *http.Request) string { return c.cookieName(r) + "-login" }

func (c *Console) setCookie(q *request, name, value string, seconds int) {
	http.SetCookie(q.w, &http.Cookie{
		Name: name, Value: value, Path: "/", MaxAge: seconds, HttpOnly: true, Secure: c.https(q.r), SameSite: http.SameSiteStrictMode,
	})
}

func token() string {
	var b [32]byte
	rand.Read(b[:])
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// loginPage has a token of its own in a cookie and in the form, so that no other site can sign a browser in as somebody else.
func (c *Console) loginPage(w http.ResponseWriter, r *http.Request) {
	c.showLogin(&request{w: w, r: r}, http.StatusOK, "")
}

func (c *Console) showLogin(q *request, status int, wrong string) {
	csrf := token()
	c.setCookie(q, c.loginCookie(q.r), csrf, int(loginLife.Seconds()))
	q.csrf = csrf
	c.show(q, status, "login", view{Title: "Sign in", Data: map[string]string{"Next": next(q.r.FormValue("next")), "Wrong": wrong}})
}

func (c *Console) login(w http.ResponseWriter, r *http.Request) {
	q := &request{w: w, r: r}
	if err := form(q); err != nil {
		c.fail(q, err)
		return
	}
	cookie, err := r.Cookie(c.loginCookie(r))
	if err != nil || !same(r.PostForm.Get("csrf"), cookie.Value) {
		c.showLogin(q, http.StatusForbidden, "The form was open for too long, or the browser takes no cookies. Try again.")
		return
	}
	key, err := c.hub.SignIn(r, strings.TrimSpace(r.PostForm.Get("key")))
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrRevoked):
		c.showLogin(q, http.StatusForbidden, "This is no key of this hub, or it was revoked or has expired.")
		return
	case err != nil:
		c.fail(q, err)
		return
	}
	secret := token()
	if err := c.store.AddSession(r.Context(), hash(secret), key.ID, token(), sessionLife); err != nil {
		c.fail(q, err)
		return
	}
	if err := c.store.Audit(r.Context(), "key "+key.Name, "console.sign_in", key.Name, ""); err != nil {
		c.fail(q, err)
		return
	}
	c.setCookie(q, c.cookieName(r), secret, int(sessionLife.Seconds()))
	c.setCookie(q, c.loginCookie(r), "", -1)
	http.Redirect(w, r, next(r.PostForm.Get("next")), http.StatusSeeOther)
}

func (c *Console) logout(q *request) error {
	cookie, err := q.r.Cookie(c.cookieName(q.r))
	if err != nil {
		return err
	}
	if err := c.store.EndSession(q.ctx(), hash(cookie.Value)); err != nil {
		return err
	}
	c.setCookie(q, c.cookieName(q.r), "", -1)
	http.Redirect(q.w, q.r, "/login", http.StatusSeeOther)
	return nil
}

// next is a path of this console to go on to, or its start.
func next(to string) string {
	u, err := url.Parse(to)
	if err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") || strings.ContainsAny(to, "\\\r\n\t") {
		return "/"
	}
	return to
}

func (c *Console) asset(w http.ResponseWriter, r *http.Request) {
	a, ok := c.static[r.PathValue("name")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", a.kind)
	if r.URL.Query().Get("v") == a.tag {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(a.body))
}

// problem is an error as a page says it.
type problem struct {
	status       int
	title, whats string // what happened; what to do
}

func (p *problem) Error() string { return p.title }

var (
	errForbidden = errors.New("the key may not do this")
	errSignIn    = &problem{http.StatusUnauthorized, "Sign in first", "Sign in with an API key."}
	errCrossSite = &problem{http.StatusForbidden, "This form was not one of this session", "Nothing was done. Open the page again and repeat what you did there."}
)

// problems say what errors of others mean for a person.
var problems = []struct {
	is      error
	problem problem
}{
	{store.ErrNotFound, problem{http.StatusNotFound, "There is no such thing", "It was removed, or the address is not whole. Go back to the list and choose it there."}},
	{errForbidden, problem{http.StatusForbidden, "Your key may not do this", "Sign in with a key that has the scope, or ask whoever manages this hub's keys: nightporter hub keys."}},
	{store.ErrOver, problem{http.StatusConflict, "It is decided already", "Somebody else was first, the time is over, or the run has ended. Nothing was changed."}},
	{store.ErrConflict, problem{http.StatusConflict, "It is not what you saw", "It changed meanwhile. Nothing was done: open it again and decide anew."}},
	{store.ErrNoProfile, problem{http.StatusUnprocessableEntity, "There is no such profile", "Choose one that exists, or make it: nightporter hub profiles."}},
}

func (c *Console) fail(q *request, err error) {
	if errors.Is(err, errSignIn) {
		c.askSignIn(q)
		return
	}
	p := &problem{http.StatusInternalServerError, "The hub could not do this", "Try again. If it goes on, the hub's log has the reason; /readyz says whether its database answers."}
	if !errors.As(err, &p) {
		known := false
		for _, of := range problems {
			if errors.Is(err, of.is) {
				p, known = &of.problem, true
				break
			}
		}
		if q.ctx().Err() != nil {
			return // the browser is gone
		}
		if said := (*client.Problem)(nil); !known && !errors.As(err, &said) {
			c.o.Log.ErrorContext(q.ctx(), "console", "path", q.r.URL.Path, "error", err)
		}
	}
	detail := ""
	if said := (*client.Problem)(nil); errors.As(err, &said) { // what the API would have answered
		p, detail = &problem{said.Status, "That could not be done", "Nothing was changed. Go back, change it, and send it again."}, said.Detail
	}
	c.show(q, p.status, "error", view{Title: p.title, Data: map[string]string{"What": p.whats, "Detail": detail}})
}

// askSignIn sends to the sign-in. Who comes by a link of another site (a chat, a mail) has sent no cookie, since ours are for requests of this site
// only: a page of ours that opens the address again sends it.
func (c *Console) askSignIn(q *request) {
	switch {
	case q.r.Method == http.MethodGet && q.r.Header.Get("Sec-Fetch-Site") == "cross-site" && q.r.Header.Get("Sec-Fetch-Mode") == "navigate":
		c.show(q, http.StatusOK, "again", view{Title: "Opening", Data: next(q.r.URL.RequestURI())})
	case q.r.Method == http.MethodGet && q.r.URL.Path != "/live":
		http.Redirect(q.w, q.r, "/login?next="+url.QueryEscape(q.r.URL.RequestURI()), http.StatusSeeOther)
	default:
		c.show(q, http.StatusUnauthorized, "error", view{Title: errSignIn.title, Data: map[string]string{"What": errSignIn.whats}})
	}
}
