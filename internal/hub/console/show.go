package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"html/template"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"nightporter/client"
)

// view is what a page is made of.
type view struct {
	Title string
	Nav   string // the entry of the menu that is the current one
	Live  string // the address of the page's stream; empty: it does not change
	Data  any

	// Set by show.
	Key     *client.Key
	CSRF    string
	Said    string // what was done by the form before
	Pending int    // approvals that wait
	Menu    []entry
	Now     time.Time
}

// entry is one of the menu.
type entry struct {
	Path, Name string
	Current    bool
}

// menu names the pages in the order in which they are used; what a key may not see is left out by the scopes of its route.
var menu = []entry{
	{Path: "/runs", Name: "Runs"},
	{Path: "/conversations", Name: "Conversations"},
	{Path: "/approvals", Name: "Approvals"},
	{Path: "/hosts", Name: "Hosts"},
	{Path: "/servers", Name: "Servers"},
	{Path: "/trends", Name: "Trends"},
	{Path: "/deliveries", Name: "Deliveries"},
	{Path: "/audit", Name: "Audit"},
}

// said are the words for what a form did: a page never shows text of its address.
var said = map[string]string{
	"sent":      "The message was sent. Its run is below.",
	"cancelled": "The run is asked to stop.",
	"approved":  "Approved. The call goes on.",
	"denied":    "Denied. The agent is told why.",
	"answered":  "The answer is on its way to the agent.",
	"revoked":   "The host is revoked. Its runs go to others.",
	"retried":   "The delivery is due again.",
}

// allowed reports whether a key may open a page of the menu.
func allowed(k client.Key, page string) bool {
	return slices.ContainsFunc(routes(), func(r route) bool { return r.pattern == "GET "+page && has(k, r.scopes...) })
}

func (c *Console) show(q *request, status int, name string, v view) {
	v.CSRF, v.Key, v.Said, v.Now = q.csrf, q.key, said[q.r.URL.Query().Get("said")], time.Now().UTC()
	if q.key != nil {
		for _, e := range menu {
			if allowed(*q.key, e.Path) {
				e.Current = e.Path == v.Nav
				v.Menu = append(v.Menu, e)
			}
		}
		if has(*q.key, client.ScopeRead, client.ScopeApprove) {
			// What waits is on every page. The page is worth showing without it.
			if waiting, err := c.store.Approvals(q.ctx(), client.ApprovalPending, "", 0); err == nil {
				v.Pending = len(waiting)
			}
		}
	}
	var page bytes.Buffer
	if err := c.pages[name].ExecuteTemplate(&page, "layout", v); err != nil {
		c.o.Log.ErrorContext(q.ctx(), "console", "page", name, "error", err)
		http.Error(q.w, "The hub could not make this page; its log has the reason.", http.StatusInternalServerError)
		return
	}
	q.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	q.w.WriteHeader(status)
	_, _ = page.WriteTo(q.w) // the browser may be gone
}

// parse reads the templates: each page with the layout.
func (c *Console) parse() map[string]*template.Template {
	base := template.Must(template.New("").Funcs(c.funcs()).ParseFS(templateFiles, "templates/layout.html", "templates/parts.html"))
	files, err := templateFiles.ReadDir("templates")
	if err != nil {
		panic(err) // they are part of the program
	}
	pages := map[string]*template.Template{}
	for _, f := range files {
		name := strings.TrimSuffix(f.Name(), path.Ext(f.Name()))
		if name != "layout" && name != "parts" {
			pages[name] = template.Must(template.Must(base.Clone()).ParseFS(templateFiles, "templates/"+f.Name()))
		}
	}
	return pages
}

func (c *Console) funcs() template.FuncMap {
	return template.FuncMap{
		"asset":    func(name string) string { return "/static/" + name + "?v=" + c.static[name].tag },
		"text":     visible,
		"line":     func(s string) template.HTML { return visible(oneLine(s, 160)) },
		"json":     indented,
		"time":     clock,
		"duration": duration,
		"since":    func(from time.Time, to *time.Time) string { return since(from, to) },
		"usd":      usd,
		"mark":     mark,
		"shape":    shape,
		"state":    runState,
		"talk":     func(key string) string { return "/conversation?key=" + url.QueryEscape(key) },
		"has":      func(k *client.Key, scope string) bool { return k != nil && has(*k, client.Scope(scope)) },
		"plural": func(n int, one, many string) string {
			if n == 1 {
				return "1 " + one
			}
			return strconv.Itoa(n) + " " + many
		},
		"list": func(names []string) string { return strings.Join(names, ", ") },
		"args": func(pairs ...any) map[string]any {
			m := map[string]any{}
			for i := 0; i+1 < len(pairs); i += 2 {
				m[pairs[i].(string)] = pairs[i+1]
			}
			return m
		},
	}
}

// visible is text of others as HTML: escaped, and with every character that is not seen, or that changes the order in which others are, shown as its
// number. Who approves a call must see what it is.
func visible(s string) template.HTML {
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `<span class="hidden-char">\x%02X</span>`, s[0])
		case r == '\r' && strings.HasPrefix(s, "\r\n"): // one line break, said in two
		case r != '\n' && r != '\t' && hiddenRune(r):
			fmt.Fprintf(&b, `<span class="hidden-char">U+%04X</span>`, r)
		default:
			b.WriteString(html.EscapeString(s[:size]))
		}
		s = s[size:]
	}
	return template.HTML(b.String())
}

