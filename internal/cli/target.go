package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"nightporter/internal/agent"
	"nightporter/internal/agent/registry"
	"nightporter/internal/clients"
	"nightporter/internal/config"
	"nightporter/internal/ledger"
	"nightporter/internal/run"
	"nightporter/internal/secret"
)

// target says which agent is run, where and with what: the flags that run and prove share.
type target struct {
	Agent        string        `xor:"agent" placeholder:"NAME" help:"The agent: claude, codex, or one of [agents.NAME]."`
	Exec         string        `xor:"agent" placeholder:"\"ARGV\"" help:"The agent's command, as plain words; no shell reads it."`
	Server       []string      `sep:"none" placeholder:"NAME" help:"Grant the tools of this server of the configuration. May be repeated."`
	Grant        string        `placeholder:"NAME" help:"Grant what [grants.NAME] says."`
	Conversation string        `placeholder:"KEY" help:"Continue this conversation, or begin it."`
	Workdir      string        `placeholder:"DIR" help:"Where the agent works. Default: the conversation's own folder, or without one the current folder."`
	Tools        *string       `enum:"granted,bypass" placeholder:"MODE" help:"granted: what is granted runs, all else is refused. bypass: the agent's approvals and sandbox are off. Default: granted."`
	SafeTools    bool          `help:"Remove a bypass that the agent's own command carries."`
	BuiltIn      *string       `enum:"none,read-only,all" placeholder:"TOOLS" help:"The agent's own tools that it may use: none, read-only or all. Default: none."`
	AllowServer  []string      `sep:"none" placeholder:"NAME" help:"Accept that this server of the agent's own stays on. May be repeated."`
	AllowFlag    []string      `sep:"none" placeholder:"FLAG" help:"Accept this flag of the agent's command, although it is not known what it does to the boundary. May be repeated."`
	Timeout      time.Duration `placeholder:"D" help:"Stop the run after this time, such as 90s or 2h. Default: 8h."`
	IdleTimeout  time.Duration `placeholder:"D" help:"Stop a run that printed nothing for this long. Default: 30m."`
	MaxCost      float64       `placeholder:"USD" help:"Stop a run that has cost more."`
	Unproven     bool          `help:"Accept an agent whose boundary cannot be proven."`
}

// spec makes a run of the flags and the configuration, without its prompt.
func (t *target) spec(ctx context.Context, a *app) (run.Spec, error) {
	if err := t.check(); err != nil {
		return run.Spec{}, err
	}
	cfg, err := a.loadConfig()
	if err != nil {
		return run.Spec{}, err
	}
	adapter, settings, argv, err := t.agent(cfg)
	if err != nil {
		return run.Spec{}, err
	}
	if settings.Isolation == "operator" && !registry.HasSettings(adapter.Name()) {
		a.say(`warning: agents.%s.isolation = "operator" has no effect: %s has no settings that Nightporter knows of`, settings.Name, adapter.Name())
	}
	masker := new(secret.Masker)
	env, err := a.agentEnv(ctx, settings, masker)
	if err != nil {
		return run.Spec{}, err
	}
	home, err := registry.Home(adapter.Name(), env)
	if err != nil {
		return run.Spec{}, usage("give it an absolute path, or unset it", "%v", err)
	}
	workdir, err := t.workdir()
	if err != nil {
		return run.Spec{}, err
	}
	s := run.Spec{
		Run: run.NewID(), Conversation: t.Conversation, Adapter: registry.WithProofCache(adapter, a.dirs.Proofs()),
		Request: agent.Request{
			Argv: argv, Workdir: workdir, Env: env,
			Mode:             agent.ToolMode(cmp.Or(given(t.Tools), settings.Tools, string(agent.Granted))),
			SafeTools:        t.SafeTools || settings.SafeTools,
			BuiltIn:          agent.BuiltIn(cmp.Or(given(t.BuiltIn), settings.BuiltIn, string(agent.BuiltInNone))),
			Hidden:           a.hidden(cfg),
			OperatorSettings: settings.Isolation == "operator",
			AllowServers:     append(slices.Clone(settings.AllowServers), t.AllowServer...),
			AllowFlags:       append(slices.Clone(settings.AllowFlags), t.AllowFlag...),
			Unproven:         t.Unproven, MaxCostUSD: cmp.Or(t.MaxCost, settings.MaxCost),
		},
		Withhold: withheld(cfg), Given: slices.Collect(maps.Keys(settings.Env)), Home: home,
		Timeout: cmp.Or(t.Timeout, settings.Timeout), IdleTimeout: cmp.Or(t.IdleTimeout, settings.IdleTimeout),
		Ledger: ledger.Open(a.dirs.Ledger()), Transcripts: a.dirs.Runs(), Masker: masker,
	}
	s.Approve = a.runApprover(cfg, masker)
	doing := newActivity(adapter.Name())
	s.Events = doing.event
	err = t.boundary(ctx, a, cfg, adapter, &s, doing)
	return s, err
}

