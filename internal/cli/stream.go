package cli

import (
	"bytes"
	"io"
	"sync"

	"nightporter/internal/run"
)

// streamCap bounds the events that wait to be read, in bytes: four of the longest there can be.
const streamCap = 16 << 20

// TypeLost is the type of the event that stands where events were lost because nobody read them in time.
const TypeLost = "run.lost"

// stream writes events, one JSON object on each line, without holding up the run when nobody reads: then events are
// lost, which the stream says. The last event never is.
type stream struct {
	w    io.Writer
	gone func(error)   // called when writing fails
	wake chan struct{} // holds a token when there is something to do
	done chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex
	waiting bytes.Buffer
	lost    int // since the last that was queued
	closed  bool
	err     error // of writing; after it nothing more is written
}

// newStream begins a stream. gone is called, once, when nobody reads it any more.
func newStream(w io.Writer, gone func(error)) *stream {
	s := &stream{w: w, gone: gone, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go s.loop()
	return s
}

// event queues an event. It does not block.
func (s *stream) event(e run.Event) {
	var line bytes.Buffer
	err := writeJSON(&line, e)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return
	case err != nil:
		s.err = err
		return
	case s.waiting.Len()+line.Len() > streamCap && e.Type != run.TypeFinished:
		s.lost++
		return
	case s.lost > 0:
		// An error of this encoding would have been one of the event's.
		_ = writeJSON(&s.waiting, map[string]any{"type": TypeLost, "run": e.Run, "time": e.Time, "count": s.lost})
		s.lost = 0
	}
	s.waiting.Write(line.Bytes())
	s.signal()
}

// close waits until all is written, and returns the first error.
func (s *stream) close() error {
	s.mu.Lock()
	s.closed = true
	s.signal()
	s.mu.Unlock()
	<-s.done
	return s.err
}

func (s *stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *stream) loop() {
	defer close(s.done)
	for range s.wake {
		s.mu.Lock()
		batch, last := bytes.Clone(s.waiting.Bytes()), s.closed
		s.waiting.Reset()
		s.mu.Unlock()
		if len(batch) > 0 {
			if _, err := s.w.Write(batch); err != nil {
				s.mu.Lock()
				first := s.err == nil
				s.err = err
				s.mu.Unlock()
				if first {
					s.gone(err)
				}
			}
		}
		if last {
			return
		}
	}
}
