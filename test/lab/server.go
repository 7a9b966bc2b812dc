package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

// modernVersion is the first revision without a handshake.
const modernVersion = "2026-07-28"

// server is the state that all clients share.
type server struct {
	Config
	log     *journal
	release func(context.Context) error // waits for Recorder.Release

	mu       sync.Mutex
	tools    []json.RawMessage
	seen     map[string]int          // requests so far, by method or tool, for Fault.First
	pending  map[string]chan message // requests that the server made, by id
	working  map[string]func()       // cancels a request under way, by client and id
	allTasks []*task
	nextID   int                // of the server's own requests
	sinks    map[*sink]struct{} // where list_changed goes
	exit     func(status int)   // ends the process
	spawn    func(log string) (pid int, err error)
	stderr   func(text string) // writes to the process's stderr
}

// sink is a place for messages that belong to no request: a stdio client, a GET stream, a subscription.
type sink struct {
	send         func(message)
	tasks        map[string]bool // of which a subscription wants to hear, by id
	subscription json.RawMessage // the id of the subscriptions/listen request; nil for legacy clients
}

func newServer(config Config, log *journal) *server {
	log.full = config.Mirror
	s := &server{
		Config: config, log: log, release: log.release,
		seen: map[string]int{}, pending: map[string]chan message{}, working: map[string]func(){}, sinks: map[*sink]struct{}{},
		exit:   os.Exit,
		spawn:  spawnGrandchild,
		stderr: func(text string) { fmt.Fprint(os.Stderr, text) },
	}
	for _, tool := range config.Tools {
		s.tools = append(s.tools, define(tool))
	}
	return s
}

// define expands a tool that is a name alone.
func define(tool json.RawMessage) json.RawMessage {
	var name string
	if json.Unmarshal(tool, &name) != nil {
		return tool
	}
	return encode(fields{
		"name": name, "description": "The lab's tool " + name + ".",
		"inputSchema": fields{"type": "object", "properties": fields{"message": fields{"type": "string"}}},
	})
}

// exchange is one request under way.
type exchange struct {
	*server
	message
	params
	client string // whose request it is; ids are only unique with it
	modern bool
	task   *task // that the call runs as
	// send sends what belongs to the request: progress, the server's own
	// requests, the answer.
	send func(message)
	// raw sends one frame as it stands.
	raw func(line []byte)
	// junk sends text as it stands, which need not be a frame.
	junk func(text string)
	// status answers with an HTTP status; nil on stdio.
	status func(code int)
}

func (x *exchange) result(result any) { x.send(message{ID: x.ID, Result: x.stamp(encode(result))}) }
func (x *exchange) fail(code int, text string) {
	x.send(message{ID: x.ID, Error: rpcError(code, text)})
}

// stamp adds to a modern result what every modern result has.
func (x *exchange) stamp(result json.RawMessage) json.RawMessage {
	var object map[string]json.RawMessage
	if !x.modern || json.Unmarshal(result, &object) != nil {
		return result
	}
	if object["resultType"] == nil {
		object["resultType"] = quote("complete")
	}
	object["_meta"] = encode(fields{"io.modelcontextprotocol/serverInfo": x.info()})
	return encode(object)
}

// cacheable adds the caching hints that modern lists must have.
func (x *exchange) cacheable(result fields) fields {
	if x.modern {
		result["ttlMs"], result["cacheScope"] = 60000, "private"
		if x.TTL != nil {
			result["ttlMs"] = *x.TTL
		}
	}
	return result
}

func (s *server) info() fields { return fields{"name": s.Name, "version": "1.0.0"} }

// modern reports whether a request is one of the stateless protocol.
func (s *server) modern(p params) bool {
	return s.Era == Modern || s.Era == Both && p.Meta.Version >= modernVersion
}

