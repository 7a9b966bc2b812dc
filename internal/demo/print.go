package demo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	mcp "nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/wire"
	"nightporter/internal/run"
)

func (s *show) say(format string, args ...any) {
	if _, err := fmt.Fprintf(s.Out, format+"\n", args...); err != nil && s.err == nil {
		s.err = err
	}
}

func (s *show) title(text string) { s.say("\n%s", s.Title(text)) }

// expect notes what was not as it should be.
func (s *show) expect(ok bool, format string, args ...any) {
	if !ok {
		s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
	}
}

func (s *show) introduce() {
	g := s.config.Grants["demo"]
	s.say("%s", s.Title("A run of an agent, as it really happens"))
	s.say("The configuration, gateway, servers and the agent's process are real. Only the model is played, by a script.")
	s.say("All of it lives in %s, which is removed at the end.", s.home)
	s.say("")
	s.say("  servers in config.toml   %s", strings.Join(s.config.ServerNames(), ", "))
	s.say("  [grants.demo]            all tools of %s; of notes %s", strings.Join(g.Servers, ", "), strings.Join(g.Tools["notes"], " and "))
}

// proof tells the first turn.
func (s *show) proof(t *turn) {
	p := t.outcome.Proof
	names, processes := running(t.opened)
	outside := slices.DeleteFunc(s.config.ServerNames(), func(name string) bool {
		return slices.ContainsFunc(t.opened, func(status mcp.Status) bool { return status.Server == name })
	})
	s.title("1. What does the agent reach?   nightporter prove --agent demo --grant demo")
	s.say("  The tools of %s were not known: %d server processes were started to list them.", strings.Join(names, " and "), processes)
	s.say("  %d catalogs of them were saved for the next time. Not granted, and not started: %s.", s.catalogs(), strings.Join(outside, ", "))
	s.say("  How       %s", p.How)
	s.say("  Reaches   the server %s with %s", strings.Join(p.Servers, ", "), strings.Join(p.Tools, ", "))
	s.say("  Verdict   %s, after %d ms", verdict(p.Proven), t.outcome.DurationMS)
	s.complain(t.outcome)

	s.expect(t.outcome.Status == run.StatusOK && p.Proven, "the boundary was not proven")
	s.expect(slices.Equal(names, []string{"clock", "notes"}) && processes == 2, "the servers started for the proof were %v", names)
	s.expect(slices.Equal(outside, []string{"mail"}), "the servers outside of the run were %v", outside)
	s.expect(s.catalogs() == 2, "%d catalogs were saved, not 2", s.catalogs())
	s.expect(slices.Equal(p.Tools, []string{"clock__crash", "clock__now", "notes__add", "notes__list"}), "the agent reaches the tools %v", p.Tools)
}

// timeline tells the second turn.
func (s *show) timeline(t *turn) {
	_, before := running(t.opened)
	s.title("2. The run   nightporter run --agent demo --grant demo - < prompt.txt")
	s.say("  When the agent was started there were %d server processes:", before)
	for _, status := range t.opened {
		s.say("    %-6s %s: %s", status.Server, status.State, status.Reason)
		s.expect(status.State == mcp.StateDormant, "%s was %s at the start of the run", status.Server, status.State)
	}
	var calls []string
	for _, m := range t.moments {
		s.say("  %7s  %-8s %s", millis(m.at.Sub(t.began)), m.what, m.text)
		if m.what == called || m.what == refused {
			text, _, _ := strings.Cut(m.text, ",")
			calls = append(calls, text)
		}
	}
	_, after := running(t.closing)
	s.say("  When it ended there were %d.", after)
	if o := t.outcome; o.Reply != nil {
		s.say("  Its reply, a line for each call:")
		for line := range strings.Lines(*o.Reply) {
			for i, part := range wrap(strings.ReplaceAll(strings.TrimSpace(line), s.Program, filepath.Base(s.Program))) {
				s.say("    %s%s", strings.Repeat("  ", min(i, 1)), part)
			}
		}
	}
	s.complain(t.outcome)

	s.expect(t.outcome.Status == run.StatusOK, "the run ended %s", t.outcome.Status)
	s.expect(before == 0, "%d server processes ran before any was used", before)
	s.expect(slices.Equal(calls, expected), "the calls were %s", strings.Join(calls, ", "))
	s.expect(len(t.outcome.Denials) == 1, "the denials were %v", t.outcome.Denials)
	for _, status := range t.closing {
		want := map[string]int{"clock": 2, "notes": 1}[status.Server]
		s.expect(status.Generation == want, "%s was started %d times, not %d", status.Server, status.Generation, want)
	}
}

