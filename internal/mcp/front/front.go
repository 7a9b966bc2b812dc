// Package front is the gateway on HTTP, as many may reach it at the same time: who may come (package access), what each of them sees (an
// endpoint of package gateway of its own), how many and how much there may be, TLS, and the end.
package front

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"nightporter/internal/mcp/access"
	"nightporter/internal/mcp/gateway"
	"nightporter/internal/mcp/runtime"
	"nightporter/internal/secret"
)

// What there may be at a time. In each pair, one holder of a token gets at most a part, so that no one of them can take what there is for all.
const (
	// maxClients bounds sessions and stateless clients. One costs some 20 KiB, and the servers that it uses, which max_servers bounds.
	maxClients       = 4000
	maxHolderClients = 1000
	// maxRequests bounds requests, streams included. Each is a connection (see maxConnections) and two goroutines.
	maxRequests       = 3000
	maxHolderRequests = 1000
	// maxBodies bounds the bytes of requests that are in flight: eight of the largest that is taken.
	maxBodies       = 256 << 20
	maxHolderBodies = 128 << 20
	// maxHolders bounds those who have clients, or had until a short time ago. Tokens of the store are no more; it is for those of an
	// authorization server.
	maxHolders = 2000
)

const (
	// watchEvery is how often tokens are looked at: the streams of one that was revoked, or has expired, end that soon. A new request is
	// checked when it comes.
	watchEvery = time.Second
	// tellAgain is when the operator is told again of failures of ours.
	tellAgain = time.Minute
	// forgetAfter is when a holder is forgotten that has no clients.
	forgetAfter = 5 * time.Minute
	// retirePatience bounds the end of the servers of a holder whose token is good no more.
	retirePatience = 15 * time.Second
	// comeAgain is when a client may try again that was refused because of what others do.
	comeAgain = 5 * time.Second
)

// Options say what is served, and to whom.
type Options struct {
	// Profile is what who has the operator's own token sees; its Grant bounds what all others reach. Single, Holder, Clients and Bodies are
	// set here.
	Profile gateway.Profile
	Token   secret.String // the operator's own; must not be empty
	Tokens  *access.Store // of others; may be nil
	OAuth   *access.OAuth // whose access tokens are taken, too; may be nil
	Version string        // Nightporter's
	Log     *slog.Logger  // may be nil
	Hosts   []string      // names in the Host header besides loopback's
	Origins []string      // Origin headers besides loopback's
	Conns   *Conns        // the connections that requests come on; may be nil
	// Narrow makes the grant of a holder, which counts beside the profile's.
	Narrow func(access.Holder) runtime.Grant
	// Exposure is how a holder sees tools. May be nil: as the profile says.
	Exposure func(access.Holder) gateway.Exposure
}

// Front is an http.Handler for /mcp, /mcp/NAME and, with OAuth, its metadata.
type Front struct {
	rt      *runtime.Runtime
	o       Options
	handler http.Handler

	clients, requests, bodies *gateway.Quota

	mu      sync.Mutex
	holders map[string]*holder
	guests  map[*gateway.Endpoint]struct{} // of clients that did not come over HTTP
	closing bool
	told    time.Time // when the operator was last told of a failure of ours

	stop context.CancelFunc // of the watch
	wg   sync.WaitGroup     // of the watch, and the ends of holders
}

// New makes a front. The caller closes it.
func New(rt *runtime.Runtime, o Options) *Front {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	f := &Front{
		rt: rt, o: o, holders: map[string]*holder{}, guests: map[*gateway.Endpoint]struct{}{},
		clients: gateway.NewQuota(maxClients, nil), requests: gateway.NewQuota(maxRequests, nil), bodies: gateway.NewQuota(maxBodies, nil),
	}
	mux := http.NewServeMux()
	mux.Handle("/", &gateway.Guard{Authorize: f.authorize, AllowedHosts: o.Hosts, AllowedOrigins: o.Origins})
	if o.OAuth != nil {
		// For everybody, web pages of any origin included: it is how they find out where to get a token.
		metadata := gateway.Bounded(o.OAuth.Metadata())
		for _, path := range []string{access.MetadataPath, access.MetadataPath + "/mcp", access.MetadataPath + "/mcp/{name}"} {
			mux.Handle(path, metadata)
		}
	}
	f.handler = mux
	ctx, cancel := context.WithCancel(context.Background())
	f.stop = cancel
	f.wg.Go(func() { f.watch(ctx) })
	return f
}

