package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"nightporter/internal/dirs"
	"nightporter/internal/secret"
)

func parseText(t *testing.T, file, text string) *Config {
	t.Helper()
	c, err := Parse(file, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// server is the one server of a file that has no problem.
func server(t *testing.T, file, text string) *Server {
	t.Helper()
	c := parseText(t, file, text)
	if len(c.Servers) != 1 || len(c.Problems) > 0 || len(c.Warnings) > 0 {
		t.Fatalf("servers %v, problems %v, warnings %v", c.ServerNames(), c.Problems, c.Warnings)
	}
	return &c.Servers[0]
}

func texts(problems []Problem) string {
	var b strings.Builder
	for _, p := range problems {
		b.WriteString(p.Error() + "\n")
	}
	return b.String()
}

// goodFields has a line for every field of a server in TOML: what is written and what it makes of a
// server. json is the same as it stands in JSON.
var goodFields = []struct {
	key, toml, json string
	on              Transport
	want            func(*Server)
}{
	{"type", `type = "streamable_http"`, `"type": "streamable-http"`, HTTP, func(*Server) {}},
	{"type", `type = "sse"`, `"type": "sse"`, HTTP, func(s *Server) { s.Transport = SSE }},
	{"type", `type = "stdio"`, `"type": "stdio"`, Stdio, func(*Server) {}},
	{"args", `args = ["-y", "x"]`, `"args": ["-y", "x"]`, Stdio, func(s *Server) { s.Args = []Value{Literal("-y"), Literal("x")} }},
	{"env", `env.A = "b"`, `"env": {"A": "b"}`, Stdio, func(s *Server) { s.Env = map[string]Value{"A": Literal("b")} }},
	{"env_vars", `env_vars = ["A", {name = "B", source = "local"}, "A"]`, `"env_vars": ["A", {"name": "B"}]`, Stdio, func(s *Server) { s.EnvVars = []string{"A", "B"} }},
	{"cwd", `cwd = "/srv"`, `"cwd": "/srv"`, Stdio, func(s *Server) { s.Cwd = Literal("/srv") }},
	{"bearer_token_env_var", `bearer_token_env_var = "T"`, `"bearer_token_env_var": "T"`, HTTP, func(s *Server) { s.BearerTokenEnvVar = "T" }},
	{"http_headers", `http_headers = { "X-A" = "b" }`, `"headers": {"X-A": "b"}`, HTTP, func(s *Server) { s.HTTPHeaders = map[string]Value{"X-A": Literal("b")} }},
	{"env_http_headers", `env_http_headers = { "X-A" = "B" }`, `"env_http_headers": {"X-A": "B"}`, HTTP, func(s *Server) { s.EnvHTTPHeaders = map[string]string{"X-A": "B"} }},
	{"http_headers_helper", `http_headers_helper = "gen | jq ."`, `"headersHelper": "gen | jq ."`, HTTP, func(s *Server) { s.HTTPHeadersHelper = "gen | jq ." }},
	{"auth", `auth = "oauth"`, `"auth": "oauth"`, HTTP, func(*Server) {}},
	{
		"oauth", `oauth = { client_id = "i", client_secret = "s", callback_url = "http://127.0.0.1/cb", callback_port = 8400 }`,
		`"oauth": {"clientId": "i", "client_secret": "s", "callback_url": "http://127.0.0.1/cb", "callbackPort": 8400}`, HTTP,
		func(s *Server) {
			s.OAuth = OAuth{ClientID: "i", ClientSecret: Literal("s"), CallbackURL: "http://127.0.0.1/cb", CallbackPort: 8400}
		},
	},
	{"oauth_resource", `oauth_resource = "https://r"`, `"oauth_resource": "https://r"`, HTTP, func(s *Server) { s.OAuthResource = "https://r" }},
	{"scopes", `scopes = ["a"]`, `"scopes": ["a"]`, Stdio, func(s *Server) { s.Scopes = []string{"a"} }},
	{"enabled", `enabled = false`, `"disabled": true`, Stdio, func(s *Server) { s.Enabled = false }},
	{"enabled", `enabled = false`, `"disabled": true, "enabled": true`, Stdio, func(s *Server) { s.Enabled = false }},
	{"required", `required = true`, `"required": true`, Stdio, func(s *Server) { s.Required = true }},
	{"startup_timeout_sec", `startup_timeout_sec = 2.5`, `"startup_timeout_sec": 2.5`, Stdio, func(s *Server) { s.StartTimeout = 2500 * time.Millisecond }},
	{"startup_timeout_sec", "startup_timeout_ms = 9000\nstartup_timeout_sec = 0x0a", `"startup_timeout_sec": 10, "startup_timeout_ms": 1`, Stdio, func(s *Server) { s.StartTimeout = 10 * time.Second }},
	{"startup_timeout_ms", `startup_timeout_ms = 1_500`, `"startup_timeout_ms": 1500`, Stdio, func(s *Server) { s.StartTimeout = 1500 * time.Millisecond }},
	{"startup_readiness", `startup_readiness = "catalog"`, `"startup_readiness": "catalog"`, Stdio, func(s *Server) { s.Readiness = ReadyCatalog }},
	{"tool_timeout_sec", `tool_timeout_sec = 0.5`, `"tool_timeout_sec": 5e-1`, Stdio, func(s *Server) { s.ToolTimeout = 500 * time.Millisecond }},
	{"enabled_tools", `enabled_tools = []`, `"enabled_tools": []`, Stdio, func(s *Server) { s.EnabledTools = []string{} }},
	{"disabled_tools", `disabled_tools = ["rm_*"]`, `"disabled_tools": ["rm_*"]`, Stdio, func(s *Server) { s.DisabledTools = []string{"rm_*"} }},
	{"supports_parallel_tool_calls", `supports_parallel_tool_calls = true`, `"supports_parallel_tool_calls": true`, Stdio, func(s *Server) { s.ParallelToolCalls = true }},
	{"default_tools_approval_mode", `default_tools_approval_mode = "writes"`, `"default_tools_approval_mode": "writes"`, Stdio, func(s *Server) { s.Approval = ApproveWrites }},
	{
		"tools", `tools."a.b" = { approval_mode = "approve", output_token_limit = 5 }`, `"tools": {"a.b": {"approval_mode": "approve"}}`, Stdio,
		func(s *Server) { s.ToolApproval = map[string]Approval{"a.b": ApproveAlways} },
	},
	{"lazy", `lazy = false`, `"lazy": false`, Stdio, func(s *Server) { s.Lazy = new(bool) }},
	{"idle_stop_sec", `idle_stop_sec = 0`, `"idle_stop_sec": 0`, Stdio, func(*Server) {}},
	{"idle_stop_sec", `idle_stop_sec = 60`, `"idle_stop_sec": 60`, Stdio, func(s *Server) { s.IdleStop = time.Minute }},
	{"catalog_max_age_sec", `catalog_max_age_sec = 3600`, `"catalog_max_age_sec": 3600`, Stdio, func(s *Server) { s.CatalogTTL = time.Hour }},
	{"max_result_bytes", `max_result_bytes = 4096`, `"max_result_bytes": 4096`, Stdio, func(s *Server) { s.MaxResultBytes = 4096 }},
	{"shared", `shared = true`, `"shared": true`, Stdio, func(s *Server) { s.Shared = true }},
	{"pin", `pin = true`, `"pin": true`, Stdio, func(s *Server) { s.Pin = true }},
	{"authority_bound", `authority_bound = true`, `"authority_bound": true`, Stdio, func(s *Server) { s.AuthorityBound = true }},
	{"wiring", `wiring = "direct"`, `"wiring": "direct"`, Stdio, func(s *Server) { s.Wiring = WireDirect }},
	{"sandbox", `sandbox = "read-only"`, `"sandbox": "read-only"`, Stdio, func(s *Server) { s.Sandbox = &Sandbox{Mode: "read-only"} }},
	{
		"sandbox", `sandbox = { readable = ["a"], writable = ["/b"], network = true }`, `"sandbox": {"readable": ["a"], "writable": ["/b"], "network": true}`, Stdio,
		func(s *Server) {
			s.Sandbox = &Sandbox{Mode: "table", Readable: []string{"a"}, Writable: []string{"/b"}, Network: true}
		},
	},
	{
		"sandbox", `sandbox = { type = "disabled", n = [1, 2.5, true] }`, `"sandbox": {"type": "disabled", "n": [1, 2.5, true]}`, Stdio,
		func(s *Server) { s.Sandbox = &Sandbox{Profile: []byte(`{"n":[1,2.5,true],"type":"disabled"}`)} },
	},
	{"environment_id", `environment_id = "local"`, `"environment_id": "local"`, Stdio, func(*Server) {}},
	{"name", `name = "Old"`, `"name": "Old"`, Stdio, func(*Server) {}},
	{"tool_input_schema_max_bytes", `tool_input_schema_max_bytes = 5000`, `"tool_input_schema_max_bytes": 5000`, Stdio, func(*Server) {}},
	{"omit_tools_from", `omit_tools_from = ["direct"]`, `"omit_tools_from": ["direct"]`, Stdio, func(*Server) {}},
	{"enabled", ``, `"alwaysLoad": true, "args": null`, Stdio, func(*Server) {}},
}

func TestEveryFieldOfAServerIsRead(t *testing.T) {
	tested := map[string]bool{"command": true, "url": true, "bearer_token": true}
	for _, f := range goodFields {
		tested[f.key] = true
		t.Run(f.toml+f.json, func(t *testing.T) {
			tomlText, jsonText := "[mcp_servers.s]\ncommand = \"prog\"\n", `{"mcpServers": {"s": {"command": "prog", `
			want := newServer("s", Position{"c.toml", 1, 14})
			want.Transport, want.Command = Stdio, Literal("prog")
			if f.on == HTTP {
				tomlText, jsonText = "[mcp_servers.s]\nurl = \"https://h/p\"\n", `{"mcpServers": {"s": {"url": "https://h/p", `
				want.Transport, want.Command, want.URL = HTTP, Value{}, Literal("https://h/p")
			}
			f.want(want)
			normal := func(s *Server) string {
				s.Pos, s.Written = Position{}, secret.String{}
				// Values print masked: what counts is their text.
				return fmt.Sprintf("%+v lazy=%v sandbox=%+v", textual(*s), s.Lazy != nil, s.Sandbox)
			}
			expected := normal(want)
			if got := normal(server(t, "c.toml", tomlText+f.toml)); got != expected {
				t.Errorf("TOML\ngot  %s\nwant %s", got, expected)
			}
			if got := normal(server(t, "c.json", jsonText+f.json+"}}}")); got != expected {
				t.Errorf("JSON\ngot  %s\nwant %s", got, expected)
			}
		})
	}
	for _, f := range serverFields {
		if f.key != "" && !tested[f.key] {
			t.Errorf("%s has no test", f.key)
		}
	}
}

// textual returns the fields of a server by name, values as their text.
func textual(s Server) map[string]string {
	fields := map[string]string{}
	v := reflect.ValueOf(s)
	for i := range v.NumField() {
		var text string
		switch x := v.Field(i).Interface().(type) {
		case *bool, *Sandbox:
		case Value:
			text = x.Text()
		case []Value:
			for _, one := range x {
				text += one.Text() + ","
			}
		case map[string]Value:
			for _, k := range sortedKeys(x) {
				text += k + "=" + x[k].Text() + ","
			}
		case OAuth:
			text = fmt.Sprintf("%+v %s", x, x.ClientSecret.Text())
		case []string:
			text = fmt.Sprintf("%v %q", x == nil, x)
		default:
			text = fmt.Sprintf("%+v", x)
		}
		fields[v.Type().Field(i).Name] = text
	}
	return fields
}

func TestDefaultsOfAServer(t *testing.T) {
	s := server(t, "c.toml", "[mcp_servers.s]\ncommand = \"x\"")
	if !s.Usable() || s.StartTimeout != 30*time.Second || s.ToolTimeout != 300*time.Second || s.CatalogTTL != 7*24*time.Hour ||
		s.EnabledTools != nil || s.Lazy != nil || s.Approval != ApproveAuto || s.Readiness != ReadyConnection || s.Wiring != WireGateway || s.Shared {
		t.Errorf("got %+v", s)
	}
}

// badEntries has what is wrong with an entry of TOML, which begins on line 2, and everything that is said about it.
var badEntries = map[string]string{
	``:                                   `2:14: mcp_servers.bad: it has neither command nor url; give command for a stdio server, or url for an HTTP server`,
	`args = []`:                          `2:14: mcp_servers.bad: it has neither command nor url; give command for a stdio server, or url for an HTTP server`,
	`command = 3`:                        `3:1: mcp_servers.bad.command: it is a number and takes a string; write command = "…"`,
	`command = ""`:                       `3:1: mcp_servers.bad.command: it is empty; give it a value, or remove the key`,
	`command = "${file:x}"`:              `3:1: mcp_servers.bad.command: it has a secret (${file:…}), and every user of the machine can read command lines; give it to the server in env`,
	"command = \"x\"\nargs = \"a\"":      `4:1: mcp_servers.bad.args: it is a string and takes an array of strings; write args = ["…"]`,
	"command = \"x\"\nargs = [\"a\", 1]": `4:14: mcp_servers.bad.args.1: it is a number and takes a string`,
	"command = \"x\"\nargs = [\n  \"${keyring:a/b}\",\n]":               `5:3: mcp_servers.bad.args.0: it has a secret (${keyring:…}), and every user of the machine can read command lines; give it to the server in env`,
	"command = \"x\"\nenv = [\"A=b\"]":                                  `4:1: mcp_servers.bad.env: it is an array and takes a table of strings; write env = { NAME = "value" }`,
	"command = \"x\"\nenv = { A = 1 }":                                  `4:9: mcp_servers.bad.env.A: it is a number and takes a string; write it in quotes`,
	"command = \"x\"\nenv = { A = [] }":                                 `4:9: mcp_servers.bad.env.A: it is an array and takes a string`,
	"command = \"x\"\nenv = { \"A=B\" = \"c\" }":                        `4:9: mcp_servers.bad.env."A=B": it is not the name of a variable; use letters, digits and _`,
	"command = \"x\"\nenv = { A = \"\\u0000\" }":                        `4:9: mcp_servers.bad.env.A: the value has a NUL character, which no environment holds`,
	"command = \"x\"\nenv = { A = \"${env:\" }":                         `4:9: mcp_servers.bad.env.A: the reference ${env: is not closed; end it with }`,
	"command = \"x\"\nenv_vars = \"A\"":                                 `4:1: mcp_servers.bad.env_vars: it is a string and takes an array of names; write env_vars = ["NAME"]`,
	"command = \"x\"\nenv_vars = [\"A=b\"]":                             `4:13: mcp_servers.bad.env_vars.0: it is not the name of a variable; write the name alone; values belong in env`,
	"command = \"x\"\nenv_vars = [{name = \"A\", source = \"remote\"}]": `4:26: mcp_servers.bad.env_vars.0.source: only local variables can be had; write "local", or remove source`,
	"command = \"x\"\nenv_vars = [{source = \"local\"}]":                `4:13: mcp_servers.bad.env_vars.0: it is a table and takes a name or { name = … }`,
	"command = \"x\"\nurl = \"https://h\"":                              `4:1: mcp_servers.bad.url: url is not supported for stdio servers, and command makes this one stdio; remove url`,
	"command = \"x\"\nhttp_headers = {}\noauth = {}": `4:1: mcp_servers.bad.http_headers: http_headers is not supported for stdio servers, and command makes this one stdio; remove http_headers
5:1: mcp_servers.bad.oauth: oauth is not supported for stdio servers, and command makes this one stdio; remove oauth`,
	"url = \"https://h\"\nargs = []":                       `4:1: mcp_servers.bad.args: args is not supported for HTTP servers, and url makes this one HTTP; remove args`,
	"url = \"https://h\"\nsandbox = \"read-only\"":         `4:1: mcp_servers.bad.sandbox: sandbox is not supported for HTTP servers, and url makes this one HTTP; remove sandbox`,
	"type = \"http\"\ncommand = \"x\"":                     `3:1: mcp_servers.bad.type: it says http, and the entry has command and no url; remove type, or give url in place of command`,
	"type = \"stdio\"\nurl = \"https://h\"":                `3:1: mcp_servers.bad.type: it says stdio, and the entry has url and no command; remove type, or give command in place of url`,
	"type = \"sse\"\nurl = \"https://h\"\ncommand = \"x\"": `5:1: mcp_servers.bad.command: command is not supported for HTTP servers, and url makes this one HTTP; remove command`,
	"type = \"streamablehttp\"\nurl = \"https://h\"":       `3:1: mcp_servers.bad.type: it is "streamablehttp" and takes stdio, http, sse, streamable_http or streamable-http; did you mean streamable_http?`,
	`url = "h/p"`:        `3:1: mcp_servers.bad.url: it does not begin with http:// or https://`,
	`url = "https:///p"`: `3:1: mcp_servers.bad.url: it names no host; write https://HOST/PATH`,
	"url = \"https://h\"\nbearer_token = \"t\"":                                `4:1: mcp_servers.bad.bearer_token: it is not supported; put the token into a variable and name it in bearer_token_env_var`,
	"url = \"https://h\"\nbearer_token_env_var = \"a=b\"":                      `4:1: mcp_servers.bad.bearer_token_env_var: it is not the name of a variable; write the variable's name, not the token`,
	"url = \"https://h\"\nhttp_headers = { \"a b\" = \"c\" }":                  `4:18: mcp_servers.bad.http_headers."a b": it is not the name of a header; use letters, digits and -`,
	"url = \"https://h\"\nhttp_headers = { a = \"b\\nc\" }":                    `4:18: mcp_servers.bad.http_headers.a: the value has a line break or control character, which no header holds`,
	"url = \"https://h\"\nhttp_headers = \"a\"":                                `4:1: mcp_servers.bad.http_headers: it is a string and takes a table of strings; write http_headers = { Authorization = "${env:X}" }`,
	"url = \"https://h\"\nenv_http_headers = { a = \"\" }":                     `4:22: mcp_servers.bad.env_http_headers.a: it names no variable; write the variable's name`,
	"url = \"https://h\"\nenv_http_headers = { \"a:\" = \"X\" }":               `4:22: mcp_servers.bad.env_http_headers."a:": it is not the name of a header; use letters, digits and -`,
	"url = \"https://h\"\nhttp_headers_helper = \" \"":                         `4:1: mcp_servers.bad.http_headers_helper: it is empty; give it a value, or remove the key`,
	"url = \"https://h\"\nauth = \"chatgpt\"":                                  `4:1: mcp_servers.bad.auth: it is "chatgpt" and takes oauth`,
	"url = \"https://h\"\noauth = 1":                                           `4:1: mcp_servers.bad.oauth: it is a number and takes a table`,
	"url = \"https://h\"\noauth = { client_secret = \"x\" }":                   `4:11: mcp_servers.bad.oauth.client_secret: it needs client_id; give client_id too`,
	"url = \"https://h\"\noauth.callback_port = 70000":                         `4:7: mcp_servers.bad.oauth.callback_port: it is 70000 and takes 1 to 65535`,
	"url = \"https://h\"\noauth.authorization_server_issuer = \"x\"":           `4:7: mcp_servers.bad.oauth.authorization_server_issuer: it needs auth = "ema_auth", which is Codex's own; remove it`,
	"url = \"https://h\"\noauth.token_endpoint_auth_method = \"x\"":            `4:7: mcp_servers.bad.oauth.token_endpoint_auth_method: it needs auth = "ema_auth", which is Codex's own; remove it`,
	"command = \"x\"\nenabled = \"yes\"":                                       `4:1: mcp_servers.bad.enabled: it is a string and takes true or false; write enabled = true`,
	"command = \"x\"\nlazy = 1":                                                `4:1: mcp_servers.bad.lazy: it is a number and takes true or false; write lazy = true`,
	"command = \"x\"\nstartup_timeout_sec = -1":                                `4:1: mcp_servers.bad.startup_timeout_sec: it is negative; write a number of seconds`,
	"command = \"x\"\nstartup_timeout_sec = -inf":                              `4:1: mcp_servers.bad.startup_timeout_sec: it is negative; write a number of seconds`,
	"command = \"x\"\nstartup_timeout_sec = nan":                               `4:1: mcp_servers.bad.startup_timeout_sec: it is not a number; write a number of seconds`,
	"command = \"x\"\nstartup_timeout_sec = -nan":                              `4:1: mcp_servers.bad.startup_timeout_sec: it is not a number; write a number of seconds`,
	"command = \"x\"\nstartup_timeout_sec = 0":                                 `4:1: mcp_servers.bad.startup_timeout_sec: it is 0, which would leave no time at all; write a number of seconds, or remove the key for the default`,
	"command = \"x\"\nstartup_timeout_sec = 1e300":                             `4:1: mcp_servers.bad.startup_timeout_sec: it is more than a year (31536000 seconds); write a smaller number of seconds`,
	"command = \"x\"\nstartup_timeout_sec = \"30\"":                            `4:1: mcp_servers.bad.startup_timeout_sec: it is a string and takes a number of seconds; write startup_timeout_sec = 30`,
	"command = \"x\"\nstartup_timeout_sec = 1979-05-27":                        `4:1: mcp_servers.bad.startup_timeout_sec: it is a date or time and takes a number of seconds; write startup_timeout_sec = 30`,
	"command = \"x\"\nstartup_timeout_ms = 9223372036854775807":                `4:1: mcp_servers.bad.startup_timeout_ms: it is more than a year (31536000000 milliseconds); write a smaller number of milliseconds`,
	"command = \"x\"\nstartup_timeout_sec = 5\nstartup_timeout_ms = -5":        `5:1: mcp_servers.bad.startup_timeout_ms: it is negative; write a number of milliseconds`,
	"command = \"x\"\ntool_timeout_sec = inf":                                  `4:1: mcp_servers.bad.tool_timeout_sec: it is more than a year (31536000 seconds); write a smaller number of seconds`,
	"command = \"x\"\nstartup_readiness = \"lazy\"":                            `4:1: mcp_servers.bad.startup_readiness: it is "lazy" and takes connection or catalog`,
	"command = \"x\"\ndefault_tools_approval_mode = \"aprove\"":                `4:1: mcp_servers.bad.default_tools_approval_mode: it is "aprove" and takes auto, prompt, writes or approve; did you mean approve?`,
	"command = \"x\"\nenabled_tools = [1]":                                     `4:18: mcp_servers.bad.enabled_tools.0: it is a number and takes a string`,
	"command = \"x\"\ndisabled_tools = \"x\"":                                  `4:1: mcp_servers.bad.disabled_tools: it is a string and takes an array of strings; write disabled_tools = ["…"]`,
	"command = \"x\"\ntools = [\"a\"]":                                         `4:1: mcp_servers.bad.tools: it is an array and takes a table of tools`,
	"command = \"x\"\ntools.a = \"approve\"":                                   `4:7: mcp_servers.bad.tools.a: it is a string and takes a table; write { approval_mode = "approve" }`,
	"command = \"x\"\ntools.a.approval_mode = \"never\"":                       `4:9: mcp_servers.bad.tools.a.approval_mode: it is "never" and takes auto, prompt, writes or approve`,
	"command = \"x\"\n[mcp_servers.bad.tools.\"a.b\"]\noutput_token_limit = 0": `5:1: mcp_servers.bad.tools."a.b".output_token_limit: it is 0 and takes 1 to 9223372036854775807`,
	"command = \"x\"\nmax_result_bytes = 0":                                    `4:1: mcp_servers.bad.max_result_bytes: it is 0 and takes 1 to 1099511627776`,
	"command = \"x\"\nmax_result_bytes = 1.5":                                  `4:1: mcp_servers.bad.max_result_bytes: it is a number and takes a whole number; write max_result_bytes = 1`,
	"command = \"x\"\nwiring = \"driect\"":                                     `4:1: mcp_servers.bad.wiring: it is "driect" and takes gateway or direct; did you mean direct?`,
	"command = \"x\"\nsandbox = true":                                          `4:1: mcp_servers.bad.sandbox: it is true or false and takes read-only, workspace-write or a table; write sandbox = "read-only"`,
	"command = \"x\"\nsandbox = \"readonly\"":                                  `4:1: mcp_servers.bad.sandbox: it is "readonly" and takes read-only or workspace-write; did you mean read-only?`,
	"command = \"x\"\nsandbox = { type = \"x\" }":                              "4:1: mcp_servers.bad.sandbox: type: unknown variant `x`, expected one of `managed`, `disabled`, `external`",
	"command = \"x\"\nsandbox = { writable = [\"~/x\"] }":                      `4:13: mcp_servers.bad.sandbox.writable: "~/x" is not expanded; write the path in full`,
	"command = \"x\"\nsandbox = { network = \"no\" }":                          `4:13: mcp_servers.bad.sandbox.network: it is a string and takes true or false; write network = true`,
	"command = \"x\"\nsandbox = { type = nan }":                                `4:1: mcp_servers.bad.sandbox: nan cannot be written as JSON`,
	"command = \"x\"\nenvironment_id = \"cloud\"":                              `4:1: mcp_servers.bad.environment_id: it is "cloud" and takes local`,
	"command = \"x\"\nrequired = 0\nshared = \"\"\nenv_vars = [\"\"]\ncwd = \"\"": `4:1: mcp_servers.bad.required: it is a number and takes true or false; write required = true
5:1: mcp_servers.bad.shared: it is a string and takes true or false; write shared = true
6:13: mcp_servers.bad.env_vars.0: it is not the name of a variable; write the name alone; values belong in env
7:1: mcp_servers.bad.cwd: it is empty; give it a value, or remove the key`,
}

func TestABadEntryIsDisabledAloneAndSaysWhereWhatAndHow(t *testing.T) {
	for text, want := range badEntries {
		t.Run(text, func(t *testing.T) {
			c := parseText(t, "c.toml", "# first line\n[mcp_servers.bad]\n"+text+"\n[mcp_servers.good]\ncommand = \"ok\"\n")
			if got := strings.ReplaceAll(strings.TrimSpace(texts(c.Problems)), "c.toml:", ""); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			bad, _ := c.Server("bad")
			good, found := c.Server("good")
			if bad.Usable() || bad.Problem == nil || *bad.Problem != c.Problems[0] {
				t.Errorf("the bad server's problem is %v", bad.Problem)
			}
			if !found || !good.Usable() || good.Command.Text() != "ok" {
				t.Errorf("the good server is %+v", good)
			}
		})
	}
}

func TestAServerThatIsNoTableIsDisabledAlone(t *testing.T) {
	c := parseText(t, "c.toml", "[mcp_servers]\na = 3\nb.command = \"x\"\n[[mcp_servers.c]]\ncommand = \"y\"\n")
	want := "c.toml:2:1: mcp_servers.a: it is a number and takes a table\nc.toml:4:15: mcp_servers.c: it is an array and takes a table\n"
	if got := texts(c.Problems); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if b, _ := c.Server("b"); b == nil || !b.Usable() {
		t.Errorf("b is %+v", b)
	}
}

func TestServerTableOfAnotherKindIsReported(t *testing.T) {
	c := parseText(t, "c.toml", "mcp_servers = 1\nagents = []\ngrants = true\ngateway = \"x\"\n")
	want := `c.toml:1:1: mcp_servers: it is a number and takes a table of named entries, so none of them is there; write [mcp_servers.NAME]
c.toml:2:1: agents: it is an array and takes a table of named entries, so none of them is there; write [agents.NAME]
c.toml:3:1: grants: it is true or false and takes a table of named entries, so none of them is there; write [grants.NAME]
c.toml:4:1: gateway: it is a string and takes a table; write [gateway]
`
	if got := texts(c.Problems); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if c.Gateway.Problem == nil {
		t.Error("the gateway can be used")
	}
}

func TestNamesOfServers(t *testing.T) {
	c := parseText(t, "c.toml", `
mcp_servers."fly.io".command = "x"
mcp_servers."with space".command = "x"
mcp_servers."ünï".command = "x"
mcp_servers."@scope/a:b".command = "x"
mcp_servers."".command = "x"
mcp_servers."a\nb".command = "x"
mcp_servers."a\u202eb".command = "x"
mcp_servers." a".command = "x"
mcp_servers.Nightporter.command = "x"
mcp_servers.`+strings.Repeat("n", 129)+`.command = "x"
`)
	want := `c.toml:6:13: mcp_servers."": the name is empty; give it another name
c.toml:7:13: mcp_servers."a\nb": the name "a\nb" has an invisible or control character; give it another name
c.toml:8:13: mcp_servers."a\u202eb": the name "a\u202eb" has an invisible or control character; give it another name
c.toml:9:13: mcp_servers." a": the name begins or ends with a space; give it another name
c.toml:10:13: mcp_servers.Nightporter: the name nightporter is reserved: it is the name under which agents see the gateway; give it another name
c.toml:11:13: mcp_servers.` + strings.Repeat("n", 129) + `: the name is longer than 128 bytes; give it another name
`
	if got := texts(c.Problems); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	for name, plain := range map[string]bool{"fly.io": true, "with space": false, "ünï": false, "@scope/a:b": true} {
		if s, _ := c.Server(name); s == nil || !s.Usable() {
			t.Errorf("%s is %+v", name, s)
		}
		if PlainName(name) != plain {
			t.Errorf("PlainName(%q) is %v", name, !plain)
		}
	}
}

func TestUnknownKeysWarnWithTheNearestKnownKey(t *testing.T) {
	c := parseText(t, "c.toml", `modle = "x"
mcpServers = {}
zzzzzzzz = 1
[mcp_servers.a]
command = "x"
startup_timeout = 5
  enabledTools = ["x"]
headers = { a = "b" }
oauht = {}
qqqqqqqqqq = 1
env_vars = [{ name = "X", sorce = "local" }]
tools.x.aproval_mode = "auto"
[mcp_servers.h]
url = "https://h"
oauth = { clientid = "x" }
[agents.c]
comand = "x"
[grants.g]
server = ["a"]
[gateway]
listn = "x"
`)
	want := `c.toml:1:1: modle: unknown key, not used; did you mean model?
c.toml:2:1: mcpServers: unknown key, not used; did you mean mcp_servers?
c.toml:3:1: zzzzzzzz: unknown key, not used; known are mcp_servers, agents, grants, gateway, hub, host, on_approval, approval_timeout
c.toml:6:1: mcp_servers.a.startup_timeout: unknown key, not used; did you mean startup_timeout_sec?
c.toml:7:3: mcp_servers.a.enabledTools: unknown key, not used; did you mean enabled_tools?
c.toml:8:1: mcp_servers.a.headers: unknown key, not used; did you mean http_headers?
c.toml:9:1: mcp_servers.a.oauht: unknown key, not used; did you mean oauth?
c.toml:10:1: mcp_servers.a.qqqqqqqqqq: unknown key, not used; known are ` + strings.Join(known(serverFields, false), ", ") + `
c.toml:11:27: mcp_servers.a.env_vars.0.sorce: unknown key, not used; did you mean source?
c.toml:12:9: mcp_servers.a.tools.x.aproval_mode: unknown key, not used; did you mean approval_mode?
c.toml:15:11: mcp_servers.h.oauth.clientid: unknown key, not used; did you mean client_id?
c.toml:17:1: agents.c.comand: unknown key, not used; did you mean exec?
c.toml:19:1: grants.g.server: unknown key, not used; did you mean servers?
c.toml:21:1: gateway.listn: unknown key, not used; did you mean listen?
`
	if got := texts(c.Warnings); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if len(c.Problems) > 0 {
		t.Errorf("problems: %s", texts(c.Problems))
	}
}

const codexConfig = `model = "gpt-5.5"
model_reasoning_effort = "high"
approval_policy = "on-request"
sandbox_mode = "workspace-write"
mcp_optional_startup_grace_ms = 250
notify = ["notify-send", "Codex"]

[features]
mcp_lazy_stdio_startup = false
web_search_request = true

[projects."/home/me/work"]
trust_level = "trusted"

[mcp_servers.github]
url = "https://api.githubcopilot.com/mcp/"
bearer_token_env_var = "GITHUB_TOKEN"
http_headers = { "X-MCP-Toolsets" = "repos,issues" }
tool_timeout_sec = 60.0

[mcp_servers.playwright]
command = "npx"
args = ["-y", "@playwright/mcp@latest"]
startup_timeout_sec = 20

[mcp_servers.playwright.env]
DEBUG = "pw:*"

[mcp_servers.playwright.tools.browser_click]
approval_mode = "approve"

[tui]
notifications = true
`

func TestAPastedCodexConfigIsReadWithoutWarnings(t *testing.T) {
	c := parseText(t, "config.toml", codexConfig)
	if len(c.Problems)+len(c.Warnings) > 0 {
		t.Fatalf("problems:\n%swarnings:\n%s", texts(c.Problems), texts(c.Warnings))
	}
	if got := c.ServerNames(); !slices.Equal(got, []string{"github", "playwright"}) {
		t.Fatalf("servers %v", got)
	}
	if g := c.Gateway; g.Lazy || g.OptionalGrace != 250*time.Millisecond {
		t.Errorf("gateway %+v", g)
	}
	p, _ := c.Server("playwright")
	if p.StartTimeout != 20*time.Second || p.Env["DEBUG"].Text() != "pw:*" || p.ApprovalFor("browser_click") != ApproveAlways || p.ApprovalFor("other") != ApproveAuto {
		t.Errorf("playwright %+v", p)
	}
	if p.Pos != (Position{"config.toml", 21, 14}) {
		t.Errorf("playwright stands at %v", p.Pos)
	}
	own := parseText(t, "config.toml", codexConfig+"[gateway]\nlazy = true\noptional_grace_ms = 0\n")
	if g := own.Gateway; !g.Lazy || g.OptionalGrace != 0 {
		t.Errorf("with a gateway of its own: %+v", g)
	}
}

func TestCodexSettingsThatAreWrongAreWarnings(t *testing.T) {
	c := parseText(t, "c.toml", "mcp_optional_startup_grace_ms = -1\nfeatures.mcp_lazy_stdio_startup = 1\n[agents]\nmax_threads = 6\n")
	want := `c.toml:1:1: mcp_optional_startup_grace_ms: it is negative; write a number of milliseconds
c.toml:2:10: features.mcp_lazy_stdio_startup: it is a number and takes true or false; write mcp_lazy_stdio_startup = true
c.toml:4:1: agents.max_threads: it is not a table and not used here; write [agents.NAME] for an agent
`
	if got := texts(c.Warnings); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if !reflect.DeepEqual(c.Gateway, newGateway()) || len(c.Problems)+len(c.Agents) > 0 {
		t.Errorf("gateway %+v, problems %v, agents %v", c.Gateway, c.Problems, c.Agents)
	}
}

func TestClaudesJSONIsRead(t *testing.T) {
	const text = "\xef\xbb\xbf{\r\n" +
		`  "mcpServers": {` + "\r\n" +
		`    "db": {"type": "stdio", "command": "${HOME}/bin/db", "args": ["--as", "${USER:-me}"], "env": {"KEY": "${DB_KEY}"}},` + "\r\n" +
		`    "web": {"type": "http", "url": "${BASE:-https://web.example}/mcp", "headers": {"Authorization": "Bearer ${WEB}"}},` + "\r\n" +
		`    "old": {"type": "sse", "url": "https://old.example/sse", "headersHelper": "gen"},` + "\r\n" +
		`    "bad": {"type": "ws", "url": "wss://x"},` + "\r\n" +
		`    "odd": {"type": "stdio", "url": "https://x", "headrs": {}},` + "\r\n" +
		`    "twice": {"command": "a", "command": "b", "headers": {}, "http_headers": {}},` + "\r\n" +
		`    "web2": {"url": "https://x", "headers": {"Port": 5}}` + "\r\n" +
		"  },\r\n  \"mcpServer\": {}\r\n}\r\n"
	c := parseText(t, "extra-mcp", text)
	wantProblems := `extra-mcp:6:13: mcpServers.bad.type: it is "ws" and takes stdio, http, sse, streamable_http or streamable-http
extra-mcp:6:27: mcpServers.bad.url: it does not begin with http:// or https://
extra-mcp:7:13: mcpServers.odd.type: it says stdio, and the entry has url and no command; remove type, or give command in place of url
extra-mcp:8:47: mcpServers.twice.headers: headers is not supported for stdio servers, and command makes this one stdio; remove headers
extra-mcp:8:62: mcpServers.twice.http_headers: this is http_headers again, which line 8 gives already; remove one of them
extra-mcp:9:46: mcpServers.web2.headers.Port: it is a number and takes a string; write it in quotes
`
	if got := texts(c.Problems); got != wantProblems {
		t.Errorf("problems\n%swant\n%s", got, wantProblems)
	}
	wantWarnings := `extra-mcp:7:50: mcpServers.odd.headrs: unknown key, not used; did you mean headers?
extra-mcp:8:31: command: this key is given twice; the first, on line 8, is not used; remove one of them
extra-mcp:11:3: mcpServer: unknown key, not used; did you mean mcpServers?
`
	if got := texts(c.Warnings); got != wantWarnings {
		t.Errorf("warnings\n%swant\n%s", got, wantWarnings)
	}
	env := environ("HOME", "/h", "DB_KEY", "k", "WEB", "w")
	db, _ := c.Server("db")
	r, err := db.Resolve(t.Context(), env)
	if err != nil || r.Command != "/h/bin/db" || !slices.Equal(r.Args, []string{"--as", "me"}) || r.Env["KEY"].Reveal() != "k" {
		t.Errorf("db is %+v, %v", r, err)
	}
	web, _ := c.Server("web")
	r, err = web.Resolve(t.Context(), env)
	if err != nil || r.URL.Reveal() != "https://web.example/mcp" || r.Headers["Authorization"].Reveal() != "Bearer w" {
		t.Errorf("web is %+v, %v", r, err)
	}
	old, _ := c.Server("old")
	if old.Transport != SSE || old.HTTPHeadersHelper != "gen" {
		t.Errorf("old is %+v", old)
	}
	if twice, _ := c.Server("twice"); twice.Command.Text() != "b" {
		t.Error("of a key that is given twice the last does not count")
	}
}

func TestJSONWithoutServersWarns(t *testing.T) {
	c := parseText(t, "x.json", `{"servers": {"a": {"command": "x"}}}`)
	want := "x.json:1:1: mcpServers: it is missing, so the file defines no servers; write {\"mcpServers\": {…}}\n" +
		"x.json:1:2: servers: unknown key, not used; did you mean mcpServers?\n"
	if got := texts(c.Warnings); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestAgentsGrantsAndGatewayAreRead(t *testing.T) {
	dir := t.TempDir()
	c := parseText(t, filepath.Join(dir, "c.toml"), `
[agents.support]
kind = "claude"
exec = ["claude", "-p"]
env = { A = "${env:B}" }
tools = "bypass"
safe_tools = true
built_in = "read-only"
isolation = "operator"
allow_servers = ["x"]
timeout = "1h30m"
idle_timeout = 90
max_cost = 2.5
[agents.plain]
[grants.g]
servers = ["docs"]
tools.crm = ["get_*"]
deny.docs = ["delete_*"]
grow = true
sandbox = "workspace-write"
exposure = "search"
[gateway]
listen = "[::1]:0"
token_file = "tok"
exposure = "search"
optional_grace_ms = 1500
lazy = false
max_servers = 12
allowed_hosts = ["h"]
allowed_origins = ["https://o"]
tls_cert = "cert.pem"
tls_key = "/k/key.pem"
insecure = true
drain_sec = 0
[gateway.oauth]
issuers = ["https://a", "http://127.0.0.1:1/x"]
resource = "https://r/mcp"
scopes = ["mcp"]
grants = { "mcp:g" = "g" }
[hub]
x = 1
[host]
y = 1
`)
	if len(c.Problems)+len(c.Warnings) > 0 {
		t.Fatalf("problems:\n%swarnings:\n%s", texts(c.Problems), texts(c.Warnings))
	}
	a := *c.Agents["support"]
	if a.Env["A"].Text() != "${env:B}" {
		t.Errorf("env %v", a.Env)
	}
	a.Env, a.Pos = nil, Position{}
	if want := (Agent{
		Name: "support", Kind: "claude", Exec: []string{"claude", "-p"}, Tools: "bypass", SafeTools: true, BuiltIn: "read-only",
		Isolation: "operator", AllowServers: []string{"x"}, Timeout: 90 * time.Minute, IdleTimeout: 90 * time.Second, MaxCost: 2.5,
	}); !reflect.DeepEqual(a, want) {
		t.Errorf("agent\n%+v, want\n%+v", a, want)
	}
	if p := c.Agents["plain"]; p.Tools != "granted" || p.BuiltIn != "none" || p.Isolation != "strict" || p.Exec != nil {
		t.Errorf("defaults of an agent: %+v", p)
	}
	g := *c.Grants["g"]
	g.Pos = Position{}
	if want := (Grant{
		Name: "g", Servers: []string{"docs"}, Tools: map[string][]string{"crm": {"get_*"}}, Deny: map[string][]string{"docs": {"delete_*"}},
		Grow: true, Sandbox: &Sandbox{Mode: "workspace-write"}, Exposure: "search",
	}); !reflect.DeepEqual(g, want) {
		t.Errorf("grant\n%+v, want\n%+v", g, want)
	}
	w := c.Gateway
	w.Pos = Position{}
	if want := (Gateway{
		Listen: "[::1]:0", TokenFile: filepath.Join(dir, "tok"), Exposure: "search", OptionalGrace: 1500 * time.Millisecond,
		MaxServers: 12, AllowedHosts: []string{"h"}, AllowedOrigins: []string{"https://o"},
		TLSCert: filepath.Join(dir, "cert.pem"), TLSKey: "/k/key.pem", Insecure: true, OAuth: &GatewayOAuth{
			Issuers: []string{"https://a", "http://127.0.0.1:1/x"}, Resource: "https://r/mcp", Scopes: []string{"mcp"}, Grants: map[string]string{"mcp:g": "g"},
		},
	}); !reflect.DeepEqual(w, want) {
		t.Errorf("gateway\n%+v, want\n%+v", w, want)
	}
	if !slices.Equal(c.AgentNames(), []string{"plain", "support"}) || !slices.Equal(c.GrantNames(), []string{"g"}) {
		t.Errorf("names %v %v", c.AgentNames(), c.GrantNames())
	}
}

func TestMistakesInAgentsGrantsAndGatewayDisableThoseAlone(t *testing.T) {
	c := parseText(t, "c.toml", `[agents.a]
exec = "codex exec"
built_in = "some"
timeout = "soon"
idle_timeout = "-1s"
max_cost = -1
[agents.b]
exec = []
max_cost = "5"
[agents.c]
exec = ["x", 1]
[agents.d]
exec = ["x\u0000"]
[agents.good]
exec = ["x"]
[grants]
n = 1
[grants.g]
servers = "a"
tools = ["a/b"]
deny.x = "y"
[grants.good]
[gateway]
listen = "8722"
max_servers = -1
tls_key = "k"
[gateway.oauth]
issuers = ["https://a", "https://b", "ftp://c"]
jwks_uri = "https://a/keys"
grants = {}
`)
	want := `c.toml:2:1: agents.a.exec: it is a string and takes an array of words; write exec = ["codex", "exec"]
c.toml:3:1: agents.a.built_in: it is "some" and takes none, read-only or all; did you mean none?
c.toml:4:1: agents.a.timeout: it is "soon", which is no duration; write it like "90s", "30m" or "1h30m", or as a number of seconds
c.toml:5:1: agents.a.idle_timeout: it is "-1s" and must be more than 0 and at most a year
c.toml:6:1: agents.a.max_cost: it takes more than 0 and at most 1000000 USD
c.toml:8:1: agents.b.exec: it names no program; write exec = ["PROGRAM", "ARGUMENT"]
c.toml:9:1: agents.b.max_cost: it is a string and takes a number of USD; write max_cost = 5.0
c.toml:11:14: agents.c.exec.1: it is a number and takes a string
c.toml:13:1: agents.d.exec: a word has a NUL character, which no command line holds
c.toml:17:1: grants.n: it is a number and takes a table
c.toml:19:1: grants.g.servers: it is a string and takes an array of strings; write servers = ["…"]
c.toml:20:1: grants.g.tools: it is an array and takes a table of servers; write tools = { SERVER = ["TOOL"] }
c.toml:21:10: grants.g.deny.x: it is a string and takes an array of strings; write deny = ["…"]
c.toml:24:1: gateway.listen: it is "8722" and takes HOST:PORT; write listen = "127.0.0.1:8722"
c.toml:25:1: gateway.max_servers: it is -1 and takes 0 to 10000
c.toml:26:1: gateway.tls_key: it needs tls_cert; give tls_cert too
c.toml:27:10: gateway.oauth.resource: it is missing, and without it no token could be accepted; add it, or remove the table
c.toml:28:1: gateway.oauth.issuers: each takes an https address; write issuers = ["https://…"]
c.toml:29:1: gateway.oauth.jwks_uri: several issuers cannot share one; remove it: the metadata of each says where its keys are
c.toml:30:1: gateway.oauth.grants: it is empty, so that no token would reach anything; write grants = { SCOPE = "GRANT" }, or remove the key
`
	if got := texts(c.Problems); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	for name, a := range c.Agents {
		if (a.Problem == nil) != (name == "good") {
			t.Errorf("agent %s has problem %v", name, a.Problem)
		}
	}
	for name, g := range c.Grants {
		if (g.Problem == nil) != (name == "good") {
			t.Errorf("grant %s has problem %v", name, g.Problem)
		}
	}
	if c.Gateway.Problem == nil {
		t.Error("the gateway has no problem")
	}
}

func TestAFileThatCannotBeParsedSaysWhereAndQuotesTheLineMasked(t *testing.T) {
	for _, c := range []struct{ file, text, want string }{
		{"c.toml", "a = 1\r\nTOKEN = sk-ant-123456\r\n", "c.toml:2:9: cannot be parsed as TOML: unexpected character U+0073 's' at start of value\n\tTOKEN = ***"},
		{"c.toml", "[mcp_servers.é] x\n", "c.toml:1:14: cannot be parsed as TOML: invalid character at start of key: U+00C3 'Ã'\n\t[mcp_servers.é] x"},
		{"c.toml", "[a]\nb = 1\n[a]\n", "c.toml:3:2: cannot be parsed as TOML: table a already exists\n\t[a]"},
		{"c.toml", "é = 'ü' x", "c.toml:1:1: cannot be parsed as TOML: invalid character at start of key: U+00C3 'Ã'\n\té = \"***\" x"},
		{"c.toml", "\"é\" = 'ü' x", "c.toml:1:11: cannot be parsed as TOML: expected newline but got U+0078 'x'\n\t\"é\" = \"***\" x"},
		{"c.toml", "k = \"unterminated-secret\n", "c.toml:1:25: cannot be parsed as TOML: basic strings cannot have new lines\n\tk = \"***\""},
		{"c.toml", "a = [", "c.toml:1:5: cannot be parsed as TOML: array is incomplete\n\ta = ["},
		{"c.toml", "a = \"\xff\"", "c.toml:1:6: this is not UTF-8 text; save the file as UTF-8\n\ta = \"***\""},
		{"c.json", `{"mcpServers": {"a": {"env": {"K": sk-ant-123}}}}`, "c.json:1:36: cannot be parsed as JSON: invalid character 's' looking for beginning of value\n\t{\"mcpServers\": {\"a\": {\"env\": {\"K\": ***}}}}"},
		{"c", "{\n \"a\": [1,\n", "c:2:10: cannot be parsed as JSON: unexpected end of JSON input\n\t\"a\": [1,"},
		{"c.json", "", "c.json:1:1: cannot be parsed as JSON: unexpected end of JSON input"},
		{"c.json", `["a"]`, "c.json:1:1: this JSON is an array; it takes an object: {\"mcpServers\": {…}}\n\t[\"***\"]"},
		{"c.json", `{"a": 1} x`, "c.json:1:10: cannot be parsed as JSON: invalid character 'x' after top-level value\n\t{\"a\": 1} x"},
	} {
		_, err := Parse(c.file, []byte(c.text))
		var syntax *SyntaxError
		if !errors.As(err, &syntax) || err.Error() != c.want {
			t.Errorf("%q\ngot  %q\nwant %q", c.text, err, c.want)
		}
	}
}

func TestTheQuotedLineHoldsNoValue(t *testing.T) {
	for line, want := range map[string]string{
		`key = "a secret" # why`:                    `key = "***" # why`,
		`key="sk-123456789`:                         `key="***"`,
		`"quoted key" = 'it''s'`:                    `"quoted key" = "***""***"`,
		`MIIEvQIBADANBgkqhkiG9w0BAQEFAASC==`:        `***`,
		`MIIEvQIBADANBgkqhkiG9w0BAQEFAASC=`:         `***`,
		`{"env": {"TOKEN": "abc\"def"}`:             `{"env": {"TOKEN": "***"}`,
		`env = { A = sk-123456, B = "x y z" }`:      `env = { A = ***, B = "***" }`,
		"  a.long_key.path = hunter2hunter2\x1b[0m": `a.long_key.path = ***[0m`,
		`[mcp_servers.name] sk-123456`:              `[mcp_servers.name] ***`,
		`[mcp_servers.name`:                         `[mcp_servers.name`,
	} {
		if got := maskLine(line, true); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", line, got, want)
		}
	}
	if got := maskLine("[ sk-123456789", false); got != "[ ***" {
		t.Errorf("an array of JSON shows %s", got)
	}
	if got := []rune(maskLine(strings.Repeat("a b ", 500), true)); len(got) > quotedLine+1 {
		t.Errorf("%d characters are quoted", len(got))
	}
}

func TestProblemsNeverQuoteAValue(t *testing.T) {
	const value = "sk-very-secret-0123456789"
	c := parseText(t, "c.toml", strings.ReplaceAll(`
[mcp_servers.a]
command = "x"
env = "S"
env_vars = ["S=1"]
bearer_token = "S"
args = "S"
cwd = ["S"]
enabled = "S"
unknown_thing = "S"
[mcp_servers.b]
url = "S"
http_headers = { a = "S\n", b = ["S"] }
oauth = { client_secret = "S" }
env_http_headers = { a = "=S" }
auth = "S"
type = "S"
default_tools_approval_mode = "S"
[mcp_servers.c]
command = "${S"
env = { A = "${env:S", B = "$`+`{S:x}" }
[agents.a]
exec = "S"
env = { A = ["S"] }
`, "S", value))
	if all := texts(c.Problems) + texts(c.Warnings); strings.Contains(all, value) {
		t.Errorf("the value shows in\n%s", all)
	} else if len(c.Problems) < 10 {
		t.Errorf("only these problems:\n%s", all)
	}
}

func TestMissingDefaultFileIsAnEmptyConfig(t *testing.T) {
	home := t.TempDir()
	c, err := LoadDefault(dirs.Dirs{Config: home})
	if err != nil || c.File != "" || len(c.Servers) != 0 || !reflect.DeepEqual(c.Gateway, newGateway()) {
		t.Errorf("got %+v, %v", c, err)
	}
	if _, err := Load(filepath.Join(home, "named.toml")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file that was named: %v", err)
	}
	path := filepath.Join(home, "config.toml")
	if err := os.WriteFile(path, []byte("mcp_servers.a.command = \"x\""), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := LoadDefault(dirs.Dirs{Config: home}); err != nil || c.File != path || len(c.Servers) != 1 {
		t.Errorf("got %+v, %v", c, err)
	}
	if err := os.WriteFile(path, make([]byte, maxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), "larger than 4 MiB") {
		t.Errorf("a huge file: %v", err)
	}
	if _, err := Load(home); err == nil {
		t.Error("a folder was read")
	}
}

func TestFiltersOfAServerAndAGrant(t *testing.T) {
	s := &Server{Name: "crm", EnabledTools: []string{"get_*", "delete"}, DisabledTools: []string{"get_all?"}}
	for tool, want := range map[string]string{
		"get_one": "", "delete": "", "get_all": "", "get_all1": "disabled_tools of server crm names it",
		"deleted": "enabled_tools of server crm does not name it", "Get_one": "enabled_tools of server crm does not name it",
	} {
		if ok, reason := s.Allows(tool); reason != want || ok != (want == "") {
			t.Errorf("%s: %v, %q, want %q", tool, ok, reason, want)
		}
	}
	if ok, _ := (&Server{EnabledTools: []string{}}).Allows("x"); ok {
		t.Error("an empty enabled_tools allows a tool")
	}
	if ok, _ := (&Server{}).Allows("x"); !ok {
		t.Error("without enabled_tools a tool is refused")
	}
	g := &Grant{Name: "g", Servers: []string{"docs", "both"}, Tools: map[string][]string{"crm": {"get_*"}, "both": {"a"}, "none": {}}, Deny: map[string][]string{"docs": {"rm"}}}
	for call, want := range map[[2]string]string{
		{"docs", "x"}: "", {"docs", "rm"}: "deny of grant g names it for server docs", {"crm", "get_x"}: "",
		{"crm", "set"}: "tools of grant g does not name it for server crm", {"both", "b"}: "tools of grant g does not name it for server both",
		{"none", "x"}: "tools of grant g does not name it for server none", {"other", "x"}: "grant g does not name server other",
	} {
		if ok, reason := g.Allows(call[0], call[1]); reason != want || ok != (want == "") {
			t.Errorf("%v: %v, %q, want %q", call, ok, reason, want)
		}
	}
	g.Problem = &Problem{Message: "odd"}
	if ok, _ := g.Allows("docs", "x"); ok || g.AllowsServer("docs") {
		t.Error("a grant with a problem allows something")
	}
}

func TestGlobs(t *testing.T) {
	for _, c := range []struct {
		glob, name string
		want       bool
	}{
		{"", "", true},
		{"", "a", false},
		{"*", "", true},
		{"*", "a/b.c", true},
		{"a*c", "abc", true},
		{"a*c", "ac", true},
		{"a*c", "acb", false},
		{"*a*b*", "xaxbx", true},
		{"*a*b*", "xbxa", false},
		{"?", "é", true},
		{"?", "", false},
		{"a?", "a", false},
		{"[a]", "a", false},
		{"[a]", "[a]", true},
		{"a.b", "axb", false},
		{"**", "x", true},
		{"*aab", "aaaab", true},
		{"A", "a", false},
	} {
		if got := Match(c.glob, c.name); got != c.want {
			t.Errorf("Match(%q, %q) = %v", c.glob, c.name, got)
		}
	}
}

func TestFieldsDescribeWhatIsRead(t *testing.T) {
	for _, f := range Fields() {
		if f.Doc == "" || f.Type == "" || f.Key == "" && f.JSON == "" || !strings.HasSuffix(f.Doc, ".") {
			t.Errorf("%+v is not described", f)
		}
	}
}

func TestExtrasComeUnderAndNeverOver(t *testing.T) {
	c := parseText(t, "config.toml", "[mcp_servers.crm]\ncommand = \"ours\"\n[mcp_servers.zoo]\ncommand = \"z\"\n[grants.g]\nservers = [\"cmr\", \"crm\"]\ntools.mail = []\n")
	c.AddExtras(parseText(t, "extra-mcp.json", `{"mcpServers": {"crm": {"command": "theirs"}, "mail": {"command": "m"}, "nightporter": {"command": "n"}}}`))
	if got := c.ServerNames(); !slices.Equal(got, []string{"crm", "mail", "nightporter", "zoo"}) {
		t.Errorf("servers %v", got)
	}
	if s, _ := c.Server("crm"); s.Command.Text() != "ours" {
		t.Errorf("crm is %+v", s)
	}
	if s, _ := c.Server("nightporter"); s.Usable() {
		t.Error("a server has the reserved name")
	}
	if got, want := texts(c.Warnings), "extra-mcp.json:1:17: mcpServers.crm: it is not used: config.toml:1:14 defines that server; rename one of them, or remove one\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if lost := c.LostExtras(); len(lost) != 1 || !strings.Contains(lost[0], "nightporter") {
		t.Errorf("lost are %q", lost)
	}
	if got, want := texts(c.UnknownInGrants()), "config.toml:5:9: grants.g: it names the server \"cmr\", which is not defined; did you mean crm?\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestTOMLWithAByteOrderMarkAndWindowsLineEndsIsRead(t *testing.T) {
	c := parseText(t, "c.toml", "\xef\xbb\xbf[mcp_servers.a]\r\ncommand = \"x\"\r\nenv.K = \"v\"\r\nargz = []\r\n")
	if s, _ := c.Server("a"); s == nil || !s.Usable() || s.Command.Text() != "x" || s.Env["K"].Text() != "v" || s.Pos.Column != 14 {
		t.Errorf("got %+v", s)
	}
	if got, want := texts(c.Warnings), "c.toml:4:1: mcp_servers.a.argz: unknown key, not used; did you mean args?\n"; got != want {
		t.Errorf("got %s", got)
	}
}

func TestWarningsAreBounded(t *testing.T) {
	var text strings.Builder
	for i := range 2 * maxWarnings {
		fmt.Fprintf(&text, "unknown%d = 1\n", i)
	}
	if c := parseText(t, "c.toml", text.String()); len(c.Warnings) != maxWarnings {
		t.Errorf("%d warnings", len(c.Warnings))
	}
}

func TestNoGraceWaitsForEveryStart(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"":                                   time.Second,
		"[gateway]\noptional_grace_ms = 250": 250 * time.Millisecond,
		"[gateway]\noptional_grace_ms = 0":   maxDuration,
	} {
		if got := parseText(t, "config.toml", text).Gateway.Grace(); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func TestWhoIsAskedStandsAtTheTopOfTheFile(t *testing.T) {
	c := parseText(t, "/etc/np/config.toml", "on_approval = [\"./ask.sh\", \"--to\", \"ann\"]\napproval_timeout = \"90s\"\n[mcp_servers.a]\ncommand = \"x\"\n")
	if got := c.Approver; !slices.Equal(got.Argv, []string{"./ask.sh", "--to", "ann"}) || got.Timeout != 90*time.Second || got.Dir != "/etc/np" || got.Problem != nil || !got.Asks() {
		t.Errorf("got %+v", got)
	}
	if len(c.Problems)+len(c.Warnings) != 0 {
		t.Errorf("problems\n%s%s", texts(c.Problems), texts(c.Warnings))
	}
	if none := parseText(t, "c.toml", "[mcp_servers.a]\ncommand = \"x\"\n").Approver; none.Asks() || none.Timeout != DefaultApprovalTimeout {
		t.Errorf("without the keys: %+v", none)
	}
	for text, want := range map[string]string{
		`on_approval = "ask.sh"`:      `c.toml:1:1: on_approval: it is a string and takes an array of words; write on_approval = ["./approve.sh"]`,
		`on_approval = []`:            `c.toml:1:1: on_approval: it names no program; write on_approval = ["PROGRAM", "ARGUMENT"]`,
		`approval_timeout = "0s"`:     `c.toml:1:1: approval_timeout: it is "0s" and must be more than 0 and at most a year`,
		`on_approval = ["a\u0000b"]`:  `c.toml:1:1: on_approval: a word has a NUL character, which no command line holds`,
		"[gateway]\non_approval = []": ``,
	} {
		c := parseText(t, "c.toml", text)
		if got := strings.TrimSpace(texts(c.Problems)); got != want {
			t.Errorf("%s: got %s", text, got)
		}
		// A mistake must not read as if nobody were to be asked: gateway clients would then not be.
		if want != "" && (c.Approver.Problem == nil || !c.Approver.Asks()) {
			t.Errorf("%s: %+v", text, c.Approver)
		}
		if want == "" && len(c.Warnings) != 1 {
			t.Errorf("%s: no warning", text)
		}
	}
}
