package authority

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"nightporter/internal/proc"
)

const (
	// probeTime bounds one probe. Codex answers in 20 ms; a machine that is busy and a program that is read from a cold disk take
	// longer.
	probeTime = 10 * time.Second
	// probeOutput bounds what is read of one. Codex's help is 3 KiB.
	probeOutput = 64 << 10
	// maxProbed bounds the programs that are remembered, and maxProbes the probes at a time: clients name the programs.
	maxProbed, maxProbes = 64, 4
	// probeAgain is when a program that could not be asked, for reasons that may pass, is asked again.
	probeAgain = time.Minute
)

// stateFlag is the capability that is asked for.
const stateFlag = "--sandbox-state-json"

// Verifier finds out whether programs can be launchers, and remembers it for as long as their files stay the same (A29). It is safe
// for concurrent use.
type Verifier struct {
	ctx    context.Context // probes run under it, not under the calls that wait for them
	cancel context.CancelFunc
	slots  chan struct{}
	work   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	known  map[string]*probe
}

// probe is one question to a program.
type probe struct {
	file  fs.FileInfo   // when it was asked
	done  chan struct{} // closed when what follows is known
	err   error
	stale time.Time // when it is to be asked again; zero: when the file has changed
}

// NewVerifier makes a Verifier. The caller closes it.
func NewVerifier() *Verifier {
	ctx, cancel := context.WithCancel(context.Background())
	return &Verifier{ctx: ctx, cancel: cancel, slots: make(chan struct{}, maxProbes), known: map[string]*probe{}}
}

// Close ends the probes that run, and waits for them.
func (v *Verifier) Close() {
	v.mu.Lock()
	v.closed = true
	v.mu.Unlock()
	v.cancel()
	v.work.Wait()
}

// Verify returns nil when the file at path is a program that runs commands under a sandbox state, which it was asked by
// `PATH sandbox --sandbox-state-json {} --help`: once, until the file changes. Calls that come together wait for
// one answer, each no longer than its ctx. The error says why the program must not be handed to anybody.
func (v *Verifier) Verify(ctx context.Context, path string) error {
	file, err := suitable(path)
	if err != nil {
		return err
	}
	p, err := v.probe(path, file)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Still reports whether the last answer about the file at path was that it is a launcher, and it is the same file by now. It
// does not wait.
func (v *Verifier) Still(path string) bool {
	file, err := suitable(path)
	if err != nil {
		return false
	}
	v.mu.Lock()
	p := v.known[path]
	v.mu.Unlock()
	if p == nil || !unchanged(p.file, file) {
		return false
	}
	select {
	case <-p.done:
		return p.err == nil
	default:
		return false
	}
}

// suitable says what can be said of a launcher without running it.
func suitable(path string) (fs.FileInfo, error) {
	switch {
	case !utf8.ValidString(path) || strings.ContainsRune(path, utf8.RuneError):
		return nil, errors.New("the launcher's path is not UTF-8")
	case strings.ContainsRune(path, 0), !filepath.IsAbs(path):
		return nil, errors.New("the launcher's path is not absolute")
	}
	file, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the launcher cannot be looked at: %w", err)
	case !file.Mode().IsRegular():
		return nil, fmt.Errorf("the launcher %s is no file", path)
	case runtime.GOOS != "windows" && file.Mode().Perm()&0o111 == 0:
		return nil, fmt.Errorf("the launcher %s cannot be executed", path)
	case file.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0:
		return nil, fmt.Errorf("the launcher %s runs as another user", path)
	}
	return file, nil
}

// unchanged reports whether two looks at a path found the same file (device, inode) with the same content, as far as that can be
// told without reading it.
func unchanged(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && a.Mode() == b.Mode()
}

// probe returns the question to the program as it is now, asking it when nobody has.
func (v *Verifier) probe(path string, file fs.FileInfo) (*probe, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return nil, errors.New("no launcher is verified any more")
	}
	if p := v.known[path]; p != nil && unchanged(p.file, file) && (p.stale.IsZero() || time.Now().Before(p.stale)) {
		return p, nil
	}
	if len(v.known) >= maxProbed {
		for _, other := range slices.Collect(maps.Keys(v.known))[:maxProbed/2] {
			delete(v.known, other) // who waits for it has it
		}
	}
	p := &probe{file: file, done: make(chan struct{})}
	v.known[path] = p
	v.work.Go(func() {
		passing, err := v.ask(path, file)
		v.mu.Lock()
		if p.err = err; passing {
			p.stale = time.Now().Add(probeAgain)
		}
		v.mu.Unlock()
		close(p.done)
	})
	return p, nil
}

// ask runs the probe. passing says that the answer may be another one the next time, though the file is the same.
func (v *Verifier) ask(path string, file fs.FileInfo) (passing bool, err error) {
	select {
	case v.slots <- struct{}{}:
		defer func() { <-v.slots }()
	case <-v.ctx.Done():
		return true, v.ctx.Err()
	}
	answer, asked := proc.Ask(v.ctx, proc.Question{
		Program: path, Args: []string{"sandbox", stateFlag, "{}", "--help"}, Env: probeEnv(), Dir: filepath.Dir(path),
		Limit: probeTime, MaxAnswer: probeOutput,
	})
	exit := (*proc.ExitError)(nil)
	switch {
	case errors.Is(asked, context.DeadlineExceeded):
		return true, fmt.Errorf("the launcher %s did not say within %v what it can do", path, probeTime)
	case asked != nil && !errors.As(asked, &exit):
		return true, fmt.Errorf("the launcher could not be asked what it can do: %w", asked)
	}
	if now, err := os.Stat(path); err != nil || !unchanged(now, file) {
		return true, fmt.Errorf("the launcher %s changed while it was asked what it can do", path)
	}
	switch {
	case exit != nil:
		return false, fmt.Errorf("%s is no launcher: asked by `sandbox %s {} --help`, it ended with %w", path, stateFlag, exit)
	case !bytes.Contains(answer.Output, []byte(stateFlag)):
		return false, fmt.Errorf("%s is no launcher: its help for `sandbox` does not name %s", path, stateFlag)
	}
	return false, nil
}

// probeEnv is the environment of a probe: it needs none. Without a home Codex would look the user's up, and write to it.
func probeEnv() []string {
	env := []string{"HOME=" + filepath.Join(os.TempDir(), "nightporter-no-home")}
	for _, name := range []string{"PATH", "SYSTEMROOT"} {
		if value, ok := os.LookupEnv(name); ok && (name != "PATH" || runtime.GOOS == "windows") {
			env = append(env, name+"="+value)
		}
	}
	if runtime.GOOS != "windows" {
		env = append(env, "PATH=/usr/bin:/bin")
	}
	return env
}
