package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"nightporter/internal/config"
	"nightporter/internal/live"
	"nightporter/internal/mcp/oauth"
	mcpruntime "nightporter/internal/mcp/runtime"
)

type serversLoginCmd struct {
	one
	Browser bool     `xor:"flow" help:"Use a browser on this machine."`
	Device  bool     `xor:"flow" help:"Use a browser on any machine, where a code is typed."`
	Paste   bool     `xor:"flow" help:"Use a browser on any machine, and paste the address that it ends at."`
	Scope   []string `sep:"none" placeholder:"SCOPE" help:"Ask for this scope and no others. May be repeated."`
	Store   *string  `enum:"keyring,file" placeholder:"keyring|file" help:"Where the tokens are kept. Default: the system's keyring when it works, else a file that only you can read; a file when NIGHTPORTER_HOME is set."`
	JSON    bool     `name:"json" help:"Print what came of it as one object."`
}

func (*serversLoginCmd) Help() string {
	return `Without a flag the first of these that can work here is used: a browser on this machine, a code that
is typed in any browser, an address that is pasted. The address to open is printed in any case. Running
gateways use the login at the server's next use.

Examples:

	nightporter servers login linear
	nightporter servers login linear --device
	nightporter servers login linear --paste
	nightporter servers login linear --scope read --scope write`
}

// loginStatus is a login as people may see it.
type loginStatus struct {
	Server   string      `json:"server"`
	LoggedIn bool        `json:"logged_in"`
	Subject  string      `json:"subject,omitempty"` // who logged in, when the authorization server said so
	Issuer   string      `json:"issuer,omitempty"`
	Resource string      `json:"resource,omitempty"`
	Scopes   []string    `json:"scopes,omitempty"`
	Wanted   []string    `json:"scopes_wanted,omitempty"` // that the server asked for and the login does not have
	Since    time.Time   `json:"since,omitzero"`
	Expires  time.Time   `json:"expires,omitzero"` // of the access token
	Renews   bool        `json:"renews"`           // it is renewed without a person
	Kept     oauth.Place `json:"kept,omitempty"`
	Problem  string      `json:"problem,omitempty"`
	Command  string      `json:"command,omitempty"` // to run, when a login is needed
	Tools    *int        `json:"tools,omitempty"`   // that the server listed after the login
}

func (l *loginStatus) field(get func(*loginStatus) string) string {
	if l == nil {
		return ""
	}
	return get(l)
}

func (l *loginStatus) word() string {
	switch {
	case l == nil:
		return ""
	case l.Command != "":
		return "needed: run " + l.Command
	case l.LoggedIn:
		return "logged in since " + l.Since.Local().Format(time.DateTime)
	}
	return "none"
}

func (l *loginStatus) expiry() string {
	switch {
	case !l.LoggedIn:
		return ""
	case l.Expires.IsZero():
		return "not known"
	case l.Renews:
		return l.Expires.Local().Format(time.DateTime) + ", renewed before that"
	}
	return l.Expires.Local().Format(time.DateTime) + ", then a new login is needed"
}

func statusOf(name string, account *oauth.Account) *loginStatus {
	if account == nil {
		return nil
	}
	l := &loginStatus{
		Server: name, LoggedIn: account.LoggedIn, Subject: account.Subject, Issuer: account.Issuer, Resource: account.Resource, Scopes: account.Scopes,
		Since: account.Since, Expires: account.Expires, Renews: account.Renews, Kept: account.Kept, Problem: account.Problem,
	}
	if account.Wanted != nil {
		l.Wanted = account.Wanted.Scopes
	}
	if account.NeedsLogin() {
		l.Command = "nightporter servers login " + name
	} else if !account.LoggedIn && account.Wanted == nil {
		return nil
	}
	return l
}

// logins is the store of logins. What $NIGHTPORTER_HOME holds is all in it.
func (a *app) logins() *oauth.Store {
	o := oauth.Options{}
	if a.getenv("NIGHTPORTER_HOME") != "" {
		o.Prefer = oauth.InFile
	}
	return oauth.Open(a.dirs.Logins(), o)
}

