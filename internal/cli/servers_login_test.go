package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"nightporter/test/authlab"
	"nightporter/test/lab"
)

// person sees what a command says, and does what it asks for.
type person struct {
	mu   sync.Mutex
	said bytes.Buffer
	does func(line string)
}

func (p *person) Write(text []byte) (int, error) {
	p.mu.Lock()
	p.said.Write(text)
	p.mu.Unlock()
	p.does(string(text))
	return len(text), nil
}

// protectedHome is a home whose one server, "far", wants a login.
func protectedHome(t *testing.T, c authlab.Config) (auth *authlab.Server, env []string, url string) {
	t.Helper()
	auth = authlab.Start(t, c)
	url = auth.Protect(t, lab.Serve(t, lab.Config{Name: "far", Tools: lab.Tools("echo", "pid")}), authlab.Gate{})
	home := t.TempDir()
	text := fmt.Sprintf("[mcp_servers.far]\nurl = %q\n", url)
	if err := os.WriteFile(filepath.Join(home, "config.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return auth, []string{"NIGHTPORTER_HOME=" + home, "HOME=" + home, "PATH=" + os.Getenv("PATH")}, url
}

// command runs one and returns what it printed; anything it says must be without tokens.
func command(t *testing.T, auth *authlab.Server, env []string, stdin io.Reader, does func(string), args ...string) (code int, stdout, said string) {
	t.Helper()
	var out bytes.Buffer
	p := &person{does: does}
	if does == nil {
		p.does = func(string) {}
	}
	code = Main(args, env, stdin, &out, p)
	for _, token := range append(auth.Live(), "refresh-") {
		if strings.Contains(out.String()+p.said.String(), token) {
			t.Errorf("%v shows a token:\n%s%s", args, out.String(), p.said.String())
		}
	}
	return code, out.String(), p.said.String()
}

var address = regexp.MustCompile(`http\S+/authorize\S+`)

func TestLoginByPastingIsShownWithoutSecretsAndEndsWithLogout(t *testing.T) {
	auth, env, url := protectedHome(t, authlab.Config{})
	code, _, said := command(t, auth, env, nil, nil, "tools", "call", "far", "echo")
	if code != 1 || !strings.Contains(said, "nightporter servers login far") {
		t.Errorf("a call without a login: exit %d, %s", code, said)
	}
	if _, table, _ := command(t, auth, env, nil, nil, "servers", "list"); !strings.Contains(table, "needs login") {
		t.Errorf("servers list:\n%s", table)
	}
	if _, table, _ := command(t, auth, env, nil, nil, "status"); !strings.Contains(table, "needs login") {
		t.Errorf("status:\n%s", table)
	}
	_, list, _ := command(t, auth, env, nil, nil, "servers", "list", "--json")
	var before []definition
	if err := json.Unmarshal([]byte(list), &before); err != nil || before[0].State != "failed" || before[0].Code != "needs_login" ||
		before[0].Login == nil || before[0].Login.Command != "nightporter servers login far" {
		t.Errorf("servers list --json: %v\n%s", err, list)
	}

	stdin, paste := io.Pipe()
	code, result, said := command(t, auth, env, stdin, func(line string) {
		if page := address.FindString(line); page != "" {
			go func() { // as a person has it: pasted while the command waits
				back, err := authlab.Browse(page, false)
				if err != nil {
					t.Error(err)
				}
				_, _ = fmt.Fprintln(paste, back)
			}()
		}
	}, "servers", "login", "far", "--paste", "--json")
	var account loginStatus
	if err := json.Unmarshal([]byte(result), &account); code != 0 || err != nil || !account.LoggedIn || account.Subject != "night@example.com" ||
		account.Issuer != auth.Issuer || account.Resource != url || account.Tools == nil || *account.Tools != 2 {
		t.Fatalf("login: exit %d, %s\n%s", code, result, said)
	}
	if _, got, _ := command(t, auth, env, nil, nil, "servers", "get", "far"); !strings.Contains(got, "night@example.com") || !strings.Contains(got, auth.Issuer) ||
		!strings.Contains(got, "renewed before that") || strings.Contains(got, "needs login") {
		t.Errorf("servers get:\n%s", got)
	}
	if code, _, said := command(t, auth, env, nil, nil, "tools", "call", "far", "echo", `{"text":"hi"}`); code != 0 {
		t.Errorf("a call with a login: exit %d, %s", code, said)
	}
	if code, out, said := command(t, auth, env, nil, nil, "servers", "logout", "far", "--json"); code != 0 || !strings.Contains(out, `"revoked":true`) {
		t.Errorf("logout: exit %d, %s%s", code, out, said)
	}
	if live := auth.Live(); len(live) > 0 {
		t.Errorf("%d tokens are still good", len(live))
	}
	if code, _, said := command(t, auth, env, nil, nil, "servers", "logout", "far"); code != 0 || !strings.Contains(said, "there is no login") {
		t.Errorf("a second logout: exit %d, %s", code, said)
	}
}

func TestLoginByDevice(t *testing.T) {
	auth, env, _ := protectedHome(t, authlab.Config{})
	code, _, said := command(t, auth, env, nil, func(line string) {
		if code := regexp.MustCompile(`enter the code (\S+)`).FindStringSubmatch(line); code != nil && !auth.Approve(code[1]) {
			t.Errorf("the code %s is not one", code[1])
		}
	}, "servers", "login", "far") // nothing here has a browser
	if code != 0 || !strings.Contains(said, "2 tools") {
		t.Errorf("exit %d, %s", code, said)
	}
}

func TestALoginThatCannotBeSaysWhy(t *testing.T) {
	for _, test := range []struct {
		name  string
		c     authlab.Config
		stdin string
		args  []string
		words string
	}{
		{"nothing is pasted", authlab.Config{}, "", []string{"--paste"}, "nothing was pasted"},
		{"something else is pasted", authlab.Config{}, "hello\n", []string{"--paste"}, "not the address that the browser ends at"},
		{"no device flow", authlab.Config{NoDevice: true}, "", []string{"--device"}, "use --paste"},
		{"nobody is there", authlab.Config{NoDevice: true}, "", nil, "no browser here"},
	} {
		t.Run(test.name, func(t *testing.T) {
			auth, env, _ := protectedHome(t, test.c)
			args := append([]string{"servers", "login", "far"}, test.args...)
			if code, _, said := command(t, auth, env, strings.NewReader(test.stdin), nil, args...); code != 1 || !strings.Contains(said, test.words) {
				t.Errorf("exit %d, %s", code, said)
			}
		})
	}
}

func TestLoginsAreForServersBehindAURL(t *testing.T) {
	home := t.TempDir()
	text := "[mcp_servers.here]\ncommand = \"true\"\n[mcp_servers.key]\nurl = \"https://192.0.2.1/mcp\"\nbearer_token_env_var = \"KEY\"\n"
	if err := os.WriteFile(filepath.Join(home, "config.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, words := range map[string]string{"here": "is a program", "key": "a token of its own", "none": "there is no server"} {
		var out, said bytes.Buffer
		if code := Main([]string{"servers", "login", name}, []string{"NIGHTPORTER_HOME=" + home, "KEY=made up"}, strings.NewReader(""), &out, &said); code != 2 || !strings.Contains(said.String(), words) {
			t.Errorf("%s: exit %d, %s", name, code, said.String())
		}
	}
}
