package agent

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"nightporter/internal/secret"
)

// Direct is a server that is handed to the agent itself instead of standing behind the run's gateway (B13). Its references are
// resolved.
type Direct struct {
	Name string

	// A process: Command is not empty.
	Command string
	Args    []string
	Env     map[string]secret.String // all that the definition gives it; each may be a credential
	Cwd     string                   // empty: the agent's

	// HTTP.
	URL           secret.String
	SecretURL     bool // it has something in it that the definition refers to
	SSE           bool // the transport of 2024-11-05
	Headers       map[string]secret.String
	HeadersHelper string // a shell command that prints more

	StartTimeout time.Duration
	ToolTimeout  time.Duration

	// Written is the definition as an object of JSON where it was written so, for an agent that takes it as it is.
	Written secret.String

	// Allow are globs of the tools that are granted, by the server's own names; nil grants all. Deny is held against them.
	Allow []string
	Deny  []string
}

// A Wirer is an [Adapter] whose agent can be handed servers by [Request.Direct]. The others have them behind the gateway.
type Wirer interface{ TakesDirect() }

// IsGlob reports whether a text of [Direct.Allow] or Deny is more than one name.
func IsGlob(text string) bool { return strings.ContainsAny(text, "*?") }

// Unenforced are the globs of Allow and Deny that are more than one name, as Nightporter's own are and agents' are not.
func (d *Direct) Unenforced() (globs []string) {
	for _, list := range [][]string{d.Allow, d.Deny} {
		for _, text := range list {
			if IsGlob(text) {
				globs = append(globs, text)
			}
		}
	}
	return globs
}

// notInName is what agents put an underscore in place of: Codex of all these, Claude Code of all but the dash.
var notInName = regexp.MustCompile(`[^a-z0-9_]`)

// Colliding says which of the servers' names one agent or another would spell alike, or so that a tool of one could have the name
// of a tool of another: one of the two would be lost or taken for the other. Empty: none.
func Colliding(servers []Direct) string {
	spelled := map[string]string{GatewayName: GatewayName}
	for _, s := range servers {
		now := notInName.ReplaceAllString(strings.ToLower(s.Name), "_")
		for other, name := range spelled {
			if other == now || strings.HasPrefix(other, now+"__") || strings.HasPrefix(now, other+"__") {
				return fmt.Sprintf("the servers %q and %q have names that the agent cannot tell apart", name, s.Name)
			}
		}
		spelled[now] = s.Name
	}
	return ""
}

// UncoveredDirect is what the ring of the servers does not hold against with servers that are handed to the agent itself.
func UncoveredDirect(servers []Direct) (open []string) {
	for i := range servers {
		s := &servers[i]
		open = append(open, fmt.Sprintf("the server %s is the agent's own: its calls are not in the audit record, and its answers are not looked at", s.Name))
		if globs := s.Unenforced(); len(globs) > 0 {
			open = append(open, fmt.Sprintf("the agent has no patterns for the tools of %s: %s is not enforced", s.Name, strings.Join(globs, ", ")))
		}
	}
	return open
}
