package console

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"nightporter/client"
	"nightporter/internal/hub/store"
)

// maxItems bounds the timeline on one page; more of it is behind a link. A page of so many is some 500 KiB.
const maxItems = 1000

// timeline is what happened in a run.
type timeline struct {
	Items []item
	Last  int64 // the number of the last event that was read
	More  bool  // there are later ones
	Proof *proof
}

// item is one line of it.
type item struct {
	Seq     int64
	Time    time.Time
	Attempt int
	Kind    string // decides its look: note, text, tool, bad, good, ask
	What    string // words of ours
	Name    string // of a tool, host, file…
	Text    string // of others, whole
	Link    string
}

// proof is what a page shows of a boundary's proof.
type proof struct {
	Proven   bool     `json:"proven"`
	How      string   `json:"how"`
	Servers  []string `json:"servers"`
	Disabled []string `json:"disabled"`
	Failed   []string `json:"failed"`
	Notes    []string `json:"notes"`
	Tools    []string `json:"tools"`
	BuiltIn  []string `json:"built_in"`
	Rings    []struct {
		Name     string   `json:"name"`
		Planned  string   `json:"planned"`
		Enforced []string `json:"enforced"`
		Proven   string   `json:"proven"`
		Open     []string `json:"not_covered"`
	} `json:"rings"`
}

// told are the fields of all events that a line is made of; the rest is not shown.
type told struct {
	Agent     string          `json:"agent"`
	Text      string          `json:"text"`
	Author    string          `json:"author"`
	Tool      string          `json:"tool"`
	Activity  string          `json:"activity"`
	SessionID string          `json:"session_id"`
	Count     int64           `json:"count"`
	Host      string          `json:"host"`
	Reason    string          `json:"reason"`
	By        string          `json:"by"`
	Approval  string          `json:"approval"`
	Decision  string          `json:"decision"`
	Kind      string          `json:"kind"`
	File      string          `json:"file"`
	Name      string          `json:"name"`
	Status    string          `json:"status"`
	Proof     *proof          `json:"proof"`
	Round     int             `json:"round"`
	Servers   []string        `json:"servers"`
	Server    string          `json:"server"`
	Error     string          `json:"error"`
	Ready     []string        `json:"ready"`
	Failed    []string        `json:"failed"`
	Cancelled []string        `json:"cancelled"`
	Question  json.RawMessage `json:"question"`
	Usage     struct {
		Input  int64   `json:"input_tokens"`
		Output int64   `json:"output_tokens"`
		Cost   float64 `json:"cost_usd"`
	} `json:"usage"`
}

