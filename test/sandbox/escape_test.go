//go:build linux

package sandbox

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// confined is the state of most attempts: a folder is writable but for what is protected in it, and one is hidden.
var confined = state{tmpdir: "{W}/tmp", json: under(cwdURI, profile("restricted", root, entry("cwd", "write"), special("tmpdir", "write"),
	entry("cwd/.git", "read", skip), entry("secret", "none")))}

// open is as much of confined as Landlock can enforce: it opens folders, and cannot hide or protect anything in them. In
// a folder that may be written something always is protected.
var open = state{tmpdir: "{W}/tmp", json: managed(root)}

// attempt is one way out. It must work without a sandbox, and in none of ours.
type attempt struct {
	args []string // of the probe, behind "escape"; {W} stands for the world's folder
	// state is confined when nil. Landlock must refuse it.
	state *state
	// closes is set where the attempt is about what is hidden or protected: Landlock has no part in it then.
	closes  bool
	uid     *int                                        // the test's own user when nil
	prepare func(t *testing.T, w *world) []string       // returns more arguments
	start   func(t *testing.T, w *world, cmd *exec.Cmd) // changes the command before it starts
	done    func(t *testing.T, w *world) bool           // looks from outside whether it worked; the probe's word counts as well
	control string                                      // why the control may fail on this machine; then the test skips
}

// try makes the attempt without a sandbox, then with each of our mechanisms.
func (a attempt) try(t *testing.T) {
	t.Helper()
	s := confined
	if a.state != nil {
		s = *a.state
	}
	if escaped, end := a.under(t, noSandbox, s); !escaped {
		if a.control != "" {
			t.Skipf("the attempt fails without a sandbox too (%+v): %s", end, a.control)
		}
		t.Fatalf("the control: without a sandbox the attempt fails: %+v", end)
	}
	for _, how := range mechanisms {
		t.Run(how.name, func(t *testing.T) {
			escaped, end := a.under(t, how, s)
			if how.name == landlock.name && !escaped {
				if end.code != 1 || !strings.Contains(end.stderr, "landlock cannot") {
					t.Errorf("Landlock cannot enforce this state, and did not say so: %+v", end)
				}
				if a.closes {
					return
				}
				escaped, end = a.under(t, how, open)
			}
			switch {
			case escaped:
				t.Errorf("escaped: %+v", end)
			case end.said == "":
				t.Errorf("the attempt was not made: %+v", end)
			default:
				t.Logf("%+v", end)
			}
		})
	}
}

// outcome is how an attempt ended.
type outcome struct {
	said   string
	code   int
	stderr string
}

func (a attempt) under(t *testing.T, how implementation, s state) (escaped bool, end outcome) {
	t.Helper()
	uid := os.Getuid()
	if a.uid != nil {
		uid = *a.uid
	}
	w := newWorld(t, uid)
	argv := []string{w.tools.probe, "escape"}
	for _, arg := range a.args {
		argv = append(argv, w.fillIn(arg))
	}
	if a.prepare != nil {
		argv = append(argv, a.prepare(t, w)...)
	}
	ran, out := w.execWith(t, how, s, a.start, argv...)
	harm := map[string]bool{}
	w.harm(t, harm)
	end = outcome{strings.TrimSpace(out), ran.code, strings.TrimSpace(ran.stderr)}
	escaped = strings.HasSuffix(end.said, "escaped") || harm["write mem of outside"] || harm["signal USR1 to outside"]
	return escaped || a.done != nil && a.done(t, w), end
}
