// Package docs holds no code: it tests what the documentation says of the code.
package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"nightporter/internal/agent"
	"nightporter/internal/config"
)

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

var link = regexp.MustCompile(`\]\(([^)#]+)`)

func TestLinksLeadSomewhere(t *testing.T) {
	pages := []string{"../README.md", "../examples/sandboxed-runner/README.md"}
	for _, pattern := range []string{"*.md", "*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("no pages: %v", err)
		}
		pages = append(pages, found...)
	}
	for _, page := range pages {
		for _, m := range link.FindAllStringSubmatch(read(t, page), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s: the link %s leads nowhere", page, m[1])
			}
		}
	}
}

// TestDecisionsHaveNumbersOfTheirOwn: they are told by number alone in texts and comments.
func TestDecisionsHaveNumbersOfTheirOwn(t *testing.T) {
	pages, err := filepath.Glob("decisions/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no decisions: %v", err)
	}
	taken := map[string]string{}
	for _, page := range pages {
		number, _, _ := strings.Cut(filepath.Base(page), "-")
		if other, is := taken[number]; is {
			t.Errorf("%s and %s have one number", other, page)
		}
		taken[number] = page
		if !strings.HasPrefix(read(t, page), "# "+number+": ") {
			t.Errorf("%s: its title does not begin with its number", page)
		}
	}
}

var (
	fence = regexp.MustCompile("(?s)```toml\n(.*?)```")
	code  = regexp.MustCompile("`([^`]+)`")
)

func TestConfigurationsInThePagesAreGood(t *testing.T) {
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, "../README.md", "../examples/sandboxed-runner/README.md")
	for _, page := range pages {
		found := fence.FindAllStringSubmatch(read(t, page), -1)
		if len(found) == 0 && (page == "../README.md" || page == "configuration.md") {
			t.Errorf("%s has no configuration", page)
		}
		for _, m := range found {
			cfg, err := config.Parse(page, []byte(m[1]))
			if err != nil {
				t.Errorf("%s: %v", page, err)
				continue
			}
			for _, p := range append(cfg.Problems, cfg.Warnings...) {
				t.Errorf("%s", p.Error())
			}
		}
	}
}

// TestKeysWithoutEffectExist finds a key that was renamed, not one that has an effect by now.
func TestKeysWithoutEffectExist(t *testing.T) {
	_, list, found := strings.Cut(read(t, "configuration.md"), "## Read, and without effect")
	if !found {
		t.Skip("every key has an effect")
	}
	var keys []string
	for _, f := range config.Fields() {
		keys = append(keys, f.Key)
	}
	for _, m := range code.FindAllStringSubmatch(list, -1) {
		key, _, _ := strings.Cut(m[1], " ")
		key = key[strings.LastIndexByte(key, '.')+1:]
		if !slices.Contains(keys, key) && !strings.HasPrefix(m[1], "[") && m[1] != "extra-mcp.json" {
			t.Errorf("there is no key %s", m[1])
		}
	}
}

func TestEveryErrorCodeIsExplained(t *testing.T) {
	page := read(t, "outcomes.md")
	for _, code := range []string{
		agent.CodeAgentError, agent.CodeNoResult, agent.CodeEmptyReply, agent.CodeResultTooLong, agent.CodeAuth, agent.CodeModelAPI,
		agent.CodeTurnLimit, agent.CodeBudget, agent.CodePromptTooLong, agent.CodeResumeRejected, agent.CodeSessionMismatch, agent.CodeBoundary, agent.CodeBroken,
		agent.CodeRefused, agent.CodeMissing, agent.CodeStartFailed, agent.CodeTimeout, agent.CodeIdle, agent.CodeSignal,
	} {
		if !strings.Contains(page, "`"+code+"`") {
			t.Errorf("outcomes.md does not explain %s", code)
		}
	}
}
