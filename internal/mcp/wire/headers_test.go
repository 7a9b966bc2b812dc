package wire

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestHeaderValuesComeBackAsTheyWent(t *testing.T) {
	for text, want := range map[string]string{
		"us-west1":           "us-west1",
		"us west 1":          "us west 1",
		"Hello, 世界":          "=?base64?SGVsbG8sIOS4lueVjA==?=",
		" padded ":           "=?base64?IHBhZGRlZCA=?=",
		"line1\nline2":       "=?base64?bGluZTEKbGluZTI=?=",
		"=?base64?literal?=": "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=",
		"":                   "=?base64??=",
	} {
		if got := HeaderValue(text); got != want {
			t.Errorf("HeaderValue(%q) = %q, want %q", text, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		value := HeaderValue(text)
		if strings.TrimSpace(value) != value {
			t.Fatalf("%q would be trimmed", value)
		}
		if back, ok := FromHeader(value); !ok || back != text {
			t.Fatalf("%q became %q, %v", text, back, ok)
		}
	})
}

func TestHeaderValuesThatAreNoneAreRefused(t *testing.T) {
	for _, value := range []string{"=?base64?SGVsbG8?=", "=?base64?SGVs!!!bG8=?=", "é", "a\x00b", "=?base64?SGVsbG9=?="} {
		if text, ok := FromHeader(value); ok {
			t.Errorf("%q was read as %q", value, text)
		}
	}
	for _, literal := range []string{"SGVsbG8=", "=?base64?SGVsbG8=", "SGVsbG8=?=", "=?BASE64?SGVsbG8=?="} {
		if text, ok := FromHeader(literal); !ok || text != literal {
			t.Errorf("%q was read as %q, %v", literal, text, ok)
		}
	}
}

func TestParamHeadersFollowTheRulesForDeclarations(t *testing.T) {
	property := func(schema string) string { return `{"type":"object","properties":{"p":` + schema + `}}` }
	for schema, want := range map[string]string{
		`{"type":"object"}`: "",
		property(`{"type":"string","x-mcp-header":"Region"}`):                                     "Mcp-Param-Region p",
		property(`{"type":["integer","null"],"x-mcp-header":"N"}`):                                "Mcp-Param-N p",
		property(`{"type":"string","x-mcp-h\u0065ader":"Region"}`):                                "Mcp-Param-Region p",
		property(`{"type":"object","properties":{"q":{"type":"boolean","x-mcp-header":"Deep"}}}`): "Mcp-Param-Deep p.q",
		// A property of that name, and data, declare nothing.
		`{"type":"object","properties":{"x-mcp-header":{"type":"string"}}}`:                        "",
		property(`{"type":"object","default":{"x-mcp-header":1},"examples":[{"x-mcp-header":2}]}`): "",
	} {
		headers, err := ParamHeaders(json.RawMessage(schema))
		var got []string
		for _, h := range headers {
			got = append(got, h.Name+" "+strings.Join(h.Path, "."))
		}
		if err != nil || strings.Join(got, ",") != want {
			t.Errorf("%s: %v, %v, want %s", schema, got, err, want)
		}
	}
	for _, schema := range []string{
		property(`{"type":"string","x-mcp-header":""}`),
		property(`{"type":"string","x-mcp-header":1}`),
		property(`{"type":"string","x-mcp-header":"My Region"}`),
		property(`{"type":"string","x-mcp-header":"Region:Primary"}`),
		property(`{"type":"string","x-mcp-header":"Région"}`),
		property(`{"type":"string","x-mcp-header":"Region\t1"}`),
		property(`{"type":"object","x-mcp-header":"X"}`),
		property(`{"type":"array","x-mcp-header":"X"}`),
		property(`{"type":"null","x-mcp-header":"X"}`),
		property(`{"type":"number","x-mcp-header":"X"}`),
		property(`{"x-mcp-header":"X"}`),
		property(`{"type":"array","items":{"type":"string","x-mcp-header":"X"}}`),
		property(`{"anyOf":[{"type":"string","x-mcp-header":"X"}]}`),
		property(`{"if":{"properties":{"q":{"type":"string","x-mcp-header":"X"}}}}`),
		`{"type":"object","x-mcp-header":"X"}`,
		`{"type":"object","$defs":{"d":{"type":"string","x-mcp-header":"X"}}}`,
		`{"type":"object","properties":{"a":{"type":"string","x-mcp-header":"F"},"b":{"type":"string","x-mcp-header":"f"}}}`,
	} {
		if headers, err := ParamHeaders(json.RawMessage(schema)); err == nil {
			t.Errorf("%s: %v", schema, headers)
		}
	}
}

func TestParamHeadersMustSayWhatTheArgumentsSay(t *testing.T) {
	h := ParamHeader{"Mcp-Param-X", []string{"a", "b"}}
	for _, c := range []struct {
		arguments string
		header    []string
		good      bool
	}{
		{`{"a":{"b":"v"}}`, []string{"v"}, true},
		{`{"a":{"b":"v"}}`, []string{"=?base64?dg==?="}, true},
		{`{"a":{"b":"v"}}`, []string{"w"}, false},
		{`{"a":{"b":"v"}}`, nil, false},
		{`{"a":{"b":"v"}}`, []string{"v", "v"}, false},
		{`{"a":{"b":""}}`, []string{""}, true},
		{`{"a":{"b":""}}`, []string{"=?base64??="}, true},
		{`{"a":{"b":42}}`, []string{"42"}, true},
		{`{"a":{"b":42.0}}`, []string{"42"}, true},
		{`{"a":{"b":42}}`, []string{"42.0"}, true},
		{`{"a":{"b":42}}`, []string{"43"}, false},
		{`{"a":{"b":"42"}}`, []string{"42.0"}, false},
		{`{"a":{"b":true}}`, []string{"true"}, true},
		{`{"a":{"b":true}}`, []string{"True"}, false},
		{`{"a":{"b":null}}`, nil, true},
		{`{"a":{"b":null}}`, []string{"null"}, false},
		{`{"a":{}}`, nil, true},
		{`{"a":{}}`, []string{""}, false},
		{``, nil, true},
	} {
		if err := h.Check(c.header, json.RawMessage(c.arguments)); (err == nil) != c.good {
			t.Errorf("%s with %q: %v", c.arguments, c.header, err)
		}
	}
}

func FuzzParamHeaders(f *testing.F) {
	f.Add([]byte(`{"type":"object","properties":{"p":{"type":"string","x-mcp-header":"Region"}}}`), []byte(`{"p":"x"}`))
	f.Add([]byte(`{"properties":{"p":{"properties":{"q":{"type":"integer","x-mcp-header":"N"}}}}}`), []byte(`{"p":{"q":1.0}}`))
	f.Fuzz(func(t *testing.T, schema, arguments []byte) {
		if Check(schema) != nil || Check(arguments) != nil {
			return
		}
		headers, err := ParamHeaders(schema)
		if err != nil {
			return
		}
		var names []string
		for _, h := range headers {
			if slices.Contains(names, strings.ToLower(h.Name)) {
				t.Errorf("%s twice", h.Name)
			}
			names = append(names, strings.ToLower(h.Name))
			// What we would send, we would take.
			if text, ok := h.Of(arguments); ok {
				if err := h.Check([]string{HeaderValue(text)}, arguments); err != nil {
					t.Error(err)
				}
			}
		}
	})
}
