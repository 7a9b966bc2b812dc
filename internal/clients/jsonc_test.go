package clients

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

func TestParseErrorsNameThePlaceAndQuoteNothing(t *testing.T) {
	deep := strings.Repeat("[", maxDepth+1)
	for text, want := range map[string]string{
		`{"a": "sk-canary}`:                "f.json:1:18: cannot be parsed as JSON: it ends too early",
		"{\n  \"ä\": sk-canary}":           "f.json:2:8: cannot be parsed as JSON: this is no value of JSON",
		"{\n  \"a\": \"C:\\sk-canary\"\n}": "f.json:2:8: cannot be parsed as JSON: this is no value of JSON",
		`{"a": 1 "b": 2}`:                  "f.json:1:9: cannot be parsed as JSON: invalid character '\"' after object value",
		`{"a": 1} x`:                       "f.json:1:10: cannot be parsed as JSON: invalid character 'x' after top-level value",
		`/* sk-canary`:                     "f.json:1:1: cannot be parsed as JSON: it ends too early",
		"\xff\xfe{\x00}\x00":               "f.json:1:1: this is UTF-16 text; save the file as UTF-8",
		"{\"a\": \"\xc3\"}":                "f.json:1:8: this is not UTF-8 text; save the file as UTF-8",
		`[1]`:                              "f.json:1:1: this JSON is no object",
		`"sk-canary"`:                      "f.json:1:1: this JSON is no object",
		`{"a": ` + deep + `}`:              "f.json:1:506: values stand more than 500 deep in each other",
	} {
		_, err := parse("f.json", []byte(text))
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%.40q: %v, want %s", text, err, want)
		}
	}
}

func TestBracketsInTextsAndCommentsAreNotDeep(t *testing.T) {
	many := strings.Repeat("[{", maxDepth)
	for _, text := range []string{`{"a": "\"` + many + `"}`, "{ // " + many + "\n}", "{ /* " + many + " */ }", `{"a": "/*"} // ` + many} {
		if _, err := parse("f.json", []byte(text)); err != nil {
			t.Errorf("%.40q: %v", text, err)
		}
	}
}

var sample = []field{{"command", "/opt/nightporter"}, {"args", []string{"mcp"}}, {"env", []field{}}}

// edits has what becomes of a text when the sample is set as porter in mcpServers, and in brackets the keys.
var edits = []struct{ name, text, want string }{
	{"an empty file", "", "{\n  \"mcpServers\": {\n    \"porter\": {\n      \"command\": \"/opt/nightporter\",\n      \"args\": [\"mcp\"],\n      \"env\": {}\n    }\n  }\n}\n"},
	{
		"behind others, with their indentation", "{\n\t\"mcpServers\": {\n\t\t\"a\": {\"command\": \"a\"}\n\t}\n}\n",
		"{\n\t\"mcpServers\": {\n\t\t\"a\": {\"command\": \"a\"},\n\t\t\"porter\": {\n\t\t\t\"command\": \"/opt/nightporter\",\n\t\t\t\"args\": [\"mcp\"],\n\t\t\t\"env\": {}\n\t\t}\n\t}\n}\n",
	},
	{
		"behind a trailing comma and comments", "{\n  \"mcpServers\": {\n    \"a\": {}, // the a\n    /* end */\n  },\n}",
		"{\n  \"mcpServers\": {\n    \"a\": {}, // the a\n    /* end */\n    \"porter\": {\n      \"command\": \"/opt/nightporter\",\n      \"args\": [\"mcp\"],\n      \"env\": {}\n    },\n  },\n}",
	},
	{
		"behind a comment without a comma", "{\n  \"mcpServers\": {\n    \"a\": {} // the a\n  }\n}",
		"{\n  \"mcpServers\": {\n    \"a\": {}, // the a\n    \"porter\": {\n      \"command\": \"/opt/nightporter\",\n      \"args\": [\"mcp\"],\n      \"env\": {}\n    }\n  }\n}",
	},
	{
		"lines of Windows and a byte order mark", "\xef\xbb\xbf{\r\n    \"x\": 1\r\n}\r\n",
		"\xef\xbb\xbf{\r\n    \"x\": 1,\r\n    \"mcpServers\": {\r\n        \"porter\": {\r\n            \"command\": \"/opt/nightporter\",\r\n            \"args\": [\"mcp\"],\r\n            \"env\": {}\r\n        }\r\n    }\r\n}\r\n",
	},
	{
		"an empty table", "{\n  \"mcpServers\": {}\n}\n",
		"{\n  \"mcpServers\": {\n    \"porter\": {\n      \"command\": \"/opt/nightporter\",\n      \"args\": [\"mcp\"],\n      \"env\": {}\n    }\n  }\n}\n",
	},
	{
		"a table with a comment alone", "{\n  \"mcpServers\": {\n    // none\n  }\n}\n",
		"{\n  \"mcpServers\": {\n    // none\n    \"porter\": {\n      \"command\": \"/opt/nightporter\",\n      \"args\": [\"mcp\"],\n      \"env\": {}\n    }\n  }\n}\n",
	},
	{
		"in one line", `{"mcpServers":{"a":{}}}`,
		"{\"mcpServers\":{\"a\":{}, \"porter\": {\n    \"command\": \"/opt/nightporter\",\n    \"args\": [\"mcp\"],\n    \"env\": {}\n  }}}",
	},
	{
		"in the place of one of that name", "{\n  \"mcpServers\": {\n    \"porter\": {\"command\": \"old\"},\n    \"b\": {}\n  }\n}",
		"{\n  \"mcpServers\": {\n    \"b\": {},\n    \"porter\": {\n      \"command\": \"/opt/nightporter\",\n      \"args\": [\"mcp\"],\n      \"env\": {}\n    }\n  }\n}",
	},
	{"a table that is none", `{"mcpServers": []}`, "error: f.json:1:16: mcpServers is no object"},
}

