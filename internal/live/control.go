package live

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/wire"
)

// Client is one client or run of a process, with its servers.
type Client struct {
	Owner    string           `json:"owner"`
	Servers  []runtime.Status `json:"servers"`
	Activity *Activity        `json:"activity,omitempty"` // of a run
}

// Activity is what a run does, and did so far.
type Activity struct {
	Agent  string    `json:"agent"`
	Doing  string    `json:"doing"` // for people, with the secrets that are known masked
	Since  time.Time `json:"since"` // when it began to do that
	Tools  int       `json:"tools"` // calls that the agent reported
	Denied int       `json:"denied"`
}

// Tool is a tool of a server, for people.
type Tool struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
}

// ToolsOf returns the tools of one server that the scope's client sees, as the server lists them.
func ToolsOf(s *runtime.Scope, server string) []Tool {
	tools := []Tool{}
	for _, item := range s.Tools() {
		if item.Server == server {
			description, _ := wire.GetString(item.Raw, "description")
			tools = append(tools, Tool{item.Name, description})
		}
	}
	return tools
}

// controlPatience bounds a start, stop or restart that was asked for by hand. A server's own start deadline is shorter.
const controlPatience = 10 * time.Minute

// Control answers questions about a runtime's servers and carries out what is asked of them:
//
//	GET  /status                 []Client
//	GET  /events                 status events from now on, one JSON object per line
//	GET  /servers/NAME/logs      the last of its standard error, as text
//	GET  /servers/NAME/tools     []Tool: those that a client sees, of the first client that reaches it
//	POST /servers/NAME/start     in every client that reaches it; likewise stop, restart, recheck
//	                             (of what a person accepted of it), and login, which starts it
//	                             where it waits for one
//
// activity is asked what the process's run does; nil: it is no run's.
func Control(rt *runtime.Runtime, activity func() Activity) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		clients := []Client{}
		for _, s := range rt.Scopes() {
			c := Client{Owner: s.Name(), Servers: s.Status()}
			if activity != nil {
				doing := activity()
				c.Activity = &doing
			}
			clients = append(clients, c)
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
	mux.HandleFunc("GET /servers/{name}/tools", func(w http.ResponseWriter, r *http.Request) {
		tools := []Tool{}
		for _, s := range rt.Scopes() {
			if s.Has(r.PathValue("name")) {
				tools = ToolsOf(s, r.PathValue("name"))
				break
			}
		}
		_ = json.NewEncoder(w).Encode(tools)
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
