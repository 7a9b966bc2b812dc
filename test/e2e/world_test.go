package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"nightporter/test/fakemodel"
	"nightporter/test/lab"
	"nightporter/test/programs"
)

// world is one operator's machine: a home, a working directory, Nightporter's files, a model.
type world struct {
	t     *testing.T
	home  string
	work  string
	model *fakemodel.Server
	base  []string // the operator's environment, but for the model
	env   []string // all of it

	codexConfig string // the tables of Codex's config.toml after those of the model

	tee io.Writer // gets what nightporter prints as well, as it comes; nil: nobody does
}

var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "nightporter-e2e-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "nightporter")
	out, err := exec.Command("go", "build", "-o", path, "nightporter/cmd/nightporter").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := binary(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

func newWorld(t *testing.T, script fakemodel.Script) *world {
	t.Helper()
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		programs.Skip(t, "there is no /proc here, by which tests see what runs")
	}
	w := &world{t: t, home: programs.Home(t), work: resolved(t, t.TempDir()), model: fakemodel.Start(t, script)}
	for dir := w.work; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		git := filepath.Join(dir, ".git")
		_, mark := os.Lstat(filepath.Join(git, "info", ".claude-sandbox-noreplace"))
		if _, head := os.Lstat(filepath.Join(git, "HEAD")); mark == nil && head != nil {
			_ = os.RemoveAll(git) // no repository: Claude Code's sandbox left it
		}
		if in, err := os.ReadDir(git); err == nil && len(in) > 0 {
			t.Fatalf("%s makes a project of all folders of tests in it: remove it", git)
		}
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	// A name of its own for the one binary: by it the processes of this world are told from those of tests beside it.
	if err := errors.Join(os.MkdirAll(w.bin(), 0o700), os.Link(path, w.own())); err != nil {
		t.Fatal(err)
	}
	w.base = programs.Env(w.home, "NIGHTPORTER_HOME="+filepath.Join(w.home, "np"), "PATH="+w.bin()+":"+os.Getenv("PATH"))
	w.useModel()
	t.Cleanup(w.end)
	return w
}

// end checks at a test's end that every run has left nothing behind. What a failed test leaves is ended.
func (w *world) end() {
	if !w.t.Failed() {
		w.gone(killedTime)
	}
	for pid := range w.processes() {
		if process, err := os.FindProcess(pid); err == nil {
			_ = process.Kill() // it may be gone by now
		}
	}
}

func (w *world) bin() string { return filepath.Join(w.home, "bin") }

// own is this world's Nightporter.
func (w *world) own() string { return filepath.Join(w.bin(), "nightporter") }

// link puts a program on the operator's PATH.
func (w *world) link(name, path string) {
	w.t.Helper()
	if err := os.MkdirAll(w.bin(), 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Symlink(path, filepath.Join(w.bin(), name)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) write(path, text string) {
	w.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// append adds to a file.
func (w *world) append(path, more string) {
	w.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		w.t.Fatal(err)
	}
	w.write(path, string(text)+more)
}

// config writes Nightporter's configuration.
func (w *world) config(text string) {
	w.t.Helper()
	w.write(filepath.Join(w.home, "np", "config.toml"), text)
}

// everything is the entry of one copy of npm's server-everything.
func (w *world) everything(name string) string {
	w.t.Helper()
	return fmt.Sprintf("[mcp_servers.%s]\ncommand = %q\nargs = [%q]\n", name, programs.Find(w.t, "node"), programs.Everything(w.t))
}

// result is how a command ended.
type result struct {
	stdout, stderr string
	code           int
}

// limit bounds whatever a test waits for, on a loaded machine.
const limit = 3 * time.Minute

// within is a context that ends with the test, or after limit.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// running is a nightporter that runs while the test looks at it.
type running struct {
	w              *world
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
	done           chan struct{} // closed when it has ended and its output is complete
}

// start starts nightporter with args. With an end of the test it is ended, if it has not by itself.
func (w *world) start(args ...string) *running {
	w.t.Helper()
	return w.startAs(nil, nil, args...)
}

// startAs is start behind other words, such as those of unshare, and with a standard input.
func (w *world) startAs(before []string, stdin io.Reader, args ...string) *running {
	w.t.Helper()
	argv := slices.Concat(before, []string{w.own()}, args)
	r := &running{w: w, done: make(chan struct{})}
	r.cmd = exec.CommandContext(within(w.t), argv[0], argv[1:]...)
	r.cmd.Dir, r.cmd.Env, r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = w.work, w.env, stdin, &r.stdout, &r.stderr
	if w.tee != nil {
		r.cmd.Stdout = io.MultiWriter(&r.stdout, w.tee)
	}
	r.cmd.WaitDelay = 20 * time.Second // for what may hold its output open after it
	if err := r.cmd.Start(); err != nil {
		w.t.Fatalf("start %q: %v", argv, err)
	}
	go func() {
		defer close(r.done)
		_ = r.cmd.Wait() // its exit is looked at
	}()
	w.t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		<-r.done
	})
	return r
}

