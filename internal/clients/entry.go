package clients

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"nightporter/internal/config"
)

// Reason is why an entry is not taken: a stable word.
type Reason string

// The reasons.
const (
	Disabled    Reason = "disabled"    // the client does not use it
	Unread      Reason = "unread"      // it stands where the client does not look
	Elsewhere   Reason = "elsewhere"   // it is another project's
	Unsupported Reason = "unsupported" // it needs what only that client has
	Invalid     Reason = "invalid"     // it is no server's definition
	Reserved    Reason = "reserved"    // its name is Nightporter's own
	Ours        Reason = "ours"        // it is Nightporter itself
	Same        Reason = "same"        // it is there already
	Differs     Reason = "differs"     // another one of that name is there already
)

// Entry is one server of a client's file.
type Entry struct {
	Client *Client
	Scope  Scope
	Pos    config.Position
	// Server is what would be written. Of an entry that is left, its name alone counts.
	Server config.NewServer
	Left   Reason   // empty: it can be taken
	Why    string   // it is left
	Notes  []string // what is otherwise than in the client
	Needs  []string // variables that it refers to, and that are not set here
}

// carry is one entry while it is carried over.
type carry struct {
	client  *Client
	place   Place
	project string // the folder of the project whose entry it is; empty: nobody's
	inputs  map[string]input
	entry   *Entry

	kind    string // the type that it says
	envFile string
	dropped []string // keys that have no meaning here
}

func (c *carry) lookup(name string) (string, bool) {
	value := c.place.Getenv(name)
	return value, value != ""
}

// leave says why the entry is not taken. The first reason counts.
func (c *carry) leave(reason Reason, format string, args ...any) {
	if c.entry.Left == "" {
		c.entry.Left, c.entry.Why = reason, fmt.Sprintf(format, args...)
	}
}

func (c *carry) note(format string, args ...any) {
	if note := fmt.Sprintf(format, args...); !slices.Contains(c.entry.Notes, note) {
		c.entry.Notes = append(c.entry.Notes, note)
	}
}

func (c *carry) set(value any, key ...string) {
	c.entry.Server.Settings = append(c.entry.Server.Settings, config.Setting{Key: key, Value: value})
}

// keys is what is made of each key of an entry of any client. What is in no client's documentation is read nevertheless, where
// it can mean one thing alone.
var keys map[string]func(c *carry, key string, v any)

func init() { // command refers to the table itself
	url := func(c *carry, key string, v any) {
		if c.entry.Server.URL != "" {
			c.leave(Invalid, "it has several addresses")
		}
		c.entry.Server.URL = c.str(key, v)
	}
	kind := func(c *carry, key string, v any) {
		c.kind = c.str(key, v)
	}
	describes := func(*carry, string, any) {}
	approvals := func(c *carry, key string, v any) {
		if list, ok := v.([]any); ok && len(list) == 0 || v == false {
			return
		}
		c.note("%s is not taken over: which calls need a person is said by default_tools_approval_mode (docs/approvals.md)", key)
	}
	keys = map[string]func(*carry, string, any){
		"type": kind, "transport": kind, "transportType": kind,
		"command": (*carry).command,
		"args": func(c *carry, key string, v any) {
			c.entry.Server.Args = append(c.entry.Server.Args, c.list(key, v)...)
		},
		"env":     func(c *carry, key string, v any) { c.entry.Server.Env = append(c.entry.Server.Env, c.pairs(key, v)...) },
		"cwd":     func(c *carry, key string, v any) { c.entry.Server.Cwd = c.str(key, v) },
		"envFile": func(c *carry, key string, v any) { c.envFile = c.str(key, v) },
		"url":     url, "serverUrl": url, "httpUrl": func(c *carry, key string, v any) { url(c, key, v); c.kind = "http" },
		"headers":       func(c *carry, key string, v any) { c.entry.Server.Headers = c.pairs(key, v) },
		"headersHelper": func(c *carry, key string, v any) { c.set(c.str(key, v), "http_headers_helper") },
		"disabled": func(c *carry, _ string, v any) {
			if v == true {
				c.leave(Disabled, "it is disabled there")
			}
		},
		"enabled": func(c *carry, _ string, v any) {
			if v == false {
				c.leave(Disabled, "it is disabled there")
			}
		},
		"includeTools":  func(c *carry, key string, v any) { c.set(c.list(key, v), "enabled_tools") },
		"excludeTools":  func(c *carry, key string, v any) { c.tools(key, v) },
		"disabledTools": func(c *carry, key string, v any) { c.tools(key, v) },
		"timeout":       (*carry).timeout,
		"oauth":         (*carry).oauth, "auth": (*carry).oauth,
		"autoApprove": approvals, "alwaysAllow": approvals, "trust": approvals,
		"sandboxEnabled": func(c *carry, _ string, v any) {
			if v == true {
				c.note("%s confines it to a sandbox; here it is not confined unless it gets a sandbox of its own (docs/sandbox.md)", c.client.Name)
			}
		},
		"sandbox": describes,
		"source": func(c *carry, key string, v any) {
			if c.str(key, v) == "extension" {
				c.leave(Unsupported, "an extension of %s starts it, and the file does not say how", c.client.Name)
			}
		},
		"tcp": func(c *carry, _ string, _ any) {
			c.leave(Unsupported, "it is reached by WebSocket, which Nightporter does not speak")
		},
		"authProviderType": func(c *carry, key string, v any) {
			if s := c.str(key, v); s != "" && s != "dynamic_discovery" {
				c.leave(Unsupported, "it logs in by %s, which only %s has", oneLine(s), c.client.Name)
			}
		},
		"alwaysLoad": describes, "description": describes, "name": describes, "icon": describes, "version": describes, "gallery": describes,
		"metadata": describes, "registry": describes, "$schema": describes, "dev": describes, "remote": describes, "extension": describes, "extensionName": describes,
	}
}

