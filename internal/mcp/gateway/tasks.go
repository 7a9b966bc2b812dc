package gateway

import (
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/server"
	"nightporter/internal/mcp/wire"
)

// Tasks are calls whose result is fetched later: by tasks/get and tasks/result in 2025-11-25, by tasks/get alone in the extension of
// 2026-07-28. They pass through between a client and a server of one era (docs/decisions/0011). A task is its client's alone, and
// outlives the client's session for a while, so that one whose connection broke can come back for it.

const (
	// taskLife is how long a task is remembered whose server names no time, and longestTask is the longest in any case.
	taskLife    = time.Hour
	longestTask = 24 * time.Hour
	// taskKept is how long a client may stay away from a task whose servers run for it alone.
	taskKept = 15 * time.Minute
	// maxTasks bounds the tasks of an endpoint that are remembered; the oldest is forgotten.
	maxTasks = 10000
)

// task is one task of a client on a server.
type task struct {
	owner   string // whose it is
	exposed string // its id as the client knows it
	server  string
	id      string // the server's
	modern  bool
	via     *client // whose servers have it
	ends    time.Time
	timer   *time.Timer
	release func() // lets its server sleep
	over    bool   // its end has been seen: nothing has to wait for it
}

// tasks are those of an endpoint.
type tasks struct {
	mu     sync.Mutex
	byID   map[[2]string]*task // by owner and exposed id
	order  []*task
	kept   map[*client]bool // clients that have gone, whose servers run on
	closed bool
}

// exposedTask is how the client sees the id of a task. Ids of several servers may be equal, and a client may come back with one
// after we have forgotten all else: so that it says whose it is.
func (c *client) exposedTask(server, id string) string {
	if c.e.p.Single != "" {
		return id
	}
	return url.QueryEscape(server) + "/" + id
}

// retasked returns raw with the task's id at path as the client sees it.
func (c *client) retasked(server string, raw json.RawMessage, path ...string) json.RawMessage {
	id, ok := wire.GetString(raw, path...)
	if !ok || c.e.p.Single != "" {
		return raw
	}
	return wire.Set(raw, wire.Quote(c.exposedTask(server, id)), path...)
}

// taskOutward is a result with the ids of tasks as the client sees them.
func (c *client) taskOutward(server, method string, result json.RawMessage) json.RawMessage {
	switch method {
	case wire.ToolsCall:
		if _, path, _ := created(result); path != nil {
			result = c.retasked(server, result, path...)
		}
	case wire.TasksGet, wire.TasksCancel:
		result = c.retasked(server, result, "taskId")
	}
	return c.retasked(server, result, "_meta", wire.MetaTask, "taskId")
}

// created is the id of the task that a result of a call says was made, where it stands, and how long the server keeps it; path is
// nil when the result is none such.
func created(result json.RawMessage) (id string, path []string, life time.Duration) {
	ttl := json.RawMessage(nil)
	if kind, _ := wire.GetString(result, "resultType"); kind == "task" {
		path, ttl = []string{"taskId"}, wire.Get(result, "ttlMs")
	} else if t := wire.Get(result, "task"); t != nil {
		path, ttl = []string{"task", "taskId"}, wire.Get(t, "ttl")
	} else {
		return "", nil, 0
	}
	id, ok := wire.GetString(result, path...)
	if !ok {
		return "", nil, 0
	}
	var ms float64
	life = taskLife
	if json.Unmarshal(ttl, &ms) == nil && ms > 0 {
		life = longestTask
		if ms < float64(longestTask.Milliseconds()) {
			life = time.Duration(ms) * time.Millisecond
		}
	}
	return id, path, life
}

// terminal are the states in which a task stays.
var terminal = map[string]bool{"completed": true, "failed": true, "cancelled": true}

// add remembers a task that a call of the client made.
func (k *tasks) add(c *client, name string, modern bool, result json.RawMessage) {
	id, path, life := created(result)
	if path == nil {
		return
	}
	t := &task{
		owner: c.owner(), exposed: c.exposedTask(name, id), server: name, id: id, modern: modern, via: c,
		ends: time.Now().Add(life), release: c.scope.Hold(name),
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		t.release()
		return
	}
	if k.byID == nil {
		k.byID = map[[2]string]*task{}
	}
	if old := k.byID[[2]string{t.owner, t.exposed}]; old != nil {
		k.forget(old)
	}
	if len(k.order) >= maxTasks {
		k.forget(k.order[0])
	}
	k.byID[[2]string{t.owner, t.exposed}] = t
	k.order = append(k.order, t)
	t.timer = time.AfterFunc(life, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.forget(t)
	})
}

