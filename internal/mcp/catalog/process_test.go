package catalog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// The tests of several processes run this binary again, as the process that its environment says.
func TestMain(m *testing.M) {
	dir := os.Getenv("CATALOG_TEST_DIR")
	if dir == "" {
		os.Exit(m.Run())
	}
	me, err := strconv.Atoi(os.Getenv("CATALOG_TEST_PROCESS"))
	if err == nil {
		err = publishMany(dir, me)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const (
	processes = 4
	rounds    = 12
)

// epoch is the same in all processes.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// publishMany publishes, as process me of several, a server of its own, an identity of its own of a shared server, and the
// shared identity of the shared server, the latter with listings that are by turns ahead of the others' and behind.
func publishMany(dir string, me int) error {
	s, err := Open(dir)
	if err != nil {
		return err
	}
	shared := sharedIdentity(s)
	for round := range rounds {
		at := epoch.Add(time.Duration((round*7+me*5)%(rounds*2)) * time.Second)
		for _, c := range []*Catalog{
			{Server: own(me), Identity: s.Identity(Parts{Name: own(me)}), FetchedAt: epoch.Add(time.Duration(round))},
			{Server: "shared", Identity: s.Identity(Parts{Name: "shared", Cwd: own(me)}), FetchedAt: epoch.Add(time.Duration(round))},
			{Server: "shared", Identity: shared, FetchedAt: at},
		} {
			c.Cacheable = true
			c.Tools = raws(fmt.Sprintf(`{"name":"at-%d"}`, c.FetchedAt.UnixNano()))
			if _, err := s.Publish(c); err != nil {
				return err
			}
			got, err := s.Load(c.Server, c.Identity)
			if err != nil {
				return err
			}
			if got.FetchedAt.Before(c.FetchedAt) {
				return fmt.Errorf("the listing of %v was replaced by that of %v", c.FetchedAt, got.FetchedAt)
			}
			if want := fmt.Sprintf(`{"name":"at-%d"}`, got.FetchedAt.UnixNano()); string(got.Tools[0]) != want {
				return fmt.Errorf("the listing of %v holds %s", got.FetchedAt, got.Tools[0])
			}
		}
	}
	return nil
}

func own(process int) string { return fmt.Sprint("own-", process) }

func sharedIdentity(s *Store) Identity { return s.Identity(Parts{Name: "shared"}) }

func TestProcessesPublishToOneFolderAndLoseNothing(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The folder does not exist: they race for its key too.
	dir := filepath.Join(t.TempDir(), "new")
	var cmds []*exec.Cmd
	for me := range processes {
		cmd := exec.CommandContext(t.Context(), exe)
		cmd.Env = append(os.Environ(), "CATALOG_TEST_DIR="+dir, "CATALOG_TEST_PROCESS="+strconv.Itoa(me))
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds = append(cmds, cmd)
	}
	for me, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Errorf("process %d: %v", me, err)
		}
	}

	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	newest := epoch
	for me := range processes {
		for round := range rounds {
			if at := epoch.Add(time.Duration((round*7+me*5)%(rounds*2)) * time.Second); at.After(newest) {
				newest = at
			}
		}
		for _, p := range []Parts{{Name: own(me)}, {Name: "shared", Cwd: own(me)}} {
			if c, err := s.Load(p.Name, s.Identity(p)); err != nil || !c.FetchedAt.Equal(epoch.Add(rounds-1)) {
				t.Errorf("process %d: %v, %v; want its last listing", me, c, err)
			}
		}
	}
	if c, err := s.Load("shared", sharedIdentity(s)); err != nil || !c.FetchedAt.Equal(newest) {
		t.Errorf("shared: %v, %v; want the listing of %v", c, err, newest)
	}
}

func TestPublishGivesUpOnALockThatIsNeverFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		c := sample(s, "x")
		publish(t, s, c)
		unlock, err := lock(filepath.Join(s.folder("x"), "lock"))
		if err != nil {
			t.Fatal(err)
		}
		defer unlock()
		start := time.Now()
		if ok, err := s.Publish(c); ok || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Publish answered %v, %v", ok, err)
		}
		if waited := time.Since(start); waited < lockWait || waited > lockWait+lockRetry {
			t.Errorf("it waited %v, want %v", waited, lockWait)
		}
	})
}
