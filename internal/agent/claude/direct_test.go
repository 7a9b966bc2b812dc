package claude

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nightporter/internal/agent"
	"nightporter/internal/secret"
	"nightporter/test/fakemodel"
	"nightporter/test/programs"
)

// calls is a step that calls several tools: names and arguments in turn.
func calls(words ...string) (step fakemodel.Step) {
	for i := 0; i < len(words); i += 2 {
		step.Parts = append(step.Parts, fakemodel.Part{Call: &fakemodel.Call{Name: words[i], Arguments: json.RawMessage(words[i+1])}})
	}
	return step
}

// TestRealDirectServersArePlannedVerifiedAndNamed hands the real program two servers of its own beside the gateway.
func TestRealDirectServersArePlannedVerifiedAndNamed(t *testing.T) {
	other := startGateway(t, "look up", "remove", "extra")
	h := newHouse(t,
		calls("mcp__fly_io__look_up", "{}", "mcp__fly_io__extra", "{}", "mcp__everything__get-env", "{}"),
		calls("mcp__nightporter__crm__get", "{}", "mcp__fly_io__remove", "{}"),
		fakemodel.Says("done"))
	r := h.request(t, "go", startGateway(t, "crm__get"))
	everything := programs.Everything(t)
	r.Env = append(r.Env, "OPERATORS_SECRET=not-for-servers")
	r.Direct = []agent.Direct{
		{
			Name: "everything", Command: programs.Find(t, "node"), Args: []string{everything, "stdio"}, Env: map[string]secret.String{"ONLY_MINE": secret.New("value-of-env")},
			Written: secret.New(`{"command": "${NODE}", "wiring": "direct", "alwaysLoad": true}`),
		},
		{
			Name: "fly.io", URL: secret.New(other.URL), Headers: map[string]secret.String{"Authorization": secret.New("Bearer " + testToken)},
			Allow: []string{"look up", "remove"}, Deny: []string{"remove"},
		},
	}
	out := run(t, r, nil)
	if out.Err != nil || out.Reply != "done" || !out.Proof.Proven {
		t.Fatalf("error %v, reply %q, proof %+v", out.Err, out.Reply, out.Proof)
	}
	if want := []string{"everything", "fly.io", "nightporter"}; !slices.Equal(out.Proof.Servers, want) {
		t.Errorf("servers %q, want %q", out.Proof.Servers, want)
	}
	if !slices.Contains(out.Proof.Tools, "mcp__fly.io__look up") || !slices.Contains(out.Proof.Tools, "mcp__everything__echo") {
		t.Errorf("tools %q", out.Proof.Tools)
	}
	if got := other.calls(); !slices.Equal(got, []string{"look up{}"}) {
		t.Errorf("the direct server was called %q", got)
	}
	if got := out.Denials; !slices.Contains(got, "mcp__fly.io__extra") {
		t.Errorf("denials %q", got)
	}
	var named []string
	for _, e := range out.events {
		if e.Kind == agent.EventTool {
			named = append(named, e.Tool)
		}
	}
	if want := []string{"mcp__fly.io__look up", "mcp__fly.io__extra", "mcp__everything__get-env", "mcp__crm__get", "mcp__fly.io__remove"}; !slices.Equal(named, want) {
		t.Errorf("tools used %q, want %q", named, want)
	}
	if body := string(h.model.ModelRequests()[1].Body); !strings.Contains(body, "value-of-env") || strings.Contains(body, "not-for-servers") {
		t.Error("the server's environment is not its own env, or has the operator's secret")
	}
	if open := strings.Join(out.Proof.Rings[0].Open, "\n"); !strings.Contains(open, "calls are not in the audit record") {
		t.Errorf("not covered: %s", open)
	}
	if argv := strings.Join(out.launch.Argv, " "); strings.Contains(argv, testToken) || strings.Contains(argv, "value-of-env") {
		t.Error("a credential is on the command line")
	}
}

func TestRealDirectServerRunsInItsOwnFolder(t *testing.T) {
	h := newHouse(t, fakemodel.Says("done"))
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := h.request(t, "go", nil)
	r.Direct = []agent.Direct{{
		Name: "here", Cwd: dir, Command: "/bin/sh", Args: []string{"-c", `pwd > pwd; exec "$@"`, "sh", programs.Find(t, "node"), programs.Everything(t), "stdio"},
	}}
	run(t, r, nil).mustSucceed(t)
	if data, err := os.ReadFile(filepath.Join(dir, "pwd")); err != nil || strings.TrimSpace(string(data)) != dir {
		t.Errorf("it ran in %s, %v", data, err)
	}
}

// TestRealDirectServerThatDoesNotConnectEndsTheRun: no model is asked.
func TestRealDirectServerThatDoesNotConnectEndsTheRun(t *testing.T) {
	h := newHouse(t, fakemodel.Says("never"))
	r := h.request(t, "go", nil)
	r.Direct = []agent.Direct{{Name: "dead", Command: "/bin/false", Env: map[string]secret.String{"K": secret.New("secret-of-dead")}}}
	out := run(t, r, nil)
	if out.Err == nil || out.Err.Code != agent.CodeBoundary || !strings.Contains(out.Err.Message, "the server dead is failed") {
		t.Fatalf("error %v", out.Err)
	}
	if n := len(h.model.Requests()); n != 0 {
		t.Errorf("%d requests to the model", n)
	}
}

func TestDirectServersThatCannotBeHandedOverAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		direct []agent.Direct
		want   string
	}{
		"two names that are spelled alike": {[]agent.Direct{{Name: "a b", Command: "x"}, {Name: "a.b", Command: "x"}}, "cannot tell apart"},
		"a name that begins another":       {[]agent.Direct{{Name: "a", Command: "x"}, {Name: "a--b", Command: "x"}}, "cannot tell apart"},
		"our own name":                     {[]agent.Direct{{Name: "Nightporter", Command: "x"}}, "cannot tell apart"},
		"a reference in a value":           {[]agent.Direct{{Name: "a", Command: "x", Env: map[string]secret.String{"K": secret.New("${HOME}")}}}, "would take for a reference"},
	} {
		t.Run(name, func(t *testing.T) {
			r := agent.Request{Argv: []string{"claude", "-p"}, Private: t.TempDir(), Direct: c.direct}
			_, err := newPlan(r, minVersion)
			if err == nil {
				_, err = writeConfig(r.Private, nil, r.Direct)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestAnEntryStaysAsItWasWrittenButForItsReferences(t *testing.T) {
	folder := t.TempDir()
	file, err := writeConfig(folder, nil, []agent.Direct{{
		Name: "x", URL: secret.New("https://h/p"), Headers: map[string]secret.String{"X-Key": secret.New("k")},
		Written: secret.New(`{"type":"http","url":"https://${HOST}/p","headers":{"X-Key":"${K}"},"alwaysLoad":true,"oauth":{"clientId":"c"}}`),
	}})
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(folder, filepath.Base(file)))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"mcpServers":{"x":{"alwaysLoad":true,"headers":{"X-Key":"k"},"oauth":{"clientId":"c"},"type":"http","url":"https://h/p"}}}`
	if string(data) != want {
		t.Errorf("got  %s\nwant %s", data, want)
	}
}
