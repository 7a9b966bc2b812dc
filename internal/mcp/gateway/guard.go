package gateway

import (
	"crypto/subtle"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"nightporter/internal/mcp/access"
	"nightporter/internal/mcp/wire"
	"nightporter/internal/secret"
)

// Guard lets only those requests through to an HTTP handler that may come: with a credential, and from no web page of another
// origin, also one that points a name of its own at this machine (A37).
type Guard struct {
	// Authorize returns what serves the holder of a request's credential, or why none is accepted.
	Authorize      func(*http.Request) (http.Handler, *access.Denial)
	AllowedHosts   []string // names in the Host header besides loopback's
	AllowedOrigins []string // Origin headers besides loopback's
}

func (g *Guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	patient(w)
	origins := r.Header.Values("Origin")
	switch {
	case !g.host(r.Host):
		deny(w, http.StatusForbidden, "forbidden: the Host header "+r.Host+" is not allowed here; add it to gateway.allowed_hosts")
		return
	case len(origins) > 1 || len(origins) == 1 && !g.origin(origins[0]):
		deny(w, http.StatusForbidden, "forbidden: requests of web pages are not allowed from this Origin; add it to gateway.allowed_origins")
		return
	case len(origins) == 1:
		share(w.Header(), origins[0], r.Header.Get("Access-Control-Request-Headers"))
		if r.Method == http.MethodOptions {
			// What the browser asks before it sends the page's request, and without its credential.
			w.WriteHeader(http.StatusNoContent)
			return
		}
	}
	serve, denial := g.Authorize(r)
	if denial != nil {
		hasty(w)
		denial.Write(w)
		return
	}
	serve.ServeHTTP(w, r)
}

// share tells a browser that a page of an origin that was checked may send what clients send, and read what we answer. Cookies are
// never asked for: nothing here is decided by them.
func share(h http.Header, origin, asked string) {
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Vary", "Origin")
	h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
	allowed := "Authorization, Content-Type, Accept, Last-Event-ID, Mcp-Session-Id, MCP-Protocol-Version, Mcp-Method, Mcp-Name"
	for name := range strings.SplitSeq(asked, ",") {
		// Those that repeat arguments of tools have names of the tools' choosing.
		if name = strings.TrimSpace(name); len(name) > len(wire.ParamPrefix) && strings.EqualFold(name[:len(wire.ParamPrefix)], wire.ParamPrefix) {
			allowed += ", " + name
		}
	}
	h.Set("Access-Control-Allow-Headers", allowed)
	h.Set("Access-Control-Expose-Headers", "Mcp-Session-Id, WWW-Authenticate, Retry-After")
	h.Set("Access-Control-Max-Age", "600")
}

// ByToken authorizes who has the one token, which must not be empty, for next.
func ByToken(token secret.String, next http.Handler) func(*http.Request) (http.Handler, *access.Denial) {
	return func(r *http.Request) (http.Handler, *access.Denial) {
		switch shown := access.Bearer(r); {
		case shown == "":
			return nil, access.NoToken()
		case !Equal(token, shown):
			return nil, access.BadToken("this is not the bearer token of this gateway")
		}
		return next, nil
	}
}

// Equal compares a token that is not empty with what was shown, in a time that does not depend on where they differ.
func Equal(token secret.String, shown string) bool {
	return !token.Empty() && subtle.ConstantTimeCompare([]byte(shown), []byte(token.Reveal())) == 1
}

func deny(w http.ResponseWriter, status int, why string) {
	hasty(w)
	http.Error(w, why, status)
}

const (
	// slowClient is how long one answer may take to be written before a client that does not read is dropped.
	slowClient = 30 * time.Second
	// refusedBody is how long a body is waited for that nobody will read: net/http reads on before it answers, or the connection could not be
	// used again, and without a limit anybody could hold connections by a body that never comes.
	refusedBody = 2 * time.Second
)

// patient gives the answer to come its time. Deadlines stay with a connection, so that each request sets its own.
func patient(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(slowClient))
}

// hasty comes before an answer to a request whose body has not been read.
func hasty(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusedBody))
}

// Bounded gives the answers of a handler that reads no bodies their time.
func Bounded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		patient(w)
		hasty(w)
		h.ServeHTTP(w, r)
	})
}

func (g *Guard) host(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	if inner, ok := strings.CutPrefix(name, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); ok {
			name = inner
		}
	}
	return loopback(name) || slices.Contains(g.AllowedHosts, name) || slices.Contains(g.AllowedHosts, host)
}

// origin takes the pages of this machine and those that are allowed. Other schemes than the web's are of browser extensions and
// the like, which choose the host in their origin.
func (g *Guard) origin(origin string) bool {
	if slices.Contains(g.AllowedOrigins, origin) {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && loopback(u.Hostname()) &&
		origin == u.Scheme+"://"+u.Host // and nothing else: no user, no path
}

func loopback(name string) bool {
	if strings.EqualFold(name, "localhost") {
		return true
	}
	ip := net.ParseIP(name)
	return ip != nil && ip.IsLoopback()
}

// Server is an http.Server with bounds, for handlers of this package.
func Server(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h,
		// Streams have no end, so that there is no limit on reading or writing as a whole (ReadTimeout would end them
		// too): bodies and writes each have their own. The first bounds the TLS handshake as well.
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
}
