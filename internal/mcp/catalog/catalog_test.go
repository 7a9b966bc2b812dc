package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// past is a time that every test may take for now: no catalog is from the future.
var past = time.Now().Add(-time.Hour).UTC().Round(0)

func open(t testing.TB) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "catalogs"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func raws(texts ...string) []json.RawMessage {
	var list []json.RawMessage
	for _, text := range texts {
		list = append(list, json.RawMessage(text))
	}
	return list
}

// sample is a catalog with everything in it that encoding/json would change.
func sample(s *Store, name string) *Catalog {
	return &Catalog{
		Server:       name,
		Identity:     s.Identity(Parts{Name: name}),
		FetchedAt:    past,
		Protocol:     "2025-11-25",
		ServerInfo:   json.RawMessage(`{"name":"x", "version" : 1.0}`),
		Capabilities: json.RawMessage(`{"tools":{},"experimental":{"x":1e400}}`),
		Instructions: "Use <b> & \u2028 with care.\n",
		Tools: raws(
			`{"name":"a","inputSchema":{"maximum":1e400,"minimum":12345678901234567890,"x":1.0,"x":-0}}`,
			"{ \"name\" :\t\"b\",\r\n \"description\":\"<&>\\u003c\\/ \u2028 \x7f \xff \\ud800\",\n\"unknown\":[ null , true ]}",
			`{}`,
		),
		Prompts:    raws(`{"name":"p","arguments":[]}`),
		Resources:  raws(`{"uri":"file:///x"}`, `{"uri":"file:///y"}`),
		Templates:  raws(`{"uriTemplate":"file:///{x}"}`),
		TTL:        90 * time.Second,
		CacheScope: "private",
		Cacheable:  true,
	}
}

func publish(t testing.TB, s *Store, c *Catalog) {
	t.Helper()
	if ok, err := s.Publish(c); err != nil || !ok {
		t.Fatalf("Publish answered %v, %v", ok, err)
	}
}

// path is where c is stored.
func path(s *Store, c *Catalog) string {
	return filepath.Join(s.folder(c.Server), fileName(c.Identity))
}

func TestEveryByteOfADefinitionSurvives(t *testing.T) {
	s := open(t)
	want := sample(s, "x")
	publish(t, s, want)
	if want.Revision == "" || want.Revision != RevisionOf(want) {
		t.Errorf("Publish left the revision %q", want.Revision)
	}
	got, err := s.Load("x", want.Identity)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("loaded\n%s\nwant\n%s", spell(got), spell(want))
	}
	// The store opened anew has the same key, so it finds the catalog under the same parts.
	again, err := Open(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Load("x", again.Identity(Parts{Name: "x"})); err != nil {
		t.Error(err)
	}
}

func spell(c *Catalog) string {
	return fmt.Sprintf("%+v\n%q %q\n%q\n%q\n%q\n%q", *c, c.ServerInfo, c.Capabilities, c.Tools, c.Prompts, c.Resources, c.Templates)
}

func TestWhatIsNotJSONIsNotSaved(t *testing.T) {
	s := open(t)
	deep := strings.Repeat("[", 9999) + strings.Repeat("]", 9999)
	for name, change := range map[string]func(*Catalog){
		"two definitions in one":   func(c *Catalog) { c.Tools[0] = json.RawMessage(`{},{}`) },
		"a definition that closes": func(c *Catalog) { c.Prompts[0] = json.RawMessage(`{}],"tools":[{}`) },
		"an empty definition":      func(c *Catalog) { c.Resources[0] = nil },
		"broken capabilities":      func(c *Catalog) { c.Capabilities = json.RawMessage(`{`) },
		"too deep as a part":       func(c *Catalog) { c.Tools[0] = json.RawMessage(deep) },
		"no identity":              func(c *Catalog) { c.Identity = "" },
		"a path as identity":       func(c *Catalog) { c.Identity = "../../x" },
		"a name that is not UTF-8": func(c *Catalog) { c.Server = "\xff" },
	} {
		t.Run(name, func(t *testing.T) {
			c := sample(s, "x")
			change(c)
			if ok, err := s.Publish(c); err == nil || ok {
				t.Errorf("Publish answered %v, %v", ok, err)
			}
			if _, err := s.Latest(c.Server); !errors.Is(err, ErrNone) {
				t.Errorf("something was saved: %v", err)
			}
		})
	}
}

