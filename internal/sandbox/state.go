// Package sandbox confines a command to what a sandbox state allows: the state that Codex sends with a tool call,
// and the same shape made by Nightporter itself.
//
// A state is read by [Parse], which is total, and made by [ReadOnly], [WorkspaceWrite] and [Encode].
package sandbox

import (
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"nightporter/internal/mcp/wire"
)

// State is a sandbox state: what a command may do, and where it runs. facts/codex-runtime.md, section 6, has its wire shape.
type State struct {
	Cwd     string // absolute, clean, native to this host
	Profile Profile
}

// Profile is what a command may do.
type Profile struct {
	Type    ProfileType
	Files   FileSystem // of a managed profile
	Network Network    // of a managed or external profile
}

// ProfileType says who confines.
type ProfileType string

const (
	Disabled ProfileType = "disabled" // nobody
	External ProfileType = "external" // somebody around the client, of whom nothing is known here: enforced as read-only
	Managed  ProfileType = "managed"  // whoever runs the command
)

// FileSystem is what of the file system a managed profile opens.
type FileSystem struct {
	Unrestricted bool    // all of it, for reading and writing; the rest is empty
	Entries      []Entry // what no entry opens is closed, for reading too
	GlobDepth    int     // how many folders deep a ** in a pattern is followed; 0: not given
}

// Entry opens or closes a part of the file system. The entry whose path is longest decides; of equally long
// ones the order is none, write, read.
type Entry struct {
	Place  Place
	Access Access
	// SkipMissing leaves the entry out while nothing exists at its path.
	SkipMissing bool
}

// Access is what an entry allows.
type Access string

const (
	Read  Access = "read"
	Write Access = "write" // and to read
	None  Access = "none"  // Codex 0.171.0 writes and reads none, and reads deny for it as well (measured)
)

// Place says which part of the file system an entry is about.
type Place struct {
	Kind PlaceKind
	// Path is for AtPath an absolute, clean path; for Glob the pattern; for ProjectRoots what is below the
	// working directory, or empty; for UnknownPlace the name that a newer Codex has for it.
	Path string
}

// PlaceKind is the kind of a [Place]. The values are those of the wire: a path's type, or a special path's kind.
type PlaceKind string

const (
	AtPath       PlaceKind = "path"
	Glob         PlaceKind = "glob_pattern"
	Root         PlaceKind = "root"
	Minimal      PlaceKind = "minimal"       // what programs need to start: /bin, /etc, /lib, /usr and the like
	ProjectRoots PlaceKind = "project_roots" // the state's working directory, or a path below it
	TmpDir       PlaceKind = "tmpdir"        // the folder that the variable TMPDIR names, if it does
	SlashTmp     PlaceKind = "slash_tmp"     // /tmp
	UnknownPlace PlaceKind = "unknown"       // a place that a newer Codex knows
	// workingDirectory is an older name of ProjectRoots without a path below it.
	workingDirectory PlaceKind = "current_working_directory"
)

// Network is whether a command may reach the network.
type Network string

const (
	Restricted Network = "restricted" // no, not even this host's loopback addresses
	Enabled    Network = "enabled"
)

// Parse reads a state. Unknown fields are ignored and the order of fields does not matter; an error names the
// field that is missing, repeated, of a wrong type, or has a value that is not known.
//
// It takes what Codex 0.171.0 takes (measured), but for three things that Codex takes and Parse does not: a profile without
// a type (an older shape, {"file_system":{"read":[…]}}), a working directory as relative URI
// (file:tmp), and one with a stray percent sign.
func Parse(raw json.RawMessage) (State, error) {
	if err := wire.Check(raw); err != nil {
		return State{}, err
	}
	top, err := readObject(raw, "", "permissionProfile", "codexLinuxSandboxExe", "sandboxCwd", "useLegacyLandlock", "useMxc")
	if err != nil {
		return State{}, err
	}
	// The helper that a client names is input from outside: its type is checked, and it is never executed.
	if v, ok := top.get("codexLinuxSandboxExe"); ok && string(v) != "null" {
		if _, err := top.text("codexLinuxSandboxExe"); err != nil {
			return State{}, err
		}
	}
	for _, key := range []string{"useLegacyLandlock", "useMxc"} {
		if v, ok := top.get(key); ok && string(v) != "true" && string(v) != "false" {
			return State{}, top.wrong(key, "expected true or false")
		}
	}
	profile, err := top.need("permissionProfile")
	if err != nil {
		return State{}, err
	}
	var s State
	if s.Profile, err = readProfile(profile, "permissionProfile"); err != nil {
		return State{}, err
	}
	cwd, err := top.text("sandboxCwd")
	if err != nil {
		return State{}, err
	}
	if s.Cwd, err = nativePath(cwd, runtime.GOOS); err != nil {
		return State{}, top.wrong("sandboxCwd", err.Error())
	}
	return s, nil
}

