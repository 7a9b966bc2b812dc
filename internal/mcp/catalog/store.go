package catalog

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"nightporter/internal/safefile"
)

var (
	// ErrNone says that there is no catalog under that name and identity.
	ErrNone = errors.New("no saved catalog")
	// ErrDamaged says that there was a file, which could not be read as that catalog and was set aside.
	ErrDamaged = errors.New("the saved catalog is damaged")
)

const (
	// keepIdentities is how many catalogs of one server are kept: one server may have an identity for each
	// working directory it is used in. The oldest go first.
	keepIdentities = 32
	// keepDamaged is how many damaged files of one server are kept, for somebody who wants to see what happened.
	keepDamaged = 3
	// lockWait bounds the wait for another process: it holds a lock for one small write.
	lockWait = 10 * time.Second
	// lockRetry is how often a held lock is tried again.
	lockRetry = 5 * time.Millisecond
	// keySize is the length of the key for identities, that of the hash.
	keySize = sha256.Size
)

var (
	fileSuffix    = fmt.Sprintf(".v%d.catalog", format)
	damagedSuffix = ".damaged"
)

// Store is a folder of catalogs. It is safe for concurrent use, also by several processes.
type Store struct {
	dir   string
	key   []byte
	known known
}

// Open opens the store in dir, making the folder (0700) and its key (0600) where there are none.
func Open(dir string) (*Store, error) {
	fail := func(err error) (*Store, error) {
		return nil, fmt.Errorf("open the catalogs in %s: %w", dir, err)
	}
	if err := os.MkdirAll(dir, safefile.DirMode); err != nil {
		return fail(err)
	}
	// Not when it is as it should be: a home that cannot be written is read all the same.
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != safefile.DirMode {
		if err := os.Chmod(dir, safefile.DirMode); err != nil {
			return fail(err)
		}
	}
	path := filepath.Join(dir, "key")
	if key, err := os.ReadFile(path); err == nil && len(key) == keySize {
		return &Store{dir: dir, key: key}, nil
	}
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return fail(err)
	}
	defer unlock()
	// Again under the lock: another process may have been first. A key of the wrong length is replaced, which
	// costs one eager start of each server.
	key, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(err)
	}
	if len(key) != keySize {
		key = make([]byte, keySize)
		rand.Read(key) // never fails
		if err := safefile.Write(path, key); err != nil {
			return fail(err)
		}
	}
	return &Store{dir: dir, key: key}, nil
}

// Load returns the catalog of the server name under id. Who loads it again while somebody has it gets the same one, so that it must not be
// changed. Errors: [ErrNone]; [ErrDamaged], after which the file is out of
// the way and the next Load answers ErrNone; or that of the file system.
func (s *Store) Load(name string, id Identity) (*Catalog, error) {
	c, err := s.load(name, id)
	if err != nil {
		return nil, fmt.Errorf("catalog of server %q: %w", name, err)
	}
	return c, nil
}

func (s *Store) load(name string, id Identity) (*Catalog, error) {
	if !id.valid() {
		return nil, ErrNone
	}
	folder := s.folder(name)
	file := fileName(id)
	c, err := s.read(filepath.Join(folder, file), name, id)
	if !errors.Is(err, ErrDamaged) {
		return c, err
	}
	// Set it aside, unless another process has replaced it by now.
	unlock, lockErr := lock(filepath.Join(folder, "lock"))
	if lockErr != nil {
		return nil, errors.Join(err, lockErr)
	}
	defer unlock()
	c, err = s.read(filepath.Join(folder, file), name, id)
	if errors.Is(err, ErrDamaged) {
		err = errors.Join(err, setAside(folder, file))
	}
	return c, err
}

// Publish saves c, unless a listing that began later is saved already: then published is false and c is not
// saved. It sets c.Revision. A catalog that is not Cacheable is not saved but removes the one under its
// identity. Older identities of the same server beyond the limit are removed; other servers are not touched.
func (s *Store) Publish(c *Catalog) (published bool, err error) {
	c.Revision = RevisionOf(c)
	published, err = s.publish(c)
	if err != nil {
		return false, fmt.Errorf("save the catalog of server %q: %w", c.Server, err)
	}
	return published, nil
}

func (s *Store) publish(c *Catalog) (published bool, err error) {
	if !c.Identity.valid() {
		return false, fmt.Errorf("identity %q is not one that Identity returned", c.Identity)
	}
	var file []byte
	if c.Cacheable {
		if file, err = encode(c); err != nil {
			return false, err
		}
	}
	folder := s.folder(c.Server)
	if err := os.MkdirAll(folder, safefile.DirMode); err != nil {
		return false, err
	}
	unlock, err := lock(filepath.Join(folder, "lock"))
	if err != nil {
		return false, err
	}
	defer unlock()

	path := filepath.Join(folder, fileName(c.Identity))
	have, err := s.read(path, c.Server, c.Identity)
	switch {
	case err == nil:
		fromFuture := have.FetchedAt.After(time.Now().Add(clockSlack))
		if have.FetchedAt.After(c.FetchedAt) && !fromFuture {
			return false, nil
		}
	case errors.Is(err, ErrDamaged):
		if err := setAside(folder, filepath.Base(path)); err != nil {
			return false, err
		}
	case !errors.Is(err, ErrNone):
		return false, err
	}
	if !c.Cacheable {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		return false, nil
	}
	if err := safefile.Write(path, file); err != nil {
		return false, err
	}
	prune(folder)
	return true, nil
}

