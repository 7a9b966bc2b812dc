package claude

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"nightporter/internal/agent"
	"nightporter/internal/secret"
)

func TestRecognisesClaudeWithPrintOnly(t *testing.T) {
	for _, c := range []struct {
		argv string
		want bool
	}{
		{"claude -p", true},
		{"claude --print", true},
		{"/usr/local/bin/claude --model opus -p", true},
		{`C:\Tools\Claude.exe -p`, true},
		{"claude -p --resume x", true}, // Check refuses it
		{"claude -pc", true},           // likewise
		{"claude", false},
		{"claude mcp list", false},
		{"claude --permission-mode plan", false},
		{"claude-wrapper -p", false},
		{"codex -p", false},
		{"", false},
	} {
		if got := (Adapter{}).Recognises(strings.Fields(c.argv)); got != c.want {
			t.Errorf("Recognises(%q) = %v", c.argv, got)
		}
	}
}

func TestDefaultCommandIsRecognisedAndPasses(t *testing.T) {
	argv := Adapter{}.DefaultArgv()
	if !(Adapter{}).Recognises(argv) {
		t.Errorf("%q is not recognised", argv)
	}
	if err := (Adapter{}).Check(argv, agent.Granted); err != nil {
		t.Error(err)
	}
}

func TestCheckRefusesByName(t *testing.T) {
	for _, c := range []struct {
		words string
		what  string // of the refusal; empty: none
	}{
		{"-p", ""},
		{"-p --model opus --effort high --max-turns 5 --max-budget-usd 2", ""},
		{"-p --append-system-prompt=-x --fallback-model sonnet,haiku", ""},
		{"-p --model -odd", ""}, // the word after --model is its value whatever it looks like
		{"--betas a b -p", ""},
		{"-p --verbose --output-format stream-json --input-format=stream-json --strict-mcp-config --permission-prompts none", ""},
		{"-p --setting-sources=", ""},

		{"--verbose", "a command without -p"},
		{"-p hello", "hello"},
		{"-p mcp list", "mcp"},
		{"-p -", "-"},
		{"-p -- hello", "--"},
		{"-p --output-format text", "--output-format text"},
		{"-p --output-format=json", "--output-format=json"},
		{"-p --input-format text", "--input-format text"},
		{"-p --setting-sources user,project", "--setting-sources user,project"},
		{"-p --permission-prompts host", "--permission-prompts host"},
		{"-p --mcp-config a.json b.json", "--mcp-config a.json b.json"},
		{"-p --settings {}", "--settings {}"},
		{"-p --add-dir /", "--add-dir /"},
		{"-p --plugin-dir x", "--plugin-dir x"},
		{"-p --agents {}", "--agents {}"},
		{"-p --agent x", "--agent x"},
		{"-p -c", "-c"},
		{"-p --resume", "--resume"},
		{"-p -r abc", "-r abc"},
		{"-p --session-id x", "--session-id x"},
		{"-p --fork-session", "--fork-session"},
		{"-p --permission-mode plan", "--permission-mode plan"},
		{"-p --permission-prompt-tool mcp__x", "--permission-prompt-tool mcp__x"},
		{"-p --tools Bash", "--tools Bash"},
		{"-p --allowed-tools Bash", "--allowed-tools Bash"},
		{"-p --disallowedTools Bash", "--disallowedTools Bash"},
		{"-p --ide", "--ide"},
		{"-p --chrome", "--chrome"},
		{"-p --worktree", "--worktree"},
		{"-p --safe-mode", "--safe-mode"},
		{"-p --debug", "--debug"},
		{"-p --dangerously-skip-permissions", "--dangerously-skip-permissions"},
		{"-p --permission-mode bypassPermissions", "--permission-mode bypassPermissions"},
		{"-p --permission-mode=bypassPermissions", "--permission-mode=bypassPermissions"},
		{"-p --new-flag", "--new-flag"},
		{"-p --new-flag=x", "--new-flag"},
		{"-pc", "-pc"},
		{"-nx -p", "-nx"},
		{"-p --verbose=true", "--verbose=true"},
		{"-p --model", "--model"},
		{"-p --betas", "--betas"},
	} {
		err := Adapter{}.Check(append([]string{"claude"}, strings.Fields(c.words)...), agent.Granted)
		var refusal *agent.Refusal
		switch {
		case c.what == "" && err != nil:
			t.Errorf("%q: %v", c.words, err)
		case c.what != "" && (!errors.As(err, &refusal) || refusal.What != c.what || refusal.Why == "" || refusal.Mend == ""):
			t.Errorf("%q: %#v, want a refusal of %q with why and mend", c.words, err, c.what)
		}
	}
}

