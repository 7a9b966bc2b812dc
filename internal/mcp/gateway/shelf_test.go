package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"pgregory.net/rapid"

	"nightporter/internal/mcp/wire"
)

func TestAShelfKeepsTheNewest(t *testing.T) {
	mine, other := &shelf{}, &shelf{}
	t.Cleanup(mine.close)
	t.Cleanup(other.close)
	theirs, err := other.put(json.RawMessage(`{}`), wire.ToolsCall)
	if err != nil {
		t.Fatal(err)
	}
	var all []*keptResult
	for range maxKeptBy + 3 {
		k, err := mine.put(json.RawMessage(`{"content":[{"type":"text","text":"x"}]}`), wire.ToolsCall)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, k)
	}
	for i, k := range all {
		if got, want := mine.find(k.id) != nil, i >= 3; got != want {
			t.Errorf("result %d is kept: %v", i, got)
		}
	}
	if _, err := all[0].bytes(span{0, 1}); err != errNotKept {
		t.Errorf("a result that went is read: %v", err)
	}
	if other.find(theirs.id) == nil || mine.find(theirs.id) != nil {
		t.Error("one client's results push out, or are, another's")
	}
	mine.close()
	if mine.find(all[len(all)-1].id) != nil {
		t.Error("a result is kept after its client's end")
	}
	if _, err := mine.put(json.RawMessage(`{}`), wire.ToolsCall); err == nil {
		t.Error("a result is kept for a client that has gone")
	}
}

func TestBoundsInBytesPushOutTheOldest(t *testing.T) {
	a, b := &shelf{}, &shelf{}
	r := &room{}
	add := func(on *shelf, mib int64) *keptResult {
		k, err := on.put(json.RawMessage(`{}`), wire.ToolsCall)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(on.close)
		k.size = mib << 20
		r.fit(k)
		r.all = append(r.all, k)
		return k
	}
	first := add(a, 200)
	second := add(a, 100)
	if len(r.all) != 1 || r.all[0] != second {
		t.Errorf("%d are kept, %v among them", len(r.all), first.size)
	}
	for range 2 * maxKeptAllSize / maxKeptBytesBy {
		add(&shelf{}, 250)
	}
	var sum int64
	for _, k := range r.all {
		sum += k.size
	}
	if sum > maxKeptAllSize || sum < maxKeptAllSize-maxKeptBytesBy {
		t.Errorf("%d MiB are kept", sum>>20)
	}
	_ = b
}

func TestAHolderOfManyClientsPushesOutItsOwnResults(t *testing.T) {
	theirs := &shelf{holder: "theirs"}
	t.Cleanup(theirs.close)
	k, err := theirs.put(json.RawMessage(`{}`), wire.ToolsCall)
	if err != nil {
		t.Fatal(err)
	}
	var last *keptResult
	for range maxKeptAll/maxKeptBy + 1 {
		mine := &shelf{holder: "mine"}
		t.Cleanup(mine.close)
		for range maxKeptBy {
			if last, err = mine.put(json.RawMessage(`{}`), wire.ToolsCall); err != nil {
				t.Fatal(err)
			}
		}
	}
	if theirs.find(k.id) == nil || last.on.find(last.id) == nil {
		t.Error("what is kept is not the other holder's, and the newest")
	}
	e := New(nil, Profile{Clients: NewQuota(9, nil)}, "test", nil)
	defer e.Close(t.Context())
	first, err1 := e.admit("first", wire.Client{}, wire.SessionEra)
	second, err2 := e.admit("second", wire.Client{}, wire.SessionEra)
	if err1 != nil || err2 != nil || first.mine.kept.holder != any(e.p.Clients) || second.mine.kept.holder != first.mine.kept.holder {
		t.Error("two clients of one holder are of two")
	}
}

// What is read of a string is what encoding/json reads, in any chunks.
func TestUnquotingIsDecoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inner := strings.Join(rapid.SliceOf(rapid.SampledFrom([]string{
			"a", "ä", "🎉", `\n`, `\"`, `\\`, `\/`, `\u0041`, `\u00e4`, `\ud83c\udf89`, `\ud83c`, `\udf89`, `\u0000`, strings.Repeat("x", 700),
		})).Draw(t, "pieces"), "")
		var want string
		if err := json.Unmarshal([]byte(`"`+inner+`"`), &want); err != nil {
			t.Fatal(err)
		}
		var r io.Reader = &unquoter{rest: []byte(inner)}
		if rapid.Bool().Draw(t, "byte by byte") {
			r = iotest.OneByteReader(r)
		}
		got, err := io.ReadAll(r)
		if err != nil || string(got) != want {
			t.Fatalf("%q is read as %q, %v; want %q", inner, got, err, want)
		}
	})
}

// However a text is cut, the pieces are whole characters and together the text.
func TestPiecesTogetherAreTheText(t *testing.T) {
	s := &shelf{}
	t.Cleanup(s.close)
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOf(rapid.SampledFrom([]rune("aäか🎉\n"))).Draw(t, "text")
		k, err := s.put(wire.Set(nil, wire.Encode([]any{map[string]string{"type": "text", "text": text}}), "content"), wire.ToolsCall)
		if err != nil {
			t.Fatal(err)
		}
		length := rapid.Int64Range(1, 9).Draw(t, "length")
		var whole []byte
		for p := k.parts[1]; int64(len(whole)) < p.size(); {
			data, from, err := k.read(p, int64(len(whole)), length)
			if err != nil || from != int64(len(whole)) || len(data) == 0 || !utf8.Valid(data) || int64(len(data)) > max(length, utf8.UTFMax) {
				t.Fatalf("%q from %d, %v", data, from, err)
			}
			whole = append(whole, data...)
		}
		if string(whole) != text {
			t.Fatalf("%q, want %q", whole, text)
		}
	})
}

