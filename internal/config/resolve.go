package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/zalando/go-keyring"

	"nightporter/internal/secret"
)

const (
	// maxSecret bounds a resolved reference; the longest secrets in use are certificate bundles.
	maxSecret = 64 << 10
	// cmdTimeout bounds a ${cmd:…}. It is a third of a server's default start deadline, so
	// that a hanging command is named as the cause and not the server.
	cmdTimeout = 10 * time.Second
	// cmdDrain is how long the pipes of an ended command may be held open by what it left behind.
	cmdDrain = time.Second
	// maxComplaint bounds what an error quotes of a failed command's stderr.
	maxComplaint = 200
)

// LookupEnv has the shape of [os.LookupEnv].
type LookupEnv func(name string) (string, bool)

// Resolve returns the value with every reference replaced by what it refers to. Each is resolved
// anew. lookupEnv stands for Nightporter's environment. An error names the reference, never a value.
func (v Value) Resolve(ctx context.Context, lookupEnv LookupEnv) (secret.String, error) {
	whole, _, err := v.resolveAll(ctx, lookupEnv)
	return whole, err
}

// resolveAll returns the value and what each of its references resolved to.
func (v Value) resolveAll(ctx context.Context, lookupEnv LookupEnv) (whole secret.String, referred []secret.String, err error) {
	var b strings.Builder
	for _, p := range v.parts {
		text, err := v.resolve(ctx, p, lookupEnv)
		if err != nil {
			return secret.String{}, nil, err
		}
		b.WriteString(text)
		if p.scheme != literal {
			referred = append(referred, secret.New(text))
		}
	}
	return secret.New(b.String()), referred, nil
}

func (v Value) resolve(ctx context.Context, p part, lookupEnv LookupEnv) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	switch p.scheme {
	case envRef:
		text, set := lookupEnv(p.text)
		if set {
			return text, nil
		}
		if p.hasFallback {
			return p.fallback, nil
		}
		return "", fmt.Errorf("%s: the variable %s is not set in Nightporter's environment", p.written(), p.text)
	case fileRef:
		home, _ := os.UserHomeDir()
		text, err := readSecret(v.path(p.text, home))
		if err != nil {
			return "", fmt.Errorf("%s: %w", p.written(), err)
		}
		return text, nil
	case keyringRef:
		text, err := readKeyring(ctx, p.text)
		if err != nil {
			return "", fmt.Errorf("%s: %w", p.written(), err)
		}
		return text, nil
	case cmdRef:
		text, err := runSecret(ctx, strings.Fields(p.text), v.dir)
		if err != nil {
			return "", fmt.Errorf("%s: %w", p.written(), err)
		}
		return text, nil
	default:
		return p.text, nil
	}
}

var errTooLong = fmt.Errorf("it is longer than %d KiB", maxSecret>>10)

// readSecret reads a regular file: another kind could keep a server's start waiting.
func readSecret(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return "", err
	}
	if len(data) > maxSecret {
		return "", errTooLong
	}
	return withoutNewline(data), nil
}

func withoutNewline(data []byte) string {
	return string(bytes.TrimSuffix(bytes.TrimSuffix(data, []byte("\n")), []byte("\r")))
}

// readKeyring asks the system's keyring. Where the keyring asks its user to unlock it, that can take
// for ever and cannot be called off: when ctx ends first, the question is left to end by itself.
func readKeyring(ctx context.Context, target string) (string, error) {
	service, user := splitKeyring(target)
	type answer struct {
		text string
		err  error
	}
	answered := make(chan answer, 1)
	go func() {
		text, err := keyring.Get(service, user)
		answered <- answer{text, err}
	}()
	select {
	case a := <-answered:
		switch {
		case errors.Is(a.err, keyring.ErrNotFound):
			return "", fmt.Errorf("the keyring has no secret for user %s of service %s", quote(user), quote(service))
		case a.err != nil:
			return "", fmt.Errorf("the keyring cannot be read: %w; without a keyring use ${file:…} or ${env:…}", a.err)
		case len(a.text) > maxSecret:
			return "", errTooLong
		}
		return a.text, nil
	case <-ctx.Done():
		return "", fmt.Errorf("the keyring did not answer: %w", ctx.Err())
	}
}

