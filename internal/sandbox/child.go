package sandbox

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

// optionsVariable makes a process an executor: its value are its Options without argv and environment, as JSON.
const optionsVariable = "NIGHTPORTER_SANDBOX_OPTIONS"

// Child is a process that runs a command under a state: this executable, started again.
type Child struct {
	Path      string // this executable, absolute
	Args      []string
	Env       []string
	Mechanism Mechanism // by which the state is enforced
}

// NewChild works out how o is run in a child process, whose streams and signals are the command's. It fails
// where the state cannot be enforced here: there is nothing to start then.
func NewChild(o Options) (Child, error) {
	path, err := os.Executable()
	if err != nil {
		return Child{}, &Unenforceable{fmt.Errorf("find this program, to start it again: %w", err)}
	}
	plan, err := o.plan()
	if err != nil {
		return Child{}, err
	}
	if o.Mechanism, err = Available(plan, o.Env); err != nil {
		return Child{}, err
	}
	c := Child{Path: path, Args: o.Argv, Env: slices.Clone(o.Env), Mechanism: o.Mechanism}
	o.Argv, o.Env = nil, nil // they are the child's own
	raw, err := json.Marshal(o)
	if err != nil {
		return Child{}, err
	}
	c.Env = append(c.Env, optionsVariable+"="+string(raw))
	return c, nil
}

// The hook is an init function for the reasons that package proc's has.
func init() {
	raw, ok := os.LookupEnv(optionsVariable)
	if !ok || len(os.Args) < 2 {
		return
	}
	var o Options
	code := codeRefused
	err := json.Unmarshal([]byte(raw), &o)
	if err == nil {
		o.Argv = os.Args[1:]
		o.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, optionsVariable+"=") })
		code, err = Run(o)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "nightporter: %v\n", err)
	}
	exit(code)
}