func TestTooLargeACatalogIsNotSavedAndSaysSo(t *testing.T) {
	s := open(t)
	c := sample(s, "x")
	c.Tools = raws(`"` + strings.Repeat("x", maxFile) + `"`)
	if ok, err := s.Publish(c); ok || err == nil || !strings.Contains(err.Error(), fmt.Sprint(maxFile)) {
		t.Errorf("Publish answered %v, %v; want an error that names the limit", ok, err)
	}
}

func TestAnOlderListingNeverReplacesANewerOne(t *testing.T) {
	s := open(t)
	c := sample(s, "x")
	for _, step := range []struct {
		after     time.Duration
		published bool
		latest    time.Duration
	}{{0, true, 0}, {time.Minute, true, time.Minute}, {time.Second, false, time.Minute}, {time.Minute, true, time.Minute}, {time.Minute + 1, true, time.Minute + 1}} {
		c.FetchedAt = past.Add(step.after)
		if ok, err := s.Publish(c); err != nil || ok != step.published {
			t.Errorf("listing of +%v: Publish answered %v, %v; want %v", step.after, ok, err, step.published)
		}
		if got, err := s.Load("x", c.Identity); err != nil || !got.FetchedAt.Equal(past.Add(step.latest)) {
			t.Errorf("after the listing of +%v: saved is %v, %v; want +%v", step.after, got, err, step.latest)
		}
	}
}

func TestACatalogFromTheFutureIsReplaced(t *testing.T) {
	s := open(t)
	c := sample(s, "x")
	c.FetchedAt = time.Now().Add(24 * time.Hour)
	publish(t, s, c)
	c.FetchedAt = time.Now()
	publish(t, s, c)
}

func TestAnUncacheableCatalogRemovesItsOwnEntryOnly(t *testing.T) {
	s := open(t)
	c, sibling, other := sample(s, "x"), sample(s, "x"), sample(s, "y")
	sibling.Identity = s.Identity(Parts{Name: "x", Cwd: "/elsewhere"})
	for _, c := range []*Catalog{c, sibling, other} {
		publish(t, s, c)
	}
	c.Cacheable, c.FetchedAt = false, past.Add(-time.Minute)
	if ok, err := s.Publish(c); ok || err != nil {
		t.Fatalf("Publish answered %v, %v", ok, err)
	}
	if _, err := s.Load("x", c.Identity); err != nil {
		t.Errorf("an older listing removed a newer catalog: %v", err)
	}
	c.FetchedAt = past.Add(time.Minute)
	for range 2 {
		if ok, err := s.Publish(c); ok || err != nil {
			t.Fatalf("Publish answered %v, %v", ok, err)
		}
		if _, err := s.Load("x", c.Identity); !errors.Is(err, ErrNone) {
			t.Errorf("Load answers %v, want ErrNone", err)
		}
	}
	for _, c := range []*Catalog{sibling, other} {
		if _, err := s.Load(c.Server, c.Identity); err != nil {
			t.Error(err)
		}
	}
}

func TestUsable(t *testing.T) {
	s := open(t)
	now := time.Now()
	for name, test := range map[string]struct {
		change func(*Catalog)
		maxAge time.Duration
		want   string // part of the reason; empty: usable
	}{
		"fresh":                     {func(*Catalog) {}, 0, ""},
		"not cacheable":             {func(c *Catalog) { c.Cacheable = false }, 0, "does not allow"},
		"no tools":                  {func(c *Catalog) { c.Tools = nil }, 0, "no tools"},
		"six days":                  {func(c *Catalog) { c.FetchedAt = now.Add(-6 * 24 * time.Hour) }, 0, ""},
		"eight days":                {func(c *Catalog) { c.FetchedAt = now.Add(-8 * 24 * time.Hour) }, 0, "older than 168h"},
		"eight days, allowed":       {func(c *Catalog) { c.FetchedAt = now.Add(-8 * 24 * time.Hour) }, 9 * 24 * time.Hour, ""},
		"older than the operator's": {func(c *Catalog) { c.FetchedAt = now.Add(-2 * time.Minute) }, time.Minute, "older than 1m"},
		"past the server's own ttl": {func(c *Catalog) { c.TTL = time.Second }, 0, ""},
		"from a clock just ahead":   {func(c *Catalog) { c.FetchedAt = now.Add(time.Minute) }, 0, ""},
		"from the future":           {func(c *Catalog) { c.FetchedAt = now.Add(time.Hour) }, 0, "from the future"},
	} {
		t.Run(name, func(t *testing.T) {
			c := sample(s, "x")
			test.change(c)
			ok, reason := s.Usable(c, test.maxAge, now)
			if ok != (test.want == "") || ok != (reason == "") || !strings.Contains(reason, test.want) {
				t.Errorf("Usable answered %v, %q; want %q", ok, reason, test.want)
			}
		})
	}
	if ok, reason := s.Usable(nil, 0, now); ok || reason == "" {
		t.Errorf("Usable of nothing answered %v, %q", ok, reason)
	}
}

