package faults

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"nightporter/test/programs"
)

// machineOf is a fault of the machine or of files, made by spoil after a catalog was saved and before a call.
func machineOf(fault, told, then string, spoil func(w *world) (before []string)) scenario {
	return scenario{"machine", fault, told, then, func(t *testing.T) outcome {
		w := newWorld(t, server(""))
		if code, _, stderr := w.run("tools", "list"); code != 0 {
			t.Fatal(stderr)
		}
		before := spoil(w)
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		cmd := w.command(ctx, before, "tools", "call", "s", "do")
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run() // its exit code is looked at
		if ctx.Err() != nil {
			return outcome{told: "hangs", left: w.left()}
		}
		o := outcome{told: firstSaid(stderr.String()), then: works, left: w.left()}
		if stdout.String() != "done\n" {
			o.then = fmt.Sprintf("exit code %d", cmd.ProcessState.ExitCode())
		}
		return o
	}}
}

// each writes text into every file of Nightporter's that matches.
func (w *world) each(pattern, text string) {
	w.t.Helper()
	found, err := filepath.Glob(w.path("np", pattern))
	if err != nil || len(found) == 0 {
		w.t.Fatalf("no %s: %v", pattern, err)
	}
	for _, path := range found {
		w.write(path, text)
	}
}

// inShell runs what follows behind a line of sh.
func inShell(line string) []string { return []string{"sh", "-c", line + `; exec "$@"`, "sh"} }

const notRecorded = "nightporter: warning: the audit record is not complete: 1 calls are missing in the audit record …: "

var machineScenarios = []scenario{
	machineOf("has a damaged catalog", "", works, func(w *world) []string { w.each("cache/catalogs/*/*.catalog", "{half"); return nil }),
	machineOf("has an empty catalog", "", works, func(w *world) []string { w.each("cache/catalogs/*/*.catalog", ""); return nil }),
	machineOf("has a damaged audit record", `level=WARN msg="the audit record was damaged; a new one is begun" …`, works, func(w *world) []string {
		w.write(w.path("np", "state", "audit.db"), strings.Repeat("this is no database. ", 1000))
		return nil
	}),
	machineOf("has a configuration that cannot be parsed", "nightporter: …config.toml:…", exit2, func(w *world) []string {
		w.config("[mcp_servers.s\ncommand = 1")
		return nil
	}),
	machineOf("has a configuration with one bad entry", "nightporter: warning: …unknown key, not used…", works, func(w *world) []string {
		w.config(server("") + "[mcp_servers.t]\ncomand = \"x\"\n")
		return nil
	}),
	machineOf("has no room on the disk for state", notRecorded+"…database or disk is full (13)", works, fullDisk),
	machineOf("has a read-only home", notRecorded+"…", works, readOnly),
	machineOf("gives no file a byte (ulimit -f 0)", notRecorded+"…disk I/O error…", works, func(*world) []string { return inShell("trap '' XFSZ; ulimit -f 0") }),
	machineOf("has 12 file descriptors (ulimit -n 12)", `nightporter: server "s": start failed after …: too many open files`, exit1, func(*world) []string { return inShell("ulimit -n 12") }),
	machineOf("has a state folder that is a file", notRecorded+"open the audit record: …: not a directory", works, func(w *world) []string {
		if err := os.RemoveAll(w.path("np", "state")); err != nil {
			w.t.Fatal(err)
		}
		w.write(w.path("np", "state"), "x")
		return nil
	}),
	machineOf("has no temporary folder", "", works, func(w *world) []string {
		if err := os.RemoveAll(w.path("tmp")); err != nil {
			w.t.Fatal(err)
		}
		return nil
	}),
}

// mounted runs what follows in a mount namespace of its own after a line of sh.
func mounted(w *world, line string) []string {
	w.t.Helper()
	unshare := programs.Find(w.t, "unshare")
	if out, err := exec.Command(unshare, "--mount", "--map-root-user", "true").CombinedOutput(); err != nil {
		programs.Skip(w.t, fmt.Sprintf("no mount namespace: %v %s", err, out))
	}
	return append([]string{unshare, "--mount", "--map-root-user"}, inShell(line)...)
}

func fullDisk(w *world) []string {
	state := w.path("np", "state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		w.t.Fatal(err)
	}
	return mounted(w, fmt.Sprintf("mount -t tmpfs -o size=4k,mode=700 none %[1]s && head -c 4096 /dev/zero >%[1]s/full", state))
}

func readOnly(w *world) []string {
	return mounted(w, fmt.Sprintf("mount --bind %[1]s %[1]s && mount -o remount,bind,ro %[1]s", w.path("np")))
}

