package config

import (
	"errors"
	"fmt"
	"math"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"

	"nightporter/internal/secret"
)

// Transport is how a server is spoken to.
type Transport string

// The transports. As the transport of a field, HTTP stands for SSE too.
const (
	Stdio Transport = "stdio"
	HTTP  Transport = "http" // streamable HTTP
	SSE   Transport = "sse"  // the legacy HTTP+SSE transport of 2024-11-05
)

// Approval says which tool calls need a person (facts: codex-runtime, section 4).
type Approval string

// The approval modes.
const (
	ApproveAuto   Approval = "auto"    // by the tool's hints
	ApprovePrompt Approval = "prompt"  // every call asks
	ApproveWrites Approval = "writes"  // every call asks unless the tool is read-only
	ApproveAlways Approval = "approve" // no call asks
)

// Readiness says what a required server must have before a session goes on.
type Readiness string

// The readiness modes.
const (
	ReadyConnection Readiness = "connection" // a live connection
	ReadyCatalog    Readiness = "catalog"    // a usable catalog is enough
)

// Wiring says how a server reaches the agent of a run.
type Wiring string

// The wirings.
const (
	WireGateway Wiring = "gateway" // behind the gateway: lazy, audited, one token
	WireDirect  Wiring = "direct"  // handed to the agent itself
)

// Defaults of a server.
const (
	DefaultStartTimeout = 30 * time.Second  // as measured on codex 0.171.0
	DefaultToolTimeout  = 300 * time.Second // as measured on codex 0.171.0
	DefaultCatalogAge   = 7 * 24 * time.Hour
)

// Server is one MCP server's definition: [mcp_servers.NAME] or an entry of mcpServers.
type Server struct {
	Name string
	Pos  Position // of its name
	// Extra says that it is of extra-mcp.json: every run gets it.
	Extra bool
	// Problem is the first thing that is wrong with the entry; nil when it can be used. A server with a
	// problem is disabled whatever Enabled says. Config.Problems has the others.
	Problem *Problem

	Transport Transport // empty when the entry does not say

	// stdio
	Command Value
	Args    []Value
	Env     map[string]Value
	EnvVars []string // names of variables of Nightporter's environment that the server gets
	Cwd     Value    // empty: the client's

	// http and sse
	URL               Value
	BearerTokenEnvVar string
	HTTPHeaders       map[string]Value
	EnvHTTPHeaders    map[string]string // header to variable; unset or blank leaves the header out
	HTTPHeadersHelper string            // a shell command that prints a JSON object of headers
	OAuth             OAuth
	OAuthResource     string   // RFC 8707 resource
	Scopes            []string // asked for at login; nil: what the server offers

	Enabled           bool // default true
	Required          bool
	Readiness         Readiness // default connection
	Lazy              *bool     // nil: as Gateway.Lazy
	StartTimeout      time.Duration
	ToolTimeout       time.Duration
	IdleStop          time.Duration // 0: never stopped for being unused
	CatalogTTL        time.Duration // age at which a saved catalog is no longer used
	ParallelToolCalls bool          // supports_parallel_tool_calls
	MaxResultBytes    int64         // of one result; a larger one is kept aside and read in pieces; 0: none

	EnabledTools  []string // globs on raw names; nil: all, empty: none
	DisabledTools []string // globs on raw names
	Approval      Approval // default_tools_approval_mode; default auto
	// ToolApproval overrides Approval for a raw tool name.
	ToolApproval map[string]Approval

	Shared         bool   // may clients share its process
	Pin            bool   // hold changed tools back until a person accepts them
	AuthorityBound bool   // a changed authority gets a connection of its own
	Wiring         Wiring // default gateway
	// Written is the entry as it stands in a JSON file; empty in TOML. It may hold secrets.
	Written secret.String
	// Sandbox confines the server's process; nil: not confined. A server whose sandbox cannot be
	// enforced must not be started.
	Sandbox *Sandbox
}

// OAuth is a server's oauth table.
type OAuth struct {
	ClientID     string
	ClientSecret Value
	CallbackURL  string
	CallbackPort int // 0: any
}

// ApprovalFor returns the approval mode of a tool, by its raw name.
func (s *Server) ApprovalFor(tool string) Approval {
	if mode, ok := s.ToolApproval[tool]; ok {
		return mode
	}
	return s.Approval
}

