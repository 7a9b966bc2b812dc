// Package clients knows the programs at a desk that have MCP servers in files of their own: where each keeps them on each
// platform, how it writes one down, and what it makes of a ${…}.
//
// [Read] takes their servers as entries of config.toml, and says of each that cannot be taken why; [MakePlan] decides which of
// them to import. A [Desk] puts Nightporter itself into such a file, and takes it out.
package clients

import (
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Scope says whom the servers of a file are for.
type Scope string

// The scopes, in the order in which a client prefers them.
const (
	Local   Scope = "local"   // this user's, in one project
	Project Scope = "project" // everybody's, in one project
	User    Scope = "user"    // this user's, everywhere
)

var scopes = []Scope{Local, Project, User}

// Client is one such program.
type Client struct {
	ID    string // as on the command line
	Name  string // as its makers write it
	Files []File // in the order of scopes

	// Remove is the command by which the client takes out a server of its own, without the name. Empty: it has none.
	Remove string

	variables dialect
	timeout   float64 // what one unit of an entry's timeout is, in seconds; 0: it has none
	// urlIsSSE says that a url without a type means SSE. Else streamable HTTP is tried, and then SSE.
	urlIsSSE bool
	attach   attachment
}

// File is one file of a client in which servers stand.
type File struct {
	Scope Scope
	// Path is by platform: linux (and every other Unix), darwin, windows. It begins with a variable (see place), and has slashes.
	Path map[string]string
	// Keys lead to the table of servers. {project} stands for the project's folder. Nil: it is Codex's TOML.
	Keys []string
}

// everywhere is a path that is the same on all platforms.
func everywhere(p string) map[string]string {
	return map[string]string{"linux": p, "darwin": p, "windows": p}
}

// application is where a program of VS Code's kind keeps the user's files.
func application(name, file string) map[string]string {
	return map[string]string{
		"linux":   "{xdg}/" + name + "/" + file,
		"darwin":  "{home}/Library/Application Support/" + name + "/" + file,
		"windows": "{appdata}/" + name + "/" + file,
	}
}

var (
	mcpServers = []string{"mcpServers"}
	servers    = []string{"servers"}
	inSettings = []string{"mcp", "servers"} // of VS Code's settings.json, before it had mcp.json
	zedServers = []string{"context_servers"}
)

// table is all clients. Of a name that several define, the one further up is taken.
var table = []*Client{
	{
		ID: "claude", Name: "Claude Code", Remove: "claude mcp remove",
		Files: []File{
			{Local, everywhere("{claude}/.claude.json"), []string{"projects", "{project}", "mcpServers"}},
			{Project, everywhere("{project}/.mcp.json"), mcpServers},
			{User, everywhere("{claude}/.claude.json"), mcpServers},
		},
		variables: shellVariables, timeout: 0.001,
		attach: attachment{form: typed, url: "url", tokenVar: "${%s}"},
	},
	{
		ID: "claude-desktop", Name: "Claude Desktop",
		Files: []File{{User, application("Claude", "claude_desktop_config.json"), mcpServers}},
	},
	{
		ID: "codex", Name: "Codex", Remove: "codex mcp remove",
		Files: []File{
			{Project, everywhere("{project}/.codex/config.toml"), nil},
			{User, everywhere("{codex}/config.toml"), nil},
		},
		attach: attachment{url: "url", tokenVar: "%s"},
	},
	{
		ID: "cursor", Name: "Cursor",
		Files: []File{
			{Project, everywhere("{project}/.cursor/mcp.json"), mcpServers},
			{User, everywhere("{home}/.cursor/mcp.json"), mcpServers},
		},
		variables: editorVariables,
		attach:    attachment{url: "url", tokenVar: "${env:%s}"},
	},
	{
		ID: "vscode", Name: "VS Code",
		Files: []File{
			{Project, everywhere("{project}/.vscode/mcp.json"), servers},
			{Project, everywhere("{project}/.vscode/settings.json"), inSettings},
			{User, application("Code", "User/mcp.json"), servers},
			{User, application("Code", "User/settings.json"), inSettings},
			{User, application("Code - Insiders", "User/mcp.json"), servers},
			{User, application("Code - Insiders", "User/settings.json"), inSettings},
		},
		variables: editorVariables,
		attach:    attachment{form: typed, url: "url", tokenVar: "${env:%s}"},
	},
	{
		ID: "gemini", Name: "Gemini CLI", Remove: "gemini mcp remove",
		Files: []File{
			{Project, everywhere("{project}/.gemini/settings.json"), mcpServers},
			{User, everywhere("{home}/.gemini/settings.json"), mcpServers},
		},
		variables: geminiVariables, timeout: 0.001, urlIsSSE: true,
		attach: attachment{url: "httpUrl", tokenVar: "${%s}"},
	},
	{
		ID: "windsurf", Name: "Windsurf",
		Files:     []File{{User, everywhere("{home}/.codeium/windsurf/mcp_config.json"), mcpServers}},
		variables: windsurfVariables,
		attach:    attachment{url: "serverUrl", tokenVar: "${env:%s}"},
	},
	{
		ID: "zed", Name: "Zed",
		Files: []File{
			{Project, everywhere("{project}/.zed/settings.json"), zedServers},
			{User, map[string]string{"linux": "{xdg}/zed/settings.json", "darwin": "{home}/.config/zed/settings.json", "windows": "{appdata}/Zed/settings.json"}, zedServers},
		},
		timeout: 1,
		attach:  attachment{form: custom, url: "url"},
	},
}

// All returns the clients, in the order in which their servers are preferred.
func All() []*Client { return table }

// IDs returns the names of the clients on the command line.
func IDs() []string {
	ids := make([]string, len(table))
	for i, c := range table {
		ids[i] = c.ID
	}
	return ids
}

// Named returns the client of that ID.
func Named(id string) (*Client, bool) {
	i := slices.IndexFunc(table, func(c *Client) bool { return c.ID == id })
	if i < 0 {
		return nil, false
	}
	return table[i], true
}

// Place is what decides where files are: the platform, the user and the project.
type Place struct {
	OS      string // runtime.GOOS
	Home    string // the user's folder
	Project string // the project's folder, absolute
	// Trusted says that servers may be taken from the project's own files, which come with it, from whomever it comes.
	Trusted bool
	Getenv  func(string) string
}

// Here returns the place of a project's folder for an environment.
func Here(goos, project string, getenv func(string) string) Place {
	home := getenv("HOME")
	if goos == "windows" && getenv("USERPROFILE") != "" {
		home = getenv("USERPROFILE")
	}
	return Place{OS: goos, Home: home, Project: project, Getenv: getenv}
}

// files returns the client's files that there can be in this place. Where the project's folder is the user's, a file of both is the user's.
func (p Place) files(c *Client) []File {
	return slices.DeleteFunc(slices.Clone(c.Files), func(f File) bool {
		path := p.Path(f)
		return path == "" || f.Scope == Project && slices.ContainsFunc(c.Files, func(other File) bool { return other.Scope == User && p.Path(other) == path })
	})
}

// Path returns where the file is. Empty: this platform has none.
func (p Place) Path(f File) string {
	goos := p.OS
	if goos != "darwin" && goos != "windows" {
		goos = "linux"
	}
	root, rest, _ := strings.Cut(f.Path[goos], "/")
	folder := p.folder(root)
	if folder == "" {
		return ""
	}
	return filepath.Join(folder, filepath.FromSlash(rest))
}

// folder is what a variable at the beginning of a path stands for.
func (p Place) folder(variable string) string {
	or := func(name string, below ...string) string {
		if value := p.Getenv(name); value != "" {
			return value
		}
		if p.Home == "" {
			return ""
		}
		return filepath.Join(append([]string{p.Home}, below...)...)
	}
	switch variable {
	case "{project}":
		return p.Project
	case "{home}":
		return p.Home
	case "{xdg}":
		return or("XDG_CONFIG_HOME", ".config")
	case "{appdata}":
		return or("APPDATA", "AppData", "Roaming")
	case "{codex}":
		return or("CODEX_HOME", ".codex")
	case "{claude}":
		return or("CLAUDE_CONFIG_DIR")
	}
	return ""
}

// userFile is the file that the client's servers for all projects stand in: the first of that scope.
func (c *Client) userFile() File {
	return c.Files[slices.IndexFunc(c.Files, func(f File) bool { return f.Scope == User })]
}

// sameFolder reports whether two paths name one folder, as far as their texts tell. Clients write them with either slash.
func sameFolder(a, b string) bool {
	clean := func(p string) string { return path.Clean(strings.ReplaceAll(p, `\`, "/")) }
	return clean(a) == clean(b)
}
