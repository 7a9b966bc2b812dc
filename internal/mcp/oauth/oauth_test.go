package oauth_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zalando/go-keyring"
	"go.uber.org/goleak"

	"nightporter/internal/mcp/oauth"
	"nightporter/internal/secret"
	"nightporter/test/authlab"
	"nightporter/test/lab"
)

func TestMain(m *testing.M) {
	if os.Getenv("OAUTH_TEST_PROCESS") != "" {
		os.Exit(process())
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

// bench is a protected server, its authorization server and a store.
type bench struct {
	auth   *authlab.Server
	store  *oauth.Store
	dir    string
	server oauth.Server
	said   *strings.Builder
}

func newBench(t *testing.T, c authlab.Config, g authlab.Gate) *bench {
	t.Helper()
	b := &bench{auth: authlab.Start(t, c), dir: t.TempDir(), said: &strings.Builder{}}
	b.store = oauth.Open(b.dir, oauth.Options{Prefer: oauth.InFile})
	upstream := lab.Serve(t, lab.Config{Name: "up", Tools: lab.Tools("echo")})
	b.server = oauth.Server{Name: "up", URL: b.auth.Protect(t, upstream, g)}
	return b
}

// browser is a person who agrees to everything.
func (b *bench) browser() oauth.LoginOptions {
	return oauth.LoginOptions{
		Flow: oauth.Browser,
		Say:  func(format string, args ...any) { fmt.Fprintf(b.said, format+"\n", args...) },
		Open: func(_ context.Context, address string) error { _, err := authlab.Browse(address, true); return err },
	}
}

func (b *bench) login(t *testing.T) *oauth.Account {
	t.Helper()
	a, err := b.store.Login(within(t), b.server, b.browser())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (b *bench) token(t *testing.T) string {
	t.Helper()
	token, err := b.store.Source(b.server).Token(within(t))
	if err != nil {
		t.Fatal(err)
	}
	return token.Reveal()
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestBrowserLoginGivesATokenForThisServer(t *testing.T) {
	b := newBench(t, authlab.Config{Scopes: []string{"offline_access", "read"}}, authlab.Gate{})
	a := b.login(t)
	if a.Issuer != b.auth.Issuer || a.Resource != b.server.URL || a.Subject != "night@example.com" || !a.Renews || a.Kept != oauth.InFile {
		t.Errorf("account %+v", a)
	}
	if got := b.token(t); !strings.HasPrefix(got, "access-") {
		t.Errorf("token %q", got)
	}
	form := b.auth.Forms()[0]
	if form.Get("resource") != b.server.URL || form.Get("code_verifier") == "" {
		t.Errorf("token request %v", form)
	}
	if len(a.Scopes) != 1 || a.Scopes[0] != "offline_access" {
		t.Errorf("scopes %v; offline_access alone was to be asked for, as no others were named", a.Scopes)
	}
}

// pastes is a person who opens the address somewhere and pastes where that ends.
func (b *bench) pastes() oauth.LoginOptions {
	o := b.browser()
	o.Flow, o.Open = oauth.Paste, nil
	asked := make(chan string, 1)
	o.Say = func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); strings.Contains(text, "/authorize?") {
			asked <- regexp.MustCompile(`http\S+`).FindString(text)
		}
	}
	o.Ask = func(context.Context) (string, error) { return authlab.Browse(<-asked, false) }
	return o
}

func TestPastedLogin(t *testing.T) {
	b := newBench(t, authlab.Config{}, authlab.Gate{})
	if _, err := b.store.Login(within(t), b.server, b.pastes()); err != nil {
		t.Fatal(err)
	}
	if b.token(t) == "" {
		t.Error("no token")
	}
}

func TestAPastedAddressOfAnotherLoginIsRefused(t *testing.T) {
	b := newBench(t, authlab.Config{State: "another"}, authlab.Gate{})
	_, err := b.store.Login(within(t), b.server, b.pastes())
	wantError(t, err, "another login")
	if b.auth.Count("/token") != 0 {
		t.Error("the code was exchanged")
	}
}

func TestARedirectWithAWrongStateIsIgnored(t *testing.T) {
	b := newBench(t, authlab.Config{}, authlab.Gate{})
	o := b.browser()
	o.Open = func(_ context.Context, address string) error {
		u, _ := url.Parse(address)
		for _, forged := range slices.Repeat([]string{"?code=stolen&state=guess", "?code=stolen", ""}, 10) { // while the browser is being opened
			response, err := http.Get(u.Query().Get("redirect_uri") + forged)
			if err != nil {
				return err
			}
			response.Body.Close()
		}
		_, err := authlab.Browse(address, true)
		return err
	}
	if _, err := b.store.Login(within(t), b.server, o); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.said.String(), "its state is wrong"); n > 1 {
		t.Errorf("told %d times of wrong redirects:\n%s", n, b.said)
	}
}

func TestDeviceLogin(t *testing.T) {
	b := newBench(t, authlab.Config{}, authlab.Gate{})
	o := b.browser()
	o.Flow = oauth.Device
	o.Say = func(format string, args ...any) {
		if code := regexp.MustCompile(`enter the code (\S+)`).FindStringSubmatch(fmt.Sprintf(format, args...)); code != nil && !b.auth.Approve(code[1]) {
			t.Errorf("the code %s is not one", code[1])
		}
	}
	if _, err := b.store.Login(within(t), b.server, o); err != nil {
		t.Fatal(err)
	}
	if b.token(t) == "" {
		t.Error("no token")
	}
}

func TestWithoutABrowserTheDeviceFlowIsTaken(t *testing.T) {
	b := newBench(t, authlab.Config{}, authlab.Gate{})
	ctx, cancel := context.WithCancel(within(t))
	o := b.browser()
	o.Flow, o.Open = oauth.Auto, nil
	o.Say = func(format string, args ...any) {
		if strings.Contains(format, "until the code is entered") {
			cancel()
		}
	}
	if _, err := b.store.Login(ctx, b.server, o); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the cancelled context", err)
	}
	if b.auth.Count("/device") != 1 {
		t.Error("no device authorization was asked for")
	}
}