// jsonEntry carries an entry of a JSON file over.
func (c *carry) jsonEntry(raw any) {
	fields, ok := raw.(map[string]any)
	if !ok {
		c.leave(Invalid, "it is no object")
		return
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		v := fields[key]
		if v == nil {
			continue
		}
		if read := keys[key]; read != nil {
			read(c, key, v)
		} else {
			c.dropped = append(c.dropped, oneLine(key))
		}
	}
	if fields["settings"] != nil && fields["command"] == nil && fields["url"] == nil {
		c.leave(Unsupported, "an extension of %s starts it, and the file does not say how", c.client.Name)
	}
	c.finish()
	if len(c.dropped) > 0 {
		c.note("not taken over: %s", strings.Join(c.dropped, ", "))
	}
}

// str is a text as config.toml has it.
func (c *carry) str(key string, v any) string {
	switch v := v.(type) {
	case string:
		return c.text(v)
	case json.Number:
		return v.String()
	case bool:
		return fmt.Sprint(v)
	}
	c.leave(Invalid, "%s is no text", key)
	return ""
}

func (c *carry) list(key string, v any) []string {
	items, ok := v.([]any)
	if !ok {
		c.leave(Invalid, "%s is no list of texts", key)
	}
	list := make([]string, len(items))
	for i, item := range items {
		list[i] = c.str(key, item)
	}
	return list
}

func (c *carry) pairs(key string, v any) (all [][2]string) {
	m, ok := v.(map[string]any)
	if !ok {
		c.leave(Invalid, "%s is no object of texts", key)
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if m[name] != nil {
			all = append(all, [2]string{name, c.str(key+"."+oneLine(name), m[name])})
		}
	}
	return all
}

func (c *carry) tools(key string, v any) {
	if list := c.list(key, v); len(list) > 0 {
		c.set(list, "disabled_tools")
	}
}

// command is a program, or in older files of Zed an object that has it.
func (c *carry) command(key string, v any) {
	m, nested := v.(map[string]any)
	if !nested {
		c.entry.Server.Command = c.str(key, v)
		return
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		switch {
		case k == "path" && m[k] != nil:
			c.entry.Server.Command = c.str("command.path", m[k])
		case (k == "args" || k == "env") && m[k] != nil:
			keys[k](c, "command."+k, m[k])
		}
	}
}

func (c *carry) timeout(key string, v any) {
	number, ok := v.(json.Number)
	if c.client.timeout == 0 || !ok {
		c.dropped = append(c.dropped, key)
		return
	}
	units, err := number.Float64()
	if err != nil || units <= 0 {
		return // none
	}
	switch sec := units * c.client.timeout; {
	case sec == float64(int64(sec)):
		c.set(int64(sec), "tool_timeout_sec")
	default:
		c.set(sec, "tool_timeout_sec")
	}
}

