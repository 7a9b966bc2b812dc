package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"pgregory.net/rapid"
)

func compiledSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	if err := c.AddResource("config.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("config.json")
	if err != nil {
		t.Fatal(err) // it is held against the schema of schemas too
	}
	return schema
}

// instance is a file's content as a validator has it; false when JSON cannot say it.
func instance(text string) (any, bool) {
	root, _, _, err := parse("c.toml", []byte(text))
	if err != nil {
		return nil, false
	}
	v, err := root.plain()
	return v, err == nil
}

func TestTheSchemaTakesEveryFieldThatIsRead(t *testing.T) {
	schema := compiledSchema(t)
	for _, f := range goodFields {
		line := "command = \"prog\""
		if f.on == HTTP {
			line = "url = \"https://h/p\""
		}
		text := "[mcp_servers.s]\n" + line + "\n" + f.toml
		v, ok := instance(text)
		if err := schema.Validate(v); err != nil || !ok {
			t.Errorf("%s\n%v", text, err)
		}
	}
	v, _ := instance(codexConfig)
	if err := schema.Validate(v); err != nil {
		t.Errorf("a Codex config: %v", err)
	}
}

// schemaTakes are the bad entries, by a part of their text, that the schema cannot tell from good ones, and why.
var schemaTakes = map[string]string{
	"${":                       "references are parsed, not matched",
	`\u0000`:                   "texts with NUL",
	`b\nc`:                     "texts with control characters",
	"= nan":                    "not JSON",
	"= inf":                    "not JSON",
	"= -nan":                   "not JSON",
	"= -inf":                   "not JSON",
	"a = nan":                  "not JSON",
	"1979-05-27":               "not JSON",
	`http_headers_helper = " `: "blanks are looked at, not matched",
}