// loginOf is the login of a server, nil when it has none and needs none, as far as is known.
func (a *app) loginOf(s *config.Server) *loginStatus {
	if s.Problem != nil || s.Transport == config.Stdio {
		return nil
	}
	about, err := a.oauthServer(context.Background(), s)
	if err != nil {
		return nil // the server's state says what is wrong with the definition
	}
	account, err := a.logins().Account(about)
	if err != nil {
		return &loginStatus{Server: s.Name, Problem: err.Error()}
	}
	return statusOf(s.Name, account)
}

func (a *app) oauthServer(ctx context.Context, s *config.Server) (oauth.Server, error) {
	address, err := s.URL.Resolve(ctx, a.lookupEnv)
	if err != nil {
		return oauth.Server{}, fmt.Errorf("url: %w", err)
	}
	return oauth.Of(ctx, s, address.Reveal(), a.lookupEnv)
}

// stateWord is a state for people.
func stateWord(s mcpruntime.Status) string {
	if s.Code == mcpruntime.CodeNeedsLogin {
		return "needs login"
	}
	return string(s.State)
}

// remote finds a server that one can log in to.
func (o *one) remote(a *app, cfg *config.Config, ctx context.Context) (*config.Server, oauth.Server, error) {
	s, err := o.find(cfg)
	if err != nil {
		return nil, oauth.Server{}, err
	}
	switch {
	case s.Problem != nil:
		return nil, oauth.Server{}, usage("", "server %s: %v", s.Name, s.Problem)
	case s.Transport == config.Stdio:
		return nil, oauth.Server{}, usage("see its own documentation for how it logs in", "server %s is a program: logins are for servers behind a URL", s.Name)
	}
	about, err := a.oauthServer(ctx, s)
	if err != nil {
		return nil, about, usage("", "server %s: %v", s.Name, err)
	}
	return s, about, nil
}

func (c *serversLoginCmd) Run(a *app) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	ctx, _, release := signals(context.Background())
	defer release()
	s, about, err := c.remote(a, cfg, ctx)
	if err != nil {
		return err
	}
	if s.BearerTokenEnvVar != "" {
		return usage("remove bearer_token_env_var to log in", "server %s has a token of its own (bearer_token_env_var), which is used instead of a login", s.Name)
	}
	store := a.logins()
	if c.Store != nil {
		store = oauth.Open(a.dirs.Logins(), oauth.Options{Prefer: oauth.Place(*c.Store)})
	}
	known, err := store.Account(about)
	if err != nil {
		return err
	}
	if known == nil && s.Enabled {
		// The server says best itself what it wants. Whatever else comes of it is said after the login.
		a.say("asking server %s what it wants", s.Name)
		_, _ = a.try(ctx, cfg, s.Name)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	account, err := store.Login(ctx, about, c.options(a))
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return &problem{text: fmt.Sprintf("log in to server %s: %v", s.Name, err), code: 1}
	}
	a.say("logged in to server %s; the tokens are kept in the %s", s.Name, kept(a, account.Kept))
	result := statusOf(s.Name, account)
	if s.Enabled {
		tools, err := a.try(ctx, cfg, s.Name)
		if err != nil {
			return &problem{text: fmt.Sprintf("the login was granted, and the server is of no use with it: %v", err), code: 1}
		}
		result.Tools = &tools
		a.tellOfLogin(ctx, s.Name)
		a.say("server %s answers: %d tools", s.Name, tools)
	}
	if c.JSON {
		return writeJSON(a.stdout, result)
	}
	return nil
}

