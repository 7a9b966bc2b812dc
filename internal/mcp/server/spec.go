package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"nightporter/internal/config"
	"nightporter/internal/dirs"
	"nightporter/internal/mcp/oauth"
	"nightporter/internal/proc"
	"nightporter/internal/sandbox"
	"nightporter/internal/secret"
)

// Spec is a server ready to be started: every reference is resolved.
type Spec struct {
	Name string

	// stdio: Path is not empty.
	Path string
	Args []string
	Env  map[string]secret.String // what the operator gave; the base variables are added at the start
	Dir  string
	// Sandbox is what the process may do; nil: it is not confined. Where it cannot be enforced the server is not started.
	Sandbox *sandbox.State

	// HTTP: URL is not empty.
	URL     string
	Headers map[string]secret.String
	// HeadersHelper is a shell command that prints a JSON object of further headers; it is run at each start.
	HeadersHelper string
	// Tokens are those of a login. Nil: the server has none. They are not used where an Authorization header is given.
	Tokens *oauth.Source
	// Masker is told every token that is used. May be nil.
	Masker *secret.Masker

	// StartTimeout bounds connecting, opening the protocol and listing, together.
	StartTimeout time.Duration

	// Referred is what references in the definition resolved to: secrets that must not appear in any text.
	Referred []secret.String

	legacySSE bool
	secrets   []secret.String
	lookupEnv config.LookupEnv
}

// baseVariables is what a stdio server gets of our environment without asking: what Codex gives
// (facts/codex-runtime.md, section 1), so that a server that runs there runs here.
var baseVariables = []string{"HOME", "LOGNAME", "PATH", "SHELL", "USER", "__CF_USER_TEXT_ENCODING", "LANG", "LC_ALL", "TERM", "TMPDIR", "TZ"}

// windowsVariables is what programs on Windows cannot start without (openai/codex#4180).
var windowsVariables = []string{
	"PATH", "PATHEXT", "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "TEMP", "TMP", "USERPROFILE", "USERNAME", "HOMEDRIVE", "HOMEPATH",
	"APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "PROGRAMFILES", "PROGRAMFILES(X86)", "PROGRAMW6432", "NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE",
}

func baseEnv(lookup config.LookupEnv) map[string]string {
	names := baseVariables
	if runtime.GOOS == "windows" {
		names = append(windowsVariables, names...)
	}
	env := map[string]string{}
	for _, name := range names {
		if value, ok := lookup(name); ok {
			env[name] = value
		}
	}
	return env
}

// environ is the process's whole environment.
func (s *Spec) environ() []string {
	env := baseEnv(s.lookupEnv)
	for key, value := range s.Env {
		env[key] = value.Reveal()
	}
	list := make([]string, 0, len(env))
	for key, value := range env {
		list = append(list, key+"="+value)
	}
	slices.Sort(list)
	return list
}

// Prepare resolves everything that s refers to. cwd, absolute, is where a stdio server runs that names no folder of its own.
// Errors name the field, or the program and the PATH that was searched.
func Prepare(ctx context.Context, s *config.Server, lookup config.LookupEnv, cwd string) (*Spec, error) {
	r, err := s.Resolve(ctx, lookup)
	if err != nil {
		return nil, err
	}
	spec := &Spec{Name: s.Name, Env: r.Env, StartTimeout: s.StartTimeout, Referred: r.Referred, secrets: r.Secrets(), lookupEnv: lookup}
	switch s.Transport {
	case config.Stdio:
		spec.Args, spec.Dir = r.Args, cwd
		if r.Cwd != "" {
			spec.Dir = r.Cwd
			if !filepath.IsAbs(spec.Dir) {
				spec.Dir = filepath.Join(cwd, r.Cwd)
			}
		}
		if spec.Path, err = findProgram(r.Command, spec); err == nil && s.Sandbox != nil {
			err = spec.confine(s.Sandbox)
		}
		return spec, err
	default:
		spec.URL, spec.Headers, spec.HeadersHelper = r.URL.Reveal(), r.Headers, s.HTTPHeadersHelper
		spec.legacySSE = s.Transport == config.SSE
		return spec, nil
	}
}

