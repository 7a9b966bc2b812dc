package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"nightporter/internal/mcp/oauth"
	"nightporter/internal/mcp/wire"
	"nightporter/internal/proc"
	"nightporter/internal/secret"
)

// Bounds of a start.
const (
	// probePatience is how long a stdio server may take to answer the first frame of an era that it may not know. Claude
	// Code waits 2.7 s (facts/claude.md, section 4).
	probePatience = 3 * time.Second
	// helperPatience bounds http_headers_helper.
	helperPatience = 10 * time.Second
	// The pages, and the definitions, of one list: the largest known server has some hundreds of tools.
	maxPages     = 500
	maxItems     = 20000
	maxListBytes = 64 << 20
	// abandonPatience bounds the end of a server whose start failed.
	abandonPatience = 10 * time.Second
)

// httpRetries are the pauses between attempts to reach an HTTP server, all inside the start deadline.
var httpRetries = []time.Duration{250 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second}

// Open starts the server or connects to it, and opens the protocol: first in the era prefer, then, if the server
// does not know it, in the other. client is whom the server is told to serve. The caller closes the connection.
// The error is a *[StartError].
func Open(ctx context.Context, spec *Spec, client wire.Client, prefer wire.Era, handler Handler) (*Conn, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, spec.StartTimeout)
	defer cancel()
	c, phase, err := open(ctx, spec, client, prefer, handler)
	if err != nil {
		return nil, startError(ctx, spec, phase, began, err)
	}
	return c, nil
}

func startError(ctx context.Context, spec *Spec, phase string, began time.Time, err error) *StartError {
	var gone *GoneError
	var status *HTTPError
	switch {
	case errors.As(err, &gone):
		err = gone.Err // that nothing was carried out goes without saying
	case errors.As(err, &status):
		err = status.Err
	}
	var login *oauth.LoginError
	if errors.As(err, &login) {
		return &StartError{Server: spec.Name, Phase: phase, Elapsed: time.Since(began), Err: login}
	}
	err = spec.masker().error(err)
	e := &StartError{Server: spec.Name, Phase: phase, Elapsed: time.Since(began), Sandbox: spec.Sandbox != nil && phase != "start", Err: err}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		e.Timeout = spec.StartTimeout
		if errors.Is(err, context.DeadlineExceeded) || err.Error() == context.DeadlineExceeded.Error() {
			e.Err = nil
		}
	}
	return e
}

func open(ctx context.Context, spec *Spec, client wire.Client, prefer wire.Era, handler Handler) (c *Conn, phase string, err error) {
	if !spec.Local() {
		headers, err := spec.helperHeaders(ctx)
		if err != nil {
			return nil, "http_headers_helper", err
		}
		withHelper := *spec
		withHelper.Headers = headers
		for try := 0; ; try++ {
			c, err := dial(ctx, &withHelper, client, prefer, handler)
			if err == nil {
				return c, "", nil
			}
			if !transient(err) || try == len(httpRetries) || !wait(ctx, ctx, httpRetries[try]) {
				return nil, "connect", err
			}
		}
	}
	c, phase, err = spawn(ctx, spec, client, prefer, handler)
	if prefer == wire.StatelessEra && errors.As(err, new(*GoneError)) && ctx.Err() == nil {
		// A server that ends at a method it does not know is started again, and not asked.
		return spawn(ctx, spec, client, wire.SessionEra, handler)
	}
	return c, phase, err
}

// dial connects to a server behind a URL, once.
func dial(ctx context.Context, spec *Spec, client wire.Client, prefer wire.Era, handler Handler) (*Conn, error) {
	c := newConn(spec, client, handler)
	if spec.legacySSE {
		t, err := dialSSE(ctx, c)
		if err == nil {
			err = c.initialize(ctx)
		}
		if err != nil {
			c.Close(ctx)
			return nil, t.why(err)
		}
		return c, nil
	}
	t := dialHTTP(c)
	c.t = t
	if err := c.shake(ctx, prefer); err != nil {
		c.Close(ctx)
		return nil, t.why(err)
	}
	if c.Hello.Era() == wire.SessionEra {
		t.listen()
	}
	return c, nil
}

func spawn(ctx context.Context, spec *Spec, client wire.Client, prefer wire.Era, handler Handler) (c *Conn, phase string, err error) {
	c = newConn(spec, client, handler)
	t, err := startStdio(c)
	if err != nil {
		return nil, "start", err
	}
	if err = c.shake(ctx, prefer); err == nil {
		return c, "", nil
	}
	if !errors.As(err, new(*GoneError)) {
		err = t.why(err)
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonPatience)
	defer cancel()
	c.Close(ending)
	return nil, "initialize", err
}

