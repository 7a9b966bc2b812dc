package audit

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nightporter/internal/secret"
)

// epoch is a time that is not too old to be recorded.
var epoch = time.Now().UTC().Truncate(time.Hour)

// odd is a path with every character that means something to a URI.
func odd(t testing.TB) string { return filepath.Join(t.TempDir(), "a b?c#d%41", "audit.db") }

// patiently is a context that ends before the test does.
func patiently(t testing.TB) context.Context {
	ctx, done := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(done)
	return ctx
}

func record(t testing.TB, path string, o Options, entries ...Entry) {
	t.Helper()
	l := New(path, o)
	l.patience = time.Hour // however slow this machine is
	for _, e := range entries {
		l.Record(e)
	}
	if err := l.Close(patiently(t)); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, path string, f Filter) []Entry {
	t.Helper()
	var entries []Entry
	for e, err := range Query(patiently(t), path, f) {
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
	}
	return entries
}

// exec changes a record behind the package's back.
func sqlExec(t testing.TB, path, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite", dsn(path))
	if err == nil {
		_, err = db.Exec(statement)
	}
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestA26AnEntryIsReadAsItWasRecorded(t *testing.T) {
	path := odd(t)
	want := Entry{
		Time: epoch.Add(123456789), Client: "inspector 1.0", Run: "20261130-200753-enaheypvfq", Server: "crm", Tool: "find", Exposed: "crm__find",
		Arguments: json.RawMessage(`{"n":1.0e400, "q":"ä"}`), ResultBytes: 1 << 40, Outcome: ToolError, Detail: "no such order",
		Duration: 1500 * time.Millisecond, Authority: "a1", Generation: 3, Revision: "r1",
	}
	record(t, path, Options{KeepArguments: true}, want)
	got := read(t, path, Filter{})
	digest, err := Digest(path, want.Arguments)
	if err != nil {
		t.Fatal(err)
	}
	want.ArgumentsDigest, want.ArgumentsBytes = digest, int64(len(want.Arguments))
	if diff := cmp.Diff([]Entry{want}, got); diff != "" {
		t.Error(diff)
	}
}

func TestNoFileIsMadeBeforeTheFirstEntry(t *testing.T) {
	path := odd(t)
	record(t, path, Options{})
	if got := read(t, path, Filter{}); len(got) > 0 {
		t.Errorf("got %v", got)
	}
	if _, err := os.Stat(filepath.Dir(path)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is there: %v", err)
	}
}

func TestFilesAreForTheirUserAlone(t *testing.T) {
	path := odd(t)
	l := New(path, Options{})
	l.Record(Entry{Outcome: OK, Arguments: []byte(`{}`)})
	for range Query(patiently(t), path, Filter{}) { // whatever it holds by now: the other files are there while it is open
	}
	if err := l.Close(patiently(t)); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(files) < 3 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f.Name(), info.Mode(), err)
		}
	}
}

func TestTheTextOfArgumentsIsNotKeptUnlessAskedFor(t *testing.T) {
	path := odd(t)
	arguments := json.RawMessage(`{"ssn":"078-05-1120"}`)
	record(t, path, Options{}, Entry{Outcome: OK, Arguments: arguments})
	if e := read(t, path, Filter{})[0]; e.Arguments != nil || e.ArgumentsDigest == "" || e.ArgumentsBytes != int64(len(arguments)) {
		t.Errorf("got %+v", e)
	}
	notInFiles(t, path, "078-05-1120")
}

// notInFiles checks that a text is in none of a record's files.
func notInFiles(t *testing.T, path, text string) {
	t.Helper()
	files, _ := os.ReadDir(filepath.Dir(path))
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(filepath.Dir(path), f.Name()))
		if err != nil || bytes.Contains(data, []byte(text)) {
			t.Errorf("%s has %q (%v)", f.Name(), text, err)
		}
	}
}

