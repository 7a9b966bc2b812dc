package programs

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
)

// Processes are those of a world: with its home, or a folder in it that a variable like NIGHTPORTER_HOME names, in their environment, or running a program of its own (which may keep no environment, as
// guards do; empty: none), by pid, with their arguments. It needs /proc.
func Processes(t testing.TB, home, own string) map[int]string {
	t.Helper()
	found := map[int]string{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		var pid int
		if _, err := fmt.Sscan(entry.Name(), &pid); err != nil || pid == os.Getpid() {
			continue
		}
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil || (own == "" || exe != own) && !bytes.Contains(env, []byte("HOME="+home+"\x00")) && !bytes.Contains(env, []byte("HOME="+home+"/")) {
			continue
		}
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		found[pid] = strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " "))
	}
	return found
}
