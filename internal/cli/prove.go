package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"nightporter/internal/agent"
	"nightporter/internal/run"
)

type proveCmd struct {
	target
	JSON bool `name:"json" help:"Print one object."`
}

func (*proveCmd) Help() string {
	return `The agent's program is asked what it would reach in a run with these flags. No model is asked.

Exit codes: 0 proven, 3 it reaches what was not planned or will not say, others as those of run.

Examples:

	nightporter prove --agent claude
	nightporter prove --agent codex --server github --json`
}

// proven is what prove --json prints.
type proven struct {
	Agent        string       `json:"agent"`
	AgentVersion string       `json:"agent_version"`
	Status       run.Status   `json:"status"`
	Error        *agent.Error `json:"error"`
	Boundary     agent.Proof  `json:"boundary"`
	DurationMS   int64        `json:"duration_ms"`
}

func (c *proveCmd) Run(a *app) error {
	spec, err := c.spec(context.Background(), a)
	if err != nil {
		return err
	}
	spec.Request.ProveOnly = true
	ctx, kill, release := signals(context.Background())
	defer release()
	spec.Kill = kill
	shown := newProgress(a)
	spec.Events = each(spec.Events, shown.event)
	o := run.Do(ctx, spec)
	release() // nothing of the run is left: a signal may end the wait for whoever reads
	shown.close()
	o.Proof.Notes = o.Boundary.Notes // with those of the run

	if c.JSON {
		err := writeJSON(a.stdout, proven{o.Agent, o.AgentVersion, o.Status, o.Error, o.Proof, o.DurationMS})
		if err != nil {
			return fmt.Errorf("write the proof: %w", err)
		}
		return ended(o.ExitCode())
	}
	if o.Proof.How != "" {
		if _, err := fmt.Fprint(a.stdout, c.text(a, o)); err != nil {
			return fmt.Errorf("write the proof: %w", err)
		}
	}
	if o.Error != nil {
		a.say("%s", o.Error.Message)
	}
	return ended(o.ExitCode())
}

// text is a proof for a person.
func (c *proveCmd) text(a *app, o run.Outcome) string {
	var b strings.Builder
	verdict := "its boundary is not proven"
	if o.Proof.Proven {
		verdict = "its boundary is proven"
	}
	fmt.Fprintf(&b, "%s\n", a.paint(a.stdout, bold, strings.TrimSpace(o.Agent+" "+o.AgentVersion)+": "+verdict))
	p := o.Proof
	noServers, noTools := "none: give --server or --grant to grant some", "none"
	if !p.Proven {
		noServers, noTools = "not known", "not known"
	}
	for _, part := range []struct {
		title string
		items []string
		none  string // what an empty list says
	}{
		{"asked", []string{p.How}, ""},
		{"servers", p.Servers, noServers},
		{"tools", p.Tools, ""},
		{"own tools", p.BuiltIn, noTools},
		{"switched off", p.Disabled, ""},
		{"cannot be switched off", p.Failed, ""},
		// What is not covered stands with its ring.
		{"notes", slices.DeleteFunc(slices.Clone(p.Notes), func(note string) bool { return strings.HasPrefix(note, agent.NotCovered) }), ""},
	} {
		items := part.items
		if len(items) == 0 {
			if part.none == "" {
				continue
			}
			items = []string{part.none}
		}
		fmt.Fprintf(&b, "  %s\n", a.paint(a.stdout, dim, part.title))
		for _, item := range items {
			fmt.Fprintf(&b, "    %s\n", oneLine(item))
		}
	}
	for _, ring := range p.Rings {
		fmt.Fprintf(&b, "  %s\n", a.paint(a.stdout, bold, "ring: "+ring.Name))
		proven := ring.Proven
		if proven == "" {
			proven = "it is not"
		}
		for _, part := range []struct {
			title string
			items []string
		}{
			{"planned", []string{ring.Planned}},
			{"enforced", ring.Enforced},
			{"proven", []string{proven}},
			{"not covered", ring.Open},
		} {
			title := part.title
			for _, item := range part.items {
				fmt.Fprintf(&b, "    %s %s\n", a.paint(a.stdout, dim, fmt.Sprintf("%-11s", title)), oneLine(item))
				title = ""
			}
		}
	}
	return b.String()
}
