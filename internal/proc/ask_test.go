package proc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"
	"time"

	"nightporter/test/programs"
)

func ask(t *testing.T, script string, change func(*Question)) (Answer, error) {
	t.Helper()
	q := Question{Program: "/bin/sh", Args: []string{"-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: t.TempDir(), Limit: 20 * time.Second, MaxAnswer: 100}
	if change != nil {
		change(&q)
	}
	return Ask(t.Context(), q)
}

func TestAQuestionIsAnswered(t *testing.T) {
	answer, err := ask(t, "cat; echo said; echo moaned >&2", nil)
	if err != nil || string(answer.Output) != "said\n" || string(answer.Complaints) != "moaned\n" {
		t.Errorf("it answered %q, moaned %q, and failed: %v", answer.Output, answer.Complaints, err)
	}
}

func TestAQuestionThatFailsSaysHowAndNotWhatWasPrinted(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		change func(*Question)
		want   string
		is     error
	}{
		"exit status": {script: "echo token; echo why >&2; exit 3", want: "exit status 3"},
		"too long":    {script: "yes token", want: "more than 100 bytes"},
		"too slow":    {script: "echo token; sleep 60", change: func(q *Question) { q.Limit = 300 * time.Millisecond }, is: context.DeadlineExceeded},
		"no program":  {change: func(q *Question) { q.Program = "/nowhere/agent" }, is: fs.ErrNotExist},
		"talk": {script: "yes token", change: func(q *Question) {
			q.Talk = func(io.Writer, io.Reader) error { return io.ErrShortBuffer }
		}, is: io.ErrShortBuffer},
	} {
		t.Run(name, func(t *testing.T) {
			answer, err := ask(t, c.script, c.change)
			if err == nil || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) || strings.Contains(err.Error(), "token") {
				t.Errorf("the error is: %v", err)
			}
			if name == "exit status" && string(answer.Complaints) != "why\n" {
				t.Errorf("it complained %q", answer.Complaints)
			}
		})
	}
}

func TestAConversationIsHad(t *testing.T) {
	var heard string
	_, err := ask(t, `while read line; do echo "$line, too"; done; exit 0`, func(q *Question) {
		q.Talk = func(to io.Writer, from io.Reader) error {
			fmt.Fprintln(to, "hello")
			var err error
			heard, err = bufio.NewReader(from).ReadString('\n')
			return err
		}
	})
	if err != nil || heard != "hello, too\n" {
		t.Errorf("heard %q: %v", heard, err)
	}
}

// What a program that is asked starts, such as a server of an agent's that it should not have started, ends with it:
// also when it has a session of its own and holds the output open.
func TestNothingIsLeftOfAQuestion(t *testing.T) {
	programs.Find(t, "setsid")
	for name, last := range map[string]string{"answered": "exec sleep 0.2", "too slow": "exec sleep 60"} {
		t.Run(name, func(t *testing.T) {
			var pid int
			_, err := ask(t, "setsid sh -c 'echo $$; exec sleep 300' & "+last, func(q *Question) {
				q.Limit = 3 * time.Second
				q.Talk = func(_ io.Writer, from io.Reader) error {
					_, err := fmt.Fscan(from, &pid)
					return err
				}
			})
			if (name == "too slow") != errors.Is(err, context.DeadlineExceeded) || pid == 0 || Alive(pid) {
				t.Errorf("process %d is left: %v", pid, err)
			}
		})
	}
}
