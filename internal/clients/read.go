package clients

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/tailscale/hujson"

	"nightporter/internal/config"
)

// maxFile bounds a client's file. Claude Code keeps its history in the same one, which makes some megabytes of it.
const maxFile = 64 << 20

// Source is one file of a client that is there.
type Source struct {
	Client  *Client
	File    string
	Err     error // it cannot be read or parsed: then nothing else is known
	Entries []Entry
}

// Read reads the files of the clients that are there, in the order of the clients and of their scopes. Of a file in which servers of two scopes stand
// there is one source.
func Read(place Place, clients []*Client) []Source {
	var all []Source
	for _, client := range clients {
		for _, f := range place.files(client) {
			path := place.Path(f)
			at := slices.IndexFunc(all, func(s Source) bool { return s.Client == client && s.File == path })
			if at < 0 {
				data, err := readFile(path, maxFile)
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				all, at = append(all, Source{Client: client, File: path}), len(all)
				if err != nil {
					all[at].Err = err
					continue
				}
				if f.Keys == nil {
					all[at].Entries, all[at].Err = codexEntries(place, client, f, path, data)
					continue
				}
				all[at].read(place, data)
			}
		}
	}
	return all
}

func readFile(path string, most int64) ([]byte, error) {
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() { // a pipe would be waited for
		return nil, fmt.Errorf("%s is no file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%s is larger than %d MiB", path, most>>20)
	}
	return data, err
}

// read takes the entries of all scopes that stand in one JSON file.
func (s *Source) read(place Place, data []byte) {
	d, err := parse(s.File, data)
	if err != nil {
		s.Err = err
		return
	}
	for _, f := range place.files(s.Client) {
		if place.Path(f) != s.File {
			continue
		}
		if f.Scope == Local {
			s.locals(place, d, f)
			continue
		}
		s.servers(place, d, f, f.Keys)
	}
	// A table under a name that another client looks for, in a file that holds nothing else.
	for _, keys := range [][]string{mcpServers, servers, zedServers} {
		if _, mine := s.at(place, keys); mine || !strings.HasPrefix(filepath.Base(s.File), "mcp") && !strings.HasPrefix(filepath.Base(s.File), ".mcp") {
			continue
		}
		if o, err := d.object(keys); err == nil && o != nil {
			f, _ := s.at(place, nil)
			for _, e := range s.entries(place, d, f, o, "") {
				e.Left, e.Why = Unread, fmt.Sprintf("%s reads %s, and it stands in %s", s.Client.Name, strings.Join(f.Keys, "."), strings.Join(keys, "."))
				s.Entries = append(s.Entries, e)
			}
		}
	}
}

// at returns the client's own description of this file with those keys; with nil the first.
func (s *Source) at(place Place, keys []string) (File, bool) {
	for _, f := range place.files(s.Client) {
		if place.Path(f) == s.File && (keys == nil || slices.Equal(f.Keys, keys)) {
			return f, true
		}
	}
	return File{}, false
}

// servers takes the entries of the table at keys.
func (s *Source) servers(place Place, d *document, f File, keys []string) {
	o, err := d.object(keys)
	switch {
	case err != nil:
		s.Err = err
	case o != nil:
		project := ""
		if f.Scope != User {
			project = place.Project
		}
		s.Entries = append(s.Entries, s.entries(place, d, f, o, project)...)
	}
}

// locals takes Claude Code's servers of single projects: of this one, and as left of all others.
func (s *Source) locals(place Place, d *document, f File) {
	projects, err := d.object(f.Keys[:1])
	if err != nil || projects == nil {
		return // what is wrong there is no server
	}
	for _, p := range projects.Members {
		dir := key(p)
		o, err := d.object([]string{f.Keys[0], dir, f.Keys[2]})
		if err != nil || o == nil {
			continue
		}
		for _, e := range s.entries(place, d, f, o, dir) {
			if !sameFolder(dir, place.Project) {
				e.Left, e.Why = Elsewhere, fmt.Sprintf("it is for %s alone; --project takes it", oneLine(dir))
			}
			s.Entries = append(s.Entries, e)
		}
	}
}

// entries carries the members of a table over, in the order of the file. project is empty for servers that are nobody's in particular.
func (s *Source) entries(place Place, d *document, f File, table *hujson.Object, project string) []Entry {
	var all []Entry
	inputs := readInputs(d, f.Keys)
	off := s.switchedOff(place, d, f, project)
	for i, m := range table.Members {
		name := key(m)
		if member(table, name) != i {
			continue // a later one of the same name counts
		}
		e := Entry{Client: s.Client, Scope: f.Scope, Pos: d.position(m.Name.StartOffset), Server: config.NewServer{Name: name}}
		c := &carry{client: s.Client, place: place, project: project, inputs: inputs, entry: &e}
		if err := config.CheckName(name); err != nil {
			reason := Invalid
			if config.ReservedFor(name) {
				reason = Reserved
			}
			c.leave(reason, "%v", err)
		}
		if off(name) {
			c.leave(Disabled, "it is switched off there")
		}
		c.jsonEntry(plain(m.Value))
		c.try(f)
		all = append(all, e)
	}
	return all
}

// try leaves an entry that config.toml does not take, with what it says about it, and one of a project's file that nobody vouches for.
func (c *carry) try(f File) {
	if c.entry.Left != "" {
		return
	}
	if f.Scope == Project && !c.place.Trusted {
		c.leave(Elsewhere, "it comes with the project; if that is to be trusted, --project . takes it")
		return
	}
	_, err := config.AddServer("config.toml", nil, c.entry.Server, false)
	var p *config.Problem
	switch {
	case errors.As(err, &p):
		c.leave(Invalid, "%s", strings.TrimPrefix(p.Error(), config.Field("mcp_servers", c.entry.Server.Name)+"."))
	case err != nil:
		c.leave(Invalid, "%v", err)
	}
}

