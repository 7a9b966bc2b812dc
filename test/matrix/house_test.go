package matrix

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"nightporter/test/programs"
)

// limit bounds whatever a test waits for, on a loaded machine. Browsers take their time.
const limit = 90 * time.Second

// built builds a command of this module, or of one that it requires, once.
var built = func() func(t testing.TB, pkg string) string {
	var mu sync.Mutex
	paths := map[string]string{}
	return func(t testing.TB, pkg string) string {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if paths[pkg] == "" {
			dir, err := os.MkdirTemp("", "nightporter-matrix-")
			if err != nil {
				t.Fatal(err)
			}
			folders = append(folders, dir)
			path := filepath.Join(dir, filepath.Base(pkg))
			if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", path, pkg).CombinedOutput(); err != nil {
				t.Fatalf("build %s: %v\n%s", pkg, err, out)
			}
			paths[pkg] = path
		}
		return paths[pkg]
	}
}()

var folders []string // of built

func TestMain(m *testing.M) {
	code := m.Run()
	for _, dir := range folders {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// house is one user's machine: a home, Nightporter's files in it, and all processes that have that home.
type house struct {
	t    *testing.T
	home string
	work string
	env  []string
}

func newHouse(t *testing.T, config string) *house {
	t.Helper()
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		programs.Skip(t, "there is no /proc here, by which tests see what runs")
	}
	// Not a folder named for the test: the path of a socket must be short.
	home, err := os.MkdirTemp("", "nightporter-matrix-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(home, "tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	h := &house{t: t, home: home}
	h.work = filepath.Join(h.home, "work")
	h.env = programs.Env(h.home, "NIGHTPORTER_HOME="+filepath.Join(h.home, "np"))
	h.write(filepath.Join(h.home, "np", "config.toml"), config)
	h.write(filepath.Join(h.home, "token"), token+"\n")
	if err := os.MkdirAll(h.work, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for pid := range h.processes() {
			if process, err := os.FindProcess(pid); err == nil {
				_ = process.Kill() // it may be gone by now
			}
		}
	})
	return h
}

const token = "made-up-token-for-the-matrix"

func (h *house) write(path, text string) {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// processes are those whose environment has this home, by their ids. Those that have ended and were not waited for have none.
func (h *house) processes() map[int]string { return programs.Processes(h.t, h.home, "") }

// gone waits until no process is left, and returns the command lines of those that stay.
func (h *house) gone() (left []string) {
	deadline := time.Now().Add(90 * time.Second)
	for {
		running := h.processes()
		if len(running) == 0 || time.Now().After(deadline) {
			return slices.Collect(maps.Values(running))
		}
		<-time.After(50 * time.Millisecond)
	}
}

var gatewayURL = regexp.MustCompile(`http://127\.0\.0\.1:\d+`)

// gateway starts `nightporter gateway` and returns its URL, and what ends it and waits for its end.
func (h *house) gateway() (url string, end func()) {
	h.t.Helper()
	cmd := exec.Command(built(h.t, "nightporter/cmd/nightporter"), "gateway", "--listen", "127.0.0.1:0", "--token-file", filepath.Join(h.home, "token"))
	cmd.Env, cmd.Dir = h.env, h.work
	stderr, err := cmd.StderrPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	told, over := make(chan string, 1), make(chan struct{})
	var log bytes.Buffer
	go func() {
		defer close(over)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			fmt.Fprintln(&log, lines.Text())
			if base := gatewayURL.FindString(lines.Text()); base != "" && len(told) == 0 {
				told <- base
			}
		}
		_ = cmd.Wait()
	}()
	end = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case <-over:
		case <-time.After(limit):
			h.t.Error("the gateway does not end")
			_ = cmd.Process.Kill()
			<-over
		}
		if h.t.Failed() {
			h.t.Logf("stderr of the gateway:\n%s", &log)
		}
	})
	h.t.Cleanup(end)
	select {
	case url = <-told:
	case <-over:
		h.t.Fatalf("the gateway has ended:\n%s", &log)
	case <-time.After(limit):
		h.t.Fatal("the gateway does not tell its URL")
	}
	return url, end
}

// freePort is a port of loopback that nothing listens on.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port
}

// start starts a server that is no child of Nightporter's, ends it with the test, and waits until it listens.
func start(t *testing.T, port string, env []string, program string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(programs.Env(programs.Home(t)), env...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = cmd.Wait() // it is killed
	}()
	t.Cleanup(func() {
		cancel()
		<-over
		if t.Failed() {
			t.Logf("output of %s:\n%s", program, &log)
		}
	})
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case <-ticker.C:
		case <-over:
			t.Fatalf("%s has ended", program)
		case <-ctx.Done():
			t.Fatalf("nothing listens on port %s", port)
		}
	}
}

// bearer adds the gateway's token to requests.
type bearer struct{}

func (bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	return http.DefaultTransport.RoundTrip(r)
}

func authorised() *http.Client { return &http.Client{Transport: bearer{}} }

// connect opens a session of go-sdk's client that ends with the test.
func connect(ctx context.Context, t *testing.T, transport mcp.Transport, version string, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "go-sdk", Version: "1.8.0"}, o)
	session, err := client.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return session
}

// page compares a page of the documentation with what was measured, or writes it.
func page(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(programs.Root(), "docs", name)
	if os.Getenv("NIGHTPORTER_MATRIX_WRITE") == "1" {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	was, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if string(was) != text {
		t.Errorf("docs/%s says something else than was measured, which is:\n%s\nNIGHTPORTER_MATRIX_WRITE=1 go test ./test/matrix writes it", name, text)
	}
}
