package gateway_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"nightporter/internal/mcp/gateway"
	"nightporter/internal/mcp/wire"
)

var revisions = append([]string{wire.Modern}, wire.SessionVersions...)

// pinned is a server of go-sdk's that speaks one revision, over streamable HTTP or legacy SSE.
func pinned(t *testing.T, revision, transport string) (url string, headers func() []string) {
	t.Helper()
	sdk := mcp.NewServer(&mcp.Implementation{Name: "pinned", Version: "1"}, &mcp.ServerOptions{SupportedProtocolVersions: []string{revision}})
	mcp.AddTool(sdk, &mcp.Tool{Name: "greet"}, func(_ context.Context, _ *mcp.CallToolRequest, in struct {
		Name string `json:"name"`
	},
	) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "hello " + in.Name}}}, nil, nil
	})
	sdk.AddResource(&mcp.Resource{URI: "pinned://r", Name: "r"}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: "pinned://r", Text: "read"}}}, nil
	})
	of := func(*http.Request) *mcp.Server { return sdk }
	var handler http.Handler = mcp.NewStreamableHTTPHandler(of, &mcp.StreamableHTTPOptions{Stateless: revision == wire.Modern})
	if transport == "sse" {
		handler = mcp.NewSSEHandler(of, nil)
	}
	var mu sync.Mutex
	var seen []string
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		if version := r.Header.Get("MCP-Protocol-Version"); version != "" && !slices.Contains(seen, version) {
			seen = append(seen, version)
		}
		mu.Unlock()
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	return web.URL, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(seen)
	}
}

// Every client in front of a server of every revision, over both transports.
func TestServersOfEveryRevisionServeClientsOfEveryRevision(t *testing.T) {
	for _, transport := range []string{"http", "sse"} {
		for _, revision := range revisions {
			if transport == "sse" && revision == wire.Modern {
				continue // which has no such transport
			}
			t.Run(transport+" "+revision, func(t *testing.T) {
				h := newHouse(t)
				url, headers := pinned(t, revision, transport)
				h.configure(fmt.Sprintf("[mcp_servers.s]\nurl = %q\ntype = %q\n", url, transport))
				_, endpoint := h.endpoint(gateway.Profile{})
				for _, version := range revisions {
					s := h.connect(endpoint, version, nil)
					if got := s.InitializeResult().ProtocolVersion; got != version {
						t.Errorf("a client of %s got %s", version, got)
					}
					result, err := s.CallTool(h.ctx, &mcp.CallToolParams{Name: "s__greet", Arguments: map[string]any{"name": "Ada"}})
					if err != nil {
						t.Errorf("a client of %s: %v", version, err)
						continue
					}
					if got := text(t, result); got != "hello Ada" {
						t.Errorf("a client of %s: %s", version, got)
					}
					if _, err := s.ReadResource(h.ctx, &mcp.ReadResourceParams{URI: "pinned://r"}); err != nil {
						t.Errorf("a client of %s reads: %v", version, err)
					}
				}
				// The header says what was agreed. A stateless client's server is asked for 2026-07-28 first, and go-sdk 1.8.0 pinned to that
				// agrees to 2025-11-25 all the same when a session's client opens.
				for _, version := range headers() {
					if version != revision && version != wire.Modern && (revision != wire.Modern || version != wire.Latest) {
						t.Errorf("a server of %s got requests of %s", revision, version)
					}
				}
				if transport == "http" && !slices.Contains(headers(), revision) {
					t.Errorf("a server of %s got requests of %v alone", revision, headers())
				}
			})
		}
	}
}

// Batches are refused with what to do, over both transports (docs/decisions/0012).
func TestBatchesAreRefusedWithWhatToDo(t *testing.T) {
	h := newHouse(t)
	_, url := h.endpoint(gateway.Profile{})
	session := h.opened(url, "x", "{}")
	batch := `[{"jsonrpc":"2.0","id":1,"method":"tools/list"},{"jsonrpc":"2.0","id":2,"method":"ping"}]`
	status, body, _ := h.post(url, batch, session)
	if status != http.StatusBadRequest || !strings.Contains(body, "-32600") || !strings.Contains(body, "by itself") {
		t.Errorf("%d %s", status, body)
	}
	got := h.stdio(gateway.Profile{}, 2, initialize, batch)
	if all := strings.Join(got, "\n"); !strings.Contains(all, "by itself") {
		t.Errorf("over stdio: %s", all)
	}
}
