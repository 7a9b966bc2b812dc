package cli

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"nightporter/internal/run"
)

type versionCmd struct {
	JSON bool `name:"json" help:"Print one object."`
}

func (*versionCmd) Help() string {
	return `Examples:

	nightporter version
	nightporter version --json`
}

// build is which build this is.
type build struct {
	Version string `json:"version"` // "(devel)" for one that was not released
	Commit  string `json:"commit"`  // empty when unknown; with a + when there were changes on top of it
	Go      string `json:"go"`
	System  string `json:"system"`
}

func thisBuild() build {
	b := build{Version: "(devel)", Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.Commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			b.Commit += "+"
		}
	}
	return b
}

func (c *versionCmd) Run(a *app) error {
	if c.JSON {
		return writeJSON(a.stdout, thisBuild())
	}
	return thisBuild().print(a.stdout)
}

// versionFlag is --version, for who looks for it there.
type versionFlag bool

// BeforeReset prints the version instead of running a command, as --help does.
func (versionFlag) BeforeReset(k *kong.Kong) error {
	if err := thisBuild().print(k.Stdout); err != nil {
		return err
	}
	k.Exit(run.ExitOK)
	return nil
}

func (b build) print(w io.Writer) error {
	words := slices.DeleteFunc([]string{name, b.Version, b.Commit, b.Go, b.System}, func(word string) bool { return word == "" })
	_, err := fmt.Fprintln(w, strings.Join(words, " "))
	return err
}
