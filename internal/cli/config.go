package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"nightporter/internal/config"
	"nightporter/internal/run"
)

type configCmd struct {
	Check  configCheckCmd  `cmd:"" help:"Check the configuration and say where each mistake is and what it does."`
	Schema configSchemaCmd `cmd:"" help:"Print the JSON Schema of config.toml."`
	Path   configPathCmd   `cmd:"" help:"Print which file is read."`
}

// configFile is the file that is read.
func (a *app) configFile() string {
	if a.flags.Config != "" {
		return a.flags.Config
	}
	return a.dirs.ConfigFile()
}

type configCheckCmd struct {
	JSON bool `name:"json" help:"Print one object."`
}

func (*configCheckCmd) Help() string {
	return `An error disables the entry that it is in, and no other. A warning is about what is read differently than it
may have been meant. Without --config the extras, extra-mcp.json beside config.toml, are checked too. The exit code is 2 when
there are errors, else 0.

Examples:

	nightporter config check
	nightporter config check --json
	nightporter --config ./team.toml config check`
}

// checked is what config check found.
type checked struct {
	File    string    `json:"file"`
	Extras  string    `json:"extras"` // the file of extras that was read too; empty: there is none
	Exists  bool      `json:"exists"`
	Parsed  bool      `json:"parsed"`  // false: nothing of it is used
	Found   []finding `json:"found"`   // errors and warnings, in the order of the file
	Ignored []ignored `json:"ignored"` // entries that are not used
}

type finding struct {
	Severity string `json:"severity"` // error or warning
	File     string `json:"file"`
	Line     int    `json:"line"` // 0: of no line
	Column   int    `json:"column"`
	Field    string `json:"field,omitempty"`
	Message  string `json:"message"`
	Mend     string `json:"mend,omitempty"`
}

type ignored struct {
	Kind string `json:"kind"` // server, agent, grant, gateway, or table for all entries of one
	Name string `json:"name"`
}

func (i ignored) String() string {
	if i.Kind == i.Name {
		return i.Name
	}
	return i.Kind + " " + i.Name
}

func (c *configCheckCmd) Run(a *app) error {
	extras := ""
	if a.flags.Config == "" {
		extras = a.dirs.ExtraFile()
	}
	report, err := check(a.configFile(), extras)
	if err != nil {
		return err
	}
	if c.JSON {
		if err := writeJSON(a.stdout, report); err != nil {
			return err
		}
	} else {
		for _, f := range report.Found {
			p := config.Problem{Field: f.Field, Message: f.Message, Mend: f.Mend}
			fmt.Fprintf(a.stdout, "%s: %s: %s\n", config.Position{File: oneLine(f.File), Line: f.Line, Column: f.Column}, f.Severity, oneLine(p.Error()))
		}
	}
	errs := 0
	for _, f := range report.Found {
		if f.Severity == "error" {
			errs++
		}
	}
	warnings := count(len(report.Found)-errs, "warning")
	switch {
	case !report.Exists && report.Extras == "":
		a.say("there is no %s: the defaults hold", report.File)
	case !report.Parsed:
		return &problem{text: report.Found[0].File + " cannot be parsed: nothing in it is used", code: run.ExitUsage}
	case errs > 0:
		var names []string
		for _, i := range report.Ignored {
			names = append(names, i.String())
		}
		return &problem{text: fmt.Sprintf("%s and %s in %s; not used: %s", count(errs, "error"), warnings, report.files(), strings.Join(names, ", ")), code: run.ExitUsage}
	default:
		a.say("%s in %s; every entry is used", warnings, report.files())
	}
	return nil
}

