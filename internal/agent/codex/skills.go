package codex

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"nightporter/internal/proc"
)

// A skill's text goes to the model when the prompt names it, `$name` or a link to its file, also with the list of
// skills off: measured in both versions. Each is therefore switched off by its path, as Codex itself lists it.

// skillTime bounds the question for the skills, which takes 0.3 s: it asks no network.
const skillTime = 30 * time.Second

// skill is one skill as `skills/list` of codex app-server shows it.
type skill struct {
	Name    string `json:"name"`
	Path    string `json:"path"`
	Enabled *bool  `json:"enabled"`
}

// askSkills asks `codex app-server` which skills there are. No thread is begun, so that no server is started and no model
// asked. The app-server ends with its input, and does so before it has answered: the input stays open until then.
func (p program) askSkills(ctx context.Context, switches []string) (skills []skill, err error) {
	q := p.question(skillTime, append([]string{"app-server"}, switches...)...)
	q.Talk = func(to io.Writer, from io.Reader) (err error) {
		skills, err = converse(to, from, p.dir)
		return err
	}
	if answer, err := proc.Ask(ctx, q); err != nil {
		return nil, fmt.Errorf("`codex app-server` did not list the skills: %w%s", err, complaint(answer.Complaints))
	}
	return skills, nil
}

// converse is the dialogue with the app-server.
func converse(to io.Writer, from io.Reader, dir string) ([]skill, error) {
	const question = 1
	for _, message := range []map[string]any{
		{"id": 0, "method": "initialize", "params": map[string]any{"clientInfo": map[string]string{"name": "nightporter", "title": "Nightporter", "version": "1"}}},
		{"method": "initialized"},
		{"id": question, "method": "skills/list", "params": map[string]any{"cwds": []string{dir}}},
	} {
		line, err := json.Marshal(message)
		if err != nil {
			return nil, err
		}
		if _, err := to.Write(append(line, '\n')); err != nil {
			return nil, err
		}
	}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, maxAnswer)
	for lines.Scan() {
		var answer struct {
			ID     *int64          `json:"id"`
			Method string          `json:"method"`
			Error  json.RawMessage `json:"error"`
			Result struct {
				Data []struct {
					Skills []skill `json:"skills"`
				} `json:"data"`
			} `json:"result"`
		}
		if json.Unmarshal(lines.Bytes(), &answer) != nil || answer.ID == nil || *answer.ID != question || answer.Method != "" {
			continue // notices, and the answer to initialize
		}
		if answer.Error != nil || answer.Result.Data == nil {
			return nil, fmt.Errorf("it does not know skills/list")
		}
		var all []skill
		for _, folder := range answer.Result.Data {
			all = append(all, folder.Skills...)
		}
		for _, s := range all {
			if s.Path == "" || s.Enabled == nil {
				return nil, fmt.Errorf("it lists a skill without its path or state")
			}
		}
		return all, nil
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return nil, io.ErrUnexpectedEOF
}

// paths are the skills' files.
func paths(all []skill) []string {
	files := make([]string, len(all))
	for i, s := range all {
		files[i] = s.Path
	}
	return files
}

// skillsOff switches each skill off, by its file, and hides the list of skills from the model unless some stay.
func skillsOff(all []string, some bool) []string {
	pairs := []pair{{"bundled", table(pair{"enabled", "false"})}}
	if !some {
		pairs = append(pairs, pair{"include_instructions", "false"})
	}
	if len(all) > 0 {
		rows := make([]string, len(all))
		for i, path := range all {
			rows[i] = table(pair{"path", quote(path)}, pair{"enabled", "false"})
		}
		pairs = append(pairs, pair{"config", array(rows)})
	}
	return []string{"-c", "skills=" + table(pairs...)}
}

// users reports whether a skill is the operator's own, which stays with her settings: in a folder of Codex's or of hers, and that not within
// the run's working directory. Links are followed: an agent could have put one there.
func (p *prover) users(s skill) bool {
	if !p.request.OperatorSettings {
		return false
	}
	file, err := filepath.EvalSymlinks(s.Path)
	if err != nil || within(file, p.dir) {
		return false
	}
	for _, folder := range []string{filepath.Join(codexHome(p.env), "skills"), filepath.Join(variable(p.env, "HOME"), ".agents", "skills")} {
		if folder, err = filepath.EvalSymlinks(folder); err == nil && within(file, folder) {
			return true
		}
	}
	return false
}

// within reports whether a path is below a folder; both are absolute.
func within(path, folder string) bool {
	rel, err := filepath.Rel(folder, path)
	return err == nil && filepath.IsLocal(rel)
}
