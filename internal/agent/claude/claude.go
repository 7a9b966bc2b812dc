// Package claude is the adapter for Claude Code.
//
// A run is a dialogue in stream-json on both sides. Before the prompt is sent,
// Claude Code is asked over its control channel what it reaches; only when the
// answer is what was planned does the prompt follow, so that a broken boundary
// costs no model request. What was measured of Claude Code 2.1.332, on which this
// package rests, is in facts/claude.md; section numbers in comments are of that file.
package claude

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"nightporter/internal/agent"
	"nightporter/internal/proc"
	"nightporter/internal/safefile"
	"nightporter/internal/secret"
)

const (
	// minVersion is the oldest Claude Code that is taken: the one that everything here was
	// measured on. An older one may lack a flag that the boundary rests on, such as
	// --permission-prompts, or answer mcp_status without tools.
	minVersion = "2.1.332"

	// versionWait bounds `claude --version`: 0.1 s on a quiet machine, seconds on a loaded one.
	versionWait = 20 * time.Second
	// maxVersion bounds what `claude --version` may print: it is one line.
	maxVersion = 64 << 10

	// maxPrompt is the largest prompt that is sent at all, in bytes. Claude Code refuses more
	// than 10 MB of standard input (§1.9); what a model takes is less and the model's affair.
	maxPrompt = 8 << 20

	// toolTimeout is what Claude Code waits for a tool of the gateway, which has its own
	// timeouts and always answers: as long as any run lasts. Left out, Claude Code drops a call over
	// HTTP after 60 s ("The operation timed out."), and one without progress after 300 s (measured).
	toolTimeout = 24 * time.Hour
)

// Adapter is the adapter for Claude Code. Its zero value is ready for use.
type Adapter struct{}

var _ agent.Adapter = Adapter{}

// Name implements [agent.Adapter].
func (Adapter) Name() string { return "claude" }

// Flags is the table of flags that decides on a command. The caller must not change it.
func (Adapter) Flags() []agent.Flag { return flags }

// DefaultArgv implements [agent.Adapter].
func (Adapter) DefaultArgv() []string { return []string{"claude", "-p"} }

// Recognises implements [agent.Adapter]: a program named claude with -p or --print.
func (Adapter) Recognises(argv []string) bool {
	return len(argv) > 0 && baseName(argv[0]) == "claude" && prints(argv[1:])
}

// Check implements [agent.Adapter]. A command that carries a bypass passes only in
// mode [agent.Bypass]; with [agent.Request.SafeTools] Prepare removes it before it checks.
func (Adapter) Check(argv []string, mode agent.ToolMode) error {
	_, err := check(argv, mode, false, nil)
	return err
}

func check(argv []string, mode agent.ToolMode, safeTools bool, allow []string) (scanned, error) {
	if len(argv) == 0 || baseName(argv[0]) != "claude" {
		return scanned{}, &agent.Refusal{What: quote(strings.Join(argv, " ")), Why: "it is not a command of Claude Code", Mend: "write claude -p"}
	}
	s, err := scan(argv[1:], allow)
	if err != nil {
		return s, err
	}
	if len(s.bypass) > 0 && mode != agent.Bypass && !safeTools {
		return s, &agent.Refusal{
			What: s.bypass[0], Why: "it turns Claude Code's approvals off",
			Mend: "remove it, pass --safe-tools to have it removed, or ask for it by name with --tools bypass",
		}
	}
	return s, nil
}

