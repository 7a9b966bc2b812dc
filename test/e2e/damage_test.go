package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"nightporter/test/fakemodel"
	"nightporter/test/lab"
)

// malformed are definitions of tools, one of which is enough for one of the agents, where it gets it, to lose every tool of its server
// (measured: docs/decisions/0007-flaws.md).
func malformed() map[string]string {
	const schema = `"inputSchema":{"type":"object"}`
	with := func(member string) string { return `{"name":"bad",` + member + `,` + schema + `}` }
	return map[string]string{
		"no object":                     `5`,
		"no name":                       `{` + schema + `}`,
		"a name that is a number":       `{"name":5,` + schema + `}`,
		"an empty name":                 `{"name":"",` + schema + `}`,
		"two names":                     `{"name":"bad","name":"worse",` + schema + `}`,
		"half a character in its name":  `{"name":"a\ud800",` + schema + `}`,
		"no text as description":        with(`"description":null`),
		"a title that is a number":      with(`"title":5`),
		"no schema":                     `{"name":"bad"}`,
		"a schema of another type":      `{"name":"bad","inputSchema":{"type":"string"}}`,
		"a schema without type":         `{"name":"bad","inputSchema":{"oneOf":[{"type":"object"}]}}`,
		"a schema that is a list":       `{"name":"bad","inputSchema":[]}`,
		"properties that are a list":    `{"name":"bad","inputSchema":{"type":"object","properties":[]}}`,
		"required that is a text":       `{"name":"bad","inputSchema":{"type":"object","required":"a"}}`,
		"a number beyond all":           `{"name":"bad","inputSchema":{"type":"object","properties":{"a":{"maximum":1e400}}}}`,
		"a deep schema":                 `{"name":"bad","inputSchema":{"type":"object","a":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}}`,
		"a very deep schema":            `{"name":"bad","inputSchema":{"type":"object","a":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}}`,
		"half a character":              with(`"description":"a\ud800"`),
		"an output schema that is none": with(`"outputSchema":null`),
		"annotations that are a text":   with(`"annotations":"x"`),
		"a hint that is a text":         with(`"annotations":{"readOnlyHint":"yes"}`),
		"icons that are a text":         with(`"icons":"x"`),
		"an icon without source":        with(`"icons":[{}]`),
		"sizes of an old revision":      with(`"icons":[{"src":"https://example.com/i.png","sizes":"48x48"}]`),
		"execution of an unknown kind":  with(`"execution":{"taskSupport":"bogus"}`),
		"a list as _meta":               with(`"_meta":[]`),
	}
}

// One malformed definition costs that tool, and no agent another one.
func TestAMalformedToolCostsThatToolAlone(t *testing.T) {
	eachAgent(t, func() fakemodel.Script { return fakemodel.Replies(fakemodel.Says("done")) }, func(t *testing.T, w *world, p program) {
		var tools, good []string
		for what, raw := range malformed() {
			name := fmt.Sprintf("good%d", len(good))
			good = append(good, name)
			tools = append(tools, fmt.Sprintf(`{"name":%q,"description":%q,"inputSchema":{"type":"object"}}`, name, "Stands before "+what), raw)
		}
		tools = append(tools, `{"name":"last","inputSchema":{"type":"object"}}`, `{"name":"last","description":"again","inputSchema":{"type":"object"}}`)
		good = append(good, "last")
		file := filepath.Join(w.home, "odd.json")
		w.write(file, fmt.Sprintf(`{"name":"odd","tools":[%s],"prompts":[{"name":"p"},{"arguments":5}],"resources":[{"uri":"lab://a","name":"a"},{"uri":"lab://b"}]}`, strings.Join(tools, ",")))
		w.config(fmt.Sprintf("[mcp_servers.odd]\ncommand = %q\nargs = [%q]\n%s", lab.Binary(t), "@"+file, w.everything("other")))
		o, r := w.outcome("--agent", p.agent, "--server", "odd", "--server", "other", "hello")
		w.replied(o, r, "done")
		body := string(w.model.ModelRequests()[0].Body)
		for _, tool := range good {
			if !strings.Contains(body, "odd__"+tool+`"`) {
				t.Errorf("the model was not offered %s", tool)
			}
		}
		if !strings.Contains(body, "other__echo") {
			t.Error("the model was not offered the tools of another server")
		}
		for _, never := range []string{"odd__bad", "odd__worse", "again"} {
			if strings.Contains(body, never) {
				t.Errorf("the model was offered %s", never)
			}
		}
		told := 0
		for _, note := range o.Boundary.Notes {
			if strings.HasPrefix(note, "server odd: ") && (strings.Contains(note, "is not offered: it") || strings.Contains(note, "is listed twice")) {
				told++
			}
		}
		if want := len(malformed()) + 3; told != want {
			t.Errorf("%d of %d flaws are told: %q", told, want, o.Boundary.Notes)
		}
		w.inspects(r)
	})
}

// inspects checks that status of a later command names the flaws too.
func (w *world) inspects(result) {
	w.t.Helper()
	r := w.run("tools", "list", "--json", "--saved", "--server", "odd")
	var listed []struct{ Tool string }
	if err := json.Unmarshal([]byte(r.stdout), &listed); err != nil || len(listed) != len(malformed())+1 {
		w.t.Errorf("tools list: %v, %d tools", err, len(listed))
	}
}
