package search

import (
	"strings"
	"unicode"
)

// scan hands the words of a text over, in the spelling of the index: runs of letters and digits, cut where one
// writes several words as one: createIssue, HTTPServer, base64Encode. A character of a script that is written
// without spaces is a word of its own; joined says that it follows one of its kind, with nothing between.
func scan(text string, word func(w string, ideograph, joined bool)) {
	var current []rune
	end := func() {
		if len(current) > 0 {
			word(string(current), false, false)
			current = current[:0]
		}
	}
	runes := []rune(text)
	before := false // the last character was an ideograph
	for i, r := range runes {
		switch {
		case unspaced(r):
			end()
			word(string(r), true, before)
			before = true
			continue
		case unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.IsMark(r):
			if len(current) > 0 && i+1 < len(runes) && boundary(runes[i-1], r, runes[i+1]) || len(current) > 0 && i+1 == len(runes) && boundary(runes[i-1], r, 0) {
				end()
			}
			current = append(current, r)
		default:
			end()
		}
		before = false
	}
	end()
}

// boundary reports whether a word begins at r.
func boundary(last, r, next rune) bool {
	switch {
	case unicode.IsLower(last) && unicode.IsUpper(r):
		return true // createIssue
	case unicode.IsUpper(last) && unicode.IsUpper(r) && unicode.IsLower(next):
		return true // HTTPServer
	case unicode.IsDigit(last) && unicode.IsUpper(r):
		return true // base64Encode
	}
	return false
}

// unspaced reports whether r is of a script that is written without spaces between words.
func unspaced(r rune) bool {
	return unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar)
}

// indexed is a text as it goes into the index: its words, and beside those that were cut the whole, by which one
// may look for it as well.
func indexed(text string) string {
	var b strings.Builder
	scan(text, func(w string, _, _ bool) {
		b.WriteString(w)
		b.WriteByte(' ')
	})
	for _, whole := range strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r) }) {
		parts := 0
		scan(whole, func(_ string, ideograph, _ bool) {
			if !ideograph {
				parts++
			}
		})
		if parts > 1 {
			b.WriteString(whole)
			b.WriteByte(' ')
		}
	}
	return b.String()
}

// maxTerms bounds the words of a query: a model that pastes a page would make the index compare it with everything.
const maxTerms = 32

// small are words that say nothing of what a tool does.
var small = func() map[string]bool {
	words := map[string]bool{}
	for _, w := range strings.Fields("a an and are as at be by can do for from how i if in into is it me my of on or our please that the their this to tool tools using want was we what which with you your") {
		words[w] = true
	}
	return words
}()

// terms are the words of a query, each quoted as FTS5 wants it, so that none is read as an operator. Of scripts without spaces they are
// pairs of characters. Small words are left out where there are others.
func terms(query string) []string {
	var all, big []string
	seen := map[string]bool{}
	add := func(term string) {
		if seen[term] || len(all) == maxTerms {
			return
		}
		seen[term] = true
		quoted := `"` + term + `"`
		all = append(all, quoted)
		if !small[term] {
			big = append(big, quoted)
		}
	}
	last := ""
	alone := false // last is an ideograph that is in no pair
	flush := func() {
		if alone {
			add(last)
		}
		alone = false
	}
	scan(query, func(w string, ideograph, joined bool) {
		switch {
		case !ideograph:
			flush()
			add(strings.ToLower(w))
		case joined:
			add(last + " " + w)
			alone = false
		default:
			flush()
			alone = true
		}
		last = w
	})
	flush()
	if len(big) > 0 {
		return big
	}
	return all
}
