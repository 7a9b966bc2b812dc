// Package secret holds values that must not appear in text that leaves the process.
//
// A [String] prints as *** with every fmt verb and in every encoding; the only
// way to the value is Reveal. A [Masker] replaces known values in text that
// other programs wrote: stderr of servers, transcripts, error messages.
package secret

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
)

// Mask is what stands in place of a secret.
const Mask = "***"

// String is a secret text. Its zero value is the empty secret, which prints as nothing.
type String struct{ value string }

// New makes a secret of value.
func New(value string) String { return String{value} }

// Reveal returns the value. Call it only where the value is handed to the
// program, header or file that it is meant for.
func (s String) Reveal() string { return s.value }

// Empty reports whether there is no value.
func (s String) Empty() bool { return s.value == "" }

// String implements [fmt.Stringer]; it never returns the value.
func (s String) String() string {
	if s.value == "" {
		return ""
	}
	return Mask
}

// Format implements [fmt.Formatter] so that no verb, %#v and %x included, prints the value.
func (s String) Format(f fmt.State, _ rune) { fmt.Fprint(f, s.String()) }

// MarshalText implements [encoding.TextMarshaler]; JSON and TOML see the mask.
func (s String) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue implements [slog.LogValuer].
func (s String) LogValue() slog.Value { return slog.StringValue(s.String()) }

// minMasked is the length below which a value is not searched for: masking
// every "1" or "true" in a text would hide the text and protect nothing.
const minMasked = 6

// Masker replaces known secret values in text. It is safe for concurrent use.
// The zero value masks nothing.
type Masker struct {
	mu     sync.RWMutex
	values [][]byte // longest first, so that a secret that contains another goes first
}

// Add makes the masker replace each of the values from now on. A value is also
// replaced in the form it takes inside a JSON string. Values shorter than six
// bytes are ignored.
func (m *Masker) Add(values ...String) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range values {
		if len(s.value) < minMasked {
			continue
		}
		m.add([]byte(s.value))
		if quoted, err := json.Marshal(s.value); err == nil {
			m.add(quoted[1 : len(quoted)-1])
		}
	}
	slices.SortStableFunc(m.values, func(a, b []byte) int { return cmp.Compare(len(b), len(a)) })
}

func (m *Masker) add(v []byte) {
	if !slices.ContainsFunc(m.values, func(have []byte) bool { return bytes.Equal(have, v) }) {
		m.values = append(m.values, v)
	}
}

// Bytes returns text with every known value replaced. It returns text itself when there is none.
func (m *Masker) Bytes(text []byte) []byte {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, v := range m.values {
		if bytes.Contains(text, v) {
			text = bytes.ReplaceAll(text, v, []byte(Mask))
		}
	}
	return text
}

// Text is [Masker.Bytes] for strings.
func (m *Masker) Text(text string) string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, v := range m.values {
		text = strings.ReplaceAll(text, string(v), Mask)
	}
	return text
}
