package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
)

// signals watches for the signals that end a command. The first ends ctx, with the signal's name as
// cause; the second closes kill. After release, which may be called again, signals act as they did before. Those in except are left to others.
//
// SIGPIPE is ignored, so that writing to an output that nobody reads is an error and no sudden end. It must not be watched
// for: Go would then tell of every client that closed its connection (measured: a gateway stopped by it).
func signals(parent context.Context, except ...os.Signal) (ctx context.Context, kill <-chan struct{}, release func()) {
	ctx, cancel := context.WithCancelCause(parent)
	caught := make(chan os.Signal, 2)
	signal.Notify(caught, slices.DeleteFunc([]os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}, func(s os.Signal) bool {
		return slices.Contains(except, s)
	})...)
	signal.Ignore(syscall.SIGPIPE)
	killed, released, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for first := true; ; first = false {
			select {
			case s := <-caught:
				if first {
					cancel(errors.New(signalName(s)))
					continue
				}
				close(killed)
				return
			case <-released:
				return
			}
		}
	}()
	return ctx, killed, sync.OnceFunc(func() {
		signal.Stop(caught)
		close(released)
		<-over
		cancel(nil)
	})
}

func signalName(s os.Signal) string {
	switch s {
	case os.Interrupt:
		return "SIGINT"
	case syscall.SIGTERM:
		return "SIGTERM"
	case syscall.SIGHUP:
		return "SIGHUP"
	}
	return s.String()
}