// Prepare implements [agent.Adapter]. It asks the program for its version, and leaves the
// rest of the proof to the launch's dialogue, which makes it on the very process that does
// the run.
func (Adapter) Prepare(ctx context.Context, r agent.Request) (*agent.Launch, error) {
	command, err := check(r.Argv, r.Mode, r.SafeTools, r.AllowFlags)
	if err != nil {
		return nil, err
	}
	if len(r.Prompt) > maxPrompt {
		return nil, &agent.Error{
			Code:    agent.CodePromptTooLong,
			Message: fmt.Sprintf("the prompt has %d bytes; Claude Code takes at most %d: put what is long into a file of the working directory", len(r.Prompt), maxPrompt),
		}
	}
	if strings.TrimSpace(r.Prompt) == "" && !r.ProveOnly {
		return nil, errors.New("the prompt is empty") // the model would be asked with "(no content)"
	}
	if r.Resume != "" && !isUUID(r.Resume) {
		return nil, fmt.Errorf("resume Claude Code session %s: it is not a lower-case UUID, and Claude Code would look for a session of that title", quote(r.Resume))
	}
	env := environment(r.Env)
	if len(r.Direct) > 0 {
		// Otherwise the servers would get all of the agent's environment, the model's credential included (§7).
		env = append(env, allowlistEnv+"=1")
	}
	mark, err := agent.MarkOf(r.Program)
	if err != nil {
		return nil, &agent.Missing{Why: err.Error(), Mend: "install Claude Code " + minVersion + " or newer"}
	}
	version, err := askVersion(ctx, r.Program, r.Private, env)
	if err != nil {
		return nil, err
	}
	p, err := newPlan(r, version)
	if err != nil {
		return nil, err
	}
	for _, name := range command.unknown {
		p.notes = append(p.notes, agent.AllowedFlag(name))
	}

	argv := append([]string{r.Program}, command.keep...)
	argv = append(argv, "-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose", "--include-partial-messages", "--strict-mcp-config")
	if r.Gateway != nil || len(r.Direct) > 0 {
		file, err := writeConfig(r.Private, r.Gateway, r.Direct)
		if err != nil {
			return nil, err
		}
		argv = append(argv, "--mcp-config", file)
	}
	argv = append(argv, p.shape.args()...)
	if r.MaxCostUSD > 0 && !slices.ContainsFunc(command.keep, func(word string) bool { return strings.HasPrefix(word, "--max-budget-usd") }) {
		argv = append(argv, "--max-budget-usd", strconv.FormatFloat(r.MaxCostUSD, 'f', -1, 64))
	}
	if r.Resume != "" {
		argv = append(argv, "--resume", r.Resume)
	} else {
		argv = append(argv, "--session-id", p.session)
	}
	return &agent.Launch{
		Argv: argv, Env: env, Version: version, Dialogue: newDialogue(p),
		Changed: func() string {
			if mark.Same() {
				return ""
			}
			return "the program " + r.Program
		},
		// Asked to interrupt itself it writes its partial text to the session and
		// reports what it cost; after SIGINT the same; after SIGTERM neither (§1.7).
		Ladder: agent.Ladder{
			{Signal: agent.RungAsk, Wait: 3 * time.Second},
			{Signal: agent.RungInterrupt, Wait: 3 * time.Second},
			{Signal: agent.RungTerminate, Wait: 3 * time.Second},
		},
	}, nil
}

// shape is how a tool mode and a choice of built-in tools are put to Claude Code.
type shape struct {
	builtIn []string // as --tools takes them and as init lists them
	mode    string   // the permission mode that results, as init names it
	sandbox bool
	// operator keeps the user's settings. They can say which permission mode is the default one.
	operator bool
	asks     bool     // what would ask a person asks us (§8); else it is refused
	allow    []string // rules that let tools run without asking
	hidden   []string // paths that its tools must not read
	unhidden []string // those that no rule can name
	deny     []string // rules that refuse tools whatever else allows them
}

// Built-in tools by name. An explicit list, never "default": a newer version's default set
// holds what nobody has looked at. Left out of "all" are those that reach beyond the run:
// other sessions (ListAgents, SendMessage), time (Cron*, ScheduleWakeup, Monitor), other
// folders (worktrees), and subagents (Task, Workflow), whose servers no list shows (§3).
// Without ToolSearch Claude Code puts the gateway's tools before the model at once
// instead of holding them back as bare names (measured: the same request with "alwaysLoad"
// and without), which saves the request that a search costs; a grant with more tools than a
// model should see at once is the gateway's to search.
var (
	readOnlyTools = []string{"Glob", "Grep", "Read"}
	allTools      = []string{"Bash", "Edit", "Glob", "Grep", "NotebookEdit", "Read", "WebFetch", "WebSearch", "Write"}
)

// settings are those of a run, as JSON; empty where it needs none. They confine Bash, also where a rule allows it without asking and where the model
// asks to leave the sandbox (measured). failIfUnavailable matters: without it Claude Code warns
// and runs commands unconfined where bubblewrap and socat are missing. Not used is
// CLAUDE_CODE_SUBPROCESS_ENV_SCRUB, which would hide the model's credential from Bash: it forces
// the permission mode to default and the sandbox to let writes outside the working directory appear to succeed.
//
// A rule that denies Read holds for Claude Code's own tools in every mode, and for the sandbox's commands too; it is given as a folder's and as
// a file's, since it need not be there yet.
func settings(sandboxed bool, hidden []string) string {
	type object = map[string]any
	all := object{}
	if sandboxed {
		all["sandbox"] = object{"enabled": true, "failIfUnavailable": true, "autoAllowBashIfSandboxed": true, "allowUnsandboxedCommands": false}
	}
	var deny []string
	for _, path := range hidden {
		for _, tool := range []string{"Read", "Edit"} {
			rule := "/" + filepath.ToSlash(path) // one slash more says that it is absolute
			deny = append(deny, tool+"("+rule+")", tool+"("+rule+"/**)")
		}
	}
	if len(deny) > 0 {
		all["permissions"] = object{"deny": deny}
	}
	if len(all) == 0 {
		return ""
	}
	return string(marshal(all))
}

