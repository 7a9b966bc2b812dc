package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"nightporter/internal/mcp/server"
	"nightporter/internal/mcp/wire"
	"nightporter/internal/proc"
)

// The servers here are shell scripts and handlers of a few lines, which do what no server should.

const hello = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`

// script is an entry whose server answers initialize, and then does what the body says for each line that it reads:
// $l is the line and $id the request's id.
func script(t *testing.T, body string, extra ...string) string {
	t.Helper()
	return shell(t, `while IFS= read -r l; do id=${l#*\"id\":}; id=${id%%,*}; id=${id%%\}*}; case "$l" in
*'"method":"initialize"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":`+hello+`}';;
`+body+`
esac; done`, extra...)
}

// shell is an entry whose server is a shell script.
func shell(t *testing.T, body string, extra ...string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("needs /bin/sh")
	}
	return fmt.Sprintf("[mcp_servers.s]\ncommand = \"/bin/sh\"\nargs = [\"-c\", %s]\n%s\n", wire.Quote(body), strings.Join(extra, "\n"))
}

// asked is a handler that keeps the requests of the server, and answers none before its ctx ends.
type asked struct {
	came       chan wire.Message
	now, most  atomic.Int64
	inProgress sync.WaitGroup
}

func (*asked) Notify(wire.Message) {}

func (a *asked) Request(ctx context.Context, m wire.Message) (json.RawMessage, *wire.RPCError) {
	a.inProgress.Add(1)
	defer a.inProgress.Done()
	n := a.now.Add(1)
	defer a.now.Add(-1)
	for most := a.most.Load(); n > most && !a.most.CompareAndSwap(most, n); most = a.most.Load() {
	}
	select {
	case a.came <- m:
	default:
	}
	<-ctx.Done()
	return nil, wire.Errorf(wire.CodeServer, "%v", ctx.Err())
}

// openFor opens a connection with h as its handler.
func openFor(t *testing.T, entry string, h server.Handler) *server.Conn {
	t.Helper()
	c, err := server.Open(within(t), prepare(t, entry), wire.Client{}, wire.SessionEra, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		c.Close(ctx)
		if ctx.Err() != nil {
			t.Error("Close did not end")
		}
	})
	return c
}

func TestNoCallIsSentAfterItsCancellation(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	c, _ := open(t, script(t, `*last*) echo '{"jsonrpc":"2.0","id":'$id',"result":{}}';;
*) printf '%s\n' "$l" >>`+log+`;;`), wire.SessionEra)
	issue := func(name string, ctx context.Context) {
		_, _ = c.Call(ctx, server.Request{Method: wire.ToolsCall, Params: json.RawMessage(`{"name":"` + name + `"}`)})
	}
	gone, cancel := context.WithCancel(within(t))
	cancel()
	for range 200 {
		issue("never", gone)
	}
	for range 100 {
		ctx, cancel := context.WithCancel(within(t))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			issue("soon", ctx)
		}()
		cancel() // at any moment of the call
		<-ended
	}
	issue("last", within(t)) // the server has read all that was sent before
	lines, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	cancelled := map[string]bool{}
	for line := range strings.Lines(string(lines)) {
		switch {
		case strings.Contains(line, wire.Cancelled):
			cancelled[string(wire.Get([]byte(line), "params", "requestId"))] = true
		case strings.Contains(line, "never"):
			t.Fatal("a call of which the caller had gone was sent")
		case cancelled[string(wire.Get([]byte(line), "id"))]:
			t.Fatal("a call was sent after its cancellation")
		}
	}
}

func TestRequestRightBehindAnAnswerIsAnswered(t *testing.T) {
	const calls = 50
	h := &asked{came: make(chan wire.Message, calls)}
	c := openFor(t, script(t, `*tools/call*) printf '{"jsonrpc":"2.0","id":%s,"result":{}}\n{"jsonrpc":"2.0","id":"r%s","method":"roots/list"}\n' $id $id;;`), h)
	for range calls {
		if _, err := c.Call(within(t), server.Request{Method: wire.ToolsCall, Params: json.RawMessage(`{"name":"x"}`)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range calls {
		select {
		case <-h.came:
		case <-within(t).Done():
			t.Fatalf("of %d requests %d came", calls, i)
		}
	}
}

func TestPingIsAnsweredAndPutToNobody(t *testing.T) {
	h := &asked{came: make(chan wire.Message, 1)}
	c := openFor(t, script(t, `*tools/call*) call=$id; echo '{"jsonrpc":"2.0","id":"p","method":"ping"}';;
