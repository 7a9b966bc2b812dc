package client

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// What follows is the host's side of the protocol, with a host's key.

// Pair exchanges an invite's code for a key.
func (c *Client) Pair(ctx context.Context, p Pairing) (paired Paired, err error) {
	return paired, c.call(ctx, http.MethodPost, "/v1/host/pair", p, &paired)
}

// waiting is a context for a request that the hub answers after wait at the latest.
func waiting(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, wait+patience)
}

// Claim asks for a run; nil: there was none while it waited.
func (c *Client) Claim(ctx context.Context, claim Claim) (*Assignment, error) {
	ctx, cancel := waiting(ctx, time.Duration(claim.WaitMS)*time.Millisecond)
	defer cancel()
	var a Assignment
	found, err := c.Do(ctx, http.MethodPost, "/v1/host/claim", nil, claim, &a)
	if err != nil || !found {
		return nil, err
	}
	return &a, nil
}

// Commands waits until a run is to be stopped, or for wait.
func (c *Client) Commands(ctx context.Context, wait time.Duration) (out Commands, err error) {
	ctx, cancel := waiting(ctx, wait)
	defer cancel()
	_, err = c.Do(ctx, http.MethodGet, fmt.Sprintf("/v1/host/commands?wait_ms=%d", wait.Milliseconds()), nil, nil, &out)
	return out, err
}

func hostRun(run, what string) string { return "/v1/host/runs/" + seg(run) + "/" + what }

// Beat renews a lease.
func (c *Client) Beat(ctx context.Context, run string, b Beat) (out Beaten, err error) {
	return out, c.call(ctx, http.MethodPost, hostRun(run, "beat"), b, &out)
}

// SendEvents sends events of a run.
func (c *Client) SendEvents(ctx context.Context, run string, e Events) error {
	return c.call(ctx, http.MethodPost, hostRun(run, "events"), e, nil)
}

// Finish ends a run.
func (c *Client) Finish(ctx context.Context, run string, f Finish) error {
	return c.call(ctx, http.MethodPost, hostRun(run, "finish"), f, nil)
}

// Release gives a run back.
func (c *Client) Release(ctx context.Context, run string, r Release) error {
	return c.call(ctx, http.MethodPost, hostRun(run, "release"), r, nil)
}

// Ask puts a question to a person.
func (c *Client) Ask(ctx context.Context, run string, a Ask) (out Approval, err error) {
	return out, c.call(ctx, http.MethodPost, hostRun(run, "approvals"), a, &out)
}

// Asked waits until an approval is not pending any more, or for wait.
func (c *Client) Asked(ctx context.Context, run, approval string, fence int64, wait time.Duration) (out Approval, err error) {
	ctx, cancel := waiting(ctx, wait)
	defer cancel()
	_, err = c.Do(ctx, http.MethodGet, hostRun(run, "approvals/"+seg(approval))+fmt.Sprintf("?fence=%d&wait_ms=%d", fence, wait.Milliseconds()), nil, nil, &out)
	return out, err
}

// PostUpdate says something before the reply.
func (c *Client) PostUpdate(ctx context.Context, run string, u Update) error {
	return c.call(ctx, http.MethodPost, hostRun(run, "updates"), u, nil)
}

// Attach adds a file.
func (c *Client) Attach(ctx context.Context, run string, a Attach) error {
	return c.call(ctx, http.MethodPost, hostRun(run, "files"), a, nil)
}

// ReadConversation returns the messages of the run's conversation, oldest first.
func (c *Client) ReadConversation(ctx context.Context, run string, fence, after int64) (p Page[Message], err error) {
	return p, c.call(ctx, http.MethodGet, hostRun(run, "conversation")+fmt.Sprintf("?fence=%d&after=%d", fence, after), nil, &p)
}

// Report says what the host has.
func (c *Client) Report(ctx context.Context, r HostReport) error {
	return c.call(ctx, http.MethodPut, "/v1/host/report", r, nil)
}