// Usable reports whether the server may be started: it is enabled and has no problem.
func (s *Server) Usable() bool { return s.Enabled && s.Problem == nil }

func newServer(name string, pos Position) *Server {
	return &Server{
		Name: name, Pos: pos, Enabled: true, Readiness: ReadyConnection, Approval: ApproveAuto, Wiring: WireGateway,
		StartTimeout: DefaultStartTimeout, ToolTimeout: DefaultToolTimeout, CatalogTTL: DefaultCatalogAge,
	}
}

// serverEntry is a server while it is read.
type serverEntry struct {
	Server
	declared Transport     // by type
	startAlt time.Duration // startup_timeout_ms
	toolName string        // whose entry of tools is read
	disabled bool          // by disabled, which wins over enabled
}

// transportWords are the values of type.
var transportWords = map[string]Transport{
	"stdio": Stdio, "http": HTTP, "streamable_http": HTTP, "streamable-http": HTTP, "sse": SSE,
}

var approvals = []Approval{ApproveAuto, ApprovePrompt, ApproveWrites, ApproveAlways}

var serverFields = []field[serverEntry]{
	{
		key: "type", typ: "string", enum: []string{"stdio", "http", "streamable_http", "streamable-http", "sse"},
		doc:     "The transport. Only sse needs it: command means stdio, url means streamable HTTP.",
		example: "sse",
		set: func(r *reader, s *serverEntry, n *node) {
			words := []string{"stdio", "http", "sse", "streamable_http", "streamable-http"}
			var word string
			readEnum(r, &word, words, nil, n)
			s.declared = transportWords[word]
		},
	},
	{
		key: "command", on: Stdio, typ: "string", doc: "The program of a stdio server.",
		example: "npx",
		set:     setValue(func(s *serverEntry) *Value { return &s.Command }, Value.onCommandLine),
	},
	{
		key: "args", on: Stdio, typ: "string[]", doc: "The program's arguments.",
		example: []string{"-y", "@modelcontextprotocol/server-filesystem", "/srv/data"},
		set: func(r *reader, s *serverEntry, n *node) {
			if n.kind != kindArray {
				r.wrongKind(n, nil, "an array of strings", `["…"]`)
				return
			}
			for i, item := range n.items {
				below := []string{fmt.Sprint(i)}
				if item.kind != kindString {
					r.wrongKind(item, below, "a string", "")
					continue
				}
				v, ok := r.value(entry{value: item}, item.pos, below)
				if !ok {
					continue
				}
				if err := v.onCommandLine(); err != nil {
					r.failAt(item.pos, below, err.Error(), "")
					continue
				}
				s.Args = append(s.Args, v)
			}
		},
	},
	{
		key: "env", on: Stdio, typ: "table of strings", doc: "Variables of the server's environment; values may be references.",
		example: map[string]string{"API_TOKEN": "${env:API_TOKEN}"}, schema: variables,
		set: func(r *reader, s *serverEntry, n *node) { s.Env = r.environment(n) },
	},
	{
		key: "env_vars", on: Stdio, typ: "string[]", doc: "Names of variables that the server gets from Nightporter's environment.",
		example: []string{"SSH_AUTH_SOCK"}, schema: envVars,
		set: setEnvVars,
	},
	{
		key: "cwd", on: Stdio, typ: "string", doc: "The server's working directory.", def: prose("the client's"),
		example: "/srv/data",
		set:     setValue(func(s *serverEntry) *Value { return &s.Cwd }, Value.onCommandLine),
	},
	{
		key: "url", on: HTTP, typ: "string", doc: "The endpoint of a streamable HTTP or SSE server.",
		example: "https://mcp.example.com/mcp", schema: address,
		set: setValue(func(s *serverEntry) *Value { return &s.URL }, func(v Value) error {
			if !v.IsLiteral() {
				return nil // checked when it is resolved
			}
			return checkURL(v.Text())
		}),
	},
	{
		key: "bearer_token_env_var", on: HTTP, typ: "string", doc: "The variable that holds the bearer token.",
		example: "EXAMPLE_TOKEN", schema: variableName,
		set: func(r *reader, s *serverEntry, n *node) {
			setString(func(s *serverEntry) *string { return &s.BearerTokenEnvVar })(r, s, n)
			if s.BearerTokenEnvVar != "" && !validEnvName(s.BearerTokenEnvVar) {
				r.fail("it is not the name of a variable", "write the variable's name, not the token")
			}
		},
	},
	{
		key: "bearer_token", typ: "string", doc: "Refused, as by Codex: a token does not belong in this file.",
		schema: refused,
		set: func(r *reader, _ *serverEntry, _ *node) {
			r.fail("it is not supported", "put the token into a variable and name it in bearer_token_env_var")
		},
	},
	{
		key: "http_headers", json: "headers", on: HTTP, typ: "table of strings", doc: "Headers of every request; values may be references.",
		example: map[string]string{"X-Api-Key": "${keyring:example/me}"}, schema: headers,
		set: func(r *reader, s *serverEntry, n *node) {
			s.HTTPHeaders = map[string]Value{}
			r.stringTable(n, `{ Authorization = "${env:X}" }`, func(e entry) {
				below := []string{e.key}
				if !validHeaderName(e.key) {
					r.failAt(e.pos, below, "it is not the name of a header", "use letters, digits and -")
					return
				}
				v, ok := r.value(e, e.pos, below)
				if !ok {
					return
				}
				if v.IsLiteral() && !validHeaderValue(v.Text()) {
					r.failAt(e.pos, below, "the value has a line break or control character, which no header holds", "")
					return
				}
				s.HTTPHeaders[e.key] = v
			})
		},
	},
	{
		key: "env_http_headers", on: HTTP, typ: "table of strings", doc: "Headers whose values are in the variables named; unset or blank leaves the header out.",
		example: map[string]string{"X-Api-Key": "EXAMPLE_KEY"}, schema: rules{"propertyNames": headerName, "additionalProperties": variableName},
		set: func(r *reader, s *serverEntry, n *node) {
			s.EnvHTTPHeaders = map[string]string{}
			r.stringTable(n, `{ X-Key = "VARIABLE" }`, func(e entry) {
				switch {
				case !validHeaderName(e.key):
					r.failAt(e.pos, []string{e.key}, "it is not the name of a header", "use letters, digits and -")
				case !validEnvName(e.value.text):
					r.failAt(e.pos, []string{e.key}, "it names no variable", "write the variable's name")
				default:
					s.EnvHTTPHeaders[e.key] = e.value.text
				}
			})
		},
	},
	{
		key: "http_headers_helper", json: "headersHelper", on: HTTP, typ: "string", doc: "A shell command that prints a JSON object of headers.",
		example: "example-login --print-headers",
		set: func(r *reader, s *serverEntry, n *node) {
			setString(func(s *serverEntry) *string { return &s.HTTPHeadersHelper })(r, s, n)
			if n.kind == kindString && n.text != "" && strings.TrimSpace(n.text) == "" {
				r.fail("it is empty", "give it a value, or remove the key")
			}
		},
	},
	{
		key: "auth", on: HTTP, typ: "string", enum: []string{"oauth"}, def: "oauth",
		doc:     "How to log in. Codex's chatgpt and ema_auth need Codex's own account and are refused.",
		example: "oauth",
		set: func(r *reader, _ *serverEntry, n *node) {
			var ignored string
			readEnum(r, &ignored, []string{"oauth"}, nil, n)
		},
	},
	{
		key: "oauth", on: HTTP, typ: "table", doc: "The OAuth client, where the authorization server registers none by itself. See docs/login.md.",
		example: map[string]any{"client_id": "nightporter-at-home", "callback_port": 8400}, schema: ref("oauth"),
		set: func(r *reader, s *serverEntry, n *node) { setOAuth(r, s, n) },
	},
	{
		key: "oauth_resource", on: HTTP, typ: "string", doc: "The resource indicator (RFC 8707) to log in with, in place of the one in the server's metadata.",
		example: "https://mcp.example.com",
		set:     setString(func(s *serverEntry) *string { return &s.OAuthResource }),
	},
	{
		key: "scopes", typ: "string[]", doc: "OAuth scopes to ask for at login, and no others. Default: those that the server asks for.",
		example: []string{"read"},
		set:     setStrings(func(s *serverEntry) *[]string { return &s.Scopes }),
	},
	{
		key: "enabled", typ: "bool", def: true, doc: "false keeps the definition and never starts the server.",
		example: false,
		set:     setBool(func(s *serverEntry) *bool { return &s.Enabled }),
	},
	{
		json: "disabled", typ: "bool", def: false, doc: "The opposite of enabled, as several clients write it.",
		set: setBool(func(s *serverEntry) *bool { return &s.disabled }),
	},
	{
		key: "required", typ: "bool", def: false, doc: "A session or run waits for the server and fails without it.",
		example: true,
		set:     setBool(func(s *serverEntry) *bool { return &s.Required }),
	},
	{
		key: "startup_timeout_sec", typ: "seconds", def: 30, doc: "Time to connect, to initialize and to list, each. Wins over startup_timeout_ms.",
		example: 60,
		set:     setSeconds(time.Second, false, func(s *serverEntry) *time.Duration { return &s.StartTimeout }),
	},
	{
		key: "startup_timeout_ms", typ: "milliseconds", doc: "The same in milliseconds.",
		example: 60000, schema: rules{"type": "integer"},
		set: func(r *reader, s *serverEntry, n *node) {
			if n.kind == kindFloat { // refused by Codex too
				r.wrongKind(n, nil, "a whole number of milliseconds", "30000")
				return
			}
			setSeconds(time.Millisecond, false, func(s *serverEntry) *time.Duration { return &s.startAlt })(r, s, n)
		},
	},
	{
		key: "startup_readiness", typ: "string", enum: []string{"connection", "catalog"}, def: "connection",
		doc:     "What a required server must have before a session goes on.",
		example: "catalog",
		set:     setEnum(func(s *serverEntry) *Readiness { return &s.Readiness }, []Readiness{ReadyConnection, ReadyCatalog}),
	},
	{
		key: "tool_timeout_sec", typ: "seconds", def: 300, doc: "Time for one tool call without progress.",
		example: 600,
		set:     setSeconds(time.Second, false, func(s *serverEntry) *time.Duration { return &s.ToolTimeout }),
	},
	{
		key: "enabled_tools", typ: "string[]", doc: "Globs of the tools to offer, on the server's own names; empty offers none.",
		example: []string{"get_*", "search"},
		set:     setStrings(func(s *serverEntry) *[]string { return &s.EnabledTools }),
	},
	{
		key: "disabled_tools", typ: "string[]", doc: "Globs of tools to leave out, after enabled_tools.",
		example: []string{"delete_*"},
		set:     setStrings(func(s *serverEntry) *[]string { return &s.DisabledTools }),
	},
	{
		key: "supports_parallel_tool_calls", typ: "bool", def: false, doc: "Calls of one client may run at the same time.",
		example: true,
		set:     setBool(func(s *serverEntry) *bool { return &s.ParallelToolCalls }),
	},
	{
		key: "default_tools_approval_mode", typ: "string", enum: strs(approvals), def: "auto", doc: "Which calls need a person.",
		example: "writes",
		set:     setEnum(func(s *serverEntry) *Approval { return &s.Approval }, approvals),
	},
	{
		key: "tools", typ: "table", doc: "Settings of single tools, by the server's own name for them.",
		example: map[string]any{"create_issue": map[string]any{"approval_mode": "prompt"}}, schema: rules{"additionalProperties": ref("tool")},
		set: setTools,
	},
	{
		key: "lazy", typ: "bool", def: prose("gateway.lazy"), doc: "false starts the server at once, also when its catalog is known.",
		example: false,
		set:     setOptionalBool(func(s *serverEntry) **bool { return &s.Lazy }),
	},
	{
		key: "idle_stop_sec", typ: "seconds", def: 0, doc: "Stop the server after that long unused; 0 never.",
		example: 900, schema: orZero,
		set: setSeconds(time.Second, true, func(s *serverEntry) *time.Duration { return &s.IdleStop }),
	},
	{
		key: "catalog_max_age_sec", typ: "seconds", def: 604800, doc: "Age at which a saved catalog is no longer used.",
		example: 86400,
		set:     setSeconds(time.Second, false, func(s *serverEntry) *time.Duration { return &s.CatalogTTL }),
	},
	{
		key: "max_result_bytes", typ: "integer", doc: "Bound of one tool result, resource or prompt; a larger one is kept aside, and its client reads it in pieces.", def: prose("none"),
		example: 1048576, schema: rules{"minimum": 1, "maximum": 1 << 40},
		set: setCount(1, 1<<40, func(s *serverEntry) *int64 { return &s.MaxResultBytes }),
	},
	{
		key: "shared", typ: "bool", def: false, doc: "Clients may share the server's process.",
		example: true,
		set:     setBool(func(s *serverEntry) *bool { return &s.Shared }),
	},
	{
		key: "pin", typ: "bool", def: false, doc: "Hold a changed tool back until a person accepts it.",
		example: true,
		set:     setBool(func(s *serverEntry) *bool { return &s.Pin }),
	},
	{
		key: "authority_bound", typ: "bool", def: false, doc: "A changed authority gets a connection of its own.",
		example: true,
		set:     setBool(func(s *serverEntry) *bool { return &s.AuthorityBound }),
	},
	{
		key: "wiring", typ: "string", enum: []string{"gateway", "direct"}, def: "gateway", doc: "direct hands the server to the agent of a run itself, where the agent takes servers; it is then not behind the gateway.",
		example: "direct",
		set:     setEnum(func(s *serverEntry) *Wiring { return &s.Wiring }, []Wiring{WireGateway, WireDirect}),
	},
	{
		key: "sandbox", on: Stdio, typ: "string or table", doc: "Confines the server's process: read-only, workspace-write, a table of its own, or a permission profile.",
		example: "workspace-write", schema: sandboxRules,
		set: func(r *reader, s *serverEntry, n *node) { s.Sandbox = r.sandbox(n) },
	},
	{
		key: "environment_id", typ: "string", enum: []string{"local"}, def: "local", doc: "Codex's; only local servers can be started.",
		example: "local",
		set: func(r *reader, _ *serverEntry, n *node) {
			var ignored string
			readEnum(r, &ignored, []string{"local"}, nil, n)
		},
	},
	// What only Codex or Claude Code has a use for is checked for its type and has no effect.
	{
		key: "name", typ: "string", doc: "Codex's old display name; no effect.",
		example: "Files",
		set:     setString(func(*serverEntry) *string { return new(string) }),
	},
	{
		key: "tool_input_schema_max_bytes", typ: "integer", doc: "Codex's; no effect: schemas pass unchanged.",
		example: 5000, schema: rules{"minimum": 1},
		set: setCount(1, math.MaxInt64, func(*serverEntry) *int64 { return new(int64) }),
	},
	{
		key: "omit_tools_from", typ: "string[]", doc: "Codex's; no effect.",
		example: []string{"direct"},
		set:     setStrings(func(*serverEntry) *[]string { return new([]string) }),
	},
	{
		json: "alwaysLoad", typ: "bool", doc: "Claude Code's; no effect.",
		set: setBool(func(*serverEntry) *bool { return new(bool) }),
	},
}

