package pin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func raws(texts ...string) (list []json.RawMessage) {
	for _, text := range texts {
		list = append(list, json.RawMessage(text))
	}
	return list
}

// check returns the names of the tools that are held back.
func check(t testing.TB, s *Store, tools []json.RawMessage) []string {
	t.Helper()
	held, err := s.Check("x", tools)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(maps.Keys(held))
}

const base = `{"name":"a","description":"Reads.","inputSchema":{"type":"object","properties":{"n":{"maximum":1.0}}},"annotations":{"readOnlyHint":true},"_meta":{"x":[1,2]}}`

var changes = []struct {
	what, tool string
	members    []string // that differ; nil: none
}{
	{"nothing", base, nil},
	{"the order of members and white space", ` { "_meta":{"x":[ 1, 2]}, "annotations":{"readOnlyHint":true} ,"inputSchema":{"properties":{"n":{"maximum":1.0}},"type":"object"},"description":"Reads.","name":"a"}`, nil},
	{"the description", strings.Replace(base, "Reads.", "Reads. ", 1), []string{"description"}},
	{"a character nobody sees", strings.Replace(base, "Reads.", "Reads.\u200b", 1), []string{"description"}},
	{"the spelling of a string", strings.Replace(base, "Reads.", `\u0052eads.`, 1), []string{"description"}},
	{"the schema", strings.Replace(base, `"n":`, `"m":`, 1), []string{"inputSchema.properties.m", "inputSchema.properties.n"}},
	{"the spelling of a number", strings.Replace(base, "1.0", "1", 1), []string{"inputSchema.properties.n.maximum"}},
	{"the spelling of a key", strings.Replace(base, `"n":`, `"\u006e":`, 1), []string{"inputSchema.properties"}},
	{"annotations", strings.Replace(base, "true", "false", 1), []string{"annotations.readOnlyHint"}},
	{"annotations gone", strings.Replace(base, `"annotations":{"readOnlyHint":true},`, ``, 1), []string{"annotations"}},
	{"an unknown member", strings.Replace(base, "}}}", `}},"x y":null}`, 1), []string{`inputSchema."x y"`}},
	{"the order of an array", strings.Replace(base, "[1,2]", "[2,1]", 1), []string{"_meta.x"}},
	{"a member twice", strings.Replace(base, `"description"`, `"description":"Evil.","description"`, 1), []string{""}},
	{"a second definition of the name", base + "\n" + `{"name":"a"}`, []string{""}},
	{"a second definition of the name, the same", base + "\n" + base, []string{""}},
}

func TestAToolIsHeldBackWhenWhatItSaysHasChanged(t *testing.T) {
	for _, c := range changes {
		t.Run(c.what, func(t *testing.T) {
			s := Open(t.TempDir())
			if held := check(t, s, raws(base, `{"name":"b"}`)); len(held) != 0 {
				t.Fatalf("on first use %q is held back", held)
			}
			now := raws(strings.Split(c.tool+"\n"+`{"name":"b"}`, "\n")...)
			var want []string
			if c.members != nil {
				want = []string{"a"}
			}
			if held := check(t, s, now); !slices.Equal(held, want) {
				t.Errorf("held back is %q, want %q", held, want)
			}
			diff, err := s.Diff("x", now)
			if err != nil {
				t.Fatal(err)
			}
			var members []string
			for _, tool := range diff {
				if tool.Name != "a" || tool.Kind != Changed {
					t.Errorf("differs: %+v", tool)
				}
				for _, m := range tool.Members {
					members = append(members, m.Path)
					if bytes.Equal(m.Old, m.New) {
						t.Errorf("%s is said to differ: %s", m.Path, m.Old)
					}
				}
			}
			if !slices.Equal(members, c.members) {
				t.Errorf("differing members: %q, want %q", members, c.members)
			}
			if _, err := json.Marshal(diff); err != nil {
				t.Errorf("it cannot be printed: %v", err)
			}
			// Accepted, it is offered, and what was accepted before is not.
			if err := s.Accept("x", now, "a"); err != nil {
				t.Fatal(err)
			}
			if held := check(t, s, now); len(held) != 0 {
				t.Errorf("after it was accepted %q is held back", held)
			}
			if held := check(t, s, raws(base)); !slices.Equal(held, want) {
				t.Errorf("of the former listing %q is held back, want %q", held, want)
			}
		})
	}
}

