package catalog

import (
	"os"
	"runtime"
	"sync"
	"time"
	"weak"
)

// known are the catalogs that somebody has. A thousand clients of a gateway load each catalog once together.
type known struct {
	mu     sync.Mutex
	byPath map[string]knownFile
}

type knownFile struct {
	info    os.FileInfo
	catalog weak.Pointer[Catalog]
}

// settled is how old a file must be to be known by its time: one that is written twice within a tick of the file system's clock looks the
// same both times.
const settled = 2 * time.Second

// of returns the catalog that was read from the file as it is now; nil when nobody has it.
func (k *known) of(path string, info os.FileInfo) *Catalog {
	k.mu.Lock()
	defer k.mu.Unlock()
	have, is := k.byPath[path]
	if !is || !os.SameFile(have.info, info) || have.info.Size() != info.Size() || !have.info.ModTime().Equal(info.ModTime()) {
		return nil
	}
	return have.catalog.Value()
}

// keep remembers a catalog for as long as somebody has it.
func (k *known) keep(path string, info os.FileInfo, c *Catalog) {
	if time.Since(info.ModTime()) < settled {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.byPath == nil {
		k.byPath = map[string]knownFile{}
	}
	kept := weak.Make(c)
	k.byPath[path] = knownFile{info, kept}
	runtime.AddCleanup(c, func(path string) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.byPath[path].catalog == kept {
			delete(k.byPath, path)
		}
	}, path)
}