// serverAliases are names that other programs have for a field of ours.
var serverAliases = map[string]string{
	"headers": "http_headers", "headersHelper": "http_headers_helper", "disabled": "enabled", "timeout": "tool_timeout_sec",
	"serverUrl": "url", "httpUrl": "url", "endpoint": "url", "uri": "url", "cmd": "command", "environment": "env", "transport": "type",
	"arguments": "args", "autoApprove": "default_tools_approval_mode", "alwaysAllow": "default_tools_approval_mode",
	"includeTools": "enabled_tools", "excludeTools": "disabled_tools", "startup_timeout": "startup_timeout_sec", "parallel": "supports_parallel_tool_calls",
}

var oauthFields = []field[serverEntry]{
	{
		key: "client_id", json: "clientId", typ: "string", doc: "The registered client, or the https address of a client metadata document. With such an address a client is registered at login where the authorization server reads no documents.",
		example: "nightporter-at-home",
		set:     setString(func(s *serverEntry) *string { return &s.OAuth.ClientID }),
	},
	{
		key: "client_secret", typ: "string", doc: "Its secret; may be a reference.",
		example: "${keyring:example/client}",
		set:     setValue(func(s *serverEntry) *Value { return &s.OAuth.ClientSecret }, func(Value) error { return nil }),
	},
	{
		key: "callback_url", typ: "string", doc: "The redirect address that was registered. One on another machine works with --paste alone. Default: http://127.0.0.1:PORT/callback.",
		example: "http://127.0.0.1:8400/callback",
		set:     setString(func(s *serverEntry) *string { return &s.OAuth.CallbackURL }),
	},
	{
		key: "callback_port", json: "callbackPort", typ: "integer", doc: "The local port that was registered. Default: any.",
		example: 8400, schema: rules{"minimum": 1, "maximum": math.MaxUint16},
		set: setCount(1, math.MaxUint16, func(s *serverEntry) *int { return &s.OAuth.CallbackPort }),
	},
	{
		key: "token_endpoint_auth_method", typ: "string", doc: "Refused: needs Codex's ema_auth.",
		schema: refused,
		set:    refuseEMA,
	},
	{
		key: "authorization_server_issuer", typ: "string", doc: "Refused: needs Codex's ema_auth.",
		schema: refused,
		set:    refuseEMA,
	},
}

