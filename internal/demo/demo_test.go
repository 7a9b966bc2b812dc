package demo

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"nightporter/internal/mcp/wire"
)

// TestADemoThatGoesWrongSaysSo runs it with a program that is no Nightporter.
func TestADemoThatGoesWrongSaysSo(t *testing.T) {
	broken, err := exec.LookPath("false")
	if err != nil {
		t.Skip("there is no program called false here")
	}
	t.Setenv("TMPDIR", t.TempDir())
	var out bytes.Buffer
	err = Run(t.Context(), Options{Program: broken, Env: os.Environ(), Out: &out, Title: func(s string) string { return s }})
	if err == nil || !strings.Contains(err.Error(), "the boundary was not proven") {
		t.Errorf("the error is %v", err)
	}
	if !strings.Contains(out.String(), "Not as it should be") || strings.Contains(out.String(), "Next") {
		t.Errorf("it printed\n%s", out.String())
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

func TestAStoppedDemoLeavesNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stopped")
	cancel(stop)
	err := Run(ctx, Options{Program: "/nonexistent", Out: new(bytes.Buffer), Title: strings.ToUpper})
	if !errors.Is(err, stop) {
		t.Errorf("the error is %v", err)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

func TestEmbeddedServersAnswer(t *testing.T) {
	in := strings.Join([]string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`no frame`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"add","arguments":{"text":"x"}}}`,
		`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"list"}}`,
		`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"add"}}`,
		`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"fly"}}`,
		`{"jsonrpc":"2.0","id":6,"method":"server/discover"}`,
	}, "\n")
	var out bytes.Buffer
	if err := Serve("notes", strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		m, err := wire.Parse([]byte(strings.TrimSpace(line)))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := wire.GetString(m.Result, "protocolVersion")
		if content, err := wire.Elements(wire.Get(m.Result, "content")); err == nil {
			text, _ = wire.GetString(content[0], "text")
			text += " " + string(wire.Get(m.Result, "isError"))
		}
		if m.Error != nil {
			text = wire.AsRPCError(m.Error).Message
		}
		got = append(got, string(m.ID)+" "+text)
	}
	want := []string{
		"1 2025-06-18", "2 2 notes false", "3 buy milk; x false", "4 a note needs a text true",
		`5 unknown tool "fly"`, `6 method "server/discover" is not known here`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("it answered\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if err := Serve("nobody", strings.NewReader(""), &out); err == nil {
		t.Error("a server that there is not was served")
	}
}

func FuzzServe(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
	f.Add([]byte("{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"tools/call\",\"params\":{\"name\":\"add\",\"arguments\":[]}}\n[]\n\xff"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var out bytes.Buffer
		_ = Serve("mail", bytes.NewReader(in), &out)
		for line := range bytes.Lines(out.Bytes()) {
			if m, err := wire.Parse(bytes.TrimSpace(line)); err != nil || !m.IsResponse() {
				t.Errorf("%q is answered by %q: %v", in, line, err)
			}
		}
	})
}
