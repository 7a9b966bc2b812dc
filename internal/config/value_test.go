package config

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zalando/go-keyring"

	"nightporter/internal/secret"
)

// environ is a made-up environment.
func environ(pairs ...string) LookupEnv {
	vars := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		vars[pairs[i]] = pairs[i+1]
	}
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

func TestValueIsReadShownAndResolved(t *testing.T) {
	keyring.MockInit()
	if err := keyring.Set("https://crm.example/api", "me", "from-keyring"); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("from-file\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := environ("X", "from-env", "EMPTY", "")
	for _, c := range []struct {
		text   string
		json   bool
		shown  string
		want   string
		failed string // part of the error of Resolve
	}{
		{text: "", shown: "", want: ""},
		{text: "plain-secret", shown: "***", want: "plain-secret"},
		{text: "${env:X}", shown: "${env:X}", want: "from-env"},
		{text: "Bearer ${env:X}", shown: "Bearer ${env:X}", want: "Bearer from-env"},
		{text: "user:${env:X}:tail", shown: "***${env:X}***", want: "user:from-env:tail"},
		{text: "${env:NO:-dflt}", shown: "${env:NO:-***}", want: "dflt"},
		{text: "${env:EMPTY:-dflt}", shown: "${env:EMPTY:-***}", want: ""},
		{text: "${env:NO}", shown: "${env:NO}", failed: "the variable NO is not set"},
		{text: "${file:token}", shown: "${file:token}", want: "from-file"},
		{text: "${file:none}", shown: "${file:none}", failed: "${file:none}: "},
		{text: "${file:.}", shown: "${file:.}", failed: "is not a regular file"},
		{text: "${keyring:https://crm.example/api/me}", shown: "${keyring:https://crm.example/api/me}", want: "from-keyring"},
		{text: "${keyring:crm/you}", shown: "${keyring:crm/you}", failed: `the keyring has no secret for user "you" of service "crm"`},
		{text: "${HOME} $X ${", shown: "***", want: "${HOME} $X ${"},
		{text: "$${env:X} ${env:X}", shown: "***${env:X}", want: "${env:X} from-env"},
		{text: "${X}", json: true, shown: "${X}", want: "from-env"},
		{text: "a${X}b${NO:-c:-d}", json: true, shown: "***${X}***${NO:-***}", want: "afrom-envbc:-d"},
		{text: "${NO}", json: true, shown: "${NO}", failed: "the variable NO is not set"},
		{text: "${NO:-}", json: true, shown: "${NO:-***}", want: ""},
		{text: "${env:X}", json: true, shown: "${env:X}", want: "from-env"},
		{text: "$${X}", json: true, shown: "***${X}", want: "$from-env"},
		{text: "open ${ only", json: true, shown: "***", want: "open ${ only"},
	} {
		t.Run(c.text, func(t *testing.T) {
			v, _, err := parseValue(c.text, c.json, dir)
			if err != nil {
				t.Fatal(err)
			}
			if got := v.String(); got != c.shown {
				t.Errorf("shown as %s, want %s", got, c.shown)
			}
			if back, _, err := parseValue(v.Text(), c.json, dir); err != nil || !strings.HasPrefix(c.text, "$${env") && !back.Equal(v) {
				t.Errorf("Text() is %q, which reads differently: %v", v.Text(), err)
			}
			got, err := v.Resolve(t.Context(), env)
			if c.failed != "" {
				if err == nil || !strings.Contains(err.Error(), c.failed) {
					t.Errorf("resolve: %v, want an error with %q", err, c.failed)
				}
				return
			}
			if err != nil || got.Reveal() != c.want {
				t.Errorf("resolved to %q, %v; want %q", got.Reveal(), err, c.want)
			}
		})
	}
}

func TestValueThatIsNoReferenceIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"${env:}":              "${env:…} names no variable; write ${env:NAME}",
		"${env:A=B}":           "${env:…} names no variable; write ${env:NAME}",
		"${file:}":             "${file:…} names no file; write ${file:PATH}",
		"${keyring:crm}":       "${keyring:…} takes a service and a user; write ${keyring:SERVICE/USER}",
		"${keyring:/me}":       "${keyring:…} takes a service and a user; write ${keyring:SERVICE/USER}",
		"${cmd: }":             "${cmd:…} names no program; write ${cmd:PROGRAM ARGUMENTS}",
		"${cmd:op read 'x y'}": "the command of ${cmd:…} has the character '\\'', and no shell runs it; put the command into a script and name that",
		"${cmd:a | b}":         "the command of ${cmd:…} has the character '|', and no shell runs it; put the command into a script and name that",
		"${cmd:~/bin/x}":       "the command of ${cmd:…} has a word that begins with ~, and no shell expands it; write the whole path",
		"x ${env:X":            "the reference ${env: is not closed; end it with }",
		"${kering:a/b}":        "${kering:…} is not a kind of reference; did you mean ${keyring:…}?",
		"${xyzzyplugh:a}":      "${xyzzyplugh:…} is not a kind of reference; there are ${env:…}, ${file:…}, ${keyring:…} and ${cmd:…}",
	} {
		if _, err := ParseValue(text); err == nil || err.Error() != want {
			t.Errorf("%s\ngot  %v\nwant %s", text, err, want)
		}
	}
	if _, _, err := parseValue("${}", true, ""); err == nil {
		t.Error("${} in JSON was accepted")
	}
}