// shake opens the protocol in the era, and in the other one when the server does not know it.
func (c *Conn) shake(ctx context.Context, prefer wire.Era) error {
	if prefer == wire.StatelessEra {
		err := c.discover(ctx)
		if refused := (*wire.RPCError)(nil); errors.As(err, &refused) && refused.Code == wire.CodeUnsupportedVersion {
			// It knows the era, and may have refused while it was being replaced: a client tries again with a version that the
			// server supports (specification 2026-07-28, "Version Negotiation"), and there is one.
			err = c.discover(ctx)
		}
		switch {
		case err == nil:
			return nil
		case errors.As(err, new(*GoneError)) && !isStatus(err), transient(err), errors.As(err, new(*oauth.LoginError)), ctx.Err() != nil:
			return err
		}
		return c.initialize(ctx)
	}
	err := c.initialize(ctx)
	var refused *wire.RPCError
	if !errors.As(err, &refused) && !isStatus(err) {
		return err
	}
	// It answered, but not to this: perhaps it knows the newer era alone.
	if c.discover(ctx) == nil {
		return nil
	}
	return err
}

// isStatus reports whether an HTTP server refused with a status, rather than could not be reached.
func isStatus(err error) bool {
	var status *statusError
	return errors.As(unmasked(err), &status) && !transient(err)
}

func (c *Conn) initialize(ctx context.Context) error {
	capabilities := c.client.Capabilities
	if capabilities == nil {
		capabilities = json.RawMessage("{}")
	}
	params := wire.Encode(map[string]any{
		"protocolVersion": wire.Latest,
		"capabilities":    capabilities,
		"clientInfo":      clientInfo(c.client.Info),
	})
	result, err := c.ask(ctx, wire.Initialize, params)
	if err != nil {
		return err
	}
	h := Hello{Capabilities: wire.Get(result, "capabilities"), Info: wire.Get(result, "serverInfo")}
	h.Instructions, _ = wire.GetString(result, "instructions")
	// Codex takes any version, Claude Code none that it does not know. What a server names here only
	// becomes a header, so that refusing it would help nobody.
	if h.Version, _ = wire.GetString(result, "protocolVersion"); h.Version == "" {
		return fmt.Errorf("its answer to initialize names no protocol version: %s", c.mask.excerpt(result))
	}
	if h.Era() == wire.StatelessEra {
		h.Version = wire.Latest
	}
	c.Hello = h
	c.t.opened(&c.Hello)
	return c.Notify(ctx, wire.Initialized, nil)
}

// clientInfo is who the server is told to serve: the true client, and ourselves where there is none.
func clientInfo(info json.RawMessage) json.RawMessage {
	if info != nil {
		return info
	}
	return json.RawMessage(`{"name":"nightporter","title":"Nightporter","version":"1"}`)
}

func (c *Conn) discover(ctx context.Context) error {
	if c.spec.Local() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, probePatience)
		defer cancel()
	}
	client := c.client
	client.Info = clientInfo(client.Info)
	result, err := c.ask(ctx, wire.Discover, wire.WithClient(nil, client))
	if err != nil {
		return err
	}
	versions, _ := wire.Elements(wire.Get(result, "supportedVersions"))
	if !slices.ContainsFunc(versions, func(v json.RawMessage) bool { s, _ := wire.Text(v); return s == wire.Modern }) {
		return fmt.Errorf("its answer to server/discover does not offer %s", wire.Modern)
	}
	c.Hello = Hello{
		Version: wire.Modern, Capabilities: wire.Get(result, "capabilities"),
		Info: wire.Get(result, "_meta", wire.MetaServerInfo), TTL: wire.Get(result, "ttlMs"),
	}
	c.Hello.Instructions, _ = wire.GetString(result, "instructions")
	c.t.opened(&c.Hello)
	return nil
}

// ask is Call for requests of our own: errors of the server are errors.
func (c *Conn) ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	if c.Hello.Era() == wire.StatelessEra && c.Hello.Version != "" {
		client := c.client
		client.Info = clientInfo(client.Info)
		params = wire.WithClient(params, client)
	}
	m, err := c.Call(ctx, Request{Method: method, Params: params})
	switch {
	case err != nil:
		return nil, err
	case m.Error != nil:
		refused := wire.AsRPCError(c.mask.Bytes(m.Error)) // before it is cut
		refused.Message, refused.Data = c.mask.Text(refused.Message), nil
		return nil, fmt.Errorf("it answered %s: %w", method, refused)
	}
	return m.Result, nil
}

