package runtime

import (
	"encoding/json"
	"fmt"
	"slices"

	"nightporter/internal/config"
	"nightporter/internal/mcp/catalog"
	"nightporter/internal/mcp/wire"
)

// Item is one thing that a server offers: a tool, a prompt, a resource or a resource template.
type Item struct {
	Server string
	Name   string          // the server's own name of it; the URI of a resource, the URI template of a template
	Raw    json.RawMessage // the definition, as the server sent it
}

// offer is what a client sees of a catalog.
type offer struct {
	tools     []Item
	appOnly   []Item            // tools for apps, not for models (A15): callable, not listed
	held      map[string]string // tools that changed since a person accepted them (A17), by raw name, with the reason
	withheld  map[string]string // tools that are neither, by raw name, with the reason
	flaws     []string          // definitions that cannot be used, for status
	prompts   []Item
	resources []Item
	templates []Item
}

// offerOf filters a catalog: by what is well-formed, by the server's own filters, by the grant.
func (in *instance) offerOf(c *catalog.Catalog) *offer {
	o := &offer{held: map[string]string{}, withheld: map[string]string{}}
	name := in.name
	seen := map[string]bool{}
	held := in.held(c, o)
	look := in.scope.r.looks.at(c)
	mirrors := in.def().Transport != config.Stdio && wire.EraOf(c.Protocol) == wire.StatelessEra
	for i, raw := range c.Tools {
		entry := &look.tools[i]
		tool, flaw := entry.id, entry.flaw
		if flaw == "" && mirrors {
			if _, err := wire.ParamHeaders(wire.Get(raw, "inputSchema")); err != nil {
				flaw = err.Error() // a client over HTTP must not use it (specification 2026-07-28, "Schema Extension")
			}
		}
		switch {
		case flaw != "":
			o.flaw("tool", i, tool, flaw)
			if tool != "" && !seen[tool] {
				o.withheld[tool] = "its definition cannot be used: " + flaw
			}
			continue
		case seen[tool]:
			o.note("tool %d (%q) is listed twice; the first counts", i+1, short(tool))
			continue
		}
		delete(o.withheld, tool) // by an entry of the same name that cannot be used
		seen[tool] = true
		if ok, reason := in.allows(tool); !ok {
			o.withheld[tool] = reason
			continue
		}
		if reason := held(tool); reason != "" {
			o.held[tool] = reason
			o.note("tool %q is held back: %s", tool, reason)
			continue
		}
		for _, found := range entry.suspicious {
			o.note("tool %q has characters that do not show: %s", tool, found)
		}
		item := Item{name, tool, raw}
		if entry.forModels {
			o.tools = append(o.tools, item)
		} else {
			o.appOnly = append(o.appOnly, item)
		}
	}
	for _, list := range []struct {
		kind  string
		raws  []json.RawMessage
		looks []entry
		into  *[]Item
	}{
		{"prompt", c.Prompts, look.prompts, &o.prompts},
		{"resource", c.Resources, look.resources, &o.resources},
		{"resource template", c.Templates, look.templates, &o.templates},
	} {
		for i, raw := range list.raws {
			e := &list.looks[i]
			if e.flaw != "" {
				o.flaw(list.kind, i, e.id, e.flaw)
				continue
			}
			*list.into = append(*list.into, Item{name, e.id, raw})
		}
	}
	return o
}

// maxFlaws bounds what is told of one server: a list of thousands that are all wrong in the same way says it often enough.
const maxFlaws = 100

// flaw notes an entry of a list that is not offered.
func (o *offer) flaw(kind string, i int, name, flaw string) {
	o.note("%s %d (%q) is not offered: %s", kind, i+1, short(name), flaw)
}

func (o *offer) note(format string, args ...any) {
	switch {
	case len(o.flaws) < maxFlaws:
		o.flaws = append(o.flaws, fmt.Sprintf(format, args...))
	case len(o.flaws) == maxFlaws:
		o.flaws = append(o.flaws, "and more, which are not told")
	}
}

// short is a name as it is told: what a server sent may be of any length.
func short(name string) string {
	const most = 100
	if r := []rune(name); len(r) > most {
		return string(r[:most]) + "…"
	}
	return name
}

// held returns why a tool of a pinned server is held back; empty when it is not (A17).
func (in *instance) held(c *catalog.Catalog, o *offer) func(tool string) string {
	if !in.def().Pin {
		return func(string) string { return "" }
	}
	pins := in.scope.r.opts.Pins
	if pins == nil {
		return func(string) string { return "pin is set, and what was accepted cannot be looked up here" }
	}
	held, err := pins.Check(in.name, c.Tools)
	if err != nil {
		o.flaws = append(o.flaws, err.Error())
	}
	return func(tool string) string { return held[tool] }
}

// allows reports whether the filters and the grant let the tool through (A19).
func (in *instance) allows(tool string) (bool, string) {
	if ok, reason := in.def().Allows(tool); !ok {
		return false, reason
	}
	return in.scope.o.Grant.Allows(in.name, tool)
}

// forModels reports whether a tool is meant for models: _meta.ui.visibility names them or is not given (A15).
func forModels(raw json.RawMessage) bool {
	visibility, err := wire.Elements(wire.Get(raw, "_meta", "ui", "visibility"))
	if err != nil {
		return true
	}
	return slices.ContainsFunc(visibility, func(v json.RawMessage) bool { return string(v) == `"model"` })
}

// setCatalog replaces what the server offers, and returns the list methods whose answer changed by it. The caller holds in.mu.
func (in *instance) setCatalog(c *catalog.Catalog, live bool) (changed []string) {
	before := in.offer
	in.cat, in.live, in.offer = c, live, in.offerOf(c)
	in.scope.version.Add(1)
	if before == nil {
		before = &offer{}
	}
	for _, list := range []struct {
		method  string
		was, is []Item
	}{
		{wire.ToolsList, before.tools, in.offer.tools},
		{wire.PromptsList, before.prompts, in.offer.prompts},
		{wire.ResourcesList, before.resources, in.offer.resources},
		{wire.TemplatesList, before.templates, in.offer.templates},
	} {
		if !slices.EqualFunc(list.was, list.is, func(a, b Item) bool { return string(a.Raw) == string(b.Raw) }) {
			changed = append(changed, list.method)
		}
	}
	return changed
}

// tool finds a tool by its raw name among those that may be called; the reason says why not.
func (o *offer) tool(name string) (item Item, reason string) {
	for _, list := range [][]Item{o.tools, o.appOnly} {
		if i := slices.IndexFunc(list, func(i Item) bool { return i.Name == name }); i >= 0 {
			return list[i], ""
		}
	}
	for _, reasons := range []map[string]string{o.held, o.withheld} {
		if reason := reasons[name]; reason != "" {
			return Item{}, reason
		}
	}
	return Item{}, "the server does not offer it"
}
