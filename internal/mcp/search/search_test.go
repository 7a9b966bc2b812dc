package search

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func tool(server, name, description string, parameters ...string) Tool {
	properties := map[string]any{}
	for _, p := range parameters {
		properties[p] = map[string]any{"type": "string", "description": "the " + p}
	}
	raw, _ := json.Marshal(map[string]any{"name": name, "description": description, "inputSchema": map[string]any{"type": "object", "properties": properties}})
	return Tool{server, server + "__" + name, raw}
}

func open(t testing.TB, tools ...Tool) *Index {
	t.Helper()
	x, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := x.Update(t.Context(), tools); err != nil {
		t.Fatal(err)
	}
	return x
}

func names(t testing.TB, x *Index, query, server string, limit int) (found []string, total int) {
	t.Helper()
	hits, total, err := x.Find(t.Context(), query, server, limit)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hits {
		found = append(found, h.Name)
	}
	return found, total
}

func TestWordsFindToolsHoweverTheyAreSpelled(t *testing.T) {
	x := open(t,
		tool("github", "create_issue", "Opens a ticket in a repository.", "owner", "repo"),
		tool("tracker", "createIssue", ""),
		tool("web", "HTTPServerStatus", ""),
		tool("files", "read", "Reads a file from the disk.", "file_path"),
		tool("shop", "query", "查询订单的状态"),
		tool("caffe", "order", "Bestellt einen Kaffee im Café."),
		tool("mail", "base64Encode", ""),
		tool("other", "noise", "Nothing of interest."),
	)
	for query, want := range map[string][]string{
		"creating issues": {"github__create_issue", "tracker__createIssue"},
		"createissue":     {"tracker__createIssue"},
		"CREATE-ISSUE":    {"github__create_issue", "tracker__createIssue"},
		"http server":     {"web__HTTPServerStatus"},
		"encodes":         {"mail__base64Encode"},
		"tickets":         {"github__create_issue"},
		"paths":           {"files__read"},
		"订单状态":            {"shop__query"},
		"单":               {"shop__query"},
		"cafe":            {"caffe__order"},
		"github":          {"github__create_issue"},
		`"repo" OR NEAR(`: {"github__create_issue"},
		"name:create* -x": {"github__create_issue", "tracker__createIssue"},
		"zebra":           nil,
	} {
		found, total := names(t, x, query, "", 10)
		slices.Sort(found)
		if !slices.Equal(found, want) || total != len(want) {
			t.Errorf("%q found %v of %d, want %v", query, found, total, want)
		}
	}
	if _, _, err := x.Find(t.Context(), " -?! ", "", 10); !errors.Is(err, ErrNoWords) {
		t.Errorf("a query without words: %v", err)
	}
}

func TestWhatFitsBestComesFirst(t *testing.T) {
	x := open(t,
		tool("a", "list_things", "Lists things. Not for an issue.", "issue"),
		tool("a", "close_thing", "", "issue"),
		tool("a", "create_issue", "Creates one."),
		tool("b", "create_issue", "Creates one."),
		tool("c", "pay", "Pays an invoice."), tool("c", "send", "Sends mail."), tool("c", "open", "Opens a door."),
		tool("c", "shut", "Shuts a door."), tool("c", "look", "Looks out."), tool("c", "walk", "Walks."),
	)
	found, total := names(t, x, "create an issue", "", 3)
	if want := []string{"a__create_issue", "b__create_issue", "a__list_things"}; !slices.Equal(found, want) || total != 4 {
		t.Errorf("found %v of %d, want %v of 4", found, total, want)
	}
	if found, total := names(t, x, "create an issue", "b", 3); !slices.Equal(found, []string{"b__create_issue"}) || total != 1 {
		t.Errorf("of server b: %v of %d", found, total)
	}
	hits, _, err := x.Find(t.Context(), "create issue", "", 10)
	if err != nil || !slices.IsSortedFunc(hits, func(a, b Hit) int { return int(b.Score*1e6) - int(a.Score*1e6) }) || hits[0].Score <= 0 {
		t.Errorf("scores %v, %v", hits, err)
	}
}

func TestOfManyToolsAWordThatMostHaveIsLookedForOnlyAlone(t *testing.T) {
	var tools []Tool
	for i := range large + 1 {
		tools = append(tools, tool("s", fmt.Sprintf("get_%d", i), ""))
	}
	x := open(t, append(tools, tool("s", "get_weather", ""))...)
	if found, total := names(t, x, "get the weather", "", 5); !slices.Equal(found, []string{"s__get_weather"}) || total != 1 {
		t.Errorf("found %v of %d", found, total)
	}
	if found, total := names(t, x, "get", "", 5); len(found) != 5 || total != large+2 {
		t.Errorf("alone: found %v of %d", found, total)
	}
}

