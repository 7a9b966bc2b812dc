package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"nightporter/internal/mcp/wire"
	"nightporter/test/lab"
)

// settings say how a product is started and reached. Every text is a template of a [world].
type settings struct {
	Name    string            `json:"name"`
	Program string            `json:"program"` // looked for in -programs, then on PATH; without it the product is left out
	Version []string          `json:"version"` // a command that prints it in its first line
	Files   map[string]string `json:"files"`   // files to write into its folder, from templates beside the settings
	Env     map[string]string `json:"env"`
	Stdio   []string          `json:"stdio"` // the command that speaks MCP on standard input and output
	HTTP    []string          `json:"http"`  // the command that listens on Port
	// URL is the endpoint. One that names .Server is one endpoint for each server, and a list is complete when all are read.
	URL       string `json:"url"`
	TokenFile string `json:"token_file"` // made by the program; holds the bearer token
	Tool      string `json:"tool"`       // how the .Tool of .Server is called there

	folder string // of the settings file
}

// world is what a product is set up with.
type world struct {
	Program string
	Dir     string // the product's own folder, and where it runs
	Port    int
	Servers []server
	Tools   string // a file with the result of tools/list, for canned
	Server  string // one of the servers, where a text is about one
	Tool    string
	Case    string // what is measured, where that needs other settings: sessions, search
}

// server is a stdio server behind a product.
type server struct {
	Name    string   `json:"-"`
	Command string   `json:"command"`
	Args    []string `json:"args,omitempty"`
}

var functions = template.FuncMap{
	"json": func(v any) string { return string(wire.Encode(v)) },
	// argv makes several words of one element of a command.
	"argv": func(s server) string { return strings.Join(append([]string{s.Command}, s.Args...), "\x00") },
	// byName is the mcpServers object of most clients.
	"byName": func(servers []server) map[string]server {
		all := map[string]server{}
		for _, s := range servers {
			all[s.Name] = s
		}
		return all
	},
}

func (w world) fill(text string) (string, error) {
	t, err := template.New("").Funcs(functions).Parse(text)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if err := t.Execute(&b, w); err != nil {
		return "", err
	}
	return b.String(), nil
}

func (w world) argv(words []string) (argv []string, err error) {
	for _, word := range words {
		text, err := w.fill(word)
		if err != nil {
			return nil, err
		}
		argv = append(argv, strings.Split(text, "\x00")...)
	}
	return argv, nil
}

// product is one that can be measured.
type product struct {
	settings
	path    string // of its program
	version string
}

// errMissing says that a product is not installed.
var errMissing = errors.New("not installed")

func (b *bench) product(file string) (*product, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	p := &product{}
	if err := decoder.Decode(&p.settings); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	p.folder = filepath.Dir(file)
	if p.Program != "" {
		if p.path, err = b.find(p.Program); err != nil {
			return nil, err
		}
	}
	if len(p.Version) > 0 {
		argv, err := world{Program: p.path}.argv(p.Version)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		ctx, done := context.WithTimeout(b.ctx, endPatience)
		defer done()
		out, _ := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput() // some exit with a code of their own
		first, _, _ := strings.Cut(string(out), "\n")
		p.version = strings.TrimSpace(first)
	}
	return p, nil
}

// find is the absolute path of a program.
func (b *bench) find(name string) (string, error) {
	path := filepath.Join(b.programs, name)
	if _, err := os.Stat(path); b.programs == "" || err != nil {
		if path, err = exec.LookPath(name); err != nil {
			return "", fmt.Errorf("%s: %w", name, errMissing)
		}
	}
	return filepath.Abs(path)
}

// endpoint is a product that is set up with servers, in a folder that stays over its starts, as a user's would.
type endpoint struct {
	*product
	b     *bench
	world world
	http  bool
}