// forget ends what is known of a task. The caller holds k.mu.
func (k *tasks) forget(t *task) {
	t.timer.Stop()
	if key := [2]string{t.owner, t.exposed}; k.byID[key] == t {
		delete(k.byID, key)
	}
	if i := slices.Index(k.order, t); i >= 0 {
		k.order = slices.Delete(k.order, i, i+1)
	}
	k.finish(t)
}

// finish notes that nothing has to wait for the task any more. The caller holds k.mu.
func (k *tasks) finish(t *task) {
	if t.over {
		return
	}
	t.over = true
	t.release()
	if k.kept[t.via] && !k.needs(t.via) && t.via.e.background(t.via.endServers) {
		delete(k.kept, t.via) // else the endpoint is closing, and ends them
	}
}

// needs reports whether a task waits on a client's servers. The caller holds k.mu.
func (k *tasks) needs(c *client) bool {
	return slices.ContainsFunc(k.order, func(t *task) bool { return t.via == c && !t.over })
}

// keep takes over the servers of a client that has gone and has tasks there. It reports whether it did.
func (k *tasks) keep(c *client) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed || !k.needs(c) {
		return false
	}
	if k.kept == nil {
		k.kept = map[*client]bool{}
	}
	k.kept[c] = true
	for _, t := range k.order {
		if t.via == c && !t.over {
			t.timer.Reset(min(time.Until(t.ends), taskKept))
		}
	}
	return true
}

// find returns a client's task.
func (k *tasks) find(c *client, exposed string, modern bool) *task {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.byID[[2]string{c.owner(), exposed}]
	if t == nil || t.modern != modern {
		return nil
	}
	if k.kept[t.via] && !t.over {
		t.timer.Reset(min(time.Until(t.ends), taskKept)) // its client has come back for it
	}
	return t
}

// owned are a client's tasks, by the servers that have them.
func (k *tasks) owned(c *client) map[taskPlace][]*task {
	k.mu.Lock()
	defer k.mu.Unlock()
	places := map[taskPlace][]*task{}
	for _, t := range k.order {
		if t.owner == c.owner() && !t.modern {
			at := taskPlace{t.via, t.server}
			places[at] = append(places[at], t)
		}
	}
	return places
}

type taskPlace struct {
	via    *client
	server string
}

// has reports whether a server's task is the client's.
func (k *tasks) has(c *client, name, id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.ContainsFunc(k.order, func(t *task) bool { return t.server == name && t.id == id && t.owner == c.owner() })
}

// hears reports whether what a server says of a task is for the client. A server of its own speaks of its tasks alone, whose ids others' may
// have, too. One that has several clients, perhaps with other tokens, speaks of all.
func (c *client) hears(server, id string) bool {
	def, ok := c.e.rt.Config().Server(server)
	alone := ok && !def.Shared && !c.shared
	return alone || c.e.tasks.has(c, server, id)
}

// saw notes what an answer about a task says of its end. Of a session's task the result is still to be fetched.
func (k *tasks) saw(t *task, method string, result json.RawMessage) {
	status, _ := wire.GetString(result, "status")
	if method == wire.TasksResult || terminal[status] && (t.modern || status == "cancelled") {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.finish(t)
	}
}

// close forgets all, and ends the servers that were kept, bounded by ctx.
func (k *tasks) close(ctx context.Context) {
	k.mu.Lock()
	k.closed = true
	kept := k.kept
	k.kept = nil
	for _, t := range slices.Clone(k.order) {
		k.forget(t)
	}
	k.mu.Unlock()
	var wg sync.WaitGroup
	for c := range kept {
		wg.Go(func() { c.scope.Close(ctx) })
	}
	wg.Wait()
}

// owner is whose tasks a client may have: those of clients that said the same of themselves, with the same token where each
// token has an endpoint of its own. A client that comes back is known by nothing else (docs/decisions/0006).
func (c *client) owner() string { return string(c.who.Info) }

// endServers ends the servers of a client that has gone.
func (c *client) endServers() {
	ctx, done := context.WithTimeout(context.Background(), farewell)
	defer done()
	c.scope.Close(ctx)
}

// offersTasks reports whether a server that the client reaches knows tasks in the form of the client's era, and of the session era the
// capability at path.
func (c *client) offersTasks(modern bool, path ...string) bool {
	path = append([]string{"tasks"}, path...)
	if modern {
		path = []string{"extensions", wire.ExtensionTasks}
	}
	return slices.ContainsFunc(c.scope.Servers(), func(name string) bool {
		about, ok := c.scope.Hello(name)
		return ok && (about.Era() == wire.StatelessEra) == modern && wire.Get(about.Capabilities, path...) != nil
	})
}

