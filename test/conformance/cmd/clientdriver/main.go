// Command clientdriver is the client that the conformance suite's client scenarios test: Nightporter's gateway, with go-sdk's client in
// front of it. The suite starts it for each scenario, with the URL of its test server as the last argument.
//
//	clientdriver NIGHTPORTER URL
//
// It makes a configuration with that server, has an MCP client list and call what the scenario is about, and logs in, as a person
// would by `nightporter servers login`, when the gateway says that a login is needed. It is its own browser, which agrees to
// everything: with CLIENTDRIVER_BROWSER set it opens its argument as one.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"nightporter/test/authlab"
)

const (
	server = "suite"
	// patience bounds a scenario; the suite gives it 30 s.
	patience = 28 * time.Second
	// maxLogins is how often a person tries before she gives up.
	maxLogins = 3
)

func main() {
	if os.Getenv("CLIENTDRIVER_BROWSER") != "" {
		if _, err := authlab.Browse(os.Args[1], true); err != nil {
			fmt.Fprintln(os.Stderr, "browser:", err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: clientdriver NIGHTPORTER URL")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d := &driver{program: os.Args[1], scenario: os.Getenv("MCP_CONFORMANCE_SCENARIO"), revision: os.Getenv("MCP_CONFORMANCE_PROTOCOL_VERSION")}
	err := d.run(ctx, os.Args[2])
	if d.home != "" {
		err = errors.Join(err, os.RemoveAll(d.home))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "scenario %s: %v\n", d.scenario, err)
		cancel()
		os.Exit(1)
	}
}

type driver struct {
	program, scenario, revision string
	home                        string
	base                        string // the gateway's URL
	logins                      int
}

// scenarioContext is what the suite tells of some scenarios.
type scenarioContext struct {
	ClientID     string `json:"client_id"`
	ClientSecret string `json:"client_secret"`
	ToolCalls    []struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"toolCalls"`
}

func (d *driver) run(ctx context.Context, url string) error {
	var about scenarioContext
	if text := os.Getenv("MCP_CONFORMANCE_CONTEXT"); text != "" {
		if err := json.Unmarshal([]byte(text), &about); err != nil {
			return fmt.Errorf("MCP_CONFORMANCE_CONTEXT: %w", err)
		}
	}
	if err := d.configure(url, about); err != nil {
		return err
	}
	base, end, err := d.gateway(ctx)
	if err != nil {
		return err
	}
	defer end()
	d.base = base
	if strings.HasPrefix(d.scenario, "auth/") {
		return d.authorized(ctx)
	}
	session, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer session.Close()
	return d.use(ctx, session, about)
}

// configure makes a home with a configuration of the one server.
func (d *driver) configure(url string, about scenarioContext) error {
	var err error
	if d.home, err = os.MkdirTemp("", "clientdriver"); err != nil {
		return err
	}
	quote := func(text string) string { data, _ := json.Marshal(text); return string(data) }
	// The document that the suite knows; where an authorization server takes none, a client is registered.
	client := "client_id = " + quote("https://conformance-test.local/client-metadata.json")
	if about.ClientID != "" {
		client = "client_id = " + quote(about.ClientID)
		if about.ClientSecret != "" {
			client += ", client_secret = " + quote(about.ClientSecret)
		}
	}
	// Lists wait for the server, however loaded the machine is.
	text := fmt.Sprintf("[gateway]\noptional_grace_ms = 20000\n\n[mcp_servers.%s]\nurl = %s\noauth = { %s }\n", server, quote(url), client)
	return os.WriteFile(filepath.Join(d.home, "config.toml"), []byte(text), 0o600)
}

func (d *driver) env() []string {
	self, _ := os.Executable()
	return append(os.Environ(), "NIGHTPORTER_HOME="+d.home, "HOME="+d.home, "BROWSER="+self, "CLIENTDRIVER_BROWSER=1")
}

// gateway starts the gateway, and returns its base URL and what ends it.
func (d *driver) gateway(ctx context.Context) (base string, end func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, d.program, "gateway", "--listen", "127.0.0.1:0", "--token-file", filepath.Join(d.home, "token"))
	cmd.Env = d.env()
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = endPatience
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return "", nil, err
	}
	told, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			fmt.Fprintln(os.Stderr, lines.Text())
			if found := gatewayURL.FindString(lines.Text()); found != "" && len(told) == 0 {
				told <- found
			}
		}
		_ = cmd.Wait() // by the signal
	}()
	end = func() { cancel(); <-ended }
	select {
	case base = <-told:
		return base, end, nil
	case <-ended:
		cancel()
		return "", nil, errors.New("the gateway ended without telling its URL")
	case <-ctx.Done():
		end()
		return "", nil, ctx.Err()
	}
}

// endPatience is how long the gateway may take to end.
const endPatience = 5 * time.Second

var gatewayURL = regexp.MustCompile(`http://127\.0\.0\.1:\d+`)

// bearer adds the gateway's token.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// connect opens a session with the gateway.
func (d *driver) connect(ctx context.Context) (*mcp.ClientSession, error) {
	token, err := os.ReadFile(filepath.Join(d.home, "token"))
	if err != nil {
		return nil, err
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "clientdriver", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			content := map[string]any{}
			if d.scenario == "sep-2322-client-request-state" {
				content["confirmed"] = true
			}
			return &mcp.ElicitResult{Action: "accept", Content: content}, nil
		},
	})
	transport := &mcp.StreamableClientTransport{Endpoint: d.base + "/mcp", HTTPClient: &http.Client{Transport: bearer(strings.TrimSpace(string(token)))}}
	return client.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: d.revision})
}

