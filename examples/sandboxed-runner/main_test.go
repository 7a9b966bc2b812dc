package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"nightporter/test/programs"
)

var built = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "sandboxed-runner-"); err != nil {
		return "", err
	}
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", dir, "nightporter/cmd/nightporter", "nightporter/examples/sandboxed-runner").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("build: %w\n%s", err, out)
	}
	return dir, err
})

func TestMain(m *testing.M) {
	code := m.Run()
	if runtime.GOOS == "linux" {
		if dir, _ := built(); dir != "" {
			_ = os.RemoveAll(dir)
		}
	}
	os.Exit(code)
}

// programsOf are this example, built, and Nightporter.
func programsOf(t *testing.T) (runner, nightporter string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("sandboxes are looked at on Linux alone")
	}
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "sandboxed-runner"), filepath.Join(dir, "nightporter")
}

// client is a client of the runner, directly or through Nightporter.
type client struct {
	t       *testing.T
	ctx     context.Context
	session *mcp.ClientSession
	prefix  string // of tools
}

func dial(t *testing.T, env []string, argv ...string) *client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = env
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return &client{t, ctx, session, ""}
}

// call calls a tool and returns its text; failed says that it is an error's.
func (c *client) call(meta mcp.Meta, tool string, arguments any) (text string, failed bool) {
	c.t.Helper()
	result, err := c.session.CallTool(c.ctx, &mcp.CallToolParams{Meta: meta, Name: c.prefix + tool, Arguments: arguments})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, content := range result.Content {
		if part, ok := content.(*mcp.TextContent); ok {
			text += part.Text
		}
	}
	return text, result.IsError
}

// state is a sandbox state in the shape of Codex 0.171.0, with one folder that may be written or none.
func state(cwd, writable string) json.RawMessage {
	entries := `{"path":{"type":"special","value":{"kind":"root"}},"access":"read"}`
	if writable != "" {
		entries += fmt.Sprintf(`,{"path":{"type":"path","path":%q},"access":"write"}`, writable)
	}
	return json.RawMessage(fmt.Sprintf(`{"permissionProfile":{"type":"managed","file_system":{"type":"restricted","entries":[%s]},"network":"restricted"},`+
		`"codexLinuxSandboxExe":null,"sandboxCwd":"file://%s","useLegacyLandlock":false,"useMxc":false,"future":12345678901234567890}`, entries, cwd))
}

func metaOf(state json.RawMessage, key, member, path string) mcp.Meta {
	return mcp.Meta{metaState: state, key: map[string]string{member: path}}
}

// room is a home for the runner, with a folder to work in.
func room(t *testing.T) (env []string, work string) {
	home := programs.Home(t)
	work = filepath.Join(home, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		t.Fatal(err)
	}
	return programs.Env(home), work
}

