// Package harness attacks runs of the real agents from within the process that leads them, where a moment between two steps can be met exactly, and
// measures what a run costs more than the bare agent. What an operator sees from outside is attacked in package e2e. Which test answers which
// requirement and which attack stands in the table of coverage_test.go.
package harness
