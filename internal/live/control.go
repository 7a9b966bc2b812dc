package live

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"nightporter/internal/mcp/runtime"
)

// Client is one client or run of a process, with its servers.
type Client struct {
	Owner   string           `json:"owner"`
	Servers []runtime.Status `json:"servers"`
}

// controlPatience bounds a start, stop or restart that was asked for by hand. A server's own start deadline is shorter.
const controlPatience = 10 * time.Minute

// Control answers questions about a runtime's servers and carries out what is asked of them:
//
//	GET  /status                 []Client
//	GET  /events                 status events from now on, one JSON object per line
//	GET  /servers/NAME/logs      the last of its standard error, as text
//	POST /servers/NAME/start     in every client that reaches it; likewise stop, restart, recheck
//	                             (of what a person accepted of it), and login, which starts it
//	                             where it waits for one
func Control(rt *runtime.Runtime) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		clients := []Client{}
		for _, s := range rt.Scopes() {
			clients = append(clients, Client{s.Name(), s.Status()})
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(clients)
	})
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		events, stop := rt.Watch()
		defer stop()
		w.Header().Set("Content-Type", "application/x-ndjson")
		flush := http.NewResponseController(w)
		encoder := json.NewEncoder(w)
		_ = flush.Flush()
		for {
			select {
			case e, ok := <-events:
				if !ok || encoder.Encode(e) != nil || flush.Flush() != nil {
					return
				}
			case <-r.Context().Done():
				return
			}
		}
	})
	mux.HandleFunc("GET /servers/{name}/logs", func(w http.ResponseWriter, r *http.Request) {
		text := ""
		for _, s := range rt.Scopes() {
			text += s.Logs(r.PathValue("name"))
		}
		_ = json.NewEncoder(w).Encode(text)
	})
	for verb, do := range map[string]func(*runtime.Scope, context.Context, string) error{
		"start": func(s *runtime.Scope, ctx context.Context, name string) error {
			return s.Wake(ctx, name, "started by hand")
		},
		"stop":    (*runtime.Scope).Stop,
		"login":   (*runtime.Scope).LoggedIn,
		"restart": (*runtime.Scope).Restart,
		"recheck": func(s *runtime.Scope, _ context.Context, name string) error { s.Recheck(name); return nil },
	} {
		mux.HandleFunc("POST /servers/{name}/"+verb, func(w http.ResponseWriter, r *http.Request) {
			ctx, done := context.WithTimeout(r.Context(), controlPatience)
			defer done()
			touched := 0
			for _, s := range rt.Scopes() {
				if !s.Has(r.PathValue("name")) {
					continue
				}
				touched++
				if err := do(s, ctx, r.PathValue("name")); err != nil {
					http.Error(w, err.Error(), http.StatusBadGateway)
					return
				}
			}
			_ = json.NewEncoder(w).Encode(touched)
		})
	}
	return mux
}
