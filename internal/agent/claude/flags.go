package claude

import (
	"path"
	"slices"
	"strings"

	"nightporter/internal/agent"
)

const (
	whyServers  = "the run's agent reaches the run's own gateway and no other server"
	whySettings = "settings can add hooks, redirect the model's address and widen permissions"
	whyTools    = "which tools the agent may use is the run's to say"
	whySession  = "which session a run continues is kept per conversation"
	whyReading  = "the run is read as a stream of events"
	whyElse     = "the session would run somewhere else than under the run's boundary"
	whyPerson   = "nobody watches the run"

	mendGrant   = "define the server in the config and grant it to the run"
	mendBuiltIn = "list the agent's built-in tools in the run's own settings"
	mendRemove  = "remove it from the command"
)

// flags is every option of Claude Code 2.1.332, those of `claude --help` and the
// hidden ones that people use (--max-turns, --permission-prompt-tool, the -file
// forms). What is not in it is refused: a new option is looked at before it is let through.
var flags = []agent.Flag{
	// How the run is made and read.
	{Names: []string{"-p", "--print"}, Verdict: agent.Ours, About: agent.AboutReading},
	{Names: []string{"--verbose"}, Verdict: agent.Ours, About: agent.AboutReading},
	{Names: []string{"--input-format"}, Takes: agent.TakesOne, Verdict: agent.Ours, About: agent.AboutReading, Value: "stream-json", Why: "the boundary is proven over the stream-json dialogue before the prompt is sent"},
	{Names: []string{"--output-format"}, Takes: agent.TakesOne, Verdict: agent.Ours, About: agent.AboutReading, Value: "stream-json", Why: whyReading},
	{Names: []string{"--include-partial-messages"}, Verdict: agent.Ours, About: agent.AboutReading},
	{Names: []string{"--strict-mcp-config"}, Verdict: agent.Ours, About: agent.AboutBoundary},
	{Names: []string{"--disable-slash-commands"}, Verdict: agent.Ours, About: agent.AboutBoundary},
	{Names: []string{"--permission-prompts"}, Takes: agent.TakesOne, Verdict: agent.Ours, About: agent.AboutTools, Value: "none", Why: whyPerson},
	{Names: []string{"--setting-sources"}, Takes: agent.TakesOne, Verdict: agent.Ours, About: agent.AboutBoundary, Why: whySettings, Mend: mendRemove},

	// What stays the operator's.
	{Names: []string{"--model"}, Takes: agent.TakesOne, Verdict: agent.Allowed, About: agent.AboutModel},
	{Names: []string{"--fallback-model"}, Takes: agent.TakesOne, Verdict: agent.Allowed, About: agent.AboutModel},
	{Names: []string{"--effort"}, Takes: agent.TakesOne, Verdict: agent.Allowed, About: agent.AboutModel},
	{Names: []string{"--betas"}, Takes: agent.TakesSeveral, Verdict: agent.Allowed, About: agent.AboutModel},
	{Names: []string{"--system-prompt"}, Takes: agent.TakesOne, Verdict: agent.Allowed, About: agent.AboutModel},
	{Names: []string{"--system-prompt-file"}, Takes: agent.TakesOne, Verdict: agent.Allowed, About: agent.AboutModel},
	{Names: []string{"--append-system-prompt"}, Takes: agent.TakesOne, Verdict: agent.Allowed, About: agent.AboutModel},
	{Names: []string{"--append-system-prompt-file"}, Takes: agent.TakesOne, Verdict: agent.Allowed, About: agent.AboutModel},
	{Names: []string{"--system-prompt-snapshot"}, Takes: agent.TakesOne, Verdict: agent.Allowed, About: agent.AboutModel},
	{Names: []string{"--exclude-dynamic-system-prompt-sections"}, Verdict: agent.Allowed, About: agent.AboutModel},
	{Names: []string{"--autocompact"}, Takes: agent.TakesOne, Verdict: agent.Allowed, About: agent.AboutModel},
	{Names: []string{"--max-turns"}, Takes: agent.TakesOne, Verdict: agent.Allowed, About: agent.AboutModel},
	{Names: []string{"--max-budget-usd"}, Takes: agent.TakesOne, Verdict: agent.Allowed, About: agent.AboutModel},
	{Names: []string{"-n", "--name"}, Takes: agent.TakesOne, Verdict: agent.Allowed, About: agent.AboutSession},
	{Names: []string{"--bare"}, Verdict: agent.Allowed, About: agent.AboutBoundary},
	{Names: []string{"--restricted"}, Verdict: agent.Allowed, About: agent.AboutBoundary},
	{Names: []string{"--no-chrome"}, Verdict: agent.Allowed, About: agent.AboutBoundary},
	{Names: []string{"--forward-subagent-text"}, Verdict: agent.Allowed, About: agent.AboutReading},
	{Names: []string{"--replay-user-messages"}, Verdict: agent.Allowed, About: agent.AboutReading},

	// Approvals off.
	{Names: []string{"--dangerously-skip-permissions"}, Verdict: agent.Unguarded, About: agent.AboutTools},
	{Names: []string{"--allow-dangerously-skip-permissions"}, Verdict: agent.Unguarded, About: agent.AboutTools},
	{Names: []string{"--permission-mode"}, Takes: agent.TakesOne, Verdict: agent.Refused, About: agent.AboutTools, Why: whyTools, Mend: mendBuiltIn}, // bypassPermissions: see scan

	// What would widen the boundary.
	{Names: []string{"--mcp-config"}, Takes: agent.TakesSeveral, Verdict: agent.Refused, About: agent.AboutBoundary, Why: whyServers, Mend: mendGrant},
	{Names: []string{"--settings"}, Takes: agent.TakesOne, Verdict: agent.Refused, About: agent.AboutBoundary, Why: whySettings, Mend: mendRemove},
	{Names: []string{"--agents"}, Takes: agent.TakesOne, Verdict: agent.Refused, About: agent.AboutBoundary, Why: "an agent's own mcpServers are started although --strict-mcp-config is given, and no list shows them", Mend: mendRemove},
	{Names: []string{"--agent"}, Takes: agent.TakesOne, Verdict: agent.Refused, About: agent.AboutBoundary, Why: "an agent brings tools and servers of its own", Mend: "give its text with --append-system-prompt"},
	{Names: []string{"--plugin-dir"}, Takes: agent.TakesOne, Verdict: agent.Refused, About: agent.AboutBoundary, Why: "a plugin brings hooks, agents and servers of its own", Mend: mendRemove},
	{Names: []string{"--plugin-url"}, Takes: agent.TakesOne, Verdict: agent.Refused, About: agent.AboutBoundary, Why: "a plugin brings hooks, agents and servers of its own", Mend: mendRemove},
	{Names: []string{"--add-dir"}, Takes: agent.TakesSeveral, Verdict: agent.Refused, About: agent.AboutBoundary, Why: "it widens what the agent's file tools reach beyond the run's working directory", Mend: "use a working directory that holds what the agent needs"},
	{Names: []string{"--file"}, Takes: agent.TakesSeveral, Verdict: agent.Refused, About: agent.AboutBoundary, Why: "it downloads files into the run's working directory", Mend: mendRemove},
	{Names: []string{"--tools"}, Takes: agent.TakesSeveral, Verdict: agent.Refused, About: agent.AboutTools, Why: whyTools, Mend: mendBuiltIn},
	{Names: []string{"--allowedTools", "--allowed-tools"}, Takes: agent.TakesSeveral, Verdict: agent.Refused, About: agent.AboutTools, Why: whyTools, Mend: mendBuiltIn},
	{Names: []string{"--disallowedTools", "--disallowed-tools"}, Takes: agent.TakesSeveral, Verdict: agent.Refused, About: agent.AboutTools, Why: "it refuses calls without reporting them", Mend: "grant fewer tools instead"},
	{Names: []string{"--brief"}, Verdict: agent.Refused, About: agent.AboutReading, Why: "it adds a tool, and replies go where the run is not read", Mend: mendRemove},
	{Names: []string{"--json-schema"}, Takes: agent.TakesOne, Verdict: agent.Refused, About: agent.AboutReading, Why: "it adds a tool, and the reply is then not the result's text", Mend: "ask for JSON in the prompt"},
	{Names: []string{"--ide"}, Verdict: agent.Refused, About: agent.AboutBoundary, Why: whyServers, Mend: mendRemove},
	{Names: []string{"--chrome"}, Verdict: agent.Refused, About: agent.AboutBoundary, Why: whyServers, Mend: mendRemove},
	{Names: []string{"--permission-prompt-tool"}, Takes: agent.TakesOne, Verdict: agent.Refused, About: agent.AboutTools, Why: "a tool would decide what the run's grant decides", Mend: mendRemove},
	{Names: []string{"--safe-mode"}, Verdict: agent.Refused, About: agent.AboutBoundary, Why: "it switches off every MCP server, the run's gateway too", Mend: "remove it: the workspace's settings are off anyway"},

	// What would change the session.
	{Names: []string{"-c", "--continue"}, Verdict: agent.Refused, About: agent.AboutSession, Why: whySession, Mend: "give the run a conversation"},
	{Names: []string{"-r", "--resume"}, Takes: agent.TakesOptional, Verdict: agent.Refused, About: agent.AboutSession, Why: whySession, Mend: "give the run a conversation"},
	{Names: []string{"--session-id"}, Takes: agent.TakesOne, Verdict: agent.Refused, About: agent.AboutSession, Why: whySession, Mend: "give the run a conversation"},
	{Names: []string{"--fork-session"}, Verdict: agent.Refused, About: agent.AboutSession, Why: whySession, Mend: "give the run a new conversation"},
	{Names: []string{"--from-pr"}, Takes: agent.TakesOptional, Verdict: agent.Refused, About: agent.AboutSession, Why: whySession, Mend: "give the run a conversation"},
	{Names: []string{"--no-session-persistence"}, Verdict: agent.Refused, About: agent.AboutSession, Why: "a run that is stopped could not be continued", Mend: mendRemove},
	{Names: []string{"-w", "--worktree"}, Takes: agent.TakesOptional, Verdict: agent.Refused, About: agent.AboutBoundary, Why: "the run takes place in its own working directory", Mend: "make the worktree the run's working directory"},
	{Names: []string{"--tmux"}, Verdict: agent.Refused, About: agent.AboutBoundary, Why: whyElse, Mend: mendRemove},
	{Names: []string{"--bg", "--background"}, Verdict: agent.Refused, About: agent.AboutBoundary, Why: whyElse, Mend: mendRemove},
	{Names: []string{"--cloud"}, Takes: agent.TakesOptional, Verdict: agent.Refused, About: agent.AboutBoundary, Why: whyElse, Mend: mendRemove},
	{Names: []string{"--environment"}, Takes: agent.TakesOne, Verdict: agent.Refused, About: agent.AboutBoundary, Why: whyElse, Mend: mendRemove},
	{Names: []string{"--teleport"}, Takes: agent.TakesOptional, Verdict: agent.Refused, About: agent.AboutBoundary, Why: whyElse, Mend: mendRemove},
	{Names: []string{"--remote-control"}, Takes: agent.TakesOptional, Verdict: agent.Refused, About: agent.AboutBoundary, Why: whyElse, Mend: mendRemove},
	{Names: []string{"--remote-control-session-name-prefix"}, Takes: agent.TakesOne, Verdict: agent.Refused, About: agent.AboutBoundary, Why: whyElse, Mend: mendRemove},
	{Names: []string{"--desktop"}, Verdict: agent.Refused, About: agent.AboutBoundary, Why: whyElse, Mend: mendRemove},

	// What would change the reading.
	{Names: []string{"-d", "--debug"}, Takes: agent.TakesOptional, Verdict: agent.Refused, About: agent.AboutReading, Why: "its log holds requests and headers in clear", Mend: mendRemove},
	{Names: []string{"--debug-file"}, Takes: agent.TakesOne, Verdict: agent.Refused, About: agent.AboutReading, Why: "its log holds requests and headers in clear", Mend: mendRemove},
	{Names: []string{"--include-hook-events"}, Verdict: agent.Refused, About: agent.AboutReading, Why: "no hook runs under the boundary", Mend: mendRemove},
	{Names: []string{"--prompt-suggestions"}, Takes: agent.TakesOptional, Verdict: agent.Refused, About: agent.AboutReading, Why: "it asks the model once more after the reply", Mend: mendRemove},
	{Names: []string{"--ax-screen-reader"}, Verdict: agent.Refused, About: agent.AboutReading, Why: whyPerson, Mend: mendRemove},
	{Names: []string{"-h", "--help"}, Verdict: agent.Refused, About: agent.AboutReading, Why: "it prints a text and runs nothing", Mend: mendRemove},
	{Names: []string{"-v", "--version"}, Verdict: agent.Refused, About: agent.AboutReading, Why: "it prints a text and runs nothing", Mend: mendRemove},
}

