package clients

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/zalando/go-keyring"

	"nightporter/internal/config"
	"nightporter/internal/safefile"
)

func TestDotenv(t *testing.T) {
	got, err := dotenv("\xef\xbb\xbf# c\r\nexport A=1\r\n\nB = \"x \\\"y\\\" # z\\n\" # c\nC='a\\nb'\nD=a # c\nE=\nA=2\nF=a=b#c\n")
	want := [][2]string{{"A", "2"}, {"B", "x \"y\" # z\n"}, {"C", `a\nb`}, {"D", "a"}, {"E", ""}, {"F", "a=b#c"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{"A", "1A=x", "A=\"x", `A="x\"`, "A='x", "A B=c"} {
		if got, err := dotenv("OK=1\n" + bad); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: %q, %v", bad, got, err)
		}
	}
}

func FuzzDotenv(f *testing.F) {
	f.Add("A=\"x\\\\\"\nB='\nC=`a`")
	f.Fuzz(func(t *testing.T, text string) {
		if all, err := dotenv(text); err == nil {
			for _, v := range all {
				if !variableName.MatchString(v[0]) {
					t.Fatalf("%q is no name", v[0])
				}
			}
		}
	})
}

// TestSecretsComeBack: what a reference that is written resolves to is what stood in the client's file.
func TestSecretsComeBack(t *testing.T) {
	keyring.MockInit()
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere") // the mock asks none
	home, dir := t.TempDir(), t.TempDir()
	text := `{"mcpServers": {
		"a": {"command": "x", "env": {"API_KEY": "sk-a${env:B}c'd\"e"}},
		"b": {"url": "https://h/mcp?token=x%20y0123456789", "headers": {"Authorization": "Bearer abcdef 123"}},
		"left": {"command": "x", "disabled": true, "env": {"API_KEY": "sk-left0123456789"}}
	}}`
	if err := safefile.Write(filepath.Join(home, ".claude.json"), []byte(text)); err != nil {
		t.Fatal(err)
	}
	claude, _ := Named("claude-desktop") // which replaces nothing
	claude = &Client{ID: claude.ID, Name: claude.Name, Files: []File{{User, everywhere("{home}/.claude.json"), mcpServers}}}
	for _, keeping := range []Keeping{InKeyring, InFile} {
		file := filepath.Join(dir, string(keeping), "config.toml")
		place := Place{OS: "linux", Home: home, Project: dir, Getenv: func(string) string { return "" }}
		plan := MakePlan(file, &config.Config{}, Read(place, []*Client{claude}), keeping, func(config.NewServer) bool { return false })
		var data []byte
		for _, s := range plan.Take() {
			var err error
			if data, err = config.AddServer(file, data, s, false); err != nil {
				t.Fatal(err)
			}
		}
		for _, secret := range []string{"sk-a", "x%20y", "abcdef"} {
			if strings.Contains(string(data), secret) {
				t.Errorf("%s: %s is in the file:\n%s", keeping, secret, data)
			}
		}
		if err := plan.Store(t.Context()); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Parse(file, data)
		if err != nil {
			t.Fatal(err)
		}
		resolve := func(name string) *config.Resolved {
			s, ok := cfg.Server(name)
			if !ok {
				t.Fatalf("%s is not there", name)
			}
			r, err := s.Resolve(t.Context(), func(string) (string, bool) { return "", false })
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		if got := resolve("a").Env["API_KEY"].Reveal(); got != `sk-a${env:B}c'd"e` {
			t.Errorf("%s: %q", keeping, got)
		}
		b := resolve("b")
		if got := b.URL.Reveal(); got != "https://h/mcp?token=x%20y0123456789" {
			t.Errorf("%s: %q", keeping, got)
		}
		if got := b.Headers["Authorization"].Reveal(); got != "Bearer abcdef 123" {
			t.Errorf("%s: %q", keeping, got)
		}
	}
	kept, err := os.ReadDir(filepath.Join(dir, "file", SecretsFolder))
	if err != nil || len(kept) != 3 {
		t.Errorf("%v, %v", kept, err)
	}
	for _, f := range kept {
		if info, err := f.Info(); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
	}
}

func TestSecretNamesAreTheirOwn(t *testing.T) {
	seen := map[string]string{}
	for _, pair := range [][2]string{{"a", "K"}, {"A", "K"}, {"a/b", "K"}, {"a_b", "K"}, {"a b", "K"}, {"..", "K"}, {"../../x", "K"}, {"a}", "K"}, {strings.Repeat("x", 128), "K"}, {strings.Repeat("x", 127), "K"}} {
		name := strings.ToLower(secretName(pair[0], pair[1]))
		if other, is := seen[name]; is || strings.ContainsAny(name, `/\}`) || strings.HasPrefix(name, ".") {
			t.Errorf("%q has the name %s, as %q", pair[0], name, other)
		}
		seen[name] = pair[0]
	}
}

func TestPathsOfClients(t *testing.T) {
	for _, c := range []struct {
		os, client string
		env        map[string]string
		want       []string
	}{
		{"linux", "claude", nil, []string{"/h/.claude.json", "/p/.mcp.json", "/h/.claude.json"}},
		{"linux", "claude", map[string]string{"CLAUDE_CONFIG_DIR": "/c"}, []string{"/c/.claude.json", "/p/.mcp.json", "/c/.claude.json"}},
		{"freebsd", "claude-desktop", map[string]string{"XDG_CONFIG_HOME": "/x"}, []string{"/x/Claude/claude_desktop_config.json"}},
		{"darwin", "claude-desktop", nil, []string{"/h/Library/Application Support/Claude/claude_desktop_config.json"}},
		{"windows", "claude-desktop", map[string]string{"APPDATA": "/r"}, []string{"/r/Claude/claude_desktop_config.json"}},
		{"windows", "windsurf", nil, []string{"/h/.codeium/windsurf/mcp_config.json"}},
		{"windows", "zed", nil, []string{"/p/.zed/settings.json", "/h/AppData/Roaming/Zed/settings.json"}},
		{"darwin", "codex", map[string]string{"CODEX_HOME": "/c"}, []string{"/p/.codex/config.toml", "/c/config.toml"}},
		{"linux", "gemini", nil, []string{"/p/.gemini/settings.json", "/h/.gemini/settings.json"}},
		{"linux", "cursor", nil, []string{"/p/.cursor/mcp.json", "/h/.cursor/mcp.json"}},
	} {
		place := Place{OS: c.os, Home: filepath.FromSlash("/h"), Project: filepath.FromSlash("/p"), Getenv: func(name string) string { return c.env[name] }}
		client, _ := Named(c.client)
		var got []string
		for _, f := range client.Files {
			got = append(got, filepath.ToSlash(place.Path(f)))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s on %s: %q", c.client, c.os, got)
		}
	}
}

// TestAFileThatCannotBeReadDoesNotStopTheOthers also where it is no file at all, or one that never ends.
func TestAFileThatCannotBeReadDoesNotStopTheOthers(t *testing.T) {
	home := t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, ".claude.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := safefile.Write(filepath.Join(home, ".cursor", "mcp.json"), []byte(`{"mcpServers": {"a": {"command": "a"}}}`)); err != nil {
		t.Fatal(err)
	}
	sources := Read(Place{OS: "linux", Home: home, Project: home, Getenv: func(string) string { return "" }}, All())
	if len(sources) != 2 || sources[0].Err == nil || len(sources[1].Entries) != 1 || sources[1].Entries[0].Scope != User {
		t.Errorf("%+v", sources)
	}
}