var noTask = wire.Errorf(wire.CodeInvalidParams, "there is no such task")

// onTask passes a request about a task on to the server that has it.
func (c *client) onTask(ctx context.Context, r request) (json.RawMessage, *wire.RPCError) {
	if err := c.mayTask(r); err != nil {
		return nil, err
	}
	exposed, _ := wire.GetString(r.params, "taskId")
	t := c.e.tasks.find(c, exposed, r.modern)
	if t == nil {
		return nil, noTask
	}
	t.via.inherit(c)
	if t.id != exposed {
		r.params = wire.Set(r.params, wire.Quote(t.id), "taskId")
	}
	result, rpcErr := c.forwardIn(ctx, t.via.scope, t.server, r)
	if rpcErr == nil {
		c.e.tasks.saw(t, r.method, result)
	}
	return result, rpcErr
}

// mayTask says why a client cannot ask about tasks.
func (c *client) mayTask(r request) *wire.RPCError {
	if !c.offersTasks(r.modern) {
		return wire.Errorf(wire.CodeMethodNotFound, "no server here knows tasks in the form of this protocol revision")
	}
	if r.modern && wire.Get(r.who.Capabilities, "extensions", wire.ExtensionTasks) == nil {
		err := wire.Errorf(wire.CodeMissingCapability, "the client does not declare the extension %s", wire.ExtensionTasks)
		err.Data = json.RawMessage(`{"requiredCapabilities":{"extensions":{"` + wire.ExtensionTasks + `":{}}}}`)
		return err
	}
	return nil
}

// maxTaskPages bounds the pages of one server's list of tasks.
const maxTaskPages = 100

// listTasks lists the client's own tasks, of all servers that can list them: their lists may hold others'.
func (c *client) listTasks(ctx context.Context, r request) (json.RawMessage, *wire.RPCError) {
	if !c.offersTasks(false, "list") {
		return nil, wire.Errorf(wire.CodeMethodNotFound, "no server here lists tasks")
	}
	var listed []json.RawMessage
	for at, owned := range c.e.tasks.owned(c) {
		if about, _ := at.via.scope.Hello(at.server); wire.Get(about.Capabilities, "tasks", "list") == nil {
			continue
		}
		at.via.inherit(c)
		q := request{id: r.id, method: r.method, x: r.x}
		for range maxTaskPages {
			o := c.carry(ctx, at.server, q, in(at.via.scope, at.server), nil)
			if o.err != nil || o.answer.Error != nil {
				break // a server that cannot say is no reason to say nothing of the others
			}
			page, _ := wire.Elements(wire.Get(o.answer.Result, "tasks"))
			for _, raw := range page {
				id, _ := wire.GetString(raw, "taskId")
				if i := slices.IndexFunc(owned, func(t *task) bool { return t.id == id }); i >= 0 {
					listed = append(listed, c.retasked(at.server, raw, "taskId"))
				}
			}
			cursor := wire.Get(o.answer.Result, "nextCursor")
			if _, ok := wire.Text(cursor); !ok {
				break
			}
			q.params = wire.Set(nil, cursor, "cursor")
		}
	}
	return list("tasks", listed), nil
}

// Clients of the stateless era cannot ask that a tool be called as a task. A tool of the session era that is called in no other way is
// called so for them, and its result waited for.

// mustTask reports whether a tool is called as a task or not at all.
func mustTask(t tool) bool {
	support, _ := wire.GetString(t.Raw, "execution", "taskSupport")
	return support == "required"
}

// awaitTask makes a sender of calls into one that calls the tool as a task and waits for the result.
func (c *client) awaitTask(name string, call sender) sender {
	return func(ctx context.Context, up server.Request) (runtime.Answer, error) {
		if about, _ := c.scope.Hello(name); about.Era() != wire.SessionEra {
			return call(ctx, up)
		}
		up.Params = wire.Set(up.Params, json.RawMessage("{}"), "task")
		answer, err := call(ctx, up)
		id, path, _ := created(answer.Result)
		if err != nil || path == nil {
			return answer, err
		}
		defer c.scope.Hold(name)()
		params := wire.Set(nil, wire.Quote(id), "taskId")
		fetched, err := c.scope.Do(ctx, name, server.Request{Method: wire.TasksResult, Params: params, Notify: up.Notify, Ask: up.Ask})
		if ctx.Err() != nil {
			ending, done := context.WithTimeout(context.WithoutCancel(ctx), tellPatience)
			defer done()
			_, _ = c.scope.Do(ending, name, server.Request{Method: wire.TasksCancel, Params: params})
		}
		fetched.Authority = answer.Authority
		if meta := wire.Get(fetched.Result, "_meta", wire.MetaTask); meta != nil {
			fetched.Result = wire.Set(fetched.Result, nil, "_meta", wire.MetaTask) // the client knows of no task
		}
		return fetched, err
	}
}

