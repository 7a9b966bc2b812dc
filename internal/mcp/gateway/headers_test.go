package gateway_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"nightporter/internal/mcp/gateway"
	"nightporter/internal/mcp/wire"
	"nightporter/test/lab"
)

// regional is a tool whose region is repeated in a header.
func regional(name string) json.RawMessage {
	return json.RawMessage(`{"name":"` + name + `","inputSchema":{"type":"object","properties":{` +
		`"region":{"type":"string","x-mcp-header":"Region"},"n":{"type":"integer","x-mcp-header":"N"}}}}`)
}

func TestStatelessCallsMustRepeatArgumentsThatTheToolSaysInHeaders(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: []json.RawMessage{
		regional("echo"),
		json.RawMessage(`{"name":"broken","inputSchema":{"type":"object","properties":{"a":{"type":"number","x-mcp-header":"A"}}}}`),
	}})
	_, url := h.endpoint(gateway.Profile{})
	for _, c := range []struct {
		name, tool, arguments string
		header                map[string]string
		good                  bool
	}{
		{"repeated", "echo", `{"region":"north","n":3}`, map[string]string{"Mcp-Param-Region": "north", "mcp-param-n": "3.0"}, true},
		{"in base64", "echo", `{"region":"Ålesund"}`, map[string]string{"Mcp-Param-Region": "=?base64?w4VsZXN1bmQ=?="}, true},
		{"null needs none", "echo", `{"region":null}`, nil, true},
		{"missing", "echo", `{"region":"north"}`, nil, false},
		{"another", "echo", `{"region":"north"}`, map[string]string{"Mcp-Param-Region": "south"}, false},
		{"bad base64", "echo", `{"region":"Hello"}`, map[string]string{"Mcp-Param-Region": "=?base64?SGVsbG8?="}, false},
		{"without an argument", "echo", `{}`, map[string]string{"Mcp-Param-Region": "north"}, false},
		{"unknown ones are nobody's", "echo", `{}`, map[string]string{"Mcp-Param-Other": "x"}, true},
		{"a declaration against the rules binds nobody", "broken", `{"a":1.5}`, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			header := modern(wire.ToolsCall, "s__"+c.tool)
			for key, value := range c.header {
				header[key] = value
			}
			before := len(h.recorder.Select(lab.Received(wire.ToolsCall)))
			status, body, _ := h.post(url, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"s__`+c.tool+`","arguments":`+c.arguments+`,`+triple+`}}`, header)
			if c.good && (status != http.StatusOK || !strings.Contains(body, `"result"`)) {
				t.Errorf("%d %s", status, body)
			}
			if !c.good && (status != http.StatusBadRequest || !strings.Contains(body, fmt.Sprint(wire.CodeHeaderMismatch))) {
				t.Errorf("%d %s", status, body)
			}
			if reached := len(h.recorder.Select(lab.Received(wire.ToolsCall))) > before; reached != c.good {
				t.Errorf("reached the server: %v", reached)
			}
		})
	}
}

// A server over HTTP gets the headers that its own tools want, under its own names; a tool that declares them against the rules is
// not offered, and costs no other.
func TestServersOverHTTPGetTheHeadersThatTheirToolsWant(t *testing.T) {
	h := newHouse(t)
	url := lab.Serve(t, lab.Config{Name: "far", Era: lab.Modern, Log: h.recorder.Address, Tools: []json.RawMessage{
		regional("echo"),
		json.RawMessage(`{"name":"broken","inputSchema":{"type":"object","properties":{"a":{"type":"number","x-mcp-header":"A"}}}}`),
	}})
	h.configure(fmt.Sprintf("[mcp_servers.far]\nurl = %q\n", url))
	_, endpoint := h.endpoint(gateway.Profile{})
	for _, version := range []string{wire.Latest, wire.Modern} {
		t.Run(version, func(t *testing.T) {
			s := h.connect(endpoint, version, nil)
			if got := strings.Join(toolNames(t, h.ctx, s), " "); got != "far__echo" {
				t.Errorf("tools %s", got)
			}
			before := len(h.recorder.Select(lab.Received(wire.ToolsCall)))
			if _, err := s.CallTool(h.ctx, &mcp.CallToolParams{Name: "far__echo", Arguments: map[string]any{"region": " north", "n": 7}}); err != nil {
				t.Fatal(err)
			}
			calls, err := h.recorder.WaitN(h.ctx, before+1, lab.Received(wire.ToolsCall))
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range map[string]string{"Mcp-Method": "tools/call", "Mcp-Name": "echo", "Mcp-Param-Region": "=?base64?IG5vcnRo?=", "Mcp-Param-N": "7"} {
				if got := calls[before].Header.Get(name); got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
		})
	}
}

// A page asks before it sends headers, and names those that repeat arguments.
func TestPagesMaySendTheHeadersThatRepeatArguments(t *testing.T) {
	guard := &gateway.Guard{}
	r := httptest.NewRequest(http.MethodOptions, "http://127.0.0.1/mcp", nil)
	r.Host = "127.0.0.1"
	r.Header.Set("Origin", "http://127.0.0.1:3000")
	r.Header.Set("Access-Control-Request-Headers", "mcp-param-region, x-other,mcp-param-")
	w := httptest.NewRecorder()
	guard.ServeHTTP(w, r)
	got := w.Header().Get("Access-Control-Allow-Headers")
	if !strings.HasSuffix(got, ", Mcp-Name, mcp-param-region") {
		t.Errorf("allowed: %s", got)
	}
}

// A server whose tools changed without a word refuses a call for want of a header: its tools are read again, and the client is told that they
// changed. Its next call has the headers.
func TestCallRefusedForItsHeadersReadsTheToolsAgain(t *testing.T) {
	h := newHouse(t)
	var lists, calls atomic.Int32
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		m, err := wire.Parse(body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		answer := func(result string) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
		}
		switch m.Method {
		case wire.Discover:
			answer(`{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}`)
		case wire.ToolsList:
			tool := `{"name":"t","inputSchema":{"type":"object"}}`
			if lists.Add(1) > 1 {
				tool = string(regional("t"))
			}
			answer(`{"resultType":"complete","tools":[` + tool + `]}`)
		case wire.ToolsCall:
			calls.Add(1)
			if r.Header.Get("Mcp-Param-Region") != "north" {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusBadRequest)
				fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32020,"message":"the header is missing"}}`, m.ID)
				return
			}
			answer(`{"resultType":"complete","content":[{"type":"text","text":"north it is"}]}`)
		default: // initialize among them
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}`, m.ID)
		}
	}))
	t.Cleanup(web.Close)
	h.configure(fmt.Sprintf("[mcp_servers.s]\nurl = %q\n", web.URL))
	_, url := h.endpoint(gateway.Profile{})
	s := h.connect(url, wire.Latest, nil)
	result, err := s.CallTool(h.ctx, &mcp.CallToolParams{Name: "s__t", Arguments: map[string]any{"region": "north"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := text(t, result); !result.IsError || !strings.Contains(got, "list its tools again") || calls.Load() != 1 {
		t.Errorf("%s after %d calls", got, calls.Load())
	}
	result, err = s.CallTool(h.ctx, &mcp.CallToolParams{Name: "s__t", Arguments: map[string]any{"region": "north"}})
	if err != nil || text(t, result) != "north it is" || calls.Load() != 2 {
		t.Errorf("%v, %v after %d calls", result, err, calls.Load())
	}
	// What the new headers do not mend is not asked again.
	if _, err := s.CallTool(h.ctx, &mcp.CallToolParams{Name: "s__t", Arguments: map[string]any{"region": "south"}}); err == nil || calls.Load() != 3 {
		t.Errorf("%v after %d calls", err, calls.Load())
	}
}

func TestHeadersThatAreThereTwiceAreRefused(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("echo")})
	_, url := h.endpoint(gateway.Profile{})
	for name, second := range map[string]string{"Mcp-Name": "s__other", "Mcp-Method": "tools/list", "MCP-Protocol-Version": "2025-11-25"} {
		body := `{"jsonrpc":"2.0","id":"q","method":"tools/call","params":{"name":"s__echo","arguments":{},` + triple + `}}`
		r, err := http.NewRequestWithContext(h.ctx, http.MethodPost, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for key, value := range modern(wire.ToolsCall, "s__echo") {
			r.Header.Set(key, value)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Add(name, second)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if code := string(wire.Get(answer, "error", "code")); response.StatusCode != http.StatusBadRequest || code != strconv.Itoa(wire.CodeHeaderMismatch) {
			t.Errorf("%s: %d %s", name, response.StatusCode, answer)
		}
	}
}
