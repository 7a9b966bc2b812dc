package codex

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"nightporter/test/fakemodel"
	"nightporter/test/programs"
)

// undecided are paths that Codex looks at while it is asked and that decide nothing of its answer, with why.
var undecided = []struct {
	path *regexp.Regexp // below the home as ~, below Codex's folder as $
	why  string
}{
	{regexp.MustCompile(`^\$/tmp(/|$)`), "helpers that each process makes for itself"},
	{regexp.MustCompile(`^\$/(sessions|archived_sessions|log|shell_snapshots|\.tmp|memories|generated_images|process_manager|attachments)(/|$)`), "what earlier runs left: history, and memories, which are off as a whole"},
	{regexp.MustCompile(`^\$/[a-z0-9_]+\.sqlite(-wal|-shm|-journal)?(-[a-z]+)?$`), "history"},
	{regexp.MustCompile(`^\$/(installation_id|version\.json|models_cache\.json|history\.jsonl|session_index\.jsonl|\.sandbox.*|\.codex-global-state\.json|internal_storage\.json)$`), "its own records"},
	{regexp.MustCompile(`^\$/skills/\.system(/|$)`), "the bundled skills, which are off as a whole"},
	{regexp.MustCompile(`^\$$|^~$|^~/(work|tmp)$|^~/tmp/`), "folders on the way, and the one for temporary files"},
	{regexp.MustCompile(`^\$/auth\.json$`), "the login: nothing is remembered unless it is a key alone, which decides nothing"},
	{regexp.MustCompile(`^\$/rules(/|$)`), "rules for commands, which a run ignores (--ignore-rules)"},
	{regexp.MustCompile(`^\$/\.personality_migration$`), "its own record"},
	{regexp.MustCompile(`/\.aws$`), "what its sandbox keeps from commands"},
	{regexp.MustCompile(`/\.git/`), "of a repository only whether it is one"},
}

// traced runs a test's program under strace, and returns the paths that Codex has named to the system since.
func (r *rig) traced(strace string) func() []string {
	logs := filepath.Join(r.t.TempDir(), "log")
	r.program = r.write("bin/codex", fmt.Sprintf("#!%s\nexec '%s' -f -qq -s 4096 -e trace=%%file -o '%s'.$$ '%s' \"$@\"\n", programs.Find(r.t, "sh"), strace, logs, r.program))
	quoted := regexp.MustCompile(`"((?:[^"\\]|\\.)+)"`)
	return func() (paths []string) {
		files, _ := filepath.Glob(logs + ".*") // the pattern is well-formed
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				r.t.Fatal(err)
			}
			for _, line := range strings.Split(string(data), "\n") {
				if strings.Contains(line, "execve(") {
					continue
				}
				for _, found := range quoted.FindAllStringSubmatch(line, -1) {
					if filepath.IsAbs(found[1]) && !slices.Contains(paths, found[1]) {
						paths = append(paths, found[1])
					}
				}
			}
		}
		return paths
	}
}

// Every file that Codex looks at to answer what it reaches is one by which a remembered proof is known to hold.
func TestWhatCodexLooksAtDecidesWhetherAProofIsRemembered(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("files are traced on Linux alone")
	}
	strace := programs.Find(t, "strace")
	onEachVersion(t, func(t *testing.T, codex string) {
		r := newRig(t, codex, fakemodel.Replies())
		r.write("work/.agents/skills/one/SKILL.md", "---\nname: one\ndescription: d\n---\n")
		r.write("work/.codex/config.toml", "")
		r.prepare(r.request()) // it has its own files now
		looked := r.traced(strace)
		q := r.request()
		q.Program = r.program
		r.prepare(q)

		w := lookAt(program{path: codex, dir: r.work, env: q.Env})
		if w.err != nil {
			t.Fatal(w.err)
		}
		watched := func(path string) bool {
			return slices.ContainsFunc(w.seen, func(s string) bool { return strings.HasPrefix(s, path+" ") }) ||
				slices.ContainsFunc(w.trees, func(dir string) bool { return strings.HasPrefix(path, dir+"/") }) ||
				filepath.Dir(path) == filepath.Join(r.home, ".codex") && filepath.Ext(path) == ".toml" // w.settings notes all that there are
		}
		folder, n := filepath.Join(r.home, ".codex"), 0
		for _, path := range looked() {
			mine := strings.HasPrefix(path, r.home) || strings.HasPrefix(path, "/etc/codex")
			for dir := r.work; dir != "/"; dir = filepath.Dir(dir) {
				mine = mine || strings.HasPrefix(path, dir+"/.")
			}
			if !mine {
				continue // libraries, the machine, the program's own package
			}
			n++
			short := path
			if rest, below := strings.CutPrefix(path, folder); below && (rest == "" || rest[0] == '/') {
				short = "$" + rest
			} else if rest, below := strings.CutPrefix(path, r.home); below {
				short = "~" + rest
			}
			if slices.ContainsFunc(undecided, func(u struct {
				path *regexp.Regexp
				why  string
			},
			) bool {
				return u.path.MatchString(short)
			}) || watched(path) {
				continue
			}
			t.Errorf("Codex looks at %s, and a remembered proof does not", short)
		}
		if n < 10 {
			t.Errorf("it looked at %d paths: the trace shows nothing", n)
		}
	})
}
