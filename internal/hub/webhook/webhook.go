// Package webhook signs and verifies webhooks by the Standard Webhooks scheme (version 1, HMAC-SHA256).
package webhook

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The headers of a webhook.
const (
	HeaderID        = "Webhook-Id"
	HeaderTimestamp = "Webhook-Timestamp"
	HeaderSignature = "Webhook-Signature"
)

const (
	prefix = "whsec_"
	// Tolerance is how far a timestamp may be from now: older ones may be replays.
	Tolerance = 5 * time.Minute
	secretLen = 24
)

// NewSecret makes a secret, in the form that the scheme's libraries take.
func NewSecret() string {
	b := make([]byte, secretLen)
	rand.Read(b) // never fails
	return prefix + base64.StdEncoding.EncodeToString(b)
}

func key(secret string) ([]byte, error) {
	b, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, prefix))
	if err != nil || len(b) == 0 {
		return nil, errors.New("the webhook's secret is not whsec_ and base64")
	}
	return b, nil
}

func sign(secret, id string, at int64, body []byte) ([]byte, error) {
	k, err := key(secret)
	if err != nil {
		return nil, err
	}
	h := hmac.New(sha256.New, k)
	fmt.Fprintf(h, "%s.%d.", id, at)
	h.Write(body)
	return h.Sum(nil), nil
}

// Sign sets the headers of a request that carries body.
func Sign(header http.Header, secret, id string, at time.Time, body []byte) error {
	sum, err := sign(secret, id, at.Unix(), body)
	if err != nil {
		return err
	}
	header.Set(HeaderID, id)
	header.Set(HeaderTimestamp, strconv.FormatInt(at.Unix(), 10))
	header.Set(HeaderSignature, "v1,"+base64.StdEncoding.EncodeToString(sum))
	return nil
}

// Why a webhook is refused.
var (
	ErrHeaders   = errors.New("the request has not the headers webhook-id, webhook-timestamp and webhook-signature")
	ErrTime      = fmt.Errorf("the webhook's timestamp is more than %v from now", Tolerance)
	ErrSignature = errors.New("no signature of the webhook is that of its secret")
)

// Verify checks the headers of a request that carried body, and returns its id. Several signatures may be given, as while a secret is changed.
func Verify(header http.Header, secret string, now time.Time, body []byte) (id string, err error) {
	id = header.Get(HeaderID)
	at, err := strconv.ParseInt(header.Get(HeaderTimestamp), 10, 64)
	given := header.Get(HeaderSignature)
	if id == "" || err != nil || given == "" {
		return "", ErrHeaders
	}
	if d := now.Sub(time.Unix(at, 0)); d > Tolerance || d < -Tolerance {
		return "", ErrTime
	}
	want, err := sign(secret, id, at, body)
	if err != nil {
		return "", err
	}
	for part := range strings.FieldsSeq(given) {
		version, text, _ := strings.Cut(part, ",")
		got, err := base64.StdEncoding.DecodeString(text)
		if version == "v1" && err == nil && hmac.Equal(got, want) {
			return id, nil
		}
	}
	return "", ErrSignature
}
