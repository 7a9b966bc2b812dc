package codex

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"nightporter/internal/agent"
)

// split makes an argv of a command whose words hold no spaces.
func split(text string) []string { return strings.Fields(text) }

func TestCommandsThatRunCodexUnattendedAreRecognised(t *testing.T) {
	for text, want := range map[string]bool{
		"codex exec":                        true,
		"codex e":                           true,
		"/opt/bin/codex exec -m x":          true,
		"codex.js exec":                     true,
		"codex.exe exec":                    true,
		`C:\npm\codex.CMD exec`:             true,
		"codex -p work exec":                true,
		"codex -m exec e":                   true,
		"codex --model=x -c a=b exec hello": true,
		"codex exec resume x":               true,
		"codex exec -- hello":               true,
		"codex --unknown exec":              true,
		"codex":                             false,
		"codex hello exec":                  false,
		"codex mcp list":                    false,
		"codex -m exec":                     false,
		"claude exec":                       false,
		"mycodex exec":                      false,
		"":                                  false,
	} {
		if got := (Adapter{}).Recognises(split(text)); got != want {
			t.Errorf("%q recognised: %v, want %v", text, got, want)
		}
	}
}

func TestCommandsThatWouldDefeatTheBoundaryAreRefusedByName(t *testing.T) {
	for text, what := range map[string]string{
		"codex exec -C /tmp":                                    "-C /tmp",
		"codex exec --cd=/tmp":                                  "--cd /tmp",
		"codex exec -c a=b":                                     "-c",
		"codex exec --config a=b":                               "--config",
		"codex exec -ca=b":                                      "-c",
		"codex exec -c model_reasoning_effort=[1]":              "-c",
		"codex exec -c model_reasoning_effort.x=high":           "-c",
		"codex exec --enable x":                                 "--enable x",
		"codex exec --disable plugins":                          "--disable plugins",
		"codex exec -p work":                                    "-p work",
		"codex -p work exec":                                    "-p work",
		"codex --profile=work exec":                             "--profile work",
		"codex -pwork exec":                                     "-p work",
		"codex exec --ignore-user-config":                       "--ignore-user-config",
		"codex exec --strict-config":                            "--strict-config",
		"codex exec resume 019a":                                "exec resume",
		"codex exec review":                                     "exec review",
		"codex exec fork x":                                     "exec fork",
		"codex exec -- hello":                                   "--",
		"codex -- exec":                                         "--",
		"codex exec hello":                                      "hello",
		"codex exec -m x hello":                                 "hello",
		"codex exec - hello":                                    "hello",
		"codex exec --last":                                     "--last",
		"codex exec --ephemeral":                                "--ephemeral",
		"codex exec --trust":                                    "--trust",
		"codex exec --dangerously-bypass-hook-trust":            "--dangerously-bypass-hook-trust",
		"codex exec --approve-for-me":                           "--approve-for-me",
		"codex exec --worktree":                                 "--worktree",
		"codex exec --remote ws://x":                            "--remote ws://x",
		"codex exec --full-auto":                                "--full-auto",
		"codex exec --yolo":                                     "--yolo",
		"codex --yolo exec":                                     "--yolo",
		"codex exec --dangerously-bypass-approvals-and-sandbox": "--dangerously-bypass-approvals-and-sandbox",
		"codex exec -s danger-full-access":                      "-s danger-full-access",
		"codex exec --sandbox=danger-full-access":               "--sandbox danger-full-access",
		"codex exec -sdanger-full-access":                       "-s danger-full-access",
		"codex exec -s=danger-full-access":                      "-s danger-full-access",
		"codex exec -s nonsense":                                "-s nonsense",
		"codex exec -s":                                         "-s",
		"codex exec --model=":                                   "--model",
		"codex exec -m x -m y":                                  "-m",
		"codex exec -m -x":                                      "-m",
		"codex exec --json=yes":                                 "--json",
		"codex exec --unheard-of":                               "--unheard-of",
		"codex exec --unheard-of=made-up-secret":                "--unheard-of",
		"codex exec -hV":                                        "-hV",
		"codex -a never exec":                                   "-a never",
		"codex --search exec":                                   "--search",
		"codex exec --help":                                     "--help",
		"codex":                                                 "codex without exec",
		"codex mcp list":                                        "mcp",
		"other exec":                                            "the command",
	} {
		err := Adapter{}.Check(split(text), agent.Granted)
		refusal := (*agent.Refusal)(nil)
		if !errors.As(err, &refusal) || refusal.What != what || refusal.Why == "" || strings.Contains(err.Error(), "made-up-secret") {
			t.Errorf("%q: %v, want a refusal of %q", text, err, what)
		}
	}
}

