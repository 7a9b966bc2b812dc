package codex

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"nightporter/internal/agent"
)

// needs says for which built-in tools a switch stands in the command.
type needs int

const (
	always  needs = iota
	notAll        // none and read-only
	forNone       // none
)

// toggle is one thing of Codex that is switched off. What each does was measured by looking at the first
// request to the model, and at files that hooks and programs would have written.
type toggle struct {
	args    []string
	needs   needs
	only171 bool     // 0.144.1 does not know it and fails
	users   bool     // it is the user's alone with an untrusted directory, and stays with the operator's settings
	off     []string // tools that are gone with it
	setting string   // what is off with it, for [agent.Ring]; empty when it goes without saying
}

var toggles = []toggle{
	{args: []string{"--disable", "plugins"}, setting: "--disable plugins"},
	{args: []string{"--disable", "hooks"}, users: true, setting: "--disable hooks"},
	{args: []string{"--disable", "apps"}, setting: "--disable apps"},
	{args: []string{"--disable", "memories"}, users: true, setting: "--disable memories"},
	{args: []string{"-c", "project_doc_max_bytes=0"}, setting: "-c project_doc_max_bytes=0: AGENTS.md of the working directory"},
	{args: []string{"-c", "notify=[]"}, users: true, setting: "-c notify=[]: the program that is told of each turn"},
	// A snapshot is a file with the environment of the run, and 0.144.1 gives commands what it says.
	{args: []string{"--disable", "shell_snapshot"}},
	// Without it 0.171.0 tries for ever to reach a model that refuses the connection (facts/codex.md L).
	{args: []string{"--disable", "unbounded_connection_retries"}, only171: true},

	{args: []string{"--disable", "goals"}, needs: notAll, off: []string{"get_goal", "create_goal", "update_goal"}},
	{args: []string{"--disable", "multi_agent"}, needs: notAll, off: []string{"spawn_agent", "send_input", "wait_agent", "close_agent", "resume_agent"}},
	// The feature's switch leaves the second version of the tools with models that ask for it.
	{args: []string{"-c", "agents={enabled=false}"}, needs: notAll, only171: true},
	{args: []string{"--disable", "image_generation"}, needs: notAll, off: []string{"image_generation"}},
	{args: []string{"-c", `web_search="disabled"`}, needs: notAll, off: []string{"web_search"}},

	{args: []string{"--disable", "shell_tool"}, needs: forNone, off: []string{"exec_command", "write_stdin", "shell", "shell_command", "local_shell"}},
	{args: []string{"--disable", "view_image"}, needs: forNone, only171: true, off: []string{"view_image"}},
}

// shape is how a run's command looks, the servers aside.
type shape struct {
	keep     []string // the operator's flags
	limits   []string // sandbox or bypass: flags that only exec knows
	switches []string // flags that exec and `mcp list` know, the very same for proof and run
	skills   []string // the switches of the skills, likewise; set by the proof
	off      map[string]bool
	settings []string
	tools    []string // the agent's own tools that are left
	open     []string // what the ring of its own tools does not hold against
	notes    []string

	direct    []direct       // servers that Codex is handed itself
	given     []agent.Direct // what they were made of
	variables []string       // the environment's entries that they refer to
}

