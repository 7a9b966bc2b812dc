package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Client talks to one hub with one key. It is safe for concurrent use.
type Client struct {
	base string
	key  string
	http *http.Client
}

const (
	// maxAnswer bounds an answer that is no file.
	maxAnswer = 32 << 20
	// patience bounds a request that does not wait for something to happen.
	patience = 30 * time.Second
	// MaxWait is the longest that a hub lets a request wait.
	MaxWait = 30 * time.Second
)

// New returns a client of the hub at a URL. key may be empty, for pairing. c may be nil: then one without a timeout of its own is used, as requests
// are bounded by their contexts.
func New(hub, key string, c *http.Client) (*Client, error) {
	u, err := url.Parse(hub)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%q is no URL of a hub, such as https://hub.example.com", hub)
	}
	if c == nil {
		c = &http.Client{}
	}
	own := *c
	// A redirect would take the key to wherever it leads.
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{strings.TrimRight(u.String(), "/"), key, &own}, nil
}

// Error makes a problem an error.
func (p *Problem) Error() string { return p.Detail }

// IsCode reports whether err is a problem with this code.
func IsCode(err error, code string) bool {
	var p *Problem
	return errors.As(err, &p) && p.Code == code
}

// Idempotent is a request's idempotency key, for [Client.Send].
type Idempotent string

// Do makes a request and decodes the answer into out, which may be nil. The error is a *[Problem] when the hub refused it. found is false when the hub
// had nothing to answer (204).
func (c *Client) Do(ctx context.Context, method, path string, header http.Header, in, out any) (found bool, err error) {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return false, err
		}
		body = bytes.NewReader(raw)
	}
	response, err := c.request(ctx, method, path, header, body)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusNoContent {
		return false, nil
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return false, fmt.Errorf("%s %s: read the hub's answer: %w", method, path, err)
	}
	if out == nil {
		return true, nil
	}
	if raw, ok := out.(*[]byte); ok {
		*raw = data
		return true, nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return false, fmt.Errorf("%s %s: the hub's answer cannot be read: %w", method, path, err)
	}
	return true, nil
}

func (c *Client) request(ctx context.Context, method, path string, header http.Header, body io.Reader) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		r.Header[name] = values
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	response, err := c.http.Do(r)
	if err != nil {
		return nil, fmt.Errorf("ask the hub: %w", err)
	}
	if response.StatusCode/100 == 2 {
		return response, nil
	}
	defer response.Body.Close()
	data, _ := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	var p Problem
	if json.Unmarshal(data, &p) != nil || p.Code == "" {
		p = Problem{Title: http.StatusText(response.StatusCode), Status: response.StatusCode, Code: "unavailable", Detail: fmt.Sprintf("%s %s: %s answered %s, and not as a hub does", method, path, c.base, response.Status)}
	}
	return nil, &p
}

// bounded is a context for a request that does not wait.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, patience)
}

// call is Do of a request that does not wait.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	_, err := c.Do(ctx, method, path, nil, in, out)
	return err
}

// seg is one segment of a path.
func seg(s string) string { return url.PathEscape(s) }

// Send sends a message. With a key it may be sent again, when it is not known whether it arrived.
func (c *Client) Send(ctx context.Context, m NewMessage, key Idempotent) (sent Message, err error) {
	header := http.Header{}
	if key != "" {
		header.Set("Idempotency-Key", string(key))
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	_, err = c.Do(ctx, http.MethodPost, "/v1/messages", header, m, &sent)
	return sent, err
}

// Run returns a run with its outcome.
func (c *Client) Run(ctx context.Context, id string) (r Run, err error) {
	return r, c.call(ctx, http.MethodGet, "/v1/runs/"+seg(id), nil, &r)
}

// Cancel ends a run, or has its host stop it.
func (c *Client) Cancel(ctx context.Context, run, reason string) error {
	return c.call(ctx, http.MethodPost, "/v1/runs/"+seg(run)+"/cancel", map[string]string{"reason": reason}, nil)
}

// Get asks for one thing or a page, such as /v1/hosts.
func (c *Client) Get(ctx context.Context, path string, out any) error {
	return c.call(ctx, http.MethodGet, path, nil, out)
}

// Put makes or changes a thing.
func (c *Client) Put(ctx context.Context, path string, in, out any) error {
	return c.call(ctx, http.MethodPut, path, in, out)
}

// Post makes a thing, or does something.
func (c *Client) Post(ctx context.Context, path string, in, out any) error {
	return c.call(ctx, http.MethodPost, path, in, out)
}

// Delete removes or revokes a thing.
func (c *Client) Delete(ctx context.Context, path string) error {
	return c.call(ctx, http.MethodDelete, path, nil, nil)
}

// RunEvents gives the events of a run behind the one numbered after to f, as they happen, until the run is done, f returns an error, or ctx ends. It connects anew
// when the connection is lost.
func (c *Client) RunEvents(ctx context.Context, run string, after int64, f func(Event) error) error {
	return c.follow(ctx, "/v1/runs/"+seg(run)+"/events", after, f)
}

// ConversationEvents is RunEvents of a conversation, which does not end.
func (c *Client) ConversationEvents(ctx context.Context, key string, after int64, f func(Event) error) error {
	return c.follow(ctx, "/v1/conversations/"+seg(key)+"/events", after, f)
}

const (
	firstPause = 200 * time.Millisecond
	mostPause  = 10 * time.Second
	// deafAfter is how long a stream may be silent; hubs write a comment every 15 s.
	deafAfter = 60 * time.Second
)

func (c *Client) follow(ctx context.Context, path string, after int64, f func(Event) error) error {
	pause := firstPause
	for {
		before := after
		ended, err := c.stream(ctx, path, &after, f)
		var refused *Problem
		switch {
		case ended:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &refused) && refused.Status < 500:
			return err
		}
		if after > before {
			pause = firstPause
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		pause = min(2*pause, mostPause)
	}
}

// stream reads one stream. ended says that nothing more is to be read.
func (c *Client) stream(ctx context.Context, path string, after *int64, f func(Event) error) (ended bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	response, err := c.request(ctx, http.MethodGet, path, http.Header{"Accept": {"text/event-stream"}, "Last-Event-ID": {strconv.FormatInt(*after, 10)}}, nil)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	silent := time.AfterFunc(deafAfter, cancel)
	defer silent.Stop()
	lines := bufio.NewReader(response.Body)
	var data []byte
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return false, err
		}
		silent.Reset(deafAfter)
		line = bytes.TrimRight(line, "\r\n")
		switch {
		case bytes.HasPrefix(line, []byte("data:")):
			data = append(data, bytes.TrimPrefix(line[len("data:"):], []byte(" "))...)
			if len(data) > maxAnswer {
				return false, errors.New("an event of the hub is too long")
			}
		case bytes.Equal(line, []byte("event: end")):
			return true, nil
		case len(line) == 0 && data != nil:
			var e Event
			if err := json.Unmarshal(data, &e); err != nil {
				return true, fmt.Errorf("an event of the hub cannot be read: %w", err)
			}
			data = nil
			if e.Seq <= *after {
				continue
			}
			*after = e.Seq
			if err := f(e); err != nil {
				return true, err
			}
		}
	}
}
