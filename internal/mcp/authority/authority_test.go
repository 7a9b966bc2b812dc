package authority

import (
	"encoding/json"
	"testing"
)

func TestRefuseNamesTheFirstCheckThatFails(t *testing.T) {
	live := Authority{Live: true, Generation: 1, Revision: "r1"}
	saved := Authority{Revision: "r1"}
	wide, narrow := codexState(codexWrite), codexState(codexReadOnly)
	given := func(state string) Authority { return Authority{Sandbox: state} }
	for _, c := range []struct {
		name  string
		a     Authority
		now   Present
		check string
	}{
		{"unchanged", live, Present{Generation: 1, Revision: "r1"}, ""},
		{"reconnected, same catalog", live, Present{Generation: 2, Revision: "r1"}, ""},
		{"catalog changed", live, Present{Generation: 1, Revision: "r2"}, "catalog"},
		{"issued on a saved catalog, which the live one differs from", saved, Present{Generation: 1, Revision: "r2"}, ""},
		{"client gone", live, Present{Client: "gone", Server: "removed", Revision: "r1"}, "client"},
		{"server removed", live, Present{Server: "removed", Grant: "no", Revision: "r1"}, "server"},
		{"grant narrowed", live, Present{Grant: "no", Filter: "no", Revision: "r1"}, "grant"},
		{"filter narrowed", live, Present{Filter: "no", Revision: "r1"}, "filter"},
		{"held back", live, Present{Pin: "changed", Tool: "changed", Revision: "r1"}, "pin"},
		{"tool gone", live, Present{Tool: "gone", Revision: "r2"}, "tool"},
		{"two states", Authority{Flaw: "two"}, Present{}, "sandbox"},
		{"wider than the policy", given(wide), Present{Told: true, Policy: narrow}, "sandbox"},
		{"wider than the policy, for a server that is not told", given(wide), Present{Policy: narrow}, ""},
		{"narrower than the policy", given(narrow), Present{Told: true, Policy: wide}, ""},
		{"none, and a policy by now", given(""), Present{Told: true, Policy: wide}, "sandbox"},
		{"a policy that cannot be told", given(narrow), Present{Told: true, Sandbox: "broken"}, "sandbox"},
		{"the client's was narrowed", given(wide), Present{Told: true, Latest: narrow}, "sandbox"},
		{"the client's was widened", given(narrow), Present{Told: true, Latest: wide}, ""},
		{"made for it, whatever the client said since", given("").Under(wide), Present{Told: true, Policy: wide, Latest: narrow}, ""},
		{"approval", live, Present{Approval: "asks", Revision: "r1"}, "approval"},
	} {
		if check, reason := c.a.Refuse(c.now); check != c.check || (reason == "") != (c.check == "") {
			t.Errorf("%s: refused by %q (%s), want %q", c.name, check, reason, c.check)
		}
	}
}

func TestDigestTellsAuthoritiesApart(t *testing.T) {
	base := Authority{Client: "c", Dir: "/d", Revision: "r"}
	seen := map[string]string{}
	for name, a := range map[string]Authority{
		"base":            base,
		"client":          {Client: "x", Dir: "/d", Revision: "r"},
		"dir":             {Client: "c", Dir: "/x", Revision: "r"},
		"shifted":         {Client: "c/", Dir: "d", Revision: "r"},
		"revision":        {Client: "c", Dir: "/d", Revision: "x"},
		"state":           base.Of(json.RawMessage(`{"_meta":{"codex/sandbox-state":{"a":1}}}`)),
		"other state":     base.Of(json.RawMessage(`{"_meta":{"codex/sandbox-state":{"a":1.0}}}`)),
		"launcher":        base.Of(json.RawMessage(`{"_meta":{"codex/sandbox-launcher":{"codexExecutable":"/x"}}}`)),
		"state, launcher": base.Of(json.RawMessage(`{"_meta":{"codex/sandbox-state":{"a":1},"codex/sandbox-launcher":{}}}`)),
	} {
		if other, there := seen[a.Digest()]; there {
			t.Errorf("%s and %s have one digest", name, other)
		}
		seen[a.Digest()] = name
	}
	old := base.Of(json.RawMessage(`{"_meta":{"codex/sandbox-state-meta":{"a":1}}}`))
	if old.Digest() != base.Of(json.RawMessage(`{"_meta":{"codex/sandbox-state":{"a":1}}}`)).Digest() {
		t.Error("the deprecated name of a state makes another authority of it")
	}
}
