package faults

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain makes the test's binary a server or an agent that misbehaves as its arguments say: server MODE, agent MODE. (Not by its
// environment: values of that are secrets, and masked in what is told.)
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "server" {
		beServer(os.Args[2])
		os.Exit(0)
	}
	if len(os.Args) == 3 && os.Args[1] == "agent" {
		beAgent(os.Args[2])
		os.Exit(0)
	}
	code := m.Run()
	if path, err := program(); err == nil {
		_ = os.RemoveAll(strings.TrimSuffix(path, "nightporter"))
	}
	os.Exit(code)
}

// maxLife ends what a test has lost, whatever it was told to ignore.
const maxLife = 5 * time.Minute

// say writes a line as it stands.
func say(line string) { _, _ = io.WriteString(os.Stdout, line+"\n") }

// forever is for what never answers.
func forever() { <-time.After(maxLife) }

// atStart are faults before anything is said. They end the process, or go on.
var atStart = map[string]func(){
	"exit at start":   func() { fmt.Fprintln(os.Stderr, "cannot find my key"); os.Exit(3) },
	"mute":            forever,
	"banner":          func() { say("Welcome to the server"); say("{not json") },
	"endless line":    func() { flood(100<<20, "") },
	"closed at start": func() { os.Stdout.Close(); forever() },
	"ignores all":     func() { signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP) },
	"grandchild":      grandchild,
	"slow start":      func() { <-time.After(500 * time.Millisecond) },
	"the descendant":  func() { signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP); forever() },
}

// flood writes this many bytes to standard output, with a separator each kilobyte.
func flood(bytes int, separator string) {
	piece := strings.Repeat("x", 1024-len(separator)) + separator
	w := bufio.NewWriterSize(os.Stdout, 1<<20)
	for range bytes / 1024 {
		_, _ = w.WriteString(piece)
	}
	_ = w.Flush()
}

// grandchild leaves a process in a session of its own that ignores what ends others.
func grandchild() {
	cmd := exec.Command(os.Args[0], "server", "the descendant")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		panic(err)
	}
}

