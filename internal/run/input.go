package run

import (
	"errors"
	"io"
	"sync"
)

// inputCap bounds what waits to be read by the agent. The largest prompt that any agent takes is 10 MB
// (facts/claude.md 1.9); an agent that leaves more unread is not reading.
const inputCap = 32 << 20

var errInputFull = errors.New("the agent does not read its input")

// input writes to the agent's standard input without ever holding up who reads its output: what is to
// be written waits in memory, and one goroutine writes it.
type input struct {
	w    io.WriteCloser
	wake chan struct{} // holds a token when the queue or ending changed
	done chan struct{} // closed when the goroutine has ended

	mu     sync.Mutex
	queue  [][]byte
	size   int // bytes in the queue
	ending bool
}

func newInput(w io.WriteCloser) *input {
	in := &input{w: w, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go in.loop()
	return in
}

// write queues data, which it keeps. After end it does nothing.
func (in *input) write(data []byte) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ending {
		return nil
	}
	if in.size+len(data) > inputCap {
		return errInputFull
	}
	in.queue, in.size = append(in.queue, data), in.size+len(data)
	in.signal()
	return nil
}

// end closes the agent's input once all that was queued is written.
func (in *input) end() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.ending = true
	in.signal()
}

// abandon closes the agent's input now, which ends a write that waits, and waits for the goroutine.
func (in *input) abandon() {
	in.mu.Lock()
	in.ending, in.queue, in.size = true, nil, 0
	in.signal()
	in.mu.Unlock()
	_ = in.w.Close() // it may be closed already
	<-in.done
}

func (in *input) signal() {
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

func (in *input) loop() {
	defer close(in.done)
	for range in.wake {
		for {
			data, ending := in.next()
			if data == nil {
				if ending {
					_ = in.w.Close()
					return
				}
				break
			}
			if _, err := in.w.Write(data); err != nil {
				// The agent closed its input or ended. Its exit and output say why; what it does
				// not want to read is not our error.
				in.end()
				in.drop()
			}
		}
	}
}

// next takes the first of the queue; data is nil when there is none.
func (in *input) next() (data []byte, ending bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for len(in.queue) > 0 {
		data, in.queue = in.queue[0], in.queue[1:]
		if in.size -= len(data); len(data) > 0 {
			return data, in.ending
		}
	}
	return nil, in.ending
}

func (in *input) drop() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.queue, in.size = nil, 0
}
