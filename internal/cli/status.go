package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"time"

	"nightporter/internal/config"
	"nightporter/internal/live"
	"nightporter/internal/mcp/catalog"
	"nightporter/internal/mcp/pin"
	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/wire"
)

type statusCmd struct {
	JSON bool `name:"json" help:"Print one object."`
}

func (*statusCmd) Help() string {
	return `Servers of every running Nightporter of this user, and those of the configuration that do not run.

Examples:

	nightporter status
	nightporter status --json`
}

// serverStatus is one server for one client, or one that nobody has.
type serverStatus struct {
	runtime.Status
	Owner   string `json:"owner,omitempty"`   // the client or run that has it; empty: nobody
	Process int    `json:"process,omitempty"` // the Nightporter that holds it
	alien   bool   // of another configuration, where the name may mean another server
}

// processStatus is one running Nightporter.
type processStatus struct {
	live.Record
	Problem  string         `json:"problem,omitempty"`  // why its servers are not known; empty: they are
	Activity *live.Activity `json:"activity,omitempty"` // of a run
}

type statusReport struct {
	Servers   []serverStatus  `json:"servers"`
	Processes []processStatus `json:"processes"`
}

func (c *statusCmd) Run(a *app) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	report, err := a.status(context.Background(), cfg)
	if err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(a.stdout, report)
	}
	for _, p := range report.Processes {
		problem := ""
		if p.Problem != "" {
			problem = ": " + p.Problem
		}
		fmt.Fprintf(a.stdout, "%s %d %s, since %s%s\n", p.Kind, p.PID, p.Name, p.Started.Local().Format(time.DateTime), problem)
	}
	if len(report.Processes) > 0 {
		fmt.Fprintln(a.stdout)
	}
	t := newTable(a.stdout, "SERVER", "STATE", "TOOLS", "PID", "MEMORY", "FOR", "WHY")
	for _, s := range report.Servers {
		t.row(s.Server, stateWord(s.Status), fmt.Sprint(s.Tools), number(int64(s.PID)), size(s.Memory), orDash(s.Owner), shortened(oneLine(s.Reason)))
	}
	if err := t.flush(); err != nil {
		return err
	}
	for _, s := range report.Servers {
		if s.Sandbox != "" {
			fmt.Fprintf(a.stdout, "%s is confined: %s\n", oneLine(s.Server), oneLine(s.Sandbox))
		}
	}
	told := map[string]bool{} // a server of several clients has the same for each
	for _, s := range report.Servers {
		for _, flaw := range s.Flaws {
			line := oneLine(s.Server + ": " + flaw)
			if told[line] {
				continue
			}
			if len(told) == 0 {
				fmt.Fprintln(a.stdout)
			}
			told[line] = true
			fmt.Fprintln(a.stdout, line)
		}
	}
	return nil
}

// status asks the running processes for their servers, and adds those that nobody has.
func (a *app) status(ctx context.Context, cfg *config.Config) (*statusReport, error) {
	ctx, done := context.WithTimeout(ctx, 10*time.Second)
	defer done()
	report := &statusReport{Servers: []serverStatus{}, Processes: []processStatus{}}
	processes, err := live.Find(ctx, a.dirs.Live())
	if err != nil {
		return nil, err
	}
	held := map[string]bool{}
	for i, answer := range askAll[[]live.Client](ctx, processes, "GET", "/status", nil) {
		p := processStatus{Record: processes[i].Record}
		switch {
		case errors.Is(answer.err, live.ErrMute):
			p.Problem = live.ErrMute.Error()
		case answer.err != nil: // it may have ended meanwhile
			a.say("warning: %v", answer.err)
			continue
		}
		for _, c := range answer.value {
			p.Activity = cmp.Or(p.Activity, c.Activity) // a run is one client
		}
		report.Processes = append(report.Processes, p)
		for _, c := range answer.value {
			for _, s := range c.Servers {
				alien := isAlien(p.Record, cfg)
				held[s.Server] = held[s.Server] || !alien
				report.Servers = append(report.Servers, serverStatus{s, c.Owner, p.PID, alien})
			}
		}
	}
	resting, err := a.resting(ctx, cfg)
	if err != nil {
		return nil, err
	}
	for _, s := range resting {
		if !held[s.Server] {
			report.Servers = append(report.Servers, serverStatus{Status: s})
		}
	}
	return report, nil
}

// answer is what a process said, or why it did not.
type answer[T any] struct {
	value T
	err   error
}

// askAll asks all processes at once, so that one that hangs costs the others nothing, and returns their answers in the order of
// the processes. waiting, which may be nil, is told of those that have not answered after live.Patience.
func askAll[T any](ctx context.Context, processes []live.Process, method, path string, waiting func(live.Process)) []answer[T] {
	answers, answered := make([]answer[T], len(processes)), make(chan int)
	for i, p := range processes {
		go func() {
			answers[i].err = p.Ask(ctx, method, path, &answers[i].value)
			answered <- i
		}()
	}
	patience := time.NewTimer(live.Patience)
	defer patience.Stop()
	for there := map[int]bool{}; len(there) < len(processes); {
		select {
		case i := <-answered:
			there[i] = true
		case <-patience.C:
			for i, p := range processes {
				if !there[i] && waiting != nil {
					waiting(p)
				}
			}
		}
	}
	return answers
}

// resting is what the configured servers are while nobody has them.
func (a *app) resting(ctx context.Context, cfg *config.Config) (list []runtime.Status, err error) {
	err = a.saved(ctx, cfg, func(scope *runtime.Scope) { list = scope.Status() })
	return list, err
}

// saved opens the configured servers as their catalogs have them, for as long as do takes. Nothing is started.
func (a *app) saved(ctx context.Context, cfg *config.Config, do func(*runtime.Scope)) error {
	store, err := catalog.Open(a.dirs.Catalogs())
	if err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the current folder: %w", err)
	}
	rt := runtime.New(runtime.Options{Config: cfg, Catalogs: store, Pins: pin.Open(a.dirs.Pins()), Logins: a.logins(), LookupEnv: a.lookupEnv})
	defer rt.Close(ctx)
	do(rt.Open(ctx, runtime.ScopeOptions{Dir: dir, Owner: nobody{}}))
	return nil
}

// nobody is the owner of servers that a command uses itself.
type nobody struct{}

func (nobody) Notify(string, wire.Message) {}

func (nobody) Ask(_ context.Context, _ string, m wire.Message) ([]byte, *wire.RPCError) {
	return nil, wire.Errorf(wire.CodeMethodNotFound, "%s is not answered here", m.Method)
}

func (nobody) Changed(string, string) {}

// table prints aligned columns.
func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return oneLine(text)
}

func number(n int64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func size(bytes int64) string {
	if bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%d MB", bytes/1e6)
}

// escaped is a server's name as it stands in a path.
func escaped(name string) string { return url.PathEscape(name) }

// isAlien reports whether a process runs under another configuration, whose servers are others also where their names are the same.
func isAlien(r live.Record, cfg *config.Config) bool {
	return r.Config != "" && !sameFile(r.Config, cfg.File)
}

// running finds the processes that run under this configuration.
func (a *app) running(ctx context.Context, cfg *config.Config) ([]live.Process, error) {
	processes, err := live.Find(ctx, a.dirs.Live())
	return slices.DeleteFunc(processes, func(p live.Process) bool { return isAlien(p.Record, cfg) }), err
}
