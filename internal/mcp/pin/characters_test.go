package pin

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestWhatIsNotSeenIsSpelledOutAndToldOf(t *testing.T) {
	for _, c := range []struct{ text, want, class string }{
		{"plain\n\ttext – “é” 漢字 ß", "plain\n\ttext – “é” 漢字 ß", ""},
		{"a\u202eb", `a\u{202E}b`, "bidirectional control (U+202E)"},
		{"a\u2066b\u2069", `a\u{2066}b\u{2069}`, "bidirectional control (U+2066, U+2069)"},
		{"a\u200bb", `a\u{200B}b`, "invisible character (U+200B)"},
		{"a\u00adb\ufeff", `a\u{00AD}b\u{FEFF}`, "invisible character (U+00AD, U+FEFF)"},
		{"a\u034f\u3164", `a\u{034F}\u{3164}`, "invisible character (U+034F, U+3164)"},
		{"a\u2028b\u2029", `a\u{2028}b\u{2029}`, "line or paragraph separator (U+2028, U+2029)"},
		{"a\ufe00\U000e0100", `a\u{FE00}\u{E0100}`, "variation selector (U+FE00, U+E0100)"},
		{"\U000e0069\U000e0067\U000e006e\U000e006f\U000e0072\U000e0065", `\u{E0069}\u{E0067}\u{E006E}\u{E006F}\u{E0072}\u{E0065}`, "tag character (U+E0069, U+E0067, U+E006E, U+E006F, …)"},
		{"a\x1b[2Jb\x7f\u009b", `a\u{001B}[2Jb\u{007F}\u{009B}`, "control character (U+001B, U+007F, U+009B)"},
		{"a\rb", `a\u{000D}b`, "control character (U+000D)"},
		{"a\r\nb", "a\\u{000D}\nb", ""}, // the newline of some systems: nothing hides in it
		// Emoji are what they are.
		{"⚠️ 👨‍💻 1️⃣ ❤️‍🔥 👍🏽", "⚠️ 👨‍💻 1️⃣ ❤️‍🔥 👍🏽", ""},
		{"⚠\ufe0f\ufe0f", "⚠\ufe0f\\u{FE0F}", "variation selector (U+FE0F)"},
		{"a\ufe0f", `a\u{FE0F}`, "variation selector (U+FE0F)"},
		{"a\u200db", `a\u{200D}b`, "invisible character (U+200D)"},
		// What is spelled out joins nothing: found by the property below.
		{"\ufe0f\u200d⚠", `\u{FE0F}\u{200D}⚠`, "invisible character (U+200D)"},
		{"⚠\ufe0f\ufe0f\u200d⚠", "⚠\ufe0f\\u{FE0F}\\u{200D}⚠", "invisible character (U+200D)"},
	} {
		if got := Escape(c.text); got != c.want {
			t.Errorf("%+q becomes %+q, want %+q", c.text, got, c.want)
		}
		raw, err := json.Marshal(map[string]string{"d": c.text})
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(Suspicious(raw), "; ")
		if c.class == "" && got != "" || !strings.HasSuffix(got, c.class) {
			t.Errorf("of %+q is said: %s; want %s", c.text, got, c.class)
		}
	}
	if got, want := Escape("\x9b\ufe0f\u200d\xff"), `\x{9B}\u{FE0F}\u{200D}\x{FF}`; got != want {
		t.Errorf("a broken byte is taken for a symbol: %+q, want %+q", got, want)
	}
	if got := Escape("a\x9bb\xff"); got != `a\x{9B}b\x{FF}` {
		t.Errorf("bytes that are no UTF-8 become %q", got)
	}
}

func TestSuspiciousLooksEverywhere(t *testing.T) {
	got := Suspicious(json.RawMessage(`{"name":"a\u202e","inputSchema":{"properties":{"p q":{"enum":["x",{"y\u200b":"\udb40\udc41\u200b"}]}},"\u200b":1},"title":"t"}`))
	want := []string{
		`name: 1 × bidirectional control (U+202E)`,
		`inputSchema.properties."p q".enum: 2 × invisible character (U+200B)`,
		`inputSchema.properties."p q".enum: 1 × tag character (U+E0041)`,
		`inputSchema."\u{200B}": 1 × invisible character (U+200B)`,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("said is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	deep := strings.Repeat(`{"a":`, 40) + `"\u202e"` + strings.Repeat(`}`, 40)
	if got := Suspicious(json.RawMessage(deep)); len(got) != 1 {
		t.Errorf("deep down: %q", got)
	}
	for _, clean := range []string{base, `{"d":"é\n\"\\ 漢"}`, `{}`, ``, `nonsense "\`} {
		if got := Suspicious(json.RawMessage(clean)); got != nil {
			t.Errorf("of %s is said %q", clean, got)
		}
	}
}

func TestSuspiciousIsBounded(t *testing.T) {
	var b strings.Builder
	for range 2000 {
		b.WriteString(`"k` + strings.Repeat("\u200b", b.Len()%50+1) + strings.Repeat("x", b.Len()%7) + `":1,`)
	}
	got := Suspicious(json.RawMessage("{" + b.String() + `"z":1}`))
	if len(got) != maxPlaces+1 || !strings.HasPrefix(got[maxPlaces], "elsewhere: ") {
		t.Errorf("%d texts, the last %q", len(got), got[len(got)-1])
	}
}

func TestEscapedJSONSaysTheSameAndHidesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(
			rapid.String(),
			rapid.StringOf(rapid.SampledFrom([]rune("a\u202e\u200b\U000e0041\ufe0f\u200d⚠\r\n\x7f\u0085\u2028"))),
		).Draw(t, "text")
		raw, err := json.Marshal([]string{text})
		if err != nil {
			t.Fatal(err)
		}
		escaped := EscapeJSON(raw)
		var got []string
		if err := json.Unmarshal(escaped, &got); err != nil || got[0] != text {
			t.Fatalf("%q became %q: %v", raw, escaped, err)
		}
		if again := Escape(string(escaped)); again != string(escaped) {
			t.Fatalf("hidden characters are left in %+q", escaped)
		}
		if shown := Escape(text); !utf8.ValidString(shown) || len(Suspicious(json.RawMessage(`"`+strings.NewReplacer(`"`, ``, `\`, ``, "\n", "", "\t", "").Replace(shown)+`"`))) > 0 {
			t.Fatalf("hidden characters are left in %+q", shown)
		}
	})
}

func FuzzSuspicious(f *testing.F) {
	for _, seed := range []string{base, `{"a\u202e":["\udb40\udc41",{"b":"\ud800"}]}`, "\"\xff\u200b\"", `"\`, `{"a":"`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, text := range Suspicious(data) {
			if Escape(text) != text {
				t.Errorf("hidden characters are left in %+q", text)
			}
		}
		if json.Valid(data) && !json.Valid(EscapeJSON(data)) {
			t.Errorf("%q became %q", data, EscapeJSON(data))
		}
		Compare([]json.RawMessage{data}, []json.RawMessage{data, json.RawMessage(base)})
	})
}