func TestDigestsDifferByKeyAndAgreeUnderOne(t *testing.T) {
	one, other := odd(t), odd(t)
	for _, path := range []string{one, one, other} {
		record(t, path, Options{}, Entry{Outcome: OK, Arguments: []byte(`{"q":1}`)}, Entry{Outcome: OK, Arguments: []byte(`{"q":2}`)}, Entry{Outcome: OK})
	}
	digests := map[string]int{}
	for _, e := range append(read(t, one, Filter{}), read(t, other, Filter{})...) {
		digests[e.ArgumentsDigest]++
	}
	if digests[""] != 3 || len(digests) != 5 {
		t.Errorf("got %v", digests)
	}
	want, err := Digest(one, []byte(`{"q":1}`))
	if err != nil || digests[want] != 2 {
		t.Errorf("%s %d times, %v", want, digests[want], err)
	}
	if got := read(t, one, Filter{ArgumentsDigest: want}); len(got) != 2 {
		t.Errorf("found %d", len(got))
	}
	key, err := os.ReadFile(keyPath(one))
	if err != nil || len(key) != keySize {
		t.Errorf("key of %d bytes, %v", len(key), err)
	}
}

func TestProcessesThatBeginTogetherAgreeOnAKey(t *testing.T) {
	path := odd(t)
	var wg sync.WaitGroup
	digests := make([]string, 16)
	for i := range digests {
		wg.Go(func() {
			k := keys{path: path}
			digests[i], _ = k.digest(patiently(t), []byte("{}"))
		})
	}
	wg.Wait()
	if slices.Sort(digests); digests[0] == "" || digests[0] != digests[len(digests)-1] {
		t.Errorf("got %v", digests)
	}
}

func TestAKeyOfTheWrongLengthIsReplaced(t *testing.T) {
	path := odd(t)
	record(t, path, Options{}, Entry{Outcome: OK})
	if err := os.WriteFile(keyPath(path), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Digest(path, []byte("{}")); err == nil {
		t.Error("a digest without a key")
	}
	record(t, path, Options{}, Entry{Outcome: OK, Arguments: []byte("{}")})
	if d, err := Digest(path, []byte("{}")); err != nil || len(read(t, path, Filter{ArgumentsDigest: d})) != 1 {
		t.Errorf("%q, %v", d, err)
	}
}

func TestSecretsAreMaskedBeforeTextIsCut(t *testing.T) {
	const key = "made-up-key-0123456789"
	var masker secret.Masker
	masker.Add(secret.New(key))
	path := odd(t)
	record(t, path, Options{Masker: &masker, KeepArguments: true}, Entry{
		Outcome: RPCError, Client: "c " + key, Exposed: "e " + key, Arguments: json.RawMessage(`{"key":"` + key + `"}`),
		Detail: strings.Repeat("x", maxDetail-10) + key,
	})
	e := read(t, path, Filter{})[0]
	if e.Client != "c ***" || e.Exposed != "e ***" || string(e.Arguments) != `{"key":"***"}` || len(e.Detail) > maxDetail || !strings.HasSuffix(e.Detail, "***") {
		t.Errorf("got %+v", e)
	}
	notInFiles(t, path, key[:9])
}

func TestWhatClientsChooseIsBounded(t *testing.T) {
	long := strings.Repeat("ä", 1<<20)
	path := odd(t)
	record(t, path, Options{KeepArguments: true},
		Entry{Outcome: OK, Client: long, Exposed: "\xff\xfe", Detail: long, Arguments: json.RawMessage(`{"a":"` + long + `"}`)},
		Entry{Outcome: OK, Arguments: json.RawMessage(`{"a":`)})
	for _, e := range read(t, path, Filter{}) {
		if len(e.Client) > maxName || len(e.Detail) > maxDetail || e.Arguments != nil || e.ArgumentsBytes == 0 || !json.Valid([]byte(`"`+e.Detail+`"`)) {
			t.Errorf("got %d bytes of client, %d of detail, arguments %.20s of %d", len(e.Client), len(e.Detail), e.Arguments, e.ArgumentsBytes)
		}
	}
}

func FuzzBounded(f *testing.F) {
	f.Add("ä\xff", 4)
	f.Add(strings.Repeat("…", 10), 7)
	f.Fuzz(func(t *testing.T, text string, most int) {
		most = 3 + max(0, most)%2000
		got := bounded(text, most)
		if len(got) > most || strings.ToValidUTF8(got, "") != got {
			t.Errorf("bounded(%q, %d) = %q", text, most, got)
		}
	})
}

func TestQueriesFilter(t *testing.T) {
	path := odd(t)
	at := func(minutes int) time.Time { return epoch.Add(time.Duration(minutes) * time.Minute) }
	record(t, path, Options{},
		Entry{Time: at(3), Detail: "c", Client: "codex", Server: "github", Tool: "search_code", Outcome: Refused},
		Entry{Time: at(1), Detail: "a", Client: "claude", Run: "run-1", Server: "crm", Tool: "find", Outcome: OK},
		Entry{Time: at(2), Detail: "b", Client: "claude", Run: "run-2", Server: "crm", Tool: "delete", Outcome: ToolError},
		Entry{Time: at(3), Detail: "d", Client: "codex", Exposed: "nosuch_tool", Outcome: Refused},
	)
	for _, test := range []struct {
		name   string
		filter Filter
		want   string
	}{
		{"everything, the newest first", Filter{}, "dcba"},
		{"since, inclusive", Filter{Since: at(2)}, "dcb"},
		{"until, exclusive", Filter{Until: at(2)}, "a"},
		{"a time between", Filter{Since: at(2), Until: at(3)}, "b"},
		{"a run", Filter{Run: "run-1"}, "a"},
		{"a run is no pattern", Filter{Run: "run-*"}, ""},
		{"a client", Filter{Client: "codex"}, "dc"},
		{"a pattern of clients", Filter{Client: "c?a*"}, "ba"},
		{"case counts", Filter{Client: "Codex"}, ""},
		{"a server", Filter{Server: "crm"}, "ba"},
		{"servers of several letters", Filter{Server: "[a-d]*"}, "ba"},
		{"a pattern matches the whole", Filter{Server: "git"}, ""},
		{"a tool", Filter{Tool: "search_*"}, "c"},
		{"a tool that does not exist, by what the client called it", Filter{Tool: "nosuch*"}, "d"},
		{"a quote is a character", Filter{Tool: "' OR 1=1 --"}, ""},
		{"an outcome", Filter{Outcomes: []Outcome{OK}}, "a"},
		{"outcomes", Filter{Outcomes: []Outcome{Refused, ToolError}}, "dcb"},
		{"a limit", Filter{Limit: 2}, "dc"},
		{"all together", Filter{Since: at(1), Until: at(4), Run: "run-2", Client: "cl*", Server: "crm", Tool: "d*", Outcomes: []Outcome{ToolError}, Limit: 1}, "b"},
	} {
		var got strings.Builder
		for _, e := range read(t, path, test.filter) {
			got.WriteString(e.Detail)
		}
		if got.String() != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got.String(), test.want)
		}
	}
}

