package lab

import (
	"context"
	"encoding/json"
	"strings"
)

// mirror is what a request's params say of the answer to it, with Config.Mirror: text that the server sends as it stands, whatever
// the request's method. So a test can make a server say anything, byte for byte.
type mirror struct {
	// Frames are sent before the first answer. $TOKEN in them is the request's progress token. One with an id is a request of the server's, and
	// its answer is waited for. No frame may have a line break.
	Frames []string `json:"frames"`
	// Answers are the members of the answer's frame behind the id, such as `"result":{}`. The second is for a request that comes
	// again, with inputResponses.
	Answers []string `json:"answers"`
}

// reflect plays what the request's params ask for; false when they do not.
func (x *exchange) reflect(ctx context.Context) bool {
	if !x.Mirror {
		return false
	}
	var asked struct {
		Mirror *mirror `json:"mirror"`
	}
	_ = json.Unmarshal(x.Params, &asked) // what does not fit stays empty
	if asked.Mirror == nil || len(asked.Mirror.Answers) == 0 {
		return false
	}
	answer := asked.Mirror.Answers[0]
	if x.InputResponses != nil && len(asked.Mirror.Answers) > 1 {
		answer, asked.Mirror.Frames = asked.Mirror.Answers[1], nil
	}
	for _, frame := range asked.Mirror.Frames {
		frame = strings.ReplaceAll(frame, "$TOKEN", string(x.Meta.ProgressToken))
		var m message
		_ = json.Unmarshal([]byte(frame), &m)
		if m.ID == nil {
			x.raw([]byte(frame))
			continue
		}
		reply := make(chan message, 1)
		x.mu.Lock()
		x.pending[string(m.ID)] = reply
		x.mu.Unlock()
		x.raw([]byte(frame))
		select {
		case <-reply:
		case <-ctx.Done():
			return true
		}
	}
	x.raw([]byte(`{"jsonrpc":"2.0","id":` + string(x.ID) + `,` + answer + `}`))
	return true
}
