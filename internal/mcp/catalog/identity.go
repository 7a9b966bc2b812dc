package catalog

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"

	"nightporter/internal/secret"
)

// Identity stands for everything that decides what a server is: 64 hex digits in lower case.
type Identity string

// Parts is what an identity is made from (A11). Filters, timeouts, approval modes and
// other servers are not in it.
type Parts struct {
	Name      string // configured name
	Transport string // "stdio", "http", "sse"

	Command string                   // resolved to a path; stdio
	Args    []string                 // in order
	Env     map[string]secret.String // env, and the values of env_vars
	Cwd     string                   // the server's, else the client's
	Sandbox string                   // the sandbox state of the process; empty: it has none

	URL     string
	Headers map[string]secret.String

	Era                string          // protocol era that is spoken to the server
	ClientCapabilities json.RawMessage // those that change what a server lists; order of members and white space do not matter
}

// Identity returns the identity that p has in this store. It is keyed by the store's secret key, so that no value
// of p can be guessed from it without the key; another store gives another identity. The
// order of maps does not matter; nil and empty are the same.
func (s *Store) Identity(p Parts) Identity {
	b := field(nil, "nightporter server identity 1")
	for _, text := range []string{p.Name, p.Transport, p.Command, p.Cwd, p.URL, p.Era} {
		b = field(b, text)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(len(p.Args)))
	for _, arg := range p.Args {
		b = field(b, arg)
	}
	for _, m := range []map[string]secret.String{p.Env, p.Headers} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(m)))
		for _, key := range slices.Sorted(maps.Keys(m)) {
			b = field(field(b, key), m[key].Reveal())
		}
	}
	capabilities := Digest(p.ClientCapabilities)
	b = append(b, capabilities[:]...)
	if p.Sandbox != "" { // what was saved before there were sandboxes stays known
		b = field(b, p.Sandbox)
	}

	mac := hmac.New(sha256.New, s.key)
	mac.Write(b)
	return Identity(hex.EncodeToString(mac.Sum(nil)))
}

// valid reports whether id has an identity's form, and so can stand in a file name.
func (id Identity) valid() bool {
	if len(id) != 2*sha256.Size {
		return false
	}
	for _, c := range id {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