*'"id":"p","result":{}'*) echo '{"jsonrpc":"2.0","id":'$call',"result":{}}';;`), h)
	_, err := c.Call(within(t), server.Request{Method: wire.ToolsCall, Params: json.RawMessage(`{"name":"x"}`), Ask: h.Request})
	if err != nil || h.most.Load() > 0 {
		t.Errorf("%v, asked %d times", err, h.most.Load())
	}
}

// TestQuestionsBeyondTheBoundOfACallAreRefused has a server that answers its call only when 8 of 40 questions were refused.
func TestQuestionsBeyondTheBoundOfACallAreRefused(t *testing.T) {
	h := &asked{}
	c := openFor(t, script(t, `*tools/call*) call=$id; n=0; i=0; while [ $i -lt 40 ]; do echo '{"jsonrpc":"2.0","id":"q'$i'","method":"roots/list"}'; i=$((i+1)); done;;
*'too many'*) n=$((n+1)); [ $n = 8 ] && echo '{"jsonrpc":"2.0","id":'$call',"result":{}}';;`), h)
	if _, err := c.Call(within(t), server.Request{Method: wire.ToolsCall, Params: json.RawMessage(`{"name":"x"}`), Ask: h.Request}); err != nil {
		t.Error(err)
	}
	h.inProgress.Wait()
	if n := h.most.Load(); n > 32 {
		t.Errorf("%d questions at once", n)
	}
}

func TestServerThatAsksWithoutEndAndReadsNothingIsAnsweredInItsCall(t *testing.T) {
	h := &asked{}
	c := openFor(t, script(t, `*tools/call*) i=0; while [ $i -lt 3000 ]; do echo '{"jsonrpc":"2.0","id":"q'$i'","method":"roots/list"}'; i=$((i+1)); done
echo '{"jsonrpc":"2.0","id":'$id',"result":{}}'; exec sleep 1000;;`), h)
	answer, err := c.Call(within(t), server.Request{Method: wire.ToolsCall, Params: json.RawMessage(`{"name":"x"}`), Ask: h.Request})
	if err != nil || answer.Result == nil {
		t.Errorf("%v, %v", answer, err)
	}
}

func TestRequestsInALoopOutsideOfCallsAreBounded(t *testing.T) {
	h := &asked{}
	c := openFor(t, script(t, `*initialized*) i=0; while [ $i -lt 3000 ]; do echo '{"jsonrpc":"2.0","id":"q'$i'","method":"roots/list"}'; i=$((i+1)); done;;
*tools/call*) echo '{"jsonrpc":"2.0","id":'$id',"result":{}}';;`), h)
	if _, err := c.Call(within(t), server.Request{Method: wire.ToolsCall, Params: json.RawMessage(`{"name":"x"}`)}); err != nil {
		t.Error(err)
	}
	if n := h.most.Load(); n == 0 || n > 64 {
		t.Errorf("%d requests in progress at once", n)
	}
}

func TestSecondUseOfARequestIDInProgressIsRefused(t *testing.T) {
	h := &asked{came: make(chan wire.Message, 2)}
	c := openFor(t, script(t, `*initialized*) echo '{"jsonrpc":"2.0","id":"q","method":"roots/list"}'; echo '{"jsonrpc":"2.0","id":"q","method":"roots/list"}';;
