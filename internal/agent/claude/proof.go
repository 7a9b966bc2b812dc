package claude

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"nightporter/internal/agent"
	"nightporter/internal/secret"
)

// plan is what a run is to reach: what the answers of Claude Code are held against.
type plan struct {
	shape
	version   string
	gateway   *agent.Gateway
	tools     map[string]string // the gateway's tools by the name that Claude Code gives them to the model
	direct    []agent.Direct
	theirs    map[string]string // tools of the direct servers likewise, as mcp__server__tool; set by the proof
	session   string            // the id that is asked for, whether new or resumed
	resume    bool
	before    agent.Usage
	prompt    string
	proveOnly bool
	notes     []string // known before the run
}

// prefix stands before the name of each of the gateway's tools.
const prefix = "mcp__" + agent.GatewayName + "__"

func newPlan(r agent.Request, version string) (*plan, error) {
	p := &plan{
		shape: newShape(r), version: version, gateway: r.Gateway, tools: make(map[string]string), direct: r.Direct, theirs: make(map[string]string),
		session: r.Resume, resume: r.Resume != "", before: r.Before, prompt: r.Prompt, proveOnly: r.ProveOnly,
	}
	if p.session == "" {
		p.session = newUUID()
	}
	if why := agent.Colliding(r.Direct); why != "" {
		return nil, &agent.Unproven{Why: why, Mend: "rename one of them", Proof: p.proof()}
	}
	if r.Gateway != nil {
		for _, name := range r.Gateway.Tools {
			called := prefix + sanitise(name)
			if other, taken := p.tools[called]; taken {
				return nil, &agent.Unproven{
					Why:   fmt.Sprintf("the tools %q and %q have one name for Claude Code, %s, which would keep only one of them", other, name, called),
					Mend:  "grant one of the two",
					Proof: p.proof(),
				}
			}
			p.tools[called] = name
		}
	}
	for _, entry := range r.Env {
		for _, name := range []string{"ANTHROPIC_BASE_URL", "ANTHROPIC_UNIX_SOCKET"} {
			if value, ok := strings.CutPrefix(entry, name+"="); ok && value != "" {
				p.notes = append(p.notes, "the environment sets "+name+": the model is asked there")
			}
		}
	}
	return p, nil
}

// sanitise is a tool's name as Claude Code spells it (§4): every character outside
// [A-Za-z0-9_-] becomes an underscore.
func sanitise(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, name)
}

// realName is a tool's name as a person knows it: the real server and its tool for a tool of the
// gateway, the agent's own name otherwise. input are the call's arguments, nil where they are not known.
func (p *plan) realName(called string, input json.RawMessage) string {
	if name, theirs := p.theirs[called]; theirs {
		return name
	}
	exposed, ours := p.tools[called]
	if !ours {
		// A tool that the model made up, or one that was asked for under its exposed name.
		if exposed, ours = strings.CutPrefix(called, prefix); !ours {
			return called
		}
	}
	if p.gateway != nil && p.gateway.RawName != nil {
		if server, tool, ok := p.gateway.RawName(exposed, input); ok {
			return "mcp__" + server + "__" + tool
		}
	}
	return called
}

// What Claude Code answers to initialize, mcp_status, and says in init: the fields that are compared.
// mcp_status also holds each server's config with its token in clear; it is not decoded.
type (
	initialized struct {
		Commands       []named `json:"commands"`
		Version        string  `json:"claude_code_version"`
		PermissionMode string  `json:"current_permission_mode"`
		Sandbox        bool    `json:"sandbox_enabled"`
		Account        struct {
			TokenSource  string `json:"tokenSource"`
			APIKeySource string `json:"apiKeySource"`
			Provider     string `json:"apiProvider"`
		} `json:"account"`
	}
	status struct {
		Servers *[]server `json:"mcpServers"`
	}
	server struct {
		Name   string  `json:"name"`
		Status string  `json:"status"`
		Error  string  `json:"error"`
		Scope  string  `json:"scope"`
		Source string  `json:"source"`
		Tools  []named `json:"tools"`
	}
	initEvent struct {
		Tools        []string `json:"tools"`
		Servers      []server `json:"mcp_servers"`
		ServerErrors []struct {
			Name string `json:"name"`
			Type string `json:"type"`
		} `json:"mcp_server_errors"`
		PermissionMode string   `json:"permissionMode"`
		Commands       []string `json:"slash_commands"`
		Skills         []string `json:"skills"`
		Plugins        []struct {
			Name string `json:"name"`
			Path string `json:"path"`
		} `json:"plugins"`
		Directories []string `json:"additional_directories"`
		Version     string   `json:"claude_code_version"`
		Sandbox     bool     `json:"sandbox_enabled"`
	}
	named struct {
		Name string `json:"name"`
	}
)

