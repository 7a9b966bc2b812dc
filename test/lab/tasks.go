package lab

import (
	"context"
	"encoding/json"
	"maps"
	"strconv"
	"sync"
	"time"
)

// Tasks as both eras know them: of 2025-11-25, whose client asks for one with `task`, and of the extension
// io.modelcontextprotocol/tasks of 2026-07-28, whose server decides. A tool takes part by execution.taskSupport in its definition. Ids are
// task-1, task-2, …, so that those of two servers are equal.

const (
	taskExtension = "io.modelcontextprotocol/tasks"
	relatedTask   = "io.modelcontextprotocol/related-task"
	defaultTTL    = 60000 // ms
)

// TaskTool is a definition of a tool for Config.Tools that may ("optional") or must ("required") run as a task.
func TaskTool(name, support string) json.RawMessage {
	return encode(fields{
		"name": name, "description": "The lab's tool " + name + ".", "inputSchema": fields{"type": "object"},
		"execution": fields{"taskSupport": support},
	})
}

// task is one task. Its state is under server.mu.
type task struct {
	id       string
	modern   bool
	status   string
	created  time.Time
	updated  time.Time
	ttl      int // ms
	result   json.RawMessage
	err      json.RawMessage
	inputs   map[string]json.RawMessage      // questions that are not answered, of modern tasks
	answers  map[string]chan json.RawMessage // to those; each has room for one
	asked    int
	done     chan struct{} // closed at the end
	cancel   context.CancelFunc
	finished bool
}

// taskSupport is what a tool's definition says; empty: nothing.
func (s *server) taskSupport(tool string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, raw := range s.tools {
		var t struct {
			Name      string
			Execution struct{ TaskSupport string }
		}
		if json.Unmarshal(raw, &t) == nil && t.Name == tool {
			return t.Execution.TaskSupport
		}
	}
	return ""
}

// asTask answers a call with a task where that is to be; true when it did, or refused the call.
func (x *exchange) asTask() bool {
	if !x.Tasks {
		return false
	}
	support := x.taskSupport(x.Name)
	supported := support == "optional" || support == "required"
	if x.modern {
		_, declared := x.Meta.Capabilities.Extensions[taskExtension]
		switch {
		case !supported, !declared && support == "optional":
			return false
		case !declared:
			x.send(message{ID: x.ID, Error: missingTasks()})
			return true
		case x.Name == "test_tool_with_task" && x.InputResponses == nil:
			return false // it asks before it is a task
		}
	} else {
		asked := x.Task != nil
		switch {
		case asked && !supported, !asked && support == "required":
			x.fail(-32601, "tool "+x.Name+" and tasks: "+support)
			return true
		case !asked:
			return false
		}
	}
	x.answerWithTask()
	return true
}

func missingTasks() json.RawMessage {
	return encode(fields{
		"code": -32021, "message": "Missing required client capability",
		"data": fields{"requiredCapabilities": fields{"extensions": fields{taskExtension: fields{}}}},
	})
}

func (x *exchange) answerWithTask() {
	ctx, cancel := context.WithCancel(context.Background())
	now := time.Now().UTC()
	t := &task{
		modern: x.modern, status: "working", created: now, updated: now, ttl: defaultTTL, done: make(chan struct{}), cancel: cancel,
		inputs: map[string]json.RawMessage{}, answers: map[string]chan json.RawMessage{},
	}
	var asked struct{ TTL int }
	if json.Unmarshal(x.Task, &asked) == nil && asked.TTL > 0 {
		t.ttl = asked.TTL
	}
	x.mu.Lock()
	t.id = "task-" + strconv.Itoa(len(x.allTasks)+1)
	x.allTasks = append(x.allTasks, t)
	seed := t.describe()
	x.mu.Unlock()
	if x.modern {
		seed["resultType"] = "task"
		x.result(seed)
	} else {
		x.result(fields{"task": seed})
	}
	run := *x
	run.task = t
	run.send = func(m message) {
		if m.Method == "" {
			x.end(t, m)
			return
		}
		var params map[string]json.RawMessage
		_ = json.Unmarshal(m.Params, &params)
		var meta map[string]json.RawMessage
		_ = json.Unmarshal(params["_meta"], &meta)
		if meta == nil {
			meta = map[string]json.RawMessage{}
		}
		meta[relatedTask] = encode(fields{"taskId": t.id})
		params["_meta"] = encode(meta)
		m.Params = encode(params)
		x.broadcast(m)
	}
	go func() { // ends with the tool, or with the process
		defer cancel()
		run.callTool(ctx)
	}()
}