*'"id":"q"'*) refusal=$l;;
*tools/call*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"refusal":['"$refusal"']}}';;`), h)
	<-h.came
	var answer wire.Message
	for refusal := ""; refusal == "" && within(t).Err() == nil; refusal = strings.Trim(string(wire.Get(answer.Result, "refusal")), "[]") {
		var err error
		if answer, err = c.Call(within(t), server.Request{Method: wire.ToolsCall, Params: json.RawMessage(`{"name":"x"}`)}); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(string(answer.Result), "in progress") || h.most.Load() != 1 {
		t.Errorf("the server was answered %s, and %d were asked", answer.Result, h.most.Load())
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c.Close(ctx)
	if h.now.Load() != 0 {
		t.Error("a question outlives its connection")
	}
}

func TestNoErrorHasTheSecretsOfItsServer(t *testing.T) {
	const key = `sk-very-secret/1234`
	env := `env = { API_KEY = "` + key + `" }`
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", r.URL.Query().Get("key"))
		if r.Method == http.MethodDelete {
			return
		}
		_, _ = io.WriteString(w, "x")
	}))
	t.Cleanup(web.Close)
	wordy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, strings.Repeat("0", 64<<10-10)+key) // cut in its middle
	}))
	t.Cleanup(wordy.Close)
	started := `read -r l; echo '{"jsonrpc":"2.0","id":1,"result":` + hello + `}'; read -r l; read -r l; `
	for name, entry := range map[string]string{
		"error of initialize":      shell(t, `read -r l; echo '{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"invalid key '$API_KEY'"}}'; cat >/dev/null`, env),
		"error with an odd form":   shell(t, `read -r l; printf '{"jsonrpc":"2.0","id":1,"error":"%0181d'$API_KEY'"}\n' 0; cat >/dev/null`, env),
		"slashes escaped":          shell(t, `read -r l; printf '%s\n' '{"jsonrpc":"2.0","id":1,"result":{"key":"sk-very-secret\/1234"}}'; cat >/dev/null`, env),
		"result without version":   shell(t, `read -r l; printf '{"jsonrpc":"2.0","id":1,"result":{"a":"%0185d'$API_KEY'"}}\n' 0; cat >/dev/null`, env),
		"error of the list":        shell(t, started+`echo '{"jsonrpc":"2.0","id":2,"error":{"code":-32000,"message":"invalid key '$API_KEY'"}}'; cat >/dev/null`, env),
		"list of another form":     shell(t, started+`echo '{"jsonrpc":"2.0","id":2,"result":{"a":"'$API_KEY'"}}'; cat >/dev/null`, env),
		"junk that is cut":         shell(t, `read -r l; printf '%0190d%s\n' 0 "$API_KEY"; exit 1`, env),
		"stderr":                   shell(t, `read -r l; printf '%s\n' "$API_KEY" >&2; exit 1`, env),
		"query of a dead URL":      httpEntry("http://127.0.0.1:1/mcp?k="+key, "startup_timeout_sec = 1"),
		"escaped query":            httpEntry("http://127.0.0.1:1/mcp?k=sk-very-secret%2F1234", "startup_timeout_sec = 1"),
		"password of a dead URL":   httpEntry("http://user:sk-very-secret-1234@127.0.0.1:1/mcp", "startup_timeout_sec = 1"),
		"dead URL of legacy SSE":   httpEntry("http://127.0.0.1:1/mcp?k="+key, `type = "sse"`, "startup_timeout_sec = 1"),
		"content type":             httpEntry(web.URL + "/?key=" + key),
		"content type, legacy SSE": httpEntry(web.URL+"/?key="+key, `type = "sse"`),
		"status with a long body":  httpEntry(wordy.URL, `http_headers = { X-Key = "`+key+`" }`),
		"helper's complaint":       httpEntry("http://127.0.0.1:1/mcp", `http_headers = { X-Key = "`+key+`" }`, `http_headers_helper = "echo `+key+` >&2; exit 1"`),
		"helper's headers":         httpEntry(wordy.URL, `http_headers_helper = "printf '{\"Authorization\":\"Bearer `+key+`\"}'"`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := prepare(t, entry)
			c, err := server.Open(within(t), spec, wire.Client{}, wire.SessionEra, &outside{})
			if err == nil {
				_, err = c.List(within(t))
				c.Close(within(t))
			}
			if err == nil {
				t.Fatal("there was no error")
			}
			for e := err; e != nil; e = errors.Unwrap(e) {
				if strings.Contains(e.Error(), "sk-very") {
					t.Errorf("error: %v", e)
				}
			}
		})
	}
}

// What a server wants of a login is kept and shown.
func TestAHeaderThatIsTooLargeIsNotRead(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Bearer scope="`+strings.Repeat("s", 100<<10)+`"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(web.Close)
	_, err := server.Open(within(t), prepare(t, httpEntry(web.URL)), wire.Client{}, wire.SessionEra, &outside{})
	if err == nil || !strings.Contains(err.Error(), "headers exceeded") {
		t.Error(err)
	}
}

