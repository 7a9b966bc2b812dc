package runtime

import (
	"context"
	"reflect"
	"slices"

	"nightporter/internal/config"
	"nightporter/internal/mcp/wire"
)

// Reload takes a configuration that was read again (A39). Servers that are the same keep their connections, also when
// their filters, timeouts or approvals changed; a changed one is replaced, and the old one ends after its calls; a
// removed one refuses new calls at once. Clients are told which lists changed. It returns the names of the servers
// that were added, replaced or removed.
func (r *Runtime) Reload(ctx context.Context, cfg *config.Config) (changed []string) {
	r.reloading.Lock() // one after the other: each replaces what it found
	defer r.reloading.Unlock()
	old := r.config.Swap(cfg)
	for i := range old.Servers {
		if now, there := cfg.Server(old.Servers[i].Name); !there || !sameServer(&old.Servers[i], now) {
			changed = append(changed, old.Servers[i].Name)
		}
	}
	for _, name := range cfg.ServerNames() {
		if _, there := old.Server(name); !there {
			changed = append(changed, name)
		}
	}
	for _, s := range r.Scopes() {
		s.reload(ctx, cfg)
	}
	slices.Sort(changed)
	return changed
}

func (s *Scope) reload(ctx context.Context, cfg *config.Config) {
	old := map[string]*instance{}
	for _, in := range s.list() {
		old[in.name] = in
	}
	var list []*instance
	var changed []string
	var eager []*attempt
	for i := range cfg.Servers {
		def := &cfg.Servers[i]
		if !s.o.Grant.AllowsServer(def.Name) {
			continue
		}
		in := old[def.Name]
		if in != nil && sameServer(in.def(), def) {
			delete(old, def.Name)
			in.redefine(def)
			list = append(list, in)
			continue
		}
		fresh := newInstance(ctx, s, def)
		fresh.mu.Lock()
		if fresh.state == StateStopped {
			eager = append(eager, fresh.begin("the configuration was read again, and "+fresh.reason))
		}
		fresh.mu.Unlock()
		list = append(list, fresh)
		changed = append(changed, def.Name)
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return // what was made here has not begun
	}
	s.servers = list
	for _, in := range old {
		s.retired = append(s.retired, in)
	}
	s.mu.Unlock()
	s.version.Add(1)
	for name, in := range old {
		why := "the server was removed from the configuration"
		if slices.Contains(changed, name) {
			why = "the server was defined anew after the call was issued"
		} else {
			changed = append(changed, name)
		}
		in.retire(why)
	}
	if len(eager) > 0 {
		s.r.round(s, eager)
	}
	for _, name := range changed {
		for _, method := range []string{wire.ToolsList, wire.PromptsList, wire.ResourcesList} {
			s.o.Owner.Changed(name, method)
		}
	}
}

// redefine takes a definition of the same server: what it may do and how long it may take can have changed.
func (in *instance) redefine(def *config.Server) {
	in.mu.Lock()
	shown := in.def().MaxResultBytes == def.MaxResultBytes // it decides how tools are listed, and whether there is one that reads results
	in.definition.Store(def)
	var changed []string
	if in.cat != nil {
		changed = in.setCatalog(in.cat, in.live)
	}
	in.mu.Unlock()
	if !shown && !slices.Contains(changed, wire.ToolsList) {
		changed = append(changed, wire.ToolsList)
	}
	for _, method := range changed {
		in.scope.o.Owner.Changed(in.name, method)
	}
}

// policy are the fields of a definition that do not make another server of it (A11).
var policy = []string{
	"Pos", "Required", "Readiness", "StartTimeout", "ToolTimeout", "EnabledTools", "DisabledTools", "ParallelToolCalls", "Approval", "ToolApproval",
	"Lazy", "IdleStop", "CatalogTTL", "MaxResultBytes", "Pin", "Wiring", "Extra", "Written",
}

// sameServer reports whether two definitions start the same server in the same way.
func sameServer(a, b *config.Server) bool {
	va, vb := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	for i := range va.NumField() {
		name := va.Type().Field(i).Name
		if slices.Contains(policy, name) {
			continue
		}
		if !reflect.DeepEqual(va.Field(i).Interface(), vb.Field(i).Interface()) {
			return false
		}
	}
	return true
}
