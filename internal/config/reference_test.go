package config

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/reference/config.md anew")

const referenceFile = "../../docs/reference/config.md"

// reference is the reference of config.toml, as docs/reference/config.md has it.
func reference() string {
	var b strings.Builder
	b.WriteString(`# Reference of config.toml

<!-- Made from config.Fields by go test ./internal/config -run TestTheReference -update. Not to be edited. -->

` + "`nightporter config schema`" + ` prints the same as a JSON Schema, ` + "`nightporter config check`" + ` says what is wrong with a file, and
` + "`nightporter config path`" + ` says which file is read.

Values that "may be references" take these: ` + "`${env:NAME}`, `${env:NAME:-default}`, `${file:PATH}`, `${keyring:SERVICE/USER}` and `${cmd:PROGRAM ARGS}`" + `.
They are resolved when the server or agent starts and are stored nowhere.
`)
	table := "none yet"
	for _, f := range Fields() {
		if f.Key == "" {
			continue // in JSON only
		}
		if f.Table != table {
			table = f.Table
			if table == "" {
				b.WriteString("\n## At the top of the file, before any table\n")
			} else {
				fmt.Fprintf(&b, "\n## [%s]\n", table)
			}
		}
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n", f.Key, f.Doc)
		item := func(name, format string, args ...any) {
			fmt.Fprintf(&b, "- %s: "+format+"\n", append([]any{name}, args...)...)
		}
		item("Type", "%s", f.Type)
		if len(f.Enum) > 0 {
			item("One of", "`%s`", strings.Join(f.Enum, "`, `"))
		}
		switch f.Transport {
		case Stdio:
			item("Servers", "stdio")
		case HTTP:
			item("Servers", "HTTP")
		}
		if f.Default != "" {
			item("Default", "%s", f.Default)
		}
		if f.JSON != "" {
			item("In JSON", "`%s`", f.JSON)
		}
		if f.Example != nil {
			data, _ := json.Marshal(f.Example)
			var v any
			_ = json.Unmarshal(data, &v)
			item("Example", "`%s = %s`", f.Key, tomlValue(v))
		}
	}
	return b.String()
}

func TestTheReferenceIsMadeFromTheFields(t *testing.T) {
	want := reference()
	if *update {
		if err := os.MkdirAll("../../docs/reference", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(referenceFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(referenceFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not up to date; run go test ./internal/config -run TestTheReference -update", referenceFile)
	}
}
