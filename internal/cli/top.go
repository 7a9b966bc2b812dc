package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"nightporter/internal/config"
	"nightporter/internal/live"
	"nightporter/internal/mcp/runtime"
)

type topCmd struct{}

func (*topCmd) Help() string {
	return `The servers of every running Nightporter of this user, and those of the configuration that nobody has;
their calls, and what runs do. Keys are shown at the bottom. It needs a terminal; nightporter status
prints the same once.

Examples:

	nightporter top
	nightporter top --color never`
}

func (c *topCmd) Run(a *app) error {
	if width(a.stdout) == 0 || width(a.stdin) == 0 {
		return usage("nightporter status prints the same once", "top needs a terminal")
	}
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	quiet := *a
	quiet.stderr = io.Discard // a warning would be written over the view
	env := slices.Clone(a.env)
	switch a.flags.Color {
	case "never":
		env = append(env, "NO_COLOR=1")
	case "always":
		env = append(env, "CLICOLOR_FORCE=1")
	}
	_, err = tea.NewProgram(newTop(&topSource{ctx, &quiet, cfg}), tea.WithContext(ctx), tea.WithInput(a.stdin), tea.WithOutput(a.stdout),
		tea.WithEnvironment(env)).Run()
	if errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return err
}

const (
	// topEvery is how often top asks: a person sees what happens, and the answers cost nothing worth to name.
	topEvery = time.Second
	// topRests is how often top looks at what nobody has: catalogs are read for it.
	topRests = 15 * time.Second
)

// topSource is what top asks, as commands of bubbletea, each of which ends by itself. ctx ends with top.
type topSource struct {
	ctx context.Context
	app *app
	cfg *config.Config
}

// topFound is the processes that are there.
type topFound struct {
	processes []live.Process
	err       error
}

func (s *topSource) find() tea.Msg {
	processes, err := live.Find(s.ctx, s.app.dirs.Live())
	return topFound{processes, err}
}

// topResting is the configured servers as they are while nobody has them.
type topResting struct {
	servers []runtime.Status
	err     error
}

func (s *topSource) resting() tea.Msg {
	ctx, done := context.WithTimeout(s.ctx, 10*time.Second)
	defer done()
	servers, err := s.app.resting(ctx, s.cfg)
	return topResting{servers, err}
}

// topAnswer is what a process said of its servers.
type topAnswer struct {
	socket  string // which names the process
	clients []live.Client
	err     error
}

func (s *topSource) ask(p live.Process) tea.Cmd {
	return func() tea.Msg {
		answer := topAnswer{socket: p.Socket}
		answer.err = p.Ask(s.ctx, "GET", "/status", &answer.clients)
		return answer
	}
}

// topEvent is a status event of a process; next waits for the one after it. Without next, there are no more.
type topEvent struct {
	socket string
	event  runtime.Event
	next   tea.Cmd
}

// follow waits for the first event of a process.
func (s *topSource) follow(p live.Process) tea.Cmd {
	return func() tea.Msg {
		body, err := p.Events(s.ctx)
		if err != nil {
			return topEvent{socket: p.Socket}
		}
		decoder := json.NewDecoder(body)
		var next tea.Cmd
		next = func() tea.Msg {
			e := topEvent{socket: p.Socket, next: next}
			if decoder.Decode(&e.event) != nil {
				body.Close()
				return topEvent{socket: p.Socket}
			}
			return e
		}
		return next()
	}
}

// topDone is how something that was asked for by a key ended, for people.
type topDone string

// act starts, stops or restarts a server in a process.
func (s *topSource) act(p live.Process, server, verb string) tea.Cmd {
	return func() tea.Msg {
		if err := p.Ask(s.ctx, "POST", "/servers/"+escaped(server)+"/"+verb, nil); err != nil {
			return topDone(fmt.Sprintf("%s %s: %v", verb, server, err))
		}
		return topDone(fmt.Sprintf("%s %s: done", verb, server))
	}
}

// topText is a text to show in place of the view.
type topText struct {
	title, text string
}

func (s *topSource) logs(p live.Process, server string) tea.Cmd {
	return func() tea.Msg {
		text := ""
		switch err := p.Ask(s.ctx, "GET", "/servers/"+escaped(server)+"/logs", &text); {
		case err != nil:
			text = err.Error()
		case strings.TrimSpace(text) == "":
			text = server + " is not running, or has written nothing to its standard error."
		}
		return topText{"last log of " + server, text}
	}
}

// tools asks a process for a server's tools, or without one what is known of them from the server's catalog.
func (s *topSource) tools(p *live.Process, server string) tea.Cmd {
	return func() tea.Msg {
		var tools []live.Tool
		var err error
		if p != nil {
			err = p.Ask(s.ctx, "GET", "/servers/"+escaped(server)+"/tools", &tools)
		} else {
			err = s.app.saved(s.ctx, s.cfg, func(scope *runtime.Scope) { tools = live.ToolsOf(scope, server) })
		}
		title := plural(len(tools), "tool") + " of " + server
		switch {
		case err != nil:
			return topText{title, err.Error()}
		case len(tools) == 0:
			return topText{title, "No tools are known. They are once the server was started: key s, or nightporter servers start " + server}
		}
		var b strings.Builder
		for _, t := range tools {
			fmt.Fprintf(&b, "%s\n", oneLine(t.Name))
			if t.Description != "" {
				fmt.Fprintf(&b, "    %s\n", oneLine(t.Description))
			}
		}
		return topText{title, b.String()}
	}
}
