package codex

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"nightporter/internal/agent"
	"nightporter/internal/secret"
)

// listed is a list with the run's own server and one more.
const listed = `[
 {"name":"nightporter","enabled":true,"disabled_reason":null,"transport":{"type":"streamable_http","url":"http://127.0.0.1:1/x","bearer_token_env_var":"NIGHTPORTER_RUN_TOKEN","http_headers":null,"env_http_headers":null,"http_headers_helper":null}},
 {"name":"own","enabled":false,"disabled_reason":null,"transport":{"type":"stdio","command":"x","env":{"KEY":"made-up-secret"}}}
]`

func TestAnAnswerThatIsNotUnderstoodIsNoEmptyList(t *testing.T) {
	for _, text := range []string{
		"", "null", "{}", `""`, "[", "[]x", "[] []", "[1]", "[null]", `[{"name":"x"}]`, `[{"name":"x","enabled":true}]`,
		`[{"name":"x","enabled":"yes","transport":{"type":"stdio"}}]`, `[{"name":"x","transport":{"type":"stdio"}}]`,
		`[{"name":1,"enabled":true,"transport":{"type":"stdio"}}]`,
		`[{"name":"x","enabled":false,"transport":{"type":"stdio"}},{"name":"x","enabled":true,"transport":{"type":"stdio"}}]`,
		"No MCP servers configured yet.", "\x00", listed[:len(listed)-2],
	} {
		list, err := parseList([]byte(text))
		if err == nil || list != nil {
			t.Errorf("%q was read as %v", text, list)
		} else if strings.Contains(err.Error(), "made-up-secret") {
			t.Errorf("the error quotes the answer: %v", err)
		}
	}
	if list, err := parseList([]byte("[]\n")); err != nil || len(list) != 0 {
		t.Errorf("an empty list is %v, %v", list, err)
	}
}

