package console

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"nightporter/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEachPageIsMade(t *testing.T) {
	for name, w := range map[string]*world{"full": full(t), "hostile": hostile(t)} {
		b := w.browser()
		b.signIn("ann")
		for _, path := range paths(w, false) {
			status, body := b.get(path)
			if want := map[bool]int{true: http.StatusNotFound, false: http.StatusOK}[path == "/no-such-page"]; status != want || !strings.HasSuffix(strings.TrimSpace(body), "</html>") {
				t.Errorf("%s %s: %d\n%s", name, path, status, body)
			}
		}
	}
}

func TestEmptyPagesSayWhatToDo(t *testing.T) {
	w := newWorld(t)
	b := w.browser()
	b.signIn("ann")
	for path, hint := range map[string]string{
		"/runs": "nightporter ask", "/conversations": "nightporter ask", "/approvals": "approval_mode", "/hosts": "nightporter hub invite", "/servers": "/hosts",
		"/trends": "/conversations", "/deliveries": "/v1/webhooks/",
	} {
		if status, body := b.get(path); status != http.StatusOK || !strings.Contains(body, `class="empty"`) || !strings.Contains(body, hint) {
			t.Errorf("%s: %d without %q\n%s", path, status, hint, body)
		}
	}
}

func TestHeadersOfEachAnswer(t *testing.T) {
	w := newWorld(t)
	for _, path := range []string{"/", "/login", "/runs", "/no-such-page", "/static/console.js", "/static/none", "/live"} {
		r, err := http.NewRequestWithContext(w.ctx(), http.MethodGet, w.http.URL+path, nil)
		w.must(err)
		answer, body := w.browser().do(r)
		for name, value := range headers {
			if name == "Cache-Control" && path == "/static/console.js" {
				continue
			}
			if got := answer.Header.Get(name); got != value {
				t.Errorf("%s: %s is %q", path, name, got)
			}
		}
		for _, inline := range []string{"<style", " style=", "<script>", " onclick=", "javascript:"} {
			if strings.Contains(body, inline) && !strings.HasSuffix(path, ".js") {
				t.Errorf("%s has %q, which its policy refuses", path, inline)
			}
		}
	}
}

func TestCookies(t *testing.T) {
	w := newWorld(t)
	check := func(c *http.Cookie, secure bool, name string) {
		t.Helper()
		if c.Name != name || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Domain != "" || c.Secure != secure || c.MaxAge <= 0 || c.MaxAge > int(sessionLife.Seconds()) {
			t.Errorf("the cookie is %+v", c)
		}
	}
	cookie := w.browser().signIn("ann").Cookies()[0]
	check(cookie, false, "nightporter")
	if strings.Contains(cookie.Value, w.keys["ann"]) {
		t.Error("the cookie has the key")
	}
	tls := httptest.NewTLSServer(w.hub)
	defer tls.Close()
	b := w.browser()
	b.http.Transport, w.http.URL = tls.Client().Transport, tls.URL
	defer b.http.CloseIdleConnections()
	check(b.signIn("ann").Cookies()[0], true, "__Host-nightporter")
}

func TestFormsOfOthersAreRefused(t *testing.T) {
	w := full(t)
	b := w.browser()
	b.signIn("ann")
	good := b.csrf("/approvals")
	a, err := w.store.Approval(w.ctx(), "ask-1")
	w.must(err)
	form := func(csrf string) url.Values {
		return url.Values{"csrf": {csrf}, "decision": {"approve"}, "digest": {a.Digest}}
	}
	other := w.browser()
	other.signIn("ann")
	for name, bad := range map[string]struct {
		csrf    string
		headers []string
	}{
		"no token":               {"", nil},
		"a token of nobody":      {"x" + good, nil},
		"a token of another":     {other.csrf("/approvals"), nil},
		"another site":           {good, []string{"Sec-Fetch-Site", "cross-site"}},
		"another port or scheme": {good, []string{"Sec-Fetch-Site", "same-site"}},
		"another origin":         {good, []string{"Origin", "https://evil.example"}},
		"no origin":              {good, []string{"Origin", "null"}},
	} {
		if answer, body := b.post("/approvals/ask-1/answer", form(bad.csrf), bad.headers...); answer.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %d\n%s", name, answer.StatusCode, body)
		}
	}
	if answer, _ := w.browser().post("/approvals/ask-1/answer", form(good)); answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a session: %d", answer.StatusCode)
	}
	if status, _ := b.get("/approvals/ask-1/answer?" + form(good).Encode()); status != http.StatusMethodNotAllowed && status != http.StatusNotFound {
		t.Errorf("by GET: %d", status)
	}
	if a, err = w.store.Approval(w.ctx(), "ask-1"); err != nil || a.State != client.ApprovalPending {
		t.Fatalf("it is %s by now: %v", a.State, err)
	}
	wrong := form(good)
	wrong.Set("digest", "of another question")
	if answer, _ := b.post("/approvals/ask-1/answer", wrong); answer.StatusCode != http.StatusConflict {
		t.Errorf("with another digest: %d", answer.StatusCode)
	}
	if answer, body := b.post("/approvals/ask-1/answer", form(good), "Sec-Fetch-Site", "same-origin", "Origin", w.http.URL); answer.StatusCode != http.StatusSeeOther {
		t.Errorf("the right one: %d\n%s", answer.StatusCode, body)
	}
	if answer, _ := b.post("/approvals/ask-1/answer", form(good)); answer.StatusCode != http.StatusConflict {
		t.Errorf("once more: %d", answer.StatusCode)
	}
	entries, err := w.store.AuditEntries(w.ctx(), 1)
	w.must(err)
	if entries[0].Action != "approval.answer" || entries[0].Actor != "key ann" || entries[0].Object != "ask-1" {
		t.Errorf("the record has %+v", entries[0])
	}
	if answer, _ := w.browser().post("/login", url.Values{"key": {w.keys["ann"]}}); answer.StatusCode != http.StatusForbidden || len(answer.Cookies()) != 1 {
		t.Errorf("a sign-in by another site's form: %d", answer.StatusCode)
	}
}

