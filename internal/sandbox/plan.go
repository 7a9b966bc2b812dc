package sandbox

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
)

// Plan is what a state comes to on one host: rules about paths that exist, without links. It is data; [Run] enforces it.
type Plan struct {
	Cwd string
	// Unconfined runs the command as it is.
	Unconfined bool
	Network    bool
	// Links are the symbolic links, by path, that paths of the state go through and that would be missing where only
	// what is opened is there: on many hosts /bin is one.
	Links map[string]string
	// Rules holds the root first, and what lies deeper behind what it lies in. Each rule
	// is about everything below its path but for what a later rule is about.
	Rules []Rule
}

// Rule is what may be done below a path.
type Rule struct {
	Path   string
	Access Access
	// Folder tells a folder from anything else.
	Folder bool
	// Missing is a path that does not exist and must not come into being; its folder may be written.
	Missing bool
	// Host is set for what is closed by the host and not by the state: that it is there may be known.
	Host bool
}

// A Host is what a plan depends on beside the state.
type Host struct {
	// Files is the file system from its root; it should be an [fs.ReadLinkFS].
	Files fs.FS
	// Getenv is the environment of the command.
	Getenv func(string) string
	// Readable are paths to open for reading beside what the state opens.
	Readable []string
	// Closed are paths that no command may reach, whatever its state: where this host's agents take orders. Those
	// that do not exist are left out.
	Closed []string
}

const (
	// maxLinks is how many symbolic links a path may have: the kernel's number.
	maxLinks = 40
	// maxVisited bounds the files that are looked at for patterns: they are looked at before every command.
	maxVisited = 100_000
	// maxRules bounds the rules, each of which is a mount.
	maxRules = 2000
)

// platform is what the special path minimal stands for: Codex's folders (measured), and where NixOS keeps the same.
var platform = []string{"/bin", "/etc", "/lib", "/lib64", "/sbin", "/usr", "/nix/store", "/run/current-system/sw"}

// NewPlan works out what s comes to. It fails where it cannot be told what s means, or where it would mean something else in a moment.
func NewPlan(s State, h Host) (Plan, error) {
	p := &planner{Host: h, cwd: s.Cwd, rules: map[string]*Rule{}}
	switch {
	case s.Profile.Type == Disabled:
		return Plan{Cwd: s.Cwd, Unconfined: true, Network: true}, nil
	case s.Profile.Type == External: // whoever confines there is not here, and the network is closed whatever it says: so does Codex
		s.Profile = ReadOnly(s.Cwd, Restricted).Profile
	case s.Profile.Files.Unrestricted:
		s.Profile.Files.Entries = []Entry{{Place: Place{Kind: Root}, Access: Write}}
	}
	plan := Plan{Cwd: s.Cwd, Network: s.Profile.Network == Enabled}
	if len(s.Profile.Files.Entries) == 1 && s.Profile.Files.Entries[0] == (Entry{Place: Place{Kind: Root}, Access: Write}) && plan.Network {
		plan.Unconfined = true // nothing is asked for
		return plan, nil
	}
	p.rules["/"] = &Rule{Path: "/", Folder: true}
	for _, e := range s.Profile.Files.Entries {
		if err := p.entry(e, s.Profile.Files.GlobDepth); err != nil {
			return Plan{}, err
		}
	}
	if p.rules["/"].Access == "" {
		p.rules["/"].Access = None
	}
	if err := p.protect(); err != nil {
		return Plan{}, err
	}
	if err := p.checkLinks(); err != nil {
		return Plan{}, err
	}
	for _, readable := range h.Readable {
		if err := p.open(readable); err != nil {
			return Plan{}, err
		}
	}
	for _, closed := range h.Closed {
		if r, err := p.resolve(closed); err == nil && r.exists {
			p.rules[r.path] = &Rule{Path: r.path, Access: None, Folder: r.folder, Host: true}
		}
	}
	plan.Rules = p.reduce()
	for _, l := range p.links {
		if over := p.over(l.at); over.Access == None && over.Path == "/" {
			if plan.Links == nil {
				plan.Links = map[string]string{}
			}
			plan.Links[l.at] = l.to
		}
	}
	if len(plan.Rules) > maxRules {
		return Plan{}, fmt.Errorf("the state comes to %d rules, more than %d", len(plan.Rules), maxRules)
	}
	return plan, nil
}

type planner struct {
	Host
	cwd     string
	rules   map[string]*Rule
	links   []link
	visited int
}

// link is a symbolic link that a path of the state goes through.
type link struct {
	at   string // where the link itself is
	to   string // what it says
	path string // of the state
}

