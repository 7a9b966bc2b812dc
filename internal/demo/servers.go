package demo

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"nightporter/internal/lines"
	"nightporter/internal/mcp/wire"
)

// ServerCommand is the word after the executable's name that runs [Serve]; a server's name follows it.
const ServerCommand = "demo-server"

// maxFrame bounds one frame: what these servers are sent is small.
const maxFrame = 1 << 20

// tool is a tool of an embedded server. do returns its text, or an error that the caller is told of.
type tool struct {
	name, description string
	param             string // the one text that it takes; empty: none
	do                func(text string) (string, error)
}

// crashStatus is the exit status of clock's process after its tool crash.
const crashStatus = 7

// servers are the embedded MCP servers. What they hold lives as long as their process.
var servers = map[string]func() []tool{
	"clock": func() []tool {
		return []tool{
			{"now", "The time of day.", "", func(string) (string, error) {
				return fmt.Sprintf("%s, told by process %d", time.Now().Format(time.TimeOnly), os.Getpid()), nil
			}},
			{"crash", "Ends this server's process, as a bug would.", "", func(string) (string, error) {
				fmt.Fprintln(os.Stderr, "clock: out of cogs")
				os.Exit(crashStatus)
				return "", nil
			}},
		}
	},
	"mail": func() []tool {
		return []tool{{"send", "Pretends to send a mail.", "text", func(string) (string, error) { return "pretended", nil }}}
	},
	"notes": func() []tool {
		notes := []string{"buy milk"}
		return []tool{
			{"add", "Adds a note.", "text", func(text string) (string, error) {
				if text == "" {
					return "", fmt.Errorf("a note needs a text")
				}
				notes = append(notes, text)
				return fmt.Sprintf("%d notes", len(notes)), nil
			}},
			{"list", "Lists the notes.", "", func(string) (string, error) { return strings.Join(notes, "; "), nil }},
			{"delete", "Deletes all notes.", "", func(string) (string, error) {
				notes = nil
				return "no notes", nil
			}},
		}
	},
}

// Serve is the program of an embedded server: MCP over stdio, in the session era, until its input ends.
func Serve(name string, in io.Reader, out io.Writer) error {
	open, ok := servers[name]
	if !ok {
		return fmt.Errorf("there is no embedded server %q", name)
	}
	tools := open()
	for frames := lines.NewReader(in, maxFrame); ; {
		line, dropped, err := frames.Next()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case dropped:
			return fmt.Errorf("a frame of more than %d bytes", maxFrame)
		}
		m, err := wire.Parse(line)
		if err != nil || !m.IsRequest() {
			continue
		}
		answer := wire.Message{ID: m.ID}
		result, rpcErr := respond(name, tools, m)
		if rpcErr != nil {
			answer.Error = rpcErr.Raw()
		} else {
			answer.Result = wire.Encode(result)
		}
		if _, err := out.Write(append(answer.Append(nil), '\n')); err != nil {
			return err
		}
	}
}

// object is a JSON object.
type object = map[string]any

func respond(name string, tools []tool, m wire.Message) (object, *wire.RPCError) {
	switch m.Method {
	case wire.Initialize:
		version, _ := wire.GetString(m.Params, "protocolVersion")
		if !slices.Contains(wire.SessionVersions, version) {
			version = wire.Latest
		}
		return object{
			"protocolVersion": version, "capabilities": object{"tools": object{}},
			"serverInfo": object{"name": "nightporter-demo-" + name, "version": "1"},
		}, nil
	case wire.Ping:
		return object{}, nil
	case wire.ToolsList:
		list := []object{}
		for _, t := range tools {
			list = append(list, t.definition())
		}
		return object{"tools": list}, nil
	case wire.ToolsCall:
		called, _ := wire.GetString(m.Params, "name")
		i := slices.IndexFunc(tools, func(t tool) bool { return t.name == called })
		if i < 0 {
			return nil, wire.Errorf(wire.CodeInvalidParams, "unknown tool %q", called)
		}
		text, _ := wire.GetString(m.Params, "arguments", "text")
		said, err := tools[i].do(text)
		if err != nil {
			said = err.Error()
		}
		return object{"content": []object{{"type": "text", "text": said}}, "isError": err != nil}, nil
	}
	return nil, wire.Errorf(wire.CodeMethodNotFound, "method %q is not known here", m.Method)
}

func (t tool) definition() object {
	properties, required := object{}, []string{}
	if t.param != "" {
		properties[t.param], required = object{"type": "string"}, []string{t.param}
	}
	return object{
		"name": t.name, "description": t.description,
		"inputSchema": object{"type": "object", "properties": properties, "required": required},
	}
}

// definition is the server's table in a config.toml. JSON strings are TOML strings.
func definition(program, name string) string {
	text := func(s string) string { return string(wire.Quote(s)) }
	return fmt.Sprintf("[mcp_servers.%s]\ncommand = %s\nargs = [%s, %s]\n", name, text(program), text(ServerCommand), text(name))
}