// wantError checks that a login failed, and why.
func wantError(t *testing.T, err error, words string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), words) {
		t.Errorf("error %v, want one with %q", err, words)
	}
}

func TestUnsafeLoginsAreRefused(t *testing.T) {
	for _, test := range []struct {
		name  string
		auth  authlab.Config
		gate  authlab.Gate
		words string
	}{
		{"an answer of another issuer", authlab.Config{Iss: "https://evil.example.com"}, authlab.Gate{}, "is from https://evil.example.com"},
		{"PKCE that is not offered", authlab.Config{Methods: []string{}}, authlab.Gate{}, "PKCE"},
		{"PKCE that is downgraded", authlab.Config{Methods: []string{"plain"}}, authlab.Gate{}, "PKCE with S256"},
		{
			"metadata of another resource",
			authlab.Config{},
			authlab.Gate{Metadata: map[string]any{"resource": "https://evil.example.com/mcp", "authorization_servers": []string{"https://evil.example.com"}}},
			"another resource",
		},
		{"metadata at another origin", authlab.Config{}, authlab.Gate{Header: `Bearer resource_metadata="https://evil.example.com/m"`}, "another origin"},
		{"a person who says no", authlab.Config{Deny: "access_denied"}, authlab.Gate{}, "access_denied"},
		{"no registration", authlab.Config{NoRegistration: true}, authlab.Gate{}, "oauth.client_id"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, test.auth, test.gate)
			// The server's own refusal says where its metadata is.
			response, err := http.Post(b.server.URL, "application/json", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			var needs *oauth.LoginError
			if _, err := b.store.Source(b.server).Refused(within(t), secret.String{}, response.StatusCode, response.Header, false); !errors.As(err, &needs) {
				t.Fatalf("the refusal gives %v", err)
			}
			_, err = b.store.Login(within(t), b.server, b.browser())
			wantError(t, err, test.words)
			if b.auth.Count("/token") != 0 {
				t.Error("tokens were asked for")
			}
			if a, _ := b.store.Account(b.server); a != nil && a.LoggedIn {
				t.Error("there is a login")
			}
		})
	}
}

