package wire

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParseKeepsEveryByteThatItDoesNotRoute(t *testing.T) {
	params := `{ "n":12345678901234567890,"f":1.0,"big":1e400,"dup":1,"dup":2,"<&>":"\u003c é" }`
	in := `{"x-unknown":{"a":[1 ,2]},"method":"tools/call","params":` + params + `,"jsonrpc":"2.0","id":"a\u0062"}`
	m, err := Parse([]byte(in))
	if err != nil {
		t.Fatal(err)
	}
	if string(m.Params) != params {
		t.Errorf("params changed:\n%s\n%s", m.Params, params)
	}
	want := `{"jsonrpc":"2.0","id":"a\u0062","method":"tools/call","params":` + params + `,"x-unknown":{"a":[1 ,2]}}`
	if got := string(m.Append(nil)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestParseRefusesFramesThatCanBeReadInTwoWays(t *testing.T) {
	for _, in := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call"}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/list","Method":"tools/call"}`,
		`{"jsonrpc":"2.0","id":1,"ID":2,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":{},"method":"ping"}`,
		`{"jsonrpc":"2.0","id":null,"method":"ping"}`,
		`{"jsonrpc":"1.0","id":1,"method":"ping"}`,
		`{"id":1,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":1}`,
		`{"jsonrpc":"2.0","result":{}}`,
		`{"jsonrpc":"2.0","id":1,"method":""}`,
		`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`,
		`{"jsonrpc":"2.0","id":1,"method":"ping"} x`,
		``, `null`, `{`, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"pi\nng\"}",
	} {
		if m, err := Parse([]byte(in)); err == nil {
			t.Errorf("%s was read as %+v", in, m)
		}
	}
}

func TestAppendIsOneLine(t *testing.T) {
	m := Message{ID: IntID(7), Method: "m", Params: json.RawMessage("{\r\n  \"a\": \"b\\nc\"\n}")}
	if got, want := string(m.Append(nil)), `{"jsonrpc":"2.0","id":7,"method":"m","params":{    "a": "b\nc" }}`; got != want {
		t.Errorf("got %s", got)
	}
}

func TestSet(t *testing.T) {
	for _, c := range []struct {
		in, value string
		path      []string
		want      string
	}{
		{`{"name":"a","arguments":{"x": 1.0}}`, `"b"`, []string{"name"}, `{"name":"b","arguments":{"x": 1.0}}`},
		{`{}`, `1`, []string{"a"}, `{"a":1}`},
		{` { "a" : 1 } `, `2`, []string{"b"}, ` { "a" : 1,"b":2} `},
		{``, `1`, []string{"_meta", "k"}, `{"_meta":{"k":1}}`},
		{`{"_meta":{"a":1,"k":0}}`, `1`, []string{"_meta", "k"}, `{"_meta":{"a":1,"k":1}}`},
		{`{"_meta":3}`, `1`, []string{"_meta", "k"}, `{"_meta":{"k":1}}`},
		{`{"k":1,"a":2,"k":3}`, `9`, []string{"k"}, `{"k":9,"a":2,"k":9}`},
		{`{"a":1,"b":2,"c":3}`, ``, []string{"a"}, `{"b":2,"c":3}`},
		{`{"a":1,"b":2,"c":3}`, ``, []string{"b"}, `{"a":1,"c":3}`},
		{`{"a":1,"b":2,"c":3}`, ``, []string{"c"}, `{"a":1,"b":2}`},
		{`{"a":1}`, ``, []string{"a"}, `{}`},
		{`{"a":1}`, ``, []string{"b"}, `{"a":1}`},
		{`{"b":1,"a":2,"a":3}`, ``, []string{"a"}, `{"b":1}`},
		{`{"a":2,"b":1,"a":3}`, ``, []string{"a"}, `{"b":1}`},
		{`{"a":{"x":1,"y":2}}`, ``, []string{"a", "x"}, `{"a":{"y":2}}`},
		{`{"a":1}`, ``, []string{"b", "c"}, `{"a":1}`},
	} {
		var value json.RawMessage
		if c.value != "" {
			value = json.RawMessage(c.value)
		}
		if got := string(Set([]byte(c.in), value, c.path...)); got != c.want {
			t.Errorf("Set(%s, %s, %q) = %s, want %s", c.in, c.value, c.path, got, c.want)
		}
	}
}

func TestSetChangesNothingElse(t *testing.T) {
	keys := rapid.SampledFrom([]string{"a", "b", "c", "name", "_meta"})
	values := rapid.SampledFrom([]string{`1`, `1e400`, `"x"`, `{"a":[{}],"b":null}`, `[]`, `"\u00e9"`, ` {"k" : 1 } `})
	rapid.Check(t, func(t *rapid.T) {
		var members []string
		for range rapid.IntRange(0, 6).Draw(t, "n") {
			members = append(members, string(Quote(keys.Draw(t, "key")))+":"+values.Draw(t, "value"))
		}
		in := []byte("{" + strings.Join(members, ",") + "}")
		before := bytes.Clone(in)
		key := keys.Draw(t, "set")
		var value json.RawMessage
		if rapid.Bool().Draw(t, "replace") {
			value = json.RawMessage(`"new"`)
		}
		out := Set(in, value, key)
		if !bytes.Equal(in, before) {
			t.Fatalf("the input was changed to %s", in)
		}
		was, _ := Members(in)
		is, err := Members(out)
		if err != nil {
			t.Fatalf("Set(%s, %s, %s) = %s: %v", in, value, key, out, err)
		}
		rest := func(members []Member) (kept []string) {
			for _, m := range members {
				if m.Key != key {
					kept = append(kept, m.Key+":"+string(m.Value))
				}
			}
			return kept
		}
		if got, want := strings.Join(rest(is), "|"), strings.Join(rest(was), "|"); got != want {
			t.Fatalf("Set(%s, %s, %s) = %s: others changed", in, value, key, out)
		}
		if got := Get(out, key); string(got) != string(value) {
			t.Fatalf("Set(%s, %s, %s) = %s", in, value, key, out)
		}
	})
}

func TestClientMetaComesAndGoesWithoutTouchingTheRest(t *testing.T) {
	params := json.RawMessage(`{"name":"x","_meta":{"progressToken":1.50,"other":{"a":1e400}}}`)
	c := Client{Version: Modern, Capabilities: json.RawMessage(`{"roots":{}}`), Info: json.RawMessage(`{"name":"n"}`)}
	with := WithClient(params, c)
	got, ok := ClientOf(with)
	if !ok || got.Version != Modern || string(got.Capabilities) != `{"roots":{}}` || string(got.Info) != `{"name":"n"}` {
		t.Errorf("ClientOf = %+v, %v", got, ok)
	}
	if back := WithoutClient(with); string(back) != string(params) {
		t.Errorf("back: %s", back)
	}
	if back := WithoutClient(WithClient(json.RawMessage(`{"a":1}`), c)); string(back) != `{"a":1}` {
		t.Errorf("back: %s", back)
	}
}

var seeds = []string{
	`{}`, `[]`, `null`, `0`, `-0.5e-3`, `"\ud83d\ude00"`, `{"a":[1,2,{"b":null}],"c":"d"}`, `[[[[]]],{}]`, ` [ 1 , 2 ] `,
	`{"a":1,}`, `[1,]`, `01`, `1.`, `1e`, `-`, `"\x"`, "\"\x01\"", `{"a"}`, `{"a":}`, `tru`, `{"a":1 "b":2}`, "\xff", "\"\xff\"", `{,}`, `{"a":1,"a":2}`,
	`{"jsonrpc":"2.0","id":1,"method":"m","params":{}}`, `{"jsonrpc":"2.0","id":"x","result":null}`,
}

func FuzzCheckAgreesWithEncodingJSON(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, want := Check(b) == nil, json.Valid(b); got != want {
			t.Errorf("Check(%q) = %v, encoding/json says %v", b, Check(b), want)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			return
		}
		line := m.Append(nil)
		if bytes.ContainsAny(line, "\r\n") {
			t.Errorf("Append(%q) = %q is not one line", b, line)
		}
		again, err := Parse(line)
		if err != nil {
			t.Fatalf("Parse(%q): %v; of %q", line, err, b)
		}
		if !bytes.Equal(again.Append(nil), line) || again.Method != m.Method {
			t.Errorf("%q became %q", line, again.Append(nil))
		}
	})
}

