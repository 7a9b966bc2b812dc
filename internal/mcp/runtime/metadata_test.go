package runtime_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"nightporter/internal/config"
	"nightporter/internal/mcp/authority"
	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/server"
	"nightporter/internal/mcp/wire"
	"nightporter/test/lab"
)

// granted grants everything, under a policy that may change.
type granted struct {
	runtime.All
	policy *config.Sandbox
}

func (g *granted) Policy() *config.Sandbox { return g.policy }

// metaParams are the params of a call with a _meta.
func metaParams(tool, meta string) json.RawMessage {
	params := wire.Set(nil, wire.Quote(tool), "name")
	if meta != "" {
		params = wire.Set(params, json.RawMessage(meta), "_meta")
	}
	return params
}

// metaOf calls the tool meta and returns the _meta that came to the server.
func (h *house) metaOf(s *runtime.Scope, name, meta string) (string, error) {
	answer, err := s.CallTool(h.ctx, name, "meta", server.Request{Method: wire.ToolsCall, Params: metaParams("meta", meta)})
	if err != nil {
		return "", err
	}
	content, err := wire.Elements(wire.Get(answer.Result, "content"))
	if err != nil || len(content) != 1 {
		h.t.Fatalf("the answer is %s", answer.Result)
	}
	text, _ := wire.GetString(content[0], "text")
	return text, nil
}

// program writes a program for the shell. No process is started meanwhile: it would have the file open for writing as well, and a
// file that is open for writing cannot be executed.
func (h *house) program(path, script string) {
	h.t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		h.t.Fatal(err)
	}
}

// launcher is a program that answers the probe, and a file that names each time it was asked.
func (h *house) launcher() (path string, asked func() int) {
	h.t.Helper()
	log := filepath.Join(h.t.TempDir(), "asked")
	path = filepath.Join(h.t.TempDir(), "launcher")
	h.program(path, fmt.Sprintf("echo x >>%s\necho --sandbox-state-json\n", log))
	return path, func() int {
		text, _ := os.ReadFile(log)
		return strings.Count(string(text), "x")
	}
}

func TestA27StateGoesToServersThatAskedByEitherNameAndToNoOthers(t *testing.T) {
	h := newHouse(t)
	asks := map[string]string{
		"newer": `{"codex/sandbox-state":{"version":1}}`, "older": `{"codex/sandbox-state-meta":{}}`, "both": `{"codex/sandbox-state":{},"codex/sandbox-state-meta":{}}`,
		"neither": `{"codex/other":{}}`,
	}
	var entries []string
	for name, experimental := range asks {
		c := lab.Config{Name: name, Tools: lab.Tools("meta"), Experimental: json.RawMessage(experimental), Log: h.recorder.Address}
		entries = append(entries, h.lab(c))
		c.Name += "-http"
		entries = append(entries, fmt.Sprintf("[mcp_servers.%q]\nurl = %q\n", c.Name, lab.Serve(t, c)))
	}
	launcher, asked := h.launcher()
	s := h.runtimeWith(runtime.Options{Executable: launcher}, entries...).Open(h.ctx, runtime.ScopeOptions{Name: "c", Dir: h.dir, Owner: &owner{}, Local: true})
	state := `{ "a":1.0,"b":[ 12345678901234567890 ],"a":2}`
	given := fmt.Sprintf(`{"k": [1 ],"codex/sandbox-state":%s,"codex/sandbox-launcher":{"codexExecutable":%q}}`, state, launcher)
	for name := range asks {
		for _, http := range []bool{false, true} {
			server := name
			if http {
				server += "-http"
			}
			got, err := h.metaOf(s, server, given)
			if err != nil {
				t.Fatal(err)
			}
			want := `{"k": [1 ]`
			if name != "neither" {
				want += fmt.Sprintf(`,"codex/sandbox-state":%s,"codex/sandbox-state-meta":%s`, state, state)
				if !http { // never to HTTP servers, loopback included (A29)
					want += fmt.Sprintf(`,"codex/sandbox-launcher":{"codexExecutable":%q},"nightporter/sandbox-launcher":{"executable":%q}`, launcher, launcher)
				}
			}
			if got != want+"}" {
				t.Errorf("%s got\n%s, want\n%s", server, got, want+"}")
			}
		}
	}
	if n := asked(); n != 1 {
		t.Errorf("the launcher was asked %d times", n)
	}
}

