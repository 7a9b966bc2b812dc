package harness

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"nightporter/test/fakemodel"
	"nightporter/test/lab"
)

const (
	// maxTurns is how many turns a benchmark's model has; one more is answered with an error.
	maxTurns = 500
	// mostShare and mostTime are what Nightporter may add to a run, whichever is more.
	mostShare = 0.05
	mostTime  = 150 * time.Millisecond
)

// BenchmarkOverhead measures what Nightporter adds to a run of the bare agent, its proof remembered: both by turns, with a server and a call of its one tool, and
// without. It prints the medians of both and what is between them, and that of runs whose proof was forgotten (fresh); over the limit it fails. Run it on a quiet machine:
//
//	go test ./test/harness -run '^$' -bench Overhead -benchtime 20x
func BenchmarkOverhead(b *testing.B) {
	binary := filepath.Join(b.TempDir(), "nightporter")
	if out, err := exec.Command("go", "build", "-o", binary, "nightporter/cmd/nightporter").CombinedOutput(); err != nil {
		b.Fatalf("build: %v\n%s", err, out)
	}
	for _, name := range []string{"claude", "codex-0.171.0", "codex-0.144.1"} {
		for _, server := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/server=%v", name, server), func(b *testing.B) {
				bare, ours := newSide(b, name, server, ""), newSide(b, name, server, binary)
				bare.turn() // each has its files now, and its server its catalog
				ours.turn()
				for range 3 { // a question that a busy machine answers late is not remembered
					ours.settle()
					ours.turn()
				}
				var fresh *bench // whose proof is forgotten before each run
				if ours.remembers {
					fresh = newSide(b, name, server, binary)
					fresh.turn()
				}
				var spent, worked [2][]time.Duration
				var forgetful []time.Duration
				n := 0
				for b.Loop() {
					for i := range 2 {
						side := (i + n) % 2 // by turns who is first
						wall, cpu := []*bench{bare, ours}[side].turn()
						spent[side], worked[side] = append(spent[side], wall), append(worked[side], cpu)
					}
					if fresh != nil {
						if err := os.RemoveAll(filepath.Join(fresh.home, "np", "cache", "proofs")); err != nil {
							b.Fatal(err)
						}
						wall, _ := fresh.turn()
						forgetful = append(forgetful, wall)
					}
					n++
				}
				b.ReportMetric(0, "ns/op")
				tell := func(d time.Duration, unit string) { b.ReportMetric(float64(d.Milliseconds()), unit) }
				if ours.remembers && !strings.Contains(ours.said, "is remembered") {
					b.Fatalf("the proof was not remembered: %s", ours.said)
				}
				without, with := median(spent[0]), median(spent[1])
				tell(without, "bare-ms")
				tell(with, "ours-ms")
				tell(with-without, "over-ms")
				if fresh != nil {
					tell(median(forgetful), "fresh-ms")
				}
				b.ReportMetric(float64(with)/float64(without), "ratio")
				fastest := slices.Min(spent[1]) - slices.Min(spent[0])
				tell(fastest, "over-fastest-ms")
				tell(median(worked[1])-median(worked[0]), "over-cpu-ms")
				// What a busy machine adds to the longer of two is not Nightporter's: over the limit is what is so in the fastest runs as well.
				if most := max(mostTime, time.Duration(mostShare*float64(without))); n >= 5 && min(with-without, fastest) > most {
					b.Errorf("Nightporter adds %v to %v, and may add %v", with-without, without, most)
				}
			})
		}
	}
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// bench is one of the two: a house and the command that makes a turn in it.
type bench struct {
	*house
	argv      []string
	remembers bool   // its proof is made before the run and kept
	said      string // by the last turn
}

func newSide(b *testing.B, name string, server bool, nightporter string) *bench {
	calls := fakemodel.Calls("nightporter", "lab__echo", `{}`)
	if nightporter == "" {
		calls = fakemodel.Calls("lab", "echo", `{}`)
	}
	var steps []fakemodel.Step
	for range maxTurns {
		if server {
			steps = append(steps, calls)
		}
		steps = append(steps, fakemodel.Says("the answer"))
	}
	h := agents[name](b, fakemodel.Start(b, fakemodel.Replies(steps...)))
	s := &bench{house: h}
	h.env = append(h.env, "NIGHTPORTER_HOME="+filepath.Join(h.home, "np"), "PATH="+filepath.Dir(h.program)+":"+os.Getenv("PATH"))
	config := lab.Config{Name: "lab", Tools: lab.Tools("echo")}
	table := fmt.Sprintf("[mcp_servers.lab]\ncommand = %q\nargs = [%q]\n", lab.Binary(b), config.Arg())
	agent := h.argv[0]
	if nightporter != "" {
		s.argv = []string{nightporter, "run", "--agent", agent, "--output", "json"}
		s.remembers = agent == "codex"
		if server {
			h.write(filepath.Join(h.home, "np", "config.toml"), table)
			os.Chmod(filepath.Join(h.home, "np", "config.toml"), 0o600)
			s.argv = append(s.argv, "--server", "lab")
		}
		return s
	}
	s.argv = slices.Concat([]string{h.program}, h.argv[1:])
	if agent == "codex" {
		s.argv = append(s.argv, "--json", "--skip-git-repo-check", "--sandbox", "read-only", "-")
		if server {
			h.write(filepath.Join(h.state, "config.toml"), h.model.CodexConfig()+table+"default_tools_approval_mode = \"approve\"\nrequired = true\n")
		}
		return s
	}
	s.argv = append(s.argv, "--input-format", "text", "--output-format", "stream-json", "--verbose", "--strict-mcp-config", "--setting-sources", "", "--tools", "",
		"--permission-prompts", "none", "--disable-slash-commands")
	if server {
		file, _ := json.Marshal(map[string]any{"mcpServers": map[string]any{"lab": map[string]any{"command": lab.Binary(b), "args": []string{config.Arg()}}}})
		path := filepath.Join(h.home, "mcp.json")
		h.write(path, string(file))
		s.argv = append(s.argv, "--mcp-config", path, "--allowedTools", "mcp__lab")
	}
	return s
}

// turn makes a run, and says how long it took, and for how long the processors worked on it.
func (s *bench) turn() (wall, cpu time.Duration) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), s.argv[0], s.argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdin = s.work, s.env, strings.NewReader("what is it?")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	started := time.Now()
	err := cmd.Run()
	took := time.Since(started)
	if err != nil || !strings.Contains(stdout.String(), "the answer") {
		s.t.Fatalf("%q: %v\n%s\n%s", s.argv, err, stdout.Bytes(), stderr.Bytes())
	}
	s.said = stdout.String()
	return took, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

// settle makes the files that decide a proof look as if they had been left alone for an hour.
func (s *bench) settle() {
	then := time.Now().Add(-time.Hour)
	err := filepath.WalkDir(s.home, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		return os.Chtimes(path, then, then)
	})
	if err != nil {
		s.t.Fatal(err)
	}
}
