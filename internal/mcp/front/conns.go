package front

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

const (
	// maxConnections bounds connections, as far as there are file descriptors: see descriptors. Requests of one holder, which are one each
	// at a time, can take a quarter of them.
	maxConnections = 4096
	// strangersPart is the part of the connections that may be of strangers: of whom no request with a good credential has come on them.
	strangersPart = 4
)

// Conns bounds the connections of a listener. There are always some for who has a credential: those on which none has been shown are few,
// and when one more comes, the oldest of them is dropped. Who has something to say says it at once.
type Conns struct {
	net.Listener
	most, strangers int

	mu sync.Mutex
	// of strangers, and of others that wait for no answer and may be dropped too when there are too many; the oldest first.
	strange, idle list.List
	count         int
}

// Bound bounds the connections of a listener by what the process can have.
func Bound(l net.Listener) *Conns { return bound(l, min(maxConnections, descriptors()/2)) }

func bound(l net.Listener, most int) *Conns {
	return &Conns{Listener: l, most: most, strangers: max(1, most/strangersPart)}
}

// conn is one connection.
type conn struct {
	net.Conn
	c *Conns

	// under c.mu
	counted bool
	met     bool       // a good credential was shown on it
	in      *list.List // strange, idle or nil
	at      *list.Element
}

// Accept implements [net.Listener].
func (c *Conns) Accept() (net.Conn, error) {
	for {
		accepted, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		made := &conn{Conn: accepted, c: c}
		drop, ok := c.admit(made)
		if drop != nil {
			drop.Close()
		}
		if ok {
			return made, nil
		}
		accepted.Close()
	}
}

// admit takes a connection in, in place of drop where that is not nil. It reports false when there is no place.
func (c *Conns) admit(made *conn) (drop *conn, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if full := c.count >= c.most; full || c.strange.Len() >= c.strangers {
		oldest := c.strange.Front()
		if oldest == nil {
			oldest = c.idle.Front()
		}
		if oldest == nil && full {
			return nil, false
		}
		if oldest != nil {
			drop = oldest.Value.(*conn)
			c.remove(drop)
		}
	}
	c.count++
	made.counted = true
	made.put(&c.strange)
	return drop, true
}

// remove takes a connection out. The caller holds c.mu.
func (c *Conns) remove(out *conn) {
	if out.counted {
		out.counted = false
		out.put(nil)
		c.count--
	}
}

// put puts the connection into a list, or into none. The caller holds c.mu.
func (c *conn) put(in *list.List) {
	if c.in != nil {
		c.in.Remove(c.at)
	}
	c.in, c.at = in, nil
	if in != nil {
		c.at = in.PushBack(c)
	}
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	c.c.mu.Lock()
	c.c.remove(c)
	c.c.mu.Unlock()
	return c.Conn.Close()
}

// dropStrangers ends the connections of strangers.
func (c *Conns) dropStrangers() {
	for {
		c.mu.Lock()
		oldest := c.strange.Front()
		c.mu.Unlock()
		if oldest == nil {
			return
		}
		oldest.Value.(*conn).Close()
	}
}

// inner is the connection below TLS, nil when it is none of ours.
func inner(from net.Conn) *conn {
	if wrapped, ok := from.(*tls.Conn); ok {
		from = wrapped.NetConn()
	}
	c, _ := from.(*conn)
	return c
}

type connKey struct{}

// connContext lets requests find their connection.
func connContext(ctx context.Context, from net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, inner(from))
}

// known notes that a good credential was shown on a request's connection.
func known(ctx context.Context) {
	c, _ := ctx.Value(connKey{}).(*conn)
	if c == nil {
		return
	}
	c.c.mu.Lock()
	defer c.c.mu.Unlock()
	if c.counted && !c.met {
		c.met = true
		c.put(nil)
	}
}

// state notes which connections wait for no answer.
func (c *Conns) state(from net.Conn, state http.ConnState) {
	conn := inner(from)
	if conn == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !conn.counted || !conn.met {
		return
	}
	if state == http.StateIdle {
		conn.put(&c.idle)
	} else {
		conn.put(nil)
	}
}