func TestQueriesUseTheIndexOfARun(t *testing.T) {
	path := odd(t)
	record(t, path, Options{}, Entry{Outcome: OK})
	where, args := (&Filter{Run: "r"}).where()
	s, err := open(patiently(t), path, migrations)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	var id, parent, unused int
	var plan string
	if err := s.conn.QueryRowContext(patiently(t), "EXPLAIN QUERY PLAN SELECT id FROM calls"+where, args...).Scan(&id, &parent, &unused, &plan); err != nil || !strings.Contains(plan, "calls_run") {
		t.Errorf("%s, %v", plan, err)
	}
}

func TestAQueryMayStopEarly(t *testing.T) {
	path := odd(t)
	record(t, path, Options{}, make([]Entry, 10)...)
	for range Query(patiently(t), path, Filter{}) {
		break
	}
}

func TestAQueryHoldsNoWriterUp(t *testing.T) {
	path := odd(t)
	record(t, path, Options{}, make([]Entry, 100)...)
	n := 0
	for range Query(patiently(t), path, Filter{}) {
		if n++; n == 50 {
			record(t, path, Options{}, Entry{Outcome: OK})
		}
	}
	if n != 100 {
		t.Errorf("a query saw %d entries, want those there when it began", n)
	}
}

func TestOldEntriesAreRemoved(t *testing.T) {
	path := odd(t)
	now := time.Now()
	var entries []Entry
	for i := range 10 {
		entries = append(entries, Entry{Time: now.Add(-time.Duration(i) * 24 * time.Hour), Outcome: OK})
	}
	record(t, path, Options{MaxAge: 5*24*time.Hour - time.Minute}, entries...)
	if got := read(t, path, Filter{}); len(got) != 5 || !got[4].Time.Equal(entries[4].Time) {
		t.Errorf("%d are left", len(got))
	}
}

