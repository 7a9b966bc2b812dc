//go:build unix

package cli

import (
	"os"
	"syscall"
)

// reloadSignal makes a gateway read its configuration again.
var reloadSignal os.Signal = syscall.SIGHUP
