//go:build linux

// Probe is the program that the sandbox tests run inside a sandbox: it tries
// everything in one go and prints, as one JSON object, how each attempt ended.
// What it says is not believed alone: the test looks from outside at what changed.
//
//	probe all PLAN      try everything that PLAN names
//	probe victim        wait to be attacked (a process outside the sandbox)
//	probe escape NAME…  one escape attempt (escapes.go)
//	probe true          end with 0
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

// plan says where the probes find what they try. The test writes it.
type plan struct {
	// Places are folders by their names in results; each holds the same files.
	Places map[string]string
	// Moves are pairs of places: a file of the first is renamed and linked to the second.
	Moves [][2]string
	// Links are symbolic links to files, written through.
	Links map[string]string
	// Make are folders that may be missing: each is made, and a file in it.
	Make map[string]string

	TCP      int    // port of a listener on 127.0.0.1
	UDP      int    // port of a socket on 127.0.0.1
	Token    string // what is sent to it
	Sockets  map[string]string
	Abstract string // name of an abstract socket that listens, without its leading zero

	Victim  int    // a process outside
	Address uint64 // of bytes in its memory
	Mount   string // an empty folder to mount on
	Shm     string // name of a file in /dev/shm to create
	Cgroup  string // a folder to create in a control group tree
}

// results maps a probe's name to "ok" or to the name of its error.
type results map[string]string

func main() {
	if err := dispatch(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(70)
	}
}

func dispatch(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("no mode given")
	}
	switch mode, rest := args[0], args[1:]; {
	case mode == "all" && len(rest) == 1:
		var p plan
		if err := json.Unmarshal([]byte(rest[0]), &p); err != nil {
			return fmt.Errorf("plan: %w", err)
		}
		r := results{}
		files(p, r)
		kernel(p, r)
		network(p, r)
		processes(p, r)
		return json.NewEncoder(os.Stdout).Encode(r)
	case mode == "victim":
		return victim()
	case mode == "escape" && len(rest) > 0:
		return escape(rest[0], rest[1:])
	case mode == "true":
		return nil
	default:
		return fmt.Errorf("unknown mode %q", args)
	}
}
