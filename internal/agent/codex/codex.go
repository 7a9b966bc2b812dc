// Package codex is the adapter for OpenAI's Codex, run as `codex exec`.
//
// It is measured on codex 0.144.1 and 0.171.0 (facts/codex.md). What Codex reaches is proven in
// Prepare, by asking `codex mcp list --json` with the binary, folder, environment and switches of the
// run; the run itself is read from the events of `codex exec --json`.
package codex

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"nightporter/internal/agent"
)

// tokenVariable is the environment variable that Codex takes the gateway's bearer token from: a token in
// the configuration would stand on the command line.
const tokenVariable = "NIGHTPORTER_RUN_TOKEN"

// ladder begins with SIGINT: Codex then ends its MCP servers and saves the open call as aborted, while after
// SIGTERM it leaves servers behind (facts/codex.md section 1, kill).
var ladder = agent.Ladder{
	{Signal: agent.RungInterrupt, Wait: 5 * time.Second},
	{Signal: agent.RungTerminate, Wait: 3 * time.Second},
}

// Adapter is the adapter. Its zero value is ready.
type Adapter struct {
	// CacheDir is a folder of the adapter's own, made when it is not there, in which proofs are remembered;
	// empty remembers none. An entry holds names of servers and paths of skills, and no secret.
	CacheDir string
}

var _ agent.Adapter = Adapter{}

// Name implements [agent.Adapter].
func (Adapter) Name() string { return "codex" }

// Flags is the table of flags that decides on a command. The caller must not change it.
func (Adapter) Flags() []agent.Flag { return flags }

// DefaultArgv implements [agent.Adapter].
func (Adapter) DefaultArgv() []string { return []string{"codex", "exec"} }

// Recognises implements [agent.Adapter]: argv[0] is named codex and its first word that is no flag is exec or e.
func (Adapter) Recognises(argv []string) bool { return recognises(argv) }

// Check implements [agent.Adapter]. A bypass in the command is refused unless mode is [agent.Bypass]; with
// [agent.Request.SafeTools] Prepare removes it before it checks.
func (Adapter) Check(argv []string, mode agent.ToolMode) error {
	c, refusal := parse(argv, nil)
	if refusal != nil {
		return refusal
	}
	return asError(c.bypassRefused(mode, false))
}

// asError keeps a nil refusal from becoming an error that is not nil.
func asError(r *agent.Refusal) error {
	if r == nil {
		return nil
	}
	return r
}

// uuid is the form of Codex's session ids. Codex takes any other text for the name of a
// session and silently starts a new one when there is none (facts/codex.md H).
var uuid = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// Prepare implements [agent.Adapter]. Beside the errors named there it returns an *[agent.Error] with
// [agent.CodeResumeRejected] when r.Resume cannot be an id of a Codex session.
func (a Adapter) Prepare(ctx context.Context, r agent.Request) (*agent.Launch, error) {
	c, refusal := parse(r.Argv, r.AllowFlags)
	if refusal == nil {
		refusal = c.bypassRefused(r.Mode, r.SafeTools)
	}
	if refusal != nil {
		return nil, refusal
	}
	if r.Resume != "" && !uuid.MatchString(r.Resume) {
		return nil, &agent.Error{
			Code:    agent.CodeResumeRejected,
			Message: fmt.Sprintf("%q is no session id of Codex, which would take it for a name and start a new session", agent.Head(r.Resume)),
		}
	}
	binary, err := native(r.Program)
	if err != nil {
		return nil, err
	}
	env := environment(r)
	p := program{path: binary, dir: r.Workdir, env: env}
	changed, err := p.unchanged()
	if err != nil {
		return nil, err
	}
	if p.version, err = p.askVersion(ctx); err != nil {
		return nil, err
	}
	if refusal := c.tooNew(p.version); refusal != nil {
		return nil, refusal
	}
	if why := agent.Colliding(r.Direct); why != "" {
		return nil, &agent.Unproven{Why: why, Mend: "rename one of them"}
	}
	shape := newShape(c, r, p.version)
	env = append(env, shape.variables...)
	p.env = env
	proof, servers, err := prove(ctx, p, r, &shape, cache{a.CacheDir})
	if err != nil {
		return nil, err
	}
	for _, name := range c.unknown {
		// The flag is exec's, and `mcp list` could not be asked with it.
		proof.Proven = false
		proof.Notes = append(proof.Notes, agent.AllowedFlag(name))
	}
	argv := append([]string{binary}, shape.exec(servers, r.Resume)...)
	for _, word := range argv {
		if len(word) > maxWord {
			return nil, &agent.Unproven{
				Why:   fmt.Sprintf("switching off %d servers takes a command line word of %d bytes, and the system takes %d", len(proof.Disabled), len(word), maxWord),
				Mend:  "remove servers from Codex's configuration that are not used",
				Proof: proof,
			}
		}
	}
	return &agent.Launch{
		Argv: argv, Env: env, Version: p.version.String(),
		Dialogue: newDialogue(r, proof, shape.off), Ladder: ladder, Proof: &proof, Changed: changed,
	}, nil
}

// maxWord is the longest word of a command line that Linux takes (MAX_ARG_STRLEN), less room for its end.
const maxWord = 128<<10 - 1

// removed are variables that would take a run out of what was planned. The model's address and credentials are
// the operator's choice and stay.
var removed = []string{
	"CODEX_EXEC_SERVER_URL", // commands would be executed by whoever listens there (measured: both versions connect to it)
	"RUST_LOG",              // changes what Codex writes to standard error, which tells of refused tools
}

// environment is the run's environment: the operator's, with the gateway's token and no proxy between Codex
// and the gateway, which would be given the token.
func environment(r agent.Request) []string {
	env := slices.DeleteFunc(slices.Clone(r.Env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == tokenVariable || slices.Contains(removed, name)
	})
	if r.Gateway == nil {
		return env
	}
	return append(withoutProxy(env), tokenVariable+"="+r.Gateway.Token.Reveal())
}

// loopback is what no proxy may see. The names are those that reqwest, Codex's HTTP client, compares with.
const loopback = "127.0.0.1,localhost,::1"

// withoutProxy takes loopback addresses out of what the proxy variables of env say.
func withoutProxy(env []string) []string {
	proxied, except := false, loopback
	env = slices.DeleteFunc(env, func(v string) bool {
		name, value, _ := strings.Cut(v, "=")
		switch strings.ToLower(name) {
		case "no_proxy":
			if value != "" {
				except = value + "," + except
			}
			return true
		case "http_proxy", "https_proxy", "all_proxy":
			proxied = true
		}
		return false
	})
	if proxied || except != loopback {
		// Both spellings, so that it does not matter which one is read first.
		env = append(env, "NO_PROXY="+except, "no_proxy="+except)
	}
	return env
}

// unproven makes an [agent.Unproven] of an error, whose own reasons stay.
func unproven(err error, proof agent.Proof) error {
	if u := (*agent.Unproven)(nil); errors.As(err, &u) {
		return &agent.Unproven{Why: u.Why, Mend: u.Mend, Proof: proof}
	}
	return &agent.Unproven{Why: err.Error(), Mend: mend, Proof: proof}
}
