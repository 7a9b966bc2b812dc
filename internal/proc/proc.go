// Package proc starts a program and owns the whole tree of processes that grows from it.
//
// Nothing of a tree outlives its owner: not on a normal stop, not when the program dies, not when
// this process is ended by SIGKILL, and not when processes of the tree moved into sessions or
// groups of their own. Real agents do all of that: their tools run in own sessions, their
// servers in own groups, and both survive a SIGKILL of the agent.
//
// # Linux
//
// A small guard process stands between this process and the program. It is this same executable,
// started again (see guard_unix.go). It hands its standard streams to the program and copies nothing; it is
// the tree's subreaper, so that every orphan of the tree becomes its child, wherever it moved;
// and it ends the tree when its socket to this process closes, for whatever reason. What is promised:
//
//   - this process ends, also by SIGKILL: the guard ends the tree, whole
//   - the program ends: the guard ends the rest of the tree, whole
//   - the guard is ended by SIGKILL: the program dies with it, and this process ends what
//     carries the tree's mark ([TreeVariable]) in its environment or stayed in the tree's
//     session. A descendant that did away with both is not found.
//   - both are ended by SIGKILL in the same instant: the program dies. Its descendants see
//     their pipes close and no more; nobody is left who could end them.
//
// A guard costs 3.5 ms at the start and 0.9 MB of memory of its own (measured in an
// executable of 11 MB with the MCP SDK and net/http in it; 7.6 MB resident, the rest shared).
//
// A process that changed its user cannot be signalled and is waited for. This process becomes a subreaper too, at the
// first [Start]; orphans of other children then become its children, and are reaped when a tree ends.
//
// # Other systems
//
// On other Unix systems the guard ends the program's process group, which descendants
// can leave. On Windows a job object holds the program and what it starts, and the system ends them with
// this process; a signal to ask with does not exist there. Neither was run, only built.
package proc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// TreeVariable is the environment variable that [Start] adds to the program's environment: the random, not
// secret, name of its tree. It is how lost processes of a tree are recognised.
const TreeVariable = "NIGHTPORTER_TREE"

const (
	// leftoverGrace is what the rest of a tree gets between TERM and KILL once the program or the owner is gone.
	// Nobody is there to use what a longer one would save.
	leftoverGrace = 2 * time.Second
	// killWait is how long Stop waits after KILL. Only a process that hangs in the kernel, or
	// one that changed its user, takes longer.
	killWait = 5 * time.Second
)

// Command says what to start. Nothing is looked up or expanded.
type Command struct {
	Path string   // absolute path of the program; also its argv[0]
	Args []string // the arguments after argv[0]
	Env  []string // the complete environment, KEY=value; only TreeVariable is added
	Dir  string   // absolute path of the working directory; empty means this process's
}

// Exit is how a program ended.
type Exit struct {
	Code   int    // exit status; -1 when ended by a signal
	Signal string // "killed", "terminated", …; empty when it exited
}

func (e Exit) String() string {
	if e.Signal != "" {
		return "ended by signal: " + e.Signal
	}
	return fmt.Sprintf("exit status %d", e.Code)
}

// Grace says how long [Tree.Stop] waits for a program that was asked to end.
type Grace struct {
	Input time.Duration // after its standard input was closed
	Term  time.Duration // after TERM
}

// Stop ends the tree in three steps: it closes the program's standard input, sends TERM to the tree, and sends KILL to
// the tree, and waits after each. It returns as soon as nothing of the tree is left. When ctx ends, the waits that
// are left are skipped, not the steps. The error says that something is left even
// after KILL; it has been signalled and is ended by the guard as soon as it can be.
func (t *Tree) Stop(ctx context.Context, grace Grace) error {
	_ = t.Stdin.Close() // closed before: the program knows
	if t.await(ctx, grace.Input) {
		return nil
	}
	_ = t.Terminate() // an error means that the program has ended
	if t.await(ctx, grace.Term) {
		return nil
	}
	t.Kill()
	if t.await(context.WithoutCancel(ctx), killWait) {
		return nil
	}
	return fmt.Errorf("stop process %d: something of its tree is still there %v after KILL", t.PID(), killWait)
}

// await waits for the program's end, and then for that of the rest, for which
// the guard takes no longer than leftoverGrace. It reports whether nothing is left.
func (t *Tree) await(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	exited := t.Exited()
	for {
		select {
		case <-t.Done():
			return true
		case <-exited:
			exited = nil
			timer.Reset(max(d, leftoverGrace+time.Second))
		case <-ctx.Done():
			return false
		case <-timer.C:
			return false
		}
	}
}

// check finds what can be said in better words before the program is started.
func (c Command) check() error {
	if !filepath.IsAbs(c.Path) {
		return c.failed(errors.New("the program's path is not absolute"))
	}
	if c.Dir != "" {
		if !filepath.IsAbs(c.Dir) {
			return c.failed(errors.New("the working directory's path is not absolute"))
		}
		info, err := os.Stat(c.Dir)
		if err != nil {
			return c.failed(fmt.Errorf("working directory: %w", cause(err)))
		}
		if !info.IsDir() {
			return c.failed(errors.New("the working directory is not a directory"))
		}
	}
	info, err := os.Stat(c.Path)
	if err != nil {
		return c.failed(fmt.Errorf("program: %w", cause(err)))
	}
	if !info.Mode().IsRegular() {
		return c.failed(fmt.Errorf("the program is not a file but %s: %w", kind(info.Mode()), fs.ErrPermission))
	}
	return nil
}

// failed names the program and the directory, and not the arguments and the
// environment, which may hold what is nobody's business.
func (c Command) failed(err error) error {
	if c.Dir == "" {
		return fmt.Errorf("start %s: %w", c.Path, err)
	}
	return fmt.Errorf("start %s in %s: %w", c.Path, c.Dir, err)
}

// cause removes a path that the message names already.
func cause(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}

func kind(m fs.FileMode) string {
	if m.IsDir() {
		return "a directory"
	}
	return "a special file"
}

// marked returns env with the tree's mark in place of any other.
func marked(env []string, tree string) []string {
	out := make([]string, 0, len(env)+1)
	for _, kv := range env {
		if !strings.HasPrefix(kv, TreeVariable+"=") {
			out = append(out, kv)
		}
	}
	return append(out, TreeVariable+"="+tree)
}
