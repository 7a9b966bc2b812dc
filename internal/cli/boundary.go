package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"nightporter/internal/approval"
	"nightporter/internal/boundary"
	"nightporter/internal/config"
	"nightporter/internal/live"
	"nightporter/internal/mcp/authority"
	"nightporter/internal/mcp/catalog"
	"nightporter/internal/mcp/gateway"
	"nightporter/internal/mcp/pin"
	"nightporter/internal/mcp/runtime"
	"nightporter/internal/run"
	"nightporter/internal/secret"
)

// endpoint says what a run's gateway is to serve.
type endpoint struct {
	run     string // the run's id
	config  *config.Config
	granted runtime.Grant
	grant   *config.Grant // the one that --grant names; may be nil
	masker  *secret.Masker
	doing   *activity
}

// openBoundary returns what opens the gateway of a run in its working directory.
func (a *app) openBoundary(e endpoint) (func(ctx context.Context, workdir string, approve approval.Func) (run.Boundary, error), error) {
	store, err := catalog.Open(a.dirs.Catalogs())
	if err != nil {
		return nil, err
	}
	exposure := gateway.ExposeTools
	if e.grant != nil {
		exposure = cmp.Or(gateway.Exposure(e.grant.Exposure), exposure)
	}
	return func(ctx context.Context, workdir string, approve approval.Func) (run.Boundary, error) {
		record, end := a.auditLog(e.masker)
		b, err := boundary.Open(ctx, boundary.Options{
			Run: e.run, Config: e.config, Grant: e.granted, Exposure: exposure, Catalogs: store, Pins: pin.Open(a.dirs.Pins()),
			Logins: a.logins(), LookupEnv: a.lookupEnv, Workdir: workdir, Version: thisBuild().Version, Log: a.log(), Masker: e.masker, OnCall: recorder(record, e.run),
			Executable: executable(), Approve: approve,
		})
		if err != nil {
			end()
			return nil, err
		}
		found, err := live.Announce(a.dirs.Live(), live.Record{Kind: "run", Name: e.run}, live.Control(b.Runtime(), e.doing.now))
		if err != nil {
			a.say("warning: status will not show this run: %v", err)
		}
		return &announced{b, found, end}, nil
	}, nil
}

// executable is this program, which servers may run commands by; empty when it cannot be said.
func executable() string {
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	return path
}

// announced is a run's endpoint that status can find.
type announced struct {
	*boundary.Boundary
	found     *live.Announcement // may be nil
	endRecord func()
}

func (a *announced) Close(ctx context.Context) error {
	if a.found != nil {
		a.found.Close()
	}
	defer a.endRecord()
	return a.Boundary.Close(ctx)
}

// grantOf is what the flags grant: the servers that are named, whole, and what the grant says.
func grantOf(servers []string, grant *config.Grant) runtime.Grant {
	if grant == nil {
		return runtime.Servers(servers)
	}
	return either{runtime.Servers(servers), grant}
}

// either allows what one of two grants allows.
type either struct{ named, grant runtime.Grant }

func (e either) AllowsServer(server string) bool {
	return e.named.AllowsServer(server) || e.grant.AllowsServer(server)
}

func (e either) Allows(server, tool string) (bool, string) {
	if ok, _ := e.named.Allows(server, tool); ok {
		return true, ""
	}
	return e.grant.Allows(server, tool)
}

func (e either) Policy() *config.Sandbox {
	return authority.Narrower(e.named.Policy(), e.grant.Policy())
}

// without is a grant without a server.
type without struct {
	runtime.Grant
	server string
}

func (w without) AllowsServer(server string) bool {
	return server != w.server && w.Grant.AllowsServer(server)
}

func (w without) Allows(server, tool string) (bool, string) {
	if server == w.server {
		return false, "server " + server + " is handed to the agent itself"
	}
	return w.Grant.Allows(server, tool)
}

// checkServers reports the first name that is no usable server of the configuration.
func checkServers(cfg *config.Config, names []string) error {
	for _, server := range names {
		def, ok := cfg.Server(server)
		switch {
		case !ok:
			return usage(nearest("servers", server, cfg.ServerNames()), "there is no server %q%s", server, in(cfg))
		case def.Problem != nil:
			return usage("", "server %s cannot be used: %v", server, def.Problem)
		case !def.Enabled:
			return usage("set enabled = true, or leave it out", "server %s is disabled at %s", server, def.Pos)
		}
	}
	return nil
}