func TestValueNeverPrintsALiteral(t *testing.T) {
	const value, dflt = "literal-secret-1", "default-secret-2"
	v, _, err := parseValue(value+"${env:X:-"+dflt+"}", false, "")
	if err != nil {
		t.Fatal(err)
	}
	holder := struct {
		V Value
		S []Server
	}{v, []Server{{Env: map[string]Value{"A": v}, OAuth: OAuth{ClientSecret: v}}}}
	encoded, err := json.Marshal(holder)
	if err != nil {
		t.Fatal(err)
	}
	texts := []string{string(encoded)}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		texts = append(texts, fmt.Sprintf(verb, v), fmt.Sprintf(verb, &v), fmt.Sprintf(verb, holder))
	}
	for _, text := range texts {
		for _, s := range []string{value, dflt, fmt.Sprintf("%x", value)} {
			if strings.Contains(text, s) {
				t.Errorf("%s shows in %s", s, text)
			}
		}
	}
}

// command is a reference that runs this test's own program.
func command(t *testing.T, does string, args ...string) Value {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("CONFIG_TEST_DOES", does)
	v, err := ParseValue("${cmd:" + strings.Join(append([]string{program}, args...), "  ") + "}")
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestCommandsOutputIsTheValue(t *testing.T) {
	got, err := command(t, "print", "two", "words").Resolve(t.Context(), environ())
	if err != nil || got.Reveal() != "two|words" {
		t.Errorf("got %q, %v", got.Reveal(), err)
	}
}

func TestCommandThatFailsSaysWhyWithoutItsOutput(t *testing.T) {
	_, err := command(t, "cry").Resolve(t.Context(), environ())
	if err == nil || !strings.Contains(err.Error(), "exit status 3: not signed in") {
		t.Errorf("error %v", err)
	}
	if err != nil && strings.Contains(err.Error(), "half-a-secret") {
		t.Errorf("the output is in the error: %v", err)
	}
	missing, parseErr := ParseValue("${cmd:no-such-program-of-nightporter}")
	if parseErr != nil {
		t.Fatal(parseErr)
	}
	if _, err := missing.Resolve(t.Context(), environ()); err == nil || !strings.Contains(err.Error(), "no-such-program-of-nightporter") {
		t.Errorf("a missing program: %v", err)
	}
}

func TestCommandThatFloodsIsRefused(t *testing.T) {
	if got, err := command(t, "flood").Resolve(t.Context(), environ()); err == nil || !strings.Contains(err.Error(), "longer than 64 KiB") {
		t.Errorf("got %d bytes, error %v", len(got.Reveal()), err)
	}
}

func TestCommandThatHangsEndsWithItsChildren(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a process group is ended on Unix only")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	v := command(t, "hang "+l.Addr().String())
	ctx, cancel := context.WithCancel(t.Context())
	resolved := make(chan error, 1)
	go func() {
		_, err := v.Resolve(ctx, environ())
		resolved <- err
	}()
	var conns []net.Conn
	for range 2 {
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close() // ends the process at the other end, should it still be there
		if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	cancel()
	if err := <-resolved; !errors.Is(err, context.Canceled) {
		t.Errorf("resolve ended with %v", err)
	}
	for _, conn := range conns {
		// It ends when the process at the other end does.
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a process of the command is still there: %v", err)
		}
	}
}

func TestFileThatIsTooLongIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(path, make([]byte, maxSecret+1), 0o600); err != nil {
		t.Fatal(err)
	}
	v, err := ParseValue("${file:" + path + "}")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Resolve(t.Context(), environ()); !errors.Is(err, errTooLong) {
		t.Errorf("error %v", err)
	}
}