func newShape(r agent.Request) shape {
	s := shape{mode: "default", operator: r.OperatorSettings, asks: r.Approvals && r.Mode != agent.Bypass}
	if r.Gateway != nil {
		s.allow = append(s.allow, "mcp__"+agent.GatewayName)
	}
	for i := range r.Direct {
		allow, deny := rules(&r.Direct[i])
		s.allow, s.deny = append(s.allow, allow...), append(s.deny, deny...)
	}
	switch r.BuiltIn {
	case agent.BuiltInReadOnly:
		s.builtIn = readOnlyTools
	case agent.BuiltInAll:
		s.builtIn = allTools
	}
	if len(s.builtIn) > 0 {
		for _, path := range r.Hidden {
			if strings.ContainsAny(path, "()*?[]{}!,") { // they mean something in a rule
				s.unhidden = append(s.unhidden, path)
				continue
			}
			s.hidden = append(s.hidden, path)
		}
	}
	switch {
	case r.Mode == agent.Bypass:
		s.mode = "bypassPermissions"
	case r.BuiltIn == agent.BuiltInAll:
		s.mode, s.sandbox = "acceptEdits", true
		s.allow = append(s.allow, "Bash", "WebFetch", "WebSearch") // Edit and Write go by the mode, inside the working directory
	}
	return s
}

func (s shape) args() []string {
	sources := ""
	if s.operator {
		sources = "user"
	}
	args := []string{"--setting-sources", sources, "--tools", strings.Join(s.builtIn, ",")}
	if len(s.allow) > 0 {
		args = append(args, "--allowedTools", strings.Join(s.allow, ","))
	}
	if len(s.deny) > 0 {
		args = append(args, "--disallowedTools", strings.Join(s.deny, ","))
	}
	switch {
	case s.mode == "bypassPermissions":
		args = append(args, "--dangerously-skip-permissions")
	case s.sandbox:
		args = append(args, "--permission-mode", s.mode)
	case s.operator:
		args = append(args, "--permission-mode", s.mode)
	}
	if text := settings(s.sandbox, s.hidden); text != "" {
		args = append(args, "--settings", text)
	}
	if s.asks {
		args = append(args, "--permission-prompt-tool", "stdio")
	} else {
		args = append(args, "--permission-prompts", "none")
	}
	return append(args, "--disable-slash-commands")
}

// writeConfig writes the file that names the run's servers to Claude Code and returns its path.
func writeConfig(folder string, g *agent.Gateway, direct []agent.Direct) (string, error) {
	servers := make(map[string]json.RawMessage, len(direct)+1)
	if g != nil {
		// The timeout is a hard limit per call, which progress does not extend.
		ours := agent.Direct{Name: agent.GatewayName, URL: secret.New(g.URL), ToolTimeout: toolTimeout}
		if !g.Token.Empty() {
			ours.Headers = map[string]secret.String{"Authorization": secret.New("Bearer " + g.Token.Reveal())}
		}
		direct = append(slices.Clone(direct), ours)
	}
	for i := range direct {
		var err error
		if servers[direct[i].Name], err = entry(&direct[i]); err != nil {
			return "", err
		}
	}
	data, err := json.Marshal(map[string]any{"mcpServers": servers})
	if err != nil {
		return "", fmt.Errorf("make the MCP config of the run: %w", err)
	}
	file := filepath.Join(folder, "claude-mcp.json")
	if err := safefile.Write(file, data); err != nil {
		return "", fmt.Errorf("write the MCP config of the run: %w", err)
	}
	return file, nil
}

// variable is one that a run adds to the agent's environment.
type variable struct {
	name, value string
	keep        bool // a value that the operator gave stays
}

var added = []variable{
	{name: "CLAUDE_CODE_DISABLE_FILE_MENTIONS", value: "1"},    // @/etc/passwd in a prompt would be inlined, from outside the working directory too (§3.4)
	{name: "CLAUDE_CODE_DISABLE_AUTO_MEMORY", value: "1"},      // memory per folder, shared by all runs in it
	{name: "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS", value: "1"}, // one result per run (§1.5)
	{name: "DISABLE_AUTOUPDATER", value: "1"},                  // the file that was asked for its version does the run
	{name: "CLAUDE_CODE_MAX_RETRIES", value: "5", keep: true},  // about 20 s instead of three minutes of silence (§1.4)
}