// receive takes one message from a client. Requests are worked on in a goroutine of work's.
func (s *server) receive(ctx context.Context, x *exchange, work func(func())) {
	switch {
	case x.Method == "": // an answer to a request of ours
		s.mu.Lock()
		waiting := s.pending[string(x.ID)]
		delete(s.pending, string(x.ID))
		s.mu.Unlock()
		if waiting != nil {
			waiting <- x.message // has room for one
		}
	case x.Method == "notifications/cancelled":
		s.mu.Lock()
		cancel := s.working[x.client+string(x.RequestID)]
		s.mu.Unlock()
		if cancel != nil {
			cancel()
		}
	case x.ID == nil: // other notifications are only recorded
	default:
		ctx, cancel := context.WithCancel(ctx)
		key := x.client + string(x.ID)
		s.mu.Lock()
		s.working[key] = cancel
		s.mu.Unlock()
		work(func() {
			defer func() {
				s.mu.Lock()
				delete(s.working, key)
				s.mu.Unlock()
				cancel()
			}()
			if !x.reflect(ctx) && !x.fault(ctx, x.Method, s.Methods[x.Method]) {
				x.answer(ctx)
			}
		})
	}
}

// fault plays a fault; true when there is no answer left to give.
func (x *exchange) fault(ctx context.Context, key string, fault Fault) bool {
	x.mu.Lock()
	x.seen[key]++
	over := fault.First > 0 && x.seen[key] > fault.First
	x.mu.Unlock()
	if over {
		return false
	}
	if !sleep(ctx, time.Duration(fault.Delay)) {
		return true
	}
	if fault.Hold {
		x.log.write(Entry{What: "hold", Method: x.Method})
		if x.release(ctx) != nil {
			return true
		}
	}
	if fault.Junk != "" {
		x.junk(fault.Junk)
	}
	switch {
	case fault.Exit != nil:
		x.log.write(Entry{What: "exit", Method: x.Method, Status: *fault.Exit})
		x.exit(*fault.Exit)
	case fault.Silent:
		<-ctx.Done()
	case fault.Status != 0 && x.status != nil:
		x.status(fault.Status)
	case fault.Error != nil:
		x.send(message{ID: x.ID, Error: fault.Error})
	case fault.Result != nil:
		x.send(message{ID: x.ID, Result: fault.Result})
	default:
		return false
	}
	return true
}

// answer answers a request as a good server does, within its era.
func (x *exchange) answer(ctx context.Context) {
	legacy, modern := x.Era != Modern, x.Era != Legacy
	switch {
	case x.Method == "initialize" && legacy:
		version := x.Config.ProtocolVersion
		if version == "" {
			version = x.params.ProtocolVersion
		}
		result := fields{"protocolVersion": version, "capabilities": x.capabilities(), "serverInfo": x.info()}
		if x.Instructions != "" {
			result["instructions"] = x.Instructions
		}
		x.result(result)
	case x.Method == "ping" && !x.modern:
		x.result(fields{})
	case x.Method == "server/discover" && modern:
		x.modern = true
		result := x.cacheable(fields{"supportedVersions": []string{modernVersion}, "capabilities": x.capabilities()})
		if x.Instructions != "" {
			result["instructions"] = x.Instructions
		}
		x.result(result)
	case x.Method == "subscriptions/listen" && modern:
		x.listen(ctx)
	case x.Method == "tools/list":
		x.listTools()
	case x.onTask(ctx):
	case x.Method == "tools/call":
		if !x.fault(ctx, "tools/call "+x.Name, x.Calls[x.Name]) && !x.asTask() {
			x.callTool(ctx)
		}
	case x.Method == "prompts/list" && x.Prompts != nil:
		x.result(x.cacheable(fields{"prompts": x.Prompts}))
	case x.Method == "prompts/get" && x.Prompts != nil:
		x.result(fields{"messages": []any{fields{"role": "user", "content": text("prompt " + x.Name + ": " + string(x.Arguments))}}})
	case x.Method == "resources/list" && x.Resources != nil:
		x.result(x.cacheable(fields{"resources": x.Resources}))
	case x.Method == "resources/templates/list" && x.Resources != nil:
		x.result(x.cacheable(fields{"resourceTemplates": append([]json.RawMessage{}, x.Templates...)}))
	case (x.Method == "resources/subscribe" || x.Method == "resources/unsubscribe") && x.Resources != nil && !x.modern:
		x.result(fields{})
	case x.Method == "completion/complete" && x.Resources != nil:
		x.result(fields{"completion": fields{"values": []string{x.Config.Name + " completes " + string(x.Params)}}})
	case x.Method == "logging/setLevel" && !x.modern:
		x.result(fields{})
	case x.Method == "resources/read" && x.Resources != nil:
		x.result(x.cacheable(fields{"contents": []any{fields{"uri": x.URI, "mimeType": "text/plain", "text": "resource " + x.URI}}}))
	default:
		x.fail(-32601, "method not found: "+x.Method)
	}
}

