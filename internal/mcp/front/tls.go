package front

import (
	"crypto/tls"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
)

// certificate is a certificate and its key in two files, which are read again when they change.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu   sync.Mutex
	cert *tls.Certificate
	seen [2]fs.FileInfo // the files, as they were when they were last looked at
	told string         // what was last told to log: each handshake, which anybody can begin, looks at the files
}

// TLS speaks TLS 1.2 or later on what l accepts, with the certificate in two PEM files. They are read again when they change: what cannot
// be used then is told to log, and the last good certificate stays.
func TLS(l net.Listener, certFile, keyFile string, log *slog.Logger) (net.Listener, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log}
	if err := c.load(); err != nil {
		return nil, err
	}
	return tls.NewListener(l, &tls.Config{
		MinVersion: tls.VersionTLS12, GetCertificate: c.get, NextProtos: []string{"http/1.1"},
	}), nil
}

// load reads the files if they are others than last time. The caller holds c.mu, or nobody else has c.
func (c *certificate) load() error {
	var now [2]fs.FileInfo
	changed := false
	for i, path := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("read the TLS certificate: %w", err)
		}
		old := c.seen[i]
		changed = changed || old == nil || !os.SameFile(old, info) || !old.ModTime().Equal(info.ModTime()) || old.Size() != info.Size()
		now[i] = info
	}
	if !changed {
		return nil
	}
	c.seen = now
	cert, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("read the TLS certificate in %s and its key in %s: %w", c.certFile, c.keyFile, err)
	}
	c.cert = &cert
	return nil
}

func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.load(); err != nil && err.Error() != c.told {
		c.told = err.Error()
		c.log.Warn("the last certificate stays in use", "error", err)
	}
	return c.cert, nil
}