func TestTheOldestAreRemovedWhenTheFileIsTooLarge(t *testing.T) {
	const limit = 2 << 20
	path := odd(t)
	detail := strings.Repeat("x", maxDetail)
	const n = 10_000 // five times the limit
	entries := make([]Entry, n)
	for i := range entries {
		entries[i] = Entry{Time: epoch.Add(time.Duration(i)), Outcome: OK, Detail: detail}
	}
	record(t, path, Options{MaxBytes: limit}, entries...)
	got := read(t, path, Filter{})
	first, last := got[len(got)-1], got[0]
	if !last.Time.Equal(epoch.Add(n-1)) || first.Time.Equal(epoch) || int(last.Time.Sub(first.Time)) != len(got)-1 {
		t.Errorf("%d are left, from %v to %v", len(got), first.Time, last.Time)
	}
	info, err := os.Stat(path)
	// One transaction may be over the limit, and free pages stay.
	if most := int64(limit + (maxBatch+trimRows)*2*maxDetail + sparePages*4096); err != nil || info.Size() > most {
		t.Errorf("the file has %d bytes, %v", info.Size(), err)
	}
	if len(got)*maxDetail < limit/4 {
		t.Errorf("only %d are left", len(got))
	}
}

func TestFreePagesAreGivenBack(t *testing.T) {
	path := odd(t)
	detail := strings.Repeat("x", maxDetail)
	var entries []Entry
	for i := range 8000 {
		entries = append(entries, Entry{Time: time.Now().Add(time.Duration(i) - time.Hour), Outcome: OK, Detail: detail})
	}
	record(t, path, Options{}, entries...)
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for range 16 { // each transaction removes and frees a part
		record(t, path, Options{MaxAge: time.Minute}, Entry{Outcome: OK})
	}
	after, err := os.Stat(path)
	if got := read(t, path, Filter{}); err != nil || len(got) != 16 || after.Size() > before.Size()*7/10 {
		t.Errorf("%d are left, in %d bytes of %d (%v)", len(got), after.Size(), before.Size(), err)
	}
}

func TestEntriesThatFindNoRoomAreCounted(t *testing.T) {
	path := odd(t)
	record(t, path, Options{}, Entry{Time: epoch, Outcome: OK})
	db, err := sql.Open("sqlite", dsn(path))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	hold, err := db.Begin() // as another process may
	if err != nil {
		t.Fatal(err)
	}
	l := New(path, Options{})
	l.patience = 50 * time.Millisecond
	const n = queueLength + maxBatch + 500
	began := time.Now()
	for i := range n {
		l.Record(Entry{Time: epoch.Add(time.Hour + time.Duration(i)), Outcome: OK})
	}
	if took := time.Since(began); took > 100*l.patience { // each that finds no room would have waited
		t.Errorf("took %v", took)
	}
	if err := hold.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(patiently(t)); err != nil {
		t.Fatal(err)
	}
	calls := len(read(t, path, Filter{Outcomes: []Outcome{OK}})) - 1
	missing := 0
	for _, e := range read(t, path, Filter{Outcomes: []Outcome{Lost}}) {
		missing += int(e.Lost)
		if e.Time.Before(epoch.Add(time.Hour+queueLength)) || e.Detail == "" {
			t.Errorf("got %+v", e)
		}
	}
	if calls+missing != n || calls < queueLength || missing == 0 {
		t.Errorf("%d recorded and %d counted as lost of %d", calls, missing, n)
	}
}

func TestCloseSaysWhatIsMissing(t *testing.T) {
	path := odd(t)
	record(t, path, Options{}, Entry{Outcome: OK})
	db, err := sql.Open("sqlite", dsn(path))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	hold, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Rollback()
	l := New(path, Options{})
	for range 3 {
		l.Record(Entry{Outcome: OK})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Close(ctx); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "3 calls are missing in the audit record "+path) {
		t.Errorf("got %v", err)
	}
}

func TestAnUnwritableRecordHoldsNobodyUp(t *testing.T) {
	path := odd(t)
	if err := os.MkdirAll(path, 0o700); err != nil { // a folder where the file should be
		t.Fatal(err)
	}
	l := New(path, Options{})
	l.Record(Entry{Outcome: OK})
	if err := l.Close(patiently(t)); err == nil || !strings.Contains(err.Error(), "1 calls are missing") {
		t.Errorf("got %v", err)
	}
	if patiently(t).Err() != nil {
		t.Error("Close waited for what does not pass")
	}
}