// rows finds a flag's row by any of its names.
var rows = func() map[string]*agent.Flag {
	m := make(map[string]*agent.Flag)
	for i := range flags {
		for _, name := range flags[i].Names {
			m[name] = &flags[i]
		}
	}
	return m
}()

// baseName is a program's name without folder (of either kind of path) and .exe, in lower case.
func baseName(program string) string {
	name := strings.ToLower(path.Base(strings.ReplaceAll(program, `\`, "/")))
	return strings.TrimSuffix(name, ".exe")
}

// prints reports whether a command asks for the unattended form, also where it
// cannot be shaped: a word that is, or like -pc contains, the short flag.
func prints(args []string) bool {
	return slices.ContainsFunc(args, func(word string) bool {
		if word == "--print" {
			return true
		}
		letters, short := strings.CutPrefix(word, "-")
		return short && !strings.HasPrefix(letters, "-") && strings.Contains(letters, "p") &&
			strings.Trim(letters, "abcdefghijklmnopqrstuvwxyz") == ""
	})
}

// scanned is an operator's command taken apart.
type scanned struct {
	print  bool
	keep   []string // the words that stay in the run's command
	bypass []string // the words that turn approvals off, as they were written
	// unknown are the flags that no row has, and that were allowed by name.
	unknown []string
}

// scan takes the operator's words after the program apart. allow names flags that may stay although no row has them. The error is a *[agent.Refusal].
func scan(args, allow []string) (scanned, error) {
	var s scanned
	for i := 0; i < len(args); {
		word := args[i]
		i++
		if word == "--" {
			return s, &agent.Refusal{What: "--", Why: "what follows it would be a prompt, and the prompt is the run's to give", Mend: mendRemove}
		}
		if !strings.HasPrefix(word, "-") || word == "-" {
			return s, &agent.Refusal{What: quote(word), Why: "a word without a flag is a prompt or a subcommand, and the prompt is the run's to give", Mend: mendRemove}
		}
		name, value, joined := word, "", false
		if strings.HasPrefix(word, "--") {
			name, value, joined = strings.Cut(word, "=")
		}
		f := rows[name]
		if f == nil {
			if !slices.Contains(allow, name) {
				return s, agent.UnknownFlag(quote(name), "Claude Code "+minVersion)
			}
			f = &agent.Flag{Takes: agent.TakesOptional, Verdict: agent.Allowed}
			s.unknown = append(s.unknown, name)
		}
		if joined && f.Takes == agent.TakesNone {
			return s, &agent.Refusal{What: quote(word), Why: name + " takes no value", Mend: "write " + name}
		}
		words := []string{word}
		if !joined {
			n := values(f.Takes, args[i:])
			if f.Takes == agent.TakesOne && n == 0 || f.Takes == agent.TakesSeveral && n == 0 {
				return s, &agent.Refusal{What: name, Why: "its value is missing", Mend: "give the value or " + mendRemove}
			}
			words = append(words, args[i:i+n]...)
			value = strings.Join(args[i:i+n], " ")
			i += n
		}
		switch {
		case f.Verdict == agent.Unguarded, name == "--permission-mode" && value == "bypassPermissions":
			s.bypass = append(s.bypass, strings.Join(words, " "))
		case f.Verdict == agent.Refused:
			return s, &agent.Refusal{What: strings.Join(words, " "), Why: f.Why, Mend: f.Mend}
		case f.Verdict == agent.Ours:
			if f.Takes == agent.TakesOne && value != f.Value {
				return s, &agent.Refusal{What: strings.Join(words, " "), Why: f.Why, Mend: "leave it out: the run gives " + name + " " + quote(f.Value)}
			}
			s.print = s.print || name == "-p" || name == "--print"
		default:
			s.keep = append(s.keep, words...)
		}
	}
	if !s.print {
		return s, &agent.Refusal{What: "a command without -p", Why: "Claude Code would start a session for a person at a terminal", Mend: "write claude -p"}
	}
	return s, nil
}

// values counts the words at the front of rest that are values of a flag.
func values(takes agent.Takes, rest []string) int {
	dash := slices.IndexFunc(rest, func(word string) bool { return len(word) > 1 && word[0] == '-' })
	if dash < 0 {
		dash = len(rest)
	}
	switch takes {
	case agent.TakesOne:
		return min(1, len(rest)) // whatever it looks like, as commander does
	case agent.TakesOptional:
		return min(1, dash)
	case agent.TakesSeveral:
		return dash
	default:
		return 0
	}
}

// quote makes a word visible in a sentence; an empty or blank one too.
func quote(word string) string {
	if word == "" || strings.ContainsAny(word, " \t\n") {
		return "'" + agent.Head(word) + "'"
	}
	return agent.Head(word)
}
