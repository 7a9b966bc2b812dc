package webhook

import (
	"errors"
	"net/http"
	"testing"
	"time"
)

// The example that the libraries of the scheme are tested by.
func TestTheSpecificationsExample(t *testing.T) {
	header := http.Header{}
	at := time.Unix(1614265330, 0)
	if err := Sign(header, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", at, []byte(`{"test": 2432232314}`)); err != nil {
		t.Fatal(err)
	}
	if got := header.Get(HeaderSignature); got != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Error(got)
	}
}

func TestWhatIsForgedOldOrIncompleteIsRefused(t *testing.T) {
	secret, body, now := NewSecret(), []byte("body"), time.Now()
	signed := func(at time.Time) http.Header {
		h := http.Header{}
		if err := Sign(h, secret, "id", at, body); err != nil {
			t.Fatal(err)
		}
		return h
	}
	with := func(name, value string) http.Header { h := signed(now); h.Set(name, value); return h }
	without := func(name string) http.Header { h := signed(now); h.Del(name); return h }
	for name, c := range map[string]struct {
		header http.Header
		secret string
		body   string
		want   error
	}{
		"good":                {signed(now), secret, "body", nil},
		"of several":          {with(HeaderSignature, "v1,AAAA v1a,xx "+signed(now).Get(HeaderSignature)), secret, "body", nil},
		"a little late":       {signed(now.Add(-4 * time.Minute)), secret, "body", nil},
		"old":                 {signed(now.Add(-6 * time.Minute)), secret, "body", ErrTime},
		"of the future":       {signed(now.Add(6 * time.Minute)), secret, "body", ErrTime},
		"another body":        {signed(now), secret, "bodY", ErrSignature},
		"another id":          {with(HeaderID, "other"), secret, "body", ErrSignature},
		"another secret":      {signed(now), NewSecret(), "body", ErrSignature},
		"another version":     {with(HeaderSignature, "v2"+signed(now).Get(HeaderSignature)[2:]), secret, "body", ErrSignature},
		"no id":               {without(HeaderID), secret, "body", ErrHeaders},
		"no timestamp":        {without(HeaderTimestamp), secret, "body", ErrHeaders},
		"no signature":        {without(HeaderSignature), secret, "body", ErrHeaders},
		"timestamp is a word": {with(HeaderTimestamp, "now"), secret, "body", ErrHeaders},
	} {
		if _, err := Verify(c.header, c.secret, now, []byte(c.body)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}
