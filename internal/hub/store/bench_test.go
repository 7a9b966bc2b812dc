package store

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"nightporter/client"
	"nightporter/test/postgres"
)

// keep fills a store with runs that are done, ten to a conversation.
func keep(b *testing.B, s *Store, runs int) {
	b.Helper()
	number := fmt.Sprintf(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %%d) `)
	for statement, n := range map[string]int{
		`INSERT INTO conversation (id, key, profile, messages, events, created, updated) ` + number + `SELECT 'old' || i, 'old' || i, 'default', 10, 0, {now}, {now} FROM n`: runs / 10,
	} {
		_, err := s.db.Exec(s.query(fmt.Sprintf(statement, n)))
		must(b, err)
	}
	for _, statement := range []string{
		`INSERT INTO message (id, conversation_id, seq, profile, text, created) ` + number + `SELECT 'm' || i, 'old' || ((i + 9) / 10), 1 + (i - 1) % 10, 'default', 'a question', {now} FROM n`,
		`INSERT INTO run (id, conversation_id, message_id, seq, profile, state, max_attempts, created, finished, status, reply) ` + number +
			`SELECT 'r' || i, 'old' || ((i + 9) / 10), 'm' || i, 1 + (i - 1) % 10, 'default', 'done', 3, {now}, {now}, 'ok', 'an answer' FROM n`,
	} {
		statement = fmt.Sprintf(escape(statement), runs)
		_, err := s.db.Exec(s.query(statement))
		must(b, err)
	}
	_, err := s.db.Exec(`ANALYZE`)
	must(b, err)
}

// escape keeps the remainder operator through Sprintf.
func escape(statement string) string {
	out := ""
	for i := 0; i < len(statement); i++ {
		if statement[i] == '%' && (i+1 == len(statement) || statement[i+1] != 'd') {
			out += "%"
		}
		out += statement[i : i+1]
	}
	return out
}

// BenchmarkQueue measures a message's way through the queue: accepted, claimed by one of 8 hosts, finished with its delivery written. It goes from a
// small history to one of a million runs, and from few conversations that wait to many.
//
//	go test -run '^$' -bench Queue -benchtime 2000x ./internal/hub/store
func BenchmarkQueue(b *testing.B) {
	for _, kind := range []string{"sqlite", "postgres"} {
		for _, history := range []int{1_000, 1_000_000} {
			b.Run(fmt.Sprintf("%s/history=%d", kind, history), func(b *testing.B) {
				target := filepath.Join(b.TempDir(), "hub.db")
				if kind == "postgres" {
					target = postgres.Database(b)
				}
				s := open(b, target)
				keep(b, s, history)
				_, err := s.SetWebhook(b.Context(), client.Webhook{Name: "w", URL: "http://127.0.0.1", Events: []string{"run.done"}, All: true, Secret: "s"})
				must(b, err)
				const hosts = 8
				var ids [hosts]string
				for i := range ids {
					ids[i] = host(b, s, fmt.Sprint("h", i))
				}
				part := func(name string, waiting int, do func(b *testing.B, worker, i int)) {
					b.Run(name, func(b *testing.B) {
						if waiting > 0 {
							for i := range b.N + waiting {
								send(b, s, fmt.Sprintf("%s %d %d", name, b.N, i), "a question")
							}
						}
						var next atomic.Int64
						var group sync.WaitGroup
						b.ResetTimer()
						for worker := range hosts {
							group.Go(func() {
								for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
									do(b, worker, int(i))
								}
							})
						}
						group.Wait()
						b.StopTimer()
						b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "a-second")
						empty(b, s, ids[0])
					})
				}
				ctx := context.Background()
				part("accept", 0, func(b *testing.B, worker, i int) {
					if _, _, err := s.AddMessage(ctx, Sender{Key: "k"}, client.NewMessage{Text: "a question"}); err != nil {
						b.Error(err)
					}
				})
				for _, waiting := range []int{1, 5_000} {
					part(fmt.Sprintf("claim+finish/waiting=%d", waiting), waiting, func(b *testing.B, worker, i int) {
						a, err := s.Claim(ctx, ids[worker], 100, "1")
						if err != nil || a == nil {
							b.Error(a, err)
							return
						}
						if err := s.Finish(ctx, ids[worker], a.Run.ID, client.Finish{Fence: a.Fence, Outcome: outcome("an answer")}); err != nil {
							b.Error(err)
						}
					})
				}
			})
		}
	}
}

// empty ends what still waits, so that the next part starts from the history alone.
func empty(b *testing.B, s *Store, host string) {
	b.Helper()
	_, err := s.db.Exec(s.query(`UPDATE run SET state = 'done', status = 'ok', finished = {now} WHERE state IN ('ready', 'running', 'waiting')`))
	must(b, err)
}