// onCall are faults of a call. Each gets the request's id and says what is said.
var onCall = map[string]func(id string){
	"killed":         func(string) { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) },
	"exits":          func(string) { fmt.Fprintln(os.Stderr, "out of ideas"); os.Exit(3) },
	"stopped":        func(string) { _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP); forever() },
	"never":          func(string) {},
	"another id":     func(string) { done("999") },
	"id of a type":   func(id string) { done(`"` + id + `x"`) },
	"twice":          func(id string) { done(id); done(id) },
	"halves":         func(id string) { halves(id) },
	"half":           func(string) { fmt.Print(`{"jsonrpc":"2.0","id":`); os.Exit(0) },
	"junk":           func(id string) { say("debug: here"); say(""); say("{"); done(id) },
	"flood of lines": func(id string) { flood(100<<20, "\n"); done(id) },
	"flood of errors": func(id string) {
		os.Stdout, os.Stderr = os.Stderr, os.Stdout
		flood(100<<20, "\n")
		os.Stdout, os.Stderr = os.Stderr, os.Stdout
		done(id)
	},
	"string result": func(id string) { say(`{"jsonrpc":"2.0","id":` + id + `,"result":"done"}`) },
	"string error":  func(id string) { say(`{"jsonrpc":"2.0","id":` + id + `,"error":"no"}`) },
	"neither":       func(id string) { say(`{"jsonrpc":"2.0","id":` + id + `}`) },
	"array":         func(id string) { say(`[{"jsonrpc":"2.0","id":` + id + `,"result":{}}]`) },
	"huge result": func(id string) {
		fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"`, id)
		flood(100<<20, "")
		say(`"}]}}`)
	},
	"deep": func(id string) {
		say(`{"jsonrpc":"2.0","id":` + id + `,"result":{"content":[],"x":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}}`)
	},
	"bad utf-8": func(id string) {
		say(`{"jsonrpc":"2.0","id":` + id + `,"result":{"content":[{"type":"text","text":"` + "\xff\xfe" + `"}]}}`)
	},
	"1e400": func(id string) {
		say(`{"jsonrpc":"2.0","id":` + id + `,"result":{"content":[{"type":"text","text":"done"}],"n":1e400}}`)
	},
	"asks much": func(id string) { askMuch(id) },
	"progress": func(id string) {
		many(100_000, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"none","progress":1}}`)
		done(id)
	},
	"lists change": func(id string) { many(2000, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`); done(id) },
	"logs": func(id string) {
		many(100_000, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}`)
		done(id)
	},
	"stdout closed": func(string) { os.Stdout.Close(); forever() },
}

func done(id string) {
	say(`{"jsonrpc":"2.0","id":` + id + `,"result":{"content":[{"type":"text","text":"done"}]}}`)
}

func halves(id string) {
	fmt.Print(`{"jsonrpc":"2.0","id":` + id + `,"result":{"content":[{"type":"te`)
	<-time.After(100 * time.Millisecond)
	say(`xt","text":"done"}]}}`)
}

func many(n int, line string) {
	w := bufio.NewWriterSize(os.Stdout, 1<<16)
	for range n {
		_, _ = w.WriteString(line + "\n")
	}
	_ = w.Flush()
}

func askMuch(id string) {
	w := bufio.NewWriterSize(os.Stdout, 1<<16)
	for i := range 10_000 {
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":"q%d","method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}`+"\n", i)
	}
	_ = w.Flush()
	done(id)
}

// onMethod are answers to other requests than calls.
var onMethod = map[string]map[string]string{
	"initialize refused": {"initialize": `"error":{"code":-32603,"message":"the licence has expired"}`},
	"initialize garbled": {"initialize": `"result":[1,2]`},
	"another version":    {"initialize": `"result":{"protocolVersion":"1999-01-01","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}`},
	"list refused":       {"tools/list": `"error":{"code":-32603,"message":"no tools today"}`},
	"list garbled":       {"tools/list": `"result":{"tools":"many"}`},
	"list without end":   {"tools/list": `"result":{"tools":[{"name":"do","inputSchema":{"type":"object"}}],"nextCursor":"again"}`},
	"one bad tool":       {"tools/list": `"result":{"tools":[{"name":"do","inputSchema":{"type":"object"}},{"description":null,"inputSchema":1e400}]}`},
	"list mute":          {"tools/list": ""},
}

// beServer is a small MCP server that does what its mode says, and all else right.
func beServer(mode string) {
	time.AfterFunc(maxLife, func() { os.Exit(1) })
	// A mode with ", once" has its fault in the first process alone: the file remembers.
	base, once := strings.CutSuffix(mode, ", once")
	if once {
		mark := os.Getenv("TMPDIR") + "/fault-once"
		if f, err := os.OpenFile(mark, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err == nil {
			_ = f.Close()
			mode = base
		} else {
			mode = ""
		}
	}
	if fault := atStart[mode]; fault != nil {
		fault()
	}
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			if mode == "ignores all" {
				forever()
			}
			return
		}
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct {
				Arguments       struct{ Fault bool }
				ProtocolVersion string
			}
		}
		if json.Unmarshal([]byte(line), &m) != nil || m.ID == nil || m.Method == "" {
			continue
		}
		id := string(m.ID)
		if answer, ok := onMethod[mode][m.Method]; ok {
			if answer != "" {
				say(`{"jsonrpc":"2.0","id":` + id + `,` + answer + `}`)
			}
			continue
		}
		switch m.Method {
		case "initialize":
			say(`{"jsonrpc":"2.0","id":` + id + `,"result":{"protocolVersion":"` + m.Params.ProtocolVersion + `","capabilities":{"tools":{"listChanged":true},"logging":{}},"serverInfo":{"name":"s","version":"1"}}}`)
		case "tools/list":
			say(`{"jsonrpc":"2.0","id":` + id + `,"result":{"tools":[{"name":"do","inputSchema":{"type":"object"}}]}}`)
			if mode == "dies when idle" {
				os.Exit(1)
			}
		case "tools/call":
			if fault := onCall[mode]; fault != nil && m.Params.Arguments.Fault {
				fault(id)
			} else {
				done(id)
			}
		case "ping":
			say(`{"jsonrpc":"2.0","id":` + id + `,"result":{}}`)
		default:
			say(`{"jsonrpc":"2.0","id":` + id + `,"error":{"code":-32601,"message":"method not found"}}`)
		}
	}
}

// beAgent is an agent of kind command: its prompt is on standard input.
func beAgent(mode string) {
	time.AfterFunc(maxLife, func() { os.Exit(1) })
	switch mode {
	case "silent":
	case "fails":
		fmt.Fprintln(os.Stderr, "my key is not accepted")
		os.Exit(7)
	case "never ends":
		fmt.Println("thinking of it")
		forever()
	case "ignores all":
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
		fmt.Println("never")
		forever()
	case "killed":
		fmt.Println("half an ans")
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "leaves a process":
		grandchild()
		fmt.Println("done")
	case "endless line":
		flood(100<<20, "")
	case "flood":
		flood(100<<20, "\n")
	case "closes its output":
		fmt.Println("done")
		os.Stdout.Close()
		os.Stderr.Close()
		forever()
	case "reads nothing":
		fmt.Println("done")
	case "binary":
		os.Stdout.Write([]byte{0, 1, 2, 0xff, 0xfe, '\n', 0x1b, '[', '2', 'J'})
	default:
		_, _ = io.Copy(io.Discard, os.Stdin)
		fmt.Println("done")
	}
}
