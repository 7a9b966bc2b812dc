package clients

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"nightporter/internal/config"
)

// Plan is what an import would do.
type Plan struct {
	Sources []Source // as they were read
	Items   []Item   // all their entries, in order
	Keeping Keeping  // of secrets

	dir string // config.toml's folder
}

// Item is an entry of a plan. Its Server is what is written, with references in the places of secrets that are moved.
type Item struct {
	Entry
	Secrets []Secret // that stand in the client's file as they are
}

// MakePlan decides which of the entries to take into a configuration, whose file is file: one whose name and definition are not there, nor in an
// entry before it. ours tells which are Nightporter itself.
func MakePlan(file string, cfg *config.Config, sources []Source, keeping Keeping, ours func(config.NewServer) bool) *Plan {
	p := &Plan{Sources: sources, Keeping: keeping, dir: filepath.Dir(file)}
	there := make([]known, 0, len(cfg.Servers))
	for i := range cfg.Servers {
		there = append(there, known{name: cfg.Servers[i].Name, where: "is there already", is: []definition{definitionOf(&cfg.Servers[i])}})
	}
	for _, e := range ranked(sources) {
		item := Item{Entry: e}
		if (e.Left == "" || e.Left == Reserved) && ours(e.Server) {
			item.Left, item.Why = Ours, "it is Nightporter itself"
		}
		if item.Left == "" {
			p.hold(&item, &there)
		}
		p.Items = append(p.Items, item)
	}
	return p
}

// ranked is all entries, those first that win over others of their name: by client, by scope, as they stand in the files.
func ranked(sources []Source) (all []Entry) {
	for _, source := range sources {
		all = append(all, source.Entries...)
	}
	slices.SortStableFunc(all, func(a, b Entry) int {
		return cmp.Or(slices.Index(table, a.Client)-slices.Index(table, b.Client), slices.Index(scopes, a.Scope)-slices.Index(scopes, b.Scope))
	})
	return all
}

// known is a server that is there, or will be.
type known struct {
	name  string
	where string       // completes a sentence about it
	is    []definition // what it may say: before and after its secrets are moved
}

// hold moves the secrets of an entry that can be taken, and holds it against those that are there.
func (p *Plan) hold(item *Item, there *[]known) {
	var is []definition
	for _, k := range []Keeping{AsIs, InKeyring, InFile} {
		moved, _ := k.move(item.Server)
		if d, ok := p.definition(moved); ok {
			is = append(is, d)
		}
	}
	item.Server, item.Secrets = p.Keeping.move(item.Server)
	name := item.Server.Name
	for _, other := range *there {
		same := slices.ContainsFunc(is, func(d definition) bool {
			return slices.ContainsFunc(other.is, d.equal)
		})
		switch {
		case same && other.name == name:
			item.Left, item.Why = Same, "the same "+other.where
		case same:
			item.Left, item.Why = Same, fmt.Sprintf("the same %s, as %s", other.where, other.name)
		case other.name == name && len(is) > 0:
			item.Left, item.Why = Differs, fmt.Sprintf("another of that name %s: %s", other.where, other.is[0].against(is[0]))
		default:
			continue
		}
		return
	}
	*there = append(*there, known{name, fmt.Sprintf("comes from %s (%s)", item.Client.Name, item.Scope), is})
}

// Take returns the servers that are to be written.
func (p *Plan) Take() (all []config.NewServer) {
	for _, item := range p.Items {
		if item.Left == "" {
			all = append(all, item.Server)
		}
	}
	return all
}

// Store keeps the secrets of what is taken in the places that the plan's references name.
func (p *Plan) Store(ctx context.Context) error {
	if p.Keeping == AsIs {
		return nil
	}
	for _, item := range p.Items {
		for _, s := range item.Secrets {
			if item.Left != "" || s.Fixed {
				continue
			}
			if err := p.Keeping.store(ctx, p.dir, s); err != nil {
				return fmt.Errorf("server %s: %w", item.Server.Name, err)
			}
		}
	}
	return nil
}

