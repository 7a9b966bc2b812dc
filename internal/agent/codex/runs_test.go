package codex

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"nightporter/internal/agent"
	"nightporter/internal/secret"
	"nightporter/test/fakemodel"
	"nightporter/test/programs"
)

func TestASessionIsContinuedAndItsUsageIsTheRunsOwn(t *testing.T) {
	onEachVersion(t, func(t *testing.T, program string) {
		r := newRig(t, program, fakemodel.Replies(fakemodel.Says("one"), fakemodel.Says("two")))
		first := r.run(r.request(), nil)
		first.want(t, "one")
		q := r.request()
		q.Prompt, q.Resume, q.Before = "again", first.SessionID, first.Totals
		second := r.run(q, nil)
		second.want(t, "two")
		if second.SessionID != first.SessionID {
			t.Errorf("session %q, want %q", second.SessionID, first.SessionID)
		}
		if second.Usage != first.Usage || second.Totals.InputTokens != 2*first.Usage.InputTokens {
			t.Errorf("usage %+v, totals %+v after %+v", second.Usage, second.Totals, first.Usage)
		}
		if got := r.model.ModelRequests()[1].MCPTools(); len(got) != 2 {
			t.Errorf("the continued session was offered %q", got)
		}
	})
}

func TestADeadSessionIsTold(t *testing.T) {
	onEachVersion(t, func(t *testing.T, program string) {
		r := newRig(t, program, fakemodel.Replies())
		q := r.request()
		q.Resume = "019A0000-0000-7000-8000-000000000000"
		f := r.run(q, nil)
		if !f.ResumeRejected || f.Err == nil || f.Err.Code != agent.CodeResumeRejected || f.SessionID != "" {
			t.Errorf("result %+v\nstderr: %s", f.Result, f.stderr)
		}
		if n := len(r.model.ModelRequests()); n > 0 {
			t.Errorf("the model was asked %d times", n)
		}
	})
}

func TestATextThatIsNoSessionIDIsNotGivenToCodex(t *testing.T) {
	_, err := Adapter{}.Prepare(t.Context(), agent.Request{Argv: []string{"codex", "exec"}, Resume: "nosuchname"})
	if e := (*agent.Error)(nil); !errors.As(err, &e) || e.Code != agent.CodeResumeRejected {
		t.Errorf("error %v, want code %s", err, agent.CodeResumeRejected)
	}
}

func TestToolsOfItsOwnThatAreOffAreDeniedWhenTheModelCallsThem(t *testing.T) {
	patch := fakemodel.Step{Parts: []fakemodel.Part{{Call: &fakemodel.Call{Name: "exec_command", Arguments: []byte(`{"cmd":"apply_patch <<'X'\n*** Begin Patch\n*** Add File: a.txt\n+hi\n*** End Patch\nX"}`)}}}}
	escalate := fakemodel.Step{Parts: []fakemodel.Part{{Call: &fakemodel.Call{Name: "exec_command", Arguments: []byte(`{"cmd":"touch x","sandbox_permissions":"require_escalated","justification":"x"}`)}}}}
	invented := fakemodel.Step{Parts: []fakemodel.Part{{Call: &fakemodel.Call{Name: "no_such_tool"}}}}
	for name, test := range map[string]struct {
		builtIn agent.BuiltIn
		step    fakemodel.Step
		want    []string
	}{
		"shell that is off":        {agent.BuiltInNone, escalate, []string{"exec_command"}},
		"escalation":               {agent.BuiltInReadOnly, escalate, []string{"exec_command"}},
		"patch while read-only":    {agent.BuiltInReadOnly, patch, []string{"apply_patch"}},
		"tool that does not exist": {agent.BuiltInNone, invented, nil},
	} {
		t.Run(name, func(t *testing.T) {
			onEachVersion(t, func(t *testing.T, program string) {
				r := newRig(t, program, fakemodel.Replies(test.step, fakemodel.Says("done")))
				q := r.request()
				q.BuiltIn, q.Argv, q.Env = test.builtIn, []string{"codex", "exec", "--color", "always"}, append(q.Env, "RUST_LOG=off")
				f := r.run(q, nil)
				f.want(t, "done")
				if !slices.Equal(f.Denials, test.want) {
					t.Errorf("denials %q, want %q\nstderr: %s", f.Denials, test.want, f.stderr)
				}
				if _, err := os.Stat(filepath.Join(r.work, "a.txt")); err == nil {
					t.Error("the patch was applied")
				}
			})
		})
	}
}

