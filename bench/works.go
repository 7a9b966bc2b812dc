package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"nightporter/internal/mcp/wire"
)

// bench is one run.
type bench struct {
	ctx       context.Context
	programs  string
	npm       string
	rounds    int
	temporary string // goes with the run
	canned    string // the file that canned answers tools/list with
	machine   machine
	samples   []sample
	notes     []string // what could not be measured, and why
}

// work is one of the things that are measured, by its letter in docs/performance.md.
type work struct {
	letter string
	title  string
	target string // what was to be reached
	how    string
	run    func(*bench) error // nil: measured elsewhere
}

var works = []work{
	{"a", "From the start to a complete list of tools", "at most 3 times canned; HTTP up within 50 ms", "Each server has 10 tools and a catalog. canned is a bare Go program that answers the same list from a file. Time from the start of the process to the last byte of the complete `tools/list`; peers start all servers for it.", (*bench).lists},
	{"b", "A tool call over the direct one", "stdio: median at most 1.3 times direct, 32 callers at least 0.8 of its rate, under 200 µs of Nightporter's own CPU", "One server behind each, already started. CPU is that of the product's own process, without the server's.", (*bench).calls},
	{"c", "Memory", "16 MB with 10 servers; 60 MB with 1,000 servers and 20,000 tools; no child process", "Resident memory after a complete list (idle) and after 2,000 more calls of tools/list and a tool (worked); anonymous is what of that is no file's, such as the program itself.", (*bench).memory},
	{"d", "A thousand sessions at once", "all answered; p99 under 20 times the median", "1,000 sessions over HTTP are opened at once and then all call at the same time, again and again; the server behind is shared.", (*bench).sessions},
	{"e", "The first call to a dormant server", "at most 1.1 times the server's own start and call", "direct is the server's start, initialize, tools/list and call by the bench itself; Nightporter's is the call alone, which wakes the server, in a session that is already open.", (*bench).dormant},
	{"f", "A run over the bare agent", "at most 1.05 times, or 150 ms more", "test/harness by turns, with one server whose tool is called, and without. The model is a server on loopback that answers at once, so that all is overhead.", (*bench).agents},
	{"g", "Reading what agents print", "200 MB/s on one core, memory bounded by the longest line", "The recordings that the adapters are tested with, repeated (to 1 GB in all by nine rounds), through the line reader and the adapter's dialogue, as a run reads them.", (*bench).reader},
	{"h", "A command in the sandbox", "at most what codex sandbox takes", "/bin/true under a state that may write its working directory, without network.", (*bench).sandboxes},
	{"i", "The hub", "claim cost within 1.5 times from 1,000 to 1,000,000 runs kept; 200 runs a second on 8 hosts", "", nil},
	{"j", "Finding a tool among 20,000", "10 ms at the 99th percentile", "nightporter__find_tools over stdio, with 200 servers of 100 tools; queries of one to four words.", (*bench).search},
}

// prepare makes what all works need, and removes it after do.
func (b *bench) prepare(do func() error) (err error) {
	if b.temporary, err = os.MkdirTemp("", "nightporter-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.temporary)) }()
	b.machine = thisMachine()
	b.canned = filepath.Join(b.temporary, "canned.json")
	return do()
}

// all does the works of these letters, or all. One that fails does not keep the others from being done.
func (b *bench) all(only string) (err error) {
	for _, w := range works {
		if w.run == nil || only != "" && !slices.Contains(strings.Split(only, ","), w.letter) {
			continue
		}
		began := time.Now()
		if failed := w.run(b); failed != nil {
			b.note("(%s) %s failed: %v", w.letter, w.title, failed)
			err = errors.Join(err, fmt.Errorf("(%s) %s: %w", w.letter, w.title, failed))
		}
		fmt.Fprintf(os.Stderr, "(%s) %s: %.0f s, load %s\n", w.letter, w.title, time.Since(began).Seconds(), loadAverage())
	}
	return err
}

func (b *bench) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	fmt.Fprintln(os.Stderr, "bench:", text)
	b.notes = append(b.notes, text)
}

// installed are the products of these names that are there.
func (b *bench) installed(names ...string) (all []*product, err error) {
	for _, name := range names {
		p, err := b.product(filepath.Join(sourceFolder(), "products", name+".json"))
		switch {
		case errors.Is(err, errMissing) && name != "nightporter" && name != "canned":
			if !slices.ContainsFunc(b.notes, func(n string) bool { return strings.HasPrefix(n, name+" ") }) {
				b.note("%s is not installed", name)
			}
		case err != nil:
			return nil, err
		default:
			all = append(all, p)
		}
	}
	return all, nil
}

