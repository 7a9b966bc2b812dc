package sandbox

import (
	"encoding/json"
	"path/filepath"
	"slices"

	"nightporter/internal/mcp/wire"
)

// protected is what stays read-only inside a folder that may be written: what a command could use to act
// outside its sandbox later, through a client or git. The names are Codex's (measured on 0.171.0, with and without the
// entries that it writes into its states).
var protected = []string{".git", ".agents", ".codex", ".aws"}

// ReadOnly is the state in which a command may read everything and write nothing. cwd is absolute.
func ReadOnly(cwd string, network Network) State {
	return State{Cwd: filepath.Clean(cwd), Profile: Profile{
		Type:    Managed,
		Files:   FileSystem{Entries: []Entry{{Place: Place{Kind: Root}, Access: Read}}},
		Network: network,
	}}
}

// WorkspaceWrite is the state in which a command may read everything, and write its working directory but for what
// clients and git keep there, the folders for temporary files, and those named. cwd and writable are absolute.
func WorkspaceWrite(cwd string, network Network, writable ...string) State {
	s := ReadOnly(cwd, network)
	entries := append(s.Profile.Files.Entries,
		Entry{Place: Place{AtPath, s.Cwd}, Access: Write},
		Entry{Place: Place{Kind: SlashTmp}, Access: Write},
		Entry{Place: Place{Kind: TmpDir}, Access: Write})
	for _, name := range protected {
		entries = append(entries, Entry{Place: Place{AtPath, filepath.Join(s.Cwd, name)}, Access: Read, SkipMissing: true})
	}
	for _, path := range writable {
		entries = append(entries, Entry{Place: Place{AtPath, filepath.Clean(path)}, Access: Write})
	}
	s.Profile.Files.Entries = entries
	return s
}

// JSON is s in the shape that Codex 0.171.0 sends.
func (s State) JSON() json.RawMessage { return Encode(s.Cwd, s.Profile.JSON()) }

// Encode is the state of a working directory, an absolute path, and a permission profile, one that [ParseProfile]
// takes and that stays the bytes that it is.
func Encode(cwd string, profile json.RawMessage) json.RawMessage {
	// Fields in Codex's order, and by hand: encoding/json would rewrite the profile.
	return slices.Concat([]byte(`{"permissionProfile":`), profile,
		[]byte(`,"codexLinuxSandboxExe":null,"sandboxCwd":`), wire.Quote(uriOf(cwd)),
		[]byte(`,"useLegacyLandlock":false,"useMxc":false}`))
}

// JSON is p in the shape that Codex 0.171.0 sends.
func (p Profile) JSON() json.RawMessage {
	w := wireProfile{Type: p.Type, Network: p.Network}
	if p.Type == Managed {
		w.Files = wireFiles(p.Files)
	}
	return wire.Encode(w)
}

type wireProfile struct {
	Type    ProfileType     `json:"type"`
	Files   json.RawMessage `json:"file_system,omitempty"`
	Network Network         `json:"network,omitempty"`
}

type (
	wireEntry struct {
		Path    json.RawMessage `json:"path"`
		Access  Access          `json:"access"`
		Missing string          `json:"missing_path_behavior,omitempty"`
	}
	wireSpecial struct {
		Kind    PlaceKind `json:"kind"`
		Path    string    `json:"path,omitempty"`
		Subpath string    `json:"subpath,omitempty"`
	}
)

func wireFiles(f FileSystem) json.RawMessage {
	if f.Unrestricted {
		return wire.Encode(map[string]string{"type": "unrestricted"})
	}
	entries := make([]wireEntry, 0, len(f.Entries))
	for _, e := range f.Entries {
		w := wireEntry{Path: wirePlace(e.Place), Access: e.Access}
		if e.SkipMissing {
			w.Missing = "skip"
		}
		entries = append(entries, w)
	}
	return wire.Encode(struct {
		Type    string      `json:"type"`
		Entries []wireEntry `json:"entries"`
		Depth   int         `json:"glob_scan_max_depth,omitempty"`
	}{"restricted", entries, f.GlobDepth})
}

func wirePlace(p Place) json.RawMessage {
	type place struct {
		Type    string       `json:"type"`
		Path    string       `json:"path,omitempty"`
		Pattern *string      `json:"pattern,omitempty"`
		Value   *wireSpecial `json:"value,omitempty"`
	}
	switch p.Kind {
	case AtPath:
		return wire.Encode(place{Type: "path", Path: p.Path})
	case Glob:
		return wire.Encode(place{Type: "glob_pattern", Pattern: &p.Path})
	case ProjectRoots:
		return wire.Encode(place{Type: "special", Value: &wireSpecial{Kind: p.Kind, Subpath: p.Path}})
	default:
		return wire.Encode(place{Type: "special", Value: &wireSpecial{Kind: p.Kind, Path: p.Path}})
	}
}
