package catalog

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// small is a catalog whose file is short enough to be damaged in every place.
func small(s *Store) *Catalog {
	return &Catalog{Server: "x", Identity: s.Identity(Parts{}), FetchedAt: past, Tools: raws(`{"name":"a"}`), Cacheable: true}
}

func TestAFileThatIsCutOffAnywhereIsDamaged(t *testing.T) {
	file, err := encode(small(open(t)))
	if err != nil {
		t.Fatal(err)
	}
	for n := range file {
		if c, err := decode(file[:n]); err == nil {
			t.Fatalf("the first %d of %d bytes were read as %s", n, len(file), spell(c))
		}
	}
}

func TestAFileWithAnyBitChangedIsDamaged(t *testing.T) {
	file, err := encode(small(open(t)))
	if err != nil {
		t.Fatal(err)
	}
	for i := range file {
		for bit := range 8 {
			file[i] ^= 1 << bit
			if c, err := decode(file); err == nil {
				t.Fatalf("with bit %d of byte %d changed the file was read as %s", bit, i, spell(c))
			}
			file[i] ^= 1 << bit
		}
	}
	if _, err := decode(append(file, '\n')); err == nil {
		t.Error("a longer file was read")
	}
}

func TestADamagedFileIsSetAside(t *testing.T) {
	s := open(t)
	c := small(s)
	other := small(s)
	other.Identity = s.Identity(Parts{Name: "other"})
	publish(t, s, other)
	foreign, err := os.ReadFile(path(s, other))
	if err != nil {
		t.Fatal(err)
	}
	later := []byte("{}\n")
	later = append(fmt.Appendf(nil, "nightporter-catalog 2 sha256 %x\n", sha256.Sum256(later)), later...)
	notJSON := []byte("{\n")
	notJSON = append(header(notJSON), notJSON...)
	for name, content := range map[string][]byte{
		"empty": {}, "text": []byte("hello"), "another format": later, "another catalog": foreign, "sealed junk": notJSON,
	} {
		t.Run(name, func(t *testing.T) {
			publish(t, s, c)
			if err := os.WriteFile(path(s, c), content, 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := s.Load("x", c.Identity)
			if !errors.Is(err, ErrDamaged) || got != nil {
				t.Errorf("Load answers %v, %v; want ErrDamaged", got, err)
			}
			if _, err := s.Load("x", c.Identity); !errors.Is(err, ErrNone) {
				t.Errorf("the second Load answers %v, want ErrNone", err)
			}
			aside := asides(t, s)
			if len(aside) == 0 {
				t.Fatal("nothing was set aside")
			}
			if kept, err := os.ReadFile(aside[len(aside)-1]); err != nil || !bytes.Equal(kept, content) {
				t.Errorf("set aside is %q, %v; want %q", kept, err, content)
			}
		})
	}
	if n := len(asides(t, s)); n != keepDamaged {
		t.Errorf("%d damaged files are kept, want %d", n, keepDamaged)
	}
	if _, err := s.Load("x", other.Identity); err != nil {
		t.Errorf("the good neighbour: %v", err)
	}
}

func asides(t *testing.T, s *Store) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(s.folder("x"), "*"+damagedSuffix))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestPublishReplacesADamagedFile(t *testing.T) {
	s := open(t)
	c := small(s)
	publish(t, s, c)
	if err := os.WriteFile(path(s, c), []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	publish(t, s, c)
	if _, err := s.Load("x", c.Identity); err != nil || len(asides(t, s)) != 1 {
		t.Errorf("Load answers %v, set aside: %v", err, asides(t, s))
	}
}

func TestTooLargeAFileIsDamaged(t *testing.T) {
	s := open(t)
	c := small(s)
	publish(t, s, c)
	if err := os.Truncate(path(s, c), maxFile+1); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load("x", c.Identity); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), fmt.Sprint(maxFile)) {
		t.Errorf("Load answers %v, want ErrDamaged with the limit", err)
	}
}