func (t *target) check() error {
	switch {
	case t.Agent == "" && t.Exec == "":
		return usage(`for example: nightporter run --agent claude "what is new?"`, "no agent is named: give --agent or --exec")
	case t.SafeTools && t.Tools != nil && *t.Tools == string(agent.Bypass):
		return usage("leave one of them out", "--safe-tools takes away what --tools bypass asks for")
	case t.Timeout < 0 || t.IdleTimeout < 0:
		return usage("leave it out for the default", "a timeout cannot be negative")
	case t.MaxCost < 0:
		return usage("leave it out for no limit", "--max-cost cannot be negative")
	}
	return nil
}

// agent finds the adapter, the settings that the configuration has for it, and the command.
func (t *target) agent(cfg *config.Config) (agent.Adapter, config.Agent, []string, error) {
	if t.Exec != "" {
		argv, err := agent.SplitArgv(t.Exec)
		if err != nil {
			return nil, config.Agent{}, nil, refusedText(err)
		}
		return registry.For(argv), config.Agent{}, here(argv), nil
	}
	settings := config.Agent{Name: t.Agent}
	if known, ok := cfg.Agents[t.Agent]; ok {
		if known.Problem != nil {
			return nil, settings, nil, usage("", "%v", known.Problem)
		}
		settings = *known
	}
	kind := cmp.Or(settings.Kind, t.Agent)
	adapter, ok := registry.Named(kind)
	if !ok && settings.Kind == "" && len(settings.Exec) > 0 {
		adapter, ok = registry.For(settings.Exec), true
	}
	if !ok {
		known := slices.Concat(registry.Names(), slices.Collect(maps.Keys(cfg.Agents)))
		slices.Sort(known)
		return nil, settings, nil, usage(nearest("agents", kind, slices.Compact(known)), "there is no agent %q", kind)
	}
	argv := settings.Exec
	if argv == nil {
		argv = adapter.DefaultArgv()
	}
	if len(argv) == 0 {
		return nil, settings, nil, usage(`give it with --exec, or as exec = ["…"] in [agents.NAME]`, "the agent %s has no command of its own", kind)
	}
	return adapter, settings, here(argv), nil
}

// here resolves a relative path of the program against the operator's folder, where she wrote it: in the run's own folder an
// agent could have put another file of that name.
func here(argv []string) []string {
	if strings.ContainsRune(argv[0], filepath.Separator) && !filepath.IsAbs(argv[0]) {
		if abs, err := filepath.Abs(argv[0]); err == nil {
			return append([]string{abs}, argv[1:]...)
		}
	}
	return argv
}

// refusedText is a refusal of how the command was written.
func refusedText(err error) error {
	if r, ok := err.(*agent.Refusal); ok {
		return usage(r.Mend, "--exec: %s: %s", r.What, r.Why)
	}
	return err
}

// agentEnv is the operator's environment with what the configuration adds for the agent.
func (a *app) agentEnv(ctx context.Context, settings config.Agent, masker *secret.Masker) ([]string, error) {
	env := slices.Clone(a.env)
	for _, key := range slices.Sorted(maps.Keys(settings.Env)) {
		value, err := settings.Env[key].Resolve(ctx, a.lookupEnv)
		if err != nil {
			return nil, usage("", "%s: agents.%s.env.%s: %v", settings.Pos, settings.Name, key, err)
		}
		if !settings.Env[key].IsLiteral() {
			masker.Add(value)
		}
		env = append(env, key+"="+value.Reveal())
	}
	return env, nil
}

// workdir is empty where the conversation's own folder is to be taken.
func (t *target) workdir() (string, error) {
	if t.Workdir == "" && t.Conversation != "" {
		return "", nil
	}
	dir, err := filepath.Abs(t.Workdir) // the current folder, where it is empty
	if err != nil {
		return "", fmt.Errorf("find the current folder: %w", err)
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return "", usage("make it, or name another", "--workdir %s is not a folder", t.Workdir)
	}
	return dir, nil
}

