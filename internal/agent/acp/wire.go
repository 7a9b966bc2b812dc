package acp

import (
	"bytes"
	"encoding/json"
	"errors"

	"nightporter/internal/agent"
)

// protocolVersion is the version of the protocol that is spoken.
const protocolVersion = 1

// Error codes of the protocol (schema v1, ErrorCode).
const (
	codeMethodNotFound = -32601
	codeAuthRequired   = -32000
	codeNotFound       = -32002 // a session, among others
	codeUnauthorised   = 401    // what Gemini CLI said before it took codeAuthRequired
)

// message is any message of the agent.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *fault          `json:"error"`
}

// fault is the error of a response.
type fault struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

func (f *fault) auth() bool { return f.Code == codeAuthRequired || f.Code == codeUnauthorised }

// initialized is the answer to initialize.
type initialized struct {
	Version      int `json:"protocolVersion"`
	Capabilities struct {
		LoadSession bool `json:"loadSession"`
		MCP         struct {
			HTTP bool `json:"http"`
		} `json:"mcpCapabilities"`
		Session struct {
			Resume json.RawMessage `json:"resume"` // an object: it can
		} `json:"sessionCapabilities"`
	} `json:"agentCapabilities"`
	Agent struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	} `json:"agentInfo"`
	AuthMethods []authMethod `json:"authMethods"`
}

// resume is the method that continues a session: session/resume, session/load, which repeats the whole history first, or none.
func (i *initialized) resume() string {
	switch resume := i.Capabilities.Session.Resume; {
	case len(resume) > 0 && !bytes.Equal(resume, []byte("null")) && !bytes.Equal(resume, []byte("false")):
		return methodResume
	case i.Capabilities.LoadSession:
		return methodLoad
	}
	return ""
}

type authMethod struct {
	ID   string `json:"id"`
	Type string `json:"type"` // empty: the agent sees to it itself, most often in a browser
	Vars []struct {
		Name     string `json:"name"`
		Optional bool   `json:"optional"`
	} `json:"vars"` // of type env_var
}

// keyOf says which variable makes a method of no type ready that needs nobody: what such a method does is not in
// the protocol, and most others open a browser.
var keyOf = map[string]string{
	"gemini-api-key": "GEMINI_API_KEY", // Gemini CLI
	"openai-api-key": "OPENAI_API_KEY", // codex-acp
	"codex-api-key":  "CODEX_API_KEY",  // codex-acp
}

// ready reports whether the method needs nobody with this environment.
func (m authMethod) ready(env []string) bool {
	if variable, ok := keyOf[m.ID]; ok {
		return agent.Getenv(env, variable) != ""
	}
	if m.Type != "env_var" || len(m.Vars) == 0 {
		return false
	}
	for _, v := range m.Vars {
		if !v.Optional && agent.Getenv(env, v.Name) == "" {
			return false
		}
	}
	return true
}

// opened is the answer to session/new, session/load or session/resume.
type opened struct {
	SessionID string `json:"sessionId"`
	Modes     *modes `json:"modes"`
}

// modes are those in which an agent can work.
type modes struct {
	Current   string `json:"currentModeId"`
	Available []struct {
		ID string `json:"id"`
	} `json:"availableModes"`
}

// asking is the mode in which the agent is known to ask before it acts; empty: there is none.
func (m *modes) asking() string {
	for _, id := range askingModes {
		for _, mode := range m.Available {
			if mode.ID == id {
				return id
			}
		}
	}
	return ""
}

// turned is the answer to session/prompt. Usage is of this turn (measured on claude-agent-acp 0.101.0; not in the stable schema).
type turned struct {
	StopReason string `json:"stopReason"`
	Usage      *struct {
		Input       int64 `json:"inputTokens"`
		Output      int64 `json:"outputTokens"`
		CachedRead  int64 `json:"cachedReadTokens"`
		CachedWrite int64 `json:"cachedWriteTokens"`
	} `json:"usage"`
}

// toolCall is a tool call, or what is new of it.
type toolCall struct {
	ID    string          `json:"toolCallId"`
	Name  string          `json:"name"`  // of the tool; the title is for people, and holds what the model wrote
	Title string          `json:"title"` // "touch x; date" of a Bash call (measured)
	Kind  string          `json:"kind"`
	State string          `json:"status"`
	Input json.RawMessage `json:"rawInput"`
}

// update is the update of a session/update.
type update struct {
	Kind      string          `json:"sessionUpdate"`
	MessageID string          `json:"messageId"`
	Content   json.RawMessage `json:"content"` // a block of a message; a list of a tool call
	ModeID    string          `json:"currentModeId"`
	Cost      *struct {
		Amount   float64 `json:"amount"` // of the session
		Currency string  `json:"currency"`
	} `json:"cost"`
	toolCall
}

// text is the text of a message's block, and empty for images and the like.
func (u *update) text() string {
	var block struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if !decode(u.Content, &block) || block.Type != "text" {
		return ""
	}
	return block.Text
}

type object = map[string]any

// write is a line of input. What is written are maps, strings, numbers and raw JSON that was read: they marshal.
func write(m object) agent.Action {
	m["jsonrpc"] = "2.0"
	data, _ := json.Marshal(m)
	return agent.Write{Data: append(data, '\n')}
}

// decode reads JSON into v and reports whether it is JSON. A field of an unexpected type is left as it was: what a
// message holds beside what is read must not make it unreadable.
func decode(data []byte, v any) bool {
	err := json.Unmarshal(data, v)
	var mistyped *json.UnmarshalTypeError
	return err == nil || errors.As(err, &mistyped)
}

// kindOfHead finds the method of a message, and of a session/update its kind, of which only the head is there. What is not
// in it is empty.
func kindOfHead(head []byte) (method, kind string) {
	dec := json.NewDecoder(bytes.NewReader(head))
	// walk goes through an object and into those of its members that path names, and hands out their strings.
	var walk func(below string) bool
	walk = func(below string) bool {
		if open, err := dec.Token(); err != nil || open != json.Delim('{') {
			return false
		}
		for dec.More() {
			token, err := dec.Token()
			key, ok := token.(string)
			if err != nil || !ok {
				return false
			}
			switch path := below + key; path {
			case "params", "params.update":
				if !walk(path + ".") {
					return false
				}
			default:
				var value json.RawMessage
				if dec.Decode(&value) != nil {
					return false
				}
				switch path {
				case "method":
					_ = json.Unmarshal(value, &method)
				case "params.update.sessionUpdate":
					_ = json.Unmarshal(value, &kind)
				}
			}
		}
		_, err := dec.Token()
		return err == nil
	}
	walk("")
	return method, kind
}
