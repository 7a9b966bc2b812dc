package secret

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestStringNeverPrintsItsValue(t *testing.T) {
	const value = "sk-very-secret-0123"
	s := New(value)
	holder := struct{ Token String }{s}
	encoded, err := json.Marshal(map[string]any{"a": s, "b": &s, "c": holder})
	if err != nil {
		t.Fatal(err)
	}
	var logged strings.Builder
	slog.New(slog.NewTextHandler(&logged, nil)).Info("x", "token", s, "holder", holder)
	texts := []string{string(encoded), logged.String()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T %v"} {
		texts = append(texts, fmt.Sprintf(verb, s), fmt.Sprintf(verb, holder), fmt.Sprintf(verb, &s), fmt.Sprintf(verb, []String{s}))
	}
	for _, text := range texts {
		if strings.Contains(text, value) || strings.Contains(text, fmt.Sprintf("%x", value)) {
			t.Errorf("the value shows in %q", text)
		}
	}
	if s.Reveal() != value {
		t.Errorf("Reveal = %q, want %q", s.Reveal(), value)
	}
}

func TestMaskerReplacesValuesInTextAndInJSON(t *testing.T) {
	var m Masker
	m.Add(New(`a"quoted"key`), New("token-1"), New("token-1-longer"), New("short"))
	got := m.Text(`token-1-longer token-1 a"quoted"key {"k":"a\"quoted\"key"} short`)
	if want := `*** *** *** {"k":"***"} short`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := string(m.Bytes([]byte("x token-1 y"))); got != "x *** y" {
		t.Errorf("got %s", got)
	}
}