// ParseProfile reads a permission profile alone.
func ParseProfile(raw json.RawMessage) (Profile, error) {
	if err := wire.Check(raw); err != nil {
		return Profile{}, err
	}
	return readProfile(raw, "")
}

func readProfile(raw json.RawMessage, path string) (Profile, error) {
	o, err := readObject(raw, path, "type", "file_system", "network")
	if err != nil {
		return Profile{}, err
	}
	kind, err := o.variant("type", string(Managed), string(Disabled), string(External))
	if err != nil {
		return Profile{}, err
	}
	p := Profile{Type: ProfileType(kind)}
	if p.Type == Disabled {
		return p, nil // whatever else is there; so does Codex
	}
	if p.Type == Managed {
		files, err := o.need("file_system")
		if err != nil {
			return Profile{}, err
		}
		if p.Files, err = readFileSystem(files, join(path, "file_system")); err != nil {
			return Profile{}, err
		}
	}
	network, err := o.variant("network", string(Restricted), string(Enabled))
	if err != nil {
		return Profile{}, err
	}
	p.Network = Network(network)
	return p, nil
}

func readFileSystem(raw json.RawMessage, path string) (FileSystem, error) {
	o, err := readObject(raw, path, "type", "entries", "glob_scan_max_depth")
	if err != nil {
		return FileSystem{}, err
	}
	kind, err := o.variant("type", "restricted", "unrestricted")
	if err != nil {
		return FileSystem{}, err
	}
	if kind == "unrestricted" {
		return FileSystem{Unrestricted: true}, nil
	}
	var f FileSystem
	entries, err := o.need("entries")
	if err != nil {
		return FileSystem{}, err
	}
	list, err := wire.Elements(entries)
	if err != nil {
		return FileSystem{}, o.wrong("entries", "expected an array")
	}
	for i, raw := range list {
		e, err := readEntry(raw, fmt.Sprintf("%s[%d]", join(path, "entries"), i))
		if err != nil {
			return FileSystem{}, err
		}
		f.Entries = append(f.Entries, e)
	}
	if depth, ok := o.get("glob_scan_max_depth"); ok && string(depth) != "null" {
		if f.GlobDepth, err = strconv.Atoi(string(depth)); err != nil || f.GlobDepth < 1 {
			return FileSystem{}, o.wrong("glob_scan_max_depth", "expected a whole number, at least 1")
		}
	}
	return f, nil
}

func readEntry(raw json.RawMessage, path string) (Entry, error) {
	o, err := readObject(raw, path, "path", "access", "missing_path_behavior")
	if err != nil {
		return Entry{}, err
	}
	place, err := o.need("path")
	if err != nil {
		return Entry{}, err
	}
	var e Entry
	if e.Place, err = readPlace(place, join(path, "path")); err != nil {
		return Entry{}, err
	}
	access, err := o.variant("access", string(Read), string(Write), string(None), "deny")
	if err != nil {
		return Entry{}, err
	}
	e.Access = Access(access)
	if access == "deny" {
		e.Access = None
	}
	if missing, ok := o.get("missing_path_behavior"); ok && string(missing) != "null" {
		if _, err := o.variant("missing_path_behavior", "skip"); err != nil {
			return Entry{}, err
		}
		e.SkipMissing = true
	}
	return e, nil
}

func readPlace(raw json.RawMessage, path string) (Place, error) {
	o, err := readObject(raw, path, "type", "path", "pattern", "value")
	if err != nil {
		return Place{}, err
	}
	kind, err := o.variant("type", "path", "glob_pattern", "special")
	if err != nil {
		return Place{}, err
	}
	switch kind {
	case "path":
		text, err := o.text("path")
		switch {
		case err != nil:
			return Place{}, err
		case !filepath.IsAbs(text) || strings.ContainsRune(text, 0):
			return Place{}, o.wrong("path", fmt.Sprintf("%q is not an absolute path", text))
		}
		return Place{AtPath, filepath.Clean(text)}, nil
	case "glob_pattern":
		pattern, err := o.text("pattern")
		return Place{Glob, pattern}, err
	}
	value, err := o.need("value")
	if err != nil {
		return Place{}, err
	}
	return readSpecial(value, join(path, "value"))
}

