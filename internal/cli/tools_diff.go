package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"nightporter/internal/config"
	"nightporter/internal/mcp/catalog"
	"nightporter/internal/mcp/pin"
	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/wire"
	"nightporter/internal/run"
)

type toolsDiffCmd struct {
	Servers []string `arg:"" optional:"" name:"server" help:"Servers to compare. Default: all that are enabled."`
	Live    bool     `help:"Start servers with pin = true as well, to compare what they list now."`
	JSON    bool     `name:"json" help:"Print an array of objects."`
}

func (*toolsDiffCmd) Help() string {
	return `A server with pin = true is compared as its catalog on disk has it with what was accepted; another
server is started, and what it lists with its catalog on disk, which is renewed by that. Characters that
cannot be seen, or that turn the direction of writing, are spelled out as \u{202E}, and told of.

Exit code 0 means no difference, 1 differences, 2 that something could not be compared.

Examples:

	nightporter tools diff
	nightporter tools diff github --live
	nightporter tools diff --json`
}

// What a listing is compared with.
const (
	withAccepted = "accepted"
	withSaved    = "saved"
)

// comparison is one server of nightporter tools diff.
type comparison struct {
	Server string   `json:"server"`
	Pinned bool     `json:"pinned"`
	With   string   `json:"compared_with,omitempty"` // accepted or saved; empty when there is neither
	Live   bool     `json:"live"`                    // the server was started and asked
	Tools  pin.Diff `json:"tools"`
	Error  string   `json:"error,omitempty"` // why it could not be compared

	listed int
}

func (c *toolsDiffCmd) Run(a *app) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	if err := checkServers(cfg, c.Servers); err != nil {
		return err
	}
	names := c.Servers
	for i := range cfg.Servers {
		if s := &cfg.Servers[i]; len(c.Servers) == 0 && s.Enabled && s.Problem == nil {
			names = append(names, s.Name)
		}
	}
	ctx, _, release := signals(context.Background())
	defer release()
	list, err := c.compare(ctx, a, cfg, names)
	if err != nil {
		return err
	}
	code := run.ExitOK
	for _, d := range list {
		switch {
		case d.Error != "":
			code = run.ExitUsage
			a.say("%s: %s", d.Server, d.Error)
		case len(d.Tools) > 0:
			code = max(code, 1)
		}
	}
	if err := c.print(a, list); err != nil {
		return err
	}
	if code != run.ExitOK {
		return ended(code)
	}
	return nil
}

// compare compares servers. Those that must be started are started together.
func (c *toolsDiffCmd) compare(ctx context.Context, a *app, cfg *config.Config, names []string) ([]comparison, error) {
	store, err := catalog.Open(a.dirs.Catalogs())
	if err != nil {
		return nil, err
	}
	pins := pin.Open(a.dirs.Pins())
	list := make([]comparison, len(names))
	before := make([][]json.RawMessage, len(names)) // what is compared with, where it is the catalog
	var start []string
	for i, name := range names {
		def, _ := cfg.Server(name)
		d := &list[i]
		*d = comparison{Server: name, Pinned: def.Pin, With: withSaved, Live: !def.Pin || c.Live, Tools: pin.Diff{}}
		saved, err := store.Latest(name)
		if def.Pin {
			d.With = withAccepted
			if _, err := pins.Diff(name, nil); err != nil { // before the start, which accepts what was never seen
				d.missing(err, pin.ErrNone)
				continue
			}
			d.Live = d.Live || errors.Is(err, catalog.ErrNone)
		} else if err != nil {
			d.missing(err, catalog.ErrNone)
			continue
		} else {
			before[i] = saved.Tools
		}
		if d.Live {
			start = append(start, name)
		}
	}
	began := time.Now()
	failed := map[string]error{}
	if len(start) > 0 {
		if failed, err = a.startAll(ctx, cfg, start); err != nil {
			return nil, err
		}
	}
	for i := range list {
		d := &list[i]
		if d.With == "" || d.Error != "" {
			continue
		}
		err := failed[d.Server]
		var now *catalog.Catalog
		if err == nil {
			now, err = listing(store, d.Server, d.Live, began)
		}
		if err == nil && d.Pinned {
			d.Tools, err = pins.Diff(d.Server, now.Tools)
		} else if err == nil {
			d.Tools = pin.Compare(before[i], now.Tools)
		}
		if err != nil {
			d.Error = err.Error()
			continue
		}
		d.listed = len(now.Tools)
	}
	return list, nil
}

