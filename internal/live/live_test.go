package live

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestAnnouncedProcessIsFoundAskedAndGone(t *testing.T) {
	for name, dir := range map[string]string{"short": t.TempDir(), "long": filepath.Join(t.TempDir(), strings.Repeat("x", 120))} {
		t.Run(name, func(t *testing.T) {
			mux := http.NewServeMux()
			mux.HandleFunc("GET /hello", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `"there"`) })
			mux.HandleFunc("GET /bad", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no such thing", http.StatusNotFound) })
			mux.HandleFunc("POST /echo", func(w http.ResponseWriter, _ *http.Request) {
				conn, reader, err := Accept(w)
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				_, _ = io.Copy(conn, reader)
			})
			a, err := Announce(dir, Record{Kind: "gateway", Name: "x"}, mux)
			if err != nil {
				t.Fatal(err)
			}
			found, err := Find(within(t), dir)
			if err != nil || len(found) != 1 || found[0].PID != os.Getpid() || found[0].Kind != "gateway" {
				t.Fatalf("found %+v, %v", found, err)
			}
			for path, want := range map[string]os.FileMode{a.record: 0o600, found[0].Socket: 0o600 | os.ModeSocket} {
				if info, err := os.Stat(path); err != nil || info.Mode() != want {
					t.Errorf("%s: %v, %v, want %v", filepath.Base(path), info.Mode(), err, want)
				}
			}
			var answer string
			if err := found[0].Ask(within(t), "GET", "/hello", &answer); err != nil || answer != "there" {
				t.Errorf("answer %q, %v", answer, err)
			}
			if err := found[0].Ask(within(t), "GET", "/bad", nil); err == nil || err.Error() != "no such thing" {
				t.Errorf("error %v", err)
			}
			conn, reader, err := found[0].Upgrade(within(t), "/echo")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, "ping\n"); err != nil {
				t.Fatal(err)
			}
			if line, err := reader.ReadString('\n'); err != nil || line != "ping\n" {
				t.Errorf("read %q, %v", line, err)
			}
			conn.Close()
			if _, _, err := found[0].Upgrade(within(t), "/bad"); err == nil {
				t.Error("upgraded where nothing is")
			}
			a.Close()
			if found, err := Find(within(t), dir); err != nil || len(found) != 0 {
				t.Errorf("found %v, %v after its end", found, err)
			}
			if entries, _ := os.ReadDir(dir); len(entries) != 0 {
				t.Errorf("left behind: %v", entries)
			}
		})
	}
}