func newShape(c command, r agent.Request, v version) shape {
	s := shape{keep: c.keep, off: map[string]bool{}}
	is171 := !v.before(0, 171, 0)
	builtIn := r.BuiltIn
	if builtIn == "" {
		builtIn = agent.BuiltInNone
	}
	wanted := map[needs]bool{always: true, notAll: builtIn != agent.BuiltInAll, forNone: builtIn == agent.BuiltInNone}
	for _, t := range toggles {
		if !wanted[t.needs] || t.only171 && !is171 || t.users && r.OperatorSettings {
			continue
		}
		s.switches = append(s.switches, t.args...)
		for _, tool := range t.off {
			s.off[tool] = true
		}
		if t.setting != "" {
			s.settings = append(s.settings, t.setting)
		}
	}
	s.switches = append(s.switches, "-c", "projects="+untrusted(r.Workdir))
	var refused []string
	s.direct, s.variables, refused = directServers(r.Direct, v)
	s.notes = append(s.notes, refused...)
	for _, d := range r.Direct {
		if slices.ContainsFunc(s.direct, func(w direct) bool { return w.name == d.Name }) {
			s.given = append(s.given, d)
		}
	}
	var hidden []pair // from commands that the model runs
	if r.Gateway != nil {
		hidden = append(hidden, pair{tokenVariable, quote("")})
	}
	for _, v := range s.variables {
		name, _, _ := strings.Cut(v, "=")
		hidden = append(hidden, pair{name, quote("")})
	}
	if len(hidden) > 0 {
		// The operator's own settings of this table stay: it is merged.
		s.switches = append(s.switches, "-c", "shell_environment_policy="+table(pair{"set", table(hidden...)}))
	}
	s.settings = append(s.settings,
		"--ignore-rules: rules",
		"-c projects=…, untrusted: the configuration of the working directory and of the folders above it")
	s.limit(c, r, builtIn)
	s.remaining(builtIn, is171, r)
	return s
}

// limit chooses sandbox or bypass.
func (s *shape) limit(c command, r agent.Request, builtIn agent.BuiltIn) {
	if r.Mode == agent.Bypass && !r.SafeTools {
		s.limits = []string{"--dangerously-bypass-approvals-and-sandbox"}
		s.notes = append(s.notes, "Codex's approvals and sandbox are off, as asked for: whatever its own tools do is not confined")
		return
	}
	if c.bypass != "" {
		s.notes = append(s.notes, c.bypass+" of the command was removed")
	}
	sandbox := readOnly
	switch {
	case builtIn == agent.BuiltInAll && c.sandbox != "":
		sandbox = c.sandbox
	case builtIn == agent.BuiltInAll:
		sandbox = workspaceWrite
	case c.sandbox != "" && c.sandbox != readOnly:
		s.notes = append(s.notes, fmt.Sprintf("--sandbox %s of the command was narrowed to %s: the run's own tools are %s", c.sandbox, readOnly, builtIn))
	}
	s.limits = []string{"--sandbox", sandbox}
}

// remaining names the tools of Codex's own that are left, and what could not be switched off.
func (s *shape) remaining(builtIn agent.BuiltIn, is171 bool, r agent.Request) {
	s.tools = []string{
		"request_user_input (nobody answers)",
		"list_mcp_resources and its like",
		"exec (JavaScript that reaches only the other tools, for models in code mode)",
	}
	if !is171 {
		s.tools = append(s.tools, "update_plan")
	}
	if builtIn != agent.BuiltInNone {
		s.tools = append(s.tools, "exec_command", "write_stdin")
		s.open = append(s.open, "a command that the model runs can read what this user can read, and start programs of hers within Codex's sandbox, MCP servers included")
		if len(r.Hidden) > 0 {
			// Permission profiles could close them (default_permissions), but do not go together with --sandbox, and without that flag any sandbox_mode
			// of a configuration beats the profile.
			s.open = append(s.open, "Nightporter's own files are open to such a command: Codex has no way to close some files that its configuration cannot undo")
		}
		if r.Mode == agent.Bypass && !r.SafeTools && r.Gateway != nil {
			s.notes = append(s.notes, "commands that the model runs can read the run's token from Codex's process; it is worth nothing after the run")
		}
		if r.Mode == agent.Bypass && !r.SafeTools && len(s.variables) > 0 {
			s.open = append(s.open, "commands that the model runs can read the credentials of direct servers from Codex's process")
		}
	}
	if builtIn != agent.BuiltInNone || !is171 {
		s.tools = append(s.tools, "view_image", "apply_patch")
	}
	switch {
	case builtIn == agent.BuiltInAll:
		s.tools = append(s.tools, "spawn_agent and its like", "goals", "web_search")
	case !is171:
		s.notes = append(s.notes, "Codex 0.144.1 gives models that ask for it tools to start agents of their own; they have the same limits")
	}
	if builtIn == agent.BuiltInNone && !is171 {
		s.notes = append(s.notes, "Codex 0.144.1 cannot switch off view_image, which reads image files, and apply_patch, which its read-only sandbox refuses")
	}
	slices.Sort(s.tools)
	for _, name := range []string{"AGENTS.override.md", "AGENTS.md"} {
		file := filepath.Join(codexHome(r.Env), name)
		if info, err := os.Stat(file); err == nil && info.Size() > 0 {
			s.notes = append(s.notes, file+" is sent to the model: Codex has no switch for it")
			break
		}
	}
}

