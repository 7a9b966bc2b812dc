package cli

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// table prints rows in columns. On a terminal that is too narrow, lines of the last column are broken between words, so that the
// others stay in line; where there is little room for it, it stands below its row.
type table struct {
	w    io.Writer
	rows [][]string
}

const (
	columnGap = 2
	// leastColumn is the room in which a text can still be read.
	leastColumn = 24
	belowIndent = 4
)

func newTable(w io.Writer, columns ...string) *table { return &table{w, [][]string{columns}} }

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) flush() error {
	_, err := io.WriteString(t.w, layout(t.rows, width(t.w)))
	return err
}

// layout is a table of the rows, which have equally many cells, for so many columns of a terminal; 0 is any number.
func layout(rows [][]string, columns int) string {
	last := len(rows[0]) - 1
	widths, left, longest := make([]int, last), 0, 0
	for i := range widths {
		for _, row := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		widths[i] += columnGap
		left += widths[i]
	}
	for _, row := range rows {
		longest = max(longest, utf8.RuneCountInString(row[last]))
	}
	room, indent := longest, left
	if columns > 0 && left+longest > columns {
		if room = columns - left; room < leastColumn {
			room, indent = columns-belowIndent, belowIndent
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, n := range widths {
			fmt.Fprintf(&line, "%-*s", n, row[i])
		}
		if indent == left {
			for i, part := range broken(row[last], room) {
				if i > 0 {
					line.WriteString("\n" + strings.Repeat(" ", indent))
				}
				line.WriteString(part)
			}
			b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
			continue
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
		if row[last] == "" || row[last] == "-" {
			continue
		}
		for _, part := range broken(row[last], room) {
			b.WriteString(strings.Repeat(" ", indent) + part + "\n")
		}
	}
	return b.String()
}

// broken is a text in lines of at most so many characters, broken between words. A longer word, such as a path, stays whole.
func broken(text string, most int) []string {
	if utf8.RuneCountInString(text) <= most {
		return []string{text}
	}
	var lines []string
	for word := range strings.FieldsSeq(text) {
		if n := len(lines) - 1; n >= 0 && utf8.RuneCountInString(lines[n])+1+utf8.RuneCountInString(word) <= most {
			lines[n] += " " + word
			continue
		}
		lines = append(lines, word)
	}
	return lines
}
