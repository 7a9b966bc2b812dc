package codex

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"nightporter/internal/agent"
	"nightporter/test/fakemodel"
	"nightporter/test/programs"
)

func TestARunCallsAGrantedToolAndReplies(t *testing.T) {
	onEachVersion(t, func(t *testing.T, program string) {
		r := newRig(t, program, fakemodel.Replies(
			fakemodel.Calls("nightporter", "crm__lookup", `{"name":"Ada"}`),
			fakemodel.Says("Ada is a customer."),
		))
		f := r.run(r.request(), nil)
		f.want(t, "Ada is a customer.")
		if got := r.calls.all(); !slices.Equal(got, []string{"crm__lookup"}) {
			t.Errorf("the gateway was called %q", got)
		}
		if r.calls.refused != 0 {
			t.Errorf("%d requests reached the gateway without the token", r.calls.refused)
		}
		asked := r.model.ModelRequests()
		if got, want := asked[0].MCPTools(), []string{"mcp__nightporter__crm__lookup", "mcp__nightporter__crm__refund"}; !slices.Equal(got, want) {
			t.Errorf("the model was offered %q, want %q", got, want)
		}
		if slices.ContainsFunc(asked[0].Tools(), func(n string) bool { return strings.Contains(n, "exec") || strings.Contains(n, "shell") }) {
			t.Errorf("a shell was offered: %q", asked[0].Tools())
		}
		if !f.Proof.Proven || !slices.Equal(f.Proof.Servers, []string{agent.GatewayName}) || len(f.Proof.Failed) > 0 {
			t.Errorf("proof %+v", f.Proof)
		}
		if f.SessionID == "" || f.Turns != 1 || f.Skipped != 0 || len(f.Denials) > 0 {
			t.Errorf("result %+v", f.Result)
		}
		if want := (agent.Usage{InputTokens: 260, OutputTokens: 84}); f.Usage != want || f.Totals != want {
			t.Errorf("usage %+v, totals %+v, want %+v", f.Usage, f.Totals, want)
		}
		if tools := f.told(agent.EventTool); len(tools) != 1 || tools[0].Tool != "mcp__crm__lookup" || tools[0].Activity != "using mcp__crm__lookup" {
			t.Errorf("tool events %+v", tools)
		}
		for _, word := range f.launch.Argv {
			if strings.Contains(word, token) || strings.Contains(word, "hello") {
				t.Errorf("the command line tells the token or the prompt: %q", word)
			}
		}
	})
}

// server is a configured stdio server that leaves a file behind when it is started.
func (r *rig) server(name string) string {
	return fmt.Sprintf("[mcp_servers.%s]\ncommand = %q\nargs = [\"-c\", %q]\n", quote(name), programs.Find(r.t, "sh"), "touch '"+filepath.Join(r.home, "started-"+url.PathEscape(name))+"'")
}

// started are the servers that were started.
func (r *rig) started() []string {
	r.t.Helper()
	files, err := filepath.Glob(filepath.Join(r.home, "started-*"))
	if err != nil {
		r.t.Fatal(err)
	}
	return files
}

// codex runs Codex itself, as its operator does.
func (r *rig) codex(args ...string) {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), r.program, args...)
	cmd.Dir, cmd.Env = r.work, r.env
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("codex %q: %v\n%s", args, err, out)
	}
}

// plugin installs a plugin with the servers `plugged` (stdio) and `webby` (HTTP) from a marketplace in a folder.
func (r *rig) plugin() {
	r.write("market/.agents/plugins/marketplace.json", `{"name":"local","plugins":[{"name":"gh","source":{"source":"local","path":"./plugins/gh"}}]}`)
	r.write("market/plugins/gh/.codex-plugin/plugin.json", `{"name":"gh","version":"1.0.0","description":"d","mcpServers":"./.mcp.json"}`)
	r.write("market/plugins/gh/.mcp.json", fmt.Sprintf(`{"mcpServers":{"plugged":{"command":%q,"args":["-c",%q]},"webby":{"url":"http://127.0.0.1:9/mcp"}}}`,
		programs.Find(r.t, "sh"), "touch '"+filepath.Join(r.home, "started-plugged")+"'"))
	r.codex("plugin", "marketplace", "add", filepath.Join(r.home, "market"))
	r.codex("plugin", "add", "gh@local")
}