func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) { f.handler.ServeHTTP(w, r) }

// operator is the holder of the operator's own token.
const operator = "operator"

// who finds the holder of a request's credential.
func (f *Front) who(r *http.Request) (access.Holder, *access.Denial) {
	challenge := func(d *access.Denial) *access.Denial {
		if f.o.OAuth != nil {
			return f.o.OAuth.Challenge(d)
		}
		return d
	}
	token := access.Bearer(r)
	switch {
	case token == "":
		return access.Holder{}, challenge(access.NoToken())
	case gateway.Equal(f.o.Token, token):
		return access.Holder{ID: operator}, nil
	}
	if f.o.Tokens != nil {
		h, ok, err := f.o.Tokens.Find(token)
		switch {
		case ok:
			return h, nil
		case err != nil:
			return access.Holder{}, &access.Denial{
				Status: http.StatusServiceUnavailable, Retry: comeAgain, Cause: err,
				Reason: "the gateway cannot read its tokens, and without them none is accepted",
			}
		}
	}
	if f.o.OAuth != nil {
		return f.o.OAuth.Find(r.Context(), token)
	}
	return access.Holder{}, access.BadToken("this is no bearer token of this gateway, or it was revoked or has expired")
}

func (f *Front) authorize(r *http.Request) (http.Handler, *access.Denial) {
	who, denial := f.who(r)
	if denial != nil {
		f.tell(denial)
		return nil, denial
	}
	known(r.Context())
	h, denial := f.holder(who)
	if denial != nil {
		return nil, denial
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !h.requests.Take(1) {
			busy(w, "too many requests are in flight")
			return
		}
		defer h.requests.Give(1)
		if !who.Expires.IsZero() {
			// A stream ends with the token that it was opened with, also where its holder has another one by now.
			ctx, done := context.WithDeadline(r.Context(), who.Expires)
			defer done()
			r = r.WithContext(ctx)
		}
		h.mux.ServeHTTP(w, r)
	}), nil
}

// tell tells the operator of a failure of ours, and of one that goes on not at each request: anybody can make as many as he likes.
func (f *Front) tell(d *access.Denial) {
	if d.Cause == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); now.Sub(f.told) > tellAgain {
		f.told = now
		f.o.Log.Warn(d.Reason, "error", d.Cause)
	}
}

func busy(w http.ResponseWriter, why string) {
	(&access.Denial{Status: http.StatusServiceUnavailable, Retry: comeAgain, Reason: why}).Write(w)
}

// holder returns what is kept of a holder while it has clients.
func (f *Front) holder(who access.Holder) (*holder, *access.Denial) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if h := f.holders[who.ID]; h != nil {
		h.seen = time.Now()
		return h, nil
	}
	if f.closing || len(f.holders) >= maxHolders {
		reason := errStopping.Error()
		if !f.closing {
			reason = "too many people use the gateway"
		}
		return nil, &access.Denial{Status: http.StatusServiceUnavailable, Retry: comeAgain, Reason: reason}
	}
	h := newHolder(f, who)
	f.holders[who.ID] = h
	return h, nil
}

var errStopping = errors.New("the gateway is stopping")

// Host makes an endpoint for a client that does not come over HTTP. The caller calls end.
func (f *Front) Host(p gateway.Profile) (e *gateway.Endpoint, end func(context.Context), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closing {
		return nil, nil, errStopping
	}
	p.Clients = f.clients
	e = gateway.New(f.rt, p, f.o.Version, f.o.Log)
	f.guests[e] = struct{}{}
	return e, func(ctx context.Context) {
		e.Close(ctx)
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.guests, e)
	}, nil
}

