package clients

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"nightporter/internal/config"
	"nightporter/internal/secret"
)

const gatewayURL = "http://127.0.0.1:8722/mcp"

var endpoints = []struct {
	name  string
	e     Endpoint
	token string
}{
	{"program", Endpoint{Command: "/usr/local/bin/nightporter", Args: []string{"mcp", "--grant", "desk"}, Env: [][2]string{{"NIGHTPORTER_HOME", "/srv/np"}}, EnvVars: []string{"GITHUB_TOKEN"}}, ""},
	{"variable", Endpoint{URL: gatewayURL, Variable: "NIGHTPORTER_TOKEN_X"}, "connect-x"},
	{"file", Endpoint{URL: gatewayURL, Token: secret.New("np_TOKEN")}, "connect-x"},
}

func deskAt(home string) Desk {
	return Desk{
		Place: Place{OS: "linux", Home: home, Project: filepath.Join(home, "project"), Getenv: func(string) string { return "" }},
		Dir:   filepath.Join(home, "state"),
		Ours:  func(s config.NewServer) bool { return IsNightporter(s, gatewayURL) },
	}
}

func put(t *testing.T, path string, data []byte, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func mustRead(t *testing.T, path string) ([]byte, fs.FileMode) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return data, info.Mode().Perm()
}