func count(n int, what string) string {
	switch n {
	case 0:
		return "no " + what + "s"
	case 1:
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// files names what was read.
func (c *checked) files() string {
	switch {
	case c.Extras == "":
		return c.File
	case !c.Exists:
		return c.Extras
	}
	return c.File + " and " + c.Extras
}

// check reads a file, and that of the extras, and reports what is wrong with them. extras is empty where none is read; the
// file need not exist where one is.
func check(file, extras string) (*checked, error) {
	report := &checked{File: file, Found: []finding{}, Ignored: []ignored{}}
	c, err := report.load(file, extras != "")
	if err != nil || len(report.Found) > 0 {
		report.Exists = true
		return report, err
	}
	report.Exists = c.File != ""
	if extras != "" {
		extra, err := report.load(extras, true)
		if err != nil || len(report.Found) > 0 {
			report.Extras = extras
			return report, err
		}
		if extra.File != "" {
			report.Extras = extras
			c.AddExtras(extra)
		}
	}
	if !report.Exists && report.Extras == "" {
		return report, nil
	}
	report.Parsed = true
	add := func(severity string, problems []config.Problem) {
		for _, p := range problems {
			report.Found = append(report.Found, finding{severity, p.Pos.File, p.Pos.Line, p.Pos.Column, p.Field, p.Message, p.Mend})
		}
	}
	add("error", c.Problems)
	add("warning", c.Warnings)
	add("warning", c.UnknownInGrants())
	slices.SortStableFunc(report.Found, func(a, b finding) int {
		if a.File != b.File {
			return strings.Compare(a.File, b.File)
		}
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	report.Ignored = append(report.Ignored, unused(c)...)
	return report, nil
}

// load reads a file. One that may miss and does is an empty configuration; what cannot be parsed is a finding.
func (c *checked) load(file string, mayMiss bool) (*config.Config, error) {
	found, err := config.Load(file)
	var syntax *config.SyntaxError
	switch {
	case mayMiss && errors.Is(err, fs.ErrNotExist):
		return &config.Config{}, nil
	case errors.As(err, &syntax):
		c.Found = append(c.Found, finding{
			Severity: "error", File: syntax.Pos.File, Line: syntax.Pos.Line, Column: syntax.Pos.Column, Message: syntax.Message, Mend: syntax.Line,
		})
		return nil, nil
	case err != nil:
		return nil, badConfig(err)
	}
	return found, nil
}

// unused are the entries that have a problem.
func unused(c *config.Config) (all []ignored) {
	for i := range c.Servers {
		if c.Servers[i].Problem != nil {
			all = append(all, ignored{"server", c.Servers[i].Name})
		}
	}
	for _, name := range c.AgentNames() {
		if c.Agents[name].Problem != nil {
			all = append(all, ignored{"agent", name})
		}
	}
	for _, name := range c.GrantNames() {
		if c.Grants[name].Problem != nil {
			all = append(all, ignored{"grant", name})
		}
	}
	if c.Gateway.Problem != nil {
		all = append(all, ignored{"gateway", "gateway"})
	}
	for _, p := range c.Problems {
		if slices.Contains([]string{"mcp_servers", "mcpServers", "agents", "grants"}, p.Field) {
			all = append(all, ignored{"table", p.Field})
		}
	}
	return all
}

type configSchemaCmd struct{}

func (*configSchemaCmd) Help() string {
	return `It is a JSON Schema of the 2020-12 draft, with a description, the default and an example of every field. Editors
complete and check config.toml with it.

Examples:

	nightporter config schema > config.schema.json`
}

func (*configSchemaCmd) Run(a *app) error {
	_, err := a.stdout.Write(config.Schema())
	return err
}

type configPathCmd struct {
	JSON bool `name:"json" help:"Print one object."`
}

func (*configPathCmd) Help() string {
	return `The file is --config FILE, else config.toml in $NIGHTPORTER_HOME when that is set, else in the user's folder of
configuration files. It need not exist.

Examples:

	nightporter config path
	"$EDITOR" "$(nightporter config path)"`
}

func (c *configPathCmd) Run(a *app) error {
	file := a.configFile()
	there := exists(file)
	if c.JSON {
		return writeJSON(a.stdout, struct {
			File   string `json:"file"`
			Exists bool   `json:"exists"`
		}{file, there})
	}
	if !there {
		a.say("it does not exist")
	}
	_, err := fmt.Fprintln(a.stdout, file)
	return err
}
