package authority

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"nightporter/test/programs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func verifier(t *testing.T) *Verifier {
	t.Helper()
	v := NewVerifier()
	t.Cleanup(v.Close)
	return v
}

// script writes a program for the shell.
func script(t *testing.T, path, text string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("there is no shell here that scripts could be for")
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// capable answers as a launcher does, and counts in a file how often it was asked.
func capable(t *testing.T, dir string) (path string, asked func() int) {
	t.Helper()
	log := filepath.Join(dir, "asked")
	path = script(t, filepath.Join(dir, "launcher"), fmt.Sprintf(`echo "$*" >>%s; echo "  --sandbox-state-json <JSON>"`, log))
	return path, func() int {
		text, err := os.ReadFile(log)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.Count(string(text), "sandbox --sandbox-state-json {} --help\n")
	}
}

func TestRealCodexIsALauncher(t *testing.T) {
	for name, find := range map[string]func(testing.TB) string{"0.171.0": programs.Codex, "0.144.1": programs.Codex144} {
		t.Run(name, func(t *testing.T) {
			if err := verifier(t).Verify(t.Context(), find(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLauncherIsAskedOnceHoweverManyCallsCome(t *testing.T) {
	path, asked := capable(t, t.TempDir())
	v := verifier(t)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if err := v.Verify(t.Context(), path); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := asked(); n != 1 {
		t.Errorf("it was asked %d times", n)
	}
}

func TestLauncherIsAskedAgainWhenItsFileChanged(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, path string) error{
		"its time": func(t *testing.T, path string) error { return os.Chtimes(path, time.Time{}, time.Unix(1e9, 0)) },
		"its size": func(t *testing.T, path string) error {
			text, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, append(text, "\n#\n"...), 0o700)
			}
			return err
		},
		"another file of the same size and time": func(t *testing.T, path string) error {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			was, err := os.Stat(path)
			if err != nil {
				return err
			}
			other := path + ".new"
			if err := os.WriteFile(other, text, 0o700); err != nil {
				return err
			}
			if err := os.Chtimes(other, time.Time{}, was.ModTime()); err != nil {
				return err
			}
			return os.Rename(other, path)
		},
		"its mode": func(t *testing.T, path string) error { return os.Chmod(path, 0o500) },
	} {
		t.Run(name, func(t *testing.T) {
			path, asked := capable(t, t.TempDir())
			v := verifier(t)
			for range 2 {
				if err := v.Verify(t.Context(), path); err != nil {
					t.Fatal(err)
				}
			}
			if err := change(t, path); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := v.Verify(t.Context(), path); err != nil {
					t.Fatal(err)
				}
			}
			if n := asked(); n != 2 {
				t.Errorf("it was asked %d times, want once before and once after", n)
			}
		})
	}
}

func TestLauncherThatBecameAnotherProgramIsNoneAnyMore(t *testing.T) {
	path, _ := capable(t, t.TempDir())
	v := verifier(t)
	if err := v.Verify(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	script(t, path, "exit 0 # and nothing about a sandbox")
	if err := v.Verify(t.Context(), path); err == nil {
		t.Error("it passes by what it was before")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := v.Verify(t.Context(), path); err == nil {
		t.Error("it passes though it is gone")
	}
}

func TestWhatIsNoLauncherIsLeftOut(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("#!/bin/sh\necho --sandbox-state-json\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	good, _ := capable(t, dir)
	setuid := filepath.Join(dir, "setuid")
	text, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(setuid, text, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(setuid, 0o700|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	notUTF8 := script(t, filepath.Join(dir, "n\xff"), "echo --sandbox-state-json")
	t.Chdir(dir)
	for name, path := range map[string]string{
		"a name that would be looked up":  "launcher",
		"a relative path":                 "./launcher",
		"nothing there":                   filepath.Join(dir, "nothing"),
		"a folder":                        dir,
		"a file that cannot be executed":  plain,
		"another user's rights":           setuid,
		"a path that is no UTF-8":         notUTF8,
		"the replacement of such a path":  strings.ToValidUTF8(notUTF8, "\ufffd"),
		"a path with a zero byte":         good + "\x00",
		"a program that succeeds at all":  "/bin/true",
		"a program that fails":            script(t, filepath.Join(dir, "fails"), "echo --sandbox-state-json; exit 3"),
		"a program that ends by a signal": script(t, filepath.Join(dir, "killed"), "echo --sandbox-state-json; kill -9 $$"),
	} {
		if err := verifier(t).Verify(t.Context(), path); err == nil {
			t.Errorf("%s passes", name)
		}
	}
}

func TestProbeSeesNothingOfTheEnvironment(t *testing.T) {
	t.Setenv("NIGHTPORTER_TEST_SECRET", "made-up-0123456789")
	dir := t.TempDir()
	out := filepath.Join(dir, "env")
	path := script(t, filepath.Join(dir, "launcher"), "env >"+out+"; echo --sandbox-state-json")
	if err := verifier(t).Verify(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	env, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	home, _ := os.UserHomeDir()
	if text := string(env); strings.Contains(text, "made-up") || strings.Contains(text, "HOME="+home+"\n") {
		t.Errorf("it saw %s", text)
	}
}

// What a probe starts ends with it, and one that never ends is ended; who waited for it no longer than they wanted.
func TestProbeThatNeverEndsHoldsNobodyAndLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	pids := filepath.Join(dir, "pids")
	path := script(t, filepath.Join(dir, "launcher"), "sleep 1000 & echo $! $$ >"+pids+".new; mv "+pids+".new "+pids+"; sleep 1000")
	v := NewVerifier()
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error, 1)
	go func() { waiting <- v.Verify(ctx, path) }()
	for { // until it runs
		if _, err := os.Stat(pids); err == nil {
			break
		}
		select {
		case err := <-waiting:
			t.Fatalf("it ended early: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	cancel()
	if err := <-waiting; err == nil {
		t.Error("who waits no more got an answer")
	}
	v.Close() // ends the probe
	text, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range strings.Fields(string(text)) {
		if _, err := os.Stat("/proc/" + pid); err == nil && runtime.GOOS == "linux" {
			t.Errorf("process %s is still there", pid)
		}
	}
	if err := v.Verify(t.Context(), path); err == nil {
		t.Error("a closed verifier answers")
	}
}

func TestALauncherThatFloodsIsRefusedAndEnded(t *testing.T) {
	dir := t.TempDir()
	pid := filepath.Join(dir, "pid")
	path := script(t, filepath.Join(dir, "launcher"), "echo $$ >"+pid+"; exec yes -- --sandbox-state-json")
	if err := verifier(t).Verify(t.Context(), path); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("it was verified: %v", err)
	}
	text, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/proc/" + strings.TrimSpace(string(text))); err == nil && runtime.GOOS == "linux" {
		t.Error("it is still there")
	}
}

func TestManyLaunchersAreNotRememberedForEver(t *testing.T) {
	dir := t.TempDir()
	text, err := os.ReadFile(script(t, filepath.Join(dir, "launcher"), "exit 1"))
	if err != nil {
		t.Fatal(err)
	}
	v := verifier(t)
	for i := range 2 * maxProbed {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(path, text, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := v.Verify(t.Context(), path); err == nil {
			t.Fatal("it passes")
		}
	}
	if n := len(v.known); n > maxProbed {
		t.Errorf("%d are remembered", n)
	}
}
