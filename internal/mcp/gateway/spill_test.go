package gateway_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"nightporter/internal/mcp/gateway"
	"nightporter/internal/mcp/wire"
	"nightporter/test/lab"
)

const readResult = "nightporter__read_result"

// limited puts a house over one server whose results may be limit bytes long.
func limited(t *testing.T, limit int, c lab.Config) *house {
	t.Helper()
	h := newHouse(t)
	c.Log = h.recorder.Address
	file := filepath.Join(t.TempDir(), "lab.json") // its results may be too long for a command line
	if err := os.WriteFile(file, []byte(c.Arg()), 0o600); err != nil {
		t.Fatal(err)
	}
	h.configure(fmt.Sprintf("[mcp_servers.%q]\ncommand = %q\nargs = [%q]\nmax_result_bytes = %d\n", c.Name, lab.Binary(t), "@"+file, limit))
	return h
}

var keptURI = regexp.MustCompile(`nightporter://results/[a-z0-9]+(/[a-zA-Z]+(/\d+)?)?`)

// pieces reads all of a part with the tool, and checks that each piece is as long as it was asked to be at most.
func pieces(t *testing.T, ctx context.Context, s *mcp.ClientSession, uri string, length int) (whole string, n int) {
	t.Helper()
	for offset := 0; ; n++ {
		got, result := use(t, ctx, s, readResult, map[string]any{"uri": uri, "offset": offset, "length": length})
		if result.IsError || len(result.Content) != 2 {
			t.Fatalf("offset %d: %q", offset, got)
		}
		if len(got) > length || got == "" {
			t.Fatalf("a piece of %d bytes, asked for %d", len(got), length)
		}
		whole += got
		offset += len(got)
		where := result.Content[1].(*mcp.TextContent).Text
		if strings.Contains(where, "this is the end") {
			return whole, n + 1
		}
		if want := fmt.Sprintf("go on with offset %d]", offset); !strings.HasSuffix(where, want) {
			t.Fatalf("%s, want %s", where, want)
		}
	}
}