func TestAToolThatFailedIsNoDenial(t *testing.T) {
	onEachVersion(t, func(t *testing.T, program string) {
		r := newRig(t, program, fakemodel.Replies(fakemodel.Calls("nightporter", "crm__lookup", `{"name":"nobody"}`), fakemodel.Says("done")))
		f := r.run(r.request(), nil)
		f.want(t, "done")
		if len(f.Denials) > 0 {
			t.Errorf("denials %q", f.Denials)
		}
	})
}

func TestBypassLetsACommandWriteAndGrantedDoesNot(t *testing.T) {
	touch := fakemodel.Step{Parts: []fakemodel.Part{{Call: &fakemodel.Call{Name: "exec_command", Arguments: []byte(`{"cmd":"touch made; env"}`)}}}}
	onEachVersion(t, func(t *testing.T, program string) {
		r := newRig(t, program, fakemodel.Replies(touch, fakemodel.Says("done"), touch, fakemodel.Says("done")))
		q := r.request()
		q.BuiltIn, q.Argv, q.SafeTools = agent.BuiltInReadOnly, []string{"codex", "exec", "--yolo"}, true
		r.run(q, nil).want(t, "done")
		if _, err := os.Stat(filepath.Join(r.work, "made")); err == nil {
			t.Error("with safe tools the command could write")
		}
		q.Mode, q.SafeTools, q.BuiltIn = agent.Bypass, false, agent.BuiltInAll
		r.run(q, nil).want(t, "done")
		if _, err := os.Stat(filepath.Join(r.work, "made")); err != nil {
			t.Errorf("with the bypass the command could not write: %v", err)
		}
		for i, asked := range r.model.ModelRequests() {
			if strings.Contains(string(asked.Body), token) {
				t.Errorf("request %d tells the run's token to the model", i)
			}
		}
	})
}

func TestAnInterruptedRunCanBeContinued(t *testing.T) {
	onEachVersion(t, func(t *testing.T, program string) {
		r := newRig(t, program, fakemodel.Replies(
			fakemodel.Step{Parts: []fakemodel.Part{{Text: "so far"}, {Hold: true}}},
			fakemodel.Says("two"),
		))
		held := make(chan struct{})
		go func() {
			if err := r.model.WaitHeld(t.Context()); err == nil {
				close(held)
			}
		}()
		f := r.run(r.request(), held)
		if f.Err == nil || f.Err.Code != agent.CodeNoResult || f.SessionID == "" || f.Reply != "" {
			t.Errorf("result %+v", f.Result)
		}
		q := r.request()
		q.Resume = f.SessionID
		r.run(q, nil).want(t, "two")
	})
}

func TestAGatewayThatRefusesTheTokenEndsTheRunBeforeTheModelIsAsked(t *testing.T) {
	onEachVersion(t, func(t *testing.T, program string) {
		r := newRig(t, program, fakemodel.Replies())
		q := r.request()
		gateway := *r.gateway
		gateway.Token = secret.New("another-made-up-token")
		q.Gateway = &gateway
		f := r.run(q, nil)
		if f.Err == nil || f.Err.Code != agent.CodeBoundary {
			t.Errorf("error %v, want code %s; stderr: %s", f.Err, agent.CodeBoundary, f.stderr)
		}
		if n := len(r.model.ModelRequests()); n > 0 {
			t.Errorf("the model was asked %d times", n)
		}
	})
}

func TestTheModelsRefusalOfTheKeyIsTold(t *testing.T) {
	onEachVersion(t, func(t *testing.T, program string) {
		r := newRig(t, program, fakemodel.Replies(fakemodel.Step{Status: 401, Message: "no such key"}))
		f := r.run(r.request(), nil)
		if f.Err == nil || f.Err.Code != agent.CodeAuth {
			t.Errorf("error %v, want code %s; stdout: %s", f.Err, agent.CodeAuth, f.stdout)
		}
	})
}

