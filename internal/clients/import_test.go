package clients

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"nightporter/internal/config"
)

var update = flag.Bool("update", false, "write what is found as what is wanted")

// TestImport takes over the files of each testdata/import/*.txtar. Lines before the first file say how:
//
//	os: windows           the platform; else linux
//	env: NAME=VALUE       a variable that is set
//	crlf: FILE            a file whose lines end as on Windows
//	bom: FILE             a file that begins with a byte order mark
//	cut: FILE             a file without its last newline
//	untrusted: yes        the project is
//	secrets: keyring      where they go; else they are kept
//
// Files stand below home/ and project/, and $HOME and $PROJECT in them are the folders. config.toml is what is there
// already, want is what the plan says.
func TestImport(t *testing.T) {
	files, err := filepath.Glob("testdata/import/*.txtar")
	if err != nil || len(files) < 25 {
		t.Fatalf("%d cases, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := planOf(t, archive)
			i := slices.IndexFunc(archive.Files, func(f txtar.File) bool { return f.Name == "want" })
			if *update {
				if i < 0 {
					archive.Files, i = append(archive.Files, txtar.File{Name: "want"}), len(archive.Files)
				}
				archive.Files[i].Data = []byte(got)
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if i < 0 {
				t.Fatal("there is no want")
			}
			if diff := cmp.Diff(string(archive.Files[i].Data), got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// planOf lays the files out, and returns what an import of all clients would do.
func planOf(t *testing.T, archive *txtar.Archive) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	home, project := filepath.Join(dir, "home"), filepath.Join(dir, "project")
	fill := strings.NewReplacer("$HOME", home, "$PROJECT", project)
	empty := strings.NewReplacer(home, "$HOME", project, "$PROJECT", dir, "$DIR")
	place := Place{OS: "linux", Home: home, Project: project, Trusted: true}
	env, keeping := map[string]string{}, AsIs
	special := map[string][]string{}
	for line := range strings.Lines(string(archive.Comment)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch name {
		case "untrusted":
			place.Trusted = false
		case "os":
			place.OS = value
		case "env":
			name, value, _ := strings.Cut(value, "=")
			env[name] = fill.Replace(value)
		case "secrets":
			keeping = Keeping(value)
		case "crlf", "bom", "cut":
			special[value] = append(special[value], name)
		}
	}
	place.Getenv = func(name string) string { return env[name] }
	var there []byte
	for _, f := range archive.Files {
		text := []byte(fill.Replace(string(f.Data)))
		for _, how := range special[f.Name] {
			switch how {
			case "crlf":
				text = bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n"))
			case "bom":
				text = append(slices.Clone(byteOrderMark), text...)
			case "cut":
				text = bytes.TrimRight(text, "\r\n")
			}
		}
		if f.Name == "config.toml" {
			there = text
		}
		path := filepath.Join(dir, f.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	target := filepath.Join(dir, "config.toml")
	cfg, err := config.Parse(target, there)
	if err != nil {
		t.Fatal(err)
	}
	plan := MakePlan(target, cfg, Read(place, All()), keeping, func(s config.NewServer) bool {
		return IsNightporter(s, "http://127.0.0.1:8722/mcp")
	})
	var out strings.Builder
	for _, s := range plan.Sources {
		if s.Err != nil {
			fmt.Fprintf(&out, "# %s: error: %v\n", s.Client.ID, s.Err)
		}
	}
	text := slices.Clone(there)
	for _, item := range plan.Items {
		if item.Left != "" {
			fmt.Fprintf(&out, "# leave %q of %s, %s, line %d: %s: %s\n", item.Server.Name, item.Client.ID, item.Scope, item.Pos.Line, item.Left, item.Why)
			continue
		}
		fmt.Fprintf(&out, "# take %q of %s, %s, line %d\n", item.Server.Name, item.Client.ID, item.Scope, item.Pos.Line)
		for _, note := range item.Notes {
			fmt.Fprintf(&out, "# note: %s\n", note)
		}
		for _, s := range item.Secrets {
			fmt.Fprintf(&out, "# secret: %s\n", s.Field)
		}
		if len(item.Needs) > 0 {
			fmt.Fprintf(&out, "# needs: %s\n", strings.Join(item.Needs, ", "))
		}
		if text, err = config.AddServer(target, text, item.Server, false); err != nil {
			t.Fatalf("%s cannot be written: %v", item.Server.Name, err)
		}
		alone, err := config.AddServer(target, nil, item.Server, false)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(alone)
	}
	// What is written is used, without a warning.
	after, err := config.Parse(target, text)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range slices.Concat(after.Problems, after.Warnings) {
		fmt.Fprintf(&out, "# afterwards: %v\n", p.Error())
	}
	// A second time there is nothing left to take.
	for _, item := range MakePlan(target, after, Read(place, All()), keeping, func(s config.NewServer) bool { return IsNightporter(s, "http://127.0.0.1:8722/mcp") }).Items {
		if item.Left == "" {
			fmt.Fprintf(&out, "# a second time: %s is taken again\n", item.Server.Name)
		}
	}
	return empty.Replace(out.String())
}