func TestRecordAfterCloseIsSaid(t *testing.T) {
	var said bytes.Buffer
	l := New(odd(t), Options{Log: slog.New(slog.NewTextHandler(&said, nil))})
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.Record(Entry{Server: "crm", Outcome: OK})
	if !strings.Contains(said.String(), "not recorded") {
		t.Errorf("said %q", said.String())
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestARecordThatIsMovedAwayLosesNothing(t *testing.T) {
	for _, remove := range []bool{false, true} {
		t.Run(fmt.Sprint("removed ", remove), func(t *testing.T) {
			path := odd(t)
			l := New(path, Options{})
			l.Record(Entry{Time: epoch, Outcome: OK})
			until(t, path, 1)
			if remove {
				if err := os.Remove(path); err != nil { // its write-ahead log stays
					t.Fatal(err)
				}
			} else if err := os.Rename(path, path+".old"); err != nil {
				t.Fatal(err)
			}
			record(t, path, Options{}, Entry{Time: epoch.Add(1), Outcome: OK}) // another process makes a new one
			l.Record(Entry{Time: epoch.Add(2), Outcome: OK})
			if err := l.Close(patiently(t)); err != nil {
				t.Fatal(err)
			}
			// The first may be in both: it can be read before its writer has looked whether the file is still there.
			if got := read(t, path, Filter{Since: epoch.Add(1)}); len(got) != 2 || !got[0].Time.Equal(epoch.Add(2)) || !got[1].Time.Equal(epoch.Add(1)) {
				t.Errorf("got %v", got)
			}
		})
	}
}

// until waits for n entries.
func until(t testing.TB, path string, n int) []Entry {
	t.Helper()
	ctx := patiently(t)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		var entries []Entry
		for e, err := range Query(ctx, path, Filter{}) {
			if err != nil {
				t.Fatal(err)
			}
			entries = append(entries, e)
		}
		if len(entries) >= n {
			return entries
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%d entries, want %d", len(entries), n)
		}
	}
}

func TestADamagedRecordIsSetAsideAndSaid(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"no database":     func(data []byte) []byte { return []byte(strings.Repeat("not a database\n", 1000)) },
		"cut off":         func(data []byte) []byte { return data[:len(data)/2+7] },
		"schema is noise": func(data []byte) []byte { copy(data[100:4096], strings.Repeat("\xff", 4096)); return data },
		"last pages are noise": func(data []byte) []byte {
			copy(data[2*4096:], strings.Repeat("\xa5", len(data)))
			return data
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := odd(t)
			record(t, path, Options{}, make([]Entry, 300)...)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			bad := damage(data)
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			var said bytes.Buffer
			record(t, path, Options{Log: slog.New(slog.NewTextHandler(&said, nil))}, Entry{Time: epoch, Server: "crm", Outcome: OK})
			got := read(t, path, Filter{})
			if len(got) != 2 || got[0].Outcome != Damaged || got[1].Server != "crm" {
				t.Fatalf("got %v", got)
			}
			aside, _ := filepath.Glob(globEscaped(path) + ".*" + damagedSuffix)
			if len(aside) != 1 || !strings.Contains(got[0].Detail, aside[0]) || !strings.Contains(said.String(), "damaged") {
				t.Fatalf("aside %q, detail %q, said %q", aside, got[0].Detail, said.String())
			}
			if kept, err := os.ReadFile(aside[0]); err != nil || !bytes.Equal(kept, bad) {
				t.Errorf("what was set aside changed (%v)", err)
			}
		})
	}
}

func TestAQueryOfADamagedRecordSaysSoAndChangesNothing(t *testing.T) {
	path := odd(t)
	bad := []byte(strings.Repeat("not a database\n", 1000))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bad, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, err := range Query(patiently(t), path, Filter{}) {
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), ".recover") {
			t.Errorf("got %v", err)
		}
	}
	if data, err := os.ReadFile(path); err != nil || !bytes.Equal(data, bad) {
		t.Error("the file changed")
	}
}

