package ledger

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// The tests of the locks use this binary as other processes. LEDGER_TEST_ROLE says what one does.
func TestMain(m *testing.M) {
	role := os.Getenv("LEDGER_TEST_ROLE")
	if role == "" {
		os.Exit(m.Run())
	}
	if err := roles[role](Open(os.Getenv("LEDGER_TEST_DIR"))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var roles = map[string]func(*Ledger) error{
	// hold takes conversation k and session s, says so, and keeps them until its input ends.
	"hold": func(l *Ledger) error {
		c, err := l.Lock(context.Background(), "k", "child-run")
		if err != nil {
			return err
		}
		if err := c.Record("claude", "/home/x", Session{ID: "s"}); err != nil {
			return err
		}
		if err := c.Claim(context.Background(), "claude", "/home/x", "s"); err != nil {
			return err
		}
		fmt.Println("held")
		io.Copy(io.Discard, os.Stdin)
		return c.Unlock()
	},
	// count adds one to a file and one to the session's tokens, many times, which is only right under the lock.
	"count": func(l *Ledger) error {
		for range countPerProcess {
			if err := countOnce(l); err != nil {
				return err
			}
		}
		return nil
	},
}

const countPerProcess = 10

func countOnce(l *Ledger) error {
	c, err := l.Lock(context.Background(), "k", "count")
	if err != nil {
		return err
	}
	defer c.Unlock()
	// Whoever finds the file there is not alone.
	mark := filepath.Join(l.dir, "inside")
	f, err := os.OpenFile(mark, os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("two at a time: %w", err)
	}
	f.Close()
	s, _ := c.Session("claude", "/home/x")
	s.ID = "s"
	s.Totals.InputTokens++
	if err := c.Record("claude", "/home/x", s); err != nil {
		return err
	}
	return os.Remove(mark)
}

// child starts this binary in a role. It is ended with the test.
func child(t *testing.T, l *Ledger, role string) (cmd *exec.Cmd, stdin io.WriteCloser, stdout *bufio.Reader) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), "LEDGER_TEST_ROLE="+role, "LEDGER_TEST_DIR="+l.dir)
	cmd.Stderr = os.Stderr
	if stdin, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, stdin, bufio.NewReader(out)
}

// holding starts a child that holds conversation k and session s.
func holding(t *testing.T, l *Ledger) (*exec.Cmd, io.WriteCloser) {
	t.Helper()
	cmd, stdin, stdout := child(t, l, "hold")
	if line, err := stdout.ReadString('\n'); err != nil {
		cmd.Wait()
		t.Fatalf("the child did not take the lock: %q, %v", line, err)
	}
	return cmd, stdin
}

func TestAnotherProcessIsKeptOutUntilTheHolderUnlocks(t *testing.T) {
	l := Open(t.TempDir())
	cmd, stdin := holding(t, l)

	var busy *Busy
	if _, err := l.Lock(ended(), "k", "mine"); !errors.As(err, &busy) || busy.Holder == nil || busy.Holder.PID != cmd.Process.Pid || busy.Holder.Run != "child-run" {
		t.Errorf("error is %v, want a *Busy that names process %d", err, cmd.Process.Pid)
	}
	if list, err := l.List(); err != nil || len(list) != 1 || list[0].Holder == nil || list[0].Holder.PID != cmd.Process.Pid {
		t.Errorf("listed %+v, %v; want process %d inside", list, err, cmd.Process.Pid)
	}
	other := lockNow(t, l, "another")
	if err := other.Claim(ended(), "claude", "/home/x", "s"); !errors.As(err, &busy) || busy.Holder == nil || busy.Holder.PID != cmd.Process.Pid {
		t.Errorf("session: error is %v, want a *Busy that names process %d", err, cmd.Process.Pid)
	}

	stdin.Close()
	c := lockNow(t, l, "k")
	if s, ok := c.Session("claude", "/home/x"); !ok || s.ID != "s" {
		t.Errorf("the child's session is %v, %v", s, ok)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestAKilledHolderFreesItsLocks(t *testing.T) {
	l := Open(t.TempDir())
	cmd, _ := holding(t, l)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()

	if list, err := l.List(); err != nil || len(list) != 1 || list[0].Holder != nil {
		t.Errorf("listed %+v, %v; want nobody inside", list, err)
	}
	c, err := l.Lock(ended(), "k", "mine")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Unlock()
	if s, ok := c.Session("claude", "/home/x"); !ok || s.ID != "s" {
		t.Errorf("what the killed process recorded is %v, %v", s, ok)
	}
	if err := c.Claim(ended(), "claude", "/home/x", "s"); err != nil {
		t.Error(err)
	}
}

func TestOneProcessAtATimeAndNothingIsLost(t *testing.T) {
	l := Open(t.TempDir())
	const processes = 4
	var cmds []*exec.Cmd
	for range processes {
		cmd, _, _ := child(t, l, "count")
		cmds = append(cmds, cmd)
	}
	for _, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	s, _ := lockNow(t, l, "k").Session("claude", "/home/x")
	if s.Totals.InputTokens != processes*countPerProcess {
		t.Errorf("counted %d, want %d", s.Totals.InputTokens, processes*countPerProcess)
	}
}

func TestTheWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Open(t.TempDir())
		lockNow(t, l, "k")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start := time.Now()
		var busy *Busy
		if _, err := l.Lock(ctx, "k", "second"); !errors.As(err, &busy) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v, want a *Busy with the deadline's", err)
		}
		if waited := time.Since(start); waited != time.Hour {
			t.Errorf("it waited %v, want an hour", waited)
		}
	})
}
