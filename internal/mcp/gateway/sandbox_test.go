package gateway_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"nightporter/internal/mcp/authority"
	"nightporter/internal/mcp/gateway"
	"nightporter/internal/mcp/wire"
	"nightporter/test/lab"
)

var asksForState = json.RawMessage(`{"codex/sandbox-state":{"version":1},"x":{}}`)

// Clients send their sandbox state to servers alone that ask for it, so that the gateway asks, whatever is behind it (A29).
func TestA29BothNamesAreAdvertisedToEveryClient(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "plain", Tools: lab.Tools("pid")}, lab.Config{Name: "asks", Tools: lab.Tools("pid"), Experimental: asksForState})
	for _, single := range []string{"", "plain", "asks"} {
		_, url := h.endpoint(gateway.Profile{Single: single})
		_, session, _ := h.post(url, initialize, nil)
		_, stateless, _ := h.post(url, `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{`+triple+`}}`,
			map[string]string{"MCP-Protocol-Version": wire.Modern, "Mcp-Method": wire.Discover})
		want := `{}`
		if single == "asks" {
			want = `{"version":1}`
		}
		for era, answer := range map[string]string{"session": session, "stateless": stateless} {
			experimental := wire.Get([]byte(answer), "result", "capabilities", "experimental")
			if string(wire.Get(experimental, authority.MetaState)) != want || string(wire.Get(experimental, authority.MetaStateLegacy)) != `{}` {
				t.Errorf("single %q, %s era: %s", single, era, answer)
			}
			if wire.Get([]byte(answer), "result", "capabilities", "tools") == nil || (single != "plain") != (wire.Get(experimental, "x") != nil) {
				t.Errorf("single %q, %s era: the rest is not as it was: %s", single, era, answer)
			}
		}
	}
}

// called is the _meta of the last call that came to a server.
func (h *house) called(n int) json.RawMessage {
	h.t.Helper()
	calls, err := h.recorder.WaitN(h.ctx, n, lab.Received(wire.ToolsCall))
	if err != nil {
		h.t.Fatal(err)
	}
	return wire.Get(calls[n-1].Message, "params", "_meta")
}

func metaCall(id int, meta string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"asks__pid","arguments":{},"_meta":%s}}`, id, meta)
}

// What a client of HTTP names as its launcher is a path of this machine by somebody who may be elsewhere: it is neither executed nor
// passed on, from loopback neither. A client that started us may name one.
func TestA29LauncherIsTakenOfStdioClientsAlone(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "asks", Tools: lab.Tools("pid"), Experimental: asksForState})
	dir := t.TempDir()
	asked := filepath.Join(dir, "asked")
	launcher := filepath.Join(dir, "launcher")
	if err := os.WriteFile(launcher, fmt.Appendf(nil, "#!/bin/sh\necho x >%s\necho --sandbox-state-json\n", asked), 0o700); err != nil {
		t.Fatal(err)
	}
	meta := fmt.Sprintf(`{"codex/sandbox-state":{"a":1},"codex/sandbox-launcher":{"codexExecutable":%q}}`, launcher)
	executed := func() bool { _, err := os.Stat(asked); return err == nil }

	_, url := h.endpoint(gateway.Profile{})
	_, body, _ := h.post(url, metaCall(1, meta), h.session(url))
	if got := h.called(1); wire.Get(got, authority.MetaLauncher) != nil || string(wire.Get(got, authority.MetaState)) != `{"a":1}` || executed() {
		t.Errorf("over HTTP: %s, executed: %v; %s", got, executed(), body)
	}
	_, body, _ = h.post(url, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"asks__pid","arguments":{},`+strings.TrimSuffix(triple, "}")+","+meta[1:]+`}}`,
		map[string]string{"MCP-Protocol-Version": wire.Modern, "Mcp-Method": wire.ToolsCall, "Mcp-Name": "asks__pid"})
	if got := h.called(2); wire.Get(got, authority.MetaLauncher) != nil || string(wire.Get(got, authority.MetaState)) != `{"a":1}` || executed() {
		t.Errorf("over HTTP, stateless: %s, executed: %v; %s", got, executed(), body)
	}
	w := h.dial(gateway.Profile{}, false)
	w.say(initialize, metaCall(1, meta))
	w.hear(`"id":1,`)
	if got, _ := wire.GetString(h.called(3), authority.MetaLauncher, "codexExecutable"); got != launcher || !executed() {
		t.Errorf("over stdio: %q, executed: %v", got, executed())
	}
}

// States that nobody would write come through whole, or are refused and told why, from clients of both transports.
func TestA28OddStatesPassTheGatewayWholeOrAreRefused(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "asks", Tools: lab.Tools("pid"), Experimental: asksForState})
	_, url := h.endpoint(gateway.Profile{})
	session := h.session(url)
	w := h.dial(gateway.Profile{}, false)
	w.say(initialize)
	w.hear(`"id":0,`)
	calls := 0
	send := map[string]func(meta string) string{
		"HTTP": func(meta string) string { _, body, _ := h.post(url, metaCall(calls+7, meta), session); return body },
		"stdio": func(meta string) string {
			calls++ // an id of its own
			w.say(metaCall(calls+1000, meta))
			answer := w.hear(fmt.Sprintf(`"id":%d,`, calls+1000))
			calls--
			return answer
		},
	}
	for name, state := range map[string]string{
		"1 MB":           `{"x":"` + strings.Repeat("a", 1<<20) + `"}`,
		"500 deep":       strings.Repeat(`{"a":[`, 250) + strings.Repeat(`]}`, 250),
		"duplicate keys": `{"permissionProfile":{"type":"disabled"},"permissionProfile":{"type":"managed"}}`,
	} {
		for transport, send := range send {
			answer := send(`{"codex/sandbox-state":` + state + `}`)
			if !strings.Contains(answer, `"content"`) || strings.Contains(answer, "isError") {
				t.Fatalf("%s over %s: %.500s", name, transport, answer)
			}
			calls++
			got := h.called(calls)
			for _, key := range []string{authority.MetaState, authority.MetaStateLegacy} {
				if string(wire.Get(got, key)) != state {
					t.Errorf("%s over %s: it was changed", name, transport)
				}
			}
		}
	}
	for name, meta := range map[string]string{
		"two states":    `{"codex/sandbox-state":{"a":1},"codex/sandbox-state-meta":{"a":2}}`,
		"a state twice": `{"codex/sandbox-state":{"a":1},"codex/sandbox-state":{"a":1}}`,
		"no object":     `{"codex/sandbox-state":"x"}`,
		"several lines": "{\"codex/sandbox-state\":{\n}}",
	} {
		for transport, send := range send {
			if transport == "stdio" && name == "several lines" {
				continue // a frame is one line there
			}
			if answer := send(meta); !strings.Contains(answer, `"isError":true`) || !strings.Contains(answer, "sandbox") {
				t.Errorf("%s over %s: %s", name, transport, answer)
			}
		}
	}
	if n := len(h.recorder.Select(lab.Received(wire.ToolsCall))); n != calls {
		t.Errorf("%d calls came to the server, not %d", n, calls)
	}
}
