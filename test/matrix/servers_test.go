package matrix

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"nightporter/test/programs"
)

// server is a real MCP server, and what shows that it works.
type server struct {
	name    string
	built   string // with what, for the page
	command func(t *testing.T, h *house) []string
	tool    string
	// arguments of the call; $WORK stands for the work folder, $TIME for which call it is.
	arguments map[string]any
	want      string // in the result
	// serve starts the server on a port of loopback in place of command, and returns its URL and its type in the configuration.
	serve func(t *testing.T, port string) (url, kind string)
}

// from makes the command of a server of an npm package. $WORK in the arguments stands for the work folder, $CHROMIUM for the browser.
func from(script string, args ...string) func(*testing.T, *house) []string {
	return func(t *testing.T, h *house) []string {
		command := []string{programs.Find(t, "node"), programs.NPM(t, script)}
		for _, arg := range args {
			if arg == "$CHROMIUM" {
				arg = programs.Find(t, "chromium")
			}
			command = append(command, strings.ReplaceAll(arg, "$WORK", h.work))
		}
		return command
	}
}

// inEnv is a command with one more variable in its environment.
func inEnv(variable string, command func(*testing.T, *house) []string) func(*testing.T, *house) []string {
	return func(t *testing.T, h *house) []string {
		return append([]string{programs.Find(t, "env"), strings.ReplaceAll(variable, "$WORK", h.work)}, command(t, h)...)
	}
}

const html = "data:text/html,<title>Porter</title><h1>The night porter</h1>"

var servers = []server{
	{
		"@modelcontextprotocol/server-everything 2026.8.31", "TypeScript SDK v1", from("@modelcontextprotocol/server-everything/dist/index.js"),
		"get-sum",
		map[string]any{"a": 19, "b": 23},
		"42",
		nil,
	},
	{
		"@modelcontextprotocol/server-filesystem 2026.8.31", "TypeScript SDK v1", from("@modelcontextprotocol/server-filesystem/dist/index.js", "$WORK"),
		"read_text_file",
		map[string]any{"path": "$WORK/a.js"},
		"debugger",
		nil,
	},
	{
		"@modelcontextprotocol/server-memory 2026.8.31", "TypeScript SDK v1", inEnv("MEMORY_FILE_PATH=$WORK/memory.jsonl", from("@modelcontextprotocol/server-memory/dist/index.js")),
		"create_entities",
		map[string]any{"entities": []any{map[string]any{"name": "Ada $TIME", "entityType": "person", "observations": []string{"counts"}}}},
		"Ada",
		nil,
	},
	{
		"@modelcontextprotocol/server-sequential-thinking 2026.8.31", "TypeScript SDK v1", from("@modelcontextprotocol/server-sequential-thinking/dist/index.js"),
		"sequentialthinking",
		map[string]any{"thought": "hm", "nextThoughtNeeded": false, "thoughtNumber": 1, "totalThoughts": 1},
		`"thoughtHistoryLength": 1`,
		nil,
	},
	{
		"@playwright/mcp 0.0.83", "TypeScript SDK v1, bundled; Debian's Chromium", from("@playwright/mcp/cli.js", "--headless", "--isolated", "--no-sandbox", "--executable-path", "$CHROMIUM"),
		"browser_navigate",
		map[string]any{"url": html},
		"Page Title: Porter",
		nil,
	},
	{
		"chrome-devtools-mcp 1.11.0", "TypeScript SDK v1, bundled; Debian's Chromium", from("chrome-devtools-mcp/build/src/bin/chrome-devtools-mcp.js", "--headless", "--isolated", "--usageStatistics=false", "--chromeArg=--no-sandbox", "--executablePath", "$CHROMIUM"),
		"new_page",
		map[string]any{"url": html},
		"The night porter",
		nil,
	},
	{
		"@eslint/mcp 0.3.13", "TypeScript SDK v1", from("@eslint/mcp/src/mcp-cli.js"),
		"lint-files",
		map[string]any{"filePaths": []string{"$WORK/a.js"}},
		"no-debugger",
		nil,
	},
	{
		"@cyanheads/git-mcp-server 2.15.3", "its own framework", from("@cyanheads/git-mcp-server/dist/index.js"),
		"git_status",
		map[string]any{"path": "$WORK"},
		"a.js",
		nil,
	},
	{
		"@modelcontextprotocol/server-basic-vanillajs 2.0.3", "TypeScript SDK v2, MCP Apps", from("@modelcontextprotocol/server-basic-vanillajs/dist/index.js", "--stdio"),
		"get-time",
		map[string]any{},
		"Z",
		nil,
	},
	{
		"time-mcp 1.0.6", "TypeScript SDK v1", from("time-mcp/dist/index.js"),
		"convert_time",
		map[string]any{"sourceTimezone": "Europe/Berlin", "targetTimezone": "Asia/Tokyo", "time": "2026-01-01 12:00"},
		"2026-01-01 20:00:00",
		nil,
	},
	{
		"Claude Code 2.1.332, `claude mcp serve`", "TypeScript SDK v2, bundled", func(t *testing.T, _ *house) []string { return []string{programs.Claude(t), "mcp", "serve"} },
		"Read",
		map[string]any{"file_path": "$WORK/a.js"},
		"debugger",
		nil,
	},
	{
		"go-sdk 1.8.0, `everything-server`", "Go SDK", func(t *testing.T, _ *house) []string {
			return []string{built(t, "github.com/modelcontextprotocol/go-sdk/conformance/everything-server")}
		},
		"test_simple_text",
		map[string]any{},
		"simple text response",
		nil,
	},
	{
		"@modelcontextprotocol/server-everything 2026.8.31", "TypeScript SDK v1; streamable HTTP", nil,
		"get-sum",
		map[string]any{"a": 19, "b": 23},
		"42", serveEverything("streamableHttp", "/mcp", "http"),
	},
	{
		"@modelcontextprotocol/server-everything 2026.8.31", "TypeScript SDK v1; SSE of 2024-11-05", nil,
		"get-sum",
		map[string]any{"a": 19, "b": 23},
		"42", serveEverything("sse", "/sse", "sse"),
	},
	{
		"go-sdk 1.8.0, `everything-server`", "Go SDK; stateless HTTP, 2026-07-28", nil,
		"test_simple_text",
		map[string]any{},
		"simple text response", func(t *testing.T, port string) (url, kind string) {
			start(t, port, nil, built(t, "github.com/modelcontextprotocol/go-sdk/conformance/everything-server"), "-http", "127.0.0.1:"+port, "-stateless=true")
			return "http://127.0.0.1:" + port + "/mcp", "http"
		},
	},
}

