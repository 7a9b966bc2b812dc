package oauth

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// FuzzChallenge reads WWW-Authenticate, which servers write.
func FuzzChallenge(f *testing.F) {
	for _, seed := range []string{
		`Bearer`, `Bearer resource_metadata="https://x/y", scope="a b", error="insufficient_scope"`, `Basic realm="x", Bearer scope=a`,
		`Bearer scope="`, `Bearer "`, `=`, `Bearer a=b, ,`, "Bearer error=\"\x00\"",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, header string) {
		c, description := challengeOf(http.Header{"Www-Authenticate": {header}})
		for _, scope := range c.Scopes {
			if scope == "" || strings.ContainsAny(scope, " \t\r\n") {
				t.Errorf("scope %q of %q", scope, header)
			}
		}
		if text := words(description); strings.ContainsAny(text, "\r\n\x00\x1b") {
			t.Errorf("%q is fit for no error", text)
		}
	})
}

// FuzzCovers has a token bound to a resource never go to another origin.
func FuzzCovers(f *testing.F) {
	for _, seed := range []string{
		"https://h/mcp", "https://h", "https://h/", "https://h/mcp/", "https://h/mc", "https://h:443/mcp", "https://u@h/mcp", "https://h/mcp?x", "https://h/mcp#f",
		"http://h/mcp", "//h/mcp", "https://h.evil/mcp", "https://h%2eevil/mcp", `https://h\@evil/mcp`, "",
	} {
		f.Add(seed)
	}
	own, _ := url.Parse("https://h/mcp")
	f.Fuzz(func(t *testing.T, resource string) {
		if !covers(resource, own) {
			return
		}
		u, err := url.Parse(resource)
		if err != nil || u.Scheme != "https" || u.Host != "h" || u.User != nil || u.RawQuery != "" ||
			u.Path != "" && u.Path != "/" && u.Path != "/mcp" && u.Path != "/mcp/" {
			t.Errorf("%q covers %s", resource, own)
		}
	})
}

func TestAddressesOfThisMachineAreRefusedHoweverTheyAreWritten(t *testing.T) {
	away := &Server{URL: "https://mcp.example.com/mcp"}
	for _, host := range []string{
		"localhost", "LocalHost", "localhost.", "a.localhost", "127.0.0.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]", "[::1%25lo]", "0.0.0.0", "[::]", "[::ffff:0.0.0.0]",
	} {
		if err := away.reachable("it", "https://"+host+":8443/token"); err == nil {
			t.Errorf("%s may be reached", host)
		}
	}
	for _, host := range []string{"auth.example.com", "localhost.example.com", "mylocalhost", "192.0.2.1"} {
		if err := away.reachable("it", "https://"+host+"/token"); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
}
