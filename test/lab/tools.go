package lab

import (
	"context"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"time"
)

// Behaviours are what calls do, by the tool's name (or by Config.Behaves).
// Every other tool echoes. Arguments are those of the call.
var Behaviours = map[string]string{
	"echo":       "answers with NAME, a colon and the arguments as they came",
	"fail":       "answers with isError",
	"rpcerror":   "answers with a JSON-RPC error that has data",
	"big":        `answers with {"bytes":N} bytes of text`,
	"sleep":      `answers after {"for":"2s"}; with {"progress":"100ms"} it tells progress at that rate`,
	"hang":       "never answers; ends when cancelled",
	"env":        "answers with its environment, working directory and arguments as a JSON object",
	"pid":        "answers with its process id",
	"meta":       "answers with the call's _meta as it came",
	"exit":       `exits with status {"status":N} without an answer`,
	"junk":       "writes a line that is no JSON, then answers",
	"stderr":     `writes {"bytes":N} bytes to stderr, then answers`,
	"structured": "answers with structuredContent and a text that says something else",
	"image":      "answers with an image and a resource link",
	"elicit":     `asks the client for input ({"mode":"url"}: by URL) and answers with what it said`,
	"sample":     "asks the client for a model's reply and answers with what it said",
	"roots":      "asks the client for its roots and answers with what it said",
	"addtool":    `adds the tool {"name":"…"}, answers and tells that the list has changed`,
	"links":      "answers with a link to {\"uri\":…}, the resource itself, and a log message before",
	"log":        `tells {"level":"…"} a log message, then answers`,
	// What the conformance suite's scenarios of tasks ask for; see Config.Tasks.
	"greet":               "greets {\"name\":…}",
	"slow_compute":        `answers after {"seconds":N}`,
	"failing_job":         "answers with isError",
	"protocol_error_job":  "answers with a JSON-RPC error",
	"confirm_delete":      "asks the client one thing as a task and answers with what it said",
	"multi_input":         "asks the client two things at once as a task and answers with what it said",
	"test_tool_with_task": "asks the client before it is a task, and answers with what it said",
	"grandchild":          "starts a process in a session of its own and answers with its pid",
}

// asks are the behaviours that need something of the client, with the request that they make.
var asks = map[string]func(args arguments) (method string, params fields){
	"elicit": func(args arguments) (string, fields) {
		if args.Mode == "url" {
			return "elicitation/create", fields{"mode": "url", "elicitationId": "lab-1", "url": "http://127.0.0.1:9/lab", "message": "Go there"}
		}
		return "elicitation/create", fields{"message": "Your name?", "requestedSchema": fields{
			"type": "object", "properties": fields{"name": fields{"type": "string"}}, "required": []string{"name"},
		}}
	},
	"sample": func(arguments) (string, fields) {
		return "sampling/createMessage", fields{"messages": []any{fields{"role": "user", "content": text("hi")}}, "maxTokens": 10}
	},
	"roots": func(arguments) (string, fields) { return "roots/list", fields{} },
}

// arguments are those that behaviours read.
type arguments struct {
	Bytes    int      `json:"bytes"`
	For      Duration `json:"for"`
	Progress Duration `json:"progress"`
	Status   int      `json:"status"`
	Mode     string   `json:"mode"`
	Name     string   `json:"name"`
	URI      string   `json:"uri"`
	Level    string   `json:"level"`
	Seconds  float64  `json:"seconds"`
}

// onePixel is a PNG of one pixel.
const onePixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

func text(s string) fields { return fields{"type": "text", "text": s} }

// say answers a call with a text.
func (x *exchange) say(s string) { x.result(fields{"content": []any{text(s)}}) }

