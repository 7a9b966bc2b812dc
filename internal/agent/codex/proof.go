package codex

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"nightporter/internal/agent"
)

// entry is one server as `codex mcp list --json` shows it. Values that may be secret are not read: of
// headers and environment it is only seen whether there are any.
type entry struct {
	Name           string  `json:"name"`
	Enabled        *bool   `json:"enabled"`
	DisabledReason *string `json:"disabled_reason"`
	Transport      *struct {
		Type       string          `json:"type"`
		Command    string          `json:"command"`
		Args       []string        `json:"args"`
		URL        string          `json:"url"`
		Bearer     string          `json:"bearer_token_env_var"`
		Headers    json.RawMessage `json:"http_headers"`
		EnvHeaders json.RawMessage `json:"env_http_headers"`
		Helper     json.RawMessage `json:"http_headers_helper"` // 0.171.0
	} `json:"transport"`
}

// parseList reads the answer. Whatever is not understood is an error and never an empty list.
func parseList(data []byte) ([]entry, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	var list []entry
	err := dec.Decode(&list)
	if err == nil {
		if _, trailing := dec.Token(); !errors.Is(trailing, io.EOF) {
			err = errors.New("something follows the list")
		}
	}
	if err == nil && list == nil {
		err = errors.New("it is null")
	}
	seen := map[string]bool{}
	for i, e := range list {
		switch {
		case e.Enabled == nil || e.Transport == nil:
			err = fmt.Errorf("entry %d does not say whether it is enabled, and what it is", i)
		case seen[e.Name]:
			err = fmt.Errorf("%q is listed twice", e.Name)
		}
		seen[e.Name] = true
	}
	if err != nil {
		// The answer holds secrets in clear and is not quoted.
		return nil, fmt.Errorf("the answer of `codex mcp list --json` was not understood: %w", err)
	}
	return list, nil
}

func names(list []entry) []string {
	var all []string
	for _, e := range list {
		all = append(all, e.Name)
	}
	return all
}

func find(list []entry, name string) *entry {
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	return nil
}

// Ways to switch a server off, in the order in which they are tried. The first is for a configured server. The
// second is for one that has no entry to merge onto, such as a plugin's: the first makes the whole configuration fail
// there (facts/codex.md E). None touches a url or a header: that would send the operator's credential elsewhere.
var ways = []string{
	table(pair{"enabled", "false"}),
	table(pair{"enabled", "false"}, pair{"command", quote("/bin/false")}),
}

// finding is what was found out about a run by asking Codex.
type finding struct {
	Off      []pair   // the override that switches its servers off
	Skills   []string // paths of skills, which are switched off too
	Disabled []string // servers of its own that are off
	Failed   []string // those that cannot be
	On       []string // those of Failed that are on, since a configuration may have one off by itself
	Notes    []string // what is on although it was to be off, skills and features
	Shell    bool     // the model gets a shell although it must not, or may get it for all that is known
}

// clean reports whether everything is off that was to be.
func (f finding) clean() bool { return len(f.Failed) == 0 && len(f.Notes) == 0 && !f.Shell }

// prover makes the proof of one run.
type prover struct {
	program
	shape
	request agent.Request

	plain, own []entry // what Codex reaches by itself, and what of it is left with the switches
	found      []skill
	noSkills   error // why it is not known which skills there are
}

const (
	how      = "codex mcp list --json was asked by the run's own program, in its folder and environment, with the switches of the run"
	howAgain = how + "; the answer is remembered, since nothing that decides it has changed"
	mend     = "try `codex mcp list --json` in the run's folder; nothing was started"
)

// prove finds what must be switched off, and shows that it is. The servers that it returns are the override
// that was proven, and s.skills is set: the run must use both unchanged.
func prove(ctx context.Context, program program, r agent.Request, s *shape, memory cache) (agent.Proof, []pair, error) {
	p := &prover{program: program, shape: *s, request: r}
	proof := agent.Proof{How: how, BuiltIn: s.tools, Notes: slices.Clone(s.notes), Rings: s.rings(r, false, "")}
	key, state := memory.inputs(p)
	f, known := memory.load(key, state)
	if known {
		proof.How = howAgain
	} else {
		var err error
		f, err = p.findOut(ctx)
		switch {
		case err != nil && ctx.Err() != nil: // says nothing of the boundary
			return proof, nil, err
		case err != nil:
			return proof, nil, unproven(err, proof)
		}
		if f.clean() {
			memory.store(key, state, p, f)
		}
	}
	s.skills = skillsOff(f.Skills, r.OperatorSettings)
	p.describe(&proof, f)
	return proof, p.withGateway(f.Off), p.accept(&proof, f)
}

