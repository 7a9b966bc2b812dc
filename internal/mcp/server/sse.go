package server

import (
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"

	"nightporter/internal/mcp/sse"
	"nightporter/internal/mcp/wire"
)

// sseTransport is the legacy HTTP+SSE transport of revision 2024-11-05: everything from the server comes on one
// stream, whose first event names the URL that everything to the server is posted to.
type sseTransport struct {
	http *httpTransport // its client, headers and lifetime
	post string
}

// dialSSE opens the stream and waits for the endpoint.
func dialSSE(ctx context.Context, conn *Conn) (*sseTransport, error) {
	t := &sseTransport{http: dialHTTP(conn)}
	conn.t = t // before anything is read: the server may ask at once
	// The stream lasts as long as the connection, its opening as long as the start.
	streaming, cancel := context.WithCancel(t.http.ctx)
	stop := context.AfterFunc(ctx, cancel)
	r, err := t.http.request(streaming, http.MethodGet, nil)
	if err != nil {
		cancel()
		return t, err
	}
	r.Header.Set("Accept", "text/event-stream")
	response, err := t.http.do(r)
	if err != nil {
		cancel()
		return t, err
	}
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if response.StatusCode != http.StatusOK || kind != "text/event-stream" {
		defer cancel()
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return t, t.http.failed(response, nil)
		}
		return t, fmt.Errorf("the answer's content type is %q, not an event stream; is %s an endpoint of the legacy SSE transport?", conn.mask.Text(response.Header.Get("Content-Type")), shown(r.URL))
	}
	events := sse.NewReader(response.Body)
	first, err := events.Next()
	if err == nil && first.Name != "endpoint" {
		err = fmt.Errorf("the stream begins with the event %q, not endpoint", first.Name)
	}
	if err == nil {
		t.post, err = sameOrigin(conn.spec.URL, string(first.Data))
	}
	if err != nil || !stop() {
		cancel()
		response.Body.Close()
		if err == nil {
			err = ctx.Err()
		}
		return t, err
	}
	t.http.beside.start(func() {
		defer cancel()
		defer response.Body.Close()
		closing := context.AfterFunc(t.http.ctx, func() { response.Body.Close() })
		defer closing()
		for {
			e, err := events.Next()
			if err != nil {
				conn.fail(fmt.Errorf("the server ended its stream: %w", err))
				return
			}
			if m, err := wire.Parse(e.Data); err == nil {
				conn.receive(m, nil)
			}
		}
	})
	return t, nil
}

// sameOrigin resolves the endpoint that a stream names. Another origin would be sent our credentials.
func sameOrigin(base, endpoint string) (string, error) {
	b, err := url.Parse(base)
	if err != nil {
		return "", fmt.Errorf("url: %w", withoutURL(err))
	}
	e, err := b.Parse(endpoint)
	if err != nil {
		return "", fmt.Errorf("the stream names an endpoint that is no URL: %w", withoutURL(err))
	}
	if e.Scheme != b.Scheme || e.Host != b.Host {
		return "", fmt.Errorf("the stream names an endpoint of another origin, %s://%s", e.Scheme, e.Host)
	}
	return e.String(), nil
}

func (t *sseTransport) opened(*Hello) {}

// sendNow is not for HTTP, where sending takes its time.
func (t *sseTransport) sendNow(*wire.Message) bool { return false }

func (t *sseTransport) send(ctx context.Context, m *wire.Message, _ *call) error {
	ctx, done, err := t.http.within(ctx)
	if err != nil {
		return err
	}
	defer done()
	r, err := t.http.request(ctx, http.MethodPost, m.Append(nil))
	if err != nil {
		return err
	}
	if r.URL, err = url.Parse(t.post); err != nil {
		return fmt.Errorf("the endpoint that the stream names: %w", withoutURL(err))
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := t.http.do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		return t.http.failed(response, nil)
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, errorBody))
	return nil
}

func (t *sseTransport) close(ctx context.Context) { t.http.close(ctx) }

func (t *sseTransport) pid() int { return 0 }

func (t *sseTransport) why(err error) error {
	return t.http.why(err)
}
