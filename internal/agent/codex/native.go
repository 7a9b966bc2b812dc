package codex

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"nightporter/internal/agent"
	"nightporter/internal/proc"
)

// version is a version of Codex.
type version struct {
	major, minor, patch int
	text                string // as the program prints it, pre-release included
}

func (v version) String() string { return v.text }

func (v version) before(major, minor, patch int) bool {
	if v.major != major {
		return v.major < major
	}
	if v.minor != minor {
		return v.minor < minor
	}
	return v.patch < patch
}

// The oldest version that this adapter was measured on. Older ones were not seen.
const (
	minMajor = 0
	minMinor = 144
	minPatch = 1
)

// MinVersion is the oldest version of Codex that can be run.
var MinVersion = fmt.Sprintf("%d.%d.%d", minMajor, minMinor, minPatch)

var versionLine = regexp.MustCompile(`(?m)^codex-cli ((\d{1,6})\.(\d{1,6})\.(\d{1,6})(?:[-+][0-9A-Za-z.+-]*)?)\s*$`)

// parseVersion reads what `codex --version` prints, such as "codex-cli 0.171.0".
func parseVersion(text string) (version, bool) {
	m := versionLine.FindStringSubmatch(text)
	if m == nil {
		return version{}, false
	}
	v := version{text: m[1]}
	for i, n := range []*int{&v.major, &v.minor, &v.patch} {
		*n, _ = strconv.Atoi(m[i+2]) // at most six digits
	}
	return v, true
}

const (
	// versionTime bounds `codex --version`, which takes 0.1 s; a cold disk under load takes longer.
	versionTime = 30 * time.Second
	// listTime bounds `codex mcp list`: 0.144.1 waits 40.7 s for a server that does not answer its
	// OAuth discovery (facts/codex.md section 2).
	listTime = 90 * time.Second
	// maxAnswer bounds what is read of an answer: hundreds of servers fit many times over.
	maxAnswer = 8 << 20
)

// program is the Codex of one run: this file, here, in this environment.
type program struct {
	path    string
	dir     string
	env     []string
	version version
}

// ask runs the program with args and returns what it printed on standard output. An error says what was
// asked and how it ended; stdout is never part of it, since `mcp list` prints secrets in clear.
func (p program) ask(ctx context.Context, limit time.Duration, args ...string) ([]byte, error) {
	asked := "`codex " + strings.Join(firstWords(args), " ") + "`"
	answer, err := proc.Ask(ctx, p.question(limit, args...))
	switch {
	case err == nil:
		return answer.Output, nil
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("%s did not answer within %v: %w", asked, limit, err)
	}
	return nil, fmt.Errorf("%s failed: %w%s", asked, err, complaint(answer.Complaints))
}

func (p program) question(limit time.Duration, args ...string) proc.Question {
	return proc.Question{Program: p.path, Args: args, Env: p.env, Dir: p.dir, Limit: limit, MaxAnswer: maxAnswer}
}

// firstWords leaves out the switches, which are long.
func firstWords(args []string) []string {
	for i, word := range args {
		if i > 0 && strings.HasPrefix(word, "-") && word != "--json" {
			return append(args[:i:i], "…")
		}
	}
	return args
}

// askVersion asks the program for its version. The error is an *[agent.Missing].
func (p program) askVersion(ctx context.Context) (version, error) {
	upgrade := "install Codex " + MinVersion + " or newer: npm install -g @openai/codex"
	out, err := p.ask(ctx, versionTime, "--version")
	if err != nil {
		return version{}, &agent.Missing{Why: p.path + " did not tell its version: " + err.Error(), Mend: upgrade}
	}
	v, ok := parseVersion(string(out))
	if !ok {
		return version{}, &agent.Missing{Why: fmt.Sprintf("%s is no Codex that is known here: asked for its version it answered %q", p.path, agent.Head(string(out))), Mend: upgrade}
	}
	if v.before(minMajor, minMinor, minPatch) {
		return version{}, &agent.Missing{Why: fmt.Sprintf("%s is Codex %s, and %s is the oldest that can be run", p.path, v, MinVersion), Mend: upgrade}
	}
	return v, nil
}