// Latest returns the newest catalog of the server name under any identity: for listings that must not start
// the server, and for nothing else, because the server may have been another then. Damaged files are set aside on
// the way. Errors: [ErrNone], [ErrDamaged] when there were only damaged ones, or that of the file system.
func (s *Store) Latest(name string) (*Catalog, error) {
	entries, err := os.ReadDir(s.folder(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("catalog of server %q: %w", name, err)
	}
	var found []*Catalog
	var failed error = ErrNone
	for _, entry := range entries {
		id, ok := strings.CutSuffix(entry.Name(), fileSuffix)
		if !ok {
			continue
		}
		switch c, err := s.load(name, Identity(id)); {
		case err == nil:
			found = append(found, c)
		case !errors.Is(err, ErrNone):
			failed = err
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("catalog of server %q: %w", name, failed)
	}
	return slices.MinFunc(found, newer), nil
}

// folder is the server's own folder.
func (s *Store) folder(name string) string { return filepath.Join(s.dir, FileName(name)) }

// FileName is a name for files of the server name. It begins with what is readable of the server's and ends with a
// hash of it, so that no two servers share one where case or unusual characters do not count, and none is reserved.
func FileName(name string) string {
	const readable = 40
	slug := strings.Map(func(r rune) rune {
		switch {
		case 'A' <= r && r <= 'Z':
			return r + 'a' - 'A'
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9', r == '-':
			return r
		}
		return '_'
	}, name)
	hash := sha256.Sum256([]byte(name))
	return fmt.Sprintf("%.*s-%x", readable, slug, hash[:16])
}

// fileName is the name of the file of an identity in the server's folder.
func fileName(id Identity) string { return string(id) + fileSuffix }

// read reads one file and makes sure that it is the catalog that it is looked up as.
func (s *Store) read(path, name string, id Identity) (*Catalog, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if known := s.known.of(path, info); known != nil {
		return known, nil
	}
	// Of the file's size at once. One that grows meanwhile is none of ours: they are replaced, not written to.
	file := make([]byte, min(info.Size(), maxFile+1))
	if _, err := io.ReadFull(f, file); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, err
	}
	c, err := decode(file)
	if err == nil && (c.Server != name || c.Identity != id) {
		err = fmt.Errorf("it belongs to server %q, identity %s", c.Server, c.Identity)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
	}
	s.known.keep(path, info, c)
	return c, nil
}

// setAside renames a damaged file; the server's lock is held. The new name begins with the time, for prune.
func setAside(folder, file string) error {
	name := time.Now().UTC().Format("20060102T150405.000000000-") + file[:16] + damagedSuffix
	if err := os.Rename(filepath.Join(folder, file), filepath.Join(folder, name)); err != nil {
		return err
	}
	prune(folder)
	return nil
}

// prune removes what is too much in a server's folder; the server's lock is held. What it cannot remove
// stays until the next time.
func prune(folder string) {
	entries, err := os.ReadDir(folder) // sorted by name
	if err != nil {
		return
	}
	type aged struct {
		name string
		time time.Time
	}
	var damaged []string
	var catalogs []aged
	for _, entry := range entries {
		switch name := entry.Name(); {
		case strings.HasSuffix(name, ".tmp"):
			// Only the lock's holder writes here: its writer died.
			os.Remove(filepath.Join(folder, name))
		case strings.HasSuffix(name, damagedSuffix):
			damaged = append(damaged, name)
		case strings.HasSuffix(name, fileSuffix):
			if info, err := entry.Info(); err == nil {
				catalogs = append(catalogs, aged{name, info.ModTime()})
			}
		}
	}
	slices.SortStableFunc(catalogs, func(a, b aged) int { return a.time.Compare(b.time) })
	for _, name := range damaged[:max(0, len(damaged)-keepDamaged)] {
		os.Remove(filepath.Join(folder, name))
	}
	for _, c := range catalogs[:max(0, len(catalogs)-keepIdentities)] {
		os.Remove(filepath.Join(folder, c.name))
	}
}

// lock takes the lock file at path, which the system frees when this process ends however it ends. Two holders in one
// process exclude each other as well.
func lock(path string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	l := flock.New(path, flock.SetPermissions(safefile.FileMode))
	if _, err := l.TryLockContext(ctx, lockRetry); err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { l.Unlock() }, nil
}
