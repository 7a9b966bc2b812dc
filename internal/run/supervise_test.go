package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"nightporter/internal/agent"
	"nightporter/internal/proc"
)

// acted is a process that does what a test says: it notes what is done to it and when.
type acted struct {
	began  time.Time
	mu     sync.Mutex
	log    []string
	on     map[string]func() // what a signal does
	exited chan struct{}
	done   chan struct{}
	exit   proc.Exit

	stdin          io.ReadCloser
	stdout, stderr *io.PipeWriter
	streams        streams
}

func newActed() *acted {
	a := &acted{began: time.Now(), on: map[string]func(){}, exited: make(chan struct{}), done: make(chan struct{})}
	a.stdin, a.streams.in = io.Pipe()
	a.streams.out, a.stdout = io.Pipe()
	a.streams.err, a.stderr = io.Pipe()
	return a
}

func (a *acted) note(what string) {
	a.mu.Lock()
	a.log = append(a.log, fmt.Sprintf("%s at %v", what, time.Since(a.began)))
	do := a.on[what]
	a.mu.Unlock()
	if do != nil {
		do()
	}
}

func (a *acted) Interrupt() error        { a.note("interrupt"); return nil }
func (a *acted) Terminate() error        { a.note("terminate"); return nil }
func (a *acted) Kill()                   { a.note("kill") }
func (a *acted) Exited() <-chan struct{} { return a.exited }
func (a *acted) Done() <-chan struct{}   { return a.done }
func (a *acted) Exit() proc.Exit         { return a.exit }

// end ends the process and its streams.
func (a *acted) end() {
	close(a.exited)
	a.stdout.Close()
	a.stderr.Close()
	close(a.done)
}

// supervised leads a process with a dialogue.
func supervised(a *acted, d agent.Dialogue, change func(*supervisor)) *supervisor {
	s := &supervisor{
		tree: a, streams: a.streams, dialogue: d, idle: time.Hour,
		ladder: agent.Ladder{
			{Signal: agent.RungAsk, Wait: 3 * time.Second},
			{Signal: agent.RungInterrupt, Wait: 2 * time.Second},
			{Signal: agent.RungTerminate, Wait: time.Second},
		},
		emit: func(agent.Event) {}, beat: func() {}, line: func([]byte) {}, waits: newWaits(), waiting: func(string) {},
	}
	if change != nil {
		change(s)
	}
	return s
}

func TestTheLadderIsClimbedToTheKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newActed()
		a.on["kill"] = a.end
		d := &plain{onStop: []agent.Action{agent.Write{Data: []byte("please stop")}}}
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, &agent.Error{Code: agent.CodeTimeout, Message: "over"})
		defer cancel()
		got := supervised(a, d, nil).supervise(ctx)
		want := []string{"interrupt at 1m3s", "terminate at 1m5s", "kill at 1m6s"}
		if !slices.Equal(a.log, want) {
			t.Errorf("did %v, want %v", a.log, want)
		}
		if got.why == nil || got.why.Code != agent.CodeTimeout || d.stops != 1 || d.ends != 1 {
			t.Errorf("why %v, %d stops, %d ends", got.why, d.stops, d.ends)
		}
	})
}

func TestAnAgentThatHasNothingToBeAskedIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newActed()
		a.on["interrupt"] = a.end
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		got := supervised(a, &plain{}, nil).supervise(ctx)
		if want := []string{"interrupt at 0s"}; !slices.Equal(a.log, want) {
			t.Errorf("did %v, want %v", a.log, want)
		}
		if got.why == nil || got.why.Code != agent.CodeSignal {
			t.Errorf("why %v, want signal", got.why)
		}
	})
}

func TestWhatAnAgentPrintsWhileItStopsIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newActed()
		a.on["interrupt"] = func() {
			go func() {
				fmt.Fprint(a.stdout, "text saved\nreply late")
				a.end()
			}()
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("SIGTERM"))
		got := supervised(a, &plain{}, nil).supervise(ctx)
		if got.result.Salvage != "saved" || got.result.Reply != "late" {
			t.Errorf("result %+v", got.result)
		}
		if got.why == nil || !strings.Contains(got.why.Message, "SIGTERM") {
			t.Errorf("why %v does not name the cause", got.why)
		}
	})
}

func TestIdleTimeCountsFromTheLastLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newActed()
		a.on["interrupt"] = a.end
		go func() {
			for range 3 {
				<-time.After(50 * time.Second)
				fmt.Fprintln(a.stdout, "x")
			}
		}()
		got := supervised(a, &plain{}, func(s *supervisor) { s.idle = time.Minute }).supervise(t.Context())
		if want := []string{"interrupt at 3m30s"}; !slices.Equal(a.log, want) {
			t.Errorf("did %v, want %v", a.log, want)
		}
		if got.why == nil || got.why.Code != agent.CodeIdle {
			t.Errorf("why %v, want idle", got.why)
		}
	})
}

func TestAKillSkipsTheLadder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newActed()
		a.on["kill"] = a.end
		kill := make(chan struct{})
		a.on["interrupt"] = func() { time.AfterFunc(time.Second, func() { close(kill) }) }
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		supervised(a, &plain{}, func(s *supervisor) { s.kill = kill }).supervise(ctx)
		if want := []string{"interrupt at 0s", "kill at 1s"}; !slices.Equal(a.log, want) {
			t.Errorf("did %v, want %v", a.log, want)
		}
	})
}

