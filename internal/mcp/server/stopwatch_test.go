package server

import (
	"testing"
	"testing/synctest"
	"time"
)

// fired returns how long it takes from now until s fires.
func fired(s *stopwatch) time.Duration {
	began := time.Now()
	<-s.c()
	return time.Since(began)
}

func TestStopwatchStandsStillWhileItIsPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStopwatch(time.Minute, time.Hour, 0)
		time.Sleep(30 * time.Second)
		s.pause()
		time.Sleep(24 * time.Hour)
		s.resume()
		if d := fired(s); d != time.Minute {
			t.Errorf("fired %v after it went on, want the idle time", d)
		}
		if d := s.spent(); d != 90*time.Second {
			t.Errorf("%v count, want those of the call alone", d)
		}
	})
}

func TestProgressGivesNoTimeBeyondTheHardBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStopwatch(time.Minute, 90*time.Second, 0)
		time.Sleep(50 * time.Second)
		s.restart()
		if d := fired(s); d != 40*time.Second {
			t.Errorf("fired after %v", d)
		}
	})
}

func TestPausesAreBoundedTogether(t *testing.T) {
	for name, idle := range map[string]time.Duration{"a call with a timeout": time.Minute, "a call without": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStopwatch(idle, time.Hour, 30*time.Minute)
				s.pause()
				time.Sleep(20 * time.Minute)
				s.resume()
				s.pause() // a server that asks again and again
				if d := fired(s); d != 10*time.Minute || !s.paused {
					t.Errorf("fired after %v more of waiting", d)
				}
			})
		})
	}
}
