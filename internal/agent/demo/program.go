package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"nightporter/internal/agent"
	"nightporter/internal/mcp/sse"
	"nightporter/internal/mcp/wire"
)

const (
	// maxPrompt bounds what is read as a prompt; it is a list of calls.
	maxPrompt = 1 << 20
	// maxAnswer bounds the answer to one request.
	maxAnswer = 64 << 20
	// answerWait bounds one request: a server may have to be started for it, and a package fetched for that.
	answerWait = 10 * time.Minute
)

// Main is the agent's program. It says on out what it reaches, reads its prompt from in to the end, makes the calls that the
// prompt names, and says what came of them. It finds its server in env. The error is for standard error.
func Main(ctx context.Context, env []string, in io.Reader, out io.Writer) error {
	lines := json.NewEncoder(out)
	reaches := event{Type: typeReaches}
	var c *client
	if url := agent.Getenv(env, urlVariable); url != "" {
		c = &client{url: url, token: agent.Getenv(env, tokenVariable)}
		if err := c.open(ctx); err != nil {
			return fmt.Errorf("connect to %s: %w", url, err)
		}
		tools, err := c.tools(ctx)
		if err != nil {
			return err
		}
		reaches.Servers, reaches.Tools = []string{agent.GatewayName}, tools
	}
	if err := lines.Encode(reaches); err != nil {
		return err
	}

	prompt, err := io.ReadAll(io.LimitReader(in, maxPrompt+1))
	if err != nil {
		return fmt.Errorf("read the prompt: %w", err)
	}
	if len(prompt) > maxPrompt {
		return fmt.Errorf("the prompt is longer than %d bytes", maxPrompt)
	}
	calls, err := parse(string(prompt))
	if err != nil {
		return err
	}
	var all []string
	for _, call := range calls {
		if err := lines.Encode(event{Type: typeCall, Tool: call.tool}); err != nil {
			return err
		}
		said := call.tool + ": " + strings.TrimSpace(c.use(ctx, call))
		if err := lines.Encode(event{Type: typeSaid, Text: said}); err != nil {
			return err
		}
		all = append(all, said)
	}
	return lines.Encode(event{Type: typeReply, Text: strings.Join(all, "\n")})
}

// call is one line of a prompt.
type call struct {
	tool string
	args json.RawMessage // an object
}

// parse reads a prompt: a tool's name and its arguments on each line. Empty lines count for nothing.
func parse(prompt string) ([]call, error) {
	var calls []call
	number := 0
	for line := range strings.Lines(prompt) {
		number++
		tool, args, _ := strings.Cut(strings.TrimSpace(line), " ")
		if tool == "" {
			continue
		}
		if args = strings.TrimSpace(args); args == "" {
			args = "{}"
		}
		if _, err := wire.Members([]byte(args)); err != nil {
			return nil, fmt.Errorf("line %d of the prompt: the demo agent takes a tool and its arguments as a JSON object, such as notes__add {\"text\": \"buy milk\"}: %w", number, err)
		}
		calls = append(calls, call{tool, json.RawMessage(args)})
	}
	return calls, nil
}

// client is a client of one MCP server over streamable HTTP, in the session era.
type client struct {
	url, token string
	session    string
	version    string
	lastID     int64
}

func (c *client) open(ctx context.Context) error {
	result, err := c.ask(ctx, wire.Initialize, wire.Encode(map[string]any{
		"protocolVersion": wire.Latest,
		"capabilities":    struct{}{},
		"clientInfo":      map[string]string{"name": "nightporter-demo", "version": "1"},
	}))
	if err != nil {
		return err
	}
	c.version, _ = wire.GetString(result, "protocolVersion")
	_, _, err = c.post(ctx, wire.Message{Method: wire.Initialized})
	return err
}

// tools lists the names of all tools, sorted.
func (c *client) tools(ctx context.Context) ([]string, error) {
	result, err := c.ask(ctx, wire.ToolsList, nil)
	if err != nil {
		return nil, err
	}
	list, err := wire.Elements(wire.Get(result, "tools"))
	if err != nil {
		return nil, fmt.Errorf("the answer to %s has no list of tools: %w", wire.ToolsList, err)
	}
	var names []string
	for _, tool := range list {
		name, _ := wire.GetString(tool, "name")
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// use calls a tool and returns what a model would be told of it: its text, or why there is none.
func (c *client) use(ctx context.Context, call call) string {
	if c == nil {
		return "error: there is no server"
	}
	params := wire.Set(wire.Set(nil, wire.Quote(call.tool), "name"), call.args, "arguments")
	result, err := c.ask(ctx, wire.ToolsCall, params)
	if err != nil {
		return "error: " + err.Error()
	}
	var parts []string
	content, _ := wire.Elements(wire.Get(result, "content"))
	for _, part := range content {
		if text, ok := wire.GetString(part, "text"); ok {
			parts = append(parts, text)
		}
	}
	text := strings.Join(parts, "\n")
	if string(wire.Get(result, "isError")) == "true" {
		return "error: " + text
	}
	return text
}

// ask sends a request and returns its result. An error of the server is a *[wire.RPCError].
func (c *client) ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	ctx, done := context.WithTimeout(ctx, answerWait)
	defer done()
	c.lastID++
	answer, session, err := c.post(ctx, wire.Message{ID: wire.IntID(c.lastID), Method: method, Params: params})
	switch {
	case err != nil:
		return nil, err
	case answer.Error != nil:
		return nil, wire.AsRPCError(answer.Error)
	case answer.Result == nil:
		return nil, errors.New("the server did not answer " + method)
	}
	if method == wire.Initialize {
		c.session = session
	}
	return answer.Result, nil
}

// post sends a frame. The answer is empty for a notification.
func (c *client) post(ctx context.Context, m wire.Message) (answer wire.Message, session string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(m.Append(nil)))
	if err != nil {
		return answer, "", err
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Authorization": "Bearer " + c.token, "Mcp-Session-Id": c.session, "MCP-Protocol-Version": c.version,
	} {
		if value != "" {
			request.Header.Set(name, value)
		}
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return answer, "", err
	}
	defer response.Body.Close()
	body := io.LimitReader(response.Body, maxAnswer)
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	switch {
	case m.IsNotification() && response.StatusCode/100 == 2:
		return answer, "", nil
	case kind == "text/event-stream":
		answer, err = stream(body, m.ID)
	case kind == "application/json":
		var data []byte
		if data, err = io.ReadAll(body); err == nil {
			answer, err = wire.Parse(data)
		}
	default:
		data, _ := io.ReadAll(io.LimitReader(body, 1<<10))
		err = fmt.Errorf("HTTP status %s: %s", response.Status, bytes.TrimSpace(data))
	}
	return answer, response.Header.Get("Mcp-Session-Id"), err
}

// stream reads events up to the answer to the request id.
func stream(body io.Reader, id json.RawMessage) (wire.Message, error) {
	for events := sse.NewReader(body); ; {
		e, err := events.Next()
		if err != nil {
			return wire.Message{}, fmt.Errorf("the stream ended before the answer: %w", err)
		}
		if m, err := wire.Parse(e.Data); err == nil && m.IsResponse() && bytes.Equal(m.ID, id) {
			return m, nil
		}
	}
}
