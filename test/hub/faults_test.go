//go:build unix

package hub

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the drivers
	_ "modernc.org/sqlite"

	"nightporter/client"
	"nightporter/internal/hub"
	"nightporter/internal/hub/store"
	"nightporter/internal/hub/webhook"
	"nightporter/test/postgres"
)

var full = flag.Bool("hub.full", false, "the suite at its full size")

// size is how much there is to do and what goes wrong meanwhile.
type size struct {
	hosts, slots, conversations, messages int
	hostKills, hubKills, cuts             int
}

func sizeNow() size {
	if *full {
		return size{hosts: 8, slots: 8, conversations: 1000, messages: 5000, hostKills: 60, hubKills: 30, cuts: 60}
	}
	return size{hosts: 4, slots: 6, conversations: 100, messages: 500, hostKills: 6, hubKills: 3, cuts: 6}
}

const (
	// patience bounds the whole, on a slow machine that does other things as well.
	patience = 8 * time.Minute
	// lease is short, so that what a killed host had is soon another's; a process that is not scheduled for a third of it would be taken for one
	// that overlaps.
	lease = 6 * time.Second
	// skew is how far the clocks of the hubs are off, each its own way: farther than a receiver of webhooks tolerates.
	skew = 5*time.Minute + 30*time.Second
	// deliveryTimeout is short for the same reason as lease, and longer than the receiver is ever slow.
	deliveryTimeout = 3 * time.Second
)

func TestNoMessageIsLostOrAnsweredTwiceByTwoHubsOnPostgreSQL(t *testing.T) {
	t.Parallel()
	suite(t, postgres.Database(t), 2)
}

func TestNoMessageIsLostOrAnsweredTwiceByOneHubOnSQLite(t *testing.T) {
	t.Parallel()
	suite(t, filepath.Join(t.TempDir(), "hub.db"), 1)
}

// process is a hub or host that is started again when it was killed.
type process struct {
	t   *testing.T
	env []string
	cmd *exec.Cmd
}

func (p *process) start() {
	p.t.Helper()
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), p.env...)
	p.cmd.Stderr = os.Stderr
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func launch(t *testing.T, env ...string) *process {
	t.Helper()
	p := &process{t: t, env: env}
	p.start()
	t.Cleanup(p.kill)
	return p
}

