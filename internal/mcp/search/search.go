// Package search finds tools by words: BM25 over their names, titles, descriptions and parameters, on an FTS5 index of
// SQLite that is held in memory. Words are stemmed (Porter) and names are cut into words, so that "creating issues" finds create_issue and
// createIssue.
package search

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	_ "modernc.org/sqlite" // the driver, with FTS5 compiled in

	"nightporter/internal/mcp/wire"
)

// Tool is one tool that can be found.
type Tool struct {
	Server string
	Name   string          // under which it is found; no two of an index have the same
	Raw    json.RawMessage // the definition as its server sent it; it is kept, not copied
}

// Hit is a tool that was found.
type Hit struct {
	Tool
	// Score tells how well it fits: larger is better. Scores of one answer can be compared, others not.
	Score float64
}

// Index finds among tools. It is safe for concurrent use. Its owner closes it.
type Index struct {
	db     *sql.DB
	insert *sql.Stmt
	remove *sql.Stmt
	find   *sql.Stmt
	count  *sql.Stmt

	mu    sync.RWMutex
	rows  map[string]int64 // by name
	tools map[int64]Tool
	last  int64
}

// The weights of the columns, in their order: a word in the name says more than one in the description of a parameter.
const ranking = "bm25(tools, 10.0, 5.0, 2.0, 1.0)"

// New makes an empty index.
func New() (_ *Index, err error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, fmt.Errorf("make an index of tools: %w", err)
	}
	db.SetMaxOpenConns(1) // each connection to :memory: is a database of its own
	x := &Index{db: db, rows: map[string]int64{}, tools: map[int64]Tool{}}
	defer func() {
		if err != nil {
			db.Close()
		}
	}()
	// Contents are not kept a second time: tools are looked up by their row.
	const table = `CREATE VIRTUAL TABLE tools USING fts5(name, title, description, parameters, server UNINDEXED,
		content='', contentless_delete=1, contentless_unindexed=1, tokenize="porter unicode61 remove_diacritics 2")`
	if _, err := db.Exec(table); err != nil {
		return nil, fmt.Errorf("make an index of tools: %w", err)
	}
	// An empty server is every server.
	const found = ` FROM tools WHERE tools MATCH ?1 AND (?2 = '' OR server = ?2)`
	for _, s := range []struct {
		into **sql.Stmt
		text string
	}{
		{&x.insert, "INSERT INTO tools(rowid, name, title, description, parameters, server) VALUES (?, ?, ?, ?, ?, ?)"},
		{&x.remove, "DELETE FROM tools WHERE rowid = ?"},
		{&x.find, "SELECT rowid, " + ranking + " AS score" + found + " ORDER BY score, rowid LIMIT ?3"},
		{&x.count, "SELECT count(*)" + found},
	} {
		if *s.into, err = db.Prepare(s.text); err != nil {
			return nil, fmt.Errorf("make an index of tools: %w", err)
		}
	}
	return x, nil
}

// Close gives the index's memory back. No other method may be called after it.
func (x *Index) Close() error {
	return x.db.Close() // and its statements
}

