package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"nightporter/internal/config"
	"nightporter/internal/live"
	"nightporter/internal/mcp/runtime"
)

type serversCmd struct {
	List    serversListCmd    `cmd:"" help:"List the configured servers."`
	Get     serversGetCmd     `cmd:"" help:"Show one server's definition, with its secrets masked."`
	Add     serversAddCmd     `cmd:"" help:"Add a server to config.toml."`
	Remove  serversRemoveCmd  `cmd:"" help:"Remove a server from config.toml."`
	Enable  serversEnableCmd  `cmd:"" help:"Let a server be started."`
	Disable serversDisableCmd `cmd:"" help:"Keep a server's definition, and start it no more."`
	Start   serversStartCmd   `cmd:"" help:"Start a server wherever a running Nightporter has it; when none runs, start it once to save its catalog."`
	Stop    serversStopCmd    `cmd:"" help:"Stop a server wherever it runs. Its next use starts it again."`
	Restart serversRestartCmd `cmd:"" help:"Stop a server and start it, whatever its catalog says."`
	Logs    serversLogsCmd    `cmd:"" help:"Print what a running server last wrote to its standard error."`
	Login   serversLoginCmd   `cmd:"" help:"Log in to a server behind a URL (OAuth), in a browser here or anywhere."`
	Logout  serversLogoutCmd  `cmd:"" help:"Forget a login, and have its tokens revoked where that can be done."`
}

type serversListCmd struct {
	JSON bool `name:"json" help:"Print an array of objects."`
}

func (*serversListCmd) Help() string {
	return `Nothing is started and no server is asked.

Examples:

	nightporter servers list
	nightporter servers list --json`
}

// definition is a server's definition for a person: no value that may be a secret is in it.
type definition struct {
	Name      string            `json:"name"`
	Transport string            `json:"transport"`
	Command   []string          `json:"command,omitempty"`
	URL       string            `json:"url,omitempty"`
	Env       map[string]string `json:"env,omitempty"` // values masked, references shown
	EnvVars   []string          `json:"env_vars,omitempty"`
	Headers   map[string]string `json:"http_headers,omitempty"`
	Cwd       string            `json:"cwd,omitempty"`
	Enabled   bool              `json:"enabled"`
	Required  bool              `json:"required"`
	State     runtime.State     `json:"state"`
	Tools     int               `json:"tools"`
	Code      string            `json:"code,omitempty"`  // kind of a failure
	Login     *loginStatus      `json:"login,omitempty"` // of a server behind a URL that has one or needs one
	Reason    string            `json:"reason"`
	Sandbox   string            `json:"sandbox,omitempty"` // what its process may do, and while it runs what enforces that
	Problem   string            `json:"problem,omitempty"`
	Where     string            `json:"defined_at"`
}

func define(s *config.Server, st runtime.Status) definition {
	d := definition{
		Name: s.Name, Transport: string(s.Transport), URL: config.ListedURL(s.URL), Cwd: s.Cwd.Listed(), EnvVars: s.EnvVars, Enabled: s.Enabled && s.Problem == nil,
		Required: s.Required, State: st.State, Code: st.Code, Tools: st.Tools, Reason: st.Reason, Sandbox: st.Sandbox, Where: s.Pos.String(),
		Env: masked(s.Env), Headers: masked(s.HTTPHeaders),
	}
	if s.Transport == config.Stdio {
		d.Command = append([]string{s.Command.Listed()}, config.ListedArgs(s.Args)...)
	}
	if s.Problem != nil {
		d.Problem = s.Problem.Error()
	}
	return d
}

func masked(values map[string]config.Value) map[string]string {
	if len(values) == 0 {
		return nil
	}
	m := map[string]string{}
	for key, value := range values {
		m[key] = value.String()
	}
	return m
}