func TestFlagsThatStayAreKeptAndOursAreNotDoubled(t *testing.T) {
	for text, want := range map[string]string{
		"codex exec":      "",
		"codex exec -":    "",
		"codex e -m x":    "--model x",
		"codex -m x exec": "--model x",
		"codex exec --model=x --oss --local-provider ollama":                 "--model x --oss --local-provider ollama",
		"codex exec -i a.png b.png --json":                                   "--image a.png b.png",
		"codex exec --json --experimental-json --skip-git-repo-check -m x":   "--model x",
		"codex exec --ignore-rules --color never":                            "--color never",
		"codex exec -c model_reasoning_effort=high":                          "-c model_reasoning_effort=high",
		`codex exec -c model_reasoning_effort="high" -c model_verbosity=low`: `-c model_reasoning_effort="high" -c model_verbosity=low`,
		"codex exec --add-dir /a --add-dir /b":                               "--add-dir /a --add-dir /b",
		"codex exec --output-schema s.json -o last.txt":                      "--output-schema s.json --output-last-message last.txt",
	} {
		c, refusal := parse(split(text), nil)
		if got := strings.Join(c.keep, " "); refusal != nil || got != want {
			t.Errorf("%q: kept %q, refusal %v; want %q", text, got, refusal, want)
		}
	}
}

func TestTheSandboxFollowsTheRunsTools(t *testing.T) {
	const bypass = "--dangerously-bypass-approvals-and-sandbox"
	for _, test := range []struct {
		command string
		mode    agent.ToolMode
		safe    bool
		builtIn agent.BuiltIn
		want    string
		refused bool
	}{
		{"codex exec", agent.Granted, false, agent.BuiltInNone, "--sandbox read-only", false},
		{"codex exec", agent.Granted, false, "", "--sandbox read-only", false},
		{"codex exec", agent.Granted, false, agent.BuiltInReadOnly, "--sandbox read-only", false},
		{"codex exec", agent.Granted, false, agent.BuiltInAll, "--sandbox workspace-write", false},
		{"codex exec -s read-only", agent.Granted, false, agent.BuiltInAll, "--sandbox read-only", false},
		{"codex exec -s workspace-write", agent.Granted, false, agent.BuiltInNone, "--sandbox read-only", false},
		{"codex exec", agent.Bypass, false, agent.BuiltInAll, bypass, false},
		{"codex exec -s read-only", agent.Bypass, false, agent.BuiltInAll, bypass, false},
		{"codex exec --yolo", agent.Bypass, false, agent.BuiltInAll, bypass, false},
		{"codex exec --yolo", agent.Granted, false, agent.BuiltInAll, "", true},
		{"codex exec --yolo", agent.Granted, true, agent.BuiltInAll, "--sandbox workspace-write", false},
		{"codex exec -s danger-full-access", agent.Granted, true, agent.BuiltInNone, "--sandbox read-only", false},
	} {
		c, refusal := parse(split(test.command), nil)
		if refusal == nil {
			refusal = c.bypassRefused(test.mode, test.safe)
		}
		if (refusal != nil) != test.refused {
			t.Errorf("%+v: refusal %v", test, refusal)
			continue
		}
		if test.refused {
			continue
		}
		v, _ := parseVersion("codex-cli 0.171.0")
		s := newShape(c, agent.Request{Mode: test.mode, SafeTools: test.safe, BuiltIn: test.builtIn, Workdir: "/srv/work"}, v)
		if got := strings.Join(s.limits, " "); got != test.want {
			t.Errorf("%+v: limits %q", test, got)
		}
	}
}

