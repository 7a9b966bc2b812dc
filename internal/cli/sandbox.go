package cli

import (
	"encoding/json"
	"fmt"

	"nightporter/internal/run"
	"nightporter/internal/sandbox"
)

type sandboxCmd struct {
	State         string   `name:"sandbox-state-json" placeholder:"STATE" required:"" help:"The sandbox state to enforce: what a server gets in _meta as codex/sandbox-state."`
	ReadableRoots []string `name:"sandbox-state-readable-root" placeholder:"DIR" sep:"none" help:"Open DIR for reading as well. May be repeated."`
	NoNetwork     bool     `name:"sandbox-state-disable-network" help:"Close the network, whatever STATE says of it."`
	Mechanism     *string  `enum:"bubblewrap,namespaces,landlock" placeholder:"NAME" help:"Enforce by bubblewrap, namespaces or landlock and by nothing else. Default: the first of these that works here and can enforce STATE."`
	Command       []string `arg:"" optional:"" placeholder:"CMD" help:"The command and its arguments."`
}

func (*sandboxCmd) Help() string {
	return `The command runs in the state's working directory, with this process's environment and streams, and can do
what the state allows and no more. Flags, states and exit codes are those of codex sandbox.

Exit codes: the command's own, 128 and the signal's number when one ended it, 127 when it was not found,
126 when it cannot be executed. 1 when the state is not understood or cannot be enforced here: nothing
was started.

Example:

	nightporter sandbox --sandbox-state-json '{"permissionProfile": {"type": "managed",
		"file_system": {"type": "restricted", "entries": [
			{"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}]},
		"network": "restricted"}, "sandboxCwd": "file:///tmp"}' -- ls -l`
}

func (c *sandboxCmd) Run(a *app) error {
	if len(c.Command) == 0 {
		return usage("write it behind --, as in: nightporter sandbox --sandbox-state-json STATE -- ls", "no command was given")
	}
	state, err := sandbox.Parse(json.RawMessage(c.State))
	if err != nil {
		return &problem{text: fmt.Sprintf("invalid --sandbox-state-json value: %v", err), code: run.ExitFailed}
	}
	code, err := sandbox.Run(sandbox.Options{
		State: state, Argv: c.Command, Env: a.env, Readable: c.ReadableRoots, NoNetwork: c.NoNetwork,
		Closed: sandbox.Orders(a.dirs.Live()), Mechanism: sandbox.Mechanism(given(c.Mechanism)),
	})
	if err != nil {
		return &problem{text: err.Error(), code: code}
	}
	return ended(code)
}
