package pin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"nightporter/internal/mcp/catalog"
	"nightporter/internal/mcp/wire"
	"nightporter/internal/safefile"
)

var (
	// ErrNone says that no tools of the server were seen yet, and so none accepted.
	ErrNone = errors.New("none yet")
	// ErrDamaged says that there is a file that cannot be read. It stays until [Store.Accept] replaces it.
	ErrDamaged = errors.New("the file is damaged")
)

const (
	// format is the version of the file format. It is not in the file's name: a version of Nightporter that knows another
	// must not take the server for one that was never seen.
	format = 1
	magic  = "nightporter-pins "
	// maxFile bounds a file, as that of a catalog: the tools are the most of it.
	maxFile = 32 << 20
	// lockWait bounds the wait for another process: it holds a lock for one small write.
	lockWait = 10 * time.Second
	// lockRetry is how often a held lock is tried again.
	lockRetry = 5 * time.Millisecond
)

// Store keeps which definitions of a server's tools were accepted. It is safe for concurrent use, also by several
// processes.
type Store struct{ dir string }

// Open returns the store in dir, which is made (0700) when something is first recorded.
func Open(dir string) *Store { return &Store{dir} }

func (s *Store) path(server string) string {
	return filepath.Join(s.dir, catalog.FileName(server)+".pins")
}

// header is the first line of a file: the format, and the SHA-256 of everything after it.
func header(body []byte) []byte {
	return fmt.Appendf(nil, "%s%d sha256 %x\n", magic, format, sha256.Sum256(body))
}

// encode returns a file. The definitions are copied in by hand: json.Marshal would rewrite them.
func encode(server string, tools []json.RawMessage) []byte {
	body := fmt.Appendf(nil, "{\"server\":%s,\"tools\":[", wire.Quote(server))
	for i, raw := range tools {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(append(body, '\n'), raw...)
	}
	body = append(body, "]}\n"...)
	return append(header(body), body...)
}

// decode reads a file of the server.
func decode(server string, file []byte) ([]json.RawMessage, error) {
	if len(file) > maxFile {
		return nil, fmt.Errorf("%w: it is larger than %d bytes", ErrDamaged, maxFile)
	}
	end := bytes.IndexByte(file, '\n') + 1
	var version int
	if _, err := fmt.Sscanf(string(file[:end]), magic+"%d", &version); err == nil && version > format {
		return nil, fmt.Errorf("it has format %d, of a later version of Nightporter than this one", version)
	}
	body := file[end:]
	if end == 0 || !bytes.Equal(file[:end], header(body)) {
		return nil, fmt.Errorf("%w: its header line does not fit its content", ErrDamaged)
	}
	if owner, ok := wire.GetString(body, "server"); !ok || owner != server {
		return nil, fmt.Errorf("%w: it belongs to server %q", ErrDamaged, owner)
	}
	tools, err := wire.Elements(wire.Get(body, "tools"))
	if err != nil {
		return nil, fmt.Errorf("%w: tools: %w", ErrDamaged, err)
	}
	return tools, nil
}

// read returns what was accepted. Errors: [ErrNone], [ErrDamaged], that of a later format, or that of the file system.
func (s *Store) read(server string) ([]json.RawMessage, error) {
	f, err := os.Open(s.path(server))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	file, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	tools, err := decode(server, file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return tools, nil
}

// write records tools as what is accepted; the server's lock is held.
func (s *Store) write(server string, tools []json.RawMessage) error {
	file := encode(server, sorted(tools))
	// Each definition is well-formed, but the whole may be nested deeper or larger than what can be read again.
	if _, err := decode(server, file); err != nil {
		return fmt.Errorf("they cannot be recorded: %w", err)
	}
	return safefile.Write(s.path(server), file)
}

// setAside renames a damaged file, for somebody who wants to see what happened; the server's lock is held.
func (s *Store) setAside(server string) error {
	return os.Rename(s.path(server), s.path(server)+".damaged")
}

// lock keeps other writers of the server's file out, in this process and others. The system frees it when this process ends
// however it ends.
func (s *Store) lock(server string) (unlock func(), err error) {
	if err := os.MkdirAll(s.dir, safefile.DirMode); err != nil {
		return nil, err
	}
	path := s.path(server) + ".lock"
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	l := flock.New(path, flock.SetPermissions(safefile.FileMode))
	if _, err := l.TryLockContext(ctx, lockRetry); err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { l.Unlock() }, nil
}