// FuzzDecode gives the decoder whole files, and bodies under a header that fits them.
func FuzzDecode(f *testing.F) {
	s := open(f)
	for _, c := range []*Catalog{small(s), sample(s, "x")} {
		file, err := encode(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(file)
		f.Add(file[bytes.IndexByte(file, '\n')+1:])
	}
	for _, seed := range []string{"", "\n", "{}", "null", `{"tools":[1,null,{}],"TOOLS":[2]}`, `{"fetched_at":"0000-01-01T00:00:00Z","ttl_ms":9223372036854775807}`, `{"server_info":null}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		decode(data)
		c, err := decode(append(header(data), data...))
		if err != nil {
			return
		}
		// What was read can be written, and is then read as the same.
		file, err := encode(c)
		if err != nil {
			t.Skip(err) // a year that JSON has no form for, or too deep
		}
		again, err := decode(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []*Catalog{c, again} {
			c.FetchedAt = c.FetchedAt.UTC()
			for _, list := range c.lists() {
				if len(*list.raws) == 0 {
					*list.raws = nil
				}
			}
		}
		if !reflect.DeepEqual(c, again) {
			t.Errorf("read\n%s\nand then\n%s", spell(c), spell(again))
		}
		RevisionOf(c)
	})
}

// FuzzJSON holds the scanner against encoding/json.
func FuzzJSON(f *testing.F) {
	for _, seed := range []string{
		`{"annotations":{"readOnlyHint":true,"title":"t"},"x":1e400}`, ` { "annotations" : { "a":1 , "DestructiveHint":false } } `,
		`{"annotations":{"readOnlyHint":true}}`, `{"annotations":null}`, `{"annotations":{},"annotations":{"openWorldHint":[{"}":"]"}]}}`,
		`["\"\\", "\\\\"]`, `"\u0061"`, `-1.5e+7`, `[[],{},[{}]]`, `{"\u0061nnotations":{"readOnlyHin\u0074":1,"idempotentHint":2,"b":[1 , 2]}}`, `nul`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		stripped := StripHints(data)
		Digest(data)
		if !json.Valid(data) {
			if !bytes.Equal(stripped, data) {
				t.Errorf("%q is not JSON and became %q", data, stripped)
			}
			return
		}
		start := space(data, 0)
		if end := value(data, start); space(data, end) != len(data) {
			t.Errorf("value stopped at %d of %q", end, data)
		}
		if _, end := digestAt(data, start); space(data, end) != len(data) {
			t.Errorf("digestAt stopped at %d of %q", end, data)
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, data); err != nil {
			t.Fatal(err)
		}
		if Digest(data) != Digest(compact.Bytes()) {
			t.Errorf("white space changes the digest of %q", data)
		}
		if !json.Valid(stripped) {
			t.Fatalf("%q became %q", data, stripped)
		}
		if again := StripHints(stripped); !bytes.Equal(again, stripped) {
			t.Errorf("%q became %q, and then %q", data, stripped, again)
		}
		// As a decoder sees it, only the hints are missing. Duplicate keys are left to the examples below.
		var object, left map[string]json.RawMessage
		if json.Unmarshal(data, &object) != nil || json.Unmarshal(stripped, &left) != nil {
			return
		}
		for key, raw := range object {
			if !strings.EqualFold(key, "annotations") && !bytes.Equal(left[key], raw) {
				t.Errorf("member %q was %q and became %q", key, raw, left[key])
			}
		}
		for key, raw := range left {
			var annotations map[string]json.RawMessage
			if !strings.EqualFold(key, "annotations") || json.Unmarshal(raw, &annotations) != nil {
				continue
			}
			for name := range annotations {
				for _, hint := range hints {
					if strings.EqualFold(name, hint) {
						t.Errorf("%q is left in %q", name, stripped)
					}
				}
			}
		}
	})
}

func TestStripHintsTakesTheHintsAndNothingElse(t *testing.T) {
	for tool, want := range map[string]string{
		`{"name":"a","annotations":{"title":"T","readOnlyHint":true,"x":1.0},"y":1e400}`:                            `{"name":"a","annotations":{"title":"T","x":1.0},"y":1e400}`,
		`{"annotations":{"readOnlyHint":true,"destructiveHint":false,"idempotentHint":true,"openWorldHint":false}}`: `{"annotations":{}}`,
		`{"annotations":{"readOnlyHint":true , "title" : "T" }}`:                                                    `{"annotations":{ "title" : "T" }}`,
		`{"annotations":{ "title" : "T" , "readOnlyHint":true }}`:                                                   `{"annotations":{ "title" : "T" }}`,
		`{"annotations":{"readOnlyHint":false},"annotations":{"readOnlyHint":true}}`:                                `{"annotations":{},"annotations":{}}`,
		`{"\u0061nnotations":{"read\u004fnlyHint":true}}`:                                                           `{"\u0061nnotations":{}}`,
		`{"annotations":{"READONLYHINT":true}}`:                                                                     `{"annotations":{}}`,
		// Not the tool's annotations.
		`{"inputSchema":{"annotations":{"readOnlyHint":true}},"readOnlyHint":1}`: `{"inputSchema":{"annotations":{"readOnlyHint":true}},"readOnlyHint":1}`,
		`{"annotations":{"x":{"readOnlyHint":true}}}`:                            `{"annotations":{"x":{"readOnlyHint":true}}}`,
		`{"annotations":[{"readOnlyHint":true}]}`:                                `{"annotations":[{"readOnlyHint":true}]}`,
		` [ ] `:                                ` [ ] `,
		`{"annotations":{"readOnlyHint":true}`: `{"annotations":{"readOnlyHint":true}`,
		``:                                     ``,
	} {
		in := json.RawMessage(tool)
		if got := StripHints(in); string(got) != want {
			t.Errorf("%s\nbecame %s\nwant   %s", tool, got, want)
		}
		if string(in) != tool {
			t.Errorf("the argument was changed from %s to %s", tool, in)
		}
	}
}
