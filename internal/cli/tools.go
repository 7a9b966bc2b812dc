package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/server"
	"nightporter/internal/mcp/wire"
)

type toolsCmd struct {
	List   toolsListCmd   `cmd:"" help:"List the tools of the configured servers."`
	Search toolsSearchCmd `cmd:"" help:"Find tools by words, in the catalogs on disk."`
	Call   toolsCallCmd   `cmd:"" help:"Call one tool and print what it answers."`
	Diff   toolsDiffCmd   `cmd:"" help:"Show how the tools of servers differ from those saved or accepted."`
	Accept toolsAcceptCmd `cmd:"" help:"Accept the tools of a server with pin = true as they are now."`
}

type toolsListCmd struct {
	grantFlags
	Saved bool `help:"Start nothing: leave out servers without a catalog."`
	JSON  bool `name:"json" help:"Print an array of objects."`
}

func (*toolsListCmd) Help() string {
	return `Tools are known from the catalogs on disk. A server without one is started once to be asked.

Examples:

	nightporter tools list
	nightporter tools list --server github --json
	nightporter tools list --saved`
}

type listedTool struct {
	Server      string          `json:"server"`
	Tool        string          `json:"tool"`
	Description string          `json:"description,omitempty"`
	Definition  json.RawMessage `json:"definition"`
}

func (c *toolsListCmd) Run(a *app) error {
	return c.show(a, c.JSON, func(ctx context.Context, scope *runtime.Scope) error {
		if !c.Saved {
			if err := scope.Start(ctx, 0); err != nil {
				return err
			}
			failed := scope.Settle(ctx)
			for _, name := range scope.Servers() {
				if err := failed[name]; err != nil {
					a.say("warning: %s: %v", name, err)
				}
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		flaws := scope.Flaws()
		for _, name := range slices.Sorted(maps.Keys(flaws)) {
			for _, flaw := range flaws[name] {
				a.say("warning: %s: %s", oneLine(name), oneLine(flaw))
			}
		}
		list := []listedTool{}
		for _, t := range scope.Tools() {
			description, _ := wire.GetString(t.Raw, "description")
			list = append(list, listedTool{t.Server, t.Name, description, t.Raw})
		}
		if c.JSON {
			return writeJSON(a.stdout, list)
		}
		t := newTable(a.stdout, "SERVER", "TOOL", "DESCRIPTION")
		for _, tool := range list {
			t.row(oneLine(tool.Server), oneLine(tool.Tool), shortened(oneLine(tool.Description)))
		}
		return t.flush()
	})
}

// shortened fits a description into a table.
func shortened(text string) string {
	const most = 80
	if r := []rune(text); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return text
}

type toolsCallCmd struct {
	Server    string `arg:"" help:"The server's name."`
	Tool      string `arg:"" help:"The tool's own name."`
	Arguments string `arg:"" optional:"" default:"{}" help:"The arguments, a JSON object. Default: {}."`
	JSON      bool   `name:"json" help:"Print the result as the server gave it."`
}

func (*toolsCallCmd) Help() string {
	return `The server is started for the call and ended after it. Exit code 1 means that the tool reported
an error or could not be called.

Examples:

	nightporter tools call everything echo '{"message": "hello"}'
	nightporter tools call github search '{"q": "mcp"}' --json`
}

func (c *toolsCallCmd) Run(a *app) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	if err := checkServers(cfg, []string{c.Server}); err != nil {
		return err
	}
	if _, err := wire.Members([]byte(c.Arguments)); err != nil {
		return usage(`for example: '{"message": "hello"}'`, "the arguments are not a JSON object: %v", err)
	}
	ctx, _, release := signals(context.Background())
	defer release()
	record, end := a.auditLog(nil)
	defer end()
	return a.once(ctx, cfg, c.Server, func(scope *runtime.Scope) error {
		params := wire.Set(wire.Set(nil, wire.Quote(c.Tool), "name"), json.RawMessage(c.Arguments), "arguments")
		began := time.Now()
		answer, err := scope.CallTool(ctx, c.Server, c.Tool, server.Request{Method: wire.ToolsCall, Params: params})
		recordAnswer(record, began, []byte(c.Arguments), answer, err)
		switch {
		case err != nil:
			return c.failed(scope, err)
		case answer.Error != nil:
			return fmt.Errorf("server %s answered after %v: %w", c.Server, time.Since(began).Round(time.Millisecond), wire.AsRPCError(answer.Error))
		}
		if c.JSON {
			_, err = fmt.Fprintf(a.stdout, "%s\n", answer.Result)
		} else {
			err = c.print(a, answer.Result)
		}
		if err == nil && string(wire.Get(answer.Result, "isError")) == "true" {
			return ended(1)
		}
		return err
	})
}

// failed adds the nearest tool to the error of a name that the server does not have.
func (c *toolsCallCmd) failed(scope *runtime.Scope, err error) error {
	var names []string
	for _, t := range scope.Tools() {
		names = append(names, t.Name)
	}
	if len(names) == 0 || slices.Contains(names, c.Tool) {
		return err
	}
	return &problem{text: err.Error(), hint: nearest("tools of "+c.Server, c.Tool, names), code: 1}
}

// print writes the text of a result, and says what else is in it.
func (c *toolsCallCmd) print(a *app, result json.RawMessage) error {
	contents, err := wire.Elements(wire.Get(result, "content"))
	if err != nil {
		_, err = fmt.Fprintf(a.stdout, "%s\n", result)
		return err
	}
	for _, content := range contents {
		kind, _ := wire.GetString(content, "type")
		text, ok := wire.GetString(content, "text")
		if !ok {
			a.say("left out: %s; --json prints it", strings.TrimSpace(fmt.Sprintf("content of type %s, %d bytes", kind, len(content))))
			continue
		}
		if width(a.stdout) > 0 {
			text = printable(text)
		}
		if _, err := fmt.Fprintln(a.stdout, text); err != nil {
			return err
		}
	}
	return nil
}
