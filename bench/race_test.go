//go:build race

package main

// raced says that the race detector allocates along.
const raced = true
