package cli

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"nightporter/internal/config"
	"nightporter/internal/live"
	"nightporter/internal/mcp/gateway"
	"nightporter/internal/mcp/runtime"
)

// endPatience bounds the end of all servers of a process. Each gets 4 s of grace, and all end at the same time.
const endPatience = 15 * time.Second

// log is where what happens beside a command's answer goes.
func (a *app) log() *slog.Logger {
	return slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{
		Level: slog.LevelWarn,
		ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
			if attr.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return attr
		},
	}))
}

type mcpCmd struct {
	grantFlags
	Alone  bool   `help:"Do not join this user's running gateway."`
	Single string `placeholder:"NAME" help:"Serve this server alone, with its tools' names as they are."`

	Exposure *string `enum:"tools,search" placeholder:"HOW" help:"tools: list all. search: list three that find, describe and call them. Default: what the grant or the configuration says."`
}

func (*mcpCmd) Help() string {
	return `A client starts this command as its MCP server. Tools are known from catalogs on disk; a server is
started when one of its tools is first used, and ended with the client. Tools are called server__tool.
When a gateway of this user runs with the same configuration, its servers are used.

Examples:

	nightporter mcp
	nightporter mcp --server github --server files
	nightporter mcp --exposure search
	claude mcp add nightporter -- nightporter mcp`
}

func (c *mcpCmd) Run(a *app) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	var rt *runtime.Runtime // known before anybody asks for the grant
	grant, err := c.grant(cfg, func() *config.Config { return rt.Config() })
	if err != nil {
		return err
	}
	if c.Single != "" {
		if err := checkServers(cfg, []string{c.Single}); err != nil {
			return err
		}
	}
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the current folder: %w", err)
	}
	ctx, _, release := signals(context.Background(), reloadSignal)
	defer release()
	if !c.Alone {
		if joined, err := a.join(ctx, cfg, joining{Dir: dir, Servers: c.Server, Grant: c.Grant, Single: c.Single, Exposure: given(c.Exposure)}); joined {
			return err
		}
	}
	rt, end, err := a.runtime(cfg, live.Record{Kind: "mcp", Name: dir})
	if err != nil {
		return err
	}
	defer end()
	defer a.follow(rt)()
	record, endRecord := a.auditLog(nil)
	defer endRecord()
	e := gateway.New(rt, gateway.Profile{
		Single: c.Single, Grant: grant, Exposure: cmp.Or(gateway.Exposure(given(c.Exposure)), c.exposure(cfg)), Dir: dir, Grace: cfg.Gateway.Grace(), OnCall: recorder(record, ""),
		Approver: a.approver(rt.Config),
	}, thisBuild().Version, a.log())
	err = e.ServeStdio(ctx, a.stdin, a.stdout)
	ending, done := context.WithTimeout(context.Background(), endPatience)
	defer done()
	e.Close(ending)
	if ctx.Err() != nil {
		return nil // a client that ends its server by a signal means no harm
	}
	return err
}
