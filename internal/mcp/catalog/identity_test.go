package catalog

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"nightporter/internal/secret"
)

// drawParts makes parts from few short texts, so that one text often stands in several places.
func drawParts(t *rapid.T) Parts {
	text := rapid.StringOfN(rapid.RuneFrom([]rune("ab=\x00\"")), 0, 3, -1)
	secrets := rapid.Map(rapid.MapOfN(text, text, 0, 3), func(m map[string]string) map[string]secret.String {
		out := map[string]secret.String{}
		for k, v := range m {
			out[k] = secret.New(v)
		}
		return out
	})
	return Parts{
		Name: text.Draw(t, "name"), Transport: text.Draw(t, "transport"), Command: text.Draw(t, "command"),
		Args: rapid.SliceOfN(text, 0, 3).Draw(t, "args"), Env: secrets.Draw(t, "env"), Cwd: text.Draw(t, "cwd"),
		Sandbox: text.Draw(t, "sandbox"), URL: text.Draw(t, "url"), Headers: secrets.Draw(t, "headers"), Era: text.Draw(t, "era"),
		ClientCapabilities: json.RawMessage(rapid.SampledFrom([]string{``, `{}`, `null`, `{"a":1}`, `{"a":1.0}`, `{"b":1}`, `{"a":[1,2]}`, `{"a":[2,1]}`, `{`}).Draw(t, "capabilities")),
	}
}

func TestDifferentPartsHaveDifferentIdentities(t *testing.T) {
	s := open(t)
	rapid.Check(t, func(t *rapid.T) {
		p, q := drawParts(t), drawParts(t)
		if reflect.DeepEqual(p, q) != (s.Identity(p) == s.Identity(q)) {
			t.Fatalf("%#v and %#v", p, q)
		}
	})
}

func TestAnySingleChangeChangesTheIdentity(t *testing.T) {
	s := open(t)
	rapid.Check(t, func(t *rapid.T) {
		p, donor := drawParts(t), drawParts(t)
		i := rapid.IntRange(0, reflect.TypeFor[Parts]().NumField()-1).Draw(t, "field")
		q := p
		from, to := reflect.ValueOf(donor).Field(i), reflect.ValueOf(&q).Elem().Field(i)
		if reflect.DeepEqual(from.Interface(), to.Interface()) {
			t.Skip("no change")
		}
		to.Set(from)
		if s.Identity(p) == s.Identity(q) {
			t.Fatalf("%s does not count: %#v, %#v", reflect.TypeFor[Parts]().Field(i).Name, p, q)
		}
	})
}

func TestTextsDoNotRunIntoEachOther(t *testing.T) {
	s := open(t)
	v := secret.New
	seen := map[Identity]int{}
	for i, p := range []Parts{
		{},
		{Name: "ab"},
		{Name: "a", Transport: "b"},
		{Transport: "ab"},
		{Args: []string{"ab"}},
		{Args: []string{"a", "b"}},
		{Args: []string{"ab", ""}},
		{Args: []string{""}},
		{Env: map[string]secret.String{"a": v("b")}},
		{Env: map[string]secret.String{"ab": v("")}},
		{Env: map[string]secret.String{"": v("ab")}},
		{Headers: map[string]secret.String{"a": v("b")}},
		{Env: map[string]secret.String{"a": v(""), "b": v("")}},
		{Env: map[string]secret.String{"a": v("\x00b")}},
	} {
		id := s.Identity(p)
		if other, ok := seen[id]; ok {
			t.Errorf("parts %d and %d have one identity", i, other)
		}
		seen[id] = i
	}
}

func TestOrderAndWhiteSpaceDoNotChangeTheIdentity(t *testing.T) {
	s := open(t)
	rapid.Check(t, func(t *rapid.T) {
		p := drawParts(t)
		want := s.Identity(p)
		// A map built in another order, and a nil one for an empty one.
		q := p
		q.Env = nil
		for _, key := range slices.Backward(slices.Sorted(maps.Keys(p.Env))) {
			if q.Env == nil {
				q.Env = map[string]secret.String{}
			}
			q.Env[key] = p.Env[key]
		}
		if len(p.Args) == 0 {
			q.Args = nil
		}
		if got := s.Identity(q); got != want {
			t.Fatalf("%#v and %#v differ", p, q)
		}
	})
	a := s.Identity(Parts{ClientCapabilities: json.RawMessage(`{"roots":{"x":1,"y":[1,{"b":2,"a":1}]},"elicitation":{}}`)})
	b := s.Identity(Parts{ClientCapabilities: json.RawMessage("{ \"elicitation\" : { },\n\"roots\":{\"y\":[1,{\"a\":1,\"b\":2}],\"x\":1}}\n")})
	if a != b {
		t.Error("capabilities in another order have another identity")
	}
}

func TestAnIdentityIsKeyedByItsStore(t *testing.T) {
	p := Parts{Name: "x"}
	if a, b := open(t).Identity(p), open(t).Identity(p); a == b || !a.valid() {
		t.Errorf("%s and %s", a, b)
	}
}

func TestValuesOfEnvAndHeadersAreInNoFile(t *testing.T) {
	s := open(t)
	const value = "correct-horse-battery"
	c := sample(s, "x")
	c.Identity = s.Identity(Parts{Name: "x", Env: map[string]secret.String{"K": secret.New(value)}, Headers: map[string]secret.String{"H": secret.New(value)}})
	publish(t, s, c)
	files := 0
	err := filepath.WalkDir(s.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(value)) || bytes.Contains([]byte(path), []byte(value)) {
			t.Errorf("%s holds the value", path)
		}
		return err
	})
	if err != nil || files < 3 {
		t.Errorf("looked at %d files, %v", files, err)
	}
}
