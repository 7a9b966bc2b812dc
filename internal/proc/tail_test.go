package proc

import (
	"bytes"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func TestTailKeepsTheLastBytesWhateverTheWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tail Tail
		var all []byte
		sizes := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 100), rapid.IntRange(TailSize-2, TailSize+2),
			rapid.IntRange(0, 3*TailSize)), 0, 12).Draw(t, "sizes")
		for i, size := range sizes {
			p := make([]byte, size)
			for j := range p {
				p[j] = byte(i*31 + j)
			}
			if n, err := tail.Write(p); n != size || err != nil {
				t.Fatalf("Write of %d bytes = %d, %v", size, n, err)
			}
			all = append(all, p...)
		}
		kept := all[max(0, len(all)-TailSize):]
		if got := tail.Bytes(); !bytes.Equal(got, kept) {
			t.Fatalf("kept %d bytes, other than the last %d of %d", len(got), len(kept), len(all))
		}
		if got, want := tail.Dropped(), int64(len(all)-len(kept)); got != want {
			t.Fatalf("Dropped = %d, want %d", got, want)
		}
	})
}

func TestTailMayBeReadWhileItIsWritten(t *testing.T) {
	var tail Tail
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for range 200 {
				_, _ = tail.Write(make([]byte, 1000))
			}
		})
	}
	for range 50 {
		if n := len(tail.Bytes()); n > TailSize {
			t.Errorf("kept %d bytes; the limit is %d", n, TailSize)
		}
	}
	writers.Wait()
	if got := int64(len(tail.Bytes())) + tail.Dropped(); got != 4*200*1000 {
		t.Errorf("kept and dropped %d bytes of %d", got, 4*200*1000)
	}
}