func TestTheSchemaRefusesWhatIsAProblem(t *testing.T) {
	schema := compiledSchema(t)
	for text := range badEntries {
		takes := slices.ContainsFunc(sortedKeys(schemaTakes), func(part string) bool { return strings.Contains(text, part) })
		v, ok := instance("[mcp_servers.bad]\n" + text)
		if !ok {
			if !takes {
				t.Errorf("not JSON: %s", text)
			}
			continue
		}
		if err := schema.Validate(v); (err == nil) != takes {
			t.Errorf("%s\n%v", text, err)
		}
	}
	const good = "\n[mcp_servers.s]\ncommand = \"x\"\n"
	for _, text := range []string{
		"modle = 1", "mcp_servers = 1", "agents.a.kind = \"x\"", "grants.g.servers = 1", "gateway.listen = \"x\"", "mcp_servers.NightPorter.command = \"x\"",
		good + "comand = 1", good + "tools.t.mode = 1", "mcp_servers.s = { url = \"https://h\", oauth.id = 1 }", good + "env_vars = [{ name = \"A\", x = 1 }]",
		"agents.a.x = 1", "grants.g.x = 1", "gateway.x = 1", `gateway.tls_cert = "x"`, `gateway.oauth.resource = "https://h"`,
	} {
		v, _ := instance(text)
		if schema.Validate(v) == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

func TestExamplesAndDefaultsAreTakenByTheSchemaAndTheDecoder(t *testing.T) {
	schema := compiledSchema(t)
	var all struct {
		Defs map[string]struct {
			Properties map[string]struct {
				Default     any
				Examples    []any
				Description string
				Not         any
			}
		} `json:"$defs"`
	}
	if err := json.Unmarshal(Schema(), &all); err != nil {
		t.Fatal(err)
	}
	tables := map[string]string{
		"server": "[mcp_servers.s]", "oauth": "[mcp_servers.s.oauth]", "tool": "[mcp_servers.s.tools.t]", "agent": "[agents.a]", "grant": "[grants.g]", "gateway": "[gateway]", "gateway_oauth": "[gateway.oauth]",
	}
	needed := map[string][]string{ // what a key is nothing without
		"oauth.client_secret": {`client_id = "x"`}, "gateway.tls_cert": {`tls_key = "x"`}, "gateway.tls_key": {`tls_cert = "x"`},
	}
	for key := range all.Defs["gateway_oauth"].Properties {
		for _, other := range []string{"issuers", "resource"} {
			if other != key {
				value := tomlValue(all.Defs["gateway_oauth"].Properties[other].Examples[0])
				needed["gateway_oauth."+key] = append(needed["gateway_oauth."+key], other+" = "+value)
			}
		}
	}
	known := map[string]Transport{}
	for _, f := range Fields() {
		if f.Table == "mcp_servers.NAME" {
			known[f.Key] = f.Transport
		}
	}
	for def, table := range tables {
		for key, p := range all.Defs[def].Properties {
			if p.Description == "" || len(p.Examples) == 0 && p.Not == nil {
				t.Errorf("%s.%s has no description or example", def, key)
			}
			values := slices.Clone(p.Examples)
			if p.Default != nil {
				values = append(values, p.Default)
			}
			for _, value := range values {
				server := "command = \"x\"\n"
				if (def == "server" && known[key] == HTTP) || def == "oauth" || value == "sse" {
					server = "url = \"https://h\"\n"
				}
				if def == "server" && (key == "command" || key == "url") {
					server = ""
				}
				text := "[mcp_servers.s]\n" + server
				if def != "server" {
					text += table + "\n"
				}
				for _, other := range needed[def+"."+key] {
					text += other + "\n"
				}
				text += key + " = " + tomlValue(value) + "\n"
				c, err := Parse("c.toml", []byte(text))
				if err != nil {
					t.Errorf("%s\n%v", text, err)
					continue
				}
				v, _ := instance(text)
				if err := schema.Validate(v); err != nil || len(c.Problems)+len(c.Warnings) > 0 {
					t.Errorf("%s\n%v\n%s%s", text, err, texts(c.Problems), texts(c.Warnings))
				}
			}
		}
	}
}

// tomlValue writes a value of JSON as TOML.
func tomlValue(v any) string {
	switch v := v.(type) {
	case string:
		return tomlString(v)
	case []any:
		var items []string
		for _, item := range v {
			items = append(items, tomlValue(item))
		}
		return "[" + strings.Join(items, ", ") + "]"
	case map[string]any:
		var pairs []string
		for _, k := range sortedKeys(v) {
			pairs = append(pairs, tomlKey(k)+" = "+tomlValue(v[k]))
		}
		return "{ " + strings.Join(pairs, ", ") + " }"
	case float64:
		return fmt.Sprint(int64(v))
	default:
		return fmt.Sprint(v)
	}
}

func TestTheSchemasDefaultsAreTheDecoders(t *testing.T) {
	said := map[string]string{}
	for _, f := range Fields() {
		if f.Default != "" {
			said[f.Table+"."+f.Key] = f.Default
		}
	}
	s, a, g := newServer("s", Position{}), newAgent("a", Position{}), newGateway()
	for key, want := range map[string]any{
		"mcp_servers.NAME.enabled": s.Enabled, "mcp_servers.NAME.required": s.Required, "mcp_servers.NAME.startup_timeout_sec": s.StartTimeout.Seconds(),
		"mcp_servers.NAME.startup_readiness": s.Readiness, "mcp_servers.NAME.tool_timeout_sec": s.ToolTimeout.Seconds(),
		"mcp_servers.NAME.supports_parallel_tool_calls": s.ParallelToolCalls, "mcp_servers.NAME.default_tools_approval_mode": s.Approval,
		"mcp_servers.NAME.idle_stop_sec": s.IdleStop.Seconds(), "mcp_servers.NAME.catalog_max_age_sec": int(s.CatalogTTL.Seconds()), "mcp_servers.NAME.shared": s.Shared,
		"mcp_servers.NAME.pin": s.Pin, "mcp_servers.NAME.authority_bound": s.AuthorityBound, "mcp_servers.NAME.wiring": s.Wiring,
		"agents.NAME.tools": a.Tools, "agents.NAME.safe_tools": a.SafeTools, "agents.NAME.built_in": a.BuiltIn, "agents.NAME.isolation": a.Isolation,
		"grants.NAME.grow": false, "gateway.listen": g.Listen, "gateway.exposure": g.Exposure, "gateway.optional_grace_ms": g.OptionalGrace.Milliseconds(),
		"gateway.lazy": g.Lazy, "gateway.max_servers": g.MaxServers, "gateway.insecure": g.Insecure, "gateway.drain_sec": g.Drain.Seconds(),
		"mcp_servers.NAME.sandbox.network": (&Sandbox{}).Network, "gateway.oauth.jwks_uri": "what the issuer's metadata says",
		// Without a field of their own: what is refused otherwise, and what another field says.
		"mcp_servers.NAME.auth": "oauth", "mcp_servers.NAME.environment_id": "local", "mcp_servers.NAME.cwd": "the client's", "mcp_servers.NAME.lazy": "gateway.lazy",
		"mcp_servers.NAME.max_result_bytes": "none", "grants.NAME.exposure": "gateway.exposure; in runs tools",
		"mcp_servers.NAME.": false, // disabled, in JSON
		".on_approval":      "none: in runs such calls are refused", ".approval_timeout": strings.TrimSuffix(DefaultApprovalTimeout.String(), "0s"),
	} {
		if said[key] != fmt.Sprint(want) {
			t.Errorf("%s: %q is said, %v is so", key, said[key], want)
		}
		delete(said, key)
	}
	if len(said) > 0 {
		t.Errorf("not looked at: %v", said)
	}
}

// drawConfig makes a file of known and unknown keys with values of every kind.
func drawConfig(t *rapid.T) string {
	value := rapid.OneOf(
		rapid.SampledFrom([]string{
			`""`, `"x"`, `" "`, `"https://h/p"`, `"http://"`, `"${env:A}"`, `"127.0.0.1:1"`, `"90s"`, `"1h30m"`, `"0s"`, `"soon"`, "true", "false", "0", "1", "-1", "70000",
			"1.5", "-0.5", "31536000", "31536001", "1e12", "9223372036854775807", "[]", `["x"]`, `[""]`, `["A=B"]`, "[1]", `[{ name = "A" }]`, `[{ name = "A", source = "local" }]`, `[{ source = "x" }]`,
			"{}", `{ A = "b" }`, `{ "a b" = "c" }`, `{ "A=B" = "c" }`, `{ "" = "c" }`, "{ A = 1 }", `{ A = ["x"] }`, "{ A = [1] }", `{ A = { approval_mode = "auto" } }`,
			`{ A = { approval_mode = "x" } }`, `{ client_id = "x" }`, `{ client_secret = "x" }`, `{ callback_port = 0 }`, `{ mcp_lazy_stdio_startup = 1 }`,
		}),
		rapid.Map(rapid.SampledFrom(Fields()), func(f FieldDoc) string { // a value that some field takes
			if f.Example == nil {
				return "1"
			}
			data, _ := json.Marshal(f.Example)
			var v any
			_ = json.Unmarshal(data, &v)
			return tomlValue(v)
		}),
		rapid.Map(rapid.SampledFrom(Fields()), func(f FieldDoc) string {
			if len(f.Enum) == 0 {
				return `"oauth"`
			}
			return tomlString(f.Enum[len(f.Enum)-1])
		}),
	)
	byTable := map[string][]string{}
	for _, f := range Fields() {
		if f.Key != "" {
			byTable[f.Table] = append(byTable[f.Table], f.Key)
		}
	}
	var b strings.Builder
	for _, key := range rapid.SliceOfNDistinct(rapid.SampledFrom(slices.Concat(codexKeys[:5], []string{"unknown", "features", "mcp_optional_startup_grace_ms", "hub"}, byTable[""])), 0, 2, rapid.ID).Draw(t, "top") {
		fmt.Fprintf(&b, "%s = %s\n", key, value.Draw(t, key))
	}
	for i, table := range rapid.SliceOfN(rapid.SampledFrom([]string{"mcp_servers.NAME", "mcp_servers.NAME", "mcp_servers.NAME.oauth", "mcp_servers.NAME.tools.TOOL", "agents.NAME", "grants.NAME", "gateway", "gateway.oauth"}), 1, 2).Draw(t, "tables") {
		header := strings.NewReplacer("NAME", rapid.SampledFrom([]string{"a", `""`, `" "`, "nightporter", "Nightporter", `"ü b"`}).Draw(t, "name")+fmt.Sprint(), "TOOL", "t").Replace(table)
		if table == "gateway" && i > 0 {
			continue
		}
		fmt.Fprintf(&b, "[%s]\n", header)
		keys := rapid.SliceOfNDistinct(rapid.SampledFrom(append(byTable[table], "unknown")), 0, 4, rapid.ID).Draw(t, "keys")
		if table == "mcp_servers.NAME" && rapid.Bool().Draw(t, "whole") {
			first := rapid.SampledFrom([]string{"command", "url"}).Draw(t, "first")
			keys = append(slices.DeleteFunc(keys, func(k string) bool { return k == first }), first)
		}
		for _, key := range keys {
			v := value.Draw(t, key)
			if rapid.Bool().Draw(t, "its own") {
				for _, f := range Fields() {
					if f.Table == table && f.Key == key && f.Example != nil {
						data, _ := json.Marshal(f.Example)
						var own any
						_ = json.Unmarshal(data, &own)
						v = tomlValue(own)
					}
				}
			}
			fmt.Fprintf(&b, "%s = %s\n", key, v)
		}
	}
	return b.String()
}

func TestWhatTheSchemaRefusesIsAProblemOrAWarning(t *testing.T) {
	schema := compiledSchema(t)
	taken, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		text := drawConfig(t)
		c, err := Parse("c.toml", []byte(text))
		if err != nil {
			t.Skip("the same table twice")
		}
		v, ok := instance(text)
		if !ok {
			t.Skip("not JSON")
		}
		if err := schema.Validate(v); err != nil {
			refused++
			if len(c.Problems)+len(c.Warnings) == 0 {
				t.Errorf("%s\nhas no problem, and the schema says\n%v", text, err)
			}
		} else {
			taken++
		}
	})
	if !t.Failed() && (taken == 0 || refused == 0) {
		t.Errorf("%d taken and %d refused", taken, refused)
	}
}
