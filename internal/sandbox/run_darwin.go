package sandbox

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
)

// sandboxExec is part of macOS; the path is fixed so that no other program is taken for it.
const sandboxExec = "/usr/bin/sandbox-exec"

// Run becomes the command under a Seatbelt profile; it returns only when nothing was started. Not tested on macOS.
func Run(o Options) (int, error) {
	if o.Mechanism != "" && o.Mechanism != Seatbelt {
		return codeRefused, &Unenforceable{fmt.Errorf("%s is not a mechanism of macOS", o.Mechanism)}
	}
	plan, err := o.plan()
	if err != nil {
		return codeRefused, err
	}
	if err := os.Chdir(plan.Cwd); err != nil {
		return codeRefused, fmt.Errorf("the state's working directory: %w", err)
	}
	path, err := lookUp(o.Argv[0], o.Env)
	if err != nil {
		return exitOf(err), err
	}
	env := o.Env
	if !plan.Network {
		env = append(slices.Clone(env), NetworkVariable+"=1")
	}
	if plan.Unconfined {
		err := notRun(o.Argv[0], syscall.Exec(path, o.Argv, env))
		return exitOf(err), err
	}
	argv := slices.Concat([]string{sandboxExec, "-p", seatbelt(plan), path}, o.Argv[1:])
	return codeRefused, &Unenforceable{fmt.Errorf("start %s: %w", sandboxExec, syscall.Exec(sandboxExec, argv, env))}
}

// Available reports by which mechanism a plan is enforced here.
func Available(p Plan, _ []string) (Mechanism, error) {
	if p.Unconfined {
		return Unconfined, nil
	}
	if _, err := os.Stat(sandboxExec); errors.Is(err, os.ErrNotExist) {
		return "", &Unenforceable{err}
	}
	return Seatbelt, nil
}
