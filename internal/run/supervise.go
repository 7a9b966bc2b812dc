package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"nightporter/internal/agent"
	"nightporter/internal/approval"
	"nightporter/internal/lines"
	"nightporter/internal/proc"
)

const (
	// tickEvery is how often dialogues that poll are called.
	tickEvery = 200 * time.Millisecond
	// beatEvery is how often a run says that it is alive.
	beatEvery = 10 * time.Second
	// goneWait is how long the tree may take to be gone after KILL. Only a process that hangs in the
	// kernel, or one that changed its user, takes longer; nothing more can be done about those.
	goneWait = 10 * time.Second
	// drainWait is how long the output may stay open after the tree is gone: where a tree cannot be
	// told whole (see package proc), a process that left it may hold the pipe.
	drainWait = 2 * time.Second
	// lineCap is the longest line that is read whole. The longest that a real agent was seen to
	// print, an image twice in one event, was 1.35 MB (facts/claude.md 1.8).
	lineCap = 4 << 20
)

// process is what a supervisor needs of a [proc.Tree].
type process interface {
	Interrupt() error
	Terminate() error
	Kill()
	Exited() <-chan struct{}
	Done() <-chan struct{}
	Exit() proc.Exit
}

// streams are the owner's ends of the program's streams. Close ends a read or write that waits.
type streams struct {
	in       io.WriteCloser
	out, err io.ReadCloser
}

// supervisor leads one agent process to its end. All calls of the dialogue are made by the
// goroutine that calls supervise.
type supervisor struct {
	tree     process
	streams  streams
	dialogue agent.Dialogue
	ladder   agent.Ladder

	idle    time.Duration   // without a line of output
	maxCost float64         // in USD; zero is no limit
	kill    <-chan struct{} // closed: stop waiting for the ladder

	emit    func(agent.Event)
	beat    func()
	line    func(line []byte)                                      // sees each whole line before the dialogue does
	ask     func(context.Context, agent.AskPerson) approval.Answer // asks about a call of the agent's own tools
	waits   *waits                                                 // the calls that wait for a person
	waiting func(activity string)                                  // is told when they change; empty: none waits

	input     *input
	asking    *asking
	held      bool // calls wait for a person: the agent is not idle
	running   bool // the program has not ended
	idleTimer *time.Timer
	stopping  bool
	why       *agent.Error // why the run was stopped; nil when it was not, or the dialogue knows
	asked     bool         // Dialogue.Stop had something to write
	rung      int          // the ladder's next
	rungTimer *time.Timer
	goneTimer *time.Timer
}

// ended is how an agent process ended.
type ended struct {
	result agent.Result
	why    *agent.Error // why it was stopped; nil when it was not
	notes  []string
}

// output is what the reader of standard output hands to the supervisor.
type output struct {
	line  []byte // owned by who receives it
	whole bool
}

// supervise returns when the process has ended, all its output was given to the dialogue, and nothing of its tree is left; or,
// where that cannot be had, after bounded waits, with a note that says so.
func (s *supervisor) supervise(ctx context.Context) ended {
	s.input = newInput(s.streams.in)
	defer s.input.abandon()
	s.asking = newAsking(ctx, s.ask)
	defer s.asking.end()
	asker, _ := s.dialogue.(agent.Asker)

	lines := make(chan output)
	abandon := make(chan struct{}) // closed: nobody takes lines any more
	go readLines(s.streams.out, lines, abandon)
	stderr, stderrDone := &proc.Tail{}, make(chan struct{})
	go func() {
		defer close(stderrDone)
		// An error is the end of the stream, one way or the other.
		_, _ = io.Copy(stderr, s.streams.err)
	}()

	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	s.idleTimer = time.NewTimer(s.idle)
	defer s.idleTimer.Stop()
	s.rungTimer, s.goneTimer = stoppedTimer(), stoppedTimer()
	defer s.rungTimer.Stop()
	defer s.goneTimer.Stop()
	drain := stoppedTimer()
	defer drain.Stop()

	var notes []string
	cancelled, kill := ctx.Done(), s.kill
	exited, done := s.tree.Exited(), s.tree.Done()
	reading := lines
	s.running = true
	s.act(s.dialogue.Start())
	for done != nil || reading != nil {
		select {
		case out, ok := <-reading:
			if !ok {
				reading = nil
				continue
			}
			s.awake()
			s.take(out)
		case <-s.waits.changed:
			activity := s.waits.activity()
			s.held = activity != ""
			s.awake()
			s.waiting(activity)
		case a := <-s.asking.answers:
			if s.asking.delivered(a.id) && asker != nil {
				s.act(asker.Answer(a.id, a.answer.Approved, a.answer.Reason))
			}
		case <-tick.C:
			if s.running {
				s.act(s.dialogue.Tick())
			}
		case <-beat.C:
			s.beat()
		case <-s.idleTimer.C:
			s.stop(&agent.Error{Code: agent.CodeIdle, Message: fmt.Sprintf("the agent printed nothing for %v", s.idle)})
		case <-cancelled:
			cancelled = nil
			s.stop(reason(ctx))
		case <-kill:
			kill = nil
			s.stop(reason(ctx))
			s.killTree()
		case <-s.rungTimer.C:
			s.nextRung()
		case <-exited:
			// What comes now is what it had printed. It is not late any more, and nothing can be asked of it.
			exited, cancelled, s.running = nil, nil, false
			s.asking.cancel()
			s.idleTimer.Stop()
			s.rungTimer.Stop()
		case <-done:
			done = nil
			s.goneTimer.Stop()
			drain.Reset(drainWait)
		case <-drain.C:
			_ = s.streams.out.Close() // ends the reader
			_ = s.streams.err.Close()
			notes = append(notes, "a process that left the agent's tree held its output open; what it may have printed later was not read")
		case <-s.goneTimer.C:
			notes = append(notes, fmt.Sprintf("something of the agent's tree was still there %v after KILL", goneWait))
			done, reading = nil, nil
		}
	}
	close(abandon)
	_ = s.streams.out.Close()
	for range lines { // until the reader has ended
	}
	drain.Reset(drainWait)
	select {
	case <-stderrDone:
	case <-drain.C:
	}
	_ = s.streams.err.Close()
	<-stderrDone

	exit := proc.Exit{Code: -1, Signal: "killed"} // when even KILL did not end it
	select {
	case <-s.tree.Exited(): // which the loop may not have come to
		exit = s.tree.Exit()
	default:
	}
	return ended{result: s.dialogue.End(exit, lastLines(stderr)), why: s.why, notes: notes}
}