func TestToolsThatComeAndGo(t *testing.T) {
	s := Open(t.TempDir())
	a, b, c := `{"name":"a"}`, `{"name":"b"}`, `{"name":"c"}`
	if held := check(t, s, raws()); len(held) != 0 {
		t.Errorf("of nothing %q is held back", held)
	}
	check(t, s, raws(a, b)) // the first listing: the empty one did not count
	check(t, s, raws(a))
	if held := check(t, s, raws(b, a)); len(held) != 0 {
		t.Errorf("%q came back unchanged, and is held back", held)
	}
	if held := check(t, s, raws(a, b, c, `{"title":"no name"}`)); !slices.Equal(held, []string{"c"}) {
		t.Errorf("held back is %q, want the new one", held)
	}
	got, err := s.Diff("x", raws(a, c))
	want := Diff{{Name: "b", Kind: Removed, Members: []Member{}}, {Name: "c", Kind: Added, Members: []Member{}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("the difference is %+v, %v", got, err)
	}
	// To accept the listing is to accept that b is gone.
	if err := s.Accept("x", raws(a, c)); err != nil {
		t.Fatal(err)
	}
	if held := check(t, s, raws(a, b, c)); !slices.Equal(held, []string{"b"}) {
		t.Errorf("held back is %q, want the one that was gone", held)
	}
}

func TestServersHaveRecordsOfTheirOwn(t *testing.T) {
	s := Open(t.TempDir())
	check(t, s, raws(base))
	if held, err := s.Check("y", raws(`{"name":"a"}`)); len(held) != 0 || err != nil {
		t.Errorf("held back is %v, %v", held, err)
	}
}

func TestAReasonHoldsNoWordOfTheServer(t *testing.T) {
	s := Open(t.TempDir())
	check(t, s, raws(base))
	held, err := s.Check("x", raws(`{"name":"a","EVIL":1}`, `{"name":"EVIL"}`))
	if err != nil || len(held) != 2 {
		t.Fatalf("held back is %v, %v", held, err)
	}
	for name, reason := range held {
		if strings.Contains(reason, "EVIL") || !strings.Contains(reason, "nightporter tools accept") {
			t.Errorf("%s: %s", name, reason)
		}
	}
}

func TestAToolThatIsNotListedIsNotAccepted(t *testing.T) {
	s := Open(t.TempDir())
	check(t, s, raws(`{"name":"a"}`))
	var unlisted *UnlistedError
	if err := s.Accept("x", raws(base), "a", "b"); !errors.As(err, &unlisted) || unlisted.Tool != "b" {
		t.Errorf("Accept answers %v", err)
	}
	if held := check(t, s, raws(base)); len(held) != 1 {
		t.Error("the one that is listed was accepted all the same")
	}
}

// file is the only record in the store.
func file(t testing.TB, s *Store) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(s.dir, "*.pins"))
	if err != nil || len(found) != 1 {
		t.Fatalf("records: %q, %v", found, err)
	}
	return found[0]
}

