package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"nightporter/internal/sandbox"
)

// Sandbox is what a stdio server's process, or the commands of a grant's tools, may do.
type Sandbox struct {
	Mode    string          // "read-only", "workspace-write" or "table"; empty when there is a profile
	Profile json.RawMessage // a permission profile, in the shape that Codex has for it; nil when there is none

	// Of a table: paths, absolute or below the working directory.
	Readable []string // nil: everything; else these alone, and what programs need to start
	Writable []string // and to read
	Network  bool
}

const (
	readOnly       = "read-only"
	workspaceWrite = "workspace-write"
	ownTable       = "table"
)

// State is the sandbox state that s comes to in a working directory, an absolute path.
func (s *Sandbox) State(dir string) (sandbox.State, error) {
	network := sandbox.Restricted
	if s.Network {
		network = sandbox.Enabled
	}
	switch {
	case s.Profile != nil:
		p, err := sandbox.ParseProfile(s.Profile)
		if err != nil {
			return sandbox.State{}, fmt.Errorf("sandbox is no permission profile: %w", err)
		}
		return sandbox.State{Cwd: dir, Profile: p}, nil
	case s.Mode == readOnly:
		return sandbox.ReadOnly(dir, network), nil
	case s.Mode == workspaceWrite:
		return sandbox.WorkspaceWrite(dir, network), nil
	case s.Mode != ownTable:
		return sandbox.State{}, fmt.Errorf("sandbox is %q, which is not known", s.Mode)
	}
	state := sandbox.ReadOnly(dir, network)
	if s.Readable != nil {
		state.Profile.Files.Entries = []sandbox.Entry{{Place: sandbox.Place{Kind: sandbox.Minimal}, Access: sandbox.Read}}
	}
	for _, list := range []struct {
		paths  []string
		access sandbox.Access
	}{{s.Readable, sandbox.Read}, {s.Writable, sandbox.Write}} {
		for _, path := range list.paths {
			if !filepath.IsAbs(path) {
				path = filepath.Join(dir, path)
			}
			place := sandbox.Place{Kind: sandbox.AtPath, Path: filepath.Clean(path)}
			state.Profile.Files.Entries = append(state.Profile.Files.Entries, sandbox.Entry{Place: place, Access: list.access})
		}
	}
	return state, nil
}

// String is s for a person.
func (s *Sandbox) String() string {
	if s.Profile != nil {
		return "permission profile"
	}
	network := "no network"
	if s.Network {
		network = "network"
	}
	what := s.Mode
	if what == ownTable {
		what = "reads everything"
		if s.Readable != nil {
			what = "reads " + strings.Join(append([]string{"system folders"}, s.Readable...), " ")
		}
		if len(s.Writable) > 0 {
			what += ", writes " + strings.Join(s.Writable, " ")
		}
	}
	return what + ", " + network
}

// sandbox reads the key sandbox. A confinement that was asked for is never dropped: what cannot be read is a problem of
// the entry.
func (r *reader) sandbox(n *node) *Sandbox {
	s := &Sandbox{}
	switch {
	case n.kind == kindString:
		readEnum(r, &s.Mode, []string{readOnly, workspaceWrite}, nil, n)
	case n.kind != kindTable:
		r.wrongKind(n, nil, "read-only, workspace-write or a table", `"read-only"`)
	case n.get("type") != nil:
		profile, err := n.raw()
		if err == nil {
			_, err = sandbox.ParseProfile(profile)
		}
		if err != nil {
			r.fail(err.Error(), "")
		}
		s.Profile = profile
	default:
		s.Mode = ownTable
		r.below(join(r.path, r.at.key), n, func(sub *reader) { read(sub, sandboxFields, nil, s, n) })
	}
	return s
}

var sandboxFields = []field[Sandbox]{
	{
		key: "readable", typ: "string[]", doc: "All that may be read, beside what programs need to start. Default: everything.",
		example: []string{"/opt/crm", "data"}, schema: paths,
		set: setPaths(func(s *Sandbox) *[]string { return &s.Readable }),
	},
	{
		key: "writable", typ: "string[]", doc: "What may be written.",
		example: []string{"data/cache"}, schema: paths,
		set: setPaths(func(s *Sandbox) *[]string { return &s.Writable }),
	},
	{
		key: "network", typ: "bool", def: false, doc: "Whether the network may be reached.",
		example: true,
		set:     setBool(func(s *Sandbox) *bool { return &s.Network }),
	},
}

var paths = rules{"items": rules{"type": "string", "pattern": "^[^~]"}}

// setPaths reads a list of paths. ~ is a shell's and no path's, and would be taken for a folder of that name.
func setPaths(at func(*Sandbox) *[]string) func(*reader, *Sandbox, *node) {
	plain := setStrings(at)
	return func(r *reader, s *Sandbox, n *node) {
		plain(r, s, n)
		list := at(s)
		if *list == nil {
			*list = []string{} // given, and not the default
		}
		for _, path := range *list {
			if err := checkPath(path); err != nil {
				r.fail(err.Error(), "")
			}
		}
	}
}

func checkPath(path string) error {
	switch {
	case path == "":
		return errors.New("an empty path is not known here; . is the working directory")
	case path[0] == '~':
		return fmt.Errorf("%q is not expanded; write the path in full", path)
	case strings.ContainsRune(path, 0):
		return fmt.Errorf("%q is not a path", path)
	}
	return nil
}
