package config

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"nightporter/test/programs"
)

// codexList asks the real Codex which servers it reads in a config.toml.
func codexList(t *testing.T, program, home, text string) (string, error) {
	t.Helper()
	dir := filepath.Join(home, ".codex")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), program, "mcp", "list", "--json")
	cmd.Dir, cmd.Env, cmd.Stderr = home, programs.Env(home), &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, stderr.String())
	}
	return string(out), nil
}

func TestCodexReadsTheSameOutOfEveryFieldThatBothHave(t *testing.T) {
	program, home := programs.Codex(t), programs.Home(t)
	var text strings.Builder
	for i, f := range goodFields {
		line := "command = \"prog\""
		if f.on == HTTP {
			line = "url = \"https://h/p\""
		}
		fmt.Fprintf(&text, "[mcp_servers.s%d]\n%s\n%s\n", i, line, f.toml)
	}
	out, err := codexList(t, program, home, text.String())
	if err != nil {
		t.Fatal(err)
	}
	var theirs []struct {
		Name      string
		Enabled   bool
		Startup   *float64 `json:"startup_timeout_sec"`
		Tool      *float64 `json:"tool_timeout_sec"`
		Transport struct {
			Type, Command, URL, Cwd string
			Args                    []string
			Env                     map[string]string
			Bearer                  string            `json:"bearer_token_env_var"`
			Headers                 map[string]string `json:"http_headers"`
			EnvHeaders              map[string]string `json:"env_http_headers"`
			Helper                  string            `json:"http_headers_helper"`
		}
	}
	if err := json.Unmarshal([]byte(out), &theirs); err != nil {
		t.Fatal(err)
	}
	ours := parseText(t, "config.toml", text.String())
	if len(theirs) != len(ours.Servers) {
		t.Fatalf("Codex has %d servers, we have %d", len(theirs), len(ours.Servers))
	}
	seconds := func(x *float64, otherwise time.Duration) time.Duration {
		if x == nil {
			return otherwise
		}
		return time.Duration(*x * float64(time.Second))
	}
	values := func(m map[string]Value) map[string]string {
		text := map[string]string{}
		for k, v := range m {
			text[k] = v.Text()
		}
		return text
	}
	kinds := map[string]Transport{"stdio": Stdio, "streamable_http": HTTP}
	for _, c := range theirs {
		s, ok := ours.Server(c.Name)
		if !ok {
			t.Errorf("%s is missing", c.Name)
			continue
		}
		var args []string
		for _, a := range s.Args {
			args = append(args, a.Text())
		}
		transport := s.Transport
		if transport == SSE {
			transport = HTTP // by type, which Codex ignores
		}
		theirText := fmt.Sprint(kinds[c.Transport.Type], c.Enabled, seconds(c.Startup, DefaultStartTimeout), seconds(c.Tool, DefaultToolTimeout),
			c.Transport.Command, c.Transport.Args, c.Transport.Env, c.Transport.Cwd, c.Transport.URL, c.Transport.Bearer, c.Transport.Headers, c.Transport.EnvHeaders, c.Transport.Helper)
		helper := s.HTTPHeadersHelper
		if helper != "" {
			helper = "<redacted>" // as Codex shows it
		}
		ourText := fmt.Sprint(transport, s.Enabled, s.StartTimeout, s.ToolTimeout,
			s.Command.Text(), args, values(s.Env), s.Cwd.Text(), s.URL.Text(), s.BearerTokenEnvVar, values(s.HTTPHeaders), s.EnvHTTPHeaders, helper)
		if theirText != ourText {
			t.Errorf("%s\nCodex reads %s\nwe read     %s", c.Name, theirText, ourText)
		}
	}
}

// What Codex refuses for all servers we refuse for one. Not here: omit_tools_from, whose words have no effect in
// Nightporter and are not checked.
func TestWhatCodexRefusesIsAProblem(t *testing.T) {
	program, home := programs.Codex(t), programs.Home(t)
	for _, entry := range []string{
		"args = []",
		"command = 3",
		"command = \"x\"\nargs = \"a\"",
		"command = \"x\"\nurl = \"https://h\"",
		"command = \"x\"\nbearer_token_env_var = \"X\"",
		"command = \"x\"\nhttp_headers = {}",
		"command = \"x\"\noauth_resource = \"x\"",
		"command = \"x\"\nauth = \"oauth\"",
		"url = \"https://h\"\nargs = []",
		"url = \"https://h\"\nenv = {}",
		"url = \"https://h\"\nenv_vars = []",
		"url = \"https://h\"\ncwd = \"/\"",
		"url = \"https://h\"\nbearer_token = \"x\"",
		"url = \"https://h\"\nhttp_headers_helper = \" \"",
		"url = \"https://h\"\noauth = { client_secret = \"x\" }",
		"command = \"x\"\nenv_vars = [{ name = \"A\", source = \"else\" }]",
		"command = \"x\"\nstartup_timeout_sec = -1",
		"command = \"x\"\nstartup_timeout_sec = nan",
		"command = \"x\"\ntool_timeout_sec = 1e300",
		"command = \"x\"\nstartup_timeout_ms = 1.5",
		"command = \"x\"\nstartup_timeout_ms = -1",
		"command = \"x\"\nstartup_readiness = \"lazy\"",
		"command = \"x\"\ndefault_tools_approval_mode = \"never\"",
		"command = \"x\"\ntools.a.output_token_limit = 0",
		"command = \"x\"\ntool_input_schema_max_bytes = 0",
		"command = \"x\"\nenabled = 1",
	} {
		text := "[mcp_servers.bad]\n" + entry + "\n"
		if out, err := codexList(t, program, home, text); err == nil {
			t.Errorf("Codex takes\n%s\nand reads %s", text, out)
		}
		if c := parseText(t, "config.toml", text); c.Servers[0].Problem == nil {
			t.Errorf("we take\n%s", text)
		}
	}
}
