package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"nightporter/internal/lines"
	"nightporter/internal/mcp/wire"
)

const (
	// maxFrame bounds one frame of a client. Arguments with documents in them reach some megabytes.
	maxFrame = 32 << 20
	// maxRequests bounds the requests of one client that run at the same time.
	maxRequests = 256
	// farewell bounds what is done when a client has gone.
	farewell = 10 * time.Second
	// lastWords is how long a client may take to read what is being written when its session ends.
	lastWords = 2 * time.Second
	// lastRequests is how long the requests may take that came before the end of a client's input. A client that has
	// gone leaves calls in progress behind, which are not to keep its servers for long.
	lastRequests = 5 * time.Second
	// deafPatience is how long the session's own reading waits for a client that goes on sending and reads nothing. Behind what it
	// sends the end of its input would not be seen.
	deafPatience = 10 * time.Second
)

var errDeaf = fmt.Errorf("the client goes on sending, and has read nothing for %v", deafPatience)

// ServeStdio serves one client over a pair of streams until in ends or ctx does, and then ends its servers. Both eras are
// spoken; the client's first request decides. A client that reads nothing more, and a server that does not start, hold up the end for a few seconds
// at most.
func (e *Endpoint) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &stdioSession{e: e, ctx: ctx, giveUp: cancel, lines: make(chan []byte), ended: make(chan struct{})}
	s.streams, s.endStreams = context.WithCancel(ctx)
	defer s.endStreams()
	frames := make(chan []byte)
	over := make(chan error, 1)
	go func() {
		// Not waited for when ctx ends: nothing can wake a read of standard input. It ends with the process, and holds nothing.
		err := s.read(in, frames)
		over <- err
		if errors.Is(err, io.EOF) { // what came before is still answered, unless that takes long
			timer := time.NewTimer(lastRequests)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		cancel(err)
	}()
	written := make(chan struct{})
	go func() {
		// Not waited for longer than a while: nothing can wake a write to standard output either.
		defer close(written)
		if err := s.writeTo(out); err != nil {
			cancel(fmt.Errorf("write to the client: %w", err))
		}
	}()
	for open := true; open; {
		select {
		case line := <-frames:
			s.take(line)
		case err := <-over:
			if errors.Is(err, io.EOF) {
				s.drain()
			}
			cancel(err)
		case <-ctx.Done():
			open = false
		}
	}
	last, lastDone := context.WithTimeout(context.WithoutCancel(ctx), lastWords)
	defer lastDone()
	await(last, s.requests.Wait)
	close(s.ended)
	await(last, func() { <-written })
	ending, done := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer done()
	if s.client != nil {
		e.dismiss(ending, s.client.key)
	}
	await(ending, func() {
		s.requests.Wait()
		s.own.Wait()
	})
	switch err := context.Cause(ctx); {
	case errors.Is(err, io.EOF), errors.Is(err, context.Canceled), errors.Is(err, syscall.EPIPE), errors.Is(err, io.ErrClosedPipe):
		return nil // the client has gone, or we are to go
	default:
		return err
	}
}

// drain lets the requests be answered that came before the end of the input: a script that writes some and closes
// expects that. Streams that would never end are ended.
func (s *stdioSession) drain() {
	s.endStreams()
	await(s.ctx, s.requests.Wait)
}

type stdioSession struct {
	e   *Endpoint
	ctx context.Context // of the session
	// giveUp ends the session for a reason.
	giveUp context.CancelCauseFunc
	// streams is the ctx of subscriptions/listen, and endStreams ends it.
	streams    context.Context
	endStreams context.CancelFunc
	client     *client
	requests   sync.WaitGroup
	own        sync.WaitGroup // what writes the client's own stream
	lines      chan []byte    // to the client
	ended      chan struct{}  // closed when nothing is written any more
}

