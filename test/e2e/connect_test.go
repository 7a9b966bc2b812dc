package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"nightporter/test/programs"
)

// desk is one person's machine, with an empty home.
type desk struct {
	t    *testing.T
	home string
	env  []string
}

// newDesk has Nightporter and, where it is not empty, a configuration of it. extra are variables of the environment.
func newDesk(t *testing.T, extra ...string) *desk {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	home := programs.Home(t)
	env := programs.Env(home, extra...)
	for i, entry := range env {
		if rest, ok := strings.CutPrefix(entry, "PATH="); ok {
			env[i] = "PATH=" + filepath.Dir(path) + string(filepath.ListSeparator) + rest
		}
	}
	d := &desk{t, home, env}
	d.write("project/README", "")
	return d
}

func (d *desk) write(path, text string) {
	d.t.Helper()
	path = filepath.Join(d.home, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) read(path string) string {
	d.t.Helper()
	data, err := os.ReadFile(filepath.Join(d.home, path))
	if err != nil {
		d.t.Fatal(err)
	}
	return string(data)
}

// run runs a program in the project's folder, and returns its standard output.
func (d *desk) run(program string, args ...string) string {
	d.t.Helper()
	ctx, done := context.WithTimeout(d.t.Context(), 2*time.Minute)
	defer done()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env, cmd.Dir = d.env, filepath.Join(d.home, "project")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		d.t.Fatalf("%s %q: %v\n%s%s", filepath.Base(program), args, err, out.Bytes(), errs.Bytes())
	}
	d.t.Logf("%s %q\n%s%s", filepath.Base(program), args, out.Bytes(), errs.Bytes())
	return out.String()
}

func (d *desk) nightporter(args ...string) string {
	d.t.Helper()
	path, _ := binary()
	return d.run(path, args...)
}

const notes = "[mcp_servers.notes]\ncommand = \"nightporter\"\nargs = [\"demo-server\", \"notes\"]\n"

// gateway starts Nightporter's gateway on a port that is free, and returns when it listens. It ends with the test.
func (d *desk) gateway() {
	d.t.Helper()
	path, _ := binary()
	cmd := exec.Command(path, "gateway", "--listen", "127.0.0.1:0")
	cmd.Env, cmd.Dir = d.env, d.home
	errs, err := cmd.StderrPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	drained := make(chan struct{})
	listening := make(chan string, 1)
	go func() {
		defer close(drained)
		for lines := bufio.NewScanner(errs); lines.Scan(); {
			if strings.Contains(lines.Text(), "listening on") {
				listening <- lines.Text()
			}
		}
	}()
	d.t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		<-drained
		_ = cmd.Wait()
	})
	select {
	case <-listening:
	case <-drained:
		d.t.Fatal("the gateway ended at once")
	case <-time.After(time.Minute):
		d.t.Fatal("the gateway does not listen")
	}
}

