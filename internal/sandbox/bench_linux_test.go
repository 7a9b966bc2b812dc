//go:build linux && (amd64 || arm64)

package sandbox

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"nightporter/test/programs"
)

// BenchmarkStart is what a command costs from its start to its end: bare, under each mechanism, and under codex sandbox.
// The difference to bare is what the sandbox costs.
func BenchmarkStart(b *testing.B) {
	w := newWorld(b, os.Geteuid())
	state := WorkspaceWrite(w.folder("work"), Restricted)
	measure := func(name string, command func() *exec.Cmd) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if out, err := command().CombinedOutput(); err != nil {
					b.Fatalf("%v: %s", err, out)
				}
			}
		})
	}
	measure("bare", func() *exec.Cmd { return exec.Command("/bin/true") })
	for _, m := range usable(b) {
		s := state
		if m == Landlock { // it cannot enforce the other
			s = ReadOnly(state.Cwd, Restricted)
		}
		o := Options{State: s, Argv: []string{"/bin/true"}, Env: []string{"PATH=/usr/bin:/bin"}, Mechanism: m}
		measure(string(m), func() *exec.Cmd { return w.executor(o) })
	}
	b.Run("codex", func(b *testing.B) {
		codex := programs.Codex(b)
		// Not below a folder for temporary files: Codex makes no alias of itself there, and then enforces nothing (facts, section 6).
		home, err := os.MkdirTemp("/opt", "np-bench-")
		if err != nil {
			b.Skip(err)
		}
		defer os.RemoveAll(home)
		for b.Loop() {
			cmd := exec.Command(codex, "sandbox", "--sandbox-state-json", string(state.JSON()), "--", "/bin/true")
			cmd.Env = append(programs.Env(home), "CODEX_HOME="+home, "TMPDIR="+filepath.Dir(state.Cwd))
			if out, err := cmd.CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
		}
	})
}