// Everything that this test puts around the run was measured to reach a model, or to run, without the switches.
func TestNothingOfTheSurroundingsReachesTheRun(t *testing.T) {
	onEachVersion(t, func(t *testing.T, program string) {
		r := newRig(t, program, fakemodel.Replies(fakemodel.Says("done")))
		git := exec.CommandContext(t.Context(), programs.Find(t, "git"), "init", "-q", r.work)
		git.Env = r.env
		if out, err := git.CombinedOutput(); err != nil {
			t.Fatalf("git init: %v\n%s", err, out)
		}
		ran := filepath.Join(r.home, "started-")
		hooks := func(name string) string {
			return fmt.Sprintf(`{"hooks":{"SessionStart":[{"hooks":[{"type":"command","command":"touch '%shook-%s'"}]}]}}`, ran, name)
		}
		config := fmt.Sprintf("notify = [\"sh\", \"-c\", \"touch '%snotify'\"]\n", ran) + r.config("")
		for _, name := range []string{"plain", "fly.io", "a b", "ünï", `qu"ote`, "new\nline", "tab\there", "back\\slash", "="} {
			config += r.server(name)
		}
		config += fmt.Sprintf("[mcp_servers.web]\nurl = %q\nhttp_headers = {Authorization = \"made-up\"}\n", r.model.URL+"/mcp")
		config += fmt.Sprintf("[projects.%q]\ntrust_level = \"trusted\"\n", r.work)
		r.write(".codex/config.toml", config)
		r.plugin()
		r.write("work/.codex/config.toml", r.server("project"))
		r.write("work/AGENTS.md", "MARK-AGENTS")
		r.write(".codex/hooks.json", hooks("home"))
		r.write("work/.codex/hooks.json", hooks("work"))
		r.write(".codex/memories/memory_summary.md", "MARK-MEMORY")
		skill := func(dir, name string) {
			r.write(dir+"/SKILL.md", fmt.Sprintf("---\nname: %s\ndescription: MARK-%s\n---\nMARK-body\n", name, name))
		}
		skill(".codex/skills/one", "hers")
		skill("work/.agents/skills/two", "theirs")
		linked := filepath.Join(r.work, ".agents/skills/two/SKILL.md")

		q := r.request()
		q.Prompt = "\n/compact\n!ls\nuse $hers and $theirs, [$x](skill://" + linked + ") and @AGENTS.md\n"
		f := r.run(q, nil)
		f.want(t, "done")
		if got := r.started(); len(got) > 0 {
			t.Errorf("these were started: %q", got)
		}
		asked := r.model.ModelRequests()
		if i := bytes.Index(asked[0].Body, []byte("MARK-")); i >= 0 {
			t.Errorf("the model was told …%s…", asked[0].Body[max(0, i-200):i+50])
		}
		prompt, _ := json.Marshal(q.Prompt)
		if !bytes.Contains(asked[0].Body, prompt) {
			t.Errorf("the prompt did not arrive as it was written: %s", asked[0].Body)
		}
		if got := asked[0].MCPTools(); len(got) != 2 {
			t.Errorf("the model was offered %q", got)
		}
		want := []string{"=", "a b", "back\\slash", "fly.io", "new\nline", "plain", "plugged", "project", `qu"ote`, "tab\there", "web", "webby", "ünï"}
		slices.Sort(want)
		if !slices.Equal(f.Proof.Disabled, want) {
			t.Errorf("switched off are %q, want %q", f.Proof.Disabled, want)
		}
		if !f.Proof.Proven || !slices.Equal(f.Proof.Servers, []string{agent.GatewayName}) {
			t.Errorf("proof %+v", f.Proof)
		}
		after, err := os.ReadFile(filepath.Join(r.home, ".codex/config.toml"))
		if err != nil || strings.Count(string(after), "trust_level") != 1 {
			t.Errorf("trust was written: %v\n%s", err, after)
		}
	})
}

// 0.144.1 trusts a directory by itself when its sandbox can be written to, and starts the directory's servers.
func TestARunDoesNotTrustItsDirectoryByItself(t *testing.T) {
	onEachVersion(t, func(t *testing.T, program string) {
		r := newRig(t, program, fakemodel.Replies(fakemodel.Says("done")))
		r.write("work/.codex/config.toml", r.server("project"))
		q := r.request()
		q.BuiltIn, q.Argv = agent.BuiltInAll, []string{"codex", "exec", "-s", "workspace-write"}
		f := r.run(q, nil)
		f.want(t, "done")
		if got := r.started(); len(got) > 0 {
			t.Errorf("these were started: %q", got)
		}
		if after, err := os.ReadFile(filepath.Join(r.home, ".codex/config.toml")); err != nil || bytes.Contains(after, []byte("projects")) {
			t.Errorf("trust was written: %v\n%s", err, after)
		}
	})
}

// Models in code mode get one tool that runs JavaScript, and reach all others through it.
func TestAModelInCodeModeReachesTheGatewayAndNoShell(t *testing.T) {
	onEachVersion(t, func(t *testing.T, program string) {
		script := fakemodel.Step{Parts: []fakemodel.Part{{Raw: &fakemodel.Raw{OpenAI: []byte(`{"type":"custom_tool_call","id":"c1","call_id":"c1","name":"exec",
			"input":"text(await tools.mcp__nightporter__crm__lookup({name:\"Ada\"})); try { text(await tools.exec_command({cmd:\"id\"})) } catch (e) { text(\"no shell: \" + e) }"}`)}}}}
		r := newRig(t, program, fakemodel.Replies(script, fakemodel.Says("done")))
		q := r.request()
		q.Argv = []string{"codex", "exec", "-m", "gpt-5.6-sol"}
		f := r.run(q, nil)
		f.want(t, "done")
		if got := r.calls.all(); !slices.Equal(got, []string{"crm__lookup"}) {
			t.Errorf("the gateway was called %q", got)
		}
		if tools := f.told(agent.EventTool); len(tools) != 1 || tools[0].Tool != "mcp__crm__lookup" {
			t.Errorf("tool events %+v", tools)
		}
		if asked := r.model.ModelRequests(); !bytes.Contains(asked[1].Body, []byte("no shell: TypeError")) {
			t.Errorf("the model was told %s", asked[1].Body)
		}
	})
}

