package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"nightporter/internal/clients"
	"nightporter/internal/config"
	"nightporter/internal/live"
	"nightporter/internal/mcp/access"
	"nightporter/internal/run"
	"nightporter/internal/safefile"
	"nightporter/internal/secret"
)

type connectCmd struct {
	clientFlags
	grantFlags
	Gateway bool    `help:"Point it at the gateway's address, with a token of its own, and not at nightporter mcp."`
	Token   *string `enum:"env,file" placeholder:"HOW" help:"Where the client finds the token: env (a variable of its environment) or file (its own file). Default: env where the client can."`
}

// clientFlags say which entry of which client.
type clientFlags struct {
	Client string `arg:"" optional:"" help:"claude, claude-desktop, codex, cursor, vscode, gemini, windsurf or zed."`
	Name   string `placeholder:"NAME" help:"What the client calls Nightporter. Default: porter."`
	DryRun bool   `name:"dry-run" help:"Show what would change in the client's file, and write nothing."`
}

func (*connectCmd) Help() string {
	return `It adds one entry to the file in which the client keeps its servers for the user. Everything else in the file stays as it is, and what it was
is kept: nightporter disconnect brings it back. The client sees all servers of the configuration, or those of --server and --grant.

nightporter mcp needs no token, and joins the gateway when one runs. docs/connect.md says what is written where.

Examples:

	nightporter connect claude --dry-run
	nightporter connect codex
	nightporter connect cursor --gateway --grant desk`
}

func (c *connectCmd) Run(a *app) error {
	client, err := c.client(a)
	if err != nil {
		return err
	}
	if c.Name = cmp.Or(c.Name, clients.DefaultName); config.CheckName(c.Name) != nil {
		return usage("take another, such as "+clients.DefaultName, "--name: %v", config.CheckName(c.Name))
	}
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	if _, err := c.grant(cfg, func() *config.Config { return cfg }); err != nil {
		return err
	}
	desk, err := a.desk(cfg)
	if err != nil {
		return err
	}
	if !c.Gateway {
		if c.Token != nil {
			return usage("give --gateway too", "--token is about the gateway's token, and nightporter mcp needs none")
		}
		e, err := c.program(a, cfg, client)
		if err != nil {
			return err
		}
		return c.connect(a, cfg, desk, client, e, "")
	}
	return c.gateway(a, cfg, desk, client)
}

func (f *clientFlags) client(a *app) (*clients.Client, error) {
	if f.Client == "" {
		var found []string
		for _, source := range clients.Read(clients.Here(runtime.GOOS, "", a.getenv), clients.All()) {
			if !slices.Contains(found, source.Client.ID) {
				found = append(found, source.Client.ID)
			}
		}
		hint := "it is one of " + strings.Join(clients.IDs(), ", ")
		if len(found) > 0 {
			hint += "; those that have a file here are " + strings.Join(found, ", ")
		}
		return nil, usage(hint, "no client is named")
	}
	client, ok := clients.Named(f.Client)
	if !ok {
		return nil, usage(nearest("clients", f.Client, clients.IDs()), "there is no client %q", f.Client)
	}
	return client, nil
}

// desk is where this user's clients are connected.
func (a *app) desk(cfg *config.Config) (clients.Desk, error) {
	dir, err := os.Getwd()
	if err != nil {
		return clients.Desk{}, fmt.Errorf("find the current folder: %w", err)
	}
	return clients.Desk{Place: clients.Here(runtime.GOOS, dir, a.getenv), Dir: a.dirs.Clients(), Ours: a.isOurs(cfg)}, nil
}

