package store

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"nightporter/client"
	"nightporter/test/postgres"
)

// violations are statements that count what must not be.
var violations = map[string]string{
	"conversations with two runs that are ready or running": `SELECT count(*) FROM (SELECT conversation_id FROM run WHERE state IN ('ready', 'running') GROUP BY conversation_id HAVING count(*) > 1) x`,
	"runs that wait behind nothing":                         `SELECT count(*) FROM run w WHERE w.state = 'waiting' AND NOT EXISTS (SELECT 1 FROM run r WHERE r.conversation_id = w.conversation_id AND r.state IN ('ready', 'running'))`,
	"runs that overtook another":                            `SELECT count(*) FROM run w JOIN run r ON r.conversation_id = w.conversation_id WHERE w.state = 'waiting' AND r.state IN ('ready', 'running') AND r.seq > w.seq`,
	"messages without their run":                            `SELECT count(*) FROM message m WHERE (SELECT count(*) FROM run r WHERE r.message_id = m.id AND r.conversation_id = m.conversation_id AND r.seq = m.seq) <> 1`,
	"conversations with a gap in their events":              `SELECT count(*) FROM conversation c WHERE c.events <> (SELECT count(*) FROM event e WHERE e.conversation_id = c.id) OR c.events <> (SELECT COALESCE(max(e.seq), 0) FROM event e WHERE e.conversation_id = c.id)`,
	"runs that are done without one event that says so":     `SELECT count(*) FROM run r WHERE (CASE WHEN r.state = 'done' THEN 1 ELSE 0 END) <> (SELECT count(*) FROM event e WHERE e.run_id = r.id AND e.type = 'run.done')`,
	"runs that are done without one delivery":               `SELECT count(*) FROM run r WHERE (CASE WHEN r.state = 'done' THEN 1 ELSE 0 END) <> (SELECT count(*) FROM delivery d WHERE d.run_id = r.id AND d.event = 'run.done')`,
	"deliveries that wait behind nothing":                   `SELECT count(*) FROM delivery w WHERE w.state = 'waiting' AND NOT EXISTS (SELECT 1 FROM delivery d WHERE d.conversation_id = w.conversation_id AND d.webhook = w.webhook AND d.state = 'pending')`,
	"runs that the trend does not have":                     `SELECT abs((SELECT count(*) FROM run WHERE state = 'done') - (SELECT COALESCE(sum(runs), 0) FROM trend))`,
	"tokens that the trend does not have":                   `SELECT abs((SELECT COALESCE(sum(input_tokens), 0) FROM run) - (SELECT COALESCE(sum(input_tokens), 0) FROM trend))`,
	"attempts that are open without a run":                  `SELECT count(*) FROM attempt a JOIN run r ON r.id = a.run_id WHERE a.ended IS NULL AND NOT (r.state = 'running' AND r.fence = a.fence)`,
	"approvals that wait for a run that has gone on":        `SELECT count(*) FROM approval a JOIN run r ON r.id = a.run_id WHERE a.state = 'pending' AND NOT (r.state = 'running' AND r.fence = a.fence)`,
}

func intact(t interface{ Errorf(string, ...any) }, s *Store) {
	for what, statement := range violations {
		var n int
		if err := s.db.QueryRow(statement).Scan(&n); err != nil || n != 0 {
			t.Errorf("%d %s (%v)", n, what, err)
		}
	}
}

func all(t testing.TB, s *Store) {
	t.Helper()
	_, err := s.SetWebhook(t.Context(), client.Webhook{Name: "w", URL: "http://x", Events: []string{"run.done"}, All: true, Secret: "s"})
	must(t, err)
}