// pending reports whether a server is still connecting.
func (s *status) pending() bool {
	return s.Servers != nil && slices.ContainsFunc(*s.Servers, func(s server) bool { return s.Status == "pending" })
}

// differences collects what is not as planned, each a clause for a sentence.
type differences []string

func (d *differences) addf(format string, args ...any) { *d = append(*d, fmt.Sprintf(format, args...)) }

// common compares what both initialize and init say.
func (p *plan) common(version, mode string, sandbox bool) (d differences) {
	if version != p.version {
		d.addf("Claude Code %s answered where %s was asked for its version", quote(version), p.version)
	}
	if mode != p.mode {
		d.addf("the permission mode is %s where %s was asked for%s", quote(mode), p.mode, policy(p.mode))
	}
	if p.sandbox && !sandbox {
		d.addf("its sandbox for commands is off")
	}
	return d
}

// policy hints at what is known to change a permission mode that a flag asked for (§3, 228; measured).
func policy(mode string) string {
	if mode == "default" {
		return ""
	}
	return " (an administrator's policy or CLAUDE_CODE_SUBPROCESS_ENV_SCRUB can forbid it)"
}

// checkInitialize compares the answer to initialize with the plan.
func (p *plan) checkInitialize(a *initialized) differences {
	d := p.common(a.Version, a.PermissionMode, a.Sandbox)
	for _, c := range a.Commands {
		if !p.ofPrompt(c.Name) {
			d.addf("the command or skill %s is there", quote(c.Name))
		}
	}
	return d
}

// ofPrompt reports whether a slash command is a prompt of a planned server: "nightporter:NAME (MCP)"
// in initialize, "mcp__nightporter__NAME" in init.
func (p *plan) ofPrompt(command string) bool {
	return slices.ContainsFunc(p.servers(), func(name string) bool {
		return strings.HasPrefix(command, name+":") && strings.HasSuffix(command, " (MCP)") || strings.HasPrefix(command, "mcp__"+sanitise(name)+"__")
	})
}

// servers are the names of the planned servers.
func (p *plan) servers() (names []string) {
	if p.gateway != nil {
		names = append(names, agent.GatewayName)
	}
	for i := range p.direct {
		names = append(names, p.direct[i].Name)
	}
	slices.Sort(names)
	return names
}

// checkStatus compares the settled answer to mcp_status with the plan.
func (p *plan) checkStatus(a *status) (d differences) {
	if a.Servers == nil {
		d.addf("mcp_status was answered without a list of servers")
		return d
	}
	found := p.checkServers(&d, *a.Servers)
	var listed []string
	for _, name := range p.servers() {
		s := found[name]
		if s == nil || s.Status != "connected" {
			continue
		}
		if s.Scope != "dynamic" {
			d.addf("the scope of server %s is %s, not dynamic", quote(name), quote(s.Scope))
		}
		before := "mcp__" + sanitise(name) + "__"
		if name == agent.GatewayName {
			for _, t := range s.Tools {
				listed = append(listed, before+sanitise(t.Name))
			}
			continue
		}
		// What a server of the agent's own offers is known from here on, and may not grow.
		if len(s.Tools) == 0 {
			d.addf("the server %s is connected without any tool", quote(name))
		}
		for _, t := range s.Tools {
			called := before + sanitise(t.Name)
			if other, taken := p.theirs[called]; taken && other != "mcp__"+name+"__"+t.Name {
				d.addf("two tools of the server %s have one name for Claude Code, %s", quote(name), called)
			}
			p.theirs[called] = "mcp__" + name + "__" + t.Name
		}
	}
	if found[agent.GatewayName] != nil && found[agent.GatewayName].Status == "connected" {
		p.checkTools(&d, listed)
	}
	return d
}

// checkServers holds a list of servers against the plan and returns the entries of the planned ones.
func (p *plan) checkServers(d *differences, servers []server) map[string]*server {
	planned, found := p.servers(), make(map[string]*server)
	for i, s := range servers {
		if !slices.Contains(planned, s.Name) {
			d.addf("the server %s (%s) is there", quote(s.Name), quote(s.Source))
			continue
		}
		if found[s.Name] != nil {
			d.addf("the server %s is there twice", quote(s.Name))
			continue
		}
		found[s.Name] = &servers[i]
		if s.Source != "dynamic" {
			d.addf("the server %s comes from %s, not from the run's config", quote(s.Name), quote(s.Source))
		}
		if s.Status != "connected" {
			reason := ""
			if s.Error != "" {
				reason = ": " + agent.Head(p.masked(s.Error))
			}
			d.addf("the server %s is %s, not connected%s", quote(s.Name), quote(s.Status), reason)
		}
	}
	for _, name := range planned {
		if found[name] == nil {
			d.addf("the server %s is missing (an administrator's policy can block it)", quote(name))
		}
	}
	return found
}