// connect writes the entry, or shows it.
func (c *connectCmd) connect(a *app, cfg *config.Config, desk clients.Desk, client *clients.Client, e clients.Endpoint, token string) error {
	ch, err := desk.Connect(client, c.Name, e, token)
	switch {
	case errors.Is(err, clients.ErrTaken):
		return usage("give Nightporter another name there with --name NAME", "%v", err)
	case err != nil:
		return notEdited(err)
	}
	if c.DryRun {
		return a.showChange(ch)
	}
	if err := desk.Make(context.Background(), ch); err != nil {
		return err
	}
	a.say("%s has Nightporter as %s, in %s", client.Name, ch.Name, ch.File)
	if err := a.dropToken(desk, client, ch.Former); err != nil {
		return err
	}
	if ch.Before == nil {
		a.say("the file is new; if %s is installed, it may keep its servers elsewhere", client.Name)
	}
	if len(ch.Others) > 0 {
		a.say("it has Nightporter as %s too, so that every tool is there twice: take that out of the file", oneLine(strings.Join(ch.Others, ", ")))
	}
	a.say("restart %s to use it; nightporter disconnect %s undoes it", client.Name, client.ID)
	if len(cfg.Servers) == 0 {
		a.say("there are no servers yet that it could see: see nightporter import and nightporter servers add")
	}
	a.sayDoubled(cfg, desk, client)
	return nil
}

// notEdited is the error of a client's file that cannot be edited.
func notEdited(err error) error {
	var syntax *config.SyntaxError
	switch refused := refusedEdit(err); {
	case refused != nil:
		return refused
	case errors.As(err, &syntax):
		return &problem{text: fmt.Sprintf("%s: %s", syntax.Pos, syntax.Message), hint: "nothing is written; mend the file first", code: run.ExitUsage}
	}
	return err
}

// sayDoubled says which servers the client has of its own and behind Nightporter.
func (a *app) sayDoubled(cfg *config.Config, desk clients.Desk, client *clients.Client) {
	var names []string
	for _, source := range clients.Read(desk.Place, []*clients.Client{client}) {
		for _, e := range source.Entries {
			if s, ours := cfg.Server(e.Server.Name); ours && s.Usable() && e.Left == "" && !slices.Contains(names, s.Name) {
				names = append(names, s.Name)
			}
		}
	}
	if len(names) > 0 {
		how := "of its file"
		if client.Remove != "" {
			how = "with " + client.Remove + " NAME"
		}
		a.say("it has %s of its own too, so that their tools are there twice: take them out %s when they work through Nightporter", oneLine(strings.Join(names, ", ")), how)
	}
}

// program is nightporter mcp as the client is to start it.
func (c *connectCmd) program(a *app, cfg *config.Config, client *clients.Client) (clients.Endpoint, error) {
	path, err := a.ownProgram()
	if err != nil {
		return clients.Endpoint{}, err
	}
	e := clients.Endpoint{Command: path, Args: []string{"mcp"}, EnvVars: referred(cfg)}
	if file := a.flags.Config; file != "" {
		abs, err := filepath.Abs(file)
		if err != nil {
			return e, fmt.Errorf("find %s: %w", file, err)
		}
		e.Args = append(e.Args, "--config", abs)
	}
	for _, name := range c.Server {
		e.Args = append(e.Args, "--server", name)
	}
	if c.Grant != "" {
		e.Args = append(e.Args, "--grant", c.Grant)
	}
	// A client that is started otherwise than this command would look elsewhere without them.
	for _, name := range []string{"NIGHTPORTER_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"} {
		if value := a.getenv(name); value != "" {
			abs, err := filepath.Abs(value)
			if err != nil {
				return e, fmt.Errorf("find %s: %w", value, err)
			}
			e.Env = append(e.Env, [2]string{name, abs})
		}
	}
	return e, nil
}

// ownProgram is the absolute path of this program: where PATH has it, if it is there, since that stays when it is replaced by a newer one.
func (a *app) ownProgram() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	if found, err := exec.LookPath(name); err == nil {
		if abs, err := filepath.Abs(found); err == nil && sameProgram(abs, path) {
			path = abs
		}
	}
	if strings.Contains(filepath.ToSlash(path), "/go-build") {
		a.say("warning: %s is gone when this command has ended; install the program and connect again", path)
	}
	return path, nil
}

