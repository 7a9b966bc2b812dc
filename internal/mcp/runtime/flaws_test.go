package runtime

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const fine = `"inputSchema":{"type":"object"}`

// Each of these lost Claude Code or a Codex the whole list when it was measured.
func TestWhatSomeClientCannotReadIsAFlaw(t *testing.T) {
	nested := func(levels int) string {
		return `{"name":"t","inputSchema":{"type":"object","x":` + strings.Repeat("[", levels-2) + strings.Repeat("]", levels-2) + `}}`
	}
	for _, c := range []struct{ raw, want string }{
		{`5`, "it is not an object"},
		{`null`, "it is not an object"},
		{`{` + fine + `}`, "it has no name"},
		{`{"name":5,` + fine + `}`, "its name is not a text"},
		{`{"name":"",` + fine + `}`, "its name is empty"},
		{`{"name":"t","name":"u",` + fine + `}`, `it has "name" twice`},
		{`{"name":"t","description":null,` + fine + `}`, "its description is not a text"},
		{`{"name":"t","title":5,` + fine + `}`, "its title is not a text"},
		{`{"name":"t"}`, "it has no inputSchema"},
		{`{"name":"t","inputSchema":true}`, "its inputSchema is not an object"},
		{`{"name":"t","inputSchema":{}}`, "its inputSchema has no type"},
		{`{"name":"t","inputSchema":{"type":["object"]}}`, `its inputSchema.type is not "object"`},
		{`{"name":"t","inputSchema":{"type":"object","properties":null}}`, "its inputSchema.properties is not an object"},
		{`{"name":"t","inputSchema":{"type":"object","required":"a"}}`, "its inputSchema.required is not a list"},
		{`{"name":"t","inputSchema":{"type":"object","required":["a",1]}}`, "its inputSchema.required[1] is not a text"},
		{`{"name":"t","outputSchema":null,` + fine + `}`, "its outputSchema is not an object"},
		{`{"name":"t","annotations":[],` + fine + `}`, "its annotations is not an object"},
		{`{"name":"t","annotations":{"readOnlyHint":"yes"},` + fine + `}`, "its annotations.readOnlyHint is not true or false"},
		{`{"name":"t","annotations":{"readOnlyHint":null},` + fine + `}`, "its annotations.readOnlyHint is not true or false"},
		{`{"name":"t","icons":[{"src":"a"},{}],` + fine + `}`, "its icons[1] has no src"},
		{`{"name":"t","icons":[{"src":"a","sizes":"48x48"}],` + fine + `}`, "its icons[0].sizes is not a list"},
		{`{"name":"t","icons":[{"src":"a","theme":"blue"}],` + fine + `}`, `its icons[0].theme is none of ["light" "dark"]`},
		{`{"name":"t","execution":{"taskSupport":"bogus"},` + fine + `}`, `its execution.taskSupport is none of ["forbidden" "optional" "required"]`},
		{`{"name":"t","_meta":null,` + fine + `}`, "its _meta is not an object"},
		{`{"name":"t","inputSchema":{"type":"object","properties":{"a":{"maximum":1e400}}}}`, "it has a number that cannot be represented"},
		{"{\"name\":\"t\",\"description\":\"a\xff\"," + fine + `}`, "it is not valid UTF-8"},
		{`{"name":"t","description":"a\ud800b",` + fine + `}`, `it has half a character, a surrogate such as \ud800 alone`},
		{`{"name":"t","description":"a\udc00",` + fine + `}`, `it has half a character, a surrogate such as \ud800 alone`},
		{nested(maxDepth + 1), "it is nested more than 120 deep"},

		{nested(maxDepth), ""},
		{`{"name":"t","description":"\\ud800 \ud83d\ude00 \u0000",` + fine + `}`, ""},
		{`{"name":"t",` + fine + `,"x-own":{"a":[null]},"Name":"other"}`, ""},
		{`{"name":"t","inputSchema":{"type":"object","oneOf":[],"properties":{"a":true,"b":{"maximum":123456789012345678901234567890}}},"outputSchema":{}}`, ""},
		{`{"name":"t","title":"T","icons":[{"src":"s","sizes":["any"],"theme":"dark"}],"execution":{"taskSupport":"optional"},"annotations":{"openWorldHint":false,"x":1},` + fine + `}`, ""},
	} {
		if got := flawOf(json.RawMessage(c.raw), toolShape); got != c.want {
			t.Errorf("%.200s\n got %q\nwant %q", c.raw, got, c.want)
		}
	}
}

