package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"nightporter/test/lab"
	"nightporter/test/programs"
)

// limit bounds one run of the suite with the servers that it needs. A run takes
// two to eight seconds; a server that hangs costs the suite 30 s per scenario.
const limit = 5 * time.Minute

var revisions = []string{"2025-11-25", "2026-07-28"}

// TestEverythingServerPassesTheSuite is the baseline. go-sdk's HTTP server speaks
// one era at a time: with a session for the first revision, stateless for the second.
func TestEverythingServerPassesTheSuite(t *testing.T) {
	suite, everything := setup(t)
	for _, revision := range revisions {
		t.Run(revision, func(t *testing.T) {
			ctx := within(t)
			address := freeAddress(t)
			stateless := fmt.Sprintf("-stateless=%t", revision >= "2026")
			start(ctx, t, func(string) {}, everything, "-http", address, stateless)
			waitFor(ctx, t, address)
			judge(ctx, t, suite, asServer, revision, "http://"+address+"/mcp", "without the gateway")
		})
	}
}

// TestTheGatewayPassesTheSuite puts the gateway in front of the same server on stdio.
func TestTheGatewayPassesTheSuite(t *testing.T) {
	suite, everything := setup(t)
	nightporter := build(t, "nightporter/cmd/nightporter")
	for _, revision := range revisions {
		t.Run(revision, func(t *testing.T) {
			ctx := within(t)
			endpoint := startGateway(ctx, t, nightporter, everything)
			judge(ctx, t, suite, asServer, revision, endpoint, "through the gateway")
		})
	}
}

// TestTheGatewayPassesTheSuiteAsAClient has the suite judge what the gateway does towards its own test servers, logins included, with
// go-sdk's client in front of it; see cmd/clientdriver.
func TestTheGatewayPassesTheSuiteAsAClient(t *testing.T) {
	suite := setupSuite(t)
	driver := build(t, "nightporter/test/conformance/cmd/clientdriver") + " " + build(t, "nightporter/cmd/nightporter")
	for _, revision := range revisions {
		t.Run(revision, func(t *testing.T) {
			judge(within(t), t, suite, asClient, revision, driver, "the gateway")
		})
	}
}

// TestTasksPassThroughTheGateway runs the suite's scenarios of the extension for tasks, which no revision requires and
// everything-server lacks, against a server of ours that has it. They must pass all the same: through the gateway nothing may be lost.
func TestTasksPassThroughTheGateway(t *testing.T) {
	s, _ := setup(t)
	nightporter := build(t, "nightporter/cmd/nightporter")
	ctx := within(t)
	config := lab.Config{Name: "tasks", Era: lab.Modern, Tasks: true, Tools: []json.RawMessage{
		json.RawMessage(`"greet"`), lab.TaskTool("slow_compute", "optional"), lab.TaskTool("failing_job", "required"),
		lab.TaskTool("protocol_error_job", "optional"), lab.TaskTool("confirm_delete", "optional"), lab.TaskTool("multi_input", "optional"),
		lab.TaskTool("test_tool_with_task", "required"),
	}}
	endpoint := startGateway(ctx, t, nightporter, lab.Binary(t), config.Arg())
	all := report{Of: asServer, Revision: "2026-07-28, tasks"}
	for _, name := range []string{
		"tasks-lifecycle", "tasks-capability-negotiation", "tasks-wire-fields", "tasks-request-state-removal", "tasks-mrtr-input",
		"tasks-request-headers", "tasks-dispatch-and-envelope", "tasks-status-notifications", "tasks-required-task-error", "tasks-mrtr-composition",
	} {
		r, err := s.runSome(ctx, asServer, "2026-07-28", []string{name}, t.TempDir(), "--url", endpoint, "--scenario", name)
		if err != nil {
			t.Fatal(err)
		}
		all.Scenarios = append(all.Scenarios, r.Scenarios...)
	}
	tell(t, all, "through the gateway")
}

