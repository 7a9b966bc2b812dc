package cli

import (
	"fmt"
	"time"

	"nightporter/internal/run"
)

const (
	// progressQueue is how many events may wait to be shown. Progress is for looking at: what does not fit is left out.
	progressQueue = 256
	// redrawEvery is how often the time on the status line moves.
	redrawEvery = time.Second
)

// progress shows what a run does on standard error: one line that is drawn again and again on a terminal,
// a line now and then elsewhere.
type progress struct {
	app    *app
	width  int // of the terminal; 0 when it is none
	events chan run.Event
	done   chan struct{}

	began    time.Time
	activity string
	denied   int
}

func newProgress(a *app) *progress {
	p := &progress{
		app: a, width: width(a.stderr), events: make(chan run.Event, progressQueue), done: make(chan struct{}),
		began: time.Now(), activity: "starting",
	}
	go p.loop()
	return p
}

// event takes an event of the run. It does not block.
func (p *progress) event(e run.Event) {
	select {
	case p.events <- e:
	default:
	}
}

// close clears the status line and waits for the goroutine. No event may come after it.
func (p *progress) close() {
	close(p.events)
	<-p.done
}

func (p *progress) loop() {
	defer close(p.done)
	redraw := time.NewTicker(redrawEvery)
	defer redraw.Stop()
	for {
		select {
		case e, ok := <-p.events:
			if !ok {
				p.clear()
				return
			}
			p.take(e)
		case <-redraw.C:
		}
		p.draw()
	}
}

// take notes what the status line shows, and where there is none prints what is worth a line.
func (p *progress) take(e run.Event) {
	switch e.Type {
	case run.TypeActivity, run.TypeRetry:
		p.activity = e.Activity
	case run.TypeTool:
		p.activity = "using " + e.Tool
	case run.TypeDenied:
		p.denied++
	}
	if p.width > 0 {
		return
	}
	switch e.Type {
	case run.TypeHeartbeat:
		p.app.say("%s", p.line())
	case run.TypeRetry:
		p.app.say("the model's API is asked again: %s", e.Activity)
	}
}

// line is the time, what the agent does, and what it was refused.
func (p *progress) line() string {
	line := fmt.Sprintf("%v  %s", time.Since(p.began).Round(time.Second), p.activity)
	if p.denied > 0 {
		line += fmt.Sprintf("  (%d refused)", p.denied)
	}
	return line
}

func (p *progress) draw() {
	if p.width == 0 {
		return
	}
	line := []rune(oneLine(p.line()))
	line = line[:min(len(line), p.width-1)] // a full line would wrap
	fmt.Fprintf(p.app.stderr, "\r\x1b[K%s", p.app.paint(p.app.stderr, dim, string(line)))
}

func (p *progress) clear() {
	if p.width > 0 {
		fmt.Fprint(p.app.stderr, "\r\x1b[K")
	}
}
