//go:build unix

package cli

import (
	"context"
	"os"
	"syscall"
	"testing"
)

func TestTheFirstSignalStopsAndTheSecondKills(t *testing.T) {
	ctx, kill, release := signals(t.Context())
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := self.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	if cause := context.Cause(ctx); cause.Error() != "SIGTERM" {
		t.Errorf("cause %v", cause)
	}
	select {
	case <-kill:
		t.Error("the first signal kills")
	default:
	}
	if err := self.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	<-kill
	release()
}
