//go:build unix

package codex

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"nightporter/internal/agent"
	"nightporter/internal/lines"
)

// BenchmarkReader reads a run as package run does, from the bytes of its output to what the dialogue makes of it: a recording without
// its end, again and again. heap-MB is what it
// holds at the end, and MB/cpu-s the rate by the time of the processor, garbage collection included, which other work on the machine does not change much.
//
//	go test ./internal/agent/codex -run '^$' -bench Reader -benchtime 1000000x
func BenchmarkReader(b *testing.B) {
	for _, name := range []string{"01-exec-mcp-ok-bypass", "10-recipe-run"} {
		for version, run := range read(b, name) {
			b.Run(name+"/"+version, func(b *testing.B) {
				var text strings.Builder
				for line := range strings.Lines(run.stdout) {
					if !strings.Contains(line, `"type":"turn.completed"`) && !strings.Contains(line, `"type":"thread.started"`) {
						text.WriteString(line)
					}
				}
				d := newDialogue(agent.Request{Prompt: "x"}, agent.Proof{Servers: []string{"log", "web", "gw", "one"}}, nil)
				d.Start()
				d.Line([]byte(`{"type":"thread.started","thread_id":"` + otherUUID + `"}`))
				size := text.Len()
				b.SetBytes(int64(size))
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				b.ReportAllocs()
				in := lines.NewReader(&again{text: text.String(), times: b.N}, 4<<20)
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
			})
		}
	}
}

// again is a text so many times.
type again struct {
	text  string
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
