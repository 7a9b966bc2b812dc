package authority

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"nightporter/internal/mcp/wire"
)

// The members of a call's _meta in which a client gives the sandbox state and launcher of the issuing turn
// (facts/codex-runtime.md, section 6). MetaStateLegacy is the deprecated name of MetaState.
const (
	MetaState       = "codex/sandbox-state"
	MetaStateLegacy = "codex/sandbox-state-meta"
	MetaLauncher    = "codex/sandbox-launcher"
	// MetaOwnLauncher names Nightporter's own executor. It never comes from a client.
	MetaOwnLauncher = "nightporter/sandbox-launcher"
)

// metaKeys are all of them: what a call's _meta may have of its sandbox.
var metaKeys = []string{MetaState, MetaStateLegacy, MetaLauncher, MetaOwnLauncher}

// Advertise adds to a server's capabilities those of the sandbox metadata, under both names, as the gateway shows
// them to its clients (A29). What the capabilities say of them already stays.
func Advertise(capabilities json.RawMessage) json.RawMessage {
	for _, name := range []string{MetaState, MetaStateLegacy} {
		if wire.Get(capabilities, "experimental", name) == nil {
			capabilities = wire.Set(capabilities, json.RawMessage("{}"), "experimental", name)
		}
	}
	return capabilities
}

// Advertised reports whether a server with these capabilities asked for the sandbox metadata: by either name,
// whatever its value (A27; measured, facts/codex-runtime.md, section 6).
func Advertised(capabilities json.RawMessage) bool {
	return wire.Get(capabilities, "experimental", MetaState) != nil || wire.Get(capabilities, "experimental", MetaStateLegacy) != nil
}

// Strip returns params without sandbox metadata. Every other byte stays.
func Strip(params json.RawMessage) json.RawMessage {
	meta := wire.Get(params, "_meta")
	for _, key := range metaKeys {
		if wire.Get(meta, key) != nil {
			params = wire.Set(params, nil, "_meta", key)
		}
	}
	return params
}

// given reads from a call's _meta what its client says of its sandbox: the state, as it is written, and the launcher's
// member, each nil where there is none. It is an error when that is not one state: two of them that differ, by so much as
// a space, or something that is none.
func given(meta json.RawMessage) (state, launcher json.RawMessage, err error) {
	if meta == nil || string(meta) == "null" {
		return nil, nil, nil
	}
	if err := wire.Unambiguous(meta, metaKeys...); err != nil {
		return nil, nil, fmt.Errorf("its _meta cannot be read in one way: %w", err)
	}
	state, legacy := wire.Get(meta, MetaState), wire.Get(meta, MetaStateLegacy)
	switch {
	case state == nil:
		state = legacy
	case legacy != nil && !bytes.Equal(state, legacy):
		return nil, nil, fmt.Errorf("%s and %s differ, and mean the same", MetaState, MetaStateLegacy)
	}
	if state != nil && state[0] != '{' {
		return nil, nil, fmt.Errorf("%s is no JSON object", MetaState)
	}
	return state, wire.Get(meta, MetaLauncher), nil
}

// Executable is the program that the client names as its launcher; empty when it names none, or says more than that, which
// nobody here would have verified.
func (a Authority) Executable() string {
	members, err := wire.Members([]byte(a.Launcher))
	if err != nil || len(members) != 1 || members[0].Key != "codexExecutable" || strings.ContainsAny(a.Launcher, "\r\n") {
		return ""
	}
	path, _ := wire.Text(members[0].Value)
	return path
}

// Launchers are the programs by which a server may run commands under a call's state. An empty one is left out.
type Launchers struct {
	Codex string // the client's, when it was verified
	Own   string // Nightporter's own executor
}

// Attach returns the params of a call of a server that asked for the sandbox metadata, with the state of this authority under
// both names, byte for byte as it was given, and with the launchers (A27 to A29). Without a state nothing is
// attached: a launcher is of no use without one. Whatever params had of it is replaced; every other byte stays.
func (a Authority) Attach(params json.RawMessage, l Launchers) (json.RawMessage, error) {
	params = Strip(params)
	if a.Sandbox == "" {
		return params, nil
	}
	if strings.ContainsAny(a.Sandbox, "\r\n") {
		// A frame is one line.
		return nil, fmt.Errorf("%s has line breaks between its tokens, with which it cannot be passed on unchanged; write it on one line", MetaState)
	}
	for _, m := range []struct{ key, value string }{
		{MetaState, a.Sandbox},
		{MetaStateLegacy, a.Sandbox},
		{MetaLauncher, launcherOf("codexExecutable", l.Codex)},
		{MetaOwnLauncher, launcherOf("executable", l.Own)},
	} {
		if m.value != "" {
			params = wire.Set(params, json.RawMessage(m.value), "_meta", m.key)
		}
	}
	return params, nil
}

func launcherOf(key, path string) string {
	if path == "" {
		return ""
	}
	return string(wire.Encode(map[string]string{key: path}))
}