func (x *exchange) callTool(ctx context.Context) {
	var args arguments
	_ = json.Unmarshal(x.Arguments, &args) // arguments of other forms are for echo
	does := x.Name
	if other, ok := x.Behaves[x.Name]; ok {
		does = other
	}
	switch does {
	case "fail", "failing_job":
		x.result(fields{"content": []any{text("deliberate failure")}, "isError": true})
	case "rpcerror", "protocol_error_job":
		x.send(message{ID: x.ID, Error: encode(fields{"code": -32050, "message": "deliberate error", "data": fields{"reason": "lab"}})})
	case "big":
		x.say(strings.Repeat("0123456789abcde\n", args.Bytes/16+1)[:args.Bytes])
	case "sleep":
		x.sleep(ctx, args)
	case "hang":
		<-ctx.Done()
	case "env":
		dir, _ := os.Getwd()
		x.say(string(encode(fields{"env": environ(), "cwd": dir, "args": os.Args})))
	case "pid":
		x.say(strconv.Itoa(os.Getpid()))
	case "meta":
		x.say(string(x.RawMeta))
	case "exit":
		x.log.write(Entry{What: "exit", Method: x.Method, Status: args.Status})
		x.exit(args.Status)
	case "junk":
		x.junk("this is not JSON\n")
		x.say("after junk")
	case "stderr":
		x.stderr(strings.Repeat("lab stderr line\n", args.Bytes/16+1)[:args.Bytes])
		x.say("written")
	case "structured":
		x.result(fields{"content": []any{text("in words")}, "structuredContent": fields{"answer": 42}})
	case "image":
		x.result(fields{"content": []any{
			fields{"type": "image", "mimeType": "image/png", "data": onePixel},
			fields{"type": "resource_link", "uri": "lab://a", "name": "a"},
		}})
	case "links":
		x.result(fields{"content": []any{
			fields{"type": "resource_link", "uri": args.URI, "name": "link"},
			fields{"type": "resource", "resource": fields{"uri": args.URI, "text": x.Config.Name}},
		}})
	case "log":
		x.send(message{Method: "notifications/message", Params: encode(fields{"level": args.Level, "data": "at " + args.Level})})
		x.say("logged")
	case "greet":
		x.say("Hello, " + args.Name + "!")
	case "slow_compute":
		x.sleep(ctx, arguments{For: Duration(args.Seconds * float64(time.Second)), Progress: args.Progress})
	case "confirm_delete":
		x.questions(ctx, 1)
	case "multi_input":
		x.questions(ctx, 2)
	case "test_tool_with_task":
		x.nameThenTask()
	case "elicit", "sample", "roots":
		method, params := asks[does](args)
		x.askThenSay(ctx, method, params)
	case "addtool":
		x.say("added")
		x.addTool(quote(args.Name))
	case "grandchild":
		pid, err := x.spawn(x.Log)
		if err != nil {
			x.fail(-32000, err.Error())
			return
		}
		x.say(strconv.Itoa(pid))
	default:
		x.say(x.Config.Name + ": " + string(x.Arguments))
	}
}

// sleep answers after a time and tells progress until then. A sleep that is
// cancelled has no answer.
func (x *exchange) sleep(ctx context.Context, args arguments) {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Duration(args.For))
	defer cancel()
	var tick <-chan time.Time
	if args.Progress > 0 && x.Meta.ProgressToken != nil {
		ticker := time.NewTicker(time.Duration(args.Progress))
		defer ticker.Stop()
		tick = ticker.C
	}
	for n := 1; ; n++ {
		select {
		case <-tick:
			x.send(message{Method: "notifications/progress", Params: encode(fields{
				"progressToken": x.Meta.ProgressToken, "progress": n, "message": "step " + strconv.Itoa(n),
			})})
		case <-end.Done():
			x.say("slept " + time.Duration(args.For).String())
			return
		case <-ctx.Done():
			return
		}
	}
}

// askThenSay answers with what the client said to a request: a request of the
// server's own for legacy clients, an input_required result for modern ones.
func (x *exchange) askThenSay(ctx context.Context, method string, params fields) {
	if x.task != nil {
		if answer, err := x.question(ctx, method, params); err == nil {
			x.say(string(answer))
		}
		return
	}
	if x.modern {
		if x.InputResponses != nil {
			x.say(string(x.InputResponses))
			return
		}
		x.result(fields{
			"resultType":    "input_required",
			"inputRequests": fields{"q": fields{"method": method, "params": params}}, "requestState": "lab state",
		})
		return
	}
	answer, err := x.ask(ctx, method, params)
	switch {
	case err != nil: // cancelled
	case answer.Error != nil:
		x.say("error: " + string(answer.Error))
	default:
		x.say(string(answer.Result))
	}
}

// nameThenTask asks for a name before there is a task, whose result has it.
func (x *exchange) nameThenTask() {
	if x.InputResponses != nil {
		x.say("Hello, " + string(x.InputResponses))
		return
	}
	method, params := asks["elicit"](arguments{})
	x.result(fields{
		"resultType":    "input_required",
		"inputRequests": fields{"user_name": fields{"method": method, "params": params}}, "requestState": "lab state",
	})
}

// environ is the process's environment as an object.
func environ() map[string]string {
	env := map[string]string{}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	return env
}