func refuseEMA(r *reader, _ *serverEntry, _ *node) {
	r.fail(`it needs auth = "ema_auth", which is Codex's own`, "remove it")
}

var toolFields = []field[serverEntry]{
	{
		key: "approval_mode", typ: "string", enum: strs(approvals), doc: "Which calls of this tool need a person.",
		example: "prompt",
		set: func(r *reader, s *serverEntry, n *node) {
			mode := Approval("")
			readEnum(r, &mode, approvals, nil, n)
			if mode != "" {
				s.ToolApproval[s.toolName] = mode
			}
		},
	},
	{
		key: "output_token_limit", typ: "integer", doc: "Codex's; no effect.",
		example: 1000, schema: rules{"minimum": 1},
		set: setCount(1, math.MaxInt64, func(*serverEntry) *int64 { return new(int64) }),
	},
}

// below reads a table within an entry with fields of its own.
func (r *reader) below(path string, n *node, readIt func(*reader)) {
	sub := &reader{decoder: r.decoder, path: path}
	readIt(sub)
	r.problems = append(r.problems, sub.problems...)
}

func setOAuth(r *reader, s *serverEntry, n *node) {
	if n.kind != kindTable {
		r.wrongKind(n, nil, "a table", "")
		return
	}
	at := r.at
	r.below(join(r.path, r.at.key), n, func(sub *reader) {
		seen := read(sub, oauthFields, nil, s, n)
		if secret, ok := seen["client_secret"]; ok && s.OAuth.ClientID == "" {
			sub.at = secret
			sub.fail("it needs client_id", "give client_id too")
		}
	})
	r.at = at
}

