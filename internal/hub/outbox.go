package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"nightporter/internal/hub/store"
	"nightporter/internal/hub/webhook"
)

// outbox makes the deliveries that are due.
type outbox struct {
	h    *Hub
	http *http.Client
	room chan struct{} // one place for each delivery in progress
}

const (
	maxDeliveries = 16
	// deliveryTimeout bounds one try, unless Options say otherwise.
	deliveryTimeout = 20 * time.Second
	// firstRetry and mostRetry bound the pause between tries: chosen by chance below a bound that doubles, so that receivers that come
	// back are not met by all at once.
	firstRetry = time.Second
	mostRetry  = time.Hour
	// giveUpAfter is how long a delivery is tried: longer than a weekend.
	giveUpAfter = 72 * time.Hour
	// maxReceipt is how much of a receiver's answer is read: none of it counts, but a connection whose answer was read can be used again.
	maxReceipt = 64 << 10
)

func newOutbox(h *Hub) *outbox {
	o := &outbox{h: h, http: h.o.HTTP, room: make(chan struct{}, maxDeliveries)}
	if o.http == nil {
		dialer := &net.Dialer{Timeout: 10 * time.Second}
		o.http = &http.Client{Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, TLSHandshakeTimeout: 10 * time.Second,
			MaxIdleConnsPerHost: maxDeliveries, IdleConnTimeout: time.Minute, ResponseHeaderTimeout: h.o.DeliveryTimeout,
		}}
	}
	own := *o.http
	// What is sent is for the address that an administrator named, and for no other.
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	o.http = &own
	return o
}

func (o *outbox) run() {
	woken, stop := o.h.store.Watch(store.TopicOutbox)
	defer stop()
	again := time.NewTicker(time.Second)
	defer again.Stop()
	var making sync.WaitGroup
	defer making.Wait()
	defer o.http.CloseIdleConnections()
	for {
		free := maxDeliveries - len(o.room)
		var due []store.Due
		if free > 0 {
			var err error
			if due, err = o.h.store.DueDeliveries(o.h.ctx, free, 2*o.h.o.DeliveryTimeout); err != nil && o.h.ctx.Err() == nil {
				o.h.o.Log.Warn("deliveries cannot be looked for", "err", err)
			}
		}
		for _, d := range due {
			o.room <- struct{}{}
			making.Go(func() {
				defer func() { <-o.room }()
				o.make(d)
			})
		}
		if free > 0 && len(due) == free {
			continue // there may be more
		}
		select {
		case <-woken:
		case <-again.C:
		case <-o.h.ctx.Done():
			return
		}
	}
}

// make tries a delivery once and notes what came of it. When the hub closes meanwhile it is tried again later, by whoever runs.
func (o *outbox) make(d store.Due) {
	status, err := o.post(d)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(o.h.ctx), 10*time.Second)
	defer cancel()
	var noted error
	switch {
	case d.URL == "":
		noted = o.h.store.GiveUp(ctx, d, "the webhook was removed")
	case err == nil:
		noted = o.h.store.Delivered(ctx, d)
	case status == http.StatusGone || d.Age > giveUpAfter:
		noted = errors.Join(o.h.store.GiveUp(ctx, d, err.Error()), o.h.store.Audit(ctx, "hub", "delivery.dead", d.ID, err.Error()))
	default:
		noted = o.h.store.NotDelivered(ctx, d, err.Error(), pauseBefore(d.Attempts))
	}
	if noted != nil {
		o.h.o.Log.Warn("what came of a delivery could not be noted; it is made again", "delivery", d.ID, "err", noted)
	}
}

// pauseBefore is the pause after so many tries, by chance.
func pauseBefore(attempts int) time.Duration {
	most := min(firstRetry<<min(attempts, 20), mostRetry)
	return firstRetry/2 + rand.N(most)
}

func (o *outbox) post(d store.Due) (status int, err error) {
	if d.URL == "" {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(o.h.ctx, o.h.o.DeliveryTimeout)
	defer cancel()
	body := []byte(d.Body)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.URL, bytes.NewReader(body))
	if err != nil {
		return 0, errors.New("the webhook's URL cannot be used")
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "Nightporter/"+o.h.o.Version)
	// The time is the database's: a hub whose clock is off signs what receivers take all the same.
	if err := webhook.Sign(r.Header, d.Secret, d.ID, d.Created.Add(d.Age), body); err != nil {
		return 0, err
	}
	response, err := o.http.Do(r)
	if err != nil {
		return 0, fmt.Errorf("the receiver could not be reached: %w", errors.Unwrap(err)) // without the URL, which may hold a secret
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxReceipt))
	if response.StatusCode/100 != 2 {
		return response.StatusCode, fmt.Errorf("the receiver answered %s", response.Status)
	}
	return response.StatusCode, nil
}
