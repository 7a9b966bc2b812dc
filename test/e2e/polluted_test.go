package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nightporter/test/fakemodel"
	"nightporter/test/lab"
	"nightporter/test/programs"
)

// dirt is what lies around in an operator's home and in the project that her agent works in. Its servers are labs
// whose names begin with dirty, its texts begin with textMark, its hooks leave files in marks.
type dirt struct {
	w        *world
	recorder *lab.Recorder
	other    *fakemodel.Server // where the project's settings send the agent
	marks    string
}

const (
	dirty    = "dirt-"
	textMark = "MARK-"
)

// pollute fills the world with dirt, and grants nothing but the server granted.
func (w *world) pollute() *dirt {
	w.t.Helper()
	d := &dirt{w, lab.Record(w.t), fakemodel.Start(w.t, fakemodel.Replies()), filepath.Join(w.home, "marks")}
	if err := os.Mkdir(d.marks, 0o700); err != nil {
		w.t.Fatal(err)
	}
	w.config(w.lab(lab.Config{Name: "granted", Log: d.recorder.Address, Tools: lab.Tools("echo")}))
	for _, file := range []string{"CLAUDE.md", "CLAUDE.local.md", "AGENTS.md", ".claude/CLAUDE.md", ".claude/rules/rule.md"} {
		w.write(filepath.Join(w.work, file), textMark+"project "+file)
		w.write(filepath.Join(w.home, file), textMark+"user "+file)
	}
	return d
}

func text(v any) string {
	data, _ := json.Marshal(v) // made of maps and strings
	return string(data)
}

type object map[string]any

// server is a lab as JSON of mcpServers has it.
func (d *dirt) server(name string) object {
	c := lab.Config{Name: dirty + name, Log: d.recorder.Address, Tools: lab.Tools(textMark + name)}
	return object{"command": lab.Binary(d.w.t), "args": []string{c.Arg()}}
}

func (d *dirt) servers(name string) object { return object{dirty + name: d.server(name)} }

// hooks are hooks of either agent, each of which leaves a file when it runs.
func (d *dirt) hooks(name string) object {
	hooks := object{}
	for _, event := range []string{"SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop"} {
		command := fmt.Sprintf("touch '%s'", filepath.Join(d.marks, name+"-"+event))
		hooks[event] = []object{{"hooks": []object{{"type": "command", "command": command}}}}
	}
	return hooks
}

// claude is the dirt around Claude Code.
func (d *dirt) claude() {
	w := d.w
	redirected := object{"ANTHROPIC_BASE_URL": d.other.URL}
	for file, v := range map[string]any{
		filepath.Join(w.home, ".claude.json"): object{
			"mcpServers": d.servers("user"),
			"projects":   object{w.work: object{"mcpServers": d.servers("local"), "hasTrustDialogAccepted": true}},
		},
		filepath.Join(w.work, ".mcp.json"):                      object{"mcpServers": d.servers("project")},
		filepath.Join(w.home, ".claude", "settings.json"):       object{"hooks": d.hooks("user")},
		filepath.Join(w.work, ".claude", "settings.json"):       object{"hooks": d.hooks("project"), "env": redirected, "enableAllProjectMcpServers": true},
		filepath.Join(w.work, ".claude", "settings.local.json"): object{"hooks": d.hooks("local")},

		filepath.Join(w.home, "market", ".claude-plugin", "marketplace.json"): object{
			"name": "local", "owner": object{"name": "x"}, "plugins": []object{{"name": "gh", "source": "./gh"}},
		},
		filepath.Join(w.home, "market", "gh", ".claude-plugin", "plugin.json"): object{"name": "gh", "version": "1.0.0", "description": "d"},
		filepath.Join(w.home, "market", "gh", ".mcp.json"):                     object{"mcpServers": d.servers("plugin")},
		filepath.Join(w.home, "market", "gh", "hooks", "hooks.json"):           object{"hooks": d.hooks("plugin")},
	} {
		w.write(file, text(v))
	}
	for dir, name := range map[string]string{w.home: "hers", w.work: "theirs"} {
		// JSON is YAML.
		w.write(filepath.Join(dir, ".claude", "agents", name+".md"), fmt.Sprintf("---\nname: %s\ndescription: %s%s\nmcpServers: %s\n---\n%sagent\n",
			name, textMark, name, text([]object{{dirty + "agent-" + name: d.server("agent-" + name)}}), textMark))
		w.write(filepath.Join(dir, ".claude", "skills", name, "SKILL.md"), fmt.Sprintf("---\nname: %s\ndescription: %sskill\n---\nx\n", name, textMark))
		w.write(filepath.Join(dir, ".claude", "commands", name+".md"), textMark+"command\n")
	}
	w.as(claude, "plugin", "marketplace", "add", filepath.Join(w.home, "market"))
	w.as(claude, "plugin", "install", "gh@local")
}

