package run

import (
	"slices"
	"testing"

	"nightporter/internal/agent"
	"nightporter/internal/secret"
)

func TestWhatARingDoesNotHoldAgainstIsInTheNotesMasked(t *testing.T) {
	r := &runner{Spec: Spec{Masker: new(secret.Masker)}}
	r.Masker.Add(secret.New("made-up-credential"))
	p := r.proof(agent.Proof{Notes: []string{"first"}, Rings: []agent.Ring{{Name: agent.RingTools, Open: []string{"the key made-up-credential"}}}})
	if want := []string{"first", agent.NotCovered + "the key ***"}; !slices.Equal(p.Notes, want) {
		t.Errorf("notes are %q, want %q", p.Notes, want)
	}
	if got := p.Rings[0]; !slices.Equal(got.Open, []string{"the key ***"}) || got.Enforced == nil {
		t.Errorf("the ring is %+v", got)
	}
}
