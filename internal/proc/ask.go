package proc

import (
	"context"
	"fmt"
	"io"
	"time"
)

// Question is something that a program is asked which ends with its answer, such as an agent's its version. Its whole process
// tree ends with it.
type Question struct {
	Program string   // absolute path
	Args    []string // after argv[0]
	Env     []string // the complete environment
	Dir     string   // absolute path of the working directory; empty means this process's
	// Limit bounds the question, the program's end included.
	Limit time.Duration
	// MaxAnswer is how many bytes of standard output are taken; a longer answer is an error.
	MaxAnswer int64
	// Input is what the program's standard input holds, without Talk.
	Input []byte
	// Talk has the conversation, and leaves the rest of the output unread. Nil closes the program's input after Input and
	// reads all of its output into [Answer.Output].
	Talk func(to io.Writer, from io.Reader) error
}

// Answer is what came of a [Question].
type Answer struct {
	Output     []byte // standard output; nil with Talk
	Complaints []byte // the last of standard error
}

// ExitError is how a program ended that did not end well.
type ExitError struct{ Exit Exit }

func (e *ExitError) Error() string { return e.Exit.String() }

// drainTime bounds the wait for complaints of a program that has ended: something that got away from it may hold its standard error open.
const drainTime = 2 * time.Second

// Ask asks. The error is Talk's, or says how the program failed: it wraps ctx's error when ctx ended, [context.DeadlineExceeded] when Limit
// was over, the system's error when the program could not be started, and is an *[ExitError] when it ended badly; what it printed is not part of it. The answer's
// Complaints are set whatever the error.
func Ask(ctx context.Context, q Question) (answer Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, q.Limit)
	defer cancel()
	tree, err := Start(Command{Path: q.Program, Args: q.Args, Env: q.Env, Dir: q.Dir})
	if err != nil {
		return Answer{}, err
	}
	var complaints Tail
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(&complaints, tree.Stderr)
	}()
	unblock := context.AfterFunc(ctx, func() {
		tree.Kill()
		_ = tree.Stdout.Close()
		_ = tree.Stderr.Close()
	})
	defer unblock()

	written := make(chan struct{})
	if q.Talk != nil {
		close(written)
		err = q.Talk(tree.Stdin, io.LimitReader(tree.Stdout, q.MaxAnswer))
	} else {
		go func() {
			defer close(written)
			// A program that does not read it, or ends, says the more by its answer.
			_, _ = tree.Stdin.Write(q.Input)
			_ = tree.Stdin.Close()
		}()
		answer.Output, err = io.ReadAll(io.LimitReader(tree.Stdout, q.MaxAnswer+1))
		if int64(len(answer.Output)) > q.MaxAnswer {
			err = fmt.Errorf("it answered with more than %d bytes", q.MaxAnswer)
		}
	}
	if err != nil {
		tree.Kill() // it is not known what state it is in
	}
	if q.Talk != nil {
		_ = tree.Stdin.Close()
	}
	_, _ = io.Copy(io.Discard, tree.Stdout)
	left := tree.Stop(ctx, Grace{Input: q.Limit})
	select {
	case <-drained: // what it complained of last may still be in the pipe
	case <-time.After(drainTime):
	case <-ctx.Done():
	}
	_ = tree.Stdout.Close()
	_ = tree.Stderr.Close()
	<-drained
	<-written
	answer.Complaints = complaints.Bytes()
	if err == nil {
		err = left
	}
	if exit := tree.Exit(); err == nil && exit != (Exit{}) {
		err = &ExitError{exit}
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return answer, err
}
