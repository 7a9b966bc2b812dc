package hub

import (
	"encoding/json"
	"errors"
	"time"

	"nightporter/client"
	"nightporter/internal/hub/store"
)

// lookAgain is how often a request that waits looks without having been woken: a wake may be lost with a connection to the database, and
// some things become true by time alone.
const lookAgain = 2 * time.Second

// until calls look when it may have something new, until it has, the wait is over, or the hub closes.
func (h *Hub) until(c *call, wait time.Duration, topics []string, look func() (found bool, err error)) error {
	woken, stop := h.store.Watch(topics...)
	defer stop()
	over := time.NewTimer(wait)
	defer over.Stop()
	again := time.NewTicker(lookAgain)
	defer again.Stop()
	for {
		if found, err := look(); found || err != nil {
			return err
		}
		select {
		case <-woken:
		case <-again.C:
		case <-over.C:
			return nil
		case <-c.ctx.Done():
			return nil
		case <-h.ctx.Done():
			return nil
		}
	}
}

const maxSlots = 1000

func (h *Hub) claim(c *call) (any, error) {
	n := c.in.(*client.Claim)
	if n.Slots < 1 || n.Slots > maxSlots || len(n.Version) > maxLabel || n.WaitMS < 0 {
		return nil, problemf("invalid", "slots are 1 to %d", maxSlots)
	}
	var a *client.Assignment
	err := h.until(c, min(time.Duration(n.WaitMS)*time.Millisecond, client.MaxWait), []string{store.TopicQueue}, func() (bool, error) {
		if c.ctx.Err() != nil {
			return true, nil // who has gone gets no run
		}
		var err error
		a, err = h.store.Claim(c.ctx, c.host, n.Slots, n.Version)
		return a != nil, err
	})
	if err != nil || a == nil {
		return nil, err
	}
	return a, nil
}

func (h *Hub) commands(c *call) (any, error) {
	var out client.Commands
	err := h.until(c, c.wait(), []string{store.TopicHost(c.host)}, func() (found bool, err error) {
		out, err = h.store.Commands(c.ctx, c.host)
		return len(out.Cancel) > 0, err
	})
	return out, err
}

func (h *Hub) report(c *call) (any, error) {
	return nil, h.store.Report(c.ctx, c.host, json.RawMessage(c.raw))
}

func (h *Hub) beat(c *call) (any, error) {
	b := c.in.(*client.Beat)
	if len(b.Activity) > maxActivity || len(b.SessionID) > maxLabel {
		return nil, problemf("invalid", "an activity is one line of at most %d bytes", maxActivity)
	}
	cancel, err := h.store.Beat(c.ctx, c.host, c.r.PathValue("id"), *b)
	if err != nil {
		return nil, err
	}
	return client.Beaten{LeaseMS: h.store.Lease().Milliseconds(), Cancel: cancel}, nil
}

const (
	maxActivity   = 1000
	maxEventBatch = 1000
)

func (h *Hub) events(c *call) (any, error) {
	e := c.in.(*client.Events)
	if len(e.Events) > maxEventBatch {
		return nil, problemf("too_large", "at most %d events are sent at once", maxEventBatch)
	}
	return nil, h.store.AppendEvents(c.ctx, c.host, c.r.PathValue("id"), *e)
}

func (h *Hub) finish(c *call) (any, error) {
	return nil, h.store.Finish(c.ctx, c.host, c.r.PathValue("id"), *c.in.(*client.Finish))
}

func (h *Hub) release(c *call) (any, error) {
	r := c.in.(*client.Release)
	if r.Reason == "" {
		return nil, problemf("invalid", "a run is given back for a reason")
	}
	return nil, h.store.Release(c.ctx, c.host, c.r.PathValue("id"), *r)
}

// maxDeadline bounds how long a call waits for a person.
const maxDeadline = 7 * 24 * time.Hour

func (h *Hub) ask(c *call) (any, error) {
	a := c.in.(*client.Ask)
	if a.Kind != "call" && a.Kind != "question" || a.ID == "" || len(a.ID) > maxLabel || a.Digest == "" || !json.Valid(a.Question) ||
		a.DeadlineMS <= 0 || a.DeadlineMS > maxDeadline.Milliseconds() {
		return nil, problemf("invalid", "a question has an id, a kind (call, question), a digest, itself as JSON, and a deadline of a week at most")
	}
	return answerOf(h.store.AskApproval(c.ctx, c.host, c.r.PathValue("id"), *a))
}

func (h *Hub) asked(c *call) (any, error) {
	fence, err := c.number("fence")
	if err != nil {
		return nil, err
	}
	var a client.Approval
	err = h.until(c, c.wait(), []string{store.TopicApprovals}, func() (bool, error) {
		var err error
		a, err = h.store.RunApproval(c.ctx, c.host, c.r.PathValue("id"), c.r.PathValue("approval"), fence)
		return a.State != client.ApprovalPending, err
	})
	return answerOf(a, err)
}

// maxUpdate bounds what a run says before its reply.
const maxUpdate = 64 << 10

func (h *Hub) update(c *call) (any, error) {
	u := c.in.(*client.Update)
	if u.ID == "" || len(u.ID) > maxLabel || u.Text == "" || len(u.Text) > maxUpdate {
		return nil, problemf("invalid", "an update has an id and a text of at most %d bytes", maxUpdate)
	}
	return nil, h.store.PostUpdate(c.ctx, c.host, c.r.PathValue("id"), *u)
}

func (h *Hub) attach(c *call) (any, error) {
	a := c.in.(*client.Attach)
	if a.ID == "" || len(a.ID) > maxLabel || a.Name == "" || len(a.Name) > maxLabel || len(a.MediaType) > maxLabel {
		return nil, problemf("invalid", "a file has an id and a name")
	}
	if len(a.Data) > maxFile {
		return nil, problemf("too_large", "a file has at most %d bytes", maxFile)
	}
	return nil, h.store.AttachFile(c.ctx, c.host, c.r.PathValue("id"), *a)
}

func (h *Hub) hostConversation(c *call) (any, error) {
	fence, err1 := c.number("fence")
	after, err2 := c.number("after")
	if err := errors.Join(err1, err2); err != nil {
		return nil, problemf("invalid", "fence and after are numbers")
	}
	conversation, err := h.store.HeldConversation(c.ctx, c.host, c.r.PathValue("id"), fence)
	if err != nil {
		return nil, err
	}
	list, err := h.store.Messages(c.ctx, conversation, after, 0)
	return paged(list, err, 0, nil)
}
