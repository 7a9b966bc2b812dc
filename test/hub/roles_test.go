//go:build unix

package hub

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"nightporter/client"
	"nightporter/internal/hub"
	"nightporter/internal/hub/store"
	"nightporter/test/postgres"
)

// The test binary is also the hubs and the hosts: what it is stands in the environment.
const (
	envRole   = "NIGHTPORTER_TEST_HUB_ROLE"
	envTarget = "NIGHTPORTER_TEST_HUB_DATABASE"
	envListen = "NIGHTPORTER_TEST_HUB_LISTEN"
	envSkew   = "NIGHTPORTER_TEST_HUB_SKEW"
	envHubs   = "NIGHTPORTER_TEST_HUB_URLS"
	envKey    = "NIGHTPORTER_TEST_HUB_KEY"
	envDir    = "NIGHTPORTER_TEST_HUB_DIR"
	envSlots  = "NIGHTPORTER_TEST_HUB_SLOTS"
	envLease  = "NIGHTPORTER_TEST_HUB_LEASE"
)

var roles = map[string]func(context.Context) error{"hub": beHub, "host": beHost, "stubborn": beStubborn}

func TestMain(m *testing.M) {
	if be := roles[os.Getenv(envRole)]; be != nil {
		if err := be(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	postgres.Stop()
	os.Exit(code)
}

func duration(env string) time.Duration {
	d, err := time.ParseDuration(os.Getenv(env))
	if err != nil {
		panic(err)
	}
	return d
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func beHub(ctx context.Context) error {
	skew := duration(envSkew)
	var s *store.Store
	for { // as whatever supervises hubs does: one whose connection is cut while it starts ends
		var err error
		if s, err = store.Open(ctx, os.Getenv(envTarget), store.Options{Lease: duration(envLease)}); err == nil {
			break
		}
		pause(ctx, 100*time.Millisecond)
	}
	h := hub.New(s, hub.Options{Version: "test", DeliveryTimeout: deliveryTimeout, Now: func() time.Time { return time.Now().Add(skew) }})
	server := &http.Server{Addr: os.Getenv(envListen), Handler: h, ReadHeaderTimeout: 10 * time.Second}
	return server.ListenAndServe() // until it is killed
}

// anyHub makes a request of one hub after another, until one answers it or refuses it, or ctx ends.
type anyHub []*client.Client

func newAnyHub(urls []string, key string) (hubs anyHub, err error) {
	for _, url := range urls {
		c, err := client.New(url, key, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}})
		if err != nil {
			return nil, err
		}
		hubs = append(hubs, c)
	}
	return hubs, nil
}

func (a anyHub) do(ctx context.Context, f func(*client.Client) error) error {
	for i := rand.IntN(len(a)); ; i++ {
		err := f(a[i%len(a)])
		var p *client.Problem
		if err == nil || errors.As(err, &p) && p.Status < 500 {
			return err
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// beHost executes runs until it is killed. Its agent takes a moment, and holds the lock of the conversation meanwhile: the system lets go of
// it with the process. Who finds it held has met another run of the conversation.
func beHost(ctx context.Context) error {
	hubs, err := newAnyHub(strings.Split(os.Getenv(envHubs), ","), os.Getenv(envKey))
	if err != nil {
		return err
	}
	slots, err := strconv.Atoi(os.Getenv(envSlots))
	if err != nil {
		return err
	}
	room := make(chan struct{}, slots)
	var runs sync.WaitGroup
	defer runs.Wait()
	for {
		room <- struct{}{}
		sent := time.Now()
		var a *client.Assignment
		err := hubs.do(ctx, func(c *client.Client) (err error) {
			sent = time.Now()
			a, err = c.Claim(ctx, client.Claim{Slots: slots, Version: "test", WaitMS: 5000})
			return err
		})
		if err != nil {
			return err
		}
		if a == nil {
			<-room
			continue
		}
		runs.Go(func() {
			defer func() { <-room }()
			execute(ctx, hubs, a, sent)
		})
	}
}

// execute does one run while its lease lasts by this process's steady clock.
func execute(ctx context.Context, hubs anyHub, a *client.Assignment, sent time.Time) {
	lease := time.Duration(a.LeaseMS) * time.Millisecond
	margin := lease / 3
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	over := time.AfterFunc(time.Until(sent.Add(lease-margin)), stop)
	defer over.Stop()
	var beating sync.WaitGroup
	defer beating.Wait()
	defer stop()
	beating.Go(func() {
		tick := time.NewTicker(lease / 6)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			var sent time.Time
			err := hubs.do(ctx, func(c *client.Client) error {
				sent = time.Now()
				_, err := c.Beat(ctx, a.Run.ID, client.Beat{Fence: a.Fence, Activity: "working"})
				return err
			})
			if err != nil || !over.Stop() {
				stop()
				return
			}
			over.Reset(time.Until(sent.Add(lease - margin)))
		}
	})
	if err := hold(ctx, a); err != nil {
		return
	}
	event, _ := json.Marshal(map[string]string{"type": "text", "text": a.Text})
	err := hubs.do(ctx, func(c *client.Client) error {
		return c.SendEvents(ctx, a.Run.ID, client.Events{Fence: a.Fence, N: 1, Events: []json.RawMessage{event}})
	})
	if err != nil {
		return
	}
	outcome, _ := json.Marshal(map[string]any{"status": "ok", "reply": replyTo(a.Text), "duration_ms": 1})
	_ = hubs.do(ctx, func(c *client.Client) error { // what is not finished is another's
		return c.Finish(ctx, a.Run.ID, client.Finish{Fence: a.Fence, Outcome: outcome})
	})
}

func replyTo(text string) string { return "answer to " + text }

// The files of a conversation in the suite's folder.
const (
	lockSuffix = ".lock"
	doneSuffix = ".done" // a line with the seq of each run that an agent did, whether or not it could be finished
	overlapped = "overlapped"
)

// hold is the agent's work.
func hold(ctx context.Context, a *client.Assignment) error {
	dir := os.Getenv(envDir)
	lock, err := os.OpenFile(filepath.Join(dir, a.Conversation+lockSuffix), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return errors.Join(err, note(filepath.Join(dir, overlapped), fmt.Sprintf("%s #%d attempt %d: %v", a.Conversation, a.Run.Seq, a.Run.Attempts, err)))
	}
	pause(ctx, 50*time.Millisecond+rand.N(300*time.Millisecond))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return note(filepath.Join(dir, a.Conversation+doneSuffix), fmt.Sprint(a.Run.Seq))
}

// note adds a line to a file, in one write.
func note(file, line string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}

// beStubborn takes a run, and when it is told to go on does with it whatever a host can, though its lease may have passed.
func beStubborn(ctx context.Context) error {
	c, err := client.New(os.Getenv(envHubs), os.Getenv(envKey), nil)
	if err != nil {
		return err
	}
	a, err := c.Claim(ctx, client.Claim{Slots: 1, Version: "test", WaitMS: 30_000})
	if err != nil || a == nil {
		return fmt.Errorf("no run: %w", err)
	}
	fmt.Println("claimed")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	id, fence := a.Run.ID, a.Fence
	_, beaten := c.Beat(ctx, id, client.Beat{Fence: fence})
	_, asked := c.Ask(ctx, id, client.Ask{Fence: fence, ID: store.NewID(), Kind: "question", Digest: "d", Question: json.RawMessage(`{}`), DeadlineMS: 1000})
	for _, did := range []struct {
		what string
		err  error
	}{
		{"beat", beaten},
		{"ask", asked},
		{"events", c.SendEvents(ctx, id, client.Events{Fence: fence, N: 1, Events: []json.RawMessage{json.RawMessage(`{"type":"text"}`)}})},
		{"update", c.PostUpdate(ctx, id, client.Update{Fence: fence, ID: store.NewID(), Text: "late"})},
		{"attach", c.Attach(ctx, id, client.Attach{Fence: fence, ID: store.NewID(), Name: "late", MediaType: "text/plain", Data: []byte("late")})},
		{"release", c.Release(ctx, id, client.Release{Fence: fence, Reason: "late"})},
		{"finish", c.Finish(ctx, id, client.Finish{Fence: fence, Outcome: json.RawMessage(`{"status":"ok","reply":"late"}`)})},
	} {
		code := "done"
		var p *client.Problem
		if errors.As(did.err, &p) {
			code = p.Code
		} else if did.err != nil {
			code = did.err.Error()
		}
		fmt.Println(did.what, code)
	}
	return nil
}