func (c *serversListCmd) Run(a *app) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	report, err := a.status(context.Background(), cfg)
	if err != nil {
		return err
	}
	list := []definition{}
	for i := range cfg.Servers {
		d := define(&cfg.Servers[i], liveliest(report, cfg.Servers[i].Name))
		d.Login = a.loginOf(&cfg.Servers[i])
		list = append(list, d)
	}
	if c.JSON {
		return writeJSON(a.stdout, list)
	}
	if len(list) == 0 {
		a.noServers(cfg)
		return nil
	}
	t := newTable(a.stdout, "NAME", "TRANSPORT", "STATE", "TOOLS", "COMMAND OR URL", "WHY")
	for _, d := range list {
		t.row(oneLine(d.Name), orDash(d.Transport), stateWord(runtime.Status{State: d.State, Code: d.Code}), fmt.Sprint(d.Tools), orDash(shortened(d.URL+strings.Join(d.Command, " "))), shortened(oneLine(d.Reason)))
	}
	return t.flush()
}

// noServers says how to define one.
func (a *app) noServers(cfg *config.Config) {
	file := cfg.File
	if file == "" {
		file = a.dirs.ConfigFile()
	}
	a.say("no servers are defined in %s; nightporter servers add NAME -- COMMAND adds one", file)
}

// liveliest is the state of a server where it is most awake.
func liveliest(r *statusReport, name string) (best runtime.Status) {
	order := []runtime.State{"", runtime.StateDisabled, runtime.StateStopped, runtime.StateDormant, runtime.StateFailed, runtime.StateStarting, runtime.StateReady}
	for _, s := range r.Servers {
		if s.Server == name && !s.alien && slices.Index(order, s.State) > slices.Index(order, best.State) {
			best = s.Status
		}
	}
	return best
}

// one is the argument of commands that act on one server.
type one struct {
	Name string `arg:"" help:"The server's name."`
}

func (o *one) find(cfg *config.Config) (*config.Server, error) {
	s, ok := cfg.Server(o.Name)
	if !ok {
		return nil, usage(nearest("servers", o.Name, cfg.ServerNames()), "there is no server %q%s", o.Name, in(cfg))
	}
	return s, nil
}

type serversGetCmd struct {
	one
	JSON bool `name:"json" help:"Print one object."`
}

func (*serversGetCmd) Help() string {
	return `Examples:

	nightporter servers get github
	nightporter servers get github --json`
}

func (c *serversGetCmd) Run(a *app) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	s, err := c.find(cfg)
	if err != nil {
		return err
	}
	report, err := a.status(context.Background(), cfg)
	if err != nil {
		return err
	}
	d := define(s, liveliest(report, s.Name))
	d.Login = a.loginOf(s)
	if c.JSON {
		return writeJSON(a.stdout, d)
	}
	t := newTable(a.stdout, d.Name, "")
	for _, line := range [][2]string{
		{"defined at", d.Where},
		{"transport", d.Transport},
		{"command", strings.Join(d.Command, " ")},
		{"url", d.URL},
		{"cwd", d.Cwd},
		{"env_vars", strings.Join(d.EnvVars, " ")},
		{"required", fmt.Sprint(d.Required)},
		{"state", stateWord(runtime.Status{State: d.State, Code: d.Code})},
		{"why", d.Reason},
		{"tools", fmt.Sprint(d.Tools)},
		{"sandbox", d.Sandbox},
		{"problem", d.Problem},
		{"login", d.Login.word()},
		{"logged in as", d.Login.field(func(l *loginStatus) string { return l.Subject })},
		{"issuer", d.Login.field(func(l *loginStatus) string { return l.Issuer })},
		{"resource", d.Login.field(func(l *loginStatus) string { return l.Resource })},
		{"scopes", d.Login.field(func(l *loginStatus) string { return strings.Join(l.Scopes, " ") })},
		{"scopes wanted", d.Login.field(func(l *loginStatus) string { return strings.Join(l.Wanted, " ") })},
		{"token expires", d.Login.field(func(l *loginStatus) string { return l.expiry() })},
		{"tokens kept in", d.Login.field(func(l *loginStatus) string { return string(l.Kept) })},
	} {
		if line[1] != "" {
			t.row("  "+line[0], oneLine(line[1]))
		}
	}
	for title, values := range map[string]map[string]string{"env": d.Env, "header": d.Headers} {
		for _, key := range slices.Sorted(maps.Keys(values)) {
			t.row("  "+title+" "+oneLine(key), oneLine(values[key]))
		}
	}
	return t.flush()
}

type serversStartCmd struct{ one }

