//go:build linux

package sandbox

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// verdict is how far an attempt came.
type verdict int

const (
	denied  verdict = iota
	private         // it succeeded inside and changed nothing outside
	allowed
)

func (v verdict) String() string { return [...]string{"denied", "private", "allowed"}[v] }

// judged is what became of every probe in one run.
type judged struct {
	ended
	verdicts map[string]verdict
}

// judge runs the probe under a state, in a new world, and looks at the world.
func judge(t *testing.T, how implementation, s state, uid int) judged {
	t.Helper()
	w := newWorld(t, uid)
	if s.setup != nil {
		s.setup(t, w)
		w.own(t)
	}
	before := w.changed()
	j := judged{ended: w.run(t, how, s)}
	changed := w.changed()
	w.harm(t, changed)
	for probe := range changed {
		// A place that the state's own setup took away looks changed before anything was tried.
		changed[probe] = changed[probe] && !before[probe]
	}
	if j.probes == nil {
		for probe, did := range changed {
			if did {
				t.Errorf("%s did not run the command and yet %q was done: %s", how.name, probe, j.stderr)
			}
		}
		return j
	}
	j.verdicts = map[string]verdict{}
	for probe, result := range j.probes {
		did, traced := changed[probe]
		switch {
		case result != "ok" && did:
			t.Errorf("%s: %q ended with %s and yet was done", how.name, probe, result)
		case result == "ok" && traced && !did:
			j.verdicts[probe] = private
		case result == "ok":
			j.verdicts[probe] = allowed
		default:
			j.verdicts[probe] = denied
		}
	}
	return j
}

// runsAtOnce bounds the sandboxes that run at the same time.
var runsAtOnce = make(chan struct{}, 4)

// TestASandboxAllowsWhatCodexAllowsOrLess puts the same probes under each state of the table by the real
// `codex sandbox` and by ours, with each of its mechanisms.
func TestASandboxAllowsWhatCodexAllowsOrLess(t *testing.T) {
	root := os.Getuid() == 0
	var ran atomic.Int64
	t.Run("states", func(t *testing.T) {
		for _, s := range states {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				compare(t, s, os.Getuid())
				ran.Add(1)
			})
			if s.main && root {
				t.Run(s.name+", as nobody", func(t *testing.T) {
					t.Parallel()
					compare(t, s, nobody)
				})
			}
		}
	})
	if int(ran.Load()) < len(states) || t.Failed() {
		return // some were left out: what they need cannot be told to be superfluous
	}
	for i := range stricter {
		if d := &stricter[i]; !d.used.Load() && !d.varies && (root || !d.asRoot) {
			t.Errorf("superfluous: %s is as permissive as Codex in %q about %q", d.how, d.states, d.probes)
		}
	}
}

// nobody is the user without rights that root also tries the main states as.
const nobody = 65534

// compare holds each of our mechanisms against Codex under one state.
func compare(t *testing.T, s state, uid int) {
	t.Helper()
	all := append([]implementation{reference}, mechanisms...)
	if s.says != "" {
		all = all[:2] // it is refused while it is read, before a mechanism is chosen
	}
	results := make([]judged, len(all))
	// What an implementation needs is looked for here: a goroutine cannot skip the test.
	for _, how := range all {
		how.command(t, toolsOf(t), uid)
	}
	var wait sync.WaitGroup
	for i, how := range all {
		wait.Go(func() {
			runsAtOnce <- struct{}{}
			defer func() { <-runsAtOnce }()
			s := s
			if i == 0 && s.bound != nil {
				s.json, s.tmpdir = s.bound.json, s.bound.tmpdir
			}
			results[i] = judge(t, how, s, uid)
		})
	}
	wait.Wait()
	if t.Failed() {
		return
	}
	if s.main && results[0].verdicts == nil {
		t.Fatalf("Codex did not run the command: %d, %s", results[0].code, results[0].stderr)
	}
	for i, how := range all[1:] {
		for _, fault := range faults(s, how.name, results[0], results[i+1]) {
			t.Error(fault)
		}
	}
}

// faults is what is wrong with how ours dealt with a state that Codex dealt with as told.
func faults(s state, how string, codex, ours judged) []string {
	switch {
	case codex.verdicts == nil && ours.verdicts != nil:
		return []string{fmt.Sprintf("%s ran the command, and Codex does not: %d, %s", how, codex.code, codex.stderr)}
	case codex.verdicts == nil:
		return refusalFaults(s, how, codex, ours)
	case ours.verdicts == nil && (s.bound != nil || isStricter(how, s.name, refuses)):
		if ours.code == 0 || ours.stderr == "" {
			return []string{fmt.Sprintf("%s refused with exit code %d and without a word: %q", how, ours.code, ours.stderr)}
		}
		return nil
	case ours.verdicts == nil:
		return []string{fmt.Sprintf("%s did not run the command, and Codex does: %d, %s", how, ours.code, ours.stderr)}
	}
	var faults []string
	if ours.code != codex.code {
		faults = append(faults, fmt.Sprintf("%s ended with %d, Codex with %d", how, ours.code, codex.code))
	}
	var more, less []string
	for _, probe := range slices.Sorted(maps.Keys(codex.verdicts)) {
		theirs, own := codex.verdicts[probe], ours.verdicts[probe]
		difference := fmt.Sprintf("%s: %s (%s), not %s (%s)", probe, own, ours.probes[probe], theirs, codex.probes[probe])
		switch {
		case own > theirs:
			more = append(more, difference)
		case own < theirs && s.bound == nil && !isStricter(how, s.name, probe):
			less = append(less, difference)
		}
	}
	if more != nil {
		faults = append(faults, fmt.Sprintf("%s is MORE PERMISSIVE than Codex:\n%s", how, strings.Join(more, "\n")))
	}
	if less != nil {
		faults = append(faults, fmt.Sprintf("%s is stricter, and no reason is recorded:\n%s", how, strings.Join(less, "\n")))
	}
	return faults
}

// refusalFaults is what is wrong with how ours refused a state that Codex refuses.
func refusalFaults(s state, how string, codex, ours judged) []string {
	var faults []string
	if ours.code == 0 || s.says != "" && ours.code != codex.code {
		faults = append(faults, fmt.Sprintf("%s refused with %d, Codex with %d: %s", how, ours.code, codex.code, ours.stderr))
	}
	if !strings.Contains(ours.stderr, s.says) {
		faults = append(faults, fmt.Sprintf("%s refused without naming %q: %s", how, s.says, ours.stderr))
	}
	return faults
}

// TestEveryProbeCanSucceed is the control of the table: what a sandbox is seen to deny is possible without one.
func TestEveryProbeCanSucceed(t *testing.T) {
	w := newWorld(t, os.Getuid())
	before := w.changed()
	end := w.run(t, noSandbox, state{}).probes
	if end == nil {
		t.Fatal("the probe did not run")
	}
	after := w.changed()
	w.harm(t, after)
	for _, probe := range slices.Sorted(maps.Keys(end)) {
		if reason, ok := impossible[probe]; ok && end[probe] != "ok" {
			t.Logf("%s: %s (%s)", probe, end[probe], reason)
			continue
		}
		if did, traced := after[probe]; end[probe] != "ok" || traced && (!did || before[probe]) {
			t.Errorf("%q ended with %s without a sandbox", probe, end[probe])
		}
	}
}
