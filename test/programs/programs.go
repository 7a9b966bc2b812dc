// Package programs finds the real agents, MCP servers and tools that tests run,
// and gives them a home of their own.
//
// They are installed by `npm ci --ignore-scripts` in test/npm (names and
// versions in its lock file). Where one is missing the test skips and says how
// to get it; with NIGHTPORTER_TEST_STRICT=1, as in CI, it fails instead.
package programs

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// Strict reports whether a missing program must fail the test instead of skipping it.
func Strict() bool { return os.Getenv("NIGHTPORTER_TEST_STRICT") == "1" }

// Skip skips the test with the reason, or fails it in strict mode.
func Skip(t testing.TB, reason string) {
	t.Helper()
	if Strict() {
		t.Fatalf("NIGHTPORTER_TEST_STRICT=1 and %s", reason)
	}
	t.Skip(reason)
}

// Root is the repository's root folder.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// npm returns the path of a file in test/npm/node_modules.
func npm(t testing.TB, path string) string {
	t.Helper()
	full := filepath.Join(Root(), "test", "npm", "node_modules", filepath.FromSlash(path))
	if _, err := os.Stat(full); err != nil {
		Skip(t, path+" is not installed: run `npm ci --ignore-scripts` in test/npm")
	}
	return full
}

// Claude is the native Claude Code 2.1.332 executable.
func Claude(t testing.TB) string {
	t.Helper()
	return npm(t, "@anthropic-ai/claude-code-linux-x64/claude")
}

const codexNative = "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"

// Codex is the native codex 0.171.0 executable.
func Codex(t testing.TB) string {
	t.Helper()
	return npm(t, "codex-0.171.0/node_modules/"+codexNative)
}

// Codex144 is the native codex 0.144.1 executable.
func Codex144(t testing.TB) string { t.Helper(); return npm(t, codexNative) }

// CodexWrapper is the Node.js script that the npm package installs as `codex`, at 0.171.0.
func CodexWrapper(t testing.TB) string { t.Helper(); return npm(t, "codex-0.171.0/bin/codex.js") }

// Everything is npm's @modelcontextprotocol/server-everything, as a script for node.
func Everything(t testing.TB) string {
	t.Helper()
	return npm(t, "@modelcontextprotocol/server-everything/dist/index.js")
}

// Conformance is the MCP conformance suite, as a script for node.
func Conformance(t testing.TB) string {
	t.Helper()
	return npm(t, "@modelcontextprotocol/conformance/dist/index.js")
}

// NPM is a file of an installed package, by its path in node_modules, such as time-mcp/dist/index.js.
func NPM(t testing.TB, path string) string { t.Helper(); return npm(t, path) }

// Find returns the absolute path of a program on PATH.
func Find(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Skip(t, name+" is not on PATH")
	}
	return path
}

// Env is a scrubbed environment with a home of its own: HOME, TMPDIR, PATH, TERM
// and what is given, nothing of the caller's.
func Env(home string, extra ...string) []string {
	return append([]string{
		"HOME=" + home, "TMPDIR=" + filepath.Join(home, "tmp"), "PATH=" + os.Getenv("PATH"), "TERM=dumb",
		"LANG=C.UTF-8", "IS_SANDBOX=1", "DISABLE_TELEMETRY=1", "DISABLE_AUTOUPDATER=1",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
	}, extra...)
}

// Home makes an empty home folder, with a tmp folder in it, that goes with the test.
func Home(t testing.TB) string {
	t.Helper()
	home := t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, "tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	return home
}
