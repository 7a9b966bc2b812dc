// Package demo is an agent without a model: a scripted MCP client. It is for looking at the whole path of a run
// with no account and no cost, in `nightporter demo` and with one's own servers.
//
// Its program is this same executable ([Main]). Like a real agent it is started as a process, reaches its servers over HTTP with the
// run's token, and prints a stream of JSON lines. What a model would decide stands in the prompt: one call of a tool
// on each line, the tool's name and then its arguments as JSON.
//
//	clock__now
//	notes__add {"text": "buy milk"}
package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"nightporter/internal/agent"
)

// Command is the word after the executable's name that runs [Main].
const Command = "demo-agent"

// Variables in which the program finds its one server.
const (
	urlVariable   = "NIGHTPORTER_MCP_URL"
	tokenVariable = "NIGHTPORTER_MCP_TOKEN"
)

// ladder is short: the program has nothing to save.
var ladder = agent.Ladder{
	{Signal: agent.RungInterrupt, Wait: time.Second},
	{Signal: agent.RungTerminate, Wait: time.Second},
}

// Adapter is the adapter. Its zero value is ready.
type Adapter struct{}

var _ agent.Adapter = Adapter{}

// Name implements [agent.Adapter].
func (Adapter) Name() string { return "demo" }

// DefaultArgv implements [agent.Adapter]: this executable. It is nil where the system cannot say which that is.
func (Adapter) DefaultArgv() []string {
	self, err := os.Executable()
	if err != nil {
		return nil
	}
	return []string{self, Command}
}

// Recognises implements [agent.Adapter].
func (a Adapter) Recognises(argv []string) bool {
	if len(argv) < 2 || argv[1] != Command {
		return false
	}
	own := a.DefaultArgv()
	return strings.TrimSuffix(filepath.Base(argv[0]), ".exe") == "nightporter" || own != nil && argv[0] == own[0]
}

// Check implements [agent.Adapter].
func (a Adapter) Check(argv []string, _ agent.ToolMode) error {
	switch {
	case !a.Recognises(argv):
		return &agent.Refusal{What: "the command", Why: "it does not run the demo agent", Mend: "leave it out: --agent demo has one of its own"}
	case len(argv) > 2:
		return &agent.Refusal{What: fmt.Sprintf("the word %q", argv[2]), Why: "the demo agent takes no arguments", Mend: "leave it out"}
	}
	return nil
}

// Prepare implements [agent.Adapter]. The proof is the dialogue's: the program says what it reaches before it gets a prompt.
func (a Adapter) Prepare(_ context.Context, r agent.Request) (*agent.Launch, error) {
	if err := a.Check(r.Argv, r.Mode); err != nil {
		return nil, err
	}
	env := make([]string, 0, len(r.Env)+2)
	for _, entry := range r.Env {
		if name, _, _ := strings.Cut(entry, "="); name != urlVariable && name != tokenVariable {
			env = append(env, entry)
		}
	}
	if r.Gateway != nil {
		env = append(env, urlVariable+"="+r.Gateway.URL, tokenVariable+"="+r.Gateway.Token.Reveal())
	}
	return &agent.Launch{
		Argv: []string{r.Program, Command}, Env: env,
		Dialogue: newDialogue(r), Ladder: ladder,
	}, nil
}