// boundary checks what is granted, and says how it reaches the agent: behind the run's endpoint, which s.Open opens, or handed to
// the agent itself.
func (t *target) boundary(ctx context.Context, a *app, cfg *config.Config, adapter agent.Adapter, s *run.Spec, doing *activity) error {
	if err := checkServers(cfg, t.Server); err != nil {
		return err
	}
	var grant *config.Grant
	if t.Grant != "" {
		var err error
		if grant, err = findGrant(cfg, t.Grant); err != nil {
			return err
		}
	}
	s.Notes = cfg.LostExtras()
	servers := append(slices.Clone(t.Server), cfg.ExtrasOfRun(grant)...)
	granted := grantOf(servers, grant)
	behind := grant != nil || len(servers) > 0
	if _, takes := adapter.(agent.Wirer); takes {
		direct, err := a.direct(ctx, cfg, granted, servers, grant, s.Masker)
		if err != nil {
			return err
		}
		s.Request.Direct = direct
		for i := range direct {
			granted = without{granted, direct[i].Name}
		}
		behind = slices.ContainsFunc(cfg.ServerNames(), granted.AllowsServer) || grant != nil && len(direct) == 0
	}
	if !behind {
		return nil
	}
	var err error
	s.Open, err = a.openBoundary(endpoint{run: s.Run, config: cfg, granted: granted, grant: grant, masker: s.Masker, doing: doing})
	return err
}

// hidden are the files and folders of Nightporter's own, and of this configuration, which a run's agent is not to read.
func (a *app) hidden(cfg *config.Config) []string {
	paths := a.dirs.Private()
	for _, file := range []string{cfg.File, cfg.Extras, cfg.Gateway.TokenFile} {
		if abs, err := filepath.Abs(file); file != "" && err == nil && !slices.Contains(paths, abs) {
			paths = append(paths, abs)
		}
	}
	if cfg.File != "" {
		if abs, err := filepath.Abs(filepath.Join(filepath.Dir(cfg.File), clients.SecretsFolder)); err == nil && !slices.Contains(paths, abs) {
			paths = append(paths, abs)
		}
	}
	return paths
}

// in names the configuration's file, when there is one.
func in(cfg *config.Config) string {
	if cfg.File == "" {
		return ""
	}
	return " in " + cfg.File
}

// everybodys are variables that a server may be given and that are no secret of its own: an agent without them would not
// work, or not where the operator is.
var everybodys = []string{
	"HOME", "LOGNAME", "USER", "PATH", "SHELL", "LANG", "LC_ALL", "TERM", "TZ", "DISPLAY", "WAYLAND_DISPLAY",
	"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
	"SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "USERPROFILE", "USERNAME", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "PROGRAMFILES",
}

// agentPrefixes are the beginnings of the names of variables that agents have their own keys in. An agent without its own key
// cannot work; where a server shares it, it is the agent's as well.
var agentPrefixes = []string{"ANTHROPIC_", "CLAUDE_", "OPENAI_", "CODEX_"}

// withheld are the variables that are there for servers, and that are therefore none of the agent's business (B21): whatever
// a definition refers to.
func withheld(cfg *config.Config) []string {
	var names []string
	for i := range cfg.Servers {
		s := &cfg.Servers[i]
		names = append(names, s.EnvVars...)
		names = append(names, s.URL.EnvNames()...)
		names = append(names, s.OAuth.ClientSecret.EnvNames()...)
		for _, values := range []map[string]config.Value{s.Env, s.HTTPHeaders} {
			for _, value := range values {
				names = append(names, value.EnvNames()...)
			}
		}
		if s.BearerTokenEnvVar != "" {
			names = append(names, s.BearerTokenEnvVar)
		}
		names = slices.AppendSeq(names, maps.Values(s.EnvHTTPHeaders))
	}
	return slices.DeleteFunc(names, func(name string) bool {
		name = strings.ToUpper(name)
		return slices.Contains(everybodys, name) || slices.ContainsFunc(agentPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
	})
}

// given is the value of a flag, empty when it was not given.
func given(flag *string) string {
	if flag == nil {
		return ""
	}
	return *flag
}