func (s *server) capabilities() any {
	if s.Capabilities != nil {
		return s.Capabilities
	}
	capabilities := fields{}
	if s.Tools != nil {
		capabilities["tools"] = fields{"listChanged": true}
	}
	if s.Prompts != nil {
		capabilities["prompts"] = fields{}
	}
	if s.Resources != nil {
		capabilities["resources"] = fields{}
	}
	if s.Tasks && s.Era != Modern {
		capabilities["tasks"] = fields{"list": fields{}, "cancel": fields{}, "requests": fields{"tools": fields{"call": fields{}}}}
	}
	if s.Tasks && s.Era != Legacy {
		capabilities["extensions"] = fields{taskExtension: fields{}}
	}
	if s.Experimental != nil {
		capabilities["experimental"] = s.Experimental
	}
	return capabilities
}

// listTools answers one page; a cursor is the index of the page's first tool.
func (x *exchange) listTools() {
	x.mu.Lock()
	tools := slices.Clone(x.tools)
	x.mu.Unlock()
	from, _ := strconv.Atoi(x.Cursor)
	from = min(max(from, 0), len(tools))
	to := len(tools)
	if x.PageSize > 0 {
		to = min(from+x.PageSize, to)
	}
	result := x.cacheable(fields{"tools": append([]json.RawMessage{}, tools[from:to]...)})
	if to < len(tools) {
		result["nextCursor"] = strconv.Itoa(to)
	}
	x.result(result)
}

// listen is a modern client's subscription: open until the client ends it.
func (x *exchange) listen(ctx context.Context) {
	x.modern = true
	subscription := encode(fields{"io.modelcontextprotocol/subscriptionId": x.ID})
	var wanted struct {
		Notifications json.RawMessage `json:"notifications"`
	}
	_ = json.Unmarshal(x.Params, &wanted)
	var about struct{ TaskIDs []string }
	_ = json.Unmarshal(wanted.Notifications, &about)
	tasks := map[string]bool{}
	for _, id := range about.TaskIDs {
		tasks[id] = true
	}
	if wanted.Notifications == nil {
		wanted.Notifications = json.RawMessage("{}")
	}
	x.send(message{Method: "notifications/subscriptions/acknowledged", Params: encode(fields{"_meta": subscription, "notifications": wanted.Notifications})})
	defer x.addSink(&sink{send: x.send, subscription: subscription, tasks: tasks})()
	<-ctx.Done()
}

// addSink adds a place for list_changed and returns what takes it away again.
func (s *server) addSink(to *sink) (remove func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sinks[to] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.sinks, to)
	}
}

// addTool adds a tool and tells all clients.
func (s *server) addTool(tool json.RawMessage) {
	s.mu.Lock()
	s.tools = append(s.tools, define(tool))
	sinks := make([]*sink, 0, len(s.sinks))
	for to := range s.sinks {
		sinks = append(sinks, to)
	}
	s.mu.Unlock()
	for _, to := range sinks {
		changed := message{Method: "notifications/tools/list_changed"}
		if to.subscription != nil {
			changed.Params = encode(fields{"_meta": to.subscription})
		}
		to.send(changed)
	}
}

// ask makes a request of the client and waits for its answer.
func (x *exchange) ask(ctx context.Context, method string, params any) (message, error) {
	answer := make(chan message, 1)
	x.mu.Lock()
	x.nextID++
	id := strconv.Itoa(1000 + x.nextID) // apart from the ids that clients use
	x.pending[id] = answer
	x.mu.Unlock()
	x.send(message{ID: json.RawMessage(id), Method: method, Params: encode(params)})
	select {
	case got := <-answer:
		return got, nil
	case <-ctx.Done():
		x.mu.Lock()
		delete(x.pending, id)
		x.mu.Unlock()
		return message{}, ctx.Err()
	}
}

// sleep waits; false when the context ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
