// Package wire holds the frames of JSON-RPC 2.0 as MCP uses them, and reads the little
// of them that routing needs. Parameters, results and errors stay the bytes that the peer sent: a
// proxy that decodes them into types loses fields it does not know, changes large numbers, and fails whole
// lists for one odd entry (measured: facts/mcp.md, section 1.3).
package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// Message is one frame: a request (ID and Method), a notification (Method) or a response (ID, and Result or
// Error). All raw fields are valid JSON, as they came.
type Message struct {
	ID     json.RawMessage // a string or a number; nil in a notification
	Method string
	Params json.RawMessage // nil when there are none
	Result json.RawMessage
	Error  json.RawMessage
	Extra  json.RawMessage // members of the frame that JSON-RPC does not know, as `"key":value,…`; kept
}

// IsRequest reports whether an answer is expected.
func (m *Message) IsRequest() bool { return m.Method != "" && m.ID != nil }

// IsNotification reports whether m is a notification.
func (m *Message) IsNotification() bool { return m.Method != "" && m.ID == nil }

// IsResponse reports whether m answers a request.
func (m *Message) IsResponse() bool { return m.Method == "" }

// Parse reads one frame. The message shares memory with b.
//
// Batches (arrays) are not read: MCP has none since 2025-06-18 (docs/decisions/0012). What is no UTF-8, as JSON must be, is
// replaced by U+FFFD: peers end a connection at it, and with it all that others have on it.
func Parse(b []byte) (Message, error) {
	if !utf8.Valid(b) {
		b = bytes.ToValidUTF8(b, []byte("\uFFFD"))
	}
	members, err := Members(b)
	if _, list := Elements(b); err != nil && list == nil {
		return Message{}, errors.New("a batch is not taken: send each message by itself")
	}
	if err != nil {
		return Message{}, fmt.Errorf("not a JSON-RPC frame: %w", err)
	}
	// A frame whose method or id can be read in two ways could be checked as one thing and carried out as another.
	if err := unambiguous(members, "jsonrpc", "id", "method", "params", "result", "error"); err != nil {
		return Message{}, fmt.Errorf("not a JSON-RPC frame: %w", err)
	}
	var m Message
	version := false
	for _, member := range members {
		switch member.Key {
		case "jsonrpc":
			version = string(member.Value) == `"2.0"`
		case "id":
			// null answers a frame that could not be read; it is nobody's id.
			if c := member.Value[0]; c != '"' && c != '-' && (c < '0' || c > '9') && string(member.Value) != "null" {
				return Message{}, errors.New("not a JSON-RPC frame: the id is neither a string nor a number")
			}
			m.ID = member.Value
		case "method":
			name, ok := Text(member.Value)
			if !ok || name == "" {
				return Message{}, errors.New("not a JSON-RPC frame: the method is not a string")
			}
			m.Method = name
		case "params":
			if string(member.Value) != "null" {
				m.Params = member.Value
			}
		case "result":
			m.Result = member.Value
		case "error":
			m.Error = member.Value
		default:
			if m.Extra != nil {
				m.Extra = append(m.Extra, ',')
			}
			m.Extra = append(m.Extra, b[member.start:member.to]...)
		}
	}
	switch {
	case !version:
		return m, errors.New(`not a JSON-RPC frame: "jsonrpc" is not "2.0"`)
	case m.Method == "" && m.Result == nil && m.Error == nil:
		return m, errors.New("not a JSON-RPC frame: neither method, result nor error")
	case m.Method == "" && m.ID == nil:
		return m, errors.New("not a JSON-RPC frame: a response without id")
	case m.Method != "" && string(m.ID) == "null":
		return m, errors.New("not a JSON-RPC frame: the id of a request is null")
	}
	return m, nil
}