// With its retries Codex asks six times, in nine seconds.
func TestARefusedKeyIsNotTriedAgain(t *testing.T) {
	onEachVersion(t, func(t *testing.T, program string) {
		step := fakemodel.Step{Status: 401, Message: "no such key"}
		r := newRig(t, program, fakemodel.Script{Default: &step})
		r.write(".codex/config.toml", strings.ReplaceAll(r.config(""), "_max_retries = 0", "_max_retries = 5"))
		f := r.run(r.request(), nil)
		if f.Err == nil || f.Err.Code != agent.CodeAuth {
			t.Errorf("error %v, want code %s; stdout: %s", f.Err, agent.CodeAuth, f.stdout)
		}
		if n := len(r.model.ModelRequests()); n > 3 {
			t.Errorf("the model was asked %d times", n)
		}
	})
}

func TestNpmsScriptIsReplacedByTheNativeProgram(t *testing.T) {
	script, native := programs.CodexWrapper(t), programs.Codex(t)
	native, err := filepath.EvalSymlinks(native)
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "codex")
	if err := os.Symlink(script, link); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, link, fakemodel.Replies(fakemodel.Says("done")))
	f := r.run(r.request(), nil)
	f.want(t, "done")
	if f.launch.Argv[0] != native || f.launch.Version != "0.171.0" {
		t.Errorf("the run used %s, version %s; want %s", f.launch.Argv[0], f.launch.Version, native)
	}
}

func TestTheTokenDoesNotGoThroughAProxy(t *testing.T) {
	var proxied atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		t.Logf("proxied: %s %s %s", q.Method, q.Host, q.URL)
		proxied.Add(1)
		w.WriteHeader(http.StatusBadGateway)
	}))
	t.Cleanup(proxy.Close)
	onEachVersion(t, func(t *testing.T, program string) {
		r := newRig(t, program, fakemodel.Replies(fakemodel.Says("done")))
		q := r.request()
		q.Env = append(q.Env, "HTTP_PROXY="+proxy.URL, "http_proxy="+proxy.URL, "ALL_PROXY="+proxy.URL, "NO_PROXY=example.com")
		r.run(q, nil).want(t, "done")
		if n := proxied.Load(); n > 0 {
			t.Errorf("%d requests went to the proxy", n)
		}
	})
}

func TestARunWithoutToolServersReachesNone(t *testing.T) {
	onEachVersion(t, func(t *testing.T, program string) {
		r := newRig(t, program, fakemodel.Replies(fakemodel.Says("done")))
		r.write(".codex/config.toml", r.config(r.server("plain")))
		q := r.request()
		q.Gateway, q.AllowServers = nil, []string{"nowhere"}
		f := r.run(q, nil)
		f.want(t, "done")
		if got := r.started(); len(got) > 0 || len(f.Proof.Servers) > 0 || !f.Proof.Proven {
			t.Errorf("started %q, proof %+v", got, f.Proof)
		}
		if !slices.ContainsFunc(f.Proof.Notes, func(n string) bool { return strings.Contains(n, `"nowhere"`) }) {
			t.Errorf("no note on the unknown server: %q", f.Proof.Notes)
		}
	})
}

func TestAServerOfTheRunsOwnNameIsACollision(t *testing.T) {
	onEachVersion(t, func(t *testing.T, program string) {
		r := newRig(t, program, fakemodel.Replies())
		r.write(".codex/config.toml", r.config(r.server("nightporter")))
		r.refused(r.request(), "nightporter")
	})
}

func TestAConfigurationThatCannotBeReadIsNotAnEmptyList(t *testing.T) {
	onEachVersion(t, func(t *testing.T, program string) {
		r := newRig(t, program, fakemodel.Replies())
		r.write(".codex/config.toml", r.config("[mcp_servers.x]\nenv = {KEY = \"made-up-secret\"\n"))
		u := r.refused(r.request(), "codex mcp list")
		if strings.Contains(u.Error(), "made-up-secret") {
			t.Errorf("the error quotes the configuration: %v", u)
		}
	})
}

