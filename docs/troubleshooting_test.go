package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var heading = regexp.MustCompile("(?m)^### `(.+)`$")

// TestMessagesOfTheTroubleshootingPageAreSaid finds a message that was reworded: what stands between its … is in the code.
func TestMessagesOfTheTroubleshootingPageAreSaid(t *testing.T) {
	var code strings.Builder
	err := filepath.WalkDir("../internal", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		code.Write(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	found := heading.FindAllStringSubmatch(read(t, "troubleshooting.md"), -1)
	if len(found) < 10 {
		t.Fatalf("only %d messages were found", len(found))
	}
	for _, m := range found {
		for part := range strings.SplitSeq(m[1], "…") {
			if part = strings.TrimSpace(part); m[1] != "connection refused" && !strings.Contains(code.String(), part) {
				t.Errorf("nothing says %q, of %q", part, m[1])
			}
		}
	}
}