func TestAnUnknownFlagStaysOnlyWhenItWasAllowedByName(t *testing.T) {
	for _, c := range []struct {
		words, allow, keep, refused string
	}{
		{"-p --new", "", "", "--new"},
		{"-p --new", "--other", "", "--new"},
		{"-p --new --model opus", "--new", "--new --model opus", ""},
		{"-p --new=1", "--new", "--new=1", ""},
		{"-p --new value --model opus", "--new", "--new value --model opus", ""},
		{"-p --new value prompt", "--new", "", "prompt"},
		// What is known and refused stays so.
		{"-p --settings {}", "--settings", "", "--settings {}"},
	} {
		s, err := scan(strings.Fields(c.words), strings.Fields(c.allow))
		var refusal *agent.Refusal
		switch {
		case c.refused != "" && (!errors.As(err, &refusal) || refusal.What != c.refused):
			t.Errorf("%q: %v, want a refusal of %s", c.words, err, c.refused)
		case c.refused == "" && (err != nil || strings.Join(s.keep, " ") != c.keep || !slices.Equal(s.unknown, strings.Fields(c.allow))):
			t.Errorf("%q: %v, kept %q, unknown %q; want %q", c.words, err, s.keep, s.unknown, c.keep)
		}
	}
}

func TestEveryRefusedFlagHasItsReason(t *testing.T) {
	for _, f := range flags {
		if f.Verdict == agent.Refused && (f.Why == "" || f.Mend == "") || f.Verdict == agent.Ours && f.Takes == agent.TakesOne && f.Why == "" {
			t.Errorf("%q has no reason or no mend", f.Names)
		}
	}
}

func TestBypassPassesOnlyWhenAskedForByName(t *testing.T) {
	argv := []string{"claude", "-p", "--dangerously-skip-permissions"}
	if err := (Adapter{}).Check(argv, agent.Granted); err == nil {
		t.Error("passed in mode granted")
	}
	if err := (Adapter{}).Check(argv, agent.Bypass); err != nil {
		t.Errorf("refused in mode bypass: %v", err)
	}
}

// stand is a program that answers --version, and nothing else.
func stand(t *testing.T, script string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the stand-in for another version is a shell script")
	}
	file := filepath.Join(t.TempDir(), "claude")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

func standRequest(t *testing.T) agent.Request {
	t.Helper()
	return agent.Request{
		Argv: []string{"claude", "-p", "--model", "opus", "--verbose"}, Program: stand(t, "echo '2.1.340 (Claude Code)'"),
		Workdir: t.TempDir(), Private: t.TempDir(), Env: []string{"PATH=" + os.Getenv("PATH")},
		Gateway: &agent.Gateway{URL: "http://127.0.0.1:1/run/x", Token: secret.New(testToken), Tools: []string{"crm__find"}},
		Mode:    agent.Granted, BuiltIn: agent.BuiltInNone, Prompt: "hello",
	}
}

func TestPrepareNamesWhatIsMissing(t *testing.T) {
	for _, c := range []struct{ name, script, want string }{
		{"too old", "echo '2.1.331 (Claude Code)'", "2.1.331"},
		{"much older", "echo '1.9.400 (Claude Code)'", "1.9.400"},
		{"another program", "echo 'codex-cli 0.171.0'", "codex-cli 0.171.0"},
		{"fails", "echo 'no such library' >&2; exit 127", "no such library"},
		{"silent", "true", `""`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := standRequest(t)
			r.Program = stand(t, c.script)
			_, err := Adapter{}.Prepare(t.Context(), r)
			var missing *agent.Missing
			if !errors.As(err, &missing) || !strings.Contains(missing.Why, c.want) || missing.Mend == "" {
				t.Errorf("error = %v", err)
			}
		})
	}
	r := standRequest(t)
	r.Program = filepath.Join(t.TempDir(), "nothing")
	_, err := Adapter{}.Prepare(t.Context(), r)
	if missing := (*agent.Missing)(nil); !errors.As(err, &missing) || !strings.Contains(missing.Why, r.Program) {
		t.Errorf("error = %v", err)
	}
}

func TestPrepareEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (Adapter{}).Prepare(ctx, standRequest(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v", err)
	}
}

func TestPrepareShapesTheCommand(t *testing.T) {
	const id = "1a93237e-8b87-4c6c-8819-45c9c55a3f45"
	start := "--model opus -p --input-format stream-json --output-format stream-json --verbose --include-partial-messages --strict-mcp-config --mcp-config FILE --setting-sources '' "
	end := " --permission-prompts none --disable-slash-commands"
	sandbox := " --permission-mode acceptEdits --settings " + settings(true, nil)
	for _, c := range []struct {
		name   string
		change func(*agent.Request)
		want   string
	}{
		{"new session", func(*agent.Request) {}, start + "--tools '' --allowedTools mcp__nightporter" + end + " --session-id ID"},
		{"resume", func(r *agent.Request) { r.Resume = id }, start + "--tools '' --allowedTools mcp__nightporter" + end + " --resume " + id},
		{"read-only", func(r *agent.Request) { r.BuiltIn = agent.BuiltInReadOnly }, start + "--tools Glob,Grep,Read --allowedTools mcp__nightporter" + end + " --session-id ID"},
		{"all", func(r *agent.Request) { r.BuiltIn = agent.BuiltInAll }, start + "--tools Bash,Edit,Glob,Grep,NotebookEdit,Read,WebFetch,WebSearch,Write --allowedTools mcp__nightporter,Bash,WebFetch,WebSearch" + sandbox + end + " --session-id ID"},
		{"bypass", func(r *agent.Request) {
			r.Mode, r.Argv = agent.Bypass, append(r.Argv, "--dangerously-skip-permissions")
		}, start + "--tools '' --allowedTools mcp__nightporter --dangerously-skip-permissions" + end + " --session-id ID"},
		{"safe tools", func(r *agent.Request) {
			r.SafeTools, r.Argv = true, append(r.Argv, "--dangerously-skip-permissions")
		}, start + "--tools '' --allowedTools mcp__nightporter" + end + " --session-id ID"},
		{"no gateway", func(r *agent.Request) { r.Gateway = nil }, strings.Replace(start, "--mcp-config FILE ", "", 1) + "--tools ''" + end + " --session-id ID"},
		{"limit on cost", func(r *agent.Request) { r.MaxCostUSD = 0.5 }, start + "--tools '' --allowedTools mcp__nightporter" + end + " --max-budget-usd 0.5 --session-id ID"},
		{"limit on cost of the operator's", func(r *agent.Request) {
			r.MaxCostUSD, r.Argv = 0.5, append(r.Argv, "--max-budget-usd=0.1")
		}, strings.Replace(start, "opus ", "opus --max-budget-usd=0.1 ", 1) + "--tools '' --allowedTools mcp__nightporter" + end + " --session-id ID"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := standRequest(t)
			c.change(&r)
			launch, err := Adapter{}.Prepare(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			if launch.Argv[0] != r.Program || launch.Version != "2.1.340" {
				t.Errorf("program %s, version %s", launch.Argv[0], launch.Version)
			}
			var words []string
			for i, word := range launch.Argv[1:] {
				switch before := launch.Argv[i]; {
				case before == "--session-id" && isUUID(word):
					word = "ID"
				case before == "--mcp-config":
					word = "FILE"
				case word == "":
					word = "''"
				}
				words = append(words, word)
			}
			if got := strings.Join(words, " "); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestConfigHoldsTheGatewayAloneAndOnlyTheOwnerReadsIt(t *testing.T) {
	r := standRequest(t)
	launch, err := Adapter{}.Prepare(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	file := launch.Argv[slices.Index(launch.Argv, "--mcp-config")+1]
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"mcpServers":{"nightporter":{"headers":{"Authorization":"Bearer ` + testToken + `"},"timeout":86400000,"type":"http","url":"http://127.0.0.1:1/run/x"}}}`
	if string(data) != want {
		t.Errorf("config = %s", data)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 && runtime.GOOS != "windows" || filepath.Dir(file) != r.Private {
		t.Errorf("%s: %v, %v", file, info.Mode(), err)
	}
	if strings.Contains(strings.Join(append(launch.Argv, launch.Env...), "\n"), testToken) {
		t.Error("the token is on the command line or in the environment")
	}
}

func TestPrepareRefusesWhatCannotBeRun(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*agent.Request)
		want   string
	}{
		{"flag", func(r *agent.Request) { r.Argv = append(r.Argv, "--ide") }, "refused: --ide"},
		{"bypass not asked for", func(r *agent.Request) { r.Argv = append(r.Argv, "--dangerously-skip-permissions") }, "refused: --dangerously-skip-permissions"},
		{"huge prompt", func(r *agent.Request) { r.Prompt = strings.Repeat("x", maxPrompt+1) }, agent.CodePromptTooLong},
		{"empty prompt", func(r *agent.Request) { r.Prompt = " \n" }, "the prompt is empty"},
		{"title to resume", func(r *agent.Request) { r.Resume = "my session" }, "not a lower-case UUID"},
		{"upper-case id", func(r *agent.Request) { r.Resume = "1A93237E-8B87-4C6C-8819-45C9C55A3F45" }, "not a lower-case UUID"},
		{"flag to resume", func(r *agent.Request) { r.Resume = "--continue" }, "not a lower-case UUID"},
		{"tools of one name", func(r *agent.Request) { r.Gateway.Tools = []string{"a.b", "a b"} }, "mcp__nightporter__a_b"},
		{"variable in the token", func(r *agent.Request) { r.Gateway.Token = secret.New("abc${HOME}def") }, "contains ${"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := standRequest(t)
			c.change(&r)
			if _, err := (Adapter{}).Prepare(t.Context(), r); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error = %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestEnvironmentLosesWhatRedirectsAndGainsOurs(t *testing.T) {
	got := environment([]string{
		"HOME=/h", "ANTHROPIC_API_KEY=k", "ANTHROPIC_BASE_URL=u", "CLAUDECODE=1", "CLAUDE_CODE_MESSAGING_TOKEN=t", "CLAUDE_CODE_SSE_PORT=1",
		"CLAUDE_CODE_PLUGIN_DIRS=/p", "CLAUDE_CODE_TMPDIR=/t", "CLAUDE_TMPDIR=/t",
		"CLAUDE_CODE_DISABLE_FILE_MENTIONS=0", "CLAUDE_CODE_MAX_RETRIES=9",
	})
	want := []string{
		"HOME=/h", "ANTHROPIC_API_KEY=k", "ANTHROPIC_BASE_URL=u", "CLAUDE_CODE_MAX_RETRIES=9",
		"CLAUDE_CODE_DISABLE_FILE_MENTIONS=1", "CLAUDE_CODE_DISABLE_AUTO_MEMORY=1", "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS=1", "DISABLE_AUTOUPDATER=1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestMessageLeavesThePromptAsItIs(t *testing.T) {
	const prompt = "/config \u0000 <b> \u2028 \U0001F600\n@x"
	data := message(prompt).(agent.Write).Data
	var m struct {
		Message struct{ Content []struct{ Text string } }
	}
	if err := json.Unmarshal(data, &m); err != nil || m.Message.Content[0].Text != prompt {
		t.Errorf("%v: %s", err, data)
	}
	if strings.Count(string(data), "\n") != 1 || data[len(data)-1] != '\n' {
		t.Errorf("not one line: %q", data)
	}
}

func TestUUIDsAreOfClaudesForm(t *testing.T) {
	a, b := newUUID(), newUUID()
	if !isUUID(a) || a == b || a[14] != '4' {
		t.Errorf("%s, %s", a, b)
	}
}
