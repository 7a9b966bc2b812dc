package registry

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"nightporter/internal/agent"
)

var update = flag.Bool("update", false, "write docs/reference/flags.md anew")

const referenceFile = "../../../docs/reference/flags.md"

// tabled is an adapter that knows its agent's flags.
type tabled interface {
	agent.Adapter
	Flags() []agent.Flag
}

// reference is the tables of flags, as docs/reference/flags.md has them.
func reference(t *testing.T) string {
	var b strings.Builder
	b.WriteString(`# Flags of the agents' commands

<!-- Made from the adapters' tables by go test ./internal/agent/registry -run TestTheReference -update. Not to be edited. -->

What becomes of a flag in ` + "`--exec`" + ` and in ` + "`exec`" + ` of ` + "`[agents.NAME]`" + `:

- allowed: it goes to the agent as it is;
- ours: the run has it anyway; it is accepted when it says the same, and not doubled;
- bypass: it turns the agent's approvals off, and stays in tool mode ` + "`bypass`" + ` only; ` + "`--safe-tools`" + ` removes it;
- refused: nothing is started, and the refusal says why.

A flag that is not in the table is refused, unless ` + "`--allow-flag`" + ` or ` + "`allow_flags`" + ` names it. A flag that is refused here stays refused.
`)
	for _, a := range adapters {
		table, ok := a.(tabled)
		if !ok {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n| flag | about | verdict | reason | instead |\n|---|---|---|---|---|\n", a.Name())
		for _, f := range table.Flags() {
			names := "`" + strings.Join(f.Names, "`, `") + "`" + [...]string{"", " VALUE", " [VALUE]", " VALUE…"}[f.Takes]
			if f.Since != "" {
				names += " (since " + f.Since + ")"
			}
			if f.Verdict == agent.Ours && f.Takes == agent.TakesOne {
				names += fmt.Sprintf(", only `%q`", f.Value)
			}
			cell := strings.NewReplacer("|", `\|`, "\n", " ")
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", names, f.About, f.Verdict, cell.Replace(f.Why), cell.Replace(f.Mend))
		}
	}
	return b.String()
}

func TestTheReferenceIsMadeFromTheTables(t *testing.T) {
	want := reference(t)
	if *update {
		if err := os.WriteFile(referenceFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(referenceFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not up to date; run go test ./internal/agent/registry -run TestTheReference -update", referenceFile)
	}
}

func TestEveryFlagSaysWhatItIsAboutAndWhyItIsRefused(t *testing.T) {
	tables := 0
	for _, a := range adapters {
		table, ok := a.(tabled)
		if !ok {
			continue
		}
		tables++
		seen := map[string]bool{}
		for _, f := range table.Flags() {
			if f.About == "" || f.Verdict == agent.Refused && (f.Why == "" || f.Mend == "") {
				t.Errorf("%s: %v lacks what it is about, its reason or what to do instead", a.Name(), f.Names)
			}
			for _, name := range f.Names {
				if seen[name] {
					t.Errorf("%s: %s has two rows", a.Name(), name)
				}
				seen[name] = true
			}
		}
	}
	if tables != 2 {
		t.Errorf("%d adapters have a table", tables)
	}
}