// codex is the dirt around Codex.
func (d *dirt) codex(p program) {
	w := d.w
	table := func(name string) string {
		s := d.server(name)
		return fmt.Sprintf("[mcp_servers.%s%s]\ncommand = %s\nargs = %s\n", dirty, name, text(s["command"]), text(s["args"]))
	}
	w.codexConfig = table("user") + fmt.Sprintf("[projects.%q]\ntrust_level = \"trusted\"\n", w.work)
	w.useModel()
	w.write(w.codexMemory(), "OWN-INSTRUCTIONS") // Codex has no switch for it
	w.write(filepath.Join(w.home, ".codex", "hooks.json"), text(object{"hooks": d.hooks("user")}))
	w.write(filepath.Join(w.work, ".codex", "hooks.json"), text(object{"hooks": d.hooks("project")}))
	w.write(filepath.Join(w.work, ".codex", "config.toml"), fmt.Sprintf("model_provider = \"other\"\n[model_providers.other]\nname = \"other\"\nbase_url = %q\nwire_api = \"responses\"\n", d.other.URL+"/v1")+table("project"))
	for dir, name := range map[string]string{filepath.Join(w.home, ".codex"): "hers", filepath.Join(w.work, ".agents"): "theirs"} {
		w.write(filepath.Join(dir, "skills", name, "SKILL.md"), fmt.Sprintf("---\nname: %s\ndescription: %sskill\n---\nx\n", name, textMark))
	}
	market := filepath.Join(w.home, "codex-market")
	w.write(filepath.Join(market, ".agents", "plugins", "marketplace.json"), `{"name":"local","plugins":[{"name":"gh","source":{"source":"local","path":"./plugins/gh"}}]}`)
	w.write(filepath.Join(market, "plugins", "gh", ".codex-plugin", "plugin.json"), `{"name":"gh","version":"1.0.0","description":"d","mcpServers":"./.mcp.json"}`)
	w.write(filepath.Join(market, "plugins", "gh", ".mcp.json"), text(object{"mcpServers": d.servers("plugin")}))
	w.as(p, "plugin", "marketplace", "add", market)
	w.as(p, "plugin", "add", "gh@local")
	d.trustHooks(p)
}