func TestSessionsEnd(t *testing.T) {
	w := newWorld(t)
	w.key("short", client.ScopeRead)
	b := w.browser()
	b.signIn("short")
	if status, _ := b.get("/runs"); status != http.StatusOK {
		t.Fatalf("signed in: %d", status)
	}
	_, err := w.store.RevokeKey(w.ctx(), "short")
	w.must(err)
	if status, _ := b.get("/runs"); status != http.StatusSeeOther {
		t.Errorf("with a revoked key: %d", status)
	}
	if answer, _ := b.post("/login", url.Values{"csrf": {b.csrf("/login")}, "key": {w.keys["short"]}}); answer.StatusCode != http.StatusForbidden {
		t.Errorf("signing in with a revoked key: %d", answer.StatusCode)
	}

	b = w.browser()
	cookie := b.signIn("ann").Cookies()[0]
	if answer, _ := b.post("/logout", url.Values{"csrf": {b.csrf("/runs")}}); answer.StatusCode != http.StatusSeeOther {
		t.Fatalf("signing out: %d", answer.StatusCode)
	}
	r, err := http.NewRequestWithContext(w.ctx(), http.MethodGet, w.http.URL+"/runs", nil)
	w.must(err)
	r.AddCookie(cookie)
	if answer, _ := w.browser().do(r); answer.StatusCode != http.StatusSeeOther {
		t.Errorf("with the cookie of a session that has ended: %d", answer.StatusCode)
	}
}

func TestScopes(t *testing.T) {
	w := full(t)
	for name, scopes := range map[string][]client.Scope{
		"ask": {client.ScopeAsk}, "read": {client.ScopeRead}, "approve": {client.ScopeApprove}, "admin": {client.ScopeAdmin},
	} {
		w.key(name, scopes...)
	}
	runs, err := w.store.Runs(w.ctx(), runFilterAll)
	w.must(err)
	may := map[string]string{ // who may open a page; all others may not
		"/runs": "read", "/runs/" + runs[0].ID: "read", "/conversations": "read ask", "/conversation?key=standup": "read", "/approvals": "read approve", "/approvals/ask-1": "read approve",
		"/hosts": "read", "/servers": "read", "/trends": "read", "/deliveries": "read", "/audit": "admin",
	}
	acts := map[string]string{"/messages": "ask", "/runs/x/cancel": "ask", "/approvals/x/answer": "approve", "/hosts/x/revoke": "admin", "/deliveries/x/retry": "admin"}
	for _, name := range []string{"ask", "read", "approve", "admin"} {
		b := w.browser()
		b.signIn(name)
		_, start := b.get("/conversations")
		if name == "approve" {
			_, start = b.get("/approvals")
		} else if name == "admin" {
			_, start = b.get("/audit")
		}
		for path, who := range may {
			want := http.StatusForbidden
			if strings.Contains(" "+who+" ", " "+name+" ") {
				want = http.StatusOK
			}
			if name == "ask" && want != http.StatusOK && (strings.HasPrefix(path, "/runs/") || strings.HasPrefix(path, "/conversation?")) {
				want = http.StatusNotFound // another's does not exist for it
			}
			if status, _ := b.get(path); status != want {
				t.Errorf("%s opens %s: %d, want %d", name, path, status, want)
			}
			if nav := `<a href="` + path + `"`; want != http.StatusOK && strings.Contains(start, "<nav") && strings.Contains(start[strings.Index(start, "<nav"):strings.Index(start, "</nav>")], nav) {
				t.Errorf("the menu of %s has %s", name, path)
			}
		}
		csrf := csrfField.FindStringSubmatch(start)[1] // of the form to sign out
		for path, who := range acts {
			answer, _ := b.post(path, url.Values{"csrf": {csrf}, "decision": {"deny"}})
			if forbidden := answer.StatusCode == http.StatusForbidden; forbidden != (who != name) {
				t.Errorf("%s posts %s: %d", name, path, answer.StatusCode)
			}
		}
	}
	// A key that may only ask reads what it has sent messages to, and does not come to read more by sending one.
	b := w.browser()
	b.signIn("ask")
	answer, body := b.post("/messages", url.Values{"csrf": {b.csrf("/conversations")}, "conversation": {"mine"}, "text": {"hello"}})
	if answer.StatusCode != http.StatusSeeOther {
		t.Fatalf("sending: %d\n%s", answer.StatusCode, body)
	}
	if status, _ := b.get("/conversation?key=mine"); status != http.StatusOK {
		t.Errorf("its own conversation: %d", status)
	}
	if answer, _ := b.post("/messages", url.Values{"csrf": {b.csrf("/conversations")}, "conversation": {"standup"}, "text": {"let me in"}}); answer.StatusCode != http.StatusForbidden {
		t.Errorf("a message to another's: %d", answer.StatusCode)
	}
}

