package lab

import (
	"bytes"
	"encoding/json"
)

// message is a JSON-RPC frame.
type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

// params is what the server reads of any request's params.
type params struct {
	Name            string          `json:"name"`
	URI             string          `json:"uri"`
	Cursor          string          `json:"cursor"`
	Arguments       json.RawMessage `json:"arguments"`
	ProtocolVersion string          `json:"protocolVersion"`
	RequestID       json.RawMessage `json:"requestId"`      // of notifications/cancelled
	InputResponses  json.RawMessage `json:"inputResponses"` // of a modern call that is made again
	Task            json.RawMessage `json:"task"`           // of a legacy call that is to be a task
	TaskID          string          `json:"taskId"`
	Meta            struct {
		ProgressToken json.RawMessage `json:"progressToken"`
		Capabilities  struct {
			Extensions map[string]json.RawMessage `json:"extensions"`
		} `json:"io.modelcontextprotocol/clientCapabilities"`
		Version string `json:"io.modelcontextprotocol/protocolVersion"`
	} `json:"_meta"`
	RawMeta json.RawMessage `json:"-"` // _meta as it came
}

func (m message) params() params {
	var p params
	_ = json.Unmarshal(m.Params, &p) // what does not fit stays empty
	var raw struct {
		Meta json.RawMessage `json:"_meta"`
	}
	_ = json.Unmarshal(m.Params, &raw)
	p.RawMeta = raw.Meta
	return p
}

type fields map[string]any

// encode is JSON on one line, with raw parts as they are.
func encode(v any) json.RawMessage {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return encode(fields{"error": err.Error()}) // a raw part of the Config that is not JSON
	}
	return bytes.TrimSpace(out.Bytes())
}

func (m message) bytes() []byte {
	m.JSONRPC = "2.0"
	return encode(m)
}

func rpcError(code int, text string) json.RawMessage {
	return encode(fields{"code": code, "message": text})
}