func sameProgram(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// referred are the variables that servers are given or refer to, sorted: a client that hands over only those that are named has to name them.
func referred(cfg *config.Config) []string {
	var names []string
	for i := range cfg.Servers {
		s := &cfg.Servers[i]
		names = append(names, s.EnvVars...)
		values := append([]config.Value{s.URL, s.Command, s.Cwd, s.OAuth.ClientSecret}, s.Args...)
		for _, v := range s.Env {
			values = append(values, v)
		}
		for _, v := range s.HTTPHeaders {
			values = append(values, v)
		}
		for _, v := range values {
			names = append(names, v.EnvNames()...)
		}
		for _, variable := range s.EnvHTTPHeaders {
			names = append(names, variable)
		}
		if s.BearerTokenEnvVar != "" {
			names = append(names, s.BearerTokenEnvVar)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// gateway points the client at the gateway's address.
func (c *connectCmd) gateway(a *app, cfg *config.Config, desk clients.Desk, client *clients.Client) error {
	if !client.TakesURL() {
		return usage("leave --gateway out: nightporter mcp joins the gateway by itself when one runs", "%s starts programs, and its file names no addresses", client.Name)
	}
	how := given(c.Token)
	switch {
	case how == "env" && !client.ReadsVariables():
		return usage("give --token file", "the file of %s cannot refer to variables", client.Name)
	case how == "":
		how = map[bool]string{true: "env", false: "file"}[client.ReadsVariables()]
	}
	url, running := a.gatewayURL(cfg)
	e := clients.Endpoint{URL: url, Token: secret.New(secret.Mask)}
	if how == "env" {
		e.Variable = "NIGHTPORTER_TOKEN_" + strings.ToUpper(strings.ReplaceAll(client.ID, "-", "_"))
	}
	t := access.Token{Name: "connect-" + client.ID, Servers: c.Server}
	if c.Grant != "" {
		t.Grants = []string{c.Grant}
	}
	// Everything that can be refused is, before there is a token.
	if ch, err := desk.Connect(client, c.Name, e, t.Name); err != nil || c.DryRun {
		if err == nil {
			err = a.showChange(ch)
		}
		return c.connectError(err)
	}
	store := access.Open(a.dirs.Tokens())
	ctx, done := context.WithTimeout(context.Background(), lockPatience)
	defer done()
	if err := store.Revoke(ctx, t.Name); err != nil && !errors.Is(err, access.ErrNoToken) {
		return err
	}
	token, err := store.Add(ctx, t)
	if err != nil {
		return err
	}
	if how == "file" {
		e.Token = token
		err = removeIfThere(desk.TokenFile(client))
	} else {
		err = safefile.Write(desk.TokenFile(client), []byte(token.Reveal()+"\n"))
	}
	if err != nil {
		return errors.Join(err, store.Revoke(ctx, t.Name))
	}
	if err := c.connect(a, cfg, desk, client, e, t.Name); err != nil {
		return errors.Join(err, store.Revoke(ctx, t.Name))
	}
	if how == "file" {
		a.say("its token, %s, stands in that file, which is for you alone (0600)", t.Name)
	} else {
		set := fmt.Sprintf(`export %s="$(cat %s)"`, e.Variable, shellWord(desk.TokenFile(client)))
		if runtime.GOOS == "windows" {
			set = fmt.Sprintf(`$env:%s = Get-Content "%s"`, e.Variable, desk.TokenFile(client))
		}
		a.say("its token, %s, is in %s; %s has to find it in its environment: %s", t.Name, desk.TokenFile(client), client.Name, set)
	}
	if !running {
		a.say("no gateway of this configuration runs here now: start one with nightporter gateway")
	}
	return nil
}

func (c *connectCmd) connectError(err error) error {
	if errors.Is(err, clients.ErrTaken) {
		return usage("give Nightporter another name there with --name NAME", "%v", err)
	}
	if err != nil {
		return notEdited(err)
	}
	return nil
}

// gatewayURL is where the gateway of this configuration runs, or would.
func (a *app) gatewayURL(cfg *config.Config) (url string, running bool) {
	if processes, err := live.Find(context.Background(), a.dirs.Live()); err == nil {
		for _, p := range processes {
			if p.Kind == "gateway" && sameFile(p.Config, a.configFile()) {
				return p.URL, true
			}
		}
	}
	scheme := "http"
	if cfg.Gateway.TLSCert != "" {
		scheme = "https"
	}
	return scheme + "://" + reachable(cfg.Gateway.Listen) + "/mcp", false
}

// shellWord is a word of a shell.
func shellWord(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("/._-+:@%", r)
	}) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// showChange prints a change as a diff. Of lines that are not Nightporter's own the values are masked: they are somebody's secrets.
func (a *app) showChange(ch *clients.Change) error {
	text := diff.Diff(ch.File, ch.Before, ch.File, ch.After)
	if len(text) == 0 {
		a.say("%s would stay as it is", ch.File)
		return nil
	}
	var out strings.Builder
	header := true
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\r\n")
		switch header = header && !strings.HasPrefix(line, "@@"); {
		case header && strings.HasPrefix(line, "diff "):
			continue
		case header, strings.HasPrefix(line, "@@"), strings.HasPrefix(line, `\`), line == "":
		case !ch.Mine(line[1:]):
			indent := line[1 : len(line)-len(strings.TrimLeft(line[1:], " \t"))]
			line = line[:1] + indent + config.MaskLine(line[1:])
		}
		out.WriteString(printable(line) + "\n")
	}
	_, err := fmt.Fprint(a.stdout, out.String())
	return err
}

type disconnectCmd struct {
	clientFlags
}

func (*disconnectCmd) Help() string {
	return `The client's file becomes what it was, byte for byte, if nobody changed it since; else Nightporter's entry alone is taken out. A token that
the client had is revoked.

Examples:

	nightporter disconnect claude --dry-run
	nightporter disconnect claude`
}

func (c *disconnectCmd) Run(a *app) error {
	client, err := c.client(a)
	if err != nil {
		return err
	}
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	desk, err := a.desk(cfg)
	if err != nil {
		return err
	}
	ch, err := desk.Disconnect(client, c.Name)
	if err != nil {
		return notEdited(err)
	}
	if ch == nil {
		file, _ := desk.File(client)
		a.say("%s is not connected: there is no Nightporter called %s in %s", client.Name, cmp.Or(c.Name, clients.DefaultName), file)
		return nil
	}
	if c.DryRun {
		return a.showChange(ch)
	}
	if err := desk.Make(context.Background(), ch); err != nil {
		return err
	}
	switch {
	case ch.Restored && ch.After == nil:
		a.say("%s is removed: it was not there before", ch.File)
	case ch.Restored:
		a.say("%s is again what it was", ch.File)
	case bytes.Equal(ch.Before, ch.After):
		a.say("somebody took %s out of %s already", ch.Name, ch.File)
	default:
		a.say("%s was changed since it was connected: %s is taken out of it, and the rest stays", ch.File, ch.Name)
	}
	return a.dropToken(desk, client, ch.Token)
}

// dropToken revokes a client's token, if there is one.
func (a *app) dropToken(desk clients.Desk, client *clients.Client, token string) error {
	if token == "" {
		return nil
	}
	ctx, done := context.WithTimeout(context.Background(), lockPatience)
	defer done()
	if err := access.Open(a.dirs.Tokens()).Revoke(ctx, token); err != nil && !errors.Is(err, access.ErrNoToken) {
		return err
	}
	if err := removeIfThere(desk.TokenFile(client)); err != nil {
		return err
	}
	a.say("the token %s is revoked", token)
	return nil
}

func removeIfThere(file string) error {
	if err := os.Remove(file); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
