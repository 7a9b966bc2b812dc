package main

import (
	"bufio"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// machine is where and when a run was made.
type machine struct {
	Run  string // names the run: figures of two runs are not compared
	Time time.Time
	CPU  string
	Core int
	OS   string
	Go   string
	Load string // when it began
}

func thisMachine() machine {
	m := machine{Run: rand.Text()[:8], Time: time.Now().UTC(), CPU: "unknown", Core: runtime.NumCPU(), OS: runtime.GOOS, Go: runtime.Version(), Load: loadAverage()}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.OS += " " + strings.TrimSpace(string(text))
	}
	return m
}

// sample is one figure of one product in one round.
type sample struct {
	Run     string
	About   string // the work and its case
	Product string
	Version string `json:",omitempty"`
	Figure  string
	Unit    string
	Round   int
	Value   float64
}

func (b *bench) sample(about string, p *product, figure, unit string, round int, value float64) {
	b.samples = append(b.samples, sample{b.machine.Run, about, p.Name, p.version, figure, unit, round, value})
}

func save(file string, samples []sample) (err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	e := json.NewEncoder(f)
	for _, s := range samples {
		if err := e.Encode(s); err != nil {
			return err
		}
	}
	return nil
}

func load(files []string) (samples []sample, err error) {
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			var s sample
			if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			samples = append(samples, s)
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	return samples, nil
}

// result is what came of one figure of one product.
type result struct {
	About, Product, Figure, Unit string
	N                            int
	Median, Least                float64
	// Ratio is the median over the rounds of the product's sample over the baseline's of the same round, and LeastRatio that of both
	// products' best samples; zero where there is no baseline.
	Ratio, LeastRatio float64
}

// baselines are what the others are held against.
var baselines = []string{"canned", "direct", "bare"}

// results sums samples up, by works, their cases in the order in which they came, and figures. Samples of several runs are an error.
func results(samples []sample) (all []result, err error) {
	if len(samples) == 0 {
		return nil, errors.New("there are no figures")
	}
	type key struct{ about, product, figure string }
	byKey := map[key]map[int]float64{}
	var order []key
	units, first := map[key]string{}, map[string]int{}
	for _, s := range samples {
		if s.Run != samples[0].Run {
			return nil, fmt.Errorf("the figures are of different runs (%s, %s): these are not compared, as a machine differs from itself; measure all of them in one run", samples[0].Run, s.Run)
		}
		k := key{s.About, s.Product, s.Figure}
		if byKey[k] == nil {
			byKey[k] = map[int]float64{}
			order, units[k] = append(order, k), s.Unit
			if _, is := first[k.about]; !is {
				first[k.about] = len(first)
			}
		}
		byKey[k][s.Round] = s.Value
	}
	slices.SortStableFunc(order, func(x, y key) int {
		return cmp.Or(cmp.Compare(x.about[:1], y.about[:1]), cmp.Compare(first[x.about], first[y.about]), cmp.Compare(x.figure, y.figure))
	})
	for _, k := range order {
		r := result{About: k.about, Product: k.product, Figure: k.figure, Unit: units[k]}
		var values, ratios []float64
		var base map[int]float64
		for _, name := range baselines {
			if other := byKey[key{k.about, name, k.figure}]; other != nil && name != k.product {
				base = other
			}
		}
		for round, value := range byKey[k] {
			values = append(values, value)
			if b, is := base[round]; is && b > 0 {
				ratios = append(ratios, value/b)
			}
		}
		r.N, r.Median, r.Least = len(values), middle(values), slices.Min(values)
		if len(ratios) > 0 {
			r.Ratio = middle(ratios)
			best := slices.Min[[]float64]
			if r.Unit == "/s" || r.Unit == "MB/s" {
				best = slices.Max[[]float64]
			}
			var bases []float64
			for _, b := range base {
				bases = append(bases, b)
			}
			if b := best(bases); b > 0 {
				r.LeastRatio = best(values) / b
			}
		}
		all = append(all, r)
	}
	return all, nil
}

func middle(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func (r result) cells() []string {
	cells := []string{r.Product, r.Figure, strings.TrimSpace(number(r.Median) + " " + r.Unit), strings.TrimSpace(number(r.Least) + " " + r.Unit), "", "", fmt.Sprint(r.N)}
	if r.Ratio > 0 {
		cells[4], cells[5] = number(r.Ratio), number(r.LeastRatio)
	}
	return cells
}

var columns = []string{"product", "figure", "median", "least", "ratio", "ratio of the best", "rounds"}

// compare prints results as a table.
func compare(out io.Writer, samples []sample) error {
	all, err := results(samples)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	about := ""
	for _, r := range all {
		if r.About != about {
			about = r.About
			fmt.Fprintf(w, "\n%s\n%s\n", about, strings.Join(columns, "\t"))
		}
		fmt.Fprintln(w, strings.Join(r.cells(), "\t"))
	}
	return w.Flush()
}

// writePage writes docs/performance.md.
func writePage(file string, b *bench) error {
	all, err := results(b.samples)
	if err != nil {
		return err
	}
	var w strings.Builder
	m := b.machine
	fmt.Fprintf(&w, `# Performance

Written by `+"`bench/run`"+`; do not edit. To do it again, from a clone (`+"`npm ci --ignore-scripts`"+` in test/npm first, for real servers and agents):

    bench/run

Measured on %s, run %s: %s, %d cores, %s, %s; load average %s when it began and %s when it ended. The machine was not quiet: other work ran on it
all the time. So only ratios count, between products that took turns within this run. Milliseconds are there to show the order of
magnitude, and are compared with no other run's: bench refuses to.

- *median* and *least* are over the rounds. A round's own figure is what the column *figure* says, such as the median of 400 calls.
- *ratio* is to canned, direct or bare, whichever the table has: the median of the rounds' ratios.
- *ratio of the best* is that of both products' best rounds, which other work on the machine disturbs least.
`, m.Time.Format(time.DateOnly), m.Run, m.CPU, m.Core, m.OS, m.Go, m.Load, loadAverage())
	versions := map[string]string{}
	for _, s := range b.samples {
		if name, _, _ := strings.Cut(s.Product, " "); s.Version != "" && versions[name] == "" {
			versions[name] = s.Version
			fmt.Fprintf(&w, "- %s: %s\n", name, s.Version)
		}
	}
	for _, note := range b.notes {
		fmt.Fprintf(&w, "- Not measured: %s.\n", strings.ReplaceAll(note, "\n", " "))
	}
	for _, work := range works {
		fmt.Fprintf(&w, "\n## (%s) %s\n\nTo reach: %s.\n", work.letter, work.title, work.target)
		if work.run == nil {
			w.WriteString("\nNot measured by this program yet.\n")
			continue
		}
		fmt.Fprintf(&w, "\n%s\n", work.how)
		about := ""
		for _, r := range all {
			if !strings.HasPrefix(r.About, work.letter+". ") {
				continue
			}
			if r.About != about {
				about = r.About
				fmt.Fprintf(&w, "\n%s:\n\n| %s |\n|%s\n", strings.TrimPrefix(about, work.letter+". "), strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
			}
			fmt.Fprintf(&w, "| %s |\n", strings.Join(r.cells(), " | "))
		}
		if about == "" {
			w.WriteString("\nNot measured in this run.\n")
		}
	}
	return os.WriteFile(file, []byte(w.String()), 0o644)
}
