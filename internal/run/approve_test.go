//go:build unix

package run

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"nightporter/internal/agent"
	"nightporter/internal/approval"
)

// asks is an agent whose line "ask ID" wants a person's approval.
type asks struct {
	plain
	answers []string
}

func (a *asks) Line(line []byte) []agent.Action {
	word, id, _ := strings.Cut(string(line), " ")
	switch word {
	case "ask":
		return []agent.Action{agent.AskPerson{ID: id, Tool: "tool " + id, Arguments: []byte(`{}`)}}
	case "withdraw":
		return []agent.Action{agent.Withdraw{ID: id}}
	}
	return a.plain.Line(line)
}

func (a *asks) Answer(id string, approved bool, reason string) []agent.Action {
	a.answers = append(a.answers, fmt.Sprint(id, " ", approved, " ", reason))
	return []agent.Action{agent.Emit{Event: agent.Event{Kind: agent.EventText, Text: "answered " + id}}}
}

// personIn leads an agent that asks a person, who takes some time.
func personIn(a *acted, d agent.Dialogue, takes time.Duration, note func(string)) *supervisor {
	return supervised(a, d, func(s *supervisor) {
		s.idle = time.Minute
		s.waiting = func(activity string) { note(cmp.Or(activity, "nobody is waited for")) }
		s.emit = func(e agent.Event) { note(e.Text) }
		s.ask = func(ctx context.Context, call agent.AskPerson) approval.Answer {
			defer s.waits.begin(call.Tool)()
			select {
			case <-time.After(takes):
				return approval.Answer{Approved: true}
			case <-ctx.Done():
				note("ended " + call.Tool)
				return approval.Answer{Reason: "ended"}
			}
		}
	})
}

func TestTimeSpentWaitingForAPersonIsNotIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, d := newActed(), &asks{}
		a.on["interrupt"] = a.end
		var told []string
		s := personIn(a, d, time.Hour, func(what string) { told = append(told, fmt.Sprintf("%v: %s", time.Since(a.began), what)) })
		go func() {
			fmt.Fprintln(a.stdout, "ask 1")
			time.Sleep(10 * time.Minute)
			fmt.Fprintln(a.stdout, "ask 2") // printing something is no reason to be idle afterwards
		}()
		got := s.supervise(t.Context())
		if got.why == nil || got.why.Code != agent.CodeIdle {
			t.Errorf("ended by %v", got.why)
		}
		want := []string{
			"0s: waiting for approval of tool 1", "10m0s: waiting for approval of tool 1 and 1 more", "1h0m0s: waiting for approval of tool 2",
			"1h0m0s: answered 1", "1h10m0s: nobody is waited for", "1h10m0s: answered 2",
		}
		slices.Sort(told)
		slices.Sort(want)
		if !slices.Equal(told, want) {
			t.Errorf("told\n%s", strings.Join(told, "\n"))
		}
		// A minute of silence after the last answer ends it.
		if want := []string{"interrupt at 1h11m0s"}; !slices.Equal(a.log, want) {
			t.Errorf("did %v, want %v", a.log, want)
		}
		if want := []string{"1 true ", "2 true "}; !slices.Equal(d.answers, want) {
			t.Errorf("answers %q", d.answers)
		}
	})
}

func TestAStoppedRunWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, d := newActed(), &asks{}
		a.on["interrupt"] = a.end
		ended := make(chan string, 1)
		s := personIn(a, d, time.Hour, func(what string) {
			if strings.HasPrefix(what, "ended") {
				ended <- what
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go fmt.Fprintln(a.stdout, "ask 1")
		got := s.supervise(ctx)
		select {
		case <-ended:
		default:
			t.Error("the question goes on after the run") // which supervise waits for
		}
		if got.why == nil || got.why.Code != agent.CodeTimeout || time.Since(a.began) != time.Minute || len(d.answers) != 0 {
			t.Errorf("ended by %v after %v, with answers %q", got.why, time.Since(a.began), d.answers)
		}
	})
}

func TestAQuestionThatIsTakenBackEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, d := newActed(), &asks{}
		s := personIn(a, d, time.Hour, func(what string) {
			if what == "ended tool 1" {
				go a.end()
			}
		})
		go func() { fmt.Fprint(a.stdout, "ask 1\nwithdraw 1\n") }()
		s.supervise(t.Context())
		if time.Since(a.began) > time.Minute || len(d.answers) != 0 {
			t.Errorf("after %v, answers %q", time.Since(a.began), d.answers)
		}
	})
}
