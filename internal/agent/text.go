package agent

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// activityChars is how much of an activity fits one line of a terminal or a chat.
	activityChars = 120
	// tailChars is how much of a text is kept as salvage: enough to see where
	// the agent was, short enough to be quoted.
	tailChars = 500
	// headChars is how much of an unrecognised output an error quotes.
	headChars = 200
)

// Activity is text as one line of at most 120 characters: control characters and
// runs of white space become one space, and a cut is marked by an ellipsis.
func Activity(text string) string { return head(oneLine(text, 4*activityChars), activityChars) }

// Tail is the last 500 characters of text, trimmed, cut on a character boundary.
func Tail(text string) string {
	text = strings.TrimSpace(strings.ToValidUTF8(text, "\uFFFD"))
	if n := utf8.RuneCountInString(text); n > tailChars {
		for range n - tailChars {
			_, size := utf8.DecodeRuneInString(text)
			text = text[size:]
		}
	}
	return text
}

// Head is the first 200 characters of text on one line, for an error that quotes it.
func Head(text string) string { return head(oneLine(text, 4*headChars), headChars) }

// oneLine folds white space and drops control and format characters; it stops after about limit runes.
func oneLine(text string, limit int) string {
	var b strings.Builder
	space, n := false, 0
	for _, r := range text {
		switch {
		case unicode.IsSpace(r) || unicode.IsControl(r):
			space = n > 0
			continue
		case unicode.Is(unicode.Cf, r):
			continue // bidirectional controls and other invisible characters
		}
		if space {
			b.WriteByte(' ')
			n++
			space = false
		}
		b.WriteRune(r)
		if n++; n >= limit {
			break
		}
	}
	return b.String()
}

func head(text string, chars int) string {
	n := 0
	for i := range text {
		if n == chars-1 && utf8.RuneCountInString(text[i:]) > 1 {
			return text[:i] + "…"
		}
		n++
	}
	return text
}
