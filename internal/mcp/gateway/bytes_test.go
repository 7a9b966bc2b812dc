package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"nightporter/internal/mcp/gateway"
	"nightporter/internal/mcp/sse"
	"nightporter/internal/mcp/wire"
	"nightporter/test/lab"
)

// What passes through the gateway is what was said. Messages are put together from parts here, written as they are sent, so that
// what must arrive is known byte for byte without the code under test: the same parts, less or more those that a change of this
// list is about.
const (
	changedToken      = "progress tokens: each connection has its own"
	changedName       = "names of tools and prompts, where several servers are merged"
	addedClient       = "_meta of a request to a stateless server: what a session's client said once is said with each"
	removedClient     = "_meta of a request to a session's server: what the session says is not repeated"
	addedResult       = "a result to a stateless client: resultType, ttlMs, cacheScope and the server's info, where the server said none"
	changedCode       = "the code of resource not found: -32002 in a session, -32602 without"
	bridgedQuestion   = "a question of a session's server to a stateless client is an input_required result, its answer an inputResponses"
	bridgedInput      = "input_required of a stateless server to a session's client is requests, their answers are inputResponses"
	strippedSandbox   = "sandbox metadata in _meta, to a server that did not ask for it (internal/mcp/authority)"
	droppedLog        = "log messages of a session's server that a stateless request did not ask for by its logLevel"
	droppedFrameExtra = "members of the frame itself that JSON-RPC does not have: not passed on, as the official SDKs refuse such frames"
)

var allChanges = []string{
	changedToken, changedName, addedClient, removedClient, addedResult, changedCode, bridgedQuestion, bridgedInput, strippedSandbox, droppedLog, droppedFrameExtra,
}

// object is the members of a JSON object, as they are written.
type object []string

func (o object) String() string { return "{" + strings.Join(o, ",") + "}" }

// leaves are values that readers of JSON like to change.
var leaves = []string{
	`12345678901234567890`, `-9007199254740993`, `1.0`, `1e400`, `-0`, `-0.0`, `1E+2`, `0.1e-7`, `0.30000000000000004`,
	`"\u0000"`, `"\ud800"`, `"\udc00\ud800"`, `"\uD83D\uDE00😀"`, `"\u003c<&>\/\u2028é"`, "\"\u2028\u2029\u007f\"", `""`, `" "`,
	`null`, `true`, `false`, `[]`, `{}`, `[ ]`, `{ }`, "[1 ,\t2]", `{"a" : 1}`, `"$TOKE"`,
}

// keys avoid those that decide something, for which see docs/decisions/0002.
var keys = []string{
	`""`, `"\u0000"`, `"\ud800"`, `"a.b"`, `"__proto__"`, `"x-unknown"`, `"é"`, `"\u0061"`, `"a"`, `"type"`, `"id"`, `"$ref"`, `"jsonrpc"`, `"io.modelcontextprotocol/unknown"`, `"task"`,
}

// recorded are members of _meta as Codex 0.171.0, Codex 0.144.1 and Claude Code 2.1.332 sent them, shortened.
var recorded = []object{
	{
		`"callId":"call_0_0"`, `"x-codex-turn-metadata":{"session_id":"01a22dad-8de8-7be3-a3e8-10122f98e854","model":"fake-1","turn_started_at_unix_ms":1796062679532,"sandbox":"seccomp","auto_review_enabled":false}`,
		`"codex/sandbox-state":{"permissionProfile":{"type":"managed","file_system":{"type":"restricted","entries":[{"path":{"type":"special","value":{"kind":"root"}},"access":"read"},{"path":{"type":"path","path":"/home/op/work"},"access":"write"}]},"network":"restricted"},"codexLinuxSandboxExe":"/home/op/.codex/tmp/arg0-linux/codex-linux-sandbox","sandboxCwd":"file:///home/op/work","useLegacyLandlock":false,"useMxc":false}`,
		`"codex/sandbox-launcher":{"codexExecutable":"/usr/bin/codex"}`,
	},
	{`"threadId":"01a22dad"`, `"codex/sandbox-state-meta":{"permissionProfile":{"type":"disabled"},"sandboxCwd":"file:///home/op"}`},
	{`"claudecode/toolUseId":"toolu_fake000100"`},
}