// broadcast sends what belongs to no request of a session to its clients.
func (s *server) broadcast(m message) {
	for _, to := range s.everySink() {
		if to.subscription == nil {
			to.send(m)
		}
	}
}

func (s *server) everySink() []*sink {
	s.mu.Lock()
	defer s.mu.Unlock()
	sinks := make([]*sink, 0, len(s.sinks))
	for to := range maps.Keys(s.sinks) {
		sinks = append(sinks, to)
	}
	return sinks
}

// describe is the task's state in the form of its era. server.mu is held.
func (t *task) describe() fields {
	d := fields{
		"taskId": t.id, "status": t.status,
		"createdAt": t.created.Format(time.RFC3339), "lastUpdatedAt": t.updated.Format(time.RFC3339),
	}
	if !t.modern {
		d["ttl"], d["pollInterval"] = t.ttl, 50
		return d
	}
	d["ttlMs"], d["pollIntervalMs"] = t.ttl, 50
	switch t.status {
	case "input_required":
		d["inputRequests"] = maps.Clone(t.inputs)
	case "completed":
		d["result"] = t.result
	case "failed":
		d["error"] = t.err
	}
	return d
}

// set changes a task's status and tells who listens.
func (s *server) set(t *task, status string) {
	s.mu.Lock()
	if t.finished {
		s.mu.Unlock()
		return
	}
	t.status, t.updated = status, time.Now().UTC()
	switch status {
	case "completed", "failed", "cancelled":
		t.finished = true
		close(t.done)
	}
	state := t.describe()
	s.mu.Unlock()
	for _, to := range s.everySink() {
		switch {
		case to.subscription == nil && !t.modern:
			to.send(message{Method: "notifications/tasks/status", Params: encode(state)})
		case to.subscription != nil && t.modern && to.tasks[t.id]:
			told := maps.Clone(state)
			told["_meta"] = to.subscription
			to.send(message{Method: "notifications/tasks", Params: encode(told)})
		}
	}
}

// end takes the tool's answer.
func (s *server) end(t *task, answer message) {
	s.mu.Lock()
	t.result, t.err = answer.Result, answer.Error
	s.mu.Unlock()
	if answer.Error != nil {
		s.set(t, "failed")
	} else {
		s.set(t, "completed")
	}
}

