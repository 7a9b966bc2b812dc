package codex

import (
	"context"
	"regexp"
	"slices"
	"strings"
)

// featureLine is a line of `codex features list`: name, stage (words), state.
var featureLine = regexp.MustCompile(`(?m)^(\S+)\s+\S.*\s(true|false)\s*$`)

// parseFeatures reads the features' states.
func parseFeatures(data []byte) map[string]bool {
	states := map[string]bool{}
	for _, m := range featureLine.FindAllSubmatch(data, -1) {
		states[string(m[1])] = string(m[2]) == "true"
	}
	return states
}

// featuresOn asks which of the features that are to be off are on all the same: a managed configuration beats the
// command line (measured). A feature that is not listed counts as on.
func (p *prover) featuresOn(ctx context.Context) ([]string, error) {
	out, err := p.ask(ctx, listTime, append([]string{"features", "list"}, p.switches...)...)
	if err != nil {
		return nil, err
	}
	states := parseFeatures(out)
	return slices.DeleteFunc(p.disabled(), func(name string) bool {
		on, listed := states[name]
		return listed && !on
	}), nil
}

// featuresLeft says what is on although it is to be off, and whether that gives the model a shell that the run
// must not have. Where that is not answered it may.
func (p *prover) featuresLeft(ctx context.Context) (note string, shell bool) {
	on, err := p.featuresOn(ctx)
	switch {
	case err != nil:
		return "it could not be checked that the switched-off features are off: " + err.Error(), slices.Contains(p.disabled(), shellFeature)
	case len(on) > 0:
		return "a managed configuration keeps these features on, against the switches of the run: " + strings.Join(on, ", "), slices.Contains(on, shellFeature)
	}
	return "", false
}

// shellFeature is the feature that gives the model a shell.
const shellFeature = "shell_tool"

// disabled are the features that the run switches off.
func (p *prover) disabled() []string {
	var all []string
	for i, word := range p.switches {
		if i > 0 && p.switches[i-1] == "--disable" {
			all = append(all, word)
		}
	}
	return all
}
