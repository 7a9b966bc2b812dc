package cli

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"nightporter/internal/mcp/runtime"
)

// settleTime is how long a file must be left alone before it is read: editors write in several steps.
const settleTime = 200 * time.Millisecond

// follow reads the configuration again when its file changes, and on SIGHUP where there is one, until the returned function is
// called. A configuration that cannot be read changes nothing, and is said.
func (a *app) follow(rt *runtime.Runtime) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	file := a.flags.Config
	if file == "" {
		file = rt.Config().File
	}
	if file == "" {
		file = a.dirs.ConfigFile()
	}
	hup := make(chan os.Signal, 1)
	if reloadSignal != nil {
		signal.Notify(hup, reloadSignal)
	}
	var events chan fsnotify.Event
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		// The folder, not the file: editors replace the file by a new one.
		if err = watcher.Add(filepath.Dir(file)); err == nil {
			events = watcher.Events
		}
	}
	if err != nil && exists(filepath.Dir(file)) {
		a.say("warning: changes of %s are not noticed, send SIGHUP after one: %v", file, err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		var settled <-chan time.Time
		for {
			select {
			case e := <-events:
				if name := filepath.Clean(e.Name); name == filepath.Clean(file) || a.flags.Config == "" && name == filepath.Clean(a.dirs.ExtraFile()) {
					settled = time.After(settleTime)
				}
			case <-hup:
				a.reload(ctx, rt)
			case <-settled:
				settled = nil
				a.reload(ctx, rt)
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
		signal.Stop(hup)
		if watcher != nil {
			watcher.Close()
		}
	}
}

func (a *app) reload(ctx context.Context, rt *runtime.Runtime) {
	cfg, err := a.loadConfig()
	if err != nil {
		a.say("warning: the configuration was not read again: %v", err)
		return
	}
	changed := rt.Reload(ctx, cfg)
	if len(changed) == 0 {
		a.say("configuration read again, the servers are the same")
		return
	}
	a.say("configuration read again, changed: %s", strings.Join(changed, ", "))
}