func drawValue(t *rapid.T, depth int) string {
	switch kind := rapid.IntRange(0, 9).Draw(t, "kind"); {
	case depth == 0 || kind < 6:
		return rapid.SampledFrom(leaves).Draw(t, "leaf")
	case kind == 6:
		n := rapid.IntRange(1, 800).Draw(t, "nesting")
		return strings.Repeat(`[{"":`, n) + "1" + strings.Repeat("}]", n)
	case kind == 7:
		var elements []string
		for range rapid.IntRange(0, 3).Draw(t, "elements") {
			elements = append(elements, drawValue(t, depth-1))
		}
		return "[" + strings.Join(elements, ",") + "]"
	default:
		return drawMembers(t, depth-1).String()
	}
}

func drawMembers(t *rapid.T, depth int) (o object) {
	for range rapid.IntRange(0, 3).Draw(t, "members") {
		colon := rapid.SampledFrom([]string{":", ":", " : "}).Draw(t, "colon")
		o = append(o, rapid.SampledFrom(keys).Draw(t, "key")+colon+drawValue(t, depth))
	}
	return o
}

// drawContent draws a content block of any type, or of one that nobody knows.
func drawContent(t *rapid.T) string {
	kinds := []object{
		{`"type":"text"`, `"text":"\ud800"`},
		{`"type":"image"`, `"data":"AA=="`, `"mimeType":"image/png"`},
		{`"type":"audio"`, `"data":""`, `"mimeType":"audio/wav"`},
		{`"type":"resource_link"`, `"uri":"ui://a\/b"`, `"name":""`},
		{`"type":"resource"`, `"resource":{"uri":"lab://x","blob":"AA==","x":1e400}`},
		{`"type":"tool_use"`, `"id":"1"`, `"input":{"n":1.0}`},
		{`"type":"hologram"`},
	}
	block := append(slices.Clone(rapid.SampledFrom(kinds).Draw(t, "content")), drawMembers(t, 1)...)
	return append(block, `"annotations":{"priority":1.0,"audience":["user"]}`).String()
}

// town is servers of both eras on both transports, and one client in front of them.
type town struct {
	*house
	stateless bool // the client
	changes   map[string]int
	number    int // of exchanges
}

var townServers = []string{"session-stdio", "session-http", "stateless-stdio", "stateless-http"}

func serverIsStateless(name string) bool { return strings.HasPrefix(name, "stateless") }

