package audit

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// BenchmarkRecord shows how many calls one process records, all the way into the file.
func BenchmarkRecord(b *testing.B) {
	path := filepath.Join(b.TempDir(), "audit.db")
	arguments := []byte(`{"query":"open orders","limit":20}`)
	l := New(path, Options{})
	l.patience = time.Hour
	for i := range b.N {
		l.Record(Entry{
			Time: time.Now(), Client: "claude-code", Run: "20261130-200753-enaheypvfq", Server: "crm", Tool: "find", Exposed: "crm__find", Arguments: arguments,
			ResultBytes: int64(i), Outcome: OK, Duration: time.Millisecond, Authority: "0f5b0f5b0f5b0f5b0f5b0f5b0f5b0f5b", Generation: 1, Revision: "9c419c419c419c419c419c419c419c41",
		})
	}
	if err := l.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric(float64(info.Size())/float64(b.N), "bytes/row")
}

// BenchmarkOneCall shows what a process pays that makes a single call: the file is opened and closed for it.
func BenchmarkOneCall(b *testing.B) {
	path := filepath.Join(b.TempDir(), "audit.db")
	for b.Loop() {
		record(b, path, Options{}, Entry{Outcome: OK})
	}
}

func BenchmarkQuery(b *testing.B) {
	path := filepath.Join(b.TempDir(), "audit.db")
	entries := make([]Entry, 1000)
	for i := range entries {
		entries[i] = Entry{Outcome: OK, Client: fmt.Sprint("client-", i%10), Tool: "find"}
	}
	for range 20 {
		record(b, path, Options{}, entries...)
	}
	for b.Loop() {
		if got := read(b, path, Filter{Client: "client-7*", Limit: 100}); len(got) != 100 {
			b.Fatalf("got %d", len(got))
		}
	}
}
