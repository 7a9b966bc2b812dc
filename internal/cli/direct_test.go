package cli

import (
	"slices"
	"testing"
)

func TestTwoListsOfToolsLetThroughWhatBothDo(t *testing.T) {
	for _, c := range []struct{ a, b, want []string }{
		{nil, nil, nil},
		{nil, []string{"get_*"}, []string{"get_*"}},
		{[]string{"get_a", "put_a"}, []string{"get_*"}, []string{"get_a"}},
		{[]string{"get_*"}, []string{"get_a", "put_a"}, []string{"get_a"}},
		{[]string{"a"}, []string{"b"}, []string{}},
		{[]string{"a", "b"}, []string{"b", "a"}, []string{"a", "b"}},
		{[]string{"get_*"}, []string{"*_a"}, []string{"get_*"}}, // not enforced, and said
		{[]string{}, []string{"*"}, []string{}},
	} {
		if got := both(c.a, c.b); !slices.Equal(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("both(%q, %q) = %q, want %q", c.a, c.b, got, c.want)
		}
	}
}