// tellOfLogin has running gateways start the server where it waits for the login.
func (a *app) tellOfLogin(ctx context.Context, name string) {
	processes, err := live.Find(ctx, a.dirs.Live())
	if err != nil {
		a.say("warning: running gateways use the login at the server's next use: %v", err)
		return
	}
	for _, answer := range askAll[int](ctx, processes, "POST", "/servers/"+escaped(name)+"/login", nil) {
		if answer.err != nil {
			a.say("warning: %v", answer.err)
		}
	}
}

// kept names the place of tokens.
func kept(a *app, place oauth.Place) string {
	if place == oauth.InFile {
		return "folder " + a.dirs.Logins() + ", for you alone"
	}
	return "system's keyring"
}

// try starts a server once, and returns how many tools it lists.
func (a *app) try(ctx context.Context, cfg *config.Config, name string) (tools int, err error) {
	err = a.once(ctx, cfg, name, func(scope *mcpruntime.Scope) error {
		err := scope.Restart(ctx, name)
		tools = len(scope.Tools())
		return err
	})
	return tools, err
}

func (c *serversLoginCmd) options(a *app) oauth.LoginOptions {
	o := oauth.LoginOptions{Say: a.say, Scopes: c.Scope}
	switch {
	case c.Browser:
		o.Flow = oauth.Browser
	case c.Device:
		o.Flow = oauth.Device
	case c.Paste:
		o.Flow = oauth.Paste
	}
	if argv := a.browser(); argv != nil {
		o.Open = func(ctx context.Context, address string) error { return a.show(ctx, append(argv, address)) }
	}
	if c.Paste || width(a.stdin) > 0 {
		o.Ask = func(context.Context) (string, error) {
			line, err := bufio.NewReader(io.LimitReader(a.stdin, 64<<10)).ReadString('\n')
			if err != nil && line == "" {
				return "", errors.New("nothing was pasted: standard input has ended")
			}
			return line, nil
		}
	}
	return o
}

// browser is the command that shows a page, nil when there is none: over SSH, in a container, in CI.
func (a *app) browser() []string {
	if program := a.getenv("BROWSER"); program != "" && program != "none" {
		return []string{program}
	}
	switch runtime.GOOS {
	case "darwin":
		if a.getenv("SSH_CONNECTION") == "" {
			return []string{"/usr/bin/open"}
		}
	case "windows":
		return []string{"rundll32", "url.dll,FileProtocolHandler"}
	default:
		if a.getenv("DISPLAY")+a.getenv("WAYLAND_DISPLAY") != "" {
			return []string{"xdg-open"}
		}
	}
	return nil
}

// browserPatience is how long the command that opens a browser is watched: what fails does so at once, and a browser that was not
// running yet may stay in the foreground.
const browserPatience = 2 * time.Second

// show runs a browser, and leaves it running: it is the person's own.
func (a *app) show(ctx context.Context, argv []string) error {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = a.env
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	timer := time.NewTimer(browserPatience)
	defer timer.Stop()
	select {
	case err := <-ended:
		return err
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil
}

type serversLogoutCmd struct {
	one
	JSON bool `name:"json" help:"Print what came of it as one object."`
}

func (*serversLogoutCmd) Help() string {
	return `Examples:

	nightporter servers logout linear`
}

func (c *serversLogoutCmd) Run(a *app) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	ctx, _, release := signals(context.Background())
	defer release()
	s, about, err := c.remote(a, cfg, ctx)
	if err != nil {
		return err
	}
	account, revoked, why, err := a.logins().Logout(ctx, about)
	if err != nil {
		return &problem{text: fmt.Sprintf("log out of server %s: %v", s.Name, err), code: 1}
	}
	switch {
	case account == nil:
		a.say("there is no login to server %s", s.Name)
	case revoked:
		a.say("logged out of server %s, and its tokens are revoked", s.Name)
	default:
		a.say("logged out of server %s; its tokens could not be revoked and end by themselves: %s", s.Name, strings.TrimSpace(why.Error()))
	}
	if c.JSON {
		return writeJSON(a.stdout, map[string]any{"server": s.Name, "was_logged_in": account != nil, "revoked": revoked})
	}
	return nil
}