// serveEverything serves npm's server-everything on HTTP.
func serveEverything(transport, path, kind string) func(*testing.T, string) (string, string) {
	return func(t *testing.T, port string) (string, string) {
		start(t, port, []string{"PORT=" + port}, programs.Find(t, "node"), programs.Everything(t), transport)
		return "http://127.0.0.1:" + port + path, kind
	}
}

// row is what was measured of a server; empty texts are for what did not work.
type row struct{ listed, called, dormant, ended string }

// TestRealServersWorkBehindTheGateway lists and calls tools of each server, twice: first without a catalog, then from it.
func TestRealServersWorkBehindTheGateway(t *testing.T) {
	h := newHouse(t, "")
	h.write(filepath.Join(h.work, "a.js"), "debugger\n")
	h.write(filepath.Join(h.work, "eslint.config.mjs"), `export default [{rules: {"no-debugger": "error"}}]`+"\n")
	git := exec.CommandContext(t.Context(), programs.Find(t, "git"), "init", "-q")
	git.Dir, git.Env = h.work, h.env
	if out, err := git.CombinedOutput(); err != nil {
		t.Fatalf("git init: %v\n%s", err, out)
	}
	var config strings.Builder
	for i, s := range servers {
		if s.serve != nil {
			url, kind := s.serve(t, freePort(t))
			fmt.Fprintf(&config, "[mcp_servers.%s]\nurl = %q\ntype = %q\n", key(i), url, kind)
			continue
		}
		command := s.command(t, h)
		args, err := json.Marshal(command[1:])
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&config, "[mcp_servers.%s]\ncommand = %q\nargs = %s\nstartup_timeout_sec = 60\n", key(i), command[0], args)
	}
	h.write(filepath.Join(h.home, "np", "config.toml"), config.String())

	rows := make([]row, len(servers))
	names := make([][]string, len(servers))
	each := func(t *testing.T, do func(t *testing.T, i int, s server)) {
		t.Run("servers", func(t *testing.T) { // parallel ones end with it
			for i, s := range servers {
				t.Run(key(i), func(t *testing.T) {
					t.Parallel()
					do(t, i, s)
				})
			}
		})
	}

	base, end := h.gateway()
	each(t, func(t *testing.T, i int, s server) {
		session := h.session(t, base, i)
		names[i] = toolNames(t, session)
		if !slices.Contains(names[i], s.tool) {
			t.Fatalf("tools: %v", names[i])
		}
		rows[i].listed = fmt.Sprint(len(names[i]))
		rows[i].called = h.call(t, session, s, "first")
	})
	end()
	if left := h.gone(); len(left) > 0 {
		t.Errorf("left behind the gateway:\n%s", strings.Join(left, "\n"))
	} else {
		for i, s := range servers {
			if rows[i].ended = "yes"; s.serve != nil {
				rows[i].ended = "–" // it is not the gateway's to end
			}
		}
	}

	base, end = h.gateway()
	before := len(h.processes())
	sessions := make([]*mcp.ClientSession, len(servers))
	var mu sync.Mutex
	for i := range servers { // none of them may start one
		session := h.session(t, base, i)
		if again := toolNames(t, session); !slices.Equal(again, names[i]) {
			t.Errorf("%s: from its catalog it has the tools %v, live %v", servers[i].name, again, names[i])
		} else {
			rows[i].dormant = "yes"
		}
		mu.Lock()
		sessions[i] = session
		mu.Unlock()
	}
	if now := len(h.processes()); now != before {
		t.Errorf("%d processes run after tools were listed from catalogs, want %d", now, before)
		for i := range rows {
			rows[i].dormant = ""
		}
	}
	each(t, func(t *testing.T, i int, s server) { h.call(t, sessions[i], s, "second") })
	end()
	if left := h.gone(); len(left) > 0 {
		t.Errorf("left behind the second gateway:\n%s", strings.Join(left, "\n"))
	}

	var text strings.Builder
	text.WriteString("# Servers that work behind the gateway\n\n" +
		"Measured by `go test ./test/matrix`, in which each server runs behind `nightporter gateway`. CI fails when this page says\n" +
		"something else than it measured. None of them needs an account.\n\n" +
		"*Tools* is how many are listed, the same live and from the catalog. *Called* is a tool whose result is checked, first by a client that has to wait for\n" +
		"the server's start, then by one that wakes it. *Dormant* means that the second client listed the tools while no server ran. *Ended* means\n" +
		"that no process was left, browsers and helpers included, when the gateway had ended; servers that are reached by their URL live on.\n\n" +
		"| server | built with | tools | called | dormant | ended |\n|---|---|---|---|---|---|\n")
	for i, s := range servers {
		r := rows[i]
		fmt.Fprintf(&text, "| %s | %s | %s | %s | %s | %s |\n", s.name, s.built, orNo(r.listed), orNo(r.called), orNo(r.dormant), orNo(r.ended))
	}
	page(t, "servers.md", text.String())
}

