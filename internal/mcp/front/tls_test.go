package front

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// certificates writes a certificate for loopback and its key, and returns it.
func certificates(t *testing.T, certFile, keyFile string, serial int64) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	made, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "made up"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}, &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "made up"}, IsCA: true}, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: made}, keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(made)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// lockedBuffer is what a log was told.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

func TestACertificateIsReadAgainWhenItChangesAndABadOneIsNotTaken(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := TLS(l, certFile, keyFile, slog.New(slog.DiscardHandler)); err == nil {
		t.Fatal("files that are not there are taken")
	}
	certificates(t, certFile, keyFile, 1)
	told := new(lockedBuffer)
	secure, err := TLS(l, certFile, keyFile, slog.New(slog.NewTextHandler(told, nil)))
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := secure.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).Handshake()
			conn.Close()
		}
	})
	defer serving.Wait()
	defer l.Close()
	serial := func(most uint16) int64 {
		t.Helper()
		conn, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true, MaxVersion: most})
		if err != nil {
			return 0
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	if got := serial(0); got != 1 {
		t.Errorf("certificate %d", got)
	}
	if got := serial(tls.VersionTLS11); got != 0 {
		t.Error("TLS 1.1 is spoken")
	}
	certificates(t, certFile, keyFile, 2)
	if got := serial(tls.VersionTLS12); got != 2 {
		t.Errorf("after a change: certificate %d", got)
	}
	if err := os.WriteFile(keyFile, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got := serial(0); got != 2 {
			t.Errorf("with a bad key: certificate %d", got)
		}
	}
	if n := told.count("stays in use"); n != 1 {
		t.Errorf("it was told %d times", n)
	}
	certificates(t, certFile, keyFile, 3)
	if got := serial(0); got != 3 {
		t.Errorf("after it was mended: certificate %d", got)
	}
}
