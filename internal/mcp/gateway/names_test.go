package gateway

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestExposedName(t *testing.T) {
	for _, c := range []struct{ server, name, want string }{
		{"everything", "echo", "everything__echo"},
		{"git-hub", "create_issue", "git-hub__create_issue"},
		{"a", "b__c", "a__b__c"},
		{"a", "_b", "a___b"},
		{"a__b", "c", "a__b__c_"},
		{"a_", "b", "a___b_"},
		{"fly.io", "x", "fly_io__x_"},
		{"a", "", "a___"},
		{"s", "x_0123456789ab", "s__x_0123456789ab_"},
		{"server", strings.Repeat("x", 60), "server__xxxxxxxxxxxxxxxxxxxxxxxxx_"},
	} {
		got := exposedName(c.server, c.name)
		if c.want != got && (!strings.HasSuffix(c.want, "_") || !strings.HasPrefix(got, c.want) || len(got) != len(c.want)+hashChars) {
			t.Errorf("exposedName(%q, %q) = %q, want %q", c.server, c.name, got, c.want)
		}
	}
}

// Names are short, plain, and different things have different ones, whatever servers call themselves.
func TestExposedNamesAreUnique(t *testing.T) {
	part := rapid.OneOf(
		rapid.StringMatching(`[a-b_]{0,5}`),
		rapid.StringMatching(`(a|__|b|_[0-9a-f]{12}|\.|é| ){0,6}`),
		rapid.StringMatching(`[a-z]{40,50}`),
	)
	valid := regexp.MustCompile(`^[A-Za-z0-9_-]{1,46}$`)
	seen := map[string][2]string{}
	rapid.Check(t, func(t *rapid.T) {
		pair := [2]string{part.Draw(t, "server"), part.Draw(t, "tool")}
		name := exposedName(pair[0], pair[1])
		if !valid.MatchString(name) {
			t.Fatalf("%q became %q", pair, name)
		}
		if other, there := seen[name]; there && other != pair {
			t.Fatalf("%q and %q are both %q", pair, other, name)
		}
		seen[name] = pair
	})
}