func setTools(r *reader, s *serverEntry, n *node) {
	if n.kind != kindTable {
		r.wrongKind(n, nil, "a table of tools", "")
		return
	}
	s.ToolApproval = map[string]Approval{}
	for _, e := range n.entries {
		if e.value.kind != kindTable {
			r.failAt(e.pos, []string{e.key}, fmt.Sprintf("it is %s and takes a table", e.value.kind), `write { approval_mode = "approve" }`)
			continue
		}
		s.toolName = e.key
		r.below(join(r.path, r.at.key, e.key), e.value, func(sub *reader) { read(sub, toolFields, nil, s, e.value) })
	}
}

// environment reads a table of variables.
func (r *reader) environment(n *node) map[string]Value {
	env := map[string]Value{}
	r.stringTable(n, `{ NAME = "value" }`, func(e entry) {
		below := []string{e.key}
		if !validEnvName(e.key) {
			r.failAt(e.pos, below, "it is not the name of a variable", "use letters, digits and _")
			return
		}
		v, ok := r.value(e, e.pos, below)
		if !ok {
			return
		}
		if strings.ContainsRune(e.value.text, 0) {
			r.failAt(e.pos, below, "the value has a NUL character, which no environment holds", "")
			return
		}
		env[e.key] = v
	})
	return env
}