func TestAnUpdateChangesWhatIsFoundAndNothingElse(t *testing.T) {
	x := open(t, tool("s", "alpha", "one"), tool("s", "beta", "two"))
	row := x.rows["s__beta"]
	if err := x.Update(t.Context(), []Tool{tool("s", "beta", "two"), tool("s", "gamma", "three"), tool("s", "gamma", "again")}); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]int{"alpha": 0, "beta": 1, "gamma": 1, "one": 0, "again": 0} {
		if _, total := names(t, x, query, "", 10); total != want {
			t.Errorf("%s: %d tools, want %d", query, total, want)
		}
	}
	if x.rows["s__beta"] != row {
		t.Error("a tool that is the same was indexed again")
	}
	if err := x.Update(t.Context(), []Tool{tool("s", "beta", "changed")}); err != nil {
		t.Fatal(err)
	}
	if _, total := names(t, x, "two", "", 10); total != 0 {
		t.Error("a changed tool is found by what it was")
	}
	if _, total := names(t, x, "changed", "", 10); total != 1 {
		t.Error("a changed tool is not found by what it is")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := x.Update(ctx, nil); err == nil {
		t.Error("an update without time succeeded")
	}
	if _, total := names(t, x, "changed", "", 10); total != 1 {
		t.Error("an update that failed changed something")
	}
}

func TestTheIndexIsSharedSafely(t *testing.T) {
	x := open(t, tool("s", "alpha", "one"))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				if hits, _, err := x.Find(t.Context(), "alpha", "", 5); err != nil || len(hits) != 1 {
					t.Errorf("%v, %v", hits, err)
				}
			}
		})
	}
	for i := range 20 {
		if err := x.Update(t.Context(), []Tool{tool("s", "alpha", fmt.Sprint(i))}); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
}

func TestOddDefinitionsAreIndexedAsFarAsTheyGo(t *testing.T) {
	x := open(t,
		Tool{"s", "s__none", nil},
		Tool{"s", "s__odd", json.RawMessage(`{"title":5,"description":null,"inputSchema":{"properties":[],"required":"x"}}`)},
		Tool{"s", "s__long", json.RawMessage(`{"description":"` + strings.Repeat("é", maxText) + `"}`)},
		Tool{"s", "s__utf", json.RawMessage("{\"description\":\"w\xff\xfeord\"}")},
	)
	if found, _ := names(t, x, "s", "", 10); len(found) != 4 {
		t.Errorf("found %v", found)
	}
}

func FuzzFind(f *testing.F) {
	for _, seed := range []string{"create issue", `" OR "`, "a*", "查询", "NEAR(a b, 1)", "\x00", "a\xff", "{x}:y", "createIssueHTTP2Server"} {
		f.Add(seed)
	}
	x := open(f, tool("s", "create_issue", "查询订单"))
	f.Fuzz(func(t *testing.T, query string) {
		if _, _, err := x.Find(context.Background(), query, "", 5); err != nil && !errors.Is(err, ErrNoWords) {
			t.Errorf("%q: %v", query, err)
		}
		// A tool is found by its own name, whatever that is.
		if err := x.Update(context.Background(), []Tool{{"s", query, nil}}); err != nil {
			t.Fatalf("%q: %v", query, err)
		}
		hits, _, err := x.Find(context.Background(), query, "", 5)
		if err == nil && len(hits) != 1 {
			t.Errorf("%q is not found by its name", query)
		}
	})
}

// many are tools like those of real servers: a verb and a noun, some sentences, some parameters.
func many(n int) []Tool {
	r := rand.New(rand.NewPCG(1, 2))
	verbs := []string{"get", "list", "create", "update", "delete", "search", "find", "send", "read", "write", "close", "open"}
	nouns := []string{"issue", "pull_request", "invoice", "customer", "file", "branch", "ticket", "message", "channel", "order", "payment", "report", "user", "team", "event"}
	word := func() string { return fmt.Sprint(nouns[r.IntN(len(nouns))], r.IntN(400)) }
	tools := make([]Tool, n)
	for i := range tools {
		verb, noun := verbs[r.IntN(len(verbs))], nouns[r.IntN(len(nouns))]
		description := verb + "s the " + noun + " and returns what it has: "
		for range 20 {
			description += word() + " "
		}
		tools[i] = tool(fmt.Sprintf("server%d", i%40), fmt.Sprintf("%s_%s_%d", verb, noun, i), description, "owner", noun+"_id", "limit", word())
	}
	return tools
}

func BenchmarkIndex20000(b *testing.B) {
	tools := many(20_000)
	for b.Loop() {
		x, err := New()
		if err != nil {
			b.Fatal(err)
		}
		if err := x.Update(b.Context(), tools); err != nil {
			b.Fatal(err)
		}
		x.Close()
	}
}

func BenchmarkFind20000(b *testing.B) {
	x := open(b, many(20_000)...)
	for _, query := range []string{"invoice 17", "creating issues", "get customer payment by id", "order321"} {
		b.Run(strings.ReplaceAll(query, " ", "_"), func(b *testing.B) {
			for b.Loop() {
				if _, _, err := x.Find(b.Context(), query, "", 10); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
