// Package dirs says where Nightporter keeps its files (DESIGN.md, "Files").
package dirs

import (
	"path/filepath"

	"github.com/adrg/xdg"
)

// Dirs are the three roots. The folders need not exist.
type Dirs struct {
	Config string // config.toml, extra-mcp.json
	State  string // ledger, audit, runs, live processes
	Cache  string // catalogs
}

// Find returns the roots for an environment: all below $NIGHTPORTER_HOME when that is set, else
// the user's XDG folders (which are the platform's own on macOS and Windows).
func Find(getenv func(string) string) Dirs {
	if home := getenv("NIGHTPORTER_HOME"); home != "" {
		if abs, err := filepath.Abs(home); err == nil {
			home = abs
		}
		return Dirs{Config: home, State: filepath.Join(home, "state"), Cache: filepath.Join(home, "cache")}
	}
	return Dirs{
		Config: filepath.Join(xdg.ConfigHome, "nightporter"),
		State:  filepath.Join(xdg.StateHome, "nightporter"),
		Cache:  filepath.Join(xdg.CacheHome, "nightporter"),
	}
}

// ConfigFile is the file of server, agent and grant definitions.
func (d Dirs) ConfigFile() string { return filepath.Join(d.Config, "config.toml") }

// ExtraFile is the file of the operator's extras: servers in Claude Code's JSON, written by hand.
func (d Dirs) ExtraFile() string { return filepath.Join(d.Config, "extra-mcp.json") }

// Secrets is the folder of secrets that an import moved out of the configuration.
func (d Dirs) Secrets() string { return filepath.Join(d.Config, "secrets") }

// Catalogs is the folder of saved catalogs.
func (d Dirs) Catalogs() string { return filepath.Join(d.Cache, "catalogs") }

// Proofs is the folder in which proofs of boundaries are remembered.
func (d Dirs) Proofs() string { return filepath.Join(d.Cache, "proofs") }

// Ledger is the folder of conversations.
func (d Dirs) Ledger() string { return filepath.Join(d.State, "ledger") }

// Pins is the folder of the tool definitions that were accepted.
func (d Dirs) Pins() string { return filepath.Join(d.State, "pins") }

// Logins is the folder of logins to MCP servers.
func (d Dirs) Logins() string { return filepath.Join(d.State, "logins") }

// Audit is the file of the audit record.
func (d Dirs) Audit() string { return filepath.Join(d.State, "audit.db") }

// Clients is the folder of what is kept of programs that were connected: their files as they were, and the tokens that they read from their
// environment.
func (d Dirs) Clients() string { return filepath.Join(d.State, "clients") }

// Tokens is the file of the tokens of the gateway's clients.
func (d Dirs) Tokens() string { return filepath.Join(d.State, "gateway-tokens.json") }

// Hub is the folder of a hub's database and of the key that its first start made.
func (d Dirs) Hub() string { return filepath.Join(d.State, "hub") }

// Private are the files and folders that no agent has any business with: everything but the workspaces of conversations, in which they
// work.
func (d Dirs) Private() []string {
	return []string{
		d.ConfigFile(), d.ExtraFile(), d.Secrets(), d.Pins(), d.Logins(), d.Audit(), d.Tokens(), d.Clients(), d.Hub(), filepath.Join(d.State, "gateway.token"), d.Runs(), d.Live(),
		filepath.Join(d.Ledger(), "conversations"), filepath.Join(d.Ledger(), "sessions"), d.Catalogs(), d.Proofs(),
	}
}

// Runs is the folder of transcripts.
func (d Dirs) Runs() string { return filepath.Join(d.State, "runs") }

// Live is the folder in which running processes can be found.
func (d Dirs) Live() string { return filepath.Join(d.State, "live") }