// confine makes the process's sandbox of what the operator wrote.
func (s *Spec) confine(how *config.Sandbox) error {
	state, err := how.State(s.Dir)
	if err != nil {
		return err
	}
	s.Sandbox = &state
	return nil
}

// command is what is started: the server's program, or the executor that runs it under its sandbox, with the
// mechanism that enforces it.
func (s *Spec) command() (proc.Command, sandbox.Mechanism, error) {
	c := proc.Command{Path: s.Path, Args: s.Args, Env: s.environ(), Dir: s.Dir}
	if s.Sandbox == nil {
		return c, "", nil
	}
	// A path that is not there opens nothing, which nobody would notice before the server fails at it.
	for _, e := range s.Sandbox.Profile.Files.Entries {
		if e.Place.Kind == sandbox.AtPath && e.Access != sandbox.None && !e.SkipMissing {
			if _, err := os.Stat(e.Place.Path); err != nil {
				return c, "", fmt.Errorf("the sandbox opens %s: %w", e.Place.Path, err)
			}
		}
	}
	getenv := func(key string) string { value, _ := s.lookupEnv(key); return value }
	child, err := sandbox.NewChild(sandbox.Options{
		State: *s.Sandbox, Argv: append([]string{s.Path}, s.Args...), Env: c.Env, Closed: sandbox.Orders(dirs.Find(getenv).Live()),
	})
	if err != nil {
		return c, "", err
	}
	c.Path, c.Args, c.Env = child.Path, child.Args, child.Env
	return c, child.Mechanism, nil
}

// findProgram looks a command up as its own process would: on the PATH that the process gets.
func findProgram(command string, spec *Spec) (string, error) {
	if strings.ContainsRune(command, filepath.Separator) || strings.ContainsRune(command, '/') {
		if !filepath.IsAbs(command) {
			command = filepath.Join(spec.Dir, command)
		}
		return command, nil // proc.Start says what is wrong with it
	}
	var path string
	for _, entry := range spec.environ() {
		if value, ok := strings.CutPrefix(entry, "PATH="); ok {
			path = value
		}
	}
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue // a relative PATH entry would run whatever lies in the working directory
		}
		if found, err := exec.LookPath(filepath.Join(dir, command)); err == nil {
			return found, nil
		}
	}
	return "", fmt.Errorf("program %q was not found on PATH, searched: %s; give command as an absolute path, or set env.PATH for this server", command, path)
}

// Local reports whether the server is a process of ours.
func (s *Spec) Local() bool { return s.Path != "" }

// StartError says why a server could not be started, with what is needed to mend it.
type StartError struct {
	Server  string
	Phase   string // "start", "initialize", "list tools"
	Elapsed time.Duration
	Timeout time.Duration // the deadline, when that was the reason; else zero
	Sandbox bool          // the server is confined, which may be the reason
	Err     error
}

func (e *StartError) Error() string {
	if login := (*oauth.LoginError)(nil); errors.As(e.Err, &login) {
		return login.Error()
	}
	text := fmt.Sprintf("server %q: %s failed after %v: %v", e.Server, e.Phase, e.Elapsed.Round(time.Millisecond), e.Err)
	if e.Timeout > 0 {
		text = fmt.Sprintf("server %q: %s did not end within %v", e.Server, e.Phase, e.Timeout)
		if e.Err != nil && e.Err.Error() != "" && e.Err != context.DeadlineExceeded {
			text += ": " + e.Err.Error()
		}
		text += fmt.Sprintf("; raise mcp_servers.%s.startup_timeout_sec if it needs longer", e.Server)
	}
	if e.Sandbox {
		text += fmt.Sprintf("; it is confined by mcp_servers.%s.sandbox: see whether it needs to write, or the network (docs/sandbox.md)", e.Server)
	}
	return text
}

func (e *StartError) Unwrap() error { return e.Err }
