package audit

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// The tests of several processes run this binary again, as the process that its environment says.
func TestMain(m *testing.M) {
	path := os.Getenv("AUDIT_TEST_PATH")
	if path == "" {
		goleak.VerifyTestMain(m)
		return
	}
	n, err := strconv.Atoi(os.Getenv("AUDIT_TEST_CALLS"))
	if err == nil {
		err = callMany(path, os.Getenv("AUDIT_TEST_CLIENT"), n)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// callMany records n calls of a client, numbered.
func callMany(path, client string, n int) error {
	l := New(path, Options{})
	l.patience = time.Hour
	for i := range n {
		l.Record(Entry{Client: client, Generation: i, Outcome: OK, Arguments: []byte("{}")})
	}
	ctx, done := context.WithTimeout(context.Background(), time.Minute)
	defer done()
	return l.Close(ctx)
}

func process(t *testing.T, path, client string, calls int) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), "AUDIT_TEST_PATH="+path, "AUDIT_TEST_CLIENT="+client, fmt.Sprint("AUDIT_TEST_CALLS=", calls))
	cmd.Stderr = new(strings.Builder)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func TestA26ProcessesRecordToOneFileAndLoseNothing(t *testing.T) {
	path := odd(t)
	const (
		processes = 4
		calls     = 1500 // more than wait in a queue
	)
	var all []*exec.Cmd
	for i := range processes {
		all = append(all, process(t, path, fmt.Sprint("client-", i), calls))
	}
	for _, cmd := range all {
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v: %s", err, cmd.Stderr)
		}
	}
	seen := map[string]int{}
	digests := map[string]bool{}
	for _, e := range read(t, path, Filter{}) {
		seen[fmt.Sprint(e.Client, e.Generation)]++
		digests[e.ArgumentsDigest] = true
	}
	if len(seen) != processes*calls || len(digests) != 1 {
		t.Errorf("%d of %d calls are recorded, under %d keys", len(seen), processes*calls, len(digests))
	}
	for call, n := range seen {
		if n != 1 {
			t.Errorf("%s is recorded %d times", call, n)
		}
	}
}

func TestAKilledWriterLosesOnlyWhatWasNotFlushed(t *testing.T) {
	path := odd(t)
	cmd := process(t, path, "victim", 50_000_000)
	seen := until(t, path, 2000)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("it ended by itself")
	}
	left := read(t, path, Filter{})
	if len(left) < len(seen) {
		t.Errorf("%d are left of %d that could be read before", len(left), len(seen))
	}
	for i, e := range left { // nothing is missing between the first and the last
		if want := len(left) - 1 - i; e.Generation != want {
			t.Fatalf("entry %d is call %d", want, e.Generation)
		}
	}
	s, err := open(patiently(t), path, migrations)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	var verdict string
	if err := s.conn.QueryRowContext(patiently(t), "PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
		t.Errorf("the file is not good: %s, %v", verdict, err)
	}
	if err := s.add(patiently(t), []Entry{{Outcome: OK}}, DefaultMaxAge, DefaultMaxBytes); err != nil {
		t.Error(err)
	}
}
