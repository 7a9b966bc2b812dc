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
	"syscall"

	"golang.org/x/sys/unix"
)

// namespaces are those that keep a command to itself.
func namespaces(offline bool) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{
		Pdeathsig:  unix.SIGKILL,
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC,
		// Root, because nobody else may mount a devpts; the command gets its own user back, in a namespace inside.
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	if offline {
		attr.Cloneflags |= unix.CLONE_NEWNET
	}
	return attr
}

// probeNamespaces finds out whether this user may make namespaces and mount in them.
func probeNamespaces(program *os.File) error {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{"nightporter-sandbox"}
	cmd.Env = stageEnv(stageMounts)
	cmd.SysProcAttr = namespaces(true)
	out := new(bytes.Buffer)
	cmd.Stderr = out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("this user may not make namespaces: %w %s", err, strings.TrimSpace(out.String()))
	}
	return nil
}

// build makes the file system of a plan and enters it. It runs in a user and mount namespace of its own.
//
// The new root is put together at /proc, which every host has and every plan replaces.
func build(steps []step) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("keep mounts to this namespace: %w", err)
	}
	// The sources first: of the host's file system as it is.
	sources := map[int]int{}
	for i, s := range steps {
		switch s.Do {
		case bindWrite, bindRead:
			fd, err := clone(s.Path, s.Do)
			if err != nil {
				return fmt.Errorf("take %s into the sandbox: %w", s.Path, err)
			}
			sources[i] = fd
		case closedOne:
			// A device on a mount that allows none: it cannot be opened.
			fd, err := clone(os.DevNull, bindRead)
			if err != nil {
				return fmt.Errorf("take %s into the sandbox: %w", os.DevNull, err)
			}
			sources[i] = fd
		}
	}
	const at = "/proc"
	for i, s := range steps {
		if err := s.mount(at, sources[i]); err != nil {
			return fmt.Errorf("build the sandbox's file system: %s at %s: %w", s.Do, s.Path, err)
		}
	}
	if err := unix.Chdir(at); err != nil {
		return err
	}
	// The old root goes on top of the new one, and away.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("enter the sandbox's file system: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the host's file system: %w", err)
	}
	return unix.Chdir("/")
}

// clone is a copy of the mounts at a path, with everything below, attached nowhere.
func clone(path string, do mountKind) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return 0, err
	}
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if do == bindRead {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
		unix.Close(fd)
		return 0, err
	}
	return fd, nil
}

// mount does one step below a folder that becomes the root.
func (s step) mount(root string, source int) error {
	at := filepath.Join(root, s.Path)
	if s.Do == seal {
		return unix.MountSetattr(unix.AT_FDCWD, at, unix.AT_SYMLINK_NOFOLLOW, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	}
	if s.Do == symlink {
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		return os.Symlink(s.To, at)
	}
	if err := makePlace(root, s.Path, source); err != nil {
		return err
	}
	switch s.Do {
	case bindWrite, bindRead, closedOne:
		defer unix.Close(source)
		return unix.MoveMount(source, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
	case emptyRoot:
		return tmpfs(at, 0o755)
	case empty:
		return tmpfs(at, 0o555)
	case closed:
		return tmpfs(at, 0)
	case passage:
		return tmpfs(at, 0o111)
	case devices:
		return makeDevices(at)
	case processes:
		return makeProc(at)
	default:
		return errors.New("unknown step")
	}
}

func tmpfs(at string, mode int) error {
	return unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("mode=%04o,size=64m", mode))
}

// makePlace makes what is to be mounted on, where it is not there: in an empty root, or in a closed folder.
func makePlace(root, path string, source int) error {
	at := filepath.Join(root, path)
	if _, err := os.Lstat(at); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	var st unix.Stat_t
	if source > 0 && unix.Fstat(source, &st) == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		f, err := os.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		return f.Close()
	}
	return os.Mkdir(at, 0o755)
}

// makeDevices makes a /dev with what programs need and no hardware.
func makeDevices(at string) error {
	if err := tmpfs(at, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		to := filepath.Join(at, name)
		if err := os.WriteFile(to, nil, 0o666); err != nil {
			return err
		}
		if err := unix.Mount("/dev/"+name, to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("/dev/%s: %w", name, err)
		}
	}
	for name, to := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
	} {
		if err := os.Symlink(to, filepath.Join(at, name)); err != nil {
			return err
		}
	}
	if err := os.Mkdir(filepath.Join(at, "shm"), 0o1777); err != nil {
		return err
	}
	pts := filepath.Join(at, "pts")
	if err := os.Mkdir(pts, 0o755); err != nil {
		return err
	}
	return unix.Mount("devpts", pts, "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
}

// makeProc makes a /proc of the command's own processes. What in it belongs to the machine is read-only: root may write it
// without any capability (measured). The rest cannot be, because the command's user is mapped by it.
func makeProc(at string) error {
	if err := unix.Mount("proc", at, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	for _, name := range []string{"sys", "sysrq-trigger", "irq", "bus", "acpi", "scsi", "fs"} {
		of := filepath.Join(at, name)
		if _, err := os.Lstat(of); err != nil {
			continue // not every kernel has all of them
		}
		if err := unix.Mount(of, of, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("/proc/%s: %w", name, err)
		}
		if err := unix.MountSetattr(unix.AT_FDCWD, of, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return fmt.Errorf("/proc/%s: %w", name, err)
		}
	}
	return nil
}
