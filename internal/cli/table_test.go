package cli

import "testing"

func TestTablesFitTheTerminal(t *testing.T) {
	rows := [][]string{
		{"NAME", "STATE", "WHY"},
		{"files", "ready", "started: at the start, because there is no catalog yet"},
		{"ä", "stopped", "-"},
	}
	for columns, want := range map[int]string{
		0: `NAME   STATE    WHY
files  ready    started: at the start, because there is no catalog yet
ä      stopped  -
`,
		40: `NAME   STATE    WHY
files  ready    started: at the start,
                because there is no
                catalog yet
ä      stopped  -
`,
		30: `NAME   STATE
    WHY
files  ready
    started: at the start,
    because there is no
    catalog yet
ä      stopped
`,
	} {
		if got := layout(rows, columns); got != want {
			t.Errorf("%d columns:\n%s", columns, got)
		}
	}
	if got, want := layout([][]string{{"crm", ""}, {"  url", "https://crm.example.com/mcp"}}, 32), "crm\n  url  https://crm.example.com/mcp\n"; got != want {
		t.Errorf("a word that does not fit: %q", got)
	}
}