// Sandbox metadata belongs to calls of tools, whoever writes it elsewhere.
func TestA27OtherRequestsAndNotificationsCarryNoState(t *testing.T) {
	h := newHouse(t)
	_, s := h.open(h.lab(lab.Config{
		Name: "s", Tools: lab.Tools("pid"), Experimental: json.RawMessage(`{"codex/sandbox-state":{}}`), Prompts: []json.RawMessage{json.RawMessage(`{"name":"greet"}`)},
	}))
	const meta = `"_meta":{"codex/sandbox-state":{"a":1},"codex/sandbox-state-meta":{"a":1},"codex/sandbox-launcher":{"codexExecutable":"/x"},"nightporter/sandbox-launcher":{"executable":"/x"}}`
	if err := h.do(s, wire.PromptsGet, `{"name":"greet",`+meta+`}`); err != nil {
		t.Fatal(err)
	}
	s.Tell(h.ctx, wire.RootsChanged, json.RawMessage(`{`+meta+`}`))
	for _, method := range []string{wire.PromptsGet, wire.RootsChanged} {
		e, err := h.recorder.Wait(h.ctx, lab.Received(method))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(e.Message), "sandbox") {
			t.Errorf("%s carries %s", method, e.Message)
		}
	}
}

func TestA28StateIsMadeOfTheOperatorsPolicyWhereTheClientGaveNone(t *testing.T) {
	h := newHouse(t)
	rt := h.runtime(h.lab(lab.Config{Name: "s", Tools: lab.Tools("meta"), Experimental: json.RawMessage(`{"codex/sandbox-state":{}}`)}),
		h.lab(lab.Config{Name: "plain", Tools: lab.Tools("meta")}))
	for _, c := range []struct {
		name   string
		policy *config.Sandbox
		want   string // a part of the state; empty: none
	}{
		{"none", nil, ""},
		{"read-only", &config.Sandbox{Mode: "read-only"}, `{"path":{"type":"special","value":{"kind":"root"}},"access":"read"}]},"network":"restricted"}`},
		{"workspace-write", &config.Sandbox{Mode: "workspace-write"}, fmt.Sprintf(`{"path":{"type":"path","path":%q},"access":"write"}`, h.dir)},
		{"a profile, as it is written", &config.Sandbox{Profile: json.RawMessage(`{"type":"disabled","x":1.0}`)}, `{"permissionProfile":{"type":"disabled","x":1.0},`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := rt.Open(h.ctx, runtime.ScopeOptions{Name: "c", Dir: h.dir, Owner: &owner{}, Grant: &granted{policy: c.policy}})
			got, err := h.metaOf(s, "s", "")
			if err != nil {
				t.Fatal(err)
			}
			state := string(wire.Get([]byte(got), authority.MetaState))
			if (state == "") != (c.want == "") || !strings.Contains(state, c.want) {
				t.Errorf("state %s, want %s", state, c.want)
			}
			if state != string(wire.Get([]byte(got), authority.MetaStateLegacy)) {
				t.Errorf("two states: %s", got)
			}
			if c.want != "" && !strings.Contains(state, fmt.Sprintf(`"sandboxCwd":"file://%s"`, h.dir)) {
				t.Errorf("the working directory is not %s: %s", h.dir, state)
			}
			if got, err := h.metaOf(s, "plain", ""); err != nil || got != "" && got != "{}" {
				t.Errorf("a server that did not ask got %s, %v", got, err)
			}
		})
	}
	s := rt.Open(h.ctx, runtime.ScopeOptions{Name: "c", Dir: h.dir, Owner: &owner{}, Grant: &granted{policy: &config.Sandbox{Profile: json.RawMessage(`{"type":"x"}`)}}})
	var refused *runtime.RefusedError
	if got, err := h.metaOf(s, "s", ""); !errors.As(err, &refused) || refused.Check != "sandbox" {
		t.Errorf("a policy that cannot be told: %s, %v", got, err)
	}
}

// The operator's policy is a bound for the state that a client gives: what may allow more is refused, what is within it
// is passed on as it is (docs/decisions).
func TestA28ClientsStateBeyondTheOperatorsPolicyIsRefused(t *testing.T) {
	h := newHouse(t)
	rt := h.runtime(h.lab(lab.Config{Name: "s", Tools: lab.Tools("meta"), Experimental: json.RawMessage(`{"codex/sandbox-state":{}}`)}),
		h.lab(lab.Config{Name: "plain", Tools: lab.Tools("meta")}))
	s := rt.Open(h.ctx, runtime.ScopeOptions{Name: "c", Dir: h.dir, Owner: &owner{}, Grant: &granted{policy: &config.Sandbox{Mode: "read-only"}}})
	wide, err := authority.Policy(&config.Sandbox{Mode: "workspace-write"}, h.dir)
	if err != nil {
		t.Fatal(err)
	}
	narrow, err := authority.Policy(&config.Sandbox{Mode: "read-only"}, "/elsewhere")
	if err != nil {
		t.Fatal(err)
	}
	var refused *runtime.RefusedError
	if got, err := h.metaOf(s, "s", `{"codex/sandbox-state":`+wide+`}`); !errors.As(err, &refused) || refused.Check != "sandbox" || !strings.Contains(err.Error(), "grant") {
		t.Errorf("the wider one: %s, %v", got, err)
	}
	narrow = strings.Replace(narrow, `{`, `{ "note" : 1,`, 1)
	if got, err := h.metaOf(s, "s", `{"codex/sandbox-state":`+narrow+`}`); err != nil || string(wire.Get([]byte(got), authority.MetaState)) != narrow {
		t.Errorf("the narrower one: %s, %v", got, err)
	}
	// Where no state is told none can be too wide.
	if _, err := h.metaOf(s, "plain", `{"codex/sandbox-state":`+wide+`}`); err != nil {
		t.Error(err)
	}
}

