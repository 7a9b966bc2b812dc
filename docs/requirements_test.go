package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)

// TestEachRequirementHasTestsThatAreThere finds a test that was renamed or removed, and a requirement without one.
func TestEachRequirementHasTestsThatAreThere(t *testing.T) {
	there := map[string]bool{}
	for _, root := range []string{"../internal", "../test"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Name() == "node_modules" {
				return filepath.SkipDir
			}
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			data, err := os.ReadFile(path)
			for _, m := range testFunc.FindAllSubmatch(data, -1) {
				there[string(m[1])] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	page := read(t, "requirements.md")
	for letter, last := range map[string]int{"A": 40, "B": 24} {
		for n := range last {
			if !strings.Contains(page, fmt.Sprintf("| **%s%d** ", letter, n+1)) {
				t.Errorf("%s%d is not in the table", letter, n+1)
			}
		}
	}
	for _, m := range regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(page, -1) {
		if !there[m[1]] {
			t.Errorf("there is no test %s", m[1])
		}
	}
}