func TestDeepNestingEnds(t *testing.T) {
	for _, depth := range []int{500, maxDepth, maxDepth + 1} {
		text := strings.Repeat("[", depth) + strings.Repeat("]", depth)
		if err := Check([]byte(text)); (err == nil) != (depth <= maxDepth) {
			t.Errorf("depth %d: %v", depth, err)
		}
	}
}

func TestErrorsOfPeersKeepEveryByte(t *testing.T) {
	raw := json.RawMessage(`{"code":-32002, "hint":"kept","message":"m","data":null,"n":1e400}`)
	e := AsRPCError(raw)
	if got := string(e.Raw()); got != string(raw) {
		t.Errorf("passed on as %s", got)
	}
	changed := e.WithCode(CodeInvalidParams)
	want := `{"code":-32602, "hint":"kept","message":"m","data":null,"n":1e400}`
	if got := string(changed.Raw()); got != want || changed.Code != CodeInvalidParams || e.Code != CodeResourceNotFound {
		t.Errorf("with another code %s, of %d and %d", got, changed.Code, e.Code)
	}
}

func TestMapElementsChangesNothingElse(t *testing.T) {
	in := ` [ {"a":1} , 1e400,"x" ,[ ] ] `
	if got := MapElements(json.RawMessage(in), func(e json.RawMessage) json.RawMessage { return e }); string(got) != in {
		t.Errorf("got %s", got)
	}
	got := MapElements(json.RawMessage(in), func(e json.RawMessage) json.RawMessage {
		if string(e) == `"x"` {
			return json.RawMessage(`"why"`)
		}
		return e
	})
	if want := ` [ {"a":1} , 1e400,"why" ,[ ] ] `; string(got) != want {
		t.Errorf("got %s", got)
	}
	for _, none := range []string{``, `{}`, `[1,]`, `[1] 2`} {
		if got := MapElements(json.RawMessage(none), func(json.RawMessage) json.RawMessage { return json.RawMessage("9") }); string(got) != none {
			t.Errorf("%s became %s", none, got)
		}
	}
}