// oauth is the client's own registration at a server's authorization server.
func (c *carry) oauth(key string, v any) {
	m, ok := v.(map[string]any)
	if !ok {
		c.dropped = append(c.dropped, key)
		return
	}
	names := map[string]string{
		"clientId": "client_id", "CLIENT_ID": "client_id", "client_id": "client_id",
		"clientSecret": "client_secret", "CLIENT_SECRET": "client_secret", "client_secret": "client_secret", "redirectUri": "callback_url",
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		switch ours := names[k]; {
		case ours != "":
			c.set(c.str(key+"."+k, m[k]), "oauth", ours)
		case k == "callbackPort":
			if port, ok := m[k].(json.Number); ok {
				if n, err := port.Int64(); err == nil {
					c.set(n, "oauth", "callback_port")
				}
			}
		case k == "scopes":
			if text, ok := m[k].(string); ok {
				c.set(strings.Fields(text), "scopes")
			} else {
				c.set(c.list(key+"."+k, m[k]), "scopes")
			}
		case k == "enabled":
		default:
			c.dropped = append(c.dropped, key+"."+oneLine(k))
		}
	}
}

var windowsPath = regexp.MustCompile(`^([A-Za-z]:[\\/]|\\\\)`)

// finish decides what the fields are together.
func (c *carry) finish() {
	s := &c.entry.Server
	if c.entry.Left != "" {
		return
	}
	kinds := map[string]string{"": "", "stdio": "stdio", "local": "stdio", "http": "http", "streamablehttp": "http", "remote": "http", "sse": "sse"}
	kind, known := kinds[strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(c.kind))]
	switch {
	case !known:
		c.leave(Unsupported, "Nightporter speaks stdio, streamable HTTP and SSE, and it says %q", oneLine(c.kind))
	case s.Command == "" && s.URL == "":
		c.leave(Invalid, "it has neither a command nor a url")
	case s.Command != "" && s.URL != "" && kind == "":
		c.leave(Invalid, "it has a command and a url, and does not say which counts")
	case kind == "stdio" && s.Command == "" || (kind == "http" || kind == "sse") && s.URL == "":
		c.leave(Invalid, "it says %s, and has no %s", c.kind, map[bool]string{true: "command", false: "url"}[kind == "stdio"])
	case kind == "stdio" || kind == "" && s.Command != "":
		s.URL, s.Headers = "", nil
		c.stdio()
	default:
		s.Command, s.Args, s.Env, s.Cwd, c.envFile = "", nil, nil, "", ""
		c.remote(kind)
	}
}

// remote tells SSE from streamable HTTP.
func (c *carry) remote(kind string) {
	address, _, _ := strings.Cut(c.entry.Server.URL, "?")
	address = strings.TrimSuffix(address, "/")
	switch {
	case kind == "sse", kind == "" && strings.HasSuffix(address, "/sse"), kind == "" && c.client.urlIsSSE && !strings.HasSuffix(address, "/mcp"):
		c.set("sse", "type")
	case kind == "http" && strings.HasSuffix(address, "/sse"):
		c.note(`its address looks like one of SSE; if it does not answer, write type = "sse"`)
	}
}

func (c *carry) stdio() {
	s := &c.entry.Server
	windows := c.place.OS == "windows"
	if base := strings.ToLower(s.Command); !windows && (base == "cmd" || base == "cmd.exe") && len(s.Args) > 1 && strings.EqualFold(s.Args[0], "/c") {
		c.note("cmd /c is left out: it is for Windows")
		s.Command, s.Args = s.Args[1], s.Args[2:]
	}
	if words := strings.Fields(s.Command); len(words) > 1 && len(s.Args) == 0 && !strings.ContainsAny(words[0], `/\`) && !strings.ContainsAny(s.Command, `"'$`) {
		c.note("the command is a whole command line, and was split at its spaces")
		s.Command, s.Args = words[0], words[1:]
	}
	switch {
	case !windows && windowsPath.MatchString(s.Command):
		c.leave(Unsupported, "its program is at a Windows path, and this is %s", c.place.OS)
		return
	case !windows && slices.ContainsFunc(s.Args, windowsPath.MatchString):
		c.note("an argument is a Windows path, and this is %s", c.place.OS)
	}
	if c.project != "" {
		if s.Cwd != "" && !filepath.IsAbs(s.Cwd) && !strings.HasPrefix(s.Cwd, "$") {
			s.Cwd = filepath.Join(literal(c.project), s.Cwd)
		}
		if s.Cwd == "" && slices.ContainsFunc(append(slices.Clone(s.Args), s.Command), isRelative) {
			s.Cwd = literal(c.project)
			c.note("cwd is the project's folder, as a path in it is relative")
		}
	}
	c.readEnvFile()
	c.container()
	c.bridge()
}

