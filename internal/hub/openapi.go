package hub

import (
	"encoding/json"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"nightporter/client"
)

// openAPI is the OpenAPI 3.1 document of the routes. Its schemas are those of the types that the handlers read and write.
func openAPI(version string) map[string]any {
	schemas := map[string]any{}
	paths := map[string]map[string]any{}
	for _, r := range routes {
		operation := map[string]any{
			"summary": r.says, "operationId": operationID(r),
			"responses": map[string]any{"default": map[string]any{"description": "A problem.", "content": map[string]any{"application/problem+json": map[string]any{"schema": schemaOf(reflect.TypeFor[client.Problem](), schemas)}}}},
		}
		var parameters []any
		for _, m := range pathParameter.FindAllStringSubmatch(r.path, -1) {
			parameters = append(parameters, parameter(m[1], "path", true))
		}
		for _, name := range r.query {
			parameters = append(parameters, parameter(name, "query", false))
		}
		if r.path == "/v1/messages" {
			parameters = append(parameters, parameter("Idempotency-Key", "header", false))
		}
		if parameters != nil {
			operation["parameters"] = parameters
		}
		if r.in != nil {
			operation["requestBody"] = map[string]any{"required": true, "content": map[string]any{"application/json": map[string]any{"schema": schemaOf(reflect.TypeOf(r.in), schemas)}}}
		}
		responses := operation["responses"].(map[string]any)
		switch {
		case r.out != nil:
			status := "200"
			if r.status == 201 {
				status = "201"
			}
			content := map[string]any{"application/json": map[string]any{"schema": schemaOf(reflect.TypeOf(r.out), schemas)}}
			if r.serve != nil {
				content["text/event-stream"] = map[string]any{}
			}
			responses[status] = map[string]any{"description": "Done.", "content": content}
		case r.serve != nil:
			responses["200"] = map[string]any{"description": "The content.", "content": map[string]any{"application/octet-stream": map[string]any{}}}
		default:
			responses["204"] = map[string]any{"description": "Done."}
		}
		switch r.scope {
		case anyone:
			operation["security"] = []any{}
		case aHost:
			operation["security"] = []any{map[string]any{"host": []string{}}}
		case someone:
			operation["security"] = []any{map[string]any{"key": []string{"read"}}, map[string]any{"key": []string{"ask"}}}
		default:
			operation["security"] = []any{map[string]any{"key": []string{string(r.scope)}}}
		}
		if paths[r.path] == nil {
			paths[r.path] = map[string]any{}
		}
		paths[r.path][strings.ToLower(r.method)] = operation
	}
	return map[string]any{
		"openapi": "3.1.0",
		"info":    map[string]any{"title": "Nightporter hub", "version": version},
		"paths":   paths,
		"components": map[string]any{
			"schemas": schemas,
			"securitySchemes": map[string]any{
				"key":  map[string]any{"type": "http", "scheme": "bearer", "description": "A key of the API (npk_…); its scopes are ask, read, approve, admin."},
				"host": map[string]any{"type": "http", "scheme": "bearer", "description": "A host's own key (nph_…)."},
			},
		},
	}
}

var pathParameter = regexp.MustCompile(`\{([a-z]+)\}`)

func parameter(name, in string, required bool) map[string]any {
	return map[string]any{"name": name, "in": in, "required": required, "schema": map[string]any{"type": "string"}}
}

// operationID names a route, such as getRunsIdEvents.
func operationID(r route) string {
	id := strings.ToLower(r.method)
	for part := range strings.SplitSeq(strings.TrimPrefix(r.path, "/v1/"), "/") {
		part = strings.Trim(part, "{}")
		id += strings.ToUpper(part[:1]) + part[1:]
	}
	return id
}

var (
	timeType = reflect.TypeFor[time.Time]()
	rawType  = reflect.TypeFor[json.RawMessage]()
)

// schemaOf is the schema of a type; those of named structs stand in schemas.
func schemaOf(t reflect.Type, schemas map[string]any) map[string]any {
	switch {
	case t == timeType:
		return map[string]any{"type": "string", "format": "date-time"}
	case t == rawType:
		return map[string]any{}
	case t.Kind() == reflect.Pointer:
		return schemaOf(t.Elem(), schemas)
	}
	switch t.Kind() {
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return map[string]any{"type": "string", "contentEncoding": "base64"}
		}
		return map[string]any{"type": "array", "items": schemaOf(t.Elem(), schemas)}
	}
	name := typeName(t)
	if _, known := schemas[name]; !known {
		properties, required := map[string]any{}, []string{}
		schemas[name] = nil // against types that hold themselves
		for i := range t.NumField() {
			f := t.Field(i)
			key, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if key == "-" || key == "" {
				continue
			}
			properties[key] = schemaOf(f.Type, schemas)
			if !strings.Contains(options, "omitempty") {
				required = append(required, key)
			}
		}
		schema := map[string]any{"type": "object", "properties": properties}
		if len(required) > 0 {
			slices.Sort(required)
			schema["required"] = required
		}
		schemas[name] = schema
	}
	return map[string]any{"$ref": "#/components/schemas/" + name}
}

var generic = regexp.MustCompile(`^(\w+)\[.*?(\w+)\]$`)

// typeName is a type's name, such as Run or RunPage.
func typeName(t reflect.Type) string {
	name := t.Name()
	if m := generic.FindStringSubmatch(name); m != nil {
		name = m[2] + m[1]
	}
	return strings.ToUpper(name[:1]) + name[1:]
}
