package sandbox

const (
	auditArch      = 0xc00000b7 // AUDIT_ARCH_AARCH64
	foreignNumbers = 0x40000000 // arm64 has none
)

// olderCalls are those of unruled that newer architectures do not have.
var olderCalls []uintptr
