package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The members of a call's _meta, and of each launcher the one that names its program.
const (
	metaState    = "codex/sandbox-state"
	metaCodex    = "codex/sandbox-launcher"
	metaPorter   = "nightporter/sandbox-launcher"
	codexProgram = "codexExecutable"
	ownProgram   = "executable"
)

// authority is what a command may do, and the program that sees to it. It is a value: two calls have the same authority when theirs are
// equal. The state is opaque text here; only the launcher reads it.
type authority struct{ state, launcher string }

// authorityOf reads the authority of a call. What is missing is an error: there is no default, no launcher from PATH, and no
// command without one.
func (r *runner) authorityOf(meta mcp.Meta) (authority, error) {
	state, _ := meta[metaState].(string)
	if state == "" {
		return authority{}, errors.New("this call came without a sandbox state (_meta[\"codex/sandbox-state\"]), so that nothing says what the command may do; use a client that sends one, or Nightporter with a grant that has a sandbox")
	}
	for _, l := range []struct{ name, key, member string }{{"codex", metaCodex, codexProgram}, {"nightporter", metaPorter, ownProgram}} {
		text, _ := meta[l.key].(string)
		if text == "" || r.prefer != "" && r.prefer != l.name {
			continue
		}
		var launcher map[string]string
		if err := json.Unmarshal([]byte(text), &launcher); err != nil || !filepath.IsAbs(launcher[l.member]) {
			return authority{}, fmt.Errorf("the call's %s names no absolute path", l.key)
		}
		return authority{state, launcher[l.member]}, nil
	}
	return authority{}, errors.New("this call came without a launcher that could enforce its sandbox state, so that the command cannot be run; clients that are not on this machine have none")
}

// exact is a transport that hands a call's sandbox metadata on as text. The SDK decodes _meta: what is encoded again is another text, in which
// large numbers may be other numbers, and the state must reach its launcher as it came.
type exact struct{ mcp.Transport }

// Connect implements [mcp.Transport].
func (t exact) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := t.Transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return exactConnection{c}, nil
}

type exactConnection struct{ mcp.Connection }

// Read implements [mcp.Connection].
func (c exactConnection) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := c.Connection.Read(ctx)
	if call, ok := m.(*jsonrpc.Request); ok && err == nil && call.Method == "tools/call" {
		call.Params = quoted(call.Params)
	}
	return m, err
}

// quoted makes texts of the sandbox metadata. What it cannot read stays, and is then no text.
func quoted(params json.RawMessage) json.RawMessage {
	var call, meta map[string]json.RawMessage
	if json.Unmarshal(params, &call) != nil || json.Unmarshal(call["_meta"], &meta) != nil {
		return params
	}
	for _, key := range []string{metaState, metaCodex, metaPorter} {
		if value, given := meta[key]; given && bytes.HasPrefix(value, []byte("{")) {
			meta[key], _ = json.Marshal(string(value)) // a text can be encoded
		} else {
			delete(meta, key)
		}
	}
	var err error
	if call["_meta"], err = json.Marshal(meta); err != nil {
		return params
	}
	again, err := json.Marshal(call)
	if err != nil {
		return params
	}
	return again
}