// TestClaudeCodeIsConnected: Claude Code's own program finds Nightporter where it was put and reaches it, and no more when it was taken out.
func TestClaudeCodeIsConnected(t *testing.T) {
	claude := programs.Claude(t)
	d := newDesk(t)
	d.write(".config/nightporter/config.toml", notes)
	d.write(".claude.json", "{\n  \"numStartups\": 1,\n  \"mcpServers\": {}\n}\n")
	d.nightporter("connect", "claude")
	if got := d.run(claude, "mcp", "get", "porter"); !strings.Contains(got, "✔ Connected") || !strings.Contains(got, "Scope: User config") || !strings.Contains(got, "Args: mcp\n") {
		t.Errorf("%s", got)
	}
	d.nightporter("disconnect", "claude") // Claude Code has written its file meanwhile
	if got := d.run(claude, "mcp", "list"); !strings.Contains(got, "No MCP servers configured") {
		t.Errorf("%s", got)
	}

	// At an address, with the token in a variable.
	d.gateway()
	d.nightporter("connect", "claude", "--gateway")
	d.env = append(d.env, "NIGHTPORTER_TOKEN_CLAUDE="+strings.TrimSpace(d.read(".local/state/nightporter/clients/claude.token")))
	if got := d.run(claude, "mcp", "get", "porter"); !strings.Contains(got, "✔ Connected") || !strings.Contains(got, "Type: http") || strings.Contains(got, "np_") {
		t.Errorf("%s", got)
	}
	d.nightporter("disconnect", "claude")
	if now := d.read(".claude.json"); strings.Contains(now, "porter") {
		t.Errorf("%s", now)
	}

	// What it added by itself is taken for what it is.
	d.run(claude, "mcp", "add", "--scope", "user", "mine", "--", "nightporter", "demo-server", "mine")
	d.run(claude, "mcp", "add", "here", "--env", "KEY=${HOME}", "--", "nightporter", "demo-server", "here")
	got := d.nightporter("import", "claude", "--dry-run")
	for _, want := range []string{"here    Claude Code, local  take  nightporter demo-server here", "mine    Claude Code, user   take  nightporter demo-server mine"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s has no %q", got, want)
		}
	}
}

// TestCodexIsConnected likewise, in both versions.
func TestCodexIsConnected(t *testing.T) {
	for name, find := range map[string]func(testing.TB) string{"0.171.0": programs.Codex, "0.144.1": programs.Codex144} {
		t.Run(name, func(t *testing.T) {
			codex := find(t)
			d := newDesk(t)
			d.write(".config/nightporter/config.toml", notes+"env_vars = [\"NOTES_TOKEN\"]\n")
			before := "# mine\nmodel = \"x\"\n\n[mcp_servers.off]\ncommand = \"off\"\nenabled = false # for now"
			d.write(".codex/config.toml", before)
			listed := func() map[string]map[string]any {
				t.Helper()
				var all []struct {
					Name      string
					Enabled   bool
					Transport map[string]any
				}
				if err := json.Unmarshal([]byte(d.run(codex, "mcp", "list", "--json")), &all); err != nil {
					t.Fatal(err)
				}
				servers := map[string]map[string]any{}
				for _, s := range all {
					if s.Enabled {
						servers[s.Name] = s.Transport
					}
				}
				return servers
			}
			d.nightporter("connect", "codex")
			got := listed()["porter"]
			own, _ := got["command"].(string)
			vars, _ := json.Marshal(got["env_vars"])
			if filepath.Base(own) != "nightporter" || !filepath.IsAbs(own) || !strings.Contains(string(vars), "NOTES_TOKEN") {
				t.Errorf("%v", got)
			}
			d.nightporter("disconnect", "codex")
			if servers := listed(); len(servers) != 0 {
				t.Errorf("%v", servers)
			}
			if now := d.read(".codex/config.toml"); now != before {
				t.Errorf("%s", now)
			}
			for _, how := range [][2]string{{"env", "bearer_token_env_var"}, {"file", "http_headers"}} {
				d.nightporter("connect", "codex", "--gateway", "--token", how[0])
				if got := listed()["porter"]; got["url"] != "http://127.0.0.1:8722/mcp" || got[how[1]] == nil {
					t.Errorf("%s: %v", how, got)
				}
			}
			d.nightporter("disconnect", "codex")
			if now := d.read(".codex/config.toml"); now != before {
				t.Errorf("%s", now)
			}
			d.run(codex, "mcp", "add", "mine", "--env", "KEY=sk-0123456789", "--", "nightporter", "demo-server", "notes")
			d.nightporter("import", "codex", "--yes", "--secrets", "file")
			if now := d.read(".config/nightporter/config.toml"); !strings.Contains(now, "[mcp_servers.mine]") || strings.Contains(now, "sk-0123456789") {
				t.Errorf("%s", now)
			}
			d.nightporter("tools", "call", "mine", "list")
		})
	}
}
