//go:build unix

package claude

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"syscall"
	"testing"
	"time"

	"nightporter/internal/lines"
)

// BenchmarkReader reads a run as package run does, from the bytes of its output to what the dialogue makes of it: recordings without
// their ends, again and again. heap-MB is what it
// holds at the end, and MB/cpu-s the rate by the time of the processor, garbage collection included, which other work on the machine does not change much.
//
//	go test ./internal/agent/claude -run '^$' -bench Reader -benchtime 1000000x
func BenchmarkReader(b *testing.B) {
	for _, name := range []string{"02-tool-ok", "16-partial", "530-recommended-stream"} {
		b.Run(name, func(b *testing.B) {
			all := recording(b, name)
			p := planOf(b, all)
			d := newDialogue(p)
			prove(b, d)
			var body [][]byte
			for _, line := range all {
				var h header
				switch decode(line, &h); {
				case h.Type == "control_response", h.Type == "result":
				case h.Type == "system" && h.Subtype == "init":
					d.Line(line)
				default:
					body = append(body, line)
				}
			}
			text := append(bytes.Join(body, []byte("\n")), '\n')
			size := len(text)
			b.SetBytes(int64(size))
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			b.ReportAllocs()
			in := lines.NewReader(&again{text: text, times: b.N}, 4<<20)
			began := worked()
			b.ResetTimer()
			for {
				line, _, err := in.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				d.Line(bytes.Clone(line))
			}
			b.StopTimer()
			b.ReportMetric(float64(size)*float64(b.N)/1e6/(worked()-began).Seconds(), "MB/cpu-s")
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ReportMetric(max(0, float64(after.HeapAlloc)-float64(before.HeapAlloc))/(1<<20), "heap-MB")
			runtime.KeepAlive(d)
			if d.err != nil {
				b.Fatal(d.err)
			}
		})
	}
}

// again is a text so many times.
type again struct {
	text  []byte
	at    int
	times int
}

func (a *again) Read(p []byte) (int, error) {
	if a.times == 0 {
		return 0, io.EOF
	}
	n := copy(p, a.text[a.at:])
	if a.at += n; a.at == len(a.text) {
		a.at = 0
		a.times--
	}
	return n, nil
}

// worked is for how long processors have worked for this process.
func worked() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // fails for no process of ours
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