// runSecret runs argv in dir, with Nightporter's environment and nothing on stdin, and returns what it
// prints. Its stderr is quoted only when it failed, and then its output never is.
func runSecret(ctx context.Context, argv []string, dir string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cmdTimeout, fmt.Errorf("it took longer than %s", cmdTimeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	out, complaint := &capped{max: maxSecret}, &capped{max: 4 << 10}
	cmd.Stdout, cmd.Stderr = out, complaint
	cmd.WaitDelay = cmdDrain
	endTree(cmd)
	err := cmd.Run()
	switch {
	case errors.Is(err, exec.ErrWaitDelay):
		// It ended well and left something behind that holds its output open, as agents of keys do.
	case err != nil && ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil:
		return "", fmt.Errorf("%w%s", err, lastWords(complaint.data))
	}
	if out.over {
		return "", errTooLong
	}
	return withoutNewline(out.data), nil
}

// capped keeps the first max bytes and takes the rest without keeping it, so that the writer is not held up.
type capped struct {
	max  int
	data []byte
	over bool
}

func (c *capped) Write(p []byte) (int, error) {
	room := c.max - len(c.data)
	if len(p) > room {
		c.over = true
	}
	c.data = append(c.data, p[:min(len(p), room)]...)
	return len(p), nil
}

// lastWords returns ": " and the last line of stderr, or nothing.
func lastWords(stderr []byte) string {
	text := strings.TrimSpace(strings.ToValidUTF8(string(stderr), "�"))
	text = text[strings.LastIndexByte(text, '\n')+1:]
	if text == "" {
		return ""
	}
	if r := []rune(text); len(r) > maxComplaint {
		text = string(r[:maxComplaint]) + "…"
	}
	return ": " + strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
}

// Resolved is a server's definition with every reference resolved, made for one start and to be
// forgotten after it.
type Resolved struct {
	Command string                   // stdio
	Args    []string                 // stdio
	Env     map[string]secret.String // stdio: env_vars that are set, then env; not the base variables
	Cwd     string                   // stdio; empty: the client's
	URL     secret.String            // http and sse; may hold a key in its query
	Headers map[string]secret.String // http and sse: all but what http_headers_helper prints; canonical names

	// Referred is what the references in env, url and headers resolved to. It is exported because only
	// exported fields are printed by their own Format.
	Referred []secret.String
}

// Secrets returns every value that must not appear in text, for a [secret.Masker]: the values of env and
// headers, and what the url refers to. Command, arguments and cwd are no secrets.
func (r *Resolved) Secrets() []secret.String {
	all := slices.Clone(r.Referred)
	for _, v := range r.Env {
		all = append(all, v)
	}
	for _, v := range r.Headers {
		all = append(all, v)
		// The key alone is as secret as the header.
		if _, key, ok := strings.Cut(v.Reveal(), " "); ok {
			all = append(all, secret.New(key))
		}
	}
	return all
}

// Resolve resolves every reference of the server. lookupEnv is Nightporter's environment. Errors
// name the field. A server with a Problem is not resolved.
func (s *Server) Resolve(ctx context.Context, lookupEnv LookupEnv) (*Resolved, error) {
	if s.Problem != nil {
		return nil, fmt.Errorf("server %s: %w", s.Name, s.Problem)
	}
	r := &Resolved{Env: map[string]secret.String{}, Headers: map[string]secret.String{}}
	var failed error
	// The first failure ends the work: keyrings and commands are not asked for nothing.
	open := func(field string, v Value) (secret.String, []secret.String) {
		if failed != nil {
			return secret.String{}, nil
		}
		got, referred, err := v.resolveAll(ctx, lookupEnv)
		if err != nil {
			failed = fmt.Errorf("server %s: %s: %w", s.Name, field, err)
		}
		return got, referred
	}
	get := func(field string, v Value) secret.String {
		got, referred := open(field, v)
		r.Referred = append(r.Referred, referred...)
		return got
	}
	show := func(field string, v Value) string {
		got, _ := open(field, v)
		return got.Reveal()
	}
	if s.Transport == Stdio {
		r.Command = show("command", s.Command)
		for i, arg := range s.Args {
			r.Args = append(r.Args, show(fmt.Sprintf("args[%d]", i), arg))
		}
		for _, name := range s.EnvVars {
			if text, set := lookupEnv(name); set {
				r.Env[name] = secret.New(text)
			}
		}
		for _, name := range sortedKeys(s.Env) {
			r.Env[name] = get("env."+name, s.Env[name])
			if failed == nil && strings.ContainsRune(r.Env[name].Reveal(), 0) {
				failed = fmt.Errorf("server %s: env.%s: the value has a NUL character, which no environment holds", s.Name, name)
			}
		}
		r.Cwd = show("cwd", s.Cwd)
		if failed != nil {
			return nil, failed
		}
		return r, nil
	}
	r.URL = get("url", s.URL)
	if failed == nil {
		if err := checkURL(r.URL.Reveal()); err != nil {
			failed = fmt.Errorf("server %s: url: %w", s.Name, err)
		}
	}
	set := func(field, header string, value secret.String) {
		if failed == nil && !validHeaderValue(value.Reveal()) {
			failed = fmt.Errorf("server %s: %s: the value has a line break or control character, which no header holds", s.Name, field)
		}
		r.Headers[canonicalHeader(header)] = value
	}
	for _, header := range sortedKeys(s.HTTPHeaders) {
		field := "http_headers." + header
		set(field, header, get(field, s.HTTPHeaders[header]))
	}
	for _, header := range sortedKeys(s.EnvHTTPHeaders) {
		// An unset or blank variable leaves its header out, as in Codex.
		if text, _ := lookupEnv(s.EnvHTTPHeaders[header]); strings.TrimSpace(text) != "" {
			set("env_http_headers."+header, header, secret.New(text))
		}
	}
	if name := s.BearerTokenEnvVar; name != "" && failed == nil {
		text, _ := lookupEnv(name)
		if strings.TrimSpace(text) == "" {
			return nil, fmt.Errorf("server %s: bearer_token_env_var: the variable %s is not set in Nightporter's environment, or empty", s.Name, name)
		}
		set("bearer_token_env_var", "Authorization", secret.New("Bearer "+text))
	}
	if failed != nil {
		return nil, failed
	}
	return r, nil
}