// signalled starts nightporter mcp, has a call in progress, and sends it a signal.
func signalled(s syscall.Signal, then string) func(t *testing.T) outcome {
	return func(t *testing.T) outcome {
		w := newWorld(t, server("never", "tool_timeout_sec = 300"))
		c := w.session()
		c.send(`{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"s__do","arguments":{"fault":true}}}`)
		if !w.until(func() bool { return strings.Contains(fmt.Sprint(w.processes()), "server never") }) {
			t.Fatal("the server does not start")
		}
		if err := c.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		if then == goesOn {
			o := outcome{then: "the session goes on"}
			if said := c.ask("ping", "{}"); said != "{}" {
				o.then = said
			}
			c.close()
			o.left = w.left()
			return o
		}
		c.wait()
		o := outcome{left: w.left(), then: fmt.Sprintf("exit code %d", c.cmd.ProcessState.ExitCode())}
		if status, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			o.then = "it is gone"
		}
		return o
	}
}

// many runs commands at the same time and tells how many ended well.
func (w *world) many(n int, args func(i int) []string) (ok int) {
	var group sync.WaitGroup
	var mu sync.Mutex
	for i := range n {
		group.Go(func() {
			code, _, stderr := w.run(args(i)...)
			mu.Lock()
			defer mu.Unlock()
			if code == 0 {
				ok++
			} else {
				w.t.Log(stderr)
			}
		})
	}
	group.Wait()
	return ok
}

var nightporterScenarios = []scenario{
	{"Nightporter", "is killed in a call (SIGKILL)", "", "it is gone", signalled(syscall.SIGKILL, "")},
	{"Nightporter", "gets TERM in a call", "", "exit code 0", signalled(syscall.SIGTERM, "")},
	{"Nightporter", "gets INT in a call", "", "exit code 0", signalled(syscall.SIGINT, "")},
	{"Nightporter", "gets HUP in a call", "", "the session goes on", signalled(syscall.SIGHUP, goesOn)},
	{"Nightporter", "is killed in a run (SIGKILL)", "", "it is gone", func(t *testing.T) outcome {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, server("")+fmt.Sprintf("[agents.x]\nexec = [%q, \"agent\", \"ignores all\"]\n", self))
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		cmd := w.command(ctx, nil, "run", "--agent", "x", "--unproven", "--server", "s", "hello")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if !w.until(func() bool { return strings.Contains(fmt.Sprint(w.processes()), "agent ignores all") }) {
			t.Fatal("the agent does not start")
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return outcome{then: "it is gone", left: w.left()}
	}},
	{"Nightporter", "is there ten times, with no catalog saved", "", "all ten calls work", func(t *testing.T) outcome {
		w := newWorld(t, server("slow start"))
		n := w.many(10, func(int) []string { return []string{"tools", "call", "s", "do"} })
		o := outcome{then: fmt.Sprintf("%d calls work", n)}
		if n == 10 {
			o.then = "all ten calls work"
		}
		o.left = w.left()
		return o
	}},
	{"Nightporter", "edits one configuration ten times at once", "", "all ten servers are there", func(t *testing.T) outcome {
		w := newWorld(t, "# mine\n")
		n := w.many(10, func(i int) []string { return []string{"servers", "add", fmt.Sprint("s", i), "--", "true"} })
		text, err := os.ReadFile(w.path("np", "config.toml"))
		if err != nil {
			t.Fatal(err)
		}
		there := strings.Count(string(text), "[mcp_servers.s")
		o := outcome{then: fmt.Sprintf("%d were added, %d are there", n, there), left: w.left()}
		if n == 10 && there == 10 && strings.HasPrefix(string(text), "# mine\n") {
			o.then = "all ten servers are there"
		}
		return o
	}},
	{"Nightporter", "is to serve an address that is taken", "nightporter: cannot listen on …: bind: address already in use", exit2, func(t *testing.T) outcome {
		w := newWorld(t, server(""))
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return w.ends("gateway", "--listen", l.Addr().String())
	}},
	{"Nightporter", "writes to a full disk", "nightporter: …no space left on device", exit1, func(t *testing.T) outcome {
		w := newWorld(t, server(""))
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		cmd := w.command(ctx, []string{"sh", "-c", `exec "$@" >/dev/full`, "sh"}, "tools", "list")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		_ = cmd.Run() // its exit code is looked at
		return outcome{told: firstSaid(stderr.String()), then: fmt.Sprintf("exit code %d", cmd.ProcessState.ExitCode()), left: w.left()}
	}},
}
