package audit

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"nightporter/internal/safefile"
)

const (
	keySize    = sha256.Size
	digestSize = 16 // bytes: no two calls of a record share a digest by chance
	// keyPatience bounds the wait for another process that makes the key, once for each record.
	keyPatience = time.Second
)

// keyPath is the file of the key for digests, beside the record.
func keyPath(path string) string { return strings.TrimSuffix(path, filepath.Ext(path)) + ".key" }

// Digest returns the digest of a call's arguments as the record at path has it: the first 16 bytes of HMAC-SHA256 under
// the record's key, in hex. Who does not have the key cannot test guesses. The arguments' text counts byte for byte.
// Without a record there is no key: the error is fs.ErrNotExist then.
func Digest(path string, arguments []byte) (string, error) {
	key, err := readKey(path)
	if err != nil {
		return "", err
	}
	return digest(key, arguments), nil
}

func digest(key, arguments []byte) string {
	mac := hmac.New(sha256.New, key)
	mac.Write(arguments)
	return hex.EncodeToString(mac.Sum(nil)[:digestSize])
}

var errKeySize = fmt.Errorf("it is not %d bytes long", keySize)

func readKey(path string) ([]byte, error) {
	key, err := os.ReadFile(keyPath(path))
	if err == nil && len(key) != keySize {
		err = errKeySize
	}
	if err != nil {
		return nil, fmt.Errorf("read the key of the audit record %s: %w", keyPath(path), err)
	}
	return key, nil
}

// keys has the key of a record, read when it is first used.
type keys struct {
	path string // of the record
	mu   sync.Mutex
	key  []byte
}

func (k *keys) digest(ctx context.Context, arguments []byte) (string, error) {
	key, err := k.get(ctx)
	if err != nil {
		return "", err
	}
	return digest(key, arguments), nil
}

func (k *keys) get(ctx context.Context) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.key != nil {
		return k.key, nil
	}
	key, err := readKey(k.path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errKeySize) {
		key, err = makeKey(ctx, k.path)
	}
	if err != nil {
		return nil, err
	}
	k.key = key
	return key, nil
}

// makeKey makes the key where there is none, or one of the wrong length: nobody can use that one to look up a digest.
func makeKey(ctx context.Context, path string) ([]byte, error) {
	ctx, done := context.WithTimeout(ctx, keyPatience)
	defer done()
	unlock, err := lock(ctx, path)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if key, err := readKey(path); err == nil { // another process was first
		return key, nil
	}
	key := make([]byte, keySize)
	rand.Read(key) // never fails
	if err := safefile.Write(keyPath(path), key); err != nil {
		return nil, err
	}
	return key, nil
}