// codexOn is the real Codex, with the name beside it by which it finds its own helper when its home is a temporary folder
// (facts of Codex 0.171.0: it makes no alias of itself there).
func codexOn(t *testing.T, env []string) (codex string, with []string) {
	t.Helper()
	codex = programs.Codex(t)
	programs.Find(t, "bwrap")
	dir := t.TempDir()
	if err := os.Symlink(codex, filepath.Join(dir, "codex-linux-sandbox")); err != nil {
		t.Fatal(err)
	}
	for _, pair := range env {
		if path, ok := strings.CutPrefix(pair, "PATH="); ok {
			pair = "PATH=" + dir + ":" + path
		}
		with = append(with, pair)
	}
	return codex, with
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

func TestCommandRunsUnderTheStateOfItsCallByEitherLauncher(t *testing.T) {
	runner, nightporter := programsOf(t)
	for _, name := range []string{"codex", "nightporter"} {
		t.Run(name, func(t *testing.T) {
			env, work := room(t)
			key, member, launcher := metaPorter, ownProgram, nightporter
			if name == "codex" {
				key, member = metaCodex, codexProgram
				launcher, env = codexOn(t, env)
			}
			c := dial(t, env, runner)
			file := filepath.Join(work, "made")
			command := commandArgs{[]string{"sh", "-c", "echo hello; echo x >" + file}}

			text, failed := c.call(metaOf(state(work, ""), key, member, launcher), "run", command)
			if failed || !strings.Contains(text, "hello") || !strings.Contains(text, "Read-only") || exists(file) {
				t.Errorf("read-only: %s, made: %v", text, exists(file))
			}
			text, failed = c.call(metaOf(state(work, work), key, member, launcher), "run", command)
			if failed || !strings.Contains(text, "hello") || !exists(file) {
				t.Errorf("a folder to write to: %s, made: %v", text, exists(file))
			}
		})
	}
}

func TestCallWithoutAuthorityRunsNothing(t *testing.T) {
	runner, nightporter := programsOf(t)
	env, work := room(t)
	file := filepath.Join(work, "made")
	for name, c := range map[string]struct {
		meta  mcp.Meta
		flags []string
		want  string
	}{
		"nothing":                          {nil, nil, "without a sandbox state"},
		"no state":                         {mcp.Meta{metaPorter: map[string]string{ownProgram: nightporter}}, nil, "without a sandbox state"},
		"a state as text":                  {mcp.Meta{metaState: string(state(work, work)), metaPorter: map[string]string{ownProgram: nightporter}}, nil, "without a sandbox state"},
		"no launcher":                      {mcp.Meta{metaState: state(work, work)}, nil, "without a launcher"},
		"a relative launcher":              {metaOf(state(work, work), metaCodex, codexProgram, "codex"), nil, "no absolute path"},
		"a launcher with more than a path": {mcp.Meta{metaState: state(work, work), metaCodex: map[string]any{codexProgram: nightporter, "args": []string{"x"}}}, nil, "no absolute path"},
		"no launcher there":                {metaOf(state(work, work), metaCodex, codexProgram, filepath.Join(work, "none")), nil, "nothing was run"},
		"the launcher that is not wanted":  {metaOf(state(work, work), metaPorter, ownProgram, nightporter), []string{"-launcher", "codex"}, "without a launcher"},
	} {
		t.Run(name, func(t *testing.T) {
			runner := dial(t, env, append([]string{runner}, c.flags...)...)
			for _, tool := range []string{"run", "start"} {
				if text, failed := runner.call(c.meta, tool, commandArgs{[]string{"touch", file}}); !failed || !strings.Contains(text, c.want) {
					t.Errorf("%s: %s", tool, text)
				}
			}
			if exists(file) {
				t.Error("the command ran")
			}
		})
	}
}

func TestJobKeepsTheAuthorityThatItWasStartedUnder(t *testing.T) {
	runner, nightporter := programsOf(t)
	env, work := room(t)
	other := filepath.Join(t.TempDir(), "nightporter")
	if err := os.Symlink(nightporter, other); err != nil {
		t.Fatal(err)
	}
	c := dial(t, env, runner)
	wide, narrow := state(work, work), state(work, "")
	mine := metaOf(narrow, metaPorter, ownProgram, nightporter)
	job, failed := c.call(mine, "start", commandArgs{[]string{"sh"}})
	if failed {
		t.Fatal(job)
	}
	for name, meta := range map[string]mcp.Meta{
		"a wider state":         metaOf(wide, metaPorter, ownProgram, nightporter),
		"another launcher":      metaOf(narrow, metaPorter, ownProgram, other),
		"no launcher":           {metaState: narrow},
		"nothing":               nil,
		"a number's last digit": metaOf(json.RawMessage(strings.Replace(string(narrow), "67890}", "67891}", 1)), metaPorter, ownProgram, nightporter),
	} {
		for tool, arguments := range map[string]any{"send": sendArgs{job, "echo stolen"}, "status": jobArgs{job}} {
			if text, failed := c.call(meta, tool, arguments); !failed {
				t.Errorf("%s with %s: %s", tool, name, text)
			}
		}
	}
	file := filepath.Join(work, "made")
	if text, failed := c.call(mine, "send", sendArgs{job, "echo mine; echo x >" + file + "; exit 7"}); failed {
		t.Fatal(text)
	}
	for {
		text, failed := c.call(mine, "status", jobArgs{job})
		if failed {
			t.Fatal(text)
		}
		if strings.Contains(text, "exit status 7") {
			if !strings.Contains(text, "mine") || strings.Contains(text, "stolen") || !strings.Contains(text, "Read-only") || exists(file) {
				t.Errorf("the job printed %s, made: %v", text, exists(file))
			}
			break
		}
	}
	// Ending one takes no authority.
	if text, failed := c.call(nil, "stop", jobArgs{job}); failed {
		t.Error(text)
	}
	if text, failed := c.call(mine, "status", jobArgs{job}); !failed {
		t.Errorf("it is still there: %s", text)
	}
}

// Behind Nightporter a client that knows nothing of sandboxes has its commands run under the grant's.
func TestGrantsSandboxIsThatOfACommandBehindNightporter(t *testing.T) {
	runner, nightporter := programsOf(t)
	for policy, writes := range map[string]bool{"read-only": false, "workspace-write": true} {
		t.Run(policy, func(t *testing.T) {
			env, work := room(t)
			config := filepath.Join(t.TempDir(), "config.toml")
			text := fmt.Sprintf("[mcp_servers.runner]\ncommand = %q\nauthority_bound = true\n[grants.g]\nservers = [\"runner\"]\nsandbox = %q\n", runner, policy)
			if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			// Its folder is where it is started.
			c := dial(t, append(env, "NIGHTPORTER_HOME="+t.TempDir(), "PWD="+work), "/bin/sh", "-c", `cd "$0" && exec "$@"`, work, nightporter, "mcp", "--alone", "--config", config, "--grant", "g")
			c.prefix = "runner__"
			file := filepath.Join(work, "made")
			answer, failed := c.call(nil, "run", commandArgs{[]string{"sh", "-c", "pwd; echo x >" + file}})
			if failed || !strings.Contains(answer, work) || exists(file) != writes {
				t.Errorf("%s, made: %v", answer, exists(file))
			}
		})
	}
}