// input puts a modern task's question and waits for the answer.
func (x *exchange) input(ctx context.Context, method string, params any) (json.RawMessage, error) {
	t := x.task
	answer := make(chan json.RawMessage, 1)
	x.mu.Lock()
	t.asked++
	key := "input-" + strconv.Itoa(t.asked)
	t.inputs[key] = encode(fields{"method": method, "params": params})
	t.answers[key] = answer
	x.mu.Unlock()
	x.set(t, "input_required")
	select {
	case a := <-answer:
		return a, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// question asks the client in the way of the task's era, and returns what it said.
func (x *exchange) question(ctx context.Context, method string, params fields) (json.RawMessage, error) {
	if x.modern {
		return x.input(ctx, method, params)
	}
	x.set(x.task, "input_required")
	defer x.set(x.task, "working")
	answer, err := x.ask(ctx, method, params)
	if answer.Error != nil {
		return answer.Error, err
	}
	return answer.Result, err
}

// questions asks n things at once and says what the client said.
func (x *exchange) questions(ctx context.Context, n int) {
	if x.task == nil { // by a client that takes no tasks
		method, params := asks["elicit"](arguments{})
		x.askThenSay(ctx, method, params)
		return
	}
	answers := make([]json.RawMessage, n)
	var asking sync.WaitGroup
	for i := range n {
		asking.Go(func() {
			method, params := asks["elicit"](arguments{})
			params["message"] = "Question " + strconv.Itoa(i+1)
			answers[i], _ = x.question(ctx, method, params) // an error is the end of the task
		})
	}
	asking.Wait()
	if ctx.Err() == nil {
		x.say(string(encode(answers)))
	}
}

func (s *server) findTask(id string, modern bool) *task {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.allTasks {
		if t.id == id && t.modern == modern {
			return t
		}
	}
	return nil
}

// onTask answers the requests about tasks; false when there is none of the name.
func (x *exchange) onTask(ctx context.Context) bool {
	if !x.Tasks {
		return false
	}
	known := map[string]bool{"tasks/get": true, "tasks/cancel": true, "tasks/update": x.modern, "tasks/result": !x.modern, "tasks/list": !x.modern}
	if !known[x.Method] {
		return false
	}
	if _, declared := x.Meta.Capabilities.Extensions[taskExtension]; x.modern && !declared {
		x.send(message{ID: x.ID, Error: missingTasks()})
		return true
	}
	if x.Method == "tasks/list" {
		listed := []fields{}
		x.mu.Lock()
		for _, t := range x.allTasks {
			if !t.modern {
				listed = append(listed, t.describe())
			}
		}
		x.mu.Unlock()
		x.result(fields{"tasks": listed})
		return true
	}
	t := x.findTask(x.TaskID, x.modern)
	if t == nil {
		x.fail(-32602, "no task "+x.TaskID)
		return true
	}
	switch x.Method {
	case "tasks/get":
		x.result(x.state(t))
	case "tasks/cancel":
		x.cancelTask(t)
	case "tasks/update":
		x.update(t)
		x.result(fields{})
	case "tasks/result":
		x.taskResult(ctx, t)
	}
	return true
}

func (x *exchange) state(t *task) fields {
	x.mu.Lock()
	defer x.mu.Unlock()
	return t.describe()
}

func (x *exchange) cancelTask(t *task) {
	x.mu.Lock()
	finished := t.finished
	x.mu.Unlock()
	if finished && !x.modern {
		x.fail(-32602, "the task has ended")
		return
	}
	x.set(t, "cancelled")
	t.cancel()
	if x.modern {
		x.result(fields{})
		return
	}
	x.result(x.state(t))
}

// update takes answers to a modern task's questions.
func (x *exchange) update(t *task) {
	var responses map[string]json.RawMessage
	_ = json.Unmarshal(x.InputResponses, &responses)
	x.mu.Lock()
	for key, response := range responses {
		if answer := t.answers[key]; answer != nil {
			answer <- response
			delete(t.answers, key)
			delete(t.inputs, key)
		}
	}
	resumed := len(t.inputs) == 0 && t.status == "input_required"
	x.mu.Unlock()
	if resumed {
		x.set(t, "working")
	}
}

func (x *exchange) taskResult(ctx context.Context, t *task) {
	select {
	case <-t.done:
	case <-ctx.Done():
		return
	}
	x.mu.Lock()
	result, rpcError := t.result, t.err
	x.mu.Unlock()
	switch {
	case rpcError != nil:
		x.send(message{ID: x.ID, Error: rpcError})
	case result == nil:
		x.fail(-32000, "the task was cancelled")
	default:
		var object map[string]json.RawMessage
		_ = json.Unmarshal(result, &object)
		object["_meta"] = encode(fields{relatedTask: fields{"taskId": t.id}})
		x.send(message{ID: x.ID, Result: encode(object)})
	}
}