func TestA29LauncherIsLeftOutWhenInDoubt(t *testing.T) {
	h := newHouse(t)
	good, asked := h.launcher()
	bad := filepath.Join(h.dir, "bad")
	h.program(bad, "exit 1\n")
	entry := h.lab(lab.Config{Name: "s", Tools: lab.Tools("meta"), Experimental: json.RawMessage(`{"codex/sandbox-state":{}}`)})
	quiet := h.lab(lab.Config{Name: "quiet", Tools: lab.Tools("meta")})
	for _, c := range []struct {
		name       string
		local      bool
		own        string
		server     string
		launcher   string
		codex, our bool
	}{
		{"a local client's", true, "", "s", fmt.Sprintf(`{"codexExecutable":%q}`, good), true, false},
		{"one of a client that is elsewhere", false, "", "s", fmt.Sprintf(`{"codexExecutable":%q}`, good), false, false},
		{"one that fails the probe", true, good, "s", fmt.Sprintf(`{"codexExecutable":%q}`, bad), false, true},
		{"one that is on PATH", true, good, "s", `{"codexExecutable":"sh"}`, false, true},
		{"a relative one", true, good, "s", `{"codexExecutable":"./launcher"}`, false, true},
		{"none", true, good, "s", "", false, true},
		{"our own for a client that is elsewhere", false, good, "s", "", false, true},
		{"our own that fails", true, bad, "s", "", false, false},
		{"both for a server that did not ask", true, good, "quiet", fmt.Sprintf(`{"codexExecutable":%q}`, good), false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := asked()
			s := h.runtimeWith(runtime.Options{Executable: c.own}, entry, quiet).Open(h.ctx, runtime.ScopeOptions{Name: "c", Dir: h.dir, Owner: &owner{}, Local: c.local})
			meta := `{"codex/sandbox-state":{"a":1},"nightporter/sandbox-launcher":{"executable":"/from/the/client"}}`
			if c.launcher != "" {
				meta = string(wire.Set([]byte(meta), json.RawMessage(c.launcher), authority.MetaLauncher))
			}
			got, err := h.metaOf(s, c.server, meta)
			if err != nil {
				t.Fatal(err)
			}
			codex, _ := wire.GetString([]byte(got), authority.MetaLauncher, "codexExecutable")
			own, _ := wire.GetString([]byte(got), authority.MetaOwnLauncher, "executable")
			if (codex == good) != c.codex || codex != "" && !c.codex || (own == good) != c.our || own != "" && !c.our {
				t.Errorf("launchers %q and %q in %s", codex, own, got)
			}
			if !c.codex && !c.our && asked() != before {
				t.Error("it was executed all the same")
			}
		})
	}
}

// A state that nobody would write passes whole, or the call is refused and says why: over stdio and HTTP.
func TestA28OddStatesPassWholeOrAreRefused(t *testing.T) {
	h := newHouse(t)
	c := lab.Config{Name: "stdio", Tools: lab.Tools("meta"), Experimental: json.RawMessage(`{"codex/sandbox-state":{}}`)}
	entry := h.lab(c)
	c.Name = "http"
	_, s := h.open(entry, fmt.Sprintf("[mcp_servers.http]\nurl = %q\n", lab.Serve(t, c)))
	for name, state := range map[string]string{
		"1 MB":            `{"x":"` + strings.Repeat("a", 1<<20) + `"}`,
		"500 deep":        strings.Repeat(`{"a":[`, 250) + strings.Repeat(`]}`, 250),
		"duplicate keys":  `{"permissionProfile":{"type":"disabled"},"permissionProfile":{"type":"managed"}}`,
		"no JSON numbers": `{"a":-0.0,"b":1E+2,"c":123456789012345678901234567890}`,
	} {
		for _, server := range []string{"stdio", "http"} {
			got, err := h.metaOf(s, server, `{"codex/sandbox-state":`+state+`}`)
			if err != nil {
				t.Errorf("%s, %s: %v", name, server, err)
				continue
			}
			for _, key := range []string{authority.MetaState, authority.MetaStateLegacy} {
				if string(wire.Get([]byte(got), key)) != state {
					t.Errorf("%s, %s: it was changed", name, server)
				}
			}
		}
	}
	for name, meta := range map[string]string{
		"two states":    `{"codex/sandbox-state":{"a":1},"codex/sandbox-state-meta":{"a":2}}`,
		"several lines": "{\"codex/sandbox-state\":{\n}}",
		"a state twice": `{"codex/sandbox-state":{"a":1},"codex/sandbox-state":{"a":2}}`,
	} {
		for _, server := range []string{"stdio", "http"} {
			var refused *runtime.RefusedError
			if got, err := h.metaOf(s, server, meta); !errors.As(err, &refused) || refused.Check != "sandbox" {
				t.Errorf("%s, %s: %s, %v", name, server, got, err)
			}
		}
	}
}