func TestLatestIsTheNewestUnderAnyIdentity(t *testing.T) {
	s := open(t)
	if _, err := s.Latest("x"); !errors.Is(err, ErrNone) {
		t.Errorf("Latest of nothing: %v, want ErrNone", err)
	}
	for i, age := range []time.Duration{2, 1, 3} {
		c := sample(s, "x")
		c.Identity = s.Identity(Parts{Name: "x", Cwd: fmt.Sprint(i)})
		c.FetchedAt = past.Add(-age * time.Minute)
		publish(t, s, c)
	}
	publish(t, s, sample(s, "X")) // newer, and another server
	got, err := s.Latest("x")
	if err != nil || got.Server != "x" || !got.FetchedAt.Equal(past.Add(-time.Minute)) {
		t.Fatalf("Latest is %v, %v", got, err)
	}
	if err := os.Truncate(path(s, got), 10); err != nil {
		t.Fatal(err)
	}
	if got, err = s.Latest("x"); err != nil || !got.FetchedAt.Equal(past.Add(-2*time.Minute)) {
		t.Errorf("with the newest damaged, Latest is %v, %v", got, err)
	}
}

func TestOldIdentitiesArePrunedAndOtherServersAreNot(t *testing.T) {
	s := open(t)
	other := sample(s, "y")
	publish(t, s, other)
	var all []*Catalog
	for i := range keepIdentities + 2 {
		c := sample(s, "x")
		c.Identity = s.Identity(Parts{Name: "x", Cwd: fmt.Sprint(i)})
		publish(t, s, c)
		age := past.Add(time.Duration(i) * time.Second)
		if err := os.Chtimes(path(s, c), age, age); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	for i, c := range all {
		_, err := s.Load("x", c.Identity)
		if gone := errors.Is(err, ErrNone); gone != (i < 2) || err != nil && !gone {
			t.Errorf("catalog %d of %d: %v", i, len(all), err)
		}
	}
	if _, err := s.Load("y", other.Identity); err != nil {
		t.Error(err)
	}
}

func TestWhatADeadWriterLeftIsRemoved(t *testing.T) {
	s := open(t)
	c := sample(s, "x")
	publish(t, s, c)
	left := filepath.Join(s.folder("x"), "."+fileName(c.Identity)+".123.tmp")
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	publish(t, s, c)
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

func TestEverythingIsForTheUserAlone(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a Windows folder inherits its user's access list; there are no modes")
	}
	s := open(t)
	c := sample(s, "x")
	publish(t, s, c)
	err := filepath.WalkDir(s.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	// A folder that was there and open to others is closed.
	if err := os.Chmod(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(s.dir); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(s.dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v; want 0700", info.Mode(), err)
	}
}

func TestAllWhoOpenANewFolderAtOnceGetOneKey(t *testing.T) {
	for range 10 {
		dir := filepath.Join(t.TempDir(), "catalogs")
		var ids [8]Identity
		var wg sync.WaitGroup
		start := make(chan struct{})
		for i := range ids {
			wg.Go(func() {
				<-start
				s, err := Open(dir)
				if err != nil {
					t.Error(err)
					return
				}
				ids[i] = s.Identity(Parts{})
			})
		}
		close(start)
		wg.Wait()
		for _, id := range ids {
			if id != ids[0] {
				t.Fatalf("identities differ: %v", ids)
			}
		}
	}
}

func TestADamagedKeyIsReplaced(t *testing.T) {
	s := open(t)
	if err := os.Truncate(filepath.Join(s.dir, "key"), 3); err != nil {
		t.Fatal(err)
	}
	again, err := Open(s.dir)
	if err != nil || len(again.key) != keySize || bytes.Equal(again.key, s.key) {
		t.Errorf("opened with key of %d bytes, %v", len(again.key), err)
	}
}

func TestServerFoldersAreSafeAndNeverShared(t *testing.T) {
	s := open(t)
	seen := map[string]string{}
	for _, name := range []string{
		"github", "GitHub", "fly.io", "a/b", `a\b`, "a:b", "..", ".", "", "con", "NUL", "lock", "key", "a ", "a.", "ä", "a\u0308",
		strings.Repeat("n", 10<<10), strings.Repeat("n", 10<<10) + "m", "\x00", "@scope/pkg", "a_b",
	} {
		base := filepath.Base(s.folder(name))
		if len(base) > 80 || strings.Trim(base, "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" {
			t.Errorf("%q becomes %q, which is not safe everywhere", name, base)
		}
		if other, ok := seen[base]; ok {
			t.Errorf("%q and %q share %q", name, other, base)
		}
		seen[base] = name
	}
	if base := filepath.Base(s.folder("GitHub.com")); !strings.HasPrefix(base, "github_com-") {
		t.Errorf("%q cannot be read by a person", base)
	}
}

func TestRevisionFollowsWhatIsOffered(t *testing.T) {
	s := open(t)
	base := sample(s, "x")
	want := RevisionOf(base)
	if len(want) < 16 {
		t.Fatalf("revision %q", want)
	}
	for name, change := range map[string]func(*Catalog){
		"tools in another order":      func(c *Catalog) { slices.Reverse(c.Tools) },
		"members in another order":    func(c *Catalog) { c.Prompts = raws("{ \"arguments\" : [ ],\n\"name\":\"p\" }") },
		"a later listing":             func(c *Catalog) { c.FetchedAt = c.FetchedAt.Add(1) },
		"another version answered":    func(c *Catalog) { c.ServerInfo, c.Protocol = nil, "2026-07-28" },
		"another identity":            func(c *Catalog) { c.Identity = s.Identity(Parts{Name: "y"}) },
		"another caching hint":        func(c *Catalog) { c.TTL, c.CacheScope = 0, "" },
		"the same, from another list": func(c *Catalog) { c.Resources = slices.Clone(c.Resources) },
	} {
		c := sample(s, "x")
		change(c)
		if got := RevisionOf(c); got != want {
			t.Errorf("%s: the revision changed", name)
		}
	}
	for name, change := range map[string]func(*Catalog){
		"a tool gone":            func(c *Catalog) { c.Tools = c.Tools[:2] },
		"a tool twice":           func(c *Catalog) { c.Tools = append(c.Tools, c.Tools[0]) },
		"a number spelled anew":  func(c *Catalog) { c.Tools[0] = bytes.Replace(c.Tools[0], []byte("1.0"), []byte("1"), 1) },
		"a large number changed": func(c *Catalog) { c.Tools[0] = bytes.Replace(c.Tools[0], []byte("7890"), []byte("7891"), 1) },
		"duplicate keys exchanged": func(c *Catalog) {
			c.Tools[0] = bytes.Replace(c.Tools[0], []byte(`"x":1.0,"x":-0`), []byte(`"x":-0,"x":1.0`), 1)
		},
		"white space in a string": func(c *Catalog) { c.Prompts = raws(`{"name":"p ","arguments":[]}`) },
		"an array in another order": func(c *Catalog) {
			c.Tools[1] = bytes.Replace(c.Tools[1], []byte("null , true"), []byte("true , null"), 1)
		},
		"a prompt that is a tool": func(c *Catalog) { c.Tools, c.Prompts = append(c.Tools, c.Prompts...), nil },
		"instructions":            func(c *Catalog) { c.Instructions += " " },
		"capabilities":            func(c *Catalog) { c.Capabilities = json.RawMessage(`{"tools":{}}`) },
	} {
		c := sample(s, "x")
		change(c)
		if got := RevisionOf(c); got == want {
			t.Errorf("%s: the revision did not change", name)
		}
	}
}

func TestTheOrderOfKeysThatMayBeTakenForOneAnotherCounts(t *testing.T) {
	for a, b := range map[string]string{
		`{"a":1,"a":2}`:      `{"a":2,"a":1}`,
		`{"a":1,"\u0061":2}`: `{"\u0061":2,"a":1}`,
		`{"a":1,"A":2}`:      `{"A":2,"a":1}`,
		`{"k":1,"K":2}`:      `{"K":2,"k":1}`, // the Kelvin sign
	} {
		if Digest([]byte(a)) == Digest([]byte(b)) {
			t.Errorf("%s is the same as %s", a, b)
		}
	}
	if Digest([]byte(`{"A":1,"b":2,"\u0063":3}`)) != Digest([]byte(`{"\u0063":3,"b":2,"A":1}`)) {
		t.Error("the order of keys that nobody confuses counts")
	}
}
