// Package hub is the fault suite of the hub: processes that are hubs and hosts, killed at random, on one database, and the
// count of what came of it.
//
//	go test ./test/hub -v            # a small run, as in CI
//	go test ./test/hub -v -hub.full  # 8 hosts, 2 hubs, 1,000 conversations, 5,000 messages
//
// prints the figures.
package hub
