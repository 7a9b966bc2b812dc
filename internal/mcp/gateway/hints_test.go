package gateway_test

import (
	"strings"
	"testing"

	"nightporter/internal/mcp/gateway"
	"nightporter/internal/mcp/wire"
	"nightporter/test/lab"
)

func TestAListIsGoodForNoLongerThanItsServersSay(t *testing.T) {
	never, short, long := 0, 500, 3_600_000
	for name, c := range map[string]struct {
		ttl  *int
		want string
	}{
		"never":   {&never, "0"},
		"short":   {&short, "500"},
		"long":    {&long, "10000"},
		"no hint": {nil, "10000"}, // of a session server
	} {
		t.Run(name, func(t *testing.T) {
			config := lab.Config{Name: "s", Tools: lab.Tools("echo"), TTL: c.ttl, Era: lab.Modern}
			if c.ttl == nil {
				config.Era = lab.Legacy
			}
			h := newHouse(t, config)
			for _, single := range []string{"", "s"} {
				_, url := h.endpoint(gateway.Profile{Single: single})
				answer := h.askModern(url, "x", wire.ToolsList, "", `{}`)
				if got := string(wire.Get(answer, "result", "ttlMs")); got != c.want {
					t.Errorf("single %q: ttlMs %s, want %s: %s", single, got, c.want, answer)
				}
			}
		})
	}
}

func TestAToolThatIsNotThereIsAnErrorOfTheProtocol(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("echo")})
	for _, single := range []string{"", "s"} {
		_, url := h.endpoint(gateway.Profile{Single: single})
		session := h.opened(url, "x", "{}")
		for name, answer := range map[string][]byte{
			"session":   h.ask(url, session, wire.ToolsCall, `{"name":"nothing"}`),
			"stateless": h.askModern(url, "x", wire.ToolsCall, "nothing", `{"name":"nothing"}`),
		} {
			if got := string(wire.Get(answer, "error", "code")); got != "-32602" {
				t.Errorf("single %q, %s: %s", single, name, answer)
			}
		}
	}
}

func TestAToolOfAServerThatIsStartingIsToldAsThat(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("echo"), Methods: map[string]lab.Fault{wire.Initialize: {Hold: true}}})
	url := h.serve(gateway.New(h.rt, gateway.Profile{Dir: t.TempDir()}, "test", nil)) // without grace
	session := h.opened(url, "x", "{}")
	answer := h.ask(url, session, wire.ToolsCall, `{"name":"s__echo","arguments":{}}`)
	if text, _ := wire.GetString(answer, "error", "message"); !strings.Contains(text, "still starting") {
		t.Errorf("while its server starts a tool is told as %s", answer)
	}
	if err := h.recorder.Release(h.ctx); err != nil {
		t.Fatal(err)
	}
}