// freeAddress is one on which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// world is what the parent has: hubs that run, a key for them, and the database.
type world struct {
	t      *testing.T
	ctx    context.Context
	target string
	urls   []string
	hubs   []*process
	api    anyHub
	db     *sql.DB
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newWorld(t *testing.T, target string, hubs int) *world {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	w := &world{t: t, ctx: ctx, target: target}
	s, err := store.Open(ctx, target, store.Options{})
	must(t, err)
	key, err := hub.FirstKey(ctx, s)
	must(t, err)
	must(t, s.Close())
	driver, source := "sqlite", "file:"+target+"?_pragma=busy_timeout(10000)"
	if w.postgres() {
		driver, source = "pgx", target+"&application_name=suite"
	}
	w.db, err = sql.Open(driver, source)
	must(t, err)
	t.Cleanup(func() { w.db.Close() })
	for i := range hubs {
		address := freeAddress(t)
		off := skew
		if i%2 == 1 {
			off = -skew
		}
		w.urls = append(w.urls, "http://"+address)
		w.hubs = append(w.hubs, launch(t, envRole+"=hub", envTarget+"="+target, envListen+"="+address, envSkew+"="+off.String(), envLease+"="+lease.String()))
	}
	w.api, err = newAnyHub(w.urls, key)
	must(t, err)
	w.put("/v1/profiles/default", client.Profile{Agent: "demo", MaxAttempts: 100}, nil)
	return w
}

func (w *world) postgres() bool { return strings.HasPrefix(w.target, "postgres://") }

func (w *world) put(path string, in, out any) {
	w.t.Helper()
	must(w.t, w.api.do(w.ctx, func(c *client.Client) error { return c.Put(w.ctx, path, in, out) }))
}

// pair makes a host and returns its key.
func (w *world) pair(name string) string {
	w.t.Helper()
	var invite client.Invite
	must(w.t, w.api.do(w.ctx, func(c *client.Client) error { return c.Post(w.ctx, "/v1/invites", map[string]any{}, &invite) }))
	var paired client.Paired
	must(w.t, w.api.do(w.ctx, func(c *client.Client) (err error) {
		paired, err = c.Pair(w.ctx, client.Pairing{Code: invite.Code, Name: name})
		return err
	}))
	return paired.Key
}

// count is the number that a query gives.
func (w *world) count(query string) (n int) {
	w.t.Helper()
	for {
		err := w.db.QueryRowContext(w.ctx, query).Scan(&n)
		if err == nil {
			return n
		}
		if w.ctx.Err() != nil {
			w.t.Fatal(err)
		}
		pause(w.ctx, 100*time.Millisecond) // its connection was cut as well
	}
}

// receiver is a webhook's: it fails in every way, and does what it is told once for each delivery id.
type receiver struct {
	t                *testing.T
	mu               sync.Mutex
	secret           string
	posts, forged    int
	done             map[string]bool     // by delivery id
	replies          map[string][]string // what was done, by conversation, in order
	refused, dropped int
	again            int
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	fate := rand.IntN(100)
	if fate < 6 {
		r.mu.Lock()
		r.posts, r.refused = r.posts+1, r.refused+1
		r.mu.Unlock()
		http.Error(w, "not now", http.StatusInternalServerError)
		return
	}
	if fate < 10 { // slow
		pause(req.Context(), 500*time.Millisecond)
	}
	conversation, reply, id, err := r.read(req, body)
	r.mu.Lock()
	r.posts++
	switch {
	case err != nil:
		r.forged++
		r.t.Error(err)
	case r.done[id]:
		r.again++
	default:
		r.done[id] = true
		r.replies[conversation] = append(r.replies[conversation], reply)
	}
	drop := fate >= 97
	if drop {
		r.dropped++
	}
	r.mu.Unlock()
	switch {
	case drop: // done, and the hub does not hear it
		panic(http.ErrAbortHandler)
	case fate >= 94:
		http.Error(w, "it was done all the same", http.StatusInternalServerError)
	}
}

func (r *receiver) read(req *http.Request, body []byte) (conversation, reply, id string, err error) {
	r.mu.Lock()
	secret := r.secret
	r.mu.Unlock()
	if id, err = webhook.Verify(req.Header, secret, time.Now(), body); err != nil {
		return "", "", "", err
	}
	var told struct {
		Conversation string
		Data         client.Run
	}
	if err := json.Unmarshal(body, &told); err != nil {
		return "", "", "", err
	}
	if told.Data.Reply == nil {
		return "", "", "", fmt.Errorf("a delivery without a reply: %s", body)
	}
	return told.Conversation, *told.Data.Reply, id, nil
}

func suite(t *testing.T, target string, hubs int) {
	n := sizeNow()
	w := newWorld(t, target, hubs)
	dir := t.TempDir()

	inbox := &receiver{t: t, done: map[string]bool{}, replies: map[string][]string{}}
	server := httptest.NewServer(inbox)
	t.Cleanup(server.Close)
	var hook client.Webhook
	w.put("/v1/webhooks/inbox", client.Webhook{URL: server.URL, Events: []string{"run.done"}, All: true}, &hook)
	inbox.secret = hook.Secret

	var hosts []*process
	for i := range n.hosts {
		key := w.pair(fmt.Sprintf("host%d", i+1))
		hosts = append(hosts, launch(t, envRole+"=host", envHubs+"="+strings.Join(w.urls, ","), envKey+"="+key, envDir+"="+dir, envSlots+"="+strconv.Itoa(n.slots)))
	}

	started := time.Now()
	var work sync.WaitGroup
	defer work.Wait()
	// Each sender has conversations of its own, whose messages it sends in order.
	const senders = 8
	for i := range senders {
		work.Go(func() {
			for m := range (n.messages + n.conversations - 1) / n.conversations {
				for c := i; c < n.conversations && m*n.conversations+c < n.messages; c += senders {
					text := fmt.Sprintf("c%d #%d", c, m+1)
					if err := w.api.do(w.ctx, func(api *client.Client) error {
						_, err := api.Send(w.ctx, client.NewMessage{Conversation: fmt.Sprintf("c%d", c), Text: text}, client.Idempotent(text))
						return err
					}); err != nil {
						t.Errorf("send %s: %v", text, err)
						return
					}
				}
			}
		})
	}

	// Faults, in an order by chance, until all of them happened.
	var faults []string
	for what, times := range map[string]int{"host": n.hostKills, "hub": n.hubKills, "cut": n.cuts} {
		if what == "cut" && !w.postgres() {
			continue
		}
		for range times {
			faults = append(faults, what)
		}
	}
	rand.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
	cut := 0
	for _, what := range faults {
		pause(w.ctx, 100*time.Millisecond+rand.N(400*time.Millisecond))
		switch what {
		case "host":
			p := hosts[rand.IntN(len(hosts))]
			p.kill()
			p.start()
		case "hub":
			p := w.hubs[rand.IntN(len(w.hubs))]
			p.kill()
			pause(w.ctx, rand.N(500*time.Millisecond))
			p.start()
		case "cut":
			cut += w.count(`SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND application_name <> 'suite' AND pid <> pg_backend_pid() AND random() < 0.5) AS cut`)
		}
	}
	faulty := time.Since(started)
	work.Wait()

	w.wait("run", "done")
	answered := time.Since(started)
	w.wait("delivery", "delivered")
	delivered := time.Since(started)
	w.check(n, dir, inbox)

	attempts := w.count(`SELECT count(*) FROM attempt`)
	t.Logf("%d hubs, %d hosts of %d slots: %d messages of %d conversations answered in %.1f s and delivered in %.1f s, faults in the first %.1f s", hubs, n.hosts, n.slots,
		n.messages, n.conversations, answered.Seconds(), delivered.Seconds(), faulty.Seconds())
	t.Logf("killed %d hosts and %d hubs, cut %d connections: %d attempts, of which %d lost their leases", n.hostKills, n.hubKills, cut, attempts, w.count(`SELECT count(*) FROM attempt WHERE ended_by = 'lease_lost'`))
	t.Logf("webhook: %d posts for %d deliveries: %d refused, %d dropped, %d again", inbox.posts, len(inbox.done), inbox.refused, inbox.dropped, inbox.again)
}

// wait waits until all rows of a table are in the state that they are to end in.
func (w *world) wait(table, state string) {
	w.t.Helper()
	query := "SELECT count(*) FROM " + table + " WHERE state <> '" + state + "'"
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		left := w.count(query)
		if left == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-w.ctx.Done():
			w.t.Fatalf("%d rows of %s are not %s", left, table, state)
		}
	}
}

