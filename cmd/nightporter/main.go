// Command nightporter is an MCP runtime and a harness for unattended coding agents; see README.md.
package main

import (
	"os"

	"nightporter/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr)) }
