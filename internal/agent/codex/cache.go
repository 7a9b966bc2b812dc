package codex

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"nightporter/internal/agent"
	"nightporter/internal/safefile"
)

// cache remembers findings. A finding is used again only when everything is the same that is known to decide it:
// the program, its switches, the folder, the environment, and the files and folders that Codex reads. Whenever one of
// them is not known, nothing is remembered and Codex is asked. An empty dir remembers nothing.
type cache struct{ dir string }

const (
	// cacheFormat is part of every key: a change of this package's reading or switches is a new format.
	cacheFormat = "nightporter codex finding 2"
	// maxAge bounds for how long something is believed that no file shows.
	maxAge = 24 * time.Hour
	// settled is how long a file must have been left alone before its time of change tells its
	// state: two changes within one tick of the clock look like one.
	settled = 2 * time.Second
	// maxFiles bounds the files that are looked at; more take longer than asking.
	maxFiles = 2000
	// maxSettings bounds a settings file that is read.
	maxSettings = 1 << 20
)

// remembered is an entry, a file of its own.
type remembered struct {
	Key     string    `json:"key"`
	State   string    `json:"state"`
	At      time.Time `json:"at"`
	Finding finding   `json:"finding"`
}

// Variables that decide nothing of what Codex loads, and differ from run to run.
var indifferent = []string{tokenVariable, "TMPDIR", "TMP", "TEMP", "PWD", "OLDPWD", "SHLVL", "_"}

// inputs are digests of what decides a finding: key of what the run is given, state of the files. Both are empty
// when something is not known.
func (c cache) inputs(p *prover) (key, state string) {
	if c.dir == "" {
		return "", ""
	}
	state, newest, err := files(p.program)
	if err != nil || time.Since(newest) < settled {
		return "", ""
	}
	env := slices.DeleteFunc(slices.Clone(p.env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(indifferent, name)
	})
	slices.Sort(env)
	return digest(cacheFormat, p.path, p.version.text, p.dir, fmt.Sprint(p.request.Gateway != nil), fmt.Sprint(p.direct),
		strings.Join(p.switches, "\x00"), strings.Join(env, "\x00")), state
}