// setEnvVars reads names, or Codex's {name, source} tables.
func setEnvVars(r *reader, s *serverEntry, n *node) {
	if n.kind != kindArray {
		r.wrongKind(n, nil, "an array of names", `["NAME"]`)
		return
	}
	for i, item := range n.items {
		below := []string{fmt.Sprint(i)}
		name := item
		if item.kind == kindTable {
			for _, e := range item.entries {
				if e.key != "name" && e.key != "source" {
					r.unknown(e, join(join(r.path, r.at.key), append(below, e.key)...), []string{"name", "source"}, nil, nil)
				}
			}
			if e := item.get("source"); e != nil && (e.value.kind != kindString || e.value.text != "local") {
				r.failAt(e.pos, append(below, "source"), "only local variables can be had", `write "local", or remove source`)
			}
			if e := item.get("name"); e != nil {
				name = e.value
			}
		}
		switch {
		case name.kind != kindString:
			r.wrongKind(item, below, "a name or { name = … }", "")
		case !validEnvName(name.text):
			r.failAt(name.pos, below, "it is not the name of a variable", "write the name alone; values belong in env")
		case !slices.Contains(s.EnvVars, name.text):
			s.EnvVars = append(s.EnvVars, name.text)
		}
	}
}

// server reads one entry of mcp_servers.
func (d *decoder) server(table string, e entry) {
	s := &serverEntry{Server: *newServer(e.key, e.pos)}
	r := &reader{decoder: d, path: join(table, e.key)}
	if err := CheckName(e.key); err != nil {
		r.failAt(e.pos, nil, err.Error(), "give it another name")
	}
	if e.value.kind != kindTable {
		r.failAt(e.pos, nil, fmt.Sprintf("it is %s and takes a table", e.value.kind), "")
	} else {
		seen := read(r, serverFields, serverAliases, s, e.value)
		s.chooseTransport(r, seen)
		if d.json {
			if raw, err := e.value.raw(); err == nil { // JSON that was read can be written
				s.Written = secret.New(string(raw))
			}
		}
		if _, sec := seen["startup_timeout_sec"]; !sec && s.startAlt > 0 {
			s.StartTimeout = s.startAlt
		}
		s.Enabled = s.Enabled && !s.disabled
	}
	s.Problem = r.finish()
	d.cfg.Servers = append(d.cfg.Servers, s.Server)
}