// isRelative reports whether a word is a path that depends on the working directory.
func isRelative(word string) bool {
	return strings.HasPrefix(word, "./") || strings.HasPrefix(word, "../") || strings.HasPrefix(word, `.\`) || strings.HasPrefix(word, `..\`) || word == "."
}

// maxEnvFile bounds an envFile: a thousand long variables.
const maxEnvFile = 1 << 20

// readEnvFile takes over the variables of a file that the client reads at each start. Those that the entry itself gives win.
func (c *carry) readEnvFile() {
	if c.envFile == "" {
		return
	}
	path := c.envFile
	if !filepath.IsAbs(path) && c.project != "" {
		path = filepath.Join(c.project, path)
	}
	data, err := readFile(path, maxEnvFile)
	if err != nil {
		if pathErr, ok := err.(*os.PathError); ok {
			err = pathErr.Err
		}
		c.leave(Unsupported, "its envFile %s cannot be read: %v", oneLine(path), err)
		return
	}
	variables, err := dotenv(string(data))
	if err != nil {
		c.leave(Unsupported, "its envFile %s: %v", oneLine(path), err)
		return
	}
	s := &c.entry.Server
	taken := 0
	for _, v := range variables {
		if !slices.ContainsFunc(s.Env, func(have [2]string) bool { return have[0] == v[0] }) {
			s.Env = append(s.Env, [2]string{v[0], literal(v[1])})
			taken++
		}
	}
	c.note("%d variables are taken from %s, as they are now", taken, oneLine(path))
}

var containers = []string{"docker", "podman", "nerdctl", "docker.exe", "podman.exe"}

// container hands over the variables that docker run -e NAME takes from its own environment: a client starts its servers with
// all of its own variables, Nightporter with those that are named.
func (c *carry) container() {
	s := &c.entry.Server
	if !slices.Contains(containers, filepath.Base(s.Command)) || !slices.Contains(s.Args, "run") {
		return
	}
	for i, arg := range s.Args {
		name := ""
		switch {
		case (arg == "-e" || arg == "--env") && i+1 < len(s.Args):
			name = s.Args[i+1]
		case strings.HasPrefix(arg, "--env="):
			name = strings.TrimPrefix(arg, "--env=")
		}
		if variableName.MatchString(name) && !slices.Contains(s.EnvVars, name) && !slices.ContainsFunc(s.Env, func(have [2]string) bool { return have[0] == name }) {
			s.EnvVars = append(s.EnvVars, name)
			if _, set := c.lookup(name); !set {
				c.entry.Needs = append(c.entry.Needs, name)
			}
		}
	}
}

// bridge points out mcp-remote, by which clients that speak stdio alone reach an address.
func (c *carry) bridge() {
	args := c.entry.Server.Args
	for i, arg := range args {
		if (arg == "mcp-remote" || strings.HasPrefix(arg, "mcp-remote@")) && i+1 < len(args) && strings.HasPrefix(args[i+1], "http") {
			c.note("mcp-remote is a bridge to %s, which Nightporter reaches by itself: give that as url, and log in with nightporter servers login", config.ListedURL(config.Literal(args[i+1])))
		}
	}
}

// dotenv reads NAME=VALUE lines, in the order of the file. An error names the line, and quotes nothing of it.
func dotenv(text string) (all [][2]string, err error) {
	for i, line := range strings.Split(strings.TrimPrefix(text, string(byteOrderMark)), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "export ")), "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !ok || !variableName.MatchString(name) {
			return nil, fmt.Errorf("line %d is not NAME=VALUE", i+1)
		}
		if value != "" && strings.ContainsRune(`"'`+"`", rune(value[0])) {
			end := strings.IndexByte(value[1:], value[0])
			for value[0] == '"' && end > 0 && value[end] == '\\' { // the quote is escaped
				next := strings.IndexByte(value[end+2:], '"')
				if next < 0 {
					end = -1
					break
				}
				end += 1 + next
			}
			if end < 0 {
				return nil, fmt.Errorf("line %d has a quote that is not closed on it, and values of several lines are not read", i+1)
			}
			quote := value[0]
			if value = value[1 : end+1]; quote == '"' {
				value = strings.NewReplacer(`\n`, "\n", `\r`, "\r", `\t`, "\t", `\"`, `"`, `\\`, `\`).Replace(value)
			}
		} else if at := strings.Index(value, " #"); at >= 0 {
			value = strings.TrimSpace(value[:at])
		}
		at := slices.IndexFunc(all, func(have [2]string) bool { return have[0] == name })
		if at >= 0 {
			all[at][1] = value
			continue
		}
		all = append(all, [2]string{name, value})
	}
	return all, nil
}
