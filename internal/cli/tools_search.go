package cli

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"nightporter/internal/mcp/runtime"
	"nightporter/internal/mcp/search"
	"nightporter/internal/mcp/wire"
)

type toolsSearchCmd struct {
	grantFlags
	Query []string `arg:"" help:"What the tool should do, in a few words."`
	Limit int      `default:"20" placeholder:"N" help:"Print this many at most. Default: 20."`
	JSON  bool     `name:"json" help:"Print an object: how many tools fit, and the best of them with their scores."`
}

func (*toolsSearchCmd) Help() string {
	return `Words are looked for in the names, titles, descriptions and parameters of tools, as clients with exposure =
"search" do it. The catalogs on disk are searched: no server is started, and one without a catalog is named.

Examples:

	nightporter tools search create an issue
	nightporter tools search "send mail" --server office --limit 5 --json`
}

// searched is the answer of tools search --json.
type searched struct {
	Total   int         `json:"total"` // how many fit
	Tools   []foundTool `json:"tools"` // the best first
	Unknown []string    `json:"unknown"`
}

type foundTool struct {
	Server     string          `json:"server"`
	Tool       string          `json:"tool"`
	Score      float64         `json:"score"`
	Definition json.RawMessage `json:"definition"`
}

func (c *toolsSearchCmd) Run(a *app) error {
	if c.Limit < 1 {
		return usage("leave it out for 20", "--limit must be at least 1")
	}
	return c.show(a, c.JSON, func(ctx context.Context, scope *runtime.Scope) error {
		answer, err := c.search(ctx, scope)
		if err != nil {
			return err
		}
		if c.JSON {
			return writeJSON(a.stdout, answer)
		}
		for _, name := range answer.Unknown {
			a.say("left out: server %s has no catalog yet; nightporter tools list --server %s makes one", name, name)
		}
		if answer.Total > len(answer.Tools) {
			a.say("%d tools fit; the best %d:", answer.Total, len(answer.Tools))
		}
		t := newTable(a.stdout, "SERVER", "TOOL", "SCORE", "DESCRIPTION")
		for _, f := range answer.Tools {
			description, _ := wire.GetString(f.Definition, "description")
			t.row(oneLine(f.Server), oneLine(f.Tool), strconv.FormatFloat(f.Score, 'f', 1, 64), shortened(oneLine(description)))
		}
		return t.flush()
	})
}

// search looks for tools in what the catalogs have.
func (c *toolsSearchCmd) search(ctx context.Context, scope *runtime.Scope) (answer searched, err error) {
	answer = searched{Tools: []foundTool{}, Unknown: []string{}}
	for _, st := range scope.Status() {
		if st.State == runtime.StateStopped {
			answer.Unknown = append(answer.Unknown, st.Server)
		}
	}
	index, err := search.New()
	if err != nil {
		return answer, err
	}
	defer index.Close()
	var tools []search.Tool
	names := map[string]string{}
	for _, t := range scope.Tools() {
		name := t.Server + " " + t.Name // of two servers, which may have one each
		names[name] = t.Name
		tools = append(tools, search.Tool{Server: t.Server, Name: name, Raw: t.Raw})
	}
	if err := index.Update(ctx, tools); err != nil {
		return answer, err
	}
	query := strings.Join(c.Query, " ")
	hits, total, err := index.Find(ctx, query, "", c.Limit)
	if errors.Is(err, search.ErrNoWords) {
		return answer, usage(`for example: nightporter tools search create an issue`, "%q has no word to look for", query)
	}
	answer.Total = total
	for _, h := range hits {
		answer.Tools = append(answer.Tools, foundTool{h.Server, names[h.Name], h.Score, h.Raw})
	}
	return answer, err
}
