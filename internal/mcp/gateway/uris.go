package gateway

import (
	"bytes"
	"encoding/json"
	"net/url"
	"strings"
	"sync"

	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/wire"
)

// How resources of several servers are named to clients (docs/decisions/0013). A URI stays as it is for the server that has it
// first; another server's resource of the same URI is named by an alias, which says whose it is. An alias holds the URI as it is, so
// that templates can be expanded in it.

const (
	aliasPrefix = ownPrefix + "servers/"
	// ownPrefix begins what we name, results that were kept aside among it.
	ownPrefix = "nightporter://"
	// uiPrefix begins the URIs of MCP Apps, which clients know by their scheme.
	uiPrefix      = "ui://"
	uiAliasPrefix = "ui://nightporter/"
)

// aliasURI names a resource, or a template, of a server.
func aliasURI(server, uri string) string {
	if rest, ok := strings.CutPrefix(uri, uiPrefix); ok {
		return uiAliasPrefix + url.PathEscape(server) + "/" + rest
	}
	return aliasPrefix + url.PathEscape(server) + "/" + uri
}

// isOurs reports whether a URI has the form of those that we make. One that a server gives so, which may be Nightporter, too, is itself
// always named by an alias: it could not be told apart else.
func isOurs(uri string) bool {
	return strings.HasPrefix(uri, ownPrefix) || strings.HasPrefix(uri, uiAliasPrefix)
}

// ofAlias is what an alias stands for.
func ofAlias(alias string) (server, uri string, ok bool) {
	rest, isUI := strings.CutPrefix(alias, uiAliasPrefix)
	if !isUI {
		if rest, ok = strings.CutPrefix(alias, aliasPrefix); !ok {
			return "", "", false
		}
	}
	name, uri, ok := strings.Cut(rest, "/")
	if !ok {
		return "", "", false
	}
	server, err := url.PathUnescape(name)
	if isUI {
		uri = uiPrefix + uri
	}
	return server, uri, err == nil
}

// maxLearned bounds the URIs that are remembered because a server named them in a result and lists them nowhere, and maxLearnedBytes their
// length together.
const (
	maxLearned      = 10000
	maxLearnedBytes = 4 << 20
)

// uris are the URIs of a client's resources, by whose they are. Who had one first keeps it as long as the client is there.
type uris struct {
	mu        sync.Mutex
	made      bool
	version   uint64
	owners    map[string]string // of what is listed, or named in the definition of a tool
	templates map[string]string
	learned   map[string]string // of what results named
	order     []string          // of learned, oldest first
	size      int               // of learned, in bytes
}

// refresh reads what the servers offer, when that changed. The caller holds u.mu.
func (u *uris) refresh(s *runtime.Scope) {
	version := s.Version() // before the offer is read: it may change meanwhile
	if u.made && u.version == version {
		return
	}
	// Apps' resources need not be listed (MCP Apps: a tool's _meta.ui.resourceUri).
	offered := s.Resources()
	for _, items := range [][]runtime.Item{s.Tools(), s.AppTools()} {
		for _, tool := range items {
			for _, uri := range appURIs(tool.Raw) {
				offered = append(offered, runtime.Item{Server: tool.Server, Name: uri})
			}
		}
	}
	u.owners = claim(u.owners, offered)
	for uri, server := range u.learned {
		if u.owners[uri] != "" && s.Has(server) {
			u.owners[uri] = server
		}
	}
	u.templates = claim(u.templates, s.Templates())
	u.made, u.version = true, version
}

// claim gives each name to the server that had it before, if it offers it still, else to the first that offers it.
func claim(before map[string]string, items []runtime.Item) map[string]string {
	now := map[string]string{}
	for _, item := range items {
		if now[item.Name] == "" || before[item.Name] == item.Server {
			now[item.Name] = item.Server
		}
	}
	return now
}

// uiKeys are where a tool's definition names the resource that shows it, the second in earlier drafts of MCP Apps.
var uiKeys = [][]string{{"_meta", "ui", "resourceUri"}, {"_meta", "ui/resourceUri"}}