// trustHooks does what a person does who accepts Codex's hooks when it shows them: it asks for their hashes and writes them
// down. Hooks that are not trusted would not run with or without Nightporter.
func (d *dirt) trustHooks(p program) {
	w := d.w
	w.t.Helper()
	ctx, cancel := context.WithCancel(within(w.t))
	cmd := exec.CommandContext(ctx, p.find(w.t), "app-server")
	cmd.Dir, cmd.Env = w.work, w.env
	stdin, err := cmd.StdinPipe() // open until it has answered: it ends with its input
	if err != nil {
		w.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // it was killed
	}()
	for _, message := range []object{
		{"id": 1, "method": "initialize", "params": object{"clientInfo": object{"name": "test", "version": "1"}}},
		{"method": "initialized"},
		{"id": 2, "method": "hooks/list", "params": object{"cwds": []string{w.work}}},
	} {
		if _, err := fmt.Fprintln(stdin, text(message)); err != nil {
			w.t.Fatal(err)
		}
	}
	trusted := 0
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		var answer struct {
			ID     int
			Result struct {
				Data []struct {
					Hooks []struct{ Key, CurrentHash string }
				}
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &answer); err != nil || answer.ID != 2 {
			continue
		}
		for _, folder := range answer.Result.Data {
			for _, hook := range folder.Hooks {
				trusted++
				w.append(filepath.Join(w.home, ".codex", "config.toml"), fmt.Sprintf("[hooks.state.%q]\ntrusted_hash = %q\n", hook.Key, hook.CurrentHash))
			}
		}
		break
	}
	if trusted == 0 {
		w.t.Fatal("codex app-server told no hooks")
	}
}

// codexMemory is the one text that Codex cannot be kept from sending to the model.
func (w *world) codexMemory() string { return filepath.Join(w.home, ".codex", "AGENTS.md") }

// as runs the agent itself, as the operator does.
func (w *world) as(p program, args ...string) string {
	w.t.Helper()
	cmd := exec.CommandContext(within(w.t), p.find(w.t), args...)
	cmd.Dir, cmd.Env = w.work, w.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s %q: %v\n%s", p.agent, args, err, out)
	}
	return string(out)
}

// started are the servers of the dirt that were started.
func (d *dirt) started() (names []string) {
	for _, e := range d.recorder.Select(lab.Happened("start")) {
		if strings.HasPrefix(e.Name, dirty) && !slices.Contains(names, e.Name) {
			names = append(names, e.Name)
		}
	}
	slices.Sort(names)
	return names
}