// readInputs reads what VS Code asks its user for, beside the table of servers.
func readInputs(d *document, keys []string) map[string]input {
	all := map[string]input{}
	o, err := d.object(keys[:len(keys)-1])
	if err != nil || o == nil {
		return all
	}
	at := member(o, "inputs")
	if at < 0 {
		return all
	}
	list, _ := plain(o.Members[at].Value).([]any)
	for _, item := range list {
		m, _ := item.(map[string]any)
		text := func(key string) string { s, _ := m[key].(string); return s }
		in := input{description: text("description"), otherwise: text("default")}
		if m["password"] == true {
			in.otherwise = ""
		}
		all[text("id")] = in
	}
	return all
}

// switchedOff reports the names that a client's own lists turn off: Claude Code's of a project, Gemini's of all.
func (s *Source) switchedOff(place Place, d *document, f File, project string) func(name string) bool {
	var off, only []string
	switch {
	case s.Client.ID == "gemini":
		off, only = d.names([]string{"mcp"}, "excluded"), d.names([]string{"mcp"}, "allowed")
	case s.Client.ID == "claude" && f.Scope == Local:
		off = d.names([]string{"projects", project}, "disabledMcpServers")
	case s.Client.ID == "claude" && f.Scope == Project:
		// What its user said no to when Claude Code asked about the project's servers, by version of it.
		for _, file := range []string{"{claude}/.claude.json", "{project}/.claude/settings.local.json", "{project}/.claude/settings.json"} {
			data, err := readFile(place.Path(File{Path: everywhere(file)}), maxFile)
			if err != nil {
				continue
			}
			if said, err := parse(file, data); err == nil {
				off = slices.Concat(off, said.names(nil, "disabledMcpjsonServers"), said.names([]string{"projects", project}, "disabledMcpjsonServers"))
			}
		}
	}
	return func(name string) bool {
		return slices.Contains(off, name) || len(only) > 0 && !slices.Contains(only, name)
	}
}

// names is a list of texts in the object at keys.
func (d *document) names(keys []string, list string) (names []string) {
	o, err := d.object(keys)
	if err != nil || o == nil {
		return nil
	}
	if at := member(o, list); at >= 0 {
		items, _ := plain(o.Members[at].Value).([]any)
		for _, item := range items {
			if name, ok := item.(string); ok {
				names = append(names, name)
			}
		}
	}
	return names
}

// codexEntries takes the servers of a config.toml of Codex, whose fields are ours.
func codexEntries(place Place, client *Client, f File, path string, data []byte) ([]Entry, error) {
	parsed, err := config.Parse(path, data)
	if err != nil {
		return nil, err
	}
	var raw struct {
		Servers map[string]map[string]any `toml:"mcp_servers"`
	}
	_ = toml.Unmarshal(data, &raw) // an entry that is no table has a problem already
	found := slices.Clone(parsed.Servers)
	slices.SortStableFunc(found, func(a, b config.Server) int { return a.Pos.Line - b.Pos.Line })
	var all []Entry
	for _, s := range found {
		e := Entry{Client: client, Scope: f.Scope, Pos: s.Pos, Server: config.NewServer{Name: s.Name}}
		c := &carry{client: client, place: place, entry: &e}
		if f.Scope != User {
			c.project = place.Project
		}
		switch {
		case config.ReservedFor(s.Name):
			c.leave(Reserved, "%v", config.CheckName(s.Name))
			c.tomlEntry(raw.Servers[s.Name])
		case s.Problem != nil:
			p := *s.Problem
			p.Pos = config.Position{}
			c.leave(Invalid, "%s", strings.TrimPrefix(p.Error(), config.Field("mcp_servers", s.Name)+"."))
		case !s.Enabled:
			c.leave(Disabled, "it is disabled there")
		default:
			c.tomlEntry(raw.Servers[s.Name])
			c.try(f)
		}
		all = append(all, e)
	}
	return all, nil
}

// tomlEntry carries the fields of an entry over. They were checked.
func (c *carry) tomlEntry(fields map[string]any) {
	s := &c.entry.Server
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		v := fields[key]
		switch key {
		case "command":
			s.Command = c.str(key, v)
		case "args":
			s.Args = c.list(key, v)
		case "env":
			s.Env = c.pairs(key, v)
		case "env_vars":
			items, _ := v.([]any)
			for _, item := range items {
				if m, ok := item.(map[string]any); ok {
					item = m["name"]
				}
				if name, ok := item.(string); ok {
					s.EnvVars = append(s.EnvVars, name)
				}
			}
		case "cwd":
			s.Cwd = c.str(key, v)
		case "url":
			s.URL = c.str(key, v)
		case "http_headers":
			s.Headers = c.pairs(key, v)
		case "bearer_token_env_var":
			s.BearerTokenEnvVar, _ = v.(string)
		case "required":
			s.Required, _ = v.(bool)
		case "enabled", "name", "environment_id":
		default:
			c.setting([]string{key}, v)
		}
	}
	if s.Command != "" {
		c.stdio()
	}
	if name := s.BearerTokenEnvVar; name != "" {
		c.variable(name, "")
	}
}

// setting writes a field down as it is.
func (c *carry) setting(path []string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			c.setting(append(slices.Clone(path), key), v[key])
		}
	case []any:
		c.set(c.list(strings.Join(path, "."), v), path...)
	case string:
		c.set(literal(v), path...)
	case bool, int64, float64:
		c.set(v, path...)
	case time.Time, toml.LocalDate, toml.LocalDateTime, toml.LocalTime:
		c.dropped = append(c.dropped, strings.Join(path, "."))
	}
}