// end waits for the end.
func (r *running) end() result {
	<-r.done
	return result{r.stdout.String(), r.stderr.String(), r.cmd.ProcessState.ExitCode()}
}

// signal sends a signal to nightporter alone.
func (r *running) signal(s os.Signal) {
	r.w.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.w.t.Fatalf("signal %v: %v", s, err)
	}
}

// run runs nightporter with args and waits for it.
func (w *world) run(args ...string) result {
	w.t.Helper()
	return w.start(args...).end()
}

// outcome is what run --output json prints.
type outcome struct {
	Run       string      `json:"run"`
	Agent     string      `json:"agent"`
	Version   string      `json:"agent_version"`
	Status    string      `json:"status"`
	Reply     *string     `json:"reply"`
	Error     *agentError `json:"error"`
	SessionID string      `json:"session_id"`
	Resumed   bool        `json:"resumed"`
	Salvage   *string     `json:"salvage"`
	Denials   []string    `json:"denials"`
	Boundary  proof       `json:"boundary"`
	ToolCalls []struct {
		Server, Tool string
		OK           bool
	} `json:"tool_calls"`
}

type agentError struct{ Code, Message string }

// code is the error's code, empty without one.
func (o outcome) code() string {
	if o.Error == nil {
		return ""
	}
	return o.Error.Code
}

type proof struct {
	Proven                           bool
	How                              string
	Servers, Disabled, Failed, Notes []string
}

// designed is the outcome as DESIGN.md has it; what may be null is filled in.
const designed = `{"run":"…","conversation":"…","agent":"claude","agent_version":"2.1.332","status":"ok",
 "reply":"…","error":{"code":"…","message":"…"},"session_id":"…","resumed":true,"salvage":"…",
 "denials":["Bash","mcp__crm__delete"],
 "usage":{"input_tokens":0,"output_tokens":0,"cost_usd":0.0},"turns":1,"duration_ms":0,
 "boundary":{"proven":true,"how":"…","servers":["nightporter"],"disabled":["…"],"failed":["…"],"notes":["…"]},
 "tool_calls":[{"server":"…","tool":"…","ok":true,"duration_ms":0}]}`

// object decodes a text that must be exactly one JSON object.
func (w *world) object(text string, into any) {
	w.t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	if err := d.Decode(into); err != nil {
		w.t.Fatalf("no JSON object: %v\n%s", err, text)
	}
	if rest := text[d.InputOffset():]; strings.TrimSpace(rest) != "" {
		w.t.Fatalf("there is something after the object: %q", rest)
	}
}

// outcomeOf reads an outcome, which must have the keys and types of DESIGN.md and no others.
func (w *world) outcomeOf(text string) (o outcome) {
	w.t.Helper()
	var got, want map[string]any
	w.object(text, &got)
	w.object(designed, &want)
	for _, key := range []string{"reply", "error", "salvage"} {
		if value, there := got[key]; there && value == nil {
			want[key] = nil
		}
	}
	if isReply := got["reply"] != nil; isReply != (got["status"] == "ok") || isReply == (got["error"] != nil) {
		w.t.Errorf("a reply, or an error, and not what goes with the status: %s", text)
	}
	if flaw := differs("the outcome", got, want); flaw != "" {
		w.t.Errorf("%s: %s", flaw, text)
	}
	w.object(text, &o)
	return o
}

// differs says where got has other keys or types than want. The first element of a list stands for all.
func differs(where string, got, want any) string {
	switch want := want.(type) {
	case map[string]any:
		got, ok := got.(map[string]any)
		if !ok || !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want))) {
			return fmt.Sprintf("%s has the keys %q, not %q", where, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
		}
		for key := range want {
			if flaw := differs(where+"."+key, got[key], want[key]); flaw != "" {
				return flaw
			}
		}
	case []any:
		got, ok := got.([]any)
		if !ok {
			return where + " is no list"
		}
		for _, element := range got {
			if flaw := differs(where+"[]", element, want[0]); flaw != "" {
				return flaw
			}
		}
	default:
		if reflect.TypeOf(got) != reflect.TypeOf(want) {
			return fmt.Sprintf("%s is %T, not %T", where, got, want)
		}
	}
	return ""
}

