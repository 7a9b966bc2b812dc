package runtime

import (
	"encoding/json"
	"runtime"
	"sync"
	"weak"

	"nightporter/internal/mcp/catalog"
	"nightporter/internal/mcp/pin"
	"nightporter/internal/mcp/wire"
)

// look is what a catalog shows whoever looks at it: what does not depend on the client, the configuration or the grant. It is the
// larger part of making an offer, and clients that have one catalog share it.
type look struct {
	once                                 sync.Once
	tools, prompts, resources, templates []entry
}

// entry is one definition of a catalog.
type entry struct {
	id         string // its name, URI or URI template
	flaw       string // why it cannot be offered; empty: it can
	forModels  bool   // see forModels; of tools
	suspicious []string
}

// looks are those of the catalogs that somebody has.
type looks struct{ byCatalog sync.Map } // weak.Pointer[catalog.Catalog] to *look

func (l *looks) at(c *catalog.Catalog) *look {
	key := weak.Make(c)
	found, known := l.byCatalog.LoadOrStore(key, &look{})
	if !known {
		runtime.AddCleanup(c, func(key weak.Pointer[catalog.Catalog]) { l.byCatalog.Delete(key) }, key)
	}
	at := found.(*look)
	at.once.Do(func() {
		at.tools = entries(c.Tools, "name", toolShape)
		for i, raw := range c.Tools {
			if e := &at.tools[i]; e.flaw == "" {
				e.forModels, e.suspicious = forModels(raw), pin.Suspicious(raw)
			}
		}
		at.prompts = entries(c.Prompts, "name", promptShape)
		at.resources = entries(c.Resources, "uri", resourceShape)
		at.templates = entries(c.Templates, "uriTemplate", templateShape)
	})
	return at
}

func entries(raws []json.RawMessage, key string, is shape) []entry {
	all := make([]entry, len(raws))
	for i, raw := range raws {
		id, _ := wire.GetString(raw, key)
		all[i] = entry{id: id, flaw: flawOf(raw, is)}
	}
	return all
}
