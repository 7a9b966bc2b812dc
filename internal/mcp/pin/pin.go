// Package pin holds back tools whose definitions a person has not accepted (REQUIREMENTS A17).
//
// What a tool says of itself goes to a model, and a server can change it at any time. Of a server with pin = true
// the definitions are kept as they were accepted: those of its first listing without asking, later ones by a person.
// docs/pinning.md describes the files.
package pin

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"nightporter/internal/mcp/catalog"
	"nightporter/internal/mcp/wire"
)

// Why a tool is held back. Models read it as well: no word of the server's is in it, and no path.
const (
	heldChanged = "its definition has changed since it was accepted" + heldMend
	heldNew     = "it is new since the server's tools were accepted" + heldMend
	heldUnknown = "the record of the server's accepted tools cannot be used; nightporter tools diff says why, nightporter tools accept makes a new one"
	heldMend    = "; nightporter tools diff shows what differs, nightporter tools accept accepts it"
)

// Check returns why each of the tools that may not be offered is held back, by raw name. tools is a whole listing
// of the server, each definition as it was sent; those without a name are left out. The definitions of a
// server of which nothing is known are recorded as accepted; an empty listing is not, because nothing was seen.
//
// Where it is not known what was accepted, or it cannot be recorded, every tool is held back and err says why: held
// may be used without looking at err.
func (s *Store) Check(server string, tools []json.RawMessage) (held map[string]string, err error) {
	listed := byName(tools)
	accepted, err := s.read(server)
	if errors.Is(err, ErrNone) {
		if len(listed) == 0 {
			return nil, nil
		}
		accepted, err = s.first(server, tools)
	}
	held = map[string]string{}
	known := byName(accepted)
	for name, definitions := range listed {
		switch {
		case err != nil:
			held[name] = heldUnknown
		case known[name] == nil:
			held[name] = heldNew
		case !slices.EqualFunc(known[name], definitions, same):
			held[name] = heldChanged
		}
	}
	return held, about(server, err)
}

// first records a server's first listing, unless another process was first, and returns what is accepted then.
func (s *Store) first(server string, tools []json.RawMessage) ([]json.RawMessage, error) {
	unlock, err := s.lock(server)
	if err != nil {
		return nil, err
	}
	defer unlock()
	accepted, err := s.read(server)
	if !errors.Is(err, ErrNone) {
		return accepted, err
	}
	return tools, s.write(server, tools)
}

// Accept records definitions of tools, a listing of the server, as accepted: those of the tools that are named,
// everything else staying as it was, or without names the whole listing, so that tools that are gone are accepted no
// longer. A name that is not listed is an *[UnlistedError], and nothing is recorded. A damaged file is set aside; what it held
// counts as not accepted.
func (s *Store) Accept(server string, tools []json.RawMessage, names ...string) error {
	return about(server, s.accept(server, tools, names))
}

func (s *Store) accept(server string, tools []json.RawMessage, names []string) error {
	listed := byName(tools)
	for _, name := range names {
		if listed[name] == nil {
			return &UnlistedError{name}
		}
	}
	unlock, err := s.lock(server)
	if err != nil {
		return err
	}
	defer unlock()
	accepted, err := s.read(server)
	switch {
	case errors.Is(err, ErrDamaged):
		if err := s.setAside(server); err != nil {
			return err
		}
	case err != nil && !errors.Is(err, ErrNone):
		return err
	}
	if len(names) == 0 {
		return s.write(server, tools)
	}
	named := func(raw json.RawMessage) bool { return slices.Contains(names, nameOf(raw)) }
	kept := slices.DeleteFunc(accepted, named)
	for _, raw := range tools {
		if named(raw) {
			kept = append(kept, raw)
		}
	}
	return s.write(server, kept)
}

// Diff compares a listing of the server with what was accepted. Errors: [ErrNone], [ErrDamaged], or one of reading the file.
func (s *Store) Diff(server string, tools []json.RawMessage) (Diff, error) {
	accepted, err := s.read(server)
	if err != nil {
		return nil, about(server, err)
	}
	return Compare(accepted, tools), nil
}

// UnlistedError says that the server does not list a tool that was to be accepted.
type UnlistedError struct{ Tool string }

func (e *UnlistedError) Error() string { return fmt.Sprintf("it lists no tool %q", e.Tool) }

// about says which server an error is about.
func about(server string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("accepted tools of server %q: %w", server, err)
}

// nameOf is a tool's raw name, empty when it has none.
func nameOf(raw json.RawMessage) string {
	name, _ := wire.GetString(raw, "name")
	return name
}

// byName groups definitions. A name may have several, of which clients take one or another: they count together, in their order.
func byName(tools []json.RawMessage) map[string][]json.RawMessage {
	groups := map[string][]json.RawMessage{}
	for _, raw := range tools {
		if name := nameOf(raw); name != "" {
			groups[name] = append(groups[name], raw)
		}
	}
	return groups
}

// same reports whether two definitions say the same: the order of members and white space do not count, all else does.
func same(a, b json.RawMessage) bool { return catalog.Digest(a) == catalog.Digest(b) }

// sorted returns the definitions that have a name in order of it.
func sorted(tools []json.RawMessage) []json.RawMessage {
	named := slices.DeleteFunc(slices.Clone(tools), func(raw json.RawMessage) bool { return nameOf(raw) == "" })
	slices.SortStableFunc(named, func(a, b json.RawMessage) int { return strings.Compare(nameOf(a), nameOf(b)) })
	return named
}
