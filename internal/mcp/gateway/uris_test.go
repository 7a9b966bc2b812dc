package gateway_test

import (
	"encoding/json"
	"strings"
	"testing"

	"nightporter/internal/mcp/gateway"
	"nightporter/internal/mcp/wire"
	"nightporter/test/lab"
)

func resource(uri string) json.RawMessage {
	return json.RawMessage(`{"uri":` + string(wire.Quote(uri)) + `,"name":"r","size":1.0}`)
}

// librarian is a server that has resources which others have, too.
func librarian(name string, era lab.Era) lab.Config {
	return lab.Config{
		Name: name, Era: era,
		Capabilities: json.RawMessage(`{"tools":{},"resources":{"subscribe":true},"completions":{},"experimental":{"x":{"of":"` + name + `"},"codex/tool-catalog-cache":{}},` +
			`"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}},"odd":{}}`),
		Resources: []json.RawMessage{resource("lab://same"), resource("lab://only-" + name), resource("nightporter://servers/a/lab://same")},
		Templates: []json.RawMessage{json.RawMessage(`{"uriTemplate":"file:///{+path}","name":"t"}`)},
		Tools: []json.RawMessage{
			json.RawMessage(`"links"`), json.RawMessage(`{"name":"show","inputSchema":{"type":"object"},"_meta":{"ui":{"resourceUri":"ui://app/main"}}}`),
			json.RawMessage(`{"name":"click","inputSchema":{"type":"object"},"_meta":{"ui":{"resourceUri":"ui://app/` + name + `","visibility":["app"]}}}`),
		},
	}
}

func TestResourcesOfSeveralServersAreToldApart(t *testing.T) {
	h := newHouse(t, librarian("a", lab.Legacy), librarian("b", lab.Legacy))
	_, url := h.endpoint(gateway.Profile{})
	session := h.opened(url, "x", `{"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}}}`)

	// What is listed can be read, and is its server's.
	listed := string(h.ask(url, session, wire.ResourcesList, "{}"))
	for _, want := range []string{
		`{"uri":"lab://same","name":"r","size":1.0}`, `{"uri":"nightporter://servers/b/lab://same","name":"r","size":1.0}`, `"lab://only-a"`, `"lab://only-b"`,
		`"nightporter://servers/a/nightporter://servers/a/lab://same"`, `"nightporter://servers/b/nightporter://servers/a/lab://same"`,
	} {
		if !strings.Contains(listed, want) {
			t.Errorf("%s is not in %s", want, listed)
		}
	}
	if got := string(h.ask(url, session, wire.TemplatesList, "{}")); !strings.Contains(got, `"uriTemplate":"file:///{+path}"`) || !strings.Contains(got, `"uriTemplate":"nightporter://servers/b/file:///{+path}"`) {
		t.Errorf("templates %s", got)
	}
	for uri, raw := range map[string][2]string{
		"lab://same": {"a", "lab://same"}, "nightporter://servers/b/lab://same": {"b", "lab://same"}, "lab://only-b": {"b", "lab://only-b"},
		"nightporter://servers/a/lab://only-a": {"a", "lab://only-a"},
		"file:///x/y":                          {"a", "file:///x/y"}, "nightporter://servers/b/file:///x/y?z#w": {"b", "file:///x/y?z#w"},
		"nightporter://servers/b/nightporter://servers/a/lab://same": {"b", "nightporter://servers/a/lab://same"},
		// Of apps, which are listed nowhere.
		"ui://app/main": {"a", "ui://app/main"}, "ui://app/b": {"b", "ui://app/b"}, "ui://nightporter/b/app/main": {"b", "ui://app/main"},
	} {
		got := h.ask(url, session, wire.ResourcesRead, `{"uri":`+string(wire.Quote(uri))+`}`)
		if text := string(got); !strings.Contains(text, `"resource `+raw[1]+`"`) {
			t.Errorf("%s: %s", uri, text)
			continue
		}
		entry, err := h.recorder.Wait(h.ctx, func(e lab.Entry) bool {
			sent, _ := wire.GetString(e.Message, "params", "uri")
			return e.Name == raw[0] && e.Method == wire.ResourcesRead && sent == raw[1]
		})
		if err != nil {
			t.Errorf("%s did not reach %s: %v %v", uri, raw[0], entry, err)
		}
		if uri != "nightporter://servers/a/lab://only-a" { // which the client need not have named so
			contents, _ := wire.Elements(wire.Get(got, "result", "contents"))
			h.want(contents[0], uri, "uri")
		}
	}
	for _, uri := range []string{"lab://nobody", "nightporter://servers/nobody/lab://same", "nightporter://"} {
		if got := string(h.ask(url, session, wire.ResourcesRead, `{"uri":"`+uri+`"}`)); !strings.Contains(got, "-32002") {
			t.Errorf("%s: %s", uri, got)
		}
	}
	if got := string(h.ask(url, session, wire.Complete, `{"ref":{"type":"ref/resource","uri":"nightporter://servers/b/file:///{+path}"},"argument":{"name":"path","value":"x"}}`)); !strings.Contains(got, "b completes") || strings.Contains(got, "nightporter://") {
		t.Errorf("completion %s", got)
	}

	// Tools show their apps.
	tools := string(h.ask(url, session, wire.ToolsList, "{}"))
	for _, want := range []string{`"name":"a__show","inputSchema":{"type":"object"},"_meta":{"ui":{"resourceUri":"ui://app/main"}}`, `"_meta":{"ui":{"resourceUri":"ui://nightporter/b/app/main"}}`} {
		if !strings.Contains(tools, want) {
			t.Errorf("%s is not in %s", want, tools)
		}
	}

	// Links in results.
	link := func(server, uri string) string {
		return string(h.ask(url, session, wire.ToolsCall, `{"name":"`+server+`__links","arguments":{"uri":"`+uri+`"}}`))
	}
	for _, c := range []struct{ server, uri, want string }{
		{"a", "lab://same", "lab://same"},
		{"b", "lab://same", "nightporter://servers/b/lab://same"},
		{"b", "file:///link", "nightporter://servers/b/file:///link"},
		{"b", "https://example.org/seen", "https://example.org/seen"}, // nobody's so far
		{"a", "https://example.org/seen", "nightporter://servers/a/https://example.org/seen"},
	} {
		if got := link(c.server, c.uri); strings.Count(got, `"`+c.want+`"`) != 2 {
			t.Errorf("%s of %s: %s, want %s twice", c.uri, c.server, got, c.want)
		}
	}
	if got := string(h.ask(url, session, wire.ResourcesRead, `{"uri":"https://example.org/seen"}`)); !strings.Contains(got, "resource https://example.org/seen") {
		t.Errorf("what a result named: %s", got)
	}
}