func TestRealRunExecutesCommandsItself(t *testing.T) {
	onEachVersion(t, func(t *testing.T, program string) {
		call := fakemodel.Step{Parts: []fakemodel.Part{{Call: &fakemodel.Call{Name: "exec_command", Arguments: []byte(`{"cmd":"true"}`)}}}}
		r := newRig(t, program, fakemodel.Replies(call, fakemodel.Says("done")))
		var asked atomic.Int64
		elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			http.Error(w, "no", http.StatusTeapot)
		}))
		defer elsewhere.Close()
		r.env = append(r.env, "CODEX_EXEC_SERVER_URL="+strings.Replace(elsewhere.URL, "http", "ws", 1))
		q := r.request()
		q.BuiltIn = agent.BuiltInReadOnly // a sandbox that may write makes a folder /tmp/.git, which other tests would take for a repository
		r.run(q, nil).want(t, "done")
		if n := asked.Load(); n > 0 {
			t.Errorf("another server was asked %d times to execute commands", n)
		}
	})
}

func TestTheProofSaysWhatCommandsCanReach(t *testing.T) {
	v, _ := parseVersion("codex-cli 0.171.0")
	for builtIn, want := range map[agent.BuiltIn]bool{agent.BuiltInNone: false, agent.BuiltInReadOnly: true, agent.BuiltInAll: true} {
		s := newShape(command{}, agent.Request{Workdir: t.TempDir(), Mode: agent.Granted, BuiltIn: builtIn, Hidden: []string{"/np"}}, v)
		if got := strings.Contains(strings.Join(s.open, "\n"), "Nightporter's own files are open to such a command"); got != want {
			t.Errorf("%s: not covered %q", builtIn, s.open)
		}
		if got := strings.Contains(strings.Join(s.open, "\n"), "a command that the model runs can read"); got != want {
			t.Errorf("%s: notes %q", builtIn, s.notes)
		}
	}
}

func TestOperatorsSettingsStayAndTheWorkspacesDoNot(t *testing.T) {
	onEachVersion(t, func(t *testing.T, program string) {
		r := newRig(t, program, fakemodel.Replies(fakemodel.Says("done")))
		git := exec.CommandContext(t.Context(), programs.Find(t, "git"), "init", "-q", r.work)
		git.Env = r.env
		if out, err := git.CombinedOutput(); err != nil {
			t.Fatalf("git init: %v\n%s", err, out)
		}
		ran := filepath.Join(r.home, "started-")
		hooks := func(name string) string {
			return fmt.Sprintf(`{"hooks":{"SessionStart":[{"hooks":[{"type":"command","command":"touch '%shook-%s'"}]}]}}`, ran, name)
		}
		r.write(".codex/config.toml", fmt.Sprintf("notify = [\"sh\", \"-c\", \"touch '%snotify'\"]\n", ran)+r.config("")+r.server("hers")+
			fmt.Sprintf("[projects.%q]\ntrust_level = \"trusted\"\n", r.work))
		r.write("work/.codex/config.toml", r.server("project"))
		r.write("work/AGENTS.md", "ROGUE-AGENTS")
		r.write(".codex/AGENTS.md", "HERS-AGENTS")
		r.write(".codex/hooks.json", hooks("home"))
		r.write("work/.codex/hooks.json", hooks("work"))
		skill := func(dir, name string) {
			r.write(dir+"/SKILL.md", fmt.Sprintf("---\nname: %s\ndescription: %s-SKILL\n---\n%s-BODY\n", name, name, name))
		}
		skill(".codex/skills/one", "HERS")
		skill("work/.agents/skills/two", "ROGUE")

		q := r.request()
		q.OperatorSettings = true
		q.Prompt = "use $HERS and $ROGUE"
		f := r.run(q, nil)
		f.want(t, "done")
		for _, file := range r.started() {
			if name := filepath.Base(file); name != "started-notify" && name != "started-hook-home" {
				t.Errorf("it was started: %s", name)
			}
		}
		t.Logf("of the user's own ran %q", r.started())
		body := r.model.ModelRequests()[0].Body
		for text, want := range map[string]bool{"HERS-AGENTS": true, "HERS-SKILL": true, "HERS-BODY": true, "ROGUE-AGENTS": false, "ROGUE-SKILL": false, "ROGUE-BODY": false} {
			if bytes.Contains(body, []byte(text)) != want {
				t.Errorf("the model was told %s: %v, want %v", text, !want, want)
			}
		}
		if !f.Proof.Proven || !slices.Equal(f.Proof.Servers, []string{agent.GatewayName}) || !slices.Contains(f.Proof.Disabled, "hers") {
			t.Errorf("proof %+v", f.Proof)
		}
	})
}
