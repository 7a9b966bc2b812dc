// Package approval says how a person is asked whether one call of a tool may be made: the question, what binds an answer to
// it, and the answer.
//
// Who asks is elsewhere: package runtime for tools of MCP servers, package run for an agent's own. Who carries the question to a person is a
// [Func]: a program of the operator's (package hook below), later the hub's console.
package approval

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Question is one call that wants a person's approval.
type Question struct {
	Run          string // the run's id; empty: the call is none of a run's
	Client       string // who makes the call, for people
	Conversation string // the key of the run's conversation; empty: none
	Agent        string // the agent of the run; empty as Run is
	Server       string // the MCP server; empty: the tool is the agent's own
	Tool         string // raw name
	// Arguments are those that the call will be made with, byte for byte; nil: it has none.
	Arguments json.RawMessage
	// InputResponses are what the client answered to questions of the server about the same call, which go with it; nil: none.
	InputResponses json.RawMessage
	Description    string          // of the tool, as its server gives it; empty: none
	Annotations    json.RawMessage // likewise, an object of hints that nothing vouches for; nil: none
	Authority      string          // digest of the authority that the call was issued under
}

// Name is the tool's name for people, as in an outcome's denials.
func (q Question) Name() string {
	if q.Server == "" {
		return q.Tool
	}
	return "mcp__" + q.Server + "__" + q.Tool
}

// Answer is what came of a question. Whatever is not an approval is a denial.
type Answer struct {
	Approved bool
	Reason   string        // why; of a denial never empty
	By       string        // who decided, for people
	Waited   time.Duration // how long it took
}

// String is the answer as records have it.
func (a Answer) String() string {
	word := "denied"
	if a.Approved {
		word = "approved"
	}
	return word + " by " + a.By
}

// Func asks. It does not return before the question is over, which it bounds in time by itself; ending ctx ends it. An answer holds for the one call
// that was asked about and is kept by nobody.
type Func func(ctx context.Context, q Question) Answer

// asked is a question as JSON, without its digest and its arguments.
type asked struct {
	ID           string          `json:"id"`
	Run          string          `json:"run,omitempty"`
	Client       string          `json:"client"`
	Conversation string          `json:"conversation,omitempty"`
	Agent        string          `json:"agent,omitempty"`
	Server       string          `json:"server,omitempty"`
	Tool         string          `json:"tool"`
	Description  string          `json:"description,omitempty"`
	Annotations  json.RawMessage `json:"annotations,omitempty"`
	Authority    string          `json:"authority"`
	Responses    json.RawMessage `json:"input_responses,omitempty"`
	Deadline     time.Time       `json:"deadline"`
}

// Sheet is a question as it is put to somebody.
type Sheet struct {
	JSON   []byte // one object; its last member is the arguments, byte for byte as they are
	Digest string // names the question; also in JSON
}

// Write puts a question on a sheet. The digest is that of the very bytes of the object without it: whatever in it were
// another, or asked at another time, would have another digest.
func (q Question) Write(deadline time.Time) (Sheet, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(asked{
		rand.Text(), q.Run, q.Client, q.Conversation, q.Agent, q.Server, q.Tool, q.Description, q.Annotations, q.Authority, q.InputResponses, deadline.UTC(),
	})
	if err != nil {
		return Sheet{}, fmt.Errorf("write the question: %w", err)
	}
	object := bytes.TrimRight(b.Bytes(), "}\n")
	if len(q.Arguments) > 0 {
		if !json.Valid(q.Arguments) {
			return Sheet{}, errors.New("write the question: the call's arguments are no JSON")
		}
		object = append(append(object, `,"arguments":`...), q.Arguments...)
	}
	object = append(object, '}')
	sum := sha256.Sum256(object)
	digest := hex.EncodeToString(sum[:])
	return Sheet{append([]byte(`{"digest":"`+digest+`",`), append(object[1:], '\n')...), digest}, nil
}

// Bounds of what an answer says, in bytes. They reach an agent's model, events and the audit record.
const (
	maxReason = 1 << 10
	maxBy     = 200
)

// ReadAnswer reads an answer to a sheet: one JSON object with "decision", approve or deny, the sheet's "digest", and where they are given
// "reason" and "by". The error says what else it is: then nobody has decided.
func (s Sheet) ReadAnswer(data []byte) (Answer, error) {
	fields, err := texts(data)
	if err != nil {
		return Answer{}, err
	}
	a := Answer{Reason: cut(fields["reason"], maxReason), By: cut(fields["by"], maxBy)}
	switch {
	case fields["digest"] == "":
		return Answer{}, errors.New("it has no digest: give back that of the question")
	case fields["digest"] != s.Digest:
		return Answer{}, errors.New("its digest is not that of this question")
	case fields["decision"] == "approve":
		a.Approved = true
	case fields["decision"] == "deny":
		if a.Reason == "" {
			a.Reason = "no reason was given"
		}
	default:
		return Answer{}, fmt.Errorf("its decision is %q, which is neither approve nor deny", cut(fields["decision"], 40))
	}
	return a, nil
}

// texts reads one JSON object whose members are texts, of those that an answer has, each at most once: what is meant by anything else is not ours to guess.
func texts(data []byte) (map[string]string, error) {
	fail := errors.New("it is not one JSON object of texts")
	d := json.NewDecoder(bytes.NewReader(data))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil, fail
	}
	fields := map[string]string{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, fail
		}
		name, _ := key.(string)
		switch name {
		case "decision", "digest", "reason", "by":
		default:
			return nil, fmt.Errorf("it has a member %q, which nothing reads", cut(name, 40))
		}
		if _, twice := fields[name]; twice {
			return nil, fmt.Errorf("it has two members %q", name)
		}
		value, err := d.Token()
		text, ok := value.(string)
		if err != nil || !ok {
			return nil, fmt.Errorf("its member %q is not a text", name)
		}
		fields[name] = text
	}
	if _, err := d.Token(); err != nil {
		return nil, fail
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows its JSON object")
	}
	return fields, nil
}

// cut bounds a text. What was cut off is shown as …
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return string(bytes.ToValidUTF8([]byte(text[:most]), nil)) + "…"
}
