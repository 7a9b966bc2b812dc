// Package sandbox holds `nightporter sandbox` against the real `codex sandbox`: the same states, the same
// attempts from inside, the same answer or a stricter one with its reason. And it tries to get out.
package sandbox