// judge runs the suite and fails for each required scenario that failed. The
// figures go to the log and, for a report at the end of a build, to the file
// that NIGHTPORTER_CONFORMANCE_FIGURES names.
func judge(ctx context.Context, t *testing.T, suite suite, of side, revision, endpoint, subject string) {
	t.Helper()
	dir := t.TempDir()
	report, err := suite.run(ctx, of, revision, endpoint, dir)
	if err != nil {
		t.Fatal(err)
	}
	tell(t, report, subject)
}

// tell fails for each required scenario that failed, and reports the figures.
func tell(t *testing.T, report report, subject string) {
	t.Helper()
	for _, s := range report.Scenarios {
		switch failed := strings.Join(s.Failed, "\n  "); {
		case failed == "":
		case s.Required:
			t.Errorf("scenario %s fails %s:\n  %s", s.Name, subject, failed)
		case !strings.HasPrefix(s.Name, "tasks-"): // an extension that everything-server lacks
			t.Logf("scenario %s, which is not required, fails %s:\n  %s", s.Name, subject, failed)
		}
	}
	line := report.Figures() + " (" + subject + ")"
	t.Log(line)
	if path := os.Getenv("NIGHTPORTER_CONFORMANCE_FIGURES"); path != "" {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		_, err = file.WriteString(line + "\n")
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

func setup(t *testing.T) (s suite, everything string) {
	t.Helper()
	return setupSuite(t), build(t, "github.com/modelcontextprotocol/go-sdk/conformance/everything-server")
}

func setupSuite(t *testing.T) suite {
	t.Helper()
	return suite{
		node: programs.Find(t, "node"), script: programs.Conformance(t),
		loader: filepath.Join(programs.Root(), "test", "conformance", "globsync.mjs"),
		env:    programs.Env(programs.Home(t)),
	}
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// build builds a command of this module or of one that it requires.
func build(t *testing.T, pkg string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(pkg)+programSuffix())
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, pkg).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	return path
}

func programSuffix() string {
	if os.PathSeparator == '\\' {
		return ".exe"
	}
	return ""
}

// start starts a server that ends with the test, and shows its stderr when the
// test fails. Each line of its stderr goes to line as well; ended is closed when it has ended.
func start(ctx context.Context, t *testing.T, line func(string), program string, args ...string) (ended <-chan struct{}) {
	t.Helper()
	ctx, stop := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, program, args...)
	home := programs.Home(t)
	cmd.Env = programs.Env(home, "NIGHTPORTER_HOME="+filepath.Join(home, "nightporter"))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second // then it is killed
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		stop()
		t.Fatal(err)
	}
	var log strings.Builder
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			fmt.Fprintln(&log, lines.Text())
			line(lines.Text())
		}
		_ = cmd.Wait() // by the signal
	}()
	t.Cleanup(func() {
		stop()
		<-done
		if t.Failed() {
			t.Logf("stderr of %s:\n%s", filepath.Base(program), tail([]byte(log.String())))
		}
	})
	return done
}

// freeAddress is an address on loopback that nothing listens on.
// everything-server cannot choose one itself: it does not tell which.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// waitFor waits until something listens on an address.
func waitFor(ctx context.Context, t *testing.T, address string) {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("nothing listens on %s: %v", address, err)
		}
	}
}

// token is what the gateway is told to ask for.
const token = "made-up-token-for-the-conformance-suite"

var gatewayURL = regexp.MustCompile(`http://127\.0\.0\.1:\d+`)

// quoted are strings of TOML, whose escapes are JSON's.
func quoted(texts []string) []string {
	all := make([]string, len(texts))
	for i, text := range texts {
		b, _ := json.Marshal(text) // a string cannot fail
		all[i] = string(b)
	}
	return all
}

