package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"nightporter/client"
	"nightporter/internal/hub/store"
)

// Who may use a route, where it is no scope.
const (
	anyone  client.Scope = ""        // who needs no key: pairing, signed webhooks, health
	aHost   client.Scope = "(host)"  // a host with its own key
	someone client.Scope = "(reads)" // scope read, or ask for the conversations of its own
)

// route is one thing that the API does. The table of them is what requests are checked by and what /openapi.json is made of.
type route struct {
	method, path string
	scope        client.Scope
	in, out      any // values of the types that are sent and answered; nil: none
	status       int // of the answer; 0: 200, or 204 without out
	query        []string
	do           func(h *Hub, c *call) (any, error)
	serve        func(h *Hub, c *call) // in place of do, for answers that are no JSON
	body         int64                 // bound of the request's body; 0: maxBody
	says         string                // in one sentence
}

const (
	// maxBody bounds a request's body. A prompt of an agent is at most 16 MiB.
	maxBody = 17 << 20
	// maxFileBody bounds one that carries a file of 8 MiB in base64.
	maxFileBody = 12 << 20
	// maxFile bounds a file that a run attaches.
	maxFile = 8 << 20
	// requestPatience bounds a request that does not wait for something to happen.
	requestPatience = 30 * time.Second
)

// call is one request.
type call struct {
	ctx  context.Context
	w    http.ResponseWriter
	r    *http.Request
	key  client.Key // of the caller; empty for hosts and anyone
	host string     // the id of the host
	name string     // for the audit
	in   any        // a pointer to what route.in is a value of
	raw  []byte     // the body
}

func (c *call) may(scope client.Scope) bool { return slices.Contains(c.key.Scopes, scope) }

// number is a number of the query.
func (c *call) number(name string) (int64, error) {
	text := c.r.URL.Query().Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, problemf("invalid", "%s=%s is not a whole number of 0 or more", name, text)
	}
	return n, nil
}

func (c *call) limit() int {
	n, _ := c.number("limit")
	return int(min(n, store.MaxPage))
}

// wait is how long the caller lets the request wait.
func (c *call) wait() time.Duration {
	n, _ := c.number("wait_ms")
	return min(time.Duration(n)*time.Millisecond, client.MaxWait)
}

// routed makes the handler of all routes.
func (h *Hub) routed() *http.ServeMux {
	mux := http.NewServeMux()
	for _, r := range routes {
		mux.HandleFunc(r.method+" "+r.path, func(w http.ResponseWriter, req *http.Request) { h.answer(r, w, req) })
	}
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, openAPI(h.o.Version)) })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		if err := h.store.Ping(ctx); err != nil {
			writeProblem(w, problemf("unavailable", "the database does not answer"))
			return
		}
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		writeProblem(w, problemf("not_found", "there is no %s %s; /openapi.json lists what there is", r.Method, r.URL.Path))
	})
	return mux
}

// Handle adds a handler beside the API, such as the console's.
func (h *Hub) Handle(pattern string, handler http.Handler) { h.mux.Handle(pattern, handler) }

// Store is the hub's database, for what is served beside the API.
func (h *Hub) Store() *store.Store { return h.store }

func (h *Hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-store")
	// A name that somebody else points here is no name of ours (DNS rebinding).
	if !h.knows(r.Host) {
		writeProblem(w, problemf("forbidden", "this hub is not called %s; name it with --host, or hub.hosts", r.Host))
		return
	}
	h.mux.ServeHTTP(w, r)
}

func (h *Hub) knows(host string) bool {
	name := host
	if bare, _, err := net.SplitHostPort(host); err == nil {
		name = bare
	}
	name = strings.Trim(name, "[]")
	if ip := net.ParseIP(name); ip != nil || name == "localhost" {
		return true // an address cannot be pointed elsewhere
	}
	return slices.Contains(h.o.Hosts, name) || slices.Contains(h.o.Hosts, host)
}

