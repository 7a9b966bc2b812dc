package authority

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"nightporter/internal/mcp/wire"
)

func callWith(meta string) json.RawMessage {
	return json.RawMessage(`{"name":"t", "arguments":{"a":1.0},"_meta":` + meta + `}`)
}

func TestStateTravelsByteForByteUnderBothNames(t *testing.T) {
	deep := strings.Repeat(`{"a":[`, 250) + "1" + strings.Repeat("]}", 250)
	for name, state := range map[string]string{
		"spaces, odd numbers and escapes": `{ "permissionProfile" : {"type":"managed"},"n":12345678901234567890,"f":1.0,"e":1e400,"u":"\u00e9\ud800","s":"ä</script>" }`,
		"one member twice":                `{"permissionProfile":{"type":"disabled"},"permissionProfile":{"type":"managed"}}`,
		"nested 500 deep":                 `{"x":` + deep + `}`,
		"a megabyte":                      `{"x":"` + strings.Repeat("y", 1<<20) + `"}`,
		"bytes that are no UTF-8":         "{\"x\":\"\xff\xfe\"}",
		"the keys themselves":             `{"codex/sandbox-state":{"codex/sandbox-launcher":1}}`,
	} {
		for given, meta := range map[string]string{
			"both":       fmt.Sprintf(`{"progressToken":7,%q:%s,%q:%s,"x":[ ]}`, MetaState, state, MetaStateLegacy, state),
			"the newer":  fmt.Sprintf(`{"progressToken":7,%q:%s,"x":[ ]}`, MetaState, state),
			"deprecated": fmt.Sprintf(`{"progressToken":7,"x":[ ],%q:%s}`, MetaStateLegacy, state),
		} {
			params := callWith(meta)
			a := Authority{}.Of(params)
			if a.Flaw != "" {
				t.Errorf("%s, %s: %s", name, given, a.Flaw)
				continue
			}
			sent, err := a.Attach(params, Launchers{})
			if err != nil {
				t.Errorf("%s, %s: %v", name, given, err)
			}
			for _, key := range []string{MetaState, MetaStateLegacy} {
				if got := wire.Get(sent, "_meta", key); string(got) != state {
					t.Errorf("%s, %s: %s is %.200s", name, given, key, got)
				}
			}
			if got := string(Strip(sent)); got != `{"name":"t", "arguments":{"a":1.0},"_meta":{"progressToken":7,"x":[ ]}}` {
				t.Errorf("%s, %s: without it the call is %s", name, given, got)
			}
		}
	}
}

func TestWhatAClientSaysOfItsSandboxInTwoWaysIsRefused(t *testing.T) {
	for name, meta := range map[string]string{
		"two states that differ":            `{"codex/sandbox-state":{"a":1},"codex/sandbox-state-meta":{"a":2}}`,
		"two states that differ by a space": `{"codex/sandbox-state":{"a":1},"codex/sandbox-state-meta":{"a": 1}}`,
		"a state twice":                     `{"codex/sandbox-state":{"a":1},"codex/sandbox-state":{"a":1}}`,
		"a state in another case":           `{"codex/Sandbox-State":{"a":1}}`,
		"a launcher twice":                  `{"codex/sandbox-launcher":{},"codex/sandbox-launcher":{}}`,
		"our launcher twice":                `{"nightporter/sandbox-launcher":{},"nightporter/sandbox-launcher":{}}`,
		"a state that is null":              `{"codex/sandbox-state":null}`,
		"a state that is a text":            `{"codex/sandbox-state":"{}"}`,
		"_meta that is no object":           `[]`,
	} {
		a := Authority{}.Of(callWith(meta))
		if check, reason := a.Refuse(Present{}); check != "sandbox" || !strings.Contains(reason, "sandbox") {
			t.Errorf("%s: %q, %s", name, check, reason)
		}
	}
	if a := (Authority{}).Of(json.RawMessage(`{"name":"t"}`)); a.Flaw != "" {
		t.Errorf("a call without _meta: %s", a.Flaw)
	}
}

func TestLauncherIsReadOnlyWhenItSaysOneThing(t *testing.T) {
	for launcher, want := range map[string]string{
		`{"codexExecutable":"/a/codex"}`:                             "/a/codex",
		`{"codexExecutable":"/\u00e4"}`:                              "/ä",
		`{"codexExecutable":"/a","codexExecutable":"/b"}`:            "",
		`{"codexExecutable":"/a","codexArguments":["--no-sandbox"]}`: "",
		`{"CodexExecutable":"/a"}`:                                   "",
		`{"codexExecutable":7}`:                                      "",
		`"/a"`:                                                       "",
		"{\n\"codexExecutable\":\"/a\"}":                             "",
		`{}`:                                                         "",
	} {
		a := Authority{}.Of(callWith(`{"codex/sandbox-launcher":` + launcher + `}`))
		if got := a.Executable(); got != want {
			t.Errorf("%s: %q, want %q", launcher, got, want)
		}
	}
}