// rings says what the run's boundary rests on. skills is what was found out about them, empty when not all are off.
func (s shape) rings(r agent.Request, proven bool, skills string) []agent.Ring {
	servers := agent.Ring{
		Name: agent.RingServers, Planned: "none",
		Enforced: []string{"-c mcp_servers={…}: each server that Codex has is switched off by name", "--disable plugins, --disable apps: servers that these bring"},
		Open:     []string{"a configuration that changes after Codex has started and before it has read it"},
	}
	if planned := s.planned(r); len(planned) > 0 {
		servers.Planned = strings.Join(planned, ", ") + " and no other"
	}
	servers.Open = append(servers.Open, agent.UncoveredDirect(s.given)...)
	if len(s.variables) > 0 {
		servers.Enforced = append(servers.Enforced, "env_http_headers, env_vars: what direct servers are given is in the environment of Codex alone, and taken out of that of its commands")
	}
	if r.Gateway != nil {
		servers.Enforced = append(servers.Enforced, "bearer_token_env_var: the run's token is in the environment of Codex alone, and taken out of that of its commands")
	}
	settings := agent.Ring{
		Name: agent.RingSettings, Planned: "none of the working directory's; Codex's own config.toml and the system's for the model, its provider and instructions",
		Enforced: s.settings,
		Open:     []string{"AGENTS.md of Codex's own folder, and what a managed configuration adds: Codex has no switch for them"},
	}
	if r.OperatorSettings {
		settings.Planned = "the user's own hooks, memories, skills, notify program and AGENTS.md, as isolation = \"operator\" asks for; none of the working directory's"
		settings.Open = append(settings.Open,
			"the notify program of the user, and hooks that she has trusted in Codex, are commands that nothing confines; what hooks print can reach the model",
			"a prompt that names a skill of the user brings its text to the model",
			"plugins, apps and rules of the user are off all the same: they bring servers, or apply to the working directory's too")
	}
	if skills != "" {
		settings.Enforced = append(slices.Clone(settings.Enforced), "-c skills={…}: "+skills)
	}
	tools := agent.Ring{
		Name: agent.RingTools, Planned: strings.Join(s.tools, ", "),
		Enforced: []string{strings.Join(s.limits, " ") + ": Codex's own sandbox"},
		Open:     s.open,
	}
	for _, t := range toggles {
		if len(t.off) > 0 && s.off[t.off[0]] {
			tools.Enforced = append(tools.Enforced, strings.Join(t.args, " "))
		}
	}
	prompt := agent.Ring{
		Name: agent.RingPrompt, Planned: "text, which reaches the model as it was written",
		Enforced: []string{"standard input: nothing of it stands on the command line", "codex exec looks for no command and no file mention in it"},
		Proven:   "measured on Codex 0.144.1 and 0.171.0, and tested against what the model is sent",
	}
	if proven {
		servers.Proven = "codex mcp list --json, asked with the run's own program, folder, environment and switches"
		settings.Proven = "codex features list and skills/list of its app-server, asked likewise; of the rest, measured on Codex 0.144.1 and 0.171.0"
		tools.Proven = "codex features list, asked likewise, of the shell; of the others, measured"
	}
	return []agent.Ring{servers, settings, tools, prompt}
}

// planned are the names of the servers that the run is to reach, sorted.
func (s shape) planned(r agent.Request) (names []string) {
	if r.Gateway != nil {
		names = append(names, agent.GatewayName)
	}
	for _, d := range s.direct {
		names = append(names, d.name)
	}
	slices.Sort(names)
	return names
}