// TestConnect connects each client of testdata/connect: the file is before, and becomes what is called by the endpoint. Then it is
// disconnected, and is again what it was.
func TestConnect(t *testing.T) {
	for _, client := range All() {
		file := filepath.Join("testdata/connect", client.ID+".txtar")
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		find := func(name string) int {
			return slices.IndexFunc(archive.Files, func(f txtar.File) bool { return f.Name == name })
		}
		for _, end := range endpoints {
			if end.e.URL != "" && !client.TakesURL() || end.e.Variable != "" && !client.ReadsVariables() {
				continue
			}
			t.Run(client.ID+"/"+end.name, func(t *testing.T) {
				desk := deskAt(t.TempDir())
				path, err := desk.File(client)
				if err != nil {
					t.Fatal(err)
				}
				before := archive.Files[find("before")].Data
				put(t, path, before, 0o644)
				ch, err := desk.Connect(client, "porter", end.e, end.token)
				if err != nil {
					t.Fatal(err)
				}
				if now, _ := mustRead(t, path); !bytes.Equal(now, before) {
					t.Fatal("the file was written before it was to be")
				}
				if err := desk.Make(t.Context(), ch); err != nil {
					t.Fatal(err)
				}
				got, mode := mustRead(t, path)
				if *update {
					i := find(end.name)
					if i < 0 {
						archive.Files, i = append(archive.Files, txtar.File{Name: end.name}), len(archive.Files)
					}
					archive.Files[i].Data = got
					if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				if diff := cmp.Diff(string(archive.Files[find(end.name)].Data), string(got)); diff != "" {
					t.Errorf("-want +got\n%s", diff)
				}
				want := fs.FileMode(0o644)
				if end.name == "file" {
					want = 0o600 // there is a token in it
				}
				if runtime.GOOS != "windows" && mode != want {
					t.Errorf("the file has the mode %o", mode)
				}
				// It is Nightporter to an import.
				for _, s := range MakePlan(filepath.Join(desk.Dir, "config.toml"), &config.Config{}, Read(desk.Place, []*Client{client}), AsIs, desk.Ours).Items {
					if s.Server.Name == "porter" && s.Left != Ours {
						t.Errorf("an import has it as %+v", s)
					}
				}

				ch, err = desk.Disconnect(client, "porter")
				if err != nil || ch == nil || !ch.Restored || ch.Token != end.token {
					t.Fatalf("%+v, %v", ch, err)
				}
				if err := desk.Make(t.Context(), ch); err != nil {
					t.Fatal(err)
				}
				after, mode := mustRead(t, path)
				if !bytes.Equal(after, before) || runtime.GOOS != "windows" && mode != 0o644 {
					t.Errorf("afterwards it is, with mode %o,\n%s", mode, after)
				}
				if ch, err := desk.Disconnect(client, "porter"); ch != nil || err != nil {
					t.Errorf("it can be disconnected again: %+v, %v", ch, err)
				}
				left, err := filepath.Glob(filepath.Join(desk.Dir, "*"))
				if err != nil || len(left) != 1 || filepath.Ext(left[0]) != ".lock" {
					t.Errorf("there is left: %q, %v", left, err)
				}
			})
		}
	}
}

func TestDisconnectOfAChangedFileTakesTheEntryAlone(t *testing.T) {
	desk := deskAt(t.TempDir())
	for _, c := range []struct{ client, before, change, want string }{
		{"cursor", "{\n  \"mcpServers\": {\n    \"a\": {\"command\": \"a\"}\n  }\n}\n", "\"command\": \"a\"", "{\n  \"mcpServers\": {\n    \"a\": {\"command\": \"b\"}\n  }\n}\n"},
		{"codex", "model = \"x\" # mine\n", "model = \"x\"", "model = \"b\" # mine\n"},
	} {
		client, _ := Named(c.client)
		path, _ := desk.File(client)
		put(t, path, []byte(c.before), 0o600)
		ch, err := desk.Connect(client, "porter", endpoints[1].e, "t")
		if err != nil {
			t.Fatal(err)
		}
		if err := desk.Make(t.Context(), ch); err != nil {
			t.Fatal(err)
		}
		now, _ := mustRead(t, path)
		put(t, path, bytes.Replace(now, []byte(c.change), []byte(strings.NewReplacer(`"a"`, `"b"`, `"x"`, `"b"`).Replace(c.change)), 1), 0o600)
		// Its gateway may listen elsewhere by now.
		elsewhere := desk
		elsewhere.Ours = func(config.NewServer) bool { return false }
		if ch, err = elsewhere.Disconnect(client, "porter"); err != nil || ch == nil || ch.Restored || ch.Token != "t" {
			t.Fatalf("%+v, %v", ch, err)
		}
		if err := desk.Make(t.Context(), ch); err != nil {
			t.Fatal(err)
		}
		if got, _ := mustRead(t, path); string(got) != c.want {
			t.Errorf("%s:\n%s", c.client, got)
		}
	}
}

func TestAFileThatWasNotThereGoesAgain(t *testing.T) {
	desk := deskAt(t.TempDir())
	client, _ := Named("vscode")
	path, _ := desk.File(client)
	for range 2 { // connecting again changes nothing about that
		ch, err := desk.Connect(client, "porter", endpoints[0].e, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := desk.Make(t.Context(), ch); err != nil {
			t.Fatal(err)
		}
	}
	ch, err := desk.Disconnect(client, "porter")
	if err != nil || !ch.Restored {
		t.Fatalf("%+v, %v", ch, err)
	}
	if err := desk.Make(t.Context(), ch); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestConnectingAgainReplacesTheEntry(t *testing.T) {
	for _, id := range []string{"zed", "codex"} {
		desk := deskAt(t.TempDir())
		client, _ := Named(id)
		path, _ := desk.File(client)
		before := map[string]string{"zed": "// mine\n{\"context_servers\": {}, }", "codex": "a = 1"}[id]
		put(t, path, []byte(before), 0o644)
		for i, name := range []string{"porter", "porter", "other"} {
			ch, err := desk.Connect(client, name, endpoints[2*(i%2)].e, "")
			if err != nil {
				t.Fatal(err)
			}
			if err := desk.Make(t.Context(), ch); err != nil {
				t.Fatal(err)
			}
		}
		if now, _ := mustRead(t, path); strings.Count(string(now), "porter") != 1 { // in the program's path
			t.Errorf("%s", now)
		}
		ch, err := desk.Disconnect(client, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := desk.Make(t.Context(), ch); err != nil {
			t.Fatal(err)
		}
		if now, _ := mustRead(t, path); string(now) != before {
			t.Errorf("%s", now)
		}
	}
}

func TestOthersServersAreLeftAlone(t *testing.T) {
	desk := deskAt(t.TempDir())
	client, _ := Named("claude")
	path, _ := desk.File(client)
	text := `{"mcpServers": {"porter": {"command": "theirs"}, "nightporter": {"command": "/x/nightporter", "args": ["mcp"]}}}`
	put(t, path, []byte(text), 0o600)
	if _, err := desk.Connect(client, "porter", endpoints[0].e, ""); !errors.Is(err, ErrTaken) {
		t.Error(err)
	}
	if ch, err := desk.Disconnect(client, "porter"); ch != nil || err != nil {
		t.Errorf("%+v, %v", ch, err)
	}
	ch, err := desk.Connect(client, "np", endpoints[0].e, "")
	if err != nil || !slices.Equal(ch.Others, []string{"nightporter"}) {
		t.Errorf("%+v, %v", ch, err)
	}
	// What somebody writes meanwhile is not written over.
	put(t, path, []byte("{}"), 0o600)
	if err := desk.Make(t.Context(), ch); err == nil || !strings.Contains(err.Error(), "changed meanwhile") {
		t.Error(err)
	}
	if now, _ := mustRead(t, path); string(now) != "{}" {
		t.Errorf("%s", now)
	}
	// One that was added by hand can be taken out by its name.
	put(t, path, []byte(text), 0o600)
	if ch, err = desk.Disconnect(client, "nightporter"); err != nil || ch == nil || string(ch.After) != `{"mcpServers": {"porter": {"command": "theirs"}}}` {
		t.Errorf("%+v, %v", ch, err)
	}
}

func TestWhatCannotBeEditedIsNotTouched(t *testing.T) {
	for id, text := range map[string]string{
		"cursor": `{"mcpServers": {"a": `, "gemini": `{"mcpServers": 3}`, "zed": `[]`, "codex": "mcp_servers = { a = { command = \"a\" } }\n", "claude": `{"mcpServers": {"porter": {}, "porter": {"command": "nightporter", "args": ["mcp"]}}}`,
	} {
		desk := deskAt(t.TempDir())
		client, _ := Named(id)
		path, _ := desk.File(client)
		put(t, path, []byte(text), 0o644)
		if ch, err := desk.Connect(client, "porter", endpoints[0].e, ""); err == nil {
			t.Errorf("%s becomes\n%s", text, ch.After)
		}
		if now, mode := mustRead(t, path); string(now) != text || runtime.GOOS != "windows" && mode != 0o644 {
			t.Errorf("%s", now)
		}
	}
}

func TestALinkedFileStaysALink(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("links need a right there")
	}
	desk := deskAt(t.TempDir())
	client, _ := Named("windsurf")
	path, _ := desk.File(client)
	real := filepath.Join(t.TempDir(), "dotfiles.json")
	put(t, real, []byte("{}\n"), 0o644)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, path); err != nil {
		t.Fatal(err)
	}
	for _, do := range []func() (*Change, error){
		func() (*Change, error) { return desk.Connect(client, "porter", endpoints[0].e, "") },
		func() (*Change, error) { return desk.Disconnect(client, "porter") },
	} {
		ch, err := do()
		if err != nil {
			t.Fatal(err)
		}
		if err := desk.Make(t.Context(), ch); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Lstat(path); err != nil || info.Mode()&fs.ModeSymlink == 0 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
	}
	if now, _ := mustRead(t, real); string(now) != "{}\n" {
		t.Errorf("%s", now)
	}
}
