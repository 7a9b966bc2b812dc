package claude

import (
	"strings"

	"nightporter/internal/agent"
)

const (
	// openingBytes is how much of a block's beginning is kept: an activity is 120 characters
	// of at most four bytes.
	openingBytes = 512
	// endingBytes is how much of its end is kept: salvage is 500 characters.
	endingBytes = 2048
)

// writing is a block of text that the agent is writing: what of it may be needed.
type writing struct {
	opening string
	ending  string
	shown   bool // its opening was long enough when it was shown
}

func (w *writing) add(text string) {
	if room := openingBytes - len(w.opening); room > 0 {
		w.opening += text[:min(room, len(text))]
	}
	w.ending += text
	if over := len(w.ending) - endingBytes; over > endingBytes { // now and then, not at each piece
		w.ending = w.ending[over:]
	}
}

// stream takes a piece of a message that is being written. Pieces show what the agent does while it
// writes at length, tell a run that works from one that hangs, and are all that is left of
// a text when the run is killed in the middle of it.
func (d *dialogue) stream(h header, line []byte) []agent.Action {
	if h.Parent != "" {
		return nil // a subagent's
	}
	type usage struct {
		Input      int64 `json:"input_tokens"`
		CacheRead  int64 `json:"cache_read_input_tokens"`
		CacheWrite int64 `json:"cache_creation_input_tokens"`
		Output     int64 `json:"output_tokens"`
	}
	var e struct {
		Event struct {
			Type    string `json:"type"`
			Message struct {
				Usage usage `json:"usage"`
			} `json:"message"`
			Delta struct {
				Type string `json:"type"`
				Text string `json:"text"`
			} `json:"delta"`
			Usage usage `json:"usage"`
		} `json:"event"`
	}
	if !decode(line, &e) {
		d.skip(line)
		return nil
	}
	switch u := e.Event.Message.Usage; e.Event.Type {
	case "message_start":
		d.streamed.InputTokens += u.Input + u.CacheRead + u.CacheWrite
		return d.turn()
	case "message_delta":
		d.streamed.OutputTokens += e.Event.Usage.Output
		usage := d.streamed
		return []agent.Action{agent.Emit{Event: agent.Event{Kind: agent.EventUsage, Usage: &usage}}}
	case "content_block_start":
		d.writing = writing{}
	case "content_block_delta":
		if e.Event.Delta.Type != "text_delta" {
			return nil
		}
		first := strings.TrimSpace(d.writing.opening) == ""
		d.writing.add(e.Event.Delta.Text)
		// Shown at its first word, and once more when a line of it is there.
		full := !d.writing.shown && len(d.writing.opening) >= openingBytes/4
		if activity := agent.Activity(d.writing.opening); activity != "" && (first || full) {
			d.writing.shown = full
			return []agent.Action{agent.Emit{Event: agent.Event{Kind: agent.EventActivity, Activity: activity}}}
		}
	}
	return nil
}