func newTown(t *testing.T, stateless bool, changes map[string]int) *town {
	h := newHouse(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	h.ctx = ctx
	var text strings.Builder
	for _, name := range townServers {
		c := lab.Config{
			Name: name, Mirror: true, Tools: lab.Tools("t"), Log: h.recorder.Address,
			Prompts: []json.RawMessage{json.RawMessage(`{"name":"p"}`)}, Resources: []json.RawMessage{json.RawMessage(`{"uri":"lab://` + name + `","name":"r"}`)},
			Capabilities: json.RawMessage(`{"tools":{},"prompts":{},"resources":{},"completions":{},"x":1.0}`),
		}
		if serverIsStateless(name) {
			c.Era = lab.Modern
		}
		if strings.HasSuffix(name, "http") {
			fmt.Fprintf(&text, "[mcp_servers.%q]\nurl = %q\n", name, lab.Serve(t, c))
		} else {
			fmt.Fprintf(&text, "[mcp_servers.%q]\ncommand = %q\nargs = [%s]\n", name, lab.Binary(t), wire.Quote(c.Arg()))
		}
	}
	h.configure(text.String())
	return &town{house: h, stateless: stateless, changes: changes}
}

// speaker is a client, frame by frame.
type speaker interface {
	// say sends a frame; method and name are what the headers of the stateless era repeat.
	say(frame, method, name string)
	heard() <-chan []byte
}

type stdioSpeaker struct {
	in    io.Writer
	inbox chan []byte
}

func (s *stdioSpeaker) say(frame, _, _ string) { _, _ = io.WriteString(s.in, frame+"\n") }
func (s *stdioSpeaker) heard() <-chan []byte   { return s.inbox }

func (w *town) stdioSpeaker(t *testing.T, p gateway.Profile) speaker {
	p.Grace = patience
	if p.Dir == "" {
		p.Dir = t.TempDir()
	}
	e := gateway.New(w.rt, p, "test", nil)
	in, feed := io.Pipe()
	read, out := io.Pipe()
	ctx, stop := context.WithCancel(w.ctx)
	var running sync.WaitGroup
	s := &stdioSpeaker{feed, make(chan []byte, 64)}
	running.Go(func() {
		_ = e.ServeStdio(ctx, in, out)
		out.Close()
	})
	running.Go(func() {
		for lines := bufio.NewReader(read); ; {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			s.inbox <- bytes.TrimSuffix(line, []byte("\n"))
		}
	})
	t.Cleanup(func() {
		stop()
		feed.Close()
		read.Close()
		running.Wait()
		e.Close(context.Background())
	})
	return s
}

type httpSpeaker struct {
	w       *town
	url     string
	session string
	inbox   chan []byte
	running *sync.WaitGroup
}

func (s *httpSpeaker) heard() <-chan []byte { return s.inbox }

func (s *httpSpeaker) say(frame, method, name string) {
	r, err := http.NewRequestWithContext(s.w.ctx, http.MethodPost, s.url, strings.NewReader(frame))
	if err != nil {
		panic(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if s.w.stateless {
		r.Header.Set("MCP-Protocol-Version", wire.Modern)
		r.Header.Set("Mcp-Method", method)
		r.Header.Set("Mcp-Name", "=?base64?"+base64.StdEncoding.EncodeToString([]byte(name))+"?=")
	} else if s.session != "" {
		r.Header.Set("Mcp-Session-Id", s.session)
		r.Header.Set("MCP-Protocol-Version", wire.Latest)
	}
	s.running.Go(func() {
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			s.inbox <- []byte(err.Error())
			return
		}
		defer response.Body.Close()
		if id := response.Header.Get("Mcp-Session-Id"); id != "" {
			s.session = id
		}
		if strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream") {
			for in := sse.NewReader(response.Body); ; {
				event, err := in.Next()
				if err != nil {
					return
				}
				if len(event.Data) > 0 {
					s.inbox <- bytes.Clone(event.Data)
				}
			}
		}
		if body, _ := io.ReadAll(response.Body); len(body) > 0 {
			s.inbox <- body
		}
	})
}

func (w *town) httpSpeaker(t *testing.T, p gateway.Profile) speaker {
	_, url := w.endpoint(p)
	s := &httpSpeaker{w: w, url: url, inbox: make(chan []byte, 64), running: new(sync.WaitGroup)}
	t.Cleanup(s.running.Wait)
	return s
}

const initializeBytes = `{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{},"sampling":{},"roots":{"x":1.0}},"clientInfo":{"name":"bytes","version":"1","x":1.0}}}`

// What the client says of itself, in the order in which the gateway adds it.
var saysOfItself = object{
	`"io.modelcontextprotocol/protocolVersion":"2026-07-28"`,
	`"io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"sampling":{},"roots":{"x":1.0}}`,
	`"io.modelcontextprotocol/clientInfo":{"name":"bytes","version":"1","x":1.0}`,
}

// next is the next frame that the client gets.
func next(t interface{ Fatalf(string, ...any) }, s speaker) wire.Message {
	select {
	case frame := <-s.heard():
		m, err := wire.Parse(frame)
		if err != nil {
			t.Fatalf("the client got %q: %v", frame, err)
		}
		return m
	case <-time.After(patience):
		t.Fatalf("nothing more came")
	}
	return wire.Message{}
}

// parts is a request in parts.
type parts struct {
	method  string
	params  object // without what is below; $NAME stands for what it acts on
	meta    object // without the progress token
	hasMeta bool
	token   string // of progress; may be empty
	tokenAt int    // place in meta
}

// text is params with another name, token and _meta.
func (p parts) text(name, token string, meta object, hasMeta bool, more ...string) string {
	all := slices.Clone(p.params)
	for i, part := range all {
		all[i] = strings.ReplaceAll(part, "$NAME", name)
	}
	if hasMeta {
		meta = slices.Clone(meta)
		if p.token != "" {
			meta = slices.Insert(meta, p.tokenAt, `"progressToken":`+token)
		}
		all = slices.Insert(all, len(all)/2, `"_meta":`+meta.String())
	}
	return append(all, more...).String()
}

// forServer is what a server gets that did not ask for sandbox metadata.
func (p parts) forServer() parts {
	meta := object{}
	at := p.tokenAt
	for i, member := range p.meta {
		if !strings.HasPrefix(member, `"codex/sandbox-`) {
			meta = append(meta, member)
		} else if i < p.tokenAt {
			at--
		}
	}
	p.meta, p.tokenAt = meta, at
	return p
}

// TestEveryByteArrives sends drawn messages through the gateway in every combination of client and server.
func TestEveryByteArrives(t *testing.T) {
	changes := map[string]int{}
	for _, stateless := range []bool{false, true} {
		for _, transport := range []string{"stdio", "http"} {
			w := newTown(t, stateless, changes)
			for _, single := range append([]string{""}, townServers...) {
				name := fmt.Sprintf("%s client on %s, %s", map[bool]string{false: "session", true: "stateless"}[stateless], transport, map[bool]string{true: "all servers", false: single}[single == ""])
				t.Run(name, func(t *testing.T) {
					connect := w.httpSpeaker
					if transport == "stdio" {
						connect = w.stdioSpeaker
					}
					s := connect(t, gateway.Profile{Single: single})
					if !stateless {
						s.say(initializeBytes, "", "")
						if m := next(t, s); m.Result == nil {
							t.Fatalf("initialize: %s", m.Error)
						}
						s.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`, "", "")
					}
					rapid.Check(t, func(t *rapid.T) { w.exchange(t, s, single) })
				})
			}
		}
	}
	if t.Failed() {
		return
	}
	seen := slices.Sorted(maps.Keys(changes))
	if want := slices.Sorted(slices.Values(allChanges)); !slices.Equal(seen, want) {
		t.Errorf("changes that were met:\n%s\nwant each of\n%s", strings.Join(seen, "\n"), strings.Join(want, "\n"))
	}
	for _, change := range allChanges {
		t.Logf("%6d times: %s", changes[change], change)
	}
}

// exchange draws one request, what its server says before it answers, and the answer, and checks both ways.
func (w *town) exchange(t *rapid.T, s speaker, single string) {
	server := single
	if server == "" {
		server = rapid.SampledFrom(townServers).Draw(t, "server")
	}
	to := serverIsStateless(server)
	expose := func(name string) string {
		if single == "" {
			return server + "__" + name
		}
		return name
	}
	w.number++
	p, exposed, real := w.drawRequest(t, server, single == "", expose)
	id := rapid.SampledFrom([]string{fmt.Sprint(w.number), fmt.Sprintf(`"\u0061%d"`, w.number), fmt.Sprintf("1%d.50", w.number), fmt.Sprintf("123456789012345678%d", w.number), fmt.Sprintf(`"%d\ud800"`, w.number)}).Draw(t, "id")

	// What the server says.
	var frames, wantFrames, questions []string
	fill := func(o object) string { return append(o, drawMembers(t, 1)...).String() }
	for range rapid.IntRange(0, 2).Draw(t, "notifications") {
		method, params := "notifications/message", fill(object{`"level":"info"`, `"data":` + drawValue(t, 1)})
		switch kind := rapid.IntRange(0, 2).Draw(t, "notification"); {
		case kind == 0 && p.token != "":
			rest := drawMembers(t, 1)
			method, params = "notifications/progress", append(object{`"progressToken":$TOKEN`, `"progress":1.0`}, rest...).String()
		case kind == 1:
			method, params = "notifications/x-unknown", fill(object{})
		}
		frames = append(frames, `{"jsonrpc":"2.0","method":"`+method+`","params":`+params+`}`)
		if method == "notifications/message" && w.stateless && !to {
			w.changes[droppedLog]++
			continue
		}
		wantFrames = append(wantFrames, method+" "+strings.ReplaceAll(params, "$TOKEN", p.token))
	}
	asks := object{`"message":"?"`, `"requestedSchema":{"type":"object","x":1e400}`}
	if !to && rapid.Bool().Draw(t, "asks") { // a question by a request
		params := fill(asks)
		questionID := rapid.SampledFrom([]string{`9007199254740993123`, `"q\u0061"`, `1.50`, `"\ud800"`}).Draw(t, "question id")
		frames = append(frames, `{"jsonrpc":"2.0","id":`+questionID+`,"method":"elicitation/create","params":`+params+`}`)
		wantFrames = append(wantFrames, "elicitation/create "+params)
		questions = append(questions, questionID)
	}
	result := w.drawResult(t, p)
	own := strings.NewReplacer("lab://x", "lab://x-"+server, `ui://a\/b`, `ui://a\/b-`+server)
	for i, member := range result.members { // another server's resource of this URI would have another name
		result.members[i] = own.Replace(member)
	}
	answers := []string{`"result":` + result.text()}
	wantResult, wantError := w.resultFor(p, result, server, single == ""), ""
	if rapid.IntRange(0, 2).Draw(t, "fails") == 0 {
		code := rapid.SampledFrom([]string{"-32002", "-32002", "-32050", "7"}).Draw(t, "code")
		rest := fill(object{`"message":"\ud800 no"`, `"data":` + drawValue(t, 2)})
		answers = []string{`"error":{"code":` + code + `,` + rest[1:]}
		if code == "-32002" && w.stateless && !to && p.method == "resources/read" {
			code = "-32602"
			w.changes[changedCode]++
		}
		wantResult, wantError = "", `{"code":`+code+`,`+rest[1:]
	}
	inputState, inputParams := "", ""
	if to && p.method != "completion/complete" && p.method != "x-custom/method" && rapid.Bool().Draw(t, "input required") {
		inputState, inputParams = rapid.SampledFrom([]string{`"s\u0061\/"`, `"\ud800"`, `""`}).Draw(t, "state"), fill(asks)
		answers = append([]string{`"result":{"resultType":"input_required","inputRequests":{"k":{"method":"elicitation/create","params":` + inputParams + `}},"requestState":` + inputState + `}`}, answers...)
	}
	if rapid.IntRange(0, 3).Draw(t, "frame extra") == 0 {
		answers[len(answers)-1] += `,"x-frame":` + drawValue(t, 1)
		w.changes[droppedFrameExtra]++
	}
	mirror := `"mirror":` + string(wire.Encode(map[string]any{"frames": append([]string{}, frames...), "answers": answers}))
	p.params = slices.Insert(p.params, rapid.IntRange(0, len(p.params)).Draw(t, "place"), mirror)

	// The exchange, from the client's side.
	before := w.recorder.Len()
	arrives := p.forServer()
	if len(arrives.meta) != len(p.meta) {
		w.changes[strippedSandbox]++
	}
	metaSent, metaWanted := p.meta, arrives.meta
	hasSent, hasWanted := p.hasMeta, p.hasMeta
	if w.stateless {
		metaSent = append(slices.Clone(p.meta), saysOfItself...)
		hasSent = true
		if to {
			metaWanted, hasWanted = append(slices.Clone(arrives.meta), saysOfItself...), true
		} else {
			hasWanted = len(arrives.meta) > 0 || p.token != ""
			w.changes[removedClient]++
		}
	}
	frameExtra := rapid.SampledFrom([]string{"", "", `,"x-frame":[1.0]`}).Draw(t, "request's frame extra")
	say := func(more ...string) {
		s.say(`{"jsonrpc":"2.0","id":`+id+`,"method":"`+p.method+`","params":`+p.text(exposed, p.token, metaSent, hasSent, more...)+frameExtra+`}`, p.method, exposed)
	}
	say()
	var got, replies []string
	var final wire.Message
	reply := func() string { return fill(object{`"action":"accept"`, `"content":` + drawValue(t, 2)}) }
	for len(got) < len(wantFrames) || final.ID == nil {
		m := next(t, s)
		switch {
		case m.IsRequest(): // a question to a session's client
			got = append(got, m.Method+" "+string(m.Params))
			answer := reply()
			replies = append(replies, answer)
			if inputState != "" {
				wantFrames = append(wantFrames, "elicitation/create "+inputParams)
			}
			s.say(`{"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":`+answer+`}`, "", "")
		case m.IsNotification():
			got = append(got, m.Method+" "+string(m.Params))
		case string(m.ID) != id:
			t.Fatalf("an answer to %s, want %s: %s", m.ID, id, m.Append(nil))
		case len(wire.Get(m.Result, "inputRequests")) > 0 && w.stateless && len(replies) == 0: // a question to a stateless client
			asked, err := wire.Members(wire.Get(m.Result, "inputRequests"))
			if err != nil || len(asked) != 1 {
				t.Fatalf("the client got %s", m.Result)
			}
			state := string(wire.Get(m.Result, "requestState"))
			if inputState != "" {
				want := `{"resultType":"input_required","inputRequests":{"k":{"method":"elicitation/create","params":` + inputParams + `}},"requestState":` + inputState + `,"_meta":{` + w.infoOf(server, single == "") + `}}`
				if string(m.Result) != want {
					t.Fatalf("the client got\n%s\nwant\n%s", m.Result, want)
				}
			} else {
				got = append(got, "elicitation/create "+string(wire.Get(asked[0].Value, "params")))
				w.changes[bridgedQuestion]++
			}
			answer := reply()
			replies = append(replies, answer)
			say(`"inputResponses":{`+string(wire.Quote(asked[0].Key))+`:`+answer+`}`, `"requestState":`+state)
		default:
			final = m
		}
	}
	if !slices.Equal(got, wantFrames) {
		t.Fatalf("the client got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(wantFrames, "\n"))
	}
	if string(final.Result) != wantResult || string(final.Error) != wantError || final.Extra != nil {
		t.Fatalf("the client got the answer\n%s %s %s\nwant\n%s%s", final.Result, final.Error, final.Extra, wantResult, wantError)
	}

	// From the server's side.
	var requests, answersBack []wire.Message
	for _, e := range w.recorder.After(before) {
		if e.What != "in" || e.Name != server {
			continue
		}
		m, err := wire.Parse(e.Line)
		if err != nil {
			t.Fatalf("the server got %q: %v", e.Line, err)
		}
		switch {
		case m.IsResponse():
			answersBack = append(answersBack, m)
		case m.Method == p.method:
			requests = append(requests, m)
		}
	}
	wantRequests := 1
	if inputState != "" {
		wantRequests = 2
	}
	if len(requests) != wantRequests || len(answersBack) != len(questions) {
		t.Fatalf("the server got %d requests and %d answers, want %d and %d", len(requests), len(answersBack), wantRequests, len(questions))
	}
	for i, m := range requests {
		var more []string
		if i == 1 {
			more = []string{`"inputResponses":{"k":` + replies[0] + `}`, `"requestState":` + inputState}
			if !w.stateless {
				w.changes[bridgedInput]++
			}
		}
		token := string(wire.Get(m.Params, "_meta", "progressToken"))
		if token != p.token {
			w.changes[changedToken]++
		}
		want := ""
		switch {
		case w.stateless || !to:
			want = arrives.text(real, token, metaWanted, hasWanted, more...)
		case hasWanted: // a session's client, a stateless server
			want = arrives.text(real, token, metaWanted, true, more...)
			want = insertBehindMeta(t, want, arrives, token, metaWanted)
			w.changes[addedClient]++
		default:
			want = arrives.text(real, token, nil, false, append(more, `"_meta":`+saysOfItself.String())...)
			w.changes[addedClient]++
		}
		if string(m.Params) != want || m.Extra != nil {
			t.Fatalf("the server got %s\n%s %s\nwant\n%s", m.Method, m.Params, m.Extra, want)
		}
	}
	for i, m := range answersBack {
		if string(m.ID) != questions[i] || string(m.Result) != replies[i] {
			t.Fatalf("the server got the answer %s %s %s\nwant %s %s", m.ID, m.Result, m.Error, questions[i], replies[i])
		}
	}
	if exposed != real {
		w.changes[changedName]++
	}
}

// insertBehindMeta adds what a session's client said of itself at the end of _meta.
func insertBehindMeta(t *rapid.T, text string, p parts, token string, meta object) string {
	meta = slices.Clone(meta)
	if p.token != "" {
		meta = slices.Insert(meta, p.tokenAt, `"progressToken":`+token)
	}
	old := `"_meta":` + meta.String()
	if strings.Count(text, old) != 1 {
		t.Skip("the same text twice")
	}
	return strings.Replace(text, old, `"_meta":`+append(meta, saysOfItself...).String(), 1)
}

func (w *town) drawRequest(t *rapid.T, server string, merged bool, expose func(string) string) (p parts, exposed, real string) {
	methods := []string{"tools/call", "tools/call", "prompts/get", "resources/read", "completion/complete"}
	if !merged {
		methods = append(methods, "x-custom/method")
	}
	p.method = rapid.SampledFrom(methods).Draw(t, "method")
	arguments := drawMembers(t, 3).String()
	switch p.method {
	case "tools/call":
		exposed, real = expose("t"), "t"
		p.params = object{`"name":"$NAME"`, `"arguments":` + arguments}
	case "prompts/get":
		exposed, real = expose("p"), "p"
		p.params = object{`"name":"$NAME"`, `"arguments":` + arguments}
	case "resources/read":
		exposed, real = "lab://"+server, "lab://"+server
		p.params = object{`"uri":"$NAME"`}
	case "completion/complete":
		exposed, real = expose("p"), "p"
		p.params = object{`"ref":{"type":"ref/prompt","name":"$NAME","x":1.0}`, `"argument":` + arguments}
	default:
		p.params = object{`"arguments":` + arguments}
	}
	p.params = append(p.params, drawMembers(t, 2)...)
	p.params = rapid.Permutation(p.params).Draw(t, "order")
	if p.hasMeta = rapid.Bool().Draw(t, "has _meta"); p.hasMeta {
		p.meta = drawMembers(t, 2)
		if rapid.IntRange(0, 3).Draw(t, "as recorded") == 0 {
			p.meta = slices.Clone(rapid.SampledFrom(recorded).Draw(t, "recorded"))
		}
		p.token = rapid.SampledFrom([]string{"", "7", `"tok"`, "1.50", "12345678901234567890", `"\u0061\ud800"`}).Draw(t, "token")
		p.tokenAt = rapid.IntRange(0, len(p.meta)).Draw(t, "token's place")
	}
	return p, exposed, real
}

// resultParts is a result in parts.
type resultParts struct {
	members object
	meta    object
	hasMeta bool
	kind    string // resultType; may be empty
}

func (r resultParts) text() string { return r.all().String() }

func (r resultParts) all() object {
	all := slices.Clone(r.members)
	if r.kind != "" {
		all = append(all, `"resultType":"`+r.kind+`"`)
	}
	if r.hasMeta {
		all = append(all, `"_meta":`+r.meta.String())
	}
	return all
}

func (w *town) drawResult(t *rapid.T, p parts) (r resultParts) {
	var content []string
	for range rapid.IntRange(0, 3).Draw(t, "blocks") {
		content = append(content, drawContent(t))
	}
	r.members = append(drawMembers(t, 3), `"content":[`+strings.Join(content, ", ")+`]`, `"structuredContent":`+drawValue(t, 3))
	r.members = rapid.Permutation(r.members).Draw(t, "result order")
	r.kind = rapid.SampledFrom([]string{"", "complete", "task"}).Draw(t, "resultType")
	if r.hasMeta = rapid.Bool().Draw(t, "result _meta"); r.hasMeta {
		r.meta = drawMembers(t, 2)
	}
	return r
}

// resultFor is what the client must get of a result.
func (w *town) resultFor(p parts, r resultParts, server string, merged bool) string {
	if !w.stateless {
		return r.text()
	}
	w.changes[addedResult]++
	info := w.infoOf(server, merged)
	var more object
	if r.kind == "" {
		more = append(more, `"resultType":"complete"`)
	}
	if p.method == "resources/read" && (r.kind == "" || r.kind == "complete") {
		more = append(more, `"ttlMs":0`, `"cacheScope":"private"`)
	}
	if r.hasMeta {
		r.meta = append(slices.Clone(r.meta), info)
		return append(r.all(), more...).String()
	}
	return append(append(r.all(), more...), `"_meta":{`+info+`}`).String()
}

// infoOf is what is said of the server in each result.
func (w *town) infoOf(server string, merged bool) string {
	if merged {
		return `"io.modelcontextprotocol/serverInfo":{"name":"nightporter","title":"Nightporter","version":"test"}`
	}
	return `"io.modelcontextprotocol/serverInfo":{"name":"` + server + `","version":"1.0.0"}`
}

// TestEveryByteOfADefinitionArrives lists what a server has, while it runs and from its catalog.
func TestEveryByteOfADefinitionArrives(t *testing.T) {
	odd := `"x":[1.0,1e300,12345678901234567890,-0],"\u0061":"\u003c","a":1,"a":2,"":{ "b" : null },"__proto__":{},"_meta":{"ui":{"resourceUri":"ui://\u0061"}},"icons":[{"src":"data:,"}]`
	lists := []struct{ method, member, before, name, after string }{
		{wire.ToolsList, "tools", `{"title":"\u0000","inputSchema":{"type":"object","$schema":"x","n":1.50},"name":`, "t", `,"execution":{"taskSupport":"optional"},` + odd + `}`},
		{wire.PromptsList, "prompts", `{"arguments":[{"name":"a","x":1.0}],"name":`, "p", `,` + odd + `}`},
		{wire.ResourcesList, "resources", `{"size":12345678901234567890,"uri":"lab:\/\/r","name":`, "r", `,` + odd + `}`},
		{wire.TemplatesList, "resourceTemplates", `{"uriTemplate":"lab://{\u0061}","name":`, "t", `,` + odd + `}`},
	}
	config := lab.Config{
		Name: "s", Capabilities: json.RawMessage(`{"tools":{"x":1.0},"prompts":{},"resources":{},"x-unknown":{"n":1e400}}`), Methods: map[string]lab.Fault{},
	}
	for _, l := range lists {
		config.Methods[l.method] = lab.Fault{Result: json.RawMessage(`{"` + l.member + `":[` + l.before + `"` + l.name + `"` + l.after + `]}`)}
	}
	h := newHouse(t, config)
	w := &town{house: h}
	dir := t.TempDir() // part of a catalog's identity
	for i, profile := range []gateway.Profile{{Dir: dir}, {Dir: dir, Single: "s"}} {
		s := w.stdioSpeaker(t, profile)
		s.say(initializeBytes, "", "")
		hello := string(next(t, s).Result)
		if profile.Single != "" && !strings.Contains(hello, `"capabilities":`+strings.TrimSuffix(string(config.Capabilities), "}")+`,"experimental":{"codex/`) {
			t.Errorf("capabilities in %s", hello)
		}
		for _, l := range lists {
			name := l.name
			if profile.Single == "" && (l.member == "tools" || l.member == "prompts") {
				name = "s__" + name
			}
			s.say(`{"jsonrpc":"2.0","id":1,"method":"`+l.method+`"}`, "", "")
			got := string(next(t, s).Result)
			if want := `{"` + l.member + `":[` + strings.ReplaceAll(l.before, "{ ", "{") + `"` + name + `"` + strings.ReplaceAll(l.after, `{ "b" : null }`, `{"b":null}`) + `]}`; got != want {
				t.Errorf("client %d got\n%s\nwant\n%s", i, got, want)
			}
		}
	}
	if starts := h.recorder.Select(func(e lab.Entry) bool { return e.What == "start" }); len(starts) != 1 {
		t.Errorf("%d starts, want 1: the second client lists from the catalog", len(starts))
	}
}

// TestEveryByteOutsideOfRequestsArrives sends what belongs to no request, both ways.
func TestEveryByteOutsideOfRequestsArrives(t *testing.T) {
	odd := `"x":[1.0,1e400,12345678901234567890,-0],"\u0061":"\ud800\u003c","a":1,"a":2,"":{ "b" : null },"_meta":{"y":1.50}`
	for _, transport := range []string{"stdio", "http"} {
		for _, server := range []string{"session-stdio", "session-http"} {
			t.Run(transport+" client, "+server, func(t *testing.T) {
				w := newTown(t, false, map[string]int{})
				connect := w.stdioSpeaker
				if transport == "http" {
					connect = w.httpSpeaker
				}
				s := connect(t, gateway.Profile{Single: server})
				s.say(initializeBytes, "", "")
				if m := next(t, s); m.Result == nil {
					t.Fatalf("initialize: %s", m.Error)
				}
				if h, ok := s.(*httpSpeaker); ok {
					h.running.Wait() // the session's id has come
					stream := w.stream(http.MethodGet, h.url, "", map[string]string{"Mcp-Session-Id": h.session, "Accept": "text/event-stream"})
					h.running.Go(func() {
						for event := range stream.frames {
							h.inbox <- bytes.Clone(event.Data)
						}
					})
					t.Cleanup(func() { stream.body.Close() })
				}
				s.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`, "", "")

				updated := `{"uri":"lab://r",` + odd + `}`
				mirror := wire.Encode(map[string]any{
					"frames": []string{`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":` + updated + `}`}, "answers": []string{`"result":{}`},
				})
				s.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","mirror":`+string(mirror)+`}}`, "", "")
				for answered, told := false, false; !answered || !told; {
					switch m := next(t, s); {
					case m.IsResponse():
						answered = true
					case string(m.Params) != updated:
						t.Fatalf("the client got %s\nwant %s", m.Params, updated)
					default:
						told = true
					}
				}

				for _, method := range []string{"notifications/x-unknown", wire.RootsChanged} {
					s.say(`{"jsonrpc":"2.0","method":"`+method+`","params":{`+odd+`}}`, "", "")
					e, err := w.recorder.Wait(w.ctx, lab.Received(method))
					if err != nil {
						t.Fatal(err)
					}
					if m, err := wire.Parse(e.Line); err != nil || string(m.Params) != `{`+odd+`}` {
						t.Errorf("the server got %s\nwant %s", e.Line, odd)
					}
				}
			})
		}
	}
}
