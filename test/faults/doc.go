// Package faults is a table of what can go wrong around Nightporter, and what a user then meets: what is told, what is left
// running, and how it goes on.
//
//	go test ./test/faults -v
//
// prints it as it was measured, with the built program and processes that misbehave. docs/faults.md is the same table, and the test fails
// when something else happened.
package faults
