package dirs

import (
	"path/filepath"
	"testing"
)

func TestNightporterHomeHoldsEverything(t *testing.T) {
	home := t.TempDir()
	d := Find(func(key string) string { return map[string]string{"NIGHTPORTER_HOME": home}[key] })
	if got, want := d.ConfigFile(), filepath.Join(home, "config.toml"); got != want {
		t.Errorf("config file %s, want %s", got, want)
	}
	for _, dir := range []string{d.Catalogs(), d.Ledger(), d.Runs(), d.Live()} {
		if rel, err := filepath.Rel(home, dir); err != nil || !filepath.IsLocal(rel) {
			t.Errorf("%s is not below %s", dir, home)
		}
	}
}
