// Package test drives the nightporter command as a person does: by the scripts in scripts/.
package test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"nightporter/internal/cli"
	"nightporter/test/lab"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"nightporter": func() { os.Exit(cli.Main(os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr)) },
		"lab":         lab.Main,
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "scripts",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			// Agents and configurations of who runs the tests have no place in them.
			e.Setenv("NIGHTPORTER_HOME", filepath.Join(e.WorkDir, "home"))
			e.Setenv("HOME", e.WorkDir)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exit":       exitCode,
			"eventually": eventually,
			"json":       oneObject,
		},
	})
}

// exitCode runs a command and checks its exit code: exit CODE COMMAND ARGS…
func exitCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exit CODE COMMAND ARGS…")
	}
	got := "0"
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		coded, ok := err.(interface{ ExitCode() int })
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = string(rune('0' + coded.ExitCode()))
	}
	if got != args[0] {
		ts.Fatalf("exit code %s, want %s", got, args[0])
	}
}

// eventually runs a command until its output matches a pattern, for what another process writes shortly after it was
// seen to act: eventually PATTERN COMMAND ARGS…
func eventually(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: eventually PATTERN COMMAND ARGS…")
	}
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	end := time.After(30 * time.Second)
	for {
		err := ts.Exec(args[1], args[2:]...)
		if err == nil && pattern.MatchString(ts.ReadFile("stdout")) {
			return
		}
		select {
		case <-again.C:
		case <-end:
			ts.Fatalf("after 30 s the output does not match %q: %v", pattern, err)
		}
	}
}

// oneObject checks that a file is one JSON object and a newline, and that the fields named have the values given
// as JSON: json FILE [PATH=VALUE]…, where PATH is FIELD or FIELD.FIELD.
func oneObject(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: json FILE [PATH=VALUE]…")
	}
	text := ts.ReadFile(args[0])
	d := json.NewDecoder(bytes.NewBufferString(text))
	var object map[string]any
	if err := d.Decode(&object); err != nil {
		ts.Fatalf("%s is not a JSON object: %v", args[0], err)
	}
	if _, err := d.Token(); err != io.EOF || text[len(text)-1] != '\n' || bytes.Count([]byte(text), []byte("\n")) != 1 {
		ts.Fatalf("%s is more than one object on one line: %q", args[0], text)
	}
	for _, arg := range args[1:] {
		path, want, _ := bytes.Cut([]byte(arg), []byte("="))
		var value any = object
		for field := range bytes.SplitSeq(path, []byte(".")) {
			inner, _ := value.(map[string]any)
			var ok bool
			if value, ok = inner[string(field)]; !ok {
				ts.Fatalf("%s has no %s", args[0], path)
			}
		}
		if got, err := json.Marshal(value); err != nil || !bytes.Equal(got, want) {
			ts.Fatalf("%s is %s, want %s", path, got, want)
		}
	}
}