// setUp makes an endpoint of a product: stdio, or http. which is world.Case.
func (b *bench) setUp(p *product, servers []server, overHTTP bool, which string) (*endpoint, error) {
	dir, err := os.MkdirTemp(b.temporary, p.Name+"-")
	if err != nil {
		return nil, err
	}
	e := &endpoint{product: p, b: b, http: overHTTP, world: world{
		Program: p.path, Dir: dir, Port: freePort(), Servers: servers, Server: servers[0].Name, Tools: b.canned, Case: which,
	}}
	for name, source := range p.Files {
		data, err := os.ReadFile(filepath.Join(p.folder, source))
		if err != nil {
			return nil, err
		}
		text, err := e.world.fill(string(data))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func freePort() int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func (e *endpoint) split() bool { return strings.Contains(e.URL, ".Server") }

// tool is how a server's tool is called.
func (e *endpoint) tool(server, tool string) string {
	w := e.world
	w.Server, w.Tool = server, tool
	name, err := w.fill(e.Tool)
	if err != nil {
		return err.Error()
	}
	return name
}

// live is an endpoint's process with a session to it, or to each of its endpoints.
type live struct {
	e        *endpoint
	cmd      *exec.Cmd
	sessions []session
	up       time.Duration // from the start to a connection; HTTP
	listed   time.Duration // from the start to a complete list
	tools    int
	ended    chan struct{} // closed when an HTTP program has ended
}

func (l *live) pid() int { return l.cmd.Process.Pid }

// connectPatience bounds the time to a complete list: the slowest of the peers starts a hundred servers first.
const connectPatience = 5 * time.Minute

// start starts the endpoint and waits until it lists want tools.
func (e *endpoint) start(want int) (l *live, err error) {
	ctx, done := context.WithTimeout(e.b.ctx, connectPatience)
	defer done()
	words := e.Stdio
	if e.http {
		words = e.HTTP
	}
	argv, err := e.world.argv(words)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = e.world.Dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + e.world.Dir, "TMPDIR=" + e.world.Dir, "LANG=C.UTF-8"}
	for key, value := range e.Env {
		if value, err = e.world.fill(value); err != nil {
			return nil, err
		}
		cmd.Env = append(cmd.Env, key+"="+value)
	}
	l = &live{e: e, cmd: cmd}
	began := time.Now()
	if e.http {
		err = l.openWeb(ctx, began)
	} else {
		var p *pipe
		if p, err = openPipe(cmd); err == nil {
			l.sessions = []session{p}
			err = hello(ctx, p)
		}
	}
	for err == nil {
		// Peers list what has started so far: they are asked again until it is all.
		var tools int
		if tools, err = l.list(ctx); err == nil && tools >= want {
			l.tools, l.listed = tools, time.Since(began)
			return l, nil
		}
		if err == nil {
			err = pause(ctx, 2*time.Millisecond)
		}
	}
	if l.cmd.Process != nil {
		l.close()
	}
	return nil, fmt.Errorf("%s: %w", e.Name, err)
}

func (l *live) list(ctx context.Context) (tools int, err error) {
	for _, s := range l.sessions {
		listed, err := listTools(ctx, s)
		if err != nil {
			return 0, err
		}
		tools += len(listed)
	}
	return tools, nil
}

// openWeb starts a program that listens and opens a session to each of its endpoints.
func (l *live) openWeb(ctx context.Context, began time.Time) error {
	said := &tail{}
	l.cmd.Stdout, l.cmd.Stderr = said, said
	if err := l.cmd.Start(); err != nil {
		return err
	}
	l.ended = make(chan struct{})
	go func() {
		_, _ = l.cmd.Process.Wait()
		close(l.ended)
	}()
	address := fmt.Sprintf("127.0.0.1:%d", l.e.world.Port)
	for {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			l.up = time.Since(began)
			conn.Close()
			break
		}
		select {
		case <-l.ended:
			return fmt.Errorf("it ended: %s", said)
		default:
		}
		if pause(ctx, time.Millisecond) != nil {
			return fmt.Errorf("it does not listen: %s", said)
		}
	}
	servers := l.e.world.Servers[:1]
	if l.e.split() {
		servers = l.e.world.Servers
	}
	client := transport()
	for _, server := range servers {
		s, err := l.e.dial(client, server.Name)
		if err != nil {
			return err
		}
		for {
			if err = hello(ctx, s); err == nil {
				break
			}
			// Some listen before they can be used.
			if pause(ctx, 5*time.Millisecond) != nil {
				return fmt.Errorf("%w; it says: %s", err, said)
			}
		}
		l.sessions = append(l.sessions, s)
	}
	return nil
}