// outcome runs nightporter run with args and returns what it printed.
func (w *world) outcome(args ...string) (outcome, result) {
	w.t.Helper()
	r := w.run(slices.Concat([]string{"run", "--output", "json"}, args)...)
	if r.stdout == "" {
		w.t.Fatalf("exit %d and no outcome; stderr: %s", r.code, r.stderr)
	}
	return w.outcomeOf(r.stdout), r
}

// replied checks that a run ended well, with this reply.
func (w *world) replied(o outcome, r result, reply string) {
	w.t.Helper()
	if r.code != 0 || o.Status != "ok" || o.Reply == nil || *o.Reply != reply {
		w.t.Fatalf("exit %d, want the reply %q\nstdout: %s\nstderr: %s", r.code, reply, r.stdout, r.stderr)
	}
}

// program is a real agent.
type program struct {
	name  string // of the subtest
	agent string // its name on the command line, and of its executable
	find  func(testing.TB) string
	key   string // the model's, as the agent is given it
}

var (
	claude   = program{"claude", "claude", programs.Claude, fakemodel.ClaudeKey}
	codex    = program{"codex-0.171.0", "codex", programs.Codex, fakemodel.CodexKey}
	codex144 = program{"codex-0.144.1", "codex", programs.Codex144, fakemodel.CodexKey}

	agents = []program{claude, codex, codex144}
)

// eachAgent runs a test against every real agent.
func eachAgent(t *testing.T, script func() fakemodel.Script, test func(t *testing.T, w *world, p program)) {
	for _, p := range agents {
		t.Run(p.name, func(t *testing.T) {
			w := newWorld(t, script())
			w.install(p)
			test(t, w, p)
		})
	}
}

// ask gives the operator's agents another model, which does these steps.
func (w *world) ask(steps ...fakemodel.Step) {
	w.t.Helper()
	w.model = fakemodel.Start(w.t, fakemodel.Replies(steps...))
	w.useModel()
}

// useModel makes both agents ask the world's model.
func (w *world) useModel() {
	w.t.Helper()
	w.env = slices.Concat(w.base, w.model.ClaudeEnv(), w.model.CodexEnv())
	w.write(filepath.Join(w.home, ".codex", "config.toml"), w.model.CodexConfig()+w.codexConfig)
}

// install puts an agent on the operator's PATH, in place of another version of it.
func (w *world) install(p program) {
	w.t.Helper()
	if err := os.Remove(filepath.Join(w.bin(), p.agent)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.t.Fatal(err)
	}
	w.link(p.agent, p.find(w.t))
}

// processes are those of the operator's world, with their arguments: those with its home in their
// environment, and its Nightporter's own, which keep none.
func (w *world) processes() map[int]string { return programs.Processes(w.t, w.home, w.own()) }

// call is a step that calls a tool of a granted server.
func call(server, tool, arguments string) fakemodel.Step {
	return fakemodel.Calls("nightporter", server+"__"+tool, arguments)
}

// held is a step that says a text and then waits.
func held(text string) fakemodel.Step {
	return fakemodel.Step{Parts: []fakemodel.Part{{Text: text}, {Hold: true}}}
}

// lab is the entry of a lab server.
func (w *world) lab(c lab.Config) string {
	w.t.Helper()
	return fmt.Sprintf("[mcp_servers.%s]\ncommand = %q\nargs = [%q]\n", c.Name, lab.Binary(w.t), c.Arg())
}

// waitHeld waits until the model holds an answer, or the run ends without having come to it.
func (r *running) waitHeld() {
	r.w.t.Helper()
	r.waitFor(r.w.model.WaitHeld)
}

// waitFor waits for something in the run, which must not end before.
func (r *running) waitFor(wait func(context.Context) error) {
	r.w.t.Helper()
	ctx, cancel := context.WithCancel(within(r.w.t))
	defer cancel()
	go func() {
		select {
		case <-r.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := wait(ctx); err != nil {
		select {
		case <-r.done:
			r.w.t.Fatalf("the run ended early: %+v", r.end())
		default:
			r.w.t.Fatal(err)
		}
	}
}

// release lets the model go on.
func (w *world) release() {
	w.t.Helper()
	if err := w.model.Release(within(w.t)); err != nil {
		w.t.Fatal(err)
	}
}

// resolved is a path without symbolic links.
func resolved(t testing.TB, path string) string {
	t.Helper()
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// gone waits until no process of the world is left.
func (w *world) gone(within time.Duration) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		left := w.processes()
		if len(left) == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.t.Fatalf("still there after %v: %v", within, left)
		}
	}
}
