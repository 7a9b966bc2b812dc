package authority

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"nightporter/internal/config"
	"nightporter/internal/mcp/wire"
	"nightporter/internal/sandbox"
)

// Policy is the sandbox state that a policy of the configuration comes to in a working directory, an absolute path (A28).
// Nil and a nil policy are none.
func Policy(p *config.Sandbox, dir string) (string, error) {
	switch {
	case p == nil:
		return "", nil
	case p.Profile != nil: // stays the bytes that it is
		if _, err := sandbox.ParseProfile(p.Profile); err != nil {
			return "", fmt.Errorf("the grant's sandbox is no permission profile: %w", err)
		}
		return string(sandbox.Encode(dir, p.Profile)), nil
	case p.Mode == "":
		return "", errors.New("the grant's sandbox cannot be told: it is not understood, or of two that hold neither lies within the other")
	}
	state, err := p.State(dir)
	if err != nil {
		return "", fmt.Errorf("the grant's %w", err)
	}
	return string(state.JSON()), nil
}

// Narrower is the policy of who must keep two of them: the one that lies within the other. Where neither does, it is a policy that
// comes to no state, under which calls are refused. Nil says nothing.
func Narrower(a, b *config.Sandbox) *config.Sandbox {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	const anywhere = "/nightporter/anywhere" // both mean the same folder, whichever it is
	stateA, errA := Policy(a, anywhere)
	stateB, errB := Policy(b, anywhere)
	switch {
	case errA != nil:
		return a
	case errB != nil:
		return b
	case Within(stateA, stateB) == nil:
		return a
	case Within(stateB, stateA) == nil:
		return b
	}
	return &config.Sandbox{}
}

// Within reports nil when a command under the sandbox state inner provably may do nothing that it may not do under outer, and
// else why that is not certain. Two states that are written the same are within one another, whatever they say.
//
// What a path means is known only when a command runs: symbolic links, TMPDIR. So places are compared as they are
// named: inner may write and read only what outer names, and must except each place that outer excepts. Patterns, and places that
// only other versions of Codex know, cannot be compared.
func Within(inner, outer string) error {
	if inner == outer {
		return nil
	}
	out, err := reachOf(outer)
	if err != nil {
		return fmt.Errorf("it cannot be compared with that which holds: %w", err)
	}
	if out.profile.Type == sandbox.Disabled {
		return nil
	}
	in, err := reachOf(inner)
	switch {
	case err != nil:
		return fmt.Errorf("it cannot be compared: %w", err)
	case in.profile.Type != sandbox.Managed || out.profile.Type != sandbox.Managed:
		return fmt.Errorf("its permission profile is %q where %q holds", in.profile.Type, out.profile.Type)
	case in.legacy && !out.legacy:
		return errors.New("it asks for the older of two mechanisms (useLegacyLandlock)")
	case in.profile.Network != out.profile.Network && in.profile.Network != sandbox.Restricted:
		return errors.New("it opens the network")
	case out.profile.Files.Unrestricted:
		return nil
	case in.profile.Files.Unrestricted:
		return errors.New("it opens the whole file system")
	}
	return in.under(out)
}

// reach is what a sandbox state allows, as far as it can be compared.
type reach struct {
	profile sandbox.Profile
	legacy  bool
	places  map[sandbox.Place]sandbox.Entry
}

func reachOf(state string) (r reach, err error) {
	s, err := sandbox.Parse(json.RawMessage(state))
	if err != nil {
		return r, err
	}
	r.profile, r.places = s.Profile, map[sandbox.Place]sandbox.Entry{}
	r.legacy = string(wire.Get([]byte(state), "useLegacyLandlock")) == "true"
	for _, e := range s.Profile.Files.Entries {
		place := e.Place
		switch place.Kind {
		case sandbox.AtPath, sandbox.Root, sandbox.Minimal, sandbox.TmpDir, sandbox.SlashTmp:
		case sandbox.ProjectRoots:
			place = sandbox.Place{Kind: sandbox.AtPath, Path: filepath.Join(s.Cwd, place.Path)}
		default:
			return r, fmt.Errorf("places of the kind %s cannot be compared", place.Kind)
		}
		if _, twice := r.places[place]; twice {
			return r, fmt.Errorf("%s is there twice", named(place))
		}
		r.places[place] = e
	}
	return r, nil
}

func named(p sandbox.Place) string {
	if p.Kind == sandbox.AtPath {
		return p.Path
	}
	return string(p.Kind)
}

// rank orders accesses; nothing is as none.
var rank = map[sandbox.Access]int{sandbox.Read: 1, sandbox.Write: 2}

// under compares places. Of those that cover a file the most specific decides, so that each of in must be one of out that
// gives as much, or lie where out gives as much everywhere; and each of out that gives less than in does somewhere must be one of in.
func (in reach) under(out reach) error {
	everywhere := rank[out.places[sandbox.Place{Kind: sandbox.Root}].Access]
	for _, e := range out.places {
		everywhere = min(everywhere, rank[e.Access])
	}
	most := 0
	for place, e := range in.places {
		most = max(most, rank[e.Access])
		as := out.places[place]
		if (rank[e.Access] > rank[as.Access] || as.SkipMissing && !e.SkipMissing) && rank[e.Access] > everywhere {
			return fmt.Errorf("it opens %s for more than that which holds", named(place))
		}
	}
	for place, e := range out.places {
		if place.Kind == sandbox.Root || rank[e.Access] >= most {
			continue
		}
		own, has := in.places[place]
		if !has || rank[own.Access] > rank[e.Access] || own.SkipMissing && !e.SkipMissing {
			return fmt.Errorf("it does not keep %s as that which holds does", named(place))
		}
	}
	return nil
}