// sourceFolder is where this program's sources are, and the settings beside them.
func sourceFolder() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(file)
}

// inTurns calls each of turns by turns, the first one another each time, as often as there are rounds. What fails three times is left out, with a note.
func (b *bench) inTurns(turns []turn) error {
	failed := map[string]int{}
	for round := range b.rounds {
		for i := range turns {
			t := turns[(i+round)%len(turns)]
			if failed[t.product.Name] >= 3 {
				continue
			}
			if err := t.do(round); err != nil {
				if b.ctx.Err() != nil || t.product.Name == "nightporter" {
					return err
				}
				if failed[t.product.Name]++; failed[t.product.Name] == 3 {
					b.note("%s failed: %v", t.product.Name, err)
				}
			}
		}
	}
	return nil
}

// turn is one product's share of a round.
type turn struct {
	product *product
	do      func(round int) error
}

var peers = []string{"tbxark", "gridctl"}

// lists is work a. Peers start a node server or a lab for each server: with a hundred they are not waited for.
func (b *bench) lists() error {
	for _, n := range []int{10, 100} {
		servers, err := b.labs(n, 10)
		if err != nil {
			return err
		}
		for _, overHTTP := range []bool{false, true} {
			names := []string{"canned", "nightporter"}
			if n == 10 && overHTTP {
				names = append(names, peers...)
			}
			about := fmt.Sprintf("a. %d servers, %s", n, transportName(overHTTP))
			if err := b.listsOf(about, servers, 10*n, overHTTP, names); err != nil {
				return err
			}
		}
	}
	everything := filepath.Join(b.npm, "@modelcontextprotocol", "server-everything", "dist", "index.js")
	if _, err := os.Stat(everything); err != nil {
		b.note("server-everything is not installed: run npm ci --ignore-scripts in test/npm")
		return nil
	}
	// The real ones, as facts of a user's life; few rounds, since peers start ten node processes in each.
	rounds := b.rounds
	b.rounds = min(3, rounds)
	defer func() { b.rounds = rounds }()
	var real []server
	everything, _ = filepath.Abs(everything)
	for i := range 10 {
		real = append(real, server{Name: fmt.Sprintf("every%d", i), Command: "node", Args: []string{everything}})
	}
	direct, err := b.installed("direct")
	if err != nil {
		return err
	}
	one, err := b.setUp(direct[0], real[:1], false, "")
	if err != nil {
		return err
	}
	l, err := one.start(1)
	if err != nil {
		return err
	}
	l.close()
	return b.listsOf("a. 10 server-everything (node), HTTP", real, 10*l.tools, true, append([]string{"canned", "nightporter"}, peers...))
}

func transportName(overHTTP bool) string {
	if overHTTP {
		return "HTTP"
	}
	return "stdio"
}

func (b *bench) listsOf(about string, servers []server, want int, overHTTP bool, names []string) error {
	products, err := b.installed(names...)
	if err != nil {
		return err
	}
	var turns []turn
	slices.SortStableFunc(products, func(x, y *product) int { return boolInt(x.Name != "nightporter") - boolInt(y.Name != "nightporter") })
	for _, p := range products { // Nightporter first: what it lists is what canned answers with
		e, err := b.setUp(p, servers, overHTTP, "")
		if err != nil {
			return err
		}
		warm, err := e.start(want)
		if err != nil {
			if p.Name == "nightporter" {
				return err
			}
			b.note("%s: %v", about, err)
			continue
		}
		if p.Name == "nightporter" {
			err = b.keepList(warm)
		}
		warm.close()
		if err != nil {
			return err
		}
		turns = append(turns, turn{p, func(round int) error {
			l, err := e.start(want)
			if err != nil {
				return err
			}
			defer l.close()
			b.sample(about, p, "listed", "ms", round, milliseconds(l.listed))
			if overHTTP {
				b.sample(about, p, "up", "ms", round, milliseconds(l.up))
			}
			b.sample(about, p, "processes below", "", round, float64(descendants(l.pid())))
			return nil
		}})
	}
	return b.inTurns(turns)
}

func boolInt(is bool) int {
	if is {
		return 1
	}
	return 0
}

