package run

import (
	"net/url"
	"runtime"
	"slices"
	"strings"

	"nightporter/internal/secret"
)

// ownPrefix is how the names of Nightporter's own variables start: its home and the secrets of its hub and gateway.
const ownPrefix = "NIGHTPORTER_"

// tempVariables are those that programs look for a temporary folder in.
var tempVariables = []string{"TMPDIR", "TMP", "TEMP"}

// loader is a variable, or with a star at its end all that begin so, by which whoever set it runs code in programs that have nothing to do
// with it, or leads them elsewhere. One may be left by a folder's own settings (direnv), an editor, a debugger, a git hook or another agent, around
// Nightporter; none is what an agent needs of its operator. See docs/decisions/0017-agent-environment.md.
type loader struct{ name, why string }

var loaders = []loader{
	{"LD_PRELOAD", "loads a library into every program"},
	{"LD_AUDIT", "loads a library into every program"},
	{"DYLD_INSERT_LIBRARIES", "loads a library into every program (macOS)"},
	{"DYLD_FORCE_FLAT_NAMESPACE", "lets such a library take the place of others (macOS)"},
	{"GCONV_PATH", "loads libraries into programs that convert text"},
	{"OPENSSL_ENGINES", "loads libraries into programs that use TLS"},
	{"OPENSSL_MODULES", "loads libraries into programs that use TLS"},
	{"SSLKEYLOGFILE", "writes the keys of TLS connections into a file"},
	{"NODE_OPTIONS", "runs a script in every program of Node.js, among them agents and MCP servers"},
	{"NODE_PATH", "finds modules in other folders than the program's"},
	{"BUN_OPTIONS", "runs a script in every program of Bun, of which Claude Code is one"},
	{"BUN_INSPECT*", "opens a debugger, or runs a script for one"},
	{"PYTHONPATH", "finds modules in other folders than the program's"},
	{"PYTHONHOME", "takes the standard library from another folder"},
	{"PYTHONSTARTUP", "runs a script"},
	{"PYTHONBREAKPOINT", "runs a function of any module"},
	{"PYTHONINSPECT", "leaves a finished program waiting for input"},
	{"RUBYOPT", "runs a script in every program of Ruby"},
	{"RUBYLIB", "finds modules in other folders than the program's"},
	{"PERL5OPT", "runs a module in every program of Perl"},
	{"PERL5LIB", "finds modules in other folders than the program's"},
	{"PERL5DB", "runs code in Perl's debugger"},
	{"JAVA_TOOL_OPTIONS", "loads agents into every program of Java"},
	{"_JAVA_OPTIONS", "loads agents into every program of Java"},
	{"JDK_JAVA_OPTIONS", "loads agents into every program of Java"},
	{"BASH_ENV", "is a script that every bash runs first"},
	{"ENV", "is a script that an interactive sh runs first"},
	{"ZDOTDIR", "is where zsh finds the scripts that it runs first"},
	{"SHELLOPTS", "turns options of bash on, tracing among them"},
	{"BASHOPTS", "turns options of bash on"},
	{"PS4", "is evaluated by a shell that traces"},
	{"PROMPT_COMMAND", "is run by an interactive bash"},
	{"BASH_FUNC_*", "defines functions in every bash, under the names of programs too"},
	{"GIT_DIR", "leads git to another repository; git sets it around hooks"},
	{"GIT_WORK_TREE", "leads git to another folder"},
	{"GIT_INDEX_FILE", "leads git to another index; git sets it around hooks"},
	{"GIT_OBJECT_DIRECTORY", "leads git to another repository"},
	{"GIT_ALTERNATE_OBJECT_DIRECTORIES", "leads git to another repository"},
	{"GIT_EXEC_PATH", "is where git finds the programs that it is made of"},
	{"GIT_TEMPLATE_DIR", "puts hooks into every repository that is made"},
	{"GIT_CONFIG_PARAMETERS", "is configuration of git, which can name programs"},
	{"GIT_CONFIG_COUNT", "is configuration of git, which can name programs"},
	{"GIT_CONFIG_KEY_*", "is configuration of git, which can name programs"},
	{"GIT_CONFIG_VALUE_*", "is configuration of git, which can name programs"},
	{"GIT_EXTERNAL_DIFF", "is a program that git runs"},
	{"GIT_PROXY_COMMAND", "is a program that git runs"},
	{"GIT_SSH", "is a program that git runs"},
	{"GIT_SSH_COMMAND", "is a command that git runs"},
	{"GIT_ASKPASS", "is a program that git runs; nobody is asked in a run"},
	{"SSH_ASKPASS", "is a program that ssh runs; nobody is asked in a run"},
	{"GIT_EDITOR", "is a command that git runs; nobody edits in a run"},
	{"GIT_SEQUENCE_EDITOR", "is a command that git runs; nobody edits in a run"},
	{"GIT_PAGER", "is a command that git runs"},
}