func TestADamagedFileTakesItsLogAlong(t *testing.T) {
	path := odd(t)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.WriteFile(path+suffix, []byte("file"+suffix), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	damaged, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	aside, err := setAside(patiently(t), path, damaged)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{aside: "file", aside + "-wal": "file-wal", path: "", path + "-wal": "", path + "-shm": ""} {
		if got, _ := os.ReadFile(name); string(got) != want {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
	if err := os.WriteFile(path, []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err := setAside(patiently(t), path, damaged); again != "" || err != nil {
		t.Errorf("another file was set aside: %s, %v", again, err)
	}
}

func TestADamagedRecordIsSetAsideOnceByManyWriters(t *testing.T) {
	const (
		rounds  = 8 // of a race that without the shared lock is lost in every third
		writers = 6
	)
	for range rounds {
		path := odd(t)
		record(t, path, Options{}, make([]Entry, 300)...)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		copy(data[100:4096], strings.Repeat("\xff", 4096))
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range writers {
			wg.Go(func() {
				l := New(path, Options{})
				l.Record(Entry{Server: "crm", Outcome: OK})
				if err := l.Close(patiently(t)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if got := read(t, path, Filter{Server: "crm"}); len(got) != writers {
			t.Errorf("%d of %d are recorded", len(got), writers)
		}
		if got := read(t, path, Filter{Outcomes: []Outcome{Damaged}}); len(got) != 1 {
			t.Errorf("set aside %d times", len(got))
		}
	}
}

func TestTheLastDamagedFilesAreKept(t *testing.T) {
	path := odd(t)
	for i := range keepDamaged + 2 {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.Repeat(fmt.Sprint("damaged ", i, "\n"), 1000)), 0o600); err != nil {
			t.Fatal(err)
		}
		record(t, path, Options{}, Entry{Outcome: OK})
	}
	aside, _ := filepath.Glob(globEscaped(path) + ".*" + damagedSuffix)
	if len(aside) != keepDamaged {
		t.Fatalf("%q are left", aside)
	}
	if data, err := os.ReadFile(aside[0]); err != nil || !strings.HasPrefix(string(data), "damaged 2\n") {
		t.Errorf("the oldest is %.10q (%v)", data, err)
	}
}

func TestARecordOfANewerNightporterIsLeftAlone(t *testing.T) {
	path := odd(t)
	record(t, path, Options{}, Entry{Outcome: OK})
	l := New(path, Options{})
	l.Record(Entry{Outcome: OK})
	until(t, path, 2)
	sqlExec(t, path, "PRAGMA user_version = 99") // while it is open, too
	l.Record(Entry{Outcome: OK})
	var newer *NewerError
	if err := l.Close(patiently(t)); !errors.As(err, &newer) || newer.Have != 99 || newer.Known != len(migrations) {
		t.Errorf("got %v", err)
	}
	l = New(path, Options{})
	l.Record(Entry{Outcome: OK})
	if err := l.Close(patiently(t)); !errors.As(err, &newer) || !strings.Contains(err.Error(), "use the newer Nightporter") {
		t.Errorf("got %v", err)
	}
	for _, err := range Query(patiently(t), path, Filter{}) {
		if !errors.As(err, &newer) {
			t.Errorf("got %v", err)
		}
	}
	sqlExec(t, path, fmt.Sprintf("PRAGMA user_version = %d", len(migrations)))
	if got := read(t, path, Filter{}); len(got) != 2 {
		t.Errorf("it has %d entries", len(got))
	}
}

func TestAnOlderRecordIsMigratedOnce(t *testing.T) {
	path := odd(t)
	record(t, path, Options{}, Entry{Time: epoch, Outcome: OK})
	next := append(slices.Clip(slices.Clone(migrations)), "ALTER TABLE calls ADD COLUMN host TEXT NOT NULL DEFAULT 'here'")
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			s, err := open(patiently(t), path, next)
			if err != nil {
				t.Error(err)
				return
			}
			defer s.close()
			var host string
			if err := s.conn.QueryRowContext(patiently(t), "SELECT host FROM calls").Scan(&host); err != nil || host != "here" || s.version != len(next) {
				t.Errorf("%q, %v, schema %d", host, err, s.version)
			}
		})
	}
	wg.Wait()
}

func TestAMigrationThatFailsChangesNothing(t *testing.T) {
	path := odd(t)
	record(t, path, Options{}, Entry{Outcome: OK})
	next := append(slices.Clip(slices.Clone(migrations)), "ALTER TABLE calls ADD COLUMN host TEXT; SELECT nosuch FROM calls")
	if _, err := open(patiently(t), path, next); err == nil {
		t.Fatal("no error")
	}
	record(t, path, Options{}, Entry{Outcome: OK})
	if got := read(t, path, Filter{}); len(got) != 2 {
		t.Errorf("%d entries", len(got))
	}
}