// outcome tells what a program would be given of the run.
func (s *show) outcome(o run.Outcome) {
	s.title("3. What programs get   nightporter run --output json … (shortened)")
	tools := "none"
	if len(o.ToolCalls) > 0 {
		tools = fmt.Sprintf("[%s, … %d more]", wire.Encode(o.ToolCalls[0]), len(o.ToolCalls)-1)
	}
	s.say(`  {"status":%s,"error":%s,"denials":%s,`, wire.Encode(o.Status), wire.Encode(o.Error), wire.Encode(o.Denials))
	s.say(`   "boundary":{"proven":%s,"servers":%s,…},`, wire.Encode(o.Boundary.Proven), wire.Encode(o.Boundary.Servers))
	s.say(`   "tool_calls":%s,"duration_ms":%d,…}`, tools, o.DurationMS)
}

// complain tells an error of a run, which should have none.
func (s *show) complain(o run.Outcome) {
	if o.Error != nil {
		s.say("  error: %s", o.Error.Message)
		s.wrong = append(s.wrong, o.Error.Message)
	}
}

// farewell removes everything, sees that nothing is left, and says where to go on.
func (s *show) farewell() {
	err := os.RemoveAll(s.home)
	_, statErr := os.Stat(s.home)
	gone := err == nil && errors.Is(statErr, fs.ErrNotExist)
	left := slices.DeleteFunc(slices.Clone(s.pids), func(pid int) bool { return !alive(pid) })
	s.title("Afterwards")
	s.say("  Of %d server processes %d are left; %s is %s.", s.started, len(left), s.home, map[bool]string{true: "removed", false: "still there"}[gone])
	s.expect(gone, "%s could not be removed: %v", s.home, err)
	s.expect(len(left) == 0, "the server processes %v are left", left)
	if len(s.wrong) > 0 {
		s.title("Not as it should be")
		for _, text := range s.wrong {
			s.say("  %s", text)
		}
		return
	}
	s.title("Next (README.md says how to install it and how to define servers)")
	s.say("  nightporter prove --agent claude                       what your own Claude Code would reach; or codex")
	s.say("  nightporter run --agent claude --server NAME \"…\"       an answer, with the tools of that server and no others")
	s.say("  claude mcp add nightporter -- nightporter mcp          all your servers as one, started when used")
}

// catalogs counts the saved catalogs.
func (s *show) catalogs() int {
	found, _ := filepath.Glob(filepath.Join(s.dirs.Catalogs(), "*", "*.catalog")) // the pattern is well-formed
	return len(found)
}

// running names the servers that have a process, and counts their processes.
func running(all []mcp.Status) (names []string, processes int) {
	for _, status := range all {
		if status.PID != 0 {
			names = append(names, status.Server)
			processes++
		}
	}
	return names, processes
}

func verdict(proven bool) string {
	if proven {
		return "proven"
	}
	return "not proven"
}

// alive reports whether there is a process with this id.
func alive(pid int) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	defer p.Release()
	if runtime.GOOS == "windows" {
		return true // it was found
	}
	err = p.Signal(syscall.Signal(0))
	return err == nil || errors.Is(err, syscall.EPERM)
}

func millis(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

// textWidth is how long a line of an agent's text may be: with its indent it fits the other lines.
const textWidth = 104

// wrap breaks a line between words.
func wrap(line string) (parts []string) {
	for _, word := range strings.Fields(line) {
		if last := len(parts) - 1; last >= 0 && utf8.RuneCountInString(parts[last])+1+utf8.RuneCountInString(word) <= textWidth {
			parts[last] += " " + word
			continue
		}
		parts = append(parts, word)
	}
	return parts
}
