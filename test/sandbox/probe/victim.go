//go:build linux

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/signal"
	"unsafe"

	"golang.org/x/sys/unix"
)

// victim prints the address of bytes in its memory, waits for the end of its
// input, and prints what became of it: the bytes, and how many signals came.
func victim() error {
	// Where the yama module restricts tracing to parents, the victim allows it to everybody:
	// what a sandbox forbids must be shown to be forbidden by the sandbox.
	_ = unix.Prctl(unix.PR_SET_PTRACER, ^uintptr(0), 0, 0, 0)
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, unix.SIGUSR1, unix.SIGTERM)
	bytes := []byte("nothing has touched these bytes")
	fmt.Println(uint64(uintptr(unsafe.Pointer(&bytes[0]))))
	if _, err := io.Copy(io.Discard, bufio.NewReader(os.Stdin)); err != nil {
		return err
	}
	fmt.Printf("%s\n%d\n", bytes, len(signals))
	return nil
}
