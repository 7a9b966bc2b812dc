package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"nightporter/client"
	"nightporter/test/postgres"
)

func TestMain(m *testing.M) {
	code := m.Run()
	postgres.Stop()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// each runs a test on both databases.
func each(t *testing.T, test func(t *testing.T, s *Store)) {
	t.Run("sqlite", func(t *testing.T) { test(t, open(t, filepath.Join(t.TempDir(), "hub.db"))) })
	t.Run("postgres", func(t *testing.T) { test(t, open(t, postgres.Database(t))) })
}

func open(t testing.TB, target string) *Store {
	t.Helper()
	s, err := Open(t.Context(), target, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	must(t, s.SetProfile(t.Context(), client.Profile{Name: DefaultProfile, Agent: "demo"}))
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// host pairs a host and returns its id.
func host(t testing.TB, s *Store, name string) string {
	t.Helper()
	_, err := s.AddInvite(t.Context(), "invite of "+name, time.Hour)
	must(t, err)
	id, err := s.Pair(t.Context(), "invite of "+name, name, "key of "+name)
	must(t, err)
	return id
}

func send(t testing.TB, s *Store, conversation, text string) client.Message {
	t.Helper()
	m, _, err := s.AddMessage(t.Context(), Sender{Key: "k"}, client.NewMessage{Conversation: conversation, Text: text})
	must(t, err)
	return m
}

func claim(t testing.TB, s *Store, host string) *client.Assignment {
	t.Helper()
	a, err := s.Claim(t.Context(), host, 100, "1")
	must(t, err)
	return a
}

func outcome(reply string) json.RawMessage {
	raw, _ := json.Marshal(map[string]any{"status": "ok", "reply": reply, "session_id": "s1", "duration_ms": 5, "usage": map[string]any{"input_tokens": 3, "output_tokens": 4, "cost_usd": 0.5}})
	return raw
}

func finish(t testing.TB, s *Store, host string, a *client.Assignment, reply string) {
	t.Helper()
	must(t, s.Finish(t.Context(), host, a.Run.ID, client.Finish{Fence: a.Fence, Outcome: outcome(reply)}))
}

func TestAConversationIsAnsweredInOrder(t *testing.T) {
	each(t, func(t *testing.T, s *Store) {
		h := host(t, s, "a")
		if claim(t, s, h) != nil {
			t.Fatal("there is a run in an empty queue")
		}
		must(t, func() error {
			_, err := s.SetWebhook(t.Context(), client.Webhook{Name: "w", URL: "http://x", Events: []string{"run.done"}, All: true, Secret: "s"})
			return err
		}())
		one, two := send(t, s, "c", "one"), send(t, s, "c", "two")
		if one.Run.State != client.RunReady || two.Run.State != client.RunWaiting {
			t.Fatalf("%s, %s", one.Run.State, two.Run.State)
		}
		a := claim(t, s, h)
		if a == nil || a.Text != "one" || !a.First || a.Run.Host != "a" || a.Profile.Agent != "demo" || a.LeaseMS != DefaultLease.Milliseconds() {
			t.Fatalf("%+v", a)
		}
		if b := claim(t, s, h); b != nil {
			t.Fatalf("two runs of a conversation: %+v", b)
		}
		finish(t, s, h, a, "1")
		finish(t, s, h, a, "1") // again
		b := claim(t, s, h)
		if b == nil || b.Text != "two" || b.First || len(b.History) != 1 || b.History[0] != (client.Turn{Text: "one", Reply: "1"}) {
			t.Fatalf("%+v", b)
		}
		finish(t, s, h, b, "2")
		m, err := s.Message(t.Context(), two.ID)
		must(t, err)
		if m.Run.State != client.RunDone || m.Run.Reply == nil || *m.Run.Reply != "2" || m.Run.CostUSD != 0.5 || m.Run.Status != "ok" {
			t.Errorf("%+v", m.Run)
		}
		events, err := s.Events(t.Context(), "c", 0, 100)
		must(t, err)
		var kinds []string
		for i, e := range events {
			if e.Seq != int64(i)+1 {
				t.Errorf("event %d has the number %d", i+1, e.Seq)
			}
			kinds = append(kinds, e.Type)
		}
		if got := fmt.Sprint(kinds); got != "[message.accepted message.accepted run.taken run.done run.taken run.done]" {
			t.Error(got)
		}
		trends, err := s.Trends(t.Context(), 7)
		must(t, err)
		if len(trends) != 1 || trends[0].Runs != 2 || trends[0].OK != 2 || trends[0].CostUSD != 1 {
			t.Errorf("%+v", trends)
		}
		// The second delivery waits for the first.
		due, err := s.DueDeliveries(t.Context(), 10, time.Minute)
		must(t, err)
		if len(due) != 1 {
			t.Fatalf("%d are due", len(due))
		}
		must(t, s.Delivered(t.Context(), due[0]))
		again, err := s.DueDeliveries(t.Context(), 10, time.Minute)
		must(t, err)
		if len(again) != 1 || again[0].ID == due[0].ID {
			t.Fatalf("%+v", again)
		}
	})
}

func TestALeaseThatWasLostFinishesNothing(t *testing.T) {
	each(t, func(t *testing.T, s *Store) {
		a, b := host(t, s, "a"), host(t, s, "b")
		m := send(t, s, "c", "one")
		first := claim(t, s, a)
		_, err := s.db.Exec(s.query(`UPDATE run SET lease = {now} - 1`))
		must(t, err)
		// A beat that comes late and before anybody has looked renews.
		if _, err := s.Beat(t.Context(), a, m.Run.ID, client.Beat{Fence: first.Fence}); err != nil {
			t.Fatal(err)
		}
		if n, err := s.Sweep(t.Context()); n != 0 || err != nil {
			t.Fatal(n, err)
		}
		_, err = s.db.Exec(s.query(`UPDATE run SET lease = {now} - 1`))
		must(t, err)
		if n, err := s.Sweep(t.Context()); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		second := claim(t, s, b)
		if second == nil || second.Fence <= first.Fence || second.Run.Attempts != 2 {
			t.Fatalf("%+v", second)
		}
		ctx := t.Context()
		for what, err := range map[string]error{
			"beat":    func() error { _, err := s.Beat(ctx, a, m.Run.ID, client.Beat{Fence: first.Fence}); return err }(),
			"events":  s.AppendEvents(ctx, a, m.Run.ID, client.Events{Fence: first.Fence, N: 1, Events: []json.RawMessage{json.RawMessage(`{"type":"run.text"}`)}}),
			"finish":  s.Finish(ctx, a, m.Run.ID, client.Finish{Fence: first.Fence, Outcome: outcome("late")}),
			"release": s.Release(ctx, a, m.Run.ID, client.Release{Fence: first.Fence}),
			"update":  s.PostUpdate(ctx, a, m.Run.ID, client.Update{Fence: first.Fence, ID: "u", Text: "x"}),
			"file":    s.AttachFile(ctx, a, m.Run.ID, client.Attach{Fence: first.Fence, ID: "f", Name: "x", Data: []byte("x")}),
			"ask": func() error {
				_, err := s.AskApproval(ctx, a, m.Run.ID, client.Ask{Fence: first.Fence, ID: "q", Kind: "call", Question: json.RawMessage(`{}`)})
				return err
			}(),
			"another host under the right fence": s.Finish(ctx, a, m.Run.ID, client.Finish{Fence: second.Fence, Outcome: outcome("late")}),
		} {
			if !errors.Is(err, ErrLeaseLost) {
				t.Errorf("%s: %v", what, err)
			}
		}
		finish(t, s, b, second, "2")
		attempts, err := s.Attempts(ctx, m.Run.ID)
		must(t, err)
		if len(attempts) != 2 || attempts[0].End != "lease_lost" || attempts[1].End != "finished" {
			t.Errorf("%+v", attempts)
		}
	})
}

func TestAttemptsAreUsedUp(t *testing.T) {
	each(t, func(t *testing.T, s *Store) {
		h := host(t, s, "a")
		m := send(t, s, "c", "one")
		send(t, s, "c", "two")
		for range DefaultAttempts {
			a := claim(t, s, h)
			if a == nil || a.Text != "one" {
				t.Fatalf("%+v", a)
			}
			must(t, s.Release(t.Context(), h, a.Run.ID, client.Release{Fence: a.Fence, Reason: "no agent here"}))
			_, err := s.db.Exec(s.query(`UPDATE run SET ready = {now} - 1 WHERE state = 'ready'`))
			must(t, err)
		}
		run, err := s.Run(t.Context(), m.Run.ID)
		must(t, err)
		if run.State != client.RunDone || run.Status != "failed" || run.ErrorCode != "attempts_used_up" || run.ErrorMessage != "the run was tried 3 times; the last time: no agent here" {
			t.Errorf("%+v", run)
		}
		if a := claim(t, s, h); a == nil || a.Text != "two" {
			t.Errorf("%+v", a)
		}
	})
}

func TestManyHostsClaimEachRunOnce(t *testing.T) {
	each(t, func(t *testing.T, s *Store) {
		const conversations, messages, hosts = 20, 5, 8
		for m := range messages {
			for c := range conversations {
				send(t, s, fmt.Sprint("c", c), fmt.Sprint(m))
			}
		}
		var mu sync.Mutex
		said := map[string][]string{}
		running := map[string]bool{}
		var group sync.WaitGroup
		for i := range hosts {
			h := host(t, s, fmt.Sprint("h", i))
			group.Go(func() {
				for {
					a, err := s.Claim(context.Background(), h, 2, "1")
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if a == nil {
						n := 0
						for _, list := range said {
							n += len(list)
						}
						mu.Unlock()
						if n == conversations*messages {
							return
						}
						woken, stop := s.Watch(TopicQueue)
						select {
						case <-woken:
						case <-time.After(20 * time.Millisecond):
						}
						stop()
						continue
					}
					if running[a.Conversation] {
						t.Errorf("%s has two runs at once", a.Conversation)
					}
					running[a.Conversation] = true
					mu.Unlock()
					mu.Lock()
					running[a.Conversation] = false
					said[a.Conversation] = append(said[a.Conversation], a.Text)
					mu.Unlock()
					if err := s.Finish(context.Background(), h, a.Run.ID, client.Finish{Fence: a.Fence, Outcome: outcome(a.Text)}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
		for c, list := range said {
			if fmt.Sprint(list) != "[0 1 2 3 4]" {
				t.Errorf("%s was answered in the order %v", c, list)
			}
		}
	})
}

func TestTheSameMessageIsAcceptedOnce(t *testing.T) {
	each(t, func(t *testing.T, s *Store) {
		from := Sender{Key: "k", Idempotency: "i", Digest: "d"}
		var group sync.WaitGroup
		var mu sync.Mutex
		ids, created := map[string]bool{}, 0
		for range 8 {
			group.Go(func() {
				m, is, err := s.AddMessage(context.Background(), from, client.NewMessage{Conversation: "c", Text: "x"})
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
				}
				ids[m.ID] = true
				if is {
					created++
				}
			})
		}
		group.Wait()
		if len(ids) != 1 || created != 1 {
			t.Errorf("%d messages, %d created", len(ids), created)
		}
		from.Digest = "e"
		if _, _, err := s.AddMessage(t.Context(), from, client.NewMessage{Conversation: "c", Text: "y"}); !errors.Is(err, ErrIdempotency) {
			t.Error(err)
		}
	})
}

func TestAnInviteIsGoodOnce(t *testing.T) {
	each(t, func(t *testing.T, s *Store) {
		_, err := s.AddInvite(t.Context(), "i", time.Hour)
		must(t, err)
		var group sync.WaitGroup
		var mu sync.Mutex
		paired := 0
		for i := range 8 {
			group.Go(func() {
				_, err := s.Pair(context.Background(), "i", fmt.Sprint("h", i), fmt.Sprint("k", i))
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					paired++
				} else if !errors.Is(err, ErrInvite) {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if paired != 1 {
			t.Errorf("%d hosts paired", paired)
		}
	})
}

func TestARevokedHostLosesItsRuns(t *testing.T) {
	each(t, func(t *testing.T, s *Store) {
		a, b := host(t, s, "a"), host(t, s, "b")
		send(t, s, "c", "one")
		first := claim(t, s, a)
		_, err := s.RevokeHost(t.Context(), "a")
		must(t, err)
		if _, err := s.Claim(t.Context(), a, 1, "1"); !errors.Is(err, ErrRevoked) {
			t.Error(err)
		}
		if err := s.Finish(t.Context(), a, first.Run.ID, client.Finish{Fence: first.Fence, Outcome: outcome("x")}); !errors.Is(err, ErrLeaseLost) {
			t.Error(err)
		}
		if second := claim(t, s, b); second == nil || second.Run.Attempts != 2 {
			t.Errorf("%+v", second)
		}
		if _, _, err := s.HostByKey(t.Context(), "key of a"); !errors.Is(err, ErrRevoked) {
			t.Error(err)
		}
	})
}

func TestAnApprovalIsAnsweredOnceForItsQuestion(t *testing.T) {
	each(t, func(t *testing.T, s *Store) {
		h := host(t, s, "a")
		send(t, s, "c", "one")
		a := claim(t, s, h)
		ask := client.Ask{Fence: a.Fence, ID: "q", Kind: "call", Digest: "d", Question: json.RawMessage(`{"tool":"x"}`), DeadlineMS: 60_000}
		for range 2 {
			asked, err := s.AskApproval(t.Context(), h, a.Run.ID, ask)
			must(t, err)
			if asked.State != client.ApprovalPending || asked.Host != "a" {
				t.Fatalf("%+v", asked)
			}
		}
		for _, bad := range []client.Answer{{Decision: "approve", Digest: "e"}, {Decision: "answer", Digest: "d"}, {}} {
			if _, err := s.Answer(t.Context(), "q", bad, "ann"); !errors.Is(err, ErrConflict) {
				t.Errorf("%+v: %v", bad, err)
			}
		}
		got, err := s.Answer(t.Context(), "q", client.Answer{Decision: "approve", Digest: "d"}, "ann")
		must(t, err)
		if got.State != client.ApprovalApproved || got.By != "ann" {
			t.Errorf("%+v", got)
		}
		if _, err := s.Answer(t.Context(), "q", client.Answer{Decision: "deny", Digest: "d"}, "bob"); !errors.Is(err, ErrOver) {
			t.Error(err)
		}
		ask.ID = "q2"
		_, err = s.AskApproval(t.Context(), h, a.Run.ID, ask)
		must(t, err)
		finish(t, s, h, a, "done")
		if _, err := s.Answer(t.Context(), "q2", client.Answer{Decision: "approve", Digest: "d"}, "ann"); !errors.Is(err, ErrOver) {
			t.Error(err)
		}
	})
}

func TestSchedulesFireOnce(t *testing.T) {
	each(t, func(t *testing.T, s *Store) {
		past := time.Now().Add(-time.Minute)
		must(t, s.SetSchedule(t.Context(), client.Schedule{Name: "s", Message: client.NewMessage{Conversation: "c", Text: "tick"}, Next: &past}))
		must(t, s.SetSchedule(t.Context(), client.Schedule{Name: "bad", Message: client.NewMessage{Conversation: "d", Text: "tick", Profile: "none"}, Next: &past}))
		var group sync.WaitGroup
		var mu sync.Mutex
		fired, failed := 0, 0
		for range 4 {
			group.Go(func() {
				n, err := s.FireSchedules(context.Background(), func(client.Schedule, time.Time) *time.Time { return nil }, func(client.Schedule, error) { mu.Lock(); failed++; mu.Unlock() })
				mu.Lock()
				defer mu.Unlock()
				fired += n
				if err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		messages, err := s.Messages(t.Context(), "c", 0, 10)
		must(t, err)
		if fired != 1 || len(messages) != 1 || failed == 0 {
			t.Errorf("fired %d, %d messages, failed %d", fired, len(messages), failed)
		}
	})
}

func TestBackupIsADatabase(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "hub.db"))
	send(t, s, "c", "one")
	file := filepath.Join(t.TempDir(), "copy.db")
	must(t, s.Backup(t.Context(), file))
	if err := s.Backup(t.Context(), file); !errors.Is(err, ErrConflict) {
		t.Errorf("a backup over a file: %v", err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	copied := open(t, file)
	if messages, err := copied.Messages(t.Context(), "c", 0, 10); err != nil || len(messages) != 1 {
		t.Errorf("%v %v", messages, err)
	}
}

func TestOldConversationsArePruned(t *testing.T) {
	each(t, func(t *testing.T, s *Store) {
		h := host(t, s, "a")
		send(t, s, "old", "one")
		a := claim(t, s, h)
		must(t, s.PostUpdate(t.Context(), h, a.Run.ID, client.Update{Fence: a.Fence, ID: "u", Text: "x"}))
		must(t, s.AttachFile(t.Context(), h, a.Run.ID, client.Attach{Fence: a.Fence, ID: "f", Name: "x", Data: []byte("x")}))
		finish(t, s, h, a, "1")
		send(t, s, "waits", "one")
		_, err := s.db.Exec(s.query(`UPDATE conversation SET updated = {now} - 100000`))
		must(t, err)
		send(t, s, "new", "one")
		if n, err := s.Prune(t.Context(), time.Minute); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		left, err := s.Conversations(t.Context(), "", 10)
		must(t, err)
		if len(left) != 2 {
			t.Errorf("%+v", left)
		}
	})
}