// check looks at everything from the receiver's and the database's side.
func (w *world) check(n size, dir string, inbox *receiver) {
	t := w.t
	t.Helper()
	none := func(what, query string) {
		t.Helper()
		if bad := w.count(query); bad != 0 {
			t.Errorf("%d %s", bad, what)
		}
	}
	if got := w.count(`SELECT count(*) FROM message`); got != n.messages {
		t.Errorf("%d messages, of %d that were sent", got, n.messages)
	}
	if got := w.count(`SELECT count(*) FROM run WHERE status = 'ok'`); got != n.messages {
		t.Errorf("%d messages were answered, of %d", got, n.messages)
	}
	none("runs without the answer to their message", `SELECT count(*) FROM run r JOIN message m ON m.id = r.message_id WHERE r.reply IS NULL OR r.reply <> 'answer to ' || m.text`)
	none("attempts that have no end", `SELECT count(*) FROM attempt WHERE ended IS NULL`)
	none("runs that were finished twice", `SELECT count(*) FROM (SELECT run_id FROM attempt WHERE ended_by = 'finished' GROUP BY run_id HAVING count(*) <> 1) AS twice`)
	none("attempts that began before another of their conversation had ended", `SELECT count(*) FROM attempt a JOIN run r ON r.id = a.run_id JOIN run q ON q.conversation_id = r.conversation_id
		JOIN attempt b ON b.run_id = q.id WHERE (a.run_id <> b.run_id OR a.n <> b.n) AND a.started < b.started AND a.ended > b.started`)
	none("runs that began before an earlier one of their conversation was done", `SELECT count(*) FROM run r JOIN run q ON q.conversation_id = r.conversation_id AND q.seq < r.seq WHERE q.finished > r.started`)
	none("conversations whose events have gaps", `SELECT count(*) FROM conversation c WHERE c.events <> (SELECT count(*) FROM event WHERE conversation_id = c.id) OR c.events <> (SELECT max(seq) FROM event WHERE conversation_id = c.id)`)
	none("runs that were told to be done twice", `SELECT count(*) FROM (SELECT run_id FROM event WHERE type = 'run.done' GROUP BY run_id HAVING count(*) <> 1) AS twice`)
	none("runs with more deliveries than one", `SELECT count(*) FROM (SELECT run_id FROM delivery GROUP BY run_id HAVING count(*) <> 1) AS twice`)

	if said, err := os.ReadFile(filepath.Join(dir, overlapped)); err == nil {
		t.Errorf("runs of one conversation met:\n%s", said)
	}
	inbox.mu.Lock()
	defer inbox.mu.Unlock()
	if len(inbox.done) != n.messages {
		t.Errorf("the receiver has %d deliveries, of %d", len(inbox.done), n.messages)
	}
	for c := range n.conversations {
		name := fmt.Sprintf("c%d", c)
		var want []string
		for m := 0; m*n.conversations+c < n.messages; m++ {
			want = append(want, replyTo(fmt.Sprintf("%s #%d", name, m+1)))
		}
		if got := inbox.replies[name]; !slices.Equal(got, want) {
			t.Errorf("the receiver heard of %s: %q", name, got)
		}
		said, err := os.ReadFile(filepath.Join(dir, name+doneSuffix))
		if err != nil {
			t.Error(err)
			continue
		}
		before := 0
		for line := range strings.FieldsSeq(string(said)) {
			seq, _ := strconv.Atoi(line)
			if seq < before || seq > before+1 {
				t.Errorf("agents did the runs of %s in the order %q", name, said)
				break
			}
			before = seq
		}
	}
}

