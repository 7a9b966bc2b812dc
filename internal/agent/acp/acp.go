// Package acp is the adapter for agents that speak the Agent Client Protocol, version 1, on standard input and output: Gemini CLI,
// OpenCode, Goose and others (https://agentclientprotocol.com).
//
// Nightporter is the client: it opens a session with the run's gateway as its one MCP server, sends the prompt, reads the
// updates, and answers each request for permission. The protocol has no list of what an agent reaches beside
// that, so no boundary is ever proven by it: a run needs [agent.Request.Unproven], and [rings] says what is enforced all the same.
package acp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"nightporter/internal/agent"
)

// maxPrompt is the largest prompt that is sent, in bytes: what Claude Code takes at most is near it, and what a
// model takes is less.
const maxPrompt = 8 << 20

// ladder asks the agent to cancel its turn first, upon which it saves and reports; after that it is told to go.
var ladder = agent.Ladder{
	{Signal: agent.RungAsk, Wait: 5 * time.Second},
	{Signal: agent.RungInterrupt, Wait: 3 * time.Second},
	{Signal: agent.RungTerminate, Wait: 3 * time.Second},
}

// Adapter is the adapter. Its zero value is ready.
type Adapter struct{}

var _ agent.Adapter = Adapter{}

// Name implements [agent.Adapter].
func (Adapter) Name() string { return "acp" }

// DefaultArgv implements [agent.Adapter]: there is none, since it is for many programs.
func (Adapter) DefaultArgv() []string { return nil }

// Recognises implements [agent.Adapter]. It is always false: no command tells surely that it speaks the protocol, so the
// operator says it, with kind = "acp".
func (Adapter) Recognises([]string) bool { return false }

// Check implements [agent.Adapter]: every command will do.
func (Adapter) Check(argv []string, _ agent.ToolMode) error {
	if len(argv) == 0 {
		return &agent.Refusal{What: "the command", Why: "it is empty", Mend: `write it in config.toml: [agents.NAME] kind = "acp", exec = ["gemini", "--experimental-acp"]`}
	}
	return nil
}

// Prepare implements [agent.Adapter]. Nothing is asked before the run.
func (a Adapter) Prepare(_ context.Context, r agent.Request) (*agent.Launch, error) {
	if err := a.Check(r.Argv, r.Mode); err != nil {
		return nil, err
	}
	proof := agent.Proof{
		How:     "nobody was asked: the Agent Client Protocol has no list of what an agent reaches",
		Servers: []string{}, Disabled: []string{}, Failed: []string{}, Rings: rings(r),
	}
	if r.Gateway != nil {
		proof.Servers = []string{agent.GatewayName}
	}
	if !r.Unproven {
		return nil, &agent.Unproven{
			Why:   fmt.Sprintf("%s speaks the Agent Client Protocol, which has no list of what an agent reaches", r.Argv[0]),
			Mend:  "use claude or codex, or accept that with --unproven",
			Proof: proof,
		}
	}
	if len(r.Prompt) > maxPrompt {
		return nil, &agent.Error{
			Code:    agent.CodePromptTooLong,
			Message: fmt.Sprintf("the prompt has %d bytes, and at most %d are sent: put what is long into a file of the working directory", len(r.Prompt), maxPrompt),
		}
	}
	if strings.TrimSpace(r.Prompt) == "" && !r.ProveOnly {
		return nil, errors.New("the prompt is empty")
	}
	proof.Notes = []string{"the agent was run unproven: it may reach whatever its own settings and this user can"}
	env := slices.DeleteFunc(slices.Clone(r.Env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.ContainsFunc(added, func(ours string) bool { return strings.HasPrefix(ours, name+"=") })
	})
	env = append(env, added...)
	return &agent.Launch{
		Argv: append([]string{r.Program}, r.Argv[1:]...), Env: env,
		Dialogue: newDialogue(r, env, proof), Ladder: ladder, Proof: &proof,
	}, nil
}

// added are variables that keep known agents from acting on what a prompt says before a model reads it.
var added = []string{
	"CLAUDE_CODE_DISABLE_FILE_MENTIONS=1", // of claude-agent-acp: @/etc/passwd would be inlined
}

// rings says what of the boundary is planned and enforced. Nothing of it is proven.
func rings(r agent.Request) []agent.Ring {
	servers := agent.Ring{
		Name: agent.RingServers, Planned: "whatever the agent has of its own",
		Open: []string{"servers of the agent's own settings, extensions and plugins, and of the working directory's: the protocol has no list of them"},
	}
	if r.Gateway != nil {
		servers.Planned = agent.GatewayName + ", beside whatever the agent has of its own"
		servers.Enforced = []string{"session/new names the run's gateway and no other; an agent that does not take servers over HTTP is refused"}
		servers.Open = append(servers.Open, "what the agent does with the run's token, which it is given on standard input: claude-agent-acp 0.101.0 hands it on in a command line")
	}
	settings := agent.Ring{
		Name: agent.RingSettings, Planned: "whatever the agent loads",
		Open: []string{"the agent's settings, hooks, plugins, skills and memory: the protocol cannot switch them off, only the agent's own flags and variables can"},
	}
	tools := agent.Ring{
		Name: agent.RingTools, Planned: "those that --built-in " + string(r.BuiltIn) + " names, where the agent asks",
		Enforced: []string{
			"session/request_permission: allowed are tools of the gateway and, by their kind, those that --built-in names; all else is refused and reported",
			"session/set_mode: the mode in which the agent asks, where it has one of a known name (" + strings.Join(askingModes, ", ") + ")",
			"files and terminals of the client are not offered",
		},
		Open: []string{"what the agent does without asking, by its settings or its nature, such as reading files"},
	}
	if r.Mode == agent.Bypass {
		tools.Planned, tools.Enforced = "all", []string{"files and terminals of the client are not offered"}
		tools.Open = []string{"everything: each request for permission is granted, as asked for"}
	}
	prompt := agent.Ring{
		Name: agent.RingPrompt, Planned: "text",
		Enforced: []string{
			"standard input: nothing of it stands on the command line",
			"one block of text; one that begins as a command does gets a line before it",
		},
		Open: []string{"mentions of files that the agent itself expands, such as @/path (claude-agent-acp: switched off)"},
	}
	return []agent.Ring{servers, settings, tools, prompt}
}