// sessionless is a server of the session era that answers each tools/call as answer says.
func sessionless(t *testing.T, answer func(w http.ResponseWriter, id string)) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		m, parsing := wire.Parse(body)
		switch {
		case r.Method != http.MethodPost:
			w.WriteHeader(http.StatusMethodNotAllowed)
		case err != nil || parsing != nil || m.IsNotification():
			w.WriteHeader(http.StatusAccepted)
		case m.Method == wire.Initialize:
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, hello)
		default:
			answer(w, string(m.ID))
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestJSONAnswerMustBeToItsRequest(t *testing.T) {
	for form, good := range map[string]bool{"%s": true, "%s.0": true, `"%s"`: true, "%s7": false, `"x%s"`: false} {
		t.Run(form, func(t *testing.T) {
			c, _ := open(t, httpEntry(sessionless(t, func(w http.ResponseWriter, id string) {
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"jsonrpc":"2.0","id":`+form+`,"result":{}}`, id)
			})), wire.SessionEra)
			answer, err := c.Call(within(t), server.Request{Method: wire.ToolsCall, Params: json.RawMessage(`{"name":"x"}`)})
			if good && (err != nil || answer.Result == nil) || !good && (err == nil || errors.Is(err, context.DeadlineExceeded)) {
				t.Errorf("%v, %v", answer, err)
			}
		})
	}
}

func TestStatusOfACallIsNoEndOfTheServer(t *testing.T) {
	for status, sent := range map[int]bool{401: false, 403: false, 404: false, 429: false, 500: true, 502: true} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			c, _ := open(t, httpEntry(sessionless(t, func(w http.ResponseWriter, _ string) { http.Error(w, "because", status) })), wire.SessionEra)
			for range 2 { // the connection goes on
				_, err := c.Call(within(t), server.Request{Method: wire.ToolsCall, Params: json.RawMessage(`{"name":"x"}`)})
				var refused *server.HTTPError
				if !errors.As(err, &refused) || refused.Status != status || refused.Sent() != sent ||
					strings.Contains(err.Error(), "taken effect") != sent || !strings.Contains(err.Error(), "because") {
					t.Errorf("error: %v", err)
				}
			}
		})
	}
}

func TestNothingThatTheHeadersHelperStartedIsLeft(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere only what stays in the helper's group is ended")
	}
	for name, helper := range map[string]string{
		"one that hangs": `sleep 1000 & echo $! >%s; wait`,
		"one that ends":  `sleep 1000 >/dev/null 2>&1 & echo $! >%s; printf '{}'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "pid")
			spec := prepare(t, httpEntry("http://127.0.0.1:1/mcp", "startup_timeout_sec = 2", fmt.Sprintf("http_headers_helper = %s", wire.Quote(fmt.Sprintf(helper, file)))))
			if _, err := server.Open(within(t), spec, wire.Client{}, wire.SessionEra, &outside{}); err == nil {
				t.Fatal("opened")
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || proc.Alive(pid) {
				t.Errorf("process %d is left (%v)", pid, err)
			}
		})
	}
}

func TestListIsBoundedInBytes(t *testing.T) {
	page := strings.Repeat("x", 16<<20)
	n := 0
	c, _ := open(t, httpEntry(sessionless(t, func(w http.ResponseWriter, id string) {
		n++
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"t","description":"%s"}],"nextCursor":"%d"}}`, id, page, n)
	})), wire.SessionEra)
	if _, err := c.List(within(t)); err == nil || !strings.Contains(err.Error(), "64 MiB") || n != 4 {
		t.Errorf("after %d pages: %v", n, err)
	}
}

func TestServerThatDoesNotReadHoldsNobody(t *testing.T) {
	c, _ := open(t, shell(t, `read -r l; echo '{"jsonrpc":"2.0","id":1,"result":`+hello+`}'; read -r l; exec sleep 1000`), wire.SessionEra)
	params := wire.Set(json.RawMessage(`{"name":"x"}`), wire.Quote(strings.Repeat("a", 1<<20)), "arguments")
	for range 2 { // the first fills the pipe, the second waits for its turn
		_, err := c.Call(within(t), server.Request{Method: wire.ToolsCall, Params: params, Timeout: 100 * time.Millisecond})
		if !errors.As(err, new(*server.TimeoutError)) {
			t.Errorf("error: %v", err)
		}
	}
}
