package server

import "time"

// askPatience is how long a call may wait, in all, for answers to questions that the server asks in the middle of it: a person
// may have to think, and one who went home must not hold the call, its turn and its server for ever.
const askPatience = 30 * time.Minute

// stopwatch bounds how long a server may be silent, how long a call may take in all, and how long it may be paused in all. While it is
// paused the first two stand still. Zero bounds are none; without an idle bound the hard one does not count.
type stopwatch struct {
	idle, hard, ask time.Duration
	timer           *time.Timer
	used, waited    time.Duration // running and paused, before the current stretch
	began           time.Time     // of the current stretch
	paused          bool
}

func newStopwatch(idle, hard, ask time.Duration) *stopwatch {
	s := &stopwatch{idle: idle, hard: hard, ask: ask, timer: time.NewTimer(0), began: time.Now()}
	s.set()
	return s
}

// set gives the timer what is left of the bound that counts now.
func (s *stopwatch) set() {
	switch {
	case s.paused && s.ask > 0:
		s.timer.Reset(max(0, s.ask-s.waited))
	case s.paused || s.idle <= 0:
		s.timer.Stop()
	case s.hard > 0:
		s.timer.Reset(max(0, min(s.idle, s.hard-s.spent())))
	default:
		s.timer.Reset(s.idle)
	}
}

// spent is the time that the call took without its pauses.
func (s *stopwatch) spent() time.Duration {
	if s.paused {
		return s.used
	}
	return s.used + time.Since(s.began)
}

// c fires when a bound is reached: that of pauses when it is paused.
func (s *stopwatch) c() <-chan time.Time { return s.timer.C }

// restart gives the server its idle time anew.
func (s *stopwatch) restart() {
	if !s.paused {
		s.set()
	}
}

func (s *stopwatch) pause() {
	if !s.paused {
		s.used = s.spent()
		s.paused, s.began = true, time.Now()
		s.set()
	}
}

func (s *stopwatch) resume() {
	if s.paused {
		s.waited += time.Since(s.began)
		s.paused, s.began = false, time.Now()
		s.set()
	}
}

func (s *stopwatch) stop() { s.timer.Stop() }
