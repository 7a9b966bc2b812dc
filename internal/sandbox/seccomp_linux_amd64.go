package sandbox

import "golang.org/x/sys/unix"

const (
	auditArch      = 0xc000003e // AUDIT_ARCH_X86_64
	foreignNumbers = 0x40000000 // the x32 calls, which do the same under other numbers
)

// olderCalls are those of unruled that newer architectures do not have.
var olderCalls = []uintptr{unix.SYS_CHMOD, unix.SYS_CHOWN, unix.SYS_LCHOWN, unix.SYS_UTIME, unix.SYS_UTIMES, unix.SYS_FUTIMESAT}