// masked is a text of Claude Code without the credentials that it was given for servers.
func (p *plan) masked(text string) string {
	var m secret.Masker
	if p.gateway != nil {
		m.Add(p.gateway.Token)
	}
	for i := range p.direct {
		for _, values := range []map[string]secret.String{p.direct[i].Env, p.direct[i].Headers} {
			m.Add(slices.Collect(maps.Values(values))...)
		}
	}
	return m.Text(text)
}

// checkTools holds the MCP tools, as the model would call them, against the plan.
func (p *plan) checkTools(d *differences, listed []string) {
	seen := make(map[string]bool)
	for _, called := range listed {
		if _, ok := p.tools[called]; !ok && p.theirs[called] == "" {
			d.addf("the tool %s is there", quote(called))
		}
		seen[called] = true
	}
	var missing []string
	for called := range p.tools {
		if !seen[called] {
			missing = append(missing, called)
		}
	}
	slices.Sort(missing)
	switch {
	case len(missing) == len(p.tools) && len(missing) > 0:
		// One malformed tool in a list makes Claude Code drop all (§3.2).
		d.addf("the server %s is connected without any of its %d tools", agent.GatewayName, len(missing))
	case len(missing) > 0:
		d.addf("the tools %s are missing", strings.Join(missing, ", "))
	}
}

// checkInit compares an init event with the plan.
func (p *plan) checkInit(e *initEvent) differences {
	d := p.common(e.Version, e.PermissionMode, e.Sandbox)
	found := p.checkServers(&d, e.Servers)
	for _, s := range e.ServerErrors {
		d.addf("the server %s was skipped (%s)", quote(s.Name), quote(s.Type))
	}
	var mcp []string
	for _, tool := range e.Tools {
		switch {
		case strings.HasPrefix(tool, "mcp__"):
			mcp = append(mcp, tool)
		case !slices.Contains(p.builtIn, tool):
			d.addf("the built-in tool %s is there", quote(tool))
		}
	}
	if ours := found[agent.GatewayName]; ours != nil && ours.Status == "connected" || len(mcp) > 0 {
		p.checkTools(&d, mcp)
	}
	for _, c := range e.Commands {
		if !p.ofPrompt(c) {
			d.addf("the command %s is there", quote(c))
		}
	}
	for _, s := range e.Skills {
		d.addf("the skill %s is there", quote(s))
	}
	for _, plugin := range e.Plugins {
		if plugin.Path != "builtin" && !p.operator {
			d.addf("the plugin %s is there", quote(plugin.Name))
		}
	}
	for _, dir := range e.Directories {
		d.addf("the folder %s is open to it beside the working directory", quote(dir))
	}
	return d
}

// proof says what is known before anything was asked.
func (p *plan) proof() agent.Proof {
	return agent.Proof{
		Servers: []string{}, Disabled: []string{}, Failed: []string{},
		Notes:   append([]string{}, p.notes...),
		BuiltIn: slices.Clone(p.builtIn),
		Rings:   p.rings(),
	}
}

// measured is how it is known what no answer of Claude Code tells.
const measured = "no answer tells it: it was measured on Claude Code " + minVersion + ", and is tested against what the model is sent"