func FuzzParseList(f *testing.F) {
	f.Add([]byte(listed))
	f.Add([]byte("[]"))
	f.Add([]byte(`[{"name":"","enabled":true,"transport":{}}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := parseList(data)
		if err != nil {
			return
		}
		p := prover{request: agent.Request{Gateway: &agent.Gateway{URL: "http://127.0.0.1:1/x"}}}
		if p.check(list, nil) == nil {
			for _, e := range list {
				if *e.Enabled != (e.Name == agent.GatewayName) {
					t.Errorf("%s passes with %q enabled: %v", data, e.Name, *e.Enabled)
				}
			}
		}
	})
}

func TestOnlyThePlannedListPasses(t *testing.T) {
	p := prover{request: agent.Request{Gateway: &agent.Gateway{URL: "http://127.0.0.1:1/x", Token: secret.New("made-up")}}}
	for _, test := range []struct{ name, old, new string }{
		{"another url", "127.0.0.1:1/x", "127.0.0.1:2/x"},
		{"another variable", "NIGHTPORTER_RUN_TOKEN", "OTHER"},
		{"headers", `"http_headers":null`, `"http_headers":{"A":"b"}`},
		{"headers of variables", `"env_http_headers":null`, `"env_http_headers":{"A":"B"}`},
		{"a helper", `"http_headers_helper":null`, `"http_headers_helper":"x"`},
		{"another transport", "streamable_http", "stdio"},
		{"the gateway is off", `"nightporter","enabled":true`, `"nightporter","enabled":false`},
		{"the gateway is missing", `"nightporter"`, `"nightporters"`},
		{"another is on", `"own","enabled":false`, `"own","enabled":true`},
	} {
		text := strings.Replace(listed, test.old, test.new, 1)
		list, err := parseList([]byte(text))
		if err != nil || text == listed {
			t.Fatalf("%s: %v", test.name, err)
		}
		if p.check(list, nil) == nil {
			t.Errorf("%s passes", test.name)
		}
	}
	list, err := parseList([]byte(listed))
	if err != nil || p.check(list, nil) != nil {
		t.Errorf("the planned list: %v, %v", err, p.check(list, nil))
	}
	list, _ = parseList([]byte(strings.Replace(listed, `"own","enabled":false`, `"own","enabled":true`, 1)))
	if err := p.check(list, []string{"own"}); err != nil {
		t.Errorf("a server that failed is on: %v", err)
	}
}

func TestAnErrorDoesNotQuoteTheConfiguration(t *testing.T) {
	got := complaint([]byte("WARNING: proceeding, even though x\nError: failed to load\n  |\n3 | key = \"made-up-secret\"\n  |  ^\ninvalid type\n\nStack backtrace:\n   0: somewhere\n"))
	if strings.Contains(got, "made-up-secret") || strings.Contains(got, "somewhere") || !strings.Contains(got, "invalid type") || strings.Contains(got, "WARNING") {
		t.Errorf("complaint %q", got)
	}
}

func TestFeaturesAreReadByNameAndState(t *testing.T) {
	states := parseFeatures([]byte("hooks    stable             true\nx.y     under development  false\nbad\nmaybe  stable  perhaps\n"))
	if len(states) != 2 || !states["hooks"] || states["x.y"] {
		t.Errorf("states %v", states)
	}
}

func TestVersionsAreCompared(t *testing.T) {
	for text, old := range map[string]bool{
		"codex-cli 0.144.1": false, "codex-cli 0.171.0\n": false, "codex-cli 1.0.0": false, "codex-cli 0.200.0-alpha.3": false,
		"WARNING: x\ncodex-cli 0.171.0\n": false, "codex-cli 0.144.0": true, "codex-cli 0.99.9": true,
	} {
		v, ok := parseVersion(text)
		if !ok || v.before(minMajor, minMinor, minPatch) != old {
			t.Errorf("%q is read as %+v, %v", text, v, ok)
		}
	}
	for _, text := range []string{"", "0.171.0", "codex 0.171.0", "codex-cli 0.171", "codex-cli x.1.2", "codex-cli 0.171.0 and more", "codex-cli 9999999999999999999.1.1"} {
		if v, ok := parseVersion(text); ok {
			t.Errorf("%q is read as %+v", text, v)
		}
	}
}

func TestTheNativeProgramIsFoundAsNodeFindsIt(t *testing.T) {
	platform, ok := platforms[runtime.GOOS+"/"+runtime.GOARCH]
	if !ok || runtime.GOOS == "windows" {
		t.Skip("npm has no Codex for this platform, or it has another name there")
	}
	inPackage := filepath.Join(filepath.FromSlash(platform.pkg), "vendor", platform.target, "bin", "codex")
	for name, places := range map[string]struct{ script, native string }{
		"nested":  {"lib/node_modules/@openai/codex/bin/codex.js", filepath.Join("lib/node_modules/@openai/codex/node_modules", inPackage)},
		"hoisted": {"lib/node_modules/@openai/codex/bin/codex.js", filepath.Join("lib/node_modules", inPackage)},
		"vendor":  {"lib/node_modules/@openai/codex/bin/codex.js", filepath.Join("lib/node_modules/@openai/codex/vendor", platform.target, "bin/codex")},
		"missing": {"lib/node_modules/@openai/codex/bin/codex.js", ""},
	} {
		t.Run(name, func(t *testing.T) {
			root, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			put := func(path, text string) string {
				path = filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
					t.Fatal(err)
				}
				return path
			}
			script := put(places.script, "#!/usr/bin/env node\n")
			link := filepath.Join(root, "codex")
			if err := os.Symlink(script, link); err != nil {
				t.Fatal(err)
			}
			want := ""
			if places.native != "" {
				want = put(places.native, "native")
			}
			got, err := native(link)
			if got != want || (err != nil) != (want == "") {
				t.Errorf("native program %q, %v; want %q", got, err, want)
			}
			if _, missing := err.(*agent.Missing); err != nil && !missing {
				t.Errorf("error %T", err)
			}
		})
	}
}

func TestAGitWorktreesMainFolderIsUntrustedToo(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	main, work := filepath.Join(root, "main"), filepath.Join(root, "work")
	for _, dir := range []string{filepath.Join(main, ".git", "worktrees", "work"), filepath.Join(work, "sub")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(work, ".git"), []byte("gitdir: "+filepath.Join(main, ".git", "worktrees", "work")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := untrusted(filepath.Join(work, "sub"))
	for _, dir := range []string{filepath.Join(work, "sub"), work, main, root} {
		if !strings.Contains(got, quote(dir)+`={"trust_level"="untrusted"}`) {
			t.Errorf("%s is not in %s", dir, got)
		}
	}
}

func TestLoopbackIsTakenOutOfTheProxies(t *testing.T) {
	for _, test := range []struct {
		env  string
		want string
	}{
		{"A=1", "A=1"},
		{"HTTP_PROXY=p", "HTTP_PROXY=p NO_PROXY=" + loopback + " no_proxy=" + loopback},
		{"https_proxy=p NO_PROXY=x", "https_proxy=p NO_PROXY=x," + loopback + " no_proxy=x," + loopback},
		{"no_proxy=x NO_PROXY=y", "NO_PROXY=y,x," + loopback + " no_proxy=y,x," + loopback},
	} {
		if got := strings.Join(withoutProxy(split(test.env)), " "); got != test.want {
			t.Errorf("%q: %q, want %q", test.env, got, test.want)
		}
	}
}

func TestInstructionsThatCannotBeSwitchedOffAreNamed(t *testing.T) {
	home := t.TempDir()
	v, _ := parseVersion("codex-cli 0.171.0")
	notes := func() string {
		return strings.Join(newShape(command{}, agent.Request{Workdir: home, Env: []string{"CODEX_HOME=" + home}}, v).notes, "\n")
	}
	if got := notes(); strings.Contains(got, "AGENTS.md") {
		t.Errorf("notes %q", got)
	}
	file := filepath.Join(home, "AGENTS.md")
	if err := os.WriteFile(file, []byte("be brief"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := notes(); !strings.Contains(got, file) {
		t.Errorf("notes %q do not name %s", got, file)
	}
}