func TestKeyringThatCannotBeReadSaysWhatElseThereIs(t *testing.T) {
	keyring.MockInitWithError(errors.New("no bus"))
	defer keyring.MockInit()
	v, err := ParseValue("${keyring:a/b}")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Resolve(t.Context(), environ()); err == nil || !strings.Contains(err.Error(), "no bus; without a keyring use ${file:…} or ${env:…}") {
		t.Errorf("error %v", err)
	}
}

func TestServerResolvesIntoWhatItIsStartedWith(t *testing.T) {
	c, err := Parse("c.toml", []byte(`
[mcp_servers.a]
command = "prog"
args = ["--home", "${env:H}"]
env = { KEY = "${env:K}", BOTH = "own" }
env_vars = ["BOTH", "COPIED", "UNSET"]
cwd = "/srv"
[mcp_servers.b]
url = "https://b.example/mcp?key=${env:K}"
http_headers = { x-plain = "v" }
env_http_headers = { X-Env = "COPIED", X-Unset = "UNSET", X-Blank = "BLANK" }
bearer_token_env_var = "K"
[mcp_servers.c]
url = "https://c.example"
bearer_token_env_var = "BLANK"
[mcp_servers.d]
command = "prog"
env = { KEY = "${env:UNSET}" }
[mcp_servers.e]
url = "https://e.example"
http_headers = { X = "${env:LINES}" }
[mcp_servers.f]
url = "${env:COPIED}"
[mcp_servers.g]
`))
	if err != nil {
		t.Fatal(err)
	}
	env := environ("H", "/home/x", "K", "key-123456", "BOTH", "outer", "COPIED", "copied", "BLANK", " ", "LINES", "a\r\nInjected: b")
	resolve := func(name string) (*Resolved, error) {
		s, _ := c.Server(name)
		return s.Resolve(t.Context(), env)
	}
	a, err := resolve("a")
	if err != nil {
		t.Fatal(err)
	}
	reveal := func(r *Resolved) string {
		text := fmt.Sprintf("%s %q %s %s", r.Command, r.Args, r.Cwd, r.URL.Reveal())
		for _, k := range sortedKeys(r.Env) {
			text += fmt.Sprintf(" %s=%s", k, r.Env[k].Reveal())
		}
		for _, k := range sortedKeys(r.Headers) {
			text += fmt.Sprintf(" %s: %s", k, r.Headers[k].Reveal())
		}
		return text
	}
	if got, want := reveal(a), `prog ["--home" "/home/x"] /srv  BOTH=own COPIED=copied KEY=key-123456`; got != want {
		t.Errorf("a is\n%s\nwant\n%s", got, want)
	}
	b, err := resolve("b")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := reveal(b), ` []  https://b.example/mcp?key=key-123456 Authorization: Bearer key-123456 X-Env: copied X-Plain: v`; got != want {
		t.Errorf("b is\n%s\nwant\n%s", got, want)
	}
	if all := fmt.Sprintf("%+v %#v", b, *b); strings.Contains(all, "key-123456") {
		t.Errorf("the key shows in %s", all)
	}
	var secrets []string
	for _, s := range b.Secrets() {
		secrets = append(secrets, s.Reveal())
	}
	for _, want := range []string{"key-123456", "Bearer key-123456", "copied", "v"} {
		if !slices.Contains(secrets, want) {
			t.Errorf("%q is not among the secrets %q", want, secrets)
		}
	}
	if slices.ContainsFunc(a.Secrets(), func(s secret.String) bool { return s.Reveal() == "/home/x" }) {
		t.Error("an argument is among the secrets")
	}
	for name, want := range map[string]string{
		"c": "server c: bearer_token_env_var: the variable BLANK is not set in Nightporter's environment, or empty",
		"d": "server d: env.KEY: ${env:UNSET}: the variable UNSET is not set in Nightporter's environment",
		"e": "server e: http_headers.X: the value has a line break or control character, which no header holds",
		"f": "server f: url: it does not begin with http:// or https://",
		"g": "server g: c.toml:24:14: mcp_servers.g: it has neither command nor url; give command for a stdio server, or url for an HTTP server",
	} {
		if _, err := resolve(name); err == nil || err.Error() != want {
			t.Errorf("%s: got  %v\nwant %s", name, err, want)
		}
	}
}