// bindings are the states and launchers that each process of a server was sent, as text.
func (h *house) bindings() map[int]map[string]bool {
	all := map[int]map[string]bool{}
	for _, e := range h.recorder.Select(lab.Received(wire.ToolsCall)) {
		meta := wire.Get(e.Message, "params", "_meta")
		if all[e.PID] == nil {
			all[e.PID] = map[string]bool{}
		}
		all[e.PID][string(wire.Get(meta, authority.MetaState))+" by "+string(wire.Get(meta, authority.MetaLauncher))] = true
	}
	return all
}

// However many calls under however many states and launchers come at the same time, no process of a bound server sees two of them.
func TestA30BoundServerNeverSeesTwoAuthoritiesOnOneConnection(t *testing.T) {
	for name, lines := range map[string][]string{
		"alone":    {"authority_bound = true"},
		"parallel": {"authority_bound = true", "supports_parallel_tool_calls = true"},
		"shared":   {"authority_bound = true", "shared = true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			one, _ := h.launcher()
			two, _ := h.launcher()
			rt := h.runtime(h.lab(lab.Config{Name: "s", Tools: lab.Tools("pid"), Experimental: json.RawMessage(`{"codex/sandbox-state":{}}`)}, lines...))
			var scopes []*runtime.Scope
			for i := range 2 {
				scopes = append(scopes, rt.Open(h.ctx, runtime.ScopeOptions{Name: fmt.Sprint("client ", i), Dir: h.dir, Owner: &owner{}, Local: true}))
			}
			given := []string{
				`{"threadId":"1","codex/sandbox-state":{"a":1}}`,
				`{"threadId":"2","codex/sandbox-state":{"a":2}}`,
				fmt.Sprintf(`{"threadId":"1","codex/sandbox-state":{"a":1},"codex/sandbox-launcher":{"codexExecutable":%q}}`, one),
				fmt.Sprintf(`{"threadId":"1","codex/sandbox-state":{"a":1},"codex/sandbox-launcher":{"codexExecutable":%q}}`, two),
			}
			var wg sync.WaitGroup
			for i := range 4 * len(given) {
				wg.Go(func() {
					s := scopes[i%len(scopes)]
					_, err := s.CallTool(h.ctx, "s", "pid", server.Request{Method: wire.ToolsCall, Params: metaParams("pid", given[i/len(scopes)%len(given)])})
					if err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			seen := map[string]bool{}
			for pid, bindings := range h.bindings() {
				if len(bindings) != 1 {
					t.Errorf("process %d saw %v", pid, bindings)
				}
				for b := range bindings {
					seen[b] = true
				}
			}
			if len(seen) != len(given) {
				t.Errorf("authorities %v", seen)
			}
		})
	}
}

func TestA30BoundServerIsSharedByClientsOfOneAuthority(t *testing.T) {
	h := newHouse(t)
	rt := h.runtime(h.lab(lab.Config{Name: "s", Tools: lab.Tools("pid"), Experimental: json.RawMessage(`{"codex/sandbox-state":{}}`)}, "authority_bound = true", "shared = true"))
	for i, state := range []string{`{"a":1}`, `{"a":1}`, `{"a":2}`} {
		s := rt.Open(h.ctx, runtime.ScopeOptions{Name: fmt.Sprint("client ", i), Dir: h.dir, Owner: &owner{}})
		if _, err := h.callMeta(s, "s", "pid", state); err != nil {
			t.Fatal(err)
		}
	}
	if got := h.bindings(); len(got) != 2 {
		t.Errorf("%d processes for two authorities: %v", len(got), got)
	}
}