func TestAnIssuerThatPromisesIssMustSendIt(t *testing.T) {
	b := newBench(t, authlab.Config{}, authlab.Gate{})
	o := b.browser()
	o.Open = func(_ context.Context, address string) error {
		back, err := authlab.Browse(address, false)
		if err != nil {
			return err
		}
		u, _ := url.Parse(back)
		q := u.Query()
		q.Del("iss")
		u.RawQuery = q.Encode()
		response, err := http.Get(u.String())
		if err == nil {
			response.Body.Close()
		}
		return err
	}
	_, err := b.store.Login(within(t), b.server, o)
	wantError(t, err, "does not say who it is from")
}

func TestPlainHTTPAndThisMachineAreNoPlacesForTokens(t *testing.T) {
	metadata := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was asked") }))
	defer metadata.Close()
	store := oauth.Open(t.TempDir(), oauth.Options{Prefer: oauth.InFile})
	_, err := store.Login(within(t), oauth.Server{Name: "lan", URL: "http://192.0.2.1/mcp"}, (&bench{said: &strings.Builder{}}).browser())
	wantError(t, err, "https alone")
}

func TestTokensAreRenewedBeforeTheyEnd(t *testing.T) {
	b := newBench(t, authlab.Config{Life: 5 * time.Second}, authlab.Gate{}) // less than the margin
	b.login(t)
	first, second := b.token(t), b.token(t)
	if first == second {
		t.Error("the token was not renewed although it is about to end")
	}
	if b.auth.Reused() {
		t.Error("a refresh token was used twice")
	}
	for _, form := range b.auth.Forms() {
		if form.Get("resource") != b.server.URL {
			t.Errorf("a request for tokens names the resource %q", form.Get("resource"))
		}
	}
}

func TestALoginThatEndedIsALoginErrorUntilThereIsANewOne(t *testing.T) {
	b := newBench(t, authlab.Config{Life: 5 * time.Second}, authlab.Gate{})
	b.login(t)
	b.auth.Revoke()
	source := b.store.Source(b.server)
	_, err := source.Token(within(t))
	var needs *oauth.LoginError
	if !errors.As(err, &needs) || needs.Outdated() || !strings.Contains(err.Error(), "run: nightporter servers login up") {
		t.Fatalf("error %v", err)
	}
	asked := b.auth.Count("/token")
	if _, err := source.Token(within(t)); err == nil || b.auth.Count("/token") != asked {
		t.Error("a login that has ended was tried again")
	}
	// As another process does it.
	other := oauth.Open(b.dir, oauth.Options{Prefer: oauth.InFile})
	if _, err := other.Login(within(t), b.server, b.browser()); err != nil {
		t.Fatal(err)
	}
	if !needs.Outdated() {
		t.Error("the error is not outdated by the new login")
	}
	if token, err := source.Token(within(t)); err != nil || token.Empty() {
		t.Errorf("after the new login: %v", err)
	}
}

func TestAnAuthorizationServerThatIsDownEndsNoLogin(t *testing.T) {
	b := newBench(t, authlab.Config{Life: 5 * time.Second}, authlab.Gate{})
	a := b.login(t)
	down := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }))
	defer down.Close()
	path := accountFile(t, b.dir)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	broken := strings.Replace(string(data), a.TokenEndpoint, down.URL, 1)
	if err := os.WriteFile(path, []byte(broken), 0o600); err != nil {
		t.Fatal(err)
	}
	if token, err := b.store.Source(b.server).Token(within(t)); err != nil || token.Empty() {
		t.Errorf("the token that is still good is not used: %v", err)
	}
	if a, _ := b.store.Account(b.server); a.NeedsLogin() {
		t.Error("the login has ended")
	}
}

// accountFile is the one account in a store's folder.
func accountFile(t *testing.T, dir string) string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(paths) != 1 {
		t.Fatalf("accounts %v, %v", paths, err)
	}
	return paths[0]
}

