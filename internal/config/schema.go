package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"time"
)

// rules is a JSON Schema, or a part of one.
type rules = map[string]any

// Schema returns the JSON Schema (2020-12) of config.toml, made from the tables of fields that decode it.
//
// What it refuses has a [Problem] or a warning when it is read. The other way round it says less: what stands in a text
// (references, addresses, durations), and which fields need each other, it checks in part.
func Schema() []byte {
	top := rules{
		"mcp_servers": rules{
			"type": "object", "description": "The MCP servers, by name.",
			"propertyNames": rules{
				"minLength": 1, "maxLength": maxName,
				"not": rules{"pattern": "^[Nn][Ii][Gg][Hh][Tt][Pp][Oo][Rr][Tt][Ee][Rr]$"},
			},
			"additionalProperties": ref("server"),
		},
		"agents":  rules{"type": "object", "description": "The agents that are run, by name.", "propertyNames": named, "additionalProperties": ref("agent")},
		"grants":  rules{"type": "object", "description": "What clients and runs may see and use, by name.", "propertyNames": named, "additionalProperties": ref("grant")},
		"gateway": ref("gateway"),
		"hub":     rules{"description": "Read by nightporter hub."},
		"host":    rules{"description": "Read by nightporter host."},
	}
	for _, f := range topFields {
		top[f.key] = f.rules()
	}
	for _, key := range codexKeys {
		top[key] = rules{"description": "Codex's; no effect."}
	}
	// What codexSettings reads.
	top["mcp_optional_startup_grace_ms"] = merged(scalars["milliseconds"], orZero, rules{"description": "Codex's; the same as gateway.optional_grace_ms."})
	top["features"] = rules{
		"description": "Codex's; of them mcp_lazy_stdio_startup is read.",
		"properties":  rules{"mcp_lazy_stdio_startup": rules{"type": "boolean", "description": "The same as gateway.lazy."}},
	}
	server := table(serverFields)
	server["description"] = "An MCP server: command makes it a stdio server, url a streamable HTTP one."
	server["anyOf"] = []rules{{"required": []string{"command"}}, {"required": []string{"url"}}}
	server["dependentSchemas"] = rules{"command": only(Stdio), "url": only(HTTP)}
	oauth := table(oauthFields)
	oauth["dependentRequired"] = rules{"client_secret": []string{"client_id"}}
	gateway := table(gatewayFields)
	gateway["dependentRequired"] = rules{"tls_cert": []string{"tls_key"}, "tls_key": []string{"tls_cert"}}
	gatewayOAuth := table(gatewayOAuthFields)
	gatewayOAuth["required"] = []string{"issuers", "resource"}
	schema := rules{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Nightporter's config.toml",
		"type": "object", "properties": top, "additionalProperties": false,
		"$defs": rules{
			"server": server, "oauth": oauth, "tool": table(toolFields),
			"agent": table(agentFields), "grant": table(grantFields), "gateway": gateway, "gateway_oauth": gatewayOAuth, "sandbox": table(sandboxFields),
		},
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	_ = e.Encode(schema) // maps of texts and numbers: a test encodes them
	return out.Bytes()
}

// only says which fields a server of that transport cannot have, and what its type may say.
func only(transport Transport) rules {
	properties := rules{}
	for _, f := range serverFields {
		if f.on != "" && f.on != transport {
			properties[f.key] = false
		}
	}
	var words []string
	for _, f := range serverFields {
		if f.key == "type" {
			for _, word := range f.enum {
				if (transportWords[word] == Stdio) == (transport == Stdio) {
					words = append(words, word)
				}
			}
		}
	}
	properties["type"] = rules{"enum": words}
	return rules{"properties": properties}
}

// table is the schema of a table of fields.
func table[T any](fields []field[T]) rules {
	properties := rules{}
	for _, f := range fields {
		if f.key != "" {
			properties[f.key] = f.rules()
		}
	}
	return rules{"type": "object", "properties": properties, "additionalProperties": false}
}

func (f field[T]) rules() rules {
	r := merged(scalars[f.typ], f.schema)
	doc := f.doc
	if len(f.enum) > 0 {
		delete(r, "minLength")
		r["enum"] = f.enum
	}
	switch def := f.def.(type) {
	case nil:
	case prose:
		doc += fmt.Sprintf(" Default: %s.", def)
	default:
		r["default"] = def
	}
	if f.example != nil {
		r["examples"] = []any{f.example}
	}
	r["description"] = doc
	return r
}

func merged(all ...rules) rules {
	r := rules{}
	for _, one := range all {
		maps.Copy(r, one)
	}
	if r["minimum"] != nil {
		delete(r, "exclusiveMinimum")
	}
	return r
}

func ref(name string) rules { return rules{"$ref": "#/$defs/" + name} }

// scalars are the schemas of the types that fields have.
var scalars = map[string]rules{
	"string":            {"type": "string", "minLength": 1},
	"bool":              {"type": "boolean"},
	"integer":           {"type": "integer"},
	"number":            {"type": "number"},
	"seconds":           {"type": "number", "exclusiveMinimum": 0, "maximum": maxDuration / time.Second},
	"milliseconds":      {"type": "number", "exclusiveMinimum": 0, "maximum": maxDuration / time.Millisecond},
	"string[]":          {"type": "array", "items": rules{"type": "string"}},
	"table":             {"type": "object"},
	"table of strings":  {"type": "object", "additionalProperties": rules{"type": "string"}},
	"table of string[]": {"type": "object", "additionalProperties": rules{"type": "array", "items": rules{"type": "string"}}},
	"string or table":   {},
	"duration": {"anyOf": []rules{
		{"type": "string", "pattern": `^\+?(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`},
		{"type": "number", "exclusiveMinimum": 0, "maximum": maxDuration / time.Second},
	}},
}

// What the schema says of some fields beside their type.
var (
	named        = rules{"pattern": `\S`}
	orZero       = rules{"minimum": 0}
	refused      = rules{"not": rules{}}
	variableName = rules{"type": "string", "pattern": "^[^=]+$"}
	variables    = rules{"propertyNames": variableName}
	headerName   = rules{"pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"}
	headers      = rules{"propertyNames": headerName}
	address      = rules{"pattern": `^[Hh][Tt][Tt][Pp][Ss]?://[^/?#]|\$\{`}
	envVars      = rules{"items": rules{"anyOf": []rules{
		variableName,
		{
			"type": "object", "properties": rules{"name": variableName, "source": rules{"const": "local"}},
			"required": []string{"name"}, "additionalProperties": false,
		},
	}}}
	sandboxRules = rules{"anyOf": []rules{
		{"type": "string", "enum": []string{readOnly, workspaceWrite}},
		{"type": "object", "description": "A permission profile, in the shape that Codex has for it.", "required": []string{"type"}, "properties": rules{"type": rules{"enum": []string{"managed", "disabled", "external"}}}},
		{"$ref": "#/$defs/sandbox"},
	}}
)