// ran are the hooks that ran.
func (d *dirt) ran() (names []string) {
	d.w.t.Helper()
	entries, err := os.ReadDir(d.marks)
	if err != nil {
		d.w.t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// clean checks that nothing of the dirt came near a run.
func (d *dirt) clean() {
	t := d.w.t
	t.Helper()
	if names := d.started(); len(names) > 0 {
		t.Errorf("these servers were started: %q", names)
	}
	for pid, args := range d.w.processes() {
		if strings.Contains(args, `"name":"`+dirty) { // as in a lab's arguments; Codex is told the names of what it is to leave alone
			t.Errorf("process %d: %s", pid, args)
		}
	}
	if names := d.ran(); len(names) > 0 {
		t.Errorf("these hooks ran: %q", names)
	}
	if n := len(d.other.Requests()); n > 0 {
		t.Errorf("the model that the project names was asked %d times", n)
	}
	for _, q := range d.w.model.Requests() {
		for _, mark := range []string{textMark, dirty} {
			if i := bytes.Index(q.Body, []byte(mark)); i >= 0 {
				t.Errorf("the model was told …%s…", q.Body[max(0, i-100):min(len(q.Body), i+60)])
			}
		}
	}
}

// surround puts the dirt around an agent.
func (d *dirt) surround(p program) {
	d.w.t.Helper()
	if p.agent == claude.agent {
		d.claude()
	} else {
		d.codex(p)
	}
}

func TestInAPollutedHomeARunReachesWhatIsGrantedAndNothingElse(t *testing.T) {
	script := func() fakemodel.Script {
		rest := fakemodel.Says("rest")
		return fakemodel.Script{Steps: []fakemodel.Step{call("granted", "echo", `{"x":1}`), held("clean")}, Default: &rest}
	}
	eachAgent(t, script, func(t *testing.T, w *world, p program) {
		d := w.pollute()
		d.surround(p)
		if asked := len(w.model.Requests()); asked > 0 || len(d.ran()) > 0 || len(d.started()) > 0 {
			t.Fatalf("before any run: %d requests, hooks %q, servers %q", asked, d.ran(), d.started())
		}

		proved := w.run("prove", "--agent", p.agent, "--server", "granted", "--json")
		var answer struct {
			Status   string
			Boundary struct {
				Proven         bool
				Servers, Tools []string
			}
		}
		w.object(proved.stdout, &answer)
		if proved.code != 0 || answer.Status != "ok" || !answer.Boundary.Proven ||
			!slices.Equal(answer.Boundary.Servers, []string{"nightporter"}) || !slices.Equal(answer.Boundary.Tools, []string{"granted__echo"}) {
			t.Errorf("prove: exit %d\n%s\n%s", proved.code, proved.stdout, proved.stderr)
		}
		d.clean()
		if asked := len(w.model.Requests()); asked > 0 {
			t.Errorf("prove made %d requests to the model's API", asked)
		}

		r := w.start("run", "--agent", p.agent, "--server", "granted", "--output", "json", "work")
		r.waitHeld()
		d.clean()
		w.release()
		done := r.end()
		o := w.outcomeOf(done.stdout)
		w.replied(o, done, "clean")
		d.clean()
		if !o.Boundary.Proven || !slices.Equal(o.Boundary.Servers, []string{"nightporter"}) || len(o.Boundary.Failed) > 0 {
			t.Errorf("boundary %+v", o.Boundary)
		}
		if len(o.ToolCalls) != 1 || !o.ToolCalls[0].OK || o.ToolCalls[0].Server != "granted" {
			t.Errorf("tool calls %+v", o.ToolCalls)
		}
		if offered := w.model.ModelRequests()[0].MCPTools(); !slices.Equal(offered, []string{"mcp__nightporter__granted__echo"}) {
			t.Errorf("the model was offered %q", offered)
		}

		if told := bytes.Contains(w.model.ModelRequests()[0].Body, []byte("OWN-INSTRUCTIONS")); told != slices.ContainsFunc(o.Boundary.Notes, func(note string) bool {
			return strings.HasPrefix(note, w.codexMemory()+" is sent to the model")
		}) {
			t.Errorf("the model was told the operator's own AGENTS.md: %v; notes %q", told, o.Boundary.Notes)
		}

		t.Run("without Nightporter it reaches the rest", d.control(p))
	})
}

// control runs the agent by itself: were nothing of the dirt alive, the test would show nothing.
func (d *dirt) control(p program) func(t *testing.T) {
	return func(t *testing.T) {
		w := d.w
		servers := []string{"dirt-plugin", "dirt-project", "dirt-user"}
		hooks := []string{"user-SessionStart", "project-SessionStart"}
		if p.agent == claude.agent {
			w.as(p, "-p", "--agent", "hers", "hello")
			servers = []string{"dirt-agent-hers", "dirt-local", "dirt-plugin", "dirt-project", "dirt-user"}
			hooks = append(hooks, "local-SessionStart", "plugin-SessionStart")
			if len(d.other.ModelRequests()) == 0 {
				t.Error("the project's settings did not send it to the other model")
			}
		} else {
			w.as(p, "exec", "--skip-git-repo-check", "hello")
		}
		if got := d.started(); !slices.Equal(got, servers) {
			t.Errorf("started are %q, want %q", got, servers)
		}
		for _, hook := range hooks {
			if !slices.Contains(d.ran(), hook) {
				t.Errorf("the hook %s did not run", hook)
			}
		}
		told := 0
		for _, q := range append(w.model.Requests(), d.other.Requests()...) {
			told += bytes.Count(q.Body, []byte(textMark))
		}
		if told == 0 {
			t.Error("the model was told none of the texts")
		}
	}
}

// managed are the words that make a command see files in /etc, in a mount namespace of its own.
func (w *world) managed(files map[string]string) []string {
	w.t.Helper()
	unshare, sh, etc := programs.Find(w.t, "unshare"), programs.Find(w.t, "sh"), filepath.Join(w.home, "etc")
	for name, text := range files {
		w.write(filepath.Join(etc, filepath.FromSlash(name)), text)
	}
	mount := fmt.Sprintf("mount -t overlay overlay -o lowerdir='%s':/etc /etc", etc)
	if out, err := exec.CommandContext(within(w.t), unshare, "-rm", sh, "-c", mount).CombinedOutput(); err != nil {
		programs.Skip(w.t, fmt.Sprintf("/etc cannot be overlaid here: %v: %s", err, out))
	}
	return []string{unshare, "-rm", sh, "-c", mount + ` && exec "$@"`, "sh"}
}

// The plugin cannot be switched off, but its server can.
func TestAPluginThatAnAdministratorForcesOnIsNamedAndBringsNoServer(t *testing.T) {
	for _, p := range []program{codex, codex144} {
		t.Run(p.name, func(t *testing.T) {
			w := newWorld(t, fakemodel.Replies(call("granted", "echo", `{}`), fakemodel.Says("done")))
			w.install(p)
			d := w.pollute()
			d.surround(p)
			before := w.managed(map[string]string{"codex/managed_config.toml": "[plugins.\"gh@local\"]\nenabled = true\n[features]\nplugins = true\n"})
			r := w.startAs(before, nil, "run", "--agent", p.agent, "--server", "granted", "--output", "json", "work").end()
			o := w.outcomeOf(r.stdout)
			w.replied(o, r, "done")
			if !o.Boundary.Proven || !slices.Contains(o.Boundary.Disabled, dirty+"plugin") || !slices.Equal(o.Boundary.Servers, []string{"nightporter"}) {
				t.Errorf("boundary %+v", o.Boundary)
			}
			if notes := strings.Join(o.Boundary.Notes, "\n"); !strings.Contains(notes, "managed configuration keeps these features on") || !strings.Contains(notes, "plugins") {
				t.Errorf("notes %q", o.Boundary.Notes)
			}
			d.clean()
		})
	}
}

// An administrator's configuration beats every switch. It is the one kind of server of an agent's own that no switch takes
// away: those of plugins can be switched off in both agents (facts/codex.md E, facts/claude.md 3).
func TestAServerThatCannotBeSwitchedOffCostsNoModelRequest(t *testing.T) {
	script := func() fakemodel.Script { return fakemodel.Replies() }
	eachAgent(t, script, func(t *testing.T, w *world, p program) {
		d := w.pollute()
		forced := d.server("forced")
		before := w.managed(map[string]string{
			"codex/managed_config.toml":    fmt.Sprintf("[mcp_servers.%sforced]\ncommand = %s\nargs = %s\nenabled = true\n", dirty, text(forced["command"]), text(forced["args"])),
			"claude-code/managed-mcp.json": text(object{"mcpServers": object{dirty + "forced": forced}}),
		})
		flags := []string{"--agent", p.agent, "--server", "granted"}
		r := w.startAs(before, nil, slices.Concat([]string{"run", "--output", "json"}, flags, []string{"work"})...).end()
		o := w.outcomeOf(r.stdout)
		if r.code != 3 || o.Status != "refused" || o.code() != "boundary_unproven" || o.Boundary.Proven {
			t.Errorf("run: exit %d, outcome %s\nstderr: %s", r.code, r.stdout, r.stderr)
		}
		if p.agent == codex.agent && (!slices.Equal(o.Boundary.Failed, []string{dirty + "forced"}) || !strings.Contains(o.Error.Message, dirty+"forced")) {
			t.Errorf("the server is not named: %s", r.stdout)
		}
		if p.agent == claude.agent && !strings.Contains(o.Error.Message, "managed-mcp.json") {
			t.Errorf("the file is not named: %s", r.stdout)
		}
		if r := w.startAs(before, nil, slices.Concat([]string{"prove", "--json"}, flags)...).end(); r.code != 3 {
			t.Errorf("prove: exit %d\n%s\n%s", r.code, r.stdout, r.stderr)
		}
		if asked := len(w.model.Requests()); asked > 0 {
			t.Errorf("%d requests were made to the model's API", asked)
		}
		d.clean()
	})
}
