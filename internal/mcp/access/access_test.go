package access

import (
	"net/http"
	"testing"
)

func TestOfSeveralCredentialsNoneIsTaken(t *testing.T) {
	for _, c := range []struct {
		header []string
		want   string
	}{
		{[]string{"Bearer one"}, "one"},
		{[]string{"bearer  one "}, "one"},
		{[]string{"Basic one"}, ""},
		{[]string{"Bearer one", "Bearer two"}, ""},
		{[]string{"Bearer one", "Basic two"}, ""},
	} {
		if got := Bearer(&http.Request{Header: http.Header{"Authorization": c.header}}); got != c.want {
			t.Errorf("%q: %q, want %q", c.header, got, c.want)
		}
	}
}