// removed are variables that would take a run out of what was planned. The model's address and
// credentials (ANTHROPIC_*, CLAUDE_CODE_USE_*) are the operator's choice and stay.
var removed = []string{
	// A session around us: Nightporter may be started from a Claude Code tool or hook (§7).
	"AI_AGENT", "CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SESSION_ID", "CLAUDE_CODE_CHILD_SESSION",
	"CLAUDE_CODE_MESSAGING_SOCKET", "CLAUDE_CODE_MESSAGING_TOKEN", "CLAUDE_PROJECT_DIR", "CLAUDE_ENV_FILE",
	"CLAUDE_CODE_RESUME_FROM_SESSION", "CLAUDE_CODE_RESUME_INTERRUPTED_TURN", "CLAUDE_CODE_RESUME_PROMPT",
	// Servers, tools, plugins and an editor beside the planned ones.
	"CLAUDE_CODE_AUTO_CONNECT_IDE", "CLAUDE_CODE_SSE_PORT", "ENABLE_CLAUDEAI_MCP_SERVERS", "CLAUDE_CODE_REMOTE_MCP_CONFIG",
	"CLAUDE_CODE_SHELL_MCP_SERVERS", "CLAUDE_AGENT_SDK_MCP_NO_PREFIX", "CLAUDE_CODE_SYNC_PLUGINS", "CLAUDE_CODE_SYNC_SKILLS",
	"CLAUDE_CODE_PLUGIN_DIRS", // hooks of these plugins run before the init event that tells of them (measured)
	"CLAUDE_CODE_AGENT", "CLAUDE_CODE_ADDITIONAL_DIRECTORIES_CLAUDE_MD",
	"CLAUDE_CODE_TMPDIR", "CLAUDE_TMPDIR", // stronger than TMPDIR: files of the run would be left (measured)
	// Modes that change what the flags mean.
	"CLAUDE_CODE_SIMPLE", "CLAUDE_CODE_SAFE_MODE", "CLAUDE_CODE_RESTRICTED", "CLAUDE_CODE_BRIEF", "CLAUDE_CODE_COORDINATOR_MODE",
	"CLAUDE_CODE_MCP_STARTUP_WAIT_MS", "MCP_CONNECTION_NONBLOCKING", allowlistEnv,
}

// allowlistEnv is the variable that keeps Claude Code's environment from the servers that it starts, but for HOME, PATH, TERM and ids
// of its own (§7).
const allowlistEnv = "CLAUDE_CODE_MCP_ALLOWLIST_ENV"

// environment is the operator's environment as the run's agent gets it.
func environment(env []string) []string {
	out := make([]string, 0, len(env)+len(added))
	given := make(map[string]bool)
	for _, entry := range env {
		name, _, _ := strings.Cut(entry, "=")
		ours := slices.ContainsFunc(added, func(v variable) bool { return v.name == name && !v.keep })
		if ours || slices.Contains(removed, name) {
			continue
		}
		given[name] = true
		out = append(out, entry)
	}
	for _, v := range added {
		if !given[v.name] {
			out = append(out, v.name+"="+v.value)
		}
	}
	return out
}

var versionLine = regexp.MustCompile(`^(\d+)\.(\d+)\.(\d+)\S* \(Claude Code\)`)

// askVersion runs `claude --version`. Every error is a *[agent.Missing] but that of an ended context.
func askVersion(ctx context.Context, program, folder string, env []string) (string, error) {
	answer, err := proc.Ask(ctx, proc.Question{Program: program, Args: []string{"--version"}, Env: env, Dir: folder, Limit: versionWait, MaxAnswer: maxVersion})
	if ctx.Err() != nil {
		return "", fmt.Errorf("ask %s for its version: %w", program, ctx.Err())
	}
	mend := "install Claude Code " + minVersion + " or newer"
	if errors.Is(err, syscall.ENOEXEC) {
		// What npm leaves behind when the package's own script was not let run.
		mend = "it is no program for this machine: finish its installation, or name the native program with --exec"
	}
	if err != nil {
		why := fmt.Sprintf("%s --version failed: %v", program, err)
		if len(answer.Complaints) > 0 {
			why += ": " + agent.Head(string(answer.Complaints))
		}
		return "", &agent.Missing{Why: why, Mend: mend}
	}
	text := strings.TrimSpace(string(answer.Output))
	match := versionLine.FindStringSubmatch(text)
	if match == nil {
		return "", &agent.Missing{Why: fmt.Sprintf("%s --version answered %q, which is not a version of Claude Code", program, agent.Head(text)), Mend: mend}
	}
	version, _, _ := strings.Cut(text, " ")
	if older(match[1:], strings.Split(minVersion, ".")) {
		return "", &agent.Missing{Why: fmt.Sprintf("%s is Claude Code %s, and the boundary rests on what %s does", program, version, minVersion), Mend: mend}
	}
	return version, nil
}

// older compares two versions of three decimal numbers.
func older(a, b []string) bool {
	for i := range a {
		x, _ := strconv.Atoi(a[i])
		y, _ := strconv.Atoi(b[i])
		if x != y {
			return x < y
		}
	}
	return false
}

var uuid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func isUUID(s string) bool { return uuid.MatchString(s) }

// newUUID makes a random UUID (RFC 9562, version 4).
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