// AnswerID finds the id in a response that [Parse] does not take, such as one that was cut, as far as it can be read. It is nil when
// there is none before what is wrong, or a method.
func AnswerID(b []byte) json.RawMessage {
	var id json.RawMessage
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '{' {
		return nil
	}
	for {
		start := skipSpace(b, i+1)
		colon, err := scanKey(b, start)
		if err != nil {
			return id
		}
		end, _ := scanString(b, start)
		from := skipSpace(b, colon)
		to, err := scanValue(b, from)
		if err != nil {
			return id
		}
		switch unquote(b[start:end]) {
		case "method":
			return nil
		case "id":
			if c := b[from]; c == '"' || c == '-' || c >= '0' && c <= '9' {
				id = b[from:to:to]
			}
		}
		if i = skipSpace(b, to); i >= len(b) || b[i] != ',' {
			return id
		}
	}
}

// Append appends the frame to dst as one line, without newlines inside or at its end.
func (m *Message) Append(dst []byte) []byte {
	dst = append(dst, `{"jsonrpc":"2.0"`...)
	member := func(key string, value []byte) {
		if value != nil {
			dst = append(append(append(append(dst, `,"`...), key...), `":`...), oneLine(value)...)
		}
	}
	member("id", m.ID)
	if m.Method != "" {
		member("method", Quote(m.Method))
	}
	member("params", m.Params)
	member("result", m.Result)
	member("error", m.Error)
	if m.Extra != nil {
		dst = append(append(dst, ','), oneLine(m.Extra)...)
	}
	return append(dst, '}')
}

// oneLine returns value without line breaks, which in valid JSON stand only between tokens.
func oneLine(value []byte) []byte {
	if bytes.IndexByte(value, '\n') < 0 && bytes.IndexByte(value, '\r') < 0 {
		return value
	}
	line := bytes.Clone(value)
	for i, c := range line { // byte by byte: bytes.Map would make other bytes of what is no UTF-8
		if c == '\n' || c == '\r' {
			line[i] = ' '
		}
	}
	return line
}

// IntID is a request id of our own.
func IntID(n int64) json.RawMessage { return strconv.AppendInt(nil, n, 10) }

// Error codes of JSON-RPC 2.0 and MCP (specification 2026-07-28; the last of them also before).
const (
	CodeParse              = -32700
	CodeInvalidRequest     = -32600
	CodeMethodNotFound     = -32601
	CodeInvalidParams      = -32602
	CodeInternal           = -32603
	CodeServer             = -32000 // implementation-defined
	CodeResourceNotFound   = -32002 // until 2025-11-25; then -32602
	CodeHeaderMismatch     = -32020
	CodeMissingCapability  = -32021
	CodeUnsupportedVersion = -32022
)

// RPCError is the error member of a response. One that [AsRPCError] read stays what the peer sent, members that
// JSON-RPC does not know included: it is not to be changed but by [RPCError.WithCode].
type RPCError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`

	raw json.RawMessage // as it came; nil for an error of our own
}

func (e *RPCError) Error() string { return fmt.Sprintf("%s (code %d)", e.Message, e.Code) }

// Errorf makes an [RPCError].
func Errorf(code int, format string, args ...any) *RPCError {
	return &RPCError{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Raw is e as the error member of a frame: as it came, where it came from a peer.
func (e *RPCError) Raw() json.RawMessage {
	if e.raw != nil {
		return e.raw
	}
	return Encode(e)
}

// WithCode returns e with another code and every other byte as it was.
func (e *RPCError) WithCode(code int) *RPCError {
	changed := *e
	changed.Code = code
	if e.raw != nil {
		changed.raw = Set(e.raw, IntID(int64(code)), "code")
	}
	return &changed
}

// AsRPCError reads the error member of a response. It never returns nil: what cannot be
// read is an internal error that quotes it.
func AsRPCError(raw json.RawMessage) *RPCError {
	var e RPCError
	if err := json.Unmarshal(raw, &e); err != nil || e.Code == 0 && e.Message == "" {
		return Errorf(CodeInternal, "unreadable error: %.200s", raw)
	}
	e.raw = raw
	return &e
}
