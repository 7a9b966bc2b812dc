package runtime

import (
	"encoding/json"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"nightporter/internal/mcp/catalog"
)

// TestNumbersAreCountableAsForClients holds countable against a reader that makes a float64 of every number, as clients in JavaScript and Go do.
func TestNumbersAreCountableAsForClients(t *testing.T) {
	long := strings.Repeat("9", 299)
	for _, raw := range []string{
		`{}`, `{"a":1}`, `[1,-2.5,3e4]`, `1e308`, `1e309`, `-1e309`, `[0,1e400]`, `{"a":{"b":[1E+400]}}`, `{"a":"1e400"}`, `{"1e400":1}`,
		`{"a":"\"1e400"}`, `{"a":"\\","b":1e400}`, `1e-400`, long, long + "9999999999", long + "99999999999", "-" + long + "99999999999", "0." + long + long, long + "e300", `[true,null,false]`,
	} {
		if !json.Valid([]byte(raw)) {
			t.Fatalf("%s is not JSON", raw)
		}
		if got, want := countable(json.RawMessage(raw)), json.Unmarshal([]byte(raw), new(any)) == nil; got != want {
			t.Errorf("%.60s: countable %v, want %v", raw, got, want)
		}
	}
}

// TestClientsShareALook: what a catalog shows is found once for all who have it, and forgotten with it.
func TestClientsShareALook(t *testing.T) {
	var l looks
	c := &catalog.Catalog{Tools: []json.RawMessage{json.RawMessage(`{"name":"a","inputSchema":{"type":"object"}}`), json.RawMessage(`{"name":"b"}`)}}
	var wg sync.WaitGroup
	found := make([]*look, 8)
	for i := range found {
		wg.Go(func() { found[i] = l.at(c) })
	}
	wg.Wait()
	for _, f := range found {
		if f != found[0] {
			t.Fatal("two clients have looks of their own")
		}
	}
	if e := found[0].tools; e[0].id != "a" || e[0].flaw != "" || !e[0].forModels || e[1].id != "b" || e[1].flaw != "it has no inputSchema" {
		t.Errorf("%+v", e)
	}
	runtime.KeepAlive(c)
	c = nil
	left := func() (n int) {
		l.byCatalog.Range(func(any, any) bool { n++; return true })
		return n
	}
	ticker, deadline := time.NewTicker(10*time.Millisecond), time.After(30*time.Second)
	defer ticker.Stop()
	for left() > 0 {
		runtime.GC()
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatal("the look outlives its catalog")
		}
	}
}
