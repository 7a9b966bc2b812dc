//go:build (!linux && !darwin) || (linux && !amd64 && !arm64)

package sandbox

import (
	"fmt"
	"os"
	"runtime"
)

// Run refuses: nothing on this system enforces a state. A state that asks for nothing is refused as well, so that nobody
// takes it for one that was.
func Run(Options) (int, error) {
	return codeRefused, &Unenforceable{fmt.Errorf("there is no means to enforce a sandbox state on %s (%s)", runtime.GOOS, runtime.GOARCH)}
}

// Available reports that no plan can be enforced here.
func Available(Plan, []string) (Mechanism, error) {
	return "", &Unenforceable{fmt.Errorf("there is no means to enforce a sandbox state on %s (%s)", runtime.GOOS, runtime.GOARCH)}
}

func exit(code int) { os.Exit(code) }
