package front

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"nightporter/internal/config"
	"nightporter/internal/mcp/access"
	"nightporter/internal/mcp/authority"
	"nightporter/internal/mcp/gateway"
	"nightporter/internal/mcp/runtime"
)

// holder is what the holder of a credential has here: an endpoint for each path that it asked for. Sessions, caches and answers are of one
// endpoint, so that no other holder comes to them, also who knows a session's id.
type holder struct {
	f        *Front
	who      access.Holder
	mux      *http.ServeMux
	profile  gateway.Profile
	requests *gateway.Quota
	seen     time.Time // under f.mu

	mu   sync.Mutex
	all  map[string]*gateway.Endpoint // by the server of its path; empty: all
	over bool                         // none is made any more
}

func newHolder(f *Front, who access.Holder) *holder {
	h := &holder{f: f, who: who, profile: f.o.Profile, seen: time.Now(), all: map[string]*gateway.Endpoint{}}
	h.requests = gateway.NewQuota(maxHolderRequests, f.requests)
	h.profile.Clients = gateway.NewQuota(maxHolderClients, f.clients)
	h.profile.Bodies = gateway.NewQuota(maxHolderBodies, f.bodies)
	if who.ID != operator {
		h.profile.Holder = who.Name
		h.profile.Grant = both{f.o.Profile.Grant, f.o.Narrow(who)}
		if f.o.Exposure != nil {
			h.profile.Exposure = f.o.Exposure(who)
		}
	}
	h.mux = http.NewServeMux()
	h.mux.HandleFunc("/mcp", func(w http.ResponseWriter, r *http.Request) { h.serve(w, r, "") })
	h.mux.HandleFunc("/mcp/{name...}", func(w http.ResponseWriter, r *http.Request) { h.serve(w, r, r.PathValue("name")) })
	return h
}

func (h *holder) serve(w http.ResponseWriter, r *http.Request, name string) {
	if name != "" {
		if _, ok := h.f.rt.Config().Server(name); !ok || h.profile.Grant != nil && !h.profile.Grant.AllowsServer(name) {
			http.Error(w, fmt.Sprintf("there is no server %q here", name), http.StatusNotFound)
			return
		}
	}
	e := h.endpoint(name)
	if e == nil {
		busy(w, errStopping.Error())
		return
	}
	e.ServeHTTP(w, r)
}

// endpoint returns the endpoint of a path, made when it is first asked for; nil when none is made any more.
func (h *holder) endpoint(name string) *gateway.Endpoint {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.all[name]
	if e == nil && !h.over {
		p := h.profile
		p.Single = name
		e = gateway.New(h.f.rt, p, h.f.o.Version, h.f.o.Log)
		h.all[name] = e
	}
	return e
}

// last returns the endpoints. No more are made from now on.
func (h *holder) last() []*gateway.Endpoint {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	return slices.Collect(maps.Values(h.all))
}

// close ends the holder's clients and their servers, and waits for them, bounded by ctx.
func (h *holder) close(ctx context.Context) {
	each(h.last(), func(e *gateway.Endpoint) { e.Close(ctx) })
}

// good reports whether the holder's token is good still, as far as that is known here, and it has clients or had some a short time ago.
func (h *holder) good() bool {
	h.f.mu.Lock()
	quiet := time.Since(h.seen) > forgetAfter
	h.f.mu.Unlock()
	if quiet && h.profile.Clients.Used() == 0 && h.requests.Used() == 0 {
		return false
	}
	return !h.f.o.Tokens.Issued(h.who) || h.f.o.Tokens.Good(h.who)
}

// both allows what each of two grants allows.
type both struct{ outer, inner runtime.Grant }

func (b both) AllowsServer(server string) bool {
	return (b.outer == nil || b.outer.AllowsServer(server)) && b.inner.AllowsServer(server)
}

func (b both) Allows(server, tool string) (bool, string) {
	if b.outer != nil {
		if ok, why := b.outer.Allows(server, tool); !ok {
			return false, why
		}
	}
	return b.inner.Allows(server, tool)
}

func (b both) Policy() *config.Sandbox {
	if b.outer == nil {
		return b.inner.Policy()
	}
	return authority.Narrower(b.outer.Policy(), b.inner.Policy())
}
