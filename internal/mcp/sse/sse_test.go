package sse

import (
	"bytes"
	"io"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func events(r io.Reader) (got []Event) {
	reader := NewReader(r)
	for {
		e, err := reader.Next()
		if err != nil {
			return got
		}
		got = append(got, e)
	}
}

func TestReader(t *testing.T) {
	in := ": comment\n\nevent: message\nid: 1\ndata: {\"a\":1}\n\ndata:x\ndata:  y\r\n\r\nretry: 500\nid: 2\n\nevent:other\ndata\n\ndata: cut"
	want := []Event{
		{Name: "message", ID: "1", Data: []byte(`{"a":1}`)},
		{Name: "message", Data: []byte("x\n y")},
		{Name: "message", ID: "2", Retry: 500 * time.Millisecond},
		{Name: "other", Data: []byte{}},
	}
	for _, r := range []io.Reader{strings.NewReader(in), iotest.OneByteReader(strings.NewReader(in))} {
		got := events(r)
		for i := range got {
			if len(got[i].Data) == 0 && i < len(want) && len(want[i].Data) == 0 {
				got[i].Data = want[i].Data
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v", got)
		}
	}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	rec := httptest.NewRecorder()
	w := NewWriter(rec)
	long := []byte(`{"x":"` + strings.Repeat("é", 1<<20) + `"}`)
	for _, err := range []error{w.Write("7", long), w.KeepAlive(), w.Write("", []byte("{}"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got := events(rec.Body)
	if len(got) != 2 || got[0].ID != "7" || !bytes.Equal(got[0].Data, long) || string(got[1].Data) != "{}" {
		t.Errorf("read %d events back", len(got))
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte("id: 1\ndata: {}\n\n"))
	f.Add([]byte("data\n\nretry: x\n\n:\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, b := events(bytes.NewReader(b)), events(iotest.OneByteReader(bytes.NewReader(b))); !reflect.DeepEqual(a, b) {
			t.Errorf("whole %+v, byte by byte %+v", a, b)
		}
	})
}

// slowly is a response whose client takes each piece in just the time that there is, on a clock of its own.
type slowly struct {
	*httptest.ResponseRecorder
	deadlines, largest int
	armed              bool
}

func (s *slowly) SetWriteDeadline(time.Time) error {
	s.deadlines++
	s.armed = true
	return nil
}

func (s *slowly) Write(p []byte) (int, error) {
	if !s.armed {
		return 0, os.ErrDeadlineExceeded // the piece before took all the time
	}
	s.armed = false
	s.largest = max(s.largest, len(p))
	return s.ResponseRecorder.Write(p)
}

func TestALargeEventReachesAClientThatReadsSlowly(t *testing.T) {
	data := bytes.Repeat([]byte("x"), 5<<20)
	s := &slowly{ResponseRecorder: httptest.NewRecorder()}
	if err := NewWriter(s).Write("1", data); err != nil {
		t.Fatal(err)
	}
	if e, err := NewReader(s.Body).Next(); err != nil || !bytes.Equal(e.Data, data) || s.largest > piece {
		t.Errorf("%d bytes, in pieces of up to %d: %v", len(e.Data), s.largest, err)
	}
}
