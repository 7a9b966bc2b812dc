//go:build linux

package sandbox

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// wait bounds every command. It is long because the machine may be loaded.
const wait = 60 * time.Second

// world is a folder with everything that a sandboxed command may try to reach, the
// same in each world but for the folder's name, and a process to attack.
type world struct {
	dir    string
	uid    int
	tools  *tools
	plan   plan
	victim *exec.Cmd
	stdin  io.Closer
	said   *bufio.Reader
}

// plan is what the probe is told; see there.
type plan struct {
	Places   map[string]string
	Moves    [][2]string
	Links    map[string]string
	Make     map[string]string
	TCP, UDP int
	Token    string
	Sockets  map[string]string
	Abstract string
	Victim   int
	Address  uint64
	Mount    string
	Shm      string
	Cgroup   string
}

// places are the folders in which every operation on files is tried, below the world's folder.
var places = map[string]string{
	"cwd": "cwd", "sub": "cwd/sub", "deep": "cwd/sub/deep", "private": "cwd/private",
	".git": "cwd/.git", ".codex": "cwd/.codex", ".agents": "cwd/.agents", ".aws": "cwd/.aws",
	"outside": "outside", "outside/in": "outside/in", "ro": "ro", "secret": "secret",
	"home": "home", "tmpdir": "tmp", "odd": "odd é %20 dir", "world": ".",
}

var moves = [][2]string{
	{"cwd", "sub"},
	{"cwd", "outside"},
	{"outside", "cwd"},
	{"secret", "cwd"},
	{"ro", "cwd"},
	{"cwd", "tmpdir"},
	{".git", "cwd"},
	{"cwd", ".git"},
	{"private", "cwd"},
	{"deep", "sub"},
	{"sub", "deep"},
	{"slash_tmp", "cwd"},
	{"outside", "outside/in"},
}

// files are in each place, one for each operation that changes one.
var files = []string{"file", "append", "truncate", "open-truncate", "chmod", "utimes", "setxattr", "delete", "rename"}

const original = "as it was\n"

func moveFile(move [2]string) string {
	return strings.ReplaceAll(move[0]+" to "+move[1], "/", ":")
}

func newWorld(t *testing.T, uid int) *world {
	t.Helper()
	k := toolsOf(t)
	id := strconv.FormatInt(k.worlds.Add(1), 10)
	w := &world{dir: filepath.Join(k.base, "w", id), uid: uid, tools: k}
	unique := filepath.Base(k.base) + "-" + id
	slashTmp := filepath.Join("/tmp", unique)
	w.plan = plan{
		Places: map[string]string{"slash_tmp": slashTmp},
		Moves:  moves,
		Links: map[string]string{
			"link out of cwd": w.path("cwd/out/append-through"), "link to file outside": w.path("cwd/outfile"),
			"link into cwd": w.path("into/append-through"), "link out of outside": w.path("outside/to-ro/append-through"),
		},
		Make: map[string]string{"missing": w.path("cwd/missing"), "missing in outside": w.path("outside/missing"), "missing deep": w.path("cwd/sub/missing")},
		TCP:  k.tcpPort(), UDP: k.udpPort(), Token: unique,
		Sockets:  map[string]string{"in cwd": w.path("cwd/sock"), "outside": w.path("outside/sock"), "in secret": w.path("secret/sock")},
		Abstract: unique, Mount: w.path("mount"),
		Shm: "/dev/shm/" + unique, Cgroup: filepath.Join(cgroup(), unique),
	}
	for name, dir := range places {
		w.plan.Places[name] = w.path(dir)
	}
	for _, dir := range w.plan.Places {
		if err := fill(dir); err != nil {
			t.Fatal(err)
		}
	}
	for _, move := range moves {
		w.write(t, filepath.Join(w.plan.Places[move[0]], "move "+moveFile(move)))
	}
	for _, dir := range []string{"mount", "cwd/empty"} {
		if err := os.Mkdir(w.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"outside", "cwd", "ro"} {
		w.write(t, w.path(dir, "append-through"))
	}
	for link, target := range map[string]string{
		"cwd/out": "../outside", "cwd/outfile": "../outside/outfile", "into": "cwd", "outside/to-ro": "../ro", "cwdlink": "cwd",
		"cwd/sublink": "sub", "loop": "loop", "dangling": "nowhere", "secretlink": "secret",
	} {
		if err := os.Symlink(target, w.path(link)); err != nil {
			t.Fatal(err)
		}
	}
	w.write(t, w.path("outside/outfile"))
	sockets := []string{"@" + unique}
	for _, path := range w.plan.Sockets {
		sockets = append(sockets, path)
	}
	for _, address := range sockets {
		l, err := net.Listen("unix", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go accept(l)
		if address[0] != '@' {
			if err := os.Chmod(address, 0o777); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Cleanup(func() {
		// The world itself is removed with all others, at the end: ext4 looks for free inodes past all that were freed in the last
		// seconds, and with worlds that come and go the table took three times as long (measured).
		_ = os.RemoveAll(slashTmp)
		_ = os.Remove(w.plan.Shm)
		_ = os.Remove(w.plan.Cgroup)
	})
	w.own(t)
	w.startVictim(t)
	return w
}

// cgroup is a folder of a control group tree in which root can make folders.
func cgroup() string {
	if _, err := os.Stat("/sys/fs/cgroup/unified"); err == nil {
		return "/sys/fs/cgroup/unified"
	}
	return "/sys/fs/cgroup"
}

// fill makes a place and what it holds.
func fill(dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "rmdir"), 0o755); err != nil {
		return err
	}
	for _, name := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(original), 0o644); err != nil {
			return err
		}
	}
	return os.Symlink("file", filepath.Join(dir, "link"))
}