func TestOneServerKeepsItsURIs(t *testing.T) {
	h := newHouse(t, librarian("a", lab.Legacy))
	_, alone := h.endpoint(gateway.Profile{Single: "a"})
	session := h.opened(alone, "x", "{}")
	for _, uri := range []string{"lab://same", "nightporter://servers/a/lab://same", "lab://nobody"} {
		got := string(h.ask(alone, session, wire.ResourcesRead, `{"uri":"`+uri+`"}`))
		if !strings.Contains(got, `"uri":"`+uri+`"`) {
			t.Errorf("%s: %s", uri, got)
		}
	}
}

// What servers can do together, and what they are told of their client.
func TestCapabilitiesOfSeveralServersAreMerged(t *testing.T) {
	h := newHouse(t, librarian("a", lab.Legacy), librarian("b", lab.Modern), tasker("c", lab.Legacy), tasker("d", lab.Modern))
	_, url := h.endpoint(gateway.Profile{})
	capabilities := `{"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]},"io.modelcontextprotocol/tasks":{}},"x":1.0}`
	_, body, _ := h.post(url, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":`+capabilities+`,"clientInfo":{"name":"x","version":"1"}}}`, nil)
	got := wire.Get([]byte(body), "result", "capabilities")
	for path, want := range map[string]string{
		"extensions": `{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}}`,
		"tasks":      `{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}`, "odd": "", "completions": "{}", "resources": `{"listChanged":true,"subscribe":true}`,
	} {
		if value := string(wire.Get(got, path)); value != want {
			t.Errorf("%s: %s, want %s", path, value, want)
		}
	}
	if value := string(wire.Get(got, "experimental", "x")) + string(wire.Get(got, "experimental", "codex/tool-catalog-cache")); value != `{"of":"a"}` {
		t.Errorf("experiments: %s", wire.Get(got, "experimental"))
	}
	about := h.askModern(url, "x", wire.Discover, "", "{}")
	if tasks := wire.Get(about, "result", "capabilities", "tasks"); tasks != nil {
		t.Errorf("tasks of sessions offered to a stateless client: %s", tasks)
	}
	if tasks := wire.Get(about, "result", "capabilities", "extensions", wire.ExtensionTasks); tasks == nil {
		t.Errorf("tasks are not offered to a stateless client: %s", about)
	}
	// Servers know what their client can do, without tasks in the form that it cannot have.
	entry, err := h.recorder.Wait(h.ctx, func(e lab.Entry) bool { return e.Name == "b" && e.Method == wire.Discover })
	if err != nil {
		t.Fatal(err)
	}
	want := `{"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}},"x":1.0}`
	if who, _ := wire.ClientOf(wire.Get(entry.Message, "params")); string(who.Capabilities) != want {
		t.Errorf("a server of the other era was told %s, want %s", who.Capabilities, want)
	}
}

func TestLevelsOfLogsCrossTheEras(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "old", Tools: lab.Tools("log", "exit"), Capabilities: json.RawMessage(`{"tools":{},"logging":{}}`)},
		lab.Config{Name: "new", Era: lab.Modern, Tools: lab.Tools("log"), Capabilities: json.RawMessage(`{"tools":{},"logging":{}}`)})
	_, url := h.endpoint(gateway.Profile{})
	call := func(server, level, meta string) string {
		params := wire.WithClient(json.RawMessage(`{"name":"`+server+`__log","arguments":{"level":"`+level+`"},"_meta":{`+meta+`}}`), wire.Client{})
		_, body, _ := h.post(url, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":`+string(params)+`}`, modern(wire.ToolsCall, server+"__log"))
		return body
	}
	// A stateless request says what it wants: nothing, or from a level on.
	for level, heard := range map[string]bool{"": false, "warning": false, "info": true} {
		meta := ""
		if level != "" {
			meta = `"io.modelcontextprotocol/logLevel":"` + level + `"`
		}
		if got := call("old", "notice", meta); strings.Contains(got, "at notice") != heard {
			t.Errorf("asked for %q: %s", level, got)
		}
	}
	// A session's level is told to servers that run, to those that start later, and with each request to those that know no setLevel.
	session := h.opened(url, "y", "{}")
	if got := string(h.ask(url, session, wire.SetLevel, `{"level":"loud"}`)); !strings.Contains(got, "-32602") {
		t.Errorf("an unknown level: %s", got)
	}
	before := len(h.recorder.Select(lab.Received(wire.SetLevel)))
	h.ask(url, session, wire.SetLevel, `{"level":"error"}`)
	h.ask(url, session, wire.ToolsCall, `{"name":"old__exit","arguments":{}}`)
	for _, server := range []string{"old", "new"} {
		h.ask(url, session, wire.ToolsCall, `{"name":"`+server+`__log","arguments":{"level":"debug"}}`)
	}
	told, err := h.recorder.WaitN(h.ctx, before+2, lab.Received(wire.SetLevel))
	if err != nil {
		t.Fatal(err)
	}
	if told[before].PID == told[before+1].PID {
		t.Error("the server that was started anew was not told")
	}
	h.want(told[before+1].Message, "error", "params", "level")
	for _, e := range h.recorder.Select(func(e lab.Entry) bool { return e.Name == "new" && e.Method == wire.ToolsCall && e.What == "in" }) {
		h.want(e.Message, "error", "params", "_meta", wire.MetaLogLevel)
	}
	h.ask(url, session, wire.SetLevel, `{"level":"info"}`)
	if _, err := h.recorder.WaitN(h.ctx, before+3, lab.Received(wire.SetLevel)); err != nil {
		t.Error(err)
	}
}

func TestURIsThatAreNowhereListedAreRememberedWithinABound(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("links"), Resources: []json.RawMessage{resource("lab://r")}})
	_, url := h.endpoint(gateway.Profile{})
	session := h.opened(url, "x", "{}")
	long := strings.Repeat("x", 3<<20)
	for _, uri := range []string{"lab://first", "lab://" + long, "lab://second/" + long} {
		h.ask(url, session, wire.ToolsCall, `{"name":"s__links","arguments":{"uri":"`+uri+`"}}`)
	}
	for uri, known := range map[string]bool{"lab://first": false, "lab://" + long: false, "lab://second/" + long: true} {
		if got := string(h.ask(url, session, wire.ResourcesRead, `{"uri":"`+uri+`"}`)); strings.Contains(got, "not found") == known {
			t.Errorf("%.20s: %.200s", uri, got)
		}
	}
}