func (p *plan) rings() []agent.Ring {
	servers := agent.Ring{
		Name: agent.RingServers, Planned: "none",
		Enforced: []string{"--strict-mcp-config: servers of settings, plugins and agents are not started"},
		Proven:   "mcp_status of the run's own process before the prompt is sent, and its init event at each turn: names, sources, states and tools",
	}
	if planned := p.servers(); len(planned) > 0 {
		servers.Planned = strings.Join(planned, ", ") + " and no other"
		servers.Open = agent.UncoveredDirect(p.direct)
		for i := range p.direct {
			if p.mode == "bypassPermissions" && p.direct[i].Allow != nil {
				servers.Open = append(servers.Open, fmt.Sprintf("with approvals off every tool of %s runs, and not those alone that are granted", p.direct[i].Name))
			}
		}
		servers.Enforced = append(servers.Enforced, "--mcp-config: the run's own file, of mode 0600, which is removed before the prompt is sent")
	}
	settings := agent.Ring{
		Name: agent.RingSettings, Planned: "none of the user's and none of the working directory's",
		Enforced: []string{
			"--setting-sources '': settings files, hooks, CLAUDE.md, agents, skills and plugins",
			"--disable-slash-commands: skills and commands",
			"CLAUDE_CODE_DISABLE_AUTO_MEMORY: memory of the folder",
		},
		Proven: "its init event: commands, skills, plugins and folders; of hooks, CLAUDE.md and memory " + measured,
		Open:   []string{"an administrator's managed hooks and CLAUDE.md, which no flag switches off"},
	}
	if p.operator {
		settings.Planned = "the user's own settings, hooks, plugins' hooks and CLAUDE.md, as isolation = \"operator\" asks for; none of the working directory's"
		settings.Enforced[0] = "--setting-sources user: settings files, hooks, CLAUDE.md, agents, skills and plugins of the working directory"
		settings.Proven = "its init event: commands, skills and folders; of the working directory's hooks, CLAUDE.md and memory " + measured
		settings.Open = append(settings.Open,
			"hooks of the user's settings and plugins are commands that nothing confines, and see prompt and tool calls; what they print can reach the model",
			"the user's settings can set variables, the model's address among them, and rules that let own tools of the run work without asking or outside the sandbox")
	}
	tools := agent.Ring{
		Name: agent.RingTools, Planned: "none",
		Enforced: []string{"--tools: these alone", "--permission-prompts none: what would ask a person is refused"},
		Proven:   "its init event: the list of tools and the permission mode",
	}
	if p.asks {
		tools.Enforced[1] = "--permission-prompt-tool stdio: what would ask a person is asked of on_approval, and refused unless that approves the very call"
	}
	if len(p.builtIn) > 0 {
		tools.Planned = strings.Join(p.builtIn, ", ")
	}
	if p.sandbox {
		tools.Enforced = append(tools.Enforced, "--settings sandbox: commands of Bash are confined by Claude Code's own sandbox, without which it does not start")
	}
	if p.mode == "bypassPermissions" {
		tools.Enforced = []string{"--tools: these alone; approvals and sandbox are off, as asked for"}
	}
	if p.sandbox || p.mode == "bypassPermissions" {
		tools.Open = append(tools.Open, "a command of Bash can read what this user can read, the model's credential included")
	} else if len(p.builtIn) > 0 {
		tools.Open = append(tools.Open, "Read can read what this user can read, below the working directory without asking")
	}
	if len(p.hidden) > 0 {
		tools.Enforced = append(tools.Enforced, "--settings permissions.deny: Nightporter's own files are closed to Read and Edit, and to the sandbox's commands")
		if p.mode == "bypassPermissions" {
			tools.Open = append(tools.Open, "a command of Bash can read Nightporter's own files, and call servers that are not granted by its program: there is no sandbox")
		}
	}
	if len(p.unhidden) > 0 {
		tools.Open = append(tools.Open, "no rule of Claude Code can close these of Nightporter's own files: "+strings.Join(p.unhidden, ", "))
	}
	prompt := agent.Ring{
		Name: agent.RingPrompt, Planned: "text, which reaches the model as it was written",
		Enforced: []string{
			"standard input: nothing of it stands on the command line",
			"CLAUDE_CODE_DISABLE_FILE_MENTIONS: @/path brings no file",
			"a second, blank block of text: Claude Code looks at the last for commands, and so a first / is none",
		},
		Proven: measured,
	}
	return []agent.Ring{servers, settings, tools, prompt}
}

// proven completes the proof with what the answers said.
func (p *plan) proven(a *initialized) agent.Proof {
	proof := p.proof()
	proof.Proven = true
	reach := "no MCP server"
	if planned := p.servers(); len(planned) > 0 {
		proof.Servers = planned
		if p.gateway != nil {
			proof.Tools = slices.Clone(p.gateway.Tools)
		}
		for _, name := range p.theirs {
			proof.Tools = append(proof.Tools, name)
		}
		slices.Sort(proof.Tools)
		reach = fmt.Sprintf("%s with %s and no other", list("the server", planned), count(len(proof.Tools), "tool"))
	}
	proof.How = fmt.Sprintf("Claude Code %s itself was asked over its control channel (initialize, mcp_status) before any message was sent: it reaches %s", p.version, reach)
	if source := a.Account.APIKeySource; source != "" && source != "none" {
		proof.Notes = append(proof.Notes, "the model is asked with the key of "+agent.Head(source))
	} else if source := a.Account.TokenSource; source != "" && source != "none" {
		proof.Notes = append(proof.Notes, "the model is asked with the login of "+agent.Head(source))
	}
	return proof
}

// list is a noun with names.
func list(noun string, names []string) string {
	if len(names) > 1 {
		noun += "s"
	}
	return noun + " " + strings.Join(names, ", ")
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
