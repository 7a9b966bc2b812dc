package config

import (
	"net/url"
	"regexp"
	"strings"

	"nightporter/internal/secret"
)

var (
	// secretName is what the names of variables, headers, flags and parameters that hold secrets look like.
	secretName = regexp.MustCompile(`(?i)(secret|token|passw|passphrase|credential|authori[sz]ation|api[-_.]?key|access[-_.]?key|private[-_.]?key|[-_]key$|^key$|[-_]pat$|^pat$|cookie|^auth$|[-_]auth$|bearer)`)
	// secretText is what keys of well-known services, and headers that carry keys, begin with.
	secretText = regexp.MustCompile(`(?i)^(sk-|pk_live|sk_live|rk_live|gh[oprsu]_|github_pat_|glpat-|xox[abeprs]-|xapp-|AKIA|AIza|eyJ[a-z0-9_-]+\.|npm_|pypi-|hf_|ntn_|lin_api_|shpat_|-----BEGIN|bearer |basic |token )`)
	// plainValue is what values of such names may be without being a secret: numbers, switches, paths.
	plainValue = regexp.MustCompile(`(?i)^(|\d{1,6}|true|false|yes|no|on|off|none|null|[~.]?/.*|[a-z]:\\.*)$`)
)

// LooksSecret reports whether a text that stands somewhere as it is may be a secret, by the name that it stands under
// (of a variable, header or flag; may be empty) and by itself. It is a guess: for warnings and masks, not for decisions.
func LooksSecret(name, text string) bool {
	if secretText.MatchString(text) {
		return true
	}
	if u, err := url.Parse(text); err == nil && u.Host != "" && u.User != nil {
		if _, has := u.User.Password(); has {
			return true
		}
	}
	return secretName.MatchString(name) && !plainValue.MatchString(text)
}

// Listed returns the value for a listing of a field that is no secret by itself, such as an argument: the text as
// written, with defaults of references masked.
func (v Value) Listed() string {
	var b strings.Builder
	for _, p := range v.parts {
		if p.hasFallback {
			p.fallback = secret.Mask
		}
		b.WriteString(p.written())
	}
	return b.String()
}

// ListedArgs returns a command line's arguments for a listing: what looks like a secret is masked (--token=x,
// --token x, "Authorization: x"), references are as they are written.
func ListedArgs(args []Value) []string {
	listed := make([]string, len(args))
	flag := "" // the one before, when its value may come next
	for i, arg := range args {
		text := arg.Listed()
		listed[i] = text
		if arg.IsLiteral() {
			listed[i] = listedArg(flag, text)
		}
		flag = ""
		if strings.HasPrefix(text, "-") && !strings.Contains(text, "=") {
			flag = strings.TrimLeft(text, "-")
		}
	}
	return listed
}

func listedArg(flag, text string) string {
	if LooksSecret("", text) || LooksSecret(flag, text) && !strings.HasPrefix(text, "-") {
		return secret.Mask
	}
	if name, value, ok := strings.Cut(text, "="); ok && LooksSecret(strings.TrimLeft(name, "-"), value) {
		return name + "=" + secret.Mask
	}
	if name, value, ok := strings.Cut(text, ":"); ok && validHeaderName(name) && LooksSecret(name, strings.TrimSpace(value)) {
		return name + ": " + secret.Mask
	}
	return text
}

// ListedURL returns an endpoint's address for a listing: its query, fragment and credentials are masked, since keys
// stand there; references are as they are written.
func ListedURL(v Value) string {
	text := v.Listed()
	if i := strings.IndexAny(text, "?#"); i >= 0 {
		text = text[:i+1] + secret.Mask
	}
	if scheme, rest, ok := strings.Cut(text, "://"); ok {
		host, path, slash := strings.Cut(rest, "/")
		if at := strings.LastIndexByte(host, '@'); at >= 0 {
			host = secret.Mask + host[at:]
		}
		text = scheme + "://" + host
		if slash {
			text += "/" + path
		}
	}
	return text
}
