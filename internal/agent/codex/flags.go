package codex

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"nightporter/internal/agent"
)

// Reasons that several flags share.
const (
	whyInventory = "it changes which servers and settings Codex loads, and `codex mcp list` cannot be asked about that"
	whyElsewhere = "the run then takes place elsewhere than where it was proven"
	whyTerminal  = "it is for Codex in a terminal, not for codex exec"
	whyTrust     = "it makes Codex run what the working directory brings along"
)

var flags = []agent.Flag{
	{Names: []string{"--model", "-m"}, Takes: agent.TakesOne, Verdict: agent.Allowed, About: agent.AboutModel},
	{Names: []string{"--oss"}, Verdict: agent.Allowed, About: agent.AboutModel},
	{Names: []string{"--local-provider"}, Takes: agent.TakesOne, Verdict: agent.Allowed, About: agent.AboutModel},
	{Names: []string{"--image", "-i"}, Takes: agent.TakesSeveral, Verdict: agent.Allowed, About: agent.AboutModel},
	{Names: []string{"--color"}, Takes: agent.TakesOne, Verdict: agent.Allowed, About: agent.AboutReading},
	{Names: []string{"--output-schema"}, Takes: agent.TakesOne, Verdict: agent.Allowed, About: agent.AboutReading},
	{Names: []string{"--output-last-message", "-o"}, Takes: agent.TakesOne, Verdict: agent.Allowed, About: agent.AboutReading},
	{Names: []string{"--add-dir"}, Takes: agent.TakesOne, Verdict: agent.Allowed, About: agent.AboutBoundary},
	{Names: []string{"--thread-source"}, Takes: agent.TakesOne, Verdict: agent.Allowed, About: agent.AboutModel, Since: "0.171.0"},
	{Names: []string{"--cyber-access-program"}, Takes: agent.TakesOne, Verdict: agent.Allowed, About: agent.AboutModel, Since: "0.171.0"},
	// --sandbox and --config are looked at more closely, see sandbox and reasoning.
	{Names: []string{"--sandbox", "-s"}, Takes: agent.TakesOne, Verdict: agent.Allowed, About: agent.AboutTools},
	{Names: []string{"--config", "-c"}, Takes: agent.TakesOne, Verdict: agent.Refused, About: agent.AboutBoundary, Why: whyInventory, Mend: "write the setting into Codex's config.toml; only model_reasoning_effort, model_reasoning_summary and model_verbosity may be given here"},

	{Names: []string{"--json", "--experimental-json"}, Verdict: agent.Ours, About: agent.AboutReading},
	{Names: []string{"--skip-git-repo-check"}, Verdict: agent.Ours, About: agent.AboutBoundary},
	{Names: []string{"--ignore-rules"}, Verdict: agent.Ours, About: agent.AboutBoundary},

	{Names: []string{"--dangerously-bypass-approvals-and-sandbox", "--yolo"}, Verdict: agent.Unguarded, About: agent.AboutTools},

	{Names: []string{"--cd", "-C"}, Takes: agent.TakesOne, Verdict: agent.Refused, About: agent.AboutBoundary, Why: whyElsewhere, Mend: "use --workdir of nightporter"},
	{Names: []string{"--worktree"}, Verdict: agent.Refused, About: agent.AboutBoundary, Since: "0.171.0", Why: whyElsewhere, Mend: "make the worktree first and use --workdir of nightporter"},
	{Names: []string{"--enable"}, Takes: agent.TakesOne, Verdict: agent.Refused, About: agent.AboutBoundary, Why: whyInventory, Mend: "set it under [features] in Codex's config.toml"},
	{Names: []string{"--disable"}, Takes: agent.TakesOne, Verdict: agent.Refused, About: agent.AboutBoundary, Why: whyInventory, Mend: "set it under [features] in Codex's config.toml"},
	{Names: []string{"--profile", "-p"}, Takes: agent.TakesOne, Verdict: agent.Refused, About: agent.AboutBoundary, Why: "0.144.1 silently ignores a profile when it is asked for its servers, so that the servers of the profile would not be seen", Mend: "put the profile's settings into a config.toml of their own and point CODEX_HOME at its folder"},
	{Names: []string{"--ignore-user-config"}, Verdict: agent.Refused, About: agent.AboutBoundary, Why: whyInventory + ", and it still loads the system's configuration", Mend: "point CODEX_HOME at an empty folder"},
	{Names: []string{"--strict-config"}, Verdict: agent.Refused, About: agent.AboutBoundary, Why: "Codex would then refuse switches of the boundary that only other versions know", Mend: "remove it"},
	{Names: []string{"--trust"}, Verdict: agent.Refused, About: agent.AboutBoundary, Since: "0.171.0", Why: whyTrust, Mend: "remove it"},
	{Names: []string{"--dangerously-bypass-hook-trust"}, Verdict: agent.Refused, About: agent.AboutBoundary, Why: whyTrust, Mend: "remove it"},
	{Names: []string{"--approve-for-me"}, Verdict: agent.Refused, About: agent.AboutTools, Since: "0.171.0", Why: "another model would then approve what the run's own tool mode refuses", Mend: "choose the tools with --tools"},
	{Names: []string{"--full-auto"}, Verdict: agent.Refused, About: agent.AboutTools, Why: "it is an old name for a sandbox that can be written to, and 0.171.0 does not know it", Mend: "use --sandbox workspace-write"},
	{Names: []string{"--ephemeral"}, Verdict: agent.Refused, About: agent.AboutSession, Why: "the session would not be kept, and the conversation could not be continued", Mend: "remove it"},
	{Names: []string{"--remote"}, Takes: agent.TakesOne, Verdict: agent.Refused, About: agent.AboutBoundary, Since: "0.171.0", Why: "the run would take place in another process, which was not proven", Mend: "remove it"},
	{Names: []string{"--remote-auth-token-env"}, Takes: agent.TakesOne, Verdict: agent.Refused, About: agent.AboutBoundary, Why: "the run would take place in another process, which was not proven", Mend: "remove it"},
	{Names: []string{"--last"}, Verdict: agent.Refused, About: agent.AboutSession, Why: "which session is resumed is the conversation's affair", Mend: "use --conversation of nightporter"},
	{Names: []string{"--all"}, Verdict: agent.Refused, About: agent.AboutSession, Why: "which session is resumed is the conversation's affair", Mend: "use --conversation of nightporter"},
	{Names: []string{"--help", "-h"}, Verdict: agent.Refused, About: agent.AboutReading, Why: "it prints help instead of a run", Mend: "remove it"},
	{Names: []string{"--version", "-V"}, Verdict: agent.Refused, About: agent.AboutReading, Why: "it prints the version instead of a run", Mend: "remove it"},
	{Names: []string{"--ask-for-approval", "-a"}, Takes: agent.TakesOne, Verdict: agent.Refused, About: agent.AboutReading, Why: "codex exec never asks anybody, and refuses this flag", Mend: "choose the tools with --tools"},
	{Names: []string{"--search"}, Verdict: agent.Refused, About: agent.AboutReading, Why: "codex exec does not know it", Mend: "remove it"},
	{Names: []string{"--no-alt-screen"}, Verdict: agent.Refused, About: agent.AboutReading, Why: whyTerminal, Mend: "remove it"},
	{Names: []string{"--no-daemon"}, Verdict: agent.Refused, About: agent.AboutReading, Since: "0.171.0", Why: whyTerminal, Mend: "remove it"},
}

