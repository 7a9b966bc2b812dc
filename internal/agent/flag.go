package agent

import "slices"

// Flag is one row of an adapter's table of flags: what is known of one option of the agent's program. The tables decide what becomes
// of an operator's command, and docs/reference/flags.md is made of them.
type Flag struct {
	Names   []string // the long name first, where there is one
	Takes   Takes
	Verdict Verdict
	About   About
	Since   string // the first measured version that knows it; empty: all do
	Value   string // of [Ours]: the only value that is accepted; empty where the value is not the operator's to give
	Why     string // of [Ours] with a value, and of [Refused]
	Mend    string
}

// Is reports whether name is one of the flag's names.
func (f Flag) Is(name string) bool { return slices.Contains(f.Names, name) }

// Takes says which words after a flag are its values, as the agent's own parser counts them.
type Takes int

// How many values a flag takes.
const (
	TakesNone     Takes = iota
	TakesOne            // --flag VALUE
	TakesOptional       // --flag [VALUE]: the next word unless it begins with a dash
	TakesSeveral        // --flag VALUE…: every word up to the next that begins with a dash
)

// Verdict says what becomes of a flag in an operator's command. The zero value refuses.
type Verdict int

// The verdicts.
const (
	Refused   Verdict = iota
	Allowed           // goes to the run as it is
	Ours              // the run has it anyway: accepted when it says the same, and not doubled
	Unguarded         // turns the agent's approvals off: only in tool mode bypass
)

func (v Verdict) String() string {
	return [...]string{"refused", "allowed", "ours", "bypass"}[v]
}

// About says what of a run a flag has to do with.
type About string

// What flags are about.
const (
	AboutBoundary About = "boundary" // which servers, settings and folders the agent reaches
	AboutReading  About = "reading"  // how its output is read
	AboutTools    About = "tools"    // which of its own tools it may use
	AboutSession  About = "session"  // which session is continued
	AboutModel    About = "model"    // the model, and what it is told
)

// UnknownFlag refuses a flag that no row has.
func UnknownFlag(name, program string) *Refusal {
	return &Refusal{
		What: name, Why: "it is not among the flags of " + program + " that are known to leave the boundary and the reading as they are",
		Mend: "remove it, or accept it with --allow-flag " + name,
	}
}

// AllowedFlag is the note on a run whose command has a flag that no row has.
func AllowedFlag(name string) string {
	return "the flag " + name + " was allowed by name: what it does to the boundary and the reading is not known"
}
