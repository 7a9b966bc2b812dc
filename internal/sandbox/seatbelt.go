package sandbox

import (
	"fmt"
	"path"
	"strings"
)

// seatbeltBase is what programs need on macOS beside files: their own processes, clocks and user database.
const seatbeltBase = `(version 1)
(deny default)
(allow process-exec)
(allow process-fork)
(allow process-info* (target same-sandbox))
(allow signal (target same-sandbox))
(allow sysctl-read)
(allow ipc-posix-sem)
(allow pseudo-tty)
(allow mach-lookup (global-name "com.apple.system.opendirectoryd.libinfo"))
(allow mach-lookup (global-name "com.apple.system.logger"))
(allow file-ioctl (regex #"^/dev/ttys[0-9]+$") (literal "/dev/ptmx") (literal "/dev/tty"))
`

// seatbeltDevices come last, so that no rule closes them.
const seatbeltDevices = `(allow file-read* file-write* (literal "/dev/null") (literal "/dev/zero") (literal "/dev/tty") (literal "/dev/ptmx") (regex #"^/dev/ttys[0-9]+$"))
(allow file-read* (literal "/dev/random") (literal "/dev/urandom"))
`

const seatbeltNetwork = `(allow network*)
(allow system-socket)
(allow mach-lookup (global-name "com.apple.mDNSResponder") (global-name "com.apple.SystemConfiguration.configd") (global-name "com.apple.trustd.agent") (global-name "com.apple.networkd"))
`

// seatbelt is a plan as a profile for sandbox-exec. Of its rules the last that matches decides, which is the plan's order too.
func seatbelt(p Plan) string {
	var b strings.Builder
	b.WriteString(seatbeltBase)
	seen := map[string]bool{}
	for _, r := range p.Rules {
		where := fmt.Sprintf("(subpath %s)", sbplString(r.Path))
		switch {
		case r.Access == Write:
			fmt.Fprintf(&b, "(allow file-read* file-write* %s)\n", where)
		case r.Access == None:
			fmt.Fprintf(&b, "(deny file-read* file-write* %s)\n", where)
		default:
			fmt.Fprintf(&b, "(allow file-read* %s)\n(deny file-write* %s)\n", where, where)
		}
		if r.Access == None || r.Path == "/" {
			continue
		}
		// The folders above what is open must be passed through, and those of what is kept from being written not be moved away.
		for dir := path.Dir(r.Path); !seen[dir]; dir = path.Dir(dir) {
			seen[dir] = true
			fmt.Fprintf(&b, "(allow file-read-metadata (literal %s))\n", sbplString(dir))
		}
	}
	for _, r := range p.Rules {
		if r.Access == Write || r.Path == "/" {
			continue
		}
		for dir := path.Dir(r.Path); dir != "/"; dir = path.Dir(dir) {
			fmt.Fprintf(&b, "(deny file-write-unlink (literal %s))\n", sbplString(dir))
		}
	}
	b.WriteString(seatbeltDevices)
	if p.Network {
		b.WriteString(seatbeltNetwork)
	}
	return b.String()
}

// sbplString is a string in the profile language, which is a Scheme.
func sbplString(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