// refused is a Prepare that must end with *agent.Unproven which names what, before any model was asked.
func (r *rig) refused(q agent.Request, what string) *agent.Unproven {
	r.t.Helper()
	_, err := Adapter{}.Prepare(r.t.Context(), q)
	u := (*agent.Unproven)(nil)
	if !errors.As(err, &u) || !strings.Contains(u.Error(), what) {
		r.t.Fatalf("error %v, want *agent.Unproven that names %q", err, what)
	}
	if n := len(r.model.ModelRequests()); n > 0 || u.Proof.Proven || len(r.started()) > 0 {
		r.t.Errorf("the model was asked %d times, started %q, proof %+v", n, r.started(), u.Proof)
	}
	return u
}

// managed makes Codex see files in /etc/codex, in a mount namespace of its own.
func (r *rig) managed(files map[string]string) {
	r.t.Helper()
	unshare, sh := programs.Find(r.t, "unshare"), programs.Find(r.t, "sh")
	etc := filepath.Join(r.home, "etc")
	for name, text := range files {
		r.write("etc/codex/"+name, text)
	}
	mount := "mount -t overlay overlay -o lowerdir='" + etc + "':/etc /etc"
	if out, err := exec.CommandContext(r.t.Context(), unshare, "-rm", sh, "-c", mount).CombinedOutput(); err != nil {
		r.t.Skipf("/etc cannot be overlaid here: %v: %s", err, out)
	}
	r.program = r.write("bin/codex", "#!"+sh+"\nexec '"+unshare+"' -rm '"+sh+"' -c \"$(cat <<'END'\n"+mount+" && exec '"+r.program+"' \"$@\"\nEND\n)\" codex \"$@\"\n")
}

func TestAServerThatCannotBeSwitchedOffStopsTheRun(t *testing.T) {
	onEachVersion(t, func(t *testing.T, program string) {
		r := newRig(t, program, fakemodel.Replies(fakemodel.Says("done"), fakemodel.Says("done")))
		r.write(".codex/config.toml", r.config(r.server("plain")))
		// The managed layer beats the command line (measured).
		r.managed(map[string]string{"managed_config.toml": r.server("forced") + "enabled = true\n"})
		u := r.refused(r.request(), `"forced"`)
		if !slices.Equal(u.Proof.Failed, []string{"forced"}) || !slices.Equal(u.Proof.Disabled, []string{"plain"}) {
			t.Errorf("failed %q, switched off %q", u.Proof.Failed, u.Proof.Disabled)
		}

		q := r.request()
		q.AllowServers = []string{"forced"}
		f := r.run(q, nil)
		f.want(t, "done")
		if !f.Proof.Proven || !slices.Equal(f.Proof.Failed, []string{"forced"}) || !slices.Equal(f.Proof.Servers, []string{"forced", "nightporter"}) {
			t.Errorf("allowed by name: proof %+v", f.Proof)
		}

		q.AllowServers, q.Unproven = nil, true
		f = r.run(q, nil)
		f.want(t, "done")
		if f.Proof.Proven {
			t.Errorf("accepted unproven, and yet proven: %+v", f.Proof)
		}
	})
}

func TestAManagedConfigurationThatSwitchesTheGatewayOffIsNamed(t *testing.T) {
	onEachVersion(t, func(t *testing.T, program string) {
		r := newRig(t, program, fakemodel.Replies())
		r.managed(map[string]string{"requirements.toml": "[mcp_servers.other.identity]\ncommand = \"/bin/other\"\n"})
		r.refused(r.request(), "/etc/codex/requirements.toml")
	})
}

func TestAManagedConfigurationThatDefeatsASwitchIsNamed(t *testing.T) {
	onEachVersion(t, func(t *testing.T, program string) {
		r := newRig(t, program, fakemodel.Replies())
		r.managed(map[string]string{"managed_config.toml": "[features]\nhooks = true\nshell_tool = true\n"})
		r.refused(r.request(), "shell_tool")
		q := r.request()
		q.BuiltIn = agent.BuiltInReadOnly
		proof := r.prepare(q).Proof
		if !slices.ContainsFunc(proof.Notes, func(n string) bool { return strings.HasSuffix(n, "switches of the run: hooks") }) {
			t.Errorf("notes %q", proof.Notes)
		}
	})
}

