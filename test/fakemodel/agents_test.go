package fakemodel_test

import (
	"bytes"
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

// story is what each agent is put through: a call of a real MCP server's tool, then an answer.
var story = fakemodel.Replies(
	fakemodel.Step{Parts: []fakemodel.Part{
		{Thinking: "let me see"},
		{Text: "One moment.", Chunk: 4},
		{Call: &fakemodel.Call{Server: "nightporter", Tool: "everything__get-sum", Arguments: []byte(`{"a":1}`)}},
	}},
	fakemodel.Says("The answer is 42."),
)

// tools is the server that the story calls.
func tools(t *testing.T) (program, config string) {
	return lab.Binary(t), lab.Config{Name: "lab", Tools: lab.Tools("everything__get-sum")}.Arg()
}

// checkStory runs an agent and checks that it took in every part of the story.
func checkStory(t *testing.T, model *fakemodel.Server, cmd *exec.Cmd, wants ...string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\nstdout: %s\nstderr: %s", err, stdout.Bytes(), stderr.Bytes())
	}
	for _, want := range append(wants, "let me see", "One moment.", "The answer is 42.") {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("stdout lacks %s:\n%s", want, stdout.Bytes())
		}
	}
	asked := model.ModelRequests()
	if len(asked) != 2 {
		t.Fatalf("the model was asked %d times, want 2", len(asked))
	}
	if offered := asked[0].MCPTools(); !slices.ContainsFunc(offered, func(name string) bool {
		return strings.HasPrefix(name, "mcp__nightporter__everything__get")
	}) {
		t.Errorf("the tool is not among those offered: %v", offered)
	}
	// Codex 0.144.1 tells the result as JSON in a text, so that the answer's own quotes are escaped.
	if results := asked[1].ToolResults(); len(results) != 1 || !strings.Contains(results[0].Text, "lab: {") {
		t.Errorf("the second request tells %+v, want the lab's answer", results)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestClaudeCodeIsDrivenByTheScript(t *testing.T) {
	t.Parallel()
	claude, home := programs.Claude(t), programs.Home(t)
	model := fakemodel.Start(t, story)
	program, config := tools(t)
	servers, err := json.Marshal(map[string]any{"mcpServers": map[string]any{
		"nightporter": map[string]any{"command": program, "args": []string{config}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(home, "mcp.json")
	write(t, file, string(servers))

	cmd := exec.CommandContext(within(t), claude, "-p", "--output-format", "stream-json", "--verbose",
		"--strict-mcp-config", "--mcp-config", file, "--setting-sources", "", "--tools", "", "--allowedTools", "mcp__nightporter")
	cmd.Dir, cmd.Stdin = home, strings.NewReader("hello\n")
	cmd.Env = programs.Env(home, model.ClaudeEnv()...)
	checkStory(t, model, cmd, `"is_error":false`, `"name":"mcp__nightporter__everything__get-sum"`, `"output_tokens":84`)
}

func TestCodexIsDrivenByTheScript(t *testing.T) {
	for name, find := range map[string]func(testing.TB) string{"0.171.0": programs.Codex, "0.144.1": programs.Codex144} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			codex, home := find(t), programs.Home(t)
			model := fakemodel.Start(t, story)
			program, config := tools(t)
			codexHome := filepath.Join(home, ".codex")
			write(t, filepath.Join(codexHome, "config.toml"), model.CodexConfig()+fmt.Sprintf(`
[mcp_servers.nightporter]
command = %q
args = [%q]
required = true
default_tools_approval_mode = "approve"
`, program, config))

			cmd := exec.CommandContext(within(t), codex, "exec", "--json", "--skip-git-repo-check", "hello")
			cmd.Dir = home
			cmd.Env = programs.Env(home, append(model.CodexEnv(), "CODEX_HOME="+codexHome)...)
			checkStory(t, model, cmd, `"type":"turn.completed"`, `"tool":"everything__get-sum"`, `"input_tokens":260`, `"output_tokens":84`)
		})
	}
}
