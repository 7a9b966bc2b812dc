package lines

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func readAll(t testing.TB, r io.Reader, limit int) (got []string) {
	t.Helper()
	lines := NewReader(r, limit)
	for {
		line, dropped, err := lines.Next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			return got
		}
		if dropped {
			got = append(got, "dropped:"+string(line[:min(3, len(line))]))
		} else {
			got = append(got, string(line))
		}
	}
}

func TestLongLinesAreDroppedWhole(t *testing.T) {
	long := strings.Repeat("x", 3*chunk)
	in := "a\r\n\n" + long + "\nb\n" + long
	want := []string{"a", "", "dropped:xxx", "b", "dropped:xxx"}
	for name, r := range map[string]io.Reader{
		"whole":       strings.NewReader(in),
		"bytes":       iotest.OneByteReader(strings.NewReader(in)),
		"data at EOF": iotest.DataErrReader(strings.NewReader(in)),
	} {
		if got := readAll(t, r, 1000); !slices.Equal(got, want) {
			t.Errorf("%s: got %d lines %.40q", name, len(got), got)
		}
	}
}

func TestMemoryIsBoundedOnAnEndlessLine(t *testing.T) {
	const limit = 4 << 20
	r := NewReader(io.LimitReader(endless{}, 1<<30), limit)
	if _, dropped, err := r.Next(); !dropped || err != nil {
		t.Fatalf("dropped %v, %v", dropped, err)
	}
	if cap(r.buf) > 4*limit {
		t.Errorf("holds %d bytes", cap(r.buf))
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func FuzzEveryChunkingGivesTheSameLines(f *testing.F) {
	f.Add([]byte("a\nbb\r\n\nccc"), uint8(3))
	f.Add([]byte("\n\n"), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, limit uint8) {
		whole := readAll(t, bytes.NewReader(b), int(limit))
		split := readAll(t, iotest.OneByteReader(bytes.NewReader(b)), int(limit))
		if !slices.Equal(whole, split) {
			t.Errorf("whole %q, byte by byte %q", whole, split)
		}
	})
}
