// Package hook asks for approvals by a program of the operator's.
//
// The program gets the question as one JSON object on its standard input and answers with one on its standard output; docs/approvals.md
// describes both. It approves when it exits with 0 after an answer that says so and gives the question's own digest. Anything else
// denies: no answer in time, a failure, an answer that is not understood or belongs to another question.
package hook

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"nightporter/internal/agent"
	"nightporter/internal/approval"
	"nightporter/internal/proc"
)

const (
	// maxRunning bounds the programs at a time: more questions than that at once, no person reads. Others wait, within their own deadline.
	maxRunning = 8
	// maxWaiting bounds the questions at a time, those of running programs included. Each holds its call's arguments.
	maxWaiting = 64
	// maxAnswer bounds what a program may print: an answer is a few hundred bytes.
	maxAnswer = 64 << 10
)

// Hook is a program, as the configuration names it.
type Hook struct {
	Argv    []string      // word by word; a name is looked for in the PATH of the environment, a path is relative to Dir
	Dir     string        // where it runs, absolute
	Timeout time.Duration // from the question to the answer
}

// Desk runs hooks. It is safe for concurrent use.
type Desk struct {
	env   []string
	slots chan struct{} // a place for each program that runs
	queue chan struct{} // a place for each question

	ask func(ctx context.Context, h Hook, env []string, question []byte, limit time.Duration) ([]byte, error) // runs the program
}

// NewDesk makes a desk. Of env, Nightporter's environment, hooks get [Passed] and nothing else.
func NewDesk(env []string) *Desk {
	return &Desk{env: scrubbed(env), slots: make(chan struct{}, maxRunning), queue: make(chan struct{}, maxWaiting), ask: perform}
}

// Passed are the variables that a hook gets: what programs need to run at all, to reach the person's screen, and the network. Keys
// are not among them: what a hook needs, it reads from a file.
var Passed = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM", "TMPDIR", "TMP", "TEMP",
	"DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS",
	"SSL_CERT_FILE", "SSL_CERT_DIR",
	"SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "USERPROFILE", "USERNAME", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "PROGRAMFILES",
}

func scrubbed(env []string) (kept []string) {
	for _, entry := range env {
		name, _, ok := strings.Cut(entry, "=")
		if ok && slices.ContainsFunc(Passed, func(p string) bool { return p == name || runtime.GOOS == "windows" && strings.EqualFold(p, name) }) {
			kept = append(kept, entry)
		}
	}
	return kept
}

// Ask puts a question to a hook and waits for its answer. It returns when nothing of the program is left.
func (d *Desk) Ask(ctx context.Context, h Hook, q approval.Question) approval.Answer {
	began := time.Now()
	answer, err := d.put(ctx, h, q, began.Add(h.Timeout))
	if err != nil {
		answer = approval.Answer{Reason: err.Error()}
	}
	if answer.By == "" {
		answer.By = "on_approval"
	}
	answer.Waited = time.Since(began)
	return answer
}

// put asks. The error says why nobody decided.
func (d *Desk) put(ctx context.Context, h Hook, q approval.Question, deadline time.Time) (approval.Answer, error) {
	sheet, err := q.Write(deadline)
	if err != nil {
		return approval.Answer{}, err
	}
	select {
	case d.queue <- struct{}{}:
		defer func() { <-d.queue }()
	default:
		return approval.Answer{}, fmt.Errorf("%d calls wait for approval already", maxWaiting)
	}
	late := fmt.Errorf("nobody approved it within %v", h.Timeout)
	timed, cancel := context.WithDeadlineCause(ctx, deadline, late)
	defer cancel()
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	case <-timed.Done():
		return approval.Answer{}, ended(timed)
	}
	output, err := d.ask(timed, h, d.env, sheet.JSON, time.Until(deadline))
	switch {
	case timed.Err() != nil || errors.Is(err, context.DeadlineExceeded):
		if timed.Err() == nil {
			return approval.Answer{}, late
		}
		return approval.Answer{}, ended(timed)
	case err != nil:
		return approval.Answer{}, fmt.Errorf("on_approval failed: %w", err)
	}
	answer, err := sheet.ReadAnswer(output)
	if err != nil {
		err = fmt.Errorf("the answer of on_approval does not count: %w", err)
	}
	return answer, err
}

// ended says why a question was given up.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return errors.New("it was given up before anybody answered")
}

// perform runs a hook's program in a tree of its own, which ends with ctx.
func perform(ctx context.Context, h Hook, env []string, question []byte, limit time.Duration) ([]byte, error) {
	if len(h.Argv) == 0 {
		return nil, errors.New("it names no program")
	}
	program, err := agent.FindProgram(h.Argv[0], h.Dir, env)
	if err != nil {
		return nil, err
	}
	answer, err := proc.Ask(ctx, proc.Question{
		Program: program, Args: h.Argv[1:], Env: env, Dir: h.Dir, Limit: limit, MaxAnswer: maxAnswer, Input: question,
	})
	if err != nil && len(answer.Complaints) > 0 {
		err = fmt.Errorf("%w: %s", err, agent.Head(string(answer.Complaints)))
	}
	return answer.Output, err
}
