package config

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/zalando/go-keyring"

	"nightporter/internal/secret"
)

// HasKeyring reports whether there is a way to the system's keyring. On Linux it is not asked where no session bus runs: the D-Bus
// library would start one.
func HasKeyring() bool {
	if runtime.GOOS != "linux" || os.Getenv("DBUS_SESSION_BUS_ADDRESS") != "" {
		return true
	}
	dir := os.Getenv("XDG_RUNTIME_DIR")
	_, err := os.Stat(filepath.Join(dir, "bus"))
	return dir != "" && err == nil
}

// keyringPatience bounds the wait for a keyring that may be asking its user to unlock it.
const keyringPatience = 20 * time.Second

// PutKeyring keeps a secret in the system's keyring, where ${keyring:SERVICE/USER} finds it. A keyring that does not answer until ctx ends, or
// within 20 seconds, is an error; what was asked of it is then left to end by itself.
func PutKeyring(ctx context.Context, service, user string, value secret.String) error {
	if !HasKeyring() {
		return errors.New("there is no session bus here that leads to the keyring (DBUS_SESSION_BUS_ADDRESS)")
	}
	ctx, cancel := context.WithTimeout(ctx, keyringPatience)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- keyring.Set(service, user, value.Reveal()) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the keyring did not answer: %w", ctx.Err())
	}
}
