package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"nightporter/internal/config"
	"nightporter/internal/live"
	"nightporter/internal/mcp/access"
	"nightporter/internal/mcp/front"
	"nightporter/internal/mcp/gateway"
	"nightporter/internal/mcp/runtime"
	"nightporter/internal/safefile"
	"nightporter/internal/secret"
)

type gatewayCmd struct {
	Serve  gatewayServeCmd  `cmd:"" default:"withargs" help:"Serve; what the command does without a word after it."`
	Tokens gatewayTokensCmd `cmd:"" help:"Add, list and revoke tokens of clients."`
}

func (*gatewayCmd) Help() string {
	return (*gatewayServeCmd)(nil).Help() + `

It takes --server, --grant, --listen, --token-file and --insecure: see nightporter gateway serve --help.`
}

type gatewayServeCmd struct {
	grantFlags
	Listen    string `placeholder:"ADDR" help:"Listen on this address. Default: gateway.listen of the configuration, else 127.0.0.1:8722."`
	TokenFile string `placeholder:"FILE" help:"The file that holds your own bearer token; made when there is none. Default: gateway.token_file, else a file in the state folder."`
	Insecure  bool   `help:"Listen without TLS on an address that other machines reach, as behind a proxy that speaks it."`
}

func (*gatewayServeCmd) Help() string {
	return `Clients connect to /mcp, where the tools of all servers are called server__tool, or to /mcp/NAME,
where one server's names are as they are. Each needs a bearer token: yours, which the gateway says where
to find, or one of those that nightporter gateway tokens add makes for others.

SIGTERM and SIGINT end it: calls in flight are answered first, for gateway.drain_sec at most. A second
signal ends it at once.

Examples:

	nightporter gateway
	nightporter gateway --listen 127.0.0.1:9000 --token-file ~/.nightporter-token
	nightporter gateway tokens add ci --grant support >ci.token`
}

func (c *gatewayServeCmd) Run(a *app) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	if cfg.Gateway.Problem != nil {
		return usage("", "%v", cfg.Gateway.Problem)
	}
	var rt *runtime.Runtime // known before anybody asks for the grant
	grant, err := c.grant(cfg, func() *config.Config { return rt.Config() })
	if err != nil {
		return err
	}
	tokenFile := c.TokenFile
	for _, other := range []string{cfg.Gateway.TokenFile, filepath.Join(a.dirs.State, "gateway.token")} {
		if tokenFile == "" {
			tokenFile = other
		}
	}
	token, err := gatewayToken(tokenFile)
	if err != nil {
		return err
	}
	oauth, err := resourceServer(cfg.Gateway.OAuth)
	if err != nil {
		return err
	}
	address := c.Listen
	if address == "" {
		address = cfg.Gateway.Listen
	}
	listener, conns, scheme, err := c.listen(a, cfg.Gateway, address)
	if err != nil {
		return err
	}
	defer listener.Close()
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the current folder: %w", err)
	}
	url := scheme + "://" + reachable(listener.Addr().String()) + "/mcp"
	record, endRecord := a.auditLog(nil)
	defer endRecord()
	var f *front.Front
	serve := func(made *runtime.Runtime, mux *http.ServeMux) {
		rt = made
		own := gateway.Profile{Grant: grant, Exposure: c.exposure(cfg), Dir: dir, Grace: cfg.Gateway.Grace(), OnCall: recorder(record, ""), Approver: a.approver(rt.Config)}
		f = front.New(rt, front.Options{
			Profile: own, Token: token, Tokens: access.Open(a.dirs.Tokens()), OAuth: oauth, Conns: conns,
			Version: thisBuild().Version, Log: a.log(), Hosts: append(slices.Clone(cfg.Gateway.AllowedHosts), hostOf(address)...), Origins: cfg.Gateway.AllowedOrigins,
			Narrow: func(h access.Holder) runtime.Grant {
				if !h.Narrow && len(h.Servers)+len(h.Grants) == 0 {
					return runtime.All{}
				}
				return reach(rt.Config, h.Servers, h.Grants)
			},
			Exposure: func(h access.Holder) gateway.Exposure { return exposureOf(rt.Config(), h, own.Exposure) },
		})
		a.joined(f, rt, own, mux)
	}
	_, end, err := a.runtime(cfg, live.Record{Kind: "gateway", Name: listener.Addr().String(), URL: url}, serve)
	if err != nil {
		return err
	}
	defer end()
	ctx, kill, release := signals(context.Background(), reloadSignal)
	defer release()
	defer a.follow(rt)()
	a.say("listening on %s, token in %s", url, tokenFile)
	return f.Serve(ctx, kill, listener, cfg.Gateway.Drain, endPatience)
}

