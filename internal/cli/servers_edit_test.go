package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"nightporter/internal/run"
)

// at runs a command with a configuration of its own.
func at(t *testing.T, home string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Main(args, []string{"NIGHTPORTER_HOME=" + home}, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// Every field of a server that a secret may stand in, and what is still shown of it. The command is none: why a
// program was not found cannot be told without its name.
func TestListingsShowNoSecretOfAnyField(t *testing.T) {
	const secret = "made-up-secret-93"
	for _, c := range []struct{ entry, shown string }{
		{"command = 'x'\nenv = { KEY = 'SECRET' }", "KEY"},
		{"command = 'x'\nenv = { KEY = 'a ${env:HOME} SECRET' }", "${env:HOME}"},
		{"command = 'x'\nenv = { KEY = '${env:K:-SECRET}' }", "${env:K:-***}"},
		{"command = 'x'\nargs = ['--token', 'SECRET', '--api-key=SECRET', '-H', 'Authorization: Bearer SECRET', 'postgres://me:SECRET@host/db', 'sk-SECRET']", "--api-key=***"},
		{"command = 'x'\nargs = ['${env:K:-SECRET}']", "${env:K:-***}"},
		{"command = 'x'\ncwd = '${env:K:-SECRET}'", ""},
		{"command = 'x'\nargs = [1]\nenv = { KEY = 'SECRET' }", "it is a number"}, // a server that is not used
		{"command = 'x'\nenv = { KEY = 'SECRET${env:' }", "is not closed"},
		{"command = 'x'\nenv_vars = ['KEY=SECRET']", "not the name of a variable"},
		{"url = 'https://me:SECRET@host/p'", "https://***@host/p"},
		{"url = 'https://host/p?key=SECRET'", "https://host/p?***"},
		{"url = 'https://host/p#SECRET'", "https://host/p#***"},
		{"url = 'https://${env:HOST:-SECRET}/p'", ""},
		{"url = 'https://host:SECRET/p'", "not an address"},
		{"url = 'SECRET'", "http://"},
		{"url = 'https://h'\nhttp_headers = { X-Key = 'SECRET' }", "X-Key"},
		{"url = 'https://h'\nhttp_headers = { Authorization = 'Bearer SECRET' }", "Authorization"},
		{"url = 'https://h'\nhttp_headers = { X-Key = \"SECRET\\n\" }", "line break"},
		{"url = 'https://h'\nenv_http_headers = { X-Key = 'A=SECRET' }", "names no variable"},
		{"url = 'https://h'\nhttp_headers_helper = 'print SECRET'", ""},
		{"url = 'https://h'\nbearer_token = 'SECRET'", "bearer_token_env_var"},
		{"url = 'https://h'\nbearer_token_env_var = 'A=SECRET'", "not the name of a variable"},
		{"url = 'https://h'\nauth = 'SECRET'", "takes oauth"},
		{"url = 'https://h'\noauth = { client_id = 'x', client_secret = 'SECRET' }", ""},
		{"url = 'https://h'\noauth = { client_secret = 'SECRET' }", "client_id"},
	} {
		home := t.TempDir()
		text := "[mcp_servers.crm]\n" + strings.ReplaceAll(c.entry, "SECRET", secret) + "\n"
		if err := os.WriteFile(filepath.Join(home, "config.toml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{
			{"servers", "list"},
			{"servers", "list", "--json"},
			{"servers", "get", "crm"},
			{"servers", "get", "crm", "--json"},
			{"config", "check"},
			{"config", "check", "--json"},
			{"status"},
			{"status", "--json"},
		} {
			_, stdout, stderr := at(t, home, args...)
			if strings.Contains(stdout+stderr, secret) {
				t.Errorf("%s\n%v shows the secret:\n%s%s", c.entry, args, stdout, stderr)
			}
			if args[0] == "servers" && args[1] == "get" && (!strings.Contains(stdout, "crm") || !strings.Contains(strings.ReplaceAll(stdout, `\"`, `"`), c.shown)) {
				t.Errorf("%s\n%v shows no %s:\n%s%s", c.entry, args, c.shown, stdout, stderr)
			}
		}
	}
}

func TestAddWarnsOfSecretsThatStandInTheFileAndPrintsNone(t *testing.T) {
	const secret = "made-up-secret-93"
	for _, c := range []struct {
		args []string
		warn string // empty: nothing
	}{
		{[]string{"--env", "API_KEY=" + secret, "--", "x"}, "--env 'API_KEY=${env:API_KEY}'"},
		{[]string{"--env", "X=sk-" + secret, "--", "x"}, "--env 'X=${env:X}'"},
		{[]string{"--env", "API_KEY=${env:A}", "--", "x"}, ""},
		{[]string{"--env", "LEVEL=debug", "--env", "TOKEN_FILE=/etc/token", "--", "x", "--verbose"}, ""},
		{[]string{"--", "x", "--token", secret}, "argument 2"},
		{[]string{"--", "x", "--token=" + secret}, "argument 1"},
		{[]string{"--", "x", "--token=${env:T}"}, ""},
		{[]string{"--url", "https://h/p?api_key=" + secret}, "part of the url"},
		{[]string{"--url", "https://me:" + secret + "@h/p"}, "part of the url"},
		{[]string{"--url", "https://h/p?page=1"}, ""},
		{[]string{"--url", "https://h/p", "--header", "X-Api-Key=" + secret}, "--header 'X-Api-Key=${env:X_API_KEY}'"},
		{[]string{"--url", "https://h/p", "--header", "Authorization=Bearer " + secret}, "--header 'Authorization=Bearer ${env:AUTHORIZATION}'"},
	} {
		code, stdout, stderr := at(t, t.TempDir(), append([]string{"servers", "add", "crm"}, c.args...)...)
		if code != run.ExitOK || stdout != "" || strings.Contains(stderr, secret) {
			t.Errorf("%q: exit %d, %q, %q", c.args, code, stdout, stderr)
		}
		if warned := strings.Contains(stderr, "warning"); warned != (c.warn != "") || !strings.Contains(stderr, c.warn) {
			t.Errorf("%q says %q", c.args, stderr)
		}
	}
}
