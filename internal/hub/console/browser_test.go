package console

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"nightporter/client"
	"nightporter/test/programs"
)

// control lets the script do what hosts and people do elsewhere.
func (w *world) control(t *testing.T) *httptest.Server {
	runs := map[string]*work{}
	type in struct {
		Conversation, Text, Run, Type, Tool, Reply, Question, Approval, Name string
		Choices                                                              []string
	}
	acts := map[string]func(in) (any, error){
		"begin": func(i in) (any, error) {
			w.send(client.NewMessage{Conversation: i.Conversation, Text: i.Text, Author: "Ann", Priority: 100})
			k := w.claim("laptop-of-mara")
			runs[k.run] = k
			return map[string]string{"run": k.run}, nil
		},
		"event": func(i in) (any, error) {
			runs[i.Run].event(i.Type, map[string]any{"text": i.Text, "tool": i.Tool})
			return nil, nil
		},
		"finish": func(i in) (any, error) { runs[i.Run].finish(ok(i.Reply, 0.01)); return nil, nil },
		"ask": func(i in) (any, error) {
			if i.Question != "" {
				return map[string]string{"approval": runs[i.Run].ask("question", map[string]any{"text": i.Question, "choices": i.Choices}).ID}, nil
			}
			return map[string]string{"approval": runs[i.Run].ask("call", map[string]any{"server": "crm", "tool": i.Tool, "arguments": map[string]any{"id": 7}}).ID}, nil
		},
		"approval": func(i in) (any, error) {
			var a client.Approval
			k := runs[i.Run]
			err := k.host.Get(w.ctx(), fmt.Sprintf("/v1/host/runs/%s/approvals/%s?fence=%d", k.run, i.Approval, k.fence), &a)
			return a, err
		},
		"key":    func(i in) (any, error) { return map[string]string{"secret": w.key(i.Name, client.ScopeRead)}, nil },
		"revoke": func(i in) (any, error) { return w.store.RevokeKey(w.ctx(), i.Name) },
	}
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var i in
		err := json.NewDecoder(r.Body).Decode(&i)
		var out any
		if err == nil {
			out, err = acts[r.URL.Path[1:]](i)
		}
		if err != nil {
			http.Error(rw, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(rw).Encode(out)
	}))
	t.Cleanup(s.Close)
	return s
}

// TestBrowser drives Chromium over the console. With NIGHTPORTER_SHOTS it keeps pictures of all pages in that folder. It takes minutes, and is
// run when it is asked for by NIGHTPORTER_BROWSER=1.
func TestBrowser(t *testing.T) {
	if os.Getenv("NIGHTPORTER_BROWSER") == "" {
		t.Skip("NIGHTPORTER_BROWSER is not set")
	}
	node, chromium := programs.Find(t, "node"), programs.Find(t, "chromium")
	modules := filepath.Dir(programs.NPM(t, "playwright-core"))
	programs.NPM(t, "axe-core/axe.min.js")
	plain, evil := full(t), hostile(t)
	config, err := json.Marshal(map[string]any{
		"modules": filepath.Dir(modules), "chromium": chromium, "control": plain.control(t).URL, "shots": os.Getenv("NIGHTPORTER_SHOTS"),
		"plain": plain.http.URL, "key": plain.keys["ann"], "pages": paths(plain, true),
		"hostile": evil.http.URL, "hostileKey": evil.keys["ann"], "hostilePages": paths(evil, false),
	})
	plain.must(err)
	home := programs.Home(t)
	file := filepath.Join(home, "config.json")
	plain.must(os.WriteFile(file, config, 0o600))

	cmd := exec.CommandContext(t.Context(), node, "testdata/browser.mjs", file)
	cmd.Env = programs.Env(home)
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.StdoutPipe()
	plain.must(err)
	plain.must(cmd.Start())
	checks := 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var line struct{ Check, Error string }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Errorf("the script prints %q", lines.Text())
			continue
		}
		checks++
		t.Run(line.Check, func(t *testing.T) {
			if line.Error != "" {
				t.Error(line.Error)
			}
		})
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the script: %v", err)
	}
	if checks == 0 {
		t.Error("the script checked nothing")
	}
}