// A long result of each kind is kept, told of, and read in pieces by clients of every revision, by tool and as a resource, merged and alone.
func TestALongResultIsKeptAndReadInPieces(t *testing.T) {
	long := strings.Repeat("0123456789 äöü 🎉 \"\\\n", 3000)
	picture := make([]byte, 50_001)
	for i := range picture {
		picture[i] = byte(i * 7)
	}
	encoded := base64.StdEncoding.EncodeToString(picture)
	result := fmt.Sprintf(`{"content":[{"type":"text","text":%s},{"type":"image","mimeType":"image/png","data":%s,"x-own":1.0},{"type":"odd","n":1e2}],"isError":true,"_meta":{"k":1.0},"x-own":5}`,
		wire.Quote(long), strings.ReplaceAll(string(wire.Quote(encoded)), "/", `\/`))
	h := limited(t, 10_000, lab.Config{Name: "s", Tools: lab.Tools("big", "echo"), Calls: map[string]lab.Fault{"big": {Result: json.RawMessage(result)}}})
	told := &calls{}
	for _, single := range []string{"", "s"} {
		_, url := h.endpoint(gateway.Profile{Single: single, OnCall: told.add})
		prefix := "s__"
		if single != "" {
			prefix = ""
		}
		for _, version := range versions {
			t.Run(single+"/"+version, func(t *testing.T) {
				s := h.connect(url, version, nil)
				if got := toolNames(t, h.ctx, s); !slices.Equal(got, []string{readResult, prefix + "big", prefix + "echo"}) {
					t.Errorf("tools %v", got)
				}
				if got, _ := use(t, h.ctx, s, prefix+"echo", map[string]any{}); got != "s: {}" {
					t.Errorf("a short result: %q", got)
				}
				notice, instead := use(t, h.ctx, s, prefix+"big", map[string]any{})
				if !instead.IsError || instead.Meta["k"] != 1.0 {
					t.Errorf("isError %v, _meta %v", instead.IsError, instead.Meta)
				}
				_, beginning, _ := strings.Cut(notice, ":\n\n0123")
				if beginning = "0123" + beginning; !strings.HasPrefix(long, beginning) || len(beginning) < 4090 || len(beginning) > 4096 {
					t.Errorf("the beginning of %d bytes: %.100q", len(beginning), beginning)
				}
				if !strings.Contains(notice, fmt.Sprintf("is %d bytes, over the bound of 10000", len(result))) {
					t.Errorf("notice %.600q", notice)
				}
				links := 0
				for _, c := range instead.Content[1:] {
					if _, ok := c.(*mcp.ResourceLink); ok {
						links++
					}
				}
				if want := map[bool]int{true: 3, false: 0}[version >= "2025-06-18"]; links != want {
					t.Errorf("%d links, want %d", links, want)
				}
				uris := keptURI.FindAllString(notice, 3)
				if len(uris) != 3 || !strings.HasSuffix(uris[0], "/content/0") || !strings.HasSuffix(uris[1], "/content/1") || !strings.HasSuffix(uris[2], "/content/2") {
					t.Fatalf("uris %q", uris)
				}
				if got, n := pieces(t, h.ctx, s, uris[0], 7001); got != long || n < len(long)/7001 {
					t.Errorf("%d pieces make %d bytes of %d", n, len(got), len(long))
				}
				whole := strings.TrimSuffix(uris[0], "/content/0")
				if got, _ := pieces(t, h.ctx, s, whole, 100_000); got != result {
					t.Errorf("the whole is not what the server sent: %.300q", got)
				}
				if got, _ := pieces(t, h.ctx, s, uris[2], 1000); got != `{"type":"odd","n":1e2}` {
					t.Errorf("unknown content %q", got)
				}
				image, err := s.CallTool(h.ctx, &mcp.CallToolParams{Name: readResult, Arguments: map[string]any{"uri": uris[1]}})
				if err != nil {
					t.Fatal(err)
				}
				if got, ok := image.Content[0].(*mcp.ImageContent); !ok || string(got.Data) != string(picture) || got.MIMEType != "image/png" {
					t.Errorf("the image is %T", image.Content[0])
				}

				read := func(uri string) *mcp.ResourceContents {
					t.Helper()
					got, err := s.ReadResource(h.ctx, &mcp.ReadResourceParams{URI: uri})
					if err != nil {
						t.Fatal(err)
					}
					return got.Contents[0]
				}
				if got := read(uris[0]); got.Text != long || got.MIMEType != "text/plain" {
					t.Errorf("the text as a resource: %d bytes", len(got.Text))
				}
				if got := read(uris[1]); string(got.Blob) != string(picture) {
					t.Errorf("the image as a resource: %d bytes", len(got.Blob))
				}
				if got := read(uris[1] + "?offset=1000&length=77"); string(got.Blob) != string(picture[1000:1077]) {
					t.Errorf("a piece of the image: %d bytes", len(got.Blob))
				}
				if got := read(uris[0] + "?offset=12&length=2"); got.Text != "ö" { // ä begins at 11, and has two bytes
					t.Errorf("a piece from the middle of a character: %q", got.Text)
				}
				if got := read(uris[0] + "?length=1&offset=18"); got.Text != "🎉" {
					t.Errorf("a piece shorter than a character: %q", got.Text)
				}
				if got := read(whole); got.Text != result || got.MIMEType != "application/json" {
					t.Errorf("the whole as a resource: %d bytes", len(got.Text))
				}
				for _, wrong := range []string{whole + "/content/9", whole + "/../x", "nightporter://results/none", "nightporter://results/", uris[0] + "?offset=-1", uris[0] + "?offset=9999999"} {
					if _, err := s.ReadResource(h.ctx, &mcp.ReadResourceParams{URI: wrong}); err == nil {
						t.Errorf("%s was read", wrong)
					}
				}
				other := h.connect(url, wire.Latest, nil)
				if _, err := other.ReadResource(h.ctx, &mcp.ReadResourceParams{URI: whole}); err == nil {
					t.Error("another client read the result")
				}
				if got, result := use(t, h.ctx, other, readResult, map[string]any{"uri": whole}); !result.IsError || !strings.Contains(got, "no such result") {
					t.Errorf("another client was told %q", got)
				}
				if templates, err := s.ListResourceTemplates(h.ctx, nil); err != nil || len(templates.ResourceTemplates) != 1 || !strings.HasPrefix(templates.ResourceTemplates[0].URITemplate, "nightporter://results/") {
					t.Errorf("templates %v, %v", templates, err)
				}
			})
		}
	}
	for _, c := range told.list() {
		if c.Tool == "big" && c.ResultBytes != len(result) {
			t.Errorf("%d bytes are recorded of %d", c.ResultBytes, len(result))
		}
	}
}

