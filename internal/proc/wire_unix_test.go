//go:build unix

package proc

import (
	"bytes"
	"slices"
	"testing"
)

func TestSpecArrivesAsItWasSent(t *testing.T) {
	for _, want := range []spec{
		{Path: "/bin/true"},
		{Path: "/bin/a b", Dir: "/tmp", Args: []string{"", "\n", "\xff\xfe", "-x"}, Env: []string{"A=1", "B="}},
		{Path: "/p", Args: []string{string(bytes.Repeat([]byte("x"), 300_000))}},
	} {
		b, err := want.encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := readSpec(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if !equal(got, want) {
			t.Errorf("got %.80q, sent %.80q", got, want)
		}
		if _, err := readSpec(bytes.NewReader(b[:len(b)-1])); err == nil {
			t.Error("a spec that was cut short was taken")
		}
	}
}

func TestSpecThatIsTooLargeIsRefused(t *testing.T) {
	if _, err := (spec{Path: "/p", Env: []string{string(make([]byte, maxSpec))}}).encode(); err == nil {
		t.Error("encode took it")
	}
	if _, err := readSpec(bytes.NewReader([]byte{0xff, 0xff, 0xff, 0xff})); err == nil {
		t.Error("readSpec took it")
	}
}

func equal(a, b spec) bool {
	return a.Path == b.Path && a.Dir == b.Dir && slices.Equal(a.Args, b.Args) && slices.Equal(a.Env, b.Env)
}

func FuzzDecodeSpec(f *testing.F) {
	for _, s := range []spec{{Path: "/bin/true"}, {Path: "/p", Dir: "/d", Args: []string{"", "a"}, Env: []string{"A=1"}}} {
		b, err := s.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[4:])
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeSpec(b)
		if err != nil {
			return
		}
		again, err := s.encode()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := decodeSpec(again[4:]); err != nil || !equal(got, s) {
			t.Errorf("%q came back as %q, %v", s, got, err)
		}
	})
}
