// Package cli is the command line: one file per command, and in each no more than flags, output and exit
// codes.
//
// What a command answers goes to standard output, alone. Everything else goes to standard error: an error is one
// line, lower case, with the prefix "nightporter: ", and a line that says what to do.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/alecthomas/kong"

	"nightporter/internal/agent"
	"nightporter/internal/config"
	"nightporter/internal/dirs"
	"nightporter/internal/run"
)

const name = "nightporter"

// commands is the whole command line. A command is a field here, and a type with a Run method in a file of its own.
type commands struct {
	Config      string      `placeholder:"FILE" help:"Read FILE instead of the user's config.toml."`
	ShowVersion versionFlag `name:"version" help:"Print the version."`
	Color       string      `enum:"auto,always,never" default:"auto" help:"Colours: ${enum}. NO_COLOR is honoured."`

	Run        runCmd        `cmd:"" help:"Put a prompt to an agent and print its reply."`
	Prove      proveCmd      `cmd:"" help:"Show what an agent would reach, without asking a model."`
	MCP        mcpCmd        `cmd:"" name:"mcp" help:"Serve the configured MCP servers as one, on standard input and output."`
	Gateway    gatewayCmd    `cmd:"" help:"Serve the configured MCP servers as one, over HTTP."`
	Status     statusCmd     `cmd:"" help:"Show the servers: what runs, for whom, and why."`
	Top        topCmd        `cmd:"" help:"Watch the servers, calls and runs, and start and stop servers by key."`
	Servers    serversCmd    `cmd:"" help:"List, show, add, remove, start and stop servers."`
	Tools      toolsCmd      `cmd:"" help:"List and call tools."`
	Files      configCmd     `cmd:"" name:"config" help:"Check the configuration, print its schema and its path."`
	Import     importCmd     `cmd:"" help:"Take over the MCP servers of other programs: Claude Code, Codex, Cursor and more."`
	Connect    connectCmd    `cmd:"" help:"Point another program at Nightporter, in place of servers of its own."`
	Disconnect disconnectCmd `cmd:"" help:"Take Nightporter out of another program's file again."`
	demoCommands
	Audit   auditCmd   `cmd:"" help:"Show which tools were called, by whom, and how that ended."`
	Hub     hubCmd     `cmd:"" help:"Serve conversations to many, and runs to hosts; invite hosts, manage keys and profiles."`
	Ask     askCmd     `cmd:"" help:"Send a message to a hub, and wait for its reply."`
	Sandbox sandboxCmd `cmd:"" help:"Run a command under the sandbox state of a tool call."`
	Version versionCmd `cmd:"" help:"Print the version."`
}

// app is what commands work with.
type app struct {
	env    []string
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	dirs   dirs.Dirs
	flags  *commands
}

// Main runs the command that args names and returns its exit code (see package run). env is the whole
// environment; args has no program name.
func Main(args, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{env: env, stdin: stdin, stdout: stdout, stderr: stderr, flags: new(commands)}
	a.dirs = dirs.Find(a.getenv)
	parsed, exited, err := parse(a.flags, args, stdout, stderr)
	switch {
	case exited:
		return run.ExitOK
	case err != nil:
		return a.report(usageOf(err))
	}
	return a.report(parsed.Run(a))
}

// Check says what is wrong with a command line, as Main would, and runs nothing.
func Check(args []string) error {
	_, _, err := parse(new(commands), args, io.Discard, io.Discard)
	return err
}

// parse reads a command line into flags. exited says that it asked for help or the like, and has been answered.
func parse(flags *commands, args []string, stdout, stderr io.Writer) (parsed *kong.Context, exited bool, err error) {
	if one, keep := onlyNamed(flags, args); one != nil {
		if parsed, _, err := parseInto(one, args, io.Discard, io.Discard); err == nil {
			keep()
			return parsed, false, nil
		}
	}
	return parseInto(flags, args, stdout, stderr)
}