func TestLaunchersGoWithAStateAlone(t *testing.T) {
	params := callWith(`{"codex/sandbox-launcher":{"codexExecutable":"/client"},"nightporter/sandbox-launcher":{"executable":"/client"},"k":1}`)
	l := Launchers{Codex: "/a", Own: "/b"}
	sent, err := Authority{}.Of(params).Attach(params, l)
	if err != nil || string(sent) != string(callWith(`{"k":1}`)) {
		t.Errorf("without a state: %s, %v", sent, err)
	}
	sent, err = Authority{}.Of(params).Under(`{"own":1}`).Attach(params, l)
	want := string(callWith(`{"k":1,"codex/sandbox-state":{"own":1},"codex/sandbox-state-meta":{"own":1},` +
		`"codex/sandbox-launcher":{"codexExecutable":"/a"},"nightporter/sandbox-launcher":{"executable":"/b"}}`))
	if err != nil || string(sent) != want {
		t.Errorf("with one: %s, %v", sent, err)
	}
	// What nobody verified is not passed on, whatever the client said.
	sent, err = Authority{}.Of(params).Under(`{"own":1}`).Attach(params, Launchers{})
	if err != nil || strings.Contains(string(sent), "client") {
		t.Errorf("not verified: %s, %v", sent, err)
	}
}

func TestStateOfSeveralLinesIsRefusedNotChanged(t *testing.T) {
	params := callWith("{\"codex/sandbox-state\":{\"a\":\n1}}")
	if _, err := (Authority{}).Of(params).Attach(params, Launchers{}); err == nil || !strings.Contains(err.Error(), "one line") {
		t.Errorf("error %v", err)
	}
}

func TestBothNamesAreAdvertisedBesideWhatIsThere(t *testing.T) {
	for given, want := range map[string]string{
		``:             `{"experimental":{"codex/sandbox-state":{},"codex/sandbox-state-meta":{}}}`,
		`{"tools":{}}`: `{"tools":{},"experimental":{"codex/sandbox-state":{},"codex/sandbox-state-meta":{}}}`,
		`{"experimental":{"codex/sandbox-state":{"version":1},"x":{}}}`: `{"experimental":{"codex/sandbox-state":{"version":1},"x":{},"codex/sandbox-state-meta":{}}}`,
	} {
		if got := string(Advertise(json.RawMessage(given))); got != want {
			t.Errorf("%s: %s", given, got)
		}
	}
	for capabilities, want := range map[string]bool{
		`{}`: false, `{"experimental":{}}`: false, `{"experimental":{"codex/sandbox-state":null}}`: true,
		`{"experimental":{"codex/sandbox-state-meta":{"version":1}}}`: true, `{"experimental":{"codex/sandbox-state-metas":{}}}`: false,
	} {
		if Advertised(json.RawMessage(capabilities)) != want {
			t.Errorf("%s: %v", capabilities, !want)
		}
	}
}

// Whatever a client sends, it is refused, or what is sent holds its state as it was and the rest of the call too.
func FuzzStateIsPassedOnOrRefused(f *testing.F) {
	f.Add([]byte(`{"codex/sandbox-state":{"a":1},"progressToken":1}`))
	f.Add([]byte(`{"codex/sandbox-state":{"a":1},"codex/sandbox-state-meta":{"a":1},"codex/sandbox-launcher":{"codexExecutable":"/x"}}`))
	f.Add([]byte(`{"codex\/sandbox-state":{"a":1}}`))
	f.Add([]byte(`{"a":1,"codex/sandbox-launcher":{},"codex/sandbox-launcher":{}}`))
	f.Fuzz(func(t *testing.T, meta []byte) {
		params := callWith(string(meta))
		if wire.Check(params) != nil {
			t.Skip()
		}
		a := Authority{}.Of(params)
		if a.Flaw != "" {
			return
		}
		sent, err := a.Attach(params, Launchers{Own: "/own"})
		if err != nil {
			return
		}
		if wire.Check(sent) != nil {
			t.Fatalf("what is sent is no JSON: %s", sent)
		}
		again := Authority{}.Of(sent)
		if again.Flaw != "" || again.Sandbox != a.Sandbox || again.Launcher != "" {
			t.Errorf("%s was sent as %s", params, sent)
		}
		if got, want := string(Strip(sent)), string(Strip(params)); got != want && a.Sandbox != "" && wire.Get(params, "_meta") != nil {
			t.Errorf("the rest is %s, was %s", got, want)
		}
	})
}