// Update makes tools all that can be found. Only what differs from before is indexed. Of two with one name the first counts.
func (x *Index) Update(ctx context.Context, tools []Tool) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	tx, err := x.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("index tools: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit there is nothing to roll back
	rows, kept := make(map[string]int64, len(tools)), make(map[int64]Tool, len(tools))
	last := x.last
	insert := tx.StmtContext(ctx, x.insert)
	for _, t := range tools {
		if _, twice := rows[t.Name]; twice {
			continue
		}
		row, ok := x.rows[t.Name]
		if before := x.tools[row]; !ok || before.Server != t.Server || string(before.Raw) != string(t.Raw) {
			last++
			row = last
			d := describe(t)
			if _, err := insert.ExecContext(ctx, row, d.name, d.title, d.description, d.parameters, t.Server); err != nil {
				return fmt.Errorf("index tool %s: %w", t.Name, err)
			}
		}
		rows[t.Name], kept[row] = row, t
	}
	remove := tx.StmtContext(ctx, x.remove)
	for row := range x.tools {
		if _, ok := kept[row]; ok {
			continue
		}
		if _, err := remove.ExecContext(ctx, row); err != nil {
			return fmt.Errorf("index tools: %w", err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("index tools: %w", err)
	}
	x.rows, x.tools, x.last = rows, kept, last
	return nil
}

// large is where looking at every tool takes milliseconds.
const large = 1000

// ErrNoWords says that a query has no word to look for.
var ErrNoWords = errors.New("the query has no word to look for")

// Find returns the tools that have any of the query's words, best first and at most limit of them, and how many there are. server
// leaves out those of all others; empty: none. Of many tools, a word that most of them have is looked for only when there is no
// other: BM25 gives nothing for it, and it would be compared with all of them.
func (x *Index) Find(ctx context.Context, query, server string, limit int) (hits []Hit, total int, err error) {
	all := terms(query)
	if len(all) == 0 {
		return nil, 0, ErrNoWords
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	var known, telling []string
	for _, term := range all {
		n, err := x.matches(ctx, term, "")
		switch {
		case err != nil:
			return nil, 0, err
		case len(x.rows) > large && n > len(x.rows)/2:
			known = append(known, term)
		case n > 0:
			known, telling = append(known, term), append(telling, term)
		}
	}
	if len(telling) > 0 {
		known = telling
	}
	if len(known) == 0 {
		return nil, 0, nil
	}
	words := strings.Join(known, " OR ")
	if total, err = x.matches(ctx, words, server); err != nil {
		return nil, 0, err
	}
	rows, err := x.find.QueryContext(ctx, words, server, limit)
	if err != nil {
		return nil, 0, fmt.Errorf("look for tools: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var row int64
		var score float64
		if err := rows.Scan(&row, &score); err != nil {
			return nil, 0, fmt.Errorf("look for tools: %w", err)
		}
		hits = append(hits, Hit{x.tools[row], -score}) // SQLite's are the better the smaller
	}
	if err := rows.Err(); err != nil {
		return nil, 0, fmt.Errorf("look for tools: %w", err)
	}
	return hits, total, nil
}

// matches counts the tools that an expression of FTS5 finds.
func (x *Index) matches(ctx context.Context, words, server string) (n int, err error) {
	if err := x.count.QueryRowContext(ctx, words, server).Scan(&n); err != nil {
		return 0, fmt.Errorf("look for tools: %w", err)
	}
	return n, nil
}

// document is what of a tool is indexed.
type document struct{ name, title, description, parameters string }

// maxText bounds what of a definition is indexed, in bytes: some servers put whole manuals into descriptions.
const maxText = 16 << 10

func describe(t Tool) document {
	d := document{name: indexed(t.Name)}
	title, _ := wire.GetString(t.Raw, "title")
	if title == "" {
		title, _ = wire.GetString(t.Raw, "annotations", "title")
	}
	d.title = indexed(cut(title))
	description, _ := wire.GetString(t.Raw, "description")
	d.description = indexed(cut(description))
	var b strings.Builder
	for _, p := range Parameters(t.Raw) {
		if b.Len() > maxText {
			break
		}
		b.WriteString(p.Name + " " + cut(p.Description) + " ")
	}
	d.parameters = indexed(cut(b.String()))
	return d
}

func cut(text string) string {
	if len(text) > maxText {
		return strings.ToValidUTF8(text[:maxText], "")
	}
	return text
}

// Parameter is one of a tool's arguments.
type Parameter struct {
	Name        string
	Description string
	Required    bool
}

// Parameters are the members of a tool's inputSchema, in its order.
func Parameters(raw json.RawMessage) []Parameter {
	schema := wire.Get(raw, "inputSchema")
	members, _ := wire.Members(wire.Get(schema, "properties"))
	required := map[string]bool{}
	names, _ := wire.Elements(wire.Get(schema, "required"))
	for _, name := range names {
		if text, ok := wire.Text(name); ok {
			required[text] = true
		}
	}
	parameters := make([]Parameter, len(members))
	for i, m := range members {
		description, _ := wire.GetString(m.Value, "description")
		parameters[i] = Parameter{m.Key, description, required[m.Key]}
	}
	return parameters
}
