package config

import (
	"fmt"
	"strings"
)

// maxQuoted bounds what a message quotes of a key, a name or a choice that was written wrongly.
const maxQuoted = 64

// quote returns text for a message: quoted, bounded, control characters escaped.
func quote(text string) string {
	if r := []rune(text); len(r) > maxQuoted {
		text = string(r[:maxQuoted]) + "…"
	}
	return fmt.Sprintf("%+q", text)
}

// nearest returns the known word that is most like word, or "" when none is.
// Case and the separators _ and - do not count, a transposition counts once.
func nearest(word string, known []string) string {
	word = fold(word)
	best, bestDistance := "", 1+max(1, len(word)/2)
	if len(word) > maxQuoted {
		return ""
	}
	for _, k := range known {
		if d := distance(word, fold(k)); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

var separators = strings.NewReplacer("_", "", "-", "")

func fold(s string) string { return strings.ToLower(separators.Replace(s)) }

// hint returns "did you mean …?" with the nearest known word, or nothing.
func hint(word string, known []string) string {
	if n := nearest(word, known); n != "" {
		return "did you mean " + n + "?"
	}
	return ""
}

// oneOf joins words: a, b or c.
func oneOf(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// distance is the optimal string alignment distance in bytes.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

// Nearest returns the known word that word may have been meant for, or "" when none is like it.
func Nearest(word string, known []string) string { return nearest(word, known) }