// entry adds what one entry of the state is about.
func (p *planner) entry(e Entry, depth int) error {
	switch at := e.Place; at.Kind {
	case Root:
		p.add(resolved{path: "/", exists: true, folder: true}, e.Access)
		return nil
	case Minimal:
		if e.Access == None {
			return errors.New("the special path minimal cannot be closed; close the paths that are meant")
		}
		for _, dir := range platform {
			if err := p.addPath(dir, Read); err != nil {
				return err
			}
		}
		return nil
	case AtPath:
		return p.addPath(at.Path, e.Access)
	case ProjectRoots:
		if path.IsAbs(at.Path) {
			return p.addPath(path.Clean(at.Path), e.Access)
		}
		return p.addPath(path.Join(p.cwd, at.Path), e.Access)
	case SlashTmp:
		return p.addPath("/tmp", e.Access)
	case TmpDir:
		dir := p.Getenv("TMPDIR")
		switch {
		case dir == "":
			return nil
		case !path.IsAbs(dir):
			return fmt.Errorf("TMPDIR is %q, which is not an absolute path, and the state is about the folder that it names", dir)
		}
		return p.addPath(path.Clean(dir), e.Access)
	case Glob:
		if e.Access != None {
			return nil // patterns close, and open nothing; so does Codex. What they match may be a link that a command made
		}
		return p.glob(at.Path, depth, e.Access)
	default: // a place that a newer Codex knows
		if e.Access == None {
			return fmt.Errorf("the state closes the special path %q, which is not known here", at.Path)
		}
		return nil
	}
}

func (p *planner) addPath(at string, access Access) error {
	r, err := p.resolve(at)
	if err != nil {
		return err
	}
	for _, l := range r.links {
		l.path = at
		p.links = append(p.links, l)
	}
	p.add(r, access)
	return nil
}

// targetDate is the date of folders that are made to be mounted over, by which they are told from somebody's own.
var targetDate = time.Date(1971, 2, 3, 4, 5, 6, 7000, time.UTC)

// precedence decides between entries about one path; the order is Codex's.
var precedence = []Access{"", Read, Write, None}

func (p *planner) add(r resolved, access Access) {
	if !r.exists && access == Write {
		return // opens nothing; so does Codex, whatever missing_path_behavior says
	}
	at := r.path
	if !r.exists {
		at = r.missing
	}
	old := p.rules[at]
	if old == nil {
		old = &Rule{Path: at}
		p.rules[at] = old
	}
	old.Folder, old.Missing = r.folder, !r.exists
	if slices.Index(precedence, access) > slices.Index(precedence, old.Access) {
		old.Access = access
	}
}

// open adds a path that is to be readable, where nothing is said of it yet that is more.
func (p *planner) open(at string) error {
	if !path.IsAbs(at) {
		at = path.Join(p.cwd, at)
	}
	r, err := p.resolve(path.Clean(at))
	switch {
	case err != nil:
		return err
	case !r.exists:
		return fmt.Errorf("the readable root %s does not exist", at)
	}
	if over := p.over(r.path); over.Access == None && over.Path == "/" {
		p.add(r, Read)
	}
	return nil
}

// protect closes, in each folder that may be written, what clients and git keep there. A state that says something of
// such a path decides for itself.
func (p *planner) protect() error {
	var roots []string
	for at, r := range p.rules {
		if r.Access == Write && r.Folder && at != "/" {
			roots = append(roots, at)
		}
	}
	slices.Sort(roots)
	for _, root := range roots {
		for _, name := range protected {
			at := path.Join(root, name)
			if p.rules[at] != nil {
				continue
			}
			if err := p.addPath(at, Read); err != nil {
				return err
			}
			if name == ".git" {
				p.gitFolder(at)
			}
		}
	}
	return nil
}

// gitFolder protects the folder that a file .git, of a worktree or submodule, points to.
func (p *planner) gitFolder(at string) {
	rule := p.rules[at]
	if rule == nil || rule.Folder || rule.Missing {
		return
	}
	const maxPointer = 8 << 10 // longer than any path
	f, err := p.Files.Open(rel(at))
	if err != nil {
		return
	}
	defer f.Close()
	b := make([]byte, maxPointer)
	n, _ := f.Read(b)
	to, ok := strings.CutPrefix(string(b[:n]), "gitdir:")
	if !ok {
		return
	}
	to = strings.TrimSpace(to)
	if !path.IsAbs(to) {
		to = path.Join(path.Dir(at), to)
	}
	if r, err := p.resolve(path.Clean(to)); err == nil && r.exists && p.rules[r.path] == nil {
		p.add(r, Read)
	}
}

// checkLinks refuses a state that goes through a link which its command could turn elsewhere: the path would
// be another one by the next command, or already is.
func (p *planner) checkLinks() error {
	for _, l := range p.links {
		if p.over(l.at).Access == Write && p.over(l.at).Path != l.at {
			return fmt.Errorf("%s goes through the symbolic link %s, which the command could change; name the path that is meant", l.path, l.at)
		}
	}
	return nil
}

// over is the rule that decides about a path.
func (p *planner) over(at string) Rule {
	for {
		if r := p.rules[at]; r != nil {
			return *r
		}
		at = path.Dir(at)
	}
}

