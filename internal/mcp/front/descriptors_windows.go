package front

// descriptors is how many connections the process can have open: there is no limit to ask for.
func descriptors() int { return 2 * maxConnections }