func (w *world) path(elem ...string) string {
	return filepath.Join(append([]string{w.dir}, elem...)...)
}

func (w *world) write(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(original), 0o644); err != nil {
		t.Fatal(err)
	}
}

// own gives all that is in the world to its user.
func (w *world) own(t *testing.T) {
	t.Helper()
	if w.uid == os.Getuid() {
		return
	}
	for _, root := range []string{w.dir, w.plan.Places["slash_tmp"]} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, w.uid, w.uid))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// command is argv as the world's user, with an environment of its own.
func (w *world) command(ctx context.Context, argv, env []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = w.path("home")
	cmd.Env = append([]string{"HOME=" + w.path("home"), "TERM=dumb", "LANG=C.UTF-8", "NIGHTPORTER_HOME=" + w.path("home")}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if w.uid != os.Getuid() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(w.uid), Gid: uint32(w.uid)}
	}
	return cmd
}

func (w *world) startVictim(t *testing.T) {
	t.Helper()
	w.victim = w.command(context.Background(), []string{w.tools.probe, "victim"}, []string{"VICTIM_SECRET=made-up"})
	stdin, err := w.victim.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := w.victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.victim.Stderr = os.Stderr
	w.victim.SysProcAttr.Setpgid = true // a signal to its group is one to it alone
	if err := w.victim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.victim.Process.Kill()
		_ = w.victim.Wait()
	})
	w.stdin, w.said = stdin, bufio.NewReader(stdout)
	line, err := w.said.ReadString('\n')
	if err != nil {
		t.Fatalf("the victim did not start: %v", err)
	}
	w.plan.Victim = w.victim.Process.Pid
	if w.plan.Address, err = strconv.ParseUint(strings.TrimSpace(line), 10, 64); err != nil {
		t.Fatal(err)
	}
}

// harm ends the victim and adds what was done to it.
func (w *world) harm(t *testing.T, done map[string]bool) {
	t.Helper()
	_ = w.stdin.Close()
	text, err := w.said.ReadString('\n')
	if err != nil {
		t.Errorf("the victim was killed: %v", err)
		return
	}
	count, err := w.said.ReadString('\n')
	if err != nil {
		t.Error(err)
	}
	done["write mem of outside"] = strings.TrimSpace(text) != untouched
	if strings.TrimSpace(count) != "0" { // that none came yet says nothing
		done["signal USR1 to outside"] = true
	}
}

// untouched is what the victim holds in its memory.
const untouched = "nothing has touched these bytes"

// ended is how a sandboxed command ended.
type ended struct {
	code   int
	probes map[string]string // nil when the probe did not run
	stderr string
}