// A structured result stays as long as it is short. One that is long goes, and nothing promises it: no output schema is listed.
func TestStructuredResultsStayValidOrAreNotPromised(t *testing.T) {
	filler := strings.Repeat("x", 5000)
	h := limited(t, 1000, lab.Config{
		Name: "s",
		Tools: []json.RawMessage{
			json.RawMessage(`{"name":"short","inputSchema":{"type":"object"},"outputSchema":{"type":"object","required":["a"]}}`),
			json.RawMessage(`{"name":"long","inputSchema":{"type":"object"},"outputSchema":{"type":"object","required":["a"]}}`),
		},
		Calls: map[string]lab.Fault{
			"short": {Result: json.RawMessage(`{"content":[{"type":"text","text":"` + filler + `"}],"structuredContent":{"a":1}}`)},
			"long":  {Result: json.RawMessage(`{"structuredContent":{"a":"` + filler + `"}}`)},
		},
	})
	_, url := h.endpoint(gateway.Profile{})
	s := h.connect(url, wire.Latest, nil)
	for tool, err := range s.Tools(h.ctx, nil) {
		if err != nil || tool.OutputSchema != nil {
			t.Errorf("%s: %v, %v", tool.Name, tool.OutputSchema, err)
		}
	}
	if _, result := use(t, h.ctx, s, "s__short", nil); fmt.Sprint(result.StructuredContent) != "map[a:1]" {
		t.Errorf("structured %v", result.StructuredContent)
	}
	notice, result := use(t, h.ctx, s, "s__long", nil)
	if result.StructuredContent != nil || result.IsError {
		t.Errorf("structured %v, error %v", result.StructuredContent, result.IsError)
	}
	uri := keptURI.FindString(notice)
	if got, _ := pieces(t, h.ctx, s, uri, 4096); got != `{"a":"`+filler+`"}` {
		t.Errorf("%s: %d bytes", uri, len(got))
	}
}

