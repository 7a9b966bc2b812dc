//go:build !linux

package run

import "nightporter/internal/agent"

// runsIn is not known on this system.
func runsIn(int, agent.Mark) bool { return true }