func TestFrameIsOneLineOfUTF8(t *testing.T) {
	m, err := Parse([]byte("{\"jsonrpc\":\"2.0\",\n\"method\":\"m\",\"params\":{\r\n\"a\":\"\xff\xc3\"}}"))
	if err != nil {
		t.Fatal(err)
	}
	want := "{\"jsonrpc\":\"2.0\",\"method\":\"m\",\"params\":{  \"a\":\"\uFFFD\"}}"
	if got := string(m.Append(nil)); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestTheIDOfAnAnswerThatCannotBeReadIsFound(t *testing.T) {
	for text, want := range map[string]string{
		`{"jsonrpc":"2.0","id":7,"result":{"content":[{"ty`: "7",
		`{"id": "a\"b" , "result" : [[[`:                    `"a\"b"`,
		`{"result":{},"id":7}`:                              "7",
		`{"result":{"id":1},"id`:                            "",
		`{"result":{`:                                       "",
		`{"id":7,"method":"x","params":{`:                   "",
		`{"id":7`:                                           "7",
		`{"id":null,"result":{`:                             "",
		`{"id":{"id":7},"error":`:                           "",
		`[{"id":7}]`:                                        "",
		``:                                                  "",
		`{`:                                                 "",
		`x{"id":7}`:                                         "",
	} {
		if got := string(AnswerID([]byte(text))); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
