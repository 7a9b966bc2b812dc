package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"nightporter/internal/config"
	"nightporter/internal/run"
)

type serversAddCmd struct {
	Name              string   `arg:"" help:"The server's name."`
	Command           []string `arg:"" optional:"" passthrough:"partial" help:"The command of a stdio server, after --."`
	Env               []string `sep:"none" placeholder:"K=V" help:"A variable of the server's environment. V may refer to a secret: $${env:X}, $${file:PATH}, $${keyring:SERVICE/USER}, $${cmd:…}."`
	EnvVar            []string `sep:"none" placeholder:"NAME" help:"A variable that the server gets from Nightporter's environment."`
	Cwd               string   `placeholder:"DIR" help:"The server's working directory."`
	URL               string   `name:"url" placeholder:"URL" help:"The endpoint of a streamable HTTP server."`
	Header            []string `sep:"none" placeholder:"K=V" help:"A header of every request. V may refer to a secret."`
	BearerTokenEnvVar string   `placeholder:"NAME" help:"The variable that holds the bearer token."`
	Required          bool     `help:"A session or run waits for the server and fails without it."`
	Replace           bool     `help:"Write an entry that exists anew. What it had is lost, comments in it too."`
}

func (*serversAddCmd) Help() string {
	return `The entry is added at the end of config.toml; nothing else in the file changes. The server is not started.

Examples:

	nightporter servers add files -- npx -y @modelcontextprotocol/server-filesystem /srv/data
	nightporter servers add crm --env 'CRM_TOKEN=${keyring:crm/me}' -- crm-server --read-only
	nightporter servers add github --url https://api.githubcopilot.com/mcp/ --bearer-token-env-var GITHUB_TOKEN`
}

func (c *serversAddCmd) Run(a *app) error {
	s, err := c.server()
	if err != nil {
		return err
	}
	changed, err := a.edit(func(file string, data []byte) ([]byte, error) { return config.AddServer(file, data, s, c.Replace) })
	if err != nil {
		return err
	}
	c.warnOfSecrets(a)
	if !config.PlainName(s.Name) {
		a.say("warning: the name has characters other than letters, digits and _ - . : @ /, which an agent that it is wired to directly may refuse")
	}
	field := fieldOf(s.Name)
	for _, w := range changed.Warnings {
		if w.Field == field || strings.HasPrefix(w.Field, field+".") {
			a.say("warning: %s", w.Error())
		}
	}
	a.say("server %s is in %s", s.Name, changed.File)
	return nil
}

// server is the entry that the flags ask for.
func (c *serversAddCmd) server() (config.NewServer, error) {
	command := c.Command
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	s := config.NewServer{
		Name: c.Name, EnvVars: c.EnvVar, URL: c.URL, BearerTokenEnvVar: c.BearerTokenEnvVar, Required: c.Required,
	}
	const how = "give --url URL, or a command after --"
	switch {
	case len(command) == 0 && c.URL == "":
		return s, usage(how, "what the server is is not said")
	case len(command) > 0 && c.URL != "":
		return s, usage(how, "both --url and a command are given")
	}
	if len(command) > 0 {
		s.Command, s.Args = command[0], command[1:]
	}
	for _, foreign := range []struct {
		flag  string
		given bool
		url   bool // of servers with a URL
	}{
		{"--env", len(c.Env) > 0, false},
		{"--env-var", len(c.EnvVar) > 0, false},
		{"--cwd", c.Cwd != "", false},
		{"--header", len(c.Header) > 0, true},
		{"--bearer-token-env-var", c.BearerTokenEnvVar != "", true},
	} {
		switch {
		case foreign.given && c.URL != "" && !foreign.url:
			return s, usage("remove it", "%s is not for a server with --url", foreign.flag)
		case foreign.given && c.URL == "" && foreign.url:
			return s, usage("remove it, or give --url in place of the command", "%s is for a server with --url", foreign.flag)
		}
	}
	var err error
	if s.Env, err = pairs("--env", c.Env, "write --env NAME=VALUE; for a variable of Nightporter's own environment, --env-var NAME"); err != nil {
		return s, err
	}
	if s.Headers, err = pairs("--header", c.Header, "write --header NAME=VALUE"); err != nil {
		return s, err
	}
	s.Cwd = c.Cwd
	if c.Cwd != "" && !strings.Contains(c.Cwd, "${") {
		if s.Cwd, err = filepath.Abs(c.Cwd); err != nil {
			return s, fmt.Errorf("find the current folder: %w", err)
		}
	}
	return s, nil
}