// write makes a record of a process with the pid given.
func write(t *testing.T, dir, name string, pid int, socket string) (path string) {
	t.Helper()
	data, err := json.Marshal(Record{PID: pid, Kind: "gateway", Name: name, Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, name+recordSuffix)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// abandoned makes a socket that nobody listens on, as SIGKILL leaves it.
func abandoned(t *testing.T, path string) string {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	return path
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// nobody is a pid that no process can have.
const nobody = 1 << 30

func mustFind(t *testing.T, dir string) []Process {
	t.Helper()
	found, err := Find(within(t), dir)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// folder is a live folder as Announce makes it.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestARecordIsRemovedWhenNobodyListensThoughItsPidIsGivenAgain(t *testing.T) {
	if goruntime.GOOS != "linux" {
		t.Skip("elsewhere a stopped process may refuse, see gone")
	}
	dir := folder(t)
	for name, socket := range map[string]string{
		"refuses": abandoned(t, filepath.Join(dir, "refuses.sock")),
		"missing": filepath.Join(dir, "missing.sock"),
	} {
		record := write(t, dir, name, os.Getppid(), socket)
		if found := mustFind(t, dir); len(found) != 0 {
			t.Errorf("%s: found %v", name, found)
		}
		if exists(record) || exists(socket) {
			t.Errorf("%s: left behind: record %v, socket %v", name, exists(record), exists(socket))
		}
	}
}

func TestWhatIsNoRecordIsLeftAlone(t *testing.T) {
	dir := folder(t)
	damaged := filepath.Join(dir, "damaged.json")
	if err := os.WriteFile(damaged, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link.json")
	if err := os.Symlink(write(t, folder(t), "other", nobody, filepath.Join(dir, "other.sock")), link); err != nil {
		t.Skip(err)
	}
	if found := mustFind(t, dir); len(found) != 0 || !exists(damaged) || !exists(link) {
		t.Errorf("found %v; damaged there %v, link there %v", found, exists(damaged), exists(link))
	}
}

func TestOnlySocketsOfOursAreRemovedWithARecord(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	tmp, elsewhere, dir := os.TempDir(), t.TempDir(), folder(t)
	file := func(path string) string {
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	in := func(parent, name string) string {
		if err := os.MkdirAll(parent, 0o700); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(parent, name)
	}
	linked := filepath.Join(tmp, scratchPrefix+"link")
	if err := os.Symlink(elsewhere, linked); err != nil {
		t.Skip(err)
	}
	for name, c := range map[string]struct {
		socket string
		stays  bool
	}{
		"a file in the live folder":           {file(filepath.Join(dir, "precious.sock")), true},
		"a file elsewhere":                    {file(filepath.Join(elsewhere, "precious")), true},
		"a file in a scratch folder":          {file(in(filepath.Join(tmp, scratchPrefix+"1"), "s")), true},
		"a folder":                            {in(filepath.Join(dir, "sub"), ""), true},
		"a socket elsewhere":                  {abandoned(t, filepath.Join(elsewhere, "s")), true},
		"a socket in a folder of the folder":  {abandoned(t, in(filepath.Join(dir, "deep"), "s")), true},
		"a socket in the folder of temporary": {abandoned(t, filepath.Join(tmp, "s")), true},
		"a socket behind a link":              {abandoned(t, filepath.Join(linked, "t")), true},
		"a socket in another's scratch":       {abandoned(t, in(filepath.Join(tmp, "other-1"), "s")), true},
		"a socket in a folder named as ours":  {abandoned(t, in(filepath.Join(elsewhere, scratchPrefix+"1"), "s")), true},
		"a socket in the live folder":         {abandoned(t, filepath.Join(dir, "dead.sock")), false},
		"a socket in a scratch folder":        {abandoned(t, in(filepath.Join(tmp, scratchPrefix+"2"), "s")), false},
	} {
		record := write(t, dir, "1-1", nobody, c.socket)
		if found := mustFind(t, dir); len(found) != 0 || exists(record) {
			t.Errorf("%s: found %v, record there %v", name, found, exists(record))
		}
		if exists(c.socket) != c.stays {
			t.Errorf("%s: is there %v, want %v", name, exists(c.socket), c.stays)
		}
	}
	if scratch := filepath.Join(tmp, scratchPrefix+"2"); exists(scratch) {
		t.Error("the scratch folder is left behind")
	}
}

func TestThousandStaleRecordsAreClearedByTwoAtOnceWhileOthersStart(t *testing.T) {
	dir := folder(t)
	for i := range 1000 {
		name := strconv.Itoa(i)
		socket := filepath.Join(dir, name+".sock")
		if i%10 == 0 {
			abandoned(t, socket)
		}
		write(t, dir, name, nobody, socket)
	}
	const starting = 20
	var all []*Announcement
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 3 {
				if _, err := Find(within(t), dir); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range starting {
		a, err := Announce(dir, Record{Kind: "gateway"}, http.NotFoundHandler())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, a)
	}
	wg.Wait()
	if found := mustFind(t, dir); len(found) != starting {
		t.Errorf("found %d processes, want %d", len(found), starting)
	}
	for _, a := range all {
		a.Close()
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("%d entries are left, %v", len(entries), err)
	}
}

// mute is a process that was stopped: the kernel takes its connections, and nobody answers.
func mute(t *testing.T, dir string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "mute.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	write(t, dir, "mute", os.Getpid(), l.Addr().String())
	return l
}

func TestAQuestionToAProcessThatDoesNotAnswerEndsAndNamesIt(t *testing.T) {
	dir := folder(t)
	mute(t, dir)
	found := mustFind(t, dir)
	if len(found) != 1 {
		t.Fatalf("found %v", found)
	}
	err := found[0].Ask(within(t), "GET", "/status", nil)
	if want := fmt.Sprintf("process %d (gateway mute) does not answer", os.Getpid()); !errors.Is(err, ErrMute) || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestAStartThatWaitsCanBeCancelled(t *testing.T) {
	dir := folder(t)
	l := mute(t, dir)
	found := mustFind(t, dir)
	ctx, cancel := context.WithCancel(within(t))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer l.Close()
	wg.Go(func() {
		for { // Find's connection comes first, and says nothing
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			if _, err := bufio.NewReader(conn).ReadString('\n'); err == nil {
				cancel()
			}
		}
	})
	if err := found[0].Ask(ctx, "POST", "/servers/x/start", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want it cancelled", err)
	}
}