func TestARecordThatCannotBeReadHoldsEverythingBackUntilItIsReplaced(t *testing.T) {
	tools := raws(base, `{"name":"b"}`)
	later := []byte("nightporter-pins 2 sha256 00\n{}\n")
	for what, content := range map[string][]byte{
		"empty": {}, "text": []byte("hello\n"), "another server's": encode("y", tools), "not JSON": append(header([]byte("{")), '{'),
		"without tools": append(header([]byte(`{"server":"x"}`)), `{"server":"x"}`...), "later": later,
	} {
		t.Run(what, func(t *testing.T) {
			s := Open(t.TempDir())
			check(t, s, tools)
			path := file(t, s)
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time as well: it does not mend itself
				held, err := s.Check("x", tools)
				if len(held) != 2 || err == nil || errors.Is(err, ErrDamaged) == (what == "later") {
					t.Errorf("held back is %v, %v", held, err)
				}
			}
			if _, err := s.Diff("x", tools); err == nil {
				t.Error("Diff answers nevertheless")
			}
			err := s.Accept("x", tools, "b")
			if what == "later" {
				if kept, _ := os.ReadFile(path); err == nil || !bytes.Equal(kept, content) {
					t.Errorf("the record of a later version was replaced: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if held := check(t, s, tools); !slices.Equal(held, []string{"a"}) {
				t.Errorf("after b was accepted %q is held back", held)
			}
			if kept, err := os.ReadFile(path + ".damaged"); err != nil || !bytes.Equal(kept, content) {
				t.Errorf("set aside is %q, %v", kept, err)
			}
		})
	}
}

func TestAnyByteOfARecordCounts(t *testing.T) {
	whole := encode("x", raws(`{"name":"a"}`))
	for i := range whole {
		if _, err := decode("x", whole[:i]); err == nil {
			t.Fatalf("the first %d bytes were read", i)
		}
		for bit := range 8 {
			whole[i] ^= 1 << bit
			if _, err := decode("x", whole); err == nil {
				t.Fatalf("with bit %d of byte %d changed it was read", bit, i)
			}
			whole[i] ^= 1 << bit
		}
	}
}

func TestWhatCannotBeRecordedIsHeldBack(t *testing.T) {
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	held, err := Open(blocked).Check("x", raws(base))
	if len(held) != 1 || err == nil {
		t.Errorf("held back is %v, %v", held, err)
	}
	deep := `{"name":"a","x":` + strings.Repeat("[", 9999) + strings.Repeat("]", 9999) + `}`
	s := Open(t.TempDir())
	for range 2 {
		if held, err := s.Check("x", raws(deep)); len(held) != 1 || err == nil {
			t.Errorf("held back is %v, %v", held, err)
		}
	}
}

func TestRecordsAreForTheUserAlone(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes say little there")
	}
	s := Open(filepath.Join(t.TempDir(), "pins"))
	check(t, s, raws(base))
	for path, want := range map[string]os.FileMode{s.dir: 0o700, file(t, s): 0o600, file(t, s) + ".lock": 0o600} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
}

// scramble spells a JSON value in another way that says the same.
func scramble(t *rapid.T, v any) string {
	space := rapid.SampledFrom([]string{"", " ", "\n\t"})
	switch v := v.(type) {
	case map[string]any:
		var members []string
		for _, key := range rapid.Permutation(slices.Sorted(maps.Keys(v))).Draw(t, "order") {
			name, _ := json.Marshal(key)
			members = append(members, space.Draw(t, "s")+string(name)+space.Draw(t, "s")+":"+scramble(t, v[key]))
		}
		return "{" + strings.Join(members, ",") + space.Draw(t, "s") + "}"
	case []any:
		var elements []string
		for _, e := range v {
			elements = append(elements, scramble(t, e)+space.Draw(t, "s"))
		}
		return "[" + space.Draw(t, "s") + strings.Join(elements, ",") + "]"
	}
	b, _ := json.Marshal(v)
	return string(b)
}

// value draws a JSON value.
func value(t *rapid.T, depth int) any {
	kinds := 4
	if depth == 0 {
		kinds = 2
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return rapid.String().Draw(t, "string")
	case 1:
		return rapid.SampledFrom([]any{nil, true, false, json.Number("1"), json.Number("1.0"), json.Number("1e400")}).Draw(t, "scalar")
	case 2:
		list := make([]any, rapid.IntRange(0, 3).Draw(t, "n"))
		for i := range list {
			list[i] = value(t, depth-1)
		}
		return list
	}
	object := map[string]any{}
	for range rapid.IntRange(0, 3).Draw(t, "n") {
		// Keys that differ in more than case: the order of others counts.
		object[rapid.StringMatching(`[a-z"\\é]{0,4}`).Draw(t, "key")] = value(t, depth-1)
	}
	return object
}