// complaint quotes the end of what was written to standard error.
func complaint(stderr []byte) string {
	var said []string
	for line := range strings.Lines(string(stderr)) {
		if strings.HasPrefix(line, "Stack backtrace:") {
			break
		}
		// Codex quotes the line of a configuration that it cannot read, which may hold a secret: `3 | key = …`.
		if number, _, quoted := strings.Cut(line, "|"); quoted && strings.Trim(number, " \t0123456789") == "" {
			continue
		}
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "WARNING: proceeding") {
			said = append(said, line)
		}
	}
	if len(said) > 4 { // the reason, and what led to it
		said = said[len(said)-4:]
	}
	if text := agent.Head(strings.Join(said, " ")); text != "" {
		return "; it said: " + text
	}
	return "; it said nothing"
}

// platforms names, for GOOS/GOARCH, the npm package that holds the native program, and its target, as codex.js does.
var platforms = map[string]struct{ pkg, target string }{
	"linux/amd64":   {"@openai/codex-linux-x64", "x86_64-unknown-linux-musl"},
	"linux/arm64":   {"@openai/codex-linux-arm64", "aarch64-unknown-linux-musl"},
	"darwin/amd64":  {"@openai/codex-darwin-x64", "x86_64-apple-darwin"},
	"darwin/arm64":  {"@openai/codex-darwin-arm64", "aarch64-apple-darwin"},
	"windows/amd64": {"@openai/codex-win32-x64", "x86_64-pc-windows-msvc"},
	"windows/arm64": {"@openai/codex-win32-arm64", "aarch64-pc-windows-msvc"},
}

// native finds the native program behind npm's Node.js script. Signals to the script do not always reach the
// program, and 0.144.1's script exits 0 when terminated (facts/codex.md section 1). Any other program is taken
// as it is. The error is an *[agent.Missing].
func native(program string) (string, error) {
	real, err := filepath.EvalSymlinks(program)
	if err != nil {
		return "", &agent.Missing{Why: fmt.Sprintf("codex cannot be found: %v", err), Mend: "install Codex or name it by its path"}
	}
	script := real
	if strings.EqualFold(filepath.Ext(real), ".cmd") { // npm's shim for Windows, beside node_modules
		script = filepath.Join(filepath.Dir(real), "node_modules", "@openai", "codex", "bin", "codex.js")
	} else if !isScript(real) {
		return real, nil
	}
	platform, ok := platforms[runtime.GOOS+"/"+runtime.GOARCH]
	if !ok {
		return "", &agent.Missing{Why: fmt.Sprintf("npm's Codex has no program for %s/%s", runtime.GOOS, runtime.GOARCH)}
	}
	name := "codex"
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	inVendor := filepath.Join("vendor", platform.target, "bin", name)
	var searched []string
	// Node.js looks for a package in node_modules of the script's folder and of each folder above it.
	for dir := filepath.Dir(script); ; dir = filepath.Dir(dir) {
		if filepath.Base(dir) != "node_modules" {
			searched = append(searched, filepath.Join(dir, "node_modules", filepath.FromSlash(platform.pkg), inVendor))
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	searched = append(searched, filepath.Join(filepath.Dir(script), "..", inVendor))
	for _, candidate := range searched {
		if info, err := os.Stat(candidate); err == nil && info.Mode().IsRegular() {
			if candidate, err = filepath.EvalSymlinks(candidate); err == nil {
				return candidate, nil
			}
		}
	}
	return "", &agent.Missing{
		Why:  fmt.Sprintf("%s is npm's script for Codex, and its native program (%s) is not installed beside it", program, platform.pkg),
		Mend: "npm install -g @openai/codex",
	}
}

// isScript reports whether a file is npm's script: JavaScript by its name, or by a first line that calls
// node in a file that stands in npm's package.
func isScript(path string) bool {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".js", ".mjs", ".cjs":
		return true
	}
	f, err := os.Open(path)
	if err != nil {
		return false // starting it will say why
	}
	defer f.Close()
	first := make([]byte, 128)
	n, _ := f.Read(first)
	line, _, _ := bytes.Cut(first[:n], []byte("\n"))
	return bytes.HasPrefix(line, []byte("#!")) && bytes.Contains(line, []byte("node"))
}