func TestFlawsOfPromptsResourcesAndTemplates(t *testing.T) {
	for _, c := range []struct {
		is        shape
		raw, want string
	}{
		{promptShape, `{"name":"p","arguments":[{"name":"a","required":true}]}`, ""},
		{promptShape, `{}`, "it has no name"},
		{promptShape, `{"name":"p","arguments":{}}`, "its arguments is not a list"},
		{promptShape, `{"name":"p","arguments":[{"name":"a","required":"yes"}]}`, "its arguments[0].required is not true or false"},
		{promptShape, `{"name":"p","arguments":[{}]}`, "its arguments[0] has no name"},
		{resourceShape, `{"uri":"a://b","name":"b","size":3,"annotations":{"audience":["user"],"priority":0.5}}`, ""},
		{resourceShape, `{"name":"b"}`, "it has no uri"},
		{resourceShape, `{"uri":"a://b"}`, "it has no name"},
		{resourceShape, `{"uri":"a://b","name":"b","size":"3"}`, "its size is not a number"},
		{resourceShape, `{"uri":"a://b","name":"b","mimeType":null}`, "its mimeType is not a text"},
		{resourceShape, `{"uri":"a://b","name":"b","annotations":{"audience":"user"}}`, "its annotations.audience is not a list"},
		{templateShape, `{"uriTemplate":"a://{b}","name":"b"}`, ""},
		{templateShape, `{"uriTemplate":5,"name":"b"}`, "its uriTemplate is not a text"},
	} {
		if got := flawOf(json.RawMessage(c.raw), c.is); got != c.want {
			t.Errorf("%s\n got %q\nwant %q", c.raw, got, c.want)
		}
	}
}

// What is offered can be read by encoding/json, as far as it goes: it is as strict as any client where a type is concerned.
func TestWhatIsOfferedCanBeReadIntoTypes(t *testing.T) {
	values := []string{`null`, `true`, `5`, `1e400`, `"x"`, `"\ud800"`, `""`, `[]`, `["a"]`, `[1]`, `{}`, `{"type":"object"}`, `{"readOnlyHint":1}`, `[{"src":5}]`, `{"taskSupport":"required"}`}
	keys := []string{"name", "title", "description", "inputSchema", "outputSchema", "annotations", "icons", "execution", "_meta", "other"}
	rapid.Check(t, func(t *rapid.T) {
		raw := "{"
		for i := range rapid.IntRange(0, 6).Draw(t, "members") {
			if i > 0 {
				raw += ","
			}
			raw += `"` + rapid.SampledFrom(keys).Draw(t, "key") + `":` + rapid.SampledFrom(values).Draw(t, "value")
		}
		raw += "}"
		if flawOf(json.RawMessage(raw), toolShape) != "" {
			return
		}
		var typed struct {
			Name        *string
			Title       *string
			Description *string
			InputSchema struct {
				Type       string
				Properties map[string]any
				Required   []string
			}
			OutputSchema map[string]any
			Annotations  struct{ ReadOnlyHint bool }
			Icons        []struct{ Src string }
			Execution    struct{ TaskSupport string }
			Meta         map[string]any `json:"_meta"`
			Other        any
		}
		if err := json.Unmarshal([]byte(raw), &typed); err != nil || typed.Name == nil || *typed.Name == "" || typed.InputSchema.Type != "object" {
			t.Fatalf("%s is offered: %v", raw, err)
		}
	})
}

func FuzzFlawOf(f *testing.F) {
	for _, seed := range []string{`{"name":"t",` + fine + `}`, `{"name":"\ud800\\"}`, `[[[`, `{"a":"\`, "\xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		if flawOf(json.RawMessage(raw), toolShape) == "" && !json.Valid([]byte(raw)) {
			t.Errorf("%q is offered", raw)
		}
	})
}