// TestManyProcessesNeverUseARefreshTokenTwice has real processes renew tokens that are always about to end, against a server that
// ends the login at the first second use.
func TestManyProcessesNeverUseARefreshTokenTwice(t *testing.T) {
	b := newBench(t, authlab.Config{Life: time.Second}, authlab.Gate{})
	b.login(t)
	const processes, each = 4, 10
	var wg sync.WaitGroup
	var got atomic.Int32
	for range processes {
		wg.Go(func() {
			cmd := exec.CommandContext(within(t), os.Args[0])
			about, _ := json.Marshal(map[string]string{"dir": b.dir, "url": b.server.URL, "each": fmt.Sprint(each)})
			cmd.Env = append(os.Environ(), "OAUTH_TEST_PROCESS="+string(about))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v: %s", err, out)
			}
			got.Add(int32(strings.Count(string(out), "token\n")))
		})
	}
	wg.Wait()
	if b.auth.Reused() {
		t.Error("a refresh token was used twice, and the login has ended")
	}
	if got.Load() != processes*each {
		t.Errorf("%d tokens, want %d", got.Load(), processes*each)
	}
	if n := b.auth.Count("/token"); n <= processes {
		t.Errorf("%d requests for tokens: nothing was renewed", n)
	}
}

// process is one of those processes: it takes tokens from two sources at once.
func process() int {
	var about struct{ Dir, URL, Each string }
	if err := json.Unmarshal([]byte(os.Getenv("OAUTH_TEST_PROCESS")), &about); err != nil {
		fmt.Println(err)
		return 1
	}
	each := 0
	_, _ = fmt.Sscan(about.Each, &each)
	store := oauth.Open(about.Dir, oauth.Options{Prefer: oauth.InFile})
	failed := atomic.Bool{}
	var wg sync.WaitGroup
	for range 2 {
		source := store.Source(oauth.Server{Name: "up", URL: about.URL})
		wg.Go(func() {
			for range each / 2 {
				if token, err := source.Token(context.Background()); err != nil || token.Empty() {
					fmt.Println("no:", err)
					failed.Store(true)
					continue
				}
				fmt.Println("token")
			}
		})
	}
	wg.Wait()
	if failed.Load() {
		return 1
	}
	return 0
}

func TestLogoutRevokesAndForgets(t *testing.T) {
	b := newBench(t, authlab.Config{}, authlab.Gate{})
	b.login(t)
	account, revoked, why, err := b.store.Logout(within(t), b.server)
	if account == nil || !revoked || why != nil || err != nil {
		t.Fatalf("logout: %v, %v, %v, %v", account, revoked, why, err)
	}
	if live := b.auth.Live(); len(live) > 0 {
		t.Errorf("%d tokens are still good", len(live))
	}
	if b.token(t) != "" {
		t.Error("there is still a token")
	}
	left, _ := filepath.Glob(filepath.Join(b.dir, "tokens", "*"))
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if account, _, _, err := b.store.Logout(within(t), b.server); account != nil || err != nil {
		t.Errorf("a second logout: %v, %v", account, err)
	}
}

