package config

import (
	"slices"
	"strings"
	"time"
)

// DefaultApprovalTimeout is how long a call waits for a person: who is at her desk has seen it by then, and for who is not the agent goes on
// with something else.
const DefaultApprovalTimeout = 10 * time.Minute

// Approver says who is asked about calls that want a person's approval: the keys on_approval and approval_timeout at the top of the file.
type Approver struct {
	// Problem says why nobody can be asked: every call that wants an approval is then refused. Nil: there is none.
	Problem *Problem

	Argv    []string      // the program, word by word; nil: nobody is asked
	Dir     string        // where it runs and what its path is relative to: the folder of the file, absolute
	Timeout time.Duration // from the question to the answer
}

// Asks reports whether calls that want an approval are asked about, be it in vain.
func (a *Approver) Asks() bool { return a.Argv != nil || a.Problem != nil }

var topFields = []field[Approver]{
	{
		key: "on_approval", typ: "string[]", def: prose("none: in runs such calls are refused"),
		doc:     "The program that is asked about each call that wants a person's approval, word by word; no shell sees it. A path is relative to this file's folder.",
		example: []string{"./approve.sh"}, schema: rules{"minItems": 1},
		set: func(r *reader, a *Approver, n *node) {
			if n.kind == kindString {
				r.wrongKind(n, nil, "an array of words", `["./approve.sh"]`)
				return
			}
			a.Argv = r.strings(n, nil)
			switch {
			case n.kind != kindArray:
			case len(a.Argv) == 0 || a.Argv[0] == "":
				r.fail("it names no program", `write on_approval = ["PROGRAM", "ARGUMENT"]`)
			case slices.ContainsFunc(a.Argv, func(s string) bool { return strings.ContainsRune(s, 0) }):
				r.fail("a word has a NUL character, which no command line holds", "")
			}
		},
	},
	{
		key: "approval_timeout", typ: "duration", def: prose("10m"), doc: "How long a call waits for the answer of on_approval; without one it is refused.",
		example: "5m",
		set:     setDuration(func(a *Approver) *time.Duration { return &a.Timeout }),
	},
}

// approver reads the keys at the top of the file that are no tables.
func (d *decoder) approver(root *node) {
	ours := node{kind: kindTable, pos: root.pos}
	for _, e := range root.entries {
		if slices.ContainsFunc(topFields, func(f field[Approver]) bool { return f.key == e.key }) {
			ours.entries = append(ours.entries, e)
		}
	}
	r := &reader{decoder: d}
	a := &d.cfg.Approver
	a.Dir = d.dir
	read(r, topFields, nil, a, &ours)
	a.Problem = r.finish()
}
