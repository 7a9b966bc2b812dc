package sandbox

import (
	"maps"
	"slices"
	"strings"
)

// mount is one step of building the command's file system. What builds it starts from nothing, and its sources
// are the paths of the host.
type mount struct {
	do   mountKind
	path string
	to   string // of a link
}

type mountKind string

const (
	bindWrite mountKind = "write" // the path, for reading and writing
	bindRead  mountKind = "read"  // the path, for reading
	emptyRoot mountKind = "root"  // an empty folder at /
	empty     mountKind = "empty" // an empty folder
	closed    mountKind = "closed"
	passage   mountKind = "passage" // a closed folder that can be gone through
	closedOne mountKind = "file"    // a file that cannot be opened
	devices   mountKind = "dev"
	processes mountKind = "proc"
	symlink   mountKind = "symlink"
	seal      mountKind = "seal" // what was made at the path is read-only from here on
)

// mounts is a plan's file system. Every path but those of the rules shows what the rules above it say; /dev has the
// devices that programs need, whatever may be written: the kernel's log, its memory and the disks are no files. /proc has the
// command's own processes.
func (p Plan) mounts() []mount {
	var list, seals []mount
	root := p.Rules[0]
	switch root.Access {
	case Write:
		list = append(list, mount{do: bindWrite, path: "/"}, mount{do: devices, path: "/dev"})
	case Read:
		list = append(list, mount{do: bindRead, path: "/"}, mount{do: devices, path: "/dev"})
	default:
		list = append(list, mount{do: emptyRoot, path: "/"}, mount{do: devices, path: "/dev"})
		seals = append(seals, mount{do: seal, path: "/"})
	}
	list = append(list, mount{do: processes, path: "/proc"})
	for _, at := range slices.Sorted(maps.Keys(p.Links)) {
		list = append(list, mount{symlink, at, p.Links[at]})
	}
	for i, r := range p.Rules[1:] {
		switch {
		case r.Missing:
			list = append(list, mount{do: empty, path: r.Path})
			seals = append(seals, mount{do: seal, path: r.Path})
		case r.Access == Write:
			list = append(list, mount{do: bindWrite, path: r.Path})
		case r.Access == Read:
			list = append(list, mount{do: bindRead, path: r.Path})
		case !r.Folder:
			list = append(list, mount{do: closedOne, path: r.Path})
		default:
			kind := closed
			if slices.ContainsFunc(p.Rules[i+2:], func(below Rule) bool { return strings.HasPrefix(below.Path, r.Path+"/") }) {
				kind = passage
			}
			list = append(list, mount{do: kind, path: r.Path})
			seals = append(seals, mount{do: seal, path: r.Path})
		}
	}
	slices.Reverse(seals) // the deepest first
	return append(list, seals...)
}

// made are the paths that have to be there before the rules can be enforced: mounts need something to be mounted on.
func (p Plan) made() []string {
	var made []string
	for _, r := range p.Rules {
		if r.Missing {
			made = append(made, r.Path)
		}
	}
	return made
}
