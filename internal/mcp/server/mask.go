package server

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"

	"nightporter/internal/mcp/wire"
	"nightporter/internal/secret"
)

// masker hides a server's secrets in text that leaves this package: what the server wrote, and every error.
type masker struct {
	secret.Masker
	mu    sync.Mutex // of known: tokens are added while texts are masked
	known []string   // what it hides, for texts that were cut in the middle of one
}

// masker knows the secrets of the definition, of the headers helper and of the URL.
func (s *Spec) masker() *masker {
	m := &masker{}
	m.hide(s.secrets...)
	for _, value := range s.Headers { // those of the helper are not among the definition's
		m.hide(value)
		if _, key, ok := strings.Cut(value.Reveal(), " "); ok {
			m.hide(secret.New(key)) // the key alone is as secret as "Bearer" with it
		}
	}
	if s.URL == "" {
		return m
	}
	for _, value := range s.Referred { // as the URL has them
		m.hide(secret.New(url.QueryEscape(value.Reveal())), secret.New(url.PathEscape(value.Reveal())))
	}
	if u, err := url.Parse(s.URL); err == nil {
		if u.User != nil {
			password, _ := u.User.Password()
			m.hide(secret.New(u.User.String()), secret.New(u.User.Username()), secret.New(password))
		}
		for pair := range strings.SplitSeq(u.RawQuery, "&") {
			_, raw, _ := strings.Cut(pair, "=")
			value, _ := url.QueryUnescape(raw)
			m.hide(secret.New(raw), secret.New(value))
		}
	}
	return m
}

// hide adds values, and each line of those with several: what a server writes is also read by lines.
func (m *masker) hide(values ...secret.String) {
	for _, value := range values {
		// JSON has several spellings of one text; secret.Masker knows that of encoding/json.
		quoted := strings.Trim(string(wire.Quote(value.Reveal())), `"`)
		m.Add(value, secret.New(quoted), secret.New(strings.ReplaceAll(quoted, "/", `\/`)))
		m.mu.Lock()
		m.known = append(m.known, value.Reveal())
		m.mu.Unlock()
		if strings.ContainsAny(value.Reveal(), "\r\n") {
			for line := range strings.Lines(value.Reveal()) {
				m.hide(secret.New(strings.Trim(line, "\r\n")))
			}
		}
	}
}

// piece masks a text whose beginning or end was cut off: there may be a part of a secret, which as a whole would have been found.
func (m *masker) piece(text string, noHead, noTail bool) string {
	text = m.Text(text)
	head, tail := 0, 0
	m.mu.Lock()
	known := m.known
	m.mu.Unlock()
	for _, value := range known {
		for n := min(len(value)-1, len(text)); noHead && n > head; n-- {
			if text[:n] == value[len(value)-n:] {
				head = n
			}
		}
		for n := min(len(value)-1, len(text)); noTail && n > tail; n-- {
			if text[len(text)-n:] == value[:n] {
				tail = n
			}
		}
	}
	if tail > 0 && head+tail <= len(text) {
		text = text[:len(text)-tail] + secret.Mask
	}
	if head > 0 {
		text = secret.Mask + text[head:]
	}
	return text
}

// quoted is how much of a server's words an error quotes.
const quoted = 200

// excerpt is the beginning of a server's words. They are masked before they are cut.
func (m *masker) excerpt(text []byte) string {
	return fmt.Sprintf("%.*s", quoted, m.Text(string(text)))
}

// error returns err with its text masked.
func (m *masker) error(err error) error {
	if err == nil {
		return nil
	}
	if text := m.Text(err.Error()); text != err.Error() {
		return &maskedError{text, err}
	}
	return err
}

// maskedError is an error without its secrets. It does not unwrap: the error behind it, which errors.Is finds, has them in its text.
type maskedError struct {
	text  string
	clear error
}

func (e *maskedError) Error() string { return e.text }

func (e *maskedError) Is(target error) bool { return errors.Is(e.clear, target) }

// unmasked returns the error that was masked, to tell kinds of errors apart inside of this package.
func unmasked(err error) error {
	var masked *maskedError
	if errors.As(err, &masked) {
		return masked.clear
	}
	return err
}

// shown is a URL for people: without its user, password, query and fragment, any of which may hold a key.
func shown(u *url.URL) string {
	short := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	if u.RawQuery == "" {
		return short.String()
	}
	return short.String() + "?…"
}

// withoutURL takes the URL out of an error of package net/url or net/http.
func withoutURL(err error) error {
	var e *url.Error
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}
