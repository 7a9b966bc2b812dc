//go:build unix

package hook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"nightporter/internal/approval"
)

var question = approval.Question{Run: "r", Client: "run r", Tool: "delete", Server: "crm", Arguments: json.RawMessage(`{"id":1}`), Authority: "a"}

// script is a hook of these lines, which find the question in q and its digest in d.
func script(t *testing.T, lines string) Hook {
	t.Helper()
	dir := t.TempDir()
	text := "#!/bin/sh\nq=$(cat)\nd=$(printf %s \"$q\" | sed 's/^{\"digest\":\"\\([0-9a-f]*\\)\".*/\\1/')\n" + lines + "\n"
	if err := os.WriteFile(filepath.Join(dir, "ask.sh"), []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return Hook{Argv: []string{"./ask.sh", "one"}, Dir: dir, Timeout: time.Minute}
}

func desk() *Desk {
	return NewDesk([]string{"PATH=" + os.Getenv("PATH"), "CRM_TOKEN=secret", "HOME=/h"})
}

func TestAHookDecides(t *testing.T) {
	h := script(t, `printf %s "$q" >question; env >env; pwd -P >dir; echo '{"decision":"approve","digest":"'$d'","by":"ann"}'`)
	got := desk().Ask(t.Context(), h, question)
	if !got.Approved || got.By != "ann" || got.Waited <= 0 {
		t.Errorf("got %+v", got)
	}
	var asked struct {
		Tool      string
		Arguments json.RawMessage
		Deadline  time.Time
	}
	data, _ := os.ReadFile(filepath.Join(h.Dir, "question"))
	if err := json.Unmarshal(data, &asked); err != nil || asked.Tool != "delete" || string(asked.Arguments) != `{"id":1}` || time.Until(asked.Deadline) > h.Timeout {
		t.Errorf("the hook read %s (%v)", data, err)
	}
	env, _ := os.ReadFile(filepath.Join(h.Dir, "env"))
	if strings.Contains(string(env), "CRM_TOKEN") || !strings.Contains(string(env), "HOME=/h") {
		t.Errorf("its environment is %s", env)
	}
	real, _ := filepath.EvalSymlinks(h.Dir)
	if dir, _ := os.ReadFile(filepath.Join(h.Dir, "dir")); strings.TrimSpace(string(dir)) != real {
		t.Errorf("it ran in %s", dir)
	}
	if got := desk().Ask(t.Context(), script(t, `echo '{"decision":"deny","digest":"'$d'","reason":"no"}'`), question); got.Approved || got.Reason != "no" || got.By != "on_approval" {
		t.Errorf("got %+v", got)
	}
}

func TestAnythingButAnApprovalDenies(t *testing.T) {
	for lines, want := range map[string]string{
		`echo yes`:   "does not count: it is not one JSON object",
		`exit 0`:     "does not count: it is not one JSON object",
		`kill -9 $$`: "on_approval failed: ended by signal: killed",
		`echo '{"decision":"approve","digest":"'$d'"}'; echo broken >&2; exit 3`:                 "on_approval failed: exit status 3: broken",
		`echo '{"decision":"approve","digest":"0'$d'"}'`:                                         "its digest is not that of this question",
		`head -c 100000 /dev/zero`:                                                               "more than 65536 bytes",
		`echo '{"decision":"approve","digest":"'$d'"}'; echo '{"decision":"deny","digest":"d"}'`: "something follows",
	} {
		if got := desk().Ask(t.Context(), script(t, lines), question); got.Approved || !strings.Contains(got.Reason, want) {
			t.Errorf("%s: got %+v, want %q", lines, got, want)
		}
	}
	for argv, want := range map[string]string{"./none": "the program ./none cannot be run", "no-such-hook": "was not found on PATH"} {
		if got := desk().Ask(t.Context(), Hook{Argv: []string{argv}, Dir: t.TempDir(), Timeout: time.Minute}, question); got.Approved || !strings.Contains(got.Reason, want) {
			t.Errorf("%s: got %+v", argv, got)
		}
	}
}

// The same call twice at once, and each answer with the other's digest.
func TestAnAnswerToAnotherQuestionDenies(t *testing.T) {
	dir := t.TempDir()
	swap := `mkdir -p ` + dir + `; n=$1; o=$((1-n)); printf %s "$d" >` + dir + `/$n.part; mv ` + dir + `/$n.part ` + dir + `/$n; while [ ! -f ` + dir + `/$o ]; do sleep 0.05; done; echo '{"decision":"approve","digest":"'$(cat ` + dir + `/$o)'"}'`
	d := desk()
	var wg sync.WaitGroup
	for i := range 2 {
		h := script(t, swap)
		h.Argv[1] = fmt.Sprint(i)
		wg.Go(func() {
			if got := d.Ask(t.Context(), h, question); got.Approved || !strings.Contains(got.Reason, "not that of this question") {
				t.Errorf("got %+v", got)
			}
		})
	}
	wg.Wait()
}

// It returns only when nothing of the program is left, whatever that holds on to.
func TestAHookEndsWithItsQuestion(t *testing.T) {
	dir := t.TempDir()
	h := script(t, `trap '' TERM INT HUP; (trap '' TERM INT HUP; echo $$ >`+dir+`/pid.part; mv `+dir+`/pid.part `+dir+`/pid; while :; do sleep 1; done)`)
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan approval.Answer)
	go func() { done <- desk().Ask(ctx, h, question) }()
	var pid int
	for pid == 0 && t.Context().Err() == nil {
		if data, err := os.ReadFile(filepath.Join(dir, "pid")); err == nil {
			_, _ = fmt.Sscan(string(data), &pid)
		}
	}
	cancel(errors.New("the run was stopped"))
	if got := <-done; got.Approved || !strings.Contains(got.Reason, "the run was stopped") {
		t.Errorf("got %+v", got)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
		t.Errorf("process %d is left", pid)
	}
}

func TestAQuestionHasADeadlineAndAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := desk()
		d.ask = func(ctx context.Context, _ Hook, _ []string, _ []byte, limit time.Duration) ([]byte, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		h := Hook{Argv: []string{"x"}, Timeout: time.Minute}
		var mu sync.Mutex
		reasons := map[string]int{}
		waited := []time.Duration{}
		var wg sync.WaitGroup
		for range maxWaiting + 2 {
			wg.Go(func() {
				got := d.Ask(t.Context(), h, question)
				mu.Lock()
				defer mu.Unlock()
				reasons[got.Reason]++
				waited = append(waited, got.Waited)
			})
		}
		synctest.Wait()
		if n := len(d.slots); n != maxRunning {
			t.Errorf("%d programs run", n)
		}
		wg.Wait()
		if reasons["64 calls wait for approval already"] != 2 || reasons["nobody approved it within 1m0s"] != maxWaiting {
			t.Errorf("reasons %v", reasons)
		}
		if slices.Max(waited) != time.Minute {
			t.Errorf("the last one waited %v", slices.Max(waited))
		}
	})
}

func TestAQuestionThatWaitsForItsPlaceIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := desk()
		d.ask = func(_ context.Context, _ Hook, _ []string, sheet []byte, limit time.Duration) ([]byte, error) {
			time.Sleep(time.Minute)
			var q struct{ Digest string }
			if err := json.Unmarshal(sheet, &q); err != nil {
				return nil, err
			}
			return fmt.Appendf(nil, `{"decision":"approve","digest":%q}`, q.Digest), nil
		}
		var wg sync.WaitGroup
		for range 2 * maxRunning {
			wg.Go(func() {
				if got := d.Ask(t.Context(), Hook{Argv: []string{"x"}, Timeout: 3 * time.Minute}, question); !got.Approved || got.Waited > 2*time.Minute {
					t.Errorf("got %+v", got)
				}
			})
		}
		wg.Wait()
	})
}