func orNo(measured string) string {
	if measured == "" {
		return "**no**"
	}
	return measured
}

// key is a server's name in the configuration.
func key(i int) string {
	name, _, _ := strings.Cut(servers[i].name, " ")
	name = strings.ToLower(strings.ReplaceAll(strings.Trim(name, "@"), "/", "-"))
	if servers[i].serve != nil {
		return fmt.Sprint(name, "-", i) // beside the one on stdio
	}
	return name
}

func (h *house) session(t *testing.T, base string, i int) *mcp.ClientSession {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return connect(ctx, t, &mcp.StreamableClientTransport{Endpoint: base + "/mcp/" + key(i), HTTPClient: authorised()}, "2025-11-25", nil)
}

func toolNames(t *testing.T, s *mcp.ClientSession) (names []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for tool, err := range s.Tools(ctx, nil) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, tool.Name)
	}
	slices.Sort(names)
	return names
}

// call calls the server's tool and returns its name.
func (h *house) call(t *testing.T, session *mcp.ClientSession, s server, time string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	text, err := json.Marshal(s.arguments)
	if err != nil {
		t.Fatal(err)
	}
	result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: s.tool, Arguments: json.RawMessage(strings.NewReplacer("$WORK", h.work, "$TIME", time).Replace(string(text)))})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, block := range result.Content {
		if content, ok := block.(*mcp.TextContent); ok {
			all = append(all, content.Text)
		}
	}
	if got := strings.Join(all, "\n"); result.IsError || !strings.Contains(got, s.want) {
		t.Fatalf("%s answered %.2000s\nwant %s", s.tool, got, s.want)
	}
	return "`" + s.tool + "`"
}

// TestAppsReachTheirClients reads the page that a tool brings along for clients that can show it (the extension MCP Apps), where
// several servers are merged.
func TestAppsReachTheirClients(t *testing.T) {
	h := newHouse(t, "")
	command := from("@modelcontextprotocol/server-basic-vanillajs/dist/index.js", "--stdio")(t, h)
	everything := from("@modelcontextprotocol/server-everything/dist/index.js")(t, h)
	h.write(filepath.Join(h.home, "np", "config.toml"), fmt.Sprintf(
		"[mcp_servers.apps]\ncommand = %q\nargs = [%q, %q]\nrequired = true\n[mcp_servers.everything]\ncommand = %q\nargs = [%q]\nrequired = true\n",
		command[0], command[1], command[2], everything[0], everything[1]))
	base, _ := h.gateway()
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		session := connect(ctx, t, &mcp.StreamableClientTransport{Endpoint: base + "/mcp", HTTPClient: authorised()}, version, nil)
		list, err := session.ListTools(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(list.Tools, func(tool *mcp.Tool) bool { return tool.Name == "apps__get-time" })
		if i < 0 {
			t.Fatalf("%s: the tool is not listed", version)
		}
		ui, _ := list.Tools[i].Meta["ui"].(map[string]any)
		uri, _ := ui["resourceUri"].(string)
		read, err := session.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
		if err != nil {
			t.Fatalf("%s: read %q: %v", version, uri, err)
		}
		if len(read.Contents) != 1 || !strings.HasPrefix(read.Contents[0].MIMEType, "text/html") || !strings.Contains(read.Contents[0].Text, "<html") {
			t.Errorf("%s: the page is %+.300v", version, read.Contents)
		}
		session.Close()
	}
}