// listenTasks asks the servers of tasks to tell a stream of their changes, and returns the ids that they agreed to.
func (c *client) listenTasks(ctx context.Context, upstream *sync.WaitGroup, l *listen, ids []json.RawMessage) (agreed []json.RawMessage) {
	asked := map[taskPlace][]*task{}
	for _, raw := range ids {
		exposed, _ := wire.Text(raw)
		if t := c.e.tasks.find(c, exposed, true); t != nil {
			at := taskPlace{t.via, t.server}
			asked[at] = append(asked[at], t)
		}
	}
	for at, mine := range asked {
		var raws []json.RawMessage
		for _, t := range mine {
			raws = append(raws, wire.Quote(t.id))
		}
		params := wire.WithClient(wire.Set(nil, wire.Encode(raws), "notifications", "taskIds"), c.who)
		answered := make(chan json.RawMessage, 1)
		upstream.Go(func() {
			_, _ = at.via.scope.Do(ctx, at.server, server.Request{Method: wire.Listen, Params: params, Notify: func(m wire.Message) {
				switch m.Method {
				case wire.ListenAck:
					select {
					case answered <- wire.Get(m.Params, "notifications", "taskIds"):
					default:
					}
				case wire.TaskChanged:
					m = c.outwardNote(at.server, m)
					l.tell(m.Method, m.Params)
				}
			}})
			select {
			case answered <- nil: // it ended without agreeing to anything
			default:
			}
		})
		timer := time.NewTimer(taskAckPatience)
		var ack json.RawMessage
		select {
		case ack = <-answered:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		yes, _ := wire.Elements(ack)
		for _, t := range mine {
			if slices.ContainsFunc(yes, func(raw json.RawMessage) bool { id, _ := wire.Text(raw); return id == t.id }) {
				agreed = append(agreed, wire.Quote(t.exposed))
			}
		}
	}
	return agreed
}

// taskAckPatience is how long a stream's beginning waits for a server to say of which tasks it will tell.
const taskAckPatience = 5 * time.Second

// Tasks of the other direction: a server of 2025-11-25 may ask a client that can for tasks of its own.

// clientTask notes that the client made a task for a server's question.
func (c *client) clientTask(server string, answer json.RawMessage) {
	id, path, _ := created(answer)
	if path == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answers == nil {
		c.answers = map[string]string{}
	}
	if len(c.answers) < maxTasks {
		c.answers[id] = server
	}
}

// clientTaskOf is the server for which the client has a task.
func (c *client) clientTaskOf(id string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answers[id]
}

// untasked is a client's answer with the ids of its own servers' tasks as the server gave them.
func (c *client) untasked(server string, answer json.RawMessage) json.RawMessage {
	exposed, ok := wire.GetString(answer, "_meta", wire.MetaTask, "taskId")
	if id, mine := strings.CutPrefix(exposed, c.exposedTask(server, "")); ok && mine && c.e.p.Single == "" {
		return wire.Set(answer, wire.Quote(id), "_meta", wire.MetaTask, "taskId")
	}
	return answer
}

// askedOfTask says why a server may not ask this of the client's tasks: they may be another server's.
func (c *client) askedOfTask(server string, m wire.Message) *wire.RPCError {
	if !strings.HasPrefix(m.Method, "tasks/") || m.Method == wire.TasksList {
		return nil
	}
	if id, _ := wire.GetString(m.Params, "taskId"); c.clientTaskOf(id) != server {
		return noTask
	}
	return nil
}

// answerOfTasks is the client's answer about its tasks, without those of other servers.
func (c *client) answerOfTasks(server string, m wire.Message, answer json.RawMessage) json.RawMessage {
	if m.Method != wire.TasksList {
		return answer
	}
	kept := []json.RawMessage{}
	all, _ := wire.Elements(wire.Get(answer, "tasks"))
	for _, raw := range all {
		if id, _ := wire.GetString(raw, "taskId"); c.clientTaskOf(id) == server {
			kept = append(kept, raw)
		}
	}
	return wire.Set(answer, wire.Encode(kept), "tasks")
}
