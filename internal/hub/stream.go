package hub

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"nightporter/client"
	"nightporter/internal/hub/store"
)

const (
	// keepAlive is how often a stream without events says that it is there, so that nothing on the way takes it for dead.
	keepAlive = 15 * time.Second
	// slowAfter is how long a reader of a stream may take for one write before it is dropped: it comes again by its last event's id.
	slowAfter = 10 * time.Second
)

func (h *Hub) runEvents(c *call) {
	r, err := h.readable(c)
	if err != nil {
		writeProblem(c.w, h.problemOf(err))
		return
	}
	h.serveEvents(c, r.Conversation, func(after int64, limit int) ([]client.Event, error) {
		return h.store.RunEvents(c.ctx, r.ID, after, limit)
	},
		func(e client.Event) bool { return e.Type == "run.done" })
}

func (h *Hub) conversationEvents(c *call) {
	key := c.r.PathValue("key")
	if err := h.mayRead(c, key); err != nil {
		writeProblem(c.w, h.problemOf(err))
		return
	}
	h.serveEvents(c, key, func(after int64, limit int) ([]client.Event, error) { return h.store.Events(c.ctx, key, after, limit) },
		func(client.Event) bool { return false })
}

// serveEvents answers with a page of events, or with a stream of those behind Last-Event-ID that ends behind the last.
func (h *Hub) serveEvents(c *call, conversation string, events func(after int64, limit int) ([]client.Event, error), last func(client.Event) bool) {
	refuse := func(err error) { writeProblem(c.w, h.problemOf(err)) }
	after, err := c.number("after")
	if err != nil {
		refuse(err)
		return
	}
	if !strings.Contains(c.r.Header.Get("Accept"), "text/event-stream") {
		limit := c.limit()
		list, err := events(after, limit)
		page, err := paged(list, err, limit, func(e client.Event) string { return fmt.Sprint(e.Seq) })
		if err != nil {
			refuse(err)
			return
		}
		writeJSON(c.w, http.StatusOK, page)
		return
	}
	if id := c.r.Header.Get("Last-Event-ID"); id != "" {
		if after, err = strconv.ParseInt(id, 10, 64); err != nil {
			refuse(problemf("invalid", "Last-Event-ID %q is no number of an event", id))
			return
		}
	}
	id, err := h.store.ConversationID(c.ctx, conversation)
	if err != nil {
		refuse(err)
		return
	}
	woken, stop := h.store.Watch(store.TopicConversation(id))
	defer stop()
	c.w.Header().Set("Content-Type", "text/event-stream")
	c.w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(c.w)
	write := func(text string) bool {
		_ = control.SetWriteDeadline(time.Now().Add(slowAfter)) // where it cannot be set, the server's own holds
		_, err := fmt.Fprint(c.w, text)
		return err == nil && control.Flush() == nil
	}
	if !write(": events\n\n") {
		return
	}
	quiet := time.NewTicker(keepAlive)
	defer quiet.Stop()
	again := time.NewTicker(lookAgain)
	defer again.Stop()
	for {
		list, err := events(after, store.MaxPage)
		if err != nil {
			return // it comes again
		}
		for _, e := range list {
			raw, err := json.Marshal(e)
			if err != nil || !write(fmt.Sprintf("id: %d\nevent: %s\ndata: %s\n\n", e.Seq, e.Type, raw)) {
				return
			}
			after = e.Seq
			if last(e) {
				write("event: end\ndata: {}\n\n")
				return
			}
		}
		if len(list) == store.MaxPage {
			continue
		}
		select {
		case <-woken:
		case <-again.C:
		case <-quiet.C:
			if !write(": quiet\n\n") {
				return
			}
		case <-c.ctx.Done():
			return
		case <-h.ctx.Done():
			return
		}
	}
}
