// Package registry knows the adapters there are.
package registry

import (
	"fmt"
	"os/user"
	"path/filepath"
	"runtime"

	"nightporter/internal/agent"
	"nightporter/internal/agent/acp"
	"nightporter/internal/agent/claude"
	"nightporter/internal/agent/codex"
	"nightporter/internal/agent/command"
	"nightporter/internal/agent/demo"
)

// adapters in the order in which they are listed. Command is what is left when none recognises a command.
var adapters = []agent.Adapter{claude.Adapter{}, codex.Adapter{}, acp.Adapter{}, command.Adapter{}, demo.Adapter{}}

// Names lists the adapters' names.
func Names() []string {
	names := make([]string, len(adapters))
	for i, a := range adapters {
		names[i] = a.Name()
	}
	return names
}

// Named returns the adapter called name.
func Named(name string) (agent.Adapter, bool) {
	for _, a := range adapters {
		if a.Name() == name {
			return a, true
		}
	}
	return nil, false
}

// For returns the adapter that recognises the command, or the one for any command.
func For(argv []string) agent.Adapter {
	for _, a := range adapters {
		if a.Recognises(argv) {
			return a
		}
	}
	return command.Adapter{}
}

// WithProofCache returns the adapter with a folder, made when it is needed, in which it may remember what it
// proved. Adapters that ask the agent itself in every run have no use for it.
func WithProofCache(a agent.Adapter, dir string) agent.Adapter {
	if c, ok := a.(codex.Adapter); ok {
		c.CacheDir = dir
		return c
	}
	return a
}

// HasSettings reports whether an agent has settings of its user's that a run may keep.
func HasSettings(name string) bool {
	_, ok := homes[name]
	return ok
}

// homes says where an agent keeps its sessions: a variable that moves its folder, and the folder in HOME.
var homes = map[string]struct{ variable, folder string }{
	"claude": {"CLAUDE_CONFIG_DIR", ".claude"},
	"codex":  {"CODEX_HOME", ".codex"},
}

// Home is the folder in which the agent called name keeps its sessions when it is started with env. It is absolute. Where env has no home
// folder it is the one that the system knows of the user, as for the agents themselves. One that is relative is an error: it would be
// another folder in each working directory.
func Home(name string, env []string) (string, error) {
	variable, home := "HOME", agent.Getenv(env, "HOME")
	if home == "" && runtime.GOOS == "windows" {
		variable, home = "USERPROFILE", agent.Getenv(env, "USERPROFILE")
	}
	if home == "" {
		me, err := user.Current()
		if err != nil {
			return "", fmt.Errorf("%s is not set, and the system does not know the user's home folder: %w", variable, err)
		}
		home = me.HomeDir
	}
	if at, ok := homes[name]; ok {
		home = filepath.Join(home, at.folder)
		if moved := agent.Getenv(env, at.variable); moved != "" {
			variable, home = at.variable, moved
		}
	}
	if !filepath.IsAbs(home) {
		return "", fmt.Errorf("%s is a relative path, %s", variable, home)
	}
	return home, nil
}