// missing records that there is nothing to compare with: because there is none yet, or because of err.
func (d *comparison) missing(err, none error) {
	d.Live = false
	if d.With = ""; !errors.Is(err, none) {
		d.Error = err.Error()
	}
}

// startAll starts servers once, together, so that their catalogs are renewed, and returns which failed.
func (a *app) startAll(ctx context.Context, cfg *config.Config, names []string) (failed map[string]error, err error) {
	failed = map[string]error{}
	var mu sync.Mutex
	err = a.with(ctx, cfg, runtime.Servers(names), func(scope *runtime.Scope) error {
		var wg sync.WaitGroup
		for _, name := range names {
			wg.Go(func() {
				if err := scope.Wake(ctx, name, "comparison of its tools"); err != nil {
					mu.Lock()
					defer mu.Unlock()
					failed[name] = err
				}
			})
		}
		wg.Wait()
		return ctx.Err()
	})
	return failed, err
}

// listing is what a server listed last, and if it was started for it, not before began.
func listing(store *catalog.Store, name string, live bool, began time.Time) (*catalog.Catalog, error) {
	c, err := store.Latest(name)
	switch {
	case live && (errors.Is(err, catalog.ErrNone) || err == nil && c.FetchedAt.Before(began)):
		return nil, errors.New("it was started, and what it lists could not be saved: it does not allow it, or a warning above says why")
	case err != nil:
		return nil, err
	}
	return c, nil
}

func (c *toolsDiffCmd) print(a *app, list []comparison) error {
	if c.JSON {
		var b bytes.Buffer
		if err := writeJSON(&b, list); err != nil {
			return err
		}
		_, err := a.stdout.Write(pin.EscapeJSON(b.Bytes()))
		return err
	}
	for _, d := range list {
		than := "in the saved catalog"
		if d.Pinned {
			than = "accepted"
		}
		switch {
		case d.Error != "":
		case d.With == "" && d.Pinned:
			a.say("%s: no tools are accepted yet: those of its next start will be, or now those of its catalog by nightporter tools accept", d.Server)
		case d.With == "":
			a.say("%s: there is no saved catalog to compare with", d.Server)
		case len(d.Tools) == 0:
			fmt.Fprintf(a.stdout, "%s: its %d tools are as %s\n", oneLine(d.Server), d.listed, than)
		default:
			fmt.Fprintf(a.stdout, "%s: differences from the tools %s: %d\n", oneLine(d.Server), than, len(d.Tools))
			a.printTools(d.Tools)
		}
	}
	return nil
}

// marks are what stands before a tool and its texts.
var marks = map[pin.Kind]string{pin.Added: "+", pin.Removed: "-", pin.Changed: "~"}

// printTools prints a difference for a person. All of it comes from a server, and is escaped.
func (a *app) printTools(tools pin.Diff) {
	for _, t := range tools {
		fmt.Fprintf(a.stdout, "%s %s\n", marks[t.Kind], a.paint(a.stdout, bold, escapedLine(t.Name)))
		for _, warning := range t.Suspicious {
			fmt.Fprintf(a.stdout, "  warning: hidden characters in %s\n", warning)
		}
		if t.Kind == pin.Removed {
			continue // there is nothing to judge in it
		}
		for _, m := range t.Members {
			path := m.Path
			if path == "" {
				path = "the whole definition"
			}
			fmt.Fprintf(a.stdout, "    %s\n", escapedLine(path))
			printTexts(a.stdout, m)
		}
	}
}

// printTexts prints the old and the new text of a member, without the lines at their beginnings and ends that are the same.
func printTexts(w io.Writer, m pin.Member) {
	was, is := textLines(m.Old), textLines(m.New)
	if slices.Equal(was, is) { // the same text, spelled in another way
		was, is = []string{string(m.Old)}, []string{string(m.New)}
	}
	start := 0
	for start < min(len(was), len(is)) && was[start] == is[start] {
		start++
	}
	end := 0
	for end < min(len(was), len(is))-start && was[len(was)-1-end] == is[len(is)-1-end] {
		end++
	}
	same := func(n int) {
		if n > 0 {
			fmt.Fprintf(w, "      (%d lines are the same)\n", n)
		}
	}
	same(start)
	for _, line := range was[start : len(was)-end] {
		fmt.Fprintf(w, "    - %s\n", escapedLine(line))
	}
	for _, line := range is[start : len(is)-end] {
		fmt.Fprintf(w, "    + %s\n", escapedLine(line))
	}
	same(end)
}

