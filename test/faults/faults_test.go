package faults

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
)

var update = flag.Bool("update", false, "write the table of docs/faults.md anew")

// outcome is what a user meets.
type outcome struct {
	told string // what the client or the person is told, in one line
	left string // of processes
	then string // how it goes on
}

// scenario is one fault. told has … for what differs.
type scenario struct {
	who, fault string
	told       string
	then       string
	run        func(t *testing.T) outcome
}

// TestFaults makes every fault happen, and holds what a user meets against the table.
func TestFaults(t *testing.T) {
	var (
		mu       sync.Mutex
		measured = map[string]outcome{}
	)
	t.Run("each", func(t *testing.T) {
		for _, s := range scenarios() {
			t.Run(s.who+"/"+strings.ReplaceAll(s.fault, " ", "_"), func(t *testing.T) {
				t.Parallel()
				got := s.run(t)
				mu.Lock()
				measured[s.who+s.fault] = got
				mu.Unlock()
				if !like(got.told, s.told) {
					t.Errorf("told %q, want %q", got.told, s.told)
				}
				if got.left != "nothing" {
					t.Error(got.left)
				}
				if !like(got.then, s.then) {
					t.Errorf("then: %s; want: %s", got.then, s.then)
				}
			})
		}
	})
	var table strings.Builder
	table.WriteString("| who | fault | what is told | left running | then |\n|---|---|---|---|---|\n")
	for _, s := range scenarios() {
		fmt.Fprintf(&table, "| %s | %s | %s | nothing | %s |\n", s.who, s.fault, cell(s.told), s.then)
		if m, ok := measured[s.who+s.fault]; ok && testing.Verbose() {
			fmt.Printf("%-8s %-44s %s\n%54sleft: %s; then: %s\n", s.who, s.fault, short(m.told), "", m.left, m.then)
		}
	}
	page := "../../docs/faults.md"
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, _, found := strings.Cut(string(data), "| who |")
	if !found {
		t.Fatalf("%s has no table", page)
	}
	if want := before + table.String(); want != string(data) {
		if *update {
			if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		t.Errorf("%s is not what these tests say; run go test ./test/faults -update", page)
	}
}

func cell(text string) string {
	if text == "" {
		return "–"
	}
	return "`" + strings.ReplaceAll(text, "|", "\\|") + "`"
}

func short(text string) string {
	if len(text) > 300 {
		return text[:300] + "…"
	}
	return text
}

// like reports whether text is pattern, with anything in place of each ….
func like(text, pattern string) bool {
	parts := strings.Split(pattern, "…")
	for i, part := range parts {
		at := strings.Index(text, part)
		if at < 0 || i == 0 && at > 0 {
			return false
		}
		if i == len(parts)-1 && part != "" {
			return strings.HasSuffix(text, part)
		}
		text = text[at+len(part):]
	}
	return pattern == "" || len(parts) > 1 || text == ""
}