// awake begins the time anew that the agent may print nothing, which does not run while a person is waited for.
func (s *supervisor) awake() {
	switch {
	case s.held:
		s.idleTimer.Stop()
	case s.running && !s.stopping:
		s.idleTimer.Reset(s.idle)
	}
}

// take gives one line, or the head of a dropped one, to the dialogue.
func (s *supervisor) take(out output) {
	if !out.whole {
		s.act(s.dialogue.Dropped(out.line))
		return
	}
	s.line(out.line)
	s.act(s.dialogue.Line(out.line))
}

// act carries out what the dialogue asks for.
func (s *supervisor) act(actions []agent.Action) {
	for _, action := range actions {
		switch a := action.(type) {
		case agent.Write:
			if err := s.input.write(a.Data); err != nil {
				s.stop(&agent.Error{Code: agent.CodeAgentError, Message: err.Error()})
			}
		case agent.CloseInput:
			s.input.end()
		case agent.Emit:
			s.emit(a.Event)
			if u := a.Event.Usage; u != nil && s.maxCost > 0 && u.CostUSD > s.maxCost {
				s.stop(&agent.Error{Code: agent.CodeBudget, Message: fmt.Sprintf("the run has cost %.4f USD, more than the limit of %.4f", u.CostUSD, s.maxCost)})
			}
		case agent.Abort:
			s.abort(a.Now)
		case agent.AskPerson:
			s.asking.begin(a)
		case agent.Withdraw:
			s.asking.withdraw(a.ID)
		}
	}
}

// stop begins to end the run, for the given reason. The first reason counts.
func (s *supervisor) stop(why *agent.Error) {
	if s.stopping || !s.running {
		return
	}
	s.stopping, s.why = true, why
	s.asking.cancel()
	s.idleTimer.Stop()
	actions := s.dialogue.Stop()
	s.asked = len(actions) > 0
	s.act(actions)
	s.nextRung()
}

// abort begins to end the run at the dialogue's wish. The dialogue has what it needs, so the agent is not asked
// to report. now leaves out the ladder, also one that was begun.
func (s *supervisor) abort(now bool) {
	if !s.running || s.stopping && !now {
		return
	}
	s.stopping = true
	s.asking.cancel()
	s.idleTimer.Stop()
	if now {
		s.killTree()
		return
	}
	s.nextRung()
}

// nextRung takes the next step of the ladder that makes sense, and after the last kills the tree.
func (s *supervisor) nextRung() {
	for s.rung < len(s.ladder) {
		rung := s.ladder[s.rung]
		s.rung++
		switch rung.Signal {
		case agent.RungAsk:
			if !s.asked {
				continue
			}
		case agent.RungInterrupt:
			_ = s.tree.Interrupt() // an error means that it has ended: Exited says so
		case agent.RungTerminate:
			_ = s.tree.Terminate()
		}
		s.rungTimer.Reset(rung.Wait)
		return
	}
	s.killTree()
}

func (s *supervisor) killTree() {
	s.rung = len(s.ladder)
	s.rungTimer.Stop()
	s.tree.Kill()
	s.goneTimer.Reset(goneWait)
}

// reason says why ctx ended: the error that it was ended with, or a signal.
func reason(ctx context.Context) *agent.Error {
	cause := context.Cause(ctx)
	var known *agent.Error
	switch {
	case errors.As(cause, &known):
		return known
	case errors.Is(cause, context.DeadlineExceeded):
		return &agent.Error{Code: agent.CodeTimeout, Message: "the run's deadline passed"}
	case cause == nil || errors.Is(cause, context.Canceled):
		return &agent.Error{Code: agent.CodeSignal, Message: "the run was stopped"}
	}
	return &agent.Error{Code: agent.CodeSignal, Message: "the run was stopped: " + cause.Error()}
}

// readLines reads a stream to its end and hands out its lines, then closes the channel.
func readLines(r io.Reader, to chan<- output, abandon <-chan struct{}) {
	defer close(to)
	l := lines.NewReader(r, lineCap)
	for {
		line, dropped, err := l.Next()
		if err != nil {
			return // the end of the stream, one way or the other
		}
		select {
		case to <- output{bytes.Clone(line), !dropped}:
		case <-abandon:
		}
	}
}

// lastLines is what was kept of a stream, from the start of a line.
func lastLines(t *proc.Tail) []byte {
	kept := t.Bytes()
	if t.Dropped() > 0 {
		if i := bytes.IndexByte(kept, '\n'); i >= 0 {
			kept = kept[i+1:]
		}
	}
	return kept
}

// stoppedTimer is a timer that has not been set yet.
func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}
