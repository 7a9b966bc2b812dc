package console

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"

	"nightporter/internal/hub/store"
)

var runFilterAll = store.RunFilter{}

// browser is as much of one as most tests need.
type browser struct {
	w    *world
	http *http.Client
}

func (w *world) browser() *browser {
	jar, err := cookiejar.New(nil)
	w.must(err)
	return &browser{w, &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

func (b *browser) do(r *http.Request) (*http.Response, string) {
	b.w.t.Helper()
	answer, err := b.http.Do(r)
	b.w.must(err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	b.w.must(err)
	return answer, string(body)
}

func (b *browser) get(path string) (int, string) {
	b.w.t.Helper()
	r, err := http.NewRequestWithContext(b.w.ctx(), http.MethodGet, b.w.http.URL+path, nil)
	b.w.must(err)
	answer, body := b.do(r)
	return answer.StatusCode, body
}

func (b *browser) post(path string, form url.Values, headers ...string) (*http.Response, string) {
	b.w.t.Helper()
	r, err := http.NewRequestWithContext(b.w.ctx(), http.MethodPost, b.w.http.URL+path, strings.NewReader(form.Encode()))
	b.w.must(err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return b.do(r)
}

var csrfField = regexp.MustCompile(`name="csrf" value="([^"]+)"`)

func (b *browser) csrf(path string) string {
	b.w.t.Helper()
	_, body := b.get(path)
	found := csrfField.FindStringSubmatch(body)
	if found == nil {
		b.w.t.Fatalf("%s has no form:\n%s", path, body)
	}
	return found[1]
}

func (b *browser) signIn(key string) *http.Response {
	b.w.t.Helper()
	answer, body := b.post("/login", url.Values{"csrf": {b.csrf("/login")}, "key": {b.w.keys[key]}})
	if answer.StatusCode != http.StatusSeeOther {
		b.w.t.Fatalf("signing in as %s: %d\n%s", key, answer.StatusCode, body)
	}
	return answer
}

// paths are pages of every kind: few, or all that there are.
func paths(w *world, few bool) []string {
	w.t.Helper()
	list := []string{"/runs", "/runs?show=failed&conversation=none", "/conversations", "/approvals", "/hosts", "/servers", "/trends", "/deliveries", "/audit", "/no-such-page"}
	conversations, err := w.store.Conversations(w.ctx(), "", 0)
	w.must(err)
	some := map[string]bool{} // there is one of it
	for _, c := range conversations {
		if !some["conversation"] {
			list = append(list, "/conversation?key="+url.QueryEscape(c.Key))
		}
		some["conversation"] = few
	}
	runs, err := w.store.Runs(w.ctx(), runFilterAll)
	w.must(err)
	for _, r := range runs {
		if !some[string(r.State)+r.Status] {
			list = append(list, "/runs/"+r.ID)
		}
		some[string(r.State)+r.Status] = few
	}
	approvals, err := w.store.Approvals(w.ctx(), "", "", 0)
	w.must(err)
	for _, a := range approvals {
		if kind := a.Kind + string(a.State); !some[kind] {
			list = append(list, "/approvals/"+a.ID)
			some[kind] = few
		}
	}
	return list
}
