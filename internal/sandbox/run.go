package sandbox

import (
	"fmt"
	"os"
	"strings"
)

// Options is a command to be run under a state.
type Options struct {
	State State
	// Argv is the program, looked up on the PATH of Env where it has no slash, and its arguments.
	Argv []string
	// Env is the whole environment, to which [NetworkVariable] is added where the network is closed.
	Env []string
	// Readable are paths to open for reading beside what State opens.
	Readable []string
	// NoNetwork closes the network whatever State says.
	NoNetwork bool
	// Closed are paths that the command must not reach, whatever State says.
	Closed []string
	// Mechanism is how State is to be enforced; empty: as it is best.
	Mechanism Mechanism
}

// Orders are paths for [Options.Closed]: where agents of this user take orders, and a command that reached them could have
// done what it may not do itself. live is Nightporter's own folder; the other is Codex's, which Codex closes likewise.
func Orders(live string) []string {
	return []string{live, fmt.Sprintf("/tmp/codex-daemon-%d", os.Getuid())}
}

// NetworkVariable is set to 1 in the environment of a command without network, as Codex does.
const NetworkVariable = "CODEX_SANDBOX_NETWORK_DISABLED"

// Mechanism is a way to enforce a state.
type Mechanism string

const (
	Unconfined Mechanism = "none" // nothing is to be enforced
	Bubblewrap Mechanism = "bubblewrap"
	Namespaces Mechanism = "namespaces" // mount, user and other namespaces of our own
	Landlock   Mechanism = "landlock"   // with seccomp
	Seatbelt   Mechanism = "seatbelt"   // macOS
)

// Exit codes of [Run] beside the command's own.
const (
	codeRefused       = 1
	codeNotExecutable = 126
	codeNotFound      = 127
)

// Unenforceable says why a state cannot be enforced on this host. Nothing was started.
type Unenforceable struct{ Why error }

func (e *Unenforceable) Error() string {
	return fmt.Sprintf("the sandbox cannot be enforced here, and nothing was started: %v", e.Why)
}

func (e *Unenforceable) Unwrap() error { return e.Why }

// plan is what o comes to on this host.
func (o *Options) plan() (Plan, error) {
	state, err := o.adjusted()
	if err != nil {
		return Plan{}, err
	}
	getenv := func(key string) string { return lookup(o.Env, key) }
	plan, err := NewPlan(state, Host{Files: os.DirFS("/"), Getenv: getenv, Readable: o.Readable, Closed: o.Closed})
	if err != nil {
		return Plan{}, &Unenforceable{err}
	}
	return plan, nil
}

func lookup(env []string, key string) string {
	value := ""
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, key+"="); ok {
			value = v // of repeated ones the last counts, as for os/exec
		}
	}
	return value
}

// adjusted is the state that o asks for.
func (o *Options) adjusted() (State, error) {
	s := o.State
	if o.NoNetwork {
		if s.Profile.Type == Disabled {
			return s, fmt.Errorf("the network cannot be closed for a state that is %s: nothing confines its command", Disabled)
		}
		s.Profile.Network = Restricted
	}
	return s, nil
}
