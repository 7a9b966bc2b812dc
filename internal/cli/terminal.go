package cli

import (
	"io"
	"os"
	"strconv"
)

// style is an ANSI graphic rendition.
type style int

const (
	bold style = 1
	dim  style = 2
)

// paint is text in a style, where w is a terminal and colours are wanted.
func (a *app) paint(w io.Writer, s style, text string) string {
	if !a.colours(w) {
		return text
	}
	return "\x1b[" + strconv.Itoa(int(s)) + "m" + text + "\x1b[0m"
}

func (a *app) colours(w io.Writer) bool {
	switch a.flags.Color {
	case "always":
		return true
	case "never":
		return false
	}
	return a.getenv("NO_COLOR") == "" && a.getenv("TERM") != "dumb" && width(w) > 0
}

// width is how many columns the terminal behind a stream has, and 0 when it is none.
func width(stream any) int {
	f, ok := stream.(*os.File)
	if !ok {
		return 0
	}
	return terminalWidth(f)
}

// usualWidth is taken for a terminal that does not tell how wide it is.
const usualWidth = 80
