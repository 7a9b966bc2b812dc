package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// DefaultDrain is what calls in flight get when the gateway is asked to end: a third of what Kubernetes gives for all, and
// servers still have to end after it.
const DefaultDrain = 10 * time.Second

// GatewayOAuth is [gateway.oauth]: whose access tokens the gateway takes.
type GatewayOAuth struct {
	Issuers  []string          // authorization servers, as they call themselves
	Resource string            // the gateway's URL, as clients know it
	JWKS     string            // where the keys are; empty: where the issuer's metadata says
	Scopes   []string          // each is needed
	Grants   map[string]string // scope to [grants.NAME]; empty: whoever has a token reaches all
}

var gatewayOAuthFields = []field[GatewayOAuth]{
	{
		key: "issuers", typ: "string[]", doc: "Authorization servers whose access tokens are taken, each as its own metadata names it. Needed.",
		example: []string{"https://login.example.com"}, schema: rules{"minItems": 1, "items": merged(rules{"type": "string"}, webAddress)},
		set: func(r *reader, o *GatewayOAuth, n *node) {
			o.Issuers = r.strings(n, nil)
			switch {
			case n.kind != kindArray:
			case len(o.Issuers) == 0:
				r.fail("it names no authorization server", `write issuers = ["https://…"]`)
			case slices.ContainsFunc(o.Issuers, noWebAddress):
				r.fail("each takes an https address", `write issuers = ["https://…"]`)
			}
		},
	},
	{
		key: "resource", typ: "string", doc: "The gateway's own address as clients know it, which tokens must be made for (their audience). Needed.",
		example: "https://mcp.example.com/mcp", schema: webAddress,
		set: setWebAddress(func(o *GatewayOAuth) *string { return &o.Resource }),
	},
	{
		key: "jwks_uri", typ: "string", def: prose("what the issuer's metadata says"), doc: "Where the keys of the issuer are, when there is one issuer and it publishes no metadata.",
		example: "https://login.example.com/keys", schema: webAddress,
		set: setWebAddress(func(o *GatewayOAuth) *string { return &o.JWKS }),
	},
	{
		key: "scopes", typ: "string[]", doc: "Scopes that a token must have, all of them.",
		example: []string{"mcp"},
		set:     setStrings(func(o *GatewayOAuth) *[]string { return &o.Scopes }),
	},
	{
		key: "grants", typ: "table of strings", doc: "Which [grants.NAME] a scope gives. A token then reaches what its scopes give, and is refused without any; without this table it reaches all that the gateway serves.",
		example: map[string]string{"mcp:support": "support"},
		set: func(r *reader, o *GatewayOAuth, n *node) {
			o.Grants = map[string]string{}
			r.stringTable(n, `{ SCOPE = "GRANT" }`, func(e entry) { o.Grants[e.key] = e.value.text })
			if n.kind == kindTable && len(o.Grants) == 0 {
				r.fail("it is empty, so that no token would reach anything", `write grants = { SCOPE = "GRANT" }, or remove the key`)
			}
		},
	},
}

var gatewayOAuthAliases = map[string]string{
	"issuer": "issuers", "authorization_servers": "issuers", "audience": "resource", "required_scopes": "scopes", "jwks": "jwks_uri", "jwks_url": "jwks_uri",
}

// webAddress is the schema of addresses that OAuth takes.
var webAddress = rules{"pattern": `^[Hh][Tt][Tt][Pp][Ss]?://[^/?#]`}

func noWebAddress(text string) bool {
	scheme, rest, found := strings.Cut(text, "://")
	return !found || !strings.EqualFold(scheme, "https") && !strings.EqualFold(scheme, "http") || rest == "" || strings.ContainsRune("/?#", rune(rest[0]))
}

func setWebAddress(at func(*GatewayOAuth) *string) func(*reader, *GatewayOAuth, *node) {
	return func(r *reader, o *GatewayOAuth, n *node) {
		if n.kind == kindString && noWebAddress(n.text) {
			r.fail("it is "+quote(n.text)+" and takes an https address", "write https://HOST/PATH")
			return
		}
		setString(at)(r, o, n)
	}
}

func setGatewayOAuth(r *reader, g *Gateway, n *node) {
	if n.kind != kindTable {
		r.wrongKind(n, nil, "a table", `{ issuers = ["https://…"], resource = "https://…" }`)
		return
	}
	at := r.at
	r.below(join(r.path, at.key), n, func(sub *reader) {
		g.OAuth = &GatewayOAuth{}
		seen := read(sub, gatewayOAuthFields, gatewayOAuthAliases, g.OAuth, n)
		for _, key := range []string{"issuers", "resource"} {
			if _, there := seen[key]; !there {
				sub.failAt(at.pos, []string{key}, "it is missing, and without it no token could be accepted", "add it, or remove the table")
			}
		}
		if jwks, there := seen["jwks_uri"]; there && len(g.OAuth.Issuers) > 1 {
			sub.failAt(jwks.pos, []string{"jwks_uri"}, "several issuers cannot share one", "remove it: the metadata of each says where its keys are")
		}
	})
	r.at = at
}

// setFile takes the path of a file, relative to the configuration's folder.
func setFile[T any](at func(*T) *string) func(*reader, *T, *node) {
	return func(r *reader, into *T, n *node) {
		var path string
		setString(func(*T) *string { return &path })(r, into, n)
		if path != "" {
			home, _ := os.UserHomeDir()
			*at(into) = filepath.Clean(Value{dir: r.dir}.path(path, home))
		}
	}
}
