package cli

import (
	"cmp"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestOneCommandIsReadAsAmongAll holds what is read by the parser of one command against what that of all of them reads.
func TestOneCommandIsReadAsAmongAll(t *testing.T) {
	for _, args := range [][]string{
		{"mcp"},
		{"mcp", "--server", "a", "--server", "b", "--exposure", "search"},
		{"--config", "f", "mcp"},
		{"--config=f", "mcp", "--alone"},
		{"--config", "mcp", "mcp"},
		{"mcp", "--config", "f", "--color", "never"},
		{"gateway"},
		{"gateway", "--listen", ":1"},
		{"gateway", "tokens", "list"},
		{"run", "--agent", "claude", "what is mcp?"},
		{"run", "--exec", "sh -c", "--timeout", "90s", "-"},
		{"sandbox", "--sandbox-state-json", "{}", "--", "mcp", "--help"},
		{"sandbox", "--sandbox-state-json", "{}", "--", "true", "-x"},
		{"servers", "list", "--json"},
		{"config", "path"},
		{"demo"},
		{"version"},
		{"mcp", "--nonsense"},
		{"run", "--agent"},
		{"no-command"},
		{},
	} {
		var narrow, whole commands
		got, gotExit, gotErr := parse(&narrow, args, io.Discard, io.Discard)
		want, wantExit, wantErr := parseInto(&whole, args, io.Discard, io.Discard)
		if (gotErr == nil) != (wantErr == nil) || gotErr != nil && gotErr.Error() != wantErr.Error() || gotExit != wantExit {
			t.Errorf("%q: %v, %v; want %v, %v", args, gotErr, gotExit, wantErr, wantExit)
			continue
		}
		if gotErr != nil || gotExit {
			continue
		}
		if got.Command() != want.Command() {
			t.Errorf("%q: command %q, want %q", args, got.Command(), want.Command())
		}
		// The commands that were not named have their defaults, or nothing.
		named, _, _ := strings.Cut(want.Command(), " ")
		for field := range reflect.TypeFor[commands]().Fields() {
			if _, command := field.Tag.Lookup("cmd"); command && cmp.Or(field.Tag.Get("name"), strings.ToLower(field.Name)) != named || field.Anonymous {
				continue
			}
			a, b := reflect.ValueOf(narrow).FieldByIndex(field.Index), reflect.ValueOf(whole).FieldByIndex(field.Index)
			if !reflect.DeepEqual(a.Interface(), b.Interface()) {
				t.Errorf("%q: %s is %+v, want %+v", args, field.Name, a, b)
			}
		}
		if _, keep := onlyNamed(new(commands), args); keep == nil && !slices.Contains(args, "--help") && args[0] != "demo" && args[0] != "--config" {
			t.Errorf("%q is read by all commands", args)
		}
	}
}
