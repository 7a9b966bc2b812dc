package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"nightporter/client"
	"nightporter/internal/hub"
	"nightporter/internal/hub/console"
	"nightporter/internal/hub/store"
	"nightporter/internal/mcp/front"
	"nightporter/internal/safefile"
)

type hubCmd struct {
	Serve    hubServeCmd    `cmd:"" help:"Serve the hub."`
	Invite   hubInviteCmd   `cmd:"" help:"Print a code with which one host can pair, once."`
	Keys     hubKeysCmd     `cmd:"" help:"List, add and revoke keys of the API."`
	Profiles hubProfilesCmd `cmd:"" help:"List, set and remove profiles: the ways in which messages are answered."`
	Webhooks hubWebhooksCmd `cmd:"" help:"List, set and remove webhooks: where replies are sent."`
	Backup   hubBackupCmd   `cmd:"" help:"Copy the SQLite database of a hub, while it runs."`
}

// database is where a hub's data is.
type database struct {
	Database string `env:"NIGHTPORTER_HUB_DATABASE" placeholder:"URL" help:"postgres://…, or the path of a SQLite file. Default: hub/hub.db in the state folder. A password belongs into NIGHTPORTER_HUB_DATABASE or PGPASSWORD."`
}

func (d *database) open(ctx context.Context, a *app, o store.Options) (*store.Store, error) {
	return store.Open(ctx, cmp.Or(d.Database, filepath.Join(a.dirs.Hub(), "hub.db")), o)
}

type hubServeCmd struct {
	database
	Listen     string        `placeholder:"ADDR" default:"127.0.0.1:8723" help:"Listen on this address. Default: ${default}."`
	TLSCert    string        `name:"tls-cert" placeholder:"FILE" help:"The file that holds the TLS certificate, in PEM; read again when it changes."`
	TLSKey     string        `name:"tls-key" placeholder:"FILE" help:"The file that holds the certificate's private key, in PEM."`
	Insecure   bool          `help:"Listen without TLS on an address that other machines reach, as behind a proxy that speaks it."`
	Host       []string      `placeholder:"NAME" help:"A name under which the hub is reached. May be repeated."`
	Lease      time.Duration `default:"60s" placeholder:"D" help:"How long a host may be silent before its runs are given to others. Default: ${default}."`
	MaxRunning int           `placeholder:"N" help:"How many runs run at a time, on all hosts. Default: any number."`
	Keep       time.Duration `placeholder:"D" help:"Remove conversations that have been still for so long. Default: keep them."`
}

func (*hubServeCmd) Help() string {
	return `The hub takes messages, gives the runs that answer them to hosts, and sends replies where they are wanted. Its first start
makes a key with all scopes, in a file that only you can read, which it names: with it you sign in to the console, at the same address. Several hubs can serve one PostgreSQL database.

Examples:

	nightporter hub serve
	nightporter hub serve --listen 0.0.0.0:8723 --tls-cert hub.pem --tls-key hub.key --host hub.example.com`
}

const (
	headerPatience = 10 * time.Second
	idlePatience   = 2 * time.Minute
	// bodyPatience bounds the reading of one request; a message of 16 MiB comes over a slow line.
	bodyPatience = 2 * time.Minute
	hubDrain     = 5 * time.Second
	minLease     = 5 * time.Second
)

