package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// The works in this file are Go benchmarks beside the code, which need what only tests there have. A benchmark takes turns by itself.

// figures are what one Go benchmark reported, by unit.
type figures struct {
	name string
	by   map[string]float64
}

// goBench runs benchmarks of packages.
func (b *bench) goBench(pattern, times string, packages ...string) (all []figures, err error) {
	args := append([]string{"test", "-p=1", "-timeout", "60m", "-run", "^$", "-bench", pattern, "-benchtime", times}, packages...)
	cmd := exec.CommandContext(b.ctx, "go", args...)
	cmd.Dir = filepath.Dir(sourceFolder())
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 4 || !strings.HasPrefix(line, "Benchmark") {
			continue
		}
		name := fields[0]
		if i := strings.LastIndexByte(name, '-'); i > 0 { // the number of processors
			name = name[:i]
		}
		f := figures{strings.TrimPrefix(name, "Benchmark"), map[string]float64{}}
		for i := 2; i+1 < len(fields); i += 2 {
			if f.by[fields[i+1]], err = strconv.ParseFloat(fields[i], 64); err != nil {
				return nil, fmt.Errorf("%q: %w", line, err)
			}
		}
		all = append(all, f)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("go test -bench %s: %w\n%s%s", pattern, err, out, said.Bytes())
	}
	return all, nil // a limit of its own that it is over is not ours
}

// agents is work f.
func (b *bench) agents() error {
	if _, err := os.Stat(filepath.Join(b.npm, "@anthropic-ai", "claude-code-linux-x64")); err != nil {
		b.note("f: the agents are not installed: run npm ci --ignore-scripts in test/npm")
		return nil
	}
	all, err := b.goBench("Overhead", strconv.Itoa(max(5, b.rounds))+"x", "./test/harness")
	if err != nil {
		return err
	}
	for _, f := range all {
		about := "f. " + f.name
		for _, side := range []struct{ unit, product string }{
			{"bare-ms", "bare"},
			{"ours-ms", "nightporter"},
			{"fresh-ms", "nightporter, no proof remembered"},
		} {
			if v, is := f.by[side.unit]; is {
				b.sample(about, &product{settings: settings{Name: side.product}}, "a run, median", "ms", 0, v)
			}
		}
	}
	return nil
}

// reader is work g.
func (b *bench) reader() error {
	// A gigabyte in nine rounds: of so many recordings of some kilobytes each.
	const inAll, recordings, ofOne = 1 << 30, 7, 3000
	all, err := b.goBench("Reader", strconv.Itoa(inAll/recordings/ofOne*b.rounds/9)+"x", "./internal/agent/claude", "./internal/agent/codex")
	if err != nil {
		return err
	}
	for _, f := range all {
		p := &product{settings: settings{Name: "nightporter"}}
		about := "g. " + strings.TrimPrefix(f.name, "Reader/")
		b.sample(about, p, "rate", "MB/s", 0, f.by["MB/s"])
		b.sample(about, p, "rate by time of the processor", "MB/s", 0, f.by["MB/cpu-s"])
		b.sample(about, p, "held at the end", "MB", 0, f.by["heap-MB"])
	}
	return nil
}
