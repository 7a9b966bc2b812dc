// Package lab is a scripted MCP server that can misbehave and that records what it was sent.
//
// It is written on raw JSON lines rather than on an SDK, so that it can break
// every rule. As a program it speaks on stdio (`lab '{"name":"a"}'`, or `lab
// @FILE`); [Serve] is the same server on streamable HTTP inside the test. It speaks
// the handshake of 2025-11-25 and earlier ("legacy") and the stateless protocol
// of 2026-07-28 ("modern"), one of them or both.
//
//	recorder := lab.Record(t)
//	config := lab.Config{Name: "a", Log: recorder.Address, Tools: lab.Tools("echo", "sleep")}
//	cmd := exec.Command(lab.Binary(t), config.Arg())
//	…
//	entry, err := recorder.Wait(ctx, lab.Received("tools/call"))
package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

// Config is everything a server does. The zero value is a well-behaved legacy server without tools.
type Config struct {
	Name         string `json:"name,omitempty"`         // in serverInfo and at the start of echo's text
	Instructions string `json:"instructions,omitempty"` // to the model
	Era          Era    `json:"era,omitempty"`
	// ProtocolVersion is answered to initialize; default: what the client asked for.
	ProtocolVersion string `json:"protocol_version,omitempty"`
	// Capabilities is sent instead of what Tools, Prompts and Resources call for.
	Capabilities json.RawMessage `json:"capabilities,omitempty"`
	Experimental json.RawMessage `json:"experimental,omitempty"` // capabilities.experimental

	// Tools are sent as they stand, malformed or not; a JSON string is short for
	// a plain definition of that name. What a call does: see Behaviours.
	Tools []json.RawMessage `json:"tools,omitempty"`
	// TTL is the ttlMs of what a modern lab lists; nil: a minute.
	TTL       *int              `json:"ttl,omitempty"`
	Prompts   []json.RawMessage `json:"prompts,omitempty"`   // sent as they stand
	Resources []json.RawMessage `json:"resources,omitempty"` // sent as they stand
	Templates []json.RawMessage `json:"templates,omitempty"` // of resources; sent as they stand
	// Tasks makes tools whose execution.taskSupport says so run as tasks.
	Tasks    bool `json:"tasks,omitempty"`
	PageSize int  `json:"page_size,omitempty"` // tools per page of tools/list; 0: all on one

	// Methods are faults by MCP method ("initialize", "server/discover", "tools/list", …).
	Methods map[string]Fault `json:"methods,omitempty"`
	// Calls are faults by the name of the tool that is called.
	Calls map[string]Fault `json:"calls,omitempty"`
	// Behaves gives a tool the behaviour of another name; see Behaviours.
	Behaves map[string]string `json:"behaves,omitempty"`

	// Mirror lets each request say what the answer to it is: see mirror in mirror.go.
	Mirror bool `json:"mirror,omitempty"`

	Stderr     string   `json:"stderr,omitempty"` // written at start
	Stdout     string   `json:"stdout,omitempty"` // written at start as it stands: junk before the protocol
	StartDelay Duration `json:"start_delay,omitempty"`
	Exit       *int     `json:"exit,omitempty"`        // exit at start, after Stderr, with this status
	IgnoreEOF  bool     `json:"ignore_eof,omitempty"`  // live on when stdin ends
	IgnoreTerm bool     `json:"ignore_term,omitempty"` // live on after TERM, INT and HUP
	Grandchild bool     `json:"grandchild,omitempty"`  // start a process in a session of its own that ignores TERM and HUP (unix)
	LogEnv     bool     `json:"log_env,omitempty"`     // the environment goes into the start entry of the log

	// Log is a file to append entries to, or the Address of a Recorder.
	Log string `json:"log,omitempty"`

	HTTP HTTP `json:"http,omitzero"`
}

// Era is the set of protocol generations a server speaks.
type Era string

// The eras. Legacy servers answer server/discover with -32601; modern ones answer initialize so.
const (
	Legacy Era = "" // initialize, up to 2025-11-25
	Modern Era = "modern"
	Both   Era = "both"
)

// HTTP is how the server behaves on streamable HTTP.
type HTTP struct {
	JSON      bool   `json:"json,omitempty"`       // answer with application/json; what else there is to say goes to the GET stream
	Stateless bool   `json:"stateless,omitempty"`  // no Mcp-Session-Id, no GET stream
	Token     string `json:"token,omitempty"`      // 401 without this bearer token
	SessionID string `json:"session_id,omitempty"` // the id of every session; default: a new one each
}

// Fault is what goes wrong, or is different, when a request comes. Its fields
// take effect in the order in which they stand here; the first one that answers or ends is the last.
type Fault struct {
	First  int             `json:"first,omitempty"` // only the first n times; 0: always
	Delay  Duration        `json:"delay,omitempty"`
	Hold   bool            `json:"hold,omitempty"`   // wait for Recorder.Release
	Junk   string          `json:"junk,omitempty"`   // written as it stands before the answer; on HTTP, it is the answer's body
	Exit   *int            `json:"exit,omitempty"`   // exit with this status
	Silent bool            `json:"silent,omitempty"` // no answer, ever
	Status int             `json:"status,omitempty"` // an HTTP status as the answer
	Error  json.RawMessage `json:"error,omitempty"`  // a JSON-RPC error object as the answer
	Result json.RawMessage `json:"result,omitempty"` // a result as the answer, as it stands
}

// Duration is a time.Duration that JSON spells as Go does: "250ms".
type Duration time.Duration

// UnmarshalJSON reads a duration in Go's spelling.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return fmt.Errorf(`duration %s: want a string such as "250ms"`, data)
	}
	parsed, err := time.ParseDuration(text)
	*d = Duration(parsed)
	return err
}

// MarshalJSON writes the duration in Go's spelling.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// Tools are plain definitions of these names, for Config.Tools.
func Tools(names ...string) []json.RawMessage {
	tools := make([]json.RawMessage, len(names))
	for i, name := range names {
		tools[i] = quote(name)
	}
	return tools
}

// Arg is the configuration as the program's first argument.
// Raw fields that are not JSON make an argument that the program refuses, with the reason.
func (c Config) Arg() string { return string(encode(c)) }

// read reads a configuration from the program's first argument: JSON, or @FILE.
func read(arg string) (Config, error) {
	data := []byte(arg)
	if path, ok := strings.CutPrefix(arg, "@"); ok {
		var err error
		if data, err = os.ReadFile(path); err != nil {
			return Config{}, err
		}
	}
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.DisallowUnknownFields()
	var config Config
	if err := decoder.Decode(&config); err != nil {
		return Config{}, fmt.Errorf("config %.200s: %w", data, err)
	}
	return config, nil
}

// quote is a string as JSON, without the escapes that encoding/json makes for HTML.
func quote(text string) json.RawMessage { return encode(text) }