// lines say what an event is; an empty Kind is not shown. Events that are not here are shown by their names.
var lines = map[string]func(told) item{
	"message.accepted": func(e told) item { return item{Kind: "text", What: "Message", Name: e.Author, Text: e.Text} },
	"run.taken":        func(e told) item { return item{Kind: "note", What: "Taken by a host", Name: e.Host} },
	"run.requeued":     func(e told) item { return item{Kind: "bad", What: "Back in the queue", Text: e.Reason} },
	"run.cancel":       func(e told) item { return item{Kind: "bad", What: "Asked to stop", Text: e.Reason} },
	"run.started":      func(e told) item { return item{Kind: "note", What: "Started the agent", Name: e.Agent} },
	"run.proven": func(e told) item {
		it := item{Kind: "good", What: "Boundary proven", Link: "#proof"}
		if e.Proof != nil {
			it.Text = e.Proof.How
		}
		return it
	},
	"run.session":   func(e told) item { return item{Kind: "note", What: "Session", Name: e.SessionID} },
	"run.activity":  func(e told) item { return item{Kind: "note", What: e.Activity} },
	"run.text":      func(e told) item { return item{Kind: "text", What: "Wrote", Text: e.Text} },
	"run.tool":      func(e told) item { return item{Kind: "tool", What: "Called", Name: e.Tool} },
	"run.denied":    func(e told) item { return item{Kind: "bad", What: "Refused", Name: e.Tool} },
	"run.retry":     func(e told) item { return item{Kind: "bad", What: "The model's API is asked again", Text: e.Activity} },
	"run.heartbeat": func(told) item { return item{} },
	"run.usage": func(e told) item {
		return item{Kind: "note", What: fmt.Sprintf("Cost so far %s, %d tokens in, %d out", usd(e.Usage.Cost), e.Usage.Input, e.Usage.Output)}
	},
	"run.lost": func(e told) item {
		return item{Kind: "bad", What: fmt.Sprintf("%d events were left out here", e.Count)}
	},
	"run.finished": func(told) item { return item{Kind: "note", What: "The agent ended"} },
	"run.done": func(e told) item {
		if e.Status == "ok" {
			return item{Kind: "good", What: "Done", Name: e.Status}
		}
		return item{Kind: "bad", What: "Done", Name: e.Status}
	},
	"starting.batch": func(e told) item {
		return item{Kind: "note", What: round(e) + "starting", Name: strings.Join(e.Servers, ", ")}
	},
	"ready":     func(e told) item { return item{Kind: "good", What: round(e) + "ready", Name: e.Server} },
	"failed":    func(e told) item { return item{Kind: "bad", What: round(e) + "failed", Name: e.Server, Text: e.Error} },
	"cancelled": func(e told) item { return item{Kind: "bad", What: round(e) + "cancelled", Name: e.Server} },
	"round.complete": func(e told) item {
		return item{Kind: "note", What: round(e) + fmt.Sprintf("complete: %d ready, %d failed, %d cancelled", len(e.Ready), len(e.Failed), len(e.Cancelled))}
	},
	"approval.asked": func(e told) item {
		it := item{Kind: "ask", What: "Waits for a person to approve", Link: "/approvals/" + e.Approval}
		var q struct{ Server, Tool, Text string }
		_ = json.Unmarshal(e.Question, &q) // what is not understood is on the approval's own page
		if it.Name = q.Tool; q.Server != "" {
			it.Name = "mcp__" + q.Server + "__" + q.Tool
		}
		if e.Kind == "question" {
			it.What, it.Text = "Asks a person", q.Text
		}
		return it
	},
	"approval.answered": func(e told) item {
		return item{Kind: "ask", What: "A person said: " + e.Decision, Name: e.By, Text: e.Reason, Link: "/approvals/" + e.Approval}
	},
	"update.posted": func(e told) item { return item{Kind: "text", What: "Update", Text: e.Text} },
	"file.attached": func(e told) item { return item{Kind: "note", What: "Attached", Name: e.Name, Link: "/files/" + e.File} },
}

func round(e told) string { return fmt.Sprintf("Start-up round %d: ", e.Round) }

// timeline reads the events of a run behind one.
func (c *Console) timeline(ctx context.Context, run string, after int64) (timeline, error) {
	t := timeline{Last: after}
	for {
		events, err := c.store.RunEvents(ctx, run, t.Last, 0)
		if err != nil {
			return t, err
		}
		for _, e := range events {
			if len(t.Items) == maxItems {
				t.More = true
				break
			}
			t.Last = e.Seq
			t.add(e)
		}
		if t.More || len(events) < store.MaxPage {
			break
		}
	}
	if after > 0 && t.Proof == nil { // the proof stands at the beginning
		head, err := c.store.RunEvents(ctx, run, 0, 0)
		if err != nil {
			return t, err
		}
		var begin timeline
		for _, e := range head {
			begin.add(e)
		}
		t.Proof = begin.Proof
	}
	return t, nil
}

func (t *timeline) add(e client.Event) {
	var data told
	err := json.Unmarshal(e.Data, &data)
	line, known := lines[e.Type]
	it := item{Kind: "note", What: e.Type, Text: string(e.Data)}
	if known && (err == nil || len(e.Data) == 0) {
		it = line(data)
	}
	if data.Proof != nil && e.Type == "run.proven" {
		t.Proof = data.Proof
	}
	if it.Kind == "" {
		return
	}
	it.Seq, it.Time, it.Attempt = e.Seq, e.Time, e.Attempt
	t.Items = append(t.Items, it)
}
