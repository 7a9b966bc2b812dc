package oauth

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/zalando/go-keyring"

	"nightporter/internal/config"
	"nightporter/internal/safefile"
)

// Place is where secrets are kept.
type Place string

const (
	InKeyring Place = "keyring" // the system's keyring
	InFile    Place = "file"    // a file that its user alone may read
)

// vault keeps secrets by key.
type vault interface {
	get(ctx context.Context, key string) ([]byte, error)
	put(ctx context.Context, key string, data []byte) error
	remove(ctx context.Context, key string) error
}

var errTooBig = errors.New("the keyring takes no secret of that size")

// service is the name under which the keyring has our secrets.
const service = "Nightporter MCP logins"

// keyringPatience bounds one question to the keyring, which may be asking its user to unlock it.
const keyringPatience = 20 * time.Second

type keyringVault struct{}

// ask runs do, which cannot be cancelled, and waits for it no longer than the keyring's patience.
func ask(ctx context.Context, do func() (string, error)) (string, error) {
	if !config.HasKeyring() {
		return "", errors.New("there is no session bus here that leads to the keyring (DBUS_SESSION_BUS_ADDRESS)")
	}
	ctx, cancel := context.WithTimeout(ctx, keyringPatience)
	defer cancel()
	type result struct {
		text string
		err  error
	}
	done := make(chan result, 1)
	go func() {
		text, err := do()
		done <- result{text, err}
	}()
	select {
	case r := <-done:
		switch {
		case errors.Is(r.err, keyring.ErrNotFound):
			return "", fmt.Errorf("the keyring has no tokens of this login: %w", fs.ErrNotExist)
		case errors.Is(r.err, keyring.ErrSetDataTooBig):
			return "", errTooBig
		}
		return r.text, r.err
	case <-ctx.Done():
		return "", fmt.Errorf("the keyring did not answer: %w", ctx.Err())
	}
}

func (keyringVault) get(ctx context.Context, key string) ([]byte, error) {
	text, err := ask(ctx, func() (string, error) { return keyring.Get(service, key) })
	return []byte(text), err
}

func (keyringVault) put(ctx context.Context, key string, data []byte) error {
	_, err := ask(ctx, func() (string, error) { return "", keyring.Set(service, key, string(data)) })
	return err
}

func (keyringVault) remove(ctx context.Context, key string) error {
	_, err := ask(ctx, func() (string, error) { return "", keyring.Delete(service, key) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// keyringWorks tries the keyring.
func keyringWorks(ctx context.Context) bool {
	probe := "probe " + rand.Text() // another process may be trying too
	v := keyringVault{}
	if v.put(ctx, probe, []byte(probe)) != nil {
		return false
	}
	text, err := v.get(ctx, probe)
	return v.remove(ctx, probe) == nil && err == nil && string(text) == probe
}

// fileVault keeps each secret in a file of its own, 0600 in a folder 0700.
type fileVault struct{ dir string }

func (v fileVault) path(key string) string { return filepath.Join(v.dir, key+".json") }

func (v fileVault) get(_ context.Context, key string) ([]byte, error) {
	return os.ReadFile(v.path(key))
}

func (v fileVault) put(_ context.Context, key string, data []byte) error {
	return safefile.Write(v.path(key), data)
}

func (v fileVault) remove(_ context.Context, key string) error {
	if err := os.Remove(v.path(key)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