// Whatever hosts, people and time do in whatever order, the queue keeps its promises, and a host that lost a run is told so.
func TestTheQueueKeepsItsPromises(t *testing.T) {
	each(t, func(t *testing.T, s *Store) {
		all(t, s)
		ctx := context.Background()
		number, pairs := 0, 0
		if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue { // each is some hundred transactions
			must(t, f.Value.Set("15"))
			defer f.Value.Set(f.DefValue) //nolint:errcheck // it was its value
		}
		rapid.Check(t, func(rt *rapid.T) {
			number++
			type taken struct {
				run, host string
				fence     int64
			}
			var hosts [2]string
			join := func(i int) { pairs++; hosts[i] = host(t, s, fmt.Sprint("h", pairs)) }
			join(0)
			join(1)
			var runs []string         // of this case
			var given []taken         // all assignments
			holds := map[string]int{} // by run: which of them is good
			fences := map[string]int64{}
			tell := func(what string, i int, err error) { // the answer that assignment i gets
				if good, ok := holds[given[i].run]; ok && good == i {
					if err != nil {
						rt.Fatalf("%s by the host that has the run: %v", what, err)
					}
				} else if !errors.Is(err, ErrLeaseLost) && !errors.Is(err, ErrRevoked) {
					rt.Fatalf("%s by a host that lost the run: %v", what, err)
				}
			}
			pick := func(rt *rapid.T) int {
				if len(given) == 0 {
					rt.Skip("nothing was claimed")
				}
				return rapid.IntRange(max(0, len(given)-6), len(given)-1).Draw(rt, "assignment")
			}
			exec := func(statement string, args ...any) {
				if _, err := s.db.Exec(s.query(statement), args...); err != nil {
					rt.Fatal(err)
				}
			}
			take := func(rt *rapid.T, h string) bool {
				a, err := s.Claim(ctx, h, 3, "1")
				if err != nil {
					rt.Fatal(err)
				}
				if a == nil {
					return false
				}
				if a.Fence <= fences[a.Run.ID] {
					rt.Fatalf("run %s has fence %d after %d", a.Run.ID, a.Fence, fences[a.Run.ID])
				}
				if _, ok := holds[a.Run.ID]; ok {
					rt.Fatalf("run %s is given out twice", a.Run.ID)
				}
				fences[a.Run.ID] = a.Fence
				given = append(given, taken{a.Run.ID, h, a.Fence})
				holds[a.Run.ID] = len(given) - 1
				return true
			}
			rt.Repeat(map[string]func(*rapid.T){
				"add": func(rt *rapid.T) {
					m, _, err := s.AddMessage(ctx, Sender{Key: "k"}, client.NewMessage{
						Conversation: fmt.Sprint(number, " ", rapid.IntRange(0, 2).Draw(rt, "conversation")), Text: "x\x00",
						Priority: rapid.IntRange(-1, 1).Draw(rt, "priority"), Interrupt: rapid.Bool().Draw(rt, "interrupt"),
					})
					if err != nil {
						rt.Fatal(err)
					}
					runs = append(runs, m.Run.ID)
				},
				"claim": func(rt *rapid.T) { take(rt, hosts[rapid.IntRange(0, 1).Draw(rt, "host")]) },
				"beat": func(rt *rapid.T) {
					i := pick(rt)
					_, err := s.Beat(ctx, given[i].host, given[i].run, client.Beat{Fence: given[i].fence})
					tell("beat", i, err)
				},
				"update": func(rt *rapid.T) {
					i := pick(rt)
					tell("update", i, s.PostUpdate(ctx, given[i].host, given[i].run, client.Update{Fence: given[i].fence, ID: NewID(), Text: "soon"}))
				},
				"ask": func(rt *rapid.T) {
					i := pick(rt)
					_, err := s.AskApproval(ctx, given[i].host, given[i].run, client.Ask{Fence: given[i].fence, ID: NewID(), Kind: "call", Digest: "d", Question: []byte(`{}`), DeadlineMS: 60_000})
					tell("ask", i, err)
				},
				"finish": func(rt *rapid.T) {
					i := pick(rt)
					finished := func() error {
						return s.Finish(ctx, given[i].host, given[i].run, client.Finish{Fence: given[i].fence, Outcome: outcome("r\x00")})
					}
					err := finished()
					if good, ok := holds[given[i].run]; ok && good == i {
						if err != nil || finished() != nil {
							rt.Fatalf("finish: %v", err)
						}
						delete(holds, given[i].run)
					} else if err != nil && !errors.Is(err, ErrLeaseLost) {
						rt.Fatal(err) // nil: it was finished under this fence before
					}
				},
				"release": func(rt *rapid.T) {
					i := pick(rt)
					tell("release", i, s.Release(ctx, given[i].host, given[i].run, client.Release{Fence: given[i].fence, Reason: "no"}))
					if holds[given[i].run] == i {
						delete(holds, given[i].run)
					}
				},
				"cancel": func(rt *rapid.T) {
					if len(runs) == 0 {
						rt.Skip("there are no runs")
					}
					if err := s.Cancel(ctx, rapid.SampledFrom(runs).Draw(rt, "run"), "why not"); err != nil && !errors.Is(err, ErrOver) {
						rt.Fatal(err)
					}
				},
				"lose": func(rt *rapid.T) {
					i := pick(rt)
					exec(`UPDATE run SET lease = {now} - 1000 WHERE id = ? AND fence = ? AND state = 'running'`, given[i].run, given[i].fence)
					n, err := s.Sweep(ctx)
					if err != nil {
						rt.Fatal(err)
					}
					want := 0
					if good, ok := holds[given[i].run]; ok && good == i {
						want = 1
						delete(holds, given[i].run)
					}
					if n != want {
						rt.Fatalf("the sweep took %d back, not %d", n, want)
					}
				},
				"time": func(*rapid.T) {
					exec(`UPDATE run SET ready = {now} - 1, prefer_until = {now} - 1 WHERE state = 'ready'`)
				},
				"revoke": func(rt *rapid.T) {
					i := rapid.IntRange(0, 1).Draw(rt, "host")
					if _, err := s.RevokeHost(ctx, hosts[i]); err != nil {
						rt.Fatal(err)
					}
					for run, a := range holds {
						if given[a].host == hosts[i] {
							delete(holds, run)
						}
					}
					join(i)
				},
			})
			// All ends: what is held is finished, what waits is claimed.
			for left := true; left; {
				for run, i := range holds {
					if err := s.Finish(ctx, given[i].host, run, client.Finish{Fence: given[i].fence, Outcome: outcome("r")}); err != nil {
						rt.Fatal(err)
					}
					delete(holds, run)
				}
				exec(`UPDATE run SET ready = {now} - 1, prefer_until = {now} - 1 WHERE state = 'ready'`)
				left = take(rt, hosts[0])
			}
			var n int
			if err := s.db.QueryRow(`SELECT count(*) FROM run WHERE state <> 'done'`).Scan(&n); err != nil || n != 0 {
				rt.Fatalf("%d runs are left behind (%v)", n, err)
			}
			intact(rt, s)
		})
	})
}