// byName finds a flag by each of its names.
var byName = func() map[string]*agent.Flag {
	m := map[string]*agent.Flag{}
	for i := range flags {
		for _, name := range flags[i].Names {
			m[name] = &flags[i]
		}
	}
	return m
}()

// programNames are the base names under which Codex is installed: the native program, npm's script
// and npm's shim for Windows.
var programNames = []string{"codex", "codex.exe", "codex.js", "codex.cmd"}

func isCodex(program string) bool {
	base := path.Base(strings.ReplaceAll(program, `\`, "/"))
	return slices.Contains(programNames, strings.ToLower(base))
}

// isExec reports whether a word is the subcommand that runs unattended.
func isExec(word string) bool { return word == "exec" || word == "e" }

func recognises(argv []string) bool {
	if len(argv) == 0 || !isCodex(argv[0]) {
		return false
	}
	for words := argv[1:]; len(words) > 0; {
		word := words[0]
		if !strings.HasPrefix(word, "-") {
			return isExec(word)
		}
		use, n := given(words)
		if use == nil {
			n = 1 // unknown: taken for a flag without value
		}
		words = words[n:]
	}
	return false
}

// use is one flag as the operator gave it.
type use struct {
	*agent.Flag
	as     string // the name it was given by
	values []string
	// missing says that the value which it takes was not given.
	missing bool
}

// given reads the flag at the start of words: also --flag=value, -fvalue and -f=value. It returns
// how many words the flag takes, and nil when it is not known.
func given(words []string) (*use, int) {
	name, value, attached := strings.Cut(words[0], "=")
	if !strings.HasPrefix(name, "--") && len(name) > 2 {
		// The rest of the word is the value, an equals sign at its start aside.
		name, value, attached = words[0][:2], strings.TrimPrefix(words[0][2:], "="), true
	}
	f := byName[name]
	if f == nil {
		return nil, 0
	}
	u := &use{Flag: f, as: name}
	switch {
	case f.Takes == agent.TakesNone && attached:
		return nil, 0
	case f.Takes == agent.TakesNone:
		return u, 1
	case attached && f.Takes == agent.TakesOne:
		u.values = []string{value}
		return u, 1
	case attached:
		u.values = []string{value}
	}
	n := 1
	for n < len(words) && !strings.HasPrefix(words[n], "-") && (f.Takes == agent.TakesSeveral || len(u.values) == 0) {
		u.values = append(u.values, words[n])
		n++
	}
	u.missing = len(u.values) == 0
	return u, n
}

// command is what the operator's command asks for.
type command struct {
	keep    []string // flags with their values, for the run; without --sandbox
	sandbox string   // value of --sandbox; empty when not given
	bypass  string   // the flag that turns approvals and sandbox off, as it was given; empty when none was
	unknown []string // flags that no row has, and that were allowed by name
	recent  []use    // those that not every version knows
}

// sandboxes are the values of --sandbox. The last one is a bypass: with it Codex lets every MCP call
// pass as well (facts/codex.md section 1).
const (
	readOnly       = "read-only"
	workspaceWrite = "workspace-write"
	fullAccess     = "danger-full-access"
)

// reasoning is the settings that may be given by --config: they change how a model thinks and nothing of what Codex loads.
var reasoning = regexp.MustCompile(`^model_(reasoning_effort|reasoning_summary|verbosity)="?[a-z]+"?$`)

// parse reads the operator's command. Flags before `exec` are taken as if they stood behind it, since it
// depends on the version which of them Codex honours there (facts/codex.md F). allow names flags that may stay although
// no row has them.
func parse(argv, allow []string) (command, *agent.Refusal) {
	var c command
	if len(argv) == 0 || !isCodex(argv[0]) {
		return c, &agent.Refusal{What: "the command", Why: "it does not run codex", Mend: "use codex exec"}
	}
	seen := map[*agent.Flag]bool{}
	inExec := false
	for words := argv[1:]; len(words) > 0; {
		word := words[0]
		if !strings.HasPrefix(word, "-") || word == "-" {
			if refusal := positional(word, inExec); refusal != nil {
				return c, refusal
			}
			inExec, words = true, words[1:]
			continue
		}
		if word == "--" {
			return c, &agent.Refusal{What: "--", Why: "what follows it is taken for a prompt, and what we add would be too", Mend: "remove it"}
		}
		u, n := given(words)
		if name, _, _ := strings.Cut(word, "="); u == nil && byName[name] == nil && slices.Contains(allow, name) {
			n = 1
			if len(words) > 1 && name == word && !strings.HasPrefix(words[1], "-") && !isExec(words[1]) {
				n = 2 // its value
			}
			c.keep, c.unknown = append(c.keep, words[:n]...), append(c.unknown, name)
			words = words[n:]
			continue
		}
		if u == nil {
			return c, agent.UnknownFlag(head(word), "Codex "+MinVersion+" and 0.171.0")
		}
		if refusal := c.take(u, seen[u.Flag]); refusal != nil {
			return c, refusal
		}
		seen[u.Flag] = true
		words = words[n:]
	}
	if !inExec {
		return c, &agent.Refusal{What: "codex without exec", Why: "it is for a terminal", Mend: "use codex exec"}
	}
	return c, nil
}

// positional judges a word that is neither a flag nor a flag's value.
func positional(word string, inExec bool) *agent.Refusal {
	switch {
	case !inExec && isExec(word), inExec && word == "-":
		return nil
	case !inExec:
		return &agent.Refusal{What: head(word), Why: "only codex exec can be run unattended", Mend: "use codex exec"}
	case word == "resume" || word == "fork":
		return &agent.Refusal{What: "exec " + word, Why: "which session is continued is the conversation's affair", Mend: "use --conversation of nightporter"}
	case word == "review" || word == "help":
		return &agent.Refusal{What: "exec " + word, Why: "it takes no prompt of ours", Mend: "use codex exec and ask for it in the prompt"}
	}
	return &agent.Refusal{What: head(word), Why: "the command has a prompt of its own", Mend: "give the prompt to nightporter"}
}

func head(word string) string {
	// The value of a flag may be a secret.
	name, _, _ := strings.Cut(word, "=")
	return agent.Activity(name)
}

// take adds a flag to the command.
func (c *command) take(u *use, again bool) *agent.Refusal {
	what := u.as
	if len(u.values) == 1 && u.Verdict == agent.Refused && u.Names[0] != "--config" {
		what += " " + head(u.values[0])
	}
	switch {
	case u.Names[0] == "--config" && len(u.values) == 1 && reasoning.MatchString(u.values[0]):
		c.keep = append(c.keep, "-c", u.values[0])
		return nil
	case u.Verdict == agent.Refused:
		return &agent.Refusal{What: what, Why: u.Why, Mend: u.Mend}
	case u.Since != "":
		c.recent = append(c.recent, *u)
	}
	switch {
	case u.missing:
		return &agent.Refusal{What: what, Why: "its value is missing", Mend: "give it one"}
	case slices.Contains(u.values, ""):
		return &agent.Refusal{What: what, Why: "its value is empty", Mend: "give it one"}
	case again && u.Verdict == agent.Allowed && u.values == nil,
		again && u.Verdict == agent.Allowed && u.Takes == agent.TakesOne && u.Names[0] != "--add-dir":
		return &agent.Refusal{What: what, Why: "it is given twice", Mend: "give it once"}
	case u.Verdict == agent.Ours:
	case u.Verdict == agent.Unguarded:
		c.bypass = u.as
	case u.Names[0] == "--sandbox":
		return c.takeSandbox(u)
	default:
		c.keep = append(c.keep, u.Names[0])
		c.keep = append(c.keep, u.values...)
	}
	return nil
}

func (c *command) takeSandbox(u *use) *agent.Refusal {
	switch value := u.values[0]; value {
	case readOnly, workspaceWrite:
		c.sandbox = value
	case fullAccess:
		c.bypass = u.as + " " + value
	default:
		return &agent.Refusal{What: u.as + " " + head(value), Why: "Codex has no such sandbox", Mend: "use read-only or workspace-write"}
	}
	return nil
}

// tooNew refuses a flag that the version does not know, which Codex would answer with its usage.
func (c command) tooNew(v version) *agent.Refusal {
	for _, u := range c.recent {
		if since, ok := parseVersion("codex-cli " + u.Since); ok && v.before(since.major, since.minor, since.patch) {
			return &agent.Refusal{What: u.as, Why: fmt.Sprintf("Codex %s does not know it", v), Mend: "remove it, or use Codex " + u.Since + " or newer"}
		}
	}
	return nil
}

// bypassRefused refuses a bypass in the command, unless the mode is bypass or safe tools remove it.
func (c command) bypassRefused(mode agent.ToolMode, safe bool) *agent.Refusal {
	if c.bypass == "" || mode == agent.Bypass || safe {
		return nil
	}
	return &agent.Refusal{
		What: c.bypass, Why: "it turns Codex's approvals and sandbox off",
		Mend: "remove it, let --safe-tools remove it, or ask for it with --tools bypass",
	}
}