// chooseTransport decides by what is there (command, else url) and holds it against type and the other fields.
func (s *serverEntry) chooseTransport(r *reader, seen map[string]entry) {
	declared, hasType := seen["type"]
	_, command := seen["command"]
	_, address := seen["url"]
	switch {
	case command && !(address && s.declared != "" && s.declared != Stdio):
		s.Transport = Stdio
	case address && s.declared == SSE:
		s.Transport = SSE
	case address:
		s.Transport = HTTP
	default:
		r.failAt(s.Pos, nil, "it has neither command nor url", "give command for a stdio server, or url for an HTTP server")
		return
	}
	if hasType && s.declared != "" && (s.declared == Stdio) != (s.Transport == Stdio) {
		r.at = declared
		needs, has := "url", "command"
		if s.declared == Stdio {
			needs, has = has, needs
		}
		r.fail(fmt.Sprintf("it says %s, and the entry has %s and no %s", declared.value.text, has, needs),
			fmt.Sprintf("remove type, or give %s in place of %s", needs, has))
	}
	kind := s.Transport
	if kind == SSE {
		kind = HTTP
	}
	decides, names := "command", "stdio"
	if kind == HTTP {
		decides, names = "url", "HTTP"
	}
	for _, f := range serverFields {
		foreign, there := seen[f.key]
		if !there || f.on == "" || f.on == kind {
			continue
		}
		r.at = foreign
		r.fail(fmt.Sprintf("%s is not supported for %s servers, and %s makes this one %[2]s", foreign.key, names, decides), "remove "+foreign.key)
	}
	r.at = entry{}
}

// checkURL says why text is no endpoint. It does not quote it: keys stand in queries.
func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return errors.New("it is not an address; write https://HOST/PATH")
	case u.Scheme != "http" && u.Scheme != "https":
		return errors.New("it does not begin with http:// or https://")
	case u.Hostname() == "":
		return errors.New("it names no host; write https://HOST/PATH")
	}
	return nil
}

// validHeaderName reports whether name is a token of RFC 9110.
func validHeaderName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || strings.ContainsRune(`()<>@,;:\"/[]?={}`, c)
	})
}

func validHeaderValue(value string) bool {
	return !strings.ContainsFunc(value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f })
}

func canonicalHeader(name string) string { return textproto.CanonicalMIMEHeaderKey(name) }
