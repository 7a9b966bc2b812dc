package cli

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"nightporter/internal/run"
)

// gate is a writer that waits until it is opened.
type gate struct {
	bytes.Buffer
	open chan struct{}
	err  error
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	if g.err != nil {
		return 0, g.err
	}
	return g.Buffer.Write(p)
}

func TestEventsThatNobodyReadsAreLostAndTheLastIsNot(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	s := newStream(g, func(error) {})
	text := strings.Repeat("x", 1<<20)
	for i := range 64 { // returns, although nothing is written
		s.event(run.Event{Type: run.TypeText, Run: fmt.Sprint(i), Text: text})
	}
	s.event(run.Event{Type: run.TypeFinished})
	close(g.open)
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(g.String(), "\n"), "\n")
	last, lost := lines[len(lines)-1], lines[len(lines)-2]
	if !strings.Contains(last, run.TypeFinished) || !strings.Contains(lost, TypeLost) {
		t.Errorf("ends with %.80s and %.80s", lost, last)
	}
	var count int
	if _, err := fmt.Sscanf(lost[strings.Index(lost, `"count":`):], `"count":%d`, &count); err != nil || count+len(lines)-2 != 64 {
		t.Errorf("%d lost and %d written of 64 (%v)", count, len(lines)-2, err)
	}
}

func TestAStreamThatCannotBeWrittenIsAnError(t *testing.T) {
	broken := errors.New("no space")
	g := &gate{open: make(chan struct{}), err: broken}
	close(g.open)
	s := newStream(g, func(error) {})
	s.event(run.Event{Type: run.TypeStarted})
	if err := s.close(); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

func TestProgressIsALineNowAndThenWhereNobodyLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := newProgress(&app{stderr: &out, flags: new(commands)})
		p.event(run.Event{Type: run.TypeActivity, Activity: "reading"})
		p.event(run.Event{Type: run.TypeTool, Tool: "mcp__crm__find"})
		p.event(run.Event{Type: run.TypeDenied, Tool: "Bash"})
		synctest.Wait()
		time.Sleep(10 * time.Second) // of the test's own clock
		p.event(run.Event{Type: run.TypeHeartbeat})
		p.event(run.Event{Type: run.TypeRetry, Activity: "overloaded"})
		p.close()
		want := "nightporter: 10s using mcp__crm__find (1 refused)\nnightporter: the model's API is asked again: overloaded\n"
		if got := out.String(); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	})
}

func TestTheStatusLineFitsTheTerminalAndIsCleared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := &progress{
			app: &app{stderr: &out, flags: new(commands)}, width: 20, events: make(chan run.Event), done: make(chan struct{}), began: time.Now(),
		}
		go p.loop()
		p.event(run.Event{}) // may be left out: nobody waits for it
		p.events <- run.Event{Type: run.TypeActivity, Activity: strings.Repeat("long ", 20) + "\x1b[2J\n"}
		p.close()
		lines := strings.Split(out.String(), "\r\x1b[K")
		last := lines[len(lines)-2]
		if last != "0s long long long l" || !strings.HasSuffix(out.String(), "\r\x1b[K") {
			t.Errorf("drew %q", out.String())
		}
	})
}

func TestWhatAnAgentWroteDoesNotActOnATerminal(t *testing.T) {
	got := printable("a\x1b]0;title\x07b\u202ec\r\n\td 👨‍👩‍👧")
	if want := "a]0;titlebc\n\td 👨‍👩‍👧"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := oneLine("a\n\n b\x1b[2J"); got != "a b[2J" {
		t.Errorf("got %q", got)
	}
}
