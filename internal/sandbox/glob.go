package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// glob adds the paths that match a pattern now. * and ? match within a name, [ ] a set, ** any number of folders.
// What comes to match later is not covered; neither is it in Codex.
func (p *planner) glob(pattern string, depth int, access Access) error {
	if !path.IsAbs(pattern) {
		pattern = path.Join(p.cwd, pattern)
	}
	if strings.ContainsAny(pattern, "{}\\") {
		return fmt.Errorf("the pattern %q has braces or backslashes, which are not understood here", pattern)
	}
	parts := strings.Split(path.Clean(pattern)[1:], "/")
	for _, part := range parts {
		if _, err := path.Match(part, ""); err != nil {
			return fmt.Errorf("the pattern %q is malformed", pattern)
		}
	}
	dir := "/"
	for len(parts) > 0 && !strings.ContainsAny(parts[0], "*?[") {
		dir, parts = path.Join(dir, parts[0]), parts[1:]
	}
	if len(parts) == 0 {
		return p.addPath(dir, access)
	}
	if dir == "/" && depth == 0 && parts[0] == "**" {
		return fmt.Errorf("the pattern %q is about the whole file system; give glob_scan_max_depth, or a folder to begin with", pattern)
	}
	return p.match(dir, parts, depth, access)
}

// match adds what matches parts below dir. left is how many folders ** may still go down, 0 for no bound but maxVisited.
func (p *planner) match(dir string, parts []string, left int, access Access) error {
	if len(parts) == 0 {
		return p.addPath(dir, access)
	}
	entries, err := fs.ReadDir(p.Files, rel(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("look for what matches a pattern of the state in %s: %w", dir, err)
	}
	if p.visited += len(entries); p.visited > maxVisited {
		return fmt.Errorf("a pattern of the state has more than %d files to look at; give glob_scan_max_depth, or a longer folder to begin with", maxVisited)
	}
	part, rest := parts[0], parts[1:]
	if part == "**" {
		if len(rest) == 0 {
			rest = []string{"*"} // everything below
		}
		if err := p.match(dir, rest, left, access); err != nil {
			return err
		}
		if left == 1 {
			return nil
		}
		for _, e := range entries {
			if e.IsDir() { // not a link: it could lead round in circles
				if err := p.match(path.Join(dir, e.Name()), parts, max(0, left-1), access); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for _, e := range entries {
		if ok, _ := path.Match(part, e.Name()); !ok {
			continue
		}
		next := path.Join(dir, e.Name())
		if len(rest) > 0 && !e.IsDir() && e.Type()&fs.ModeSymlink == 0 {
			continue
		}
		if err := p.match(next, rest, left, access); err != nil {
			return err
		}
	}
	return nil
}