// findOut asks Codex, twice: what there is, and then, with everything switched off, what is left.
func (p *prover) findOut(ctx context.Context) (finding, error) {
	if err := p.look(ctx); err != nil {
		return finding{}, err
	}
	for _, name := range p.planned(p.request) {
		if find(p.own, name) != nil {
			return finding{}, &agent.Unproven{
				Why:  fmt.Sprintf("Codex has a server named %s of its own, and settings of it would be mixed with the run's", name),
				Mend: "rename it in Codex's configuration",
			}
		}
	}
	f := finding{Skills: paths(slices.DeleteFunc(slices.Clone(p.found), p.users))}
	p.shape.skills = skillsOff(f.Skills, p.request.OperatorSettings)
	for _, e := range p.own {
		f.Off = append(f.Off, pair{e.Name, ways[0]})
	}
	var skills, features string
	var shell bool
	var checks sync.WaitGroup
	checks.Go(func() { skills = p.skillsLeft(ctx) })
	checks.Go(func() { features, shell = p.featuresLeft(ctx) })
	list, err := p.verify(ctx, f)
	checks.Wait()
	f.Shell = shell
	for _, note := range []string{skills, features} {
		if note != "" {
			f.Notes = append(f.Notes, note)
		}
	}
	if err != nil {
		if list, err = p.findWays(ctx, &f, list, err); err != nil {
			return finding{}, err
		}
	}
	for _, e := range list {
		if *e.Enabled && !slices.Contains(p.planned(p.request), e.Name) {
			f.On = append(f.On, e.Name)
		}
	}
	for _, name := range append(names(p.plain), names(p.own)...) {
		if !slices.Contains(f.Failed, name) {
			f.Disabled = append(f.Disabled, name)
		}
	}
	slices.Sort(f.Disabled)
	f.Disabled = slices.Compact(f.Disabled)
	return f, nil
}

// look asks what there is.
func (p *prover) look(ctx context.Context) error {
	group, asking := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		p.plain, err = p.question(asking, []string{"mcp", "list", "--json"})
		return err
	})
	group.Go(func() (err error) {
		p.own, err = p.question(asking, p.list(nil))
		return err
	})
	group.Go(func() error {
		// No reason to refuse the run: it is named in the proof.
		p.found, p.noSkills = p.askSkills(asking, p.switches)
		return nil
	})
	return group.Wait()
}

func (p *prover) question(ctx context.Context, args []string) ([]entry, error) {
	out, err := p.ask(ctx, listTime, args...)
	if err != nil {
		return nil, err
	}
	return parseList(out)
}

// verify asks with the override that the run will use, and holds the answer against the plan. The list
// is returned with an error too, where there is one.
func (p *prover) verify(ctx context.Context, f finding) ([]entry, error) {
	list, err := p.question(ctx, p.list(p.withGateway(f.Off)))
	if err != nil {
		return nil, err
	}
	return list, p.check(list, f.Failed)
}

// findWays is what is done when the override of all servers did not do: it finds the way for each.
func (p *prover) findWays(ctx context.Context, f *finding, list []entry, err error) ([]entry, error) {
	if ctx.Err() != nil {
		return nil, err
	}
	if reason := p.managed(list); reason != "" {
		return nil, &agent.Unproven{
			Why:  "Codex's managed configuration switches the run's own server off: " + reason,
			Mend: fmt.Sprintf("have the server %s allowed there", agent.GatewayName),
		}
	}
	f.Off, f.Failed = p.oneByOne(ctx)
	return p.verify(ctx, *f)
}

// skillsLeft asks again for the skills, which are to be off now, and says what is left of them.
func (p *prover) skillsLeft(ctx context.Context) string {
	now, err := p.found, p.noSkills
	if err == nil && len(now) > 0 {
		now, err = p.askSkills(ctx, slices.Concat(p.switches, p.shape.skills))
	}
	if err != nil {
		return "skills may be on, and a prompt that names one brings its text to the model: " + err.Error()
	}
	var on []string
	for _, skill := range now {
		if *skill.Enabled && !p.users(skill) {
			on = append(on, skill.Name)
		}
	}
	if len(on) > 0 {
		return "these skills cannot be switched off, and a prompt that names one brings its text to the model: " + quoted(on)
	}
	return ""
}

func (p *prover) withGateway(override []pair) []pair {
	all := slices.Clone(override)
	for _, d := range p.direct {
		all = append(all, d.entry)
	}
	if p.request.Gateway == nil {
		return all
	}
	return append(all, gateway(p.request.Gateway))
}

// managed is the reason why the run's own server is off, or empty.
func (p *prover) managed(list []entry) string {
	if e := find(list, agent.GatewayName); p.request.Gateway != nil && e != nil && !*e.Enabled {
		if e.DisabledReason != nil && *e.DisabledReason != "" {
			return agent.Head(*e.DisabledReason)
		}
		return "no reason is given"
	}
	return ""
}

