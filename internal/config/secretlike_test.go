package config

import (
	"slices"
	"testing"
)

func TestWhatLooksLikeASecret(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       bool
	}{
		{"API_KEY", "abc", true},
		{"apiKey", "abc", true},
		{"GITHUB_TOKEN", "abc", true},
		{"DB_PASSWORD", "x", true},
		{"X-Auth", "abc", true},
		{"key", "abc", true},
		{"", "sk-abc", true},
		{"", "ghp_abc", true},
		{"", "eyJhbGciOi.abc", true},
		{"", "Bearer abc", true},
		{"", "postgres://u:p@h/d", true},
		{"", "https://h/p", false},
		{"KEYBOARD", "de", false},
		{"MONKEY", "abc", false},
		{"AUTHOR", "me", false},
		{"API_KEY", "", false},
		{"MAX_TOKENS", "4096", false},
		{"USE_TOKEN", "true", false},
		{"TOKEN_FILE", "/run/token", false},
		{"TOKEN_FILE", "~/token", false},
		{"TOKEN_FILE", `C:\token`, false},
		{"LOG", "debug", false},
		{"PATH", "/bin", false},
	} {
		if got := LooksSecret(c.name, c.text); got != c.want {
			t.Errorf("LooksSecret(%q, %q) = %v", c.name, c.text, got)
		}
	}
}

func TestListedArgsMaskWhatLooksLikeASecret(t *testing.T) {
	var args []Value
	for _, text := range []string{
		"-y", "pkg@1", "--token", "abc", "--token", "${env:T}", "--token", "--other", "--key=abc", "--key=${env:K:-abc}", "KEY=abc", "--level=3", "X-Token: abc", "a: b", "", "sk-abc",
	} {
		v, err := ParseValue(text)
		if err != nil {
			t.Fatal(err)
		}
		args = append(args, v)
	}
	want := []string{
		"-y", "pkg@1", "--token", "***", "--token", "${env:T}", "--token", "--other", "--key=***", "--key=${env:K:-***}", "KEY=***", "--level=3", "X-Token: ***", "a: b", "", "***",
	}
	if got := ListedArgs(args); !slices.Equal(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}

func TestListedURLShowsNoKeys(t *testing.T) {
	for text, want := range map[string]string{
		"https://h/p": "https://h/p", "https://h": "https://h", "https://h/p?a=b#c": "https://h/p?***", "https://h#c": "https://h#***",
		"https://u:p@h:1/a@b": "https://***@h:1/a@b", "https://a@b@h": "https://***@h", "https://${env:H}/p": "https://${env:H}/p", "${env:U:-https://u:p@h}": "${env:U:-***}", "h/p": "h/p", "": "",
	} {
		v, err := ParseValue(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := ListedURL(v); got != want {
			t.Errorf("%q is listed as %q, want %q", text, got, want)
		}
	}
}