// flagName is what stands before = in --env and --header. It is stricter than the file, so that no part of a value
// that was given in another form (Name: value) is taken for a name, which errors quote.
var flagName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.()-]*$`)

// pairs splits K=V. It quotes no value.
func pairs(flag string, given []string, how string) (all [][2]string, err error) {
	for i, text := range given {
		key, value, ok := strings.Cut(text, "=")
		if !ok || !flagName.MatchString(key) {
			return nil, usage(how, "%s number %d is not NAME=VALUE", flag, i+1)
		}
		if slices.ContainsFunc(all, func(p [2]string) bool { return p[0] == key }) {
			return nil, usage("give it once", "%s %s is given twice", flag, key)
		}
		all = append(all, [2]string{key, value})
	}
	return all, nil
}

// warnOfSecrets says which of the values look like secrets that stand in the file as they are, and names none.
func (c *serversAddCmd) warnOfSecrets(a *app) {
	s, err := c.server()
	if err != nil {
		return
	}
	literal := func(text string) bool {
		v, err := config.ParseValue(text)
		return err == nil && v.IsLiteral()
	}
	for _, flag := range []struct {
		name   string
		values [][2]string
	}{
		{"env", s.Env},
		{"header", s.Headers},
	} {
		for _, pair := range flag.values {
			key, value := pair[0], pair[1]
			if !literal(value) || !config.LooksSecret(key, value) {
				continue
			}
			before := "" // what stays in clear
			if i := strings.IndexByte(value, ' '); flag.name == "header" && strings.EqualFold(key, "Authorization") && i > 0 {
				before = value[:i+1]
			}
			a.say("warning: the value of %s %s looks like a secret and stands in the file as it is; put it into a variable and write --%[1]s '%[2]s=%s${env:%s}'",
				flag.name, key, before, strings.ToUpper(strings.ReplaceAll(key, "-", "_")))
		}
	}
	if literal(s.URL) && (strings.Contains(s.URL, "@") || strings.ContainsAny(s.URL, "?&") && urlKey(s.URL)) {
		a.say("warning: a part of the url looks like a secret and stands in the file as it is; put it into a variable and write ${env:NAME} in its place")
	}
	var args []config.Value
	for _, arg := range s.Args {
		args = append(args, config.Literal(arg))
	}
	for i, shown := range config.ListedArgs(args) {
		if shown != s.Args[i] && literal(s.Args[i]) {
			a.say("warning: argument %d of the command looks like a secret, and every user of the machine can read command lines; give it to the server with --env 'NAME=${env:NAME}'", i+1)
		}
	}
}

// urlKey reports whether a query has a parameter that looks like a secret.
func urlKey(address string) bool {
	_, query, _ := strings.Cut(address, "?")
	for pair := range strings.SplitSeq(query, "&") {
		if key, value, ok := strings.Cut(pair, "="); ok && config.LooksSecret(key, value) {
			return true
		}
	}
	return false
}

type serversRemoveCmd struct{ one }

func (*serversRemoveCmd) Help() string {
	return `The entry goes from config.toml, with the comments in it; nothing else in the file changes.

Examples:

	nightporter servers remove github`
}

func (c *serversRemoveCmd) Run(a *app) error {
	cfg, err := a.edit(func(file string, data []byte) ([]byte, error) { return config.RemoveServer(file, data, c.Name) })
	if err != nil {
		return err
	}
	for _, name := range cfg.GrantNames() {
		g := cfg.Grants[name]
		if named := slices.Concat(g.Servers, slices.Collect(maps.Keys(g.Tools)), slices.Collect(maps.Keys(g.Deny))); slices.Contains(named, c.Name) {
			a.say("warning: grant %s, at %s, names the server still", name, g.Pos)
		}
	}
	a.say("server %s is removed from %s", c.Name, cfg.File)
	return nil
}

type serversEnableCmd struct{ one }

func (*serversEnableCmd) Help() string {
	return `Examples:

	nightporter servers enable github`
}

func (c *serversEnableCmd) Run(a *app) error { return c.enable(a, true) }

type serversDisableCmd struct{ one }

func (*serversDisableCmd) Help() string {
	return `The definition stays, and the server is not started any more. What runs goes on until it ends.

Examples:

	nightporter servers disable github`
}

func (c *serversDisableCmd) Run(a *app) error { return c.enable(a, false) }

func (o *one) enable(a *app, on bool) error {
	cfg, err := a.edit(func(file string, data []byte) ([]byte, error) { return config.EnableServer(file, data, o.Name, on) })
	if err != nil {
		return err
	}
	if s, ok := cfg.Server(o.Name); ok && on && s.Problem != nil {
		a.say("warning: it cannot be used: %s", s.Problem.Error())
	}
	a.say("server %s is %s in %s", o.Name, map[bool]string{true: "enabled", false: "disabled"}[on], cfg.File)
	return nil
}

// edit changes the configuration file, and returns what it says afterwards.
func (a *app) edit(do func(file string, data []byte) ([]byte, error)) (*config.Config, error) {
	file := a.configFile()
	var after *config.Config
	_, err := config.EditFile(context.Background(), file, filepath.Join(a.dirs.State, "config.lock"), func(data []byte) ([]byte, error) {
		out, err := do(file, data)
		if err != nil {
			return nil, err
		}
		after, err = config.Parse(file, out)
		return out, err
	})
	var syntax *config.SyntaxError
	switch refused := refusedEdit(err); {
	case refused != nil:
		return nil, refused
	case errors.As(err, &syntax):
		return nil, badConfig(err)
	case err != nil:
		return nil, err
	}
	return after, nil
}

// fieldOf is the path of a server's entry.
func fieldOf(name string) string { return config.Field("mcp_servers", name) }

// refusedEdit is the error of an edit that a file does not take, with its mend as the hint; nil for another error.
func refusedEdit(err error) error {
	var refused *config.Problem
	if !errors.As(err, &refused) {
		return nil
	}
	p := *refused
	p.Mend = ""
	return &problem{text: p.Error(), hint: refused.Mend, code: run.ExitUsage}
}
