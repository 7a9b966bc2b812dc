// Package access says who may use the gateway on HTTP: the holders of tokens that were made here ([Store]), and those of access
// tokens of an authorization server ([OAuth]).
package access

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Holder is who a credential belongs to, and what it is good for.
type Holder struct {
	// ID is the same for two credentials when what one opens may be used by the other: sessions belong to it. It is no secret.
	ID   string
	Name string // for people, in status and in the audit record; never empty

	// Grants and Servers are names of the configuration. When both are empty and Narrow is not set, the holder reaches all that the
	// gateway serves.
	Grants   []string
	Servers  []string
	Narrow   bool      // nothing but Grants and Servers, also when there are none
	Exposure string    // how tools are listed; empty: as the gateway does
	Expires  time.Time // zero: never
}

// Denial is why a credential is not accepted. It never holds the credential.
type Denial struct {
	Status int    // of HTTP: 401, 403 or 503
	Code   string // of RFC 6750: invalid_token, insufficient_scope; empty where no credential was shown
	Reason string // in plain ASCII, for a person
	// Params are more parameters of the challenge, without quotes, in pairs: scope, resource_metadata.
	Params [][2]string
	// Cause is what the gateway's operator is told, and not who asked; may be nil.
	Cause error
	// Retry is when to come again; zero: not said.
	Retry time.Duration
}

func (d *Denial) Error() string { return d.Reason }

// Write answers a request. Where a credential would help, it says which (RFC 6750 section 3, RFC 9728 section 5.1).
func (d *Denial) Write(w http.ResponseWriter) {
	if d.Retry > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(int(d.Retry.Seconds())))
	}
	if d.Status == http.StatusUnauthorized || d.Status == http.StatusForbidden {
		params := [][2]string{{"realm", "nightporter"}}
		if d.Code != "" {
			params = append(params, [2]string{"error", d.Code}, [2]string{"error_description", d.Reason})
		}
		var challenge strings.Builder
		for i, p := range append(params, d.Params...) {
			if i > 0 {
				challenge.WriteString(", ")
			}
			fmt.Fprintf(&challenge, `%s="%s"`, p[0], quotable(p[1]))
		}
		w.Header().Set("WWW-Authenticate", "Bearer "+challenge.String())
	}
	http.Error(w, d.Reason, d.Status)
}

// quotable is text that may stand between the quotes of a challenge's parameter.
func quotable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			return '?'
		}
		return r
	}, text)
}

// Bearer is the bearer token of a request, empty without one. It is so with several credentials, too: a proxy may have judged by another one.
func Bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || len(r.Header.Values("Authorization")) > 1 {
		return ""
	}
	return strings.TrimSpace(token)
}

// NoToken is the denial of a request without a credential.
func NoToken() *Denial {
	return &Denial{Status: http.StatusUnauthorized, Reason: "unauthorized: the Authorization header must carry a bearer token of this gateway, and be there once"}
}

// BadToken is the denial of a credential that is not good, or not any more.
func BadToken(why string) *Denial {
	return &Denial{Status: http.StatusUnauthorized, Code: "invalid_token", Reason: "unauthorized: " + why}
}
