//go:build linux && (amd64 || arm64)

package sandbox

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nightporter/test/programs"
)

// terminal is a pseudo-terminal with a shell that controls jobs.
type terminal struct {
	testing.TB
	master *os.File
	seen   bytes.Buffer
}

func newTerminal(w *world) *terminal {
	bash := programs.Find(w.TB, "bash")
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	w.must(err)
	master := os.NewFile(uintptr(fd), "ptmx")
	w.must(unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	w.must(err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	w.must(err)
	cmd := exec.Command(bash, "--norc", "--noprofile", "-i")
	cmd.Env = []string{"PATH=/usr/bin:/bin", "PS1=> ", "HOME=" + w.dir, "TERM=dumb", "LC_ALL=C"}
	cmd.Dir = w.dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	w.must(cmd.Start())
	slave.Close()
	w.Cleanup(func() {
		master.Close() // hangs up
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &terminal{TB: w.TB, master: master}
}

func (c *terminal) types(text string) {
	c.Helper()
	if _, err := c.master.WriteString(text); err != nil {
		c.Fatal(err)
	}
}

// shows waits until the terminal has shown a text, and forgets what came before.
func (c *terminal) shows(text string) {
	c.Helper()
	b := make([]byte, 4096)
	_ = c.master.SetReadDeadline(time.Now().Add(90 * time.Second))
	for {
		if i := strings.Index(c.seen.String(), text); i >= 0 {
			c.seen.Next(i + len(text))
			return
		}
		n, err := c.master.Read(b)
		c.seen.Write(b[:n])
		if err != nil {
			c.Fatalf("waiting for %q: %v; the terminal shows:\n%s", text, err, c.seen.String())
		}
	}
}

// jobVariable makes this test binary a job that tells of its lines and signals. A shell as the job will not do: it acts on a signal that it
// gets just before it waits for a line only after that line.
const jobVariable = "NIGHTPORTER_TEST_JOB"

// job returns its exit code.
func job() int {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGCONT)
	lines := make(chan string)
	go func() {
		defer close(lines)
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			lines <- in.Text()
		}
	}()
	fmt.Println("job: ready")
	for {
		select {
		case s := <-signals:
			fmt.Println("job:", s)
		case line, ok := <-lines:
			if !ok || line == "bye" {
				return 9
			}
			fmt.Println("job:", line)
		}
	}
}

func TestJobControlOnATerminal(t *testing.T) {
	for _, m := range usable(t) {
		t.Run(string(m), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, os.Geteuid())
			raw, err := json.Marshal(Options{State: ReadOnly(w.dir, Restricted), Argv: []string{executorProgram}, Env: []string{jobVariable + "=1"}, Mechanism: m})
			w.must(err)
			starter := filepath.Join(w.dir, "start")
			w.must(os.WriteFile(starter, []byte("#!/bin/sh\n"+executorVariable+"='"+strings.ReplaceAll(string(raw), "'", `'\''`)+"' exec "+executorProgram+"\n"), 0o755))

			c := newTerminal(w)
			c.types("bash ./start\n")
			c.shows("job: ready")
			c.types("hello\n")
			c.shows("job: hello") // it reads the terminal: it has the foreground
			c.types("\x03")
			c.shows("job: interrupt")
			c.types("again\n")
			c.shows("job: again")
			c.types("\x1a")
			c.shows("Stopped")
			c.types("echo shell-\"alive\"\n")
			c.shows("shell-alive")
			c.types("fg\n")
			c.shows("job: continued")
			c.types("back\n")
			c.shows("job: back")
			c.types("bye\n")
			c.shows("> ") // the job would read what is typed before it has ended
			c.types("echo code-$?-\n")
			c.shows("code-9-") // and the shell has its terminal back
		})
	}
}