func TestWhatWasAcceptedIsOfferedAndAnyOtherMeaningIsNot(t *testing.T) {
	dir, n := t.TempDir(), 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		s := Open(filepath.Join(dir, strconv.Itoa(n)))
		tool := map[string]any{"name": "a", "description": rapid.String().Draw(t, "description"), "inputSchema": value(t, 3)}
		if held, err := s.Check("x", raws(scramble(t, tool))); len(held) > 0 || err != nil {
			t.Fatalf("on first use: %v, %v", held, err)
		}
		if held, err := s.Check("x", raws(scramble(t, tool))); len(held) > 0 || err != nil {
			t.Fatalf("spelled otherwise: %v, %v", held, err)
		}
		key := rapid.SampledFrom([]string{"description", "inputSchema", "annotations"}).Draw(t, "what changes")
		old, had := tool[key]
		tool[key] = value(t, 3)
		now := scramble(t, tool)
		if had && reflect.DeepEqual(old, tool[key]) {
			return
		}
		if held, err := s.Check("x", raws(now)); len(held) != 1 || err != nil {
			t.Fatalf("changed: %v, %v", held, err)
		}
		diff, err := s.Diff("x", raws(now))
		if err != nil || len(diff) != 1 || !slices.ContainsFunc(diff[0].Members, func(m Member) bool { return strings.HasPrefix(m.Path, key) }) {
			t.Fatalf("the change of %s is not in the difference: %+v, %v", key, diff, err)
		}
		if err := s.Accept("x", raws(now)); err != nil {
			t.Fatal(err)
		}
		if held, err := s.Check("x", raws(now)); len(held) > 0 || err != nil {
			t.Fatalf("accepted: %v, %v", held, err)
		}
	})
}

// The test of several processes runs this binary again, as the process that its environment says.
func TestMain(m *testing.M) {
	dir := os.Getenv("PIN_TEST_DIR")
	if dir == "" {
		os.Exit(m.Run())
	}
	me := os.Getenv("PIN_TEST_PROCESS")
	s := Open(dir)
	// All race to be the first with a listing of their own, and then accept a tool of their own, again and again.
	if _, err := s.Check("x", raws(`{"name":"first","by":`+me+`}`)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for round := range 10 {
		mine := fmt.Sprintf(`{"name":"of-%s","round":%d}`, me, round)
		err := s.Accept("x", raws(mine), "of-"+me)
		held, checkErr := s.Check("x", raws(mine))
		if err := errors.Join(err, checkErr); err != nil || len(held) > 0 {
			fmt.Fprintln(os.Stderr, round, held, err)
			os.Exit(1)
		}
	}
}

func TestProcessesAcceptAtOnceAndLoseNothing(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const processes = 4
	dir := filepath.Join(t.TempDir(), "new")
	var wg sync.WaitGroup
	for me := range processes {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), exe)
			cmd.Env = append(os.Environ(), "PIN_TEST_DIR="+dir, "PIN_TEST_PROCESS="+strconv.Itoa(me))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("process %d: %v\n%s", me, err, out)
			}
		})
	}
	wg.Wait()
	s := Open(dir)
	first := 0
	for me := range processes {
		if held := check(t, s, raws(fmt.Sprintf(`{"name":"of-%d","round":9}`, me))); len(held) > 0 {
			t.Errorf("what process %d accepted last is lost", me)
		}
		if held := check(t, s, raws(fmt.Sprintf(`{"name":"first","by":%d}`, me))); len(held) == 0 {
			first++
		}
	}
	if first != 1 {
		t.Errorf("%d listings were taken for the first", first)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(encode("x", raws(base, `{}`)))
	for _, seed := range []string{"", "\n", `{"server":"x","tools":[1,null,{}]}`, `{"server":"x"}`, "nightporter-pins 2\n", "nightporter-pins 1 sha256 00\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = decode("x", data)
		tools, err := decode("x", append(header(data), data...))
		if err != nil {
			return
		}
		again, err := decode("x", encode("x", tools))
		if err != nil || !slices.EqualFunc(tools, again, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
			t.Errorf("read %q and then %q, %v", tools, again, err)
		}
	})
}