// keepList saves what tools/list answers, for canned.
func (b *bench) keepList(l *live) error {
	tools, err := listTools(b.ctx, l.sessions[0])
	if err != nil {
		return err
	}
	return os.WriteFile(b.canned, wire.Encode(map[string]any{"tools": tools}), 0o600)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

const (
	callsInTurn = 400     // of one caller, in a turn
	callers     = 32      //
	manyCalls   = 1600    // of all callers together, in a turn
	largeCalls  = 20      // with a result of largeResult, in a turn
	largeResult = 1 << 20 // bytes
)

// calls is work b.
func (b *bench) calls() error {
	servers, err := b.labs(1, 10)
	if err != nil {
		return err
	}
	type kind struct {
		name string
		http bool
	}
	kinds := []kind{{"direct", false}, {"nightporter", false}, {"nightporter", true}}
	for _, peer := range peers {
		kinds = append(kinds, kind{peer, true})
	}
	var turns []turn
	for _, k := range kinds {
		products, err := b.installed(k.name)
		if err != nil {
			return err
		}
		for _, p := range products {
			e, err := b.setUp(p, servers, k.http, "")
			if err != nil {
				return err
			}
			l, err := e.start(10)
			if err != nil {
				if k.name == "nightporter" {
					return err
				}
				b.note("b: %v", err)
				continue
			}
			defer l.close()
			if _, err := callTool(b.ctx, l.sessions[0], e.tool(servers[0].Name, "echo"), json.RawMessage(`{"id":"1"}`)); err != nil {
				return err
			}
			as := *p
			if k.name != "direct" {
				as.Name += " " + transportName(k.http)
			}
			turns = append(turns, turn{p, func(round int) error { return b.callsOf(&as, l, round) }})
		}
	}
	return b.inTurns(turns)
}

func (b *bench) callsOf(p *product, l *live, round int) error {
	s, echo, big := l.sessions[0], l.e.tool("lab0", "echo"), l.e.tool("lab0", "big")
	arguments := json.RawMessage(`{"id":"group/project#4711","fields":["title","state"],"limit":20}`)
	before, err := usageOf(l.pid())
	if err != nil {
		return err
	}
	times, _, err := together(b.ctx, 1, callsInTurn, func(int) error {
		_, err := callTool(b.ctx, s, echo, arguments)
		return err
	})
	if err != nil {
		return err
	}
	after, err := usageOf(l.pid())
	if err != nil {
		return err
	}
	b.sample("b. one caller", p, "median", "ms", round, quantile(times, 0.5))
	b.sample("b. one caller", p, "p99", "ms", round, quantile(times, 0.99))
	b.sample("b. one caller", p, "CPU a call", "µs", round, float64((after.cpu-before.cpu).Microseconds())/callsInTurn)
	times, took, err := together(b.ctx, callers, manyCalls, func(int) error {
		_, err := callTool(b.ctx, s, echo, arguments)
		return err
	})
	if err != nil {
		return err
	}
	b.sample("b. 32 callers", p, "calls a second", "/s", round, manyCalls/took.Seconds())
	b.sample("b. 32 callers", p, "median", "ms", round, quantile(times, 0.5))
	b.sample("b. 32 callers", p, "p99", "ms", round, quantile(times, 0.99))
	last, err := usageOf(l.pid())
	if err != nil {
		return err
	}
	b.sample("b. 32 callers", p, "CPU a call", "µs", round, float64((last.cpu-after.cpu).Microseconds())/manyCalls)
	large := wire.Encode(map[string]int{"bytes": largeResult})
	times, _, err = together(b.ctx, 1, largeCalls, func(int) error {
		_, err := callTool(b.ctx, s, big, large)
		return err
	})
	if err != nil {
		return err
	}
	b.sample("b. 1 MB results", p, "median", "ms", round, quantile(times, 0.5))
	return nil
}

// together makes n calls by so many callers, and returns how long each took in ms, sorted, and all together.
func together(ctx context.Context, callers, n int, call func(i int) error) (times []float64, took time.Duration, err error) {
	times = make([]float64, n)
	next := make(chan int)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for i := range next {
				began := time.Now()
				if err := call(i); err != nil {
					cancel(err)
					return
				}
				times[i] = milliseconds(time.Since(began))
			}
		})
	}
	began := time.Now()