// textLines is a value for a person: of a string what it says, of another value its JSON. It is nil of none.
func textLines(raw json.RawMessage) []string {
	if raw == nil {
		return nil
	}
	if text, ok := wire.Text(raw); ok {
		return strings.Split(text, "\n")
	}
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return []string{string(raw)}
	}
	return []string{b.String()}
}

// escapedLine is text of a server on one line, with all that is not seen spelled out.
func escapedLine(text string) string {
	return strings.NewReplacer("\n", `\u{000A}`, "\t", `\u{0009}`).Replace(pin.Escape(text))
}

type toolsAcceptCmd struct {
	Server string   `arg:"" help:"The server's name."`
	Tools  []string `arg:"" optional:"" name:"tool" help:"Tools to accept, by their own names. Default: all, and that those that are gone are gone."`
	Live   bool     `help:"Start the server, and accept what it lists now."`
}

func (*toolsAcceptCmd) Help() string {
	return `Tools of a server with pin = true that are new or have changed are held back until they are accepted here,
as the server's catalog on disk has them. What is accepted is printed; look at it before, with
nightporter tools diff.

Examples:

	nightporter tools accept github
	nightporter tools accept github create_issue`
}

func (c *toolsAcceptCmd) Run(a *app) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	if err := checkServers(cfg, []string{c.Server}); err != nil {
		return err
	}
	if def, _ := cfg.Server(c.Server); !def.Pin {
		return usage("set pin = true for it, and its tools are held back when they change", "no tools of server %s are held back: it is not pinned", c.Server)
	}
	store, err := catalog.Open(a.dirs.Catalogs())
	if err != nil {
		return err
	}
	ctx, _, release := signals(context.Background())
	defer release()
	now, err := c.listing(ctx, a, cfg, store)
	if err != nil {
		return err
	}
	pins := pin.Open(a.dirs.Pins())
	diff, err := pins.Diff(c.Server, now.Tools)
	if errors.Is(err, pin.ErrNone) || errors.Is(err, pin.ErrDamaged) {
		diff, err = pin.Compare(nil, now.Tools), nil
	}
	if err == nil {
		err = pins.Accept(c.Server, now.Tools, c.Tools...)
	}
	var unlisted *pin.UnlistedError
	if errors.As(err, &unlisted) {
		return usage(nearest("tools of "+c.Server, unlisted.Tool, toolNames(now.Tools)), "server %s lists no tool %q", c.Server, unlisted.Tool)
	}
	if err != nil {
		return err
	}
	if len(c.Tools) > 0 {
		diff = slices.DeleteFunc(diff, func(t pin.Tool) bool { return !slices.Contains(c.Tools, t.Name) })
	}
	if len(diff) == 0 {
		a.say("%s: nothing to accept: all is as it was accepted", c.Server)
		return nil
	}
	a.printTools(diff)
	a.say("%s: accepted as printed: %d tools, listed on %s", c.Server, len(diff), now.FetchedAt.Local().Format(time.DateTime))
	running, err := a.running(ctx, cfg)
	for _, p := range running {
		if err := p.Ask(ctx, "POST", "/servers/"+escaped(c.Server)+"/recheck", nil); err != nil {
			a.say("warning: %v; nightporter servers restart %s makes it take this up", err, c.Server)
		}
	}
	return err
}

// listing is what is accepted: the saved catalog, or a new one.
func (c *toolsAcceptCmd) listing(ctx context.Context, a *app, cfg *config.Config, store *catalog.Store) (*catalog.Catalog, error) {
	began := time.Now()
	if !c.Live {
		saved, err := store.Latest(c.Server)
		if !errors.Is(err, catalog.ErrNone) {
			return saved, err
		}
	}
	failed, err := a.startAll(ctx, cfg, []string{c.Server})
	if err == nil {
		err = failed[c.Server]
	}
	if err != nil {
		return nil, err
	}
	return listing(store, c.Server, true, began)
}

// toolNames are the names of definitions, for hints.
func toolNames(tools []json.RawMessage) (names []string) {
	for _, raw := range tools {
		if name, ok := wire.GetString(raw, "name"); ok {
			names = append(names, name)
		}
	}
	return names
}
