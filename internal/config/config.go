// Package config reads what the operator wrote: config.toml and mcpServers JSON.
//
// A file is read in three steps. It is parsed into a tree that knows the line and
// column of every key (parse.go, toml.go, json.go); the tree is decoded by
// tables of fields (fields.go, server.go, agent.go), so that the same tables give the
// types, the nearest-known-key hints and [Fields], the reference; and values that may be
// secrets stay unresolved ([Value]) until the server or agent that needs them
// starts ([Server.Resolve]).
//
// A mistake in one entry makes a [Problem] of that entry and disables it alone;
// only a file that cannot be read or parsed is an error. A key that nobody
// reads is a warning with the nearest known key.
//
// What Codex refuses is a problem here (measured: codex_test.go). Problems too, though Codex
// takes them and fails later or not at all: an empty command, an address without host, a timeout of 0, names
// that no environment or header can hold, and a type that contradicts the other fields, which Codex ignores.
//
// What is read from a Codex config.toml that was pasted whole: [mcp_servers];
// features.mcp_lazy_stdio_startup as [Gateway.Lazy] and mcp_optional_startup_grace_ms as
// [Gateway.OptionalGrace], unless [gateway] says otherwise. Codex's other top-level keys
// (model, projects, profiles, …) are Codex's affair and pass without a warning.
package config

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

	"nightporter/internal/dirs"
)

// maxFile bounds a configuration file. A thousand servers take about 300 KiB; what is
// larger is not a configuration, and reading it would hold every command up.
const maxFile = 4 << 20

// Config is what one file says.
type Config struct {
	File     string            // the path as given; empty when there was none
	Extras   string            // the path of the file whose servers AddExtras put in; empty when there was none
	Servers  []Server          // sorted by name; those with a Problem are among them
	Agents   map[string]*Agent // [agents.NAME]
	Grants   map[string]*Grant // [grants.NAME]
	Gateway  Gateway           // [gateway], with its defaults
	Approver Approver          // the keys at the top of the file
	Problems []Problem         // everything that disables an entry, in the order of the file
	Warnings []Problem         // everything that was read differently than it may have been meant, in the order of the file
}

// Server returns the definition of the server called name, which may have a Problem.
func (c *Config) Server(name string) (*Server, bool) {
	i, found := slices.BinarySearchFunc(c.Servers, name, func(s Server, name string) int { return strings.Compare(s.Name, name) })
	if !found {
		return nil, false
	}
	return &c.Servers[i], true
}

// ServerNames returns the names of all servers, sorted.
func (c *Config) ServerNames() []string {
	names := make([]string, len(c.Servers))
	for i := range c.Servers {
		names[i] = c.Servers[i].Name
	}
	return names
}

// AgentNames returns the names of [agents.NAME], sorted.
func (c *Config) AgentNames() []string { return slices.Sorted(maps.Keys(c.Agents)) }

// GrantNames returns the names of [grants.NAME], sorted.
func (c *Config) GrantNames() []string { return slices.Sorted(maps.Keys(c.Grants)) }

// Position is a place in a file. Line and column count from 1, columns in characters.
type Position struct {
	File         string
	Line, Column int
}

// String returns file:line:column, the form that editors and terminals make a link of.
func (p Position) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Problem is one mistake in a file: where it is, what is wrong and how to mend it.
// It never quotes a value that may be a secret.
type Problem struct {
	Pos     Position
	Field   string // the path of the key, such as mcp_servers.crm.url
	Message string // what is wrong
	Mend    string // what to do about it
}

// Error returns all of the problem in one line.
func (p *Problem) Error() string {
	var b strings.Builder
	if p.Pos != (Position{}) {
		fmt.Fprintf(&b, "%s: ", p.Pos)
	}
	if p.Field != "" {
		fmt.Fprintf(&b, "%s: ", p.Field)
	}
	b.WriteString(p.Message)
	if p.Mend != "" {
		fmt.Fprintf(&b, "; %s", p.Mend)
	}
	return b.String()
}

// Agent is [agents.NAME].
type Agent struct {
	Name string
	Pos  Position
	// Problem says why the agent cannot be used; nil when it can.
	Problem *Problem

	Kind         string           // claude, codex, acp, command or demo; empty: found from Exec, or Name
	Exec         []string         // the command; nil: the agent's own default
	Env          map[string]Value // added to the agent's environment
	Tools        string           // "granted" (default) or "bypass"
	SafeTools    bool             // remove a bypass that Exec carries
	BuiltIn      string           // the agent's own tools: "none" (default), "read-only" or "all"
	Isolation    string           // "strict" (default) or "operator"
	AllowServers []string         // servers of the agent's own that may stay on although they cannot be switched off
	AllowFlags   []string         // flags of exec that may stay although the adapter does not know them
	Timeout      time.Duration    // of a run; 0: none given here
	IdleTimeout  time.Duration    // without an event; 0: none given here
	MaxCost      float64          // of a run, in USD; 0: none given here
}

// Gateway is [gateway].
type Gateway struct {
	Pos Position // of the table; zero when there is none
	// Problem says why the table cannot be used; nil when it can.
	Problem *Problem

	Listen         string        // host:port; default 127.0.0.1:8722
	TokenFile      string        // absolute, or empty for the one that the gateway makes
	Exposure       string        // "tools" (default) or "search"
	OptionalGrace  time.Duration // see Grace; default 1 s
	Lazy           bool          // may servers with a catalog stay dormant until used; default true
	MaxServers     int           // live server processes; 0: no cap
	AllowedHosts   []string      // Host headers accepted besides loopback names
	AllowedOrigins []string      // Origin headers accepted
	TLSCert        string        // absolute path of a PEM file; empty: no TLS
	TLSKey         string        // likewise; empty when TLSCert is
	Insecure       bool          // may an address that is not loopback's be listened on without TLS
	Drain          time.Duration // how long calls in flight are waited for at the end
	OAuth          *GatewayOAuth // nil: none
}

// Load reads the file at path: JSON when it is called .json or begins with {, else TOML.
// A missing file is an error that wraps [fs.ErrNotExist].
func Load(path string) (*Config, error) {
	data, err := readFile(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return Parse(path, data)
}

// LoadDefault reads the user's own config.toml, and under it extra-mcp.json. When there is none the
// configuration is empty and its File too.
func LoadDefault(d dirs.Dirs) (*Config, error) {
	c, err := Load(d.ConfigFile())
	if errors.Is(err, fs.ErrNotExist) {
		c, err = newConfig(""), nil
	}
	if err != nil {
		return nil, err
	}
	extra, err := Load(d.ExtraFile())
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	c.AddExtras(extra)
	return c, nil
}

func readFile(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > most {
		return nil, fmt.Errorf("%s is larger than %d MiB; it does not look like a configuration file", path, most>>20)
	}
	return data, nil
}

// Parse is [Load] of data that was read already; path stands in positions, decides relative
// paths, and its ending .json the format.
func Parse(path string, data []byte) (*Config, error) {
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("read configuration %s: %w", path, err)
	}
	root, isJSON, dups, err := parse(path, data)
	if err != nil {
		return nil, err
	}
	d := &decoder{cfg: newConfig(path), dir: dir, json: isJSON}
	d.cfg.Warnings = dups
	d.file(root)
	return d.cfg, nil
}

func newConfig(path string) *Config {
	return &Config{File: path, Agents: map[string]*Agent{}, Grants: map[string]*Grant{}, Gateway: newGateway(), Approver: Approver{Timeout: DefaultApprovalTimeout}}
}
