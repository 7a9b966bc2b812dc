package cli

import (
	"context"
	"fmt"
	"os"

	agentdemo "nightporter/internal/agent/demo"
	"nightporter/internal/demo"
	"nightporter/internal/run"
)

// demoCommands are the demo, and what it starts this executable as.
type demoCommands struct {
	Demo       demoCmd       `cmd:"" help:"Show a whole run, without an agent or an account."`
	DemoAgent  demoAgentCmd  `cmd:"" hidden:""`
	DemoServer demoServerCmd `cmd:"" hidden:""`
}

type demoCmd struct{}

func (*demoCmd) Help() string {
	return `A run of a small agent with small MCP servers, all of them in this program. The rest is what every run goes
through: configuration, catalogs, gateway, grant, proof, processes. Only the model is played, by a script. It needs no
account and no network, works in a temporary folder, and takes less than a second.

Exit codes: 0 all was as it should be, 1 it was not, 4 stopped before the end.

Examples:

	nightporter demo`
}

func (*demoCmd) Run(a *app) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	ctx, kill, release := signals(context.Background())
	defer release()
	err = demo.Run(ctx, demo.Options{
		Program: self, Env: a.env, Version: thisBuild().Version, Kill: kill, Out: a.stdout,
		Title: func(text string) string { return a.paint(a.stdout, bold, text) },
	})
	if ctx.Err() != nil {
		a.say("stopped: %v", err)
		return ended(run.ExitStopped)
	}
	return err
}

type demoAgentCmd struct{}

func (*demoAgentCmd) Help() string {
	return `The program of the agent "demo". It calls the tools that its prompt names, one on each line, through the
gateway that the environment names.

Examples:

	nightporter run --agent demo --server clock "clock__now"`
}

func (*demoAgentCmd) Run(a *app) error {
	return agentdemo.Main(context.Background(), a.env, a.stdin, a.stdout)
}

type demoServerCmd struct {
	Name string `arg:""`
}

func (*demoServerCmd) Help() string {
	return `One of the MCP servers of the demo, on standard input and output: clock, mail or notes.

Examples:

	nightporter demo-server notes`
}

func (c *demoServerCmd) Run(a *app) error { return demo.Serve(c.Name, a.stdin, a.stdout) }
