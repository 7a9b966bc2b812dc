package run

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"nightporter/internal/agent"
)

func TestAnAgentIsGivenNothingWhenWhatItsProofRestsOnHasChanged(t *testing.T) {
	for name, c := range map[string]struct {
		says   []string // of Changed, in turn
		status Status
		starts int
	}{
		"nothing changed": {[]string{""}, StatusOK, 1},
		"changed once":    {[]string{"the program", ""}, StatusOK, 2},
		"changes always":  {[]string{"the program", "the program"}, StatusRefused, 2},
	} {
		t.Run(name, func(t *testing.T) {
			given := filepath.Join(t.TempDir(), "given")
			a := &shell{script: `read line && echo "$line" >>` + given + `; echo "reply done"`, proof: &agent.Proof{Proven: true, How: "x"}}
			a.changed = func() string {
				said := c.says[0]
				c.says = c.says[1:]
				return said
			}
			s := specOf(t, a)
			s.Request.Prompt = "the prompt\n"
			o := Do(t.Context(), s)
			if o.Status != c.status || len(a.requests) != c.starts {
				t.Errorf("it ended %s after %d starts: %v", o.Status, len(a.requests), o.Error)
			}
			got, _ := os.ReadFile(given)
			if want := map[Status]string{StatusOK: "the prompt\n"}[c.status]; string(got) != want {
				t.Errorf("the agent was given %q, want %q", got, want)
			}
			if c.status == StatusRefused && (o.Error.Code != agent.CodeBoundary || !strings.Contains(o.Error.Message, "the program changed") || o.Boundary.Proven || o.ExitCode() != 3) {
				t.Errorf("the error is %v, the boundary %+v, the exit code %d", o.Error, o.Boundary, o.ExitCode())
			}
		})
	}
}

// A folder that was looked at and is a link to another by the time of the start would have the agent work elsewhere.
func TestAWorkingDirectoryThatWasSwappedIsNoPlaceForARun(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("symbolic links need a privilege there")
	}
	dir, elsewhere := filepath.Join(t.TempDir(), "work"), t.TempDir()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	a := &shell{script: `read line; echo "$line" >given`}
	swapped := false
	a.prepare = func(agent.Request) error {
		if swapped {
			return nil
		}
		swapped = true
		return errors.Join(os.Rename(dir, dir+".old"), os.Symlink(elsewhere, dir))
	}
	s := specOf(t, a)
	s.Request.Workdir, s.Request.Prompt = dir, "the prompt\n"
	o := Do(t.Context(), s)
	if o.Status != StatusRefused || !strings.Contains(o.Error.Message, "the working directory") {
		t.Errorf("it ended %s: %v", o.Status, o.Error)
	}
	if _, err := os.Stat(filepath.Join(elsewhere, "given")); err == nil {
		t.Error("the agent got its prompt in the other folder")
	}
}
