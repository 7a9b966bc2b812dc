// Command fakemodel serves a model script for programs that are not Go tests:
//
//	fakemodel [-record DIR] SCRIPT.json
//
// It prints its URL on stdout and serves until its stdin ends.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"

	"nightporter/test/fakemodel"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "fakemodel:", err)
		os.Exit(1)
	}
}

func run() error {
	record := flag.String("record", "", "write each request to this `folder`")
	flag.Parse()
	if flag.NArg() != 1 {
		return fmt.Errorf("want one argument, a script file; got %d", flag.NArg())
	}
	script, err := fakemodel.Read(flag.Arg(0))
	if err != nil {
		return err
	}
	server, err := fakemodel.Listen(script, fakemodel.RecordTo(*record))
	if err != nil {
		return err
	}
	fmt.Println(server.URL)
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return fmt.Errorf("wait for the end of stdin: %w", err)
	}
	return server.Close()
}
