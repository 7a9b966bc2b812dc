package boundary

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"nightporter/internal/mcp/gateway"
)

func TestRecordsOfARunAreBounded(t *testing.T) {
	b := &Boundary{denied: map[string]bool{}}
	for i := range maxRecords + 5 {
		b.called(gateway.Call{Server: "s", Tool: "t", Outcome: gateway.OutcomeOK})
		b.called(gateway.Call{Exposed: fmt.Sprint(i, " ", strings.Repeat("é", 1000)), Outcome: gateway.OutcomeRefused})
	}
	if calls, denials := len(b.Calls()), len(b.Denials()); calls != maxRecords || denials != maxRecords {
		t.Errorf("%d calls and %d denials are kept", calls, denials)
	}
	if name := b.Denials()[0]; utf8.RuneCountInString(name) != maxName {
		t.Errorf("a name of %d characters is kept", utf8.RuneCountInString(name))
	}
	if notes := b.Notes(); len(notes) != 1 || !strings.HasPrefix(notes[0], "10 calls or denials") {
		t.Errorf("notes %q", notes)
	}
}

func TestCallThatWaitsForInputIsNoCallYet(t *testing.T) {
	b := &Boundary{denied: map[string]bool{}}
	b.called(gateway.Call{Server: "s", Tool: "t", Outcome: gateway.OutcomeInput})
	if calls := b.Calls(); len(calls) > 0 {
		t.Errorf("counted: %v", calls)
	}
	b.called(gateway.Call{Server: "s", Tool: "t", Outcome: gateway.OutcomeOK})
	if calls := b.Calls(); len(calls) != 1 || !calls[0].OK {
		t.Errorf("calls %v", calls)
	}
}