func appURIs(tool json.RawMessage) (uris []string) {
	if !bytes.Contains(tool, []byte("_meta")) {
		return nil
	}
	for _, key := range uiKeys {
		if uri, ok := wire.GetString(tool, key...); ok && uri != "" {
			uris = append(uris, uri)
		}
	}
	return uris
}

// owner is whose resource a URI without an alias is; empty: nobody's that is known. The caller holds u.mu.
func (u *uris) owner(uri string) string {
	if server := u.owners[uri]; server != "" {
		return server
	}
	if server := u.learned[uri]; server != "" {
		return server
	}
	owner, longest := "", -1
	for template, server := range u.templates {
		n, ok := templateFits(template, uri)
		if ok && (n > longest || n == longest && server < owner) {
			owner, longest = server, n
		}
	}
	return owner
}

// exposedURI is how the client sees a URI of a server.
func (c *client) exposedURI(server, uri string) string {
	if c.e.p.Single != "" {
		return uri
	}
	if isOurs(uri) {
		return aliasURI(server, uri)
	}
	u := &c.uris
	u.mu.Lock()
	defer u.mu.Unlock()
	u.refresh(c.scope)
	switch owner := u.owner(uri); {
	case owner == server:
		return uri
	case owner != "":
		return aliasURI(server, uri)
	}
	if len(uri) > maxLearnedBytes {
		return uri
	}
	for u.size += len(uri); len(u.order) >= maxLearned || u.size > maxLearnedBytes; u.order = u.order[1:] {
		delete(u.learned, u.order[0])
		u.size -= len(u.order[0])
	}
	if u.learned == nil {
		u.learned = map[string]string{}
	}
	u.learned[uri] = server
	u.order = append(u.order, uri)
	return uri
}

// exposedTemplate is how the client sees a resource template of a server.
func (c *client) exposedTemplate(server, template string) string {
	if c.e.p.Single != "" {
		return template
	}
	u := &c.uris
	u.mu.Lock()
	defer u.mu.Unlock()
	u.refresh(c.scope)
	if isOurs(template) || u.templates[template] != server {
		return aliasURI(server, template)
	}
	return template
}

// meantURI is the server of a resource that the client names, and the server's own URI of it. server is empty when there is none.
func (c *client) meantURI(exposed string) (server, uri string) {
	if c.e.p.Single != "" {
		return c.e.p.Single, exposed
	}
	if server, uri, ok := ofAlias(exposed); ok {
		if !c.scope.Has(server) {
			return "", ""
		}
		return server, uri
	}
	u := &c.uris
	u.mu.Lock()
	defer u.mu.Unlock()
	u.refresh(c.scope)
	return u.owner(exposed), exposed
}

// meantTemplate is meantURI for what may be a template, too.
func (c *client) meantTemplate(exposed string) (server, template string) {
	if c.e.p.Single == "" && !isOurs(exposed) {
		u := &c.uris
		u.mu.Lock()
		u.refresh(c.scope)
		server := u.templates[exposed]
		u.mu.Unlock()
		if server != "" {
			return server, exposed
		}
	}
	return c.meantURI(exposed)
}

// relabelled returns raw with the URI at path as the client sees it.
func (c *client) relabelled(server string, raw json.RawMessage, path ...string) json.RawMessage {
	uri, ok := wire.GetString(raw, path...)
	if !ok {
		return raw
	}
	if exposed := c.exposedURI(server, uri); exposed != uri {
		return wire.Set(raw, wire.Quote(exposed), path...)
	}
	return raw
}

// each returns raw with every element of the array at key replaced.
func each(raw json.RawMessage, key string, replace func(json.RawMessage) json.RawMessage) json.RawMessage {
	list := wire.Get(raw, key)
	if list == nil {
		return raw
	}
	if changed := wire.MapElements(list, replace); string(changed) != string(list) {
		return wire.Set(raw, changed, key)
	}
	return raw
}

// content returns one piece of content with its URIs as the client sees them: a link to a resource, or a resource itself.
func (c *client) content(server string, piece json.RawMessage) json.RawMessage {
	switch kind, _ := wire.GetString(piece, "type"); kind {
	case "resource_link":
		return c.relabelled(server, piece, "uri")
	case "resource":
		return c.relabelled(server, piece, "resource", "uri")
	}
	return piece
}