// check holds a list against the plan: the gateway as we gave it, and everything else off but those that failed.
func (p *prover) check(list []entry, failed []string) error {
	var on []string
	for _, e := range list {
		if *e.Enabled && !slices.Contains(p.planned(p.request), e.Name) && !slices.Contains(failed, e.Name) {
			on = append(on, e.Name)
		}
	}
	if len(on) > 0 {
		return fmt.Errorf("switched off, these servers of Codex's own are still on: %s", quoted(on))
	}
	for i := range p.direct {
		d := &p.direct[i]
		switch e := find(list, d.name); {
		case e == nil || !*e.Enabled:
			return fmt.Errorf("the run's server %q is not in Codex's list, or switched off there", d.name)
		case !d.shown(e):
			return fmt.Errorf("the run's server %q is another one in Codex's list than it was given", d.name)
		}
	}
	g := p.request.Gateway
	if g == nil {
		return nil
	}
	e := find(list, agent.GatewayName)
	switch {
	case e == nil:
		return fmt.Errorf("the run's own server %s is not in Codex's list", agent.GatewayName)
	case !*e.Enabled:
		return fmt.Errorf("the run's own server %s is switched off in Codex's list", agent.GatewayName)
	case e.Transport.Type != "streamable_http" || e.Transport.URL != g.URL || e.Transport.Bearer != tokenVariable,
		hasValue(e.Transport.Headers), hasValue(e.Transport.EnvHeaders), hasValue(e.Transport.Helper):
		return fmt.Errorf("the run's own server %s has another address or other headers in Codex's list than it was given", agent.GatewayName)
	}
	return nil
}

// hasValue reports whether a JSON value is there and is not empty.
func hasValue(raw json.RawMessage) bool {
	switch string(bytes.TrimSpace(raw)) {
	case "", "null", "{}", `""`:
		return false
	}
	return true
}

// oneByOne finds which servers can be switched off, and how. Those found stay off in the probes that
// follow, which so take less time.
func (p *prover) oneByOne(ctx context.Context) (override []pair, failed []string) {
	for _, e := range p.own {
		off := !*e.Enabled // it needs no switch then
		for _, way := range ways {
			trial := append(slices.Clone(override), pair{e.Name, way})
			list, err := p.question(ctx, p.list(trial))
			if err != nil {
				continue
			}
			if now := find(list, e.Name); now == nil || !*now.Enabled {
				override, off = trial, true
				break
			}
		}
		if !off {
			failed = append(failed, e.Name)
		}
	}
	return override, failed
}

// describe fills in what was found out.
func (p *prover) describe(proof *agent.Proof, f finding) {
	proof.Disabled, proof.Failed = f.Disabled, f.Failed
	proof.Servers = append(slices.Clone(f.On), p.planned(p.request)...)
	if g := p.request.Gateway; g != nil {
		proof.Tools = g.Tools
	}
	slices.Sort(proof.Servers)
	proof.Notes = append(proof.Notes, f.Notes...)
	skills := ""
	if len(f.Notes) == 0 {
		skills = fmt.Sprintf("%d skills", len(f.Skills))
	}
	proof.Rings = p.rings(p.request, true, skills)
	for _, name := range p.request.AllowServers {
		switch {
		case slices.Contains(f.Failed, name):
			proof.Notes = append(proof.Notes, fmt.Sprintf("the server %q cannot be switched off and was allowed by name", name))
		case slices.Contains(f.Disabled, name):
			proof.Notes = append(proof.Notes, fmt.Sprintf("the server %q was allowed by name, and is off all the same", name))
		default:
			proof.Notes = append(proof.Notes, fmt.Sprintf("the server %q was allowed by name, and Codex has none of that name", name))
		}
	}
}

// accept decides whether the run may start.
func (p *prover) accept(proof *agent.Proof, f finding) error {
	var barred, why []string
	for _, name := range f.Failed {
		if !slices.Contains(p.request.AllowServers, name) {
			barred = append(barred, name)
		}
	}
	if len(barred) > 0 {
		why = append(why, "these servers of Codex's own cannot be switched off: "+quoted(barred))
	}
	if f.Shell {
		why = append(why, "the model's shell is not known to be off, which the run is to have no part of (feature "+shellFeature+"): "+strings.Join(f.Notes, "; "))
	}
	proof.Proven = len(why) == 0
	if proof.Proven {
		return nil
	}
	reason := strings.Join(why, ", and ")
	if p.request.Unproven {
		proof.Notes = append(proof.Notes, "the run was accepted unproven: "+reason)
		return nil
	}
	return &agent.Unproven{Why: reason, Mend: "remove them from Codex's configuration, or allow servers by name", Proof: *proof}
}

// quoted lists names for a person.
func quoted(all []string) string {
	const most = 10 // more than that tells nobody more
	var parts []string
	for i, name := range all {
		if i == most {
			parts = append(parts, fmt.Sprintf("and %d more", len(all)-most))
			break
		}
		parts = append(parts, fmt.Sprintf("%q", agent.Activity(name)))
	}
	return strings.Join(parts, ", ")
}
