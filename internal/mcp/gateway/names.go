package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// How tools and prompts of several servers are named to clients (A18): server__name, and where that could be
// misunderstood, a form with a hash of what it stands for. A name depends on nothing but the server's name and the
// thing's own, so that adding a server never renames what another one has.

const (
	separator = "__"
	// maxName keeps mcp__nightporter__NAME within 64 characters, the limit of the APIs that agents speak to.
	maxName = 64 - len("mcp__nightporter__")
	// hashChars of hexadecimal: as many as Codex uses. Two names that differ share one with a chance of 2^-48.
	hashChars = 12
)

var (
	odd    = regexp.MustCompile(`[^A-Za-z0-9_-]`)
	hashed = regexp.MustCompile(`_[0-9a-f]{12}$`)
)

// exposedName is the name under which clients see name of server.
func exposedName(server, name string) string {
	plain := server + separator + name
	// The first separator must be the one that we put in, and no plain name may look like a hashed one.
	ambiguous := strings.Contains(server, separator) || strings.HasSuffix(server, "_")
	if !ambiguous && name != "" && len(plain) <= maxName && !odd.MatchString(plain) && !hashed.MatchString(plain) {
		return plain
	}
	sum := sha256.Sum256([]byte(server + "\x00" + name))
	readable := odd.ReplaceAllString(plain, "_")
	readable = readable[:min(len(readable), maxName-hashChars-1)]
	return readable + "_" + hex.EncodeToString(sum[:])[:hashChars]
}

// meant is what an exposed name stands for whether or not it is offered, so that a refused call can be told of by the
// real server's name. Both are empty for a name that is not plain.
func meant(exposed string) (server, name string) {
	server, name, _ = strings.Cut(exposed, separator)
	if name == "" || exposedName(server, name) != exposed {
		return "", ""
	}
	return server, name
}
