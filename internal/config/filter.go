package config

import (
	"fmt"
	"slices"
)

// Allows reports whether the server's own filters let the tool through: enabled_tools
// first, then disabled_tools, globs on raw names. When they do not, reason says which filter it was.
func (s *Server) Allows(tool string) (ok bool, reason string) {
	if s.EnabledTools != nil && !MatchAny(s.EnabledTools, tool) {
		return false, fmt.Sprintf("enabled_tools of server %s does not name it", s.Name)
	}
	if MatchAny(s.DisabledTools, tool) {
		return false, fmt.Sprintf("disabled_tools of server %s names it", s.Name)
	}
	return true, ""
}

// AllowsServer reports whether the grant reaches the server at all.
func (g *Grant) AllowsServer(server string) bool {
	_, some := g.Tools[server]
	return g.Problem == nil && (some || slices.Contains(g.Servers, server))
}

// Allows reports whether the grant lets the server's tool through. When it does not, reason says why.
// A grant with a problem allows nothing.
func (g *Grant) Allows(server, tool string) (ok bool, reason string) {
	switch globs, some := g.Tools[server]; {
	case g.Problem != nil:
		return false, fmt.Sprintf("grant %s has a problem: %s", g.Name, g.Problem.Error())
	case !g.AllowsServer(server):
		return false, fmt.Sprintf("grant %s does not name server %s", g.Name, server)
	case some && !MatchAny(globs, tool):
		return false, fmt.Sprintf("tools of grant %s does not name it for server %s", g.Name, server)
	case MatchAny(g.Deny[server], tool):
		return false, fmt.Sprintf("deny of grant %s names it for server %s", g.Name, server)
	}
	return true, ""
}

// Policy is the grant's sandbox; nil when it has none.
func (g *Grant) Policy() *Sandbox { return g.Sandbox }

// MatchAny reports whether one of the globs matches name.
func MatchAny(globs []string, name string) bool {
	return slices.ContainsFunc(globs, func(g string) bool { return Match(g, name) })
}

// Match reports whether the glob matches all of name: * is any text, empty too, ? is any one
// character, everything else is itself. There are no other special characters, so every text is a glob.
func Match(glob, name string) bool {
	g, n := []rune(glob), []rune(name)
	// star and mark are where to go on when what follows the last * does not fit.
	i, j, star, mark := 0, 0, -1, 0
	for j < len(n) {
		switch {
		case i < len(g) && g[i] == '*':
			star, mark = i, j
			i++
		case i < len(g) && (g[i] == '?' || g[i] == n[j]):
			i++
			j++
		case star >= 0:
			mark++
			i, j = star+1, mark
		default:
			return false
		}
	}
	for i < len(g) && g[i] == '*' {
		i++
	}
	return i == len(g)
}
