//go:build linux

package sandbox

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"nightporter/test/programs"
)

// tools is what all worlds of this process share: a folder that holds nothing but
// programs, which a state may make readable, and the listeners outside.
type tools struct {
	base   string // holds everything
	dir    string // holds the programs
	probe  string
	ours   string
	worlds atomic.Int64 // how many were made
	tcp    net.Listener
	udp    net.PacketConn
	tokens sync.Map // what arrived at udp

	codexOnce sync.Once
	codexErr  error
}

var shared = sync.OnceValues(func() (*tools, error) {
	// Not below /tmp: a world would be writable there wherever slash_tmp is, and Codex makes
	// no alias of its helper (facts/codex-runtime.md section 6, the trap).
	base, err := os.MkdirTemp("/var/tmp", "npsb-")
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(base, "tools")
	k := &tools{base: base, dir: dir, probe: filepath.Join(dir, "probe"), ours: filepath.Join(dir, "nightporter")}
	for _, name := range []string{base, dir, k.path("with-bwrap"), k.path("without-bwrap"), filepath.Join(base, "w")} {
		if err := errors.Join(os.MkdirAll(name, 0o755), os.Chmod(name, 0o755)); err != nil {
			return nil, err
		}
	}
	if bwrap, err := exec.LookPath("bwrap"); err == nil {
		if err := os.Symlink(bwrap, k.path("with-bwrap", "bwrap")); err != nil {
			return nil, err
		}
	}
	for path, pkg := range map[string]string{k.probe: "nightporter/test/sandbox/probe", k.ours: "nightporter/cmd/nightporter"} {
		cmd := exec.Command("go", "build", "-buildvcs=false", "-o", path, pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
	}
	if k.tcp, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	go accept(k.tcp)
	if k.udp, err = net.ListenPacket("udp4", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	go func() {
		buffer := make([]byte, 256)
		for {
			n, _, err := k.udp.ReadFrom(buffer)
			if err != nil {
				return
			}
			k.tokens.Store(string(buffer[:n]), true)
		}
	}()
	return k, nil
})

// accept takes connections until the listener is closed.
func accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_ = conn.Close()
	}
}

func TestMain(m *testing.M) {
	code := m.Run()
	if k, err := shared(); err == nil {
		_ = k.tcp.Close()
		_ = k.udp.Close()
		_ = os.RemoveAll(k.base)
	}
	for _, name := range []string{".git", ".agents", ".codex", ".aws"} {
		// Executors that tests kill leave these, empty. A /tmp/.git makes a project of every folder in /tmp for agents.
		_ = os.Remove(filepath.Join("/tmp", name))
	}
	os.Exit(code)
}

func toolsOf(t *testing.T) *tools {
	t.Helper()
	k, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *tools) path(elem ...string) string {
	return filepath.Join(append([]string{k.dir}, elem...)...)
}

func (k *tools) tcpPort() int { return k.tcp.Addr().(*net.TCPAddr).Port }
func (k *tools) udpPort() int { return k.udp.LocalAddr().(*net.UDPAddr).Port }

// codex is the real Codex, in the folder of the tools: its helper must be readable
// in every state, and by every user.
func (k *tools) codex(t *testing.T) string {
	t.Helper()
	source := filepath.Dir(filepath.Dir(programs.Codex(t)))
	k.codexOnce.Do(func() {
		for _, name := range []string{"bin/codex", "codex-resources/bwrap", "codex-package.json"} {
			k.codexErr = errors.Join(k.codexErr, linkOrCopy(filepath.Join(source, name), k.path("codex", name)))
		}
		// Where Codex cannot make an alias of its helper, it looks for it on PATH.
		k.codexErr = errors.Join(k.codexErr, os.Symlink("codex", k.path("codex", "bin", "codex-linux-sandbox")))
	})
	if k.codexErr != nil {
		t.Fatal(k.codexErr)
	}
	return k.path("codex", "bin", "codex")
}

func linkOrCopy(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if os.Link(from, to) == nil {
		return nil
	}
	return copyFile(from, to)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// implementation is a program that enforces states.
type implementation struct {
	name string
	// command is the argv up to the flags, and what of the environment is the implementation's own.
	command func(t *testing.T, k *tools, uid int) (argv, env []string)
}

var (
	reference = implementation{"codex", func(t *testing.T, k *tools, uid int) ([]string, []string) {
		program := k.codex(t)
		home := k.path("codex-home-" + strconv.Itoa(uid))
		if err := errors.Join(os.MkdirAll(home, 0o755), os.Chown(home, uid, uid)); err != nil {
			t.Fatal(err)
		}
		return []string{program, "sandbox"}, []string{"CODEX_HOME=" + home, "PATH=" + filepath.Dir(program) + ":/usr/bin:/bin"}
	}}
	// noSandbox runs the command as it is.
	noSandbox  = implementation{"no sandbox", func(*testing.T, *tools, int) ([]string, []string) { return nil, []string{"PATH=/usr/bin:/bin"} }}
	bubblewrap = mechanism("bubblewrap", "with-bwrap")
	namespaces = mechanism("namespaces", "without-bwrap")
	landlock   = mechanism("landlock", "without-bwrap")

	// mechanisms are ours.
	mechanisms = []implementation{bubblewrap, namespaces, landlock}
)

// mechanism is ours, with one mechanism and no other. path is the folder of tools that is PATH.
func mechanism(name, path string) implementation {
	return implementation{name, func(t *testing.T, k *tools, _ int) ([]string, []string) {
		if name == "bubblewrap" {
			programs.Find(t, "bwrap")
		}
		return []string{k.ours, "sandbox", "--mechanism", name}, []string{"PATH=" + k.path(path)}
	}}
}