func TestSecretsAreInTheKeyringOrInAFileOfTheirOwn(t *testing.T) {
	keyring.MockInit()
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere") // the mock stands in for what is behind it
	for _, place := range []oauth.Place{oauth.InKeyring, oauth.InFile} {
		t.Run(string(place), func(t *testing.T) {
			b := newBench(t, authlab.Config{AuthMethods: []string{"client_secret_basic"}}, authlab.Gate{})
			b.store = oauth.Open(b.dir, oauth.Options{Prefer: place})
			if a := b.login(t); a.Kept != place {
				t.Errorf("kept in %s", a.Kept)
			}
			token := b.token(t)
			if token == "" {
				t.Fatal("no token")
			}
			found := 0
			err := filepath.WalkDir(b.dir, func(path string, entry os.DirEntry, err error) error {
				if err != nil {
					return err
				}
				info, err := entry.Info()
				if err != nil {
					return err
				}
				if info.Mode().Perm()&0o077 != 0 && entry.Name() != filepath.Base(b.dir) {
					t.Errorf("%s has the mode %v", path, info.Mode())
				}
				if entry.IsDir() {
					return nil
				}
				data, err := os.ReadFile(path)
				if strings.Contains(string(data), token) {
					found++
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if want := map[oauth.Place]int{oauth.InKeyring: 0, oauth.InFile: 1}[place]; found != want {
				t.Errorf("the token is in %d files, want %d", found, want)
			}
			account, _, _, err := b.store.Logout(within(t), b.server)
			if account == nil || err != nil {
				t.Errorf("logout: %v", err)
			}
		})
	}
}

func TestClientsAreRegisteredOnceAndTheConfiguredOneFirst(t *testing.T) {
	b := newBench(t, authlab.Config{Documents: true}, authlab.Gate{})
	b.login(t)
	b.login(t)
	if n := b.auth.Count("/register"); n != 1 {
		t.Errorf("registered %d times", n)
	}
	b.server.ClientID = "https://nightporter.example/client.json"
	if a := b.login(t); a.ClientID != b.server.ClientID {
		t.Errorf("client %s, want the one with a metadata document", a.ClientID)
	}
	b.server.ClientID, b.server.ClientSecret = "by-hand", secret.New("very secret")
	b.server.Callback = "http://127.0.0.1:0/here"
	if a := b.login2(t); a.ClientID != "by-hand" {
		t.Errorf("client %s, want the configured one", a.ClientID)
	}
	if n := b.auth.Count("/register"); n != 1 {
		t.Errorf("registered %d times", n)
	}
}

// login2 logs in as the client that was registered by hand, at a port that is free now.
func (b *bench) login2(t *testing.T) *oauth.Account {
	t.Helper()
	l := httptest.NewServer(nil)
	address := l.URL + "/here"
	l.Close()
	b.server.Callback = address
	b.auth.Register("by-hand", "very secret", address)
	return b.login(t)
}

func TestStepUpKeepsTheScopesThatThereWere(t *testing.T) {
	b := newBench(t, authlab.Config{}, authlab.Gate{})
	b.server.Scopes = []string{"read"}
	b.login(t)
	b.server.Scopes = nil
	h := http.Header{"Www-Authenticate": {`Bearer error="insufficient_scope", scope="write"`}}
	_, err := b.store.Source(b.server).Refused(within(t), secret.New(b.token(t)), http.StatusForbidden, h, false)
	var needs *oauth.LoginError
	if !errors.As(err, &needs) || !needs.More {
		t.Fatalf("error %v", err)
	}
	if b.token(t) == "" {
		t.Error("what there is must stay of use")
	}
	if a := b.login(t); strings.Join(a.Scopes, " ") != "read write" {
		t.Errorf("scopes %v, want read and write", a.Scopes)
	}
}

func TestARefusalForAnotherReasonIsNoLogin(t *testing.T) {
	b := newBench(t, authlab.Config{}, authlab.Gate{})
	other, err := b.store.Source(b.server).Refused(within(t), secret.String{}, http.StatusForbidden, http.Header{}, false)
	if !other || err != nil {
		t.Errorf("%v, %v", other, err)
	}
}

func TestNoTokenIsInWhatIsSaid(t *testing.T) {
	b := newBench(t, authlab.Config{}, authlab.Gate{})
	b.login(t)
	token := b.token(t)
	h := http.Header{"Www-Authenticate": {`Bearer error="invalid_token", error_description="bad token ` + token + `"`}}
	b.auth.Revoke()
	_, err := b.store.Source(b.server).Refused(within(t), secret.New(token), http.StatusUnauthorized, h, true)
	wantError(t, err, "bad token ***")
	for _, text := range []string{err.Error(), b.said.String()} {
		if strings.Contains(text, token) || strings.Contains(text, "refresh-") {
			t.Errorf("a token is in %q", text)
		}
	}
}

func TestACancelledLoginEndsAtOnce(t *testing.T) {
	b := newBench(t, authlab.Config{}, authlab.Gate{})
	ctx, cancel := context.WithCancel(within(t))
	o := b.browser()
	o.Open = func(context.Context, string) error { cancel(); return nil }
	if _, err := b.store.Login(ctx, b.server, o); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