// startGateway starts `nightporter gateway` for everything-server, or another program, on stdio and
// returns an endpoint that the suite can use.
func startGateway(ctx context.Context, t *testing.T, nightporter, everything string, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	config, tokenFile := filepath.Join(dir, "config.toml"), filepath.Join(dir, "token")
	for path, text := range map[string]string{
		config:    fmt.Sprintf("[mcp_servers.everything]\ncommand = %q\nargs = [%s]\n", everything, strings.Join(quoted(args), ", ")),
		tokenFile: token + "\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	told := make(chan string, 1)
	ended := start(ctx, t, func(line string) {
		if base := gatewayURL.FindString(line); base != "" {
			select {
			case told <- base:
			default: // told before
			}
		}
	}, nightporter, "gateway", "--config", config, "--listen", "127.0.0.1:0", "--token-file", tokenFile)
	select {
	case base := <-told:
		return authorise(t, base) + "/mcp/everything"
	case <-ended:
		t.Fatal("nightporter gateway ended without telling its URL on stderr")
	case <-ctx.Done():
		t.Fatal("nightporter gateway does not tell its URL on stderr")
	}
	return ""
}

// authorise puts a proxy in front of the gateway that adds its token: the suite
// cannot send headers of the caller's. Everything else passes as it is; the
// Host and Origin of honest requests, which name the proxy, are made to name the
// gateway, while the forged ones of the scenario dns-rebinding-protection stay.
func authorise(t *testing.T, base string) string {
	t.Helper()
	target, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewUnstartedServer(nil)
	own := proxy.Listener.Addr().String()
	proxy.Config.Handler = &httputil.ReverseProxy{
		FlushInterval: -1, // streams
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, "no answer of the gateway: "+err.Error(), http.StatusBadGateway)
		},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = target.Scheme, target.Host
			r.Out.Host = strings.Replace(r.In.Host, own, target.Host, 1)
			if origin := r.In.Header.Get("Origin"); origin != "" {
				r.Out.Header.Set("Origin", strings.Replace(origin, own, target.Host, 1))
			}
			r.Out.Header.Set("Authorization", "Bearer "+token)
		},
	}
	proxy.Start()
	t.Cleanup(func() {
		proxy.CloseClientConnections()
		proxy.Close()
	})
	return proxy.URL
}

// TestTheProxyAddsNothingButTheToken shows that the proxy is no help to the subject: what
// the suite forges arrives, and answers come back as they are.
func TestTheProxyAddsNothingButTheToken(t *testing.T) {
	got := make(chan *http.Request, 1)
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r
		w.WriteHeader(http.StatusTeapot)
	}))
	defer gateway.Close()
	proxy := authorise(t, gateway.URL)
	for _, c := range []struct{ host, origin, wantHost, wantOrigin string }{
		{"", proxy, strings.TrimPrefix(gateway.URL, "http://"), gateway.URL},
		{"evil.example.com", "http://evil.example.com", "evil.example.com", "http://evil.example.com"},
	} {
		request, err := http.NewRequestWithContext(within(t), http.MethodPost, proxy+"/mcp/x?y=1", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		request.Host = c.host
		request.Header.Set("Origin", c.origin)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		r := <-got
		if r.Host != c.wantHost || r.Header.Get("Origin") != c.wantOrigin || r.RequestURI != "/mcp/x?y=1" ||
			r.Header.Get("Authorization") != "Bearer "+token || r.Header.Get("X-Forwarded-For") != "" || response.StatusCode != http.StatusTeapot {
			t.Errorf("arrived: %s %s %v, answer %s", r.Host, r.RequestURI, r.Header, response.Status)
		}
	}
}

// TestARunAgainstAServerThatIsNotMCPNamesTheFailures shows that the runs above can fail.
func TestARunAgainstAServerThatIsNotMCPNamesTheFailures(t *testing.T) {
	s, _ := setup(t)
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	report, err := s.run(within(t), asServer, revisions[0], server.URL, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range report.Scenarios {
		if s.Name == "tools-list" && s.Required && len(s.Failed) > 0 {
			return
		}
	}
	t.Errorf("tools-list is not among the failures: %s", report.Figures())
}

// TestARunOfAProgramThatIsNoClientNamesTheFailures shows the same of clients.
func TestARunOfAProgramThatIsNoClientNamesTheFailures(t *testing.T) {
	s := setupSuite(t)
	report, err := s.run(within(t), asClient, revisions[0], s.node+" --version", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range report.Scenarios {
		if s.Required && len(s.Failed) == 0 {
			t.Errorf("%s passes", s.Name)
		}
	}
}