// The connections to PostgreSQL are cut again and again while messages are accepted, claimed and finished: what failed is tried again, and nothing is lost or done twice.
func TestConnectionsThatAreCutLoseNothing(t *testing.T) {
	s := open(t, postgres.Database(t))
	all(t, s)
	const senders, each, hosts = 2, 40, 4
	ctx, done := context.WithTimeout(context.Background(), 4*time.Minute)
	defer done()
	var finished, cuts atomic.Int64
	retry := func(do func() error) bool {
		for ctx.Err() == nil {
			err := do()
			if err == nil || errors.Is(err, ErrLeaseLost) {
				return err == nil
			}
		}
		t.Error("the time is up")
		return false
	}
	var ids [hosts]string
	for k := range ids {
		ids[k] = host(t, s, fmt.Sprint("h", k))
	}
	cut := func() { // two of the connections, whatever they are at
		if _, err := s.db.ExecContext(ctx, `SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY random() LIMIT 2) x`); err == nil {
			cuts.Add(1)
		}
	}
	var group sync.WaitGroup
	for k := range senders {
		group.Go(func() {
			for i := range each {
				from := Sender{Key: "k", Idempotency: fmt.Sprint(k, " ", i), Digest: "d"}
				retry(func() error {
					_, _, err := s.AddMessage(ctx, from, client.NewMessage{Conversation: fmt.Sprint("c", i%7), Text: from.Idempotency})
					return err
				})
			}
		})
	}
	for _, h := range ids {
		group.Go(func() {
			for finished.Load() < senders*each && ctx.Err() == nil {
				var a *client.Assignment
				retry(func() (err error) { a, err = s.Claim(ctx, h, 100, "1"); return err })
				if a == nil { // a claim whose answer was lost is taken back after its lease
					retry(func() error {
						_, err := s.db.ExecContext(ctx, s.query(`UPDATE run SET lease = {now} - 1, max_attempts = 1000 WHERE state = 'running' AND host_id = ?`), h)
						return err
					})
					retry(func() error { _, err := s.Sweep(ctx); return err })
					continue
				}
				if retry(func() error {
					return s.Finish(ctx, h, a.Run.ID, client.Finish{Fence: a.Fence, Outcome: outcome("r")})
				}) {
					if finished.Add(1)%4 == 0 {
						cut()
					}
				}
			}
		})
	}
	group.Wait()
	var n int
	retry(func() error {
		return s.db.QueryRowContext(ctx, `SELECT count(*) FROM run WHERE state = 'done'`).Scan(&n)
	})
	if n != senders*each {
		t.Errorf("%d of %d runs are done", n, senders*each)
	}
	intact(t, s)
	t.Logf("cut %d times", cuts.Load())
}