func TestSetChangesNothingElse(t *testing.T) {
	for _, e := range edits {
		d, err := parse("f.json", []byte(e.text))
		if err != nil {
			t.Fatalf("%s: %v", e.name, err)
		}
		got, err := d.set(mcpServers, "porter", sample)
		if err != nil {
			got = []byte("error: " + err.Error())
		}
		if string(got) != e.want {
			t.Errorf("%s:\n%s\nwant\n%s", e.name, got, e.want)
		}
	}
}

func TestRemoveTakesTheEntryAlone(t *testing.T) {
	for _, e := range []struct{ text, want string }{
		{"{\n  \"mcpServers\": {\n    \"a\": {}, // the a\n    \"porter\": {}\n  }\n}", "{\n  \"mcpServers\": {\n    \"a\": {} // the a\n  }\n}"},
		{"{\n  \"mcpServers\": {\n    \"porter\": {}, // ours\n    // of b\n    \"b\": {},\n  }\n}", "{\n  \"mcpServers\": { // ours\n    // of b\n    \"b\": {},\n  }\n}"},
		{"{\"mcpServers\": {\"a\": {}, \"porter\": {}, \"b\": {}}}", "{\"mcpServers\": {\"a\": {}, \"b\": {}}}"},
		{"{\"mcpServers\": {\n    \"porter\": {},\n  }\n}", "{\"mcpServers\": {}\n}"},
	} {
		d, err := parse("f.json", []byte(e.text))
		if err != nil {
			t.Fatal(err)
		}
		got, err := d.remove(mcpServers, "porter")
		if err != nil || string(got) != e.want {
			t.Errorf("%s\nbecomes\n%s\nwant\n%s\n%v", e.text, got, e.want, err)
		}
	}
	d, _ := parse("f.json", []byte(`{"mcpServers": {"porter": {}, "porter": {}}}`))
	if got, err := d.remove(mcpServers, "porter"); err == nil {
		t.Errorf("of two of one name one was removed: %s", got)
	}
	if _, err := d.remove(servers, "porter"); err == nil {
		t.Error("what is not there was removed")
	}
}

// FuzzDocument reads any text, and where it can be read sets an entry and takes it out again. That nothing else changes is checked by the
// edits themselves: their error is one here.
func FuzzDocument(f *testing.F) {
	for _, e := range edits {
		f.Add([]byte(e.text))
	}
	cases, err := filepath.Glob("testdata/import/*.txtar")
	if err != nil || len(cases) == 0 {
		f.Fatal(err)
	}
	for _, file := range cases {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, in := range archive.Files {
			if strings.HasSuffix(in.Name, ".json") {
				f.Add(in.Data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := parse("f.json", data)
		if err != nil {
			if len(err.Error()) > 300 {
				t.Fatalf("the error quotes the text: %v", err)
			}
			return
		}
		before, err := d.object(mcpServers)
		if err != nil {
			return
		}
		with, err := d.set(mcpServers, "porter", sample)
		if err != nil {
			if before != nil && strings.Count(string(data), "\"mcpServers\"")+strings.Count(string(data), "porter")+strings.Count(string(data), `\u`) > 1 {
				return // a name that is given twice cannot be taken out
			}
			t.Fatalf("%q cannot be edited: %v", data, err)
		}
		again, err := parse("f.json", with)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := again.remove(mcpServers, "porter"); err != nil {
			t.Fatalf("%q: %v", with, err)
		}
		source := Source{Client: table[0], File: "f.json"}
		source.entries(Place{OS: "linux", Home: "/h", Project: "/p", Getenv: os.Getenv}, again, table[0].Files[2], again.top(), "/p")
	})
}
