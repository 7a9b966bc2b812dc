package catalog

import (
	"fmt"
	"strings"
	"testing"
)

// many publishes servers with this many tools each, of about 1 KB.
func many(b *testing.B, servers, tools int) (*Store, []*Catalog) {
	s := open(b)
	text := strings.Repeat("words ", 100)
	var all []*Catalog
	for i := range servers {
		c := sample(s, fmt.Sprint("server-", i))
		c.Tools = nil
		for j := range tools {
			c.Tools = append(c.Tools, raws(fmt.Sprintf(`{"name":"tool_%d","description":%q,"inputSchema":{"type":"object","properties":{"a":{"type":"string","description":"first"},"b":{"type":"integer","minimum":0}},"required":["a"]},"annotations":{"readOnlyHint":true}}`, j, text))...)
		}
		publish(b, s, c)
		all = append(all, c)
	}
	return s, all
}

// BenchmarkLoadAll reads what 1,000 servers offer, 20,000 tools: what a start of Nightporter reads.
func BenchmarkLoadAll(b *testing.B) {
	s, all := many(b, 1000, 20)
	for b.Loop() {
		for _, c := range all {
			if _, err := s.Load(c.Server, c.Identity); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkLoadLarge reads one server of 20,000 tools.
func BenchmarkLoadLarge(b *testing.B) {
	s, all := many(b, 1, 20000)
	for b.Loop() {
		if _, err := s.Load(all[0].Server, all[0].Identity); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRevision20000Tools(b *testing.B) {
	_, all := many(b, 1, 20000)
	for b.Loop() {
		RevisionOf(all[0])
	}
}

func BenchmarkStripHints(b *testing.B) {
	_, all := many(b, 1, 1)
	for b.Loop() {
		StripHints(all[0].Tools[0])
	}
}
