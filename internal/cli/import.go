package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"nightporter/internal/clients"
	"nightporter/internal/config"
	"nightporter/internal/run"
)

type importCmd struct {
	Client  string `arg:"" optional:"" help:"Whose servers: claude, claude-desktop, codex, cursor, vscode, gemini, windsurf or zed. Default: of all that are found."`
	DryRun  bool   `name:"dry-run" help:"Show what would be taken, and write nothing."`
	Yes     bool   `short:"y" help:"Write without asking."`
	Secrets string `enum:"keep,keyring,file" default:"keep" help:"Where secrets go that stand in a client's file as they are: keep (into config.toml as they are), keyring (of the system), file (one each, in a folder beside config.toml)."`
	Project string `placeholder:"DIR" help:"Take the servers of this project's own files too. Without it they are shown, and those that are yours in the current folder are taken."`
	JSON    bool   `name:"json" help:"Print one object. It asks nothing: give --yes to write."`
}

func (*importCmd) Help() string {
	return `It reads the files in which these programs keep their MCP servers, for the user and for one project, and shows which servers it
would take into config.toml, which it leaves and why. The programs' own files are not changed. Secrets are not shown.

A server that is there already is left. docs/import.md says what becomes of what.

Examples:

	nightporter import --dry-run
	nightporter import cursor
	nightporter import --secrets keyring --yes`
}

// imported is what an import would do, or did.
type imported struct {
	Config  string           `json:"config"`  // the file that is written
	Written bool             `json:"written"` // false: nothing was
	Files   []importedFile   `json:"files"`   // that were found
	Servers []importedServer `json:"servers"`
}

type importedFile struct {
	Client string `json:"client"`
	File   string `json:"file"`
	Error  string `json:"error,omitempty"` // it cannot be read: none of its servers is known
}

type importedServer struct {
	Name    string           `json:"name"`
	Client  string           `json:"client"`
	Scope   clients.Scope    `json:"scope"`
	File    string           `json:"file"`
	Line    int              `json:"line"`
	Take    bool             `json:"take"`
	Reason  clients.Reason   `json:"reason,omitempty"` // it is left
	Why     string           `json:"why,omitempty"`
	Command []string         `json:"command,omitempty"` // what looks like a secret is masked
	URL     string           `json:"url,omitempty"`     // likewise
	Secrets []importedSecret `json:"secrets"`
	Needs   []string         `json:"needs"` // variables that are not set
	Notes   []string         `json:"notes"`
}

type importedSecret struct {
	Field string `json:"field"`
	Moved bool   `json:"moved"` // false: it stands in config.toml as it is
}

func (c *importCmd) Run(a *app) error {
	chosen := clients.All()
	if c.Client != "" {
		one, ok := clients.Named(c.Client)
		if !ok {
			return usage(nearest("clients", c.Client, clients.IDs()), "there is no client %q", c.Client)
		}
		chosen = []*clients.Client{one}
	}
	project, err := filepath.Abs(c.Project)
	if err != nil {
		return fmt.Errorf("find the project's folder: %w", err)
	}
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	place := clients.Here(runtime.GOOS, project, a.getenv)
	place.Trusted = c.Project != ""
	sources := clients.Read(place, chosen)
	plan := clients.MakePlan(a.configFile(), cfg, sources, clients.Keeping(c.Secrets), a.isOurs(cfg))
	report := c.report(a, plan)
	if !c.JSON {
		if err := report.print(a); err != nil {
			return err
		}
	}
	servers := plan.Take()
	write, err := c.decide(a, len(servers))
	if err == nil && write {
		err = a.take(plan, servers)
		report.Written = err == nil
	}
	if c.JSON {
		if err := writeJSON(a.stdout, report); err != nil {
			return err
		}
	}
	if report.Written {
		a.say("%s written to %s", count(len(servers), "server"), a.configFile())
		a.say("see them with nightporter servers list, try them with nightporter tools list; connect a client with nightporter connect CLIENT")
	}
	return err
}

// decide says whether to write n servers, after asking on a terminal.
func (c *importCmd) decide(a *app, n int) (bool, error) {
	switch {
	case c.DryRun || n == 0:
		return false, nil
	case c.Yes:
		return true, nil
	case c.JSON || width(a.stdin) == 0:
		return false, usage("give --yes to write, or --dry-run to look only", "nothing is written: nobody can be asked here")
	}
	fmt.Fprintf(a.stderr, "Write %s to %s? [y/N] ", count(n, "server"), a.configFile())
	line, _ := bufio.NewReader(io.LimitReader(a.stdin, 1<<10)).ReadString('\n')
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
		a.say("nothing is written")
		return false, nil
	}
	return true, nil
}

