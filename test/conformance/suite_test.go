package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// suite is the conformance suite's program.
type suite struct {
	node   string   // Node.js
	script string   // the suite's index.js
	loader string   // globsync.mjs
	env    []string // of the process
}

// report is what one run of the suite found.
type report struct {
	Of        side
	Revision  string
	Scenarios []scenario // in the order of their names
}

// scenario is the result of one of the suite's scenarios.
type scenario struct {
	Name     string
	Required bool     // by the revision; others are reported, and count for nothing
	Passed   int      // checks
	Failed   []string // checks: their id and message
}

// Figures are the run in one line, such as
// "conformance 2025-11-25, server: scenarios 33/33, required 30/30, checks 82/0".
// The checks are passed/failed, those of scenarios that are not required included.
func (r report) Figures() string {
	var good, required, goodRequired, passed, failed int
	for _, s := range r.Scenarios {
		ok := len(s.Failed) == 0
		passed += s.Passed
		failed += len(s.Failed)
		if ok {
			good++
		}
		if s.Required {
			required++
			if ok {
				goodRequired++
			}
		}
	}
	return fmt.Sprintf("conformance %s, %s: scenarios %d/%d, required %d/%d, checks %d/%d",
		r.Revision, r.Of, good, len(r.Scenarios), goodRequired, required, passed, failed)
}

// side is what the suite judges.
type side string

const (
	asServer side = "server" // a server at a URL
	asClient side = "client" // a program that the suite starts for each scenario
)

// run runs the scenarios of a revision against a server's URL, or a client's command, and leaves the
// suite's own files in dir. An error means that there is no complete report.
func (s suite) run(ctx context.Context, of side, revision, subject, dir string) (report, error) {
	required, err := s.required(of, revision)
	if err != nil {
		return report{}, err
	}
	named := map[side]string{asServer: "--url", asClient: "--command"}[of]
	return s.runSome(ctx, of, revision, required, dir, named, subject, "--requirements", revision)
}

// runSome runs the scenarios that args ask for, of which some are required.
func (s suite) runSome(ctx context.Context, of side, revision string, required []string, dir string, args ...string) (report, error) {
	args = append([]string{"--import", s.loader, s.script, string(of)}, append(args, "--output-dir", dir)...)
	cmd := exec.CommandContext(ctx, s.node, args...)
	cmd.Env, cmd.Dir = s.env, dir
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	runErr := cmd.Run()
	if err := ctx.Err(); err != nil {
		return report{}, fmt.Errorf("conformance suite stopped: %w; it ended with:\n%s", err, tail(output.Bytes()))
	}
	r := report{Of: of, Revision: revision}
	var err error
	if r.Scenarios, err = results(of, dir, required); err != nil {
		return report{}, fmt.Errorf("%w; the suite (%v) ended with:\n%s", err, runErr, tail(output.Bytes()))
	}
	for _, s := range r.Scenarios {
		if s.Required && len(s.Failed) > 0 {
			return r, nil // the suite's exit status says the same
		}
	}
	if runErr != nil {
		return report{}, fmt.Errorf("the suite failed (%w) without a failed scenario; it ended with:\n%s", runErr, tail(output.Bytes()))
	}
	return r, nil
}

// required are the names of the scenarios that a revision requires of a side, from
// the file that the suite itself reads them from:
//
//	server:
//	  - server-initialize
func (s suite) required(of side, revision string) ([]string, error) {
	path := filepath.Join(filepath.Dir(filepath.Dir(s.script)), "requirements", revision+".yaml")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("requirements of %s: %w", revision, err)
	}
	var names []string
	section := ""
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		line := lines.Text()
		if key, ok := strings.CutSuffix(line, ":"); ok && !strings.HasPrefix(line, " ") {
			section = key
		} else if name, ok := strings.CutPrefix(line, "  - "); ok && section == string(of) {
			names = append(names, strings.TrimSpace(name))
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("requirements of %s: no %s scenarios in %s", revision, of, path)
	}
	return names, nil
}

// results reads the suite's files, one DIR/server-SCENARIO-TIME/checks.json for
// each scenario of a server, and DIR/SCENARIO-TIME/checks.json of a client, whose scenarios may have
// a slash in their names. A required scenario without a file did not run.
func results(of side, dir string, required []string) ([]scenario, error) {
	var paths []string
	for _, pattern := range map[side][]string{asServer: {"server-*"}, asClient: {"*", "auth/*"}}[of] {
		found, err := filepath.Glob(filepath.Join(dir, filepath.FromSlash(pattern), "checks.json"))
		if err != nil {
			return nil, err
		}
		paths = append(paths, found...)
	}
	var all []scenario
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var checks []struct {
			ID           string `json:"id"`
			Status       string `json:"status"` // SUCCESS, FAILURE, SKIPPED, WARNING, INFO
			ErrorMessage string `json:"errorMessage"`
		}
		if err := json.Unmarshal(data, &checks); err != nil {
			return nil, fmt.Errorf("result %s: %w", path, err)
		}
		folder, err := filepath.Rel(dir, filepath.Dir(path))
		if err != nil {
			return nil, err
		}
		s := scenario{Name: name(filepath.ToSlash(folder))}
		s.Required = slices.Contains(required, s.Name)
		for _, check := range checks {
			switch check.Status {
			case "SUCCESS":
				s.Passed++
			case "FAILURE":
				s.Failed = append(s.Failed, check.ID+": "+check.ErrorMessage)
			}
		}
		if of == asClient && s.Passed == 0 && len(s.Failed) == 0 { // the suite passes a client that never came
			s.Failed = []string{"no check: nothing was checked"}
		}
		all = append(all, s)
	}
	var missing []error
	for _, want := range required {
		if !slices.ContainsFunc(all, func(s scenario) bool { return s.Name == want }) {
			missing = append(missing, fmt.Errorf("scenario %s has no result: %w", want, fs.ErrNotExist))
		}
	}
	return all, errors.Join(missing...)
}

// name is the scenario in a folder's name: server-tools-list-2026-11-30T19-56-19-278Z.
func name(folder string) string {
	const stamp = len("-2006-01-02T15-04-05-000Z")
	folder = strings.TrimPrefix(folder, "server-")
	if len(folder) < stamp {
		return folder
	}
	return folder[:len(folder)-stamp]
}

// tail is the end of a program's output, for errors.
func tail(output []byte) []byte {
	const most = 4000
	return output[max(0, len(output)-most):]
}