func TestAFlagThatTakesManyValuesIsEndedByOneOfOurs(t *testing.T) {
	c, refusal := parse(split("codex exec -i a.png"), nil)
	if refusal != nil {
		t.Fatal(refusal)
	}
	v, _ := parseVersion("codex-cli 0.171.0")
	argv := newShape(c, agent.Request{Workdir: "/srv/work"}, v).exec(nil, "019a0000-0000-7000-8000-000000000000")
	i := slices.Index(argv, "a.png")
	if !strings.HasPrefix(argv[i+1], "-") || argv[len(argv)-1] != "-" || argv[len(argv)-3] != "resume" {
		t.Errorf("argv %q", argv)
	}
}

// No command panics, and what is accepted keeps only flags that the table keeps.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"codex exec", "codex\x00exec\x00-m\x00x", "codex\x00-p\x00w\x00e\x00-i\x00a\x00b", "codex\x00exec\x00-c\x00model_verbosity=low", "codex\x00exec\x00--\x00x", "codex\x00exec\x00-s=read-only"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		argv := strings.Split(text, "\x00")
		c, refusal := parse(argv, nil)
		recognised := recognises(argv)
		if refusal != nil {
			return
		}
		if !recognised {
			t.Errorf("%q is accepted and not recognised", argv)
		}
		for _, word := range c.keep {
			if strings.HasPrefix(word, "-") && word != "-c" && (byName[word] == nil || byName[word].Verdict != agent.Allowed) {
				t.Errorf("%q keeps %q", argv, word)
			}
		}
	})
}

func TestAnUnknownFlagStaysOnlyWhenItWasAllowedByName(t *testing.T) {
	for _, test := range []struct {
		command string
		allow   []string
		keep    string
		refused string
	}{
		{"codex exec --new", nil, "", "--new"},
		{"codex exec --new", []string{"--other"}, "", "--new"},
		{"codex exec --new -m x", []string{"--new"}, "--new --model x", ""},
		{"codex exec --new=1 --yes", []string{"--new", "--yes"}, "--new=1 --yes", ""},
		{"codex exec --new value -m x", []string{"--new"}, "--new value --model x", ""},
		{"codex --new exec", []string{"--new"}, "--new", ""},
		{"codex exec --new value prompt", []string{"--new"}, "", "prompt"},
		// What is known and refused stays so.
		{"codex exec --trust", []string{"--trust"}, "", "--trust"},
		{"codex exec --json=yes", []string{"--json"}, "", "--json"},
	} {
		c, refusal := parse(split(test.command), test.allow)
		switch {
		case test.refused != "" && (refusal == nil || refusal.What != test.refused):
			t.Errorf("%q: refusal %v, want one of %s", test.command, refusal, test.refused)
		case test.refused == "" && (refusal != nil || strings.Join(c.keep, " ") != test.keep || len(c.unknown) == 0):
			t.Errorf("%q: refusal %v, kept %q, unknown %q; want %q", test.command, refusal, c.keep, c.unknown, test.keep)
		}
	}
}

func TestAFlagThatTheVersionDoesNotKnowIsRefused(t *testing.T) {
	c, refusal := parse(split("codex exec --thread-source x"), nil)
	if refusal != nil {
		t.Fatal(refusal)
	}
	older, _ := parseVersion("codex-cli 0.144.1")
	newer, _ := parseVersion("codex-cli 0.171.0")
	if refusal := c.tooNew(older); refusal == nil || refusal.What != "--thread-source" {
		t.Errorf("with %s: %v", older, refusal)
	}
	if refusal := c.tooNew(newer); refusal != nil {
		t.Errorf("with %s: %v", newer, refusal)
	}
}
