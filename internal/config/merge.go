package config

import (
	"fmt"
	"slices"
	"strings"
)

// AddExtras puts the servers of another file under those of c, never over them: a server that c defines
// stays as it is, with a warning. Only servers are taken; the other file's problems and warnings come along.
func (c *Config) AddExtras(extra *Config) {
	c.Extras = extra.File
	c.Problems = append(c.Problems, extra.Problems...)
	c.Warnings = append(c.Warnings, extra.Warnings...)
	var added []Server
	for _, s := range extra.Servers {
		if ours, exists := c.Server(s.Name); exists {
			c.Warnings = append(c.Warnings, Problem{
				Pos: s.Pos, Field: join("mcpServers", s.Name), Message: fmt.Sprintf("it is not used: %s defines that server", ours.Pos),
				Mend: "rename one of them, or remove one",
			})
			continue
		}
		s.Extra = true
		added = append(added, s)
	}
	c.Servers = append(c.Servers, added...)
	slices.SortFunc(c.Servers, func(a, b Server) int { return strings.Compare(a.Name, b.Name) })
}

// ExtrasOfRun are the names of the extras that a run gets without being granted them, sorted: those that can be used, and that
// grant, which may be nil, does not decide on itself by naming them.
func (c *Config) ExtrasOfRun(grant *Grant) []string {
	var names []string
	for i := range c.Servers {
		s := &c.Servers[i]
		if s.Extra && s.Usable() && !(grant != nil && grant.names(s.Name)) {
			names = append(names, s.Name)
		}
	}
	return names
}

// LostExtras says of each extra that cannot be used why not. Without it a run would go on as if it had never been written.
func (c *Config) LostExtras() []string {
	var lost []string
	for i := range c.Servers {
		if s := &c.Servers[i]; s.Extra && s.Problem != nil {
			lost = append(lost, fmt.Sprintf("the extra %s is left out: %v", quote(s.Name), s.Problem))
		}
	}
	return lost
}

// names reports whether the grant says anything of a server.
func (g *Grant) names(server string) bool {
	_, some := g.Tools[server]
	_, not := g.Deny[server]
	return some || not || slices.Contains(g.Servers, server)
}

// UnknownInGrants returns a problem for every server that a grant names and c does not define. Call it when all
// files are read. Such a name grants nothing, so these are for a person to look at.
func (c *Config) UnknownInGrants() []Problem {
	var problems []Problem
	names := c.ServerNames()
	for _, name := range c.GrantNames() {
		g := c.Grants[name]
		for _, server := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(g.Servers, sortedKeys(g.Tools), sortedKeys(g.Deny))))) {
			if _, defined := c.Server(server); !defined {
				problems = append(problems, Problem{
					Pos: g.Pos, Field: join("grants", name), Message: fmt.Sprintf("it names the server %s, which is not defined", quote(server)),
					Mend: hint(server, names),
				})
			}
		}
	}
	return problems
}
