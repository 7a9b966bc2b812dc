package main

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFiguresOfDifferentRunsAreNotCompared(t *testing.T) {
	one := sample{Run: "A", About: "b. one caller", Product: "direct", Figure: "median", Unit: "ms", Value: 1}
	other := one
	other.Run, other.Product, other.Value = "B", "nightporter", 2
	file := filepath.Join(t.TempDir(), "raw")
	if err := save(file, []sample{one, other}); err != nil {
		t.Fatal(err)
	}
	samples, err := load([]string{file})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := results(samples); err == nil || !strings.Contains(err.Error(), "different runs (A, B)") {
		t.Errorf("error %v", err)
	}
}

// TestRatiosAreOfOneRound: what a busy moment does to one round of both products is not in them.
func TestRatiosAreOfOneRound(t *testing.T) {
	var samples []sample
	for round, base := range []float64{1, 100, 10} {
		samples = append(samples,
			sample{About: "b. x", Product: "direct", Figure: "median", Unit: "ms", Round: round, Value: base},
			sample{About: "b. x", Product: "nightporter", Figure: "median", Unit: "ms", Round: round, Value: 2 * base},
			sample{About: "b. x", Product: "direct", Figure: "rate", Unit: "/s", Round: round, Value: base},
			sample{About: "b. x", Product: "nightporter", Figure: "rate", Unit: "/s", Round: round, Value: base / 4},
		)
	}
	all, err := results(samples)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{"median": 2, "rate": 0.25}
	for _, r := range all {
		if r.Product == "nightporter" && (math.Abs(r.Ratio-want[r.Figure]) > 1e-9 || math.Abs(r.LeastRatio-want[r.Figure]) > 1e-9) {
			t.Errorf("%s: ratios %v and %v, want %v", r.Figure, r.Ratio, r.LeastRatio, want[r.Figure])
		}
	}
}

func TestSettingsOfProductsAreGood(t *testing.T) {
	files, err := filepath.Glob("products/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	b := &bench{ctx: t.Context(), temporary: t.TempDir()}
	for _, file := range files {
		if strings.HasSuffix(file, ".config.json") { // a product's own
			continue
		}
		p, err := b.product(file)
		if errors.Is(err, errMissing) {
			b.programs = t.TempDir() // any program: only the texts are looked at
			name := strings.TrimSuffix(filepath.Base(file), ".json")
			for _, program := range []string{name, name + "-mcp-proxy"} {
				if err := os.WriteFile(filepath.Join(b.programs, program), []byte("#!/bin/sh\n"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			p, err = b.product(file)
		}
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		for _, overHTTP := range []bool{false, true} {
			e, err := b.setUp(p, []server{{Name: "one", Command: "node", Args: []string{"a b"}}}, overHTTP, "")
			if err != nil {
				t.Errorf("%s: %v", file, err)
				continue
			}
			words := p.Stdio
			if overHTTP {
				words = p.HTTP
			}
			if argv, err := e.world.argv(words); err != nil || p.Name == "direct" && !overHTTP && len(argv) != 2 {
				t.Errorf("%s: %q, %v", file, argv, err)
			}
			if _, err := e.dial(transport(), "one"); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}