// listen opens the address, with TLS where there is a certificate. conns are the connections below that.
func (c *gatewayServeCmd) listen(a *app, g config.Gateway, address string) (l net.Listener, conns *front.Conns, scheme string, err error) {
	where, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, nil, "", usage("give HOST:PORT", "cannot listen on %s: %v", address, err)
	}
	if !where.IP.IsLoopback() && g.TLSCert == "" {
		if !c.Insecure && !g.Insecure {
			return nil, nil, "", usage(
				"give gateway.tls_cert and gateway.tls_key; or, behind a proxy that speaks TLS, gateway.insecure = true or --insecure (docs/network.md)",
				"%s can be reached by other machines, and without TLS whoever is on the way reads the tokens", address)
		}
		a.say("warning: %s is listened on without TLS: whoever is on the way reads the tokens", address)
	}
	opened, err := net.ListenTCP("tcp", where)
	if err != nil {
		return nil, nil, "", usage("is another gateway running? see nightporter status, or give --listen", "cannot listen on %s: %v", address, err)
	}
	conns = front.Bound(opened)
	if g.TLSCert == "" {
		return conns, conns, "http", nil
	}
	l, err = front.TLS(conns, g.TLSCert, g.TLSKey, a.log())
	if err != nil {
		opened.Close()
		return nil, nil, "", usage("mend gateway.tls_cert and gateway.tls_key", "%v", err)
	}
	return l, conns, "https", nil
}

// resourceServer is the gateway as it takes access tokens; nil when it takes none.
func resourceServer(o *config.GatewayOAuth) (*access.OAuth, error) {
	if o == nil {
		return nil, nil
	}
	oauth, err := access.NewOAuth(access.OAuthOptions{Resource: o.Resource, Issuers: o.Issuers, JWKS: o.JWKS, Scopes: o.Scopes, Grants: o.Grants})
	if err != nil {
		return nil, usage("mend it in the configuration", "gateway.oauth.%v", err)
	}
	return oauth, nil
}

// reach is what servers and grants of a configuration allow together, as it is when they are asked: it may be read again.
func reach(now func() *config.Config, servers, grants []string) runtime.Grant {
	var all runtime.Grant = runtime.Servers(servers)
	for _, name := range grants {
		all = either{all, current{now, name}}
	}
	return all
}

// exposureOf is how a holder sees tools: as its token says, else its first grant that says something, else as all do.
func exposureOf(cfg *config.Config, h access.Holder, other gateway.Exposure) gateway.Exposure {
	if h.Exposure != "" {
		return gateway.Exposure(h.Exposure)
	}
	for _, name := range h.Grants {
		if grant := cfg.Grants[name]; grant != nil && grant.Exposure != "" {
			return gateway.Exposure(grant.Exposure)
		}
	}
	return other
}

// hostOf is the name under which clients know an address that is not a wildcard.
func hostOf(address string) []string {
	host, _, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err != nil || host == "" || ip != nil && ip.IsUnspecified() {
		return nil
	}
	return []string{host}
}

// reachable is an address under which a listener is reached from this machine: that of one on all interfaces is none.
func reachable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("localhost", port)
	}
	return address
}

// gatewayToken reads the token, or makes one.
func gatewayToken(file string) (secret.String, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		token := rand.Text()
		return secret.New(token), safefile.Write(file, []byte(token+"\n"))
	}
	if err != nil {
		return secret.String{}, fmt.Errorf("read the gateway's token: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if len(token) < minToken || strings.ContainsAny(token, " \t\r\n") {
		return secret.String{}, usage("remove the file, and a good one is made", "%s does not hold a token of at least %d characters without spaces", file, minToken)
	}
	return secret.New(token), nil
}

// minToken keeps a token that a person chose from being guessed over the network.
const minToken = 16
