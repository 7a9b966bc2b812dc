//go:build linux

package sandbox

import (
	"regexp"
	"sync/atomic"
)

// difference is where ours is stricter than Codex, and why. More permissive cannot be written here.
type difference struct {
	how    string // mechanism: bubblewrap, namespaces or landlock; all when empty
	states string // a regular expression for the whole name; all when empty
	but    string // the same: states that this is not about
	probes string // a regular expression for the whole name
	reason string
	asRoot bool // shows for root alone
	varies bool // shows on some machines alone

	used *atomic.Bool
}

// refuses stands for a probe: the command is not run at all.
const refuses = "refuses"

// The states in which everything may be written, or by other names.
const everything = "unrestricted files, network restricted(, as nobody)?|the root is writable|the root read and written|the network disabled by the flag, unrestricted files"

// The states that Landlock can enforce: those that open the root, and say no less of anything in it.
const opened = "read-only.*|full access.*|external.*|.*, external|.*unrestricted files.*|the root is writable(, with network)?|the root read and written|a slash, (read|write)|" +
	"a missing path, write(, skipped)?|a readable root, full access|two dots behind a link|a URI with localhost|slash_tmp, read|tmpdir without TMPDIR|tmpdir is the root|" +
	"an unknown special path|a pattern that allows|unknown fields|only what is required|mxc asked for|a working directory with an escaped slash"

var stricter = []difference{
	{probes: "write /proc/sys", asRoot: true, reason: "Codex leaves /proc/sys writable for root, and with it the machine: core_pattern names a program that the kernel runs outside"},
	{probes: "unshare user", reason: "a user namespace gives its owner all capabilities over the kernel's less tried parts; no command of an agent needs one"},
	{
		states: everything, probes: ".* (of|to) outside|mount|unshare .*|mkdir cgroup|create /dev/shm|write /dev/kmsg|read block device|read /dev/mem",
		reason: "Codex confines a command that may write everything by a filter of network calls alone; ours has processes, devices and capabilities of its own as well: files and no network were asked for",
	},
	{states: "a slash, write|tmpdir is the root|the root is writable, .*", probes: "create /dev/shm", reason: "shared memory is between processes, and belongs to those of the sandbox"},
	{
		states: ".* with network(, as nobody)?", but: "the root is writable, with network", probes: "abstract connect",
		reason: "an abstract socket is none of the network: the session's bus has one, and no entry of a state could close it",
	},
	{
		how: "bubblewrap|namespaces", states: "minimal|no root.*", probes: "(create|mkdir|mkfifo|symlink) world",
		reason: "the empty folders that lead to what is opened are read-only, so that nothing is written which is lost",
	},
	{
		how: "bubblewrap|namespaces", states: "a missing path deep inside write|read inside write inside read|the root is writable, .*",
		probes: "(rename|hardlink) .* to .*",
		reason: "what lies between a writable folder and a protected one is a mount of its own: with Codex a command moves it away and puts another in its place",
	},
	{
		how: "bubblewrap|namespaces", states: everything + "|a slash, write|tmpdir is the root", probes: "(rename|hardlink) slash_tmp to cwd", varies: true,
		reason: "/tmp is a mount of its own where a folder in it is closed, in which an agent takes orders",
	},
	{how: "bubblewrap|namespaces", states: "a path with a zero byte", probes: refuses, reason: "no file has such a name: what was meant cannot be told"},
	{how: "bubblewrap|namespaces", states: "a readable root that is (missing|relative)", probes: refuses, reason: "Codex leaves it out in silence, and the command fails for another reason"},
	{how: "bubblewrap|namespaces", states: "a link that names itself", probes: refuses, reason: "what was meant cannot be told"},
	{
		how: "bubblewrap|namespaces", states: "a link out of the writable folder, writable", probes: refuses,
		reason: "the command could turn the link to another folder, which would be writable from the next command on",
	},
	{
		how: "bubblewrap|namespaces", states: "none for the working directory|no entries, a readable root", probes: refuses,
		reason: "the command cannot be where it is to be; Codex starts it in a folder that is none",
	},
	{how: "landlock", but: opened, probes: refuses, reason: "Landlock opens folders: it cannot hide, protect or close what is in them, nor names anywhere"},
	{how: "landlock", states: opened, probes: "create /dev/shm", reason: "without a mount namespace there is no private /dev/shm, and that of the machine is shared"},
	{
		how: "landlock", states: everything + "|a slash, write|tmpdir is the root", probes: "(chmod|utimes|setxattr) .*",
		reason: "Landlock has no rules for them, so that the calls are closed altogether",
	},
}

func init() {
	for i := range stricter {
		stricter[i].used = new(atomic.Bool)
	}
}

// isStricter reports whether a difference is recorded.
func isStricter(how, state, probe string) bool {
	found := false
	for _, d := range stricter {
		if matches(d.how, how) && matches(d.states, state) && (d.but == "" || !matches(d.but, state)) && matches(d.probes, probe) {
			d.used.Store(true)
			found = true
		}
	}
	return found
}

// matches reports whether a pattern is about a text; the empty one is about all.
func matches(pattern, text string) bool {
	return pattern == "" || regexp.MustCompile(`^(?:`+pattern+`)$`).MatchString(text)
}

// impossible are probes that may fail without a sandbox too, and why.
var impossible = map[string]string{
	"read /dev/mem":             "the kernel may keep it to itself",
	"write /proc/sysrq-trigger": "the kernel may have none",
	"vsock":                     "the kernel may have none",
	"ping socket":               "net.ipv4.ping_group_range",
	"mkdir cgroup":              "needs a tree that belongs to the user",
	"read block device":         "its name differs",
}