// take writes the servers of a plan. Their secrets come first, since a reference to none is a server that cannot start; but not before it is
// known that the servers can be written.
func (a *app) take(plan *clients.Plan, servers []config.NewServer) error {
	_, err := a.edit(func(file string, data []byte) ([]byte, error) {
		var err error
		for _, s := range servers {
			if data, err = config.AddServer(file, data, s, false); err != nil {
				return nil, err
			}
		}
		if err := plan.Store(context.Background()); err != nil {
			hint := ""
			if plan.Keeping == clients.InKeyring {
				hint = "nothing is written; give --secrets file to keep them in files"
			}
			return nil, &problem{text: err.Error(), hint: hint, code: run.ExitFailed}
		}
		return data, nil
	})
	return err
}

// isOurs tells Nightporter itself among a client's servers.
func (a *app) isOurs(cfg *config.Config) func(config.NewServer) bool {
	url, _ := a.gatewayURL(cfg)
	own, _ := os.Executable() // which may have another name
	return func(s config.NewServer) bool {
		return clients.IsNightporter(s, url) || own != "" && s.Command == own && slices.Contains(s.Args, "mcp")
	}
}

func (c *importCmd) report(a *app, plan *clients.Plan) *imported {
	r := &imported{Config: a.configFile(), Files: []importedFile{}, Servers: []importedServer{}}
	for _, s := range plan.Sources {
		f := importedFile{Client: s.Client.ID, File: s.File}
		if s.Err != nil {
			f.Error = oneLine(s.Err.Error())
		}
		r.Files = append(r.Files, f)
	}
	for _, item := range plan.Items {
		s := importedServer{
			Name: item.Server.Name, Client: item.Client.ID, Scope: item.Scope, File: item.Pos.File, Line: item.Pos.Line, Take: item.Left == "",
			Reason: item.Left, Why: item.Why, Secrets: []importedSecret{}, Needs: []string{}, Notes: []string{},
		}
		if s.Take {
			s.Command, s.URL = shown(item.Server)
			s.Needs, s.Notes = some(item.Needs), some(item.Notes)
			for _, secret := range item.Secrets {
				s.Secrets = append(s.Secrets, importedSecret{secret.Field, plan.Keeping != clients.AsIs && !secret.Fixed})
			}
		}
		r.Servers = append(r.Servers, s)
	}
	return r
}

// shown is a server's command line or address, without what is secret in it.
func shown(s config.NewServer) (command []string, url string) {
	value := func(text string) config.Value {
		v, err := config.ParseValue(text)
		if err != nil {
			return config.Literal(text)
		}
		return v
	}
	if s.URL != "" {
		return nil, config.ListedURL(value(s.URL))
	}
	args := make([]config.Value, len(s.Args))
	for i, arg := range s.Args {
		args[i] = value(arg)
	}
	return append([]string{value(s.Command).Listed()}, config.ListedArgs(args)...), ""
}

// print shows the report to a person. What it is about is on standard output, what went wrong and what to look at on standard error.
func (r *imported) print(a *app) error {
	for _, f := range r.Files {
		if f.Error != "" {
			a.say("%s", f.Error)
		}
	}
	if len(r.Servers) == 0 {
		if len(r.Files) == 0 {
			a.say("no file with MCP servers was found; docs/import.md says where they are looked for")
		} else {
			a.say("no MCP servers were found in %s", count(len(r.Files), "file"))
		}
		return nil
	}
	taken, kept, fixed, others := 0, 0, 0, 0
	var needs []string
	t := newTable(a.stdout, "SERVER", "FROM", "", "ABOUT")
	for _, s := range r.Servers {
		client, _ := clients.Named(s.Client)
		does, about := "leave", s.Why
		if s.Reason == clients.Differs {
			others++
		}
		if s.Take {
			taken++
			does = "take"
			about = strings.Join(append(s.Command, s.URL), " ")
			for _, secret := range s.Secrets {
				switch {
				case secret.Moved:
					s.Notes = append(s.Notes, secret.Field+" becomes a reference")
				case strings.HasPrefix(secret.Field, "args["):
					fixed++
					s.Notes = append(s.Notes, secret.Field+" looks like a secret")
				default:
					kept++
					s.Notes = append(s.Notes, secret.Field+" is a secret")
				}
			}
			about = strings.Join(append([]string{strings.TrimSpace(about)}, s.Notes...), "; ")
			for _, name := range s.Needs {
				if !slices.Contains(needs, name) {
					needs = append(needs, name)
				}
			}
		}
		t.row(oneLine(s.Name), fmt.Sprintf("%s, %s", client.Name, s.Scope), does, oneLine(about))
	}
	if err := t.flush(); err != nil {
		return err
	}
	a.say("%s to take, %d to leave", count(taken, "server"), len(r.Servers)-taken)
	if others > 0 {
		a.say("to take a server whose name another has, rename one of them, in the client's file or in config.toml, and import again")
	}
	if kept > 0 {
		a.say("%s would stand in config.toml as in the clients' files; --secrets keyring or --secrets file puts references there", count(kept, "secret"))
	}
	if fixed > 0 {
		a.say("a secret on a command line stays there, where every user of the machine can read it: give it to the server in env")
	}
	if len(needs) > 0 {
		a.say("not set here, and needed by what is taken: %s", strings.Join(needs, ", "))
	}
	return nil
}