func readSpecial(raw json.RawMessage, path string) (Place, error) {
	o, err := readObject(raw, path, "kind", "subpath", "path")
	if err != nil {
		return Place{}, err
	}
	kind, err := o.variant("kind", string(Root), string(Minimal), string(ProjectRoots), string(TmpDir), string(SlashTmp), string(UnknownPlace), string(workingDirectory))
	if err != nil {
		return Place{}, err
	}
	switch p := (Place{Kind: PlaceKind(kind)}); p.Kind {
	case workingDirectory:
		return Place{Kind: ProjectRoots}, nil
	case UnknownPlace:
		p.Path, err = o.text("path")
		return p, err
	case ProjectRoots:
		if v, ok := o.get("subpath"); ok && string(v) != "null" {
			if p.Path, err = o.text("subpath"); err == nil && strings.ContainsRune(p.Path, 0) {
				err = o.wrong("subpath", fmt.Sprintf("%q is not a path", p.Path))
			}
		}
		return p, err
	default:
		return p, nil
	}
}

// nativePath is the path that a file URI names on a system.
func nativePath(uri, goos string) (string, error) {
	if strings.ContainsAny(uri, "?#\\") {
		return "", fmt.Errorf("%q is not a file URI: it has a query, a fragment or a backslash", uri)
	}
	u, err := url.Parse(uri)
	switch {
	case err != nil:
		return "", fmt.Errorf("%q is not a file URI", uri)
	case u.Scheme == "":
		return "", fmt.Errorf("%q is not a file URI: it has no scheme; write file://%s", uri, (&url.URL{Path: uri}).EscapedPath())
	case u.Scheme != "file":
		return "", fmt.Errorf("%q is not a file URI: its scheme is %s", uri, u.Scheme)
	case u.Opaque != "" || strings.ContainsRune(u.Path, 0):
		return "", fmt.Errorf("%q is not a file URI of an absolute path", uri)
	case u.Host != "" && u.Host != "localhost":
		return "", fmt.Errorf("%q is not native to this host: it names the host %s", uri, u.Host)
	}
	path := u.Path
	if path == "" {
		path = "/"
	}
	drive := len(path) >= 3 && path[0] == '/' && path[2] == ':' && isLetter(path[1]) && (len(path) == 3 || path[3] == '/')
	if drive != (goos == "windows") {
		return "", fmt.Errorf("%q is not native to this host, which runs %s", uri, goos)
	}
	if drive {
		path = path[1:]
	}
	return filepath.Clean(filepath.FromSlash(path)), nil
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

// uriOf is a native absolute path as file URI.
func uriOf(path string) string {
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return (&url.URL{Scheme: "file", Path: path}).String()
}

// object is a JSON object of which some fields are read. Each of these is there at most once.
type object struct {
	path   string // where it is, for errors
	fields map[string]json.RawMessage
}

func readObject(raw json.RawMessage, path string, known ...string) (object, error) {
	o := object{path, map[string]json.RawMessage{}}
	members, err := wire.Members(raw)
	if err != nil {
		return o, at(path, "expected an object")
	}
	for _, m := range members {
		if !slices.Contains(known, m.Key) {
			continue
		}
		if _, twice := o.fields[m.Key]; twice {
			return o, at(path, fmt.Sprintf("duplicate field `%s`", m.Key))
		}
		o.fields[m.Key] = m.Value
	}
	return o, nil
}

func (o object) get(key string) (json.RawMessage, bool) {
	v, ok := o.fields[key]
	return v, ok
}

func (o object) need(key string) (json.RawMessage, error) {
	v, ok := o.fields[key]
	if !ok {
		return nil, at(o.path, fmt.Sprintf("missing field `%s`", key))
	}
	return v, nil
}

func (o object) text(key string) (string, error) {
	v, err := o.need(key)
	if err != nil {
		return "", err
	}
	text, ok := wire.Text(v)
	if !ok {
		return "", o.wrong(key, "expected a string")
	}
	return text, nil
}

func (o object) variant(key string, known ...string) (string, error) {
	text, err := o.text(key)
	if err != nil {
		return "", err
	}
	if !slices.Contains(known, text) {
		return "", o.wrong(key, fmt.Sprintf("unknown variant `%s`, expected one of `%s`", text, strings.Join(known, "`, `")))
	}
	return text, nil
}

func (o object) wrong(key, what string) error { return at(join(o.path, key), what) }

func at(path, what string) error {
	if path == "" {
		return fmt.Errorf("%s", what)
	}
	return fmt.Errorf("%s: %s", path, what)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