func TestAMessageIsSentOnce(t *testing.T) {
	w := full(t)
	b := w.browser()
	b.signIn("ann")
	form := url.Values{"csrf": {b.csrf("/conversations")}, "conversation": {"twice"}, "text": {"one\r\ntwo"}, "idempotency": {"k"}}
	for range 2 {
		if answer, body := b.post("/messages", form); answer.StatusCode != http.StatusSeeOther || answer.Header.Get("Location") != "/conversation?key=twice&said=sent" {
			t.Fatalf("%d\n%s", answer.StatusCode, body)
		}
	}
	messages, err := w.store.Messages(w.ctx(), "twice", 0, 0)
	w.must(err)
	if len(messages) != 1 || messages[0].Text != "one\ntwo" {
		t.Errorf("there are %+v", messages)
	}
}

func TestFilesAreOnlySaved(t *testing.T) {
	w := hostile(t)
	b := w.browser()
	b.signIn("ann")
	files, err := w.store.Files(w.ctx(), payloads[0])
	w.must(err)
	r, err := http.NewRequestWithContext(w.ctx(), http.MethodGet, w.http.URL+"/files/"+files[0].ID, nil)
	w.must(err)
	answer, body := b.do(r)
	if body != payloads[0] || answer.Header.Get("Content-Type") != "application/octet-stream" || !strings.HasPrefix(answer.Header.Get("Content-Disposition"), "attachment") || !strings.Contains(answer.Header.Get("Content-Security-Policy"), "sandbox") {
		t.Errorf("%v %q", answer.Header, body)
	}
}

func TestNext(t *testing.T) {
	for to, want := range map[string]string{
		"/runs?show=ok": "/runs?show=ok", "": "/", "https://evil.example/": "/", "//evil.example": "/", `/\evil.example`: "/", "javascript:alert(1)": "/", "runs": "/", "/\t/evil.example": "/",
	} {
		if got := next(to); got != want {
			t.Errorf("next(%q) is %q, want %q", to, got, want)
		}
	}
}

func TestVisible(t *testing.T) {
	for text, want := range map[string]string{
		"<b>&\"'":            "&lt;b&gt;&amp;&#34;&#39;",
		"a\tb\nc\r\nd":       "a\tb\nc\nd",
		"pay\u202e001":       `pay<span class="hidden-char">U+202E</span>001`,
		"a\u200bb":           `a<span class="hidden-char">U+200B</span>b`,
		"a\U000E0041":        `a<span class="hidden-char">U+E0041</span>`,
		"a\u00a0b\u3164c":    `a<span class="hidden-char">U+00A0</span>b<span class="hidden-char">U+3164</span>c`,
		"\x1b[31m\x00\xff":   `<span class="hidden-char">U+001B</span>[31m<span class="hidden-char">U+0000</span><span class="hidden-char">\xFF</span>`,
		"Größe 日本 العربية 🙂": "Größe 日本 العربية 🙂",
	} {
		if got := string(visible(text)); got != want {
			t.Errorf("visible(%q) is %q, want %q", text, got, want)
		}
	}
}