// runtime makes the servers of the configuration available to a command, and to status. kind and name say which
// command it is, and more what else is answered on its socket. The caller calls end.
func (a *app) runtime(cfg *config.Config, r live.Record, more ...func(*runtime.Runtime, *http.ServeMux)) (rt *runtime.Runtime, end func(), err error) {
	store, err := catalog.Open(a.dirs.Catalogs())
	if err != nil {
		return nil, nil, err
	}
	rt = runtime.New(runtime.Options{Config: cfg, Catalogs: store, Pins: pin.Open(a.dirs.Pins()), Logins: a.logins(), LookupEnv: a.lookupEnv, Log: a.log(), Executable: executable()})
	mux := live.Control(rt, nil)
	if cfg.File != "" {
		if r.Config, err = filepath.Abs(cfg.File); err != nil { // who looks for it may be in another folder
			rt.Close(context.Background())
			return nil, nil, fmt.Errorf("find the current folder: %w", err)
		}
	}
	for _, add := range more {
		add(rt, mux)
	}
	found, err := live.Announce(a.dirs.Live(), r, mux)
	if err != nil {
		a.say("warning: status will not show this process: %v", err)
	}
	return rt, func() {
		if found != nil {
			found.Close()
		}
		ctx, done := context.WithTimeout(context.Background(), endPatience)
		defer done()
		rt.Close(ctx)
		if ctx.Err() != nil {
			a.say("warning: not all servers ended within %v", endPatience)
		}
	}, nil
}

// grantFlags are the flags of commands that serve or show some of the servers.
type grantFlags struct {
	Server []string `sep:"none" placeholder:"NAME" help:"This server of the configuration. May be repeated. Default: all."`
	Grant  string   `placeholder:"NAME" help:"What [grants.NAME] grants."`
}

// grant is what is served: everything, when nothing is named. now is the configuration as it is later, when it was read again.
func (g *grantFlags) grant(cfg *config.Config, now func() *config.Config) (runtime.Grant, error) {
	if err := checkServers(cfg, g.Server); err != nil {
		return nil, err
	}
	if g.Grant == "" {
		if len(g.Server) == 0 {
			return runtime.All{}, nil
		}
		return runtime.Servers(g.Server), nil
	}
	if _, err := findGrant(cfg, g.Grant); err != nil {
		return nil, err
	}
	return either{runtime.Servers(g.Server), current{now, g.Grant}}, nil
}

// show does something with what the flags choose, for a command that prints it. Without any server it says so instead, in
// prose; programs get what do makes of nothing.
func (g *grantFlags) show(a *app, program bool, do func(context.Context, *runtime.Scope) error) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	grant, err := g.grant(cfg, func() *config.Config { return cfg })
	if err != nil {
		return err
	}
	if len(cfg.Servers) == 0 && !program {
		a.noServers(cfg)
		return nil
	}
	ctx, _, release := signals(context.Background())
	defer release()
	return a.with(ctx, cfg, grant, func(scope *runtime.Scope) error { return do(ctx, scope) })
}

// current is a grant of the configuration as it is now.
type current struct {
	config func() *config.Config
	name   string
}

func (c current) grant() *config.Grant {
	if grant := c.config().Grants[c.name]; grant != nil {
		return grant
	}
	return &config.Grant{Name: c.name, Problem: &config.Problem{Message: "it was removed from the configuration"}}
}

func (c current) AllowsServer(server string) bool { return c.grant().AllowsServer(server) }

func (c current) Allows(server, tool string) (bool, string) { return c.grant().Allows(server, tool) }

func (c current) Policy() *config.Sandbox { return c.grant().Policy() }

func findGrant(cfg *config.Config, name string) (*config.Grant, error) {
	grant := cfg.Grants[name]
	switch {
	case grant == nil:
		return nil, usage(nearest("grants", name, cfg.GrantNames()), "there is no grant %q%s", name, in(cfg))
	case grant.Problem != nil:
		return nil, usage("", "grant %s cannot be used: %v", name, fmt.Errorf("%w", grant.Problem))
	}
	return grant, nil
}
