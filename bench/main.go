// Command bench measures MCP endpoints and Nightporter's commands, and compares what one run measured.
//
//	bench run [-programs DIR] [-only a,b] [-rounds N] [-raw FILE] [-page FILE]   everything, interleaved; prints ratios
//	bench measure [-programs DIR] [-servers N] SETTINGS…                        one line of figures for each endpoint
//	bench compare FILE…                                                         ratios of raw files of one run
//
// An endpoint is described by a settings file: see products/. bench/run builds what is needed and calls it.
//
// Milliseconds of two runs are never compared: machines differ, and one machine differs from minute to minute. Within a run the
// products take turns, and what is compared are the samples of one turn.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("want one of: bench run, bench measure SETTINGS…, bench compare FILE…; see go doc ./bench")

func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	flags := flag.NewFlagSet("bench "+args[0], flag.ExitOnError)
	b := &bench{ctx: ctx}
	flags.StringVar(&b.programs, "programs", "", "folder of the programs to measure; else they are looked for on PATH")
	flags.StringVar(&b.npm, "npm", "test/npm/node_modules", "folder of the npm packages: real servers and agents")
	flags.IntVar(&b.rounds, "rounds", 9, "how often each product has its turn")
	var only, raw, page string
	var servers int
	switch args[0] {
	case "run":
		flags.StringVar(&only, "only", "", "letters of the works to do, such as a,b; empty: all")
		flags.StringVar(&raw, "raw", "", "append every sample to this file, a JSON object a line")
		flags.StringVar(&page, "page", "", "write the results as a page")
	case "measure":
		flags.IntVar(&servers, "servers", 10, "servers behind the endpoint")
	case "compare":
	default:
		return errUsage
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "measure":
		return b.prepare(func() error { return b.measure(flags.Args(), servers) })
	case "compare":
		samples, err := load(flags.Args())
		if err != nil {
			return err
		}
		return compare(os.Stdout, samples)
	}
	return b.prepare(func() error {
		failed := b.all(only)
		if raw != "" {
			if err := save(raw, b.samples); err != nil {
				return err
			}
		}
		if page != "" {
			if err := writePage(page, b); err != nil {
				return err
			}
		}
		return errors.Join(compare(os.Stdout, b.samples), failed)
	})
}
