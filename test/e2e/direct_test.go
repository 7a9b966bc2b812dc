package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nightporter/test/fakemodel"
	"nightporter/test/programs"
)

// An extra that is wired directly is the agent's own beside what stands behind the gateway, and its variables are resolved by us.
func TestAnExtraIsHandedToTheAgentItself(t *testing.T) {
	script := func() fakemodel.Script {
		return fakemodel.Replies(fakemodel.Calls("mine", "get-env", `{}`), call("everything", "echo", `{"message":"x"}`), fakemodel.Says("done"))
	}
	eachAgent(t, script, func(t *testing.T, w *world, p program) {
		w.config(w.everything("everything"))
		extra := filepath.Join(w.home, "np", "extra-mcp.json")
		w.write(extra, fmt.Sprintf(`{"mcpServers": {"mine": {"command": %q, "args": [%q], "wiring": "direct", "env": {"TOKEN_OF_MINE": "${MADE_UP_TOKEN}"}}}}`,
			programs.Find(t, "node"), programs.Everything(t)))

		r := w.run("run", "--agent", p.agent, "--server", "everything", "go")
		if r.code != 2 || !strings.Contains(r.stderr, "the variable MADE_UP_TOKEN is not set") {
			t.Fatalf("an unset variable: exit %d, %s", r.code, r.stderr)
		}
		w.env = append(w.env, "MADE_UP_TOKEN=made-up-value-of-mine")
		o, r := w.outcome("--agent", p.agent, "--server", "everything", "go")
		w.replied(o, r, "done")
		if !o.Boundary.Proven || !slices.Equal(o.Boundary.Servers, []string{"mine", "nightporter"}) {
			t.Errorf("boundary %+v", o.Boundary)
		}
		if len(o.ToolCalls) != 1 || o.ToolCalls[0].Server != "everything" {
			t.Errorf("calls through the gateway: %+v", o.ToolCalls)
		}
		if !strings.Contains(strings.Join(o.Boundary.Notes, "\n"), "not covered: the server mine is the agent's own") {
			t.Errorf("notes %q", o.Boundary.Notes)
		}
		if asked := w.model.ModelRequests(); !strings.Contains(string(asked[1].Body), "TOKEN_OF_MINE") {
			t.Error("the server did not get its variable")
		}
		if strings.Contains(r.stdout+r.stderr, "made-up-value-of-mine") {
			t.Error("the value was told")
		}
	})
}
