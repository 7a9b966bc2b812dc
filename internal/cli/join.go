package cli

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"time"

	"nightporter/internal/config"
	"nightporter/internal/live"
	"nightporter/internal/mcp/front"
	"nightporter/internal/mcp/gateway"
	"nightporter/internal/mcp/runtime"
)

// joining is what nightporter mcp tells the gateway that it joins (A40).
type joining struct {
	Dir     string // the client's working directory
	Servers []string
	Grant   string
	Single  string
	// Exposure is how the client is to see tools; empty: as the grant or the gateway's configuration says.
	Exposure string
}

func (j joining) query() string {
	return url.Values{"dir": {j.Dir}, "server": j.Servers, "grant": {j.Grant}, "single": {j.Single}, "exposure": {j.Exposure}}.Encode()
}

// join passes the client on to this user's running gateway, when there is one with the same configuration. joined is false when
// there is none, or it does not take us: then nothing was read from the client.
func (a *app) join(ctx context.Context, cfg *config.Config, j joining) (joined bool, err error) {
	processes, err := live.Find(ctx, a.dirs.Live())
	if err != nil {
		return false, nil // alone is as good
	}
	for _, p := range processes {
		if p.Kind != "gateway" || !sameFile(p.Config, cfg.File) {
			continue
		}
		conn, reader, err := p.Upgrade(ctx, "/join?"+j.query())
		if err != nil {
			a.say("warning: the running gateway (process %d) could not be joined: %v", p.PID, err)
			continue
		}
		defer conn.Close()
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		defer stop()
		go func() {
			// Not waited for: nothing can wake a read of standard input. It ends with the process.
			_, _ = io.Copy(conn, a.stdin)
			if half, ok := conn.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite()
			}
		}()
		_, err = io.Copy(a.stdout, reader)
		if ctx.Err() != nil {
			return true, nil
		}
		return true, err
	}
	return false, nil
}

func sameFile(a, b string) bool {
	absA, errA := filepath.Abs(a)
	absB, errB := filepath.Abs(b)
	return a != "" && b != "" && errA == nil && errB == nil && absA == absB
}

// joined answers the gateway's side: a client that joins sees what its flags say, in place of what own says.
func (a *app) joined(f *front.Front, rt *runtime.Runtime, own gateway.Profile, mux *http.ServeMux) {
	mux.HandleFunc("POST /join", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		flags := grantFlags{Server: q["server"], Grant: q.Get("grant")}
		cfg := rt.Config()
		grant, err := flags.grant(cfg, rt.Config)
		if single := q.Get("single"); err == nil && single != "" {
			err = checkServers(cfg, []string{single})
		}
		if err == nil && !filepath.IsAbs(q.Get("dir")) {
			err = errors.New("the client's folder is not absolute")
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		p := own
		p.Grant, p.Single, p.Dir = grant, q.Get("single"), q.Get("dir")
		p.Exposure = cmp.Or(gateway.Exposure(q.Get("exposure")), flags.exposure(cfg))
		endpoint, end, err := f.Host(p)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		defer func() {
			ctx, done := context.WithTimeout(context.Background(), endPatience)
			defer done()
			end(ctx)
		}()
		conn, reader, err := live.Accept(w)
		if err != nil {
			return
		}
		defer conn.Close()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		// A client that reads nothing more must not hold us: each write has an end.
		_ = endpoint.ServeStdio(ctx, reader, deadlined{conn, time.Minute})
	})
}

// deadlined bounds each write.
type deadlined struct {
	conn interface {
		io.Writer
		SetWriteDeadline(time.Time) error
	}
	limit time.Duration
}

func (d deadlined) Write(p []byte) (int, error) {
	_ = d.conn.SetWriteDeadline(time.Now().Add(d.limit))
	return d.conn.Write(p)
}
