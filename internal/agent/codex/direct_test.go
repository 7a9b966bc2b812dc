package codex

import (
	"slices"
	"strings"
	"testing"

	"nightporter/internal/agent"
	"nightporter/internal/secret"
	"nightporter/test/fakemodel"
	"nightporter/test/programs"
)

func TestDirectServersAreHandedOverWithoutCredentialsOnTheCommandLine(t *testing.T) {
	onEachVersion(t, func(t *testing.T, program string) {
		run := fakemodel.Step{Parts: []fakemodel.Part{{Call: &fakemodel.Call{Name: "exec_command", Arguments: []byte(`{"cmd":"env"}`)}}}}
		r := newRig(t, program, fakemodel.Replies(
			fakemodel.Calls("everything", "get-env", `{}`),
			fakemodel.Calls("web", "crm__lookup", `{"name":"Ada"}`),
			run,
			fakemodel.Says("done"),
		))
		r.env = append(r.env, "OPERATORS_SECRET=not-for-servers")
		web := r.startGateway()
		q := r.request()
		q.Gateway, q.BuiltIn = nil, agent.BuiltInReadOnly
		q.Direct = []agent.Direct{
			{
				Name: "everything", Command: programs.Find(t, "node"), Args: []string{programs.Everything(t), "stdio"},
				Env: map[string]secret.String{"API_KEY": secret.New(`of "env" $HOME`), "MODE": secret.New("quiet")},
			},
			{Name: "fly.io", URL: secret.New(web.URL), Headers: map[string]secret.String{"Authorization": secret.New("Bearer " + token)}},
			{Name: "legacy", URL: secret.New("http://127.0.0.1:9/sse"), SSE: true},
			{Name: `with "quotes"`, Command: "true"},
			{
				Name: "web", URL: secret.New(web.URL), Headers: map[string]secret.String{"Authorization": secret.New("Bearer " + token)},
				Allow: []string{"crm__lookup"}, Deny: []string{"crm__*"},
			},
		}
		f := r.run(q, nil)
		f.want(t, "done")
		want := []string{"everything", "web"}
		if strings.Contains(t.Name(), "0.171") {
			want = []string{"everything", "fly.io", "web"}
		}
		if !f.Proof.Proven || !slices.Equal(f.Proof.Servers, want) {
			t.Errorf("servers %q, want %q; %+v", f.Proof.Servers, want, f.Proof)
		}
		notes := strings.Join(f.Proof.Notes, "\n")
		for _, note := range []string{`"legacy" is not part of this run: Codex does not speak`, `"with \"quotes\"" is not part of this run: Codex starts no server of that name`} {
			if !strings.Contains(notes, note) {
				t.Errorf("no note %s in\n%s", note, notes)
			}
		}
		if open := strings.Join(f.Proof.Rings[0].Open, "\n"); !strings.Contains(open, "patterns for the tools of web: crm__* is not enforced") {
			t.Errorf("not covered: %s", open)
		}
		if got := r.calls.all(); !slices.Equal(got, []string{"crm__lookup"}) {
			t.Errorf("called %q", got)
		}
		asked := r.model.ModelRequests()
		if got := asked[0].MCPTools(); slices.Contains(got, "mcp__web__crm__refund") || !slices.Contains(got, "mcp__web__crm__lookup") {
			t.Errorf("the model was offered %q", got)
		}
		env := string(asked[1].Body)
		for _, has := range []string{"API_KEY", "$HOME", "quiet"} {
			if !strings.Contains(env, has) {
				t.Errorf("the server has no %s in its environment", has)
			}
		}
		for _, not := range []string{"not-for-servers", directVariable} {
			if strings.Contains(env, not) {
				t.Errorf("the server has %s in its environment", not)
			}
		}
		if shell := string(asked[3].Body); strings.Contains(shell, token) {
			t.Error("a command that the model ran was given a credential")
		}
		var named []string
		for _, e := range f.told(agent.EventTool) {
			named = append(named, e.Tool)
		}
		if want := []string{"mcp__everything__get-env", "mcp__web__crm__lookup", shellTool}; !slices.Equal(named, want) {
			t.Errorf("tools used %q, want %q", named, want)
		}
		for _, word := range f.launch.Argv {
			if strings.Contains(word, token) || strings.Contains(word, "quiet") || strings.Contains(word, "$HOME") {
				t.Errorf("a credential is on the command line: %q", word)
			}
		}
	})
}

func TestADirectServerOfACodexServersNameIsACollision(t *testing.T) {
	r := newRig(t, programs.Codex(t), fakemodel.Replies())
	r.write(".codex/config.toml", r.config(r.server("web")))
	q := r.request()
	q.Direct = []agent.Direct{{Name: "web", Command: "true"}}
	_, err := Adapter{}.Prepare(t.Context(), q)
	if err == nil || !strings.Contains(err.Error(), "Codex has a server named web of its own") {
		t.Errorf("error %v", err)
	}
}

func TestADirectServerThatIsListedOtherwiseFailsTheProof(t *testing.T) {
	p := prover{shape: shape{direct: []direct{{name: "a", command: "/bin/a", args: []string{"x"}}, {name: "b", url: "http://h/p"}}}}
	const good = `[{"name":"a","enabled":true,"transport":{"type":"stdio","command":"/bin/a","args":["x"]}},{"name":"b","enabled":true,"transport":{"type":"streamable_http","url":"http://h/p"}}]`
	for _, change := range [][2]string{
		{"", ""},
		{"/bin/a", "/bin/b"},
		{`["x"]`, `["y"]`},
		{"http://h/p", "http://h/q"},
		{`"enabled":true`, `"enabled":false`},
		{`"name":"b"`, `"name":"c"`},
		{`"url":"http://h/p"`, `"url":"http://h/p","http_headers":{"A":"b"}`},
	} {
		list, err := parseList([]byte(strings.Replace(good, change[0], change[1], 1)))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.check(list, nil); (err == nil) != (change[0] == "") {
			t.Errorf("with %q: %v", change, err)
		}
	}
}
