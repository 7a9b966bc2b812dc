package e2e

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"nightporter/test/fakemodel"
	"nightporter/test/lab"
)

// tokens are the forms in which an agent is given the run's token: a header in Claude Code's file of servers, a variable
// of Codex's environment.
var tokens = regexp.MustCompile(`(?:Bearer |NIGHTPORTER_RUN_TOKEN=)([A-Za-z0-9]{20,})`)

// token finds the token of a run that goes on, where its agent has it from: its environment, or the private files that
// were seen.
func (w *world) token(p program, private []byte) string {
	w.t.Helper()
	held, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", w.agentProcess(p).Pid))
	if err != nil {
		w.t.Fatal(err)
	}
	found := tokens.FindSubmatch(append(held, private...))
	if found == nil {
		w.t.Fatal("the agent has no token")
	}
	return string(found[1])
}

// privateFiles are the files that runs of this world have for their agents.
func (w *world) privateFiles() []string {
	files, _ := filepath.Glob(filepath.Join(w.home, "tmp", "nightporter-*", "private", "*")) // the pattern is well-formed
	return files
}

// watchPrivateFiles reads the files that runs have for their agents, which are there until the proof, again and again until the
// function that it returns is called. That returns all that was in them.
func (w *world) watchPrivateFiles() (seen func() []byte) {
	var held []byte
	end := w.again(func() {
		for _, file := range w.privateFiles() {
			data, _ := os.ReadFile(file) // gone meanwhile, or a folder
			if !bytes.Contains(held, data) {
				held = append(held, data...)
			}
			if info, err := os.Stat(file); err == nil && info.Mode().Perm()&0o077 != 0 {
				w.t.Errorf("%s can be read by others: %v", file, info.Mode())
			}
		}
	})
	return func() []byte {
		end()
		return held
	}
}

// again does something every few milliseconds, until the function that it returns is called or the test ends.
func (w *world) again(do func()) (end func()) {
	stop := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond) // the shortest question to an agent takes 50 ms
		defer tick.Stop()
		for {
			do()
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	})
	end = sync.OnceFunc(func() {
		close(stop)
		work.Wait()
	})
	w.t.Cleanup(end)
	return end
}

// watchCommandLines reads the command lines of all processes of this machine, which all its users can do, again and again, until
// the function that it returns is called. That returns every one that was there.
func (w *world) watchCommandLines() (seen func() map[string]bool) {
	lines := map[string]bool{}
	end := w.again(func() {
		files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is well-formed
		for _, file := range files {
			line, _ := os.ReadFile(file) // of a process that has ended
			lines[string(line)] = true
		}
	})
	return func() map[string]bool {
		end()
		return lines
	}
}

// files checks that no file in the folders holds a secret.
func (w *world) files(secrets map[string]string, roots ...string) {
	w.t.Helper()
	seen := 0
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(path)
			seen++
			for name, secret := range secrets {
				if bytes.Contains(data, []byte(secret)) {
					w.t.Errorf("%s holds %s", path, name)
				}
			}
			return err
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	if transcripts, _ := filepath.Glob(filepath.Join(w.home, "np", "state", "runs", "*.jsonl")); len(transcripts) == 0 || seen < 3 {
		w.t.Errorf("there is no transcript that could hold one: %d files were looked at", seen)
	}
}

func TestNoSecretOfARunIsWhereOthersRead(t *testing.T) {
	const serverKey = "made-up-key-of-the-granted-server"
	script := func() fakemodel.Script {
		return fakemodel.Replies(call("lab", "env", `{}`), held("done"))
	}
	eachAgent(t, script, func(t *testing.T, w *world, p program) {
		recorder := lab.Record(t)
		w.env = append(w.env, "OPERATORS_SERVER_KEY="+serverKey)
		w.config(w.lab(lab.Config{Name: "lab", Log: recorder.Address, Tools: lab.Tools("env"), LogEnv: true}) +
			"env = {LAB_KEY = \"${env:OPERATORS_SERVER_KEY}\"}\n")
		const prompt = "a question that is nobody else's business"
		seen, private := w.watchCommandLines(), w.watchPrivateFiles()
		r := w.startAs(nil, strings.NewReader(prompt), "run", "--agent", p.agent, "--server", "lab", "--conversation", "ann", "--output", "stream-json")
		r.waitHeld()

		secrets := map[string]string{"the run's token": w.token(p, private()), "the model's key": p.key}
		if files := w.privateFiles(); len(files) > 0 {
			t.Errorf("%q are still there while the model answers", files)
		}
		everywhere := map[string]string{"the server's key": serverKey}
		for name, secret := range secrets {
			everywhere[name] = secret
		}
		if environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", w.agentProcess(p).Pid)); err != nil || bytes.Contains(environ, []byte(serverKey)) {
			t.Errorf("the agent's environment holds the server's key (%v)", err)
		}
		for _, start := range recorder.Select(lab.Happened("start")) {
			if start.Env["LAB_KEY"] != serverKey {
				t.Errorf("the server did not get its own key")
			}
			for name, value := range start.Env {
				for what, secret := range secrets {
					if strings.Contains(value, secret) {
						t.Errorf("the server has %s in %s", what, name)
					}
				}
			}
		}
		for i, asked := range w.model.ModelRequests() {
			for what, secret := range secrets {
				if bytes.Contains(asked.Body, []byte(secret)) {
					t.Errorf("request %d tells the model %s", i, what)
				}
			}
		}

		w.release()
		done := r.end()
		lines := seen()
		for line := range lines {
			if strings.Contains(line, prompt) {
				t.Errorf("the prompt is on a command line: %q", line)
			}
			for name, secret := range everywhere {
				if strings.Contains(line, secret) {
					t.Errorf("%s is on a command line: %q", name, strings.ReplaceAll(line, secret, "…"))
				}
			}
		}
		if program := resolved(t, p.find(t)); !slices.ContainsFunc(slices.Collect(maps.Keys(lines)), func(line string) bool {
			return strings.HasPrefix(line, program+"\x00") || strings.HasPrefix(line, filepath.Join(w.bin(), p.agent)+"\x00")
		}) {
			t.Errorf("of %d command lines none was the agent's", len(lines))
		}
		if done.code != 0 {
			t.Fatalf("exit %d\n%s\n%s", done.code, done.stdout, done.stderr)
		}
		for name, secret := range everywhere {
			if strings.Contains(done.stdout, secret) || strings.Contains(done.stderr, secret) {
				t.Errorf("the output holds %s", name)
			}
		}
		w.files(secrets, w.home, w.work)
		w.files(everywhere, filepath.Join(w.home, "np")) // the server told its key to the model, and so to the agent's own files
	})
}

func TestAFailingRunKeepsItsSecrets(t *testing.T) {
	script := func() fakemodel.Script {
		refuse := fakemodel.Step{Status: 401, Message: "no such key"}
		return fakemodel.Script{Default: &refuse}
	}
	eachAgent(t, script, func(t *testing.T, w *world, p program) {
		w.config(w.lab(lab.Config{Name: "lab", Tools: lab.Tools("echo")}))
		o, r := w.outcome("--agent", p.agent, "--server", "lab", "work")
		if r.code != 1 || o.code() != "model_auth" {
			t.Errorf("exit %d, outcome %s", r.code, r.stdout)
		}
		if strings.Contains(r.stdout+r.stderr, p.key) {
			t.Error("the output holds the model's key")
		}
		w.files(map[string]string{"the model's key": p.key}, w.home, w.work)
	})
}