// No statement of the queue and the outbox reads a table that grows with history but by an index. The statements are those that were
// really made.
func TestNoStatementReadsTheWholeHistory(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "hub.db"))
	all(t, s)
	ctx := t.Context()
	h := host(t, s, "a")
	for i := range 4 {
		send(t, s, fmt.Sprint("c", i%2), "x")
	}
	a := claim(t, s, h)
	_, err := s.Beat(ctx, h, a.Run.ID, client.Beat{Fence: a.Fence})
	must(t, err)
	must(t, s.AppendEvents(ctx, h, a.Run.ID, client.Events{Fence: a.Fence, N: 1, Events: []json.RawMessage{json.RawMessage(`{"type":"x"}`)}}))
	must(t, s.PostUpdate(ctx, h, a.Run.ID, client.Update{Fence: a.Fence, ID: "u", Text: "x"}))
	_, err = s.AskApproval(ctx, h, a.Run.ID, client.Ask{Fence: a.Fence, ID: "q", Kind: "call", Digest: "d", Question: []byte(`{}`), DeadlineMS: 60_000})
	must(t, err)
	_, err = s.Answer(ctx, "q", client.Answer{Decision: "approve", Digest: "d"}, "ann")
	must(t, err)
	finish(t, s, h, a, "r")
	b := claim(t, s, h)
	must(t, s.Release(ctx, h, b.Run.ID, client.Release{Fence: b.Fence}))
	must(t, s.Cancel(ctx, b.Run.ID, "x"))
	for claim(t, s, h) != nil {
	}
	_, err = s.Commands(ctx, h)
	must(t, err)
	_, err = s.Sweep(ctx)
	must(t, err)
	due, err := s.DueDeliveries(ctx, 10, time.Minute)
	must(t, err)
	for _, d := range due {
		must(t, s.Delivered(ctx, d))
	}
	_, err = s.Stats(ctx)
	must(t, err)
	_, err = s.Events(ctx, "c0", 0, 10)
	must(t, err)
	for _, state := range []string{"waiting", "ready", "running"} {
		_, err = s.Runs(ctx, RunFilter{State: state})
		must(t, err)
	}
	_, err = s.Runs(ctx, RunFilter{Status: "failed"})
	must(t, err)
	_, err = s.Prune(ctx, -time.Hour)
	must(t, err)

	checked := 0
	s.queries.Range(func(_, value any) bool {
		text := value.(string)
		rows, err := s.db.Query("EXPLAIN QUERY PLAN "+text, make([]any, strings.Count(text, "?"))...)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			return true
		}
		defer rows.Close()
		checked++
		for rows.Next() {
			var id, parent, unused int
			var step string
			must(t, rows.Scan(&id, &parent, &unused, &step))
			if words := strings.Fields(step); words[0] == "SCAN" && !strings.Contains(step, "USING") && grows[words[1]] {
				t.Errorf("%s\n%s", step, text)
			}
		}
		must(t, rows.Err())
		return true
	})
	if checked < 40 {
		t.Errorf("%d statements were looked at", checked)
	}
}

// grows has the tables that grow with history, and their short names.
var grows = map[string]bool{
	"conversation": true, "message": true, "run": true, "attempt": true, "event": true, "delivery": true, "approval": true, "file": true, "run_update": true, "audit": true,
	"c": true, "m": true, "r": true, "a": true, "e": true, "d": true, "f": true,
}