// reduce leaves out the rules that change nothing, and orders the others.
func (p *planner) reduce() []Rule {
	var all []*Rule
	for _, r := range p.rules {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *Rule) int { return byDepth(*a, *b) })
	rules := []Rule{*all[0]}
	for _, r := range all[1:] {
		over := p.over(path.Dir(r.Path))
		switch {
		case r.Access == None && over.Access == None:
			// Nothing changes, but it closes for good what the root only does not open.
		case r.Missing && over.Access != Write, // nobody can make it
			r.Access == over.Access && !r.Missing,
			// A folder that is closed stays closed for what it holds, unless that may be written. So does Codex.
			r.Access == Read && over.Access == None && over.Path != "/":
			delete(p.rules, r.Path)
		default:
			if over.Access == Write && r.Access != Write && r.Folder && p.passing(*r) {
				r.Folder, r.Missing = false, true
			}
			rules = append(rules, *r)
		}
	}
	return pin(rules)
}

// passing reports whether a folder may be one that was made for a command that runs now, by this executor or Codex's, and goes with it: it
// is dealt with as if it were not there. One that has no date yet, or is Codex's, is told by its name and by being empty: nothing else
// is seen of it then.
func (p *planner) passing(r Rule) bool {
	f, err := p.Files.Open(rel(r.Path))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist) // it was there a moment ago
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.IsDir() {
		return false
	}
	if info.ModTime().Equal(targetDate) {
		return true
	}
	dir, ok := f.(fs.ReadDirFile)
	if !ok || r.Access != Read || !slices.Contains(protected, path.Base(r.Path)) {
		return false
	}
	_, err = dir.ReadDir(1)
	return errors.Is(err, io.EOF)
}

// pin adds rules for the folders between one that may be written and what in it may not. They change nothing of what
// is allowed, but what has a rule of its own cannot be renamed: without them a command could move such a folder away
// and make another with what it likes at the path that it may not write.
func pin(rules []Rule) []Rule {
	known := map[string]Access{}
	for _, r := range rules {
		known[r.Path] = r.Access
	}
	for _, r := range rules[1:] {
		if r.Access == Write {
			continue
		}
		var between []string
		dir := path.Dir(r.Path)
		for ; known[dir] == ""; dir = path.Dir(dir) {
			between = append(between, dir)
		}
		if known[dir] != Write {
			continue
		}
		for _, dir := range between {
			known[dir] = Write
			rules = append(rules, Rule{Path: dir, Access: Write, Folder: true})
		}
	}
	slices.SortFunc(rules, byDepth)
	return rules
}

func byDepth(a, b Rule) int {
	if d := depth(a.Path) - depth(b.Path); d != 0 {
		return d
	}
	return strings.Compare(a.Path, b.Path)
}

func depth(at string) int {
	if at == "/" {
		return 0
	}
	return strings.Count(at, "/")
}

// rel is an absolute path as fs.FS has it.
func rel(at string) string {
	if at == "/" {
		return "."
	}
	return at[1:]
}

// resolved is a path without links.
type resolved struct {
	path    string
	exists  bool
	folder  bool
	missing string // the first part of path that does not exist
	links   []link
}

// resolve follows the links of an absolute, clean path.
func (p *planner) resolve(at string) (resolved, error) {
	var r resolved
	rest := strings.Split(rel(at), "/")
	if at == "/" {
		rest = nil
	}
	r.path, r.exists, r.folder = "/", true, true
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			r.path = path.Dir(r.path)
			continue
		}
		next := path.Join(r.path, name)
		info, err := fs.Lstat(p.Files, rel(next))
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), err == nil && len(rest) > 0 && !info.IsDir() && info.Mode()&fs.ModeSymlink == 0:
			// It is not there, or it cannot be looked at, which the command cannot either, or it is no
			// folder and holds nothing. The latter could become one.
			r.exists, r.folder, r.missing = false, false, next
			r.path = path.Join(append([]string{next}, rest...)...)
			if err == nil && p.writable(next) {
				return r, fmt.Errorf("%s is no folder, which the command could change, and the state is about %s", next, at)
			}
			return r, nil
		case err != nil:
			return r, fmt.Errorf("what is at %s, of which the state speaks, cannot be told: %w", at, err)
		case info.Mode()&fs.ModeSymlink != 0:
			if len(r.links) == maxLinks {
				return r, fmt.Errorf("%s goes through more than %d symbolic links", at, maxLinks)
			}
			to, err := fs.ReadLink(p.Files, rel(next))
			if err != nil {
				return r, fmt.Errorf("read the symbolic link %s: %w", next, err)
			}
			r.links = append(r.links, link{at: next, to: to})
			if path.IsAbs(to) {
				r.path = "/"
			}
			rest = append(strings.Split(to, "/"), rest...)
			r.folder = true
		default:
			r.path, r.folder = next, info.IsDir()
		}
	}
	return r, nil
}

// writable reports whether the folder of a path may be written, as far as is known.
func (p *planner) writable(at string) bool { return p.over(path.Dir(at)).Access == Write }
