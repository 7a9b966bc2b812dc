package codex

import (
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"nightporter/internal/agent"
)

// TakesDirect implements [agent.Wirer].
func (Adapter) TakesDirect() {}

// direct is a server that Codex is handed itself, as it is written for Codex.
type direct struct {
	entry pair
	// What `codex mcp list` is to show of it.
	name, command string
	args          []string
	url           string
}

const (
	// directVariable begins the generated names of variables that hold a value of a direct server.
	directVariable = "NIGHTPORTER_DIRECT_"
	// sh gives a process its variables by their own names: Codex's env_vars hands variables on by the names that Codex has them by, and
	// those would be in Codex's own environment, where they mean something else.
	sh = "/bin/sh"
)

// plainVariable is a name that a shell can set.
var plainVariable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// startable are the names of servers that each version starts; others are listed as enabled and never are (facts/codex.md section 2).
var (
	startable144 = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)
	startable171 = regexp.MustCompile(`^[a-zA-Z0-9_:@/.-]+$`)
)

// directServers writes the run's direct servers for Codex: no credential is on the command line, each value of a header or of an environment
// is in a variable of a generated name. What cannot be written so is left out, and the notes say which and why.
func directServers(servers []agent.Direct, v version) (written []direct, env, notes []string) {
	for i := range servers {
		d, variables, why := writeDirect(&servers[i], v, len(env))
		if why != "" {
			notes = append(notes, fmt.Sprintf("the server %q is not part of this run: %s", servers[i].Name, why))
			continue
		}
		written, env = append(written, d), append(env, variables...)
	}
	return written, env, notes
}

// writeDirect writes one server. first is how many variables there are before its own; why says why it cannot be written.
func writeDirect(s *agent.Direct, v version, first int) (d direct, env []string, why string) {
	startable := startable171
	if v.before(0, 171, 0) {
		startable = startable144
	}
	hold := func(value string) string {
		name := directVariable + strconv.Itoa(first+len(env)+1)
		env = append(env, name+"="+value)
		return name
	}
	var pairs []pair
	d.name = s.Name
	switch {
	case !startable.MatchString(s.Name):
		return d, nil, "Codex starts no server of that name"
	case s.SSE:
		return d, nil, "Codex does not speak the transport sse"
	case s.SecretURL:
		return d, nil, "its address has a reference in it, and Codex takes addresses from the command line alone"
	case s.HeadersHelper != "":
		return d, nil, "Codex would be told of the program that prints its headers on the command line alone, and not every version runs it"
	case s.Command != "":
		d.command, d.args = s.Command, s.Args
		if len(s.Env) > 0 {
			if runtime.GOOS == "windows" {
				return d, nil, "it has variables of its own, and there is no shell to give it those"
			}
			var script strings.Builder
			var names []string
			for _, name := range slices.Sorted(maps.Keys(s.Env)) {
				if !plainVariable.MatchString(name) {
					return d, nil, fmt.Sprintf("no shell can set its variable %q", agent.Head(name))
				}
				held := hold(s.Env[name].Reveal())
				names = append(names, quote(held))
				fmt.Fprintf(&script, `%s="$%s"; export %s; unset %s; `, name, held, name, held)
			}
			pairs = append(pairs, pair{"env_vars", array(names)})
			d.args = append([]string{"-c", script.String() + `exec "$0" "$@"`, s.Command}, s.Args...)
			d.command = sh
		}
		pairs = append(pairs, pair{"command", quote(d.command)}, pair{"args", texts(d.args)})
		if s.Cwd != "" {
			pairs = append(pairs, pair{"cwd", quote(s.Cwd)})
		}
	default:
		d.url = s.URL.Reveal()
		pairs = append(pairs, pair{"url", quote(d.url)})
		var headers []pair
		for _, name := range slices.Sorted(maps.Keys(s.Headers)) {
			headers = append(headers, pair{name, quote(hold(s.Headers[name].Reveal()))})
		}
		if len(headers) > 0 {
			pairs = append(pairs, pair{"env_http_headers", table(headers...)})
		}
	}
	pairs = append(pairs, pair{"enabled", "true"}, pair{"required", "true"}, pair{"default_tools_approval_mode", quote("approve")})
	seconds := func(key string, value float64) {
		if value > 0 {
			pairs = append(pairs, pair{key, strconv.FormatFloat(value, 'f', -1, 64)})
		}
	}
	seconds("startup_timeout_sec", s.StartTimeout.Seconds())
	seconds("tool_timeout_sec", s.ToolTimeout.Seconds())
	if s.Allow != nil && !slices.ContainsFunc(s.Allow, agent.IsGlob) {
		pairs = append(pairs, pair{"enabled_tools", texts(s.Allow)})
	}
	if deny := slices.DeleteFunc(slices.Clone(s.Deny), agent.IsGlob); len(deny) > 0 {
		pairs = append(pairs, pair{"disabled_tools", texts(deny)})
	}
	d.entry = pair{s.Name, table(pairs...)}
	return d, env, ""
}

// texts writes an array of strings.
func texts(all []string) string {
	words := make([]string, len(all))
	for i, text := range all {
		words[i] = quote(text)
	}
	return array(words)
}

// shown reports whether Codex's list shows the server as it was given.
func (d *direct) shown(e *entry) bool {
	t := e.Transport
	if hasValue(t.Headers) || hasValue(t.Helper) || t.Bearer != "" {
		return false
	}
	if d.command != "" {
		return t.Type == "stdio" && t.Command == d.command && slices.Equal(t.Args, d.args)
	}
	return t.Type == "streamable_http" && t.URL == d.url
}