// definition is what makes a server the one that it is. What only says how it is dealt with, such as a timeout, is not in it.
type definition struct {
	fields map[string]string
	shown  map[string]string // those of them that a person may see, without what is secret in them
}

// definition parses a server as it would be written.
func (p *Plan) definition(s config.NewServer) (definition, bool) {
	file := filepath.Join(p.dir, "config.toml")
	text, err := config.AddServer(file, nil, s, false)
	if err != nil {
		return definition{}, false
	}
	cfg, err := config.Parse(file, text)
	if err != nil || len(cfg.Servers) != 1 {
		return definition{}, false
	}
	return definitionOf(&cfg.Servers[0]), true
}

func definitionOf(s *config.Server) definition {
	d := definition{map[string]string{}, map[string]string{
		"type": string(s.Transport), "command": s.Command.Listed(), "cwd": s.Cwd.Listed(), "url": config.ListedURL(s.URL),
		"args": strings.Join(config.ListedArgs(s.Args), " "),
	}}
	put := func(field, value string) {
		if value != "" {
			d.fields[field] = value
		}
	}
	list := func(field string, values []string) {
		if values != nil {
			d.fields[field] = fmt.Sprintf("%q", values)
		}
	}
	put("type", string(s.Transport))
	put("command", s.Command.Text())
	var args []string
	for _, arg := range s.Args {
		args = append(args, arg.Text())
	}
	list("args", args)
	for name, value := range s.Env {
		d.fields["env."+name] = value.Text()
	}
	for _, name := range s.EnvVars {
		d.fields["env."+name] = "${env:" + name + "}" // which is the same
	}
	put("cwd", s.Cwd.Text())
	put("url", strings.TrimSuffix(s.URL.Text(), "/"))
	put("bearer_token_env_var", s.BearerTokenEnvVar)
	for name, value := range s.HTTPHeaders {
		put("http_headers."+strings.ToLower(name), value.Text())
	}
	for name, value := range s.EnvHTTPHeaders {
		put("env_http_headers."+strings.ToLower(name), value)
	}
	put("http_headers_helper", s.HTTPHeadersHelper)
	list("enabled_tools", s.EnabledTools)
	list("disabled_tools", s.DisabledTools)
	return d
}

// equal reports whether both say the same.
func (d definition) equal(other definition) bool { return maps.Equal(d.fields, other.fields) }

// against says in which fields another definition is another than d, which is there. No value that may be a secret is in it.
func (d definition) against(other definition) string {
	fields := maps.Clone(d.fields)
	maps.Copy(fields, other.fields)
	var parts []string
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		mine, is := d.fields[field]
		its, has := other.fields[field]
		shown := func(d definition) string {
			if text := oneLine(d.shown[field]); text != "" {
				return text
			}
			return "none"
		}
		switch {
		case mine == its && is == has:
		case d.shown[field] != other.shown[field]:
			parts = append(parts, fmt.Sprintf("%s is %s there and %s here", field, shown(d), shown(other)))
		case !has:
			parts = append(parts, field+" is there alone")
		case !is:
			parts = append(parts, field+" is here alone")
		default:
			parts = append(parts, field+" is another")
		}
	}
	return strings.Join(parts, ", ")
}

// IsNightporter reports whether a client's server is Nightporter: its program with the command mcp, or an endpoint of its gateway, which
// is at url.
func IsNightporter(s config.NewServer, url string) bool {
	if s.Command != "" {
		base := strings.ToLower(s.Command[strings.LastIndexAny(s.Command, `/\`)+1:])
		return strings.TrimSuffix(base, ".exe") == config.ReservedName && slices.Contains(s.Args, "mcp")
	}
	return s.URL == url || strings.HasPrefix(s.URL, url+"/")
}
