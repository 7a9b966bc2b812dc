package config

import (
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Defaults of the gateway.
const (
	DefaultListen        = "127.0.0.1:8722"
	DefaultOptionalGrace = time.Second // as in Codex
)

// Grant is [grants.NAME]: the servers and tools that a client or run may see and use.
//
//	[grants.support]
//	servers = ["docs", "status"]        # all tools of these
//	tools.crm = ["get_*", "search"]     # of crm these alone
//	deny.docs = ["delete_*"]            # of what is granted, not these
//
// Server names stand as they are, tools are globs on the server's own names. A server in tools need not be in
// servers; in both, tools counts.
type Grant struct {
	Name string
	Pos  Position
	// Problem says why the grant cannot be used: it then allows nothing. Nil when it can.
	Problem *Problem

	Servers []string
	Tools   map[string][]string // server to globs
	Deny    map[string][]string // server to globs
	Grow    bool                // may tools that a server adds during a run join it
	Sandbox *Sandbox            // for calls under the grant whose client gave none; nil: none
	// Exposure is how the tools of the grant are shown, "tools" or "search"; empty: not said here.
	Exposure string
}

var grantFields = []field[Grant]{
	{
		key: "servers", typ: "string[]", doc: "Servers whose tools are granted.",
		example: []string{"docs"},
		set:     setStrings(func(g *Grant) *[]string { return &g.Servers }),
	},
	{
		key: "tools", typ: "table of string[]", doc: "Per server, globs of the tools that are granted; a server named here need not be in servers.",
		example: map[string][]string{"crm": {"get_*", "search"}},
		set:     setGlobs(func(g *Grant) *map[string][]string { return &g.Tools }),
	},
	{
		key: "deny", typ: "table of string[]", doc: "Per server, globs of tools that are not granted after all.",
		example: map[string][]string{"docs": {"delete_*"}},
		set:     setGlobs(func(g *Grant) *map[string][]string { return &g.Deny }),
	},
	{
		key: "grow", typ: "bool", def: false, doc: "Tools that a server adds during a run join the run.",
		example: true,
		set:     setBool(func(g *Grant) *bool { return &g.Grow }),
	},
	{
		key: "sandbox", typ: "string or table", doc: "read-only, workspace-write, a table as a server's, or a permission profile, told to servers that ask for one; a client's own must lie within it.",
		example: "read-only", schema: sandboxRules,
		set: func(r *reader, g *Grant, n *node) { g.Sandbox = r.sandbox(n) },
	},
	{
		key: "exposure", typ: "string", enum: exposures, def: prose("gateway.exposure; in runs tools"),
		doc:     "search gives a client or run three tools to find, describe and call those of the grant.",
		example: "search",
		set:     setEnum(func(g *Grant) *string { return &g.Exposure }, exposures),
	},
}

var grantAliases = map[string]string{
	"server": "servers", "mcp_servers": "servers", "allow": "tools", "enabled_tools": "tools", "disabled_tools": "deny",
}

func setGlobs(at func(*Grant) *map[string][]string) func(*reader, *Grant, *node) {
	return func(r *reader, g *Grant, n *node) {
		if n.kind != kindTable {
			r.wrongKind(n, nil, "a table of servers", `{ SERVER = ["TOOL"] }`)
			return
		}
		globs := make(map[string][]string, len(n.entries))
		for _, e := range n.entries {
			globs[e.key] = r.strings(e.value, []string{e.key})
		}
		*at(g) = globs
	}
}

// The words of an agent's fields.
var (
	agentKinds  = []string{"claude", "codex", "acp", "command", "demo"}
	toolModes   = []string{"granted", "bypass"}
	builtIns    = []string{"none", "read-only", "all"}
	isolations  = []string{"strict", "operator"}
	exposures   = []string{"tools", "search"}
	maxCost     = 1e6 // USD; more is a slip
	maxCapacity = int64(10_000)
)

var agentFields = []field[Agent]{
	{
		key: "kind", typ: "string", enum: agentKinds, doc: "The adapter, where exec and the name do not say it. acp is for programs that speak the Agent Client Protocol: no name tells it.",
		example: "claude",
		set:     setEnum(func(a *Agent) *string { return &a.Kind }, agentKinds),
	},
	{
		key: "exec", typ: "string[]", doc: "The command, word by word; no shell sees it.",
		example: []string{"claude", "--model", "opus"}, schema: rules{"minItems": 1},
		set: func(r *reader, a *Agent, n *node) {
			if n.kind == kindString {
				r.wrongKind(n, nil, "an array of words", `["codex", "exec"]`)
				return
			}
			a.Exec = r.strings(n, nil)
			switch {
			case n.kind != kindArray:
			case len(n.items) == 0 || n.items[0].kind == kindString && n.items[0].text == "":
				r.fail("it names no program", `write exec = ["PROGRAM", "ARGUMENT"]`)
			case slices.ContainsFunc(a.Exec, func(s string) bool { return strings.ContainsRune(s, 0) }):
				r.fail("a word has a NUL character, which no command line holds", "")
			}
		},
	},
	{
		key: "env", typ: "table of strings", doc: "Variables added to the agent's environment; values may be references.",
		example: map[string]string{"MODEL_KEY": "${env:MODEL_KEY}"}, schema: variables,
		set: func(r *reader, a *Agent, n *node) { a.Env = r.environment(n) },
	},
	{
		key: "tools", typ: "string", enum: toolModes, def: "granted", doc: "bypass turns the agent's approvals and sandbox off.",
		example: "bypass",
		set:     setEnum(func(a *Agent) *string { return &a.Tools }, toolModes),
	},
	{
		key: "safe_tools", typ: "bool", def: false, doc: "Remove a bypass that exec carries.",
		example: true,
		set:     setBool(func(a *Agent) *bool { return &a.SafeTools }),
	},
	{
		key: "built_in", typ: "string", enum: builtIns, def: "none", doc: "Which of the agent's own tools a run may use.",
		example: "read-only",
		set:     setEnum(func(a *Agent) *string { return &a.BuiltIn }, builtIns),
	},
	{
		key: "isolation", typ: "string", enum: isolations, def: "strict", doc: "operator keeps the operator's own user settings of the agent, as far as it can keep them without the working directory's; the servers are those of the run alone.",
		example: "operator",
		set:     setEnum(func(a *Agent) *string { return &a.Isolation }, isolations),
	},
	{
		key: "allow_servers", typ: "string[]", doc: "Servers of the agent's own that may stay on when they cannot be switched off.",
		example: []string{"ide"},
		set:     setStrings(func(a *Agent) *[]string { return &a.AllowServers }),
	},
	{
		key: "allow_flags", typ: "string[]", doc: "Flags of exec that may stay although it is not known what they do to the boundary.",
		example: []string{"--new-flag"},
		set:     setStrings(func(a *Agent) *[]string { return &a.AllowFlags }),
	},
	{
		key: "timeout", typ: "duration", doc: `Deadline of a run, like "2h" or a number of seconds.`,
		example: "2h",
		set:     setDuration(func(a *Agent) *time.Duration { return &a.Timeout }),
	},
	{
		key: "idle_timeout", typ: "duration", doc: "Deadline of a run without an event.",
		example: "10m",
		set:     setDuration(func(a *Agent) *time.Duration { return &a.IdleTimeout }),
	},
	{
		key: "max_cost", typ: "number", doc: "Cost at which a run is stopped, in USD.",
		example: 5.0, schema: rules{"exclusiveMinimum": 0, "maximum": maxCost},
		set: func(r *reader, a *Agent, n *node) {
			switch {
			case n.kind != kindInteger && n.kind != kindFloat:
				r.wrongKind(n, nil, "a number of USD", "5.0")
			case math.IsNaN(n.float) || n.float <= 0 || n.float > maxCost:
				r.fail(fmt.Sprintf("it takes more than 0 and at most %.0f USD", maxCost), "")
			default:
				a.MaxCost = n.float
			}
		},
	},
}

var agentAliases = map[string]string{
	"command": "exec", "argv": "exec", "args": "exec", "type": "kind", "adapter": "kind", "agent": "kind",
	"timeout_sec": "timeout", "idle_timeout_sec": "idle_timeout", "max_cost_usd": "max_cost", "builtin": "built_in",
}

var gatewayFields = []field[Gateway]{
	{
		key: "listen", typ: "string", def: DefaultListen, doc: "HOST:PORT of the HTTP endpoint.",
		example: "127.0.0.1:8723", schema: rules{"pattern": `:[+-]?[0-9]+$`},
		set: func(r *reader, g *Gateway, n *node) {
			if n.kind != kindString {
				r.wrongKind(n, nil, "HOST:PORT", `"`+DefaultListen+`"`)
				return
			}
			_, port, err := net.SplitHostPort(n.text)
			if number, portErr := strconv.Atoi(port); err != nil || portErr != nil || number < 0 || number > math.MaxUint16 {
				r.fail("it is "+quote(n.text)+" and takes HOST:PORT", "write listen = \""+DefaultListen+"\"")
				return
			}
			g.Listen = n.text
		},
	},
	{
		key: "token_file", typ: "string", doc: "The file that holds the bearer token; relative to this file's folder.",
		example: "~/.secrets/gateway",
		set:     setFile(func(g *Gateway) *string { return &g.TokenFile }),
	},
	{
		key: "tls_cert", typ: "string", doc: "The file that holds the TLS certificate, in PEM, with those between it and the root; read again when it changes.",
		example: "/etc/nightporter/cert.pem",
		set:     setFile(func(g *Gateway) *string { return &g.TLSCert }),
	},
	{
		key: "tls_key", typ: "string", doc: "The file that holds the certificate's private key, in PEM.",
		example: "/etc/nightporter/key.pem",
		set:     setFile(func(g *Gateway) *string { return &g.TLSKey }),
	},
	{
		key: "insecure", typ: "bool", def: false, doc: "true lets an address that is not loopback's be listened on without TLS, as behind a proxy that speaks it.",
		example: true,
		set:     setBool(func(g *Gateway) *bool { return &g.Insecure }),
	},
	{
		key: "drain_sec", typ: "seconds", def: 10, doc: "How long calls in flight are waited for when the gateway is asked to end.",
		example: 60, schema: orZero,
		set: setSeconds(time.Second, true, func(g *Gateway) *time.Duration { return &g.Drain }),
	},
	{
		key: "oauth", typ: "table", doc: "Whose access tokens are taken, besides the gateway's own tokens.",
		example: map[string]any{"issuers": []string{"https://login.example.com"}, "resource": "https://mcp.example.com/mcp"}, schema: ref("gateway_oauth"),
		set: setGatewayOAuth,
	},
	{
		key: "exposure", typ: "string", enum: exposures, def: "tools", doc: "search gives clients three tools to find, describe and call the others; a grant's own exposure goes before it, and runs have theirs alone.",
		example: "search",
		set:     setEnum(func(g *Gateway) *string { return &g.Exposure }, exposures),
	},
	{
		key: "optional_grace_ms", typ: "milliseconds", def: 1000, doc: "How long optional servers are waited for; 0 waits until each has started or failed.",
		example: 2500, schema: orZero,
		set: setSeconds(time.Millisecond, true, func(g *Gateway) *time.Duration { return &g.OptionalGrace }),
	},
	{
		key: "lazy", typ: "bool", def: true, doc: "false starts every server at once, for all that do not say otherwise.",
		example: false,
		set:     setBool(func(g *Gateway) *bool { return &g.Lazy }),
	},
	{
		key: "max_servers", typ: "integer", def: 0, doc: "Cap on live server processes; 0 is none.",
		example: 20, schema: rules{"minimum": 0, "maximum": maxCapacity},
		set: setCount(0, maxCapacity, func(g *Gateway) *int { return &g.MaxServers }),
	},
	{
		key: "allowed_hosts", typ: "string[]", doc: "Host headers that are accepted besides loopback names.",
		example: []string{"gateway.example.com"},
		set:     setStrings(func(g *Gateway) *[]string { return &g.AllowedHosts }),
	},
	{
		key: "allowed_origins", typ: "string[]", doc: "Origin headers that are accepted.",
		example: []string{"https://app.example.com"},
		set:     setStrings(func(g *Gateway) *[]string { return &g.AllowedOrigins }),
	},
}

var gatewayAliases = map[string]string{
	"address": "listen", "bind": "listen", "port": "listen", "host": "listen", "token": "token_file",
	"optional_grace": "optional_grace_ms", "optional_grace_sec": "optional_grace_ms",
	"cert": "tls_cert", "key": "tls_key", "drain": "drain_sec", "drain_timeout": "drain_sec",
}

func newAgent(name string, pos Position) *Agent {
	return &Agent{Name: name, Pos: pos, Tools: "granted", BuiltIn: "none", Isolation: "strict"}
}

func newGateway() Gateway {
	return Gateway{Listen: DefaultListen, Exposure: "tools", OptionalGrace: DefaultOptionalGrace, Lazy: true, Drain: DefaultDrain}
}

// The top-level keys: ours, ours of commands to come, and those of Codex that pass
// without a warning, because a Codex config may be pasted whole.
var (
	ownKeys   = []string{"mcp_servers", "agents", "grants", "gateway", "hub", "host", "on_approval", "approval_timeout"}
	codexKeys = []string{
		"allow_login_shell", "analytics", "approval_policy", "approvals_reviewer", "apps", "audio", "auto_review",
		"background_terminal_max_timeout", "bundle", "chatgpt_base_url", "check_for_update_on_startup",
		"cli_auth_credentials_store", "commit_attribution", "compact_prompt", "default_permissions", "developer_instructions",
		"disable_paste_burst", "disable_response_storage", "experimental_compact_prompt_file", "experimental_instructions_file",
		"experimental_use_freeform_apply_patch", "experimental_use_unified_exec_tool", "features", "feedback", "file_opener",
		"forced_chatgpt_workspace_id", "forced_login_method", "ghost_snapshot", "hide_agent_reasoning", "history", "hooks",
		"include_apply_patch_tool", "instructions", "js_repl_node_path", "log_dir", "marketplaces",
		"mcp_enterprise_managed_auth", "mcp_oauth_callback_port", "mcp_oauth_callback_url", "mcp_oauth_credentials_store",
		"mcp_optional_startup_grace_ms", "memories", "model", "model_auto_compact_token_limit", "model_catalog_json",
		"model_context_window", "model_instructions_file", "model_max_output_tokens", "model_provider", "model_providers",
		"model_reasoning_effort", "model_reasoning_summary", "model_supports_reasoning_summaries", "model_verbosity",
		"notice", "notify", "oss_provider", "otel", "permissions", "personality", "plan_mode_reasoning_effort", "plugins",
		"preferred_auth_method", "profile", "profiles", "project_doc_fallback_filenames", "project_doc_max_bytes",
		"project_root_markers", "projects", "realtime", "responsesapi_client_metadata", "review_model", "sandbox_mode",
		"sandbox_workspace_write", "service_tier", "shell_environment_policy", "show_raw_agent_reasoning", "skills",
		"sqlite_home", "suppress_unstable_features_warning", "tool_output_token_limit", "tool_suggest", "tools", "tui",
		"web_search", "windows", "windows_wsl_setup_acknowledged", "zsh_path",
	}
	topAliases = map[string]string{
		"mcpServers": "mcp_servers", "servers": "mcp_servers", "mcp": "mcp_servers", "agent": "agents", "grant": "grants", "lazy": "gateway.lazy",
	}
)

// file reads the whole tree.
func (d *decoder) file(root *node) {
	if d.json {
		d.jsonFile(root)
	} else {
		d.tomlFile(root)
	}
	slices.SortFunc(d.cfg.Servers, func(a, b Server) int { return strings.Compare(a.Name, b.Name) })
	slices.SortStableFunc(d.cfg.Problems, byPosition)
	slices.SortStableFunc(d.cfg.Warnings, byPosition)
}

// jsonFile reads {"mcpServers": {…}}.
func (d *decoder) jsonFile(root *node) {
	if root.get("mcpServers") == nil {
		d.warn(root.pos, "mcpServers", "it is missing, so the file defines no servers", `write {"mcpServers": {…}}`)
	}
	for _, e := range root.entries {
		if e.key != "mcpServers" {
			d.unknown(e, join("", e.key), []string{"mcpServers"}, nil, map[string]string{"servers": "mcpServers", "mcp": "mcpServers"})
			continue
		}
		d.tables(e, func(e entry) { d.server("mcpServers", e) })
	}
}

func (d *decoder) tomlFile(root *node) {
	d.codexSettings(root)
	d.approver(root)
	for _, e := range root.entries {
		switch e.key {
		case "mcp_servers":
			d.tables(e, func(e entry) { d.server("mcp_servers", e) })
		case "agents":
			d.tables(e, d.agent)
		case "grants":
			d.tables(e, d.grant)
		case "gateway":
			d.gateway(e)
		case "hub", "host", "on_approval", "approval_timeout":
			// Read by their own commands, and by approver.
		default:
			if !slices.Contains(codexKeys, e.key) {
				d.unknown(e, join("", e.key), ownKeys, codexKeys, topAliases)
			}
		}
	}
}

// tables hands over each entry of a table of named tables.
func (d *decoder) tables(e entry, each func(entry)) {
	if e.value.kind != kindTable {
		d.problem(e.pos, join("", e.key), fmt.Sprintf("it is %s and takes a table of named entries, so none of them is there", e.value.kind),
			fmt.Sprintf("write [%s.NAME]", e.key))
		return
	}
	for _, entry := range e.value.entries {
		each(entry)
	}
}

func (d *decoder) problem(pos Position, path, message, mend string) *Problem {
	p := Problem{Pos: pos, Field: path, Message: message, Mend: mend}
	d.cfg.Problems = append(d.cfg.Problems, p)
	return &p
}

func (d *decoder) agent(e entry) {
	if e.value.kind != kindTable {
		// Codex keeps settings of its own subagents there, such as agents.max_threads.
		d.warn(e.pos, join("agents", e.key), "it is not a table and not used here", "write [agents.NAME] for an agent")
		return
	}
	a := newAgent(e.key, e.pos)
	r := &reader{decoder: d, path: join("agents", e.key)}
	if strings.TrimSpace(e.key) == "" {
		r.failAt(e.pos, nil, "the name is empty", "give it a name")
	}
	read(r, agentFields, agentAliases, a, e.value)
	a.Problem = r.finish()
	d.cfg.Agents[e.key] = a
}

func (d *decoder) grant(e entry) {
	g := &Grant{Name: e.key, Pos: e.pos}
	r := &reader{decoder: d, path: join("grants", e.key)}
	if strings.TrimSpace(e.key) == "" {
		r.failAt(e.pos, nil, "the name is empty", "give it a name")
	}
	if e.value.kind == kindTable {
		read(r, grantFields, grantAliases, g, e.value)
	} else {
		r.failAt(e.pos, nil, fmt.Sprintf("it is %s and takes a table", e.value.kind), "")
	}
	g.Problem = r.finish()
	d.cfg.Grants[e.key] = g
}

func (d *decoder) gateway(e entry) {
	g := &d.cfg.Gateway
	g.Pos = e.pos
	if e.value.kind != kindTable {
		g.Problem = d.problem(e.pos, "gateway", fmt.Sprintf("it is %s and takes a table", e.value.kind), "write [gateway]")
		return
	}
	r := &reader{decoder: d, path: "gateway"}
	seen := read(r, gatewayFields, gatewayAliases, g, e.value)
	for _, pair := range [][2]string{{"tls_cert", "tls_key"}, {"tls_key", "tls_cert"}} {
		if key, there := seen[pair[0]]; there {
			if _, both := seen[pair[1]]; !both {
				r.failAt(key.pos, []string{pair[0]}, "it needs "+pair[1], "give "+pair[1]+" too")
			}
		}
	}
	g.Problem = r.finish()
}

// codexSettings reads the two settings of Codex that the gateway has too. They are
// Codex's, so a mistake in them is a warning.
func (d *decoder) codexSettings(root *node) {
	g := &d.cfg.Gateway
	if e := root.get("mcp_optional_startup_grace_ms"); e != nil {
		r := &reader{decoder: d, at: *e}
		if grace, ok := r.seconds(e.value, time.Millisecond, true); ok {
			g.OptionalGrace = grace
		}
		d.cfg.Warnings = append(d.cfg.Warnings, r.problems...)
	}
	features := root.get("features")
	if features == nil || features.value.kind != kindTable {
		return
	}
	if e := features.value.get("mcp_lazy_stdio_startup"); e != nil {
		r := &reader{decoder: d, path: "features", at: *e}
		setBool(func(g *Gateway) *bool { return &g.Lazy })(r, g, e.value)
		d.cfg.Warnings = append(d.cfg.Warnings, r.problems...)
	}
}

// Grace is how long a client's session waits for optional servers that must start. An optional_grace_ms of 0 is longer than any start lasts.
func (g Gateway) Grace() time.Duration {
	if g.OptionalGrace == 0 {
		return maxDuration
	}
	return g.OptionalGrace
}