func TestAProgramThatDoesNotTellItsFeaturesMayHaveAShell(t *testing.T) {
	onEachVersion(t, func(t *testing.T, program string) {
		r := newRig(t, program, fakemodel.Replies())
		r.program = r.write("bin/codex", "#!"+programs.Find(t, "sh")+"\ntest \"$1\" = features && exit 1\nexec '"+program+"' \"$@\"\n")
		r.refused(r.request(), "shell_tool")
		q := r.request()
		q.BuiltIn = agent.BuiltInReadOnly
		if proof := r.prepare(q).Proof; !slices.ContainsFunc(proof.Notes, func(n string) bool { return strings.Contains(n, "could not be checked") }) {
			t.Errorf("notes %q", proof.Notes)
		}
	})
}

func TestPrepareEndsWithItsContext(t *testing.T) {
	r := newRig(t, programs.Codex(t), fakemodel.Replies())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (Adapter{}).Prepare(ctx, r.request()); err == nil {
		t.Error("Prepare succeeded")
	}
	v, _ := parseVersion("codex-cli 0.171.0")
	q := r.request()
	s := newShape(command{}, q, v)
	_, _, err := prove(ctx, program{path: q.Program, dir: q.Workdir, env: q.Env, version: v}, q, &s, cache{})
	if u := (*agent.Unproven)(nil); !errors.Is(err, context.Canceled) || errors.As(err, &u) {
		t.Errorf("error %v, want one of the context and no word on the boundary", err)
	}
}

func TestProveOnlyAsksNoModel(t *testing.T) {
	onEachVersion(t, func(t *testing.T, program string) {
		r := newRig(t, program, fakemodel.Replies())
		q := r.request()
		q.ProveOnly = true
		f := r.run(q, nil)
		if len(f.told(agent.EventProven)) != 1 || f.launch.Proof == nil || !f.launch.Proof.Proven {
			t.Errorf("events %+v, proof %+v", f.events, f.launch.Proof)
		}
		if n := len(r.model.ModelRequests()); n > 0 {
			t.Errorf("the model was asked %d times", n)
		}
	})
}

func TestAProgramThatIsNoCodexIsMissing(t *testing.T) {
	dir := t.TempDir()
	sh := programs.Find(t, "sh")
	for name, text := range map[string]string{
		"codex-cli 0.143.9": "the oldest", "codex-cli 1.x": "no Codex that is known", "": "no Codex that is known",
	} {
		program := filepath.Join(dir, "codex")
		if err := os.WriteFile(program, []byte("#!"+sh+"\necho '"+name+"'\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		_, err := Adapter{}.Prepare(t.Context(), agent.Request{Argv: []string{"codex", "exec"}, Program: program, Workdir: dir})
		if m := (*agent.Missing)(nil); !errors.As(err, &m) || !strings.Contains(m.Error(), text) || !strings.Contains(m.Error(), MinVersion) {
			t.Errorf("version line %q: error %v, want *agent.Missing with %q", name, err, text)
		}
	}
}

func TestAProgramOrSettingThatChangedAfterTheProofIsTold(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "codex")
	data, err := os.ReadFile(programs.Codex(t))
	if err != nil {
		t.Fatal(err)
	}
	install := func() {
		t.Helper()
		if err := os.WriteFile(binary+".new", data, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(binary+".new", binary); err != nil {
			t.Fatal(err)
		}
	}
	install()
	r := newRig(t, binary, fakemodel.Replies())
	prepare := func() *agent.Launch {
		t.Helper()
		q := r.request()
		q.Env = r.env
		launch, err := Adapter{}.Prepare(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		return launch
	}
	prepare() // its first start makes files of its own
	launch := prepare()
	if what := launch.Changed(); what != "" {
		t.Errorf("nothing was changed, and it says: %s", what)
	}
	install()
	if what := launch.Changed(); !strings.Contains(what, binary) {
		t.Errorf("of another program in its place it says %q", what)
	}
	launch = prepare()
	f, err := os.OpenFile(filepath.Join(codexHome(r.env), "config.toml"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("\n[mcp_servers.late]\ncommand = \"late\"\n"); err != nil {
		t.Fatal(err)
	}
	if what := launch.Changed(); !strings.Contains(what, "settings") {
		t.Errorf("of a server that was added it says %q", what)
	}
}
