package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"nightporter/internal/mcp/oauth"
	"nightporter/internal/mcp/runtime"
	"nightporter/test/authlab"
	"nightporter/test/lab"
)

// protected is a house with one server, "far", that wants a login.
type protected struct {
	*house
	auth  *authlab.Server
	dir   string
	entry string
	about oauth.Server
}

func newProtected(t *testing.T, c authlab.Config, g authlab.Gate, more string) *protected {
	h := newHouse(t)
	p := &protected{house: h, auth: authlab.Start(t, c), dir: t.TempDir()}
	url := p.auth.Protect(t, lab.Serve(t, lab.Config{Name: "far", Tools: lab.Tools("echo", "pid"), Log: h.recorder.Address}), g)
	p.entry = fmt.Sprintf("[mcp_servers.far]\nurl = %q\n%s", url, more)
	p.about = oauth.Server{Name: "far", URL: url}
	return p
}

func (p *protected) openIt() *runtime.Scope {
	p.t.Helper()
	store := oauth.Open(p.dir, oauth.Options{Prefer: oauth.InFile})
	rt := p.runtimeWith(runtime.Options{Logins: store}, p.entry)
	return rt.Open(p.ctx, runtime.ScopeOptions{Name: "test", Dir: p.t.TempDir(), Owner: &owner{}})
}

// login logs in as another process does: with a store of its own.
func (p *protected) login() {
	p.t.Helper()
	store := oauth.Open(p.dir, oauth.Options{Prefer: oauth.InFile})
	_, err := store.Login(p.ctx, p.about, oauth.LoginOptions{
		Flow: oauth.Browser, Say: func(string, ...any) {},
		Open: func(_ context.Context, address string) error { _, err := authlab.Browse(address, true); return err },
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

// needsLogin checks that a call is refused with the command to run, and that status says the same.
func (p *protected) needsLogin(s *runtime.Scope) {
	p.t.Helper()
	_, err := p.call(s, "far", "echo", `{"text":"x"}`)
	var login *oauth.LoginError
	if !errors.As(err, &login) || !strings.Contains(err.Error(), "nightporter servers login far") {
		p.t.Fatalf("the call's error is %v", err)
	}
	st := s.Status()[0]
	if st.State != runtime.StateFailed || st.Code != runtime.CodeNeedsLogin || st.Login != "nightporter servers login far" {
		p.t.Errorf("status %+v", st)
	}
}

func (p *protected) works(s *runtime.Scope) {
	p.t.Helper()
	if _, err := p.call(s, "far", "echo", `{"text":"x"}`); err != nil {
		p.t.Fatal(err)
	}
	if st := s.Status()[0]; st.State != runtime.StateReady || st.Code != "" {
		p.t.Errorf("status %+v", st)
	}
}

func TestA38AServerThatWantsALoginSaysSoAndRecoversOnceThereIsOne(t *testing.T) {
	p := newProtected(t, authlab.Config{}, authlab.Gate{}, "")
	s := p.openIt()
	p.needsLogin(s)
	p.needsLogin(s)
	p.login()
	p.works(s)
}

func TestA38ToolsStayListedWhileALoginIsNeeded(t *testing.T) {
	p := newProtected(t, authlab.Config{}, authlab.Gate{}, "")
	p.dir = t.TempDir()
	p.login()
	first := p.openIt()
	p.works(first)
	_, _, _, err := oauth.Open(p.dir, oauth.Options{}).Logout(p.ctx, p.about)
	if err != nil {
		t.Fatal(err)
	}
	p.auth.Revoke()
	p.needsLogin(first) // its connection is there, and of no use any more
	if got := names(first.Tools()); !slices.Equal(got, []string{"far/echo", "far/pid"}) {
		t.Errorf("tools %v", got)
	}
	// And whoever comes later knows without asking the server.
	second := p.openIt()
	if st := second.Status()[0]; st.Code != runtime.CodeNeedsLogin {
		t.Errorf("status %+v", st)
	}
	p.login()
	p.works(first)
}

func TestA38ALoginThatEndsWhileTheServerRuns(t *testing.T) {
	p := newProtected(t, authlab.Config{}, authlab.Gate{}, "")
	p.login()
	s := p.openIt()
	p.works(s)
	p.auth.Expire() // the refresh token is still good
	p.works(s)
	p.auth.Revoke()
	p.needsLogin(s)
	p.login()
	p.works(s)
	if p.auth.Reused() {
		t.Error("a refresh token was used twice")
	}
}

func TestA38AToolThatNeedsMoreScopesCostsThatCallAlone(t *testing.T) {
	p := newProtected(t, authlab.Config{}, authlab.Gate{Needs: map[string]string{"tool:pid": "admin"}}, "")
	p.login()
	s := p.openIt()
	p.works(s)
	generation := s.Status()[0].Generation
	_, err := p.call(s, "far", "pid", "{}")
	var login *oauth.LoginError
	if !errors.As(err, &login) || !login.More || !slices.Equal(login.Scopes, []string{"admin"}) {
		t.Fatalf("error %v", err)
	}
	p.works(s)
	p.login() // asks for what the server wanted
	if _, err := p.call(s, "far", "pid", "{}"); err != nil {
		t.Error(err)
	}
	if got := s.Status()[0].Generation; got != generation {
		t.Errorf("generation %d, want %d: the connection need not have ended", got, generation)
	}
}

func TestA38ATokenGoesToItsServerAlone(t *testing.T) {
	var mu sync.Mutex
	var leaked []string
	thief := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		leaked = append(leaked, r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusTeapot)
	}))
	defer thief.Close()
	p := newProtected(t, authlab.Config{}, authlab.Gate{Redirect: thief.URL}, "")
	p.login()
	if _, err := p.call(p.openIt(), "far", "echo", "{}"); err == nil || !strings.Contains(err.Error(), "307") {
		t.Errorf("error %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(leaked) > 0 {
		t.Errorf("the redirect was followed, with %q", leaked)
	}
}

func TestA38ATokenForAnotherAudienceIsOfNoUse(t *testing.T) {
	p := newProtected(t, authlab.Config{}, authlab.Gate{}, `oauth_resource = "https://other.example.com"`)
	p.about.Resource = "https://other.example.com"
	p.login()
	_, err := p.call(p.openIt(), "far", "echo", "{}")
	if err == nil || !strings.Contains(err.Error(), "the token of the login is refused") {
		t.Errorf("error %v", err)
	}
	for _, token := range p.auth.Live() {
		if strings.Contains(err.Error(), token) {
			t.Error("a token is in the error")
		}
	}
}

func TestA38AConfiguredTokenComesFirst(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]bool{}
	p := newProtected(t, authlab.Config{}, authlab.Gate{Seen: func(a string) {
		mu.Lock()
		defer mu.Unlock()
		seen[a] = true
	}}, `http_headers = { Authorization = "Bearer my-own-token" }`)
	p.login()
	if _, err := p.call(p.openIt(), "far", "echo", "{}"); err == nil || errors.As(err, new(*oauth.LoginError)) {
		t.Errorf("error %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != 1 || !seen["Bearer my-own-token"] {
		t.Errorf("the server saw %v", seen)
	}
}