// What is kept is written from the result itself: no copy of it is made in memory.
func TestKeepingALongResultTakesNoMemoryToSpeakOf(t *testing.T) {
	s := &shelf{}
	t.Cleanup(s.close)
	const size = 8 << 20
	text := strings.Repeat(`0123456789abcd\n`, size/32)
	result := json.RawMessage(`{"content":[{"type":"text","text":"` + text + `"},{"type":"image","mimeType":"image/png","data":"` + strings.Repeat("AAAA", size/8) + `"}]}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	k, err := s.put(result, wire.ToolsCall)
	if err != nil {
		t.Fatal(err)
	}
	instead := k.instead(notice{"s", "tool t", 1 << 16, true}, result)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > size/8 || len(instead) > 16<<10 {
		t.Errorf("%d KiB of memory for %d, and %d bytes in its place", took>>10, len(result), len(instead))
	}
}

func TestWhatIsNoBase64IsKeptAsItStands(t *testing.T) {
	s := &shelf{}
	t.Cleanup(s.close)
	const block = `{"type":"image","mimeType":"image/png","data":"not base64!"}`
	k, err := s.put(json.RawMessage(`{"content":[`+block+`,`+block+`,{"type":"text","text":"after"}]}`), wire.ToolsCall)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{block, block, "after"} {
		if data, _, err := k.read(k.parts[i+1], 0, 1000); err != nil || string(data) != want {
			t.Errorf("part %d: %q, %v", i, data, err)
		}
	}
	many := strings.Repeat(`{"type":"text","text":"a"},`, maxParts+5) + `{"type":"text","text":"b"}`
	if k, err = s.put(json.RawMessage(`{"content":[`+many+`]}`), wire.ToolsCall); err != nil || len(k.parts) != maxParts+1 {
		t.Errorf("%d parts, %v", len(k.parts), err)
	}
	if instead := k.instead(notice{"s", "tool t", 100, true}, json.RawMessage(`{"content":[`+many+`]}`)); len(instead) > 16<<10 || !bytes.Contains(instead, []byte("more parts")) {
		t.Errorf("%d bytes stand in the place of it", len(instead))
	}
}

func FuzzKept(f *testing.F) {
	for _, seed := range []string{`{"content":[{"type":"text","text":"a\ud800"}]}`, `{"contents":[{"blob":"/w=="}],"messages":[{"content":{"resource":{"text":"x"}}}]}`, `{"structuredContent":[1]}`, `{"content":5}`, `[]`} {
		f.Add(seed, "content/0?offset=1&length=2")
	}
	s := &shelf{}
	f.Cleanup(s.close)
	f.Fuzz(func(t *testing.T, raw, uri string) {
		_, _ = parseAddress(resultPrefix + uri)
		k, err := s.put(json.RawMessage(raw), wire.ToolsCall)
		if err != nil {
			return
		}
		if data, _, err := k.read(k.parts[0], 0, int64(len(raw))); err != nil || string(data) != raw && utf8.ValidString(raw) {
			t.Errorf("the whole is %q, %v", data, err)
		}
		for _, p := range k.parts {
			if _, err := k.content(p, "u", 0, p.size()); err != nil {
				t.Errorf("%s: %v", p.name, err)
			}
		}
		if instead := k.instead(notice{"s", "w", 10, true}, json.RawMessage(raw)); wire.Check(instead) != nil {
			t.Errorf("no JSON stands in its place: %s", instead)
		}
	})
}

func TestInstructionsStayWithinTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(200, 5000).Draw(t, "limit")
		preface := rapid.StringN(0, 50, 100).Draw(t, "preface")
		var all []instruction
		size := len(preface)
		for i := range rapid.IntRange(0, 12).Draw(t, "servers") {
			in := instruction{fmt.Sprintf("server%d", i), rapid.StringN(1, 800, 3000).Draw(t, "text")}
			size += len(in.head()) + len(in.text) + 2
			all = append(all, in)
		}
		got := merged(preface, all, limit)
		if len(got) > limit {
			t.Fatalf("%d bytes, limit %d", len(got), limit)
		}
		if !strings.HasPrefix(got, preface) {
			t.Fatal("our own part is missing")
		}
		if size+2 <= limit {
			for _, in := range all {
				if !strings.Contains(got, in.head()+in.text) {
					t.Fatalf("%s is cut although there is room", in.server)
				}
			}
		}
	})
}

func TestWhoSaysLittleIsHeardWhole(t *testing.T) {
	all := []instruction{{"talker", strings.Repeat("blah ", 2000)}, {"brief", "Use me for mail."}, {"other", strings.Repeat("words ", 500)}}
	got := merged("Preface.", all, 4096)
	for _, want := range []string{"Preface.\n\n# talker\n\nblah", "# brief\n\nUse me for mail.", "# other\n\nwords", "… [cut: "} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing", want)
		}
	}
	if len(got) > 4096 || len(got) < 4000 {
		t.Errorf("%d bytes", len(got))
	}
	var crowd []instruction
	for i := range 100 {
		crowd = append(crowd, instruction{fmt.Sprint("s", i), strings.Repeat("text ", 50)})
	}
	if got := merged("", crowd, 4096); len(got) > 4096 || !strings.Contains(got, "left out") {
		t.Errorf("a crowd: %.200q", got)
	}
}