func TestAHostThatWasPausedPastItsLeaseCanDoNothingMore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, filepath.Join(t.TempDir(), "hub.db"), 1)
	stubborn := exec.Command(os.Args[0])
	stubborn.Env = append(os.Environ(), envRole+"=stubborn", envHubs+"="+w.urls[0], envKey+"="+w.pair("paused"))
	stubborn.Stderr = os.Stderr
	tell, err := stubborn.StdinPipe()
	must(t, err)
	out, err := stubborn.StdoutPipe()
	must(t, err)
	must(t, stubborn.Start())
	t.Cleanup(func() { _ = stubborn.Process.Kill(); _ = stubborn.Wait() })
	var m client.Message
	must(t, w.api.do(w.ctx, func(c *client.Client) (err error) {
		m, err = c.Send(w.ctx, client.NewMessage{Conversation: "c", Text: "question"}, "once")
		return err
	}))
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "claimed" {
		t.Fatalf("the host took no run: %q", lines.Text())
	}
	must(t, stubborn.Process.Signal(syscall.SIGSTOP))

	launch(t, envRole+"=host", envHubs+"="+w.urls[0], envKey+"="+w.pair("other"), envDir+"="+t.TempDir(), envSlots+"=1")
	must(t, w.api[0].RunEvents(w.ctx, m.Run.ID, 0, func(client.Event) error { return nil })) // until it is done
	before := w.count(`SELECT count(*) FROM event`)

	_, err = tell.Write([]byte("go on\n"))
	must(t, err)
	must(t, stubborn.Process.Signal(syscall.SIGCONT))
	tried := 0
	for lines.Scan() {
		tried++
		if what, code, _ := strings.Cut(lines.Text(), " "); code != "lease_lost" {
			t.Errorf("%s: %s", what, code)
		}
	}
	if tried != 7 {
		t.Errorf("the host tried %d things", tried)
	}
	r, err := w.api[0].Run(w.ctx, m.Run.ID)
	must(t, err)
	if r.Host != "other" || r.Reply == nil || *r.Reply != replyTo("question") || r.Attempts != 2 {
		t.Errorf("%+v", r)
	}
	if after := w.count(`SELECT count(*) FROM event`); after != before {
		t.Errorf("%d events came after the run was done", after-before)
	}
	if n := w.count(`SELECT (SELECT count(*) FROM file) + (SELECT count(*) FROM run_update) + (SELECT count(*) FROM approval)`); n != 0 {
		t.Errorf("%d things of the paused host were kept", n)
	}
}
