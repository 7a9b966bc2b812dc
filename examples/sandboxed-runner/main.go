// Sandboxed-runner is an MCP server that runs commands, each under the sandbox of the very call that asked for it.
//
// It is an example for authors of such servers; README.md explains it. What there is to see:
//
//   - It asks for the sandbox metadata (codex/sandbox-state), and refuses every call that comes without a state or a launcher.
//   - It never enforces anything itself and never looks for a launcher: the one that came with the call runs the
//     command, `LAUNCHER sandbox --sandbox-state-json STATE -- COMMAND…`, or nothing runs.
//   - A job that outlives its call keeps the authority that it was started under. A later call under another one
//     may not use the job, in either direction: not to do more than it may, nor to lend it what it has.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	log.SetFlags(0)
	prefer := flag.String("launcher", "", "use this launcher alone, codex or nightporter; default: Codex's, else Nightporter's")
	flag.Parse()
	if *prefer != "" && *prefer != "codex" && *prefer != "nightporter" {
		log.Fatalf("-launcher takes codex or nightporter, not %q", *prefer)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r := &runner{prefer: *prefer, jobs: map[string]*job{}}
	err := r.server().Run(ctx, exact{&mcp.StdioTransport{}})
	r.end()
	if err != nil && !errors.Is(err, context.Canceled) {
		log.Print(err)
		os.Exit(1)
	}
}

// runTime bounds a command that its caller waits for.
const runTime = 2 * time.Minute

type commandArgs struct {
	Command []string `json:"command" jsonschema:"the program and its arguments; no shell reads them"`
}

type jobArgs struct {
	Job string `json:"job" jsonschema:"the job's name, as start returned it"`
}

type sendArgs struct {
	Job  string `json:"job" jsonschema:"the job's name, as start returned it"`
	Line string `json:"line" jsonschema:"what is written to its standard input, with a line's end"`
}

func (r *runner) server() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "sandboxed-runner", Version: "1"}, &mcp.ServerOptions{
		Instructions: "Runs commands under the sandbox of the call that starts them.",
		Capabilities: &mcp.ServerCapabilities{
			Tools: &mcp.ToolCapabilities{},
			// Either name is enough; this is the newer one.
			Experimental: map[string]any{metaState: struct{}{}},
		},
	})
	mcp.AddTool(s, &mcp.Tool{Name: "run", Description: "Runs a command to its end and returns what it printed."},
		func(ctx context.Context, req *mcp.CallToolRequest, args commandArgs) (*mcp.CallToolResult, any, error) {
			a, err := r.authorityOf(req.Params.Meta)
			if err != nil {
				return nil, nil, err
			}
			ctx, done := context.WithTimeout(ctx, runTime)
			defer done()
			j, err := start(a, args.Command)
			if err != nil {
				return nil, nil, err
			}
			select {
			case <-j.ended:
			case <-ctx.Done():
				j.stop()
			}
			return say("%s", j)
		})
	mcp.AddTool(s, &mcp.Tool{Name: "start", Description: "Starts a command that goes on after the call, and returns the job's name."},
		func(_ context.Context, req *mcp.CallToolRequest, args commandArgs) (*mcp.CallToolResult, any, error) {
			a, err := r.authorityOf(req.Params.Meta)
			if err != nil {
				return nil, nil, err
			}
			name, err := r.start(a, args.Command)
			if err != nil {
				return nil, nil, err
			}
			return say("%s", name)
		})
	mcp.AddTool(s, &mcp.Tool{Name: "send", Description: "Writes a line to a job."},
		func(_ context.Context, req *mcp.CallToolRequest, args sendArgs) (*mcp.CallToolResult, any, error) {
			j, err := r.job(req.Params.Meta, args.Job)
			if err != nil {
				return nil, nil, err
			}
			if err := j.send(args.Line); err != nil {
				return nil, nil, err
			}
			return say("sent")
		})
	mcp.AddTool(s, &mcp.Tool{Name: "status", Description: "Returns what a job printed and whether it has ended."},
		func(_ context.Context, req *mcp.CallToolRequest, args jobArgs) (*mcp.CallToolResult, any, error) {
			j, err := r.job(req.Params.Meta, args.Job)
			if err != nil {
				return nil, nil, err
			}
			return say("%s", j)
		})
	mcp.AddTool(s, &mcp.Tool{Name: "stop", Description: "Ends a job. Whoever may call at all may end one: it takes nothing but rights away."},
		func(_ context.Context, _ *mcp.CallToolRequest, args jobArgs) (*mcp.CallToolResult, any, error) {
			j, err := r.take(args.Job)
			if err != nil {
				return nil, nil, err
			}
			j.stop()
			return say("ended")
		})
	return s
}

func say(format string, args ...any) (*mcp.CallToolResult, any, error) {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}, nil, nil
}
