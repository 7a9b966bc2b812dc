// Package catalog keeps what MCP servers offer, as it was last seen live, on disk: so that a
// server's tools are known before the server runs (REQUIREMENTS A10 to A12).
//
// A catalog is stored under the [Identity] of its server, the hash of everything that decides
// what the server is. Several processes may use one folder. docs/catalogs.md describes the files.
package catalog

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"
)

// DefaultMaxAge is how long a catalog may stand in for its server when the operator said nothing.
const DefaultMaxAge = 7 * 24 * time.Hour

// clockSlack is how far a catalog may lie in the future: clocks that are set by the network step
// back by less. Beyond it a clock was wrong, and such a catalog is neither used nor kept
// against an older one, which would otherwise lose to it until that time comes.
const clockSlack = 5 * time.Minute

// Catalog is what one server offered in one listing.
type Catalog struct {
	Server    string    // configured name
	Identity  Identity  // from [Store.Identity]
	Revision  string    // [RevisionOf] the content; [Store.Publish] sets it
	FetchedAt time.Time // when the listing began: a listing never replaces one that began later

	Protocol     string          // negotiated protocol version
	ServerInfo   json.RawMessage // as the server sent them; nil when it sent none
	Capabilities json.RawMessage
	Instructions string

	// The definitions, each byte for byte as the server sent it: numbers that no Go type holds, duplicate
	// keys, unknown fields and white space inside it included. A tool's safety hints are in there
	// too, and are not to be trusted from here (A14): see [StripHints].
	Tools     []json.RawMessage
	Prompts   []json.RawMessage
	Resources []json.RawMessage
	Templates []json.RawMessage // resource templates

	// TTL and CacheScope ("public" or "private") are the server's own caching hints, ttlMs and
	// cacheScope of the 2026-07-28 revision; zero when it gave none. They are kept for clients, and
	// do not decide whether the catalog is usable: see [Store.Usable].
	TTL        time.Duration
	CacheScope string

	// Cacheable is false when the server said experimental["codex/tool-catalog-cache"].cacheable =
	// false. Only that boolean counts, everything else is true. Such a catalog is never stored.
	Cacheable bool
}

// Usable reports whether c may stand in for its server, and if not, why in a few words. c may be
// nil. maxAge of zero or less means [DefaultMaxAge].
//
// The server's own TTL does not shorten maxAge: it says when a client should list again,
// and servers of the 2026-07-28 revision must send one, often of zero or a minute. A catalog's staleness is
// mended by the start that precedes every call, after which the live list decides.
func (s *Store) Usable(c *Catalog, maxAge time.Duration, now time.Time) (ok bool, reason string) {
	if maxAge <= 0 {
		maxAge = DefaultMaxAge
	}
	switch {
	case c == nil:
		return false, "no catalog"
	case !c.Cacheable:
		return false, "the server does not allow its catalog to be kept"
	case len(c.Tools) == 0:
		return false, "the catalog has no tools"
	case c.FetchedAt.After(now.Add(clockSlack)):
		return false, "the catalog is from the future (" + c.FetchedAt.Format(time.RFC3339) + "): a clock was wrong"
	case now.Sub(c.FetchedAt) > maxAge:
		return false, fmt.Sprintf("the catalog is older than %v", maxAge)
	}
	return true, ""
}

// list names one kind of definition: its member in the file, and where it is in a [Catalog].
type list struct {
	name string
	raws *[]json.RawMessage
}

// lists returns c's definitions in the order of the file.
func (c *Catalog) lists() [4]list {
	return [...]list{{"tools", &c.Tools}, {"prompts", &c.Prompts}, {"resources", &c.Resources}, {"templates", &c.Templates}}
}

// newer orders catalogs, the latest listing first.
func newer(a, b *Catalog) int {
	return cmp.Or(b.FetchedAt.Compare(a.FetchedAt), cmp.Compare(a.Identity, b.Identity))
}