// digest is a digest of parts, each with its length, so that no two lists of parts look alike.
func digest(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(h, "%d:%s\n", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (c cache) file(key string) string { return filepath.Join(c.dir, key+".json") }

// load returns the finding for a key, when it was made in this state.
func (c cache) load(key, state string) (finding, bool) {
	if key == "" {
		return finding{}, false
	}
	data, err := os.ReadFile(c.file(key))
	if err != nil {
		return finding{}, false
	}
	var r remembered
	if json.Unmarshal(data, &r) != nil || r.Key != key || r.State != state || !r.Finding.clean() {
		return finding{}, false
	}
	if age := time.Since(r.At); age < 0 || age > maxAge {
		return finding{}, false
	}
	return r.Finding, true
}

// store keeps a finding, unless a file changed while Codex was asked. That it cannot be written is no
// reason to stop a run: the next one asks again.
func (c cache) store(key, state string, p *prover, f finding) {
	if key == "" {
		return
	}
	if k, s := c.inputs(p); k != key || s != state {
		return
	}
	data, err := json.Marshal(remembered{Key: key, State: state, At: time.Now(), Finding: f})
	if err != nil {
		return
	}
	_ = safefile.Write(c.file(key), data)
}

// errUnknown says that something decides a finding whose state cannot be seen.
var errUnknown = errors.New("not everything that decides what Codex loads can be seen")

// files is a digest of the state of every file and folder that decides what Codex loads, and the time of the last change.
func files(p program) (state string, newest time.Time, err error) {
	w := lookAt(p)
	if w.err != nil {
		return "", time.Time{}, w.err
	}
	return digest(w.seen...), w.newest, nil
}

// lookAt looks at every file and folder that decides what Codex loads. Which they are was found by tracing it.
func lookAt(p program) *watch {
	w := &watch{}
	w.file(p.path)
	home := codexHome(p.env)
	if !filepath.IsAbs(home) || !filepath.IsAbs(variable(p.env, "HOME")) {
		w.err = errUnknown // without HOME Codex asks the system where its files are
		return w
	}
	for _, system := range []string{"/etc/codex"} {
		w.tree(system, "")
		w.settings(system, "*.toml")
	}
	w.settings(home, "*.toml")
	w.settings(home, "hooks.json")
	w.file(filepath.Join(home, ".env")) // variables that it adds to its environment
	w.file(filepath.Join(home, ".git"))
	w.tree(filepath.Join(home, "agents"), "") // roles, which have configurations of their own
	w.plugin(home)
	w.plugin(variable(p.env, "HOME"))
	w.tree(filepath.Join(home, "skills"), ".system") // Codex writes the bundled skills itself; they are off as a whole
	w.tree(filepath.Join(variable(p.env, "HOME"), ".agents"), "")
	for dir := p.dir; ; dir = filepath.Dir(dir) {
		w.file(filepath.Join(dir, ".git"))
		w.tree(filepath.Join(dir, ".agents"), "")
		w.plugin(dir)
		if own := filepath.Join(dir, ".codex"); own != home {
			w.tree(own, "")
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	w.account(home, p.env)
	return w
}

// unchanged returns a function that says what has changed since, of what decides what Codex loads: the program, and
// its settings where they can be seen. It says nothing when nothing has.
func (p program) unchanged() (func() string, error) {
	mark, err := agent.MarkOf(p.path)
	if err != nil {
		return nil, err
	}
	state, _, err := files(p)
	seen := err == nil
	return func() string {
		if !mark.Same() {
			return "the program " + p.path
		}
		if now, _, err := files(p); seen && (err != nil || now != state) {
			return "a settings file of Codex"
		}
		return ""
	}, nil
}

// watch collects states.
type watch struct {
	seen   []string
	trees  []string // folders of which everything was seen
	newest time.Time
	err    error
}

// file notes the state of one file or folder, which need not be there.
func (w *watch) file(path string) {
	if w.err != nil {
		return
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		w.seen = append(w.seen, path+" is not there")
		return
	case err != nil:
		w.err = err
		return
	case info.IsDir(): // what is in it is noted by itself where it matters; Codex writes folders of its own into some
		w.seen = append(w.seen, path+" is a folder")
		return
	case len(w.seen) >= maxFiles, info.Mode()&fs.ModeSymlink != 0:
		w.err = errUnknown
		return
	}
	// Elsewhere than on Linux the state is not known: macOS's managed preferences and Windows' system folder decide as
	// well, and are not looked at. Codex is asked each time.
	id, ok := agent.Identity(info)
	if !ok {
		w.err = errUnknown
		return
	}
	w.seen = append(w.seen, fmt.Sprintf("%s %v %d %d %s", path, info.Mode(), info.Size(), info.ModTime().UnixNano(), id))
	if info.ModTime().After(w.newest) {
		w.newest = info.ModTime()
	}
}

// tree notes the state of everything below dir, the entry named skip in it aside.
func (w *watch) tree(dir, skip string) {
	w.trees = append(w.trees, dir)
	w.file(dir)
	if w.err != nil {
		return
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && path == dir && errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case path == dir:
			return nil
		case filepath.Dir(path) == dir && d.Name() == skip:
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		w.file(path)
		return w.err
	})
	if w.err == nil {
		w.err = err
	}
}

// plugin notes what makes a folder a plugin: skills below it are then called by its name.
func (w *watch) plugin(dir string) {
	for _, kind := range []string{".codex-plugin", ".claude-plugin", ".cursor-plugin"} {
		w.tree(filepath.Join(dir, kind), "")
	}
}

// settings notes the files in dir that match, and refuses those that have the account's credentials kept where
// they cannot be seen.
func (w *watch) settings(dir, pattern string) {
	matches, err := filepath.Glob(filepath.Join(escapeGlob(dir), pattern))
	if err != nil {
		w.err = errors.Join(w.err, err)
		return
	}
	w.seen = append(w.seen, fmt.Sprintf("%s/%s: %d", dir, pattern, len(matches)))
	for _, match := range matches {
		w.file(match)
		data, err := readSmall(match)
		if err != nil || bytes.Contains(data, []byte("auth_credentials_store")) {
			w.err = errors.Join(w.err, errUnknown)
		}
	}
}

// account refuses a login whose organisation may manage Codex's configuration over the network.
func (w *watch) account(home string, env []string) {
	if variable(env, "CODEX_ACCESS_TOKEN") != "" {
		w.err = errors.Join(w.err, errUnknown)
	}
	managed, err := filepath.Glob(filepath.Join(escapeGlob(home), "*requirements*"))
	if err != nil || len(managed) > 0 {
		w.err = errors.Join(w.err, errUnknown)
	}
	data, err := readSmall(filepath.Join(home, "auth.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var auth struct {
		Key *string `json:"OPENAI_API_KEY"`
	}
	var all map[string]json.RawMessage
	if err != nil || json.Unmarshal(data, &auth) != nil || json.Unmarshal(data, &all) != nil || auth.Key == nil {
		w.err = errors.Join(w.err, errUnknown)
		return
	}
	for name, value := range all {
		// A login by key alone has nothing else but its mode.
		if name != "OPENAI_API_KEY" && name != "auth_mode" && string(value) != "null" {
			w.err = errors.Join(w.err, errUnknown)
			return
		}
	}
}

func readSmall(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxSettings {
		return nil, errUnknown
	}
	return os.ReadFile(path)
}

// escapeGlob makes a path stand for itself in a pattern.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}
