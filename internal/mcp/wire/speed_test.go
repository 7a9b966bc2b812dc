package wire

import (
	"bytes"
	"testing"
)

var (
	smallCall = []byte(`{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"github__get_issue","arguments":{"id":"group/project#4711","fields":["title","state"],"limit":20},"_meta":{"progressToken":17}}}`)
	// largeAnswer is a megabyte of text in lines, as files are.
	largeAnswer = []byte(`{"jsonrpc":"2.0","id":17,"result":{"content":[{"type":"text","text":"` + string(bytes.Repeat([]byte(`a line of a file, of which there are many\n`), 1<<20/43)) + `"}]}}`)
)

func BenchmarkParse(b *testing.B) {
	for name, frame := range map[string][]byte{"call": smallCall, "answer of 1 MB": largeAnswer} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(frame)))
			for b.Loop() {
				if _, err := Parse(frame); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkGet(b *testing.B) {
	m, err := Parse(smallCall)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if Get(m.Params, "_meta", "progressToken") == nil {
			b.Fatal("not found")
		}
	}
}