// run puts the probe under a state.
func (w *world) run(t *testing.T, how implementation, s state) ended {
	t.Helper()
	text, err := json.Marshal(w.plan)
	if err != nil {
		t.Fatal(err)
	}
	end, stdout := w.exec(t, how, s, w.tools.probe, "all", string(text))
	if stdout != "" {
		if err := json.Unmarshal([]byte(stdout), &end.probes); err != nil {
			t.Errorf("%s: the probe printed %q: %v", how.name, stdout, err)
		}
	}
	return end
}

// exec runs a command under a state and returns how it ended and what it printed.
func (w *world) exec(t *testing.T, how implementation, s state, argv ...string) (ended, string) {
	t.Helper()
	return w.execWith(t, how, s, nil, argv...)
}

// execWith is exec with a command that change has changed before it starts.
func (w *world) execWith(t *testing.T, how implementation, s state, change func(*testing.T, *world, *exec.Cmd), argv ...string) (ended, string) {
	t.Helper()
	prefix, env := how.command(t, w.tools, w.uid)
	if s.tmpdir != "" {
		env = append(env, "TMPDIR="+w.fillIn(s.tmpdir))
	}
	if len(prefix) > 0 {
		prefix = append(prefix, "--sandbox-state-json", w.fillIn(s.json))
		for _, flag := range s.flags {
			prefix = append(prefix, w.fillIn(flag))
		}
		prefix = append(prefix, "--")
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	cmd := w.command(ctx, append(prefix, argv...), env)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if change != nil {
		change(t, w, cmd)
	}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		t.Errorf("%s has not ended within %v: %s", how.name, wait, stderr.String())
	case err != nil && !errors.As(err, &exit):
		t.Errorf("%s: %v", how.name, err)
	}
	code := cmd.ProcessState.ExitCode()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		code = 128 + int(status.Signal()) // what a shell makes of it: the program became the command
	}
	return ended{code: code, stderr: stderr.String()}, stdout.String()
}

// fillIn puts the world's folders into a template.
func (w *world) fillIn(text string) string {
	return strings.NewReplacer("{W}", w.dir, "{T}", w.tools.dir, "{SLASHTMP}", w.plan.Places["slash_tmp"]).Replace(text)
}

// changed tells what a probe would have changed outside, by the probe's name: it was tried for
// nothing where false, and done where true. What is not here leaves no trace.
func (w *world) changed() map[string]bool {
	done := map[string]bool{}
	exists := func(path string) bool {
		_, err := os.Lstat(path)
		return err == nil
	}
	differs := func(path string) bool {
		text, err := os.ReadFile(path)
		return err != nil || string(text) != original
	}
	for place, dir := range w.plan.Places {
		for op, name := range map[string]string{"create": "new", "mkdir": "mkdir", "symlink": "symlink", "mkfifo": "mkfifo", "hardlink": "hardlink", "rename": "renamed"} {
			done[op+" "+place] = exists(filepath.Join(dir, name))
		}
		for _, op := range []string{"delete", "rmdir"} {
			done[op+" "+place] = exists(dir) && !exists(filepath.Join(dir, op))
		}
		for _, op := range []string{"append", "truncate", "open-truncate"} {
			done[op+" "+place] = exists(dir) && differs(filepath.Join(dir, op))
		}
		info, err := os.Stat(filepath.Join(dir, "chmod"))
		done["chmod "+place] = err == nil && info.Mode().Perm() == 0o640
		info, err = os.Stat(filepath.Join(dir, "utimes"))
		done["utimes "+place] = err == nil && info.ModTime().Unix() == 0
		_, err = unix.Getxattr(filepath.Join(dir, "setxattr"), "user.np", make([]byte, 8))
		done["setxattr "+place] = err == nil
	}
	for _, move := range w.plan.Moves {
		to := w.plan.Places[move[1]]
		done["rename "+move[0]+" to "+move[1]] = exists(filepath.Join(to, "moved "+moveFile(move)))
		done["hardlink "+move[0]+" to "+move[1]] = exists(filepath.Join(to, "linked "+moveFile(move)))
	}
	for name, link := range w.plan.Links {
		done["append through "+name] = differs(link)
	}
	for name, dir := range w.plan.Make {
		done["make "+name] = exists(filepath.Join(dir, "new"))
	}
	done["create /dev/shm"] = exists(w.plan.Shm)
	done["mkdir cgroup"] = exists(w.plan.Cgroup)
	if _, came := w.tools.tokens.Load(w.plan.Token); came { // that it did not come yet says nothing
		done["udp send"] = true
	}
	return done
}
