package server_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"nightporter/internal/config"
	"nightporter/internal/mcp/server"
	"nightporter/internal/mcp/wire"
	"nightporter/internal/sandbox"
	"nightporter/test/programs"
)

// memory is npm's server-memory, which keeps what it is told in a file, as a server's entry in config.toml.
func memory(t *testing.T, file string, more ...string) string {
	return fmt.Sprintf("[mcp_servers.memory]\ncommand = %s\nargs = [%s]\nenv = { MEMORY_FILE_PATH = %s }\n%s\n",
		wire.Quote(programs.Find(t, "node")), wire.Quote(programs.NPM(t, "@modelcontextprotocol/server-memory/dist/index.js")), wire.Quote(file), strings.Join(more, "\n"))
}

// openIn starts a server of an entry in a working directory.
func openIn(ctx context.Context, t *testing.T, entry, dir string) (*server.Conn, error) {
	t.Helper()
	cfg, err := config.Parse("config.toml", []byte(entry))
	if err != nil {
		t.Fatal(err)
	}
	if p := cfg.Servers[0].Problem; p != nil {
		t.Fatal(p)
	}
	spec, err := server.Prepare(ctx, &cfg.Servers[0], os.LookupEnv, dir)
	if err != nil {
		return nil, err
	}
	return server.Open(ctx, spec, wire.Client{}, wire.SessionEra, &outside{came: make(chan struct{}, 1)})
}

// remember makes the server write its file, and returns what it said.
func remember(ctx context.Context, t *testing.T, c *server.Conn) string {
	t.Helper()
	answer, err := call(ctx, c, "create_entities", `{"entities":[{"name":"n","entityType":"t","observations":["o"]}]}`, server.Request{})
	if err != nil {
		t.Fatal(err)
	}
	return string(answer.Result)
}

func TestAConfinedServerWritesWhereItMayAndNowhereElse(t *testing.T) {
	for _, c := range []struct {
		sandbox string
		file    string // below the test's folder
		writes  bool
	}{
		{`sandbox = "read-only"`, "work/m", false},
		{`sandbox = "workspace-write"`, "work/m", true},
		{`sandbox = "workspace-write"`, "work/.git/m", false},
		{`sandbox = "workspace-write"`, "home/m", false},
		{`sandbox = { writable = ["data"] }`, "work/data/m", true},
		{`sandbox = { writable = ["data"] }`, "work/m", false},
	} {
		t.Run(c.sandbox+" "+c.file, func(t *testing.T) {
			// Not below /tmp, which workspace-write opens.
			root, err := os.MkdirTemp("/var/tmp", "np-confined-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(root) })
			for _, dir := range []string{"work/data", "home"} {
				if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			file, work := filepath.Join(root, c.file), filepath.Join(root, "work")
			ctx := within(t)
			conn, err := openIn(ctx, t, memory(t, file, c.sandbox), work)
			if err != nil {
				t.Fatal(err)
			}
			if conn.Mechanism != sandbox.Bubblewrap && conn.Mechanism != sandbox.Namespaces {
				t.Errorf("enforced by %q", conn.Mechanism)
			}
			said := remember(ctx, t, conn)
			conn.Close(ctx)
			_, err = os.Stat(file)
			if (err == nil) != c.writes || strings.Contains(said, `"isError":true`) == c.writes {
				t.Errorf("written: %v, and it said %s", err == nil, said)
			}
			if left, _ := filepath.Glob(filepath.Join(work, ".*")); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

func TestAServerWhoseSandboxCannotBeEnforcedDoesNotStart(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/etc", filepath.Join(dir, ".codex")); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		`sandbox = "workspace-write"`:           ".codex goes through the symbolic link",
		`sandbox = { writable = ["absent"] }`:   "the sandbox opens " + filepath.Join(dir, "absent") + ": ",
		`sandbox = { readable = ["/no/such"] }`: "the sandbox opens /no/such: ",
	} {
		file := filepath.Join(dir, "file")
		conn, err := openIn(within(t), t, memory(t, file, line), dir)
		if err == nil {
			conn.Close(within(t))
			t.Errorf("%s: it was started", line)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q lacks %q", line, err, want)
		}
	}
}

// Whoever waits for a server that hangs because it lacks the network is told that it is confined.
func TestAConfinedServerThatDoesNotAnswerIsSaidToBeConfined(t *testing.T) {
	entry := fmt.Sprintf("[mcp_servers.s]\ncommand = %s\nargs = [\"60\"]\nstartup_timeout_sec = 0.5\n", wire.Quote(programs.Find(t, "sleep")))
	for line, confined := range map[string]bool{"": false, `sandbox = "read-only"`: true} {
		conn, err := openIn(within(t), t, entry+line, t.TempDir())
		if err == nil {
			conn.Close(within(t))
			t.Fatal("sleep answered")
		}
		if strings.Contains(err.Error(), "confined by mcp_servers.s.sandbox") != confined || !strings.Contains(err.Error(), "startup_timeout_sec") {
			t.Errorf("%q: %v", line, err)
		}
	}
}

// What docs/sandbox.md tells of servers that npx starts: its cache has to be where it may be written.
func TestAServerThatNpxStartsWorksUnderWorkspaceWrite(t *testing.T) {
	work, err := os.MkdirTemp("/var/tmp", "np-npx-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(work) })
	modules := filepath.Dir(filepath.Dir(filepath.Dir(filepath.Dir(programs.NPM(t, "@modelcontextprotocol/server-memory/dist/index.js")))))
	if err := os.Symlink(modules, filepath.Join(work, "node_modules")); err != nil {
		t.Fatal(err)
	}
	entry := fmt.Sprintf(`[mcp_servers.memory]
command = %s
args = ["--offline", "--no-install", "mcp-server-memory"]
env = { MEMORY_FILE_PATH = %s, npm_config_cache = %s, HOME = "/nonexistent" }
sandbox = "workspace-write"
`, wire.Quote(programs.Find(t, "npx")), wire.Quote(filepath.Join(work, "m")), wire.Quote(filepath.Join(work, ".npm")))
	ctx := within(t)
	conn, err := openIn(ctx, t, entry, work)
	if err != nil {
		t.Fatal(err)
	}
	said := remember(ctx, t, conn)
	conn.Close(ctx)
	if _, err := os.Stat(filepath.Join(work, "m")); err != nil {
		t.Errorf("%v: %s", err, said)
	}
	if _, err := os.Stat(filepath.Join(work, ".npm")); err != nil {
		t.Errorf("the cache is elsewhere: %v", err)
	}
}