func (c *hubServeCmd) Run(a *app) error {
	if c.Lease < minLease {
		return usage("", "--lease is at least %v: hosts renew it four times in that", minLease)
	}
	where, err := net.ResolveTCPAddr("tcp", c.Listen)
	if err != nil {
		return usage("give HOST:PORT", "cannot listen on %s: %v", c.Listen, err)
	}
	if !where.IP.IsLoopback() && c.TLSCert == "" && !c.Insecure {
		return usage("give --tls-cert and --tls-key; or, behind a proxy that speaks TLS, --insecure",
			"%s can be reached by other machines, and without TLS whoever is on the way reads the keys", c.Listen)
	}
	ctx, kill, release := signals(context.Background())
	defer release()
	s, err := c.open(ctx, a, store.Options{Lease: c.Lease, MaxRunning: c.MaxRunning})
	if err != nil {
		return err
	}
	defer s.Close()
	opened, err := net.ListenTCP("tcp", where)
	if err != nil {
		return usage("is another hub running? give --listen", "cannot listen on %s: %v", c.Listen, err)
	}
	defer opened.Close()
	var listener net.Listener = front.Bound(opened)
	scheme := "http"
	if c.TLSCert != "" {
		scheme = "https"
		if listener, err = front.TLS(listener, c.TLSCert, c.TLSKey, a.log()); err != nil {
			return usage("mend --tls-cert and --tls-key", "%v", err)
		}
	}
	keyFile := filepath.Join(a.dirs.Hub(), "key")
	secret, err := hub.FirstKey(ctx, s)
	if err != nil {
		return fmt.Errorf("make the first key: %w", err)
	}
	if secret != "" {
		if err := safefile.Write(keyFile, []byte(secret+"\n")); err != nil {
			return err
		}
	}
	h := hub.New(s, hub.Options{Version: thisBuild().Version, Log: a.log(), Keep: c.Keep, Hosts: append(c.Host, hostOf(c.Listen)...)})
	pages := console.New(h, console.Options{TLS: c.TLSCert != "" || c.Insecure})
	h.Handle("/", pages)
	server := &http.Server{Handler: h, ReadHeaderTimeout: headerPatience, ReadTimeout: bodyPatience, IdleTimeout: idlePatience}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	text := fmt.Sprintf("the hub listens on %s://%s", scheme, reachable(opened.Addr().String()))
	if exists(keyFile) {
		text += ", key in " + keyFile
	}
	a.say("%s", text)
	select {
	case err := <-served:
		pages.Close()
		h.Close()
		return fmt.Errorf("serve the hub: %w", err)
	case <-ctx.Done():
	}
	pages.Close()
	h.Close()
	draining, done := context.WithTimeout(context.Background(), hubDrain)
	defer done()
	go func() {
		select {
		case <-kill:
			done()
		case <-draining.Done():
		}
	}()
	if server.Shutdown(draining) != nil {
		server.Close()
	}
	<-served
	return nil
}

// hubFlags are how commands find a hub.
type hubFlags struct {
	Hub string `env:"NIGHTPORTER_HUB" default:"http://127.0.0.1:8723" placeholder:"URL" help:"The hub's address. Default: ${default}."`
}

// client is a client of the hub, with the key of NIGHTPORTER_HUB_KEY, else of the file that the hub's first start made here.
func (f *hubFlags) client(a *app) (*client.Client, error) {
	key := a.getenv("NIGHTPORTER_HUB_KEY")
	if key == "" && !ofThisMachine(f.Hub) { // the file's key is that of a hub here, and nobody else's business
		return nil, usage("give it in the variable NIGHTPORTER_HUB_KEY", "there is no key for the hub at %s", f.Hub)
	}
	if key == "" {
		data, err := os.ReadFile(filepath.Join(a.dirs.Hub(), "key"))
		if errors.Is(err, os.ErrNotExist) {
			return nil, usage("give it in the variable NIGHTPORTER_HUB_KEY", "there is no key for the hub at %s", f.Hub)
		}
		if err != nil {
			return nil, fmt.Errorf("read the hub's key: %w", err)
		}
		key = strings.TrimSpace(string(data))
	}
	c, err := client.New(f.Hub, key, nil)
	if err != nil {
		return nil, usage("", "%v", err)
	}
	return c, nil
}

// ofThisMachine reports whether a URL leads to this machine by its address.
func ofThisMachine(address string) bool {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return true // what it is is said elsewhere
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

type hubInviteCmd struct {
	hubFlags
	Life time.Duration `default:"15m" placeholder:"D" help:"How long the code is good. Default: ${default}."`
	JSON bool          `name:"json" help:"Print an object."`
}

func (*hubInviteCmd) Help() string {
	return `The code goes to the host by another way than the hub, and is used there once: nightporter host pair URL CODE.

Examples:

	nightporter hub invite`
}

func (c *hubInviteCmd) Run(a *app) error {
	hub, err := c.client(a)
	if err != nil {
		return err
	}
	var i client.Invite
	if err := hub.Post(context.Background(), "/v1/invites", map[string]int{"life_sec": int(c.Life.Seconds())}, &i); err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(a.stdout, i)
	}
	_, err = fmt.Fprintln(a.stdout, i.Code)
	return err
}

type hubBackupCmd struct {
	database
	File string `arg:"" help:"The copy; it must not exist."`
}

func (*hubBackupCmd) Help() string {
	return `The copy is whole, and a database that a hub can be started with. PostgreSQL has pg_dump for that.

Examples:

	nightporter hub backup /backup/hub-2026-12-01.db`
}

func (c *hubBackupCmd) Run(a *app) error {
	ctx, _, release := signals(context.Background())
	defer release()
	s, err := c.open(ctx, a, store.Options{})
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Backup(ctx, c.File)
}