func (*serversStartCmd) Help() string {
	return `Examples:

	nightporter servers start github`
}

func (c *serversStartCmd) Run(a *app) error { return c.everywhere(a, "start", true) }

type serversStopCmd struct{ one }

func (*serversStopCmd) Help() string {
	return `Examples:

	nightporter servers stop github`
}

func (c *serversStopCmd) Run(a *app) error { return c.everywhere(a, "stop", false) }

type serversRestartCmd struct{ one }

func (*serversRestartCmd) Help() string {
	return `Examples:

	nightporter servers restart github`
}

func (c *serversRestartCmd) Run(a *app) error { return c.everywhere(a, "restart", true) }

// everywhere does something to a server in every running process. When none has it, it can be started once, to renew
// its catalog.
func (o *one) everywhere(a *app, verb string, once bool) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	s, err := o.find(cfg)
	if err != nil {
		return err
	}
	ctx, _, release := signals(context.Background())
	defer release()
	processes, err := a.running(ctx, cfg)
	if err != nil {
		return err
	}
	touched, failed := 0, error(nil)
	waiting := func(p live.Process) { a.say("waiting for %s", p) }
	for _, answer := range askAll[int](ctx, processes, "POST", "/servers/"+escaped(o.Name)+"/"+verb, waiting) {
		touched += answer.value
		failed = cmp.Or(failed, answer.err)
	}
	switch {
	case errors.Is(failed, context.Canceled):
		return failed
	case errors.Is(failed, live.ErrMute):
		return &problem{text: failed.Error(), hint: "see nightporter status", code: 1}
	case failed != nil:
		return &problem{text: failed.Error(), hint: "see nightporter servers logs " + o.Name, code: 1}
	case touched > 0:
		a.say("%s: %s for %d clients", o.Name, map[string]string{"start": "started", "stop": "stopped", "restart": "restarted"}[verb], touched)
		return nil
	case !once:
		return &problem{text: fmt.Sprintf("no running Nightporter has server %s", o.Name), hint: "see nightporter status", code: 1}
	}
	if err := checkServers(cfg, []string{s.Name}); err != nil {
		return err
	}
	return a.once(ctx, cfg, s.Name, func(scope *runtime.Scope) error {
		began := time.Now()
		if err := scope.Restart(ctx, s.Name); err != nil {
			return err
		}
		a.say("%s: started in %v, %d tools, catalog saved; stopped again, as no gateway is running that would keep it",
			s.Name, time.Since(began).Round(time.Millisecond), len(scope.Tools()))
		return nil
	})
}

// once opens one server for as long as do takes.
func (a *app) once(ctx context.Context, cfg *config.Config, name string, do func(*runtime.Scope) error) error {
	return a.with(ctx, cfg, runtime.Servers{name}, do)
}

// with opens the servers of a grant for as long as do takes.
func (a *app) with(ctx context.Context, cfg *config.Config, grant runtime.Grant, do func(*runtime.Scope) error) error {
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the current folder: %w", err)
	}
	rt, end, err := a.runtime(cfg, live.Record{Kind: "command", Name: dir})
	if err != nil {
		return err
	}
	defer end()
	return do(rt.Open(ctx, runtime.ScopeOptions{Name: "nightporter", Dir: dir, Grant: grant, Owner: nobody{}}))
}

type serversLogsCmd struct{ one }

func (*serversLogsCmd) Help() string {
	return `The last 64 KiB are kept while a server runs.

Examples:

	nightporter servers logs github`
}

func (c *serversLogsCmd) Run(a *app) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	if _, err := c.find(cfg); err != nil {
		return err
	}
	ctx := context.Background()
	processes, err := a.running(ctx, cfg)
	if err != nil {
		return err
	}
	said := false
	for _, answer := range askAll[string](ctx, processes, "GET", "/servers/"+escaped(c.Name)+"/logs", nil) {
		if answer.err != nil {
			a.say("warning: %v", answer.err)
		}
		if answer.value != "" {
			said = true
			fmt.Fprintln(a.stdout, printable(answer.value))
		}
	}
	if !said {
		a.say("server %s is not running, or has written nothing", c.Name)
	}
	return nil
}