feed:
	for i := range n {
		select {
		case next <- i:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	wg.Wait()
	took = time.Since(began)
	if err := context.Cause(ctx); err != nil {
		return nil, 0, err
	}
	slices.Sort(times)
	return times, took, nil
}

// quantile is of sorted times.
func quantile(times []float64, q float64) float64 {
	return times[min(int(q*float64(len(times))), len(times)-1)]
}

// memory is work c.
func (b *bench) memory() error {
	for _, size := range []struct{ servers, tools int }{{10, 10}, {100, 10}, {1000, 20}} {
		servers, err := b.labs(size.servers, size.tools)
		if err != nil {
			return err
		}
		want := size.servers * size.tools
		about := fmt.Sprintf("c. %d servers, %d tools", size.servers, want)
		products, err := b.installed("nightporter")
		if err != nil {
			return err
		}
		for _, overHTTP := range []bool{false, true} {
			if overHTTP && size.servers == 1000 {
				continue // whose first start is a thousand more, and stdio shows what they take
			}
			e, err := b.setUp(products[0], servers, overHTTP, "")
			if err != nil {
				return err
			}
			warm, err := e.start(want)
			if err != nil {
				return err
			}
			warm.close()
			as := *products[0]
			as.Name += " " + transportName(overHTTP)
			for round := range min(3, b.rounds) {
				if err := b.memoryOf(about, &as, e, want, round); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (b *bench) memoryOf(about string, p *product, e *endpoint, want, round int) error {
	l, err := e.start(want)
	if err != nil {
		return err
	}
	defer l.close()
	idle, err := usageOf(l.pid())
	if err != nil {
		return err
	}
	b.sample(about, p, "idle", "MB", round, idle.rss)
	b.sample(about, p, "idle, anonymous", "MB", round, idle.anon)
	b.sample(about, p, "processes below", "", round, float64(descendants(l.pid())))
	echo := e.tool("lab0", "echo")
	lists := min(200, 40000/want) // of a list of 20,000 tools two are enough
	if _, _, err = together(b.ctx, 4, lists, func(int) error { _, err := l.list(b.ctx); return err }); err != nil {
		return err
	}
	if _, _, err = together(b.ctx, callers, 2000, func(int) error {
		_, err := callTool(b.ctx, l.sessions[0], echo, json.RawMessage(`{"id":"1"}`))
		return err
	}); err != nil {
		return err
	}
	worked, err := usageOf(l.pid())
	if err != nil {
		return err
	}
	b.sample(about, p, "worked", "MB", round, worked.rss)
	b.sample(about, p, "threads", "", round, float64(worked.threads))
	return nil
}

// crowd is how many sessions work d opens.
const crowd = 1000

// sessions is work d.
func (b *bench) sessions() error {
	servers, err := b.labs(10, 10)
	if err != nil {
		return err
	}
	products, err := b.installed("nightporter")
	if err != nil {
		return err
	}
	p := products[0]
	e, err := b.setUp(p, servers, true, "sessions")
	if err != nil {
		return err
	}
	l, err := e.start(100)
	if err != nil {
		return err
	}
	defer l.close()
	about := "d. 1,000 sessions"
	client := transport()
	for round := range min(3, b.rounds) {
		before, err := usageOf(l.pid())
		if err != nil {
			return err
		}
		all := make([]*web, crowd-1) // the first one is open
		for i := range all {
			if all[i], err = e.dial(client, "lab0"); err != nil {
				return err
			}
		}
		answered := 0
		for _, step := range []struct {
			name string
			n    int
			do   func(s *web) error
		}{
			{"open", 1, func(s *web) error { return hello(b.ctx, s) }},
			{"list", 2, func(s *web) error { _, err := listTools(b.ctx, s); return err }},
			{"call", 5, func(s *web) error {
				_, err := callTool(b.ctx, s, e.tool("lab0", "echo"), json.RawMessage(`{"id":"1"}`))
				return err
			}},
		} {
			times, _, err := together(b.ctx, len(all), step.n*len(all), func(i int) error { return step.do(all[i%len(all)]) })
			if err != nil {
				return fmt.Errorf("%s: %w", step.name, err)
			}
			answered += len(times)
			b.sample(about, p, step.name+", median", "ms", round, quantile(times, 0.5))
			b.sample(about, p, step.name+", p99", "ms", round, quantile(times, 0.99))
			b.sample(about, p, step.name+", p99 over median", "", round, quantile(times, 0.99)/quantile(times, 0.5))
		}
		after, err := usageOf(l.pid())
		if err != nil {
			return err
		}
		b.sample(about, p, "answered", "", round, float64(answered)/float64(8*len(all)))
		b.sample(about, p, "memory a session", "KB", round, (after.rss-before.rss)*1024/crowd)
		b.sample(about, p, "resident", "MB", round, after.rss)
		for _, s := range all {
			s.close()
		}
	}
	return nil
}

// dormant is work e.
func (b *bench) dormant() error {
	kinds := []struct {
		name string
		of   func() (server, error)
		call func(e *endpoint) (string, json.RawMessage)
	}{
		{"lab", func() (server, error) {
			all, err := b.labs(1, 10)
			if err != nil {
				return server{}, err
			}
			return all[0], nil
		}, func(e *endpoint) (string, json.RawMessage) {
			return e.tool("lab0", "echo"), json.RawMessage(`{"id":"1"}`)
		}},
		{"server-everything (node)", func() (server, error) {
			file, err := filepath.Abs(filepath.Join(b.npm, "@modelcontextprotocol", "server-everything", "dist", "index.js"))
			if err == nil {
				_, err = os.Stat(file)
			}
			return server{Name: "every", Command: "node", Args: []string{file}}, err
		}, func(e *endpoint) (string, json.RawMessage) {
			return e.tool("every", "echo"), json.RawMessage(`{"message":"1"}`)
		}},
	}
	for _, k := range kinds {
		s, err := k.of()
		if err != nil {
			b.note("e: %s: %v", k.name, err)
			continue
		}
		about := "e. " + k.name
		products, err := b.installed("direct", "nightporter")
		if err != nil {
			return err
		}
		var turns []turn
		for _, p := range products {
			e, err := b.setUp(p, []server{s}, false, "")
			if err != nil {
				return err
			}
			warm, err := e.start(1)
			if err != nil {
				return err
			}
			warm.close()
			tool, arguments := k.call(e)
			turns = append(turns, turn{p, func(round int) error {
				l, err := e.start(1)
				if err != nil {
					return err
				}
				defer l.close()
				began := time.Now()
				if _, err := callTool(b.ctx, l.sessions[0], tool, arguments); err != nil {
					return err
				}
				took := time.Since(began)
				if p.Name == "direct" {
					took += l.listed
				}
				b.sample(about, p, "start and call", "ms", round, milliseconds(took))
				return nil
			}})
		}
		if err := b.inTurns(turns); err != nil {
			return err
		}
	}
	return nil
}

// sandboxes is work h.
func (b *bench) sandboxes() error {
	nightporter, err := b.find("nightporter")
	if err != nil {
		return err
	}
	dir := filepath.Join(b.temporary, "sandbox")
	for _, name := range []string{"codex", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			return err
		}
	}
	state := wire.Encode(map[string]any{"permissionProfile": map[string]any{
		"type": "managed", "network": "restricted",
		"file_system": map[string]any{"type": "restricted", "entries": []any{
			map[string]any{"path": map[string]any{"type": "special", "value": map[string]any{"kind": "root"}}, "access": "read"},
			map[string]any{"path": map[string]any{"type": "path", "path": dir}, "access": "write"},
		}},
	}, "sandboxCwd": "file://" + dir})
	commands := map[string][]string{
		"bare":        {"/bin/true"},
		"nightporter": {nightporter, "sandbox", "--sandbox-state-json", string(state), "--", "/bin/true"},
	}
	codex := filepath.Join(b.npm, "codex-0.171.0", "node_modules", "@openai", "codex-linux-x64", "vendor", "x86_64-unknown-linux-musl", "bin", "codex")
	if _, err := os.Stat(codex); err == nil {
		codex, _ = filepath.Abs(codex)
		commands["codex sandbox"] = []string{codex, "sandbox", "-c", `sandbox_mode="workspace-write"`, "--", "/bin/true"}
	} else {
		b.note("codex is not installed: run npm ci --ignore-scripts in test/npm")
	}
	var turns []turn
	for _, name := range []string{"bare", "nightporter", "codex sandbox"} {
		argv, is := commands[name]
		if !is {
			continue
		}
		p := &product{settings: settings{Name: name}}
		turns = append(turns, turn{p, func(round int) error {
			var fastest time.Duration
			for range 3 {
				cmd := exec.CommandContext(b.ctx, argv[0], argv[1:]...)
				cmd.Dir = dir
				// Codex wants no home in the folder for temporary files.
				cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + filepath.Join(dir, "tmp"), "CODEX_HOME=" + filepath.Join(dir, "codex"), "NIGHTPORTER_HOME=" + dir}
				began := time.Now()
				if out, err := cmd.CombinedOutput(); err != nil {
					return fmt.Errorf("%s: %w: %s", name, err, out)
				}
				if took := time.Since(began); fastest == 0 || took < fastest {
					fastest = took
				}
			}
			b.sample("h. /bin/true", p, "from start to end", "ms", round, milliseconds(fastest))
			return nil
		}})
	}
	return b.inTurns(turns)
}

// search is work j.
func (b *bench) search() error {
	servers, err := b.labs(200, 100)
	if err != nil {
		return err
	}
	products, err := b.installed("nightporter")
	if err != nil {
		return err
	}
	p := products[0]
	e, err := b.setUp(p, servers, false, "search")
	if err != nil {
		return err
	}
	l, err := e.start(3)
	if err != nil {
		return err
	}
	defer l.close()
	find := func(words string) (string, error) {
		result, err := callTool(b.ctx, l.sessions[0], "nightporter__find_tools", wire.Encode(map[string]string{"query": words}))
		return string(result), err
	}
	// Until all servers are known, which starts each of them once.
	for {
		answer, err := find("")
		if err != nil {
			return err
		}
		if strings.Contains(answer, "20000 tools") {
			break
		}
		if err := pause(b.ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	began := time.Now()
	if _, err := find("create an issue"); err != nil { // which makes the index
		return err
	}
	b.sample("j. 20,000 tools", p, "the first, with the index", "ms", 0, milliseconds(time.Since(began)))
	queries := []string{"create an issue", "merge pull request", "list invoices of a customer", "export dashboard", "who holds the lock", "calendar", "copy file to another folder", "close ticket"}
	for round := range min(5, b.rounds) {
		times, _, err := together(b.ctx, 1, 50*len(queries), func(i int) error {
			_, err := find(queries[i%len(queries)])
			return err
		})
		if err != nil {
			return err
		}
		b.sample("j. 20,000 tools", p, "median", "ms", round, quantile(times, 0.5))
		b.sample("j. 20,000 tools", p, "p99", "ms", round, quantile(times, 0.99))
	}
	return nil
}

// measure is the command bench measure.
func (b *bench) measure(files []string, n int) error {
	if len(files) == 0 {
		return errors.New("bench measure: give settings files, such as bench/products/nightporter.json")
	}
	servers, err := b.labs(n, 10)
	if err != nil {
		return err
	}
	for _, file := range files {
		p, err := b.product(file)
		if err != nil {
			return err
		}
		if p.Stdio == nil && p.HTTP == nil {
			return fmt.Errorf("%s: it has neither stdio nor http", file)
		}
		e, err := b.setUp(p, servers, p.Stdio == nil, "")
		if err != nil {
			return err
		}
		want := 10 * n
		if p.Name == "direct" {
			want = 10
		}
		warm, err := e.start(want)
		if err != nil {
			return err
		}
		warm.close()
		l, err := e.start(want)
		if err != nil {
			return err
		}
		figures, err := b.line(l)
		l.close()
		if err != nil {
			return err
		}
		fmt.Println(figures)
	}
	return nil
}

// line is one endpoint's figures.
func (b *bench) line(l *live) (string, error) {
	idle, err := usageOf(l.pid())
	if err != nil {
		return "", err
	}
	below := descendants(l.pid())
	if _, err := callTool(b.ctx, l.sessions[0], l.e.tool("lab0", "echo"), json.RawMessage(`{"id":"1"}`)); err != nil {
		return "", err
	}
	from := len(b.samples)
	if err := b.callsOf(l.e.product, l, 0); err != nil {
		return "", err
	}
	worked, err := usageOf(l.pid())
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("%s (%s) %s: listed %.0f ms, %d tools, idle %.1f MB, worked %.1f MB, %d processes below",
		l.e.Name, l.e.version, transportName(l.e.http), milliseconds(l.listed), l.tools, idle.rss, worked.rss, below)
	for _, s := range b.samples[from:] {
		text += fmt.Sprintf(", %s %s %.4g%s", strings.TrimPrefix(s.About, "b. "), s.Figure, s.Value, s.Unit)
	}
	return text + fmt.Sprintf("; run %s, load %s", b.machine.Run, loadAverage()), nil
}