func TestABrokenBoundaryIsKilledAtOnce(t *testing.T) {
	for name, stopped := range map[string]bool{"while it runs": false, "while it is being stopped": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newActed()
				a.on["kill"] = a.end
				d := &plain{onStop: []agent.Action{agent.Write{Data: []byte("please stop")}}}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() {
					if stopped {
						cancel()
					}
					<-time.After(time.Second)
					fmt.Fprintln(a.stdout, "broken another server")
				}()
				got := supervised(a, d, nil).supervise(ctx)
				if want := []string{"kill at 1s"}; !slices.Equal(a.log, want) {
					t.Errorf("did %v, want %v", a.log, want)
				}
				if got.result.Err == nil || got.result.Err.Code != agent.CodeBoundary {
					t.Errorf("result %+v does not say why", got.result)
				}
			})
		})
	}
}

func TestAnAbortAsksNothingOfTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newActed()
		a.on["terminate"] = a.end
		go fmt.Fprintln(a.stdout, "abort no key")
		d := &plain{onStop: []agent.Action{agent.Write{Data: []byte("please stop")}}}
		got := supervised(a, d, nil).supervise(t.Context())
		if want := []string{"interrupt at 0s", "terminate at 2s"}; !slices.Equal(a.log, want) {
			t.Errorf("did %v, want %v", a.log, want)
		}
		if d.stops != 0 || got.why != nil || got.result.Err.Code != agent.CodeAuth {
			t.Errorf("%d stops, why %v, result %v", d.stops, got.why, got.result.Err)
		}
	})
}

func TestARunOverItsBudgetIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newActed()
		a.on["interrupt"] = a.end
		go fmt.Fprint(a.stdout, "cost 0.5\ncost 1\ncost 1.01\n")
		var told []float64
		got := supervised(a, &plain{}, func(s *supervisor) {
			s.maxCost = 1
			s.emit = func(e agent.Event) { told = append(told, e.Usage.CostUSD) }
		}).supervise(t.Context())
		if got.why == nil || got.why.Code != agent.CodeBudget || len(told) != 3 {
			t.Errorf("why %v after %v", got.why, told)
		}
	})
}

func TestAnAgentThatNeverReadsHoldsNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newActed()
		go func() {
			fmt.Fprintln(a.stdout, "reply anyway")
			a.end()
		}()
		d := &plain{prompt: strings.Repeat("x", 10<<20)}
		got := supervised(a, d, nil).supervise(t.Context())
		if got.result.Reply != "anyway" || got.why != nil {
			t.Errorf("result %+v, why %v", got.result, got.why)
		}
	})
}

// talker writes at every tick.
type talker struct{ plain }

func (*talker) Tick() []agent.Action {
	return []agent.Action{agent.Write{Data: make([]byte, inputCap/4)}}
}

func TestUnreadInputIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newActed()
		a.on["interrupt"] = a.end
		got := supervised(a, &talker{}, nil).supervise(t.Context())
		if got.why == nil || !strings.Contains(got.why.Message, "does not read") {
			t.Errorf("why %v", got.why)
		}
	})
}

func TestInputIsClosedAfterWhatWasWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newActed()
		go func() {
			fmt.Fprintln(a.stdout, "close")
			got, err := io.ReadAll(a.stdin)
			fmt.Fprintf(a.stdout, "reply %s %v", got, err)
			a.end()
		}()
		got := supervised(a, &plain{prompt: "hello"}, nil).supervise(t.Context())
		if got.result.Reply != "hello <nil>" {
			t.Errorf("the agent read %q", got.result.Reply)
		}
	})
}

func TestWhoHoldsTheOutputOpenIsNotWaitedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newActed()
		go func() {
			fmt.Fprintln(a.stdout, "reply done")
			close(a.exited)
			close(a.done) // and the streams stay open
		}()
		got := supervised(a, &plain{}, nil).supervise(t.Context())
		if got.result.Reply != "done" || len(got.notes) != 1 {
			t.Errorf("result %+v, notes %q", got.result, got.notes)
		}
		if took := time.Since(a.began); took < drainWait || took > 2*drainWait {
			t.Errorf("waited %v", took)
		}
	})
}

func TestTheExitIsToldHoweverTheEndArrives(t *testing.T) {
	for range 50 { // the end, and the end of the streams, come in any order
		synctest.Test(t, func(t *testing.T) {
			a := newActed()
			a.exit = proc.Exit{Code: 7}
			go a.end()
			d := &plain{}
			supervised(a, d, nil).supervise(t.Context())
			if d.exit.Code != 7 {
				t.Errorf("the dialogue was told %v", d.exit)
			}
		})
	}
}

func TestWhatSurvivesAKillIsNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newActed()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		d := &plain{}
		got := supervised(a, d, nil).supervise(ctx)
		if len(got.notes) != 1 || !strings.Contains(got.notes[0], "after KILL") {
			t.Errorf("notes %q", got.notes)
		}
		if d.exit.Code != -1 {
			t.Errorf("the dialogue was told %v, which looks like an end", d.exit)
		}
	})
}

func TestALiveRunBeatsAndTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newActed()
		time.AfterFunc(35*time.Second, a.end)
		beats := 0
		d := &plain{}
		supervised(a, d, func(s *supervisor) { s.beat = func() { beats++ } }).supervise(t.Context())
		if beats != 3 || d.ticks < 170 || d.ticks > 175 {
			t.Errorf("%d beats and %d ticks in 35 s", beats, d.ticks)
		}
	})
}
