package cli

import (
	"context"
	"maps"
	"slices"

	"nightporter/internal/agent"
	"nightporter/internal/config"
	"nightporter/internal/mcp/runtime"
	"nightporter/internal/secret"
)

// direct are the granted servers whose wiring hands them to the agent itself, resolved. named are granted whole.
func (a *app) direct(ctx context.Context, cfg *config.Config, granted runtime.Grant, named []string, grant *config.Grant, masker *secret.Masker) ([]agent.Direct, error) {
	var all []agent.Direct
	for i := range cfg.Servers {
		s := &cfg.Servers[i]
		if s.Wiring != config.WireDirect || !s.Usable() || !granted.AllowsServer(s.Name) {
			continue
		}
		if s.Sandbox != nil {
			return nil, usage(`leave out the sandbox, or wiring = "direct"`, "server %s has a sandbox, and the agent that it is handed to would start it without one", s.Name)
		}
		if s.Pin {
			return nil, usage(`leave out pin, or wiring = "direct"`, "the tools of server %s are pinned, and the agent that it is handed to would not hold a changed one back", s.Name)
		}
		r, err := s.Resolve(ctx, a.lookupEnv)
		if err != nil {
			return nil, usage("", "%s: %v", s.Pos, err)
		}
		masker.Add(r.Referred...)
		for _, values := range []map[string]secret.String{r.Env, r.Headers} {
			for name, value := range values {
				if config.LooksSecret(name, value.Reveal()) { // others are words that a reply may have
					masker.Add(value)
				}
			}
		}
		d := agent.Direct{
			Name: s.Name, Command: r.Command, Args: r.Args, Env: r.Env, Cwd: r.Cwd,
			URL: r.URL, SecretURL: !s.URL.IsLiteral(), SSE: s.Transport == config.SSE, Headers: r.Headers, HeadersHelper: s.HTTPHeadersHelper,
			StartTimeout: s.StartTimeout, ToolTimeout: s.ToolTimeout, Written: s.Written,
			Allow: s.EnabledTools, Deny: slices.Clone(s.DisabledTools),
		}
		if grant != nil && !slices.Contains(named, s.Name) {
			if globs, some := grant.Tools[s.Name]; some {
				d.Allow = both(d.Allow, globs)
			}
			d.Deny = append(d.Deny, grant.Deny[s.Name]...)
		}
		// Who is asked is the agent's own affair then, and nobody is there (docs/configuration.md, "Approval").
		if s.Approval == config.ApprovePrompt || s.Approval == config.ApproveWrites {
			return nil, usage(`give another mode, or leave out wiring = "direct"`, "default_tools_approval_mode = %q of server %s cannot be held by the agent that it is handed to", s.Approval, s.Name)
		}
		for _, tool := range slices.Sorted(maps.Keys(s.ToolApproval)) {
			if s.ToolApproval[tool] == config.ApprovePrompt || s.ToolApproval[tool] == config.ApproveWrites {
				d.Deny = append(d.Deny, tool)
			}
		}
		all = append(all, d)
	}
	return all, nil
}

// both is what two lists of globs let through together; nil lets all through. Patterns of both lists cannot be put together: those of the
// first stay, and are not enforced by agents anyway.
func both(a, b []string) []string {
	if a == nil {
		return b
	}
	out := []string{}
	for _, pair := range [][2][]string{{a, b}, {b, a}} {
		for _, name := range pair[0] {
			if !agent.IsGlob(name) && config.MatchAny(pair[1], name) && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	for _, name := range a {
		if agent.IsGlob(name) && slices.ContainsFunc(b, agent.IsGlob) {
			out = append(out, name)
		}
	}
	return out
}