// helperHeaders returns the headers with those that the helper printed.
func (s *Spec) helperHeaders(ctx context.Context) (map[string]secret.String, error) {
	if s.HeadersHelper == "" {
		return s.Headers, nil
	}
	printed, err := s.runHelper(ctx)
	if err != nil {
		return nil, err
	}
	members, err := wire.Members(bytes.TrimSpace(printed))
	if err != nil {
		return nil, errors.New("it did not print a JSON object of headers")
	}
	headers := map[string]secret.String{}
	for key, value := range s.Headers {
		headers[key] = value
	}
	for _, m := range members {
		value, ok := wire.Text(m.Value)
		if !ok || strings.ContainsAny(value, "\r\n") {
			return nil, fmt.Errorf("the value of header %q is not a line of text", m.Key)
		}
		headers[m.Key] = secret.New(value)
	}
	return headers, nil
}

// runHelper returns what the helper printed. When it has ended, or ctx has, nothing that it started is left.
func (s *Spec) runHelper(ctx context.Context) ([]byte, error) {
	q := proc.Question{Program: "/bin/sh", Args: []string{"-c", s.HeadersHelper}, Limit: helperPatience, MaxAnswer: errorBody}
	if runtime.GOOS == "windows" {
		q.Program, q.Args = os.Getenv("COMSPEC"), []string{"/c", s.HeadersHelper}
	}
	// The helper is the operator's own command and often needs more than a server does: proxies, agents' sockets.
	q.Env = append(os.Environ(), "CLAUDE_CODE_MCP_SERVER_NAME="+s.Name)
	answer, err := proc.Ask(ctx, q)
	switch {
	case err == nil:
		return answer.Output, nil
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		err = fmt.Errorf("it did not end: %w", err)
	}
	if words := lastLines(s.masker().piece(string(answer.Complaints), len(answer.Complaints) == proc.TailSize, false), 2); words != "" {
		err = fmt.Errorf("%w: %s", err, words)
	}
	return nil, err
}

// Lists is what a server offers, each definition as the server sent it.
type Lists struct {
	Tools, Prompts, Resources, Templates []json.RawMessage
	TTL                                  json.RawMessage // ttlMs of tools/list; nil when it gave none
	CacheScope                           string
	// Notes say what could not be listed, beside the tools.
	Notes []string
}

// List asks for everything that the server's capabilities name. Without its tools a server is of no use, so
// that an error there is an error; the others become notes.
func (c *Conn) List(ctx context.Context) (*Lists, error) {
	l := &Lists{}
	for _, kind := range []struct {
		capability, method, member string
		into                       *[]json.RawMessage
	}{
		{"tools", wire.ToolsList, "tools", &l.Tools},
		{"prompts", wire.PromptsList, "prompts", &l.Prompts},
		{"resources", wire.ResourcesList, "resources", &l.Resources},
		{"resources", wire.TemplatesList, "resourceTemplates", &l.Templates},
	} {
		if wire.Get(c.Hello.Capabilities, kind.capability) == nil {
			continue
		}
		items, first, err := c.list(ctx, kind.method, kind.member)
		if err != nil {
			if kind.method == wire.ToolsList || ctx.Err() != nil || c.Err() != nil {
				return nil, err
			}
			if !methodNotFound(err) {
				l.Notes = append(l.Notes, fmt.Sprintf("%s: %v", kind.method, err))
			}
			continue
		}
		*kind.into = items
		if kind.method == wire.ToolsList {
			l.TTL = wire.Get(first, "ttlMs")
			l.CacheScope, _ = wire.GetString(first, "cacheScope")
		}
	}
	return l, nil
}

func methodNotFound(err error) bool {
	var rpc *wire.RPCError
	return errors.As(err, &rpc) && rpc.Code == wire.CodeMethodNotFound
}

// list follows the pages of one list. first is the first page's result.
func (c *Conn) list(ctx context.Context, method, member string) (items []json.RawMessage, first json.RawMessage, err error) {
	var params json.RawMessage
	bytes := 0
	seen := map[string]bool{}
	for range maxPages {
		result, err := c.ask(ctx, method, params)
		if err != nil {
			return nil, nil, err
		}
		if first == nil {
			first = result
		}
		page, err := wire.Elements(wire.Get(result, member))
		if err != nil {
			return nil, nil, fmt.Errorf("its answer to %s has no list of %s: %s", method, member, c.mask.excerpt(result))
		}
		if bytes += len(result); bytes > maxListBytes {
			return nil, nil, fmt.Errorf("its list of %s is larger than %d MiB", member, maxListBytes>>20)
		}
		items = append(items, page...)
		if len(items) > maxItems {
			return nil, nil, fmt.Errorf("its list of %s has more than %d entries", member, maxItems)
		}
		cursor := wire.Get(result, "nextCursor")
		if cursor == nil || string(cursor) == "null" || string(cursor) == `""` {
			return items, first, nil
		}
		if seen[string(cursor)] {
			return nil, nil, fmt.Errorf("its list of %s gave the same cursor twice", member)
		}
		seen[string(cursor)] = true
		params = wire.Set(nil, cursor, "cursor")
	}
	return nil, nil, fmt.Errorf("its list of %s has more than %d pages", member, maxPages)
}