// watch ends what holders have whose tokens are good no more, and forgets those who have gone.
func (f *Front) watch(ctx context.Context) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			f.look()
		case <-ctx.Done():
			return
		}
	}
}

func (f *Front) look() {
	f.mu.Lock()
	all := slices.Collect(maps.Values(f.holders))
	f.mu.Unlock()
	for _, h := range all {
		if h.good() {
			continue
		}
		f.mu.Lock()
		if f.holders[h.who.ID] == h {
			delete(f.holders, h.who.ID)
			f.wg.Go(func() {
				ctx, done := context.WithTimeout(context.Background(), retirePatience)
				defer done()
				h.close(ctx)
			})
		}
		f.mu.Unlock()
	}
}

// endpoints are all that there are. No more are made from now on.
func (f *Front) endpoints() []*gateway.Endpoint {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closing = true
	all := slices.Collect(maps.Keys(f.guests))
	for _, h := range f.holders {
		all = append(all, h.last()...)
	}
	return all
}

// Drain takes no new requests, ends the streams that belong to none, and waits until those in flight are answered, bounded by ctx. It
// reports whether all were answered.
func (f *Front) Drain(ctx context.Context) bool {
	answered := true
	var mu sync.Mutex
	each(f.endpoints(), func(e *gateway.Endpoint) {
		ok := e.Drain(ctx)
		mu.Lock()
		defer mu.Unlock()
		answered = answered && ok
	})
	return answered
}

// Close ends all clients and their servers, and waits for them, bounded by ctx.
func (f *Front) Close(ctx context.Context) {
	each(f.endpoints(), func(e *gateway.Endpoint) { e.Close(ctx) })
	f.stop()
	f.wg.Wait() // the ends of holders are bounded
}

func each(all []*gateway.Endpoint, do func(*gateway.Endpoint)) {
	var wg sync.WaitGroup
	for _, e := range all {
		wg.Go(func() { do(e) })
	}
	wg.Wait()
}

// Serve serves on l until ctx ends. Then what is in flight is answered, for as long as drain says; new requests are told to come again;
// and servers are ended, for which patience is given. When kill is closed, all that is cut short.
func (f *Front) Serve(ctx context.Context, kill <-chan struct{}, l net.Listener, drain, patience time.Duration) error {
	server := gateway.Server(f)
	// One protocol, of which the bounds of connections and streams are known. A proxy in front can speak others.
	server.Protocols = new(http.Protocols)
	server.Protocols.SetHTTP1(true)
	server.ErrorLog = slog.NewLogLogger(f.o.Log.Handler(), slog.LevelDebug) // anybody can cause these lines
	if f.o.Conns != nil {
		server.ConnContext, server.ConnState = connContext, f.o.Conns.state
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		ending, done := cutShort(context.Background(), kill, patience)
		defer done()
		f.Close(ending)
		return err
	case <-ctx.Done():
	}
	draining, done := cutShort(context.Background(), kill, drain)
	if !f.Drain(draining) {
		f.o.Log.Warn(fmt.Sprintf("requests were cut off that had no answer after %v", drain))
	}
	done()
	ending, done := cutShort(context.Background(), kill, patience)
	defer done()
	f.Close(ending)
	if f.o.Conns != nil {
		f.o.Conns.dropStrangers() // Shutdown would wait for them to say something
	}
	err := server.Shutdown(ending)
	if err != nil {
		server.Close()
		err = nil // they had their time
	}
	if served := <-failed; !errors.Is(served, http.ErrServerClosed) {
		err = served
	}
	return err
}

// cutShort is a context of a time that kill ends as well.
func cutShort(parent context.Context, kill <-chan struct{}, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(parent, d)
	over := make(chan struct{})
	go func() {
		defer close(over)
		select {
		case <-kill:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel()
		<-over
	}
}
