package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"nightporter/internal/mcp/wire"
)

// What servers say to models about themselves is told together, each under its server's name. Clients cut it at limits of their own, and
// then the servers at its end are those that are not heard.

// instructionLimits are the limits of clients, in bytes, by what they call themselves. Claude Code 2.1.332 keeps 4096 characters, of
// which a byte is one at least (facts/claude.md, section 4); Codex keeps all.
var instructionLimits = map[string]int{"claude-code": 4096}

// maxInstructions is the limit for all others: what no model should have to read before it has been asked anything.
const maxInstructions = 32 << 10

// minInstructions is the least part of a server's text that is worth telling.
const minInstructions = 100

func (c *client) instructionLimit() int {
	name, _ := wire.GetString(c.who.Info, "name")
	return cmp.Or(instructionLimits[name], maxInstructions)
}

// instruction is what one server says.
type instruction struct{ server, text string }

func (i instruction) head() string { return "# " + i.server + "\n\n" }

// merged puts instructions together behind a preface of our own, within limit bytes. What is too long is cut, the longest texts first, and
// says so.
func merged(preface string, all []instruction, limit int) string {
	const gap = "\n\n"
	parts := make([]string, 0, len(all)+1)
	if preface != "" {
		parts = append(parts, preface)
	}
	size := len(preface)
	for _, i := range all {
		parts = append(parts, i.head()+i.text)
		size += len(gap) + len(i.head()) + len(i.text)
	}
	if size <= limit {
		return strings.Join(parts, gap)
	}
	left := limit - len(preface)
	for _, i := range all {
		left -= len(gap) + len(i.head())
	}
	// Who says least is heard whole; what it leaves is for the others.
	shares := make([]int, len(all))
	order := make([]int, len(all))
	for n := range order {
		order[n] = n
	}
	slices.SortStableFunc(order, func(a, b int) int { return len(all[a].text) - len(all[b].text) })
	for n, i := range order {
		shares[i] = min(len(all[i].text), max(left, 0)/(len(order)-n))
		left -= shares[i]
	}
	if len(all) > 0 && slices.Max(shares) < minInstructions {
		return cutAt(preface+gap+fmt.Sprintf("[The instructions of %s are left out: there is no room for them.]", count(len(all), "server")), limit)
	}
	parts = parts[:min(len(parts), 1)]
	if preface == "" {
		parts = nil
	}
	for n, i := range all {
		text := i.text
		if shares[n] < len(text) {
			note := fmt.Sprintf(" … [cut: %d of %d bytes]", shares[n], len(text))
			text = cutAt(text, shares[n]-len(note)) + note
		}
		parts = append(parts, i.head()+text)
	}
	return cutAt(strings.Join(parts, gap), limit)
}

// cutAt is the beginning of a text, at most so many bytes and whole characters.
func cutAt(text string, most int) string {
	if len(text) <= most {
		return text
	}
	most = max(most, 0)
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}

// instructions are what the client is told to tell its model. Those of a single server stand as they are, behind our own.
func (c *client) instructions() string {
	var all []instruction
	for _, name := range c.scope.Servers() {
		about, _ := c.scope.Hello(name)
		switch {
		case about.Instructions == "":
		case name == c.e.p.Single:
			return strings.TrimPrefix(c.preface()+"\n\n"+about.Instructions, "\n\n")
		default:
			all = append(all, instruction{name, about.Instructions})
		}
	}
	return merged(c.preface(), all, c.instructionLimit())
}

// preface is what we say ourselves, before any server does.
func (c *client) preface() string {
	var parts []string
	if c.e.p.Exposure == ExposeSearch {
		parts = append(parts, fmt.Sprintf("The tools of the servers here are found by search. %s finds them by words, %s returns the definition of one, %s calls one by its name. Look for a tool before you say that there is none. %s",
			findTool.name, describeTool.name, callTool.name, serversOf(c.tools())))
	}
	if c.e.limited(c.scope) {
		parts = append(parts, fmt.Sprintf("A long result is kept aside: it says so, and is read in pieces with %s.", readTool.name))
	}
	return strings.Join(parts, "\n\n")
}