// dial makes a session that is not opened yet.
func (e *endpoint) dial(client *http.Client, server string) (*web, error) {
	w := e.world
	w.Server = server
	url, err := w.fill(e.URL)
	if err != nil {
		return nil, err
	}
	file, err := w.fill(e.TokenFile)
	if err != nil {
		return nil, err
	}
	token, err := readToken(file)
	return &web{client: client, url: url, token: token}, err
}

// close ends the sessions and the process.
func (l *live) close() {
	if !l.e.http {
		for _, s := range l.sessions {
			s.close()
		}
		return
	}
	_ = l.cmd.Process.Signal(os.Interrupt)
	timer := time.NewTimer(endPatience)
	defer timer.Stop()
	select {
	case <-l.ended:
	case <-timer.C:
		_ = l.cmd.Process.Kill()
		<-l.ended
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// labs are servers of test/lab with so many tools each, the first of which are echo and big.
func (b *bench) labs(servers, tools int) (all []server, err error) {
	for i := range servers {
		name := fmt.Sprintf("lab%d", i)
		config := lab.Config{Name: name}
		for j := range tools {
			config.Tools = append(config.Tools, definition(i, j))
		}
		file := filepath.Join(b.temporary, fmt.Sprintf("%s-%d.json", name, tools))
		if err := os.WriteFile(file, []byte(config.Arg()), 0o600); err != nil {
			return nil, err
		}
		path, err := b.find("lab")
		if err != nil {
			return nil, err
		}
		all = append(all, server{Name: name, Command: path, Args: []string{"@" + file}})
	}
	return all, nil
}

// definition is a tool of the size and form that real ones have: some 800 bytes.
func definition(server, n int) json.RawMessage {
	verb, noun := verbs[n%len(verbs)], nouns[(server+n)%len(nouns)]
	name := fmt.Sprintf("%s_%s_%d", verb, strings.ReplaceAll(noun, " ", "_"), n)
	switch n {
	case 0:
		name = "echo"
	case 1:
		name = "big"
	}
	return wire.Encode(map[string]any{
		"name":        name,
		"description": fmt.Sprintf("Use this to %s a %s of the project %d. It takes the %s's id or its full path, and answers with the %s as it is afterwards. It fails when there is none, or when it is locked by somebody else; then say who holds it and ask whether to wait.", verb, noun, server, noun, noun),
		"inputSchema": map[string]any{
			"type": "object", "required": []string{"id"}, "additionalProperties": true,
			"properties": map[string]any{
				"id":     map[string]any{"type": "string", "description": "The id or full path of the " + noun + "."},
				"fields": map[string]any{"type": "array", "items": map[string]any{"type": "string"}, "description": "Which fields to answer with; all of them when left out."},
				"limit":  map[string]any{"type": "integer", "minimum": 1, "maximum": 100, "default": 20, "description": "How many at most."},
			},
		},
		"annotations": map[string]any{"readOnlyHint": n%2 == 0, "destructiveHint": false},
	})
}

var (
	verbs = []string{"get", "list", "create", "update", "delete", "search", "close", "reopen", "move", "copy", "export", "import", "lock", "compare", "summarise", "assign", "review", "merge"}
	nouns = []string{"issue", "pull request", "branch", "file", "folder", "comment", "label", "release", "invoice", "customer", "ticket", "order", "contract", "page", "calendar", "event", "message", "channel", "table", "query", "dashboard", "alert"}
)