// answer checks a request by its route and answers it.
func (h *Hub) answer(r route, w http.ResponseWriter, req *http.Request) {
	c := &call{ctx: req.Context(), w: w, r: req}
	if err := h.admit(r, c); err != nil {
		writeProblem(w, h.problemOf(err))
		return
	}
	if r.serve != nil {
		r.serve(h, c)
		return
	}
	ctx, cancel := context.WithTimeout(c.ctx, requestPatience+c.wait())
	defer cancel()
	c.ctx = ctx
	out, err := r.do(h, c)
	switch {
	case err != nil:
		writeProblem(w, h.problemOf(err))
	case out == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		status := r.status
		if s, ok := out.(withStatus); ok {
			status, out = s.status, s.body
		}
		if status == 0 {
			status = http.StatusOK
		}
		writeJSON(w, status, out)
	}
}

// withStatus is an answer with another status than its route's.
type withStatus struct {
	status int
	body   any
}

// admit authenticates the caller and reads the body.
func (h *Hub) admit(r route, c *call) error {
	// Browsers say where a request comes from; the API is for programs, and has no cookies. A page elsewhere has nothing to ask here.
	if site := c.r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		return problemf("forbidden", "the API is not for pages of other sites")
	}
	if r.scope != anyone {
		if err := h.authenticate(r, c); err != nil {
			return err
		}
	}
	bound := r.body
	if bound == 0 {
		bound = maxBody
	}
	body, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, bound))
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return problemf("too_large", "the body is larger than %d bytes", bound)
	}
	if err != nil {
		return problemf("invalid", "the body could not be read")
	}
	c.raw = body
	if r.in == nil {
		return nil
	}
	if media, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return problemf("media_type", "the content type must be application/json")
	}
	c.in = newOf(r.in)
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(c.in); err != nil {
		return problemf("invalid", "the body is not what %s %s takes: %v", r.method, r.path, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return problemf("invalid", "the body is more than one JSON value")
	}
	return nil
}

func (h *Hub) authenticate(r route, c *call) error {
	if !h.tries.allowed(c.r) {
		return problemf("rate_limited", "too many keys that are none came from this address; try again in a minute")
	}
	scheme, secret, _ := strings.Cut(c.r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || secret == "" {
		return problemf("unauthorized", "a key is needed, as Authorization: Bearer KEY")
	}
	refused := func(err error) error {
		if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrRevoked) {
			h.tries.fail(c.r)
			if errors.Is(err, store.ErrRevoked) {
				return problemf("revoked", "the key was revoked or has expired")
			}
			return problemf("unauthorized", "the key is not known")
		}
		return err
	}
	if r.scope == aHost {
		id, name, err := h.store.HostByKey(c.ctx, hashed(secret))
		c.host, c.name = id, "host "+name
		return refused(err)
	}
	key, err := h.store.KeyByHash(c.ctx, hashed(secret))
	if err != nil {
		return refused(err)
	}
	c.key, c.name = key, "key "+key.Name
	allowed := c.may(r.scope)
	if r.scope == someone {
		allowed = c.may(client.ScopeRead) || c.may(client.ScopeAsk)
	}
	if !allowed {
		want := string(r.scope)
		if r.scope == someone {
			want = "read or ask"
		}
		return problemf("forbidden", "the key %s has not the scope %s", key.Name, want)
	}
	return nil
}

// mayRead checks that the caller may read a conversation: with scope read any, with scope ask those that it has sent messages to. Others do not
// exist for it.
func (h *Hub) mayRead(c *call, conversation string) error {
	if c.may(client.ScopeRead) {
		return nil
	}
	sent, err := h.store.Sent(c.ctx, c.key.ID, conversation)
	if err == nil && !sent {
		err = fmt.Errorf("conversation %q: %w", conversation, store.ErrNotFound)
	}
	return err
}
