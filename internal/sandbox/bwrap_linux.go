//go:build linux && (amd64 || arm64)

package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// findBwrap finds a bubblewrap that can be trusted: one that root owns and nobody else can write.
func findBwrap(pathVariable string) (string, error) {
	why := errors.New("bubblewrap is not installed (no bwrap on PATH)")
	for _, dir := range append(filepath.SplitList(pathVariable), "/usr/bin", "/bin", "/usr/local/bin") {
		if !filepath.IsAbs(dir) {
			continue
		}
		at, err := exec.LookPath(filepath.Join(dir, "bwrap"))
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if err := unix.Stat(at, &st); err != nil || st.Uid != 0 || st.Mode&0o022 != 0 {
			why = fmt.Errorf("%s is not root's alone", at)
			continue
		}
		return at, nil
	}
	return "", why
}

// bwrapArgs are bubblewrap's arguments for a plan: its namespaces, and the file system step by step.
func bwrapArgs(p Plan) []string {
	args := []string{"--as-pid-1", "--die-with-parent", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--cap-drop", "ALL"}
	if !p.Network {
		args = append(args, "--unshare-net")
	}
	for _, m := range p.mounts() {
		switch m.do {
		case bindWrite:
			args = append(args, "--bind", m.path, m.path)
		case bindRead:
			args = append(args, "--ro-bind", m.path, m.path)
		case emptyRoot:
			args = append(args, "--perms", "0755", "--tmpfs", "/")
		case empty:
			args = append(args, "--perms", "0555", "--tmpfs", m.path)
		case closed:
			args = append(args, "--perms", "0000", "--tmpfs", m.path)
		case passage:
			args = append(args, "--perms", "0111", "--tmpfs", m.path)
		case closedOne:
			// A device on a mount that allows none: it cannot be opened.
			args = append(args, "--ro-bind", os.DevNull, m.path)
		case devices:
			args = append(args, "--dev", m.path)
		case processes:
			// Read-only: /proc/sys belongs to the machine, and root may write it without any capability (measured).
			args = append(args, "--proc", m.path, "--remount-ro", m.path)
		case symlink:
			args = append(args, "--symlink", m.to, m.path)
		case seal:
			args = append(args, "--remount-ro", m.path)
		}
	}
	return args
}

// probeBwrap finds out whether bubblewrap works here: it may be there while namespaces are forbidden.
func probeBwrap(at string, program *os.File) error {
	cmd := exec.Command(at, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-net", "--die-with-parent",
		"--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--cap-drop", "ALL", "--", "/proc/self/fd/3")
	cmd.Env = stageEnv(stageProbe)
	cmd.ExtraFiles = []*os.File{program}
	out := new(bytes.Buffer)
	cmd.Stderr = out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s does not work here: %w: %s", at, err, strings.TrimSpace(out.String()))
	}
	return nil
}