// read hands on the client's frames until in ends.
func (s *stdioSession) read(in io.Reader, frames chan<- []byte) error {
	r := lines.NewReader(in, maxFrame)
	for {
		line, dropped, err := r.Next()
		if err != nil {
			return err
		}
		if dropped {
			s.say(wire.Message{ID: json.RawMessage("null"), Error: wire.Errorf(wire.CodeInvalidRequest, "a frame is larger than %d MiB", maxFrame>>20).Raw()})
			continue
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		select {
		case frames <- bytes.Clone(line):
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
}

// writeTo writes lines to the client until nothing is written any more.
func (s *stdioSession) writeTo(out io.Writer) error {
	for {
		select {
		case line := <-s.lines:
			if _, err := out.Write(append(line, '\n')); err != nil {
				return err
			}
		case <-s.ended:
			return nil
		}
	}
}

// write is for what comes of a request, which may still be read when the session ends.
func (s *stdioSession) write(m wire.Message) error { return s.writeLine(m.Append(nil), s.ended) }

// say is for where the client's frames are read, which must not wait for ever for a client that reads nothing.
func (s *stdioSession) say(m wire.Message) {
	patience := time.AfterFunc(deafPatience, func() { s.giveUp(errDeaf) })
	defer patience.Stop()
	_ = s.writeLine(m.Append(nil), s.ctx.Done())
}

// writeLine waits until the line is being written, or until is closed.
func (s *stdioSession) writeLine(line []byte, until <-chan struct{}) error {
	select {
	case s.lines <- line:
		return nil
	case <-until:
		return errGone
	}
}

// take handles one frame. Requests run beside each other.
func (s *stdioSession) take(line []byte) {
	m, err := wire.Parse(line)
	if err != nil {
		code := wire.CodeInvalidRequest
		if wire.Check(line) != nil {
			code = wire.CodeParse
		}
		id := m.ID
		if id == nil {
			id = json.RawMessage("null")
		}
		s.say(wire.Message{ID: id, Error: wire.Errorf(code, "%v", err).Raw()})
		return
	}
	who, modern := wire.ClientOf(m.Params)
	if s.client != nil && s.client.failed() {
		s.client = nil // its next request tries again
	}
	if s.client == nil && m.IsRequest() {
		if !s.open(m, who, modern) {
			return
		}
	}
	c := s.client
	switch {
	case c == nil:
	case m.IsResponse():
		c.answered(m)
	case m.IsNotification():
		c.notified(m)
	case modern && who.Version != wire.Modern:
		s.say(wire.Message{ID: m.ID, Error: unsupported(who.Version).Raw()})
	default:
		s.run(c, request{id: m.ID, method: m.Method, params: m.Params, who: who, modern: modern})
	}
}

// run answers a request beside the others. One too many is refused at once: what follows it may be the answer or the cancellation that
// the others wait for.
func (s *stdioSession) run(c *client, r request) {
	ctx := s.ctx
	if r.method == wire.Listen {
		ctx = s.streams
	}
	ctx, flight, rpcErr := c.track(ctx, r.id, false)
	if rpcErr != nil {
		s.say(response(r.id, nil, rpcErr))
		return
	}
	s.requests.Go(func() {
		defer flight.end()
		r.x.notify = func(n wire.Message) { _ = s.write(n) }
		if !r.modern {
			r.x.ask = c.asker(s.write)
		}
		result, rpcErr := c.handle(ctx, r)
		// A client of ours that is closed because its start failed has not cancelled anything.
		cancelled := ctx.Err() != nil && !errors.Is(context.Cause(ctx), errClosing)
		flight.answered()
		if cancelled && r.method != wire.Listen && !r.modern {
			return // cancelled requests are not answered (specification, "Cancellation")
		}
		_ = s.write(response(r.id, result, rpcErr))
	})
}

func response(id, result json.RawMessage, err *wire.RPCError) wire.Message {
	if err != nil {
		return wire.Message{ID: id, Error: err.Raw()}
	}
	return wire.Message{ID: id, Result: result}
}

// stdioKey is the key of the one client of a stdio session. It started us or joined us by a socket that is its user's own, which no client of
// HTTP did, loopback or not: what comes from there may come from anywhere.
const stdioKey = "stdio"

// open makes the client from its first request. A client that probes with server/discover and then opens a session
// (a fallback that we never ask for) keeps the client that the probe made.
func (s *stdioSession) open(m wire.Message, who wire.Client, modern bool) bool {
	era := wire.StatelessEra
	if !modern {
		era = wire.SessionEra
		who = sessionClient(m.Params)
		if m.Method != wire.Initialize && m.Method != wire.Ping {
			s.say(wire.Message{ID: m.ID, Error: wire.Errorf(wire.CodeInvalidRequest, "the first request must be initialize, or carry the _meta of %s", wire.Modern).Raw()})
			return false
		}
		if m.Method == wire.Ping {
			s.say(wire.Message{ID: m.ID, Result: json.RawMessage("{}")})
			return false
		}
	}
	if problem := tooMuch(who); problem != nil {
		s.say(wire.Message{ID: m.ID, Error: problem.Raw()})
		return false
	}
	c, err := s.e.admit(stdioKey, who, era)
	if err != nil {
		s.say(wire.Message{ID: m.ID, Error: wire.Errorf(wire.CodeServer, "%v", err).Raw()})
		return false
	}
	s.client = c
	reader := c.own.attach(-1)
	s.own.Go(func() {
		defer c.own.detach(reader, true)
		for {
			f, ok, more := c.own.take(reader)
			if ok {
				_ = s.writeLine(f.data, s.ctx.Done())
				continue
			}
			select {
			case <-more:
			case <-c.closed:
				return
			case <-s.ctx.Done():
				return
			}
		}
	})
	return true
}

// sessionClient reads what initialize says of its client.
func sessionClient(params json.RawMessage) wire.Client {
	version, _ := wire.GetString(params, "protocolVersion")
	return wire.Client{Version: version, Capabilities: wire.Get(params, "capabilities"), Info: wire.Get(params, "clientInfo")}
}

func unsupported(requested string) *wire.RPCError {
	err := wire.Errorf(wire.CodeUnsupportedVersion, "unsupported protocol version")
	err.Data = wire.Encode(map[string]any{"supported": wire.Versions(), "requested": requested})
	return err
}