func parseInto(grammar any, args []string, stdout, stderr io.Writer) (parsed *kong.Context, exited bool, err error) {
	parser, err := kong.New(grammar,
		kong.Name(name),
		kong.Description("An MCP runtime and a harness for unattended coding agents."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(int) { exited = true }), // --help asks for it, and goes on
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
	)
	if err != nil {
		return nil, false, err
	}
	parsed, err = parser.Parse(args)
	return parsed, exited, err
}

func (a *app) getenv(key string) string { return agent.Getenv(a.env, key) }

// lookupEnv is the environment in the shape of os.LookupEnv.
func (a *app) lookupEnv(key string) (string, bool) { return agent.LookupEnv(a.env, key) }

// loadConfig reads the configuration, and tells what was read differently than it may have been meant.
func (a *app) loadConfig() (*config.Config, error) {
	load := func() (*config.Config, error) { return config.LoadDefault(a.dirs) }
	if file := a.flags.Config; file != "" {
		load = func() (*config.Config, error) { return config.Load(file) }
	}
	c, err := load()
	if err != nil {
		return nil, badConfig(err)
	}
	for i := range c.Warnings {
		a.say("warning: %s", c.Warnings[i].Error())
	}
	return c, nil
}

// badConfig is the error of a configuration that cannot be read.
func badConfig(err error) error {
	var syntax *config.SyntaxError
	if errors.As(err, &syntax) && syntax.Line != "" {
		return &problem{text: fmt.Sprintf("%s: %s", syntax.Pos, syntax.Message), hint: strings.TrimSpace(syntax.Line), code: run.ExitUsage}
	}
	return &problem{text: err.Error(), code: run.ExitUsage}
}

// problem is an error with what to do about it.
type problem struct {
	text string
	hint string // may be empty
	code int
}

func (p *problem) Error() string { return p.text }

// usage is a problem with how a command was written. hint may be empty.
func usage(hint, format string, args ...any) error {
	return &problem{text: fmt.Sprintf(format, args...), hint: hint, code: run.ExitUsage}
}

// usageOf is an error of the parser.
func usageOf(err error) error {
	help := name + " --help"
	var parse *kong.ParseError
	if errors.As(err, &parse) && parse.Context.Selected() != nil {
		help = name + " " + parse.Context.Command() + " --help"
		if i := strings.IndexByte(help, '<'); i >= 0 { // without arguments
			help = help[:i] + "--help"
		}
	}
	return usage("see "+help, "%v", err)
}

// ended is the exit code of a command that has said all there is to say.
type ended int

func (e ended) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// report tells an error and returns the exit code that goes with it.
func (a *app) report(err error) int {
	var (
		done ended
		p    *problem
	)
	switch {
	case err == nil:
		return run.ExitOK
	case errors.As(err, &done):
		return int(done)
	case errors.As(err, &p):
		a.say("%s", p.text)
		if p.hint != "" {
			a.say("hint: %s", p.hint)
		}
		return p.code
	case errors.Is(err, context.Canceled):
		a.say("stopped")
		return run.ExitStopped
	}
	a.say("%v", err)
	return run.ExitFailed
}

// say writes one line to standard error.
func (a *app) say(format string, args ...any) {
	fmt.Fprintf(a.stderr, "%s %s\n", a.paint(a.stderr, dim, name+":"), oneLine(fmt.Sprintf(format, args...)))
}

// oneLine is text without what would break a line or move a terminal's cursor.
func oneLine(text string) string { return printable(strings.Join(strings.Fields(text), " ")) }

// printable is text without control characters other than newline and tab, and without those that turn the
// direction of writing: what an agent wrote must not act on the terminal that shows it.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) {
			return -1
		}
		return r
	}, text)
}

// nearest is a hint for a name that is not known.
func nearest(what, given string, known []string) string {
	if len(known) == 0 {
		return "there are no " + what
	}
	all := fmt.Sprintf("the %s are %s", what, strings.Join(known, ", "))
	if near := config.Nearest(given, known); near != "" {
		return fmt.Sprintf("did you mean %s? %s", near, all)
	}
	return all
}
