package codex

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"nightporter/internal/agent"
	"nightporter/test/fakemodel"
	"nightporter/test/programs"
)

// counted puts a script before the program that notes each question.
func (r *rig) counted() (questions func() int) {
	log := filepath.Join(r.home, "questions")
	r.program = r.write("bin/codex", "#!"+programs.Find(r.t, "sh")+"\ncase $1 in mcp|app-server|features) echo \"$1\" >>'"+log+"';; esac\nexec '"+r.program+"' \"$@\"\n")
	return func() int {
		data, err := os.ReadFile(log)
		if err != nil && !os.IsNotExist(err) {
			r.t.Fatal(err)
		}
		return strings.Count(string(data), "\n")
	}
}

// settle makes the files that decide look as if they had been left alone for an hour.
func (r *rig) settle() {
	r.t.Helper()
	then := time.Now().Add(-time.Hour)
	err := filepath.WalkDir(r.home, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chtimes(path, then, then)
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

func TestAProofIsRememberedWhileNothingThatDecidesItChanges(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("proofs are remembered on Linux alone")
	}
	onEachVersion(t, func(t *testing.T, program string) {
		r := newRig(t, program, fakemodel.Replies(fakemodel.Says("done")))
		r.write(".codex/config.toml", r.config(r.server("plain")))
		r.write("work/.agents/skills/one/SKILL.md", "---\nname: one\ndescription: MARK-one\n---\nMARK-body\n")
		questions := r.counted()
		a := Adapter{CacheDir: filepath.Join(t.TempDir(), "proofs")}
		q := r.request()
		q.Program = r.program
		prove := func() *agent.Launch {
			t.Helper()
			launch, err := a.Prepare(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			return launch
		}
		r.run(q, nil).want(t, "done") // Codex has made its own files now
		r.settle()
		first := prove()
		before := questions()
		gateway := *q.Gateway
		gateway.URL += "/other"
		q.Gateway, q.Env, q.Prompt = &gateway, append(slices.Clone(q.Env), "TMPDIR="+t.TempDir()), "$one"
		second := prove()
		if n := questions() - before; n > 0 {
			t.Fatalf("%d questions were asked again", n)
		}
		if !second.Proof.Proven || !slices.Equal(second.Proof.Disabled, []string{"plain"}) || !strings.Contains(second.Proof.How, "remembered") {
			t.Errorf("proof %+v", second.Proof)
		}
		for i := range first.Argv {
			if strings.ReplaceAll(second.Argv[i], "/other", "") != first.Argv[i] {
				t.Errorf("word %d is %q, was %q", i, second.Argv[i], first.Argv[i])
			}
		}

		base := q
		for _, change := range []struct {
			name string
			make func()
			undo string // a file to remove
		}{
			{"configuration", func() { r.write(".codex/config.toml", r.config(r.server("plain")+r.server("new"))) }, ""},
			{"profile", func() { r.write(".codex/work.config.toml", "") }, ".codex/work.config.toml"},
			{"project", func() { r.write("work/.codex/config.toml", "") }, ""},
			{"skill of the project", func() { r.write("work/.agents/skills/two/SKILL.md", "---\nname: two\ndescription: d\n---\n") }, ""},
			{"skill of the home", func() { r.write(".codex/skills/three/SKILL.md", "---\nname: three\ndescription: d\n---\n") }, ""},
			{"variables that Codex reads itself", func() { r.write(".codex/.env", "X=1") }, ""},
			{"role", func() { r.write(".codex/agents/one.toml", "") }, ""},
			{"plugin", func() { r.write("work/.codex-plugin/plugin.json", "{}") }, ""},
			{"folder", func() { q.Workdir = filepath.Dir(r.write("work/below/x", "")) }, ""},
			{"git", func() { r.write("work/.git", "") }, "work/.git"},
			{"environment", func() { q.Env = append(slices.Clone(q.Env), "CODEX_X=1") }, ""},
			{"tools", func() { q.BuiltIn = agent.BuiltInAll }, ""},
			{"no gateway", func() { q.Gateway = nil }, ""},
			{"program", func() { r.program = program; r.counted() }, ""},
			{"damage", func() { r.damage(a.CacheDir) }, ""},
			{"login", func() { r.write(".codex/auth.json", `{"OPENAI_API_KEY":null,"tokens":{"id_token":"made-up"}}`) }, ".codex/auth.json"},
			{"symbolic link", func() { _ = os.Symlink(r.home, filepath.Join(r.work, ".agents", "link")) }, "work/.agents/link"},
		} {
			before = questions()
			change.make()
			prove()
			if n := questions() - before; n == 0 {
				t.Errorf("%s: nothing was asked", change.name)
			}
			if change.undo != "" {
				_ = os.Remove(filepath.Join(r.home, change.undo))
			}
			q = base
			remembered := false
			for range 3 { // a question that a busy machine answers late is not remembered
				r.settle()
				prove()
				before = questions()
				if prove(); questions() == before {
					remembered = true
					break
				}
			}
			if !remembered {
				t.Fatalf("after %s: nothing is remembered any more", change.name)
			}
		}
		if got := r.started(); len(got) > 0 {
			t.Errorf("these were started: %q", got)
		}
	})
}

// damage empties what is remembered.
func (r *rig) damage(dir string) {
	entries, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(entries) == 0 {
		r.t.Fatalf("nothing is remembered: %v", err)
	}
	for _, e := range entries {
		if err := os.WriteFile(e, []byte(`{"key":`), 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
}

func TestNothingIsRememberedWhereItIsNotKnownWhereCodexLooks(t *testing.T) {
	for _, env := range [][]string{nil, {"HOME=relative"}, {"CODEX_HOME=/made/up"}, {"HOME=/made/up", "CODEX_HOME=relative"}} {
		p := &prover{program: program{path: os.Args[0], dir: t.TempDir(), env: env}}
		if _, _, err := files(p.program); !errors.Is(err, errUnknown) {
			t.Errorf("with %q: %v", env, err)
		}
	}
}