// list is the question for the servers, with servers for an override.
func (s shape) list(servers []pair) []string {
	return append([]string{"mcp", "list", "--json"}, s.withServers(servers)...)
}

// exec is the run, the program's own name aside. The operator's flags stand first, so that one that takes any
// number of values is ended by one of ours.
func (s shape) exec(servers []pair, resume string) []string {
	args := append([]string{"exec"}, s.keep...)
	args = append(args, "--json", "--skip-git-repo-check", "--ignore-rules")
	args = append(args, s.limits...)
	args = append(args, s.withServers(servers)...)
	if resume != "" {
		args = append(args, "resume", resume)
	}
	return append(args, "-") // the prompt is read from standard input
}

func (s shape) withServers(servers []pair) []string {
	args := slices.Concat(s.switches, s.skills)
	if len(servers) > 0 {
		// One table holds all: a second one would undo the first (facts/codex.md section 2).
		args = append(args, "-c", "mcp_servers="+table(servers...))
	}
	return args
}

const (
	// startSeconds is how long Codex waits for the gateway. It has lists of its servers' tools at
	// hand, or waits for required servers, whose own time is 30 s each, all at once.
	startSeconds = "180"
	// callSeconds is how long Codex waits for a tool call. The gateway knows each server's time, and that a
	// call may wait for a person; this is only there so that Codex's 300 s do not end one first.
	callSeconds = "43200"
)

// gateway is the entry of the run's own server.
func gateway(g *agent.Gateway) pair {
	return pair{agent.GatewayName, table(
		pair{"url", quote(g.URL)},
		pair{"bearer_token_env_var", quote(tokenVariable)},
		pair{"enabled", "true"},
		pair{"required", "true"}, // 0.171.0 waits one second for others, then runs without them (facts/codex.md B)
		pair{"default_tools_approval_mode", quote("approve")},
		pair{"startup_timeout_sec", startSeconds},
		pair{"tool_timeout_sec", callSeconds},
	)}
}

// untrusted marks the working directory as not trusted, by every path under which Codex may look it up: the folder,
// each folder above it, and the main folder of a git worktree. Without it 0.144.1 trusts the directory by itself and
// starts the servers of its .codex/config.toml (facts/codex.md A).
func untrusted(dir string) string {
	var pairs []pair
	level := table(pair{"trust_level", quote("untrusted")})
	add := func(dir string) {
		if !slices.ContainsFunc(pairs, func(p pair) bool { return p.Key == dir }) {
			pairs = append(pairs, pair{dir, level})
		}
	}
	for ; ; dir = filepath.Dir(dir) {
		add(dir)
		if main := mainWorktree(dir); main != "" {
			add(main)
		}
		if dir == filepath.Dir(dir) {
			return table(pairs...)
		}
	}
}

// mainWorktree is the main folder of the git worktree at dir, or empty when dir is none: there .git is a
// file that names MAIN/.git/worktrees/NAME.
func mainWorktree(dir string) string {
	file := filepath.Join(dir, ".git")
	if info, err := os.Lstat(file); err != nil || !info.Mode().IsRegular() || info.Size() > 8<<10 {
		return ""
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	gitdir, ok := strings.CutPrefix(strings.TrimSpace(string(data)), "gitdir:")
	if !ok {
		return ""
	}
	gitdir = strings.TrimSpace(gitdir)
	if !filepath.IsAbs(gitdir) {
		gitdir = filepath.Join(dir, gitdir)
	}
	for d := gitdir; d != filepath.Dir(d); d = filepath.Dir(d) {
		if filepath.Base(d) == ".git" {
			if main, err := filepath.EvalSymlinks(filepath.Dir(d)); err == nil {
				return main
			}
		}
	}
	return ""
}

// codexHome is the folder of Codex's own files.
func codexHome(env []string) string {
	if home := variable(env, "CODEX_HOME"); home != "" {
		return home
	}
	home := variable(env, "HOME")
	if home == "" {
		home = variable(env, "USERPROFILE")
	}
	return filepath.Join(home, ".codex")
}

// variable is the value of the last setting of a variable in env.
func variable(env []string, name string) string {
	for _, v := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}
