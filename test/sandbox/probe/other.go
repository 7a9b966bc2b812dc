//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "probe: what it tries exists on Linux alone")
	os.Exit(2)
}