// isLoader reports whether a variable is in the table.
func isLoader(name string) bool {
	return slices.ContainsFunc(loaders, func(l loader) bool {
		if begin, some := strings.CutSuffix(l.name, "*"); some {
			return strings.HasPrefix(upper(name), begin)
		}
		return upper(name) == l.name
	})
}

// environ is the environment of an agent: the operator's, less what is Nightporter's own, what is withheld and what loads foreign code, and with
// the run's own temporary folder and working directory. given are names that the operator gave for the agent, and that stay.
func environ(env []string, tmp, workdir string, withhold, given []string) []string {
	out := make([]string, 0, len(env)+len(tempVariables)+1)
	for _, entry := range env {
		name, _, ok := strings.Cut(entry, "=")
		if !ok || strings.HasPrefix(upper(name), ownPrefix) || name == "PWD" || name == "OLDPWD" ||
			slices.ContainsFunc(withhold, func(w string) bool { return upper(w) == upper(name) }) ||
			isLoader(name) && !slices.Contains(given, name) ||
			slices.Contains(tempVariables, upper(name)) {
			continue
		}
		out = append(out, entry)
	}
	if runtime.GOOS != "windows" {
		out = append(out, "PWD="+workdir)
	}
	for _, name := range tempVariables {
		out = append(out, name+"="+tmp)
	}
	return out
}

// upper is a variable's name in the form in which names are compared.
func upper(name string) string {
	if runtime.GOOS == "windows" {
		return strings.ToUpper(name)
	}
	return name
}

// A credentialName is an ending of names of variables that hold credentials, and how long a value must be to be taken for one: masking
// the value of CACHE_KEY=main in all of an agent's text would make it unreadable and protect nothing. What is only ever a password may be shorter.
type credentialName struct {
	ending   string
	shortest int
}

var credentialNames = []credentialName{
	{"KEY", 16},
	{"KEYS", 16},
	{"TOKEN", 16},
	{"TOKENS", 16},
	{"SECRET", 16},
	{"SECRETS", 16},
	{"CREDENTIAL", 16},
	{"CREDENTIALS", 16},
	{"CREDS", 16},
	{"AUTH", 16},
	{"AUTHORIZATION", 16},
	{"COOKIE", 16},
	{"JWT", 16},
	{"_PAT", 16},
	{"DSN", 16},
	{"CONNECTION_STRING", 16},
	{"PASSWORD", 8},
	{"PASSWD", 8},
	{"PASSPHRASE", 8},
	{"_PASS", 8},
	{"_PWD", 8},
	{"_PW", 8},
}

// credentials are the values of env that are to be masked wherever the agent's text leaves us: an agent that fails
// may well print its key. Of an address with a password it is that password, whatever the variable's name.
func credentials(env []string) []secret.String {
	var found []secret.String
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		if password := passwordIn(value); password != "" {
			found = append(found, secret.New(password))
		}
		if fields := strings.Fields(value); len(fields) == 2 {
			value = fields[1] // a scheme and its credential, as in the header Authorization
		}
		if strings.ContainsAny(value, " \t\n\\") || isPath(value) {
			continue
		}
		if slices.ContainsFunc(credentialNames, func(c credentialName) bool {
			return strings.HasSuffix(strings.ToUpper(name), c.ending) && len(value) >= c.shortest
		}) {
			found = append(found, secret.New(value))
		}
	}
	return found
}

// passwordIn is the password of an address such as postgres://user:password@host/db; empty where there is none that is worth masking.
func passwordIn(value string) string {
	if !strings.Contains(value, "://") {
		return ""
	}
	u, err := url.Parse(value)
	if err != nil || u.User == nil {
		return ""
	}
	if password, _ := u.User.Password(); len(password) >= 6 {
		return password
	}
	return ""
}

// isPath reports whether a value names a place, such as that of a key's file. A slash alone does not tell: keys in
// base64, such as those of AWS, have some.
func isPath(value string) bool {
	return strings.HasPrefix(value, "/") || strings.HasPrefix(value, "~/") || strings.HasPrefix(value, "./") ||
		strings.HasPrefix(value, "../") || strings.Contains(value, "://")
}