func TestLongPromptsAndResourcesAreKeptAsWell(t *testing.T) {
	filler := strings.Repeat("y", 5000)
	h := limited(t, 1000, lab.Config{
		Name: "s", Tools: lab.Tools("echo"), Prompts: []json.RawMessage{json.RawMessage(`{"name":"p"}`)}, Resources: []json.RawMessage{json.RawMessage(`{"uri":"lab://a","name":"a"}`)},
		Methods: map[string]lab.Fault{
			"prompts/get":    {Result: json.RawMessage(`{"description":"d","messages":[{"role":"assistant","content":{"type":"text","text":"` + filler + `"}}]}`)},
			"resources/read": {Result: json.RawMessage(`{"contents":[{"uri":"lab://a","mimeType":"text/html","text":"` + filler + `"},{"uri":"lab://a","blob":"` + base64.StdEncoding.EncodeToString([]byte(filler)) + `"}]}`)},
		},
	})
	_, url := h.endpoint(gateway.Profile{})
	for _, version := range []string{wire.Latest, wire.Modern} {
		s := h.connect(url, version, nil)
		prompt, err := s.GetPrompt(h.ctx, &mcp.GetPromptParams{Name: "s__p"})
		if err != nil || prompt.Description != "d" || len(prompt.Messages) != 2 {
			t.Fatalf("%+v, %v", prompt, err)
		}
		notice := prompt.Messages[0].Content.(*mcp.TextContent).Text
		if got, _ := pieces(t, h.ctx, s, keptURI.FindString(notice), 4096); got != filler {
			t.Errorf("the prompt: %d bytes", len(got))
		}
		resource, err := s.ReadResource(h.ctx, &mcp.ReadResourceParams{URI: "lab://a"})
		if err != nil || len(resource.Contents) != 1 {
			t.Fatalf("%+v, %v", resource, err)
		}
		uris := keptURI.FindAllString(resource.Contents[0].Text, 2)
		if got, err := s.ReadResource(h.ctx, &mcp.ReadResourceParams{URI: uris[0]}); err != nil || got.Contents[0].Text != filler || got.Contents[0].MIMEType != "text/html" {
			t.Errorf("the resource: %+v, %v", got, err)
		}
		if got, err := s.ReadResource(h.ctx, &mcp.ReadResourceParams{URI: uris[1]}); err != nil || string(got.Contents[0].Blob) != filler {
			t.Errorf("the resource's bytes: %+v, %v", got, err)
		}
		blob, err := s.CallTool(h.ctx, &mcp.CallToolParams{Name: readResult, Arguments: map[string]any{"uri": uris[1]}})
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := blob.Content[0].(*mcp.EmbeddedResource); !ok || string(got.Resource.Blob) != filler {
			t.Errorf("the resource's bytes by tool: %+v", blob.Content[0])
		}
	}
}

func TestClientsOfARunShareWhatIsKeptAndItEndsWithTheRun(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	h := limited(t, 1000, lab.Config{Name: "s", Tools: lab.Tools("big")})
	e, _, err := gateway.NewForRun(h.ctx, h.rt, gateway.Profile{Owner: "run 1", Dir: t.TempDir()}, "test", nil)
	if err != nil {
		t.Fatal(err)
	}
	url := h.serve(e)
	if got := e.Tools(); !slices.Equal(got, []string{readResult, "s__big"}) {
		t.Errorf("tools %v", got)
	}
	if server, tool, ok := e.RawName(readResult, nil); !ok || server != "nightporter" || tool != "read_result" {
		t.Errorf("%s %s %v", server, tool, ok)
	}
	first, second := h.connect(url, wire.Latest, nil), h.connect(url, wire.Modern, nil)
	notice, _ := use(t, h.ctx, first, "s__big", map[string]any{"bytes": 5000})
	uri := keptURI.FindString(notice)
	if got, _ := pieces(t, h.ctx, second, uri, 1000); len(got) != 5000 {
		t.Errorf("%d bytes", len(got))
	}
	if left, err := filepath.Glob(filepath.Join(folder, "nightporter-result-*")); err != nil || len(left) > 0 {
		t.Errorf("files that others can open: %v, %v", left, err)
	}
	held := func() (n int) {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("there is no /proc here, by which open files are counted")
		}
		for _, fd := range fds {
			if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, folder) {
				n++
			}
		}
		return n
	}
	if n := held(); n != 1 {
		t.Errorf("%d files are open", n)
	}
	e.Close(h.ctx)
	if n := held(); n != 0 {
		t.Errorf("%d files are open after the run", n)
	}
}

func TestWithoutABoundNothingOfItIsThere(t *testing.T) {
	h := newHouse(t, lab.Config{Name: "s", Tools: lab.Tools("big")})
	_, url := h.endpoint(gateway.Profile{})
	s := h.connect(url, wire.Latest, nil)
	if got := toolNames(t, h.ctx, s); !slices.Equal(got, []string{"s__big"}) {
		t.Errorf("tools %v", got)
	}
	if got, _ := use(t, h.ctx, s, "s__big", map[string]any{"bytes": 5_000_000}); len(got) != 5_000_000 {
		t.Errorf("%d bytes", len(got))
	}
	if s.InitializeResult().Capabilities.Resources != nil {
		t.Error("resources are offered")
	}
}
