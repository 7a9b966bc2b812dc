// Package authority holds what was true when a tool call was issued, and says whether it still is when the call is about
// to be sent (REQUIREMENTS A22, A23).
//
// Between the two lie waits: for the server's start, for its turn behind other calls, for a person's approval. What
// narrowed in the meantime refuses the call; what widened never helps it, because a call that was not allowed
// when it was issued has been refused then.
package authority

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	"nightporter/internal/mcp/wire"
)

// Authority is what was true when a call was issued. It is a value: nothing changes it afterwards.
type Authority struct {
	Client       string // the client or run that issued it
	Server, Tool string // raw names
	Dir          string // the client's working directory
	Sandbox      string // the call's sandbox state, as its client wrote it, or as it was made for it; empty: it has none
	Own          bool   // Sandbox was made by Nightporter, of the operator's policy
	Launcher     string // the client's launcher, as the client wrote it
	Thread       string // which of the client's conversations it belongs to, as the client names it
	Flaw         string // why what the client said of its sandbox cannot be passed on; empty when it can
	Generation   int    // of the server's connection; 0 while it had none
	Revision     string // of its catalog, live or saved
	Live         bool   // whether Revision was seen on Generation, rather than read from disk
}

// Of reads what a call's params say of its authority into a.
func (a Authority) Of(params json.RawMessage) Authority {
	meta := wire.Get(params, "_meta")
	state, launcher, err := given(meta)
	if err != nil {
		a.Flaw = err.Error()
		return a
	}
	a.Sandbox, a.Launcher = string(state), string(launcher)
	a.Thread, _ = wire.GetString(meta, "threadId") // Codex's; measured, facts/codex-runtime.md, section 6
	return a
}

// Under is a with the state of the operator's policy, where the client gave none. An empty policy is none.
func (a Authority) Under(policy string) Authority {
	if a.Sandbox == "" && policy != "" {
		a.Sandbox, a.Own = policy, true
	}
	return a
}

// Digest names the authority in records: two calls with the same digest were made under the same one.
func (a Authority) Digest() string { return digest(a.Client, a.Dir, a.Sandbox, a.Launcher, a.Revision) }

// Binding names what a server that is bound to an authority was started under (A30): the policy, not the catalog.
func (a Authority) Binding() string { return digest(a.Dir, a.Sandbox, a.Launcher) }

func digest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		// Length first, so that no two lists of parts read the same.
		h.Write([]byte{byte(len(p) >> 24), byte(len(p) >> 16), byte(len(p) >> 8), byte(len(p))})
		h.Write([]byte(p))
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}

// Present is how things are when a call is about to be sent. Each text says why the call must not be, and is empty when
// it may.
type Present struct {
	Client     string // the client has gone
	Server     string // the server was disabled, removed or defined anew
	Grant      string // the grant does not reach the tool
	Filter     string // the server's own filters do not let it through
	Pin        string // its definition changed and is held back
	Tool       string // the live server does not offer it
	Approval   string // it needs a person's approval, which it has not got
	Generation int
	Revision   string

	// Told says that the server is told the call's sandbox state: only then does it matter.
	Told bool
	// Policy is the sandbox state of the operator's policy for the client; empty: there is none.
	Policy string
	// Latest is the state that the client gave last in the call's conversation; empty: none.
	Latest string
	// Sandbox says why there is no saying what the operator's policy is.
	Sandbox string
}

// checks is what is held against the present, in the order in which a person would want to hear of it. What comes of each for
// whom is the table of docs/authority.md, which a test of package runtime brings about.
var checks = []struct {
	what string
	why  func(a Authority, now Present) string
}{
	{"client", func(_ Authority, now Present) string { return now.Client }},
	{"server", func(_ Authority, now Present) string { return now.Server }},
	{"grant", func(_ Authority, now Present) string { return now.Grant }},
	{"filter", func(_ Authority, now Present) string { return now.Filter }},
	{"pin", func(_ Authority, now Present) string { return now.Pin }},
	{"tool", func(_ Authority, now Present) string { return now.Tool }},
	{"sandbox", func(a Authority, now Present) string {
		switch {
		case a.Flaw != "":
			return "what its client said of its sandbox cannot be passed on: " + a.Flaw
		case !now.Told:
			return ""
		case now.Sandbox != "":
			return now.Sandbox
		}
		if now.Policy != "" {
			if a.Sandbox == "" {
				return "it was issued without a sandbox, and the grant has one now"
			}
			if err := Within(a.Sandbox, now.Policy); err != nil {
				return "its sandbox may allow more than that of the grant: " + err.Error()
			}
		}
		if now.Latest != "" && !a.Own && a.Sandbox != "" {
			if err := Within(a.Sandbox, now.Latest); err != nil {
				return "its sandbox may allow more than the one that its client has by now: " + err.Error()
			}
		}
		return ""
	}},
	{"catalog", func(a Authority, now Present) string {
		// A call issued on a saved catalog was promised no more than a start; the live list decides then (A14).
		if a.Live && now.Revision != a.Revision {
			return "the server's catalog changed after the call was issued; list its tools again"
		}
		return ""
	}},
	// Last: a person is asked about nothing that would be refused in any case.
	{Approval, func(_ Authority, now Present) string { return now.Approval }},
}

// Approval is the check that a person can help with.
const Approval = "approval"

// Refuse says why a call that was issued under a must not be sent now: which check failed, and its reason. Both are
// empty when it may be sent.
func (a Authority) Refuse(now Present) (check, reason string) {
	for _, c := range checks {
		if why := strings.TrimSpace(c.why(a, now)); why != "" {
			return c.what, why
		}
	}
	return "", ""
}