// use lists everything and calls what the scenario is about.
func (d *driver) use(ctx context.Context, session *mcp.ClientSession, about scenarioContext) error {
	tools, err := session.ListTools(ctx, nil)
	if err != nil {
		return fmt.Errorf("list tools: %w", err)
	}
	if len(about.ToolCalls) > 0 {
		for _, call := range about.ToolCalls {
			if _, err := session.CallTool(ctx, &mcp.CallToolParams{Name: server + "__" + call.Name, Arguments: call.Arguments}); err != nil {
				fmt.Fprintln(os.Stderr, "call:", err) // a refusal may be what is wanted
			}
		}
		return nil
	}
	for _, tool := range tools.Tools {
		arguments := map[string]any{}
		if tool.Name == server+"__json_schema_echo" { // is asked what has become of the first tool's schema
			arguments["schema"] = tools.Tools[0].InputSchema
		}
		if tool.Name == server+"__add_numbers" {
			arguments = map[string]any{"a": 5, "b": 3}
		}
		if _, err := session.CallTool(ctx, &mcp.CallToolParams{Name: tool.Name, Arguments: arguments}); err != nil {
			fmt.Fprintln(os.Stderr, "call:", err)
		}
	}
	if d.scenario != "http-standard-headers" {
		return nil
	}
	resources, err := session.ListResources(ctx, nil)
	if err != nil {
		return fmt.Errorf("list resources: %w", err)
	}
	for _, r := range resources.Resources {
		if _, err := session.ReadResource(ctx, &mcp.ReadResourceParams{URI: r.URI}); err != nil {
			return fmt.Errorf("read resource: %w", err)
		}
	}
	prompts, err := session.ListPrompts(ctx, nil)
	if err != nil {
		return fmt.Errorf("list prompts: %w", err)
	}
	for _, p := range prompts.Prompts {
		if _, err := session.GetPrompt(ctx, &mcp.GetPromptParams{Name: p.Name}); err != nil {
			return fmt.Errorf("get prompt: %w", err)
		}
	}
	return nil
}

// authorized calls the scenario's tool twice, and logs in whenever the gateway says that it is needed.
func (d *driver) authorized(ctx context.Context) error {
	var failed error
	for range 2 {
		for {
			refusal, err := d.call(ctx)
			if err != nil {
				return err
			}
			if refusal == "" {
				break
			}
			if d.logins++; d.logins > maxLogins {
				return errors.Join(fmt.Errorf("%d logins did not help: %s", maxLogins, refusal), failed)
			}
			if failed = d.login(ctx); failed != nil {
				fmt.Fprintln(os.Stderr, failed) // the next call says whether it matters
			}
		}
	}
	return nil
}

// call lists the tools, in a session of its own, and calls one. refusal is not empty when a login is needed.
func (d *driver) call(ctx context.Context) (refusal string, err error) {
	session, err := d.connect(ctx)
	if err != nil {
		return "", err
	}
	defer session.Close()
	tools, err := session.ListTools(ctx, nil)
	if err != nil {
		return "", fmt.Errorf("list tools: %w", err)
	}
	if len(tools.Tools) == 0 {
		return d.status(ctx)
	}
	result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: tools.Tools[0].Name, Arguments: map[string]any{}})
	if err != nil {
		return "", fmt.Errorf("call: %w", err)
	}
	if result.IsError {
		data, _ := json.Marshal(result.Content)
		if strings.Contains(string(data), "nightporter servers login "+server) {
			return string(data), nil
		}
		return "", fmt.Errorf("call: %s", data)
	}
	return "", nil
}

// status asks Nightporter what is wrong with the server.
func (d *driver) status(ctx context.Context) (refusal string, err error) {
	cmd := exec.CommandContext(ctx, d.program, "servers", "list", "--json")
	cmd.Env, cmd.Stderr = d.env(), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("servers list: %w", err)
	}
	var list []struct{ Code, Reason string }
	if err := json.Unmarshal(out, &list); err != nil || len(list) != 1 {
		return "", fmt.Errorf("servers list: %s", out)
	}
	if list[0].Code != "needs_login" {
		return "", fmt.Errorf("no tools: %s", list[0].Reason)
	}
	return list[0].Reason, nil
}

func (d *driver) login(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, d.program, "servers", "login", server)
	cmd.Env, cmd.Stderr = d.env(), os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("login: %w", err)
	}
	return nil
}
