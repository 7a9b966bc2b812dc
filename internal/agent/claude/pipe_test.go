package claude

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"nightporter/internal/safefile"
	"nightporter/test/programs"
)

// TestClaudesOwnPipeIsStillNotTakenForTheGateway fails when what decided against the pipe changes: look at
// docs/decisions/0019-claudes-own-pipe.md again then. No model is asked.
func TestClaudesOwnPipeIsStillNotTakenForTheGateway(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), runWait)
	defer cancel()
	home := programs.Home(t)
	config := filepath.Join(t.TempDir(), "mcp.json")
	if err := safefile.Write(config, []byte(`{"mcpServers":{"nightporter":{"type":"sdk","name":"nightporter"}}}`)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, programs.Claude(t), "-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose",
		"--strict-mcp-config", "--mcp-config", config, "--setting-sources", "", "--tools", "", "--allowedTools", "mcp__nightporter",
		"--permission-prompts", "none", "--disable-slash-commands")
	cmd.Dir, cmd.WaitDelay = t.TempDir(), 5*time.Second
	cmd.Env = environment(programs.Env(home, "ANTHROPIC_BASE_URL=http://127.0.0.1:9", "ANTHROPIC_API_KEY=made-up-key"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	send := func(line string) {
		t.Helper()
		if _, err := stdin.Write([]byte(line + "\n")); err != nil {
			t.Errorf("write to Claude Code: %v", err)
		}
	}
	send(`{"type":"control_request","request_id":"np-1","request":{"subtype":"initialize","sdkMcpServers":["nightporter"]}}`)

	type request struct {
		Type      string `json:"type"`
		RequestID string `json:"request_id"`
		Request   struct {
			Subtype string `json:"subtype"`
			Message struct {
				Method string `json:"method"`
				Params struct {
					Capabilities json.RawMessage `json:"capabilities"`
				} `json:"params"`
			} `json:"message"`
		} `json:"request"`
	}
	var first *request
	reader := bufio.NewReader(stdout)
	for {
		line, err := reader.ReadBytes('\n')
		var q request
		if first == nil && json.Unmarshal(line, &q) == nil && q.Type == "control_request" && q.Request.Subtype == "mcp_message" {
			first = &q
			// A frame that a server garbled, with a raw tab in a string.
			send(`{"type":"control_response","response":{"subtype":"success","request_id":"` + q.RequestID + `","response":{"mcp_response":{"jsonrpc":"2.0","id":0,"result":{"instructions":"` + "\t" + `"}}}}}`)
			_ = stdin.Close() // it ends in either case
		}
		if err != nil {
			break // the end of its output
		}
	}
	err = cmd.Wait()
	if first == nil {
		t.Fatalf("Claude Code ended (%v) without a word to the server on its pipe: %s", err, stderr.String())
	}
	if m := first.Request.Message; m.Method != "initialize" || string(m.Params.Capabilities) != "{}" {
		t.Errorf("Claude Code opens the server on its pipe with %s and capabilities %s; when 0019 was written it was initialize with {}, where HTTP has roots and elicitation", m.Method, m.Params.Capabilities)
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(stderr.String(), "Error parsing streaming input line") {
		t.Errorf("after a garbled frame Claude Code ended with %v and said %q; when 0019 was written it ended the run with 1", err, stderr.String())
	}
}