// hiddenRune: controls, formats (directions, zero widths, tags), separators of lines and of paragraphs, spaces that are not the usual one, fillers
// and variation selectors.
func hiddenRune(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Variation_Selector, unicode.Co, unicode.Cs) ||
		unicode.Is(unicode.Zs, r) && r != ' ' || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) || r == 0x2800
}

// oneLine is the beginning of a text on one line.
func oneLine(s string, most int) string {
	cut := s[:min(len(s), 4*most)] // before it is looked at: texts are long
	words := strings.Join(strings.Fields(cut), " ")
	if runes := []rune(words); len(runes) > most || len(cut) < len(s) {
		return string(runes[:min(len(runes), most)]) + "…"
	}
	return words
}

// indented is JSON as a person reads it: broken into lines, and otherwise byte for byte what it was. What is no JSON is shown as it is.
func indented(raw json.RawMessage) template.HTML {
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return visible(string(raw))
	}
	return visible(b.String())
}

// clock is a time, in UTC; the script says it in the browser's zone.
func clock(t any) template.HTML {
	at, ok := t.(time.Time)
	if p, isPointer := t.(*time.Time); isPointer && p != nil {
		at, ok = *p, true
	}
	if !ok || at.IsZero() {
		return "–"
	}
	at = at.UTC()
	return template.HTML(`<time datetime="` + at.Format(time.RFC3339Nano) + `">` + at.Format("2006-01-02 15:04:05") + ` UTC</time>`)
}

func duration(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case d < time.Second:
		return strconv.FormatInt(ms, 10) + " ms"
	case d < time.Minute:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	case d < time.Hour:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
}

func since(from time.Time, to *time.Time) string {
	end := time.Now()
	if to != nil {
		end = *to
	}
	return duration(max(0, end.Sub(from)).Round(time.Second).Milliseconds())
}

func usd(v float64) string {
	switch {
	case v == 0:
		return "–"
	case v < 0.1:
		return "$" + strconv.FormatFloat(v, 'f', 4, 64)
	}
	return "$" + strconv.FormatFloat(v, 'f', 2, 64)
}

// runState is one word for where a run is.
func runState(r client.Run) string {
	switch {
	case r.State == client.RunDone && r.Status != "":
		return r.Status
	case r.State == client.RunRunning && r.Cancel != "":
		return "stopping"
	}
	return string(r.State)
}

// marks are the shapes of states, beside their words: nothing is said by colour alone. Paths are in a box of 12 by 12.
var marks = map[string]struct{ class, path string }{
	"waiting":   {"still", "M6 1.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zm0 1.4a3.1 3.1 0 1 1 0 6.2 3.1 3.1 0 0 1 0-6.2z"},
	"ready":     {"still", "M6 1.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zm0 1.4a3.1 3.1 0 0 1 0 6.2z"},
	"running":   {"busy", "M3 1.5v9l7.5-4.5z"},
	"stopping":  {"warn", "M2 2h3v8H2zm5 0h3v8H7z"},
	"ok":        {"good", "M4.6 10 1 6.4l1.3-1.3 2.3 2.3L9.7 2.3 11 3.6z"},
	"failed":    {"bad", "M2.9 1.6 6 4.7l3.1-3.1 1.3 1.3L7.3 6l3.1 3.1-1.3 1.3L6 7.3l-3.1 3.1-1.3-1.3L4.7 6 1.6 2.9z"},
	"refused":   {"bad", "M6 .8a5.2 5.2 0 1 0 0 10.4A5.2 5.2 0 0 0 6 .8zM2.5 5.1h7v1.8h-7z"},
	"stopped":   {"warn", "M2 2h8v8H2z"},
	"pending":   {"warn", "M6 .8 11.2 6 6 11.2.8 6z"},
	"dormant":   {"still", "M1.5 5.2h9v1.6h-9z"},
	"cancelled": {"still", "M1.5 5.2h9v1.6h-9z"},
}

// alike are states that have the mark of another.
var alike = map[string]string{
	"approved": "ok", "answered": "ok", "denied": "refused", "expired": "stopped", "delivered": "ok", "dead": "failed", "alive": "ok", "silent": "stopped",
	"revoked": "refused", "starting": "running", "disabled": "dormant", "lease_lost": "failed", "released": "stopped", "finished": "ok", "proven": "ok", "not proven": "failed",
}

// mark is a state as its shape and its word.
func mark(of any) template.HTML {
	state := fmt.Sprint(of)
	return shape(state, strings.ReplaceAll(state, "_", " "))
}

// shape is the mark of a state beside other words. One that is not known is a host's word, and may be as long as it likes.
func shape(state, words string) template.HTML {
	m, ok := marks[state]
	if !ok {
		if m, ok = marks[alike[state]]; !ok {
			m = marks["dormant"]
			m.class += " odd"
		}
	}
	return template.HTML(`<span class="state `+m.class+`"><svg viewBox="0 0 12 12" aria-hidden="true"><path d="`+m.path+`"/></svg><span>`) +
		visible(words) + `</span></span>`
}
